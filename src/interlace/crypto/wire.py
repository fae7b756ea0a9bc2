"""How keys and ciphertexts travel: a small JSON header and packed bits, never a pickle.

Layout: 4 bytes "ILHE", 4 bytes header length, 16 bytes BLAKE2b of all that follows, the header,
the payload. The digest finds truncation and accidents; it is no signature. Who sent a message is
the transport's business (mutual TLS).
"""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interlace.errors import Refused

Bytes = NDArray[np.uint8]
Words = NDArray[np.uint64]

_MAGIC = b"ILHE"
_HEAD = 24  # magic, header length, digest
MOST_HEADER = 4096


class Sealed(NamedTuple):
    """A message taken apart."""

    header: dict[str, Any]
    payload: Bytes


def fingerprint(*parts: bytes) -> str:
    """A short name for a public key."""
    digest = blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def seal(header: dict[str, Any], *payload: Bytes) -> Tensor:
    """A header and byte arrays as one ``uint8`` tensor."""
    text = json.dumps(header, separators=(",", ":"), sort_keys=True).encode()
    digest = blake2b(text, digest_size=16)
    for part in payload:
        digest.update(np.ascontiguousarray(part).data)
    head = _MAGIC + len(text).to_bytes(4, "little") + digest.digest() + text
    parts = [np.frombuffer(head, np.uint8), *(p.reshape(-1) for p in payload)]
    return torch.from_numpy(np.concatenate(parts))


def unseal(tensor: Tensor) -> Sealed:
    """Take a tensor of :func:`seal` apart.

    Raises:
        Refused: it is none, or was damaged on its way.
    """
    if tensor.dtype is not torch.uint8 or tensor.dim() != 1 or len(tensor) < _HEAD:
        raise Refused("this is not a ciphertext or key of interlace")
    data: Bytes = tensor.contiguous().numpy()
    length = int.from_bytes(data[4:8].tobytes(), "little")
    if data[:4].tobytes() != _MAGIC or length > min(MOST_HEADER, len(data) - _HEAD):
        raise Refused("this is not a ciphertext or key of interlace")
    if blake2b(data[_HEAD:].data, digest_size=16).digest() != data[8:_HEAD].tobytes():
        raise Refused("a ciphertext or key is truncated or damaged")
    try:
        header = json.loads(data[_HEAD : _HEAD + length].tobytes())
    except ValueError as e:
        raise Refused("the header of a ciphertext cannot be read") from e
    if not isinstance(header, dict):
        raise Refused("the header of a ciphertext cannot be read")
    return Sealed(header, data[_HEAD + length :])


def opened(tensor: Tensor, scheme: str, key: str) -> Sealed:
    """Take a ciphertext apart that must be of this scheme and under this key.

    Raises:
        Refused: it is not.
    """
    message = unseal(tensor)
    if message.header.get("scheme") != scheme:
        raise Refused(f"a ciphertext of another scheme came where {scheme} was agreed")
    if message.header.get("key") != key:
        raise Refused("a ciphertext under another key came")
    return message


def whole(header: dict[str, Any], name: str, least: int, most: int) -> int:
    """A whole number out of a header.

    Raises:
        Refused: there is none within the bounds.
    """
    value = header.get(name)
    if type(value) is not int or not least <= value <= most:
        raise Refused(f"the header of a ciphertext has no usable '{name}'")
    return value


def packed_size(count: int, bits: int) -> int:
    """Bytes of ``count`` numbers of ``bits`` bits as :func:`pack` writes them."""
    return count * (bits // 8) + (bits % 8) * ((count + 7) // 8)


def pack(words: Words, bits: int) -> Bytes:
    """The low ``bits`` bits of each number: whole bytes first, then single bits plane by plane."""
    flat = np.ascontiguousarray(words, dtype="<u8").reshape(-1)
    whole_bytes, rest = divmod(bits, 8)
    parts = [flat.view(np.uint8).reshape(-1, 8)[:, :whole_bytes].reshape(-1)]
    parts.extend(
        np.packbits(((flat >> np.uint64(8 * whole_bytes + i)) & np.uint64(1)).astype(np.uint8))
        for i in range(rest)
    )
    return np.concatenate(parts)


def unpack(payload: Bytes, count: int, bits: int) -> Words:
    """``count`` numbers out of what :func:`pack` gave."""
    whole_bytes, rest = divmod(bits, 8)
    padded = np.zeros((count, 8), dtype=np.uint8)
    padded[:, :whole_bytes] = payload[: count * whole_bytes].reshape(count, whole_bytes)
    words: Words = padded.view("<u8").reshape(count).astype(np.uint64, copy=False)
    plane = (count + 7) // 8
    for i in range(rest):
        start = count * whole_bytes + i * plane
        ones = np.unpackbits(payload[start : start + plane], count=count)
        words |= ones.astype(np.uint64) << np.uint64(8 * whole_bytes + i)
    return words
