"""The headline: whether federation helped, in a sentence that claims no more than was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from interlace.assess import MEASURES, Interval, Measure, interval, main_measures, paired
from interlace.job.results import ModelResult, Results
from interlace.methods.catalogue import entry
from interlace.report.words import decimal, decimals_for, listed, plural, size, span

ALONE = ("active_alone", "own_columns", "clients_alone")  # what federation is measured against
SIMPLE = "shared_only"  # a federation too, and the simplest


@dataclass(frozen=True)
class Verdict:
    """A headline, what qualifies it, and how it came out."""

    outcome: Literal["gain", "none", "loss", "open"]
    headline: str
    details: list[str]


def alone_in(results: Results) -> ModelResult | None:
    """The model that federation is measured against."""
    return next((m for m in results.models if m.name in ALONE), None)


def who_alone(results: Results) -> str:
    """Whose that model is."""
    if results.geometry == "horizontal":
        return "each party"
    return next(p.name for p in results.parties if p.active)


def held_out(results: Results) -> str:
    """Of how many people the figures are, and how many of these have the outcome under each seed:
    ``75 people are held out in each seed, 7 of them with the outcome``."""
    seeds = len(results.seeds)
    people = plural(results.tested_on, "person is", "people are")
    said = f"{people} held out{' in each seed' if seeds > 1 else ''}"
    found = list(results.outcomes.values())
    if not found:
        return said
    counts = found if len(set(found)) > 1 else found[:1]
    which = f" (seeds {listed(map(str, results.outcomes))})" if len(counts) > 1 else ""
    return f"{said}, {listed(f'{n:,}' for n in counts)} of them with the outcome{which}"


def unlabelled(results: Results) -> int:
    """How many of those whom all parties hold have no label, as far as the counts tell."""
    method = next((m for m in results.models if m.role == "method"), None)
    if method is None or results.geometry == "horizontal":
        return 0
    if len(results.parties) > 2 and entry(method.name).make.partial:
        return 0  # it also learns from people whom only some hold
    return max(0, results.shared_by_all - results.trained_on - results.tested_on)


def to_show(results: Results) -> list[str]:
    """The metrics to show first, the one to judge by ahead: the task's main ones, those too that
    could not be taken, or what is there where none of these is (a horizontal federation's figures
    are sums, which rank nobody)."""
    found = {name for m in results.models for f in m.fits for name in (*f.metrics, *f.omitted)}
    main = [m for m in main_measures(results.task) if m in found]
    return main or [m for m in MEASURES if m in found]


def by_seed(model: ModelResult, metric: str) -> dict[int, float]:
    """A metric's value by seed."""
    return {f.seed: f.metrics[metric] for f in model.fits if metric in f.metrics}


def clipped(value: Interval, measure: Measure) -> Interval:
    """An interval within what the metric can be: outside of that nothing is lost."""
    low, high = value.low, value.high
    if low is not None and measure.low is not None:
        low = max(low, measure.low)
    if high is not None and measure.high is not None:
        high = min(high, measure.high)
    return Interval(value.mean, low, high)


def summary(model: ModelResult, metric: str) -> Interval | None:
    """A model's mean and interval; ``None`` where the metric is not there."""
    values = list(by_seed(model, metric).values())
    return clipped(interval(values), MEASURES[metric]) if values else None


def gain(model: ModelResult, other: ModelResult, metric: str) -> Interval | None:
    """What a model has over another, over the seeds of both; positive is more, not better."""
    return paired(by_seed(model, metric), by_seed(other, metric))


def better(found: Interval, metric: str) -> Literal["gain", "none", "loss", "open"]:
    """How a difference came out, by whether its interval leaves zero out."""
    if found.low is None or found.high is None:
        return "open"
    if found.low <= 0 <= found.high or abs(found.mean) < 1e-9:  # the arithmetic's last digits
        return "none"
    return "gain" if (found.mean > 0) == MEASURES[metric].higher_is_better else "loss"


def in_sentence(measure: Measure) -> str:
    """A metric's title inside a sentence: capitals stay where they are initials."""
    title = measure.title
    return title[0].lower() + title[1:] if title[1].islower() else title


def judge(results: Results) -> Verdict:
    """Put what a run found into words."""
    method = next((m for m in results.models if m.role == "method"), None)
    if method is not None and method.skipped:
        return Verdict("open", f"{method.title} could not be fitted.", [method.skipped])
    if method is None or not method.fits:
        return Verdict("open", "The federated model has not been fitted yet.", [])
    tried = {name for f in method.fits for name in (*f.metrics, *f.omitted)}
    metric = next((m for m in to_show(results) if m in tried), None)
    if metric is None:
        return Verdict("open", f"{method.title} was fitted; no metric could be taken.", [])
    measure = MEASURES[metric]
    active, alone = who_alone(results), alone_in(results)
    without = {
        f.seed: f.omitted.get(metric, "no reason is known")
        for m in (method, alone)
        if m is not None
        for f in m.fits
        if metric not in f.metrics
    }
    taken = len(method.fits) - len(without)
    some, why = _missing(measure, without, taken) if without else ("", "")
    if without and taken < 2:
        headline = f"Whether federation helped cannot be said: {some}."
        return Verdict("open", headline, [f"{why[0].upper()}{why[1:]}."])
    ours = summary(method, metric)
    assert ours is not None  # the metric was taken
    models = [m for m in results.models if by_seed(m, metric)]
    decimals = decimals_for(v for m in models for v in by_seed(m, metric).values())
    name = in_sentence(measure)
    ahead = _ahead(results, method, metric)
    whose = listed(m.title for m in ahead) if ahead else ""
    but = f", but {whose} did better" if ahead else ""
    too = f"; {whose} did better too" if ahead else ""
    simple = _simple(results, method, metric, decimals)
    also = f", and {simple}" if simple and taken > 1 and not ahead else ""

    def others(headline: str) -> list[str]:
        said = _others(results, method, ahead, metric, decimals)
        if simple and simple not in headline:
            said.append(f"{simple[0].upper()}{simple[1:]}.")
        if without:
            said.append(f"{some}: {why}.")
        return said

    difference = gain(method, alone, metric) if alone else None
    if alone is None or difference is None:
        reached = f"{method.title} reaches {name} {decimal(ours.mean, decimals)}"
        skipped = alone.skipped if alone else None
        details = [
            f"There is no model of {active} alone to compare it with: {skipped.rstrip('.')}."
            if skipped
            else f"What that is worth over {active} alone is not known: no such model was fitted."
        ]
        headline = f"{reached}{but or also}."
        return Verdict("open", headline, [*details, *others(headline)])
    theirs = summary(alone, metric)
    assert theirs is not None  # a difference takes both
    before, after = decimal(theirs.mean, decimals), decimal(ours.mean, decimals)
    by = decimal(difference.mean, decimals, sign=True)
    outcome = better(difference, metric)
    worse = abs(difference.mean) >= 1e-9 and (difference.mean > 0) != measure.higher_is_better
    verb = "raised" if difference.mean > 0 else "lowered"
    held = span(difference, decimals, sign=True)
    seeds = plural(len(by_seed(method, metric).keys() & by_seed(alone, metric)), "seed")
    sure = f"{by} ({f'95 % interval {held}, ' if held else ''}{seeds})"
    if outcome == "gain":
        headline = f"Federation {verb} {name} from {before} to {after}{but or also}."
        outcome = "none" if ahead else outcome
        details = [f"That is {sure} over what {active} can do alone."]
    elif outcome == "loss":
        headline = f"Federation did worse than {active} alone{too}."
        details = [f"{measure.title} is {after} federated and {before} alone: {sure}."]
    elif outcome == "none":
        headline = (
            f"Federation brought no gain: {active} alone is ahead, if not clearly{too}."
            if worse
            else f"Federation brought no clear gain{but}: the interval over {seeds} includes zero."
        )
        details = [f"{measure.title} is {after} federated and {before} alone: {sure}."]
        if abs(difference.mean) >= 1e-9:  # as in `better`: else both models are the same
            details[0] += " More seeds would narrow the interval."
    else:
        headline = f"{measure.title} is {after} federated and {before} alone, in a single seed."
        details = [
            f"The difference, {by}, may be chance: one seed has no interval. Run at least three."
        ]
    return Verdict(outcome, headline, [*details, *others(headline)])


def _missing(measure: Measure, without: Mapping[int, str], taken: int) -> tuple[str, str]:
    """In how many seeds a metric could be taken, and why not in the others."""
    seeds = taken + len(without)
    why = next(iter(without.values()))
    if "held out" in why:
        why += "; share more people, or hold out more by `test:`"
    if not taken:
        return f"{measure.title} could not be taken", why
    others = "the other" if len(without) == 1 else "the others"
    return f"{measure.title} could be taken in {taken} of {seeds} seeds", f"in {others} {why}"


def _ahead(results: Results, method: ModelResult, metric: str) -> list[ModelResult]:
    """Baselines that did clearly better than the method, the active party alone apart."""
    return [
        model
        for model in results.models
        if model.role == "baseline"
        and model.name not in ALONE
        and (over := gain(model, method, metric)) is not None
        and better(over, metric) == "gain"
    ]


def _simple(results: Results, method: ModelResult, metric: str, decimals: int) -> str | None:
    """What split learning on the shared people alone comes to, and at which price, where the method
    is not clearly better and it has something to offer: a mean as good, or fewer bytes. Where it is
    clearly better that is said elsewhere."""
    model = next((m for m in results.models if m.name == SIMPLE), None)
    over = gain(method, model, metric) if model and method.name != "split" else None
    if model is None or over is None:
        return None
    outcome = better(over, metric)
    if outcome in ("gain", "loss"):
        return None
    if outcome == "open":  # one seed calls nobody equal
        does = "comes to"
    elif abs(over.mean) < 1e-9 or (over.mean > 0) != MEASURES[metric].higher_is_better:
        does = "does as well:"
    elif _bytes(model) < _bytes(method):
        does = "is not clearly worse:"
    else:
        return None
    price = _price(model, method, metric, decimals)
    return f"split learning on the shared people alone {does} {price}"


def _bytes(model: ModelResult) -> float:
    """What one training passed, as a mean over the seeds."""
    return fmean(f.bytes for f in model.fits)


def _price(model: ModelResult, method: ModelResult, metric: str, decimals: int) -> str:
    """A model's figure and the bytes that one of its trainings passed, against the method's."""
    figures = [
        f"{decimal(fmean(by_seed(m, metric).values()), decimals)} for {size(_bytes(m))}"
        for m in (model, method)
    ]
    return f"{in_sentence(MEASURES[metric])} {figures[0]}, against {figures[1]}"


def _others(
    results: Results,
    method: ModelResult,
    ahead: Sequence[ModelResult],
    metric: str,
    decimals: int,
) -> list[str]:
    """What all tables in one place reach, and who does better than the method."""
    said = []
    fewer = any(model.name == SIMPLE for model in results.models)
    for model in results.models:
        found = summary(model, metric)
        if model is method or found is None:
            continue
        value = decimal(found.mean, decimals)
        if model.role == "in one place":
            difference = gain(model, method, metric)
            more = difference and (difference.mean > 0) == MEASURES[metric].higher_is_better
            said.append(
                f"With all tables in one place ({model.title}) it would be {value}."
                if more
                else f"All tables in one place ({model.title}) reach {value}, no "
                f"better{f'; {model.title} learns from the shared people alone' if fewer else ''}."
            )
        elif any(model is other for other in ahead):
            what = f"{in_sentence(MEASURES[metric])} {value}"
            if model.name == SIMPLE:  # what is done in one place passes nothing
                what = _price(model, method, metric, decimals)
            said.append(f"{model.title} did better: {what}.")
    return said
