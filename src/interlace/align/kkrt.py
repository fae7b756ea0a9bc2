"""Private set intersection by the KKRT oblivious pseudo-random function: the fast protocol.

Scheme: Kolesnikov, Kumaresan, Rosulek and Trieu 2016 (see :mod:`interlace.align.oprf` for
parameters and security: 128 bits computational, 40 statistical). Honest-but-curious parties. The
active party evaluates, so it learns first::

    active                                          passive
      session key, number of ids    ── begin ────►  number of ids
      point                         ── transfers ►  512 points (base transfers)
      masks, a block of bins each   ── masks ────►  computes F(bin, y) at all three bins of each y
                                    ── values ───►
                                    ◄─────────────  F of its ids, shuffled, one list a hash function
      equal values are shared       ── keep ─────►  learns which of its ids are shared

What each learns is as for Diffie-Hellman: the size of the other's set, and which of its own ids are
shared. The three lists are in one secret order, so naming a shared person does not say by which of
its hash functions the active party had placed it (which would tell of its other ids). Values are as
long as 40 bits of statistical security ask for (10 bytes at a million ids each).
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from interlace.align import base_ot, cuckoo, oprf
from interlace.align.exchange import (
    MESSAGE_BYTES,
    MOST_IDS,
    Lookup,
    Matched,
    Progress,
    Rows,
    ids_of,
    keep_rows,
    matched_once,
    random_order,
    received,
    to_send,
)
from interlace.align.hashing import SALT_BYTES, Bytes
from interlace.boundary.control import whole_number
from interlace.boundary.kinds import BlindedIds, Control, RowSelection
from interlace.errors import AlignmentError, Refused
from interlace.party import Party, PassiveSide, Peer, operation

_ATTEMPTS = 8


class OprfSide(PassiveSide):
    """The passive party's side of the function itself: it becomes the holder of its keys."""

    def __init__(self, party: Party, partner: str) -> None:
        super().__init__(party, partner)
        self.forget_people()

    def forget_people(self) -> None:
        """Drop all that came from the table's ids."""
        self._theirs = 0
        self._session_key = b""
        self._holder: oprf.KeyHolder | None = None

    @operation
    def begin(self, hello: Control) -> Control:
        """Take the active party's number of ids and session key; give the number of ids."""
        theirs = whole_number(hello, "ids", MOST_IDS, least=1)
        try:
            key = bytes.fromhex(hello["key"])
        except (KeyError, TypeError, ValueError):
            key = b""
        if len(key) != SALT_BYTES:
            raise Refused("the session key is not 16 bytes in hexadecimal")
        self.forget_people()
        self._theirs, self._session_key = theirs, key
        return {"ids": len(ids_of(self.party))}

    @operation
    def transfers(self, point: BlindedIds) -> BlindedIds:
        """Choose in the base transfers: a point, shape (32,), against 512 points, (512, 32)."""
        offer = received(point, base_ot.POINT_BYTES, what="the point of the base transfers")
        if not self._session_key:
            raise Refused("the base transfers came before the session key")
        ids = self.party.keys.values
        self._holder = oprf.KeyHolder(
            ids,
            self._session_key,
            cuckoo.bin_count(self._theirs),
            oprf.value_bytes(self._theirs, len(ids)),
            offer.tobytes(),
        )
        points = np.frombuffer(bytearray(b"".join(self._holder.answers)), np.uint8)
        return to_send(points.reshape(-1, base_ot.POINT_BYTES))

    @operation
    def masks(self, masks: BlindedIds) -> None:
        """Take the masks of the next block of bins, shape (bins, 64)."""
        if self._holder is None or self._holder.ready:
            raise Refused("masks came that were not due")
        self._holder.take(received(masks, self._holder.due, oprf.CODE_BYTES, what="masks"))

    def holder(self) -> oprf.KeyHolder:
        """The keys, once they are whole.

        Raises:
            Refused: masks are still missing.
        """
        if self._holder is None or not self._holder.ready:
            raise Refused("values were asked for before all masks had come")
        return self._holder


class KkrtSide(OprfSide):
    """The passive party's side of a matching of two."""

    def forget_people(self) -> None:
        """Drop all that came from the table's ids."""
        super().forget_people()
        self._order: Rows = np.empty(0, np.int64)

    @operation
    def values(self, which: Control) -> BlindedIds:
        """Values under a hash function from ``start`` on in the secret order, shape (c, size)."""
        values = self.holder().values[whole_number(which, "hash", cuckoo.HASHES)]
        if not len(self._order):
            self._order = random_order(len(values))
        first = whole_number(which, "start", len(values))
        return to_send(values[self._order[first : first + MESSAGE_BYTES // values.shape[1]]])

    @operation
    def keep(self, positions: RowSelection) -> None:
        """Learn which people are shared: positions in the secret order, in the common order."""
        most = min(self._theirs, len(self._order))
        keep_rows(self.party, self.partner, positions, self._order, most)
        self._holder = None  # it is large, and done with


class Prepared(NamedTuple):
    """The active party's ids placed under one key, for all partners."""

    key: bytes
    placed: oprf.Placed


def prepare(ids: list[bytes]) -> Prepared:
    """Draw a session key under which the ids can be placed.

    Raises:
        AlignmentError: none of eight keys would do, which does not happen to ids that differ.
    """
    for _ in range(_ATTEMPTS):
        key = oprf.session_key()
        try:
            return Prepared(key, oprf.place(ids, key))
        except cuckoo.TableFull:
            continue
    raise AlignmentError("the ids cannot be placed in a hash table; are there duplicates?")


def evaluate(peer: Peer, prepared: Prepared, progress: Progress) -> tuple[Bytes, int]:
    """Learn the function's value for each of the active party's ids.

    Returns:
        Values, shape (n, size), and how many ids the partner has.

    Raises:
        Refused: the partner's answers are not as agreed.
    """
    placed = prepared.placed
    n, bins = len(placed.which), len(placed.table)
    begun = peer.ask(OprfSide.begin, {"ids": n, "key": prepared.key.hex()})
    theirs = whole_number(begun, "ids", MOST_IDS, least=1)
    offerer = base_ot.Offerer()
    point = to_send(np.frombuffer(offerer.point, np.uint8))
    answers = received(
        peer.ask(OprfSide.transfers, point),
        oprf.CODE_BITS,
        base_ot.POINT_BYTES,
        what="the base transfers",
    )
    keys = offerer.keys([a.tobytes() for a in answers])
    evaluator = oprf.Evaluator(placed, keys, oprf.value_bytes(n, theirs))
    done = 0
    for masks in _ahead(evaluator.masks()):
        peer.ask(OprfSide.masks, to_send(masks))
        done += len(masks)
        progress(f"matching with {peer.name}", done / bins)
    return evaluator.values, theirs


def _ahead(blocks: Iterator[Bytes]) -> Iterator[Bytes]:
    """Work on the next block while this one is with the partner."""
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, blocks, None)
        while (block := coming.result()) is not None:
            coming = pool.submit(next, blocks, None)
            yield block


def match(peer: Peer, prepared: Prepared, progress: Progress) -> Matched:
    """Find the people shared with a partner.

    Raises:
        Refused: the partner's answers are not as agreed.
    """
    mine, theirs = evaluate(peer, prepared, progress)
    size = mine.shape[1]
    step = MESSAGE_BYTES // size
    rows, positions = [], []
    for i in range(cuckoo.HASHES):
        own = np.flatnonzero(prepared.placed.which == i)
        lookup = Lookup(mine[own])
        for first in range(0, theirs, step):
            due = min(step, theirs - first)
            answer = peer.ask(KkrtSide.values, {"hash": i, "start": first})
            found, at = lookup.find(received(answer, due, size, what="values"))
            rows.append(own[found])
            positions.append(at + first)
            progress(f"comparing with {peer.name}", (i + (first + due) / theirs) / cuckoo.HASHES)
    return matched_once(np.concatenate(rows), np.concatenate(positions), theirs, peer.name)
