"""Running a benchmark's cells: several at once, each kept as it ends, resumed where it stopped."""

from __future__ import annotations

import json
import multiprocessing
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from interlace.bench.cells import FOLDERS, TUNING, Cell, choice_path, fill, make_choice
from interlace.bench.choices import BASELINES, METHODS, methods_for
from interlace.bench.material import FEW, NAMES, Judge, material
from interlace.errors import DataError, JobError
from interlace.files import write_whole

Progress = Callable[[str, float], None]

# The data sets of a whole run; with labels of shared people alone, those where it says most.
DATA = (*(n for n in NAMES if not n.endswith(FEW)), f"digits{FEW}", f"cifar10{FEW}")


@dataclass(frozen=True)
class Grid:
    """What is to be run.

    Attributes:
        data: Names of data sets.
        overlaps: Which of each data set's overlaps; all without.
        seeds: As many draws of people.
        methods: Which rows of the table; all without.
        trials: Trials for each method's hyper-parameters on each data set.
        judge: Whom the models are judged by. Validation people judge draws that are neither those
            of the test nor the one by which hyper-parameters are chosen.
    """

    data: Sequence[str] = DATA
    overlaps: Sequence[int] = ()
    seeds: int = 5
    methods: Sequence[str] = ()
    trials: int = 5
    judge: Judge = "test"

    def cells(self, source: Path | None) -> tuple[list[Cell], list[str]]:
        """The cells, and why a data set has none.

        Raises:
            JobError: there is no such data set, method or overlap, or nothing to do.
        """
        for method in self.methods:
            if method not in (*BASELINES, *METHODS):
                raise JobError(
                    f"the benchmark has no method '{method}'; it has: "
                    + ", ".join((*BASELINES, *METHODS))
                )
        cells: list[Cell] = []
        missing: list[str] = []
        for name in self.data:
            try:
                of = material(name, source)
            except DataError as e:
                missing.append(f"{name} is left out: {e}")
                continue
            overlaps = [n for n in of.overlaps if not self.overlaps or n in self.overlaps]
            methods = [m for m in methods_for(of) if not self.methods or m in self.methods]
            first = 0 if self.judge == "test" else TUNING[1] + 1
            cells += [
                Cell(name, overlap, seed, method, self.judge)
                for seed in range(first, first + self.seeds)
                for overlap in overlaps
                for method in methods
            ]
        if not cells:
            raise JobError(
                "there is nothing to run: "
                + ("; ".join(missing) or "no data set has such overlaps and methods")
            )
        return cells, missing


def carry_out(
    grid: Grid,
    folder: Path,
    source: Path | None = None,
    *,
    workers: int = 1,
    progress: Progress = lambda _what, _done: None,
) -> list[str]:
    """Fill all cells that the folder does not have yet.

    Args:
        grid: What is to be run. A folder can be filled by several runs, of parts of the grid.
        folder: Takes ``chosen/`` (hyper-parameters), and ``cells/`` or, where validation people
            judge, ``validation/`` (a Parquet file for each cell).
        source: The folder of the larger data sets.
        workers: Processes, of one thread each.
        progress: Told what was done, and which share of the work is behind.

    Returns:
        Why data sets were left out.

    Raises:
        JobError: nothing to do, or the folder holds a run with another number of trials.
    """
    cells, missing = grid.cells(source)
    _claim(folder, FOLDERS[grid.judge], {"trials": grid.trials})
    clock = _Clock(progress, sum(not c.path(folder).exists() for c in cells))
    with _pool(workers) as pool:
        for name in dict.fromkeys(c.data for c in cells):
            mine = [c for c in cells if c.data == name and not c.path(folder).exists()]
            methods = [
                m
                for m in dict.fromkeys(c.method for c in mine)
                if not choice_path(folder, name, m).exists()
            ]
            choices = [(folder, source, name, method, grid.trials) for method in methods]
            for *_, method, _ in _each(pool, make_choice, choices):
                clock.tell(f"chose hyper-parameters of {method} on {name}", 0)
            for _, _, cell in _each(pool, fill, [(folder, source, cell) for cell in mine]):
                clock.tell(
                    f"{cell.data}, {cell.overlap} shared, seed {cell.seed}, {cell.method}", 1
                )
    return missing


def _each(
    pool: ProcessPoolExecutor | None, function: Callable[..., None], jobs: Sequence[tuple[Any, ...]]
) -> Iterator[tuple[Any, ...]]:
    """Jobs as they end; the first that fails ends it all."""
    if pool is None:
        for job in jobs:
            function(*job)
            yield job
        return
    begun = {pool.submit(function, *job): job for job in jobs}
    for future in as_completed(begun):
        future.result()
        yield begun[future]


@contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor | None]:
    """Processes; when something fails or Ctrl-C comes, what has not begun is dropped.

    One worker is this process.
    """
    if workers == 1:
        _begin()
        yield None
        return
    pool = ProcessPoolExecutor(
        workers, mp_context=multiprocessing.get_context("spawn"), initializer=_begin
    )
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _begin() -> None:
    """What a process does first: take one thread, since the others take the other cores."""
    import torch
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    torch.set_num_threads(1)
    threadpool_limits(1)
    # Doubts about columns, which every fit has anew.
    warnings.filterwarnings("ignore", category=UserWarning)


def _claim(folder: Path, outcomes: str, terms: dict[str, Any]) -> None:
    """Make the folder, or see that it holds a run of the same kind."""
    for inner in (outcomes, "chosen"):
        (folder / inner).mkdir(parents=True, exist_ok=True)
    note = folder / "grid.json"
    if note.exists():
        kept = json.loads(note.read_text())
        if kept != terms:
            raise JobError(
                f"{folder} holds a run with {kept['trials']} trials a method, not "
                f"{terms['trials']}; choose another folder by --out, or the same --trials"
            )
    write_whole(note, json.dumps(terms).encode())


class _Clock:
    """Says how much is done and how long the rest will take, by the pace so far."""

    def __init__(self, progress: Progress, due: int) -> None:
        self.progress, self.due, self.done = progress, due, 0
        self.began = time.monotonic()

    def tell(self, what: str, more: int) -> None:
        from interlace.report.words import duration

        self.done += more
        left = ""
        if self.done:
            pace = (time.monotonic() - self.began) / self.done
            left = f", {duration(pace * (self.due - self.done))} left"
        self.progress(f"{self.done}/{self.due}{left}: {what}", self.done / max(1, self.due))


__all__ = ["DATA", "Grid", "carry_out"]
