"""From cells to the table: means over seeds, and what they say at each overlap."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import polars as pl

from interlace.assess import MEASURES, Interval, interval, paired
from interlace.bench.choices import BASELINES, METHODS
from interlace.bench.material import NAMES, Material, material
from interlace.data.geometry import Situation
from interlace.data.labels import LabelPlan
from interlace.methods.catalogue import CATALOGUE
from interlace.methods.recommend import recommend
from interlace.report import words

ORDER = (*BASELINES, *METHODS)
IN_ONE_PLACE = ("mean_imputation", "pooled")  # no federation could run them
FEW_SHARED = 256  # up to so many shared people, the question is whether the other rows help


@dataclass(frozen=True)
class Line:
    """A row of the table: a method on one data set with one overlap, over the seeds.

    Attributes:
        utility: Over the draws that it could be fitted on; ``None`` where there is none.
        rounds, bytes: Means, by the active party's ledger.
        seconds: Mean time on one processor.
        kept: Mean number of rows without a label that it learnt from as if they had one.
        precision: Share of those whose class was right.
        seeds: On how many draws it was fitted.
        draws: How many there are; a mean over fewer is of other people.
        failed: Why it could not be fitted on the first of those where it could not.
    """

    data: str
    overlap: int
    method: str
    title: str
    measure: str
    utility: Interval | None
    rounds: float
    bytes: float
    seconds: float
    kept: float | None
    choice: float | None
    precision: float | None
    seeds: int
    draws: int
    failed: str | None


@dataclass(frozen=True)
class Verdict:
    """What a data set says at one overlap.

    Attributes:
        best: The method with the highest mean, baselines apart, and what has fewer draws.
        over_shared: Its mean gain over split learning on the shared people, seed by seed.
        over_alone: Its mean gain over the active party alone.
    """

    data: str
    overlap: int
    best: str
    over_shared: Interval | None
    over_alone: Interval | None

    @property
    def beats_both(self) -> bool:
        """Whether both gains are above 0 beyond their intervals."""
        return all(
            gain is not None and gain.low is not None and gain.low > 0
            for gain in (self.over_shared, self.over_alone)
        )

    @property
    def text(self) -> str:
        """The verdict in words."""
        found = []
        for gain, other in (
            (self.over_shared, "overlap only"),
            (self.over_alone, "the active party alone"),
        ):
            if gain is None:
                continue
            points = words.decimal(100 * gain.mean, 1, sign=True)
            if gain.low is None or gain.high is None:
                found.append(f"{points} points over {other} (one seed)")
                continue
            sure = "beyond the interval" if gain.low > 0 else "within the interval"
            sure = "worse" if gain.high < 0 else sure
            found.append(f"{points} points over {other}, {sure}")
        return f"{CATALOGUE[self.best].title}: {'; '.join(found)}"


def lines(cells: pl.DataFrame) -> list[Line]:
    """The table, by data set, overlap and method."""
    out = []
    drawn = cells.group_by("data", "overlap").agg(pl.col("seed").n_unique())
    draws = {(data, overlap): count for data, overlap, count in drawn.iter_rows()}
    for (data, overlap, method), rows in cells.group_by("data", "overlap", "method"):
        good = rows.filter(pl.col("failed").is_null())
        kept, known, choice = good["kept"], int(good["known"].sum() or 0), good["choice"]
        out.append(
            Line(
                str(data),
                int(str(overlap)),
                str(method),
                title(str(method)),
                rows["measure"][0],
                interval(good["utility"].to_list()) if good.height else None,
                _mean(good["rounds"]),
                _mean(good["bytes"]),
                _mean(good["seconds"]),
                _mean(kept) if kept.is_not_null().any() else None,
                _mean(choice) if kept.is_not_null().any() else None,
                int(good["right"].sum() or 0) / known if known else None,
                good.height,
                draws[data, overlap],
                rows.sort("seed")["failed"].drop_nulls().first(),  # type: ignore[arg-type]
            )
        )
    return sorted(out, key=lambda r: (NAMES.index(r.data), r.overlap, ORDER.index(r.method)))


def rank(line: Line) -> tuple[int, float]:
    """What the best line of a data set and overlap has the most of: draws, then utility."""
    return line.seeds, line.utility.mean if line.utility else float("-inf")


@dataclass(frozen=True)
class Advice:
    """What ``method: auto`` takes on one data set with one overlap.

    Attributes:
        method: Its name, as the table has it.
        best: The row with the highest mean, but for those that need all tables in one place, or
            have fewer draws than others.
        within: Whether the advised mean is within the best one's interval, which it is not where
            it could not always be fitted; ``None`` where it was not run on all draws, or these are
            too few for an interval.
    """

    data: str
    overlap: int
    method: str
    best: str
    within: bool | None


def advice(cells: pl.DataFrame, source: Path | None) -> list[Advice]:
    """What is recommended for each data set and overlap, against the best of the table.

    Args:
        source: The folder of the larger data sets, as when the cells were filled.
    """
    out = []
    table = lines(cells)
    for data, overlap in dict.fromkeys((line.data, line.overlap) for line in table):
        here = {x.method: x for x in table if (x.data, x.overlap) == (data, overlap)}
        able = [x for m, x in here.items() if x.utility and m not in IN_ONE_PLACE]
        if not able:
            continue
        best = max(able, key=rank)
        each = cells.filter(data=data, overlap=overlap)["unaligned"][0]
        found = recommend(_situation(material(data, source), overlap, each)).method or ""
        method = {"split": "shared_only"}.get(found, found)
        within, advised = None, here.get(method)
        if best.utility and best.utility.low is not None and advised is not None:
            if advised.seeds == best.seeds and advised.utility:
                within = advised.utility.mean >= best.utility.low
            elif advised.failed:
                within = False
        out.append(Advice(data, overlap, method, best.method, within))
    return out


def _situation(of: Material, overlap: int, each: int) -> Situation:
    """What a federation of this data set knows of itself; those tested on do not count."""
    active, partner = of.views
    every = of.labels == "all"
    return Situation(
        active=active,
        task=LabelPlan.fit(of.label, party=active).task,
        parties=2,
        own_columns=True,
        shared=overlap,
        partly=0,
        labelled=each if every else 0,
        unlabelled={active: 0 if every else each, partner: each},
    )


def _mean(values: pl.Series) -> float:
    mean = values.mean()
    return float(mean) if isinstance(mean, int | float) else 0.0


def title(method: str) -> str:
    """What the table calls a method."""
    names = {"shared_only": "Overlap only (split learning)", "pooled": "Pooled shared people"}
    return names.get(method, CATALOGUE[method].title)


def by_seed(cells: pl.DataFrame, data: str, overlap: int) -> dict[str, dict[int, float]]:
    """Each method's utility by seed."""
    here = cells.filter(data=data, overlap=overlap).filter(pl.col("utility").is_not_null())
    out: dict[str, dict[int, float]] = {}
    for method, seed, value in here.select("method", "seed", "utility").iter_rows():
        out.setdefault(method, {})[seed] = value
    return out


def verdicts(cells: pl.DataFrame) -> list[Verdict]:
    """For every data set and overlap, whether the best method beats what needs no other rows."""
    out = []
    pairs = cells.select("data", "overlap").unique().rows()
    for data, overlap in sorted(pairs, key=lambda p: (NAMES.index(p[0]), p[1])):
        found = by_seed(cells, data, overlap)
        ours = {m: v for m, v in found.items() if m not in BASELINES}
        if not ours:
            continue
        best = max(ours, key=lambda m: (len(ours[m]), interval(list(ours[m].values())).mean))
        gains = [
            paired(ours[best], found[other]) if other in found else None
            for other in ("shared_only", "active_alone")
        ]
        out.append(Verdict(data, overlap, best, *gains))
    return out


def leading(cells: pl.DataFrame, number: int) -> list[str]:
    """The methods that come first most often: by mean rank over data sets and overlaps."""
    ranks: dict[str, list[int]] = {}
    for (_, _), here in cells.group_by("data", "overlap"):
        means = (
            here.filter(~pl.col("method").is_in(BASELINES))
            .group_by("method")
            .agg(pl.col("utility").mean())
            .drop_nulls()
            .sort("utility", "method", descending=True)
        )
        for rank, method in enumerate(means["method"]):
            ranks.setdefault(method, []).append(rank)
    order = sorted(ranks, key=lambda m: (sum(ranks[m]) / len(ranks[m]), m))
    return order[:number]


def measure_title(measure: str) -> str:
    """What a measure is called."""
    return MEASURES[measure].title
