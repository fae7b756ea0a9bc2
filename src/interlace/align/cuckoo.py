"""Cuckoo hashing: each id in one of three bins, at most one id a bin.

Three hash functions, 1.27 bins for each id and no stash: insertion fails with a probability below
2^-40 for large sets (measured by Pinkas, Schneider and Zohner 2018, "Scalable Private Set
Intersection Based on OT Extension"; used without a stash by Pinkas, Schneider, Tkachenko and Yanai
2019, "Efficient Circuit-Based PSI with Linear Communication"); 512 further bins cover small ones. A
failure is found before anything is sent, and the caller starts again under a fresh session key.
"""

from __future__ import annotations

import secrets

import numpy as np
from numpy.typing import NDArray

HASHES = 3
_ROUNDS = 2000


class TableFull(Exception):
    """These hash functions do not fit all ids in; take others."""


def bin_count(ids: int) -> int:
    """Bins for a table of ``ids`` ids, a multiple of 8."""
    return (int(1.27 * ids) + 512 + 7) // 8 * 8


def scale(words: NDArray[np.uint32], bins: int) -> NDArray[np.int32]:
    """Map uniform 32-bit words to bins in [0, bins), by multiplication (Lemire 2019)."""
    wide = words.astype(np.uint64)
    wide *= np.uint64(bins)
    wide >>= np.uint64(32)
    return wide.astype(np.int32)


def insert(choices: NDArray[np.int32], bins: int) -> tuple[NDArray[np.int32], NDArray[np.int8]]:
    """Place every id, all evictions of a round at once.

    Args:
        choices: Shape (3, n): the bins where each id may go.
        bins: How many bins there are.

    Returns:
        Who stands in each bin (shape (bins,), -1 where it is empty), and which of its three hash
        functions placed each id (shape (n,)).

    Raises:
        TableFull: some id found no place.
    """
    n = choices.shape[1]
    rng = np.random.default_rng(secrets.randbits(128))
    table = np.full(bins, -1, np.int32)
    chosen = rng.integers(0, HASHES, (n,), dtype=np.int8)
    waiting = np.arange(n, dtype=np.int32)
    for _ in range(_ROUNDS):
        target = choices[chosen[waiting], waiting]
        before = table[target]
        table[target] = waiting  # of several ids that want one bin, the last written stays
        won = table[target] == waiting
        evicted = before[won]
        waiting = np.concatenate([waiting[~won], evicted[evicted >= 0]])
        if not len(waiting):
            return table, chosen
        chosen[waiting] = (chosen[waiting] + rng.integers(1, HASHES, len(waiting))) % HASHES
    raise TableFull
