"""What left a party, held against its disclosure plan, and against what a partner says it got."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from interlace.boundary import Kind, Ledger
from interlace.boundary.ledger import Entry
from interlace.errors import JobError
from interlace.files import write_whole
from interlace.sites.plan import Plan

MOST_BYTES = 2**30  # of a partner's export


class Held(NamedTuple):
    """A kind that left: how much the plan allowed, and how much it was."""

    kind: Kind
    planned_messages: int
    messages: int
    planned_bytes: int
    bytes: int
    within: bool


class Passed(NamedTuple):
    """A value that passed between two parties, as both must have noted it."""

    session: str
    operation: str
    kind: str
    sender: str
    receiver: str
    round: int
    shape: str
    dtype: str
    bytes: int
    part: int


class Difference(NamedTuple):
    """Values that one of two ledgers has and the other has not."""

    what: Passed
    mine: int
    theirs: int


def against_plan(plan: Plan, ledger: Ledger, party: str) -> list[Held]:
    """Hold a ledger against the plan, kind by kind."""
    left: dict[Kind, list[int]] = {kind: [0, 0] for kind in plan.leaves}
    for entry in ledger.entries():
        if entry.direction == "sent" and entry.sender == party:
            found = left.setdefault(Kind(entry.kind), [0, 0])
            found[0] += 1
            found[1] += entry.bytes_after
    held = []
    for kind, (messages, size) in left.items():
        planned = plan.leaves.get(kind)
        most, most_messages = (planned.bytes, planned.messages) if planned else (0, 0)
        within = planned is not None and (size <= most or not plan.capped)
        held.append(Held(kind, most_messages, messages, most, size, within))
    return held


def passed_between(entries: Iterable[Entry], one: str, other: str) -> Iterator[Passed]:
    """What two parties sent each other, of one's ledger; refused messages passed too, but changed
    nothing."""
    for e in entries:
        if {e.sender, e.receiver} == {one, other} and e.direction != "refused":
            yield Passed(
                e.session,
                e.operation,
                e.kind,
                e.sender,
                e.receiver,
                e.round,
                e.shape,
                e.dtype,
                e.bytes_after,
                e.part,
            )


def differences(mine: Iterable[Passed], theirs: Iterable[Passed]) -> list[Difference]:
    """What one ledger has more often than the other, in order of appearance."""
    a, b = Counter(mine), Counter(theirs)
    return [Difference(p, a[p], b[p]) for p in {**a, **b} if a[p] != b[p]]


def export(passed: Iterable[Passed], path: Path) -> int:
    """Write what passed with one partner, for that partner: it holds nothing that it has not seen.

    Returns:
        How many rows.
    """
    lines = [",".join(Passed._fields)]
    rows = [list(map(str, p)) for p in passed]
    lines += [",".join(_quoted(cell) for cell in row) for row in rows]
    write_whole(path, ("\n".join(lines) + "\n").encode())
    return len(rows)


def exported(path: Path) -> list[Passed]:
    """Read what a partner exported.

    Raises:
        JobError: it is no such file.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise JobError(f"{path} is longer than the {MOST_BYTES:,} bytes that are read")
        text = path.read_text()
        if not all(map(str.isprintable, text.splitlines())):  # it is shown to people
            raise ValueError
        rows = list(csv.DictReader(text.splitlines()))
        return [
            Passed(
                row["session"],
                row["operation"],
                row["kind"],
                row["sender"],
                row["receiver"],
                int(row["round"]),
                row["shape"],
                row["dtype"],
                int(row["bytes"]),
                int(row["part"]),
            )
            for row in rows
        ]
    except (KeyError, ValueError, TypeError, UnicodeError, csv.Error) as e:
        raise JobError(f"{path} is not what `interlace ledger export` writes") from e


def _quoted(cell: str) -> str:
    return '"' + cell.replace('"', '""') + '"' if set(cell) & set(',"\n') else cell
