"""Cuts into parties that differ, and the measure of how much they do."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from interlace.data.noniid import (
    cut_by_column,
    cut_by_feature,
    cut_by_labels,
    cut_by_size,
    heterogeneity,
)
from interlace.errors import DataError

X, Y = load_digits(return_X_y=True)
PARTIES = [f"p{i}" for i in range(5)]


def covers(cut: dict[str, np.ndarray], rows: int) -> bool:
    return sorted(np.concatenate(list(cut.values())).tolist()) == list(range(rows))


@given(alpha=st.floats(0.1, 100), seed=st.integers(0, 99))
def test_every_row_goes_to_one_party_and_every_party_has_enough(alpha: float, seed: int) -> None:
    for cut in (
        cut_by_labels(Y, PARTIES, alpha, fewest=5, seed=seed),
        cut_by_size(len(Y), PARTIES, alpha, fewest=5, seed=seed),
    ):
        assert covers(cut, len(Y))
        assert min(map(len, cut.values())) >= 5


def test_a_smaller_alpha_makes_labels_differ_more() -> None:
    apart = [
        np.mean([heterogeneity(cut_by_labels(Y, PARTIES, a, seed=s), Y).labels for s in range(5)])
        for a in (0.1, 1.0, 100.0)
    ]
    assert apart[0] > apart[1] > apart[2]
    assert apart[2] < 0.02


def test_quantity_skew_changes_sizes_and_not_classes() -> None:
    cut = cut_by_size(len(Y), PARTIES, 0.5, seed=3)
    measured = heterogeneity(cut, Y, X)
    assert measured.sizes > 0.2
    assert measured.labels < 0.05
    assert measured.features is not None
    assert measured.features < 0.05


def test_feature_shift_grows_with_its_strength() -> None:
    score = X[:, 20]
    shifts = [
        heterogeneity(cut_by_feature(score, PARTIES, s), Y, score[:, None]).features
        for s in (0.0, 0.5, 1.0)
    ]
    assert shifts[0] < 0.02 < shifts[1] < shifts[2]
    assert shifts[2] > 0.7
    assert covers(cut_by_feature(score, PARTIES, 0.5), len(Y))


def test_parties_of_one_class_each_are_as_far_apart_as_can_be() -> None:
    labels = np.repeat([0, 1], 50)
    cut = {"a": np.arange(50), "b": np.arange(50, 100)}
    by_hand = 0.5 * (np.log2(1 / 0.75) + 0.5 * np.log2(0.5 / 0.75) + 0.5 * np.log2(0.5 / 0.25))
    assert heterogeneity(cut, labels).labels == pytest.approx(by_hand)
    assert heterogeneity(cut, labels).sizes == pytest.approx(0)
    same = {"a": np.arange(0, 100, 2), "b": np.arange(1, 100, 2)}
    assert heterogeneity(same, labels, labels[:, None]).labels == pytest.approx(0)
    assert heterogeneity(cut, labels, labels[:, None]).features == pytest.approx(1)


def test_a_column_makes_its_levels_parties() -> None:
    column = pl.Series("clinic", ["a"] * 30 + ["b"] * 20 + ["c"] * 3 + [None] * 5)
    cut = cut_by_column(column)
    assert {k: len(v) for k, v in cut.items()} == {"a": 30, "b": 20}
    with pytest.raises(DataError, match="fewer than two"):
        cut_by_column(column, fewest=25)


@pytest.mark.parametrize(
    "cut",
    [
        lambda: cut_by_labels(Y, PARTIES, 0.0),
        lambda: cut_by_labels(Y, ["a", "a"], 1.0),
        lambda: cut_by_labels(Y[:20], PARTIES, 0.1, fewest=10),
        lambda: cut_by_size(10, PARTIES, 1.0, fewest=5),
        lambda: cut_by_feature(Y, PARTIES, 1.5),
    ],
)
def test_what_cannot_be_cut_is_refused(cut: object) -> None:
    with pytest.raises(DataError):
        cut()  # type: ignore[operator]
