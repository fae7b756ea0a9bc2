"""Operations: the only methods of a party that a partner can call.

A passive side is a small class whose public methods are marked :func:`operation`. Their signatures
are the protocol: each argument and the answer are annotated with the kind that travels. ::

    class SplitBottom(PassiveSide):
        @operation
        def forward(self, rows: RowSelection) -> Embedding: ...
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    ParamSpec,
    Self,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from interlace.boundary import Kind, Slot
from interlace.errors import Refused

if TYPE_CHECKING:
    from interlace.party.party import Party

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Operation:
    """What an operation is called, what it takes and what it gives."""

    name: str
    takes: tuple[Slot, ...]
    gives: tuple[Slot, ...]  # empty when the answer is only that it is done


def operation(function: Callable[P, R]) -> Callable[P, R]:
    """Mark a method of a :class:`PassiveSide` as callable by partners."""
    function.__is_operation__ = True  # type: ignore[attr-defined]
    return function


@cache
def read_operation(function: Callable[..., Any]) -> Operation:
    """The operation that a marked method's signature describes.

    Raises:
        TypeError: the method is not marked, or a value in its signature has no kind.
    """
    name = function.__name__
    if not getattr(function, "__is_operation__", False):
        raise TypeError(f"{function.__qualname__} is not an operation")
    hints = get_type_hints(function, include_extras=True)
    answer = hints.pop("return")
    takes = tuple(Slot(arg, _kind(name, arg, hint)) for arg, hint in hints.items())
    gives = () if answer is type(None) else (Slot("answer", _kind(name, "answer", answer)),)
    return Operation(name, takes, gives)


def _kind(operation_name: str, argument: str, hint: Any) -> Kind:
    if get_origin(hint) is Annotated:
        for extra in get_args(hint)[1:]:
            if isinstance(extra, Kind):
                return extra
    raise TypeError(f"'{argument}' of operation '{operation_name}' is not annotated with a kind")


class PassiveSide:
    """The side of a conversation that answers; it lives at one party and sees only that party.

    Args:
        party: The party it lives at.
        partner: The active party, whom alone it answers.

    Attributes:
        operations: The marked methods by name, read from the signatures when the class is made.
        asked_with: Kinds that the active party may send in such a conversation.
        answers_with: Kinds that the party may answer with.
    """

    operations: ClassVar[dict[str, Operation]] = {}
    asked_with: ClassVar[frozenset[Kind]] = frozenset()
    answers_with: ClassVar[frozenset[Kind]] = frozenset()

    def __init__(self, party: Party, partner: str) -> None:
        self.party, self.partner = party, partner

    def at(self, party: Party) -> Self:
        """The same learnt side over another table of the same party."""
        other = copy.copy(self)
        other.party = party
        other.forget_people()
        return other

    def forget_people(self) -> None:
        """Drop whatever was computed from the former table's rows."""

    def _mine(self, rows: Tensor) -> NDArray[np.int64]:
        """Rows of this party's table for positions among the people shared with the partner.

        Raises:
            Refused: a position lies outside of these.
        """
        shared, wanted = self.party.shared_with(self.partner), rows.numpy().astype(np.int64)
        if wanted.size and not 0 <= wanted.min() <= wanted.max() < len(shared):
            raise Refused(
                f"party '{self.party.name}' was asked for a row outside of the {len(shared):,} "
                f"people it shares with '{self.partner}'"
            )
        return np.asarray(shared[wanted])

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.operations = {
            name: read_operation(member)
            for name in dir(cls)
            if getattr(member := getattr(cls, name), "__is_operation__", False)
        }
        each = cls.operations.values()
        cls.asked_with = frozenset(slot.kind for one in each for slot in one.takes)
        cls.answers_with = frozenset(slot.kind for one in each for slot in one.gives)
