"""A partner as seen from the party that drives: a name to ask operations of."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

from interlace.boundary import Message
from interlace.party.operation import Operation, PassiveSide, read_operation
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

    def start(self, message: Message) -> Callable[[], Message]:
        """Bring a message to its receiver while others are asked; what is returned waits for the
        answer, and raises as :meth:`deliver` does."""
        ...

    def post(self, message: Message, then: Callable[[Message], None]) -> None:
        """Bring a message to its receiver with the next one that is answered, at the latest.

        Args:
            message: What asks for nothing in return.
            then: Takes the answer, that it is done, when the receiver is next asked. What went
                wrong is raised then too, and what was to follow is not carried out.
        """
        ...

    def settle(self, party: str) -> None:
        """Bring a party what was posted to it, and raise what went wrong."""
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
            PartyFailed: the partner could not answer, or not carry out what was posted before.
        """
        asked, operation = self._released(op, args, kwargs)
        return cast(R, self._admitted(self.engine.deliver(asked), asked, operation))

    def start(
        self, op: Callable[Concatenate[S, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> Callable[[], R]:
        """Ask, and go on: other partners can be asked meanwhile, and work be done here. What is
        sent stays as it is until then.

        Returns:
            What waits for the answer. Everything is raised as :meth:`ask` does, here or there.
        """
        asked, operation = self._released(op, args, kwargs)
        answer = self.engine.start(asked)
        return lambda: cast(R, self._admitted(answer(), asked, operation))

    def post(
        self, op: Callable[Concatenate[S, P], None], *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """Have the partner carry out an operation that gives nothing back, without waiting.

        It is carried out before whatever the partner is asked next, and travels with that. An
        error is raised then. So what must have been done before something is done here, as a
        checkpoint, is asked (:meth:`ask`), and what takes long is started (:meth:`start`).
        """
        asked, operation = self._released(op, args, kwargs)
        if operation.gives:
            raise TypeError(f"'{operation.name}' has an answer, which has to be waited for")

        def done(answer: Message) -> None:
            self._admitted(answer, asked, operation)

        self.engine.post(asked, done)

    def settle(self) -> None:
        """Have what was posted carried out, and raise what went wrong."""
        self.engine.settle(self.name)

    def _released(
        self, op: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Message, Operation]:
        operation = read_operation(op)
        values = (*args, *(kwargs[slot.name] for slot in operation.takes[len(args) :]))
        slots = operation.takes
        asked = self.me.boundary.release(self.session, operation.name, self.name, slots, values)
        return asked, operation

    def _admitted(self, answer: Message, asked: Message, operation: Operation) -> Any:
        boundary = self.me.boundary
        due = (self.name, self.session, operation.name, asked.round)
        if (answer.sender, answer.session, answer.operation, answer.round) != due:
            raise boundary.refusal(answer, "it answers something else than was asked")
        got: list[Any] = boundary.admit(answer, operation.gives)
        return got[0] if got else None


def ask_all(
    peers: Iterable[Peer],
    op: Callable[Concatenate[S, P], R],
    *args: P.args,
    **kwargs: P.kwargs,
) -> dict[str, R]:
    """Ask several partners the same at once; their answers, by their names.

    Raises:
        Exception: as :meth:`Peer.ask` does.
    """
    asked = {peer.name: peer.start(op, *args, **kwargs) for peer in peers}
    return {name: answer() for name, answer in asked.items()}
