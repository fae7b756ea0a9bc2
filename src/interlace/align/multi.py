"""Private set intersection of three or more parties that reveals only whom all of them share.

Scheme: Kolesnikov, Matania, Pinkas, Rosulek and Trieu 2017, "Practical Multi-Party Private Set
Intersection from Symmetric-Key Techniques" (programmable oblivious PRF with zero-shares), with the
table of :mod:`interlace.align.okvs` for the hints. Honest-but-curious parties::

    active                                          each passive party i
                                 ◄── public_key ──  an X25519 key
      all public keys               ── agree ────►  a key with every other passive party
      the function of kkrt, so that i holds keys and active has F_i(x) for its own ids x
                                    ── seal ─────►  a table giving F_i(y) + share_i(y) for its ids y
                                    ◄── sealed ───
      adds up, over all i, the table's value at x and F_i(x): the shares of an id that all parties
      hold add up to nought; for any other id something random is left
      marks of the shared people    ── keep ─────►  learns which of its ids all parties share

``share_i(y)`` is the sum of a pseudo-random function of y under the keys that i has with each other
passive party, so over all of them each key occurs twice.

The active party learns each set's size and which of its ids all parties hold; not which ids it
shares with some parties only. A passive party learns the active set's size and which of its ids all
hold. If the active party and all passive parties but one put their knowledge together, they learn
which of the active party's ids that one has, as two parties would. The active party relays the
public keys and is trusted not to swap them, as honest-but-curious parties do not.

A mark is a keyed hash under an X25519 key between the active and that passive party, so whoever
sees the messages cannot try ids against it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from secrets import token_bytes
from typing import NamedTuple

import nacl.bindings as sodium
import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from interlace.align import cuckoo, curve, kkrt, okvs, oprf
from interlace.align.exchange import (
    MESSAGE_BYTES,
    Lookup,
    Progress,
    Rows,
    keep_rows,
    received,
    to_send,
)
from interlace.align.hashing import Bytes, hash_all
from interlace.boundary.control import whole_number
from interlace.boundary.kinds import BlindedIds, Control
from interlace.errors import AlignmentError, Refused
from interlace.party import Peer, operation

KEY_BYTES = 32
MARK_BYTES = 16
_ATTEMPTS = 8


class CommonSide(kkrt.OprfSide):
    """The passive party's side of a matching of three or more."""

    def forget_people(self) -> None:
        """Drop all that came from the table's ids, and all keys."""
        super().forget_people()
        self._secret = curve.new_scalar()
        self._mark_key = b""
        self._share_keys: list[bytes] = []
        self._table: Bytes | None = None

    @operation
    def public_key(self) -> BlindedIds:
        """A fresh public key; shape (32,)."""
        return to_send(np.frombuffer(sodium.crypto_scalarmult_base(self._secret), np.uint8))

    @operation
    def agree(self, keys: BlindedIds) -> None:
        """Take all public keys, shape (parties, 32): the active party's, then the passive ones'."""
        came = received(keys, None, KEY_BYTES, what="public keys")
        listed = [k.tobytes() for k in came]
        mine = sodium.crypto_scalarmult_base(self._secret)
        if len(listed) < 3 or listed.count(mine) != 1 or len(set(listed)) != len(listed):
            raise Refused("the public keys are not those of three or more different parties")
        shared = curve.multiply(self._secret, [k for k in listed if k != mine])
        self._mark_key = _derive(shared[0], "mark")
        self._share_keys = [_derive(s, "share") for s in shared[1:]]

    @operation
    def seal(self) -> BlindedIds:
        """Make the table of one's own ids; give its seed, shape (16,)."""
        holder = self.holder()
        if not self._share_keys:
            raise Refused("the table was asked for before the public keys had come")
        inputs = holder.digests.inputs
        size = holder.values.shape[2]
        keys = np.concatenate([oprf.tagged(inputs, i) for i in range(cuckoo.HASHES)])
        values = holder.values.reshape(-1, size)
        values ^= np.tile(_shares(inputs, self._share_keys, size), (cuckoo.HASHES, 1))
        for _ in range(_ATTEMPTS):
            seed = token_bytes(okvs.SEED_BYTES)
            try:
                self._table = okvs.encode(keys, values, seed)
            except okvs.EncodingFailed:
                continue
            self._holder = None  # it is large, and done with
            return to_send(np.frombuffer(seed, np.uint8))
        raise AlignmentError("the table of blinded ids cannot be solved for; align again")

    @operation
    def sealed(self, which: Control) -> BlindedIds:
        """Slots of the table from ``start`` on; shape (c, size)."""
        if self._table is None:
            raise Refused("the table was asked for before it was made")
        first = whole_number(which, "start", len(self._table))
        return to_send(self._table[first : first + MESSAGE_BYTES // self._table.shape[1]])

    @operation
    def keep(self, marks: BlindedIds) -> None:
        """Learn which people all parties share: their marks, shape (c, 16), in the common order."""
        came = received(marks, None, MARK_BYTES, what="marks")
        if self._table is None:
            raise Refused("shared people were named before the table was made")
        inputs = oprf.digest(self.party.keys.values, self._session_key).inputs
        own, at = Lookup(_marks(inputs, self._mark_key)).find(came)
        if len(own) != len(came):
            raise Refused(f"party '{self.party.name}' was told of shared people it does not have")
        rows = own[np.argsort(at)]
        everyone = np.arange(len(inputs), dtype=np.int64)
        most = min(self._theirs, len(inputs))
        keep_rows(self.party, self.partner, torch.from_numpy(rows), everyone, most)
        self._table = None


class Common(NamedTuple):
    """Whom all parties share.

    Attributes:
        rows: The active party's rows, in no order that means anything.
        sizes: How many people each passive party has.
        mark_keys: The active party's key with each passive party.
    """

    rows: Rows
    sizes: dict[str, int]
    mark_keys: dict[str, bytes]


def match(peers: Mapping[str, Peer], prepared: kkrt.Prepared, progress: Progress) -> Common:
    """Find the people whom all parties share.

    Raises:
        Refused: a partner's answers are not as agreed.
    """
    values, sizes = {}, {}
    for name, peer in peers.items():
        values[name], sizes[name] = kkrt.evaluate(peer, prepared, progress)
    secret = curve.new_scalar()
    public = [sodium.crypto_scalarmult_base(secret)]
    for peer in peers.values():
        key = received(peer.ask(CommonSide.public_key), KEY_BYTES, what="the public key")
        public.append(key.tobytes())
    everyone = np.frombuffer(b"".join(public), np.uint8).reshape(-1, KEY_BYTES)
    shared = curve.multiply(secret, public[1:])
    # The shares' sums are compared at the length that the smallest partner's values have.
    size = min(v.shape[1] for v in values.values())
    left = np.zeros((len(prepared.placed.which), size), np.uint8)
    for name, peer in peers.items():
        peer.ask(CommonSide.agree, to_send(everyone))
        left ^= _unsealed(peer, prepared, sizes[name], values[name], progress)[:, :size]
    rows = np.flatnonzero(~left.any(axis=1))
    mark_keys = dict(zip(peers, (_derive(s, "mark") for s in shared), strict=True))
    return Common(rows, sizes, mark_keys)


def tell(peer: Peer, prepared: kkrt.Prepared, mark_key: bytes, rows: Rows) -> None:
    """Let a partner know which people all parties share, in the order of ``rows``."""
    marks = _marks(prepared.placed.digests.inputs[rows], mark_key)
    peer.ask(CommonSide.keep, to_send(marks))


def _unsealed(
    peer: Peer, prepared: kkrt.Prepared, theirs: int, values: Bytes, progress: Progress
) -> Bytes:
    """A partner's share for each id that it holds, something random for the others."""
    seed = received(peer.ask(CommonSide.seal), okvs.SEED_BYTES, what="the table's seed")
    size = values.shape[1]
    slots, step = okvs.slot_count(cuckoo.HASHES * theirs), MESSAGE_BYTES // size
    table = np.empty((slots, size), np.uint8)
    for first in range(0, slots, step):
        due = min(step, slots - first)
        answer = peer.ask(CommonSide.sealed, {"start": first})
        table[first : first + due] = received(answer, due, size, what="the table of blinded ids")
        progress(f"comparing with {peer.name}", (first + due) / slots)
    return okvs.decode(table, prepared.placed.inputs, seed.tobytes()) ^ values


def _derive(shared: bytes, use: str) -> bytes:
    """A key for one use out of an X25519 secret."""
    return hash_all([shared], 16, use=f"common {use}").tobytes()


def _prf(key: bytes, inputs: Bytes) -> Bytes:
    """AES-128 of each 16-byte input, as a pseudo-random function; shape (n, 16)."""
    encryptor = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    block = encryptor.update(np.ascontiguousarray(inputs).data)
    return np.frombuffer(block, np.uint8).reshape(-1, 16)


def _shares(inputs: Bytes, keys: Sequence[bytes], size: int) -> Bytes:
    """A party's zero-share of each id; shape (n, size)."""
    total = np.zeros((len(inputs), 16), np.uint8)
    for key in keys:
        total ^= _prf(key, inputs)
    return total[:, :size]


def _marks(inputs: Bytes, key: bytes) -> Bytes:
    """What the active and one passive party call a person between them; shape (n, 16)."""
    return _prf(key, inputs).copy()
