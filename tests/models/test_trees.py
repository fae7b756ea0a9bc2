"""Trees: bins hold what they say, kernels agree, and the best split is the best there is."""

from __future__ import annotations

from itertools import combinations, permutations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.data.columns import read_columns
from interlace.errors import DataError, Refused
from interlace.models import trees
from interlace.models.trees import (
    Binning,
    CategoryBins,
    Layout,
    NumericBins,
    Penalty,
    Split,
    Tree,
    TreeLoss,
    add_up,
    best_splits,
    quantile_edges,
)

FREE = np.array([[-np.inf, np.inf]])
NO_LEAST = Penalty(min_child_weight=0.0)


def layout_of(widths: list[int], categorical: list[bool] | None = None) -> Layout:
    kinds = categorical or [False] * len(widths)
    return Layout(np.array(widths), np.array(kinds), np.zeros(len(widths), dtype=np.int64))


# -- bins ---------------------------------------------------------------------------------------


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=80), st.integers(min_value=2, max_value=9)
)
def test_edges_part_values_and_nothing_is_lost(values: list[float], max_bin: int) -> None:
    array = np.array(values)
    edges = quantile_edges(array, max_bin)
    assert len(edges) < max_bin
    assert list(edges) == sorted(set(edges))
    bins = NumericBins(name="x", edges=edges)
    codes = bins.codes(array)
    assert set(codes) == set(range(1, bins.width + 1))  # no bin of the training rows is empty
    if len(set(values)) <= max_bin:
        assert bins.width == len(set(values))


@given(st.lists(st.floats(-50, 50), min_size=3, max_size=40), st.booleans())
def test_a_threshold_sends_left_what_its_bins_hold(values: list[float], missing: bool) -> None:
    array = np.array([*values, np.nan])
    bins = NumericBins(name="x", edges=quantile_edges(array[:-1], 6))
    for b in range(1, bins.width + 1):
        left = np.arange(bins.width + 1) <= b
        left[0] = missing
        split = Split.model_validate_json(bins.split(left).model_dump_json())
        assert (bins.goes_left(split, array) == left[bins.codes(array)]).all()


def test_heavy_values_do_not_swallow_the_bins_of_others() -> None:
    values = np.concatenate([np.zeros(900), np.arange(1, 101)])
    assert len(quantile_edges(values, 10)) >= 5


def test_a_split_of_numbers_takes_the_lowest_bins() -> None:
    bins = NumericBins(name="x", edges=(1.0, 2.0, 3.0))
    for left in ([0, 0, 1, 0, 0], [0, 1, 0, 1, 0], [1, 0, 0, 0, 0]):
        with pytest.raises(Refused, match="lowest bins"):
            bins.split(np.array(left, dtype=bool))


def test_columns_of_every_kind() -> None:
    frame = pl.DataFrame(
        {
            "number": [1.0, None, 3.0, 4.0, 5.0, 6.0],
            "text": ["1", "2", "?", "4", "5", "6"],
            "day": ["2020-01-01", "2021-01-01", None, "2022-01-01", "2023-01-01", "2024-01-01"],
            "flag": [True, False, True, None, True, False],
            "city": ["ulm", "bonn", "ulm", "bonn", None, "ulm"],
            "code": [7, 8, 7, 9, 9, 9],
            "constant": [1.0] * 6,
        }
    )
    rows = np.arange(6)
    readings = read_columns(frame, frame.columns, ["code"])
    binning = Binning.fit(frame, frame.columns, rows, 4, party="p", readings=readings)
    kinds = {bins.name: bins.kind for bins in binning.columns}
    assert kinds == {
        "number": "numeric",
        "text": "numeric",
        "day": "numeric",
        "flag": "numeric",
        "city": "category",
        "code": "category",
    }
    codes = binning.codes(frame, rows)
    assert codes.dtype == np.uint8
    gaps = {name: np.flatnonzero(codes[:, j] == 0).tolist() for j, name in enumerate(kinds)}
    assert gaps == {"number": [1], "text": [2], "day": [2], "flag": [3], "city": [4], "code": []}
    assert Binning.model_validate_json(binning.model_dump_json()) == binning
    with pytest.raises(DataError, match="no such column"):
        binning.codes(frame.drop("city"), rows)


def test_an_unseen_category_goes_where_missing_values_go() -> None:
    bins = CategoryBins(name="city", levels=("ulm", "bonn"))
    values = bins.values(pl.Series("city", ["bonn", "rome", None, " ulm "]))
    assert values.tolist() == [2, 0, 0, 1]
    for missing in (True, False):
        split = bins.split(np.array([missing, False, True]))
        assert split.levels == ("bonn",)
        assert bins.goes_left(split, values).tolist() == [True, missing, missing, False]


def test_rows_that_training_did_not_name_have_no_say() -> None:
    frame = pl.DataFrame({"x": [1.0, 2.0, 3.0, 1e6, -1e6]})
    binning = Binning.fit(frame, ["x"], np.arange(3), 8, party="p")
    assert binning.columns[0].edges == (1.5, 2.5)  # type: ignore[union-attr]


# -- histograms and splits ----------------------------------------------------------------------


def test_compiled_and_plain_loops_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 6, (200, 4)).astype(np.uint8)
    layout = layout_of([5, 5])
    rows = np.sort(rng.permutation(200)[:120])
    slot, figures = rng.integers(0, 3, 120), rng.integers(-99, 99, (200, 4)).astype(np.float64)
    tree = Tree(
        owner=("a", "b", None, None, "a", None, None),
        split=(0, 3, 0, 0, 9, 0, 0),
        column=(0, 0, 0, 0, 1, 0, 0),
        left=(1, 2, 2, 3, 5, 5, 6),
        right=(4, 3, 2, 3, 6, 5, 6),
        value=((0.0,),) * 7,
        gain=(0.0,) * 7,
        cover=(0.0,) * 7,
    )
    bits = rng.integers(0, 256, (50, 4)).astype(np.uint8)
    found = []
    for compiled in (True, False):
        kernels = trees._kernels(compiled)
        monkeypatch.setattr(trees, "_kernels", lambda kernels=kernels: kernels)
        sums = add_up(codes, np.array([1, 3]), layout, rows, slot, figures, 3)
        found.append((sums, tree.leaves(bits, {"a": 0, "b": 16})))
        monkeypatch.undo()
    assert np.array_equal(found[0][0], found[1][0])
    assert np.array_equal(found[0][1], found[1][1])
    by_hand = [2 if b[2] & 16 else 3 for b in bits]
    walked = [
        h if b[0] & 128 else (5 if b[1] & 64 else 6) for b, h in zip(bits, by_hand, strict=True)
    ]
    assert found[0][1].tolist() == walked


@given(st.integers(0, 2**31), st.booleans())
def test_no_split_beats_the_best(seed: int, gaps: bool) -> None:
    """Against every cut of every column, with what is missing on either side."""
    rng = np.random.default_rng(seed)
    n, layout = 40, layout_of([4, 3])
    codes = np.stack([rng.integers(0 if gaps else 1, w + 1, n) for w in layout.widths], axis=1)
    figures = np.stack([rng.integers(-50, 50, n), rng.integers(0, 20, n)], 1).astype(np.float64)
    sums = add_up(
        codes.astype(np.uint8), np.arange(2), layout, np.arange(n), np.zeros(n, int), figures, 1
    )
    units, totals = np.array([0.1, 0.05]), figures.sum(0)[None]
    penalty = Penalty(reg_lambda=0.7, reg_alpha=0.2, min_child_weight=1.0)
    (found,) = best_splits(sums, layout, totals, units, penalty, FREE)

    def score(rows: np.ndarray) -> float:
        g, h = figures[rows].sum(0) * units
        return max(abs(g) - 0.2, 0) ** 2 / (h + 0.7)

    gains = []
    for column, width in enumerate(layout.widths):
        for b in range(1, width + 1):
            for missing in (False, True):
                left = (codes[:, column] <= b) & ((codes[:, column] > 0) | missing)
                weights = [figures[side, 1].sum() * 0.05 for side in (left, ~left)]
                if min(weights) >= 1.0:
                    gains.append(score(left) + score(~left) - score(np.ones(n, bool)))
    assert found.gain == pytest.approx(max(gains, default=-np.inf), abs=1e-9)
    if gains:
        goes = found.left[codes[:, found.column]]
        assert np.array_equal(figures[goes].sum(0), found.sums)


def test_categories_are_grouped_as_well_as_any_grouping() -> None:
    rng = np.random.default_rng(3)
    levels, n = 6, 300
    codes = rng.integers(1, levels + 1, (n, 1)).astype(np.uint8)
    figures = np.stack(
        [rng.integers(-60, 60, n) + 10 * codes[:, 0] % 37, rng.integers(1, 9, n)], 1
    ).astype(np.float64)
    layout = layout_of([levels], [True])
    sums = add_up(codes, np.arange(1), layout, np.arange(n), np.zeros(n, int), figures, 1)
    penalty = Penalty(reg_lambda=0.0, min_child_weight=0.0)
    (found,) = best_splits(sums, layout, figures.sum(0)[None], np.ones(2), penalty, FREE)

    def score(rows: np.ndarray) -> float:
        g, h = figures[rows].sum(0)
        return g * g / h

    every = [
        score(left) + score(~left) - score(np.ones(n, bool))
        for size in range(1, levels)
        for some in combinations(range(1, levels + 1), size)
        for left in [np.isin(codes[:, 0], some)]
    ]
    assert found.gain == pytest.approx(max(every))


def test_sums_of_nought_split_nothing() -> None:
    layout = layout_of([3])
    (found,) = best_splits(
        np.zeros((1, 4, 2)), layout, np.zeros((1, 2)), np.ones(2), Penalty(0, 0, 0, 0), FREE
    )
    assert found.gain == -np.inf


def test_nodes_are_searched_in_pieces_to_the_same_end(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    layout = layout_of([5, 2])
    sums = rng.integers(0, 50, (7, layout.total, 2)).astype(np.float64)
    totals = sums[:, :6].sum(1)
    sums[:, 6:8] = 0
    sums[:, 8] = totals
    bounds = np.repeat(FREE, 7, 0)
    whole = best_splits(sums, layout, totals, np.ones(2), NO_LEAST, bounds)
    monkeypatch.setattr(trees, "_MOST_CELLS", 1)
    pieces = best_splits(sums, layout, totals, np.ones(2), NO_LEAST, bounds)
    assert [c.gain for c in whole] == [c.gain for c in pieces]


def test_shares_are_the_shapley_values() -> None:
    """Of the game in which a set of columns is known, over all orders of three columns."""
    rng = np.random.default_rng(5)
    tree = Tree(
        owner=("a", "b", None, "a", None, None, "b", "a", None, None, None),
        split=(0, 0, 0, 1, 0, 0, 1, 2, 0, 0, 0),
        column=(0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0),
        left=(1, 2, 2, 4, 4, 5, 7, 8, 8, 9, 10),
        right=(6, 3, 2, 5, 4, 5, 10, 9, 8, 9, 10),
        value=tuple((v,) for v in rng.normal(size=11)),
        gain=(0.0,) * 11,
        cover=(20.0, 12.0, 5.0, 7.0, 3.0, 4.0, 8.0, 6.0, 2.0, 4.0, 2.0),
    )
    bits = np.array([[i << 5, j << 6] for i in range(8) for j in range(4)], dtype=np.uint8)
    first = {"a": 0, "b": 8}

    def game(row: np.ndarray, known: set[tuple[str, int]], node: int = 0) -> float:
        owner = tree.owner[node]
        if owner is None:
            return tree.value[node][0]
        left, right = tree.left[node], tree.right[node]
        if (owner, tree.column[node]) in known:
            bit = first[owner] + tree.split[node]
            return game(row, known, left if row[bit >> 3] >> (7 - bit % 8) & 1 else right)
        share = tree.cover[left] / tree.cover[node]
        return share * game(row, known, left) + (1 - share) * game(row, known, right)

    players = [("a", 0), ("a", 1), ("b", 0)]
    found = {p: np.zeros(len(bits)) for p in players}
    for player, shares in tree.shapley(bits, first):
        found[player] += shares[:, 0]
    for i, row in enumerate(bits):
        for player in players:
            orders = list(permutations(players))
            gained = [
                game(row, set(order[: order.index(player) + 1]))
                - game(row, set(order[: order.index(player)]))
                for order in orders
            ]
            assert found[player][i] == pytest.approx(np.mean(gained))
        assert game(row, set()) == pytest.approx(tree.mean[0])


# -- losses -------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", ["binary:logistic", "reg:squarederror", "count:poisson"])
def test_gradients_are_the_losses_slopes(objective: str) -> None:
    rng = np.random.default_rng(0)
    score, y = rng.normal(size=(20, 1)), rng.integers(0, 2, 20).astype(float)
    loss = TreeLoss(objective)  # type: ignore[arg-type]
    g, _ = loss.derivatives(score, y, np.ones(20), 0.0)
    e = 1e-6
    for i in range(20):
        up, down = score[i : i + 1] + e, score[i : i + 1] - e
        slope = (loss.loss(up, y[i : i + 1]) - loss.loss(down, y[i : i + 1])) / (2 * e)
        assert slope == pytest.approx(g[i, 0] * (2 if "squared" in objective else 1), abs=1e-4)


def test_a_class_of_certainty_leaves_the_loss_finite() -> None:
    score = np.array([[900.0], [-900.0]])
    loss = TreeLoss("binary:logistic")
    assert np.isfinite(loss.loss(score, np.array([0.0, 1.0])))
    g, h = loss.derivatives(score, np.array([0.0, 1.0]), np.ones(2), 0.0)
    assert np.isfinite(g).all()
    assert (h > 0).all()
