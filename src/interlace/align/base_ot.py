"""Base oblivious transfers: from each pair of random keys the chooser gets the one of its choice.

Scheme: Chou and Orlandi 2015, "The Simplest Protocol for Oblivious Transfer", in the prime-order
subgroup of edwards25519 (libsodium through PyNaCl >= 1.6.2, which checks that subgroup rightly:
CVE-2025-69277). About 126 bits of security under the computational Diffie-Hellman assumption, with
the hash as a random oracle.

What is known against the paper's version, and what is done here: keys are hashed together with the
whole transcript of their transfer (index, both points), which its proof needs; points that are not
of the prime order are refused on both sides. The protocol is not universally composable against a
party that departs from it (Genç, Iovino and Rial 2018; Byali et al. 2017), which honest-but-curious
parties, the model of this package, do not.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from hashlib import blake2b

import nacl.bindings as sodium

from interlace.errors import Refused

POINT_BYTES = 32
KEY_BYTES = 16


class Offerer:
    """The side that gets both keys of each pair."""

    def __init__(self) -> None:
        self._secret = _scalar()
        self.point = sodium.crypto_scalarmult_ed25519_base_noclamp(self._secret)
        self._square = sodium.crypto_scalarmult_ed25519_noclamp(self._secret, self.point)

    def keys(self, answers: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
        """Both keys of each transfer: for choice 0 and for choice 1.

        Raises:
            Refused: an answer is not a point of the prime-order subgroup.
        """
        out = []
        for i, answer in enumerate(answers):
            _check(answer)
            zero = sodium.crypto_scalarmult_ed25519_noclamp(self._secret, answer)
            one = sodium.crypto_core_ed25519_sub(zero, self._square)
            out.append(
                (_key(i, self.point, answer, zero), _key(i, self.point, answer, one)),
            )
        return out


def choose(point: bytes, choices: Sequence[int]) -> tuple[list[bytes], list[bytes]]:
    """The side that chooses.

    Args:
        point: The offerer's point.
        choices: A bit for each transfer.

    Returns:
        The answers to send, and the key of each transfer.

    Raises:
        Refused: ``point`` is not of the prime-order subgroup.
    """
    _check(point)
    answers, keys = [], []
    for i, choice in enumerate(choices):
        secret = _scalar()
        own = sodium.crypto_scalarmult_ed25519_base_noclamp(secret)
        # Both sums are made, so that the time does not tell the choice.
        answer = (own, sodium.crypto_core_ed25519_add(own, point))[choice]
        shared = sodium.crypto_scalarmult_ed25519_noclamp(secret, point)
        answers.append(answer)
        keys.append(_key(i, point, answer, shared))
    return answers, keys


def _scalar() -> bytes:
    return sodium.crypto_core_ed25519_scalar_reduce(secrets.token_bytes(64))


def _key(index: int, offer: bytes, answer: bytes, shared: bytes) -> bytes:
    return blake2b(
        index.to_bytes(4, "little") + offer + answer + shared,
        digest_size=KEY_BYTES,
        person=b"base ot",
    ).digest()


def _check(point: bytes) -> None:
    if not sodium.crypto_core_ed25519_is_valid_point(point):
        raise Refused("a point of the base oblivious transfer is not in the prime-order subgroup")
