"""``interlace run``: carry out a job."""

from __future__ import annotations

import shlex
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Annotated

import typer

from interlace.cli.console import progress, say, show
from interlace.cli.outcome import show_outcome

if TYPE_CHECKING:
    from interlace.job.results import Results

EXAMPLE = """\
name: caravan
parties:
  insurer:                  # has the label, so it drives
    table: insurer.csv      # or .parquet, .feather, duckdb:..., sql:...
    id: customer            # who a row is about
    label: bought
  vendor:
    table: vendor.csv
    id: customer
method:
  name: split
  epochs: 20
"""

_NO_JOB = """\
`interlace run` takes a job: a YAML file that says who takes part and how they learn. Here is one.
Keep it beside your tables, and start it:

    interlace run > job.yaml
    interlace run job.yaml

No job yet? `interlace split TABLE` cuts one table into parties and writes their job;
`interlace demo` brings tables of its own.
"""


def run(
    job: Annotated[
        Path | None, typer.Argument(help="The job file; without one, an example is shown.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The run folder.", show_default="runs/ and the job's name"),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a run that was stopped.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress and no table, only errors.")
    ] = False,
) -> None:
    """Train by a job file, and compare with what is possible without federation.

    The parties' people are matched privately, the job's method and its baselines are trained once a
    seed, and each is judged on people that none of them saw.

        interlace run job.yaml

        interlace run job.yaml --out runs/second-try

    A job, which `interlace run` without one prints to be copied:

        {example}

    What comes out, in the run folder: `report.html` to look at, `results.json` to compute with, and
    for each party its models and its ledger of all that left it.

    Networks over shared people: `split`, `agg`, `fed_once`. Over others too: `proto_evfl`,
    `ss_vfl_i`, `ss_vfl_c`, `entity_augmentation`, `transfer`, `secure_transfer`, `vfedtrans`,
    `apc_vfl`, `privileged_distillation`, `one_shot`, `few_shot`, `fedcvt`. Tables: `boosted_trees`,
    `random_forest`, `decision_tree`, `scorecard`, `logistic`, `linear`, `poisson`, `tweedie`.
    Groups of people: `kmeans`, `gaussian_mixture`. Same columns, other people: `fedavg`,
    `fedprox`, `scaffold`, `fedavgm`, `fedadam`, `fedyogi`, `horizontal_linear`,
    `horizontal_trees`, `horizontal_kmeans`, `mixed`. Or `auto`, as `interlace inspect` recommends.
    `interlace methods NAME` says what one is and all that can be set.

    Ctrl-C, a kill or a power cut lose the current epoch and nothing else. `--resume` goes on to the
    result that an uninterrupted run has:

        interlace run job.yaml --resume
    """
    if job is None:
        say(_NO_JOB)
        show(EXAMPLE.rstrip())
        raise typer.Exit(2)
    carry_out(job, out, resume=resume, quiet=quiet)


run.__doc__ = (run.__doc__ or "").format(example=indent(EXAMPLE, " " * 8).strip())


def carry_out(job: Path, out: Path | None, *, resume: bool, quiet: bool = False) -> Results:
    """Run a job and show what it came to; a Ctrl-C says how to go on."""
    command = ["interlace", "run", str(job), *(["--out", str(out)] if out else [])]
    try:
        with progress(quiet) as tell:
            from interlace import runner
            from interlace.job.spec import read_job

            folder = out or runner.default_folder(read_job(job))
            results = runner.run(
                job, folder, resume=resume, progress=tell, command=shlex.join(command)
            )
    except KeyboardInterrupt:
        say(
            "\nStopped. All but the current epoch is kept. Go on with:\n\n"
            f"    {shlex.join([*command, '--resume'])}\n"
        )
        raise typer.Exit(130) from None
    if not quiet:
        show_outcome(results, folder)
    return results
