"""What a run and `report` say of people without a label, and of ledgers that grew."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from typer.testing import Result

from interlace.job.results import Results

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


@pytest.mark.parametrize(
    ("yes", "counts", "said"),
    [
        (2, {0: 1, 1: 1}, "5 people are held out in each seed, 1 of them with the outcome."),
        (1, {0: 0, 1: 0}, "Whether federation helped cannot be said: AUC could not be taken."),
    ],
)
def test_a_run_says_how_few_it_was_judged_on(
    call: Call,
    tables: dict[str, pl.DataFrame],
    write_job: Callable[..., Path],
    yes: int,
    counts: dict[int, int],
    said: str,
) -> None:
    few = [f"C{i:04}" for i in range(20)]
    tables["shop"] = tables["shop"].filter(pl.col("id").is_in(few))
    bought = pl.when(pl.col("id").is_in(few[yes:])).then(pl.lit("no")).otherwise(pl.lit("yes"))
    tables["bank"] = tables["bank"].with_columns(bought.alias("bought"))
    job = write_job(tables, seeds=[0, 1], compare=[{"name": "active_alone", "epochs": 2}])
    done = call("run", job, "--out", "run")
    assert done.exit_code == 0, done.output
    assert said in done.stdout
    assert Results.read(Path("run/results.json")).outcomes == counts


def test_the_demo_says_how_long_it_takes(call: Call) -> None:
    assert "in a minute or two" in call("demo", "--help").stdout
