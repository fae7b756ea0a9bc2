"""``interlace submit``: ask all parties of a job for a run."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from interlace.cli.console import say, show
from interlace.cli.plan import contract_of, show_stops
from interlace.cli.sites import (
    FolderOption,
    Yes,
    confirm,
    opened,
    show_contract,
    show_plan,
    warn,
)
from interlace.errors import JobError, Refused

if TYPE_CHECKING:
    from interlace.sites.contract import Contract
    from interlace.sites.folder import PartyFolder


def submit(
    job: Annotated[Path, typer.Argument(help="The job file; its parties may be names alone.")],
    party: FolderOption = None,
    yes: Yes = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="Hand it in and return; do not follow it.")
    ] = False,
) -> None:
    """Send a job to all its parties, and follow the run that they approve.

        interlace submit job.yaml

    Shows what the run would let out of this party, and asks; saying yes approves it for this party.
    Every other party sees the same of its own side, and nothing runs before all have approved.

    What comes out: a run that all have approved; this party's part of it is in its `runs/`.

    Ctrl-C stops following, not the run. A run that was paused, since a partner was away, goes on
    when the same job is submitted again.
    """
    folder = opened(party)
    may_submit(folder)
    from interlace.sites import submission

    contract = contract_of(folder, job)
    if folder.name not in contract.parties:
        raise JobError(f"{job} is not for '{folder.name}': {', '.join(contract.parties)}")
    if folder.name != contract.active:
        raise JobError(
            f"{job} is for '{contract.active}' to drive (`active:`), which submits it; every other "
            "party would refuse it from anybody else"
        )
    run = folder.run(contract.run)
    if run.status.state == "finished" and not run.status.reason:  # else somebody is yet to hear it
        show(Text.assemble(("finished  ", "bold green"), run.name))
        say(
            f"`interlace results {run.name}` shows what it came to. To run the same anew, give the "
            f"job another `name`: {job} as it is names this run"
        )
        return
    number = hand_in(folder, contract, yes=yes)
    if detach:
        return
    try:
        done = submission.watch(folder, contract, number, on_state=told)
    except KeyboardInterrupt:
        say(f"\nNo longer followed; it goes on. `interlace status {run.name}` says how it stands.")
        raise typer.Exit(130) from None
    colour = {"finished": "bold green"}.get(done.state, "bold red")
    show(Text.assemble((f"{done.state}  ", colour), done.reason))
    if done.state == "finished":
        show(Text.assemble("Report: ", (str(run.path / "report.html"), "bold cyan")))
        return
    if done.state == "paused":
        say(f"All that was learnt is kept. Go on: interlace submit {job}")
    raise typer.Exit(1)


def may_submit(folder: PartyFolder) -> None:
    """Make sure that the party has a user of the federation who may submit jobs.

    Raises:
        JobError: it has none.
    """
    if not folder.user.exists():
        raise JobError(
            f"'{folder.name}' has no user who may submit jobs; ask for one by `interlace party "
            "request` with `drives: true` in site.yaml"
        )


def may_score(folder: PartyFolder, agreed: Contract) -> None:
    """Make sure that the party may submit that people are scored by a run's models.

    Raises:
        JobError: it has no user who may, or another party drove the run.
    """
    may_submit(folder)
    if folder.name != agreed.active:
        raise JobError(f"'{agreed.active}' drove this run, so it scores; '{folder.name}' answers")


def hand_in(folder: PartyFolder, contract: Contract, *, yes: bool) -> str:
    """Have the own party approve a contract, and hand it in; gives FLARE's name of the job."""
    from interlace.report.words import listed
    from interlace.sites import approval, columns, submission
    from interlace.sites.folder import Status

    down, run = submission.away(folder, contract), folder.run(contract.run)
    before = run.status
    new = not (run.path / "contract.json").exists()
    run.keep(contract)
    try:
        show_contract(contract)
        given = approval.answer_of(run)
        if given is None or given.answer != "approved":
            say("Rehearsing …")
            plan = approval.plan_for(folder, run)
            show_plan(plan)
            if why := show_stops(folder, contract, plan):
                raise Refused(approval.nobody_can(run, why))
            warn(columns.doubts(folder, contract))
            if not yes:
                confirm("Approve this for your own party, and ask the others?")
            approval.approve(folder, run)
    except BaseException:
        if new:  # nobody was asked: it is no run
            shutil.rmtree(run.path)
        raise
    number = submission.submit(folder, contract)
    if before.job == number:
        say(f"It is under way: {run.status.state} {run.status.doing}")
        return number
    said = approval.others_of(run)
    due = [name for name in contract.parties if name not in (folder.name, *said)]
    if due:
        doing = f"for {listed(due)} to approve"
        say(f"Handed in. Now it is for {listed(due)}: interlace approve {run.name}")
    else:
        doing = "for its sites to begin"
        say("Handed in. All have approved it before")
    if down:
        doing = f"for the site of {listed(down)} to be up"
        say(f"Not up now, and waited for up to {contract.wait:g} hours: {listed(down)}")
    run.note(Status(state="waiting", doing=doing, done=before.done, job=number))
    return number


def told(job: str, state: str) -> None:
    say(f"  the server has it as {state.lower()} ({job[:8]})")
