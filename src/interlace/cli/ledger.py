"""``interlace ledger``: what left this party and what came, in a run over sites."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from interlace.cli.console import say, show, table
from interlace.cli.sites import FolderOption, RunArgument, opened
from interlace.errors import JobError

if TYPE_CHECKING:
    from interlace.boundary import Ledger
    from interlace.sites.folder import RunFolder


def show_(run: RunArgument = None, party: FolderOption = None) -> None:
    """Show what left this party and what came, by kind and partner.

        interlace ledger show credit-1a2b3c4d

    The ledger holds no values: kind, shape, bytes, guards.
    """
    from interlace.report.words import count, size

    folder = opened(party)
    one = folder.find(run)
    ledger = _ledger(one)
    made = table("from", "to", "asked", "kind", "guarded by", "messages", "bytes")
    for column in made.columns[1:5]:
        column.justify = "left"
    for f in ledger.summary():
        sizes = (count(f.messages), size(f.bytes_after))
        made.add_row(f.sender, f.receiver, f"{f.session}: {f.operation}", f.kind, f.guard, *sizes)
    refused = sum(entry.direction == "refused" for entry in ledger.entries())
    show(made)
    if refused:
        show(
            Text.assemble(
                (f"{refused:,} messages were refused", "yellow"), "; they changed nothing"
            )
        )
    say(f"Head: {ledger.head}  (kept elsewhere, it proves the whole ledger later)")


def verify(
    run: RunArgument = None,
    party: FolderOption = None,
    head: Annotated[str | None, typer.Option(help="A head that was kept elsewhere.")] = None,
) -> None:
    """Check that no row of the ledger was changed or removed.

        interlace ledger verify credit-1a2b3c4d --head 0f3a...

    The exit code is 1 if one was.
    """
    one = opened(party).find(run)
    ledger = _ledger(one)
    wrong = ledger.verify(head)
    if wrong is not None:
        show(Text.assemble(("changed  ", "bold red"), f"row {wrong:,} is not as it was written"))
        raise typer.Exit(1)
    rows = sum(1 for _ in ledger.entries())
    show(Text.assemble(("intact   ", "bold green"), f"{rows:,} rows, head {ledger.head}"))


def export(
    partner: Annotated[str, typer.Argument(help="The party that it is for.")],
    run: RunArgument = None,
    party: FolderOption = None,
    out: Annotated[
        Path | None, typer.Option(help="The file.", show_default="./ME-to-PARTNER.csv")
    ] = None,
) -> None:
    """Write what passed with one partner, for that partner to compare.

        interlace ledger export shop

    The file holds kinds, shapes and bytes of what the two have sent each other, no values, and
    nothing of what passed with others. The partner runs `interlace ledger diff --theirs FILE`.
    """
    from interlace.sites import compare

    folder = opened(party)
    one = folder.find(run)
    if partner not in one.contract.parties:
        raise JobError(f"'{partner}' is not in this run: {', '.join(one.contract.parties)}")
    passed = compare.passed_between(_ledger(one).entries(), folder.name, partner)
    file = out or Path(f"{folder.name}-to-{partner}.csv")
    rows = compare.export(passed, file)
    show(Text.assemble("Export: ", (str(file), "bold cyan"), f"  {rows:,} rows"))


def diff(
    run: RunArgument = None,
    party: FolderOption = None,
    theirs: Annotated[
        Path | None, typer.Option(help="A partner's export, to hold this ledger against.")
    ] = None,
) -> None:
    """Hold what left against the disclosure plan, or two parties' ledgers against each other.

        interlace ledger diff credit-1a2b3c4d

        interlace ledger diff credit-1a2b3c4d --theirs shop-to-bank.csv

    The exit code is 1 if more left than was planned, or if one party noted what the other did not.
    """
    folder = opened(party)
    one = folder.find(run)
    if theirs is None:
        _with_plan(folder.name, one)
    else:
        _with_partner(folder.name, one, theirs)


def _with_plan(name: str, run: RunFolder) -> None:
    from interlace.report.words import count, size
    from interlace.sites import compare
    from interlace.sites.approval import plan_kept

    plan = plan_kept(run)
    if plan is None:
        raise JobError(f"'{run.name}' has no disclosure plan; `interlace plan {run.name}` makes it")
    made = table("what left", "messages", "about", "bytes", "at most", "")
    held = compare.against_plan(plan, _ledger(run), name)
    for h in held:
        verdict = Text("within", style="green") if h.within else Text("beyond", style="bold red")
        made.add_row(
            h.kind.value,
            count(h.messages),
            count(h.planned_messages),
            size(h.bytes),
            size(h.planned_bytes),
            verdict,
        )
    show(made)
    if not all(h.within for h in held):
        raise typer.Exit(1)


def _with_partner(name: str, run: RunFolder, theirs: Path) -> None:
    from interlace.report.words import plural
    from interlace.sites import compare

    their = compare.exported(theirs)
    others = {p for row in their for p in (row.sender, row.receiver)} - {name}
    if len(others) != 1:
        raise JobError(f"{theirs} is not about '{name}' and one partner")
    (partner,) = others
    mine = list(compare.passed_between(_ledger(run).entries(), name, partner))
    found = compare.differences(mine, their)
    if not found:
        alike = plural(len(mine), "row")
        show(Text.assemble(("alike    ", "bold green"), f"{alike} with '{partner}', on both sides"))
        return
    made = table("from", "asked", "kind", "round", "bytes", name, partner)
    for column in made.columns[1:3]:
        column.justify = "left"
    for d in found[:20]:
        made.add_row(
            d.what.sender,
            f"{d.what.session}: {d.what.operation}",
            d.what.kind,
            str(d.what.round),
            f"{d.what.bytes:,}",
            str(d.mine),
            str(d.theirs),
        )
    show(made, Text.assemble(("differ   ", "bold red"), plural(len(found), "row")))
    say("What passed in the last second before a process was killed may be missing at its end.")
    raise typer.Exit(1)


def _ledger(run: RunFolder) -> Ledger:
    from interlace.boundary import Ledger

    if not run.ledger.exists():
        raise JobError(f"'{run.name}' has no ledger here yet: nothing has passed")
    return Ledger(run.ledger)
