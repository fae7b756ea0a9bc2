"""``interlace status``: how this party's runs stand."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.text import Text

from interlace.cli.console import say, show, table
from interlace.cli.sites import FolderOption, RunArgument, opened, show_contract
from interlace.errors import InterlaceError

if TYPE_CHECKING:
    from interlace.sites.folder import PartyFolder, RunFolder, Status

_COLOURS = {"finished": "green", "running": "cyan", "approved": "cyan", "waiting": "yellow"}


def status(run: RunArgument = None, party: FolderOption = None) -> None:
    """Say how this party's runs stand, or one of them in detail.

        interlace status

        interlace status credit-1a2b3c4d

    What comes out: who drives each run, how it stands, how much is done and how long it still
    takes. It works at every party: the driver tells each how far the run is.
    """
    from interlace.report.words import percent
    from interlace.sites import approval, service

    folder = opened(party)
    if run is None:
        up = service.process_of(folder.kit) is not None
        say(
            f"'{folder.name}' is {'up' if up else 'not up'}"
            + (", and has stopped everything" if folder.stopped else "")
        )
        made = table("run", "driven by", "stands", "done", "left", "")
        made.columns[-1].justify = "left"
        for one in folder.runs():
            now, still = one.status, stands_still(folder, one)
            made.add_row(
                one.name,
                one.contract.active,
                Text(now.state, style=_COLOURS.get(now.state, "red")),
                percent(now.done),
                "–" if still else _left(now),
                still or now.doing or now.reason,
            )
        show(made if made.row_count else "nobody has asked for a run yet")
        return
    one = folder.find(run)
    now, still = one.status, stands_still(folder, one)
    show_contract(one.contract)
    show(
        Text.assemble("  stands    ", (now.state, _COLOURS.get(now.state, "red"))),
        f"  doing     {now.doing or '–'}",
        f"  done      {percent(now.done)}, left {'–' if still else _left(now)}",
    )
    if reason := still or now.reason:
        show(f"  reason    {reason}")
    if now.job and not (now.over or one.begun) and folder.user.exists():
        show(f"  server    {_servers_word(folder, one)}")
    given = approval.answer_of(one)
    show(f"  answer    {f'{given.answer} by {given.by}, {given.time}' if given else 'none yet'}")
    show(f"  told      {_ago(now.updated)}", f"  folder    {one.path}")


def stands_still(folder: PartyFolder, run: RunFolder) -> str:
    """What to do about a run whose process ended before it was over, or nothing."""
    if not run.stands_still:
        return ""
    if folder.name != run.contract.active:
        return f"stands still until '{run.contract.active}' submits it again"
    return f"stands still, since its process ended; it goes on by `interlace {verb_of(run)}` again"


def _servers_word(folder: PartyFolder, run: RunFolder) -> str:
    """Why a run that was handed in has not begun."""
    from interlace.report.words import listed

    try:
        from interlace.sites import submission

        state, here = (
            submission.state(folder.user, run.status.job),
            submission.connected(folder.user),
        )
    except InterlaceError as e:
        return str(e)
    if state.startswith("FINISHED"):
        return f"its job ended before the sites began it ({state}); submit it again"
    away = [name for name in run.contract.parties if name not in here]
    return f"the site of {listed(away)} is not up" if away else f"has it as {state.lower()}"


def verb_of(run: RunFolder) -> str:
    """The command that asks for such a run, and goes on with it."""
    scores = run.contract.scores
    return "submit" if scores is None else "predict" if scores.batch else "serve"


def _left(status: Status) -> str:
    from interlace.report.words import duration

    left = status.seconds_left
    return "–" if left is None else duration(left)


def _ago(when: float) -> str:
    from interlace.report.words import duration

    return f"{duration(max(0.0, time.time() - when))} ago"
