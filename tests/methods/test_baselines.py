"""What there is without federation, and what there would be in one place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from interlace import Federation, Party, run
from interlace.errors import DataError, JobError
from interlace.job.spec import Job
from interlace.methods import (
    ActiveAlone,
    BoostedTrees,
    MeanImputation,
    Pooled,
    SplitVFL,
    WithFallback,
)
from interlace.methods.catalogue import CATALOGUE, accepted, build_method
from interlace.models import BottomSpec, Optimisation
from interlace.runner import read_alone

HOW: dict[str, Any] = {
    "epochs": 25,
    "batch_size": 64,
    "bottom": BottomSpec(hidden=(16,), width=8),
    "optimisation": Optimisation(learning_rate=5e-3),
}


def two_halves(people: int, shared: int, **kwargs: Any) -> tuple[Federation, np.ndarray]:
    """The label needs one number of each party; only some people are shared."""
    x = np.random.default_rng(0).standard_normal((people, 2))
    y = (x.sum(1) > 0).astype(int)
    ids = [f"p{i}" for i in range(people)]
    bank = pl.DataFrame({"id": ids, "mine": x[:, 0], "y": y})
    shop = pl.DataFrame({"id": ids, "theirs": x[:, 1]})[people - shared :]
    fed = Federation.simulate([Party("bank", bank, label="y"), Party("shop", shop)], **kwargs)
    return fed, x


def test_alone_asks_nobody_and_uses_all_its_people() -> None:
    fed, _ = two_halves(400, 200)
    train, test = fed.split(0.25)
    before = len(list(fed.active.boundary.ledger.entries()))
    alone = ActiveAlone(**HOW).fit(train)
    assert 0.65 < alone.score(test) < 0.85, "half of what decides is at the other party"
    assert len(list(fed.active.boundary.ledger.entries())) == before
    assert alone.predict_proba(fed).shape == (400, 2)


def test_pooled_sees_what_split_sees() -> None:
    fed, _ = two_halves(400, 400)
    train, test = fed.split(0.25)
    assert Pooled(**HOW).fit(train).score(test) > 0.93
    assert SplitVFL(**HOW).fit(train).score(test) > 0.93


def test_pooled_scales_a_partners_columns_by_the_shared_people() -> None:
    fed, x = two_halves(400, 40)
    own = Pooled(**{**HOW, "epochs": 1}).fit(fed).own_
    assert own is not None
    (mine, theirs) = own.plan.columns
    assert theirs.scale == pytest.approx(x[360:, 1].std())
    assert not theirs.indicator, "nobody it learns from lacks the column"
    assert mine.scale == pytest.approx(x[360:, 0].std())


def test_every_model_reads_a_column_as_its_partys_whole_table_has_it() -> None:
    """Nobody who is shared has the value that makes the column a category."""
    ids = [f"p{i}" for i in range(90)]
    bank = Party("bank", {"id": ids[:60], "n": range(60), "y": [0, 1] * 30}, label="y")
    shop = Party("shop", {"id": ids[30:], "rooms": ["1", "2", "3"] * 19 + ["4+"] * 3})
    fed = Federation.simulate([bank, shop])
    pooled = Pooled(**{**HOW, "epochs": 1}).fit(fed).own_
    assert pooled is not None
    assert [report.became for report in pooled.plan.report] == ["numbers", "category"]
    SplitVFL(**{**HOW, "epochs": 1}).fit(fed)
    assert [*shop.sides.values()][-1].bottom.plan.columns[0].kind == "category"  # type: ignore[attr-defined]
    BoostedTrees(n_estimators=1, encryption="none").fit(fed)
    assert [*shop.sides.values()][-1].binning.columns[0].kind == "category"  # type: ignore[attr-defined]
    (report,) = read_alone(shop, np.arange(30))
    assert report.became == "category"


def test_missing_views_are_filled_by_the_mean_of_the_training_people() -> None:
    fed, x = two_halves(400, 200)
    train, test = fed.split(0.25)
    model = MeanImputation(**HOW)
    joined = model._people(train).active.frame["shop.theirs"].to_numpy()
    seen = np.setdiff1d(np.arange(200, 400), test.rows)
    np.testing.assert_allclose(joined[:200], x[seen, 1].mean(), rtol=1e-6)
    np.testing.assert_allclose(joined[200:], x[200:, 1])
    assert model.fit(train).score(test) > 0.8


def test_what_is_no_number_has_no_say_in_the_mean() -> None:
    bank = pl.DataFrame({"id": list("abcdef"), "n": range(6), "y": [0, 1, 0, 1, 0, 1]})
    shop = pl.DataFrame({"id": list("abcd"), "kg": [1.0, 3.0, float("nan"), float("inf")]})
    fed = Federation.simulate([Party("bank", bank, label="y"), Party("shop", shop)])
    joined = MeanImputation()._people(fed).active.frame
    assert joined["shop.kg"].to_list()[4:] == [2.0, 2.0]


def test_categories_are_filled_by_the_most_frequent_level() -> None:
    bank = pl.DataFrame({"id": list("abcdef"), "n": range(6), "y": [0, 1, 0, 1, 0, 1]})
    shop = pl.DataFrame({"id": list("abcd"), "kind": ["u", "v", "v", None], "code": [3, 3, 3, 8]})
    fed = Federation.simulate(
        [Party("bank", bank, label="y"), Party("shop", shop, categories=["code"])]
    )
    joined = MeanImputation()._people(fed).active.frame
    assert joined["shop.kind"].to_list()[4:] == ["v", "v"]
    assert joined["shop.code"].to_list()[4:] == [3, 3]
    assert joined["shop.kind"].to_list()[3] is None, "a gap of a person who is there stays a gap"


def test_a_score_of_a_missing_view_does_not_hang_on_who_else_is_scored(tmp_path: Path) -> None:
    fed, _ = two_halves(200, 100, folder=tmp_path)
    model = MeanImputation(**{**HOW, "epochs": 2}).fit(fed)
    model.save("filled")
    bank = pl.DataFrame({"id": list("abc"), "mine": [0.1, 0.2, 0.3], "y": [0, 1, 0]})
    scores = [
        filled.outputs(fed.with_tables({"bank": bank, "shop": shop}))
        for shop in (pl.DataFrame({"id": list("bc"), "theirs": [0.0, far]}) for far in (0.0, 90.0))
        for filled in (model, MeanImputation(**HOW).load("filled", fed))
    ]
    for other in scores[1:]:
        np.testing.assert_array_equal(other[:2], scores[0][:2])


@pytest.mark.parametrize("make", [Pooled, MeanImputation])
def test_a_score_of_an_image_does_not_hang_on_who_else_is_scored(
    make: Any, digits: Any, tmp_path: Path
) -> None:
    fed = digits(folder=tmp_path)
    train, test = fed.split(0.3)
    how = {**HOW, "epochs": 1, "bottom": BottomSpec(hidden=(4,), width=4)}
    model = make(**how).fit(train)
    model.save("joined")
    one = test.rows[:1]
    halves = {name: party.frame for name, party in fed.engine.parties.items()}
    few = fed.with_tables({name: frame[[*one, *train.rows[:2]]] for name, frame in halves.items()})
    for fitted in (model, make(**how).load("joined", fed)):
        np.testing.assert_allclose(
            fitted.outputs(few)[:1], fitted.outputs(fed.view(one)), rtol=1e-5
        )


def test_images_are_joined_side_by_side(digits: Any) -> None:
    fed = digits()
    joined = Pooled()._people(fed).active.frame["image"]
    assert joined.dtype.shape == (1, 8, 8)
    how = {**HOW, "epochs": 6, "bottom": BottomSpec(hidden=(8, 16), width=16)}
    train, test = fed.split(0.3)
    assert Pooled(**how).fit(train).score(test) > 0.8


def test_the_lectures_naive_answer_writes_40_for_35_40_and_45() -> None:
    bank = pl.DataFrame({"id": list("abcd"), "risk": [0, 1, 0, 1]})
    shop = pl.DataFrame({"id": list("abc"), "age": [35, 40, 45]})
    fed = Federation.simulate([Party("bank", bank, label="risk"), Party("shop", shop)])
    joined = MeanImputation()._people(fed).active.frame["shop.age"]
    assert joined.to_list() == [35, 40, 45, 40]


def test_the_lectures_grey_square_stands_in_the_table_beside_the_others(
    digits: Any, tmp_path: Path
) -> None:
    """A half image that nobody has becomes one grey; its accuracy is a row of the run's results."""
    halves = {name: p.frame for name, p in digits().engine.parties.items()}
    halves["vendor"] = halves["vendor"][:200]
    fed = Federation.simulate(
        [Party("bank", halves["bank"], label="y"), Party("vendor", halves["vendor"])]
    )
    images = np.stack(MeanImputation()._people(fed).active.frame["image"].to_list())
    assert np.ptp(images[200:, ..., 4:]) < 1e-6
    assert np.ptp(images[:200, ..., 4:]) > 1
    for name, frame in halves.items():
        frame.write_parquet(tmp_path / f"{name}.parquet")
    network = {"hidden": [4], "width": 8}
    job = Job.model_validate(
        {
            "name": "halves",
            "parties": {
                "bank": {"table": str(tmp_path / "bank.parquet"), "label": "y"},
                "vendor": {"table": str(tmp_path / "vendor.parquet")},
            },
            "method": {"name": "one_shot", "epochs": 3, "local_epochs": 3, "bottom": network},
            "seeds": [0],
        }
    )
    said: list[str] = []
    results = run(job, tmp_path / "run", progress=lambda what, _done: said.append(what))
    for name in halves:
        assert f"One-shot VFL, seed 0: {name} learns by itself, epoch 3 of 3" in said
    accuracy = {m.name: m.fits[0].metrics["accuracy"] for m in results.models}
    others = {"one_shot", "shared_only", "active_alone", "pooled"}
    assert set(accuracy) == {"mean_imputation", *others}
    assert 0.1 < accuracy["mean_imputation"] <= 1
    assert "Missing views filled in" in (tmp_path / "run/report.html").read_text()


def test_alone_needs_columns(clinics: Any) -> None:
    with pytest.raises(DataError, match="'bank': the active party has no columns"):
        ActiveAlone().fit(clinics())


def test_a_fallback_scores_those_whom_no_partner_holds(tmp_path: Path) -> None:
    fed, _ = two_halves(400, 200, folder=tmp_path)
    train, _ = fed.split(0.25)
    model = WithFallback(SplitVFL(**HOW), ActiveAlone(**HOW)).fit(train)
    sources = model.sources(fed)
    assert (sources[:200] == "alone").all()
    assert (sources[200:] == "joint").all()
    outputs = model.predict_proba(fed)
    np.testing.assert_array_equal(
        outputs[:200], model.alone.predict_proba(fed.view(np.arange(200)))
    )
    np.testing.assert_array_equal(
        outputs[200:], model.joint.predict_proba(fed.view(np.arange(200, 400)))
    )
    right = model.predict(fed) == fed.y.numpy()
    assert right[200:].mean() > right[:200].mean() + 0.05
    model.save("both")
    again = WithFallback(SplitVFL(**HOW), ActiveAlone(**HOW)).load("both", fed)
    np.testing.assert_array_equal(again.predict_proba(fed), outputs)


@pytest.mark.parametrize("name", list(CATALOGUE))
def test_every_method_can_be_named(name: str) -> None:
    counts, network = {"epochs": 3, "max_depth": 3}, {"hidden": [8], "width": 4}
    wanted = {**counts, "bottom": network, "method": {"name": "fedavg"}}
    settings = accepted(name, wanted)
    method = build_method(name, settings)
    assert all(getattr(method, key) == 3 for key in settings if key in counts)
    if "bottom" in settings:
        assert method.bottom.width == 4
    parameters = method.get_params(deep=False)
    assert type(method)(**parameters).get_params(deep=False) == parameters


@pytest.mark.parametrize(
    ("name", "settings", "complaint"),
    [
        ("splt", {}, "no method 'splt'; did you mean 'split'"),
        ("zzz", {}, "there are: split, agg"),
        ("boosting", {}, "'boosting'; there are: .*boosted_trees.*to compare with: .*active_alone"),
        ("split", {"epoch": 3}, "no hyper-parameter 'epoch'; did you mean 'epochs'"),
        ("split", {"bottom": {"widht": 3}}, "`bottom.widht`"),
        ("split", {"optimisation": {"learning_rate": -1}}, "`optimisation.learning_rate`"),
        ("split", {"epochs": 0}, "`epochs`"),
        ("split", {"epochs": "many"}, "`epochs`"),
        ("split", {"batch_size": 0}, "`batch_size`"),
        ("split", {"validation": 1.5}, "`validation`"),
        ("split", {"top": 64}, "`top"),
        ("split", {"dropout": 3}, "`dropout`"),
        ("split", {"patience": "x"}, "`patience`"),
    ],
)
def test_wrong_names_are_told(name: str, settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(JobError, match=complaint):
        build_method(name, settings)
