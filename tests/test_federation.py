"""Views, alignment and labels of a federation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
import pytest

from interlace import FedAvg, Federation, LogisticRegression, MixedVFL, Party, SplitVFL
from interlace.boundary import Kind, Slot
from interlace.errors import (
    AlignmentError,
    DataError,
    InterlaceError,
    JobError,
    NobodyShared,
    PolicyError,
)
from interlace.federation import _of_every_class
from interlace.methods import Method
from interlace.party import PassiveSide, operation


def people(*names: str, **columns: object) -> pl.DataFrame:
    return pl.DataFrame({"id": list(names), **columns})


@pytest.fixture
def three() -> Federation:
    """The lecture's health index: heart, eye and skin clinics share few people."""
    heart = people("P1", "P2", "P3", h=[1.0, 2.0, 3.0], index=[0, 1, 0])
    eye = people("P4", "P2", "P1", e=[4.0, 2.0, 1.0])
    skin = people("P5", "P1", "P6", "P2", "P3", s=[5.0, 1.0, 6.0, 2.0, 3.0])
    return Federation.simulate(
        [Party("heart", heart, label="index"), Party("eye", eye), Party("skin", skin)]
    )


def test_patterns_of_who_holds_whom(three: Federation) -> None:
    assert three.active.name == "heart"
    assert three.passive == ("eye", "skin")
    np.testing.assert_array_equal(
        three.alignment.holders, [[True, True], [True, True], [False, True]]
    )
    np.testing.assert_array_equal(three.shared().rows, [0, 1])
    for name, party in three.engine.parties.items():
        if name == "heart":
            continue
        mine = three.active.frame["id"][three.alignment.pairs[name]]
        theirs = party.frame["id"][party.shared_with("heart")]
        assert mine.to_list() == theirs.to_list(), "one common order"


def test_revealing_only_the_common_people(three: Federation) -> None:
    parties = list(three.engine.parties.values())
    fed = Federation.simulate(parties, reveal="common")
    assert fed.alignment.holders.tolist() == [[True, True], [True, True], [False, False]]
    assert len(fed.engine.parties["skin"].shared_with("heart")) == 2


def test_positions_of_people_a_party_does_not_hold(three: Federation) -> None:
    with pytest.raises(AlignmentError, match=r"1 of 3 people are not held by 'eye'.*WithFallback"):
        three.positions("eye", three.rows)


def test_a_view_says_who_it_is(three: Federation) -> None:
    seen = "Federation(['heart', 'eye', 'skin'], active='heart', {} people)"
    assert repr(three) == seen.format(3)
    assert repr(three.shared()) == seen.format(2)


def test_a_held_out_person_is_in_one_view_only() -> None:
    ids = [f"p{i}" for i in range(60)]
    bank = people(*ids, x=range(60), y=[0, 1, 1] * 20)
    shop = people(*ids[10:], z=range(50))
    fed = Federation.simulate([Party("bank", bank, label="y"), Party("shop", shop)], seed=4)
    train, test = fed.split(0.2)
    assert len(test.rows) == 10
    assert set(test.rows) <= set(range(10, 60))
    assert not set(train.rows) & set(test.rows)
    assert set(train.rows) | set(test.rows) == set(range(60))
    np.testing.assert_array_equal(train.held_out, test.rows)
    assert abs(test.y.double().mean().item() - 2 / 3) < 0.1, "classes keep their shares"
    again, _ = fed.split(0.2)
    np.testing.assert_array_equal(again.rows, train.rows)
    other, _ = fed.split(0.2, seed=5)
    assert set(other.rows) != set(train.rows)


@pytest.mark.parametrize(
    ("yes", "tested", "trained"),
    [(2, [4, 1], [14, 1]), (1, [5, 0], [14, 1]), (18, [1, 4], [1, 14])],
)
def test_of_few_people_some_of_every_class_are_held_out(
    yes: int, tested: list[int], trained: list[int]
) -> None:
    ids = [f"p{i}" for i in range(20)]
    bank = people(*ids, x=range(20), y=[1] * yes + [0] * (20 - yes))
    shop = people(*ids, z=range(20))
    fed = Federation.simulate([Party("bank", bank, label="y"), Party("shop", shop)])
    for seed in range(8):
        train, test = fed.split(0.25, seed=seed)
        assert np.bincount(test.y, minlength=2).tolist() == tested
        assert np.bincount(train.y, minlength=2).tolist() == trained


def test_nobody_of_several_classes_is_left_out_where_there_is_room() -> None:
    random = np.random.default_rng(0)
    tried = 0
    while tried < 200:
        y = random.integers(0, random.integers(2, 6), size=random.integers(4, 16))
        counts = np.bincount(y)
        held = random.permutation(len(y))[: random.integers(1, len(y))]
        learnt, tested = (counts > 0).sum(), (counts > 1).sum()
        if len(held) < tested or len(y) - len(held) < learnt:
            continue
        tried += 1
        out = _of_every_class(np.arange(len(y)), y, held, random)
        assert len(out) == len(held)
        assert set(y[out]) >= set(np.flatnonzero(counts > 1))
        assert set(np.delete(y, out)) == set(y)


@pytest.mark.parametrize("test", [0.999, 0.001, 100])
def test_a_share_that_leaves_too_few_is_told_in_words(test: float) -> None:
    ids = [f"p{i}" for i in range(40)]
    bank = Party("bank", {"id": ids, "x": range(40), "y": [0, 1] * 20}, label="y")
    fed = Federation.simulate([bank, Party("shop", {"id": ids, "z": range(40)})])
    told = f"40 shared people with a label are too few for `test: {test}`, .* of each class to le"
    with pytest.raises(AlignmentError, match=told) as caught:
        fed.split(test)
    assert "n_samples" not in str(caught.value)


def test_too_few_people_to_hold_some_out() -> None:
    bank, shop = people("a", "b", x=[1, 2], y=[0, 1]), people("a", "b", z=[1, 2])
    fed = Federation.simulate([Party("bank", bank, label="y"), Party("shop", shop)])
    with pytest.raises(AlignmentError, match="2 shared people with a label are too few"):
        fed.split(0.9)


def test_nobody_shared_has_a_label() -> None:
    bank = people("a", "b", "c", "d", x=range(4), y=[None, None, 0, 1])
    fed = Federation.simulate(
        [Party("bank", bank, label="y"), Party("shop", people("a", "b", z=[1.0, 2.0]))]
    )
    with pytest.raises(AlignmentError, match="0 shared people with a label are too few"):
        fed.split()


def test_nobody_shared() -> None:
    bank = people("a", "b", x=[1, 2], y=[0, 1])
    shop = people("c", "d", z=[1, 2])
    fed = Federation.simulate([Party("bank", bank, label="y"), Party("shop", shop)])
    with pytest.raises(NobodyShared, match="no person"):
        fed.align()


def test_one_person_shared() -> None:
    bank = people("a", "b", x=[1, 2], y=[0, 1])
    fed = Federation.simulate([Party("bank", bank, label="y"), Party("shop", people("a", z=[1]))])
    assert fed.shared().rows.tolist() == [0]
    with pytest.raises(AlignmentError, match="only one person of party 'bank'"):
        fed.split()
    with pytest.raises(AlignmentError, match="at least two are needed"):
        SplitVFL().fit(fed)


@pytest.mark.parametrize("method", [SplitVFL, LogisticRegression, FedAvg, MixedVFL])
def test_fit_says_what_it_takes(method: Callable[[], Method], three: Federation) -> None:
    for wrong in (three.active, three.active.frame):
        with pytest.raises(JobError, match=r"fit` takes a Federation, not a (Party|DataFrame)"):
            method().fit(wrong)


def test_a_view_names_people_there_are(three: Federation) -> None:
    for rows in ([-1], [3]):
        with pytest.raises(InterlaceError, match="outside of the 3 people"):
            three.view(np.array(rows))


def test_parties_that_do_not_make_a_federation() -> None:
    bank = Party("bank", people("a", "b", x=[1, 2], y=[0, 1]), label="y")
    shop = Party("shop", people("a", "b", z=[1, 2]))
    with pytest.raises(JobError, match="at least two parties"):
        Federation.simulate([bank])
    with pytest.raises(JobError, match="two parties are called 'bank'"):
        Federation.simulate([bank, bank])
    with pytest.raises(JobError, match=r"none has a label.* give its party `label:`"):
        Federation.simulate([shop, Party("other", people("a", z=[1]))])
    with pytest.raises(JobError, match="bank, bank2 have labels"):
        Federation.simulate([bank, Party("bank2", people("a", "b", x=[1, 2], y=[0, 1]), label="y")])
    with pytest.raises(JobError, match="'bnak' is not among"):
        Federation.simulate([bank, shop], active="bnak")
    fed = Federation.simulate([bank, shop], active="shop")
    with pytest.raises(DataError, match="'shop': the active party has no label column"):
        fed.label_plan  # noqa: B018


@pytest.mark.parametrize("reveal", ["pairs", "common"])
def test_the_matching_is_kept_and_found_again(
    tmp_path: Path, reveal: Literal["pairs", "common"]
) -> None:
    ids = [f"p{i}" for i in range(50)]
    bank, shop = people(*ids, x=range(50), y=[0, 1] * 25), people(*ids[::-1], z=range(50))

    def federation(shop: pl.DataFrame) -> Federation:
        parties = [Party("bank", bank, label="y"), Party("shop", shop)]
        return Federation.simulate(parties, folder=tmp_path, reveal=reveal)

    first, again = federation(shop), federation(shop)
    first.align()
    said = len(list(again.active.boundary.ledger.entries()))
    np.testing.assert_array_equal(again.alignment.pairs["shop"], first.alignment.pairs["shop"])
    assert again.alignment.report == first.alignment.report
    assert len(list(again.active.boundary.ledger.entries())) == said, "nothing was asked again"
    theirs = [f.engine.parties["shop"].shared_with("bank") for f in (first, again)]
    np.testing.assert_array_equal(*theirs)
    changed = federation(shop[:40])
    assert len(changed.alignment.common) == 40, "another table is matched anew"


def test_new_tables_need_a_table_of_every_party(three: Federation) -> None:
    with pytest.raises(JobError, match="no new table for party 'eye'"):
        three.with_tables({"heart": people("P9", h=[1.0]), "skin": people("P9", s=[1.0])})


def test_a_side_lives_at_one_party(three: Federation) -> None:
    class Counting(PassiveSide):
        @operation
        def forget_me(self) -> None:
            self.party.sides.clear()

    peers = three.open("counting", Counting)
    assert set(peers) == {"eye", "skin"}
    assert peers["eye"].session == "counting-0001"
    peers["eye"].ask(Counting.forget_me)
    assert three.engine.parties["eye"].sides == {}
    assert three.engine.parties["skin"].sides != {}


def test_the_labels_that_a_method_works_with_cannot_leave(three: Federation) -> None:
    boundary = three.active.boundary
    for kind, labels in ((Kind.CLASS_COUNT, three.y), (Kind.CLASS_COUNT, three.shared().y[:1])):
        with pytest.raises(PolicyError, match="part of its records"):
            boundary.release("s", "op", "eye", [Slot("value", kind)], [labels])


def test_nobody_whom_all_hold_is_said_with_who_is_held_by_some() -> None:
    base = people("a", "b", "c", "d", x=[1.0, 2.0, 3.0, 4.0], y=[0, 1, 0, 1])
    one, other = people("a", "b", v=[1.0, 2.0]), people("c", "d", w=[1.0, 2.0])
    parties = [Party("base", base, label="y"), Party("one", one), Party("other", other)]
    with pytest.raises(AlignmentError, match=r"0 shared people .* 4 with a label are held"):
        Federation.simulate(parties).split(0.25)


def test_people_are_held_out_without_a_label_too() -> None:
    bank = people(*(f"p{i}" for i in range(20)), x=list(range(20)))
    shop = people(*(f"p{i}" for i in range(5, 20)), z=list(range(15)))
    fed = Federation.simulate([Party("bank", bank), Party("shop", shop)], active="bank")
    train, test = fed.split(0.2, labelled=False)
    assert len(test.rows) == 3
    assert set(test.rows) <= set(range(5, 20))
    assert sorted([*train.rows, *test.rows]) == list(range(20))
    with pytest.raises(DataError, match="no label column"):
        fed.split(0.2)
    lab = people("p0", "p1", "p2", w=[1.0, 2.0, 3.0])
    parties = [Party("bank", bank), Party("shop", shop), Party("lab", lab)]
    with pytest.raises(AlignmentError, match=r"too few to hold some out. Leave out a partner"):
        Federation.simulate(parties, active="bank").split(0.2, labelled=False)
    two = [parties[0], Party("lab", people("p0", "q1", w=[1.0, 2.0]))]
    with pytest.raises(AlignmentError, match=r"too few to hold some out. Check the id rules"):
        Federation.simulate(two, active="bank").split(0.2, labelled=False)
