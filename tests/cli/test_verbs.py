"""Each verb on small parties, from one table to scores."""

from __future__ import annotations

import html
import inspect
import json
import re
import sqlite3
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from textwrap import indent
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
import yaml
from typer.testing import Result

from interlace import runner
from interlace.cli import console, demo
from interlace.cli.run import EXAMPLE, run
from interlace.job.results import Results
from interlace.job.spec import read_job
from interlace.methods.catalogue import CATALOGUE

Call = Callable[..., Result]
WriteJob = Callable[..., Path]
Tables = dict[str, pl.DataFrame]


@pytest.fixture
def one_table(folder: Path) -> pl.DataFrame:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(200, 6)).round(3)
    frame = pl.DataFrame(x, schema=[f"a{i}" if i < 3 else f"b{i}" for i in range(6)])
    frame = frame.with_columns(key=pl.Series([f"K{i}" for i in range(200)]))
    frame = frame.with_columns(bought=pl.Series(np.where(x.sum(1) > 0, "yes", "no")))
    frame.write_csv(folder / "people.csv")
    return frame


# -- split --------------------------------------------------------------------------------------


def test_split_by_name_gives_each_party_its_columns_and_people(
    call: Call, folder: Path, one_table: pl.DataFrame
) -> None:
    done = call(
        *("split", "people.csv", "--id", "key", "--label", "bought", "--party", "bank=a*"),
        *("--party", "shop", "--shared", 120, "--only", "bank=30", "--labelled", "shared"),
        *("--out", "cut"),
    )
    assert done.exit_code == 0, done.output
    assert "α = " in done.stdout
    assert "β = " in done.stdout
    bank, shop = (pl.read_csv(folder / "cut" / f"{n}.csv") for n in ("bank", "shop"))
    assert bank.columns == ["key", "bought", "a0", "a1", "a2"]
    assert shop.columns == ["key", "b3", "b4", "b5"]
    assert len(set(bank["key"]) & set(shop["key"])) == 120
    assert (bank.height, shop.height) == (150, 120)
    assert bank["bought"].drop_nulls().len() == 120
    assert "interlace run cut/job.yaml" in done.stdout


def test_split_writes_a_job_that_run_takes_as_it_stands(
    call: Call, folder: Path, one_table: pl.DataFrame
) -> None:
    call("split", "people.csv", "--label", "bought", "--party", "a", "--party", "b", "--out", "cut")
    job = yaml.safe_load((folder / "cut/job.yaml").read_text())
    assert job["method"] == {"name": "auto"}
    job |= {"seeds": [0], "compare": "none"}
    (folder / "cut/job.yaml").write_text(yaml.safe_dump(job))
    assert read_job(folder / "cut/job.yaml").active == "a"
    done = call("run", "cut/job.yaml")
    assert done.exit_code == 0, done.output
    assert (folder / "runs/cut/report.html").exists()


@pytest.mark.parametrize("how", [["--party", "a", "--party", "b"], ["--by-column", "town"]])
def test_split_leaves_out_the_rows_whose_ids_run_would_refuse(
    call: Call, folder: Path, one_table: pl.DataFrame, how: list[str]
) -> None:
    town = pl.Series("town", ["x", "y"] * 100)
    again = one_table.with_columns(town)[[0, 0, 4]].with_columns(key=pl.Series(["K0", "", None]))
    pl.concat([one_table.with_columns(town), again]).write_csv("people.csv")
    done = call("split", "people.csv", "--id", "key", "--label", "bought", *how, "--out", "cut")
    assert done.exit_code == 0, done.output
    assert "Left out: 3 of 203 rows, 2 without key" in done.stderr
    assert "and 1 beyond the first of their id" in done.stderr
    job = read_job(folder / "cut/job.yaml")
    tables = [pl.read_csv(f.table) for f in job.parties.values() if f.table]
    assert sum(t.height for t in tables) == (200 if "--by-column" in how else 400)
    (folder / "cut/job.yaml").write_text(
        (folder / "cut/job.yaml").read_text().replace("- 1\n- 2\n", "") + "compare: none\n"
    )
    if "--by-column" not in how:
        assert call("run", "cut/job.yaml").exit_code == 0


def test_a_run_tells_how_right_the_labels_are_that_it_gave(
    call: Call, folder: Path, one_table: pl.DataFrame
) -> None:
    """The labels that the cut took away come back as figures only, in results and report."""
    parties = ["--party", "bank=a*", "--party", "shop", "--shared", 60, "--labelled", "shared"]
    done = call("split", "people.csv", "--id", "key", "--label", "bought", *parties, "--out", "cut")
    assert done.exit_code == 0, done.output
    truth = pl.read_csv("cut/truth.csv")
    assert truth.columns == ["key", "bought"]
    assert truth.height == one_table.height - 60
    job = yaml.safe_load(Path("cut/job.yaml").read_text())
    assert job["truth"] == "truth.csv"
    quick = {"name": "few_shot", "epochs": 2, "local_epochs": 5, "refine_epochs": 1, "floor": 0.5}
    job |= {"method": quick, "compare": "none", "seeds": [0]}
    Path("cut/job.yaml").write_text(yaml.safe_dump(job))
    done = call("run", "cut/job.yaml", "--out", "run")
    assert done.exit_code == 0, done.output
    results = Results.read(Path("run/results.json"))
    kept = results.models[0].fits[0].kept
    assert [k.party for k in kept] == ["bank", "shop"]
    assert sum(k.of for k in kept) == truth.height
    assert all(0 < k.right <= k.known == k.kept for k in kept)
    assert "Right: of the kept people" in Path("run/report.html").read_text()
    said = " ".join(done.output.split())
    assert f"{kept[0].kept} of {kept[0].of} people without a label at bank got one, " in said
    assert "truth: truth.csv" in results.job


@pytest.mark.parametrize("by", ["random", "correlation", "importance"])
def test_split_without_named_columns(
    call: Call, folder: Path, one_table: pl.DataFrame, by: str
) -> None:
    arguments = ("split", "people.csv", "--id", "key", "--label", "bought", "--by", by)
    done = call(*arguments, "--party", "a", "--party", "b", "--out", "cut")
    assert done.exit_code == 0, done.output
    columns = [set(pl.read_csv(folder / f"cut/{n}.csv").columns) for n in ("a", "b")]
    assert columns[0] & columns[1] == {"key"}
    assert columns[0] | columns[1] == set(one_table.columns)


def test_split_horizontally(call: Call, folder: Path, one_table: pl.DataFrame) -> None:
    arguments = ("split", "people.csv", "--id", "key", "--label", "bought", "--horizontal")
    only = ("--only", "a=120", "--only", "b=60")
    done = call(*arguments, "--party", "a", "--party", "b", *only, "--out", "cut")
    assert done.exit_code == 0, done.output
    a, b = (pl.read_csv(folder / f"cut/{n}.csv") for n in ("a", "b"))
    assert (a.height, b.height) == (120, 60)
    assert a.columns == b.columns
    assert not set(a["key"]) & set(b["key"])


def test_split_leaves_what_is_there_alone(
    call: Call, folder: Path, one_table: pl.DataFrame
) -> None:
    (folder / "cut").mkdir()
    (folder / "cut/job.yaml").write_text("mine")
    arguments = ("split", "people.csv", "--label", "bought", "--party", "a", "--party", "b")
    done = call(*arguments, "--out", "cut")
    assert done.exit_code == 2
    assert "already there" in done.stderr
    assert [p.name for p in (folder / "cut").iterdir()] == ["job.yaml"]
    assert (folder / "cut/job.yaml").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--party", "a"], "at least two parties"),
        (["--party", "a", "--party", "a"], "two parties are called 'a'"),
        (["--party", "a=a9", "--party", "b"], "column 'a9'"),
        (["--party", "a", "--party", "b", "--active", "c"], "'c' is not among: a, b"),
        (["--party", "a", "--party", "b", "--only", "c=3"], "--only c=3"),
        (["--party", "a", "--party", "b", "--labelled", "some"], "--labelled some"),
        (["--party", "a", "--party", "b", "--shared", "500"], "cannot be cut from 200"),
        (["--party", "a", "--party", "b", "--id", "kee"], "Did you mean 'key'?"),
    ],
)
def test_split_says_what_is_wrong(
    call: Call, folder: Path, one_table: pl.DataFrame, arguments: list[str], complaint: str
) -> None:
    done = call("split", "people.csv", "--label", "bought", *arguments, "--out", "cut")
    assert done.exit_code == 2
    assert complaint in done.stderr
    assert not (folder / "cut").exists()


# -- inspect ------------------------------------------------------------------------------------


def test_inspect_tables_and_a_job_agree(call: Call, tables: Tables, write_job: WriteJob) -> None:
    write_job(tables)
    by_table = call("inspect", "bank.csv", "shop.csv", "--label", "bank=bought", "--json")
    by_job = call("inspect", "job.yaml", "--json")
    assert by_table.exit_code == by_job.exit_code == 0
    geometry = json.loads(by_table.stdout)
    assert geometry == json.loads(by_job.stdout)
    assert geometry["kind"] == "vertical"
    assert [p["shared"] for p in geometry["parties"]] == [100, 100]
    assert [p["unaligned"] for p in geometry["parties"]] == [20, 20]
    assert geometry["recommendation"]["method"] == "split"


def test_auto_takes_what_inspect_recommends(
    call: Call, tables: Tables, write_job: WriteJob, folder: Path
) -> None:
    write_job(tables, method="auto", compare=["active_alone", "split"], bank={"label": "bought"})
    advice = json.loads(call("inspect", "job.yaml", "--json").stdout)["recommendation"]
    done = call("run", "job.yaml", "--out", "run")
    assert done.exit_code == 0, done.output
    results = Results.read(Path("run/results.json"))
    assert results.chosen is not None
    assert results.chosen.model_dump() == advice
    assert [m.name for m in results.models if m.fits] == [advice["method"], "active_alone"]
    assert advice["reason"] in " ".join(done.output.split())
    assert "method:\n  name: auto" in results.job
    assert advice["reason"] in html.unescape(Path("run/report.html").read_text())
    again = call("run", "job.yaml", "--out", "run", "--resume")
    assert again.exit_code == 0, again.output
    scored = call("predict", "run", "--table", "bank=bank.csv", "--table", "shop=shop.csv")
    assert scored.exit_code == 0, scored.output


def test_auto_is_not_set(call: Call, tables: Tables, write_job: WriteJob) -> None:
    write_job(tables, method={"name": "auto", "epochs": 3})
    done = call("run", "job.yaml")
    assert done.exit_code == 2
    assert "name a method to set it" in done.stderr


def test_inspect_in_words(call: Call, tables: Tables, write_job: WriteJob) -> None:
    third = tables["shop"].head(60).rename({"visits": "calls", "basket": "age"})
    ids = third["id"].str.to_lowercase()
    write_job({**tables, "phone": third.with_columns(id=ids)})
    done = call("inspect", "job.yaml")
    assert done.exit_code == 0, done.output
    assert "Who holds whom" in done.stdout
    assert "case: lower" in done.stdout
    done = call("inspect", "a=bank.csv", "b=bank.csv", "--label", "a=bought")
    assert "One quantity?" in done.stdout
    assert "keep one" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["bank.csv"], "Give two tables or more"),
        (["bank.csv", "bank.csv"], "two parties are called 'bank'"),
        (["bank.csv", "shop.csv", "--id", "sop=id"], "there is no party 'sop'"),
        (["bank.csv", "shop.csv", "--label", "bought"], "write NAME=COLUMN"),
        (["bank.csv", "shp.csv"], "Did you mean 'shop.csv'?"),
        (["bank.csv", "shop.csv", "--id", "customer"], "column 'customer'"),
        (["odd.csv", "shop.csv"], "'key', 'x'. Name who a row is about by --id odd=COLUMN"),
    ],
)
def test_inspect_says_what_is_wrong(
    call: Call, tables: Tables, write_job: WriteJob, arguments: list[str], complaint: str
) -> None:
    write_job(tables)
    Path("odd.csv").write_text("key,x\na,1\n")
    done = call("inspect", *arguments)
    assert done.exit_code == 2
    assert complaint in done.stderr


def test_inspect_gives_the_line_that_mends_the_ids(call: Call, folder: Path) -> None:
    Path("bank.csv").write_text("no,x\r\n" + "".join(f"{i:03},{i}\r\n" for i in range(30)))
    Path("shop.csv").write_text("\ufeffnr;y\r\n" + "".join(f"{i};{i},5\r\n" for i in range(30)))
    done = call("inspect", "bank.csv", "shop.csv", "--id", "bank=no", "--id", "shop=nr")
    assert done.exit_code == 0, done.output
    told = "at bank and `id: {columns: [nr], zeros: strip}` at shop."
    assert "set `id: {columns: ['no'], zeros: strip}`" in done.stdout  # YAML takes no for false
    assert told in done.stdout
    assert "duplicates" not in done.stdout


def test_inspect_shows_what_each_column_is_read_as(
    call: Call, tables: Tables, write_job: WriteJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    n = tables["shop"].height
    odd = {
        "# calls": [i % 5 for i in range(n)],
        "when": ["2020-01-01", "n/a", *(f"{i % 28 + 1:02}.03.2021" for i in range(n - 2))],
        "plan": ["gold", "basic", None] * (n // 3),
        "same": [7] * n,
        "kWh": ["9 kWh", *(f"{i}.5" for i in range(n - 1))],
    }
    wide = {f"c{i}": [float((i + j) % 7) for j in range(n)] for i in range(200)}
    write_job({**tables, "shop": tables["shop"].with_columns(pl.DataFrame(odd))})
    done = call("inspect", "job.yaml")
    assert done.exit_code == 0, done.output
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert "Columns of bank" in lines
    for line in ("when date 1.7 %", "plan category of 2 33 %", "same left out –", "age number –"):
        assert line in lines
    assert "Leading zeros" not in done.stdout
    (said,) = [line for line in lines if line.startswith("! shop: 'kWh'")]
    assert "1 of 120 values do not read as numbers, as the others do, and are taken" in said
    assert "set `categories: ['# calls']` in" in done.stdout
    read = json.loads(call("inspect", "job.yaml", "--json").stdout)["columns_read"]["shop"]
    assert [c["unread"] for c in read if c["name"] in ("when", "kWh")] == [1, 1]

    write_job({**tables, "shop": tables["shop"].with_columns(pl.DataFrame(wide))})
    monkeypatch.setattr("interlace.cli.console.out.width", 80)
    done = call("inspect", "job.yaml")
    assert "202 columns: visits, basket, c0" in done.stdout
    table = done.stdout.partition("Columns of shop")[2].partition("Method:")[0].splitlines()
    assert len(table) < 10
    assert max(map(len, table)) <= 80


# -- run, report, predict -----------------------------------------------------------------------


def test_without_a_job_run_prints_an_example_to_be_copied(
    call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console.out, "width", 40)  # a line too long for it stays a line
    done = call("run")
    assert done.exit_code == 2
    assert "interlace run job.yaml" in done.stderr
    assert done.stdout == EXAMPLE
    (folder / "job.yaml").write_text(done.stdout)
    job = read_job(folder / "job.yaml")
    assert list(job.parties) == ["insurer", "vendor"]


def test_the_help_of_run_has_the_example_and_every_method() -> None:
    text = inspect.getdoc(run) or ""
    assert indent(EXAMPLE, "    ") in text
    methods = {name for name, about in CATALOGUE.items() if about.role == "method"}
    assert methods | {"auto"} <= set(re.findall("`([a-z_]+)`", text))


@pytest.fixture
def finished(call: Call, tables: Tables, write_job: WriteJob) -> Path:
    job = write_job(tables, compare=["active_alone"], seeds=[0, 1])
    done = call("run", job, "--out", "done")
    assert done.exit_code == 0, done.output
    assert "Report: done/report.html" in done.stdout
    assert "Active party alone" in done.stdout
    assert "embedding" in done.stdout
    return Path("done")


@pytest.mark.parametrize(
    ("method", "sealed"),
    [
        ({"name": "split", "epochs": 1}, None),
        ({"name": "boosted_trees", "n_estimators": 1, "max_depth": 2}, "gradients"),
        ({"name": "poisson", "max_iter": 2}, "residuals"),
    ],
)
def test_every_method_says_how_columns_were_read_and_what_was_encrypted(
    call: Call, tables: Tables, write_job: WriteJob, method: dict[str, Any], sealed: str | None
) -> None:
    shop = tables["shop"].with_columns(
        town=pl.Series(["Ulm", "Bonn"] * 60), since=pl.Series(["2020-01-01", "2021-06-01"] * 60)
    )
    bank = tables["bank"].with_columns(bought=pl.Series([0, 1, 5, 2] * 30), same=pl.lit(1))
    job = write_job(
        {"bank": bank, "shop": shop}, method=method, compare="all", bank={"task": "regression"}
    )
    done = call("run", job, "--out", "run")
    assert done.exit_code == 0, done.output
    results = Results.read(Path("run/results.json"))
    assert [p.columns_read for p in results.parties] == [
        {"numbers": ["income", "age"], "dropped": ["same"]},
        {"numbers": ["visits", "basket"], "category": ["town"], "date parts": ["since"]},
    ]
    assert list(results.models[0].encryption) == ([sealed] if sealed else [])
    assert ("Encrypted: " in done.stdout) == bool(sealed)
    by_deviance = method["name"] == "poisson"
    for model in results.models:
        assert ("deviance" in model.fits[0].metrics) == by_deviance
    assert ("D²" in done.stdout) == by_deviance


def test_run_report_and_predict(call: Call, finished: Path, tables: Tables, folder: Path) -> None:
    results = Results.read(finished / "results.json")
    assert results.finished
    assert results.command.startswith("interlace run")

    (finished / "report.html").unlink()
    assert call("report", finished).exit_code == 0
    assert "<html" in (finished / "report.html").read_text()

    transcript = call("report", finished, "--transcript").stdout
    assert re.search(r"bank +shop +backward +gradient +float32 n×64 +\d", transcript)
    assert "split-1: as split-0" in transcript
    assert tables["bank"]["id"][0] not in transcript

    out = folder / "scores.parquet"
    new = tables["bank"].drop("bought").rename({"id": "id"})
    new.write_csv("new.csv")
    given = ("--table", "bank=new.csv", "--table", "shop=shop.csv")
    done = call("predict", finished, *given, "--out", out)
    assert done.exit_code == 0, done.output
    scores = pl.read_parquet(out)
    assert scores["id"].to_list() == tables["bank"]["id"].to_list()
    assert (scores["model"] == "joint").to_list() == [True] * 100 + [False] * 20
    assert (scores["model"] == "alone").sum() == 20
    assert set(scores["prediction"]) <= {"yes", "no"}
    assert ((scores["probability yes"] + scores["probability no"]) - 1).abs().max() < 1e-6
    assert "100 joint" in done.stderr
    assert "20 alone" in done.stderr

    assert call("predict", finished, *given).exit_code == 0
    assert pl.read_csv(folder / "scores.csv").equals(scores)


@pytest.mark.parametrize("named", [False, True])
def test_networks_over_tables_train_on_one_thread_if_nobody_says_how_many(
    tables: Tables, write_job: WriteJob, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    before, seen = torch.get_num_threads(), {}
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    if not named:
        monkeypatch.delenv("OMP_NUM_THREADS")

    def progress(doing: str, _share: float) -> None:
        seen[doing] = torch.get_num_threads()

    torch.set_num_threads(2)
    try:
        runner.run(write_job(tables, compare="none"), "run", progress=progress)
        assert {n for doing, n in seen.items() if "epoch" in doing} == {2 if named else 1}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_predict_says_what_is_not_as_it_was_in_training(
    call: Call, tables: Tables, write_job: WriteJob
) -> None:
    number = pl.col("id").str.slice(1).str.zfill(6)
    found = {name: table.with_columns(number) for name, table in tables.items()}
    towns = pl.Series("town", ["Ulm", "Bonn", "Kiel"] * 40)
    days = [(date(2022, 1, 1) + timedelta(days=i)).strftime("%d.%m.%Y") for i in range(120)]
    read = {"when": days, "use": [f"{i}.5" for i in range(120)]}
    found["shop"] = found["shop"].with_columns(towns, **{n: pl.Series(v) for n, v in read.items()})
    job = write_job(found, compare=["active_alone"])
    assert call("run", job, "--out", "run").exit_code == 0
    given = ("--table", "bank=new.csv", "--table", "shop=theirs.csv")

    found["bank"].write_csv("new.csv")
    found["shop"].write_csv("theirs.csv")
    done = call("predict", "run", *given)
    assert done.exit_code == 0, done.output
    assert "!" not in done.stderr

    cut = found["bank"].with_columns(pl.col("id").str.strip_chars_start("0"))
    cut.filter(pl.col("id") != "").write_csv("new.csv")
    grown = pl.when(pl.int_range(pl.len()) < 5).then(pl.lit("Oslo")).otherwise("town")
    odd = found["shop"].with_columns(town=grown)
    odd = odd.with_columns(when=pl.Series(["2022-07-01", "2022-07-02", "n/a", *days[3:]]))
    odd.with_columns(use=pl.Series(["63.5 kWh", *read["use"][1:]])).write_csv("theirs.csv")
    done = call("predict", "run", *given)
    assert done.exit_code == 0, done.output
    assert "bank and shop would share 99 more people if leading zeros were ignored" in done.stderr
    assert (
        "shop: 5 people have a category in 'town' that the table of the run did not" in done.stderr
    )
    told = "among the 120 of shop, where in training 83% were.\n"
    assert f"none of the 119 people of bank is {told}" in done.stderr
    for said in (
        "2 of 119 values of 'when' do not read as dates of the form DD.MM.YYYY",
        "1 of 120",
    ):
        assert f"shop: {said}" in done.stderr
    assert not any(text in done.output for text in ("Oslo", "2022-07", "kWh"))

    kept = pl.when(pl.int_range(pl.len()) < 2).then("id").otherwise("C-" + pl.col("id"))
    found["bank"].with_columns(id=kept).write_csv("new.csv")
    Path("shop.csv").unlink()
    done = call("predict", "run", *given)
    assert "table of the run is not there" in done.stderr
    assert "leading zeros were ignored" not in done.stderr
    few = "only 2 of the 120 people of bank are among the 120 of shop, where in training 83% were"
    assert f"{few}; check that the id columns" in done.stderr


def test_predict_counts_rows_left_out_and_names_the_file_at_fault(
    call: Call, tables: Tables, write_job: WriteJob
) -> None:
    rule = {"columns": ["id"], "duplicates": "first"}
    job = write_job(tables, compare=["active_alone"], bank={"id": rule, "label": "bought"})
    assert call("run", job, "--out", "run").exit_code == 0
    given = ("--table", "bank=new.csv", "--table", "shop=theirs.csv")
    tables["shop"].write_csv("theirs.csv")
    bank = pl.concat([tables["bank"], tables["bank"].head(3)])
    bank.write_csv("new.csv")
    done = call("predict", "run", *given)
    assert done.exit_code == 0, done.output
    assert "scores.csv: 120 people" in done.stderr
    assert "bank: 3 rows of 123 left out" in done.stderr

    tables["shop"].drop("visits").write_csv("theirs.csv")
    done = call("predict", "run", *given)
    assert done.exit_code == 2
    assert "party 'shop', file 'theirs.csv', column 'visits'" in " ".join(done.stderr.split())
    tables["shop"].write_csv("theirs.csv")
    bank.with_columns(income=pl.lit("much")).write_csv("new.csv")
    done = call("predict", "run", *given)
    assert "party 'bank', file 'new.csv', column 'income': none" in " ".join(done.stderr.split())


def test_a_changed_ledger_shows(call: Call, finished: Path) -> None:
    done = call("report", finished, "--verify")
    assert done.exit_code == 0
    assert done.stdout.count("intact") == 2
    with sqlite3.connect(finished / "parties/shop/ledger.sqlite") as db:
        db.execute("UPDATE ledger SET bytes_after = 1 WHERE row = 7")
    done = call("report", finished, "--verify")
    assert done.exit_code == 1
    assert "shop: row 7" in done.stderr
    (finished / "parties/shop/ledger.sqlite").unlink()
    done = call("report", finished, "--verify")
    assert done.exit_code == 1
    assert "missing" in done.stderr
    assert not (finished / "parties/shop/ledger.sqlite").exists()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--table", "bank=bank.csv"], "shop=PATH"),
        (["--table", "bank.csv"], "write PARTY=PATH"),
        (["--table", "bank=a", "--table", "bank=b"], "two tables"),
        (["--table", "bnk=bank.csv"], "no party 'bnk'"),
        (["--table", "bank=bank.csv", "--out", "x.txt"], "'.txt'"),
    ],
)
def test_predict_says_what_is_wrong(
    call: Call, finished: Path, arguments: list[str], complaint: str
) -> None:
    done = call("predict", finished, *arguments)
    assert done.exit_code == 2
    assert complaint in done.stderr


@pytest.mark.parametrize("verb", [["report"], ["predict", "--table", "bank=bank.csv"]])
def test_a_folder_without_a_run(call: Call, folder: Path, verb: list[str]) -> None:
    done = call(*verb, "nowhere")
    assert done.exit_code == 2
    assert "nowhere holds no results" in done.stderr


# -- demo ---------------------------------------------------------------------------------------


def test_demo_runs_and_can_be_repeated(
    call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut, method, _ = demo.case_of("clinics")
    monkeypatch.setattr(demo, "case_of", lambda _case: (cut, {**method, "epochs": 1}, 1))
    done = call("demo", "clinics")
    assert done.exit_code == 0, done.output
    home = folder / "interlace-demo" / "clinics"
    assert done.stdout.endswith("Report: interlace-demo/clinics/run/report.html\n")
    assert [p.name for p in home.parent.iterdir()] == ["clinics"]

    again = call("demo", "clinics")
    assert again.exit_code == 0, again.output
    assert "from an earlier demo" in again.stderr
    first, second = (Results.read(home / r / "results.json") for r in ("run", "run-2"))
    assert [f.metrics for m in first.models for f in m.fits] == [
        f.metrics for m in second.models for f in m.fits
    ]


@pytest.mark.parametrize("case", ["insurance", "clinics", "digits"])
def test_demo_writes_tables_and_a_job_that_are_the_users_own(
    call: Call, folder: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Path, Path, bool]] = []
    monkeypatch.setattr(
        demo, "carry_out", lambda job, run, resume: asked.append((job, run, resume))
    )
    home = Path("interlace-demo") / case
    assert call("demo", case).exit_code == 0
    assert asked == [(home / "job.yaml", home / "run", False)]

    job = yaml.safe_load((home / "job.yaml").read_text())
    job["method"]["epochs"] = 1
    (home / "job.yaml").write_text(yaml.safe_dump({**job, "seeds": [0], "compare": "none"}))
    done = call("run", home / "job.yaml", "--out", home / "run")
    assert done.exit_code == 0, done.output
    results = Results.read(home / "run/results.json")
    assert results.shared_by_all > 100
    (home / "run/results.json").write_text(
        results.model_copy(update={"finished": False}).model_dump_json()
    )
    assert "was stopped; it goes on" in call("demo", case).stderr
    assert asked[-1] == (home / "job.yaml", home / "run", True)


def test_demo_keeps_off_a_folder_of_something_else(call: Call, folder: Path) -> None:
    (folder / "mine").mkdir()
    done = call("demo", "clinics", "--out", "mine")
    assert done.exit_code == 2
    assert "holds no demo" in done.stderr
    assert not any((folder / "mine").iterdir())


# -- nothing that is the user's is written over --------------------------------------------------


def test_scores_are_not_written_over_a_table(call: Call, finished: Path, folder: Path) -> None:
    job = read_job(finished / "job.yaml")
    tables = {name: Path(file.table) for name, file in job.parties.items()}
    before = {name: path.read_bytes() for name, path in tables.items()}
    given = [part for name, path in tables.items() for part in ("--table", f"{name}={path}")]
    for path in tables.values():
        done = call("predict", finished, *given, "--out", path)
        assert done.exit_code == 2
        assert "is one of the tables to score" in done.stderr
    done = call("predict", finished, *given, "--out", folder / "nowhere" / "scores.csv")
    assert "there is no folder" in done.stderr
    assert before == {name: path.read_bytes() for name, path in tables.items()}


def test_a_run_is_not_kept_where_its_job_lies(
    call: Call, tables: Tables, write_job: WriteJob
) -> None:
    job = write_job(tables)
    before = job.read_bytes()
    done = call("run", job, "--out", job.parent)
    assert done.exit_code == 2
    assert "where the job itself lies" in done.stderr
    assert job.read_bytes() == before


def test_a_run_goes_on_with_the_tables_it_began_with(
    call: Call, tables: Tables, write_job: WriteJob
) -> None:
    job = write_job(tables, seeds=[0, 1])
    assert call("run", job, "--out", "run").exit_code == 0
    results = Results.read(Path("run/results.json"))
    results.finished = False
    for model in results.models:
        model.fits = model.fits[:1]
    results.write(Path("run/results.json"))
    table = Path(read_job(job).parties["shop"].table)
    whole = table.read_text()
    table.write_text("".join(whole.splitlines(keepends=True)[:-1]))
    done = call("run", job, "--out", "run", "--resume")
    assert done.exit_code == 2
    assert "party 'shop', file 'shop.csv': the table has changed since the run began" in done.stderr
    assert "by another --out, over sites under another `name`" in " ".join(done.stderr.split())
    table.write_text(whole)
    assert call("run", job, "--out", "run", "--resume").exit_code == 0


@pytest.mark.parametrize("party", ["bank", "shop"])
def test_a_table_that_changed_before_the_first_fit_was_done_is_noticed(
    call: Call, tables: Tables, write_job: WriteJob, monkeypatch: pytest.MonkeyPatch, party: str
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    job = write_job(tables)
    with monkeypatch.context() as patched:
        patched.setattr("interlace.runner._Run._measure", stop)  # all epochs are kept by then
        assert call("run", job, "--out", "run").exit_code == 130
    table = Path(f"{party}.csv")
    whole = table.read_text()
    table.write_text(whole.replace("0.", "1."))  # other values of the same people
    done = call("run", job, "--out", "run", "--resume")
    assert done.exit_code == 2
    assert f"party '{party}', file '{party}.csv': the table has changed" in done.stderr
    table.write_text(whole)
    assert call("run", job, "--out", "run", "--resume").exit_code == 0


def test_a_party_cannot_lead_out_of_the_folder(call: Call, folder: Path) -> None:
    Path("people.csv").write_text("id,x,y\n" + "".join(f"p{i},{i},{i % 2}\n" for i in range(20)))
    done = call(
        "split", "people.csv", "--id", "id", "--label", "y", "--party", "us=x", "--party", "../evil"
    )
    assert done.exit_code == 2
    assert "cannot be a party's name" in done.stderr
    assert [p.name for p in folder.iterdir()] == ["people.csv"]
