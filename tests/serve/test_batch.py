"""Scores for new people from a finished run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from interlace import Federation, Party, predict, run
from interlace.boundary import Ledger
from interlace.cli import app
from interlace.errors import DataError
from interlace.job.spec import Job
from interlace.serve.batch import Outputs, outputs_in_batches
from interlace.serve.online import Question, open_run

Finished = Callable[[str], tuple[Path, dict[str, str]]]


@pytest.fixture
def finished(tmp_path: Path) -> Finished:
    """A run over people whom both parties hold, and their tables; the id column's name is given.

    The shop puts noise on its embeddings.
    """

    def make(id: str) -> tuple[Path, dict[str, str]]:
        rng = np.random.default_rng(0)
        people = pl.DataFrame({id: [f"p{i}" for i in range(60)]})
        x = rng.standard_normal(60)
        bank = people.with_columns(age=pl.Series(x), bought=pl.Series((x > 0).astype(int)))
        shop = people.with_columns(visits=pl.Series(rng.standard_normal(60)))
        tables = {name: str(tmp_path / f"{name}.csv") for name in ("bank", "shop")}
        bank.write_csv(tables["bank"])
        shop.sample(fraction=1, shuffle=True, seed=0).write_csv(tables["shop"])
        noise = {"guards": {"embedding": [{"gaussian": {"sigma": 1.0}}]}}
        job = Job.model_validate(
            {
                "name": "small",
                "parties": {
                    "bank": {"table": tables["bank"], "id": id, "label": "bought"},
                    "shop": {"table": tables["shop"], "id": id, "policy": noise},
                },
                "method": {"name": "split", "epochs": 2},
                "compare": "none",
                "seeds": [0],
            }
        )
        run(job, tmp_path / "run")
        return tmp_path / "run", tables

    return make


def test_scores_stand_beside_the_ids_whatever_these_are_called(finished: Finished) -> None:
    folder, tables = finished("row")
    scores = predict(folder, tables)
    assert scores["row"].to_list() == [f"p{i}" for i in range(60)]
    assert scores.columns[-1] == "model"


def test_ids_called_as_a_score_is_are_refused(finished: Finished) -> None:
    folder, tables = finished("prediction")
    with pytest.raises(DataError, match=r"party 'bank'.*column 'prediction'"):
        predict(folder, tables)


def test_noise_does_not_come_again_and_the_ledger_tells(finished: Finished) -> None:
    folder, tables = finished("id")
    ledgers = [folder / "parties" / name / "ledger.sqlite" for name in ("bank", "shop")]
    before = [len(list(Ledger(path).entries())) for path in ledgers]
    once, again = (predict(folder, tables)["probability 1"] for _ in range(2))
    assert (once != again).all(), "who scores two people under one noise can take it off"
    for path, rows in zip(ledgers, before, strict=True):
        entries = list(Ledger(path).entries())[rows:]
        assert sum(e.kind == "embedding" for e in entries) == 2
        assert Ledger(path).verify() is None


def test_who_is_answered_is_not_asked_about_again(tmp_path: Path) -> None:
    class Asked:
        """Says of each person twice their row, and falls out after so many answers."""

        def __init__(self, most: int) -> None:
            self.most = most
            self.people: list[list[int]] = []

        def outputs(self, view: Federation) -> Outputs:
            if len(self.people) == self.most:
                raise ConnectionError
            self.people.append(view.rows.tolist())
            return np.stack([view.rows, 2.0 * view.rows], axis=1)

    rows = np.array([7, 3, 1, 4, 0, 9, 6])
    table = pl.DataFrame({"id": range(10), "x": range(10)})
    two = Federation.simulate([Party("a", table), Party("b", table)], active="a").view(rows)
    first, second, third = asked = [Asked(2), Asked(1), Asked(9)]
    for who in (first, second):
        with pytest.raises(ConnectionError):
            outputs_in_batches(who, two, 2, tmp_path)  # type: ignore[arg-type]
        (tmp_path / "not whole").mkdir(exist_ok=True)
    said = outputs_in_batches(third, two, 2, tmp_path)  # type: ignore[arg-type]
    assert said[:, 1].tolist() == (2 * rows).tolist()
    everybody = [row for who in asked for people in who.people for row in people]
    assert sorted(everybody) == sorted(rows)
    assert [len(who.people) for who in asked] == [2, 1, 1]


def test_a_person_at_two_of_three_clinics_is_scored_by_these(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, ids = rng.standard_normal((90, 3)), pl.Series("id", [f"p{i}" for i in range(90)])
    registry = pl.DataFrame({"id": ids, "ill": (x.sum(1) > 0).astype(int)})
    tables = {"registry": registry}
    for k, (name, held) in enumerate({"heart": 90, "eye": 70, "skin": 60}.items()):
        tables[name] = pl.DataFrame({"id": ids[:held], f"x{k}": x[:held, k]})
    for name, frame in tables.items():
        frame.write_csv(tmp_path / f"{name}.csv")
    files = {name: {"table": str(tmp_path / f"{name}.csv")} for name in tables}
    files["registry"]["label"] = "ill"
    job = {"name": "clinics", "parties": files, "compare": "none", "seeds": [0]}
    quick = {"name": "one_shot", "epochs": 5, "local_epochs": 5}
    run(Job.model_validate(job | {"method": quick}), tmp_path / "run")
    scores = predict(tmp_path / "run", {n: f["table"] for n, f in files.items()})
    assert scores["model"].to_list() == ["joint"] * 60 + ["joint in part"] * 30
    assert scores["prediction"].null_count() == 0
    given = [part for n, f in files.items() for part in ("--table", f"{n}={f['table']}")]
    args = ["predict", str(tmp_path / "run"), *given, "--out", str(tmp_path / "scores.csv")]
    said = CliRunner().invoke(app, args).stderr
    assert "60 joint         scored from every" in said
    assert "30 joint in part a partner lacks them" in said

    with open_run(tmp_path / "run") as scorer:
        ids = Question.model_validate({"ids": ["p0", "p65", "p89", "p0"]})
        answers = asyncio.run(scorer.answer(ids, 10))
    in_part = ("joint in part", "not shared")
    assert [(a.answered_by, a.reason) for a in answers] == [
        ("joint", None), in_part, in_part, ("joint", None)
    ]  # fmt: skip
