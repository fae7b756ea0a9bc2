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
_COUNTING = [
    (np.uint64(shift), np.uint64(mask))
    for shift, mask in (
        (1, 0x5555555555555555),
        (2, 0x3333333333333333),
        (4, 0x0F0F0F0F0F0F0F0F),
        (8, 0x00FF00FF00FF00FF),
        (16, 0x0000FFFF0000FFFF),
    )
]  # bits, pairs, … of a word are added until each half holds its number of ones


def random_words(count: int) -> NDArray[np.uint64]:
    """Uniform 64-bit words."""
    return np.frombuffer(os.urandom(8 * count), dtype=np.uint64)


def centred_binomial(*shape: int) -> Integers:
    """Errors with mean 0 and variance η/2."""
    words = random_words(int(np.prod(shape)))
    # 21 bits in each half of a word; the ones of both halves are counted at once.
    x = (words & _ETA_MASK) | ((words & (_ETA_MASK << np.uint64(ETA))) << np.uint64(32 - ETA))
    for shift, mask in _COUNTING:
        x = (x & mask) + ((x >> shift) & mask)
    ones = (x & np.uint64(0xFFFFFFFF)).view(np.int64) - (x >> np.uint64(32)).view(np.int64)
    return ones.reshape(shape)


def ternary(*shape: int) -> Integers:
    """Uniform numbers out of -1, 0, 1: the remainders of bytes below 255 = 3·85."""
    count = int(np.prod(shape))
    kept = np.empty(0, dtype=np.uint8)
    while len(kept) < count:
        drawn = np.frombuffer(os.urandom(count - len(kept) + 64), dtype=np.uint8)
        kept = np.concatenate([kept, drawn[drawn < 255]])
    return (kept[:count] % 3).astype(np.int64).reshape(shape) - 1
