"""The engine between sites, whatever carries its frames: the driver's end and the partner's.

::

    driver                                        partner
      │ ── hello ───────────────────────────────►  │   see `interlace.engines.sealed`
      │ ◄─────────────────────────────── hello ──  │
      │ ── state ───────────────────────────────►  │   approved, waiting, refused
      │ ── open(session, side) ─────────────────►  │
      │ ── piece … piece, deliver(message) ─────►  │   Party.answer
      │ ◄───────────── answer, its first piece ──  │
      │ ── more … ──────────────────────────────►  │   the pieces that are left
      │ ── end ─────────────────────────────────►  │

All but the first line travels in sealed frames that are numbered. Each frame is carried out once:
when an answer is lost the driver asks again, and gets the answer that was given.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

from interlace.boundary import Message
from interlace.boundary.message import MAX_MESSAGE_BYTES, decode
from interlace.engines.sealed import Identity, Line, Meeting
from interlace.errors import InterlaceError, JobError, PartyAway, PartyFailed, PolicyError, Refused
from interlace.party import Party, PassiveSide

PIECE = 2**22  # bytes of a message in one frame
CALL_SECONDS = 30.0  # how long one frame is waited for before it is asked what became of it
PAUSE = 0.5  # seconds between two such questions
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


class Sites:
    """The driver's end: an engine that reaches each partner over a sealed line.

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
        told, _ = self._frame(party, {"do": "state"}, b"")
        return Gate(told["state"], _legible(told["reason"]), str(told["word"]))

    def open(self, session: str, side: type[PassiveSide], party: str, partner: str) -> None:
        """Have a party take part, with this passive side, in a conversation ``partner`` drives."""
        where = f"{side.__module__}:{side.__qualname__}"
        self._frame(party, {"do": "open", "session": session, "side": where}, b"")

    def deliver(self, message: Message) -> Message:
        """Bring a message to its receiver and its answer back.

        Raises:
            PartyAway: the receiver cannot be reached for as long as the job waits.
            PartyFailed: it could not answer; the reason is in its own log.
            Refused, PolicyError, JobError: it did not want to; the text says why.
        """
        party, blob = message.receiver, message.encode()
        if party not in self._lines:
            raise JobError(f"there is no party '{party}' in this run")
        sent, size = 0, len(blob)
        while size - sent > PIECE:
            self._frame(party, {"do": "piece", "of": size}, blob[sent : sent + PIECE])
            sent += PIECE
            self.progress(f"sending {size / 1e6:,.0f} MB to {party}", sent / size)
        ask = {"do": "deliver", "of": size}
        told, got = self._frame(party, ask, blob[sent:], message.operation)
        due = told.get("of")
        if type(due) is not int or due > MAX_MESSAGE_BYTES:
            raise Refused(f"'{party}' answers '{message.operation}' by too many bytes")
        pieces, came = [got], len(got)
        while came < due:
            _, got = self._frame(party, {"do": "more"}, b"", message.operation)
            if not got:
                raise Refused(f"'{party}' announced {due:,} bytes and sent {came:,}")
            pieces.append(got)
            came += len(got)
            self.progress(f"receiving {due / 1e6:,.0f} MB from {party}", came / due)
        return decode(b"".join(pieces))

    def end(self, party: str, outcome: str, reason: str) -> None:
        """Let a partner know what the run came to, and that it will be asked nothing more."""
        self._frame(party, {"do": "end", "outcome": outcome, "reason": reason}, b"")

    def _frame(
        self, party: str, head: dict[str, Any], body: bytes, operation: str = ""
    ) -> tuple[dict[str, Any], bytes]:
        """One numbered frame and its answer.

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
        told, got = _unpacked(line.open(number, answer))
        if told.get("error") is None:
            return told, got
        failed = _legible(told["error"])
        if failed in _TOLD:
            raise _TOLD[failed](_legible(told["text"]))
        raise PartyFailed(party, operation or head["do"], f"{failed}; its own log says more")

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
            log.exception("'%s' could not be answered", head.get("do"))
            error = type(e).__name__
            return {"error": error, "text": str(e) if error in _TOLD else ""}, b""

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
        due, came = head["of"], sum(map(len, self._pieces)) + len(body)
        whole = head["do"] == "deliver"
        if type(due) is not int or due > self.most_bytes or came > due or (whole and came < due):
            self._pieces = []
            raise self._refusal(
                f"a message of {due:,} bytes is larger than the {self.most_bytes:,} that party "
                f"'{self.me}' takes"
                if type(due) is int and due > self.most_bytes
                else "a message's pieces are not as long as was announced"
            )
        self._pieces.append(body)
        if not whole:
            return {}, b""
        blob, self._pieces = b"".join(self._pieces), []
        try:
            message = decode(blob)
        except Refused as e:
            raise self._refusal(str(e)) from None
        if message.sender != self.driver:
            raise self.party.boundary.refusal(message, "its sender is not who sent it")
        answer = self.party.answer(message).encode()
        self._rest = memoryview(answer)[PIECE:]
        return {"of": len(answer)}, answer[:PIECE]

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
