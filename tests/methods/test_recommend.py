"""Which method is recommended, and that whoever asks gets the same answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from interlace import Federation, Party, run
from interlace.data.geometry import Situation, inspect_parties
from interlace.data.ids import IdRule
from interlace.errors import JobError
from interlace.job.spec import Job, MethodChoice
from interlace.methods.catalogue import build_method
from interlace.methods.recommend import (
    RULES,
    Recommendation,
    choose,
    recommend,
    recommend_for,
    share_names,
    situation_of,
)


def situation(**changes: Any) -> Situation:
    few = {
        "active": "bank",
        "task": "binary",
        "parties": 2,
        "own_columns": True,
        "shared": 64,
        "partly": 0,
        "labelled": 0,
        "unlabelled": {"bank": 2000, "shop": 900},
    }
    return Situation.model_validate(few | changes)


def table(rows: range, seed: int = 0) -> pl.DataFrame:
    x = np.random.default_rng(seed).normal(size=(len(rows), 4))
    columns = {f"c{seed}_{i}": x[:, i] for i in range(4)}
    return pl.DataFrame({"id": [f"p{i}" for i in rows], **columns})


def asked(labels: dict[str, str] | None = None, **tables: pl.DataFrame) -> Recommendation:
    rules = dict.fromkeys(tables, IdRule(columns=["id"]))
    return recommend_for(inspect_parties(tables, rules, labels=labels))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.method)
def test_every_rule_names_a_method_that_there_is(rule: Any) -> None:
    build_method(rule.method, {})


def test_the_reason_is_in_numbers() -> None:
    found = recommend(situation())
    assert found.reason.startswith(
        "64 shared people with a label, 2,000 without one at bank, 900 without one at shop: "
        f"{found.method}, because "
    )
    assert "compare with the active party alone" in found.reason


@pytest.mark.parametrize(
    ("changes", "method"),
    [
        ({"task": "regression"}, "split"),
        ({"shared": 5000}, "split"),
        ({"labelled": 2000, "unlabelled": {"bank": 0, "shop": 2000}}, "vfedtrans"),
        ({"labelled": 2000, "shared": 100}, "fedcvt"),
        ({"labelled": 64}, "vfedtrans"),
        ({"labelled": 63}, "fedcvt"),
        ({"labelled": 170, "unlabelled": {"shop": 170}, "shared": 256}, "fedcvt"),
        ({"labelled": 256, "unlabelled": {"shop": 900}, "shared": 512}, "fedcvt"),
        ({"labelled": 255, "unlabelled": {"shop": 900}, "shared": 512}, "few_shot"),
        ({"partly": 900, "own_columns": False, "shared": 512}, "fedcvt"),
        ({"labelled": 2000, "own_columns": False}, "few_shot"),
        ({"partly": 100, "own_columns": False}, "fedcvt"),
        ({}, "few_shot"),
        ({"shared": 1}, None),
    ],
)
def test_the_table(changes: dict[str, Any], method: str | None) -> None:
    assert recommend(situation(**changes)).method == method


def test_a_table_and_a_run_are_told_the_same() -> None:
    """`inspect` compares tables in the clear; a run knows what the matching told."""
    known = pl.when(pl.int_range(300) % 3 > 0).then(pl.int_range(300) % 2).alias("y")
    bank = table(range(300)).with_columns(known)
    shop, post = table(range(200, 500), 1), table(range(100, 280), 2)
    found = asked({"bank": "y"}, bank=bank, shop=shop, post=post)
    parties = [Party("bank", bank, label="y"), Party("shop", shop), Party("post", post)]
    assert choose(Federation.simulate(parties)) == found
    counted = situation_of(Federation.simulate(parties))
    assert (counted.shared, counted.partly, counted.labelled) == (53, 81, 66)
    assert counted.unlabelled == {"bank": 100, "shop": 200, "post": 0}


def test_nothing_is_chosen_where_no_label_is_shared() -> None:
    bank = table(range(100)).with_columns(y=pl.when(pl.int_range(100) > 50).then(1).otherwise(0))
    bank = bank.with_columns(y=pl.when(pl.int_range(100) >= 40).then("y"))
    parties = [Party("bank", bank, label="y"), Party("shop", table(range(30), 1))]
    with pytest.raises(JobError, match=r"0 shared people with a label.* whom both parties hold"):
        choose(Federation.simulate(parties))
    shops = [Party("a", table(range(40, 70), 1)), Party("b", table(range(70, 100), 2))]
    with pytest.raises(JobError, match=r"leave a party out.* name a method .* `fed_once`"):
        choose(Federation.simulate([parties[0], *shops]))


def test_partners_who_agree_beforehand_name_the_method() -> None:
    with pytest.raises(JobError, match="name the method that `interlace inspect` recommends"):
        build_method("auto", {})


# -- other geometries -----------------------------------------------------------------------------


def test_without_a_label_nothing_is_recommended_yet() -> None:
    found = asked(a=table(range(100)), b=table(range(60), 1))
    assert found.method is None
    assert "60 people are held by all" in found.reason
    assert "label first" in found.reason


def test_one_table_cut_by_rows() -> None:
    frame = table(range(200))
    assert asked(north=frame[:120], south=frame[120:]).method == "fedavg"


def test_several_banks_that_each_share_people_with_one_shop() -> None:
    banks = {"one": table(range(100)), "two": table(range(100, 200))}
    found = asked({"shop": "c5_0"}, **banks, shop=table(range(200), seed=5))
    assert found.method == "mixed"
    assert "one and two have the same columns" in found.reason


def test_a_run_takes_it_too(tmp_path: Path) -> None:
    shop = table(range(200), seed=5).with_columns(y=pl.int_range(200) % 2)
    tables = {"one": table(range(100)), "two": table(range(100, 200)), "shop": shop}
    parties: dict[str, Any] = {}
    for name, frame in tables.items():
        frame.write_csv(tmp_path / f"{name}.csv")
        policy = {"allow_also": ["model weights"]}
        parties[name] = {"table": str(tmp_path / f"{name}.csv"), "policy": policy}
    parties["shop"]["label"] = "y"
    how = MethodChoice(name="auto")
    job = Job(name="j", parties=parties, method=how, compare="none", seeds=[0])
    results = run(job, tmp_path / "run")
    assert results.chosen is not None
    assert results.chosen.method == results.models[0].name == "mixed"


def test_columns_that_seem_to_be_one_quantity_are_to_be_settled_first() -> None:
    frame = table(range(200))
    labelled = frame[:150].with_columns(y=pl.int_range(150) % 2)
    found = asked({"a": "y"}, a=labelled, b=frame[50:])
    assert found.method is not None
    assert "Settle first" in found.reason


def test_tables_that_nothing_joins() -> None:
    found = asked(a=table(range(50)), b=table(range(50, 100), 1))
    assert found.method is None
    assert "Nothing joins" in found.reason


def test_values_are_compared_only_where_half_the_names_are_shared() -> None:
    bank, branch, shop = table(range(9)), table(range(9, 18)), table(range(9), 1)
    some = shop.with_columns(bank["c0_0"], bank["c0_1"])  # two of the bank's four
    one = shop.with_columns(bank["c0_0"])

    def told(*tables: pl.DataFrame) -> bool:
        return share_names([Party(f"p{i}", frame, id="id") for i, frame in enumerate(tables)])

    assert told(bank, branch)
    assert told(shop, bank, branch), "of three, two are enough"
    assert told(bank, some)
    assert not told(bank, one)
    assert not told(bank, shop)
