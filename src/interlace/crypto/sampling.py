"""Secret random numbers, all from the operating system's generator (``os.urandom``).

Errors follow the centred binomial distribution with η = 21: the number of ones among 21 random
bits less that among 21 others. Its standard deviation √(η/2) = 3.24 is no smaller than the 3.19
of the HomomorphicEncryption.org standard (2018, §2.1.1), it needs no table and no floating point,
takes the same time for every value, and is what ML-KEM (FIPS 203, §4.2.2) samples its errors from.
It is sub-Gaussian with a variance proxy equal to its variance (a sum of independent ±½), so
P(|Σ x_j e_j| > t·√(η/2)·‖x‖) <= 2·exp(-t²/2): the noise bounds of the schemes stand on that.
"""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]

ETA = 21
VARIANCE = ETA / 2

_ETA_MASK = np.uint64(2**ETA - 1)


def random_words(count: int) -> NDArray[np.uint64]:
    """Uniform 64-bit words."""
    return np.frombuffer(os.urandom(8 * count), dtype=np.uint64)


def centred_binomial(*shape: int) -> Integers:
    """Errors with mean 0 and variance η/2."""
    words = random_words(int(np.prod(shape)))
    ones = _ones(words & _ETA_MASK) - _ones((words >> np.uint64(ETA)) & _ETA_MASK)
    return ones.view(np.int64).reshape(shape)


def ternary(*shape: int) -> Integers:
    """Uniform numbers out of -1, 0, 1: the remainders of bytes below 255 = 3·85."""
    count = int(np.prod(shape))
    kept = np.empty(0, dtype=np.uint8)
    while len(kept) < count:
        drawn = np.frombuffer(os.urandom(count - len(kept) + 64), dtype=np.uint8)
        kept = np.concatenate([kept, drawn[drawn < 255]])
    return (kept[:count] % 3).astype(np.int64).reshape(shape) - 1


def _ones(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """How many bits of each word are set, for words below 2^32 (NumPy 1 has no function for it)."""
    x = words - ((words >> np.uint64(1)) & np.uint64(0x55555555))
    x = (x & np.uint64(0x33333333)) + ((x >> np.uint64(2)) & np.uint64(0x33333333))
    x = (x + (x >> np.uint64(4))) & np.uint64(0x0F0F0F0F)
    total: NDArray[np.uint64] = ((x * np.uint64(0x01010101)) >> np.uint64(24)) & np.uint64(0xFF)
    return total
