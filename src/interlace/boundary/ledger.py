"""The ledger: one row for every value that left or entered a party, in a SQLite file.

Rows are chained: each holds a hash over the row before it and itself, so that a later change of
any row shows (:meth:`Ledger.verify`). A chain that somebody rebuilt from the start shows only
against a head kept elsewhere; the report prints the head for that reason.

The ledger never holds a value, only what it was: kind, shape, number type, bytes, guard.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Literal, NamedTuple

from torch import Tensor

from interlace.boundary.message import Message, Part
from interlace.errors import InterlaceError

Direction = Literal["sent", "received", "refused"]
GENESIS = "0" * 32
FLUSH_EVERY = 4096  # rows kept in memory before they are written in one transaction

_COLUMNS = (
    "time REAL, direction TEXT, session TEXT, operation TEXT, kind TEXT, sender TEXT, receiver TEXT, "
    "round INTEGER, shape TEXT, dtype TEXT, bytes_before INTEGER, bytes_after INTEGER, guard TEXT"
)


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
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        self._db = sqlite3.connect(path or ":memory:")
        self._db.execute(
            f"CREATE TABLE IF NOT EXISTS ledger (row INTEGER PRIMARY KEY, {_COLUMNS}, hash TEXT)"
        )
        last = self._db.execute("SELECT hash FROM ledger ORDER BY row DESC LIMIT 1").fetchone()
        self._head: str = last[0] if last else GENESIS
        self._waiting: list[Entry] = []

    def record(self, direction: Direction, message: Message, part: Part, guard: str) -> None:
        """Note one value of a message (its numbers are not kept)."""
        value = part.value
        if isinstance(value, Tensor):
            shape, dtype = "×".join(map(str, value.shape)), str(value.dtype)[6:]
            before = value.numel() * value.element_size()
        else:
            shape, dtype, before = "", "json", 0
        total = message.encoded_size()
        if len(message.parts) <= 1:
            after = total
        else:  # the frame is counted with the first value
            after = _payload(part)
            if part is message.parts[0]:
                after += total - sum(_payload(p) for p in message.parts)
        self._waiting.append(
            Entry(
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
            )
        )
        if len(self._waiting) >= FLUSH_EVERY:
            self.flush()

    def flush(self) -> None:
        """Write what waits in memory, in one transaction.

        Raises:
            InterlaceError: the file cannot be written (a full disk, say); the rows stay in memory.
        """
        if not self._waiting:
            return
        rows, head = [], self._head
        for entry in self._waiting:
            head = _chain(head, entry)
            rows.append((*entry, head))
        marks = ",".join("?" * (len(Entry._fields) + 1))
        names = ",".join((*Entry._fields, "hash"))
        try:
            with self._db:
                self._db.executemany(f"INSERT INTO ledger ({names}) VALUES ({marks})", rows)
        except sqlite3.Error as e:
            raise InterlaceError(
                f"the ledger {self.path} cannot be written ({e}); nothing recorded so far is lost. "
                "Free some space or choose another run folder, then resume"
            ) from e
        self._head = head
        self._waiting.clear()

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

    def summary(self) -> list[Summary]:
        """What was sent and received by operation, kind and partner, in order of appearance."""
        self.flush()
        rows = self._db.execute(
            "SELECT total.*, first.shape, first.dtype, first.guard FROM (SELECT session, operation, "
            "kind, sender, receiver, count(*), sum(bytes_before), sum(bytes_after), min(row) AS row "
            "FROM ledger WHERE direction != 'refused' "
            "GROUP BY session, operation, kind, sender, receiver) AS total "
            "JOIN ledger AS first USING (row) ORDER BY row"
        )
        return [Summary(*row[:8], *row[9:]) for row in rows]

    def transcript(self) -> str:
        """The conversation as a readable table, one line a message kind in a row of equal ones."""
        lines: list[tuple[str, str, str, str]] = []
        counts: list[int] = []
        for e in self.entries():
            line = (f"{e.sender} → {e.receiver}", e.operation, e.kind, f"{e.dtype} {e.shape}".strip())
            if lines and lines[-1] == line:
                counts[-1] += 1
            else:
                lines.append(line)
                counts.append(1)
        widths = [max((len(row[i]) for row in lines), default=0) for i in range(4)]
        return "\n".join(
            "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + f"  ×{n}"
            for row, n in zip(lines, counts, strict=True)
        )

    def verify(self) -> int | None:
        """Check the chain. Returns the number of the first row that does not fit, or ``None``."""
        self.flush()
        head = GENESIS
        names = ",".join(("row", *Entry._fields, "hash"))
        for expected, (number, *fields, stored) in enumerate(
            self._db.execute(f"SELECT {names} FROM ledger ORDER BY row"), start=1
        ):
            head = _chain(head, Entry(*fields))
            if head != stored or number != expected:
                return expected
        return None if head == self._head else -1

    def close(self) -> None:
        """Write what waits and close the file."""
        self.flush()
        self._db.close()


def _chain(head: str, entry: Entry) -> str:
    return blake2b(f"{head}{tuple(entry)!r}".encode(), digest_size=16).hexdigest()


def _payload(part: Part) -> int:
    if isinstance(part.value, dict):
        return len(json.dumps(part.value))
    return sum(t.numel() * t.element_size() for t in part.tensors().values())
