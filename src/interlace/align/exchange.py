"""What the protocols share: checking what came, spreading work over cores, looking values up."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interlace.align.hashing import Bytes
from interlace.errors import AlignmentError, Refused
from interlace.party import Party

Rows = NDArray[np.int64]
Progress = Callable[[str, float], None]
"""Called with what is being done and which share of it is behind, from 0 to 1."""

MESSAGE_BYTES = 8 * 2**20  # most bytes of one message
MOST_IDS = 2**28


class Matched(NamedTuple):
    """The people shared with one partner, in no order that means anything.

    Attributes:
        rows: The active party's rows.
        positions: Where the partner sent the same people in its own secret order.
        theirs: How many people the partner has.
    """

    rows: Rows
    positions: Rows
    theirs: int


def ids_of(party: Party) -> list[bytes]:
    """The keys by which a party's people are matched.

    Raises:
        AlignmentError: it has none.
    """
    if not party.keys.values:
        raise AlignmentError(
            f"party '{party.name}' has no ids by which its people could be matched; "
            "name its id column"
        )
    return party.keys.values


def to_send(array: Bytes) -> Tensor:
    """A byte array as a tensor (copied if it cannot be written to, as torch wants it)."""
    return torch.from_numpy(np.require(array, np.uint8, ["C", "W"]))


def received(value: Tensor, *shape: int | None, what: str) -> Bytes:
    """A received byte tensor as an array of this shape; ``None`` leaves a dimension open.

    Raises:
        Refused: it has another shape.
    """
    fits = len(shape) == value.dim() and all(
        due is None or due == came for due, came in zip(shape, value.shape, strict=True)
    )
    if not fits:
        due = " × ".join("any" if d is None else f"{d:,}" for d in shape)
        raise Refused(f"{what} came in shape {tuple(value.shape)}, not {due}")
    return value.contiguous().numpy()


def keep_rows(party: Party, partner: str, positions: Tensor, order: Rows, most: int) -> None:
    """Remember which of a party's rows are shared, in the order in which the partner named them.

    Args:
        party: The passive party.
        partner: The active party's name.
        positions: Positions in ``order``.
        order: The secret order in which the party had sent its people: its rows.
        most: How many people can be shared at most.

    Raises:
        Refused: positions out of range or repeated, or too many.
    """
    where = positions.numpy().astype(np.int64)
    if len(where) > most or (len(where) and not 0 <= where.min() <= where.max() < len(order)):
        raise Refused(f"party '{party.name}' was told of shared people that it does not have")
    if len(np.unique(where)) != len(where):
        raise Refused(f"party '{party.name}' was told of one shared person twice")
    party.aligned[partner] = order[where]


def random_order(n: int) -> Rows:
    """The numbers from 0 to n - 1 in an order that nobody can foretell.

    A partner sees parts of it, so it comes from the operating system's cryptographic generator.
    """
    return np.argsort(np.frombuffer(secrets.token_bytes(8 * n), np.uint64))


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def start(
    pool: ThreadPoolExecutor, work: Callable[[Any], Bytes], items: Sequence[Any] | Bytes
) -> list[Future[Bytes]]:
    """Start the work on equal slices of the items, one for each core."""
    size = max(1, -(-len(items) // cores()))
    return [pool.submit(work, items[i : i + size]) for i in range(0, len(items), size)]


def finish(futures: Sequence[Future[Bytes]]) -> Bytes:
    """Wait for what :func:`start` began, and put the slices together."""
    return np.concatenate([f.result() for f in futures])


class Lookup:
    """Finds values among one's own, in batches.

    Args:
        values: Shape (n, w), uint8, w at least 8.
    """

    def __init__(self, values: Bytes) -> None:
        heads = _heads(values)
        self._order = np.argsort(heads, kind="stable")
        self._heads = heads[self._order]
        self._values = values
        starts = np.flatnonzero(np.r_[True, self._heads[1:] != self._heads[:-1]])
        # The first eight bytes of different values agree once in a very long while.
        self._longest_run = int(np.diff(np.r_[starts, len(heads)]).max(initial=0))

    def find(self, values: Bytes) -> tuple[Rows, Rows]:
        """Pairs of equal values: positions among one's own, and among these of shape (m, w)."""
        heads = _heads(values)
        order = np.argsort(heads)  # sorted queries read the memory in order
        heads = heads[order]
        first = np.searchsorted(self._heads, heads)
        mine, theirs = [], []
        for step in range(self._longest_run):
            at = first + step
            hit = np.flatnonzero(at < len(self._heads))
            hit = hit[self._heads[at[hit]] == heads[hit]]
            own, other = self._order[at[hit]], order[hit]
            same = (self._values[own] == values[other]).all(axis=1)
            mine.append(own[same])
            theirs.append(other[same])
        empty = np.empty(0, np.int64)
        return np.concatenate([*mine, empty]), np.concatenate([*theirs, empty])


def _heads(values: Bytes) -> NDArray[np.uint64]:
    """The first eight bytes of each value as a number."""
    return np.ascontiguousarray(values[:, :8]).view("<u8")[:, 0].copy()


def matched_once(rows: Rows, positions: Rows, theirs: int, partner: str) -> Matched:
    """What was found, unless someone was found twice.

    Raises:
        Refused: one person of either side was matched with two of the other.
    """
    if len(np.unique(rows)) != len(rows) or len(np.unique(positions)) != len(positions):
        raise Refused(f"'{partner}' sent the same blinded id twice")
    return Matched(rows, positions, theirs)
