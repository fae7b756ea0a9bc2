"""``interlace logs``: what a run said at this party."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from interlace.cli.console import legible, say, show
from interlace.cli.sites import FolderOption, RunArgument, opened
from interlace.cli.status import stands_still


def logs(
    run: RunArgument = None,
    party: FolderOption = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more.")] = False,
) -> None:
    """Show what a run said at this party; its log is nobody else's.

        interlace logs --follow

    What comes out: the lines of the run's `log.txt`; with --follow until the run is over.
    """
    folder = opened(party)
    one, hint = folder.find(run), ""
    if not one.log.exists() or not one.log.stat().st_size:
        say(f"{one.name} has said nothing here; `interlace status {one.name}` says how it stands")
        if not follow:
            return
    at = 0
    while True:
        if one.log.exists():
            with one.log.open(errors="replace") as file:
                file.seek(at)
                text = file.read()
                at = file.tell()
            if text:
                show(legible(text.rstrip("\n")))
        if not follow or one.status.over:
            return
        if (now := stands_still(folder, one)) != hint:
            say(now or "It goes on.")
            hint = now
        time.sleep(1.0)
