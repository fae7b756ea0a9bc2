"""What `inspect` tells: geometry, people, columns of one quantity, near misses of ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from interlace.data.datasets import caravan, clinics, digits
from interlace.data.geometry import Geometry, inspect_parties
from interlace.data.ids import IdRule
from interlace.data.tables import read_table
from interlace.errors import DataError

RULE = IdRule(columns=["id"])


def inspect(labels: dict[str, str] | None = None, **tables: pl.DataFrame) -> Geometry:
    return inspect_parties(tables, dict.fromkeys(tables, RULE), labels=labels)


def table(rows: range, seed: int = 0, **columns: Any) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    names = columns or {f"c{seed}_{i}": rng.normal(size=len(rows)) for i in range(4)}
    return pl.DataFrame({"id": [f"p{i}" for i in rows], **names})


def test_the_insurance_case_is_vertical() -> None:
    split = caravan()
    found = inspect_parties(
        split.tables, dict.fromkeys(split.tables, RULE), labels={"insurer": "Purchase"}
    )
    assert found.kind == "vertical"
    vendor, insurer = found.parties
    assert (vendor.shared, insurer.columns, insurer.label) == (4400, 42, "Purchase")
    assert vendor.people + insurer.people - 4400 == 5822
    assert vendor.unaligned == vendor.people - 4400
    assert found.same == ()
    assert found.situation is not None
    assert found.situation.model_dump() == {
        "active": "insurer",
        "task": "binary",
        "parties": 2,
        "own_columns": True,
        "shared": 4400,
        "partly": 0,
        "labelled": insurer.unaligned,
        "unlabelled": {"insurer": 0, "vendor": vendor.unaligned},
    }
    assert Geometry.model_validate_json(found.model_dump_json()) == found


def test_four_parties_and_the_patterns_of_who_holds_whom() -> None:
    split = clinics()
    found = inspect_parties(split.tables, dict.fromkeys(split.tables, RULE))
    assert found.kind == "vertical"
    assert found.patterns[0].people == 500
    assert set(found.patterns[0].parties) == set(split.tables)
    assert [p.people for p in found.patterns[1:]] == [23, 23, 23]
    assert found.situation is None, "nobody has named the label"


def test_halves_of_images_are_vertical_although_their_columns_have_one_name() -> None:
    split = digits()
    found = inspect_parties(split.tables, dict.fromkeys(split.tables, RULE))
    assert (found.kind, found.same) == ("vertical", ())


def test_one_table_cut_by_rows_is_horizontal() -> None:
    frame = table(range(200))
    found = inspect(north=frame[:120], south=frame[120:])
    assert found.kind == "horizontal"
    assert found.situation is None
    assert len(found.same) == 4
    assert found.same[0].offers == ("keep both",)
    some = inspect(north=frame[:120], south=frame[90:])
    assert (some.kind, some.parties[0].shared) == ("horizontal", 30)


def test_several_banks_that_each_share_people_with_one_shop_are_mixed() -> None:
    banks = {"one": table(range(100)), "two": table(range(100, 200))}
    found = inspect(labels={"shop": "c5_0"}, **banks, shop=table(range(200), seed=5))
    assert found.kind == "mixed"


def test_rows_without_ids_are_about_nobody_else() -> None:
    frame = table(range(200)).drop("id")
    tables = {"north": frame[:120], "south": frame[120:]}
    found = inspect_parties(tables, dict.fromkeys(tables, IdRule(columns=[])))
    assert (found.kind, found.parties[0].unaligned) == ("horizontal", 120)


def test_who_has_a_label_and_who_not_decides() -> None:
    bank = table(range(100)).with_columns(y=pl.int_range(100) % 3)
    bank = bank.with_columns(y=pl.when(pl.int_range(100) % 5 > 0).then("y"))
    found = inspect({"bank": "y"}, bank=bank, b=table(range(60), 1), c=table(range(40, 140), 2))
    assert found.situation is not None
    assert found.situation.task == "multiclass"
    assert (found.situation.shared, found.situation.partly) == (16, 64)
    assert found.situation.unlabelled == {"bank": 20, "b": 0, "c": 40}
    one = inspect({"bank": "y"}, bank=bank.with_columns(y=1), b=table(range(60), 1))
    assert one.situation is None
    assert any("class" in warning for warning in one.warnings)


def test_people_and_columns_in_common_is_mixed() -> None:
    frame = table(range(200))
    found = inspect(north=frame[:150], south=frame[50:])
    assert found.kind == "mixed"
    three = inspect(a=frame[:150], b=frame[150:], c=table(range(200), 1))
    assert three.kind == "mixed"
    assert "Some parties share columns, others share people" in three.why


def test_tables_that_nothing_joins() -> None:
    found = inspect(a=table(range(50)), b=table(range(50, 100), 1))
    assert (found.kind, found.situation) == ("unrelated", None)


def test_a_star_of_parties_is_vertical_and_the_odd_one_is_named() -> None:
    found = inspect(a=table(range(100)), b=table(range(60), 1), c=table(range(500, 560), 2))
    assert found.kind == "vertical"
    assert "c shares neither" in found.why


@pytest.mark.parametrize(
    ("same", "said"),
    [
        (1, " One column seems to be the same quantity at two parties."),
        (2, " Up to 2 columns seem to be the same quantities at two parties."),
    ],
)
def test_columns_of_one_quantity_are_counted(same: int, said: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 15))
    one = table(range(300), **{f"a{i}": x[:, i] for i in range(8)})
    both = {f"b{i}": x[:, i] for i in range(same)}
    two = table(range(300), **both, **{f"c{i}": x[:, 8 + i] for i in range(7)})
    found = inspect(bank=one, shop=two)
    assert found.kind == "vertical"
    assert found.why.endswith(said)


def test_columns_of_one_quantity() -> None:
    rng = np.random.default_rng(0)
    age = rng.integers(18, 90, 300)
    income = rng.lognormal(10, 1, 300)
    town = rng.choice(["Ulm", "Bonn", "Kiel"], 300)
    one = table(range(300), age=age, income=income, town=town, x0=rng.normal(size=300))
    two = table(
        range(300),
        birth_year=2024 - age,
        annual_income=income * rng.normal(1, 0.03, 300),
        Town=[t.upper() if i == 0 else t for i, t in enumerate(town)],
        x0=rng.normal(size=300),
        other=rng.normal(size=300),
    )
    found = inspect(bank=one, shop=two)
    pairs = {(s.first[1], s.second[1]): s for s in found.same}
    assert set(pairs) == {("age", "birth_year"), ("income", "annual_income"), ("town", "Town")}
    assert pairs["age", "birth_year"].correlation == pytest.approx(-1)
    assert pairs["income", "annual_income"].offers[0] == "average"
    assert pairs["town", "Town"].equal == pytest.approx(299 / 300)
    assert pairs["town", "Town"].offers == ("keep one", "keep both")
    assert any("x0" in w and "differ" in w for w in found.warnings)
    assert found.kind == "mixed"


def test_ids_that_no_rule_or_only_all_rules_together_make_alike() -> None:
    one = pl.DataFrame({"id": [f"KD-001 {i:03}" for i in range(30)], "x": range(30)})
    two = pl.DataFrame({"id": [f"kd-1{i:03}" for i in range(30)], "y": range(30)})
    rules = {"a": IdRule(columns=["id"]), "b": IdRule(columns=["id"])}
    (warning,) = inspect_parties({"a": one, "b": two}, rules).warnings
    assert "a and b: no id rule" in warning
    assert "inner blanks" in warning
    one = one.with_columns(id=pl.Series([f"{i:03}x " for i in range(30)]))
    two = two.with_columns(id=pl.Series([f"{i:03}X" for i in range(30)]))
    (warning,) = inspect_parties({"a": one, "b": two}, rules).warnings
    assert "would share 30 more people if leading zeros, letter case and blanks around" in warning
    assert "case: lower" in warning


def test_columns_that_are_nearly_always_zero_are_equal_by_chance() -> None:
    rare, seldom = np.zeros(300), np.zeros(300)
    rare[:4], seldom[-4:] = [3, 1, 2, 5], [2, 2, 1, 4]
    one = table(range(300), pixel_01=rare, pixel_02=np.zeros(300), visits=rare)
    two = table(range(300), pixel_81=seldom, pixel_82=np.zeros(300), Visits=rare)
    found = inspect(left=one, right=two)
    assert [(s.first[1], s.second[1]) for s in found.same] == [("visits", "Visits")]


def test_ids_that_differ_in_form_alone_are_pointed_out() -> None:
    one = pl.DataFrame({"id": ["00123", "00124", "AB", " x", "9"], "u": [1, 2, 3, 4, 5]})
    two = pl.DataFrame({"id": ["123", "124", "ab", "x", "9"], "v": [5, 1, 2, 2, 7]})
    found = inspect(a=one, b=two)
    assert found.parties[0].shared == 1
    for count, option in ((2, "zeros: strip"), (1, "case: lower"), (1, "strip: true")):
        line = f"`id: {{columns: [id], {option}}}`"
        assert any(
            f"share {count} more" in w and f"set {line} at a and {line} at b." in w
            for w in found.warnings
        )


def test_repeated_and_blank_ids_warn_and_do_not_stop() -> None:
    one = pl.DataFrame({"id": ["a", "a", None, "b"], "u": [1, 2, 3, 4]})
    found = inspect(a=one, b=table(range(9)))
    assert found.parties[0].people == 2
    assert sum("a run refuses them" in w for w in found.warnings) == 2


def test_keys_of_another_number_of_columns_never_match() -> None:
    one, two = table(range(30)), table(range(30), 1).with_columns(day=pl.lit(1))
    rules = {"a": RULE, "b": IdRule(columns=["id", "day"])}
    found = inspect_parties({"a": one, "b": two}, rules)
    assert found.kind == "unrelated"
    assert any("different number of columns" in w for w in found.warnings)


def test_faults_are_named() -> None:
    with pytest.raises(DataError, match="one table has no geometry"):
        inspect(a=table(range(3)))
    with pytest.raises(DataError, match="no column of this name") as caught:
        inspect({"a": "y"}, a=table(range(3)), b=table(range(3)))
    assert caught.value.party == "a"


def test_the_default_credit_pair(shared_data: Path) -> None:
    """Both parties name their columns x0, x1, ...: one name, other quantities."""
    folder = shared_data / "default_credit"
    tables = {
        role: read_table(folder / f"default_credit_hetero_{role}.csv", party=role, ids=["id"])
        for role in ("guest", "host")
    }
    found = inspect_parties(tables, dict.fromkeys(tables, RULE), labels={"guest": "y"})
    assert found.kind == "vertical"
    assert found.parties[0].shared == 30_000
    assert any("use one name for columns that differ" in w for w in found.warnings)


def test_one_name_for_other_quantities_is_no_overlap() -> None:
    rng = np.random.default_rng(0)
    one, two = (table(range(100), x0=rng.normal(size=100), x1=rng.normal(size=100)) for _ in "ab")
    found = inspect(a=one, b=two)
    assert (found.kind, found.same) == ("vertical", ())
    assert any("x0, x1" in w for w in found.warnings)
