"""A partner as seen from the party that drives: a name to ask operations of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

from interlace.boundary import Message
from interlace.party.operation import PassiveSide, read_operation
from interlace.party.party import Party

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound=PassiveSide)


class Engine(Protocol):
    """What carries messages. It knows nothing of what they mean."""

    def open(self, session: str, side: type[PassiveSide], party: str, partner: str) -> None:
        """Have a party take part, with this passive side, in a conversation ``partner`` drives."""
        ...

    def deliver(self, message: Message) -> Message:
        """Bring a message to its receiver and its answer back.

        Raises:
            PartyFailed: the receiver could not answer.
        """
        ...


class Peer:
    """A partner that one party asks, in one conversation.

    Args:
        me: The party that asks.
        name: The partner's name.
        engine: What carries the messages.
        session: The conversation's name.
    """

    def __init__(self, me: Party, name: str, engine: Engine, session: str) -> None:
        self.me, self.name, self.engine, self.session = me, name, engine, session

    def ask(self, op: Callable[Concatenate[S, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Ask the partner to carry out an operation, and wait for its answer.

        The operation is named by its function (``peer.ask(SplitBottom.forward, rows)``), so the
        arguments are checked as for a call. Both ways lead through both parties' boundaries.

        Raises:
            PolicyError: a party's policy does not let a value leave.
            Refused: a value is not what the operation's signature promises.
            PartyFailed: the partner could not answer.
        """
        operation = read_operation(op)
        boundary = self.me.boundary
        values = (*args, *(kwargs[slot.name] for slot in operation.takes[len(args) :]))
        asked = boundary.release(
            self.session,
            operation.name,
            self.name,
            operation.takes,
            values,  # type: ignore[arg-type]
        )
        answer = self.engine.deliver(asked)
        due = (self.name, self.session, operation.name, asked.round)
        if (answer.sender, answer.session, answer.operation, answer.round) != due:
            raise boundary.refusal(answer, "it answers something else than was asked")
        got: list[Any] = boundary.admit(answer, operation.gives)
        return cast(R, got[0] if got else None)
