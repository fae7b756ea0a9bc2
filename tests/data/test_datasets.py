"""The demos' data: who holds what, and that it repeats."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal
from sklearn.datasets import load_digits

from interlace.data.datasets import caravan, clinics, digits
from interlace.data.features import FeaturePlan
from interlace.data.labels import LabelPlan
from interlace.data.partition import Split


def shared(split: Split) -> set[str]:
    return set.intersection(*(set(t["id"]) for t in split.tables.values()))


def test_caravan() -> None:
    split = caravan(shared=1000, seed=4)
    vendor, insurer = split.tables["vendor"], split.tables["insurer"]
    assert (vendor.width, insurer.width) == (1 + 43, 1 + 1 + 42)
    assert split.label not in vendor.columns
    assert split.label_party == "insurer"
    assert len(shared(split)) == 1000
    assert vendor.height + insurer.height - 1000 == 5822
    assert insurer["Purchase"].null_count() == 0
    assert LabelPlan.fit(insurer["Purchase"], party="insurer").classes == ("No", "Yes")
    assert_frame_equal(caravan(shared=1000, seed=4).tables["vendor"], vendor)
    assert vendor["id"].to_list() != caravan(shared=1000, seed=5).tables["vendor"]["id"].to_list()


def test_clinics() -> None:
    split = clinics()
    assert {p: t.width for p, t in split.tables.items()} == {
        "mean_clinic": 11,
        "error_clinic": 11,
        "worst_clinic": 11,
        "registry": 2,
    }
    assert split.tables["registry"].columns == ["id", "diagnosis"]
    assert len(shared(split)) == split.tables["registry"].height == 500
    assert split.tables["mean_clinic"].height == 523


def test_digits() -> None:
    split = digits(shared=900)
    assert len(shared(split)) == 900
    joined = split.tables["left"].join(split.tables["right"], on="id").sort("id")
    whole = np.concatenate([joined["image"].to_numpy(), joined["image_right"].to_numpy()], axis=2)
    place = joined["id"].str.slice(1).cast(pl.Int64).to_numpy() - 1
    assert np.array_equal(whole, load_digits().images[place])
    assert np.array_equal(joined["digit"].to_numpy(), load_digits().target[place])
    plan = FeaturePlan.fit(split.tables["left"], ["image"], np.arange(50), party="left")
    assert plan.spec.image == (1, 8, 4)


@pytest.mark.parametrize("make", [caravan, clinics, digits])
def test_each_says_what_it_is(make: object) -> None:
    split = make()  # type: ignore[operator]
    assert split.description.endswith(".")
    assert split.label in split.tables[split.label_party].columns
