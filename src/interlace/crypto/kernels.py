"""The three inner loops of Ring-LWE, compiled by numba where it is installed.

Without numba the same sums go through SciPy's sparse product and NumPy, several times slower.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Kernels(NamedTuple):
    """The loops, compiled or not."""

    fill: Callable[[NDArray[np.uint64], Integers, int], None]
    scatter: Callable[[Integers, Integers, Integers, int, Integers], None]
    project: Callable[[Integers, Integers, Integers], None]


@cache
def kernels(compiled: bool | None = None) -> Kernels:
    """The loops: compiled if numba is there, or as asked."""
    if compiled is None:
        compiled = find_spec("numba") is not None
    if not compiled:
        return Kernels(_fill, _scatter, _project)
    import numba

    jit = numba.njit(nogil=True, cache=True)
    return Kernels(jit(_fill_loop), jit(_scatter_loop), jit(_project_loop))


# `fill`: counters of AES blocks. Block j of line i is (row number, first + j).
# `scatter`: sums[place[i, f]] += words[i] · Y^turn[i, f] in Z[Y]/(Y^(L/unit) + 1), that is: turned
#   by turn·unit words, with the words that wrap around subtracted. A place of -1 is skipped.
# `project`: out += words @ columns.T, wrapping at 2^64; columns hold -1, 0 and 1, and their number
#   is a multiple of four.


def _fill_loop(counters: NDArray[np.uint64], rows: Integers, first: int) -> None:
    for i in range(counters.shape[0]):
        for j in range(counters.shape[1]):
            counters[i, j, 0] = rows[i]
            counters[i, j, 1] = first + j


def _scatter_loop(
    words: Integers, place: Integers, turn: Integers, unit: int, sums: Integers
) -> None:
    length = words.shape[1]
    for i in range(place.shape[0]):
        source = words[i]
        for f in range(place.shape[1]):
            if place[i, f] < 0:
                continue
            shift = turn[i, f] * unit
            target = sums[place[i, f]]
            kept = length - shift
            ahead, straight = target[shift:], source[:kept]
            for k in range(len(straight)):
                ahead[k] += straight[k]
            wrapped = source[kept:]
            for k in range(len(wrapped)):
                target[k] -= wrapped[k]


def _project_loop(words: Integers, columns: Integers, out: Integers) -> None:
    # Two rows by four columns at once: eight sums stay in registers, each load serves several.
    rows, length = words.shape
    for c in range(0, columns.shape[0], 4):
        w, x, y, z = columns[c], columns[c + 1], columns[c + 2], columns[c + 3]
        for i in range(0, rows, 2):
            last = min(i + 1, rows - 1)
            p, q = words[i], words[last]
            p0 = p1 = p2 = p3 = q0 = q1 = q2 = q3 = 0
            for k in range(length):
                p0 += p[k] * w[k]
                p1 += p[k] * x[k]
                p2 += p[k] * y[k]
                p3 += p[k] * z[k]
                q0 += q[k] * w[k]
                q1 += q[k] * x[k]
                q2 += q[k] * y[k]
                q3 += q[k] * z[k]
            out[i, c] += p0
            out[i, c + 1] += p1
            out[i, c + 2] += p2
            out[i, c + 3] += p3
            if last > i:
                out[last, c] += q0
                out[last, c + 1] += q1
                out[last, c + 2] += q2
                out[last, c + 3] += q3


def _fill(counters: NDArray[np.uint64], rows: Integers, first: int) -> None:
    counters[..., 0] = rows[:, None]
    counters[..., 1] = np.arange(first, first + counters.shape[1], dtype=np.uint64)


def _scatter(words: Integers, place: Integers, turn: Integers, unit: int, sums: Integers) -> None:
    from scipy.sparse import csr_array

    for t in np.unique(turn[place >= 0]):
        line, column = np.nonzero((turn == t) & (place >= 0))
        ones = np.ones(len(line), dtype=np.int64)
        shape = (len(sums), len(words))
        part = np.asarray(csr_array((ones, (place[line, column], line)), shape=shape) @ words)
        kept = words.shape[1] - int(t) * unit
        sums[:, words.shape[1] - kept :] += part[:, :kept]
        sums[:, : words.shape[1] - kept] -= part[:, kept:]


def _project(words: Integers, columns: Integers, out: Integers) -> None:
    out += np.einsum("ik,jk->ij", words, columns)
