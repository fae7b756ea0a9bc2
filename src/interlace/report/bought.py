"""What federation bought: the table of all models, dots with intervals, curves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from interlace.assess import MEASURES, Interval, Measure, main_measures
from interlace.job.results import KeptResult, ModelResult, Results
from interlace.report import words
from interlace.report.charts import Chart, Point, Series, line_chart, ticks
from interlace.report.verdict import ALONE, alone_in, better, by_seed, gain, summary, to_show

GRID = np.linspace(0, 1, 101)


@dataclass(frozen=True)
class Cell:
    """A number with its interval, and how both read; ``seeds`` says of how many seeds it is, where
    it could not be taken in all."""

    value: Interval
    text: str
    span: str | None
    seeds: str | None = None


@dataclass(frozen=True)
class MetricRow:
    """A metric's line of the table.

    Attributes:
        cells: By the model's name; a model without the metric is not there.
        best: The best mean, those models apart that need all tables in one place; of a single seed
            none is.
        gain: What the method has over the active party alone, seed by seed.
        outcome: Whether that is a gain.
    """

    name: str
    measure: Measure
    cells: dict[str, Cell]
    best: str | None
    gain: Cell | None
    outcome: str


def metric_rows(results: Results) -> list[MetricRow]:
    """The table of all metrics that any model has: the main ones first."""
    found = {name for m in results.models for f in m.fits for name in f.metrics}
    order = dict.fromkeys((*main_measures(results.task), *MEASURES))
    method = next((m for m in results.models if m.role == "method"), None)
    alone = alone_in(results)
    rows = []
    for name in order:
        if name not in found:
            continue
        measure, decimals = MEASURES[name], _decimals(results, name)
        values = {m.name: value for m in results.models if (value := summary(m, name))}
        ranked = [m.name for m in results.models if m.role != "in one place" and m.name in values]
        choose = max if measure.higher_is_better else min
        several = len(ranked) > 1 and all(values[m].low is not None for m in ranked)
        best = choose(ranked, key=lambda m: values[m].mean) if several else None
        over = gain(method, alone, name) if method and alone else None
        rows.append(
            MetricRow(
                name,
                measure,
                {
                    m.name: replace(_cell(values[m.name], decimals), seeds=of_seeds(m, name))
                    for m in results.models
                    if m.name in values
                },
                best,
                _cell(over, decimals, sign=True) if over else None,
                better(over, name) if over else "open",
            )
        )
    return rows


def of_seeds(model: ModelResult, metric: str) -> str | None:
    """``1 of 3 seeds`` where a metric could not be taken in all that the model was fitted in."""
    taken = len(by_seed(model, metric))
    return f"{taken} of {len(model.fits)} seeds" if taken < len(model.fits) else None


@dataclass(frozen=True)
class Constant:
    """What a constant guess does: the share of the outcome as everybody's probability.

    Attributes:
        share: Of the people held out, as a mean over the seeds.
        log_loss: Its log-loss, −p ln p − (1 − p) ln(1 − p) for a seed's share p; the seeds' mean.
        text: The same to read.
        worse: Titles of the models whose log-loss is above it.
    """

    share: float
    log_loss: float
    text: str
    worse: list[str]


def constant_guess(results: Results) -> Constant | None:
    """A constant guess, if some model's log-loss is above it."""
    shares = [n / results.tested_on for n in results.outcomes.values()]
    if not shares or not all(0 < p < 1 for p in shares):
        return None
    loss = float(np.mean([-p * math.log(p) - (1 - p) * math.log(1 - p) for p in shares]))
    found = [(m.title, s.mean) for m in results.models if (s := summary(m, "log_loss"))]
    worse = [title for title, mean in found if mean > loss]
    text = words.decimal(loss, _decimals(results, "log_loss"))
    return Constant(float(np.mean(shares)), loss, text, worse) if worse else None


def _decimals(results: Results, metric: str) -> int:
    return words.decimals_for(v for m in results.models for v in by_seed(m, metric).values())


def _cell(value: Interval, decimals: int, *, sign: bool = False) -> Cell:
    return Cell(
        value,
        words.decimal(value.mean, decimals, sign=sign),
        words.span(value, decimals, sign=sign),
    )


@dataclass(frozen=True)
class KeptRow:
    """A party's rows without a label that a model learnt from as if they had one: means over the
    seeds, and of all seeds together the share that was right, where the truth is known."""

    model: str
    party: str
    of: float
    kept: float
    right: float | None


def kept_rows(results: Results) -> list[KeptRow]:
    """A line for every model and party that had such rows to choose from."""
    rows = []
    for model in results.models:
        by_party: dict[str, list[KeptResult]] = {}
        for one in (kept for fit in model.fits for kept in fit.kept):
            by_party.setdefault(one.party, []).append(one)
        for party, found in by_party.items():
            known = sum(k.known for k in found)
            rows.append(
                KeptRow(
                    model.title,
                    party,
                    float(np.mean([k.of for k in found])),
                    float(np.mean([k.kept for k in found])),
                    sum(k.right for k in found) / known if known else None,
                )
            )
    return rows


@dataclass(frozen=True)
class Dot:
    """A model's mean, interval and single seeds, in per cent of the scale's width."""

    title: str
    look: str
    text: str
    span: str | None
    at: float
    low: float | None
    high: float | None
    seeds: list[float]


@dataclass(frozen=True)
class DotChart:
    """One metric of all models on one scale."""

    name: str
    measure: Measure
    dots: list[Dot]
    ticks: list[tuple[float, str]]


def dots(results: Results, metric: str, looks: dict[str, str]) -> DotChart | None:
    """Lay out one metric. The scale covers all intervals, unless they dwarf the seeds."""
    found = [(m, s) for m in results.models if (s := summary(m, metric))]
    if not found:
        return None
    seeds = [v for m, _ in found for v in by_seed(m, metric).values()]
    spread = max(seeds) - min(seeds)
    if spread <= 1e-9 * max(map(abs, seeds)):  # equal but for the arithmetic's last digits
        spread = abs(seeds[0]) * 0.1 or 0.1
    ends = [e for _, s in found for e in (s.low, s.high) if e is not None]
    low = max(min([*seeds, *ends]), min(seeds) - 2 * spread)
    high = min(max([*seeds, *ends]), max(seeds) + 2 * spread)
    room = 0.06 * max(high - low, spread)
    low, high = low - room, high + room

    def place(value: float) -> float:
        return round(100 * min(1.0, max(0.0, (value - low) / (high - low))), 2)

    decimals = _decimals(results, metric)
    return DotChart(
        metric,
        MEASURES[metric],
        [
            Dot(
                m.title,
                looks[m.name],
                words.decimal(s.mean, decimals),
                words.span(s, decimals),
                place(s.mean),
                None if s.low is None else place(s.low),
                None if s.high is None else place(s.high),
                [place(v) for v in by_seed(m, metric).values()] if len(m.fits) > 1 else [],
            )
            for m, s in found
        ],
        [(place(v), text) for v, text in ticks(low, high)],
    )


def looks(models: Sequence[ModelResult]) -> dict[str, str]:
    """A class of the style sheet for each model: colour, dashes and mark."""
    looks, others = {}, 0
    for i, model in enumerate(models):
        if model.role == "in one place":
            looks[model.name] = "upper"
        elif model.role == "method" and not any(m.role == "method" for m in models[:i]):
            looks[model.name] = "method"
        elif model.name in ALONE:
            looks[model.name] = "single"
        else:
            looks[model.name] = f"other{others % 4}"
            others += 1
    return looks


def curves(results: Results, looks: dict[str, str]) -> list[Chart]:
    regression = results.task == "regression"
    curves: dict[str, list[Series]] = {}
    for name in ("roc", "lift", "calibration"):
        curves[name] = [
            Series(m.title, looks[m.name], points, dots=name == "calibration")
            # the method last, on top of the others
            for m in sorted(results.models, key=lambda m: looks[m.name] == "method")
            if (points := _mean_curve([f.curves[name] for f in m.fits if name in f.curves], name))
        ]
    at = [v for s in curves["calibration"] for p in s.points for v in p]
    top = min(1.0, max(at, default=1.0) * 1.05)
    ends = _ends(at) if regression else (0.0, top or 1.0)
    # A few people at the very top say little, and would set the scale.
    first = max(0.02, 20 / max(results.tested_on, 1))
    lift = [
        Series(s.name, s.look, [p for p in s.points if p[0] >= min(first, 0.5)])
        for s in curves["lift"]
    ]
    highest = max((y for s in lift for _, y in s.points), default=1.0)
    best = "; ".join(
        f"{m.title} {MEASURES[main].title} {words.decimal(s.mean, _decimals(results, main))}"
        for main in to_show(results)[:1]
        for m in results.models
        if (s := summary(m, main))
    )
    charts = (
        line_chart(
            {"binary": "ROC", "multilabel": "ROC, mean over the labels"}.get(
                results.task, "ROC, mean over the classes"
            ),
            "false positive rate",
            "true positive rate",
            curves["roc"],
            f"True against false positive rate for each model. {best}.",
            x_range=(0, 1),
            y_range=(0, 1),
            reference=[(0, 0), (1, 1)],
        ),
        line_chart(
            "Lift",
            "share of people taken, best-scored first",
            "times a random pick",
            lift,
            "How many times more outcomes than a random pick, for the best-scored people.",
            x_range=(0, 1),
            y_range=(0, max(1.2, highest * 1.05)),
            reference=[(0, 1), (1, 1)],
            percent="x",
        ),
        line_chart(
            "Predicted and actual" if regression else "Calibration",
            "mean prediction" if regression else "predicted share",
            "mean of what came" if regression else "actual share",
            curves["calibration"],
            "Tenths of the people by prediction: what was predicted against what came true. "
            "On the diagonal both agree.",
            x_range=ends,
            y_range=ends,
            reference=[(ends[0], ends[0]), (ends[1], ends[1])],
            percent="" if regression else "xy",
        ),
    )
    return [c for c in charts if c]


def _ends(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values, default=0.0), max(values, default=1.0)
    room = 0.05 * (high - low) or 1.0
    return low - room, high + room


def _mean_curve(curves: Sequence[Sequence[Point]], name: str) -> list[Point]:
    """The mean of the seeds' curves: at equal x, or bin by bin for a calibration."""
    if not curves or len(curves) == 1:
        return list(curves[0]) if curves else []
    if name == "calibration":
        if len({len(c) for c in curves}) > 1:
            return list(curves[0])  # ties left bins out, so bins do not correspond
        return [(float(x), float(y)) for x, y in np.mean(np.array(curves), axis=0)]
    start = [curves[0][0]] if name == "roc" else []
    grid = GRID if name == "roc" else GRID[curves[0][0][0] - 1e-9 <= GRID]
    ys = np.mean([np.interp(grid, *np.array(c).T) for c in curves], axis=0)
    return start + [(float(x), float(y)) for x, y in zip(grid, ys, strict=True)]


def learning(model: ModelResult, look: str) -> Chart | None:
    """Training and validation loss by epoch, or by round: each seed faint, their mean bold while
    all run."""
    runs = [f.history for f in model.fits if f.history]
    if not runs:
        return None
    training = [[(float(e.number), e.loss) for e in run] for run in runs]
    unit = "epoch" if runs[0][0].clients is None else "round"
    validation = [
        [(float(e.number), e.validation) for e in run if e.validation is not None] for run in runs
    ]
    series = []
    for name, lines in (("training", training), ("validation", validation)):
        shortest = min(len(line) for line in lines)
        if not shortest:
            continue
        css = f"{look} {name}"
        if len(lines) > 1:
            series += [Series(name, css, line, faint=True) for line in lines]
        mean = np.mean([line[:shortest] for line in lines], axis=0)
        points = [(float(x), float(y)) for x, y in mean]
        series.append(Series(name, css, points, dots=shortest == 1))
    return line_chart(
        model.title,
        unit,
        "loss",
        series,
        f"Training and validation loss of {model.title} by {unit}, "
        f"{words.plural(len(runs), 'seed')}.",
        x_range=(1, max(2, *(len(run) for run in runs))),
        width=250,
        height=210,
    )
