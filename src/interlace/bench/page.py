"""The benchmark's page and picture, drawn by the charts of the report; nothing is fetched."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl
from jinja2 import Environment

from interlace.bench.material import NAMES
from interlace.bench.summary import (
    Advice,
    Line,
    Verdict,
    leading,
    lines,
    measure_title,
    title,
    verdicts,
)
from interlace.files import write_whole
from interlace.report import words
from interlace.report.charts import Chart, Series, line_chart
from interlace.report.page import environment

_BASELINE_LOOKS = {
    "pooled": "upper",
    "active_alone": "single",
    "shared_only": "other1",
    "mean_imputation": "other3",
}
_METHOD_LOOKS = ("method", "other0", "other2")


@dataclass(frozen=True)
class Shown:
    """One data set on the page."""

    name: str
    measure: str
    charts: list[Chart]
    lines: list[Line]
    verdicts: list[Verdict]


@dataclass(frozen=True)
class Key:
    """An entry of the legend."""

    name: str
    title: str


def write_page(
    cells: pl.DataFrame,
    folder: Path,
    command: str,
    advised: Sequence[Advice] = (),
    notes: Sequence[str] = (),
) -> Path:
    """Write ``limited-overlap.html`` and ``limited-overlap.svg``, whatever is done so far.

    Args:
        cells: The outcomes.
        folder: Where.
        command: How the run was started.
        advised: What ``method: auto`` takes in each case.
        notes: What was left out, and why.

    Returns:
        The path of the page.
    """
    looks = _looks(cells)
    keys = [Key(m, title(m)) for m in looks]
    shown = [_shown(cells, name, looks) for name in NAMES if name in set(cells["data"])]
    page = folder / "limited-overlap.html"
    text = (
        _environment()
        .get_template("limited_overlap.html")
        .render(
            shown=shown,
            looks=looks,
            keys=keys,
            command=command,
            notes=notes,
            advised={(a.data, a.overlap): a for a in advised},
            title=title,
            seeds=cells["seed"].n_unique(),
            fits=cells.height,
        )
    )
    write_whole(page, text.encode())
    write_whole(folder / "limited-overlap.svg", picture(shown, keys, looks).encode())
    return page


def picture(shown: Sequence[Shown], keys: Sequence[Key], looks: dict[str, str]) -> str:
    """All plots of utility against overlap in one SVG, readable on light and on dark."""
    return (
        _environment()
        .get_template("picture.svg")
        .render(
            charts=[(data.name, data.charts[0]) for data in shown if data.charts],
            keys=keys,
            looks=looks,
        )
    )


def _environment() -> Environment:
    env = environment("interlace.bench")
    env.filters["within"] = within
    return env


def within(line: Line) -> str:
    """Mean utility and half of its interval, and of how many draws where some are wanting."""
    found = line.utility
    if found is None:
        return "–"
    text = f"{found.mean:.3f}"
    if found.low is not None and found.high is not None:
        text += f" ± {(found.high - found.low) / 2:.3f}"
    return text if line.seeds == line.draws else f"{text} ({line.seeds} of {line.draws} draws)"


def _looks(cells: pl.DataFrame) -> dict[str, str]:
    """How methods are drawn that have a line of their own; the others are faint."""
    there = set(cells["method"])
    first = zip(leading(cells, len(_METHOD_LOOKS)), _METHOD_LOOKS, strict=False)
    return {m: look for m, look in (*first, *_BASELINE_LOOKS.items()) if m in there}


def _shown(cells: pl.DataFrame, name: str, looks: dict[str, str]) -> Shown:
    here = cells.filter(data=name)
    table = lines(here)
    measure = measure_title(table[0].measure)
    against = (_against_overlap(name, measure, table, looks), _against_bytes(measure, table, looks))
    return Shown(name, measure, [c for c in against if c is not None], table, verdicts(here))


def _series(table: Sequence[Line], method: str, look: str | None, *, bytes: bool) -> Series:
    points = [
        (math.log10(line.bytes) if bytes else math.log2(line.overlap), line.utility.mean)
        for line in table
        if line.method == method and line.utility is not None and (line.bytes or not bytes)
        if line.seeds == line.draws
    ]
    return Series(title(method), look or "other1", points, dots=look is not None, faint=not look)


def _against_overlap(
    name: str, measure: str, table: Sequence[Line], looks: dict[str, str]
) -> Chart | None:
    methods = sorted({line.method for line in table}, key=lambda m: m in looks)
    overlaps = sorted({line.overlap for line in table})
    ends = math.log2(overlaps[0]), math.log2(overlaps[-1])
    return line_chart(
        f"{measure} against shared people",
        "people whom both hold",
        measure,
        [_series(table, m, looks.get(m), bytes=False) for m in methods],
        f"On {name}; the figures are in the table below.",
        x_range=ends if ends[0] < ends[1] else (ends[0] - 1, ends[1] + 1),
        x_marks=[(math.log2(n), words.count(n)) for n in overlaps],
    )


def _against_bytes(measure: str, table: Sequence[Line], looks: dict[str, str]) -> Chart | None:
    talking = [line for line in table if line.bytes]
    if not talking:
        return None
    methods = sorted({line.method for line in talking}, key=lambda m: m in looks)
    low = math.floor(math.log10(min(line.bytes for line in talking)))
    high = math.ceil(math.log10(max(line.bytes for line in talking)))
    return line_chart(
        f"{measure} against bytes",
        "bytes that passed",
        measure,
        [_series(talking, m, looks.get(m), bytes=True) for m in methods],
        "Each dot is an overlap; the figures are in the table below.",
        x_range=(low, max(high, low + 1)),
        x_marks=[(p, words.size(10.0**p)) for p in range(low, max(high, low + 1) + 1)],
    )
