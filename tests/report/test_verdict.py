"""The headline claims no more than was measured."""

from __future__ import annotations

import pytest

from interlace.assess import Interval
from interlace.job.results import FitResult, ModelResult, Results
from interlace.methods.catalogue import CATALOGUE
from interlace.report.verdict import better, held_out, judge, unlabelled

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
            "AUC is 0.700 federated and 0.720 alone, in a single seed.",
        ),
        (
            {"split": [0.7], "active_alone": [0.6], "shared_only": [0.8]},
            "AUC is 0.700 federated and 0.600 alone, in a single seed.",
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


@pytest.mark.parametrize(
    ("values", "headline", "detail"),
    [
        (  # not clearly worse, and a tenth of the bytes
            {"split": [0.8, 0.81], "active_alone": [0.7, 0.71], "shared_only": [0.9, 0.75]},
            "Federation raised AUC from 0.705 to 0.805, and split learning on the shared people "
            "alone does as well: AUC 0.825 for 2 MB, against 0.805 for 20 MB.",
            None,
        ),
        (
            {"split": [0.8, 0.81], "shared_only": [0.7, 0.9]},
            "Few-shot reaches AUC 0.805, and split learning on the shared people alone is not "
            "clearly worse: AUC 0.800 for 2 MB, against 0.805 for 20 MB.",
            None,
        ),
        (  # clearly worse, and clearly better
            {"split": [0.8, 0.81], "active_alone": [0.7, 0.71], "shared_only": [0.75, 0.76]},
            "Federation raised AUC from 0.705 to 0.805.",
            None,
        ),
        (
            {"split": [0.8, 0.81], "active_alone": [0.7, 0.71], "shared_only": [0.85, 0.86]},
            "Federation raised AUC from 0.705 to 0.805, but Shared only did better.",
            "Shared only did better: AUC 0.855 for 2 MB, against 0.805 for 20 MB.",
        ),
        (
            {"split": [0.72, 0.7], "active_alone": [0.7, 0.71], "shared_only": [0.7, 0.72]},
            "Federation brought no clear gain: the interval over 2 seeds includes zero.",
            "Split learning on the shared people alone does as well: AUC 0.710 for 2 MB, against "
            "0.710 for 20 MB.",
        ),
        (  # by one seed nothing is better, and nothing as good
            {"split": [0.882], "active_alone": [0.807], "shared_only": [0.891]},
            "AUC is 0.882 federated and 0.807 alone, in a single seed.",
            "Split learning on the shared people alone comes to AUC 0.891 for 2 MB, against 0.882 "
            "for 20 MB.",
        ),
    ],
)
def test_what_the_simplest_federation_does_is_said_with_its_price(
    insurance: Results, values: Seeds, headline: str, detail: str | None
) -> None:
    results = told(insurance, values)
    results.models[0].name, results.models[0].title = "few_shot", "Few-shot"
    for model in results.models:
        for fit in model.fits:
            fit.bytes = 2_000_000 if model.name == "shared_only" else 20_000_000
    verdict = judge(results)
    assert verdict.headline == headline
    said = [d for d in verdict.details if d.startswith(("Split learning", "Shared only"))]
    assert said == ([detail] if detail else [])


def test_what_has_neither_a_better_mean_nor_fewer_bytes_is_not_named(insurance: Results) -> None:
    values = {"split": [0.8, 0.81], "active_alone": [0.7, 0.71], "shared_only": [0.7, 0.9]}
    results = told(insurance, values)
    results.models[0].name = "few_shot"
    for byte, said in ((1, True), (0, False)):
        for fit in results.models[0].fits:
            fit.bytes = byte
        assert ("not clearly worse" in judge(results).headline) == said


def untaken(results: Results, seeds: list[int], metric: str = "auc") -> Results:
    """The same where the metric could not be taken in some seeds, but another could."""
    for model in results.models:
        for fit in model.fits:
            fit.metrics["calibration_error"] = 0.1
            if fit.seed in seeds:
                del fit.metrics[metric]
                fit.omitted[metric] = "the 5 people held out are all of one class"
    return results


def test_nothing_is_judged_by_what_could_not_be_taken(insurance: Results) -> None:
    more = "the 5 people held out are all of one class; share more people, or hold out more by"
    three = {"split": [0.25, 0.25, 0.25], "active_alone": [0.5, 0.5, 0.5]}
    verdict = judge(untaken(told(insurance, three), [0, 2]))
    assert verdict.outcome == "open"
    assert verdict.headline == (
        "Whether federation helped cannot be said: AUC could be taken in 1 of 3 seeds."
    )
    assert verdict.details == [f"In the others {more} `test:`."]

    one = {"split": [0.25], "active_alone": [0.5]}  # nor by another measure
    verdict = judge(untaken(told(insurance, one), [0]))
    assert verdict.headline == "Whether federation helped cannot be said: AUC could not be taken."
    assert verdict.details == [f"T{more[1:]} `test:`."]

    verdict = judge(untaken(told(insurance, three), [2]))
    assert verdict.outcome == "loss"
    assert "-0.250" in verdict.details[0].replace("−", "-")
    assert (
        verdict.details[-1] == f"AUC could be taken in 2 of 3 seeds: in the other {more} `test:`."
    )


def test_a_measure_that_the_active_party_alone_lacks_is_not_taken(insurance: Results) -> None:
    values = {"split": [0.25, 0.25], "active_alone": [0.5, 0.5]}
    results = told(insurance, values, "d2", "regression")
    for fit in results.models[1].fits:
        fit.metrics, fit.omitted = {}, {"d2": "a prediction is negative"}
    assert judge(results).headline.endswith("cannot be said: D² could not be taken.")
    assert judge(results).details == ["A prediction is negative."]


@pytest.mark.parametrize(
    ("outcomes", "seeds", "said"),
    [
        ({0: 7, 1: 7}, [0, 1], "75 people are held out in each seed, 7 of them with the outcome"),
        ({4: 1}, [4], "75 people are held out, 1 of them with the outcome"),
        (
            {0: 0, 1: 1, 5: 0},
            [0, 1, 5],
            "75 people are held out in each seed, 0, 1 and 0 of them with the outcome (seeds 0, 1 "
            "and 5)",
        ),
        ({}, [0], "75 people are held out"),
    ],
)
def test_how_many_are_held_out(
    insurance: Results, outcomes: dict[int, int], seeds: list[int], said: str
) -> None:
    insurance.tested_on, insurance.outcomes, insurance.seeds = 75, outcomes, seeds
    assert held_out(insurance) == said


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
