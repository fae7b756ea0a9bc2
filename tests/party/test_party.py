"""Parties, operations and what they keep on disk."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

from interlace import IdRule, Party
from interlace.boundary.kinds import Control, Embedding, RowSelection
from interlace.errors import DataError, InterlaceError, Refused
from interlace.party import PassiveSide, State, operation, read_state, write_state
from interlace.party.operation import read_operation

COLUMNS = {"id": ["a", "b", "c"], "x": [1.0, 2.0, 3.0], "y": [0, 1, 0]}


@pytest.mark.parametrize(
    "table",
    [COLUMNS, pl.DataFrame(COLUMNS), pd.DataFrame(COLUMNS), pa.table(COLUMNS)],
    ids=["arrays", "polars", "pandas", "arrow"],
)
def test_a_party_from_any_table(table: object) -> None:
    party = Party("bank", table, label="y")
    assert repr(party) == "Party('bank', 3 people, 1 columns, label=['y'])"
    assert party.columns == ["x"]
    assert party.keys.values == Party("other", pl.DataFrame(COLUMNS)).keys.values


def test_columns_are_those_named() -> None:
    assert Party("bank", COLUMNS, columns=["y"]).columns == ["y"]
    with pytest.raises(DataError, match="party 'bank', column 'z': the table has no column of thi"):
        Party("bank", COLUMNS, columns=["z"])
    with pytest.raises(DataError, match=r"column 'agee': .* Did you mean 'age'\?"):
        Party("bank", {"id": [1], "age": [2]}, columns=["agee"])
    with pytest.raises(DataError, match="column 'lable'"):
        Party("bank", COLUMNS, label="lable")
    with pytest.raises(DataError, match="column 'y': the label is named among the columns"):
        Party("bank", COLUMNS, label="y", columns=["x", "y"])


def test_rows_without_a_usable_id_are_left_out_by_rule() -> None:
    table = pl.DataFrame({"id": ["a", None, "b", "a"], "x": range(4)})
    with pytest.raises(DataError):
        Party("bank", table)
    rule = IdRule(columns=["id"], blanks="drop", duplicates="first")
    party = Party("bank", table, id=rule)
    assert party.frame["x"].to_list() == [0, 2]
    assert len(party.keys.values) == 2


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "a\0b", "a" * 201])
def test_names_that_cannot_be(name: str) -> None:
    with pytest.raises(InterlaceError, match="cannot be a party's name"):
        Party(name, COLUMNS)


@pytest.mark.parametrize("bottom", [torch.nn.Linear, lambda x: x, 16])
def test_a_bottom_is_a_module(bottom: Any) -> None:
    with pytest.raises(InterlaceError, match="'bank' is not a torch module; give it a built"):
        Party("bank", COLUMNS, bottom=bottom)


def test_errors_do_not_repeat_a_query() -> None:
    pytest.importorskip("duckdb")
    with pytest.raises(DataError, match=r"file 'sql:\.\.\.', column 'id': 1 of 2 rows") as raised:
        Party("bank", "sql:SELECT 1 AS id, 'secret' AS x UNION ALL SELECT 1, 'secret'")
    assert "secret" not in str(raised.value)


def test_another_table_of_the_same_party() -> None:
    party = Party("bank", COLUMNS, label="y")
    new = party.with_table({"id": ["d"], "x": [9.0]})
    assert (len(new), new.has_label, new.columns) == (1, False, ["x"])
    assert new.people != party.people
    assert party.has_label
    assert Party("bank", COLUMNS).people == party.people
    with pytest.raises(DataError, match="column 'x'"):
        party.with_table({"id": ["d"], "w": [9.0]})


def test_a_signature_is_the_protocol() -> None:
    class Side(PassiveSide):
        @operation
        def embed(self, rows: RowSelection, how: Control) -> Embedding:
            return torch.zeros(len(rows), 1)

        @operation
        def done(self) -> None: ...

        def hidden(self) -> None: ...

    assert set(Side.operations) == {"embed", "done"}
    embed = read_operation(Side.embed)
    assert [(s.name, s.kind.value) for s in embed.takes] == [
        ("rows", "row selection"),
        ("how", "control"),
    ]
    assert [s.kind.value for s in embed.gives] == ["embedding"]
    assert read_operation(Side.done).gives == ()
    with pytest.raises(TypeError, match="is not an operation"):
        read_operation(Side.hidden)


def test_a_value_without_a_kind_is_found_when_the_class_is_made() -> None:
    with pytest.raises(TypeError, match="'rows' of operation 'bad' is not annotated"):

        class Side(PassiveSide):
            @operation
            def bad(self, rows: torch.Tensor) -> None: ...


def test_state_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = State({"w": torch.arange(3.0), "view": torch.arange(6.0)[::2]}, {"epoch": 1})
    write_state(tmp_path / "s", state)
    again = read_state(tmp_path / "s")
    assert again.meta == {"epoch": 1}
    assert all(torch.equal(again.tensors[k], v) for k, v in state.tensors.items())

    def full(*_args: object, **_kw: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("interlace.files.os.fsync", full)
    with pytest.raises(InterlaceError, match=r"No space left on device.*earlier checkpoints"):
        write_state(tmp_path / "s", State({"w": torch.zeros(3)}, {"epoch": 2}))
    assert read_state(tmp_path / "s").meta == {"epoch": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["s"]


def test_a_broken_state_is_told(tmp_path: Path) -> None:
    with pytest.raises(InterlaceError, match="no saved state"):
        read_state(tmp_path / "none")
    write_state(tmp_path / "s", State({"w": torch.zeros(3)}, {}))
    (tmp_path / "s" / "state.safetensors").write_bytes(b"garbage")
    with pytest.raises(InterlaceError, match="no saved state"):
        read_state(tmp_path / "s")


def test_a_partner_cannot_lead_out_of_the_folder(tmp_path: Path) -> None:
    party = Party("bank", COLUMNS, folder=tmp_path)
    assert party.path("models", "first") == tmp_path / "models" / "first"
    for part in ("..", "a/b", "/etc", "", ".x"):
        with pytest.raises(Refused):
            party.path("models", part)


def test_nothing_of_a_table_can_be_released_as_something_else() -> None:
    from interlace.boundary import Kind, Slot
    from interlace.errors import PolicyError
    from interlace.methods.bottom import Bottom, BottomSettings

    party = Party("bank", COLUMNS, label="y")
    bottom = Bottom.fit(party, BottomSettings(), np.arange(3))
    with pytest.raises(PolicyError, match="part of its records"):
        party.boundary.release("s", "o", "shop", (Slot("h", Kind.EMBEDDING),), (bottom.x[1:],))
