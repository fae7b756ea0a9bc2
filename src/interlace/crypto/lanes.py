"""Several signed numbers side by side in one large plaintext.

A plaintext is Σ number_l · 2^(lane·l). As long as every sum of numbers stays within ±2^(lane-1),
lanes never run over into each other, and negative numbers need no offset.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from interlace.crypto.base import Integers
from interlace.errors import Refused


def joined(numbers: Integers, lane: int) -> list[int]:
    """One plaintext for each line of (n, lanes) numbers."""
    return [
        sum(number << (place * lane) for place, number in enumerate(line))
        for line in numbers.tolist()
    ]


def parted(plain: Sequence[int], lane: int, lanes: int) -> Integers:
    """The (n, lanes) numbers of signed plaintexts.

    Raises:
        Refused: a plaintext has something beyond its lanes, as one that was decrypted with the
            wrong key does.
    """
    half, mask = 1 << (lane - 1), (1 << lane) - 1
    out = np.empty((len(plain), lanes), dtype=np.int64)
    for line, rest in zip(out, plain, strict=True):
        for place in range(lanes):
            number = ((rest + half) & mask) - half
            line[place] = number
            rest = (rest - number) >> lane
        if rest:
            raise Refused(
                "an encrypted answer does not decrypt: it was made under another key, from other "
                "ciphertexts, or was damaged"
            )
    return out
