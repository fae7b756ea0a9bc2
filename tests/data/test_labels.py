"""The label column: tasks, classes, gaps, and the faults that must be named."""

from __future__ import annotations

import math
import re
from typing import Any

import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from interlace.data.labels import LabelPlan
from interlace.errors import DataError


def fit(values: Any, task: Any = "auto", dtype: Any = None) -> LabelPlan:
    return LabelPlan.fit(pl.Series("y", values, dtype=dtype), party="bank", file="f.csv", task=task)


@pytest.mark.parametrize(
    ("values", "task", "classes"),
    [
        ([0, 1, 1, None], "binary", (0, 1)),
        ([0.0, 1.0, math.nan], "binary", (0, 1)),
        ([-1, 1], "binary", (-1, 1)),
        ([True, False, None], "binary", (False, True)),
        (["Yes", "No", "No", ""], "binary", ("No", "Yes")),
        (["2", "10", "NA", "2"], "binary", (2, 10)),
        ([0, 1, 0, 2], "multiclass", (0, 1, 2)),
        (["a", "b", "c", "a"], "multiclass", ("a", "b", "c")),
        (list(range(11)), "regression", ()),
        ([0.5, 1.5], "regression", ()),
        (["1.5", "2", "?"], "regression", ()),
        ([["a"], ["b", "a"], []], "multilabel", ("a", "b")),
        ([[1], [3, 1], None], "multilabel", (1, 3)),
    ],
)
def test_the_task_is_read_off_the_values(values: Any, task: str, classes: Any) -> None:
    plan = fit(values)
    assert plan.task == task
    assert plan.classes == classes
    assert [type(c) for c in plan.classes] == [type(c) for c in classes]
    assert LabelPlan.from_json(plan.to_json()) == plan.model_copy(update={"file": None})
    assert [type(c) for c in LabelPlan.from_json(plan.to_json()).classes] == [
        type(c) for c in classes
    ]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (["yes", "no", "Yes", "N/A", " no"], "1 differs .* and 1 looks like a mark"),
        (["high risk", "highrisk", "low"], "of its 3 classes 1 differs from another only by"),
        (["yes", "no", "?"], "of its 3 classes 1 looks like a mark for a missing label; write"),
        (["a", "b", "a"], None),
    ],
)
def test_classes_that_may_be_none_of_their_own_are_counted(values: Any, said: str | None) -> None:
    note = fit([*values, *values]).note
    assert (note is None) == (said is None)
    assert re.search(said or "", note or "")
    assert not any(text in (note or "") for text in ("yes", "Yes", "risk", "?"))


@pytest.mark.parametrize(
    ("classes", "named", "place"),
    [
        (["no", "yes"], True, 1),
        (["No", "Yes"], False, 0),
        (["bad", "off"], False, 1),
        (["no", "off"], False, None),  # either could be meant
        (["no", "yes"], "maybe", None),
        (["a", "b"], True, None),
        ([0, 1], True, 1),
        ([False, True], 0, 0),
    ],
)
def test_a_class_is_named_by_a_job_as_yaml_reads_it(
    classes: Any, named: Any, place: int | None
) -> None:
    assert fit(classes * 2).place(named) == place


def test_the_labels_of_the_worked_case_keep_their_codes() -> None:
    plan = fit([0, 1, 0, 2])
    assert plan.encode(pl.Series([0, 1, 0, 2])).tolist() == [0, 1, 0, 2]
    assert plan.counts == (2, 1, 1)


def test_a_row_without_a_label_is_unlabelled_and_counted() -> None:
    plan = fit(["yes", None, "no", " ", "no"])
    assert (plan.unlabelled, plan.counts) == (2, (2, 1))
    codes = plan.encode(pl.Series(["no", None, "yes"]))
    assert codes.dtype == torch.int64
    assert codes.tolist() == [0, -1, 1]


def test_numbers_and_the_text_that_spells_them_are_one_class() -> None:
    plan = fit([3, 5, 3])
    assert plan.encode(pl.Series(["5", "3", "NA"])).tolist() == [1, 0, -1]
    assert plan.encode(pl.Series([5.0, math.nan])).tolist() == [1, -1]


def test_regression_keeps_targets_and_their_scale() -> None:
    plan = fit([1.0, 2.5, None, 4.0])
    target = plan.encode(pl.Series([1.0, None]))
    assert target.dtype == torch.float32
    assert target[0] == 1.0
    assert target[1].isnan()
    assert plan.center == pytest.approx(2.5)
    assert plan.scale == pytest.approx(1.5**0.5)


def test_whole_numbers_can_be_classes_or_targets_as_told() -> None:
    grades = list(range(20)) * 2
    assert fit(grades).note is not None
    assert len(fit(grades, "multiclass").classes) == 20
    assert fit([0, 1, 0], "regression").task == "regression"
    assert fit([0, 1, 0], "multiclass").task == "multiclass"


def test_multi_label_marks() -> None:
    plan = fit([["a"], ["b", "a"], []])
    marks = plan.encode(pl.Series([["b"], None, ["a", "b"]]))
    assert marks[[0, 2]].tolist() == [[0, 1], [1, 1]]
    assert marks[1].isnan().all()
    text = fit(["a|b", "b", None], "multilabel")
    assert text.classes == ("a", "b")
    assert (text.counts, text.unlabelled) == ((1, 2), 1)
    arrays = fit([[0, 1], [1, 1]], dtype=pl.Array(pl.Int8, 2))
    assert arrays.encode(pl.Series([[1, 0]], dtype=pl.Array(pl.Int8, 2))).tolist() == [[1, 0]]
    struct = fit([{"u": True, "v": False}, {"u": False, "v": True}, {"u": True, "v": None}])
    assert (struct.classes, struct.unlabelled) == (("u", "v"), 1)


@pytest.mark.parametrize(
    ("values", "task", "said"),
    [
        ([1, 1, None], "auto", "all 2 labels are of one class"),
        (["no", "no"], "auto", "one class"),
        ([True, True], "auto", "one class"),
        ([None, None], "auto", "every label is missing"),
        (["", " "], "auto", "every label is missing"),
        ([math.nan, math.nan], "auto", "every label is missing"),
        (["ann", "bob", "cid"], "auto", "a value of its own"),
        ([1.5, math.inf, 2.0], "auto", "1 targets are infinite"),
        ([2.5, 2.5], "auto", "all targets are the same"),
        ([1.5, 2.5], "binary", "fractions"),
        ([1, 2, 3], "binary", "3 classes"),
        (["low", "high"], "regression", "cannot pose a regression"),
        ([["a"], ["a"]], "auto", "same labels"),
        ([0, 1], "multilabel", "cannot pose a multilabel"),
        ([b"x", b"y"], "auto", "cannot be a label"),
    ],
)
def test_faults_of_a_label_are_named(values: Any, task: Any, said: str) -> None:
    with pytest.raises(DataError, match=said) as caught:
        fit(values, task)
    assert (caught.value.party, caught.value.file, caught.value.column) == ("bank", "f.csv", "y")
    assert caught.value.way_out


@pytest.mark.parametrize(
    ("train", "later", "said"),
    [
        (["a", "b"], ["a", "secret", "secret"], "2 rows are of a class that training never saw"),
        ([0, 1], [0, 7], "1 rows are of a class"),
        ([0, 1], ["0", "secret"], "1 labels are no numbers"),
        ([0.5, 1.5], [math.inf], "infinite"),
        ([["a"], ["b"]], [["secret"]], "1 rows are of a class"),
    ],
)
def test_a_class_that_training_never_saw_is_refused_without_its_value(
    train: Any, later: Any, said: str
) -> None:
    with pytest.raises(DataError, match=said) as caught:
        fit(train).encode(pl.Series("y", later))
    assert (caught.value.party, caught.value.column) == ("bank", "y")
    assert "secret" not in str(caught.value)
    assert "7" not in str(caught.value)


@given(st.lists(st.one_of(st.none(), st.sampled_from("abcd")), min_size=1, max_size=20))
def test_codes_lead_back_to_the_labels(values: list[str | None]) -> None:
    training = [*values, "a", "b", "a", "b"]
    plan = fit(training)
    codes = plan.encode(pl.Series(values, dtype=pl.String)).tolist()
    assert [None if c < 0 else plan.classes[c] for c in codes] == values
    assert sum(plan.counts) + plan.unlabelled == len(training)


def test_a_saved_plan_that_is_none_is_refused_without_its_text() -> None:
    with pytest.raises(DataError) as caught:
        LabelPlan.from_json('{"classes": ["secret"]}')
    assert "secret" not in str(caught.value)


def test_an_error_about_the_type_does_not_name_its_categories() -> None:
    diagnosis = pl.Series("y", ["secret", "none"], dtype=pl.Enum(["secret", "none"]))
    with pytest.raises(DataError, match="type Enum cannot pose a regression") as caught:
        LabelPlan.fit(diagnosis, party="clinic", task="regression")
    assert "secret" not in str(caught.value)
