"""``interlace refuse``: say no to a run."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from interlace.cli.console import show
from interlace.cli.sites import FolderOption, OpenRunArgument, opened, the_one


def refuse(
    why: Annotated[str, typer.Option(help="The reason; the driver is told it.")],
    run: OpenRunArgument = None,
    party: FolderOption = None,
) -> None:
    """Refuse a run, or take an approval back: the run ends for all its parties.

        interlace refuse --why "not before the audit"

    What comes out: a refusal, signed with this site's key; the driver is told the reason.
    """
    from interlace.sites import approval

    folder = opened(party)
    asked = the_one(folder, run, lambda one: not one.status.over)
    approval.refuse(folder, asked, why, by="hand")
    show(Text.assemble(("refused  ", "bold red"), asked.name))
