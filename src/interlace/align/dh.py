"""Diffie-Hellman private set intersection: the conservative protocol, for up to 100,000 ids.

Scheme: Meadows 1986 and Huberman, Franklin and Hogg 1999, in the form in which the asker takes its
own blinding off again (Jarecki and Liu 2010; also openmined's psi), over Curve25519 (see
:mod:`interlace.align.curve`: about 126 bits). Honest-but-curious parties::

    active                                        passive
      a·H(x) for its ids x        ── reblind ──►
                                  ◄─────────────  b·(a·H(x))
      a⁻¹·b·a·H(x) = b·H(x)       ── tokens ───►
                                  ◄─────────────  b·H(y) for its ids y, shuffled, cut to 96 bits
      equal tokens are shared     ── keep ─────►  learns which of its ids are shared

The active party learns the size of the other set and which of its ids are in it; the passive party
the size of the active set and, at the end, which of its own ids are in it. Tokens are cut to 96
bits: a false match has a chance of at most n·m·2^-96 (2^-62 at 100,000 ids each).

All cores of each party are used, and both parties compute at the same time: while the passive side
works on its answer, the active side blinds the next chunk and takes its blinding off the last one.

A passive party may keep its key and tokens (:func:`cache_tokens`), which halves its work in later
alignments or does away with most of it when the active set is small. The price: whoever meets the
same key again can tell which of the tokens it saw are new and which are gone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from interlace.align import curve
from interlace.align.exchange import (
    MOST_IDS,
    Lookup,
    Matched,
    Progress,
    Rows,
    cores,
    finish,
    ids_of,
    keep_rows,
    matched_once,
    random_order,
    received,
    start,
    to_send,
)
from interlace.align.hashing import Bytes, hash_all
from interlace.boundary.control import whole_number
from interlace.boundary.kinds import BlindedIds, Control, RowSelection
from interlace.errors import AlignmentError, Refused
from interlace.party import Party, PassiveSide, Peer, State, operation, read_state, write_state

CHUNK = 4096  # ids in a message
TOKEN_BYTES = 12
_AHEAD = 2  # chunks that the active side blinds ahead of the conversation


class DhSide(PassiveSide):
    """The passive party's side."""

    def __init__(self, party: Party, partner: str) -> None:
        super().__init__(party, partner)
        self.forget_people()

    def forget_people(self) -> None:
        """Drop the secret order and the key; the next ``begin`` draws new ones."""
        self._theirs = self._blinded = 0
        self._key = _Key(b"", {})
        self._order: Rows = np.empty(0, np.int64)

    @operation
    def begin(self, hello: Control) -> Control:
        """Take the active party's number of ids; give the number of ids."""
        theirs = whole_number(hello, "ids", MOST_IDS, least=1)
        ids = ids_of(self.party)
        self._key = _Key.of(self.party)
        self._order = random_order(len(ids))
        self._theirs, self._blinded = theirs, 0
        return {"ids": len(ids)}

    @operation
    def reblind(self, points: BlindedIds) -> BlindedIds:
        """Blind the active party's points, shape (c, 32), once more."""
        came = received(points, None, curve.POINT_BYTES, what="blinded ids")
        if not self._key.scalar or not 0 < len(came) <= CHUNK:
            raise Refused(f"{len(came):,} blinded ids came; 1 to {CHUNK:,} were due")
        # Each point is a guess at who is here, so no more are taken than were announced.
        if self._blinded + len(came) > self._theirs:
            raise Refused(f"more blinded ids came than the {self._theirs:,} announced")
        curve.refuse_twist(_split(came))
        with ThreadPoolExecutor(cores()) as pool:
            again = finish(start(pool, partial(_multiply, self._key.scalar), came))
        self._blinded += len(came)
        return to_send(again)

    @operation
    def tokens(self, which: Control) -> BlindedIds:
        """Tokens of the ids from ``start`` on in the secret order, shape (c, 12)."""
        first = whole_number(which, "start", len(self._order))
        ids = [self.party.keys.values[row] for row in self._order[first : first + CHUNK]]
        with ThreadPoolExecutor(cores()) as pool:
            return to_send(finish(start(pool, self._key.tokens, ids)))

    @operation
    def keep(self, positions: RowSelection) -> None:
        """Learn which people are shared: positions in the secret order, in the common order."""
        most = min(self._theirs, len(self._order))
        keep_rows(self.party, self.partner, positions, self._order, most)


class Asker:
    """The active party's side; it blinds its ids once for all partners.

    Args:
        ids: The active party's ids.
    """

    def __init__(self, ids: list[bytes]) -> None:
        self._ids = ids
        self._blinding = curve.new_blinding()
        self._chunks: list[Bytes] = []

    def match(self, peer: Peer, theirs: int, progress: Progress) -> Matched:
        """Find the people shared with a partner that has begun and has ``theirs`` ids.

        Raises:
            Refused: the partner's answers are not as agreed.
        """
        n = len(self._ids)
        unblind = partial(_multiply, self._blinding.inverse, size=TOKEN_BYTES)
        mine: list[Future[Bytes]] = []
        came = []
        with ThreadPoolExecutor(cores()) as pool:
            blinded = self._blinded(pool)
            # Both kinds of question in turn, so that both parties have work all the time.
            for first in range(0, max(n, theirs), CHUNK):
                if first < n:
                    chunk = next(blinded)
                    again = peer.ask(DhSide.reblind, to_send(chunk))
                    points = received(again, *chunk.shape, what="blinded ids")
                    curve.refuse_twist(_split(points))
                    mine += start(pool, unblind, points)
                if first < theirs:
                    due = min(CHUNK, theirs - first)
                    tokens = peer.ask(DhSide.tokens, {"start": first})
                    came.append(received(tokens, due, TOKEN_BYTES, what="tokens"))
                done = min(first + CHUNK, n) + min(first + CHUNK, theirs)
                progress(f"matching with {peer.name}", done / (n + theirs))
            rows, positions = Lookup(finish(mine)).find(np.concatenate(came))
        return matched_once(rows, positions, theirs, peer.name)

    def _blinded(self, pool: ThreadPoolExecutor) -> Iterator[Bytes]:
        """The blinded ids, chunk by chunk, some of them worked on ahead."""
        yield from self._chunks
        blind = partial(_blind, self._blinding.scalar)
        ahead: deque[list[Future[Bytes]]] = deque()
        for first in range(len(self._chunks) * CHUNK, len(self._ids) + _AHEAD * CHUNK, CHUNK):
            ids = self._ids[first : first + CHUNK]
            if ids:
                ahead.append(start(pool, blind, ids))
            if ahead and (len(ahead) > _AHEAD or not ids):
                self._chunks.append(finish(ahead.popleft()))
                yield self._chunks[-1]


class _Key(NamedTuple):
    """A passive party's secret scalar, and the tokens that it already has under it."""

    scalar: bytes
    known: dict[bytes, bytes]

    @staticmethod
    def of(party: Party) -> _Key:
        """The party's cached key, or a fresh one."""
        folder = _cache(party)
        if folder is None or not folder.is_dir():
            return _Key(curve.new_scalar(), {})
        state = read_state(folder)
        known, tokens = (_split(state.tensors[k].numpy()) for k in ("ids", "tokens"))
        return _Key(bytes.fromhex(state.meta["scalar"]), dict(zip(known, tokens, strict=True)))

    def names(self, ids: list[bytes]) -> list[bytes]:
        """What ids are known by in the cache, which should hold none as it stands."""
        return _split(hash_all(ids, 16, use="dh cache", salt=self.scalar[:16]))

    def tokens(self, ids: list[bytes]) -> Bytes:
        """The token of each id; shape (n, 12)."""
        out = np.empty((len(ids), TOKEN_BYTES), np.uint8)
        names = self.names(ids) if self.known else []
        new = [i for i, name in enumerate(names) if name not in self.known]
        if not self.known:
            new = list(range(len(ids)))
        for i, name in enumerate(names):
            if name in self.known:
                out[i] = np.frombuffer(self.known[name], np.uint8)
        if new:
            out[new] = _blind(self.scalar, [ids[i] for i in new])[:, :TOKEN_BYTES]
        return out


def cache_tokens(party: Party) -> None:
    """Blind a party's ids now, and keep key and tokens in its folder for later alignments.

    Call it again when the table has changed; only new ids are computed. Delete the folder
    ``dh-tokens`` to go back to a fresh key for each alignment.

    Raises:
        AlignmentError: the party has no folder.
    """
    folder = _cache(party)
    if folder is None:
        raise AlignmentError(f"party '{party.name}' has no folder to keep its tokens in")
    key, ids = _Key.of(party), party.keys.values
    with ThreadPoolExecutor(cores()) as pool:
        tokens = np.concatenate(
            [finish(start(pool, key.tokens, ids[i : i + CHUNK])) for i in range(0, len(ids), CHUNK)]
        )
    names = np.frombuffer(bytearray(b"".join(key.names(ids))), np.uint8).reshape(-1, 16)
    tensors = {"ids": torch.from_numpy(names), "tokens": torch.from_numpy(tokens)}
    write_state(folder, State(tensors, {"scalar": key.scalar.hex()}))
    folder.chmod(0o700)


def _cache(party: Party) -> Path | None:
    return None if party.folder is None else Path(party.folder) / "dh-tokens"


def _blind(scalar: bytes, ids: list[bytes]) -> Bytes:
    return _joined(curve.multiply(scalar, curve.hash_to_curve(ids)))


def _multiply(scalar: bytes, points: Bytes, size: int = curve.POINT_BYTES) -> Bytes:
    return _joined(curve.multiply(scalar, _split(points)))[:, :size]


def _joined(points: list[bytes]) -> Bytes:
    return np.frombuffer(b"".join(points), np.uint8).reshape(-1, curve.POINT_BYTES)


def _split(rows: Bytes) -> list[bytes]:
    """The rows of a byte matrix as byte strings."""
    listed: list[bytes] = np.ascontiguousarray(rows).view(f"V{rows.shape[1]}").ravel().tolist()
    return listed


def ask_size(peer: Peer, ids: int) -> int:
    """Begin with a partner, and learn how many ids it has.

    Raises:
        Refused: its answer is no number of ids.
    """
    return whole_number(peer.ask(DhSide.begin, {"ids": ids}), "ids", MOST_IDS, least=1)
