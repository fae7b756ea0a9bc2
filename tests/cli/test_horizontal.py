"""Horizontal federations from the command line: one table cut into parties, trained and scored."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import yaml
from click.testing import Result
from sklearn.datasets import load_breast_cancer

Call = Callable[..., Result]


@pytest.fixture
def one_table(folder: Path) -> pl.DataFrame:
    x, y = load_breast_cancer(return_X_y=True)
    frame = pl.DataFrame({f"x{j}": x[:240, j] for j in (20, 21, 24)})
    frame = frame.with_columns(
        ward=pl.Series(np.where(x[:240, 22] > 110, "high", "low")),
        ill=pl.Series(np.where(y[:240] == 0, "yes", "no")),
    )
    frame.write_csv(folder / "people.csv")
    return frame


def shorter(job: Path) -> None:
    """One seed and two rounds, else as it was written."""
    fields = yaml.safe_load(job.read_text())
    fields |= {"seeds": [0], "method": {**fields["method"], "rounds": 2}}
    job.write_text(yaml.safe_dump(fields))


def test_one_table_becomes_a_trained_model_and_scores(
    call: Call, folder: Path, one_table: pl.DataFrame
) -> None:
    parties = ("--party", "north", "--party", "south", "--party", "west")
    done = call(
        *("split", "people.csv", "--label", "ill", "--skew", "labels", "--alpha", 0.5),
        *(*parties, "--out", "cut"),
    )
    assert done.exit_code == 0, done.output
    assert "How unlike the parties are" in done.stdout
    shorter(folder / "cut/job.yaml")
    done = call("run", "cut/job.yaml")
    assert done.exit_code == 0, done.output
    assert "FedAvg, seed 0, round 2" in done.stderr or "FedAvg" in done.stdout
    assert "Each party alone" in done.stdout
    assert (folder / "runs/cut/report.html").exists()
    done = call("predict", "runs/cut", "--table", "west=cut/west.csv")
    assert done.exit_code == 0, done.output
    west, scores = pl.read_csv("cut/west.csv"), pl.read_csv("scores.csv")
    assert scores["id"].to_list() == west["id"].to_list()
    assert set(scores["prediction"]) <= {"yes", "no"}
    assert "scored at their own party" in done.stderr
    assert "!" not in done.stderr
    odd = west.with_columns(x20=pl.Series(["9 mm", *west["x20"][1:].cast(pl.String)]))
    odd.write_csv("odd.csv")
    done = call("predict", "runs/cut", "--table", "west=odd.csv")
    assert f"! west: 1 of {west.height} values of 'x20' do not read as numbers" in done.stderr
    done = call("predict", "runs/cut", "--table", "server=cut/west.csv")
    assert done.exit_code == 2
    assert "'server' had no people" in done.stderr


@pytest.mark.parametrize("skew", ["labels", "size"])
def test_skewed_cuts_differ_as_asked(
    call: Call, folder: Path, one_table: pl.DataFrame, skew: str
) -> None:
    for alpha in (0.3, 100):
        done = call(
            *("split", "people.csv", "--label", "ill", "--skew", skew, "--alpha", alpha),
            *("--party", "a", "--party", "b", "--party", "c", "--out", f"cut{alpha}"),
        )
        assert done.exit_code == 0, done.output
    spread = {}
    for alpha in (0.3, 100):
        tables = [pl.read_csv(folder / f"cut{alpha}/{n}.csv") for n in "abc"]
        assert sum(t.height for t in tables) == 240
        measures = {
            "size": [t.height for t in tables],
            "labels": [(t["ill"] == "yes").mean() for t in tables],
        }
        spread[alpha] = np.ptp(measures[skew])
    assert spread[0.3] > 3 * spread[100]


def test_a_column_can_name_the_parties(call: Call, folder: Path, one_table: pl.DataFrame) -> None:
    done = call("split", "people.csv", "--label", "ill", "--by-column", "ward", "--out", "cut")
    assert done.exit_code == 0, done.output
    job = yaml.safe_load((folder / "cut/job.yaml").read_text())
    assert list(job["parties"]) == ["server", "low", "high"]
    low = pl.read_csv(folder / "cut/low.csv")
    assert low.height == (one_table["ward"] == "low").sum()
    assert "ward" not in low.columns


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--skew", "size", "--by", "importance", "--party", "a", "--party", "b"], "cuts columns"),
        (["--skew", "labels", "--party", "a", "--party", "server"], "other than 'server'"),
        (["--by-column", "ward", "--party", "a"], "--by-column names the parties"),
        (["--by-column", "wart"], "Did you mean 'ward'?"),
        (["--skew", "size", "--party", "a", "--party", "b", "--only", "a=3"], "leave --only out"),
        (["--skew", "labels", "--alpha", "0", "--party", "a", "--party", "b"], "alpha is not"),
        (["--skew", "size", "--party", "a=x1", "--party", "b"], "every party all columns"),
    ],
)
def test_split_says_what_is_wrong_about_a_horizontal_cut(
    call: Call, one_table: pl.DataFrame, arguments: list[str], complaint: str
) -> None:
    done = call("split", "people.csv", "--label", "ill", *arguments, "--out", "cut")
    assert done.exit_code == 2
    assert complaint in done.stderr


def test_inspect_recommends_a_horizontal_method_and_lists_differences(
    call: Call, folder: Path, one_table: pl.DataFrame
) -> None:
    one_table[:120].write_csv("north.csv")
    one_table[120:].rename({"x20": "X 20"}).write_csv("south.csv")
    tables = ("north.csv", "south.csv", "--id", "", "--label", "north=ill", "--label", "south=ill")
    done = call("inspect", *tables)
    assert done.exit_code == 0, done.output
    assert "Horizontal" in done.stdout
    assert "Method: fedavg" in done.stdout
    assert "'X 20' is called 'x20' elsewhere" in done.stdout
    found = json.loads(call("inspect", *tables, "--json").stdout)
    assert list(found["differences"]) == ["south"]


def test_run_lists_how_columns_differ(call: Call, folder: Path, one_table: pl.DataFrame) -> None:
    call("split", "people.csv", "--label", "ill", "--by-column", "ward", "--out", "cut")
    table = pl.read_csv("cut/high.csv")
    table.rename({c: f"{c} (mm)" for c in ("x20", "x21", "x24")}).write_csv("cut/high.csv")
    done = call("run", "cut/job.yaml")
    assert done.exit_code == 2
    assert "party 'high'" in done.stderr
    assert "it lacks 'x20'" in done.stderr
    assert "vertical" in done.stderr
    assert call("inspect", "cut/job.yaml").exit_code == 0
