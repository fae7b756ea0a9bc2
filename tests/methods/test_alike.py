"""Methods compared with themselves: on the active party's columns, and on all in one table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from sklearn.datasets import load_wine

from interlace import BoostedTrees, Federation, VerticalKMeans, predict, run
from interlace.errors import DataError
from interlace.job.results import Results
from interlace.job.spec import Job
from interlace.methods.baselines import OwnColumns, PooledColumns

Make = Callable[..., Federation]
TREES: dict[str, Any] = {"n_estimators": 3, "max_depth": 3, "encryption": "none"}


def test_pooled_trees_are_the_federations(wine: Make) -> None:
    """Same bins, same sums: what federation costs a tree is nothing."""
    fed = wine()
    train, test = fed.split(0.3)
    joint = BoostedTrees(**TREES).fit(train)
    pooled = PooledColumns(BoostedTrees(**TREES)).fit(train)
    np.testing.assert_allclose(pooled.outputs(test), joint.outputs(test), atol=1e-9)
    assert not pooled.method_.peers_


def test_pooled_clusters_are_the_federations(wine: Make) -> None:
    fed = wine()
    train, test = fed.split(0.3, labelled=False)
    joint = VerticalKMeans(clusters=3, starts=3).fit(train)
    pooled = PooledColumns(VerticalKMeans(clusters=3, starts=3)).fit(train)
    assert pooled.predict(test).tolist() == joint.predict(test).tolist()
    assert pooled.figures(test)["distance"] == pytest.approx(joint.figures(test)["distance"])


def test_own_columns_ask_nobody_and_learn_from_everybody_labelled(wine: Make) -> None:
    fed = wine(missing=60)
    before = len(list(fed.active.boundary.ledger.entries()))
    model = OwnColumns(BoostedTrees(**TREES)).fit(fed)
    assert len(list(fed.active.boundary.ledger.entries())) == before
    assert model.score(fed) > 0.9  # people whom no partner holds too
    assert model.method_.importance().keys() == {"bank"}


@pytest.mark.parametrize("baseline", [OwnColumns, PooledColumns])
def test_constraints_follow_their_columns(wine: Make, baseline: Any) -> None:
    limits = {"bank": {"x0": 1}, "vendor": {"x0": -1}}
    fed = wine()
    model = baseline(BoostedTrees(**TREES, monotone_constraints=limits)).fit(fed)
    named = model.method_.get_params()["monotone_constraints"]
    both = {"pooled": {"x0": 1, "vendor.x0": -1}}
    assert named == ({"bank": {"x0": 1}} if baseline is OwnColumns else both)


def test_nothing_is_learnt_alone_without_columns(federate: Make) -> None:
    x, y = load_wine(return_X_y=True)
    fed = federate(x, y, [slice(0, 13)], None)
    with pytest.raises(DataError, match="nothing alone"):
        OwnColumns(BoostedTrees(**TREES)).fit(fed)


@pytest.fixture
def tables(tmp_path: Path) -> dict[str, Any]:
    """Wine at two parties; the grower knows the kind of all but a few."""
    x, y = load_wine(return_X_y=True)
    ids = [f"w{i}" for i in range(len(x))]
    grower = {"id": ids} | {f"x{j}": x[:, j] for j in range(6)} | {"kind": y}
    lab = {"id": ids[:150]} | {f"z{j}": x[:150, j] for j in range(6, 13)}
    parties: dict[str, Any] = {}
    for name, data in (("grower", grower), ("lab", lab)):
        pl.DataFrame(data).write_csv(tmp_path / f"{name}.csv")
        parties[name] = {"table": str(tmp_path / f"{name}.csv")}
    return parties


def test_a_job_without_a_label(tables: dict[str, Any], tmp_path: Path) -> None:
    tables["grower"]["columns"] = [f"x{j}" for j in range(6)]
    for name in ("kmeans", "gaussian_mixture"):
        method = {"name": name, "clusters": 3, "starts": 3}
        fields = {"name": "w", "parties": tables, "active": "grower", "method": method}
        job = Job.model_validate(fields | {"seeds": [0, 1]})
        results = run(job, tmp_path / name)
        assert (results.task, results.label, results.classes) == ("clustering", "", 0)
        assert results.trained_on + results.tested_on == 150
        ours, pooled = results.models
        assert pooled.role == "in one place"
        for fit, bound in zip(ours.fits, pooled.fits, strict=True):
            assert fit.metrics == pytest.approx(bound.metrics)
            due = {"distance", "silhouette"} if name == "kmeans" else {"log_likelihood"}
            assert fit.metrics.keys() == due
        page = (tmp_path / name / "report.html").read_text()
        assert "clusters are to be found" in page
        assert "holds the label" not in page
    paths = {name: file["table"] for name, file in tables.items()}
    scores = predict(tmp_path / "kmeans", paths)
    assert scores.columns == ["id", "prediction", "model"]
    assert dict(scores["model"].value_counts().iter_rows()) == {"joint": 150, "none": 28}


def test_clusters_are_compared_with_classes_where_there_are_some(
    tables: dict[str, Any], tmp_path: Path
) -> None:
    tables["grower"]["label"] = "kind"
    method = {"name": "kmeans", "clusters": 3}
    job = Job.model_validate({"name": "w", "parties": tables, "method": method, "seeds": [0]})
    fit = run(job, tmp_path / "run").models[0].fits[0]
    assert fit.metrics["adjusted_rand"] > 0.6


def test_a_job_of_trees_is_compared_with_trees(tables: dict[str, Any], tmp_path: Path) -> None:
    tables["grower"]["label"] = "kind"
    method = {"name": "boosted_trees", **TREES}
    job = Job.model_validate({"name": "w", "parties": tables, "method": method, "seeds": [0]})
    run(job, tmp_path / "run")
    results = Results.read(tmp_path / "run" / "results.json")
    joint, alone, pooled = results.models
    assert [m.name for m in (alone, pooled)] == ["own_columns", "pooled_columns"]
    assert joint.fits[0].metrics == pytest.approx(pooled.fits[0].metrics)
    assert "alone" in (tmp_path / "run" / "report.html").read_text()
    paths = {name: file["table"] for name, file in tables.items()}
    scores = predict(tmp_path / "run", paths)
    assert dict(scores["model"].value_counts().iter_rows()) == {"joint": 150, "alone": 28}
