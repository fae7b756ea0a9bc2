"""What the report says of a horizontal federation and of no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from interlace.job.results import Results
from interlace.report import write_report
from interlace.report.horizontal import by_party, drift
from interlace.report.verdict import judge, to_show, who_alone


@pytest.fixture
def wards(examples: list[Results]) -> Results:
    """Three wards and a server."""
    return next(r for r in examples if r.geometry == "horizontal")


def test_drift_is_drawn_by_round_with_every_seed(wards: Results) -> None:
    distance, angle = drift(wards.models[0], "method")
    seeds = len(wards.seeds)
    assert (distance.x_label, len(distance.lines), len(angle.lines)) == ("round", seeds + 1, 4)
    assert [line.faint for line in distance.lines] == [True] * seeds + [False]
    assert angle.y_label == "degrees"
    one = wards.models[0].model_copy(update={"fits": wards.models[0].fits[:1]})
    assert [line.faint for line in drift(one, "method")[0].lines] == [False]


def test_without_single_updates_there_is_no_drift_to_draw(wards: Results) -> None:
    for fit in wards.models[0].fits:
        for epoch in fit.history:
            epoch.distance = epoch.angle = None
    assert drift(wards.models[0], "method") == []
    assert drift(wards.models[1], "single") == []


def test_each_party_has_its_own_figures_beside_its_own_models(wards: Results) -> None:
    wards.models[1].fits[0].by_party["east clinic"] = {"accuracy": 0.25}
    wards.models[1].fits = wards.models[1].fits[:1]
    found = by_party(wards)
    assert found is not None
    assert [row.party for row in found.rows] == [p.name for p in wards.parties if p.people]
    alone = {row.party: row.alone for row in found.rows}
    assert alone["east clinic"] == "0.250"
    for fit in wards.models[0].fits:
        fit.by_party = {}
    assert by_party(wards) is None


def test_the_headline_compares_with_the_parties_alone(wards: Results) -> None:
    verdict = judge(wards)
    assert verdict.outcome == "gain"
    assert "what each party can do alone" in verdict.details[0]
    assert who_alone(wards) == "each party"


def test_figures_made_of_sums_are_judged_by_what_there_is(wards: Results) -> None:
    wards.task = "binary"  # whose main metrics rank people
    for model in wards.models:
        for fit in model.fits:
            fit.metrics = {m: fit.metrics[m] for m in ("accuracy", "log_loss")}
    assert to_show(wards) == ["accuracy", "log_loss"]
    assert "accuracy from" in judge(wards).headline


def test_the_page_says_nothing_of_matched_people(
    wards: Results, insurance: Results, tmp_path: Path
) -> None:
    def page(results: Results) -> str:
        return write_report(results, tmp_path / "report.html").read_text()

    here, there = page(wards), page(insurance)
    for text in (
        "drift apart",
        "How unlike the parties are",
        "on each party’s own held-out",
        "AUC, which compares people of all parties one by one, would take their scores",
    ):
        assert (text in here, text in there) == (True, False)
    for text in ("People all parties share", "holds the label"):
        assert (text in here, text in there) == (False, True)
