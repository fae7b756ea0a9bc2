"""The engine between sites, whatever carries its frames: the driver's end and the partner's.

::

    driver                                        partner
      │ ── hello ───────────────────────────────►  │   see `interlace.engines.sealed`
      │ ◄─────────────────────────────── hello ──  │
      │ ── state ───────────────────────────────►  │   approved, waiting, refused
      │ ── open(session, side) ─────────────────►  │
      │ ── piece … piece, deliver(messages) ────►  │   Party.answer, one after the other
      │ ◄──────────── answers, the first piece ──  │
      │ ── more … ──────────────────────────────►  │   the pieces that are left
      │ ── end ─────────────────────────────────►  │

All but the first line travels in sealed frames that are numbered. Each frame is carried out once:
when an answer is lost the driver asks again, and gets the answer that was given.

A frame costs milliseconds, so a message whose answer says only that it is done is held back, and
goes in one frame with the next to that partner. Each is still a message of its own: checked,
answered and noted by itself. After one that fails, nothing else of its frame is carried out.
"""

from __future__ import annotations

import itertools
import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Literal, NamedTuple, Self

from interlace.boundary import Message
from interlace.boundary.message import MAX_MESSAGE_BYTES, decode
from interlace.engines.sealed import Identity, Line, Meeting
from interlace.errors import (
    InterlaceError,
    JobError,
    PartyAway,
    PartyFailed,
    PolicyError,
    Refused,
    of_posted,
)
from interlace.party import Party, PassiveSide

PIECE = 2**22  # bytes of a message in one frame
CALL_SECONDS = 30.0  # how long one frame is waited for before it is asked what became of it
PAUSE = 0.5  # seconds between two such questions
MOST_TOGETHER = 64  # messages in one frame
AT_ONCE = 32  # partners that are asked at the same time
MOST_NOTED = 1000  # frames that were nobody's; more of them would fill a disk

# The first byte of what travels, in clear.
_HELLO, _FRAME, _AGAIN = b"H", b"F", b"?"
_SEALED, _BUSY, _UNSEEN, _REFUSED = b"+", b"~", b"!", b"-"

# Errors whose text speaks of the message, the rule or the job alone. Of others only the type
# crosses, since their text may quote a table or a path.
_TOLD: dict[str, type[InterlaceError]] = {e.__name__: e for e in (Refused, PolicyError, JobError)}
_MOST_TEXT = 500

log = logging.getLogger(__name__)

Carry = Callable[[str, bytes, float], bytes]
"""Brings a frame to a party and its answer back, within so many seconds; raises `Unreachable`."""

State = Literal["approved", "waiting", "refused"]


class Unreachable(Exception):
    """A frame or its answer was lost on the way."""


class Gate(NamedTuple):
    """Whether a party takes part, why not, and its signed word as JSON."""

    state: State
    reason: str = ""
    word: str = ""


class _Asked(NamedTuple):
    """A message as it travels: what was to be sent may change before it is."""

    operation: str
    blob: bytes

    @classmethod
    def of(cls, message: Message) -> Self:
        return cls(message.operation, message.encode())


class _Posted(NamedTuple):
    """A message that is held back, and what takes its answer."""

    asked: _Asked
    then: Callable[[Message], None]


class _Came(NamedTuple):
    """The answers to the first of some messages, and why there is none to the one after these."""

    answers: list[bytes]
    error: Exception | None = None


class Sites:
    """The driver's end: an engine that reaches each partner over a sealed line.

    A partner is asked one thing at a time, several partners at once (:meth:`start`).

    Args:
        me: The driver's name.
        meeting: Which run of which job.
        identity: The driver's.
        carry: What carries frames.
        patience: Seconds to wait for a partner that does not answer.
        progress: Told what share of a large message has gone, or come.
    """

    def __init__(
        self,
        me: str,
        meeting: Meeting,
        identity: Identity,
        carry: Carry,
        *,
        patience: float,
        progress: Callable[[str, float], None] = lambda _what, _share: None,
    ) -> None:
        self.me, self.meeting, self.identity = me, meeting, identity
        self.carry, self.patience, self.progress = carry, patience, progress
        self._lines: dict[str, Line] = {}
        self._numbers: dict[str, int] = {}
        self._owed: dict[str, bytes] = {}  # frames of partners who have been away since
        self._posted: dict[str, list[_Posted]] = {}
        self._going: dict[str, Future[_Came]] = {}  # what partners are being asked
        self._threads = ThreadPoolExecutor(AT_ONCE, "ask")

    @property
    def joined(self) -> list[str]:
        """The partners who have said hello."""
        return list(self._lines)

    def join(self, party: str) -> None:
        """Say hello to a partner.

        Raises:
            PartyAway: it cannot be reached.
            Refused: one side does not know the other for who it says it is.
        """
        line = Line(self.me, party, self.meeting, self.identity)
        answer = self._carried(party, _HELLO, 0, line.hello())
        line.meet(answer, answers=line.key)
        self._lines[party], self._numbers[party] = line, 0

    def state(self, party: str) -> Gate:
        """Whether a partner takes part."""
        self._wait_for(party)
        told, _ = self._frame(party, {"do": "state"}, b"")
        return Gate(told["state"], _legible(told["reason"]), str(told["word"]))

    def open(self, session: str, side: type[PassiveSide], party: str, partner: str) -> None:
        """Have a party take part, with this passive side, in a conversation ``partner`` drives."""
        self.settle(party)
        where = f"{side.__module__}:{side.__qualname__}"
        self._frame(party, {"do": "open", "session": session, "side": where}, b"")

    def deliver(self, message: Message) -> Message:
        """Bring a message to its receiver and its answer back.

        Raises:
            PartyAway: the receiver cannot be reached for as long as the job waits.
            PartyFailed: it could not answer; the reason is in its own log.
            Refused, PolicyError, JobError: it did not want to; the text says why.
        """
        posted = self._next(message.receiver)
        return self._taken(self._brought(message.receiver, posted, _Asked.of(message)), posted)

    def start(self, message: Message) -> Callable[[], Message]:
        """Bring a message to its receiver in a thread of its own.

        Returns:
            What waits for the answer, and raises as :meth:`deliver` does.
        """
        posted = self._next(message.receiver)
        asked = _Asked.of(message)
        going = self._threads.submit(self._brought, message.receiver, posted, asked)
        self._going[message.receiver] = going
        return lambda: self._taken(going.result(), posted)

    def post(self, message: Message, then: Callable[[Message], None]) -> None:
        """Hold a message back until its receiver is asked something, or much has come together."""
        held = self._posted.setdefault(message.receiver, [])
        held.append(_Posted(_Asked.of(message), then))
        if len(held) >= MOST_TOGETHER - 1 or sum(len(p.asked.blob) for p in held) > PIECE:
            self.settle(message.receiver)

    def settle(self, party: str) -> None:
        """Bring a party what was posted to it, and raise what went wrong."""
        if posted := self._next(party):
            self._taken(self._brought(party, posted), posted)

    def _next(self, party: str) -> list[_Posted]:
        """What goes with the next message to a party, which is asked nothing else meanwhile."""
        self._wait_for(party)
        if party not in self._lines:
            raise JobError(f"there is no party '{party}' in this run")
        return self._posted.pop(party, [])

    def _wait_for(self, party: str) -> None:
        if party in self._going:
            wait([self._going.pop(party)])

    def _brought(self, party: str, posted: Sequence[_Posted], last: _Asked | None = None) -> _Came:
        """Bring a party what was posted to it and a message; in one frame, if that holds both."""
        first = [p.asked for p in posted]
        if last is None:
            return self._ask(party, first)
        together = [*first, last]
        if not first or sum(len(asked.blob) for asked in together) <= PIECE:
            return self._ask(party, together)
        before = self._ask(party, first)
        if before.error is not None:
            return before
        came = self._ask(party, [last])
        return _Came([*before.answers, *came.answers], came.error)

    def _taken(self, came: _Came, posted: Sequence[_Posted]) -> Message:
        """The last answer, once those to what was posted have been taken."""
        answers = [decode(answer) for answer in came.answers]
        for held, answer in zip(posted, answers, strict=False):
            held.then(answer)
        if came.error is None:
            return answers[-1]
        if len(answers) < len(posted):
            raise of_posted(came.error, posted[len(answers)].asked.operation)
        raise came.error

    def _ask(self, party: str, messages: Sequence[_Asked]) -> _Came:
        """What a partner answers to messages of one frame."""
        names, sizes = [m.operation for m in messages], [len(m.blob) for m in messages]
        blob = b"".join(m.blob for m in messages)
        sent, size = 0, len(blob)
        while size - sent > PIECE:
            self._frame(party, {"do": "piece", "sizes": sizes}, blob[sent : sent + PIECE])
            sent += PIECE
            self.progress(f"sending {size / 1e6:,.0f} MB to {party}", sent / size)
        told, got = self._answer(party, {"do": "deliver", "sizes": sizes}, blob[sent:])
        due = told.get("sizes", [])
        if not _are_sizes(due) or len(due) > len(sizes) or sum(due) > MAX_MESSAGE_BYTES:
            raise Refused(f"'{party}' answers '{names[-1]}' by too many bytes")
        pieces, came, whole = [got], len(got), sum(due)
        while came < whole:
            _, got = self._frame(party, {"do": "more"}, b"", names[-1])
            if not got:
                raise Refused(f"'{party}' announced {whole:,} bytes and sent {came:,}")
            pieces.append(got)
            came += len(got)
            self.progress(f"receiving {whole / 1e6:,.0f} MB from {party}", came / whole)
        answers = _cut(b"".join(pieces), due)
        if (error := told.get("error")) is not None and len(answers) < len(names):
            return _Came(answers, self._error(told, party, names[len(answers)]))
        if error is not None or len(answers) < len(names):
            raise Refused(f"'{party}' does not answer all that it was asked")
        return _Came(answers)

    def end(self, party: str, outcome: str, reason: str) -> None:
        """Let a partner know what the run came to, and that it will be asked nothing more."""
        self._wait_for(party)
        self._frame(party, {"do": "end", "outcome": outcome, "reason": reason}, b"")

    def _frame(
        self, party: str, head: dict[str, Any], body: bytes, operation: str = ""
    ) -> tuple[dict[str, Any], bytes]:
        """One numbered frame and its answer.

        Raises:
            Exception: what the partner says went wrong.
        """
        told, got = self._answer(party, head, body)
        if told.get("error") is not None:
            raise self._error(told, party, operation or head["do"])
        return told, got

    def _error(self, told: dict[str, Any], party: str, operation: str) -> Exception:
        """What a partner says went wrong."""
        failed = _legible(told["error"])
        if failed in _TOLD:
            error = _TOLD[failed](_legible(told.get("text", "")))
            error.by = party
            return error
        return PartyFailed(party, operation, f"{failed}; its own log says more")

    def _answer(
        self, party: str, head: dict[str, Any], body: bytes
    ) -> tuple[dict[str, Any], bytes]:
        """What answers a numbered frame.

        No number is used twice, and none is left out. So a partner who was away, and is back, is
        first asked for the answer that it owes, which nobody waits for any more.
        """
        line = self._lines[party]
        if party in self._owed:
            self._carried(party, _FRAME, self._numbers[party], self._owed[party])
        self._numbers[party] = number = self._numbers[party] + 1
        self._owed[party] = sealed = line.seal(number, _packed(head, body))
        answer = self._carried(party, _FRAME, number, sealed)
        del self._owed[party]
        return _unpacked(line.open(number, answer))

    def _carried(self, party: str, what: bytes, number: int, sealed: bytes) -> bytes:
        """Bring something to a party until it has answered, however often the way fails."""
        frame = what + number.to_bytes(8, "big") + sealed
        asking, lost_since = frame, 0.0
        while True:
            try:
                answer = self.carry(party, asking, min(CALL_SECONDS, max(self.patience, 1.0)))
            except Unreachable as e:
                lost_since = lost_since or time.monotonic()
                if time.monotonic() - lost_since > self.patience:
                    raise PartyAway(
                        party,
                        "a request",
                        f"it cannot be reached ({e}); the run can go on once it is back",
                    ) from None
                time.sleep(PAUSE)
                asking = _AGAIN + frame[1:9] if what == _FRAME else frame
                continue
            lost_since = 0.0
            status, rest = answer[:1], answer[1:]
            if status == _SEALED:
                return rest
            if status == _REFUSED:
                raise Refused(_legible(rest.decode(errors="replace")))
            time.sleep(PAUSE)
            asking = _AGAIN + frame[1:9] if status == _BUSY else frame


class Answering:
    """A partner's end: opens what the driver asks and has the party answer it.

    Args:
        me: The party's name.
        driver: Whom alone it answers.
        meeting: Which run of which job.
        identity: The party's.
        gate: Whether the party takes part; asked until it does.
        party: Makes the party, once it takes part.
        sides: The passive sides that the job's methods may open.
        most_bytes: The largest message taken; an announced larger one takes no memory.
    """

    def __init__(
        self,
        me: str,
        driver: str,
        meeting: Meeting,
        identity: Identity,
        *,
        gate: Callable[[], Gate],
        party: Callable[[], Party],
        sides: Iterable[type[PassiveSide]],
        most_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        self.me, self.driver, self.gate, self.most_bytes = me, driver, gate, most_bytes
        self.outcome: tuple[str, ...] = ()  # and the reason, once the driver has ended the run
        self._make_party, self._party = party, None
        self._sides = {f"{side.__module__}:{side.__qualname__}": side for side in sides}
        self._line = Line(me, driver, meeting, identity)
        self._met: tuple[bytes, bytes] | None = None  # the driver's hello and its answer
        self._number, self._asked, self._answer = 0, b"", b""
        self._pieces: list[bytes] = []
        self._rest = memoryview(b"")
        self._busy = threading.Lock()
        self._noted = 0

    _party: Party | None

    def receive(self, frame: bytes) -> bytes:
        """The answer to a frame; never an error, whatever came."""
        if not self._busy.acquire(blocking=False):
            return _BUSY
        try:
            return _SEALED + self._received(frame)
        except _Unseen:
            return _UNSEEN
        except Refused as e:
            self._note(e)
            return _REFUSED + str(e).encode()
        finally:
            self._busy.release()

    def _received(self, frame: bytes) -> bytes:
        what, number, sealed = frame[:1], int.from_bytes(frame[1:9], "big"), frame[9:]
        if what == _HELLO:
            return self._hello(sealed)
        if what == _AGAIN and number == self._number + 1:
            raise _Unseen
        if number and number == self._number and (what == _AGAIN or sealed == self._asked):
            return self._answer
        if what != _FRAME or number != self._number + 1:
            raise Refused(
                f"a frame from '{self.driver}' is repeated, out of order, or none of ours"
            )
        head, body = _unpacked(self._line.open(number, sealed))
        # Opened by nobody else's key: from here on it is the driver's, and is carried out once.
        self._number, self._asked = number, sealed
        told, got = self._carry_out(head, body)
        self._answer = self._line.seal(number, _packed(told, got))
        return self._answer

    def _hello(self, hello: bytes) -> bytes:
        if self._met is None:
            answers = self._line.meet(hello)
            self._met = hello, self._line.hello(answers)
        if self._met[0] != hello:
            raise Refused(f"'{self.driver}' has said hello before; one run has one hello")
        return self._met[1]

    def _carry_out(self, head: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        """Do what the driver asks. Every error is an answer too."""
        try:
            gate = self.gate()
            if head["do"] == "state":
                return gate._asdict(), b""
            if head["do"] == "end":
                told = (_legible(head.get(about, "")) for about in ("outcome", "reason"))
                self.outcome = tuple(told)
                return {}, b""
            if gate.state != "approved":
                raise Refused(f"party '{self.me}' has not approved this run ({gate.state})")
            return self._asked_for(head, body)
        except Exception as e:
            return _failure(e, str(head.get("do"))), b""

    def _asked_for(self, head: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        if head["do"] == "open":
            side = self._sides.get(head["side"])
            if side is None:
                raise Refused(f"'{str(head['side'])[:100]}' is no side of the approved methods")
            self.party.open(str(head["session"])[:200], side, self.driver)
            return {}, b""
        if head["do"] == "more":
            piece, self._rest = self._rest[:PIECE], self._rest[PIECE:]
            return {}, bytes(piece)
        if head["do"] not in ("piece", "deliver"):
            raise Refused(f"there is nothing called '{str(head['do'])[:40]}' to do")
        sizes: list[int] = head["sizes"] if _are_sizes(head.get("sizes")) else []
        announced, whole = 0 < len(sizes) <= MOST_TOGETHER, head["do"] == "deliver"
        due, came = sum(sizes), sum(map(len, self._pieces)) + len(body)
        if not announced or due > self.most_bytes or came > due or (whole and came < due):
            self._pieces = []
            raise self._refusal(
                f"a message of {due:,} bytes is larger than the {self.most_bytes:,} that party "
                f"'{self.me}' takes"
                if due > self.most_bytes
                else "a message's pieces are not as long as was announced"
            )
        self._pieces.append(body)
        if not whole:
            return {}, b""
        blob, self._pieces = b"".join(self._pieces), []
        return self._delivered(_cut(blob, sizes))

    def _delivered(self, blobs: Iterable[bytes]) -> tuple[dict[str, Any], bytes]:
        """Have the party answer messages, one after the other, as far as it can."""
        try:
            messages = [decode(blob) for blob in blobs]
        except Refused as e:
            raise self._refusal(str(e)) from None
        answers: list[bytes] = []
        failure: dict[str, Any] = {}
        for message in messages:
            if failure:
                self.party.boundary.refusal(message, "what was to be done before it failed")
                continue
            try:
                if message.sender != self.driver:
                    raise self.party.boundary.refusal(message, "its sender is not who sent it")
                if sum(map(len, answers)) > PIECE:  # or many large ones would fill the memory
                    raise self.party.boundary.refusal(message, "only the last may ask for much")
                answers.append(self.party.answer(message).encode())
            except Exception as e:
                failure = _failure(e, message.operation)
        whole = b"".join(answers)
        self._rest = memoryview(whole)[PIECE:]
        return {"sizes": [len(a) for a in answers], **failure}, whole[:PIECE]

    @property
    def party(self) -> Party:
        """The party, made when it is first needed."""
        if self._party is None:
            self._party = self._make_party()
        return self._party

    def _refusal(self, why: str) -> Refused:
        """The error that refuses what is no message, once the ledger has noted it."""
        return self.party.boundary.refusal(Message("", "unread", self.driver, self.me, 0), why)

    def _note(self, refused: Refused) -> None:
        """Note a frame that was refused before it was opened, but no flood of them."""
        self._noted += 1
        if self._noted > MOST_NOTED:
            return
        log.warning("%s", refused)
        if self._party is not None:
            self._refusal(str(refused))


class _Unseen(Exception):
    """The frame that is asked after has not come."""


def _failure(error: Exception, what: str) -> dict[str, str]:
    """What the driver hears of an error; this party's own log has all of it."""
    log.error("'%s' could not be answered", what, exc_info=error)
    name = type(error).__name__
    return {"error": name, "text": str(error) if name in _TOLD else ""}


def _are_sizes(sent: object) -> bool:
    """Whether somebody else's word lists numbers of bytes."""
    return isinstance(sent, list) and all(type(n) is int and n >= 0 for n in sent)


def _cut(blob: bytes, sizes: Sequence[int]) -> list[bytes]:
    """A blob in pieces of these sizes."""
    ends = list(itertools.accumulate(sizes))
    return [blob[end - size : end] for end, size in zip(ends, sizes, strict=True)]


def _legible(text: object) -> str:
    """What somebody else wrote, fit for a log and a terminal."""
    return "".join(c if c.isprintable() else " " for c in str(text)[:_MOST_TEXT])


def _packed(head: dict[str, Any], body: bytes) -> bytes:
    text = json.dumps(head).encode()
    return len(text).to_bytes(4, "big") + text + body


def _unpacked(packed: bytes) -> tuple[dict[str, Any], bytes]:
    """The head and body of a frame.

    Raises:
        Refused: there are none.
    """
    end = 4 + int.from_bytes(packed[:4], "big")
    try:
        head = json.loads(packed[4:end])
        if not isinstance(head, dict) or not isinstance(head.get("do", ""), str):
            raise ValueError
    except (ValueError, RecursionError):
        raise Refused("a frame holds no head") from None
    return head, packed[end:]


def sides_in(modules: Iterable[str], package: str = "interlace.") -> set[type[PassiveSide]]:
    """Every passive side that these modules name, and those that their own imports name."""
    seen: set[str] = set()
    found: set[type[PassiveSide]] = set()
    left = list(modules)
    while left:
        name = left.pop()
        if name in seen or not name.startswith(package):
            continue
        seen.add(name)
        for thing in vars(sys.modules[name]).values():
            if isinstance(thing, type):
                left.append(thing.__module__)
                if issubclass(thing, PassiveSide) and thing.__module__.startswith(package):
                    found.add(thing)
    return found
