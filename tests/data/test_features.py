"""Preprocessing: what columns become, learnt from training rows alone, saved exactly."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from interlace.data.columns import column_notes, read_columns
from interlace.data.features import FeaturePlan
from interlace.data.spec import InputSpec
from interlace.errors import DataError


def fit(
    frame: pl.DataFrame | dict[str, Any], rows: Any = None, categories: Sequence[str] = ()
) -> FeaturePlan:
    frame = pl.DataFrame(frame)
    rows = np.arange(frame.height) if rows is None else rows
    readings = read_columns(frame, frame.columns, categories)
    return FeaturePlan.fit(
        frame, frame.columns, rows, party="bank", file="f.csv", readings=readings
    )


def transform(values: Any, **options: Any) -> tuple[FeaturePlan, torch.Tensor]:
    frame = pl.DataFrame({"x": values})
    plan = fit(frame, **options)
    return plan, plan.transform(frame)


# --- numbers -----------------------------------------------------------------------------------


def test_numbers_are_standardised() -> None:
    plan, out = transform([1.0, 2.0, 3.0, 6.0])
    assert plan.spec == InputSpec(1, (), None, ("x",))
    assert out.dtype == torch.float32
    assert out.mean().item() == pytest.approx(0.0, abs=1e-6)
    assert out.std(correction=0).item() == pytest.approx(1.0, abs=1e-6)


def test_a_gap_becomes_the_median_and_an_indicator() -> None:
    plan, out = transform([1.0, None, 3.0, math.nan, math.inf, 8.0])
    assert plan.spec.names == ("x", "x missing")
    assert out[:, 1].tolist() == [0, 1, 0, 1, 1, 0]
    assert out[1, 0] == out[3, 0] == out[4, 0] == out[2, 0]  # 3 is the median
    assert (plan.report[0].gaps, plan.report[0].infinities) == (3, 1)


def test_a_gap_that_training_never_had_is_the_median_alone() -> None:
    plan = fit({"x": [1.0, 2.0, 6.0]})
    later = plan.transform(pl.DataFrame({"x": [None, math.inf, 2.0]}, schema={"x": pl.Float64}))
    assert later.shape == (3, 1)
    assert later[0] == later[1] == later[2]


def test_extreme_values_are_clipped_and_all_is_finite() -> None:
    plan = fit({"x": [0.0, 1.0, 2.0]})
    out = plan.transform(pl.DataFrame({"x": [1e30, -1e30, 1e300]}))
    assert out[:2, 0].tolist() == [10.0, -10.0]
    assert out.isfinite().all()


@pytest.mark.parametrize(
    ("values", "inputs"),
    [
        ([True, False, None, True], 2),
        (["1", " 2.5 ", "NA", "?"], 2),
        ([timedelta(days=1), timedelta(days=3)], 1),
        (pl.Series([1, 5], dtype=pl.Decimal(6, 2)), 1),
    ],
    ids=["boolean", "text", "duration", "decimal"],
)
def test_what_else_is_a_number(values: Any, inputs: int) -> None:
    plan, out = transform(values)
    assert plan.report[0].became == "numbers"
    assert plan.spec.numeric == inputs == out.shape[1]


def test_few_whole_numbers_are_a_quantity_unless_named_as_categories() -> None:
    codes = [1, 2, 3, 2, 1]
    plan, _ = transform(codes)
    assert plan.spec.numeric == 1
    assert plan.report[0].unless == "they are codes"
    some = fit({"x": [*codes, *range(40)]}, range(len(codes)))  # of which the table has many more
    assert some.report[0].note is None
    plan, out = transform(codes, categories=["x"])
    assert plan.spec.cardinalities == (4,)
    assert out[:, 0].tolist() == [1, 2, 3, 2, 1]
    as_text = plan.transform(pl.DataFrame({"x": ["3", " 1", "9"]}))
    assert as_text[:, 0].tolist() == [3, 1, 0]
    as_float = plan.transform(pl.DataFrame({"x": [3.0, math.nan]}))
    assert as_float[:, 0].tolist() == [3, 0]


def test_text_with_leading_zeros_is_a_code() -> None:
    plan, _ = transform(["01067", "10115", "01067"])
    assert plan.report[0].became == "category"


# --- categories --------------------------------------------------------------------------------


def test_an_unseen_or_missing_level_is_zero() -> None:
    plan, out = transform(["b", "a", "b", None, " "])
    assert plan.spec == InputSpec(0, (3,), None, ("x",))
    assert out[:, 0].tolist() == [1, 2, 1, 0, 0]
    assert plan.transform(pl.DataFrame({"x": ["z", "a", " b "]}))[:, 0].tolist() == [0, 2, 1]


def test_many_levels_keep_the_frequent_ones_and_hash_the_others() -> None:
    values = ["common"] * 300 + [f"v{i}" for i in range(200) for _ in range(2)]
    plan, out = transform(values)
    assert plan.spec.cardinalities == (1 + 64 + 16,)
    assert out[:300].eq(1).all()
    assert out.min() >= 1
    assert (plan.report[0].levels, "16 codes" in (plan.report[0].note or "")) == (201, True)
    unseen = plan.transform(pl.DataFrame({"x": ["unseen", None]}))[:, 0]
    assert 65 <= unseen[0] < 81
    assert unseen[1] == 0
    # The hash is of the text alone, so it is the same on every machine and in every run.
    assert plan.transform(pl.DataFrame({"x": ["unseen"]}))[0, 0] == unseen[0] == 66


def test_a_rare_level_has_no_code_of_its_own() -> None:
    plan, out = transform(["a"] * 2000 + ["b"] * 1000 + ["c", "d"])
    assert plan.spec.cardinalities == (1 + 2 + 2,)
    assert set(out[-2:, 0].tolist()) <= {3.0, 4.0}
    assert "share 2 codes" in (plan.report[0].note or "")
    alone, _ = transform(["a"] * 2000 + ["b"] * 1000 + ["c"])
    assert alone.report[0].note is None, "one level shares its code with none"


def test_text_that_differs_in_every_row_is_left_out_unless_named() -> None:
    values = {"name": [f"person {i}" for i in range(100)], "x": list(range(100))}
    plan = fit(values)
    assert plan.spec.names == ("x",)
    assert plan.report[0].became == "dropped"
    assert fit(values, categories=["name"]).spec.names == ("x", "name")


def test_numbers_come_before_categories_in_their_own_order() -> None:
    frame = pl.DataFrame(
        {"c": ["u", "v", "u"], "n": [1, 2, 4], "d": ["p", "p", "q"], "m": [5, 5, 6]}
    )
    plan = fit(frame)
    assert plan.spec == InputSpec(2, (3, 3), None, ("n", "m", "c", "d"))
    assert plan.spec.width == 4
    assert plan.transform(frame, rows=[2, 0])[:, 2:].tolist() == [[1, 2], [1, 1]]


# --- dates -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spelling",
    ["%Y-%m-%d", "%d.%m.%Y", "%Y/%m/%d", "%d %b %Y", "%Y-%m-%dT%H:%M:%S", None],
)
def test_dates_however_they_are_written(spelling: str | None) -> None:
    days = [date(2020, 1, 31), date(2021, 7, 5), date(2021, 12, 24)]
    values: list[Any] = [d if spelling is None else d.strftime(spelling) for d in days]
    plan, out = transform(values)
    assert plan.spec.names == (
        "x age",
        "x year",
        "x month sin",
        "x month cos",
        "x weekday sin",
        "x weekday cos",
    )
    age = np.array([(days[2] - d).days for d in days])
    np.testing.assert_allclose(out[:, 0], (age - age.mean()) / age.std(), rtol=1e-5)
    np.testing.assert_allclose(out[:, 2], [0.0, 0.0, -0.5], atol=1e-6)
    np.testing.assert_allclose(out[:, 3], [1.0, -1.0, 0.866025], atol=1e-6)


def test_american_dates_and_ambiguous_ones() -> None:
    plan, _ = transform(["01/31/2020", "02/01/2020"])
    assert plan.report[0].note is None
    plan, _ = transform(["01/02/2020", "02/03/2020"])
    assert "read as day/month" in (plan.report[0].note or "")


def test_a_gap_among_dates_is_zero_and_marked() -> None:
    plan, out = transform(["Mar-2018", None, "Apr-2018"])
    assert plan.report[0].became == "date parts"
    assert plan.spec.names[-1] == "x missing"
    assert out[1, :-1].eq(0).all()
    assert out[:, -1].tolist() == [0, 1, 0]
    zoned = pl.Series([datetime(2020, 1, 1), datetime(2020, 3, 1)]).dt.replace_time_zone("UTC")
    assert transform(zoned)[0].report[0].became == "date parts"


# --- mixed columns -----------------------------------------------------------------------------

NUMBERS = [f"{i}.5" for i in range(60)]
DAYS = [(date(2022, 1, 1) + timedelta(days=7 * i)).strftime("%d.%m.%Y") for i in range(60)]


@pytest.mark.parametrize(
    ("most", "others", "became", "unread", "said"),
    [
        (NUMBERS, ["n/a", "NA", "-", None], "numbers", 0, None),
        (NUMBERS, ["4 kWh", "?", "5 kWh"], "numbers", 2, "2 of 62 values do not read as numbers"),
        (DAYS, ["2022-07-01"], "date parts", 1, "1 of 61 values do not read as dates of the form"),
        (NUMBERS[:40], ["k"] * 20, "category", 20, "20 of 60 values do not read as numbers"),
        (NUMBERS, [f"{i} kWh" for i in range(30)], "dropped", 30, "so the column is left out"),
        (DAYS[:31], [f"2022-07-{i:02}" for i in range(1, 31)], "category", 30, "of the form DD.MM"),
        (["1", "2", "3"] * 20, ["4+"] * 3, "category", 3, "3 of 63 values do not read"),
        (["a", "b"] * 20, NUMBERS[:30], "category", 0, None),
    ],
    ids=[
        "marks",
        "numbers",
        "dates",
        "too many",
        "left out",
        "two forms",
        "few levels",
        "no numbers",
    ],
)
def test_a_few_values_that_do_not_read_are_gaps_and_told(
    most: list[str], others: list[str | None], became: str, unread: int, said: str | None
) -> None:
    report = fit({"x": [*most, *others], "y": list(range(len(most) + len(others)))}).report[0]
    assert (report.became, report.unread) == (became, unread)
    if became in ("numbers", "date parts"):
        assert report.gaps == len(others)
    assert (said or "") in (report.note or "")
    assert (said is None) == (report.note is None)
    (note,) = column_notes([report], ["z"]) if unread else ("",)
    assert ("`categories: [z, x]`" in note) == bool(unread)
    assert not any(text in note for text in ("kWh", "2022-07", "4+"))


def test_decimal_commas_that_could_be_something_else_are_told() -> None:
    plan = fit({"x": [f"{i},{i % 7}" for i in range(99)], "y": range(99)})
    assert plan.report[0].became == "dropped"
    assert (plan.report[0].note or "").startswith("these look like decimal commas; for numbers")
    listed = fit({"x": ["a, b", "c, 1", "1,2", "b"] * 20, "y": range(80)}).report[0]
    assert listed.note is None


def test_columns_of_one_note_stand_together_and_their_line_is_yaml() -> None:
    whole = [1, 2, 3, 2, 1]
    (note,) = column_notes(fit({"# calls": whole, "late (12m)": whole, "a: b": whole}).report)
    assert note.startswith("'# calls', 'late (12m)', 'a: b': few different whole numbers")
    line = note.partition("`")[2].partition("`")[0]
    assert yaml.safe_load(line) == {"categories": ["# calls", "late (12m)", "a: b"]}


@pytest.mark.parametrize(
    ("most", "others", "became"),
    [
        (NUMBERS, ["4 kWh"] * 3, "numbers"),
        (["1", "2", "3"] * 20, ["4+"] * 3, "category"),
        (["01/02/2020", "02/03/2020"] * 30, ["01/31/2020"] * 30, "date parts"),
        ([f"{i} a" for i in range(70)], ["x"] * 30, "category"),
    ],
    ids=["numbers", "few levels", "month/day", "levels"],
)
def test_how_a_column_is_read_hangs_on_no_choice_of_training_rows(
    most: list[str], others: list[str], became: str
) -> None:
    frame = pl.DataFrame({"x": [*most, *others], "y": range(len(most) + len(others))})
    whole = fit(frame)
    some = fit(frame, np.arange(len(most)))  # none of the others among them
    assert whole.report[0].became == some.report[0].became == became
    plans = [plan.columns[0] for plan in (whole, some)]
    if became == "category":  # levels are learnt, and the others were not seen
        assert not set(some.columns[0].levels) & set(others)  # type: ignore[union-attr]
    elif became == "date parts":
        assert {plan.format for plan in plans} == {"%m/%d/%Y"}  # type: ignore[union-attr]
    else:
        assert not some.columns[0].indicator  # type: ignore[union-attr]
    assert whole.report[0].unread == some.report[0].unread


# --- what is left out and refused --------------------------------------------------------------


def test_constant_and_missing_columns_are_left_out_and_reported() -> None:
    plan = fit(
        {
            "x": [1, 2, 3],
            "one": [7.5, 7.5, 7.5],
            "none": [None, None, None],
            "nan": [math.nan] * 3,
            "text": ["a", "a", "a"],
            "blank": ["", " ", None],
            "day": [date(2020, 1, 1)] * 3,
            "known": [5, None, 5],
        }
    )
    assert plan.spec.names == ("x", "known missing")
    became = {r.name: r.became for r in plan.report}
    assert [n for n, b in became.items() if b == "dropped"] == [
        "one",
        "none",
        "nan",
        "text",
        "blank",
        "day",
    ]
    assert became["known"] == "missing indicator"
    assert all(r.note for r in plan.report if r.became == "dropped")


def refused(frame: pl.DataFrame | dict[str, Any], said: str, **options: Any) -> DataError:
    with pytest.raises(DataError, match=said) as caught:
        fit(frame, **options)
    assert (caught.value.party, caught.value.file) == ("bank", "f.csv")
    assert caught.value.way_out
    return caught.value


def test_an_error_about_the_type_does_not_name_its_categories() -> None:
    plan = fit({"a": [1.0, 2.0, 3.0]})
    levels = pl.DataFrame({"a": pl.Series(["secret"], dtype=pl.Enum(["secret", "none"]))})
    with pytest.raises(DataError, match=r"none of its 1 values \(Enum\)") as caught:
        plan.transform(levels)
    assert "secret" not in str(caught.value)
    arrays = pl.Series("a", [[["secret"]]], dtype=pl.List(pl.List(pl.Enum(["secret", "none"]))))
    assert "secret" not in str(refused(pl.DataFrame([arrays]), "hold Enum and not numbers"))


def test_faults_are_named() -> None:
    refused({"a": [1, 1], "b": [None, None]}, "none of its 2 columns")
    refused({"a": [1, 2]}, "no training row", rows=[])
    assert refused({"a": [{"u": 1}, {"u": 2}]}, "cannot be a feature").column == "a"
    assert refused({"a": [b"no image", b"x"]}, "no training image").column == "a"
    refused({"a": [[1, 2], [3, 4]]}, "are no images")
    refused({"a": [[[1, 2], [3, 4]], [[1], [2]]]}, "differ in shape")
    refused({"a": [[["u"]], [["v"]]]}, "not numbers")
    refused({"a": np.ones((3, 4, 4))}, "all pixels")
    refused({"a": np.random.default_rng(0).random((3, 4, 4)), "b": [1, 2, 3]}, "among other")
    with pytest.raises(DataError, match="Did you mean 'age'"):
        FeaturePlan.fit(pl.DataFrame({"age": [1]}), ["agee"], [0], party="p")


def test_a_table_that_lost_or_changed_a_column_is_refused() -> None:
    plan = fit({"x": [1, 2, 3], "when": ["2020-01-01", "2020-01-02", "2020-02-05"]})
    good = {"x": [1], "when": ["2020-05-05"]}
    assert plan.transform(pl.DataFrame(good)).isfinite().all()
    with pytest.raises(DataError, match="no column of this name"):
        plan.transform(pl.DataFrame({"x": [1]}))
    for change in ({"x": ["secret"]}, {"when": ["secret"]}, {"x": [[1, 2]]}):
        with pytest.raises(DataError, match="can be read as what it was") as caught:
            plan.transform(pl.DataFrame({**good, **change}))
        assert "secret" not in str(caught.value)


# --- images ------------------------------------------------------------------------------------


def encoded(pixels: np.ndarray[Any, Any]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return buffer.getvalue()


def test_images_as_arrays_and_as_bytes_are_the_same() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 6, 4, 3), dtype=np.uint8)
    arrays = pl.DataFrame({"x": pl.Series(pixels)})
    files = pl.DataFrame({"x": [encoded(p) for p in pixels]})
    lists = pl.DataFrame({"x": pixels.tolist()})
    first = pl.DataFrame({"x": pl.Series(np.ascontiguousarray(np.moveaxis(pixels, -1, 1)))})
    outs = [fit(f).transform(f) for f in (arrays, files, lists, first)]
    assert outs[0].shape == (5, 3, 6, 4)
    assert fit(arrays).spec == InputSpec(0, (), (3, 6, 4), ("x",))
    np.testing.assert_allclose(outs[0].mean(dim=(0, 2, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(outs[0].std(dim=(0, 2, 3), correction=0), 1, atol=1e-5)
    for out in outs[1:]:
        torch.testing.assert_close(out, outs[0])
    one = fit(files).transform(files, rows=[3])
    torch.testing.assert_close(one[0], outs[1][3])


def test_grey_images_missing_and_broken_ones_and_other_sizes() -> None:
    rng = np.random.default_rng(1)
    good = [encoded(rng.integers(0, 256, (6, 4), dtype=np.uint8)) for _ in range(3)]
    odd = encoded(rng.integers(0, 256, (12, 8), dtype=np.uint8))
    frame = pl.DataFrame({"x": [*good, odd, None, b"broken"]})
    plan = fit(frame)
    assert plan.spec.image == (1, 6, 4)
    assert plan.report[0].gaps == 2
    assert "1 images of another size are resized to 4x6" in (plan.report[0].note or "")
    out = plan.transform(frame)
    assert out[4:].eq(0).all()
    assert out[3].abs().sum() > 0
    later = pl.Series([None, rng.random((7, 4)).tolist()])
    with pytest.raises(DataError, match="shape"):
        fit({"x": rng.random((3, 6, 4))}).transform(pl.DataFrame({"x": later}))


# --- properties --------------------------------------------------------------------------------

COLUMN = st.one_of(
    st.lists(st.one_of(st.none(), st.floats()), min_size=6, max_size=6).map(
        lambda v: pl.Series(v, dtype=pl.Float64)
    ),
    st.lists(st.one_of(st.none(), st.integers(-5, 5)), min_size=6, max_size=6).map(
        lambda v: pl.Series(v, dtype=pl.Int64)
    ),
    st.lists(
        st.one_of(st.none(), st.sampled_from(["a", "b", "1", "NA", "2020-01-02", ""])),
        min_size=6,
        max_size=6,
    ).map(lambda v: pl.Series(v, dtype=pl.String)),
    st.lists(st.one_of(st.none(), st.dates(date(1900, 1, 1))), min_size=6, max_size=6).map(
        lambda v: pl.Series(v, dtype=pl.Date)
    ),
)
FRAMES = st.lists(COLUMN, min_size=1, max_size=4).map(
    lambda columns: pl.DataFrame([c.alias(f"c{i}") for i, c in enumerate(columns)])
)
ANCHOR = pl.Series("anchor", [0, 1, 2, 3, 4, 5])  # so that some column always tells rows apart


@given(FRAMES, st.permutations([3, 4, 5]))
def test_nothing_is_learnt_from_rows_outside_training(frame: pl.DataFrame, other: Any) -> None:
    frame = frame.with_columns(ANCHOR)
    readings = read_columns(frame, frame.columns)

    def learnt(frame: pl.DataFrame) -> FeaturePlan:
        return FeaturePlan.fit(frame, frame.columns, [0, 1, 2], party="bank", readings=readings)

    plan = learnt(frame)
    assert learnt(pl.concat([frame[:3], frame[other].select(pl.all().reverse())])) == plan
    assert learnt(frame[:3]) == plan


@given(FRAMES)
def test_the_saved_plan_is_the_plan_and_its_output_is_finite(frame: pl.DataFrame) -> None:
    frame = frame.with_columns(ANCHOR)
    plan = fit(frame, [0, 1, 2])
    again = FeaturePlan.from_json(plan.to_json())
    assert again == plan
    out = plan.transform(frame)
    assert out.isfinite().all()
    assert out.shape == (6, plan.spec.width)
    assert torch.equal(again.transform(frame), out)
    for i, cardinality in enumerate(plan.spec.cardinalities, start=plan.spec.numeric):
        assert out[:, i].min() >= 0
        assert out[:, i].max() < cardinality


def test_a_saved_plan_of_images_is_the_plan() -> None:
    plan = fit({"x": np.random.default_rng(0).random((3, 5, 5))})
    assert FeaturePlan.from_json(plan.to_json()) == plan


def test_what_is_no_saved_plan_is_refused_without_its_text() -> None:
    with pytest.raises(DataError) as caught:
        FeaturePlan.from_json('{"columns": [{"levels": ["secret"]}]}')
    assert "secret" not in str(caught.value)
