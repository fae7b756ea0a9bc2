"""Cutting one table: columns, people, rows, and VertiBench's measures of the cut."""

from __future__ import annotations

import errno
import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from sklearn.datasets import load_breast_cancer

from interlace.data.partition import (
    Split,
    _concentration,
    _correlation,
    _Search,
    _share_out,
    alpha_beta,
    cut_columns,
    cut_people,
    cut_rows,
    feature_importance,
    pcor,
    split_horizontal,
    split_vertical,
    write_split,
)
from interlace.data.tables import read_table
from interlace.errors import DataError


@pytest.fixture(scope="module")
def breast() -> pl.DataFrame:
    data = load_breast_cancer()
    columns = {f"x{i}": data.data[:, i] for i in range(data.data.shape[1])}
    return pl.DataFrame({**columns, "y": data.target})


FEATURES = [f"x{i}" for i in range(30)]


# --- columns -----------------------------------------------------------------------------------


def test_named_columns_and_the_rest() -> None:
    frame = pl.DataFrame({c: [1, 2] for c in "abcd"})
    cut = cut_columns(frame, list("abcd"), ["p", "q"], "named", named={"q": ["d", "b"]})
    assert cut == {"p": ["a", "c"], "q": ["b", "d"]}
    both = {"p": ["a"], "q": ["a", "b", "c", "d"], "r": []}
    assert cut_columns(frame, list("abcd"), list("pqr"), "named", named=both) == both
    for named, said in (
        ({"p": ["a"], "q": ["b"]}, "given to no party"),
        ({"z": ["a"]}, "not a party"),
        ({"p": ["aa"]}, "no column of this name"),
    ):
        with pytest.raises(DataError, match=said):
            cut_columns(frame, list("abcd"), ["p", "q"], "named", named=named)


@pytest.mark.parametrize("how", ["random", "correlation", "importance"])
def test_every_column_goes_to_one_party_and_a_seed_repeats_the_cut(
    breast: pl.DataFrame, how: Any
) -> None:
    some = FEATURES[:8]
    cuts = [
        cut_columns(breast, some, ["p", "q", "r"], how, label="y", beta=0.3, seed=s)
        for s in (1, 1, 2)
    ]
    assert cuts[0] == cuts[1]
    assert cuts[0] != cuts[2] or how == "correlation"  # which may find the same best cut
    assert sorted(itertools.chain(*cuts[0].values())) == sorted(some)
    assert all(names == sorted(names, key=some.index) for names in cuts[0].values())
    assert all(cuts[0].values())


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_a_cut_by_correlation_reaches_its_beta(breast: pl.DataFrame, beta: float) -> None:
    cut = cut_columns(breast, FEATURES[:12], ["p", "q"], "correlation", beta=beta)
    table = breast.select(cut["p"] + cut["q"]).to_numpy()
    search = _Search(_correlation(table), [6, 6], seed=1)
    low, high = search.bounds()
    icor = search.icor(search.blocks(search.start))
    assert (icor - low) / (high - low) == pytest.approx(beta, abs=0.03)
    assert [len(names) for names in cut.values()] == [6, 6]


def test_alpha_balances_importance(breast: pl.DataFrame) -> None:
    some = FEATURES[:10]
    even = cut_columns(breast, some, ["p", "q"], "importance", alpha=1e6, label="y")
    found = alpha_beta(breast, even, "y")
    assert max(found.shares.values()) - min(found.shares.values()) < 0.1
    assert sum(found.shares.values()) == pytest.approx(1)
    assert found.alpha > 20
    uneven = cut_columns(breast, some, ["p", "q"], "importance", alpha=0.02, label="y")
    assert alpha_beta(breast, uneven, "y").alpha < 0.5


def test_importance_is_that_of_the_columns_that_decide() -> None:
    rng = np.random.default_rng(0)
    table = rng.normal(size=(1500, 4))
    frame = pl.DataFrame(table, schema=list("abcd"))
    both = table[:, 0] + 2 * table[:, 2]
    for label in (both, (both > 0).astype(int), np.where(both > 0, "yes", "no")):
        found = feature_importance(frame.with_columns(pl.Series("y", label)), list("abcd"), "y")
        assert np.argsort(-found)[:2].tolist() == [2, 0]
        assert (found >= 0).all()
        assert found[[1, 3]].max() < 0.2 * found[0]


@given(
    st.lists(st.floats(0, 10), min_size=4, max_size=12),
    st.lists(st.floats(0.01, 1), min_size=2, max_size=4),
)
def test_sharing_out_leaves_nobody_empty_and_is_off_by_at_most_one_column(
    importance: list[float], raw: list[float]
) -> None:
    shares = np.array(raw) / sum(raw)
    owner = _share_out(np.array(importance), shares)
    assert set(owner) == set(range(len(shares)))
    sums = np.bincount(owner, weights=importance, minlength=len(shares))
    if np.bincount(owner).min() > 1:  # no column was moved to fill an empty party
        assert (sums - shares * sum(importance) <= max(importance) + 1e-9).all()


# --- alpha and beta ----------------------------------------------------------------------------


def test_pcor_of_known_matrices() -> None:
    """The singular values of ones (2, 2) are 2 and 0; of the identity they do not differ."""
    assert pcor(np.ones((2, 2))) == pytest.approx(math.sqrt(2) / math.sqrt(2))
    assert pcor(np.eye(3)) == 0
    assert pcor(np.ones((1, 5))) == 0
    assert pcor(np.diag([3.0, 1.0])[:, [1, 0]]) == pytest.approx(1.0)


def test_icor_of_blocks_of_copies() -> None:
    """Two copied pairs: kept together the parties are unlike, apart they are alike."""
    correlation: Any = np.kron(np.eye(2), np.ones((2, 2)))
    search = _Search(correlation, [2, 2], 0)
    assert search.icor(search.blocks(np.array([0, 0, 1, 1]))) == pytest.approx(-1)
    assert search.icor(search.blocks(np.array([0, 1, 0, 1]))) == pytest.approx(0)
    assert search.bounds() == pytest.approx((-1, 0))


def test_the_search_finds_what_trying_every_cut_finds() -> None:
    rng = np.random.default_rng(3)
    table: Any = rng.normal(size=(200, 3)) @ rng.normal(size=(3, 8)) + rng.normal(size=(200, 8))
    search = _Search(_correlation(table), [4, 4], 0)
    every = []
    for chosen in itertools.combinations(range(8), 4):
        owner = np.zeros(8, dtype=np.int64)
        owner[list(chosen)] = 1
        every.append(search.icor(search.blocks(owner)))
    assert search.bounds() == pytest.approx((min(every), max(every)))


def test_beta_is_that_of_vertibench(breast: pl.DataFrame) -> None:
    """vertibench 0.1.2 gives Icor -0.04436, -0.11040, and beta 0.800 for two parties."""
    halves = {"p": FEATURES[:15], "q": FEATURES[15:]}
    assert alpha_beta(breast, halves, "y").beta == pytest.approx(0.800, abs=0.02)
    table = breast.select(FEATURES).to_numpy()
    for parties, icor in ((2, -0.04436), (3, -0.11040)):
        search = _Search(_correlation(table), [30 // parties] * parties, 0)
        assert search.icor(search.blocks(search.start)) == pytest.approx(icor, abs=1e-5)


@given(st.floats(0.1, 50), st.integers(2, 6))
def test_the_concentration_of_shares_is_found_again(alpha: float, parties: int) -> None:
    variance = (parties - 1) / (parties**2 * (parties * alpha + 1))
    offset = math.sqrt(variance * parties / 2)
    shares = np.full(parties, 1 / parties)
    shares[0] += offset
    shares[1] -= offset
    assert _concentration(shares) == pytest.approx(alpha, rel=1e-6)
    assert _concentration(np.full(parties, 1 / parties)) == math.inf
    assert _concentration(np.eye(parties)[0]) == pytest.approx(0)


def test_alpha_beta_of_mixed_columns_with_gaps() -> None:
    rng = np.random.default_rng(0)
    frame = pl.DataFrame(
        {
            "n": rng.normal(size=300),
            "gap": [None if i % 3 == 0 else float(i) for i in range(300)],
            "c": rng.choice(["u", "v", "w"], 300),
            "d": [f"2020-{1 + i % 12:02d}-01" for i in range(300)],
            "one": [1] * 300,
            "y": ["yes", "no", None] * 100,
        }
    )
    found = alpha_beta(frame, {"p": ["n", "gap"], "q": ["c", "d", "one"], "r": []}, "y")
    assert 0 <= found.beta <= 1
    assert set(found.shares) == {"p", "q"}
    with pytest.raises(DataError, match="two parties with columns"):
        alpha_beta(frame, {"p": ["n"], "q": []}, "y")


# --- people ------------------------------------------------------------------------------------


@given(
    st.integers(2, 60),
    st.integers(2, 4),
    st.data(),
)
def test_people_are_shared_and_alone_in_the_numbers_asked_for(
    rows: int, parties: int, data: Any
) -> None:
    names = [f"p{i}" for i in range(parties)]
    shared = data.draw(st.integers(1, rows))
    alone = data.draw(st.one_of(st.none(), st.integers(0, (rows - shared) // parties)))
    labelled = data.draw(st.one_of(st.sampled_from(["all", "shared"]), st.integers(1, shared)))
    people = cut_people(
        rows, names, shared=shared, alone=alone, label_party="p0", labelled=labelled, seed=3
    )
    held = {name: set(index.tolist()) for name, index in people.rows.items()}
    assert all(len(held[name]) == len(people.rows[name]) for name in names)
    common = set.intersection(*held.values())
    assert len(common) == shared
    only = [held[name] - common for name in names]
    assert sum(map(len, only)) == len(set().union(*only))
    assert sum(map(len, only)) == (rows - shared if alone is None else alone * parties)
    known = set(people.labelled.tolist())
    if labelled == "all":
        assert known == held["p0"]
    else:
        assert known <= common
        assert len(known) == (shared if labelled == "shared" else labelled)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"shared": 0}, "cannot be cut from 10"),
        ({"shared": 11}, "cannot be cut from 10"),
        ({"shared": 4, "alone": 4}, "cannot be cut from 10"),
        ({"shared": 4, "alone": {"p": -1}}, "cannot be cut from 10"),
        ({"shared": 4, "labelled": 99}, "99 labels"),
        ({"shared": 4, "labelled": 0}, "0 labels"),
        ({"shared": 4, "label_party": "z"}, "not one of the parties"),
    ],
)
def test_people_that_cannot_be_cut(options: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        cut_people(10, ["p", "q"], **{"label_party": "p", **options})


def test_labels_beyond_the_shared_people() -> None:
    people = cut_people(10, ["p", "q"], shared=4, label_party="p", labelled=6)
    common = set(people.rows["p"].tolist()) & set(people.rows["q"].tolist())
    assert common < set(people.labelled.tolist()) < set(people.rows["p"].tolist())


def test_rows_are_cut_by_weight_and_everyone_goes_somewhere() -> None:
    cut = cut_rows(100, ["p", "q"], weights=[3, 1])
    assert [len(index) for index in cut.values()] == [75, 25]
    assert sorted(np.concatenate(list(cut.values())).tolist()) == list(range(100))
    with pytest.raises(DataError, match="cannot be cut"):
        cut_rows(2, ["p", "q", "r"])
    with pytest.raises(DataError, match="one weight"):
        cut_rows(9, ["p", "q"], weights=[1])


# --- tables ------------------------------------------------------------------------------------


def example() -> Split:
    frame = pl.DataFrame({"a": range(10), "b": range(10), "y": [0, 1] * 5})
    people = cut_people(10, ["p", "q"], shared=4, label_party="p", labelled="shared")
    return split_vertical(
        frame, {"p": ["a"], "q": ["b"]}, people, label="y", label_party="p", description="ten"
    )


def test_a_vertical_split_keeps_people_apart_and_labels_where_they_belong() -> None:
    split = example()
    assert split.tables["p"].columns == ["id", "y", "a"]
    assert split.tables["q"].columns == ["id", "b"]
    joined = split.tables["p"].join(split.tables["q"], on="id")
    assert joined.height == 4
    assert joined["a"].to_list() == joined["b"].to_list()
    assert joined["y"].to_list() == [a % 2 for a in joined["a"]]
    assert split.tables["p"]["y"].null_count() == 3


def test_a_horizontal_split_keeps_all_columns() -> None:
    frame = pl.DataFrame({"key": [5, 6, 7], "a": [1, 2, 3], "y": [0, 1, 0]})
    split = split_horizontal(frame, cut_rows(3, ["p", "q"]), label="y", id="key")
    assert split.label_party is None
    assert all(t.columns == ["key", "a", "y"] for t in split.tables.values())
    assert sorted(pl.concat(split.tables.values())["key"]) == [5, 6, 7]


@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_written_tables_read_back(tmp_path: Path, format: Any) -> None:
    split = example()
    files = write_split(tmp_path / "new", split, format=format)
    for party, path in files.items():
        assert_frame_equal(read_table(path, party=party, ids=["id"]), split.tables[party])
    before = {p: p.read_bytes() for p in files.values()}
    with pytest.raises(DataError, match="already there"):
        write_split(tmp_path / "new", split, format=format)
    assert {p: p.read_bytes() for p in files.values()} == before


def test_images_are_written_as_parquet(tmp_path: Path) -> None:
    table = pl.DataFrame({"id": [1], "image": np.zeros((1, 2, 2))})
    files = write_split(tmp_path, Split({"p": table}, "id", "y", "p"))
    assert files["p"].suffix == ".parquet"
    assert_frame_equal(read_table(files["p"], party="p"), table)


def test_a_full_disk_leaves_no_half_written_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: pl.DataFrame, path: Path) -> None:
        path.write_text("id")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pl.DataFrame, "write_csv", full)
    with pytest.raises(DataError, match="No space left on device") as caught:
        write_split(tmp_path, example())
    assert caught.value.party == "p"
    assert list(tmp_path.iterdir()) == []


def test_faults_of_a_cut_are_named(breast: pl.DataFrame) -> None:
    for options, said in (
        ({"how": "importance"}, "needs a label"),
        ({"how": "importance", "label": "z"}, "no column"),
        ({"how": "importance", "label": "y", "alpha": 0}, "alpha"),
        ({"how": "correlation", "beta": 1.5}, "beta"),
        ({"parties": ["p", "p"]}, "two parties have this name"),
        ({"parties": [f"p{i}" for i in range(31)]}, "30 columns cannot be cut"),
        ({"features": ["x0", "x99"]}, "no column of this name"),
    ):
        arguments: dict[str, Any] = {"features": FEATURES, "parties": ["p", "q"], **options}
        with pytest.raises(DataError, match=said):
            cut_columns(breast, **arguments)
    people = cut_people(569, ["p", "q"], shared=5, label_party="p")
    with pytest.raises(DataError, match="taken for the ids"):
        split_vertical(breast.rename({"x0": "id"}), {}, people, label="y", label_party="p")
    with pytest.raises(DataError, match="no column"):
        split_vertical(breast, {}, people, label="yy", label_party="p")
    with pytest.raises(DataError, match="no id column"):
        split_vertical(breast, {}, people, label="y", label_party="p", id="person")
