"""What only a horizontal federation has: drift between parties, and each party's own figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from interlace.assess import MEASURES, Measure, interval
from interlace.job.results import ModelResult, Results
from interlace.report import words
from interlace.report.charts import Chart, Series, line_chart
from interlace.report.verdict import alone_in, clipped, to_show


def drift(model: ModelResult, look: str) -> list[Chart]:
    """Distance and angle between the parties' updates by round: each seed faint, their mean bold.

    Empty where no single update was seen, as under secure aggregation.
    """
    distance = [[(e.number, e.distance) for e in f.history] for f in model.fits]
    angle = [[(e.number, e.angle) for e in f.history] for f in model.fits]
    found = (
        _by_round("Distance of updates", "root mean square", distance, look),
        _by_round("Angle between updates", "degrees", angle, look),
    )
    return [chart for chart in found if chart]


def _by_round(
    title: str, unit: str, runs: Sequence[Sequence[tuple[int, float | None]]], look: str
) -> Chart | None:
    lines = [[(float(n), v) for n, v in run if v is not None] for run in runs]
    lines = [line for line in lines if line]
    if not lines:
        return None
    shortest = min(map(len, lines))
    mean = np.mean([line[:shortest] for line in lines], axis=0)
    look = f"{look} training"
    series = [Series(title, look, line, faint=True) for line in lines if len(lines) > 1]
    points = [(float(x), float(y)) for x, y in mean]
    series.append(Series(title, look, points, dots=shortest == 1))
    return line_chart(
        title,
        "round",
        unit,
        series,
        f"{title} of two parties by round, {words.plural(len(lines), 'seed')}.",
        x_range=(1, max(2.0, *(line[-1][0] for line in lines))),
    )


@dataclass(frozen=True)
class PartyRow:
    """What a party has from the federation, on its own held-out people."""

    party: str
    federated: str
    alone: str | None


@dataclass(frozen=True)
class PartyTable:
    """One metric of every party."""

    measure: Measure
    rows: list[PartyRow]


def by_party(results: Results) -> PartyTable | None:
    """The method's main metric by party, beside the party's own model's; means over the seeds."""
    method = next((m for m in results.models if m.role == "method"), None)
    shown = to_show(results)
    if method is None or not shown or not any(f.by_party for f in method.fits):
        return None
    metric, alone = shown[0], alone_in(results)
    every = [_values(m, p.name, metric) for m in (method, alone) if m for p in results.parties]
    decimals = words.decimals_for(v for values in every for v in values)

    def cell(model: ModelResult | None, party: str) -> str | None:
        values = _values(model, party, metric) if model else []
        if not values:
            return None
        found = clipped(interval(values), MEASURES[metric])
        span = words.span(found, decimals)
        return words.decimal(found.mean, decimals) + (f" ({span})" if span else "")

    rows = [
        PartyRow(p.name, federated, cell(alone, p.name))
        for p in results.parties
        if (federated := cell(method, p.name))
    ]
    return PartyTable(MEASURES[metric], rows)


def _values(model: ModelResult, party: str, metric: str) -> list[float]:
    return [f.by_party[party][metric] for f in model.fits if metric in f.by_party.get(party, {})]
