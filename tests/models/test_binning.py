"""The bins of scorecards: the best merging is the best there is, and values fall where they say."""

from __future__ import annotations

from itertools import product

import numpy as np
import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from interlace.data.columns import read_columns
from interlace.errors import DataError, Refused
from interlace.models.binning import (
    LevelBins,
    best_merge,
    bin_names,
    codes_of,
    fine_bins,
    information_values,
    merged,
    weights_of_evidence,
)
from interlace.models.trees import NumericBins


def fine(series: pl.Series, **kw: object) -> NumericBins | LevelBins | str:
    reading = read_columns(series.to_frame(), [series.name])[series.name]
    settings = {"cuts": "quantile", "most": 5, "fewest": 2, "rare": 3, "reading": reading}
    return fine_bins(series, **{**settings, **kw}, party="shop", file=None)  # type: ignore[arg-type]


def summed(counts: np.ndarray, into: np.ndarray) -> np.ndarray:
    out = np.zeros((into.max(), 2))
    np.add.at(out, into - 1, counts)
    return out


def iv_of(counts: np.ndarray, totals: np.ndarray) -> float:
    """Known bins of a column of so many goods and bads."""
    rest = totals - counts.sum(axis=0)
    return float(information_values(np.vstack([counts, rest]))[:-1].sum())


def every_merging(
    counts: np.ndarray, totals: np.ndarray, most: int, fewest: int, monotone: bool
) -> float | None:
    """IV of the best merging into two bins or more, all of them tried; half-empty bins only if
    there is no other."""
    for both in (True, False):
        found = []
        for cuts in product([0, 1], repeat=len(counts) - 1):
            into = 1 + np.cumsum([0, *cuts])
            bins = summed(counts, into)
            rates = np.diff(bins[:, 1] / bins.sum(axis=1))
            rises = (rates > 0).all() or (rates < 0).all()
            if (
                2 <= len(bins) <= most
                and bins.sum(axis=1).min() >= fewest
                and (rises or not monotone)
                and not (both and (bins == 0).any())
            ):
                found.append(iv_of(bins, totals))
        if found:
            return max(found)
    return None


@given(
    st.lists(
        st.tuples(st.integers(0, 15), st.integers(0, 15)).filter(lambda c: sum(c) > 0),
        min_size=1,
        max_size=8,
    ),
    st.integers(2, 6),
    st.integers(1, 20),
    st.booleans(),
)
@example([(0, 1), (0, 1)], 2, 1, False)
def test_the_best_merging_is_the_best_of_all(
    lines: list[tuple[int, int]], most: int, fewest: int, monotone: bool
) -> None:
    counts = np.array(lines, dtype=float)
    totals = counts.sum(axis=0) + np.array([3, 2])
    into = best_merge(counts, totals, most=most, fewest=fewest, ordered=True, monotone=monotone)
    best = every_merging(counts, totals, most, fewest, monotone)
    if best is None:
        assert (into == 1).all()
    else:
        assert iv_of(summed(counts, into), totals) == pytest.approx(best, abs=1e-9)


def test_bins_without_an_order_are_merged_by_their_bad_rates() -> None:
    counts = np.array([[10, 10], [90, 10], [12, 8], [80, 20]], dtype=float)
    into = best_merge(counts, counts.sum(axis=0), most=2, fewest=1, ordered=False, monotone=True)
    assert into[0] == into[2] != into[1] == into[3]


def test_woe_and_iv_of_a_table_worked_by_hand() -> None:
    counts = np.array([[0, 0], [60, 10], [40, 40]])
    woe = weights_of_evidence(counts)
    np.testing.assert_allclose(woe, [0, np.log(0.6 / 0.2), np.log(0.4 / 0.8)])
    np.testing.assert_allclose(information_values(counts), [0, 0.4 * woe[1], -0.4 * woe[2]])


def test_a_bin_without_bads_gets_half_a_person() -> None:
    counts = np.array([[0, 0], [30, 0], [70, 20]])
    woe = weights_of_evidence(counts)
    assert woe[1] == pytest.approx(np.log((30.5 / 100) / (0.5 / 20)))
    assert woe[2] == pytest.approx(np.log((70 / 100) / (20 / 20)))


def test_every_fine_bin_holds_enough_people() -> None:
    rng = np.random.default_rng(0)
    values = pl.Series("x", np.where(rng.random(500) < 0.4, 0.0, rng.lognormal(size=500)))
    for cuts in ("quantile", "equal_width"):
        for fewest in (1, 10, 100):
            bins = fine(values, cuts=cuts, most=20, fewest=fewest)
            assert isinstance(bins, NumericBins)
            counts = np.bincount(codes_of(bins, values, party="shop"), minlength=bins.width + 1)
            assert counts[0] == 0
            assert counts[1:].min() >= fewest
    assert bins.width < 5


def test_rare_levels_share_a_bin_with_those_never_seen() -> None:
    levels = pl.Series("city", ["ulm"] * 9 + ["bonn"] * 6 + ["kiel", "jena"] + [None] * 4)
    bins = fine(levels)
    assert isinstance(bins, LevelBins)
    assert bins.groups == (("ulm",), ("bonn",))
    new = pl.Series("city", ["ulm", "kiel", "rome", None])
    assert codes_of(bins, new, party="shop").tolist() == [1, 3, 3, 0]
    assert bin_names(bins) == ["missing", "ulm", "bonn", "all others"]
    one = merged(bins, np.array([1, 2, 1]))
    assert codes_of(one, new, party="shop").tolist() == [1, 1, 1, 0]
    assert bin_names(one) == ["missing", "ulm, all others", "bonn"]
    # With too few of them for a bin, they join the rarest of the others.
    few = fine(levels, fewest=3)
    assert isinstance(few, LevelBins)
    assert codes_of(few, new, party="shop").tolist() == [1, 2, 2, 0]
    # Where there were no rare ones, a new level has no bin.
    full = fine(levels, fewest=1, rare=1)
    assert isinstance(full, LevelBins)
    assert full.other is None
    assert codes_of(full, new, party="shop").tolist()[2] == full.width + 1


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ([4.0] * 20, "one value"),
        ([None] * 20, "lacks it"),
        ([1.0] + [None] * 19, "fewer than 2"),
        ([f"code{i}" for i in range(20)], "every training row"),
    ],
)
def test_columns_that_have_no_bins_say_why(values: list[object], why: str) -> None:
    found = fine(pl.Series("x", values))
    if why == "every training row":  # all levels are rare, and share the only bin
        assert isinstance(found, LevelBins)
        assert found.width == 1
    else:
        assert isinstance(found, str)
        assert why in found


def test_only_neighbours_are_merged() -> None:
    bins = NumericBins(name="x", edges=(1.0, 2.0, 3.0))
    assert merged(bins, np.array([1, 1, 2, 3])) == NumericBins(name="x", edges=(2.0, 3.0))
    for wrong in ([1, 2, 1, 3], [1, 1, 1], [1, 3, 3, 4], [2, 2, 3, 3]):
        with pytest.raises(Refused):
            merged(bins, np.array(wrong))


def test_bins_in_words() -> None:
    assert bin_names(NumericBins(name="x", edges=(0.25, 1000.0))) == [
        "missing",
        "(-∞, 0.25)",
        "[0.25, 1000)",
        "[1000, ∞)",
    ]
    close = bin_names(NumericBins(name="x", edges=(1.000001, 1.000002)))
    assert close[2] == "[1.000001, 1.000002)"
    days = pl.Series("d", ["2020-01-01"] * 5 + ["2021-06-01"] * 5)
    dates = fine(days)
    assert isinstance(dates, NumericBins)
    assert bin_names(dates) == ["missing", "(-∞, 2020-09-16)", "[2020-09-16, ∞)"]


def test_a_column_in_another_form_is_an_error() -> None:
    bins = NumericBins(name="x", edges=(1.0,))
    assert codes_of(bins, pl.Series("x", ["n/a", " 3"]), party="shop").tolist() == [0, 2]
    assert codes_of(bins, pl.Series("x", ["n/a", None]), party="shop").tolist() == [0, 0]
    with pytest.raises(DataError, match="can be read"):
        codes_of(bins, pl.Series("x", ["high", "low"]), party="shop")
    image = pl.Series("x", [[[1.0]]], dtype=pl.Array(pl.Float32, (1, 1)))
    with pytest.raises(DataError, match="images"):
        fine(image)
