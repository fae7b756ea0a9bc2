"""``interlace report``: look at a run again."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from interlace.cli.console import say, show, table
from interlace.errors import JobError

if TYPE_CHECKING:
    from interlace.boundary.ledger import Summary
    from interlace.job.results import Results


def report(
    run: Annotated[Path, typer.Argument(help="The run folder.")],
    open_it: Annotated[bool, typer.Option("--open", help="Show the page in a browser.")] = False,
    transcript: Annotated[
        bool, typer.Option("--transcript", help="Print the conversation, from the ledger.")
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Check that no party's ledger was changed.")
    ] = False,
) -> None:
    """Write a run's page again, read its conversation, or check its ledgers.

        interlace report runs/caravan --open

        interlace report runs/caravan --transcript

        interlace report runs/caravan --verify

    What comes out: `report.html` in the run folder, made from `results.json`. With `--transcript`,
    what passed between the active party and its partners, in order of first appearance, with
    counts and bytes. With `--verify`, whether every row of every ledger is as it was written and
    the head that the report holds is among them; the exit code is 1 if not. Rows that `predict`
    added since are counted.
    """
    from interlace.job.results import Results

    file = run / "results.json"
    if not file.exists():
        raise JobError(f"{run} holds no results; train first with `interlace run`")
    try:
        results = Results.read(file)
    except ValueError as e:
        raise JobError(f"{file} is damaged; go on with the run by --resume to make it again") from e
    if transcript or verify:
        if transcript:
            _show_transcript(run, results)
        if verify and not _verify(run, results):
            raise typer.Exit(1)
        return

    from interlace.report import write_report

    page = write_report(results, run / "report.html")
    show(Text.assemble("Report: ", (str(page), "bold cyan")))
    if open_it:
        typer.launch(page.resolve().as_uri())


def _ledger(run: Path, party: str) -> Path:
    return run / "parties" / party / "ledger.sqlite"


def _show_transcript(run: Path, results: Results) -> None:
    from interlace.boundary import Ledger
    from interlace.report.words import count, size

    active = next(p.name for p in results.parties if p.active)
    path = _ledger(run, active)
    if not path.exists():
        raise JobError(f"the ledger of party '{active}' is not in {run}")
    same_as: dict[tuple[tuple[str, ...], ...], str] = {}
    for session, found in groupby(Ledger(path).summary(), key=lambda s: s.session):
        flows = list(found)
        lines = tuple((f.sender, f.receiver, f.operation, f.kind, _form(f)) for f in flows)
        if lines in same_as:
            show(Text(f"{session}: as {same_as[lines]}"))
            continue
        same_as[lines] = session
        made = table("from", "to", "asked", "kind", "form", "messages", "bytes", title=session)
        for column in made.columns[1:5]:
            column.justify = "left"
        for f, line in zip(flows, lines, strict=True):
            made.add_row(*line, count(f.messages), size(f.bytes_after))
        show(made)


def _form(flow: Summary) -> str:
    """Number type and shape, in which n is the number of people, and the guards passed."""
    _, *rest = flow.shape.split("×")
    shape = "×".join(["n", *rest]) if flow.shape else ""
    return " ".join(part for part in (flow.dtype, shape, flow.guard) if part)


def _verify(run: Path, results: Results) -> bool:
    from interlace.boundary import Ledger
    from interlace.report.words import plural

    good = True
    for party in results.parties:
        path = _ledger(run, party.name)
        if not path.exists():
            say(Text.assemble(("missing  ", "bold red"), f"{party.name}: {path} is not there"))
            good = False
            continue
        ledger = Ledger(path)
        wrong = ledger.verify(party.ledger_head or None)
        if wrong is None:
            text = f"{party.name}: {plural(sum(1 for _ in ledger.entries()), 'row')}"
            since = ledger.rows_since(party.ledger_head) if party.ledger_head else 0
            if since:
                were = "row was" if since == 1 else "rows were"
                text += f"; {since:,} {were} written since the report"
            show(Text.assemble(("intact   ", "bold green"), text))
        else:
            text = f"{party.name}: row {wrong:,} of {path} is not as it was written"
            say(Text.assemble(("changed  ", "bold red"), text))
            good = False
    return good
