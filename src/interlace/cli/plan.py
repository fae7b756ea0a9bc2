"""``interlace plan``: what a job would let out of this party, before anybody is asked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from interlace.cli.console import say, show
from interlace.cli.sites import FolderOption, opened, show_contract, show_plan, warn

if TYPE_CHECKING:
    from interlace.sites.contract import Contract
    from interlace.sites.folder import PartyFolder
    from interlace.sites.plan import Plan


def plan(
    job: Annotated[Path, typer.Argument(help="The job file, or a run that this party was asked.")],
    party: FolderOption = None,
) -> None:
    """Show what a job would let out of this party: kinds, bytes, privacy. Nobody is asked.

        interlace plan job.yaml

        interlace plan credit-1a2b3c4d

    What comes out: for each kind, the most bytes and messages; the privacy claimed; what was
    assumed; which lines of the policy would stop the run, and whether it would be refused. Nothing
    is written.

    Rehearses the job on this machine, this party's table against made-up partners. It takes some
    seconds, and the figures are upper bounds: the run is held to them.
    """
    from interlace.sites import approval
    from interlace.sites.plan import plan_of

    folder = opened(party)
    run = None if job.is_file() else folder.find(str(job))
    contract = run.contract if run else contract_of(folder, job)
    show_contract(contract)
    say("Rehearsing …")
    made = approval.plan_for(folder, run) if run else plan_of(folder, contract)
    show_plan(made)
    if why := show_stops(folder, contract, made):
        show(Text.assemble(("would be refused  ", "bold red"), why))


def show_stops(folder: PartyFolder, contract: Contract, made: Plan) -> str | None:
    """Print where the party's policy would stop a run; gives why nobody can approve it, if so."""
    from interlace.sites import approval
    from interlace.sites.limits import stops

    policy = folder.read().policy
    driver = "" if folder.name == contract.active else f"have '{contract.active}' "
    for stop in stops(policy, made, contract):
        would = "would" if stop.surely else "may"
        text = (
            f"`{stop.setting}` of the policy in {folder.root / 'party.yaml'} {would} stop it: "
            f"{stop.why}. Change that line, or {driver}{stop.way_out}"
        )
        warn([text])
    return approval.against(folder, policy, contract, made)


def contract_of(folder: PartyFolder, job: Path) -> Contract:
    """The contract of a job file, with what only the driver can say of the label."""
    from interlace.data.labels import LabelPlan
    from interlace.runner import make_party
    from interlace.sites.contract import read_contract

    file, classes = folder.read(), None
    if file.label is not None and file.table is not None:
        own = make_party(folder.name, file)
        label = LabelPlan.fit(
            own.label_series,
            party=own.name,
            file=own.file,
            column=", ".join(own.labels_columns),
            task=own.task,
        )
        classes = len(label.classes) or 1
    return read_contract(job, submitter=folder.name, classes=classes)
