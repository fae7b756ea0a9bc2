"""``interlace approve``: say yes to a run."""

from __future__ import annotations

from rich.text import Text

from interlace.cli.console import say, show
from interlace.cli.plan import show_stops
from interlace.cli.sites import (
    FolderOption,
    OpenRunArgument,
    Yes,
    confirm,
    opened,
    show_contract,
    show_plan,
    the_one,
    warn,
)
from interlace.errors import Refused


def approve(run: OpenRunArgument = None, party: FolderOption = None, yes: Yes = False) -> None:
    """Approve a run that this party was asked for.

        interlace approve

        interlace approve credit-1a2b3c4d --yes

    Shows what the run is, what it would let out of this party and which lines of its policy would
    stop that, and asks. The policy has the last word: what it objects to, nobody can approve.

    What comes out: an approval, signed with this site's key, which goes to the driver and is kept
    in the run's folder; it stands for exactly this contract.
    """
    from interlace.sites import approval, columns

    folder = opened(party)
    asked = the_one(
        folder, run, lambda one: not one.status.over and approval.answer_of(one) is None
    )
    approval.make_sure_open(asked)
    show_contract(asked.contract)
    say("Rehearsing …")
    plan = approval.plan_for(folder, asked)
    show_plan(plan)
    if why := show_stops(folder, asked.contract, plan):
        raise Refused(approval.nobody_can(asked, why))
    warn(columns.doubts(folder, asked.contract))
    if not yes:
        confirm(f"Approve it for '{folder.name}'?")
    done = approval.approve(folder, asked)
    assert done.approval is not None
    show(Text.assemble(("approved  ", "bold green"), asked.name))
    say(f"Signed on {done.approval.time}; kept in {asked.path / 'approval.json'}")
