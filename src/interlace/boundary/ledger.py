"""The ledger: one row for every value that left or entered a party, in a SQLite file.

Rows are chained: each holds a hash over the row before it and itself, so that a later change of
any row shows (:meth:`Ledger.verify`). A chain that somebody rebuilt from the start shows only
against a head kept elsewhere; the report prints the head for that reason.

The ledger never holds a value, only what it was: kind, shape, number type, bytes, guard.
"""

from __future__ import annotations

import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Literal, NamedTuple

from torch import Tensor

from interlace.boundary.kinds import Kind
from interlace.boundary.message import Message, Part
from interlace.errors import InterlaceError

Direction = Literal["sent", "received", "refused"]
GENESIS = "0" * 32
FLUSH_EVERY = 4096  # rows kept in memory before they are written in one transaction
FLUSH_SECONDS = 1.0  # a killed simulation loses no more than what passed in so long
LONGEST_STRETCH = 32  # lines in a part of a transcript that is looked for again

_COLUMNS = (
    "time REAL, direction TEXT, session TEXT, operation TEXT, kind TEXT, sender TEXT, "
    "receiver TEXT, round INTEGER, shape TEXT, dtype TEXT, bytes_before INTEGER, "
    "bytes_after INTEGER, guard TEXT, part INTEGER"
)
_OF_SESSION = "(?1 IS NULL OR session = ?1 OR session GLOB ?1 || '+*')"


class Entry(NamedTuple):
    """One row of the ledger. ``bytes_before`` counts the value's own numbers, ``bytes_after`` what
    was sent for it after guards and encoding (the message's frame is on its first value)."""

    time: float
    direction: Direction
    session: str
    operation: str
    kind: str
    sender: str
    receiver: str
    round: int
    shape: str
    dtype: str
    bytes_before: int
    bytes_after: int
    guard: str
    part: int = 0  # which value of its message


class Totals(NamedTuple):
    """A conversation added up: rounds that something passed in, messages, encoded bytes."""

    rounds: int
    messages: int
    bytes: int


@dataclass(frozen=True)
class Summary:
    """All messages of one operation and kind between two parties in one conversation, added up;
    ``shape``, ``dtype`` and ``guard`` are those of the first."""

    session: str
    operation: str
    kind: str
    sender: str
    receiver: str
    messages: int
    bytes_before: int
    bytes_after: int
    shape: str
    dtype: str
    guard: str


class Ledger:
    """A party's own record of its conversation.

    Args:
        path: The SQLite file; ``None`` keeps the ledger in memory. An existing file is continued.
        at_once: What is sent is in the file before it leaves, so that a killed process has noted
            all that left. Otherwise rows are written together, which is quicker.

    Raises:
        InterlaceError: the file cannot be made or opened, or is something else.
    """

    def __init__(self, path: Path | None = None, *, at_once: bool = False) -> None:
        self.path, self.at_once = path, at_once
        self._writing = threading.RLock()  # a site's other threads write what waits, too
        try:
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
            # The collector may close a ledger in any thread; SQLite itself does not mind.
            self._db = sqlite3.connect(path or ":memory:", check_same_thread=False)
            if at_once:
                # A row is then written in a fraction of a millisecond. It outlives this process;
                # a power cut may take the last ones.
                self._db.execute("PRAGMA journal_mode = WAL")
                self._db.execute("PRAGMA synchronous = NORMAL")
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS ledger "
                f"(row INTEGER PRIMARY KEY, {_COLUMNS}, hash TEXT)"
            )
            self._head = _end(self._db, GENESIS)
        except (OSError, sqlite3.Error) as e:
            raise InterlaceError(
                f"the ledger {path} cannot be opened ({e}); choose another run folder"
            ) from e
        self._waiting: list[Entry] = []
        self._due = time.time() + FLUSH_SECONDS
        if path is not None:
            # What waits when the ledger, or the program, comes to its end is written then.
            weakref.finalize(self, _append_at_the_end, self._db, self._waiting, path)

    def record(self, direction: Direction, message: Message, part: Part, guard: str) -> None:
        """Note one value of a message (its numbers are not kept)."""
        value = part.value
        if isinstance(value, Tensor):
            shape, dtype = "×".join(map(str, value.shape)), str(value.dtype)[6:]
            before = value.numel() * value.element_size()
        else:
            shape, dtype, before = "", "json", 0
        after, index = message.encoded_size(), 0
        if len(message.parts) > 1:
            index = next(i for i, p in enumerate(message.parts) if p is part)
            after = message.shares()[index]
        entry = Entry(
            time.time(),
            direction,
            message.session,
            message.operation,
            part.kind.value,
            message.sender,
            message.receiver,
            message.round,
            shape,
            dtype,
            before,
            after,
            guard,
            index,
        )
        with self._writing:
            self._waiting.append(entry)
            many = len(self._waiting) >= FLUSH_EVERY or entry.time > self._due
            if many or (self.at_once and direction == "sent"):
                self.flush()

    def flush(self) -> None:
        """Write what waits in memory, in one transaction.

        Raises:
            InterlaceError: the file cannot be written (a full disk, say); the rows stay in memory.
        """
        self._due = time.time() + FLUSH_SECONDS
        try:
            with self._writing:
                self._head = _append(self._db, self._waiting, self._head)
        except sqlite3.Error as e:
            raise InterlaceError(
                f"the ledger {self.path} cannot be written ({e}); nothing recorded so far is lost. "
                "Free some space or choose another run folder, then resume"
            ) from e

    @property
    def head(self) -> str:
        """Hash of the last row: keep it elsewhere to prove the whole ledger later."""
        self.flush()
        return self._head

    def entries(self) -> Iterator[Entry]:
        """Every row, oldest first."""
        self.flush()
        names = ",".join(Entry._fields)
        for row in self._db.execute(f"SELECT {names} FROM ledger ORDER BY row"):
            yield Entry(*row)

    def summary(self, session: str | None = None) -> list[Summary]:
        """What was sent and received by operation, kind and partner, in order of appearance.

        Args:
            session: Only this conversation, with those that grew out of it; ``None`` takes all.
        """
        self.flush()
        rows = self._db.execute(
            "SELECT total.*, first.shape, first.dtype, first.guard FROM (SELECT session, "
            "operation, kind, sender, receiver, count(*), sum(bytes_before), sum(bytes_after), "
            "min(row) AS row FROM ledger "
            f"WHERE direction != 'refused' AND {_OF_SESSION} "
            "GROUP BY session, operation, kind, sender, receiver) AS total "
            "JOIN ledger AS first USING (row) ORDER BY row",
            (session,),
        )
        return [Summary(*row[:8], *row[9:]) for row in rows]

    def sent_by(self, party: str) -> dict[Kind, int]:
        """Bytes by kind that a party has sent."""
        self.flush()
        rows = self._db.execute(
            "SELECT kind, sum(bytes_after) FROM ledger "
            "WHERE direction = 'sent' AND sender = ? GROUP BY kind",
            (party,),
        )
        return {Kind(kind): size for kind, size in rows}

    def totals(self, session: str | None = None) -> Totals:
        """Rounds, messages and bytes of one conversation; ``None`` takes all."""
        self.flush()
        row = self._db.execute(
            "SELECT count(DISTINCT round), coalesce(sum(part = 0), 0), "
            "coalesce(sum(bytes_after), 0) FROM ledger WHERE direction != 'refused' "
            f"AND {_OF_SESSION}",
            (session,),
        ).fetchone()
        return Totals(*row)

    def transcript(self) -> str:
        """The conversation as a readable table.

        A stretch of lines that repeats stands once, with the number of times in front and a bar
        beside it. In a shape, n is the number of people.
        """
        lines = []
        for e in self.entries():
            shape = "×".join(["n", *e.shape.split("×")[1:]]) if e.shape else ""
            note = "refused" if e.direction == "refused" else e.guard
            form = f"{e.dtype} {shape}".strip()
            lines.append((f"{e.sender} → {e.receiver}", e.operation, e.kind, form, note))
        widths = [max((len(line[i]) for line in lines), default=0) for i in range(5)]
        out = []
        for start, length, times in _stretches(lines):
            for line in lines[start : start + length]:
                cells = "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True))
                first = f"{times} ×" if times > 1 and line is lines[start] else ""
                out.append(f"{first:>9} {'│' if times > 1 else ' '} {cells}".rstrip())
        return "\n".join(out)

    def verify(self, head: str | None = None) -> int | None:
        """Check the chain.

        Args:
            head: A head that was kept elsewhere, of now or of earlier; without it, rows cut off
                the end of the file before it was opened cannot be noticed, nor a chain that was
                made anew.

        Returns:
            The number of the first row that does not fit (one more than there are, if the last
            ones are missing), or ``None``.
        """
        self.flush()
        found, expected = GENESIS, 0
        due = {h for h in (head, self._head) if h not in (None, GENESIS)}
        names = ",".join(("row", *Entry._fields, "hash"))
        for expected, (number, *fields, stored) in enumerate(
            self._db.execute(f"SELECT {names} FROM ledger ORDER BY row"), start=1
        ):
            found = _chain(found, Entry(*fields))
            if found != stored or number != expected:
                return expected
            due.discard(found)
        return expected + 1 if due else None

    def rows_since(self, head: str) -> int:
        """How many rows follow the one whose hash is ``head``; all, where it is not there."""
        self.flush()
        row = self._db.execute(
            "SELECT count(*) FROM ledger "
            "WHERE row > coalesce((SELECT max(row) FROM ledger WHERE hash = ?), 0)",
            (head,),
        ).fetchone()
        return int(row[0])

    def close(self) -> None:
        """Write what waits and close the file."""
        self.flush()
        self._db.close()


def _append(db: sqlite3.Connection, waiting: list[Entry], head: str) -> str:
    """Write what waits, chained to the file's last row; the list is empty then.

    Args:
        db: The file.
        waiting: Rows without their hashes.
        head: Where the chain ended when it was last looked at.

    Returns:
        Where it ends now.
    """
    if not waiting:
        return head
    marks = ",".join("?" * (len(Entry._fields) + 1))
    names = ",".join((*Entry._fields, "hash"))
    with db:
        db.execute("BEGIN IMMEDIATE")  # nobody else writes between the look and the rows
        head, rows = _end(db, head), []
        for entry in waiting:
            head = _chain(head, entry)
            rows.append((*entry, head))
        db.executemany(f"INSERT INTO ledger ({names}) VALUES ({marks})", rows)
    waiting.clear()
    return head


def _append_at_the_end(db: sqlite3.Connection, waiting: list[Entry], path: Path) -> None:
    try:
        _append(db, waiting, GENESIS)
    except sqlite3.OperationalError:  # "readonly database", where the file was removed meanwhile
        if path.exists():
            raise


def _end(db: sqlite3.Connection, head: str) -> str:
    """Hash of the last row, which another program may have written; but ``head`` itself if that is
    no longer there, so that rows cut off before it show."""
    last = db.execute("SELECT hash FROM ledger ORDER BY row DESC LIMIT 1").fetchone()
    if last is None or last[0] == head:
        return head
    there = db.execute("SELECT 1 FROM ledger WHERE hash = ?", (head,)).fetchone()
    return str(last[0]) if there or head == GENESIS else head


def _chain(head: str, entry: Entry) -> str:
    return blake2b(f"{head}{tuple(entry)!r}".encode(), digest_size=16).hexdigest()


def _stretches(lines: Sequence[object]) -> Iterator[tuple[int, int, int]]:
    """Cut lines into stretches (start, length, times in a row), taking what covers most."""
    at = 0
    while at < len(lines):
        length, times = 1, 1
        for period in range(1, min(LONGEST_STRETCH, (len(lines) - at) // 2) + 1):
            end = at + period
            while lines[end : end + period] == lines[at : at + period]:
                end += period
            if end > at + period and end - at > length * times:
                length, times = period, (end - at) // period
        yield at, length, times
        at += length * times
