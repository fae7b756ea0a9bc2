"""Secure aggregation: the server learns the sum of the clients' vectors, and no single one.

Each two clients i < j agree on a key (X25519). From it and the round comes a vector of random
64-bit numbers m_ij, which i adds to what it sends and j takes off, so that all masks cancel in the
sum::

    y_i = round(w_i v_i · 2^24) + Σ_{j>i} m_ij − Σ_{j<i} m_ji   (mod 2^64)
    Σ_i y_i = Σ_i round(w_i v_i · 2^24)                          (mod 2^64), exactly

A masked vector is uniformly random to the server, which sees public keys, masked vectors and sums.

What it does not cover
    A server that lies: it relays the public keys and could put its own in their place. Parties that
    keep each other's keys by another way can compare :attr:`Masks.fingerprint`. Clients that tell
    the server their keys: what the others sent is then hidden only among these. A client that
    fails in mid-round: its masks stay in the sum, which is lost; the round must be asked for anew
    without it (Bonawitz et al. recover the masks from shares; this is not done here). What the sum
    itself tells: with few clients, or over many rounds, that can be much. A sum of fewer than
    three is refused.

Source: Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning",
CCS 2017, §4 (the protocol for honest-but-curious parties without dropouts).
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from torch import Tensor

from interlace.errors import Refused

SMALLEST_COHORT = 3
FRACTION_BITS = 24
KEY_BYTES = 32


class Masks:
    """One client's keys with all others, and the masks that come from them."""

    def __init__(self) -> None:
        self._secret = X25519PrivateKey.generate()
        self._keys: list[bytes] = []
        self._shared: dict[int, bytes] = {}
        self._last_round = -1
        self.place = -1

    @property
    def public_key(self) -> Tensor:
        """The public key, uint8 of shape (32,)."""
        key: Tensor = torch.from_numpy(np.frombuffer(self._public, np.uint8).copy())
        return key

    @property
    def _public(self) -> bytes:
        return self._secret.public_key().public_bytes_raw()

    @property
    def fingerprint(self) -> str:
        """A short text over all public keys, equal at all clients unless somebody swapped one."""
        return blake2b(b"".join(self._keys), digest_size=16).hexdigest()

    def meet(self, keys: Tensor) -> None:
        """Take all clients' public keys; uint8 of shape (clients, 32).

        Raises:
            Refused: one's own key is not among them, or one stands there twice.
        """
        if keys.dim() != 2 or keys.shape[1] != KEY_BYTES:
            raise Refused("public keys of 32 bytes each were due")
        listed = [bytes(row) for row in keys.numpy()]
        if len(set(listed)) < len(listed) or self._public not in listed:
            raise Refused("the public keys are not those of different clients, this one included")
        self._keys, self.place = listed, listed.index(self._public)
        self._shared = {}

    def mask(self, vector: Tensor, weight: float, cohort: Tensor, moment: int) -> Tensor:
        """A weighted vector in fixed point under this client's masks.

        Args:
            vector: float, shape (d,).
            weight: What it counts.
            cohort: Places of all clients of this round, in the order of the keys; int64, (m,).
            moment: The round, later than any before: a mask used twice would hide nothing.

        Returns:
            uint8 of shape (8 d,): little-endian 64-bit numbers.

        Raises:
            Refused: the round is too small, is not new, or lacks this client; or a number is too
                large for the sum to fit.
        """
        members = cohort.tolist()
        if len(set(members)) < SMALLEST_COHORT or len(set(members)) < len(members):
            raise Refused(
                f"a sum over {len(members)} clients hides too little; "
                f"{SMALLEST_COHORT} is the least"
            )
        if self.place not in members or not all(0 <= m < len(self._keys) for m in members):
            raise Refused("the round names clients that did not agree on keys, or not this one")
        if moment <= self._last_round:
            raise Refused("a mask was asked for twice in one round")
        self._last_round = moment
        number = (vector.double() * (weight * 2**FRACTION_BITS)).round()
        if number.numel() and float(number.abs().max()) >= 2**62 / len(members):
            raise Refused("an update is too large for secure aggregation; lower the learning rate")
        total = number.long()
        for other in members:
            if other != self.place:
                stream = self._stream(other, moment, total.numel())
                total = total + stream if self.place < other else total - stream
        sent: Tensor = total.view(torch.uint8)
        return sent

    def _stream(self, other: int, moment: int, length: int) -> Tensor:
        """The random numbers shared with another client for a round; int64 of shape (length,)."""
        if other not in self._shared:
            public = X25519PublicKey.from_public_bytes(self._keys[other])
            pair = b"".join(sorted((self._public, self._keys[other])))
            derive = HKDF(SHA256(), KEY_BYTES, None, b"interlace pairwise mask" + pair)
            self._shared[other] = derive.derive(self._secret.exchange(public))
        nonce = bytes(8) + moment.to_bytes(8, "little")  # a counter of blocks, then the round
        cipher = Cipher(algorithms.ChaCha20(self._shared[other], nonce), mode=None)
        noise = cipher.encryptor().update(bytes(8 * length))
        numbers: Tensor = torch.from_numpy(np.frombuffer(noise, np.int64).copy())
        return numbers


def unmask(masked: Sequence[Tensor]) -> Tensor:
    """The sum of what all clients of a round masked; float64 of shape (d,).

    Raises:
        Refused: the vectors differ in length.
    """
    if len({m.shape for m in masked}) != 1:
        raise Refused("the masked vectors differ in length")
    total = torch.zeros(masked[0].numel() // 8, dtype=torch.int64)
    for m in masked:
        total += m.view(torch.int64)  # wraps around, as it must
    summed: Tensor = total.double() / 2**FRACTION_BITS
    return summed
