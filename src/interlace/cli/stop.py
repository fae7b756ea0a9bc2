"""``interlace stop``: end a run."""

from __future__ import annotations

from rich.text import Text

from interlace.cli.console import say, show
from interlace.cli.sites import FolderOption, OpenRunArgument, opened, the_one
from interlace.cli.status import verb_of


def stop(run: OpenRunArgument = None, party: FolderOption = None) -> None:
    """End a run, from any party.

        interlace stop credit-1a2b3c4d

    What comes out: the end of the run. The party that submitted it has the server end it; any other
    takes its approval back, and the run ends for all. What was learnt so far stays with each party.
    To stop everything at once there is `interlace party stop`.
    """
    from interlace.errors import InterlaceError, JobError
    from interlace.sites import approval

    folder = opened(party)
    one = the_one(folder, run, lambda one: not one.status.over)
    now, verb = one.status, verb_of(one)
    if now.over:
        raise JobError(f"'{one.name}' is {now.state} already")
    if folder.name == one.contract.active and now.job and folder.user.exists():
        from interlace.sites import submission

        try:
            submission.stop(folder.user, now.job)
        except InterlaceError:
            if not one.stands_still:  # else there may be nothing to end
                raise
        one.note(now.model_copy(update={"state": "stopped", "reason": "by hand"}))
        say(f"It can go on: the same `interlace {verb}` again")
    else:
        approval.refuse(folder, one, "taken back by hand", by="hand")
        if verb == "predict":
            say("Another `interlace predict` begins anew, for all to approve")
        else:
            say(f"It can go on after `interlace approve {one.name}` and another `interlace {verb}`")
    show(Text.assemble(("stopped  ", "bold red"), one.name))
