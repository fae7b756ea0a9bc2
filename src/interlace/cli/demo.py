"""``interlace demo``: a whole run on real data that install with interlace."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from interlace.cli.console import say
from interlace.cli.run import carry_out
from interlace.errors import JobError

if TYPE_CHECKING:
    from interlace.data.partition import Split

Case = Literal["insurance", "clinics", "digits"]


def demo(
    case: Annotated[
        Case,
        typer.Argument(
            help="insurance: a data vendor helps an insurer. clinics: three clinics and a registry "
            "that has the diagnoses alone. digits: two halves of images."
        ),
    ] = "insurance",
    out: Annotated[
        Path | None,
        typer.Option(help="The folder.", show_default="interlace-demo/ and the case's name"),
    ] = None,
) -> None:
    """Try interlace on real data that are already here, in a minute or two.

        interlace demo

        interlace demo clinics

    What comes out: a folder with a table and a party file for each party and the `job.yaml`, which
    are yours to change; and in it the run, which ends with the path of its report. A demo that was
    stopped goes on where it was, one that was finished is run again beside the first.
    """
    folder = out or Path("interlace-demo") / case
    if (folder / "job.yaml").exists():
        say(f"The tables in {folder} are there from an earlier demo, and used as they are.")
    elif folder.exists():
        raise JobError(f"{folder} is there and holds no demo; choose another folder by --out")
    else:
        _prepare(case, folder)
    run, resume = _next_run(folder)
    carry_out(folder / "job.yaml", run, resume=resume)


def _prepare(case: Case, folder: Path) -> None:
    """Write the case's tables and job; the folder appears once it is complete."""
    from interlace.cli.split import show_tables, write_parties

    cut, method, seeds = case_of(case)
    say(cut.description)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".interlace-") as fresh:
        made = Path(fresh) / "demo"
        write_parties(made, cut, method=method, name=f"{case}-demo", seeds=seeds)
        made.replace(folder)
    show_tables(folder, cut)


def case_of(case: Case) -> tuple[Split, dict[str, Any], int]:
    """The case's tables, the method with settings that suit them, and how many seeds show it."""
    from interlace.data import datasets

    match case:
        case "insurance":  # few buyers and many columns: a plain, strongly damped network does best
            method: dict[str, Any] = {
                "name": "split",
                "bottom": {"network": "linear", "width": 8},
                "top": [],
                "optimisation": {"weight_decay": 3.0},
            }
            return datasets.caravan(), method, 6
        case "clinics":
            return datasets.clinics(), {"name": "split"}, 5
        case "digits":
            quick: dict[str, Any] = {"name": "split", "epochs": 20, "patience": 3}
            return datasets.digits(), quick | {"bottom": {"hidden": [8, 16], "width": 32}}, 5


def _next_run(folder: Path) -> tuple[Path, bool]:
    """The run folder to use, and whether a stopped run in it is to go on."""
    from interlace.job.results import Results

    number = 1
    while True:
        run = folder / ("run" if number == 1 else f"run-{number}")
        if not (run / "job.yaml").exists():
            return run, False
        results = run / "results.json"
        if not results.exists() or not Results.read(results).finished:
            say(f"The run in {run} was stopped; it goes on.")
            return run, True
        number += 1
