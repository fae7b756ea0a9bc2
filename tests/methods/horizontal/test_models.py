"""Linear models, trees and k-means end where the pooled table would."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import balanced_accuracy_score
from sklearn.preprocessing import StandardScaler

from interlace import FedAvg, Federation, Party
from interlace.boundary import Kind
from interlace.errors import DataError, JobError
from interlace.methods.horizontal import (
    Agreement,
    HorizontalKMeans,
    HorizontalLinear,
    HorizontalTrees,
)
from interlace.methods.horizontal.baselines import PooledRows
from interlace.methods.horizontal.kmeans import KMeansSide
from interlace.methods.horizontal.method import by_client
from interlace.methods.horizontal.side import figures
from interlace.methods.objective import Objective

Make = Callable[..., Federation]

X, Y = load_breast_cancer(return_X_y=True)


def cut(x: Any, y: Any, parties: int = 3, **more: Any) -> dict[str, pl.DataFrame]:
    """Rows dealt out in turn; columns named so that their order is that of the names."""
    columns = {f"x{j:02d}": x[:, j] for j in range(x.shape[1])} | {"y": y} | more
    frame = pl.DataFrame(columns)
    return {f"p{i}": frame.gather_every(parties, i) for i in range(parties)}


def scaled(x: Any) -> Any:
    """As every party reads it: standardised, and clipped at ten."""
    return np.clip(StandardScaler().fit_transform(x), -10, 10)


@pytest.mark.parametrize("secure", [False, True])
def test_logistic_regression_is_the_pooled_one(build: Make, secure: bool) -> None:
    l2 = 0.01
    fed = build(cut(X, Y), label="y")
    model = HorizontalLinear(l2=l2, secure=secure).fit(fed)
    pooled = LogisticRegression(C=1 / (l2 * len(Y)), tol=1e-10, max_iter=10_000)
    pooled.fit(scaled(X), Y)
    due = np.concatenate([pooled.coef_[0], pooled.intercept_])
    np.testing.assert_allclose(model.weights_[0], due, atol=2e-4)
    assert len(model.history_) < 15
    kinds = {e.kind for e in fed.active.boundary.ledger.entries() if e.direction == "received"}
    assert (Kind.GRADIENT.value in kinds) is not secure


def test_linear_regression_is_the_pooled_one_in_two_rounds(build: Make) -> None:
    x, y = load_diabetes(return_X_y=True)
    y = y + 0.5
    fed = build(cut(x, y), label="y")
    model = HorizontalLinear(l2=0.1).fit(fed)
    pooled = Ridge(alpha=0.1 * len(y)).fit(scaled(x), (y - y.mean()) / y.std())
    np.testing.assert_allclose(model.weights_[0, :-1], pooled.coef_, atol=1e-8)
    assert len(model.history_) == 2
    assert model.score(fed) == pytest.approx(pooled.score(scaled(x), (y - y.mean()) / y.std()))


def test_the_pooled_rows_are_read_as_at_the_clients() -> None:
    """Whether a client's few odd values are kept aside for testing decides nothing."""
    rng = np.random.default_rng(0)
    tables = {
        name: pl.DataFrame(
            {
                "rooms": ["1", "2", "3"] * 39 + ["4+"] * 3,
                "x": rng.normal(size=120),
                "y": [0, 1] * 60,
            }
        )
        for name in ("north", "south")
    }
    parties = [Party(name, table, id=None, label="y") for name, table in tables.items()]
    fed = Federation.simulate(parties, active="north")
    pooled = PooledRows(FedAvg(rounds=1, agreement=Agreement(test=0.3))).fit(fed).pooled_.active
    assert pooled.frame.height < 240
    assert pooled.readings == parties[0].readings
    assert pooled.readings["rooms"].kind == "category"


def test_many_classes_are_told_apart(build: Make, digits: Make) -> None:
    fed = digits(2)
    model = HorizontalLinear(l2=0.01).fit(fed)
    frames = [p.frame for n, p in fed.engine.parties.items() if n != "server"]  # type: ignore[attr-defined]
    pooled = pl.concat(frames)
    x = StandardScaler().fit_transform(pooled.drop("digit").to_numpy())
    due = LogisticRegression(C=1 / (0.01 * 600), tol=1e-9, max_iter=10_000)
    due.fit(x, pooled["digit"].to_numpy())
    found = torch.softmax(torch.tensor(x) @ model.weights_[:, :-1].T + model.weights_[:, -1], 1)
    np.testing.assert_allclose(found, due.predict_proba(x), atol=1e-4)
    told = model.evaluate(fed)
    assert told["pooled"]["balanced_accuracy"] == pytest.approx(
        balanced_accuracy_score(pooled["digit"], found.argmax(1))
    )


def test_of_a_class_of_few_rows_a_client_says_nothing() -> None:
    """Nor of the only other one, whose figures would give it away."""
    y = torch.tensor([0] * 6 + [1] * 4)
    logits = torch.nn.functional.one_hot(torch.tensor([0] * 5 + [1] * 5), 3).float()
    few = figures(logits[:, :2], y, Objective("binary", 2))
    assert few["hits"] == 9
    assert [few[f"{what} {c}"] for what in ("rows", "hits") for c in (0, 1)] == [0, 0, 0, 0]
    assert "balanced_accuracy" not in by_client({"few": few})["pooled"]
    more = figures(logits[:, :2].repeat(2, 1), y.repeat(2), Objective("binary", 2))
    found = by_client({"few": few, "more": more})
    assert found["pooled"]["balanced_accuracy"] == pytest.approx((10 / 12 + 1) / 2)
    assert found["pooled"]["accuracy"] == pytest.approx(27 / 30)
    y[:2] = 2  # four and two of the others: that there are six of them may be known
    logits, y = torch.cat([logits, logits[:1]]), torch.cat([y, y[2:3]])
    three = figures(logits, y, Objective("multiclass", 3))
    assert [three[f"rows {c}"] for c in range(3)] == [5, 0, 0]


def test_hits_by_class_are_told_of_one_part_alone(build: Make) -> None:
    """Of several parts a class's few rows in another would follow by difference."""
    fed = build(cut(X, Y), label="y")
    model = HorizontalLinear(agreement=Agreement(validation=0.1, test=0.3)).fit(fed)
    for part in ("all", "train", "validation"):
        assert "balanced_accuracy" not in model.evaluate(fed, part)["pooled"]
    assert "balanced_accuracy" in model.evaluate(fed, "test")["pooled"]


def test_a_client_of_fewer_rows_than_columns_keeps_its_squares(build: Make) -> None:
    frames = cut(X, Y)
    frames["p1"] = frames["p1"].head(25)
    with pytest.raises(DataError, match="party 'p1': it has 25 rows for 31 weights"):
        HorizontalLinear().fit(build(frames, label="y"))


def test_trees_do_not_depend_on_how_the_rows_are_cut(build: Make) -> None:
    settings: dict[str, Any] = {"rounds": 4, "depth": 3, "agreement": Agreement(validation=0.0)}
    trade = np.where(X[:, 3] > 500, "large", "small")
    one = HorizontalTrees(**settings).fit(build(cut(X, Y, 1, z=trade), label="y"))
    many = HorizontalTrees(**settings).fit(build(cut(X, Y, 5, z=trade), label="y"))
    assert torch.equal(one.weights_[..., 0], many.weights_[..., 0])
    torch.testing.assert_close(one.weights_, many.weights_, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("server", [True, False])
def test_trees_are_as_good_as_scikit_learns(build: Make, server: bool) -> None:
    fed = build(cut(X, Y), label="y", server=server)
    model = HorizontalTrees(rounds=20, agreement=Agreement(validation=0.0, test=0.3)).fit(fed)
    train, test = np.arange(400), np.arange(400, len(Y))
    due = HistGradientBoostingClassifier(max_iter=20, learning_rate=0.2, max_depth=4)
    accuracy = due.fit(X[train], Y[train]).score(X[test], Y[test])
    assert model.evaluate(fed, "test")["pooled"]["accuracy"] > accuracy - 0.03
    losses = [r.loss for r in model.history_]
    assert losses == sorted(losses, reverse=True)
    assert model.evaluate(fed, "train")["pooled"]["loss"] == pytest.approx(losses[-1], rel=1e-5)


def test_trees_learn_numbers_and_many_classes(build: Make, digits: Make) -> None:
    x, y = load_diabetes(return_X_y=True)
    fed = build(cut(x, y + 0.5), label="y")
    assert HorizontalTrees(rounds=15, depth=3).fit(fed).score(fed) > 0.5
    fed = digits(3)
    model = HorizontalTrees(rounds=3, depth=3).fit(fed)
    assert model.weights_.shape[1] == 10
    assert model.score(fed) > 0.8


def test_boosting_stops_where_validation_was_best(build: Make) -> None:
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 2, 300)
    fed = build(cut(rng.normal(size=(300, 4)), noise), label="y")
    model = HorizontalTrees(
        rounds=40, patience=3, learning_rate=1.0, min_rows=1, agreement=Agreement(validation=0.3)
    ).fit(fed)
    validation = [r.validation for r in model.history_]
    assert len(model.history_) < 40
    assert len(model.weights_) == int(np.argmin(validation)) + 1  # type: ignore[arg-type]


@pytest.mark.parametrize("secure", [False, True])
def test_kmeans_ends_at_a_fixed_point_of_the_pooled_rows(build: Make, secure: bool) -> None:
    fed = build(cut(X, Y), label="y")
    model = HorizontalKMeans(clusters=3, secure=secure).fit(fed)
    x = torch.from_numpy(scaled(X))
    nearest = torch.cdist(x, model.weights_).argmin(1)
    moved = torch.stack([x[nearest == i].mean(0) for i in range(3)])
    torch.testing.assert_close(moved, model.weights_, atol=1e-3, rtol=0)
    inertia = (x - model.weights_[nearest]).square().sum(1).mean().item()
    assert -model.score(fed) == pytest.approx(inertia, rel=1e-3)
    losses = [r.loss for r in model.history_]
    assert losses[-1] <= losses[0]


def test_a_small_cluster_stays_at_home(build: Make) -> None:
    x = np.concatenate([np.random.default_rng(0).normal(size=(60, 2)), [[50.0, 50.0]] * 3])
    fed = build({"a": pl.DataFrame({"u": x[:, 0], "v": x[:, 1]})}, label=None)
    model = HorizontalKMeans(clusters=2).fit(
        build({n: pl.DataFrame({"u": x[:, 0], "v": x[:, 1]}) for n in "ab"}, label=None)
    )
    side = KMeansSide(fed.engine.parties["a"], "server")  # type: ignore[attr-defined]
    side.plan, side.parts = model.plan_, {"train": torch.arange(63)}
    far = side.points(torch.tensor([62]))
    sums = side.assign(torch.cat([far, -far]))
    assert sums[0].abs().sum() == 0
    assert sums[1, -2] == 60


def test_clusters_of_the_servers_own_rows(build: Make, tmp_path: Path) -> None:
    fed = build(cut(X, Y), label=None, server=False, folder=tmp_path)
    model = HorizontalKMeans(clusters=4).fit(fed)
    found = model.predict(fed)
    assert found.shape == (190,)
    assert set(found) <= set(range(4))
    model.save("groups")
    loaded = HorizontalKMeans(clusters=4).load("groups", fed)
    assert (loaded.predict(fed) == found).all()


def test_what_has_no_place_is_refused(build: Make) -> None:
    fed = build(cut(X, Y), label="y")
    for method in (HorizontalKMeans(clusters=0), HorizontalTrees(depth=0), HorizontalLinear(l2=-1)):
        with pytest.raises(JobError):
            method.fit(fed)
    with pytest.raises(DataError, match="fewer clusters"):
        HorizontalKMeans(clusters=400).fit(fed)


def test_a_rehearsal_of_trees_on_made_up_labels_grows_to_the_depth(build: Make) -> None:
    """Else its plan is too small for labels that the columns tell."""
    y = np.random.default_rng(0).integers(0, 2, len(Y))
    fed = build(cut(X[:90], y[:90]), label="y")
    how: dict[str, Any] = {"rounds": 1, "depth": 5, **HorizontalTrees.rehearsal}
    HorizontalTrees(**how).fit(fed)
    (sent,) = {
        s.messages
        for s in fed.active.boundary.ledger.summary()
        if s.operation == "histogram" and s.kind == Kind.HISTOGRAM
    }
    assert sent == 5
