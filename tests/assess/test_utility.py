"""Metrics against scikit-learn, against their definitions, and on inputs that lack something."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from sklearn import metrics as sk
from sklearn.calibration import calibration_curve

from interlace.assess import MEASURES, evaluate, main_measures
from interlace.errors import InterlaceError

# Few different scores, so that ties are the rule.
scores = st.integers(2, 60).flatmap(
    lambda n: st.tuples(
        hnp.arrays(np.int64, n, elements=st.integers(0, 1)),
        hnp.arrays(np.float64, n, elements=st.integers(0, 20).map(lambda k: k / 20)),
    )
)


def two(p: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.stack([1 - p, p], 1)


def drawn(n: int = 2000, seed: int = 0) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    rng = np.random.default_rng(seed)
    p = rng.beta(1, 6, n)
    return (rng.random(n) < p).astype(np.int64), p


@given(scores)
def test_binary_by_definition(data: tuple[NDArray[np.int64], NDArray[np.float64]]) -> None:
    y, p = data
    u = evaluate("binary", y, two(p), 2)
    assert u.metrics["accuracy"] == pytest.approx(sk.accuracy_score(y, p > 0.5))
    assert u.metrics["brier"] == pytest.approx(np.mean((p - y) ** 2))
    assert u.metrics["log_loss"] == pytest.approx(sk.log_loss(y, p, labels=[0, 1]))
    if y.min() == y.max():
        assert set(u.omitted) == {"auc", "gini", "ks", "average_precision", "lift"}
        assert u.omitted["auc"] == (
            f"the {len(y)} people held out are all of one class"
            if len(y) > 1
            else "one person alone is held out"
        )
        assert "roc" not in u.curves
        return
    assert not u.omitted
    pos, neg = p[y == 1], p[y == 0]
    wins = (pos[:, None] > neg).mean() + 0.5 * (pos[:, None] == neg).mean()
    assert u.metrics["auc"] == pytest.approx(wins)
    gaps = [(pos >= t).mean() - (neg >= t).mean() for t in p]
    assert u.metrics["ks"] == pytest.approx(max(0.0, *gaps))
    assert u.metrics["gini"] == pytest.approx(2 * u.metrics["auc"] - 1)
    assert u.metrics["average_precision"] == pytest.approx(sk.average_precision_score(y, p))
    assert u.metrics["lift"] == pytest.approx(expected_lift(y, p))


def expected_lift(y: NDArray[np.int64], p: NDArray[np.float64]) -> float:
    """Take people best-scored first until a tenth is taken; equal scores share what is left."""
    room, taken = len(y) / 10, 0.0
    for t in np.unique(p)[::-1]:
        here = p == t
        part = min(1.0, room / here.sum())
        taken += part * y[here].sum()
        room -= part * here.sum()
        if room <= 1e-12:
            break
    return float(taken / (len(y) / 10) / y.mean())


@given(scores, st.randoms())
def test_the_order_of_people_does_not_matter(
    data: tuple[NDArray[np.int64], NDArray[np.float64]], random: object
) -> None:
    y, p = data
    order = np.random.default_rng(abs(hash(str(random))) % 2**32).permutation(len(y))
    a, b = (evaluate("binary", q, two(s), 2).metrics for q, s in ((y, p), (y[order], p[order])))
    assert a == pytest.approx(b)


def test_calibration_is_scikit_learns() -> None:
    y, p = drawn()
    true, predicted = calibration_curve(y, p, n_bins=10, strategy="quantile")
    found = np.array(evaluate("binary", y, two(p), 2).curves["calibration"])
    assert found == pytest.approx(np.stack([predicted, true], 1))


def test_calibration_error_by_hand() -> None:
    p = np.repeat([0.2, 0.8], 50)
    y = np.concatenate([np.ones(20), np.zeros(30), np.ones(40), np.zeros(10)]).astype(np.int64)
    # half the people: 0.2 said, 0.4 came; the other half: 0.8 said, 0.8 came
    assert evaluate("binary", y, two(p), 2).metrics["calibration_error"] == pytest.approx(0.1)


def test_honest_probabilities_are_calibrated_and_shifted_ones_are_not() -> None:
    y, p = drawn(20_000)
    honest = evaluate("binary", y, two(p), 2).metrics["calibration_error"]
    shifted = evaluate("binary", y, two(np.minimum(p + 0.2, 1)), 2).metrics["calibration_error"]
    assert honest < 0.01
    assert shifted == pytest.approx(0.2, abs=0.01)


def test_curves_are_short_and_say_what_the_metrics_say() -> None:
    y, p = drawn(5000)
    u = evaluate("binary", y, two(p), 2)
    assert all(0 < len(c) <= 200 for c in u.curves.values())
    x, t = np.array(u.curves["roc"]).T
    assert (x[0], t[0], x[-1], t[-1]) == (0, 0, 1, 1)
    assert sk.auc(x, t) == pytest.approx(u.metrics["auc"], abs=0.002)
    lift = {round(a, 2): b for a, b in u.curves["lift"]}
    assert lift[0.1] == pytest.approx(u.metrics["lift"])
    assert lift[1.0] == pytest.approx(1)


def test_multiclass() -> None:
    rng = np.random.default_rng(1)
    y = np.arange(300) % 4
    p = rng.dirichlet(np.ones(4), 300)
    p[np.arange(300), y] += 0.3
    p /= p.sum(1, keepdims=True)
    u = evaluate("multiclass", y, p, 4)
    assert u.metrics["auc"] == pytest.approx(sk.roc_auc_score(y, p, multi_class="ovr"))
    assert u.metrics["accuracy"] == pytest.approx(sk.accuracy_score(y, p.argmax(1)))
    assert u.metrics["log_loss"] == pytest.approx(sk.log_loss(y, p))
    x, t = np.array(u.curves["roc"]).T
    assert sk.auc(x, t) == pytest.approx(u.metrics["auc"], abs=0.01)


def test_multiclass_without_one_class_says_so() -> None:
    p = np.full((10, 3), 1 / 3)
    u = evaluate("multiclass", np.arange(10) % 2, p, 3)
    assert "1 of 3 classes" in u.omitted["auc"]
    assert "auc" not in u.metrics
    assert u.metrics["log_loss"] == pytest.approx(np.log(3))


def test_multilabel() -> None:
    rng = np.random.default_rng(2)
    p = rng.random((200, 3))
    y = (rng.random((200, 3)) < p).astype(np.float32)
    u = evaluate("multilabel", y, p, 3)
    assert u.metrics["auc"] == pytest.approx(sk.roc_auc_score(y, p, average="macro"))
    assert u.metrics["accuracy"] == pytest.approx(sk.accuracy_score(y, p >= 0.5))
    entropy = -np.mean(y * np.log(p) + (1 - y) * np.log(1 - p))
    assert u.metrics["log_loss"] == pytest.approx(entropy)


def test_multilabel_with_a_label_nobody_has_says_so() -> None:
    y = np.array([[0, 1], [0, 0], [0, 1]], dtype=np.float32)
    u = evaluate("multilabel", y, np.full((3, 2), 0.4), 2)
    assert "1 of 2 labels" in u.omitted["auc"]


def test_regression() -> None:
    rng = np.random.default_rng(3)
    y = rng.normal(50, 10, 500)
    estimate = y + rng.normal(0, 5, 500)
    u = evaluate("regression", y.astype(np.float32), estimate, 0)
    assert u.metrics["r2"] == pytest.approx(sk.r2_score(y, estimate), abs=1e-6)
    assert u.metrics["rmse"] == pytest.approx(np.sqrt(np.mean((y - estimate) ** 2)), rel=1e-5)
    assert u.metrics["mae"] == pytest.approx(np.mean(np.abs(y - estimate)), rel=1e-5)
    tenths = np.sort(estimate).reshape(10, -1).mean(1)
    assert [x for x, _ in u.curves["calibration"]] == pytest.approx(tenths)


def test_regression_of_a_constant_has_no_r2() -> None:
    u = evaluate("regression", np.ones(5), np.arange(5.0), 0)
    assert "r2" not in u.metrics
    assert "same target" in u.omitted["r2"]


@pytest.mark.parametrize("power", [1.0, 1.5, 2.0])
def test_deviance_of_a_variance_that_goes_with_the_mean(power: float) -> None:
    rng = np.random.default_rng(4)
    mean = np.exp(rng.normal(0, 1, 400))
    y = rng.gamma(2, mean / 2) if power == 2 else rng.poisson(mean)
    u = evaluate("regression", y, mean, 0, power=power)
    assert u.metrics["deviance"] == pytest.approx(sk.mean_tweedie_deviance(y, mean, power=power))
    assert 0 < u.metrics["d2"] < 1
    if power == 1:
        apart = 2 * (np.where(y > 0, y * np.log(np.maximum(y, 1) / mean), 0) - y + mean)
        assert u.metrics["deviance"] == pytest.approx(apart.mean())
    constant = evaluate("regression", y, np.full(400, y.mean()), 0, power=power)
    assert constant.metrics["d2"] == pytest.approx(0, abs=1e-12)


def test_no_deviance_of_what_it_is_not_defined_for() -> None:
    u = evaluate("regression", np.array([0.0, 1, 2]), np.array([-1.0, 1, 2]), 0, power=1)
    assert {"d2", "deviance"} <= u.omitted.keys()
    assert "r2" in u.metrics
    alike = evaluate("regression", np.ones(3), np.array([0.5, 1, 2]), 0, power=1)
    assert "same target" in alike.omitted["d2"]
    assert alike.metrics["deviance"] > 0


def test_one_person() -> None:
    assert evaluate("regression", np.ones(1), np.ones(1), 0).metrics["mae"] == 0
    assert evaluate("binary", np.ones(1, np.int64), two(np.ones(1)), 2).metrics["accuracy"] == 1


@pytest.mark.parametrize(
    ("task", "y", "outputs", "classes", "match"),
    [
        ("binary", np.zeros(0, np.int64), np.zeros((0, 2)), 2, "nobody"),
        ("binary", np.zeros(3, np.int64), np.zeros(3), 2, "shape"),
        ("multiclass", np.zeros(3, np.int64), np.zeros((3, 4)), 5, "shape"),
        ("regression", np.zeros(3), np.array([0, np.nan, 1]), 0, "1 of 3 people are not finite"),
        ("ranking", np.zeros(3), np.zeros(3), 0, "no task 'ranking'"),
    ],
)
def test_what_cannot_be_assessed(
    task: str, y: NDArray[np.float64], outputs: NDArray[np.float64], classes: int, match: str
) -> None:
    with pytest.raises(InterlaceError, match=match):
        evaluate(task, y, outputs, classes)


@pytest.mark.parametrize("task", ["binary", "multiclass", "multilabel", "regression"])
def test_every_measure_has_its_words(task: str) -> None:
    n = 20
    y, out, classes = {
        "binary": (np.arange(n) % 2, np.full((n, 2), 0.5), 2),
        "multiclass": (np.arange(n) % 3, np.full((n, 3), 1 / 3), 3),
        "multilabel": (np.eye(2)[np.arange(n) % 2], np.full((n, 2), 0.5), 2),
        "regression": (np.arange(n, dtype=float), np.full(n, 9.5), 0),
    }[task]
    found = evaluate(task, y, out, classes, power=1 if task == "regression" else None).metrics
    assert set(main_measures(task)) <= set(found) <= set(MEASURES)
    for name, value in found.items():
        measure = MEASURES[name]
        assert measure.low is None or value >= measure.low
        assert measure.high is None or value <= measure.high
