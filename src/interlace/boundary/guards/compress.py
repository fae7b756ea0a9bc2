"""Compression: what travels is smaller, what is read is close. None of it claims any privacy."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from pydantic import Field, validate_call
from torch import Tensor

from interlace.boundary.guards.base import Codec, Coded, Sending, by_row
from interlace.boundary.kinds import Kind
from interlace.errors import PolicyError

Share = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(gt=0)]

MAX_DECODED = 2**29  # numbers that a packed value may unfold to: 2 GiB of float32


class TopK(Codec):
    """Send only the largest numbers of each row, by magnitude; the receiver reads zeros elsewhere.

    k numbers of a row of d cost k values and k positions (one byte each up to d = 256, two up to
    32,768).

    Args:
        share: Share of a row to send, at least one number.
        count: How many numbers of a row to send, instead of a share.
        feedback: Keep what was left out of a person's row, and add it the next time that person's
            row is sent. For gradients alone: their sum over time is what matters, so what is left
            out is owed. An embedding is no increment, and owing it would distort it.

    Raises:
        PolicyError: neither or both of ``share`` and ``count``; when used, ``feedback`` for a kind
            other than gradients.

    Source: Stich, Cordonnier and Jaggi, "Sparsified SGD with Memory", NeurIPS 2018, algorithm 1,
    with a memory for each person instead of each parameter.
    """

    name = "topk"

    @validate_call
    def __init__(
        self, share: Share | None = None, count: Count | None = None, feedback: bool = False
    ) -> None:
        if (share is None) == (count is None):
            raise PolicyError("top-k takes either `share` or `count`")
        self.share, self.count, self.feedback = share, count, feedback
        self.memory = torch.zeros(0, 0)

    def encode(self, value: Tensor, sending: Sending) -> Coded:
        rows = by_row(value)
        people = self._people(len(rows), rows.shape[1], sending) if self.feedback else None
        if people is not None:
            rows = rows + self.memory[people].to(rows)
        index = rows.abs().topk(self._k(rows.shape[1]), dim=1, sorted=False).indices
        tensors = {
            "values": rows.gather(1, index),
            "index": index.to(_index_type(rows.shape[1])),
            "shape": torch.tensor(value.shape, dtype=torch.int64),
        }
        read = self.decode(tensors)
        if people is not None:
            self.memory[people] = (rows - by_row(read)).to(self.memory)
        return Coded(tensors, read)

    @staticmethod
    def decode(tensors: dict[str, Tensor]) -> Tensor:
        values, index = tensors["values"], tensors["index"].long()
        shape, n, width = _shape(tensors["shape"])
        if values.shape != index.shape or index.dim() != 2 or len(index) != n:
            raise ValueError("values and positions do not fit")
        return values.new_zeros(n, width).scatter_(1, index, values).reshape(shape)

    @property
    def label(self) -> str:
        kept = f"{self.share:.3g}" if self.share is not None else f"{self.count}"
        return f"topk {kept}" + (" with feedback" if self.feedback else "")

    def state(self) -> dict[str, Tensor]:
        return {"memory": self.memory.clone()} if self.feedback else {}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.memory = state["memory"].clone()

    def _k(self, width: int) -> int:
        if self.count is not None:
            return min(self.count, width)
        assert self.share is not None
        return min(max(1, round(self.share * width)), width)

    def _people(self, count: int, width: int, sending: Sending) -> Tensor:
        """The rows' people, each with a place in the memory."""
        if sending.kind is not Kind.GRADIENT:
            raise PolicyError(
                f"top-k with feedback is for gradients, not for {sending.kind}: what is left out "
                "of it is not owed later; take `feedback` off"
            )
        people = sending.people(self.label, count)
        if not len(self.memory):
            self.memory = torch.zeros(0, width)
        if self.memory.shape[1] != width:
            raise PolicyError("top-k with feedback cannot serve gradients of two widths")
        missing = int(people.max()) + 1 - len(self.memory) if count else 0
        if missing > 0:
            self.memory = torch.nn.functional.pad(self.memory, (0, 0, 0, missing))
        return people


class Quantise(Codec):
    """Send each number as one of 2^bits levels between the least and the greatest.

    The range [a, b] is cut into 2^bits equal cells and a number is read as the middle of its cell,
    so the error is at most (b − a) / 2^(bits + 1), whatever the signs.

    Args:
        bits: Bits a number.
        scale: Take the range of each ``row`` (8 bytes a row) or of the whole ``tensor`` (smaller,
            but one large row makes all others coarse).

    Source: uniform scalar quantisation as in C-VFL (Castiglia et al., ICML 2022), with the range's
    least value as offset and without dither.
    """

    name = "quantise"

    @validate_call
    def __init__(
        self, bits: Literal[8, 4, 2, 1] = 8, scale: Literal["row", "tensor"] = "row"
    ) -> None:
        self.bits, self.scale = bits, scale

    def encode(self, value: Tensor, sending: Sending) -> Coded:
        rows = by_row(value)
        if not rows.numel():
            low = high = rows.new_zeros(len(rows), 1)
        elif self.scale == "row":
            low, high = rows.aminmax(dim=1, keepdim=True)
        else:
            low, high = (end.reshape(1, 1) for end in rows.aminmax())
        levels = 2**self.bits
        start, step = _cells(low, high, levels)
        cells = (rows - start) / step.clamp_min(torch.finfo(step.dtype).tiny)
        codes = cells.floor().clamp_(0, levels - 1).to(torch.uint8)
        tensors = {
            "codes": _pack(codes.flatten(), self.bits),
            "low": low,
            "high": high,
            "bits": torch.tensor(self.bits, dtype=torch.uint8),
            "shape": torch.tensor(value.shape, dtype=torch.int64),
        }
        return Coded(tensors, self.decode(tensors))

    @staticmethod
    def decode(tensors: dict[str, Tensor]) -> Tensor:
        low, high, bits = tensors["low"], tensors["high"], int(tensors["bits"])
        shape, n, width = _shape(tensors["shape"])
        if bits not in (8, 4, 2, 1) or low.shape != high.shape or low.dtype != high.dtype:
            raise ValueError("not a quantised value")
        if low.shape not in ((n, 1), (1, 1)) or tensors["codes"].dtype != torch.uint8:
            raise ValueError("codes and ranges do not fit")
        codes = _unpack(tensors["codes"], bits, n * width).reshape(n, width)
        start, step = _cells(low, high, 2**bits)
        return (start + (codes + 0.5) * step).to(low.dtype).reshape(shape)

    @property
    def label(self) -> str:
        return f"quantise {self.bits} bit by {self.scale}"


class Half(Codec):
    """Send 16 bits a number; the receiver reads float32.

    Args:
        dtype: ``float16`` keeps 11 significant bits of numbers up to 65,504 and loses those under
            6e-8 (a mean loss's gradients are often so small); ``bfloat16`` keeps 8 of any size.

    Raises:
        PolicyError: when used, a number is too large for ``float16``.
    """

    name = "half"

    @validate_call
    def __init__(self, dtype: Literal["float16", "bfloat16"] = "float16") -> None:
        self.dtype = torch.float16 if dtype == "float16" else torch.bfloat16

    def encode(self, value: Tensor, sending: Sending) -> Coded:
        tensors = {"half": value.to(self.dtype)}
        if self.dtype is torch.float16 and bool((tensors["half"].isinf() & value.isfinite()).any()):
            raise PolicyError(
                f"this {sending.kind} holds numbers beyond 65,504, which float16 cannot; "
                "set `dtype: bfloat16` for the guard 'half'"
            )
        return Coded(tensors, self.decode(tensors))

    @staticmethod
    def decode(tensors: dict[str, Tensor]) -> Tensor:
        half = tensors["half"]
        if half.dtype not in (torch.float16, torch.bfloat16):
            raise ValueError("not 16 bits a number")
        return half.float()

    @property
    def label(self) -> str:
        return str(self.dtype)[6:]


def _shape(sent: Tensor) -> tuple[list[int], int, int]:
    """The shape of a packed value, its rows, and the width of a row; it came from a partner."""
    if sent.dtype != torch.int64 or sent.dim() != 1 or sent.numel() > 8:
        raise ValueError("not a shape")
    shape: list[int] = sent.tolist()
    if min(shape, default=0) < 0 or math.prod(shape) > MAX_DECODED:
        raise ValueError("not a shape")
    return shape, shape[0] if shape else 1, math.prod(shape[1:])


def _index_type(width: int) -> torch.dtype:
    if width <= 2**8:
        return torch.uint8
    return torch.int16 if width <= 2**15 else torch.int32


def _cells(low: Tensor, high: Tensor, levels: int) -> tuple[Tensor, Tensor]:
    """Start and width of the cells; in float64, where the range of no float32 overflows."""
    start = low.double()
    return start, (high.double() - start) / levels


def _pack(codes: Tensor, bits: int) -> Tensor:
    """uint8 codes of so many bits each, (n,), as the bytes that hold them, the first lowest."""
    each = 8 // bits
    padded = torch.nn.functional.pad(codes, (0, -len(codes) % each))
    return (padded.reshape(-1, each) << _shifts(bits)).sum(1, dtype=torch.uint8)


def _unpack(packed: Tensor, bits: int, count: int) -> Tensor:
    if packed.shape != (-(-count * bits // 8),):
        raise ValueError("codes and shape do not fit")
    codes: Tensor = (packed[:, None] >> _shifts(bits)) & (2**bits - 1)
    return codes.flatten()[:count]


def _shifts(bits: int) -> Tensor:
    return torch.arange(0, 8, bits, dtype=torch.uint8)
