"""One cell of a benchmark's table: a method, fitted and judged on one draw of people."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from interlace.assess import main_measures, rightness
from interlace.bench.choices import choose, settings_of, tidy, utility
from interlace.bench.material import Draw, Judge, draw, material
from interlace.errors import InterlaceError
from interlace.files import write_whole
from interlace.methods.catalogue import build_method

TUNING = (128, 1000)  # overlap and seed of the draw by which hyper-parameters are chosen
# Where outcomes lie, by who judges them: nothing that is chosen may rest on those of the test.
FOLDERS: dict[Judge, str] = {"test": "cells", "validation": "validation"}


class Cell(NamedTuple):
    """What is to be fitted."""

    data: str
    overlap: int
    seed: int
    method: str
    judge: Judge = "test"

    def path(self, folder: Path) -> Path:
        """Where its outcome lies."""
        name = f"{self.data}-{self.overlap}-{self.seed}-{self.method}.parquet"
        return folder / FOLDERS[self.judge] / name


SCHEMA = {
    "data": pl.String,
    "overlap": pl.Int64,
    "seed": pl.Int64,
    "method": pl.String,
    "unaligned": pl.Int64,
    "measure": pl.String,
    "utility": pl.Float64,
    "rounds": pl.Int64,
    "messages": pl.Int64,
    "bytes": pl.Int64,
    "seconds": pl.Float64,
    "choice": pl.Int64,
    "kept": pl.Int64,
    "known": pl.Int64,
    "right": pl.Int64,
    "settings": pl.String,
    "failed": pl.String,
}


def choice_path(folder: Path, data: str, method: str) -> Path:
    """Where the hyper-parameters lie that were chosen."""
    return folder / "chosen" / f"{data}-{method}.json"


def make_choice(folder: Path, source: Path | None, data: str, method: str, trials: int) -> None:
    """Choose a method's hyper-parameters for a data set, and write them down."""
    of = material(data, source)
    chosen, tried = choose(method, of, _drawn(data, source, *TUNING, "validation"), trials)
    text = json.dumps({"chosen": chosen, "tried": tried}, indent=1)
    write_whole(choice_path(folder, data, method), text.encode())


def fill(folder: Path, source: Path | None, cell: Cell) -> None:
    """Fit and judge a cell, and write its row.

    ``seconds`` are this process's own on a processor: other work on the machine does not count.
    """
    of = material(cell.data, source)
    chosen = json.loads(choice_path(folder, cell.data, cell.method).read_text())["chosen"]
    settings = settings_of(cell.method, of, chosen)
    people = _drawn(cell.data, source, cell.overlap, cell.seed, cell.judge)
    row: dict[str, Any] = {
        **{name: value for name, value in cell._asdict().items() if name in SCHEMA},
        "unaligned": people.unaligned,
        "measure": main_measures(people.train.label_plan.task)[0],
        "settings": json.dumps(settings, sort_keys=True),
    }
    try:
        row |= _measure(cell, settings, people)
    except InterlaceError as e:
        row["failed"] = str(e)
    tidy(people)
    content = BytesIO()
    pl.DataFrame([row], schema=SCHEMA).write_parquet(content)
    write_whole(cell.path(folder), content.getvalue())


def _measure(cell: Cell, settings: dict[str, Any], people: Draw) -> dict[str, Any]:
    method = build_method(cell.method, settings)
    tag = f"{cell.method}-{cell.overlap}-{cell.seed}"
    people.train.align()
    began = time.process_time()
    method.fit(people.train.fresh(cell.seed, tag))
    seconds = time.process_time() - began
    passed = people.train.active.boundary.ledger.totals(tag)  # before anybody is scored
    kept = rightness(method, people.train, people.truth).values()
    counts: Mapping[str, int] = {
        "choice": sum(k.of for k in kept),
        "kept": sum(k.kept for k in kept),
        "known": sum(k.known for k in kept),
        "right": sum(k.right for k in kept),
    }
    return {
        "utility": utility(method, people.judged),
        "rounds": passed.rounds,
        "messages": passed.messages,
        "bytes": passed.bytes,
        "seconds": seconds,
        **(counts if counts["choice"] else {}),
    }


@lru_cache(maxsize=2)
def _drawn(data: str, source: Path | None, overlap: int, seed: int, judge: Judge) -> Draw:
    """A draw, kept for the next cells on it: matching its people takes time."""
    return draw(material(data, source), overlap, seed, judge)


def read_cells(folder: Path, judge: Judge = "test") -> pl.DataFrame:
    """All outcomes so far, in the order of the table."""
    files = sorted((folder / FOLDERS[judge]).glob("*.parquet"))
    if not files:
        return pl.DataFrame(schema=SCHEMA)
    return pl.read_parquet(files).sort("data", "overlap", "seed", "method")
