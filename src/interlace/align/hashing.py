"""Hashing of ids and of protocol rows, many at a time.

BLAKE2b (RFC 7693) from the standard library. One prepared state is copied for each input: half the
cost of a fresh one, since its parameters are parsed once. The salt and the personal string are part
of that state, so that the hashes of two sessions, or of two uses in one session, are unrelated.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

SALT_BYTES = 16


def hash_all(inputs: Iterable[bytes], size: int, *, use: str, salt: bytes = b"") -> Bytes:
    """The BLAKE2b digest of each input.

    Args:
        inputs: n byte strings of any length.
        size: Length of a digest in bytes, at most 64.
        use: What the digests are for (at most 16 ASCII characters).
        salt: At most 16 bytes.

    Returns:
        Shape (n, size), uint8.
    """
    fresh = blake2b(digest_size=size, salt=salt, person=use.encode()).copy
    out = bytearray()
    for one in inputs:
        state = fresh()
        state.update(one)
        out += state.digest()
    return np.frombuffer(out, np.uint8).reshape(-1, size)


def hash_rows(rows: Bytes, size: int, *, use: str) -> Bytes:
    """The BLAKE2b digest of each row of a byte matrix of shape (n, w); shape (n, size)."""
    width = rows.shape[1]
    return hash_all(np.ascontiguousarray(rows).view(f"V{width}").ravel().tolist(), size, use=use)
