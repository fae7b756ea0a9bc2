"""The same columns at every party, or a refusal that says what differs; one scaling, no levels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date, timedelta
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from interlace import Federation
from interlace.boundary.message import Message
from interlace.data.columns import CategoryColumn, DateColumn, NumericColumn
from interlace.data.features import FeaturePlan
from interlace.engines import InProcess
from interlace.errors import DataError
from interlace.methods.horizontal import Agreement, FedAvg, geometry
from interlace.methods.horizontal.averaging import AveragingSide

Make = Callable[..., Federation]

rng = np.random.default_rng(5)


def people(n: int, shift: float = 0.0) -> pl.DataFrame:
    """Numbers with gaps, a date, a text and an outcome."""
    age = rng.normal(40 + shift, 10, n)
    frame = pl.DataFrame(
        {
            "age": age,
            "income": rng.lognormal(10, 1, n),
            "since": [date(2020, 1, 1) + timedelta(days=int(d)) for d in rng.integers(0, 900, n)],
            "trade": rng.choice(["baker", "farrier", "glazier"], n),
            "ill": (age + rng.normal(0, 5, n) > 40 + shift).astype(int),
        }
    )
    gap = pl.Series(rng.random(n) < 0.2)
    return frame.with_columns(income=pl.when(gap).then(None).otherwise(pl.col("income")))


def tables() -> dict[str, pl.DataFrame]:
    return {"north": people(60), "south": people(90, 5.0), "west": people(50, -5.0)}


def fitted(
    build: Make, frames: dict[str, pl.DataFrame], **kwargs: Any
) -> tuple[Federation, FedAvg]:
    fed = build(frames, label="ill", **kwargs)
    return fed, FedAvg(rounds=1, agreement=Agreement(validation=0.0, buckets=16)).fit(fed)


def test_the_scaling_is_that_of_the_pooled_table(build: Make) -> None:
    frames = tables()
    _, model = fitted(build, frames)
    pooled = pl.concat(list(frames.values()))
    found = {c.name: c for c in model.plan_.columns}
    age, income = found["age"], found["income"]
    assert isinstance(age, NumericColumn)
    assert isinstance(income, NumericColumn)
    alone = FeaturePlan.fit(pooled, ["age"], range(200), party="pooled").columns[0]
    assert isinstance(alone, NumericColumn)
    assert (age.mean, age.scale) == pytest.approx((alone.mean, alone.scale), rel=1e-12)
    filled = pooled["income"].fill_null(pooled["income"].mean()).to_numpy()
    assert (income.mean, income.scale) == pytest.approx((filled.mean(), filled.std()), rel=1e-12)
    assert income.indicator
    days = -pooled["since"].dt.epoch("d").to_numpy()
    since = found["since"]
    assert isinstance(since, DateColumn)
    assert since.parts[0].mean == pytest.approx(days.mean())
    assert since.parts[0].scale == pytest.approx(days.std())


def test_every_client_reads_its_rows_as_the_pooled_table_would_be(build: Make) -> None:
    frames = tables()
    fed, model = fitted(build, frames)
    for name, frame in frames.items():
        side = fed.engine.parties[name].sides[model.session_]  # type: ignore
        assert isinstance(side, AveragingSide)
        torch.testing.assert_close(side.x, model.plan_.transform(frame))
        assert abs(side.x[:, 0].mean()) > 0.1 or name == "north"  # scaled by all, not by its own


class Listening(InProcess):
    """Keeps every message as bytes."""

    heard: list[bytes]

    def deliver(self, message: Message) -> Message:
        answer = super().deliver(message)
        self.heard += [message.encode(), answer.encode()]
        return answer


def test_levels_of_a_category_do_not_travel(build: Make) -> None:
    fed = build(tables(), label="ill")
    engine = Listening(fed.engine.parties.values())  # type: ignore[attr-defined]
    engine.heard = []
    fed.engine = engine
    FedAvg(rounds=1).fit(fed)
    assert any(b"trade" in m for m in engine.heard)  # the column's name does
    assert not any(word in m for m in engine.heard for word in (b"baker", b"farrier", b"glazier"))


def test_agreed_levels_have_codes_of_their_own_and_others_share_buckets(build: Make) -> None:
    fed = build(tables(), label="ill")
    agreement = Agreement(levels={"trade": ("glazier", "baker")}, buckets=8)
    model = FedAvg(rounds=1, agreement=agreement).fit(fed)
    trade = model.plan_.columns[-1]
    assert isinstance(trade, CategoryColumn)
    assert trade.levels == ("glazier", "baker")
    codes = trade.transform(pl.Series("trade", ["glazier", "baker", "farrier", None]))[0]
    assert codes[:2].tolist() == [1, 2]
    assert 3 <= codes[2] < 3 + 8
    assert codes[3] == 0


def test_columns_are_matched_by_name_whatever_their_order(build: Make) -> None:
    frames = tables()
    _, model = fitted(build, frames)
    frames["south"] = frames["south"].select(frames["south"].columns[::-1])
    _, turned = fitted(build, frames)
    assert torch.equal(model.weights_, turned.weights_)


def differing() -> Iterator[tuple[str, pl.DataFrame, str]]:
    west = tables()["west"]
    yield "a column less", west.drop("age"), "it lacks 'age'"
    yield "a column more", west.with_columns(height=pl.col("age") * 2), "nobody else has 'height'"
    yield "another name", west.rename({"age": "Age"}), "'Age' is called 'age' elsewhere"
    text = west.with_columns(age=pl.col("trade"))
    yield "another type", text, "'age' is a category here and a number elsewhere"


@pytest.mark.parametrize(("what", "west", "said"), [*differing()], ids=lambda v: str(v)[:20])
def test_another_schema_is_refused_with_the_differences(
    build: Make, what: str, west: pl.DataFrame, said: str
) -> None:
    for server in (True, False):
        fed = build({**tables(), "west": west}, label="ill", server=server)
        with pytest.raises(DataError, match="not those of the other parties") as caught:
            FedAvg(rounds=1).fit(fed)
        assert caught.value.party == "west"
        assert said in str(caught.value)


def test_another_unit_in_a_columns_name_is_named(build: Make) -> None:
    euro, dollar = {"income": "income (EUR)"}, {"income": "income (USD)"}
    frames = {n: t.rename(euro if n != "west" else dollar) for n, t in tables().items()}
    with pytest.raises(DataError, match="unit of 'income' is 'USD' here and 'EUR' elsewhere"):
        fitted(build, frames)


def test_sizes_a_hundred_times_apart_are_a_warning(build: Make) -> None:
    frames = tables()
    frames["west"] = frames["west"].with_columns(pl.col("income") / 1000)
    with pytest.warns(UserWarning, match="'income' are over a hundred times as large"):
        _, model = fitted(build, frames)
    assert len(model.notes_) == 1


def test_other_columns_altogether_are_the_vertical_case(build: Make) -> None:
    shop = people(50).select("ill", spend="income", visits="age")
    fed = build({**tables(), "shop": shop}, label="ill")
    with pytest.raises(DataError, match="vertical case"):
        FedAvg(rounds=1).fit(fed)
    assert geometry({"a": {"x": "number"}, "b": {"y": "number"}}) == "vertical"
    assert geometry({"a": dict.fromkeys("xyz", "number"), "b": dict.fromkeys("yzx", "date")}) == (
        "horizontal"
    )


def test_a_column_that_is_empty_at_one_party_fits(build: Make) -> None:
    frames = tables()
    frames["west"] = frames["west"].with_columns(
        since=pl.lit(None, dtype=pl.Date), trade=pl.lit("baker")
    )
    _, model = fitted(build, frames)
    assert [c.name for c in model.plan_.columns] == ["age", "income", "since", "trade"]


def test_a_sum_over_few_values_stays_at_home(build: Make) -> None:
    frames = tables()
    only = pl.Series("age", [99.0] * 3 + [None] * 47, dtype=pl.Float64)
    frames["west"] = frames["west"].with_columns(only)
    fed, model = fitted(build, frames)
    side = fed.engine.parties["west"].sides[model.session_]  # type: ignore
    answer = AveragingSide.sums(side, {"types": "nndce"})  # type: ignore[arg-type]
    assert answer[0].tolist() == [0, 0, 0]
    assert answer[1, 0] > 0


def test_classes_are_joined_and_text_is_not_mixed_with_numbers(build: Make, digits: Make) -> None:
    frames = {n: p.frame for n, p in digits(3).engine.parties.items() if n != "server"}  # type: ignore[attr-defined]
    low, high = frames["c0"].filter(pl.col("digit") < 3), frames["c2"].filter(pl.col("digit") > 6)
    model = FedAvg(rounds=1).fit(build({"low": low, "high": high}))
    assert model.label_plan_.classes == (0, 1, 2, 7, 8, 9)
    words = high.with_columns(pl.format("d{}", "digit").alias("digit"))
    with pytest.raises(DataError, match="classes are"):
        FedAvg(rounds=1).fit(build({"low": low, "high": words}))
    given = FedAvg(rounds=1, agreement=Agreement(classes=tuple(range(10))))
    assert given.fit(build({"low": low, "high": high})).label_plan_.classes == tuple(range(10))


def test_fractions_make_a_regression_with_the_pooled_targets_scale(build: Make) -> None:
    frames = {
        n: t.with_columns(ill=pl.col("age") * 0.5 + 1).drop("age", "trade", "since")
        for n, t in tables().items()
    }
    _, model = fitted(build, frames)
    target = pl.concat(list(frames.values()))["ill"].to_numpy()
    assert model.label_plan_.task == "regression"
    assert model.objective_.centre == pytest.approx(target.mean())
    assert model.objective_.scale == pytest.approx(target.std())


def test_many_columns_are_told_page_by_page(build: Make) -> None:
    names = [f"measurement_with_a_rather_long_name_{i:03d}" for i in range(150)]
    frames = {
        p: pl.DataFrame({n: rng.normal(size=40) for n in names} | {"ill": [0, 1] * 20})
        for p in ("a", "b")
    }
    fed, model = fitted(build, frames)
    assert model.plan_.spec.numeric == 150
    asked = [e for e in fed.active.boundary.ledger.entries() if e.operation == "schema"]
    assert len(asked) > 2 * 2 * 2
