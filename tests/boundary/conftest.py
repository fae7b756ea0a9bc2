"""Two parties' boundaries, and one value on its way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from interlace.boundary import Boundary, Kind, Ledger, Policy, Slot
from interlace.boundary.guards import Sending
from interlace.boundary.message import Message, Value, decode

Send = Callable[..., Value]


@pytest.fixture
def sending() -> Callable[..., Sending]:
    """What a guard is told; by default a gradient about the first people."""

    def make(
        rows: int | Tensor | None = None, kind: Kind = Kind.GRADIENT, seed: int = 0
    ) -> Sending:
        people = torch.arange(rows) if isinstance(rows, int) else rows
        return Sending(kind, "bank", "vendor", people, torch.Generator().manual_seed(seed))

    return make


@pytest.fixture
def boundary() -> Callable[..., Boundary]:
    """A party's boundary with an own ledger in memory."""

    def make(party: str = "vendor", ledger: Ledger | None = None, **policy: Any) -> Boundary:
        return Boundary(party, Policy(**policy), ledger or Ledger(), seed=1)

    return make


@pytest.fixture
def release() -> Callable[..., Message]:
    """Let one value out, to the insurer."""

    def send(
        out: Boundary, value: Any, kind: Kind = Kind.EMBEDDING, rows: Tensor | None = None
    ) -> Message:
        if rows is not None:
            out.about(rows)
        return out.release("split-1", "split.forward", "insurer", [Slot("answer", kind)], [value])

    return send


@pytest.fixture
def over_the_wire() -> Callable[[Message], Message]:
    """The message as it arrives elsewhere."""
    return lambda message: decode(message.encode())
