"""Transposing bit matrices, the step between columns stretched from seeds and rows for people."""

from __future__ import annotations

import numpy as np

from interlace.align.hashing import Bytes

_SWAPS = (  # Hacker's Delight, section 7-3: an 8x8 bit block in one 64-bit word
    (np.uint64(7), np.uint64(0x00AA00AA00AA00AA)),
    (np.uint64(14), np.uint64(0x0000CCCC0000CCCC)),
    (np.uint64(28), np.uint64(0x00000000F0F0F0F0)),
)
_STRIPE = 1024  # bytes of a row taken at once, so that a stripe stays in the processor's cache


def transpose_bits(matrix: Bytes) -> Bytes:
    """Transpose a bit matrix that is packed along its rows, least significant bit first.

    Args:
        matrix: Shape (w, m // 8), uint8: w rows of m bits; w divisible by 8.

    Returns:
        Shape (m, w // 8), uint8: m rows of w bits.
    """
    width, length = matrix.shape
    out = np.empty((length * 8, width // 8), np.uint8)
    for start in range(0, length, _STRIPE):
        stripe = matrix[:, start : start + _STRIPE]
        n = stripe.shape[1]
        blocks = stripe.reshape(width // 8, 8, n).transpose(2, 0, 1)
        x = np.ascontiguousarray(blocks).view("<u8").reshape(n, width // 8)
        for shift, mask in _SWAPS:
            t = (x ^ (x >> shift)) & mask
            x ^= t ^ (t << shift)
        rows = x.view(np.uint8).reshape(n, width // 8, 8).transpose(0, 2, 1)
        out[start * 8 : (start + n) * 8] = rows.reshape(n * 8, width // 8)
    return out
