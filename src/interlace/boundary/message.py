"""A message between two parties, and its one encoding: a safetensors blob with a small header.

No pickle: tensors travel as safetensors, everything else as JSON in the blob's metadata. The
encoded size is known without encoding (it is cached per shape), so a simulated run counts exactly
the bytes that a deployed run sends.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from interlace.boundary.kinds import Kind
from interlace.errors import Refused

Value = Tensor | dict[str, Any]

MAX_MESSAGE_BYTES = 2**31
MAX_HEADER_BYTES = 2**20
MAX_PARTS = 64
MAX_NAME = 256
_ROUND_DIGITS = 10  # a fixed width keeps the encoded size independent of the round


@dataclass(slots=True)
class Part:
    """One value of a message. ``coded`` holds what really travels when a codec packed the value:
    named tensors, with ``codec`` naming the codec that reads them back."""

    kind: Kind
    value: Value
    codec: str = ""
    coded: dict[str, Tensor] | None = None

    def value_is_empty(self) -> bool:
        """Whether the packed value has yet to be read from its code (it came over a wire)."""
        return isinstance(self.value, Tensor) and self.value.numel() == 0

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that travel for this part, by name."""
        if self.coded is not None:
            return self.coded
        return {"": self.value} if isinstance(self.value, Tensor) else {}

    def payload(self) -> int:
        """Bytes of what travels for this part, without the message's frame."""
        if isinstance(self.value, dict):
            return len(json.dumps(self.value))
        return sum(t.numel() * t.element_size() for t in self.tensors().values())


@dataclass(slots=True)
class Message:
    """What one party sends another: an operation's arguments or its answer.

    ``session`` names the conversation it belongs to: a party may take part in several, and holds
    one passive side for each."""

    session: str
    operation: str
    sender: str
    receiver: str
    round: int
    parts: tuple[Part, ...] = field(default=())
    _size: int = 0

    def encode(self) -> bytes:
        """The message as bytes (safetensors with a JSON header in its metadata)."""
        tensors: dict[str, Tensor] = {}
        header: list[list[Any]] = []
        seen: set[int] = set()
        for i, part in enumerate(self.parts):
            own = part.tensors()
            for name, tensor in own.items():
                tensor = tensor.detach().contiguous()
                address = tensor.untyped_storage().data_ptr()
                # Safetensors does not take two tensors that share memory.
                tensors[f"{i}.{name}"] = tensor.clone() if address in seen else tensor
                seen.add(address)
            header.append([part.kind.value, part.codec, None if own else part.value])
        meta = {
            "session": self.session,
            "operation": self.operation,
            "from": self.sender,
            "to": self.receiver,
            "round": f"{self.round:0{_ROUND_DIGITS}d}",
            "parts": json.dumps(header, separators=(",", ":")),
        }
        return bytes(save(tensors, metadata=meta))

    def encoded_size(self) -> int:
        """Length of :meth:`encode` in bytes, from a cache keyed by all that the length hangs on."""
        if not self._size:
            self._size = self._measure()
        return self._size

    def shares(self) -> list[int]:
        """The encoded size, part by part; the frame is counted with the first."""
        rest = [part.payload() for part in self.parts[1:]]
        return [self.encoded_size() - sum(rest), *rest]

    def _measure(self) -> int:
        signature: list[Any] = [self.session, self.operation, self.sender, self.receiver]
        for part in self.parts:
            if isinstance(part.value, Tensor):
                signature.append((part.kind, part.codec))
                signature.extend((n, t.dtype, t.shape) for n, t in part.tensors().items())
            else:
                return len(self.encode())
        key = tuple(signature)
        size = _SIZES.get(key)
        if size is None:
            if len(_SIZES) > 10_000:
                _SIZES.clear()
            size = _SIZES[key] = len(self.encode())
        return size


_SIZES: dict[tuple[Any, ...], int] = {}


def decode(blob: bytes) -> Message:
    """Read a message. Packed parts stay packed (``coded``) until the boundary admits them.

    Raises:
        Refused: the bytes are not a message of ours, or too large.
    """
    if len(blob) > MAX_MESSAGE_BYTES:
        raise Refused(f"a message of {len(blob):,} bytes is larger than the limit of 2 GiB")
    try:
        tensors, meta = _open(blob)
        header = json.loads(meta["parts"])
        if len(header) > MAX_PARTS:
            raise ValueError("too many parts")
        parts, read = [], 0
        for i, (kind, codec, value) in enumerate(header):
            prefix = f"{i}."
            own = {n[len(prefix) :]: t for n, t in tensors.items() if n.startswith(prefix)}
            read += len(own)
            if codec:
                _name(codec)
                parts.append(Part(Kind(kind), torch.empty(0), codec, own))
            elif own:
                (tensor,) = own.values()
                parts.append(Part(Kind(kind), tensor))
            else:
                parts.append(Part(Kind(kind), value))
        if read < len(tensors):
            raise ValueError("tensors of no part")
        session, operation, sender, receiver, turn = (
            _name(meta[field]) for field in ("session", "operation", "from", "to", "round")
        )
        if len(turn) != _ROUND_DIGITS or not turn.isdecimal():
            raise ValueError("not a round")
        return Message(session, operation, sender, receiver, int(turn), tuple(parts), len(blob))
    except (SafetensorError, KeyError, ValueError, TypeError, RecursionError) as e:
        raise Refused(
            f"the received bytes are not an interlace message ({type(e).__name__})"
        ) from e


def _name(sent: Any) -> str:
    """A name that a partner sent: it goes into the ledger, onto screens and into reports."""
    if not isinstance(sent, str) or len(sent) > MAX_NAME or not sent.isprintable():
        raise ValueError("not a name")
    return sent


def _open(blob: bytes) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a safetensors blob (the library reads metadata from files only)."""
    length = int.from_bytes(blob[:8], "little")
    if not 0 < length <= min(len(blob) - 8, MAX_HEADER_BYTES):
        raise ValueError("header length out of range")
    header = json.loads(blob[8 : 8 + length])
    return load(blob), header["__metadata__"]
