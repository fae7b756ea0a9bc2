"""``interlace bench``: a benchmark that a user can repeat."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from interlace.cli.console import progress, say, show, table

if TYPE_CHECKING:
    import polars as pl

    from interlace.bench.summary import Advice


def bench(
    name: Annotated[
        Literal["limited-overlap"],
        typer.Argument(
            help="limited-overlap: which method pays where few people are shared and most are at "
            "one party only."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="The folder.", show_default="interlace-bench/limited-overlap"),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            "--data",
            envvar="INTERLACE_DATA",
            help="Folder of the data sets that do not install with interlace.",
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="A data set, again for each.", show_default="all that are there"),
    ] = None,
    overlap: Annotated[
        list[int] | None,
        typer.Option(help="A number of shared people, again for each.", show_default="all"),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help="A method or baseline, again for each.", show_default="all"),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Draws of people.")] = 5,
    trials: Annotated[
        int, typer.Option(min=1, help="Trials for each method's hyper-parameters.")
    ] = 5,
    jobs: Annotated[int, typer.Option(min=1, help="Cells at once, a core each.")] = 2,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress and no table, only errors.")
    ] = False,
) -> None:
    """Compare methods on real data, as a table, a page of plots and a Parquet file.

    Each method is fitted to draws of few shared people and many others, and judged on shared people
    whom no draw trains on. Its hyper-parameters are chosen before, without these people.

        interlace bench limited-overlap --only breast --only digits --seeds 2

    What comes out, in the folder: `limited-overlap.html` to look at, `limited-overlap.parquet` to
    compute with. A run that was stopped goes on where it was when the command is given again, and
    can be widened: more seeds, overlaps, data sets or methods.
    """
    del name  # there is one so far
    folder = out or Path("interlace-bench/limited-overlap")
    command = shlex.join(["interlace", *sys.argv[1:]])
    from interlace.bench.cells import read_cells
    from interlace.bench.grid import DATA, Grid, carry_out
    from interlace.bench.page import write_page
    from interlace.bench.summary import advice

    grid = Grid(
        data=tuple(only or DATA),
        overlaps=tuple(overlap or ()),
        seeds=seeds,
        methods=tuple(method or ()),
        trials=trials,
    )
    missing: list[str] = []
    try:
        with progress(quiet) as tell:
            missing = carry_out(grid, folder, source, workers=jobs, progress=tell)
    except KeyboardInterrupt:
        say(f"\nStopped. What was done is kept in {folder}; the same command goes on.")
        raise typer.Exit(130) from None
    cells = read_cells(folder)
    cells.write_parquet(folder / "limited-overlap.parquet")
    advised = advice(cells, source)
    page = write_page(cells, folder, command, advised, missing)
    if quiet:
        return
    show_cells(cells, advised)
    for note in missing:
        say(note)
    show(f"Page: {page}")


def show_cells(cells: pl.DataFrame, advised: Sequence[Advice]) -> None:
    """Print the table of every data set, and what they say."""
    from interlace.bench.page import within
    from interlace.bench.summary import lines, verdicts
    from interlace.report import words

    found = lines(cells)
    for data in dict.fromkeys(line.data for line in found):
        here = [line for line in found if line.data == data]
        made = table(
            "Method", "Shared", "Utility", "Rounds", "Bytes", "Seconds", "Kept", "Right", title=data
        )
        before = here[0].overlap
        for line in here:
            if line.overlap != before:
                made.add_section()
                before = line.overlap
            cost = [words.count(line.rounds), words.size(line.bytes), f"{line.seconds:.1f}"]
            made.add_row(
                line.title,
                words.count(line.overlap),
                within(line) if line.utility else line.failed,
                *(cost if line.utility else ["–"] * len(cost)),
                "–" if line.kept is None else words.count(line.kept),
                "–" if line.precision is None else words.percent(line.precision),
            )
        show(made)
    for verdict in verdicts(cells):
        where = f"{verdict.data}, {verdict.overlap:,} shared"
        beats = "" if verdict.beats_both else " It does not beat both."
        show(f"{where}: {verdict.text}.{beats}")
    known = [a.within for a in advised if a.within is not None]
    if known:
        show(f"`method: auto` is within the interval of the best in {sum(known)} of {len(known)}.")
