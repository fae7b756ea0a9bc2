"""What a run and `report` say of people without a label, and of ledgers that grew."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import polars as pl
from typer.testing import Result

Call = Callable[..., Result]


def test_a_ledger_that_a_prediction_added_to_is_intact(
    call: Call, folder: Path, tables: dict[str, pl.DataFrame], write_job: Callable[..., Path]
) -> None:
    bank = tables["bank"].with_row_index()  # the last 30 whom both hold have no label
    known = pl.when(~pl.col("index").is_between(70, 99)).then("bought").alias("bought")
    tables["bank"] = bank.with_columns(known).drop("index")
    done = call("run", write_job(tables), "--out", "run")
    assert done.exit_code == 0, done.output
    assert "30 shared people have no label." in done.stdout
    done = call("report", "run", "--verify")
    assert done.exit_code == 0
    assert "since" not in done.stdout

    given = [part for n in tables for part in ("--table", f"{n}={n}.csv")]
    assert call("predict", "run", *given).exit_code == 0
    done = call("report", "run", "--verify")
    assert done.exit_code == 0
    assert done.stdout.count("intact") == 2
    assert done.stdout.count("rows were written since the report") == 2

    with sqlite3.connect(folder / "run/parties/shop/ledger.sqlite") as db:
        db.execute("DELETE FROM ledger WHERE row > 5")  # the report's head among them
    done = call("report", "run", "--verify")
    assert done.exit_code == 1
    assert "shop: row 6" in done.stderr


def test_the_demo_says_how_long_it_takes(call: Call) -> None:
    assert "in a minute or two" in call("demo", "--help").stdout
