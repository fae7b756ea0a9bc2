"""Intervals over seeds, and what one model gained over another."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from interlace.assess import interval, paired

floats = st.floats(-1e3, 1e3)


@given(st.lists(floats, min_size=2, max_size=10))
def test_as_scipy_has_it(values: list[float]) -> None:
    found = interval(values)
    error = stats.sem(values)
    assert math.isclose(found.mean, float(np.mean(values)), abs_tol=1e-9)
    assert found.low is not None
    assert found.high is not None
    if error > 1e-9:
        low, high = stats.t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=error)
        assert np.allclose((found.low, found.high), (low, high))
    assert found.low <= found.mean <= found.high


def test_three_seeds_by_hand() -> None:
    # mean 2, standard deviation 1, t(0.975, 2) = 4.302653
    half = 4.302653 / 3**0.5
    assert interval([1, 2, 3]) == pytest.approx((2, 2 - half, 2 + half))


def test_covers_the_truth_as_often_as_it_says() -> None:
    draws = np.random.default_rng(0).normal(5, 2, (2000, 4))
    hits = [low <= 5 <= high for _, low, high in map(interval, draws.tolist())]  # type: ignore[operator]
    assert 0.935 < np.mean(hits) < 0.965


def test_one_seed_has_no_interval() -> None:
    assert interval([0.7]) == (0.7, None, None)


def test_nothing_has_no_mean() -> None:
    with pytest.raises(ValueError, match="at least one"):
        interval([])


@given(st.dictionaries(st.integers(0, 9), floats, min_size=1), st.floats(-10, 10))
def test_what_seeds_have_in_common_cancels(theirs: dict[int, float], gain: float) -> None:
    found = paired({s: v + gain for s, v in theirs.items()}, theirs)
    assert found is not None
    assert math.isclose(found.mean, gain, abs_tol=1e-9)
    if found.low is not None and found.high is not None:
        assert found.high - found.low < 1e-8


def test_only_common_seeds_are_compared() -> None:
    assert paired({0: 1.0, 1: 5.0}, {1: 3.0, 2: 9.0}) == (2.0, None, None)
    assert paired({0: 1.0}, {1: 3.0}) is None
