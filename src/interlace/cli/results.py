"""``interlace results``: what a run left at this party."""

from __future__ import annotations

from rich.text import Text

from interlace.cli.console import say, show
from interlace.cli.sites import FolderOption, RunArgument, opened
from interlace.errors import JobError


def results(run: RunArgument = None, party: FolderOption = None) -> None:
    """Show what a run came to, and where this party's own part of it lies.

        interlace results credit-1a2b3c4d

    What comes out: where this party's own part of the model, its ledger and its page lie; at the
    one that drives also the figures and the joint report, or the scores of a table of people.
    """
    from interlace.cli.outcome import show_outcome
    from interlace.cli.predict import read_scores, say_models
    from interlace.job.results import Results
    from interlace.sites.page import write_page

    folder = opened(party)
    one = folder.find(run)
    if (one.path / "results.json").exists():
        show_outcome(Results.read(one.path / "results.json"), one.path)
    elif one.scores.exists():
        scores = read_scores(one)
        show(Text.assemble(f"Scores of {scores.height:,} people: ", (str(one.scores), "bold cyan")))
        say_models(scores)
    elif one.ledger.exists():
        page = write_page(folder, one)
        show(Text.assemble("Report: ", (str(page), "bold cyan")))
        what = "scores" if one.contract.scores else "joint report"
        say(f"'{one.contract.active}' drove, and has the {what}.")
    else:
        raise JobError(f"'{one.name}' has left nothing here yet; `interlace status` says why")
    models = sorted(m.name for m in (one.path / "models").glob("*"))
    show(
        f"Models: {one.path / 'models'} ({', '.join(models) or 'none yet'})",
        f"Ledger: {one.ledger}",
    )
