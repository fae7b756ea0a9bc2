"""What a guard is, and how guards compose."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from interlace.boundary.kinds import Kind
from interlace.errors import PolicyError

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True)
class Sending:
    """What a guard is told about the value it guards.

    Attributes:
        kind: What the value is.
        sender: Whose policy has the guard.
        receiver: Who will get it.
        rows: Which people the value's rows are about (positions in the order shared with the
            receiver), or ``None`` for a value that is not per person.
        generator: The party's own source of randomness.
    """

    kind: Kind
    sender: str
    receiver: str
    rows: Tensor | None
    generator: torch.Generator

    def people(self, guard: str, count: int) -> Tensor:
        """The rows; a guard that keeps account per person cannot do without them.

        Args:
            guard: Who asks, for the error.
            count: How many rows the value has.

        Returns:
            int64 tensor of shape (count,), none negative.

        Raises:
            PolicyError: the method did not say whom the value is about, or named other people.
        """
        if self.rows is None:
            raise PolicyError(
                f"the guard '{guard}' of party '{self.sender}' keeps account per person, but this "
                f"{self.kind} is not announced as being about particular people; remove the guard "
                f"from {self.kind} in its policy"
            )
        if self.rows.shape != (count,) or (count and self.rows.min().item() < 0):
            raise PolicyError(
                f"the guard '{guard}' of party '{self.sender}' keeps account per person, but this "
                f"{self.kind} of {count:,} rows is announced as being about {self.rows.numel():,} "
                "people; it stays here"
            )
        return self.rows


def by_row(value: Tensor) -> Tensor:
    """A value of shape (n, ...) as (n, d): one row a person. A single number is one row."""
    return value.reshape(value.shape[0] if value.dim() else 1, math.prod(value.shape[1:]))


class _Stage:
    """What a defence and a compression share: a name in the ledger, an account, and state."""

    @property
    def label(self) -> str:
        """How the ledger names this guard and its strength."""
        return type(self).__name__.lower()

    def account(self) -> dict[str, float | str]:
        """What can be claimed about the run so far (a privacy budget, say); empty if nothing."""
        return {}

    def state(self) -> dict[str, Tensor]:
        """What must be kept for a resumed run to go on as if it had not stopped."""
        return {}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Take back what :meth:`state` gave."""


class Guard(_Stage, ABC):
    """A defence: a tensor goes in, a new tensor of the same shape comes out."""

    @abstractmethod
    def __call__(self, value: Tensor, sending: Sending) -> Tensor: ...

    def follow(self, norm: float | None) -> float | None:
        """Hear what stands before this guard in its chain.

        Args:
            norm: The L2 norm that no row exceeds when it arrives here; ``None`` if any may come.

        Returns:
            The same for rows that leave here.
        """
        return None


@dataclass(slots=True)
class Coded:
    """A packed value: the tensors that travel, and what the receiver will read from them."""

    tensors: dict[str, Tensor]
    value: Tensor


class Codec(_Stage, ABC):
    """A compression: the receiver reads an approximation, and the coded tensors are counted.

    Subclasses name themselves in ``name``; the name travels, so that the receiver can read.
    """

    name: str

    @abstractmethod
    def encode(self, value: Tensor, sending: Sending) -> Coded: ...

    @staticmethod
    @abstractmethod
    def decode(tensors: dict[str, Tensor]) -> Tensor:
        """Read a packed value, which a partner sent and may have made up.

        Raises:
            ValueError, RuntimeError, KeyError, IndexError, TypeError: it cannot be read.
        """


class Chain:
    """Guards applied one after the other; a codec, if any, stands last."""

    def __init__(self, guards: Sequence[Guard | Codec]) -> None:
        self.defences = tuple(g for g in guards if isinstance(g, Guard))
        codecs = [g for g in guards if isinstance(g, Codec)]
        if len(codecs) > 1 or (codecs and guards[-1] is not codecs[0]):
            raise PolicyError("at most one compression can guard a kind, and it must stand last")
        if len({type(g) for g in guards}) < len(guards):
            raise PolicyError("each guard can stand only once in front of a kind")
        self.guards: tuple[Guard | Codec, ...] = tuple(guards)
        self.codec = codecs[0] if codecs else None
        self.label = " → ".join(g.label for g in guards)
        norm: float | None = None
        for guard in self.defences:
            norm = guard.follow(norm)


def chain(*guards: Guard | Codec) -> Chain:
    """Compose guards in the order in which a value passes them.

    Raises:
        PolicyError: more than one compression, one that does not stand last, a guard that stands
            twice, or a privacy budget without a clip before it.
    """
    return Chain(guards)
