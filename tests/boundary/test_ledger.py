"""The ledger: every value has its row, and no row can be changed unseen."""

from __future__ import annotations

import gc
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from interlace.boundary import Boundary, Kind, Ledger, Message, Slot
from interlace.boundary.ledger import GENESIS, Entry
from interlace.boundary.message import Part, Value
from interlace.errors import InterlaceError, Refused

Make = Callable[..., Boundary]


def embedding(rows: int = 4, width: int = 3) -> Message:
    part = Part(Kind.EMBEDDING, torch.zeros(rows, width))
    return Message("split-1", "split.forward", "vendor", "insurer", 1, (part,))


def fill(ledger: Ledger, rows: int, direction: Any = "sent") -> None:
    for i in range(rows):
        message = embedding(rows=i + 1)
        ledger.record(direction, message, message.parts[0], "clip 1")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "party" / "ledger.sqlite"
    ledger = Ledger(path)
    fill(ledger, 5)
    ledger.close()
    return path


def change(path: Path, statement: str, *values: Any) -> None:
    with sqlite3.connect(path) as db:
        db.execute(statement, values)
    db.close()


def test_a_row_says_what_passed_and_holds_no_value(file: Path) -> None:
    entry = list(Ledger(file).entries())[3]
    assert entry._replace(time=0.0) == Entry(
        0.0,
        "sent",
        "split-1",
        "split.forward",
        "embedding",
        "vendor",
        "insurer",
        1,
        "4×3",
        "float32",
        4 * 3 * 4,
        embedding(4).encoded_size(),
        "clip 1",
    )


@pytest.mark.parametrize("row", range(1, 6))
@pytest.mark.parametrize("column", [*Entry._fields, "hash", "row"])
def test_a_change_of_any_column_of_any_row_shows(file: Path, row: int, column: str) -> None:
    new: Any = 99 if column in ("time", "round", "bytes_before", "bytes_after", "row") else "x"
    change(file, f"UPDATE ledger SET {column} = ? WHERE row = ?", new, row)
    found = Ledger(file).verify()
    assert found == (row if column != "row" or row < 5 else 5)


@pytest.mark.parametrize("row", range(1, 5))
def test_a_deleted_row_shows(file: Path, row: int) -> None:
    change(file, "DELETE FROM ledger WHERE row = ?", row)
    assert Ledger(file).verify() == row
    change(file, "UPDATE ledger SET row = row - 1 WHERE row > ?", row)
    assert Ledger(file).verify() == row


def test_rows_in_another_order_show(file: Path) -> None:
    change(file, "UPDATE ledger SET row = CASE row WHEN 2 THEN -3 WHEN 3 THEN -2 ELSE row END")
    change(file, "UPDATE ledger SET row = -row WHERE row < 0")
    assert Ledger(file).verify() == 2


def test_an_inserted_row_shows(file: Path) -> None:
    names = ", ".join((*Entry._fields, "hash"))
    change(file, f"INSERT INTO ledger ({names}) SELECT {names} FROM ledger WHERE row = 2")
    assert Ledger(file).verify() == 6


def test_rows_cut_off_show_against_a_head_kept_elsewhere(file: Path) -> None:
    head = Ledger(file).head
    assert Ledger(file).verify(head) is None
    change(file, "DELETE FROM ledger WHERE row > 3")
    assert Ledger(file).verify() is None, "nothing in the file can tell"
    assert Ledger(file).verify(head) == 4
    change(file, "DELETE FROM ledger")
    assert Ledger(file).verify(head) == 1


def test_a_chain_made_anew_shows_against_a_head_kept_elsewhere(file: Path, tmp_path: Path) -> None:
    head = Ledger(file).head
    forged = Ledger(tmp_path / "forged.sqlite")
    fill(forged, 5)
    assert forged.verify() is None
    assert forged.verify(head) == 6


def test_rows_cut_off_under_an_open_ledger_show(file: Path) -> None:
    ledger = Ledger(file)
    change(file, "DELETE FROM ledger WHERE row > 3")
    assert ledger.verify() == 4


def test_an_earlier_head_still_holds_after_the_ledger_grew(file: Path) -> None:
    ledger = Ledger(file)
    head = ledger.head
    fill(ledger, 3)
    assert ledger.verify(head) is None
    assert ledger.head != head
    assert (ledger.rows_since(head), ledger.rows_since(ledger.head)) == (3, 0)
    assert ledger.rows_since("f" * 32) == 8
    assert ledger.verify("f" * 32) == 9
    assert Ledger().verify() is None
    assert Ledger().head == GENESIS


def test_an_existing_ledger_is_continued(file: Path) -> None:
    before = Ledger(file).head
    ledger = Ledger(file)
    fill(ledger, 2)
    assert len(list(ledger.entries())) == 7
    ledger.close()
    again = Ledger(file)
    assert again.verify(before) is None
    assert len(list(again.entries())) == 7


def test_what_waits_is_written_when_the_ledger_goes(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    ledger = Ledger(path)
    fill(ledger, 3)
    assert not list(Ledger(path).entries()), "they wait in memory"
    del ledger
    gc.collect()
    assert len(list(Ledger(path).entries())) == 3


def test_what_waits_goes_with_a_folder_that_is_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite calls a file that is gone a readonly database."""
    ledger = Ledger(tmp_path / "ledger.sqlite")
    fill(ledger, 1)
    (tmp_path / "ledger.sqlite").unlink()
    with pytest.raises(InterlaceError, match="readonly database"):
        ledger.flush()
    raised: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", raised.append)
    del ledger
    gc.collect()
    assert not raised


def test_two_that_write_to_one_ledger_make_one_chain(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    run, prediction = Ledger(path), Ledger(path)
    for ledger in (run, prediction, run):
        fill(ledger, 2)
        ledger.flush()
    assert len(list(Ledger(path).entries())) == 6
    assert [each.verify() for each in (run, prediction, Ledger(path))] == [None] * 3
    change(path, "DELETE FROM ledger WHERE row > 3")
    fill(run, 1)
    assert run.verify() == 4, "what was cut off before the next row shows"


def test_rows_are_written_in_batches_and_none_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interlace.boundary.ledger.FLUSH_EVERY", 10)
    path = tmp_path / "ledger.sqlite"
    ledger = Ledger(path)
    fill(ledger, 25)
    assert len(list(Ledger(path).entries())) == 20
    ledger.flush()
    assert len(list(Ledger(path).entries())) == 25
    assert Ledger(path).verify() is None


class FullDisk:
    """A database whose disk is full after so many rows."""

    def __init__(self, inner: sqlite3.Connection, rows: int) -> None:
        self.inner, self.rows = inner, rows

    def __enter__(self) -> Any:
        return self.inner.__enter__()

    def __exit__(self, *error: Any) -> Any:
        return self.inner.__exit__(*error)

    def execute(self, *statement: Any) -> Any:
        return self.inner.execute(*statement)

    def executemany(self, statement: str, rows: list[Any]) -> None:
        self.inner.executemany(statement, rows[: self.rows])
        raise sqlite3.OperationalError("database or disk is full")


def test_a_full_disk_loses_no_row(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    fill(ledger, 2)
    ledger.flush()
    fill(ledger, 3)
    disk = ledger._db
    for rows in (0, 2):
        ledger._db = FullDisk(disk, rows)  # type: ignore[assignment]
        with pytest.raises(InterlaceError, match=r"disk is full.*Free some space"):
            ledger.flush()
    ledger._db = disk
    assert len(list(Ledger(ledger.path).entries())) == 2
    fill(ledger, 1)
    assert len(list(ledger.entries())) == 6
    assert ledger.verify() is None
    assert Ledger(ledger.path).verify(ledger.head) is None


@pytest.mark.parametrize(
    "content", [b"a table of people\n" * 200, b"SQLite format 3\0" + b"x" * 999]
)
def test_a_file_that_is_no_ledger_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(content)
    with pytest.raises(InterlaceError, match=r"ledger\.sqlite cannot be opened"):
        Ledger(path)
    assert path.read_bytes() == content


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InterlaceError, match="another run folder"):
        Ledger(tmp_path / "file" / "ledger.sqlite")


# -- what is read from it --------------------------------------------------------------------------


def conversation(active: Boundary, passive: Boundary, steps: int) -> None:
    def ask(out: Boundary, into: Boundary, operation: str, kind: Kind, value: Any) -> None:
        slots = [Slot("value", kind)] if value is not None else []
        values = [value] if value is not None else []
        into.admit(out.release("split-1", operation, into.party, slots, values), slots)

    ask(active, passive, "split.begin", Kind.CONTROL, {"width": 3})
    for step in range(steps):
        n = 8 if step < steps - 1 else 5  # the last batch is smaller
        ask(active, passive, "split.forward", Kind.ROW_SELECTION, torch.arange(n))
        ask(passive, active, "split.forward", Kind.EMBEDDING, torch.zeros(n, 3))
        ask(active, passive, "split.backward", Kind.GRADIENT, torch.zeros(n, 3))
        ask(passive, active, "split.backward", Kind.CONTROL, None)


def test_both_sides_count_the_same(boundary: Make) -> None:
    active, passive = boundary("insurer"), boundary("vendor")
    conversation(active, passive, 4)
    mine, theirs = active.ledger.summary(), passive.ledger.summary()
    assert mine == theirs
    assert sum(s.bytes_after for s in mine) == active.sent_bytes + passive.sent_bytes
    assert [(s.operation, s.kind, s.sender, s.messages) for s in mine] == [
        ("split.begin", "control", "insurer", 1),
        ("split.forward", "row selection", "insurer", 4),
        ("split.forward", "embedding", "vendor", 4),
        ("split.backward", "gradient", "insurer", 4),
        ("split.backward", "control", "vendor", 4),
    ]
    assert mine[2].shape == "8×3", "the shape is not that of the first message"
    assert mine[2].bytes_before == 29 * 3 * 4


def test_refused_messages_are_set_apart(boundary: Make) -> None:
    active, passive = boundary("insurer"), boundary("vendor")
    conversation(active, passive, 2)
    before = active.ledger.summary()
    with pytest.raises(Refused):
        active.admit(embedding(), [Slot("x", Kind.GRADIENT)])
    assert active.ledger.summary() == before
    assert active.ledger.transcript().splitlines()[-1].endswith("refused")


def test_several_values_share_one_frame(boundary: Make) -> None:
    out = boundary()
    kinds = [Kind.CONTROL, Kind.EMBEDDING, Kind.PROTOTYPE]
    slots = [Slot(k.value, k) for k in kinds]
    values: list[Value] = [{"x": 1}, torch.zeros(2, 2), torch.zeros(3, 5)]
    message = out.release("s", "o", "insurer", slots, values)
    entries = list(out.ledger.entries())
    assert [e.kind for e in entries] == [k.value for k in kinds]
    assert sum(e.bytes_after for e in entries) == len(message.encode()) == out.sent_bytes
    assert [e.bytes_after for e in entries[1:]] == [2 * 2 * 4, 3 * 5 * 4]


def test_a_long_conversation_is_read_in_a_few_lines(boundary: Make) -> None:
    active, passive = boundary("insurer"), boundary("vendor")
    conversation(active, passive, 60)
    lines = active.ledger.transcript().splitlines()
    assert len(lines) == 5
    assert lines[0].split() == ["insurer", "→", "vendor", "split.begin", "control", "json"]
    assert lines[1].split()[:2] == ["60", "×"]
    assert "row selection" in lines[1]
    assert "int64 n" in lines[1]
    assert "float32 n×3" in lines[2]
    assert all("│" in line for line in lines[1:])
    assert Ledger().transcript() == ""


def test_lines_that_do_not_repeat_stand_as_they_are(boundary: Make) -> None:
    out = boundary("vendor")
    for width in (1, 2, 3):
        out.release("s", "o", "b", [Slot("x", Kind.EMBEDDING)], [torch.zeros(2, width)])
    assert [line.split()[-1] for line in out.ledger.transcript().splitlines()] == [
        "n×1",
        "n×2",
        "n×3",
    ]


@pytest.mark.parametrize("at_once", [True, False])
def test_what_is_sent_is_written_before_it_leaves(tmp_path: Path, at_once: bool) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite", at_once=at_once)
    fill(ledger, 2, "received")
    fill(ledger, 1)
    fill(ledger, 1, "received")
    # As another program finds it once this one has been killed.
    found = sqlite3.connect(ledger.path or "").execute("SELECT direction FROM ledger").fetchall()
    assert found == [("received",), ("received",), ("sent",)] * at_once
    assert len(list(ledger.entries())) == 4
    assert ledger.verify() is None
