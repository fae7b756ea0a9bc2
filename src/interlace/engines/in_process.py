"""The in-process engine: all parties in one interpreter, a call is a function call."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future

from interlace.boundary import Message
from interlace.boundary.message import decode
from interlace.errors import JobError, of_posted
from interlace.party import Party, PassiveSide


class InProcess:
    """Carries messages between parties of one process.

    Args:
        parties: The parties that can be asked.
        wire: Encode and decode every message, as the deployed engine does, to prove that nothing
            depends on shared memory. Slower; the byte counts are the same either way.
    """

    def __init__(self, parties: Iterable[Party], *, wire: bool = False) -> None:
        self.parties = {party.name: party for party in parties}
        self.wire = wire
        self._failed: dict[str, Exception] = {}  # what was posted to a party and went wrong
        self._started: dict[str, tuple[Message, Future[Message]]] = {}

    def open(self, session: str, side: type[PassiveSide], party: str, partner: str) -> None:
        """Have a party take part, with this passive side, in a conversation ``partner`` drives."""
        self.settle(party)
        self.parties[party].open(session, side, partner)

    def deliver(self, message: Message) -> Message:
        """Bring a message to its receiver and its answer back."""
        self.settle(message.receiver)
        if message.receiver not in self.parties:
            raise JobError(f"there is no party '{message.receiver}' in this federation")
        receiver = self.parties[message.receiver]
        if not self.wire:
            return receiver.answer(message)
        return decode(receiver.answer(decode(message.encode())).encode())

    def start(self, message: Message) -> Callable[[], Message]:
        """The same once the answer is waited for, or the receiver asked something else."""
        self._carry_out(message.receiver)
        answer: Future[Message] = Future()
        self._started[message.receiver] = message, answer

        def waited() -> Message:
            if not answer.done():
                self._carry_out(message.receiver)
            return answer.result()

        return waited

    def _carry_out(self, party: str) -> None:
        """Deliver what was started."""
        if party in self._started:
            message, answer = self._started.pop(party)
            try:
                answer.set_result(self.deliver(message))
            except Exception as e:
                answer.set_exception(e)

    def post(self, message: Message, then: Callable[[Message], None]) -> None:
        """Bring a message to its receiver; an error is kept until that is next asked."""
        if message.receiver in self._failed:
            return
        try:
            then(self.deliver(message))
        except Exception as e:
            self._failed[message.receiver] = of_posted(e, message.operation)

    def settle(self, party: str) -> None:
        """Carry out what was started at a party, and raise what went wrong with what was posted."""
        self._carry_out(party)
        if party in self._failed:
            raise self._failed.pop(party)
