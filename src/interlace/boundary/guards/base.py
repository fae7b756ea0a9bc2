"""What a guard is, and how guards compose."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from interlace.boundary.kinds import Kind
from interlace.errors import PolicyError


@dataclass(frozen=True, slots=True)
class Sending:
    """What a guard is told about the value it guards.

    Attributes:
        kind: What the value is.
        receiver: Who will get it.
        rows: Which people the value's rows are about (positions in the order shared with the
            receiver), or ``None`` for a value that is not per person.
        generator: The party's own source of randomness.
    """

    kind: Kind
    receiver: str
    rows: Tensor | None
    generator: torch.Generator

    def people(self, guard: str) -> Tensor:
        """The rows; a guard that keeps account per person cannot do without them.

        Raises:
            PolicyError: the method did not say whom the value is about.
        """
        if self.rows is None:
            raise PolicyError(
                f"the guard '{guard}' keeps account per person, but this {self.kind} is not "
                "announced as being about particular people; remove the guard from this kind"
            )
        return self.rows


class Guard(ABC):
    """A defence: a tensor goes in, a tensor of the same shape comes out."""

    @abstractmethod
    def __call__(self, value: Tensor, sending: Sending) -> Tensor: ...

    @property
    def label(self) -> str:
        """How the ledger names this guard and its strength."""
        return type(self).__name__.lower()

    def account(self) -> dict[str, float | str]:
        """What the guard can claim about the run so far (a privacy budget, say); empty if nothing."""
        return {}

    def state(self) -> dict[str, Tensor]:
        """What must be kept for a resumed run to go on as if it had not stopped."""
        return {}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Take back what :meth:`state` gave."""


@dataclass(slots=True)
class Coded:
    """A packed value: the tensors that travel, and what the receiver will read from them."""

    tensors: dict[str, Tensor]
    value: Tensor


class Codec(ABC):
    """A compression: the receiver reads back an approximation, and the coded tensors are counted.

    Subclasses name themselves in ``name``; the name travels, so that the receiver knows how to read.
    """

    name: str

    @abstractmethod
    def encode(self, value: Tensor, sending: Sending) -> Coded: ...

    @staticmethod
    @abstractmethod
    def decode(tensors: dict[str, Tensor]) -> Tensor: ...

    @property
    def label(self) -> str:
        """How the ledger names this codec and its strength."""
        return self.name

    def account(self) -> dict[str, float | str]:
        """A compression claims nothing about privacy."""
        return {}

    def state(self) -> dict[str, Tensor]:
        """What must be kept for a resumed run (an error feedback, say)."""
        return {}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Take back what :meth:`state` gave."""


class Chain:
    """Guards applied one after the other; a codec, if any, stands last."""

    def __init__(self, guards: Sequence[Guard | Codec]) -> None:
        defences = [g for g in guards if isinstance(g, Guard)]
        codecs = [g for g in guards if isinstance(g, Codec)]
        if len(codecs) > 1 or (codecs and guards[-1] is not codecs[0]):
            raise PolicyError("at most one compression can guard a kind, and it must stand last")
        self.guards: tuple[Guard | Codec, ...] = tuple(guards)
        self.defences = tuple(defences)
        self.codec = codecs[0] if codecs else None
        self.label = " → ".join(g.label for g in guards)


def chain(*guards: Guard | Codec) -> Chain:
    """Compose guards in the order in which a value passes them.

    Raises:
        PolicyError: more than one compression, or one that does not stand last.
    """
    return Chain(guards)
