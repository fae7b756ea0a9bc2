"""Reading tables: every source, ids as text, and each fault named with its way out."""

from __future__ import annotations

import gzip
import io
import sys
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from PIL import Image
from polars.testing import assert_frame_equal

from interlace.data.tables import read_table
from interlace.errors import DataError

FRAME = pl.DataFrame({"id": ["007", "8"], "age": [31, 42], "town": ["Ulm", None]})


def read(source: Any, **options: Any) -> pl.DataFrame:
    return read_table(source, party="bank", **options)


def refused(source: Any, **options: Any) -> DataError:
    with pytest.raises(DataError) as caught:
        read(source, **options)
    assert caught.value.party == "bank"
    assert caught.value.way_out
    assert caught.value.__cause__ is None  # texts of the readers repeat values
    return caught.value


@pytest.mark.parametrize(
    "source",
    [
        FRAME,
        FRAME.to_pandas(),
        FRAME.to_arrow(),
        {"id": ["007", "8"], "age": np.array([31, 42]), "town": ["Ulm", None]},
    ],
    ids=["polars", "pandas", "arrow", "mapping"],
)
def test_tables_in_memory(source: Any) -> None:
    assert_frame_equal(read(source, ids=["id"]), FRAME)


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.csv.gz", "t.parquet", "t.feather", "t.CSV"])
def test_files_and_ids_that_keep_their_zeros(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name.endswith(".parquet"):
        FRAME.write_parquet(path)
    elif name.endswith(".feather"):
        FRAME.write_ipc(path)
    else:
        text = FRAME.write_csv(separator="\t" if ".tsv" in name else ",").encode()
        path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    assert_frame_equal(read(path, ids=["id"]), FRAME)
    assert_frame_equal(read(str(path), ids=["id"], columns=["town"]), FRAME.select("id", "town"))


def test_a_column_is_inferred_over_the_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "late.csv"
    path.write_text("id,a,b\n" + "1,5,5\n" * 5000 + "2,n/a,0.5\n")
    frame = read(path, ids=["id"])
    assert frame.schema == {"id": pl.String, "a": pl.String, "b": pl.Float64}


def test_a_csv_with_semicolons(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('\ufeffid;"a;b"\n01;2,5\n', encoding="utf-8")
    assert read(path, ids=["id"]).to_dict(as_series=False) == {"id": ["01"], "a;b": [2.5]}


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_codes_keep_their_leading_zeros(tmp_path: Path, separator: str) -> None:
    path = tmp_path / "t.csv"
    rows = [
        ["id", "postcode", "quoted", "time", "age", "share", "gaps", "huge"],
        ["01", "01067", '"01067"', "0930", "0", "0.5", "", "123456789012345678901"],
        ["2", "10115", '"10115"', "1200", "31", "007.5", "", "1"],
        ["3", "", '""', "1215", "-4", "1", "3", "0"],
    ]
    path.write_text("\n".join(separator.join(row) for row in rows))
    frame = read(path, ids=["id"])
    assert frame["postcode"].to_list() == ["01067", "10115", None]
    assert frame["quoted"].to_list()[:2] == ["01067", "10115"]
    assert frame["time"].to_list() == ["0930", "1200", "1215"]
    assert frame["age"].to_list() == [0, 31, -4]
    assert frame["share"].to_list() == [0.5, 7.5, 1]
    assert frame["gaps"].to_list() == [None, None, 3]
    assert frame["huge"].to_list() == [123456789012345678901, 1, 0]


@pytest.mark.parametrize(
    ("values", "read_as"),
    [
        (["2442,1", "0,5", "31", "7.25"], [2442.1, 0.5, 31, 7.25]),
        (["1,05", "0,5", "n/a"], [1.05, 0.5, None]),
        (["1.234,50", "2.442,1", "1234,5"], [1234.5, 2442.1, 1234.5]),
        (["1,2", "3", "2,7"], None),  # could be items of a list
        (["1,050", "2,442", "12"], None),  # could be thousands
        (["1,234.50", "2442,1"], None),
        (["1,2,3", "2442,1"], None),
    ],
)
def test_quoted_decimal_commas_between_commas(
    tmp_path: Path, values: list[str], read_as: list[float | None] | None
) -> None:
    path = tmp_path / "t.csv"
    path.write_text("id,x\n" + "".join(f'{i},"{v}"\n' for i, v in enumerate(values)))
    found = read(path, ids=["id"])["x"]
    if read_as is None:
        assert found.to_list() == values
    else:
        assert found.cast(pl.Float64, strict=False).to_list() == read_as


def test_arrays() -> None:
    assert read(np.arange(6).reshape(3, 2)).columns == ["x0", "x1"]
    assert read(np.array([(1, 2.0)], dtype=[("a", int), ("b", float)])).columns == ["a", "b"]
    images = read({"id": [1, 2], "image": np.zeros((2, 3, 4), np.uint8)})
    assert images.schema["image"] == pl.Array(pl.UInt8, (3, 4))
    assert read(np.zeros((2, 3, 4))).columns == ["image"]


def test_duckdb(tmp_path: Path) -> None:
    path = tmp_path / "people.db"
    with duckdb.connect(str(path)) as connection:
        connection.register("frame", FRAME.to_arrow())
        connection.sql('CREATE TABLE "all people" AS SELECT * FROM frame')
    assert_frame_equal(read(f"duckdb://{path}?table=all people"), FRAME)
    assert_frame_equal(read(f"duckdb:{path}?table=main.all people"), FRAME)
    query = 'SELECT id FROM "all people" WHERE age > 40'
    assert read(f"duckdb://{path}?query={query}")["id"].to_list() == ["8"]
    query = "SELECT id, age+1 AS sum, '1%25' LIKE '%2%' AS wild FROM \"all people\" WHERE age+1>41"
    found = read(f"duckdb://{path}?query={query}")  # nothing of it is decoded as in a URL
    assert (found["sum"] - FRAME.filter(pl.col("age") > 40)["age"]).to_list() == [1]
    assert found["wild"].to_list() == [True]
    FRAME.write_parquet(tmp_path / "t.parquet")
    assert_frame_equal(read(f"sql:SELECT * FROM '{tmp_path}/t.parquet'", ids=["id"]), FRAME)
    assert "all people" in str(refused(f"duckdb://{path}?table=al_people"))
    assert refused(f"duckdb://{path}").way_out
    assert "people.db" in str(refused(f"duckdb://{tmp_path}/peple.db?table=t"))
    assert "CAST" not in str(refused("sql:SELECT CAST('secret' AS INTEGER)"))
    assert "secret" not in str(refused("sql:SELECT CAST('secret' AS INTEGER)"))
    assert "Binder" in str(refused(f"sql:SELECT nothing FROM '{tmp_path}/t.parquet'"))
    assert "no rows" in str(refused(f"duckdb://{path}?query=SELECT 1 AS id WHERE false"))
    with pytest.raises(duckdb.Error), duckdb.connect(str(path), read_only=True) as connection:
        connection.sql("DROP TABLE frame")


def test_a_folder_of_images(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("003.png", "sub/b.PNG"):
        Image.new("L", (4, 5)).save(tmp_path / name, format="PNG")
    (tmp_path / "notes.txt").write_text("no image")
    frame = read(tmp_path, ids=["id"])
    assert frame["id"].to_list() == ["003", "b"]
    assert Image.open(io.BytesIO(frame["image"][0])).size == (4, 5)
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "no images" in str(refused(empty))


def test_a_missing_file_suggests_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "vendor.csv").write_text("id\n1\n")
    error = refused(tmp_path / "vendr.csv")
    assert "Did you mean 'vendor.csv'?" in str(error)
    assert error.file == str(tmp_path / "vendr.csv")
    assert refused(tmp_path / "no" / "x.csv")


def test_a_missing_column_suggests_the_nearest() -> None:
    error = refused(FRAME, ids=["ID_"])
    assert (error.column, error.problem) == ("ID_", "the table has no id column of this name")
    assert "Did you mean 'id'?" in str(error)
    assert "'id', 'age', 'town'" in str(refused(FRAME, columns=["zzzzzz"]))
    german = pl.DataFrame({"customer": [1], "one": ["yes"]})
    assert "The columns here are 'customer', 'one'." in str(refused(german, ids=["kunde"]))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("t.xlsx", b"", "extension '.xlsx' are not known"),
        ("t.csv", b"", "The file is empty"),
        ("t.csv", b"id,a\n", "no rows"),
        ("t.csv", b"id,a,a\n1,2,3\n", "two columns have this name"),
        ("t.csv", b'id,a\n1,2\n"3\n4",5\n2,secret,5\n', "Line 5 has 3 fields and the header 2"),
        ("t.csv", b"id,a\n1,\xe9\n", "not in UTF-8"),
        ("t.csv.gz", b"not gzip", "damaged"),
        ("t.csv.gz", gzip.compress(b"id,a\n" + b"1,2\n" * 999, mtime=0)[:-20], "damaged"),
        ("t.parquet", b"PAR1 secret", "complete .parquet file"),
        ("t.arrow", b"", "complete .arrow file"),
    ],
)
def test_files_that_are_no_tables(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    error = refused(path)
    assert said in str(error)
    assert error.file == str(path)
    assert "secret" not in str(error)


def test_objects_that_are_no_tables() -> None:
    assert "int" in str(refused(3))
    assert refused({"a": [1, 2], "b": [1]}).column == "b"
    assert refused({"a": 1})
    assert refused({})
    assert "more than one type" in str(refused(pd.DataFrame({"a": [1], "b": [object()]})))
    mixed = refused(pd.DataFrame({"a": [1, 2], "b": ["secret", 1]}))
    assert mixed.column == "b"
    assert "secret" not in str(mixed)
    assert refused({"a": [1], "b": [{1, 2}]}).column == "b"
    assert refused(pd.DataFrame([[1, 2]], columns=["a", "a"])).column == "a"
    assert refused(pa.table([[1], [2]], names=["a", "a"])).column == "a"
    assert "no rows" in str(refused(FRAME.head(0)))


def test_a_part_that_is_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    assert "interlace[sql]" in str(refused("sql:SELECT 1"))


def test_decimal_commas_where_fields_are_separated_by_semicolons(tmp_path: Path) -> None:
    file = tmp_path / "de.csv"
    file.write_text("id;betrag;code;text;leer\n1,5;0,5;7;1,5 kg;\n2;-12;8;x;\n3;;9;y;\n")
    frame = read_table(file, party="p", ids=["id"])
    assert frame["betrag"].to_list() == [0.5, -12.0, None]
    assert frame["id"].to_list() == ["1,5", "2", "3"]
    assert frame["code"].dtype == pl.Int64
    assert frame["text"].to_list() == ["1,5 kg", "x", "y"]
    assert frame["leer"].null_count() == 3


@pytest.mark.parametrize(
    ("values", "read"),
    [
        (["71,2", "n/a", " 3", "", "-"], [71.2, None, 3.0, None, None]),
        (["71,2", "3,5 kWh", "8", "1,5"], ["71.2", "3,5 kWh", "8", "1.5"]),
        (["1,2", "3", "1,2,4"], ["1,2", "3", "1,2,4"]),  # of labels, or of thousands
        (["12,50", "1.234"], ["12,50", "1.234"]),
        (["1.234,5", "1.234", "3.2020"], ["1.234,5", "1.234", "3.2020"]),
        (["12,50", "1.234", "-1.234.567,5", "0,5"], [12.5, 1234.0, -1234567.5, 0.5]),
        (["0,5", "1.5", ""], [0.5, 1.5, None]),
    ],
    ids=["gaps", "one is no number", "lists", "either", "two kinds", "thousands", "points"],
)
def test_decimal_commas_beside_what_is_no_number(
    tmp_path: Path, values: list[str], read: list[Any]
) -> None:
    file = tmp_path / "de.csv"
    file.write_text("id;x\n" + "".join(f"{i};{v}\n" for i, v in enumerate(values)))
    assert read_table(file, party="p", ids=["id"])["x"].to_list() == read
