"""The bins of a scorecard: how columns are cut, and what goods and bads say of the bins.

A column is first cut into fine bins, which needs no label: its holder can do that. From the goods
and bads of the fine bins, neighbours are then merged, which needs no column: the holder of the
label can do that. Missing values have a bin of their own, numbered 0.

Of a bin with g goods and b bads, of a column with G and B of them::

    WOE = ln((g / G) / (b / B))        IV = Σ over bins of (g / G - b / B) · WOE

so a higher weight of evidence (WOE) is a lower risk, as in Siddiqi, "Credit Risk Scorecards",
2006, ch. 6. In a bin without goods or without bads, half a person is added to both.

IV adds up over bins, so the best merging of neighbours is found exactly by dynamic programming
(Fisher, "On grouping for maximum homogeneity", JASA 1958), also under the condition that the bad
rate rises or falls all the way. These conditions are among those of Navas-Palencia, "Optimal
binning: mathematical programming formulation", arXiv 2001.08025.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import Annotated, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from interlace.data.columns import (
    CategoryColumn,
    DateColumn,
    Reading,
    as_levels,
    fit_column,
    unread,
)
from interlace.data.images import is_image
from interlace.errors import DataError, Refused
from interlace.models.trees import MISSING, NumericBins, quantile_edges

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Cuts = Literal["optimal", "quantile", "equal_width"]

SMOOTHING = 0.5  # people added to the goods and the bads of a bin that lacks either


class LevelBins(BaseModel):
    """A column of categories; every bin holds one level or several.

    Attributes:
        groups: The levels of each bin, from bin 1 on.
        other: The bin of all other levels, rare in training or new; ``None``: there were no rare
            ones, and a new level has no bin.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["levels"] = "levels"
    name: str
    groups: tuple[tuple[str, ...], ...]
    other: int | None = None

    @property
    def width(self) -> int:
        """Bins of known values."""
        return max(len(self.groups), self.other or 0)

    def codes(self, series: pl.Series) -> Integers:
        """The bin of each value; ``width + 1`` for a level that has none."""
        table = {level: b for b, group in enumerate(self.groups, 1) for level in group}
        found = as_levels(series)
        codes = found.replace_strict(
            pl.Series(list(table), dtype=pl.String),
            pl.Series(list(table.values()), dtype=pl.Int64),
            default=self.other or self.width + 1,
            return_dtype=pl.Int64,
        )
        return np.where(found.is_null(), MISSING, codes.fill_null(MISSING)).astype(np.int64)


Bins = Annotated[NumericBins | LevelBins, Field(discriminator="kind")]


def codes_of(bins: NumericBins | LevelBins, series: pl.Series, *, party: str) -> Integers:
    """The bin of each value: 0 is missing, 1 … width known, width + 1 a level without a bin.

    Raises:
        DataError: there are values, and none can be read as what the column was in training.
    """
    if isinstance(bins, LevelBins):
        return bins.codes(series)
    codes = bins.codes(bins.values(series))
    if not codes.any():
        lost, known = unread(series, dates=bins.dates, spelling=bins.spelling)
        if lost:
            raise DataError(
                f"none of its {known:,} values ({series.dtype.base_type()}) can be read as what it "
                "was in training",
                party=party,
                column=bins.name,
                way_out="Give the column in the form that it had in the training table.",
            )
    return codes


# -- fine bins, without a label ----------------------------------------------------------------


def fine_bins(
    series: pl.Series,
    *,
    cuts: Cuts,
    most: int,
    fewest: int,
    rare: int,
    reading: Reading,
    party: str,
    file: str | None,
) -> NumericBins | LevelBins | str:
    """Cut a column into fine bins, none of which holds fewer than ``fewest`` people.

    Args:
        series: The column, over the people to learn from.
        cuts: ``equal_width``, or else at quantiles.
        most: Most bins of known values.
        fewest: Fewest people in a bin of known values.
        rare: Levels with fewer people share one bin.
        reading: How the whole column is read.
        party: Whose column it is, for errors.
        file: Its file, for errors.

    Returns:
        The bins, or why the column cannot have any.

    Raises:
        DataError: it holds images, or what no model here can read.
    """
    if is_image(series.dtype):
        raise DataError(
            "a scorecard reads tables, and this column holds images",
            party=party,
            file=file,
            column=series.name,
            way_out="Leave it out, or take a method with networks.",
        )
    plan, report = fit_column(series, reading, party=party, file=file)
    if plan is None:
        return report.note or "it tells nobody apart"
    if len(series) - report.gaps < fewest:
        return f"fewer than {fewest} people have a value"
    if isinstance(plan, CategoryColumn):
        return _fine_levels(series, most, fewest, max(fewest, rare))
    dates = isinstance(plan, DateColumn)
    spelling = plan.format if isinstance(plan, DateColumn) else None
    whole = NumericBins(name=series.name, edges=(), dates=dates, spelling=spelling)
    values = whole.values(series)
    values = values[~np.isnan(values)]
    if cuts == "equal_width":
        edges = tuple(np.linspace(values.min(), values.max(), most + 1)[1:-1].tolist())
    else:
        edges = quantile_edges(values, most)
    fine = whole.model_copy(update={"edges": tuple(dict.fromkeys(edges))})
    counts = np.bincount(fine.codes(values), minlength=fine.width + 1)[1:]
    return merged(fine, _filled(counts, fewest))


def _fine_levels(series: pl.Series, most: int, fewest: int, rare: int) -> LevelBins:
    counted = as_levels(series).drop_nulls().alias("level").value_counts()
    counted = counted.sort("count", "level", descending=[True, False])
    levels, counts = counted["level"].to_list(), counted["count"].to_numpy()
    kept = min(int((counts >= rare).sum()), most)
    if kept == len(levels):
        return LevelBins(name=series.name, groups=tuple((level,) for level in levels))
    if counts[kept:].sum() < fewest:  # too few to be a bin: they join the rarest of the others
        return LevelBins(
            name=series.name, groups=tuple((level,) for level in levels[:kept]), other=kept
        )
    return LevelBins(
        name=series.name, groups=tuple((level,) for level in levels[:kept]), other=kept + 1
    )


def _filled(counts: Integers, fewest: int) -> Integers:
    """The bin, from 1, that each fine bin joins, so that all hold enough people."""
    out, held, number = np.ones(len(counts), dtype=np.int64), 0, 1
    for b, count in enumerate(counts):
        out[b] = number
        held += count
        if held >= fewest:
            number, held = number + 1, 0
    if held < fewest and number > 1:  # what is left over joins the last bin
        out[out == number] = number - 1
    return out


def merged(bins: NumericBins | LevelBins, into: Integers) -> NumericBins | LevelBins:
    """The bins after ``into[b - 1]`` has become the number of bin b, from 1.

    Raises:
        Refused: the numbers have gaps, or would merge bins of numbers that are no neighbours.
    """
    if len(into) != bins.width or set(into.tolist()) != set(range(1, int(into.max()) + 1)):
        raise Refused("bins are merged into bins 1, 2, 3 …")
    if isinstance(bins, NumericBins):
        steps = np.diff(into)
        if into[0] != 1 or (steps < 0).any():
            raise Refused("of a column of numbers only neighbouring bins can be merged")
        edges = tuple(edge for edge, step in zip(bins.edges, steps, strict=True) if step)
        return bins.model_copy(update={"edges": edges})
    groups: list[list[str]] = [[] for _ in range(int(into.max()))]
    for group, to in zip(bins.groups, into, strict=False):
        groups[to - 1] += group
    other = None if bins.other is None else int(into[bins.other - 1])
    return LevelBins(name=bins.name, groups=tuple(map(tuple, groups)), other=other)


# -- merging, by goods and bads ----------------------------------------------------------------


def weights_of_evidence(counts: Floats) -> Floats:
    """WOE of each bin of a column; 0 for a bin without people.

    Args:
        counts: Goods and bads of all bins of the column, (bins, 2).
    """
    share = _smoothed(counts) / counts.sum(axis=0)
    nobody = counts.sum(axis=1) == 0
    return np.where(nobody, 0.0, np.log(share[:, 0] / share[:, 1]))


def information_values(counts: Floats) -> Floats:
    """What each bin of a column adds to its IV; ``counts`` as for :func:`weights_of_evidence`."""
    share = _smoothed(counts) / counts.sum(axis=0)
    return np.asarray((share[:, 0] - share[:, 1]) * weights_of_evidence(counts))


def _smoothed(counts: Floats) -> Floats:
    lacking: NDArray[np.bool_] = (counts == 0).any(axis=-1, keepdims=True)
    return np.asarray(counts + SMOOTHING * lacking)


def best_merge(
    counts: Floats, totals: Floats, *, most: int, fewest: float, ordered: bool, monotone: bool
) -> Integers:
    """Merge fine bins so that the IV is as large as it can be.

    Args:
        counts: Goods and bads of the fine bins of known values, (bins, 2).
        totals: Goods and bads of the whole column, missing values included, (2,).
        most: Most bins.
        fewest: Fewest people in a bin.
        ordered: Whether bins have an order, so that only neighbours can be merged; else they are
            put in the order of their bad rates.
        monotone: Whether the bad rate must rise, or fall, over all bins.

    Returns:
        The number of each fine bin's bin, from 1. All are 1 if nothing else meets the conditions. A
        bin has at least one good and one bad, unless that would leave but one bin.
    """
    order = np.arange(len(counts))
    if not ordered:
        order = np.argsort(counts[:, 1] / counts.sum(axis=1), kind="stable")
    into = np.empty(len(counts), dtype=np.int64)
    for both in (True, False):
        into[order] = _best_cuts(
            counts[order], totals, most, fewest, monotone and ordered, both=both
        )
        if into.max() > 1:
            break
    return into


def _best_cuts(
    counts: Floats, totals: Floats, most: int, fewest: float, monotone: bool, *, both: bool
) -> Integers:
    width = len(counts)
    upto = np.concatenate([np.zeros((1, 2)), counts.cumsum(axis=0)])
    pieces = upto[None, :] - upto[:, None]  # [i, j]: goods and bads of fine bins i … j - 1
    people = pieces.sum(axis=2)
    start, end = np.indices(people.shape)
    allowed = (start < end) & (people >= max(fewest, 1))
    if both:
        allowed &= (pieces > 0).all(axis=2)
    share = np.where(allowed[..., None], _smoothed(pieces), totals) / totals
    value = np.where(
        allowed, (share[..., 0] - share[..., 1]) * np.log(share[..., 0] / share[..., 1]), -np.inf
    )
    rate = np.divide(pieces[..., 1], people, out=np.zeros_like(people), where=allowed)
    best, found = -np.inf, np.ones(width, dtype=np.int64)
    for sign in (1, -1) if monotone else (0,):
        # reach[i, j]: the best IV of fine bins 0 … j - 1 whose last bin is i … j - 1.
        reach = np.where(start == 0, value, -np.inf)
        before: list[Integers] = []
        for number in range(1, min(most, width) + 1):
            last = int(reach[:, width].argmax())
            # One bin is no merging: half a person in it can make its IV larger than any of two.
            if number > 1 and reach[last, width] > best + 1e-12:
                best, found = float(reach[last, width]), _traced(before, last, width)
            if number == width:
                break
            after, came = np.full_like(value, -np.inf), np.zeros(value.shape, dtype=np.int64)
            for i in range(1, width):
                # [h, j]: bin h … i - 1 followed by bin i … j - 1.
                step = rate[i][None, :] - rate[:, i][:, None]
                fits = (sign * step > 0) if sign else np.ones_like(step, dtype=np.bool_)
                options = np.where(fits, reach[:, i][:, None], -np.inf)
                came[i] = options.argmax(axis=0)
                after[i] = options.max(axis=0) + value[i]
            reach = after
            before.append(came)
    return found


def _traced(before: Sequence[Integers], last: int, width: int) -> Integers:
    """The bin of each fine bin, from where the last one starts."""
    starts, end = [last], width
    for came in reversed(before):
        start = int(came[starts[-1], end])
        end = starts[-1]
        starts.append(start)
    out = np.zeros(width, dtype=np.int64)
    out[[s for s in starts if s]] = 1
    return np.cumsum(out) + 1


# -- in words ----------------------------------------------------------------------------------


def bin_names(bins: NumericBins | LevelBins) -> list[str]:
    """What each bin holds, from missing values on."""
    if isinstance(bins, LevelBins):
        names = [", ".join(group) for group in bins.groups] + [""] * (bins.width - len(bins.groups))
        if bins.other is not None:
            held = names[bins.other - 1]
            names[bins.other - 1] = f"{held}, all others" if held else "all others"
        return ["missing", *names]
    ends = ["-∞", *_spelt(bins), "∞"]
    return [
        "missing",
        *(f"{'(' if low == '-∞' else '['}{low}, {high})" for low, high in pairwise(ends)),
    ]


def _spelt(bins: NumericBins) -> list[str]:
    if bins.dates:
        day = dt.date(1970, 1, 1)
        return [str(day + dt.timedelta(days=math.ceil(edge))) for edge in bins.edges]
    for digits in range(4, 18):
        out = [f"{edge:.{digits}g}" for edge in bins.edges]
        if len([*groupby(out)]) == len(out):
            return out
    return out
