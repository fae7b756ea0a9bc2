"""Few shared people: which method pays, on real data, and what it costs.

Runs the whole of ``interlace bench limited-overlap`` (the page and the figures lie in ``--out``, a
run that was stopped goes on), and four questions beside it:

- how many bytes one-shot VFL saves against split learning that is run to its best epoch, judged by
  validation people, on halves of CIFAR-10 with 256 shared images;
- how far few-shot VFL is above split learning on the same shared images;
- how far it is when all other images count, and not the grid's 1,000 a side;
- how long one-shot VFL takes on the credit card data with 29,000 unaligned rows a side. There are
  30,000 clients: both parties' unaligned rows are of the same ones, under ids that do not match.

``--rules`` measures instead what the rules of ``method: auto`` rest on: the same methods with the
same hyper-parameters, judged by validation people alone, on draws of their own. No score of the
test is read.

The larger data sets are read from ``../shared/data`` and skipped where that is absent. The last
line is one JSON object.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from interlace import Federation, OneShotVFL, Party, SplitVFL
from interlace.assess import Interval, paired, rightness
from interlace.bench.cells import choice_path, read_cells
from interlace.bench.choices import METHODS, settings_of, tidy, utility
from interlace.bench.grid import DATA, Grid, carry_out
from interlace.bench.material import FEW, Material, credit, draw, material
from interlace.bench.page import within, write_page
from interlace.bench.summary import (
    FEW_SHARED,
    ORDER,
    Advice,
    Line,
    advice,
    by_seed,
    lines,
    measure_title,
    rank,
    title,
    verdicts,
)
from interlace.cli.bench import show_cells
from interlace.cli.console import progress
from interlace.errors import DataError
from interlace.methods.base import Epoch
from interlace.methods.catalogue import build_method
from interlace.report import words

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared" / "data"
IMAGES, OVERLAP = f"cifar10{FEW}", 256
RATIO_TARGET = 330
SECONDS_TARGET = 180
ADVISED_TARGET = 0.75
RULES_DATA = ("breast", "vehicle", "caravan", "credit", "digits", f"digits{FEW}")
RULES_OVERLAPS = ((32, 64), (128, 256), (512, 1024))  # those in one bracket may share a rule
MOST_EPOCHS, PATIENCE = 600, 100  # of split learning, until its best epoch is known


class _Enough(Exception):
    """Split learning has not become better for long."""


def best_epoch(of: Material, settings: dict[str, Any], seed: int) -> int:
    """The epoch of split learning after which validation people are told apart best."""
    people = draw(of, OVERLAP, seed, "validation")
    method = SplitVFL(**settings | {"epochs": MOST_EPOCHS})
    best = (0.0, 0)

    def after(epoch: Epoch) -> None:
        nonlocal best
        best = max(best, (utility(method, people.judged), -epoch.number))
        if epoch.number + best[1] >= PATIENCE:
            raise _Enough

    with suppress(_Enough):
        method.fit(people.train.fresh(seed, "to-the-best"), on_epoch=after)
    return -best[1]


def bytes_saved(folder: Path, source: Path, seeds: int) -> dict[str, Any]:
    """Bytes of split learning, run to its best epoch, over those of one-shot VFL, by ledger."""
    of = material(IMAGES, source)
    built = {}
    for name in ("shared_only", "one_shot"):
        chosen = json.loads(choice_path(folder, IMAGES, name).read_text())["chosen"]
        built[name] = build_method(name, settings_of(name, of, chosen))
    split = built["shared_only"].get_params(deep=False)
    epochs, ratios = [], []
    for seed in range(seeds):
        epochs.append(best_epoch(of, split, seed))
        people = draw(of, OVERLAP, seed, "test")
        passed = {}
        for name, method in (
            ("split", SplitVFL(**split | {"epochs": epochs[-1]})),
            ("one_shot", built["one_shot"].set_params(local_epochs=0)),  # trains at home: no bytes
        ):
            method.fit(people.train.fresh(seed, f"bytes-{name}"))
            passed[name] = people.train.active.boundary.ledger.totals(f"bytes-{name}").bytes
            tidy(people)
        ratios.append(passed["split"] / passed["one_shot"])
    return {
        "best_epochs_of_split": epochs,
        "ratios": [round(r, 1) for r in ratios],
        "ratio": round(statistics.median(ratios), 1),
    }


def gain_on_images(cells: pl.DataFrame) -> dict[str, Any]:
    """Few-shot VFL's accuracy against split learning's, in points, on halves of CIFAR-10."""
    out = {}
    for data in ("cifar10", IMAGES):
        found = by_seed(cells, data, OVERLAP)
        if {"few_shot", "shared_only"} <= set(found):
            gain = paired(found["few_shot"], found["shared_only"]) or ()
            out[data] = {
                "gain_points": [round(100 * v, 1) for v in gain if v is not None],
                **{
                    name: round(100 * statistics.mean(found[name].values()), 1)
                    for name in ("shared_only", "one_shot", "few_shot")
                    if name in found
                },
            }
    return out


def with_all_images(folder: Path, source: Path, seeds: int) -> dict[str, Any]:
    """Accuracy where all images that are not shared are at one party alone, 256 being shared."""
    of = material(IMAGES, source)
    of = replace(of, unaligned=len(of.label))
    found: dict[str, dict[int, float]] = {}
    kept, right, unaligned = 0, 0, 0
    for name in ("shared_only", "one_shot", "few_shot"):
        chosen = json.loads(choice_path(folder, IMAGES, name).read_text())["chosen"]
        method = build_method(name, settings_of(name, of, chosen))
        for seed in range(seeds):
            people = draw(of, OVERLAP, seed, "test")
            method.fit(people.train.fresh(seed, f"all-{name}"))
            found.setdefault(name, {})[seed] = utility(method, people.judged)
            if name == "few_shot":
                for some in rightness(method, people.train, people.truth).values():
                    kept, right = kept + some.kept, right + some.right
            unaligned = people.unaligned
            tidy(people)
    gain = paired(found["few_shot"], found["shared_only"]) or ()
    return {
        "unaligned_a_side": unaligned,
        **{name: round(100 * statistics.mean(v.values()), 1) for name, v in found.items()},
        "gain_points": [round(100 * v, 1) for v in gain if v is not None],
        "kept": round(kept / seeds),
        "right": round(right / kept, 3) if kept else None,
    }


def one_shot_on_all_credit(source: Path) -> dict[str, float]:
    """Seconds of one-shot VFL, defaults as they are, with 29,000 unaligned rows a side."""
    of = credit(source)
    shared, test = 1000, 200
    order = np.random.default_rng(0).permutation(len(of.label))
    parties = []
    for i, (name, view) in enumerate(of.views.items()):
        ids = [f"P{row}" for row in order[:shared]] + [f"{name}{row}" for row in order[shared:]]
        table = view[order].with_columns(pl.Series("id", ids))
        if i == 0:
            table = table.with_columns(of.label.gather(order).alias("label"))
        parties.append(
            Party(name, table, label="label" if i == 0 else None,
                  categories=of.categories.get(name, ()))
        )  # fmt: skip
    train, judged = Federation.simulate(parties).split(test)
    train.align()
    wall, own = time.perf_counter(), time.process_time()
    method = OneShotVFL(bottom=of.bottom).fit(train)
    return {
        "seconds": round(time.perf_counter() - wall, 1),
        "processor_seconds": round(time.process_time() - own, 1),
        "auc": round(utility(method, judged), 3),
    }


def judge(cells: pl.DataFrame) -> dict[str, Any]:
    """At few shared people, on how many data sets the best method beats both baselines."""
    found = [v for v in verdicts(cells) if v.overlap <= FEW_SHARED]
    data = sorted({v.data for v in found})
    return {
        "beats_both_at_some_overlap": [
            d for d in data if any(v.beats_both for v in found if v.data == d)
        ],
        "does_not": [d for d in data if not any(v.beats_both for v in found if v.data == d)],
        "cells_that_beat_both": sum(v.beats_both for v in found),
        "cells": len(found),
    }


# --- what the rules of `method: auto` rest on ----------------------------------------------------


def measure_rules(folder: Path, source: Path, workers: int) -> dict[str, Any]:
    """How far each method is below the best, judged by validation people."""
    overlaps = [n for together in RULES_OVERLAPS for n in together]
    grid = Grid(
        data=RULES_DATA,
        overlaps=overlaps,
        seeds=3,
        methods=("active_alone", "shared_only", *METHODS),
        judge="validation",
    )
    with progress() as tell:
        missing = carry_out(grid, folder, source, workers=workers, progress=tell)
    below = shortfalls(read_cells(folder, "validation"))
    few = pl.col("data").str.ends_with(FEW)
    groups = {"labels of all": below.filter(~few), "few labels": below.filter(few)}
    return {
        "benchmark": "limited_overlap --rules",
        "skipped": missing,
        **{
            f"{name}, {' and '.join(map(str, some))} shared": ranked(
                rows.filter(pl.col("overlap").is_in(some))
            )
            for name, rows in groups.items()
            for some in (*RULES_OVERLAPS, *((n,) for n in overlaps))
        },
        "shortfalls": below.select("data", "overlap", "method", "shortfall").rows(),
    }


def shortfalls(cells: pl.DataFrame) -> pl.DataFrame:
    """For each data set, overlap and method: the best method's mean over draws less its own."""
    means = cells.group_by("data", "overlap", "method").agg(pl.col("utility").mean())
    best = pl.col("utility").max().over("data", "overlap")
    return means.with_columns(shortfall=best - pl.col("utility")).sort("data", "overlap", "method")


def ranked(below: pl.DataFrame) -> dict[str, Any]:
    """Mean shortfalls, the least first, and which is least with each data set left out."""

    def means(rows: pl.DataFrame) -> dict[str, float]:
        everywhere = pl.len() == rows.select("data", "overlap").n_unique()
        found = rows.group_by("method").agg(pl.col("shortfall").mean(), everywhere=everywhere)
        kept = found.filter("everywhere").sort("shortfall", "method")
        return {m: round(v, 4) for m, v in kept.select("method", "shortfall").iter_rows()}

    return {
        "mean_shortfall": means(below),
        "least_without": {
            data: next(iter(means(below.filter(pl.col("data") != data))), None)
            for data in below["data"].unique(maintain_order=True)
        },
    }


# --- the tables of docs/limited-overlap.md -------------------------------------------------------


def tables(cells: pl.DataFrame, advised: Sequence[Advice]) -> str:
    """Who beats whom, and all figures, in Markdown."""
    auto = {(a.data, a.overlap): a for a in advised}
    out = [
        "| data | shared | best method | over overlap only | over active alone | beats both "
        "| `auto` |",
        "|---|---|---|---|---|---|---|",
    ]
    for v in verdicts(cells):
        taken = auto[v.data, v.overlap]
        held = {True: ": within", False: ": below", None: ""}[taken.within]
        gains = f"{points(v.over_shared)} | {points(v.over_alone)}"
        beats = "**yes**" if v.beats_both else "no"
        out.append(
            f"| {v.data} | {v.overlap:,} | {title(v.best)} | {gains} | {beats} "
            f"| `{'split' if taken.method == 'shared_only' else taken.method}`{held} |"
        )
    table = lines(cells)
    for data in dict.fromkeys(line.data for line in table):
        out += ["", *figures([line for line in table if line.data == data])]
    return "\n".join(out) + "\n"


def points(gain: Interval | None) -> str:
    """A gain and its interval in points."""
    if gain is None:
        return "–"
    values = [words.decimal(100 * v, 1, sign=True) for v in gain if v is not None]
    return values[0] + (f" ({values[1]} to {values[2]})" if len(values) == 3 else "")


def figures(table: Sequence[Line]) -> Iterator[str]:
    """One data set: a column for each overlap, and the costs at one of them."""
    overlaps = sorted({line.overlap for line in table})
    at = max(n for n in overlaps if n <= FEW_SHARED)
    yield f"### {table[0].data}"
    yield ""
    yield (
        f"{measure_title(table[0].measure)}; rounds, bytes, seconds, and kept rows with the share "
        f"of right ones at {at} shared people."
    )
    yield ""
    headings = ["method", *(f"{n:,}" for n in overlaps), "rounds", "bytes", "seconds", "kept"]
    yield f"| {' | '.join(headings)} |"
    yield "|---" * len(headings) + "|"
    top = {n: max((x for x in table if x.overlap == n), key=rank).method for n in overlaps}
    for method in sorted({line.method for line in table}, key=ORDER.index):
        row = {line.overlap: line for line in table if line.method == method}
        shown = [within(row[n]) if n in row else "" for n in overlaps]
        shown = [
            f"**{text}**" if top[n] == method else text
            for n, text in zip(overlaps, shown, strict=True)
        ]
        cost = ["", "", "", ""]
        if at in row:
            x = row[at]
            cost = [words.count(x.rounds), words.size(x.bytes), f"{x.seconds:.1f}", ""]
            if x.kept is not None:
                right = "" if x.precision is None else f", {words.percent(x.precision)}"
                cost[3] = f"{words.count(x.kept)} of {words.count(x.choice or 0)}{right}"
        yield f"| {' | '.join([title(method), *shown, *cost])} |"


def main() -> None:
    """Run it all and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="little, to see that it runs")
    parser.add_argument("--rules", action="store_true", help="what `method: auto` rests on")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench" / "limited_overlap")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.rules:
        print(json.dumps(measure_rules(options.out, SHARED, options.jobs)))
        return
    begun = time.time()
    grid = Grid()
    if options.quick:
        grid = replace(grid, data=("breast", IMAGES), overlaps=(OVERLAP,), seeds=2, trials=1,
                       methods=("active_alone", "shared_only", "one_shot", "few_shot"))  # fmt: skip
    with progress() as tell:
        missing = carry_out(grid, options.out, SHARED, workers=options.jobs, progress=tell)
    cells = read_cells(options.out)
    cells.write_parquet(options.out / "limited-overlap.parquet")
    advised = advice(cells, SHARED)
    write_page(cells, options.out, "make bench NAME=limited_overlap", advised, missing)
    (options.out / "tables.md").write_text(tables(cells, advised))
    show_cells(cells, advised)
    known = [a.within for a in advised if a.within is not None]
    result: dict[str, Any] = {
        "benchmark": "limited_overlap",
        "skipped": sorted(set(DATA) - set(cells["data"])),
        "fits": cells.height,
        "verdicts": judge(cells),
        "few_shot_on_images": gain_on_images(cells),
        "advised_within_the_best_interval": [sum(known), len(known)],
        "targets": {
            "bytes_ratio": RATIO_TARGET,
            "credit_seconds": SECONDS_TARGET,
            "advised_share": ADVISED_TARGET,
        },
    }
    try:
        result["bytes"] = bytes_saved(options.out, SHARED, 1 if options.quick else 3)
        result["all_images"] = with_all_images(options.out, SHARED, 1 if options.quick else 3)
        result["credit"] = one_shot_on_all_credit(SHARED)
    except DataError as e:
        result["not_measured"] = str(e)
    result["table"] = [
        {
            "data": line.data,
            "overlap": line.overlap,
            "method": line.method,
            line.measure: [round(v, 4) for v in line.utility or () if v is not None],
            "rounds": round(line.rounds),
            "bytes": round(line.bytes),
            "seconds": round(line.seconds, 2),
            "kept": line.kept,
            "right": line.precision and round(line.precision, 3),
        }
        for line in lines(cells)
    ]
    result["seconds"] = round(time.time() - begun, 1)
    gain = result["few_shot_on_images"].get(IMAGES, {}).get("gain_points", [])
    result["met"] = bool(
        not result["skipped"]
        and "credit" in result
        and result["bytes"]["ratio"] >= RATIO_TARGET
        and result["credit"]["seconds"] <= SECONDS_TARGET
        and len(gain) == 3
        and gain[1] > 0  # beyond the interval
        and known
        and sum(known) >= ADVISED_TARGET * len(known)
    )
    print(json.dumps(result))


if __name__ == "__main__":
    main()
