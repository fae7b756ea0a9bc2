"""The headline claims no more than was measured."""

from __future__ import annotations

import pytest

from interlace.assess import Interval
from interlace.job.results import FitResult, ModelResult, Results
from interlace.methods.catalogue import CATALOGUE
from interlace.report.verdict import better, judge, unlabelled

Seeds = dict[str, list[float]]
ROLES = {"split": "method", "pooled": "in one place"}


def told(insurance: Results, values: Seeds, metric: str = "auc", task: str = "binary") -> Results:
    """The insurance case with these values of one metric by model, seed after seed."""
    insurance.task = task
    insurance.models = [
        ModelResult(
            name=name,
            title=name.replace("_", " ").capitalize(),
            role=ROLES.get(name, "baseline"),  # type: ignore[arg-type]
            explanation="",
            fits=[FitResult(seed=i, metrics={metric: v}, seconds=1.0) for i, v in enumerate(seeds)],
        )
        for name, seeds in values.items()
    ]
    return insurance


def test_a_gain(insurance: Results) -> None:
    verdict = judge(
        told(
            insurance,
            {
                "split": [0.76, 0.77, 0.75],
                "active_alone": [0.71, 0.72, 0.70],
                "pooled": [0.77, 0.78, 0.76],
            },
        )
    )
    assert verdict.outcome == "gain"
    assert verdict.headline == "Federation raised AUC from 0.710 to 0.760."
    assert verdict.details[0].startswith("That is +0.050 (95 % interval +0.050 to +0.050, 3 seeds)")
    assert "insurer can do alone" in verdict.details[0]
    assert "all tables in one place (Pooled) it would be 0.770" in verdict.details[1]


def test_all_tables_in_one_place_can_be_no_better(insurance: Results) -> None:
    values = {"split": [0.76, 0.77], "active_alone": [0.71, 0.72], "pooled": [0.75, 0.74]}
    said = judge(told(insurance, values)).details[1]
    assert said == "All tables in one place (Pooled) reach 0.745, no better."
    values["shared_only"] = [0.73, 0.74]  # fitted beside a method that learns from others too
    said = judge(told(insurance, values)).details[1]
    assert said.endswith("no better; Pooled learns from the shared people alone.")


def test_no_clear_gain(insurance: Results) -> None:
    verdict = judge(
        told(insurance, {"split": [0.76, 0.70, 0.74], "active_alone": [0.71, 0.72, 0.73]})
    )
    assert verdict.outcome == "none"
    assert verdict.headline == (
        "Federation brought no clear gain: the interval over 3 seeds includes zero."
    )
    assert verdict.details[0].endswith("More seeds would narrow the interval.")
    assert "0.733 federated and 0.720 alone: +0.013" in verdict.details[0]


def test_more_seeds_do_not_part_equal_models(insurance: Results) -> None:
    verdict = judge(told(insurance, {"split": [0.7, 0.8], "active_alone": [0.7, 0.8]}))
    assert verdict.outcome == "none"
    assert "More seeds" not in verdict.details[0]


def test_shared_people_without_a_label_are_counted_where_the_counts_tell(
    insurance: Results,
) -> None:
    assert unlabelled(insurance) == 0
    insurance.trained_on = 2400
    assert unlabelled(insurance) == 600
    partial = next(n for n, e in CATALOGUE.items() if getattr(e.make, "partial", False))
    insurance.models[0].name = partial
    assert unlabelled(insurance) == 600  # of two parties, some is all
    insurance.parties.append(insurance.parties[1])
    assert unlabelled(insurance) == 0
    insurance.models[0].name, insurance.geometry = "split", "horizontal"
    assert unlabelled(insurance) == 0


def test_a_loss(insurance: Results) -> None:
    verdict = judge(told(insurance, {"split": [0.6, 0.61, 0.6], "active_alone": [0.7, 0.7, 0.71]}))
    assert verdict.outcome == "loss"
    assert verdict.headline == "Federation did worse than insurer alone."


def test_one_seed_claims_nothing(insurance: Results) -> None:
    verdict = judge(told(insurance, {"split": [0.9], "active_alone": [0.5]}))
    assert verdict.outcome == "open"
    assert "in a single seed" in verdict.headline
    assert "may be chance" in verdict.details[0]


def test_a_baseline_that_did_better_is_named(insurance: Results) -> None:
    values = {
        "split": [0.76, 0.77, 0.75],
        "active_alone": [0.71, 0.72, 0.70],
        "mean_imputation": [0.8, 0.81, 0.79],
    }
    verdict = judge(told(insurance, values))
    assert verdict.headline == (
        "Federation raised AUC from 0.710 to 0.760, but Mean imputation did better."
    )
    assert verdict.outcome == "none"
    assert "Mean imputation did better: AUC 0.800." in verdict.details


@pytest.mark.parametrize(
    ("values", "headline"),
    [
        (
            {"split": [0.6, 0.61], "active_alone": [0.7, 0.71], "shared_only": [0.8, 0.81]},
            "Federation did worse than insurer alone; Shared only did better too.",
        ),
        (
            {"split": [0.7, 0.72], "active_alone": [0.72, 0.71], "shared_only": [0.8, 0.82]},
            "Federation brought no gain: insurer alone is ahead, if not clearly; Shared only did "
            "better too.",
        ),
        (
            {"split": [0.72, 0.74], "active_alone": [0.72, 0.71], "shared_only": [0.8, 0.82]},
            "Federation brought no clear gain, but Shared only did better: the interval over 2 "
            "seeds includes zero.",
        ),
        (
            {"split": [0.7], "active_alone": [0.72], "shared_only": [0.6]},
            "In a single seed insurer alone is ahead: AUC is 0.720, and 0.700 federated.",
        ),
        (
            {"split": [0.7], "active_alone": [0.6], "shared_only": [0.8]},
            "AUC is 0.700 federated and 0.600 alone, in a single seed, but Shared only did better.",
        ),
        (
            {"split": [0.7, 0.71], "shared_only": [0.8, 0.81]},
            "Split reaches AUC 0.705, but Shared only did better.",
        ),
        (  # better on average, which may be chance
            {"split": [0.8, 0.81], "active_alone": [0.7, 0.71], "shared_only": [0.9, 0.75]},
            "Federation raised AUC from 0.705 to 0.805.",
        ),
    ],
)
def test_the_headline_says_who_did_better(insurance: Results, values: Seeds, headline: str) -> None:
    assert judge(told(insurance, values)).headline == headline


def test_without_the_active_party_alone_nothing_is_claimed(insurance: Results) -> None:
    verdict = judge(told(insurance, {"split": [0.76, 0.77], "mean_imputation": [0.6, 0.61]}))
    assert verdict.headline == "Split reaches AUC 0.765."
    assert "not known" in verdict.details[0]


def test_why_the_active_party_alone_is_missing(insurance: Results) -> None:
    results = told(insurance, {"split": [0.76, 0.77], "active_alone": []})
    results.models[1].skipped = "it has no columns of its own."
    details = judge(results).details
    assert details == [
        "There is no model of insurer alone to compare it with: it has no columns of its own."
    ]


def test_where_less_is_better_a_fall_is_a_gain(insurance: Results) -> None:
    # With a class missing among the held-out people only the log-loss is left to judge by.
    values = {"split": [0.3, 0.31, 0.3], "active_alone": [0.5, 0.5, 0.51]}
    verdict = judge(told(insurance, values, "log_loss", "multiclass"))
    assert verdict.outcome == "gain"
    assert verdict.headline == "Federation lowered log-loss from 0.503 to 0.303."


def test_before_the_first_fit_and_after_a_failure(insurance: Results) -> None:
    results = told(insurance, {"split": [], "active_alone": [0.7]})
    assert judge(results).headline == "The federated model has not been fitted yet."
    results.models[0].skipped = "no shared people"
    assert judge(results).details == ["no shared people"]


@pytest.mark.parametrize(
    ("found", "metric", "outcome"),
    [
        (Interval(0.1, 0.05, 0.15), "auc", "gain"),
        (Interval(0.1, 0.05, 0.15), "rmse", "loss"),
        (Interval(-0.1, -0.15, -0.05), "rmse", "gain"),
        (Interval(0.1, -0.05, 0.25), "auc", "none"),
        (Interval(0.0, 0.0, 0.0), "auc", "none"),
        (Interval(4e-16, 4e-16, 4e-16), "auc", "none"),
        (Interval(0.1, None, None), "auc", "open"),
    ],
)
def test_outcomes(found: Interval, metric: str, outcome: str) -> None:
    assert better(found, metric) == outcome
