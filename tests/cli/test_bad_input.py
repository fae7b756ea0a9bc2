"""Bad input: each with an error that says where and what to do, and with nothing lost."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import polars as pl
import pytest
import torch
from typer.testing import Result

from interlace import Federation, Party, SplitVFL
from interlace.boundary.kinds import Embedding, RowSelection
from interlace.errors import InterlaceError, JobError
from interlace.job.results import Results
from interlace.methods.bottom import BottomSide
from interlace.methods.vertical.split import SplitSide
from interlace.party import operation

Call = Callable[..., Result]
WriteJob = Callable[..., Path]
Tables = dict[str, pl.DataFrame]


@pytest.fixture
def refusal(call: Call, write_job: WriteJob) -> Callable[..., str]:
    """Run a job that cannot work; returns the one line it fails with."""

    def run(tables: Tables, **fields: Any) -> str:
        done = call("run", write_job(tables, **fields))
        assert done.exit_code == 2, done.output
        errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        assert len(errors) == 1
        assert done.stderr.endswith(f"{errors[0]}\n")
        return errors[0]

    return run


@pytest.fixture
def outcome(call: Call, write_job: WriteJob, folder: Path) -> Callable[..., Results]:
    """Run a job that must work all the same; returns its results."""

    def run(tables: Tables, **fields: Any) -> Results:
        done = call("run", write_job(tables, **fields))
        assert done.exit_code == 0, done.output
        results = Results.read(folder / "runs/small/results.json")
        assert all(np.isfinite(v) for f in results.models[0].fits for v in f.metrics.values())
        return results

    return run


# -- people -------------------------------------------------------------------------------------


def test_nobody_shared(refusal: Callable[..., str], tables: Tables) -> None:
    tables["shop"] = tables["shop"].tail(20)
    error = refusal(tables)
    assert "no person of party 'bank' (120 people) is shared with 'shop'" in error
    assert "`interlace inspect` says whether an id rule helps; all else" in error


def test_one_person_shared(refusal: Callable[..., str], tables: Tables) -> None:
    tables["shop"] = tables["shop"].slice(99)
    assert "only one person of party 'bank'" in refusal(tables)


def test_too_few_shared_people_to_hold_some_out(
    refusal: Callable[..., str], tables: Tables
) -> None:
    tables["shop"] = tables["shop"].slice(98)
    assert re.search("people with a label are too few|at least two are needed", refusal(tables))


def test_a_table_of_no_rows(refusal: Callable[..., str], tables: Tables) -> None:
    tables["shop"] = tables["shop"].clear()
    error = refusal(tables)
    assert "party 'shop'" in error
    assert "shop.csv" in error
    assert "no rows" in error


# -- labels -------------------------------------------------------------------------------------


def test_a_label_of_one_class(refusal: Callable[..., str], tables: Tables) -> None:
    tables["bank"] = tables["bank"].with_columns(bought=pl.lit("yes"))
    error = refusal(tables)
    assert "party 'bank'" in error
    assert "column 'bought'" in error
    assert "class" in error


def test_a_label_of_one_class_among_the_shared_people(
    refusal: Callable[..., str], tables: Tables
) -> None:
    shared = pl.Series([i < 100 for i in range(120)])
    label = pl.when(shared).then(pl.lit("yes")).otherwise(pl.lit("no"))
    tables["bank"] = tables["bank"].with_columns(bought=label)
    assert "class" in refusal(tables)


def test_a_label_with_gaps_leaves_these_people_out(
    outcome: Callable[..., Results], tables: Tables
) -> None:
    gap = pl.Series([i % 4 == 0 for i in range(120)])
    tables["bank"] = tables["bank"].with_columns(
        bought=pl.when(gap).then(None).otherwise(pl.col("bought"))
    )
    results = outcome(tables)
    assert results.trained_on + results.tested_on == 75


def test_no_label_at_all(refusal: Callable[..., str], tables: Tables) -> None:
    tables["bank"] = tables["bank"].with_columns(bought=pl.lit(None, dtype=pl.String))
    assert "every label is missing" in refusal(tables)


def test_a_label_of_text_that_says_nothing_twice(
    refusal: Callable[..., str], tables: Tables
) -> None:
    remarks = pl.Series([f"called on day {i}" for i in range(120)])
    tables["bank"] = tables["bank"].with_columns(bought=remarks)
    error = refusal(tables)
    assert "column 'bought'" in error
    assert "called on day" not in error


def test_a_class_that_training_never_saw(
    call: Call, tables: Tables, write_job: WriteJob, folder: Path
) -> None:
    bought = tables["bank"]["bought"].to_list()
    said = []
    for rare in (3, 51, 110):  # the last is not shared
        labels = [*bought[:rare], "perhaps", *bought[rare + 1 :]]
        frame = tables["bank"].with_columns(bought=pl.Series(labels))
        done = call("run", write_job({**tables, "bank": frame}), "--out", f"run-{rare}")
        said.append(done.stderr if done.exit_code else "")
        assert done.exit_code in (0, 2), done.output
    *seen, unseen = said
    assert not any(seen)  # whose class has nobody else is trained on
    assert "1 of 3 classes do not occur among the" in unseen
    assert "party 'bank', file '" in unseen
    assert "column 'bought'" in unseen
    assert "perhaps" not in unseen


def test_classes_that_are_no_classes_of_their_own_are_told(
    call: Call, refusal: Callable[..., str], tables: Tables
) -> None:
    bought = tables["bank"]["bought"].to_list()
    messy = ["YES ", *bought[1:100], *["n/a"] * 20]  # of whom but few are shared
    tables["bank"] = tables["bank"].with_columns(bought=pl.Series(messy))
    error = refusal(tables, test=0.9)
    assert "party 'bank', file '" in error
    assert "column 'bought': " in error
    assert "of 4 classes do not occur among the" in error
    assert "of its 4 classes 1 differs from another only by letter case or blanks" in error
    assert "1 looks like a mark for a missing label" in error
    assert "YES" not in error
    assert "n/a" not in error
    done = call("inspect", "job.yaml")
    words = " ".join(done.output.split())
    assert "Label of bank: 'bought', multiclass, 4 classes: YES 1, n/a 20, no " in words
    assert "! bank: 'bought': of its 4 classes 1 differs from another only by" in words


def test_a_run_tells_of_classes_that_may_be_none_of_their_own(
    outcome: Callable[..., Results], tables: Tables
) -> None:
    bought = tables["bank"]["bought"].to_list()
    messy = pl.Series(["n/a" if i % 10 == 0 else b for i, b in enumerate(bought)])
    tables["bank"] = tables["bank"].with_columns(bought=messy)
    (note,) = outcome(tables).parties[0].column_notes
    assert note.startswith("'bought': of its 3 classes 1 looks like a mark for a missing label")


def test_a_class_that_training_never_saw_among_people_to_score(
    call: Call, outcome: Callable[..., Results], tables: Tables
) -> None:
    outcome(tables)
    tables["bank"].with_columns(bought=pl.lit("perhaps")).write_csv("new.csv")
    done = call("predict", "runs/small", "--table", "bank=new.csv", "--table", "shop=shop.csv")
    assert done.exit_code == 0, done.output
    assert set(pl.read_csv("scores.csv")["prediction"].drop_nulls()) <= {"yes", "no"}


# -- columns ------------------------------------------------------------------------------------


def test_a_passive_party_without_columns(refusal: Callable[..., str], tables: Tables) -> None:
    tables["shop"] = tables["shop"].select("id")
    error = refusal(tables)
    assert "party 'shop'" in error
    assert "column" in error


def test_an_active_party_without_columns_has_the_label(
    outcome: Callable[..., Results], tables: Tables
) -> None:
    tables["bank"] = tables["bank"].select("id", "bought")
    assert outcome(tables).parties[0].columns == 0


def test_constant_and_all_missing_columns_are_left_out(
    outcome: Callable[..., Results], tables: Tables
) -> None:
    empty = pl.lit(None, dtype=pl.Float64)
    tables["shop"] = tables["shop"].with_columns(constant=pl.lit(3), empty=empty)
    outcome(tables)


def test_a_party_with_nothing_but_constant_columns(
    refusal: Callable[..., str], tables: Tables
) -> None:
    tables["shop"] = tables["shop"].select("id", constant=pl.lit(3))
    error = refusal(tables)
    assert "party 'shop'" in error
    assert "constant" in error or "column" in error


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e300])
def test_features_that_are_no_usable_numbers(
    outcome: Callable[..., Results], tables: Tables, value: float
) -> None:
    some = pl.Series([i % 7 == 0 for i in range(120)])
    for name, column in (("shop", "visits"), ("bank", "income")):
        bad = pl.when(some).then(pl.lit(value)).otherwise(pl.col(column))
        tables[name] = tables[name].with_columns(bad.alias(column))
    outcome(tables)


def test_a_party_file_that_names_a_column_that_is_not_there(
    refusal: Callable[..., str], tables: Tables
) -> None:
    error = refusal(tables, shop={"columns": ["visit", "basket"]})
    assert "party 'shop'" in error
    assert "shop.csv" in error
    assert "column 'visit'" in error
    assert "visits" in error
    error = refusal(tables, bank={"label": "boght"})
    assert "column 'boght'" in error
    error = refusal(tables, bank={"id": "customer"})
    assert "column 'customer'" in error


# -- the job ------------------------------------------------------------------------------------


def test_two_parties_of_one_name(call: Call, folder: Path, tables: Tables) -> None:
    (folder / "job.yaml").write_text(
        "name: twice\nparties:\n  shop: {table: a.csv}\n  shop: {table: b.csv}\n"
    )
    done = call("run", "job.yaml")
    assert done.exit_code == 2
    assert "'shop' stands twice in job.yaml (line 4)" in done.stderr
    with pytest.raises(JobError, match="two parties are called 'shop'"):
        Federation.simulate([Party("shop", tables["shop"]), Party("shop", tables["shop"])])


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"method": "spilt"}, "there is no method 'spilt'; did you mean 'split'?"),
        ({"method": {"name": "split", "epoch": 3}}, "did you mean 'epochs'?"),
        ({"compare": ["poled"]}, "did you mean 'pooled'?"),
        ({"seed": [1]}, "`seed`: there is no such field"),
        ({"test": 1.5}, "`test`"),
        ({"active": "bnk"}, "'bnk' is not among: bank, shop"),
    ],
)
def test_a_job_that_asks_for_what_there_is_not(
    refusal: Callable[..., str], tables: Tables, fields: dict[str, Any], complaint: str
) -> None:
    assert complaint in refusal(tables, **fields)
    assert not Path("runs").exists() or "active" in fields


def test_a_job_that_is_not_yaml(call: Call, folder: Path) -> None:
    (folder / "job.yaml").write_text("name: [unclosed")
    done = call("run", "job.yaml")
    assert done.exit_code == 2
    assert "job.yaml is not YAML" in done.stderr


# -- the run folder and the disk ----------------------------------------------------------------


def _files(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_a_run_folder_that_is_there_already(
    call: Call, outcome: Callable[..., Results], tables: Tables, write_job: WriteJob
) -> None:
    outcome(tables)
    before = _files(Path("runs"))
    done = call("run", "job.yaml")
    assert done.exit_code == 2
    assert "runs/small already exists" in done.stderr
    assert "--resume" in done.stderr
    assert "--out" in done.stderr
    other = write_job(tables, method={"name": "split", "epochs": 3})
    done = call("run", other, "--resume")
    assert done.exit_code == 2
    assert "a run of another job" in done.stderr
    assert _files(Path("runs")) == before


def test_a_folder_of_something_else(call: Call, tables: Tables, write_job: WriteJob) -> None:
    Path("mine").mkdir()
    Path("mine/thesis.txt").write_text("years of work")
    done = call("run", write_job(tables), "--out", "mine")
    assert done.exit_code == 2
    assert "not a run folder" in done.stderr
    assert _files(Path("mine")) == {"mine/thesis.txt": b"years of work"}


def test_nothing_to_go_on_with(call: Call, tables: Tables, write_job: WriteJob) -> None:
    done = call("run", write_job(tables), "--resume")
    assert done.exit_code == 2
    assert "no run in runs/small" in done.stderr


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 160 kB."""
    where = tmp_path / "disk"
    where.mkdir()
    if os.geteuid() != 0 or not shutil.which("mount"):
        pytest.skip("only root can mount a small disk")
    command = ["mount", "-t", "tmpfs", "-o", "size=160k", "tmpfs", str(where)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("a small disk cannot be mounted here")
    yield where
    subprocess.run(["umount", "--lazy", str(where)], check=True)  # a ledger may still be open


def test_a_disk_that_fills_up_loses_nothing_that_was_written(
    call: Call, tables: Tables, write_job: WriteJob, small_disk: Path
) -> None:
    job = write_job(tables, seeds=list(range(6)))
    done = call("run", job, "--out", small_disk / "run")
    assert done.exit_code == 2, done.output
    assert "error: " in done.stderr
    assert "Free some space" in done.stderr
    assert "Traceback" not in done.stderr

    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    done = call("run", job, "--out", small_disk / "run", "--resume")
    assert done.exit_code == 0, done.output
    assert call("report", small_disk / "run", "--verify").exit_code == 0
    whole = call("run", job, "--out", "whole")
    assert whole.exit_code == 0
    assert _metrics(small_disk / "run") == _metrics(Path("whole"))


def test_a_disk_that_is_full_when_scores_are_written(
    call: Call, outcome: Callable[..., Results], tables: Tables, small_disk: Path
) -> None:
    outcome(tables)
    scores = small_disk / "scores.csv"
    scores.write_text("before")
    (small_disk / "filler").write_bytes(bytes(152 * 1024))
    given = ("--table", "bank=bank.csv", "--table", "shop=shop.csv")
    done = call("predict", "runs/small", *given, "--out", scores)
    assert done.exit_code == 2
    assert "No space left on device" in done.stderr
    assert scores.read_text() == "before"
    assert sorted(p.name for p in small_disk.iterdir()) == ["filler", "scores.csv"]


def test_a_system_that_refuses_to_write(
    call: Call, tables: Tables, write_job: WriteJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a full disk does, where no small one can be mounted."""
    job = write_job(tables, seeds=[0, 1])
    fsync, left = os.fsync, 6

    def full(file: int) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(28, "No space left on device")
        fsync(file)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        done = call("run", job, "--out", "run")
    assert done.exit_code == 2, done.output
    assert "No space left on device" in done.stderr
    done = call("run", job, "--out", "run", "--resume")
    assert done.exit_code == 0, done.output
    call("run", job, "--out", "whole")
    assert _metrics(Path("run")) == _metrics(Path("whole"))


def _metrics(run: Path) -> list[dict[str, float]]:
    return [f.metrics for m in Results.read(run / "results.json").models for f in m.fits]


# -- partners that do not keep to what was agreed -----------------------------------------------


class _BadSide(SplitSide):
    """A partner that answers for other rows, with another width, or with NaN."""

    fault: ClassVar[str] = ""

    @operation
    def forward(self, rows: RowSelection) -> Embedding:
        """Embeddings that are not what was asked for."""
        good = super().forward(rows)
        match self.fault:
            case "width":
                return good[:, :-1]
            case "rows":
                return torch.cat([good, good[:3]])
            case "fewer":
                return good[:-1]
            case "nan":
                return torch.full_like(good, float("nan"))
            case _:
                return good


class _Split(SplitVFL):
    side: ClassVar[type[BottomSide]] = _BadSide


@pytest.mark.parametrize("wire", [False, True])
@pytest.mark.parametrize(
    ("fault", "complaint"),
    [
        ("width", "shape"),
        ("rows", "shape"),
        ("fewer", "shape"),
        ("nan", "finite|NaN"),
    ],
)
def test_a_partner_that_answers_something_else(
    tables: Tables, fault: str, complaint: str, wire: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    parties = [Party("bank", tables["bank"], label="bought"), Party("shop", tables["shop"])]
    federation = Federation.simulate(parties, wire=wire)
    train, test = federation.split(0.25)
    model = _Split(epochs=1).fit(train)
    before = model.predict_proba(test)
    weights = [p.clone() for p in model.top_.parameters()]

    monkeypatch.setattr(_BadSide, "fault", fault)
    with pytest.raises(InterlaceError, match=complaint) as caught:
        _Split(epochs=1).fit(train)
    assert "shop" in str(caught.value)
    monkeypatch.setattr(_BadSide, "fault", "")
    assert all(torch.equal(a, b) for a, b in zip(weights, model.top_.parameters(), strict=True))
    assert np.array_equal(model.predict_proba(test), before)
