"""``interlace bench limited-overlap`` on data that install with scikit-learn."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from typer.testing import Result

from interlace.bench import cells as cells_module
from interlace.bench.grid import Grid, carry_out
from interlace.bench.material import FEW, draw, material, parted

Call = Callable[..., Result]
SMALL = ("--overlap", 32, "--seeds", 1, "--trials", 1, "--jobs", 1)
METHODS = ("active_alone", "shared_only", "few_shot")
QUICK = ("active_alone", "shared_only")


def bench(call: Call, *options: object, methods: tuple[str, ...] = METHODS) -> Result:
    chosen = [part for name in methods for part in ("--method", name)]
    return call("bench", "limited-overlap", "--out", "out", *SMALL, *chosen, *options)


@pytest.mark.usefixtures("folder")
def test_it_ends_with_a_table_a_parquet_file_and_a_page_of_plots(call: Call) -> None:
    done = bench(call, "--only", "breast")
    assert done.exit_code == 0, done.output
    cells = pl.read_parquet("out/limited-overlap.parquet")
    assert sorted(cells["method"]) == sorted(METHODS)
    assert cells["failed"].null_count() == cells.height
    assert cells["utility"].is_between(0.5, 1).all()
    by_method = {row["method"]: row for row in cells.to_dicts()}
    assert by_method["active_alone"]["bytes"] == 0 < by_method["shared_only"]["bytes"]
    kept = by_method["few_shot"]
    assert 0 <= kept["right"] <= kept["known"] <= kept["kept"] <= kept["choice"]
    assert "Few-shot VFL" in done.output
    assert "breast, 32 shared: " in done.output
    page = Path("out/limited-overlap.html").read_text()
    assert page.count("<svg viewBox") == 2, "utility against overlap, and against bytes"
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "https://" not in page


@pytest.mark.usefixtures("folder")
def test_a_run_goes_on_where_it_was_stopped(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    fill = cells_module.fill
    filled: list[str] = []

    def stopped(folder: Path, source: Path | None, cell: cells_module.Cell) -> None:
        if filled:
            raise KeyboardInterrupt
        fill(folder, source, cell)
        filled.append(cell.method)

    monkeypatch.setattr("interlace.bench.grid.fill", stopped)
    done = bench(call, "--only", "digits", methods=QUICK)
    assert done.exit_code == 130
    assert "the same command goes on" in done.output
    files = {path.name: path.stat().st_mtime_ns for path in Path("out/cells").iterdir()}
    chosen = {path.name: path.stat().st_mtime_ns for path in Path("out/chosen").iterdir()}
    assert len(files) == 1

    monkeypatch.setattr("interlace.bench.grid.fill", fill)
    assert bench(call, "--only", "digits", methods=QUICK).exit_code == 0
    after = {path.name: path.stat().st_mtime_ns for path in Path("out/cells").iterdir()}
    assert len(after) == len(QUICK)
    assert files.items() <= after.items(), "what was done is not done again"
    assert chosen == {p.name: p.stat().st_mtime_ns for p in Path("out/chosen").iterdir()}


def test_what_validation_people_judge_lies_apart_on_draws_of_its_own(tmp_path: Path) -> None:
    grid = Grid(("breast",), (32,), seeds=2, methods=("shared_only",), trials=1, judge="validation")
    carry_out(grid, tmp_path)
    found = cells_module.read_cells(tmp_path, "validation")
    assert found["utility"].is_between(0.5, 1).all()
    assert cells_module.read_cells(tmp_path).is_empty()
    scored, _ = Grid(("breast",)).cells(None)
    others = {cell.seed for cell in scored} | {cells_module.TUNING[1]}
    assert found["seed"].n_unique() == 2
    assert not set(found["seed"]) & others


@pytest.mark.parametrize("name", ["breast", "digits"])
def test_nobody_for_testing_is_trained_on_or_chooses(name: str) -> None:
    of = material(name, None)
    people = parted(of)
    assert not set(people["test"]) & set(people["pool"])
    assert set(people["validation"]) <= set(people["pool"])
    test = {f"P{row:07d}" for row in people["test"]}
    validation = {f"P{row:07d}" for row in people["validation"]}
    for judge, judged in (("test", test), ("validation", validation)):
        drawn = draw(of, 32, 0, judge)  # type: ignore[arg-type]
        active = drawn.train.active
        ids = np.array(active.frame["id"])
        assert set(ids[drawn.judged.rows]) == judged
        assert not set(ids[drawn.train.rows]) & (judged | test)
        assert set(drawn.train.held_out) == set(drawn.judged.rows)
        assert len(drawn.train.shared().rows) == 32
        for party in drawn.train.engine.parties.values():  # type: ignore[attr-defined]
            known = set(party.frame["id"])
            assert known & test == (test if judge == "test" else set())


def test_draws_differ_by_seed_and_repeat() -> None:
    of = material("breast", None)
    shared = [
        frozenset(d.train.active.frame["id"].gather(d.train.shared().rows))
        for d in (draw(of, 32, seed, "test") for seed in (0, 0, 1))
    ]
    assert shared[0] == shared[1] != shared[2]
    classes = draw(of, 32, 0, "test").train.shared().y.bincount().tolist()
    whole = of.label.value_counts(sort=False).sort(of.label.name)["count"] / len(of.label)
    assert np.allclose(np.array(classes) / 32, whole.to_numpy(), atol=1 / 16)


def test_with_few_labels_only_shared_people_have_one() -> None:
    drawn = draw(material(f"breast{FEW}", None), 32, 0, "test")
    assert set(drawn.train.labelled().rows) == set(drawn.train.shared().rows)
    assert drawn.unaligned > 0


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--only", "iris"), "there is no data set 'iris'; there are: breast"),
        (("--only", "vehicle"), "Say by --data (or INTERLACE_DATA) in which folder it lies"),
        (("--only", "vehicle", "--data", "nowhere"), "Check --data"),
        (("--only", "breast", "--method", "magic"), "no method 'magic'"),
        (("--only", "breast", "--overlap", 31), "no data set has such overlaps"),
        (("--only", "breast", "--trials", 2), "holds a run with 1 trials a method"),
    ],
)
def test_what_cannot_be_run_says_why(call: Call, options: tuple[object, ...], says: str) -> None:
    Path("out").mkdir()
    Path("out/grid.json").write_text(json.dumps({"trials": 1}))
    rest = SMALL if "--overlap" not in options else SMALL[2:]
    done = call("bench", "limited-overlap", "--out", "out", *rest, *options)
    assert done.exit_code == 2
    assert says in " ".join(done.output.split())
