"""Other local models of aggVFL: support vector machines and kernels, beside scikit-learn's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from sklearn.datasets import load_breast_cancer, load_wine
from sklearn.kernel_approximation import RBFSampler
from sklearn.pipeline import make_pipeline, make_union
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.svm import LinearSVC

from interlace import AggVFL, Federation, Party
from interlace.errors import JobError
from interlace.models import BottomSpec, Optimisation

Make = Callable[..., Federation]
POOLED_X, _ = load_breast_cancer(return_X_y=True)


def machine(network: str, loss: Any, **kw: Any) -> AggVFL:
    bottom = BottomSpec(network=network, components=400, gamma=0.05)  # type: ignore[arg-type]
    rate = Optimisation(learning_rate=0.01, weight_decay=0.01, schedule="cosine")
    return AggVFL(bottom=bottom, loss=loss, optimisation=rate, **{"epochs": 40, **kw})


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
def test_a_linear_machine_is_scikit_learns_on_the_pooled_table(breast: Make, loss: Any) -> None:
    train, test = breast().split(0.3)
    model = machine("linear", loss, validation=0.0).fit(train)
    scale = StandardScaler().fit(POOLED_X[train.rows])
    theirs = LinearSVC(loss=loss, C=0.03).fit(scale.transform(POOLED_X[train.rows]), train.y)
    expected = theirs.decision_function(scale.transform(POOLED_X[test.rows]))
    found = model.predict_proba(test)[:, 1]
    assert np.corrcoef(expected, np.log(found / (1 - found)))[0, 1] > 0.98
    assert abs(model.score(test) - np.mean((expected > 0) == test.y.numpy())) < 0.02


def test_a_kernel_machine_is_as_good_as_scikit_learns(cut_circles: Make) -> None:
    """Circles within each party's columns: lines cannot tell them apart, kernels can. Beside the
    sum of parties' kernels, which is ours, stands the one over all columns."""
    fed, x = cut_circles()
    train, test = fed.split(0.3)
    model = machine("fourier", "hinge", validation=0.0, epochs=80).fit(train)
    scale = StandardScaler().fit(x[train.rows])
    a, b = scale.transform(x[train.rows]), scale.transform(x[test.rows])
    halves = [
        make_pipeline(
            FunctionTransformer(lambda v, own=own: v[:, own]),
            RBFSampler(gamma=0.05, n_components=400, random_state=1),
        )
        for own in (slice(0, 2), slice(2, 4))
    ]
    for kernel in (make_union(*halves), RBFSampler(gamma=0.05, n_components=800, random_state=1)):
        theirs = make_pipeline(kernel, LinearSVC(C=10.0)).fit(a, train.y.numpy())
        assert model.score(test) > theirs.score(b, test.y.numpy()) - 0.03
    line = machine("linear", "hinge", validation=0.0).fit(train)
    assert model.score(test) > 0.9
    assert line.score(test) < 0.75


@pytest.fixture
def cut_circles(federate: Make) -> Callable[..., tuple[Federation, np.ndarray]]:
    def make() -> tuple[Federation, np.ndarray]:
        x = np.random.default_rng(0).normal(size=(600, 4))
        inside = (x[:, :2] ** 2).sum(1) + (x[:, 2:] ** 2).sum(1) < 3.4
        return federate(x, inside.astype(int), [slice(2, 4)], slice(0, 2)), x

    return make


def test_machines_take_many_classes_labels_weights_and_categories(
    wine: Make, federate: Make, tmp_path: Path
) -> None:
    fed = wine(folder=tmp_path)
    train, test = fed.split(0.3)
    model = machine("fourier", "squared_hinge", class_weight="balanced").fit(train)
    assert model.score(test) > 0.9
    model.save("machine")
    again = machine("fourier", "squared_hinge").load("machine", fed)
    np.testing.assert_array_equal(again.predict_proba(test), model.predict_proba(test))
    x, y = load_wine(return_X_y=True)
    marks = pl.Series([[int(a > 0), int(a > 1)] for a in y], dtype=pl.Array(pl.Int64, 2))
    several = federate(x, marks, [slice(6, 13)], slice(0, 6))
    assert machine("linear", "hinge").fit(several).score(several) > 0.9
    kinds = [f"k{a}" if i % 9 else None for i, a in enumerate(y)]
    ids = [f"p{i}" for i in range(len(y))]
    bank = Party("bank", {"id": ids, "y": y, "x": x[:, 0]}, label="y")
    shop = Party("shop", {"id": ids, "kind": kinds, "x": x[:, 1]})
    named = Federation.simulate([bank, shop])
    assert machine("fourier", "hinge").fit(named).score(named) > 0.9


def test_a_quantity_has_no_margin(diabetes: Make) -> None:
    with pytest.raises(JobError, match="hinge"):
        machine("linear", "hinge").fit(diabetes())
