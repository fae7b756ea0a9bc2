"""What the verbs for runs over sites have in common: the folder they are about, plans in words."""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from interlace.cli.console import say, show, table
from interlace.errors import JobError

if TYPE_CHECKING:
    from interlace.boundary import Policy
    from interlace.sites.contract import Contract
    from interlace.sites.folder import PartyFolder, RunFolder
    from interlace.sites.plan import Plan

FolderOption = Annotated[
    Path | None,
    typer.Option(
        "--party", metavar="FOLDER", help="The party's folder; by default $INTERLACE_PARTY, or `.`"
    ),
]
FoldersOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--party",
        metavar="FOLDER",
        help="The party's folder; by default $INTERLACE_PARTY, or `.`. For several, say it again.",
        show_default=False,
    ),
]
RunArgument = Annotated[
    str | None,
    typer.Argument(help="The run, or how its name begins; by default the latest."),
]
OpenRunArgument = Annotated[
    str | None,
    typer.Argument(help="The run, or how its name begins; to be said where several are open."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def opened(folder: Path | None) -> PartyFolder:
    """The party's folder that a verb is about."""
    from interlace.sites.folder import here

    return here(folder)


def the_one(folder: PartyFolder, name: str | None, fits: Callable[[RunFolder], bool]) -> RunFolder:
    """The run that is named; without a name the only one that fits.

    Raises:
        JobError: there is none of that name; none is named, and several fit or none does.
    """
    from interlace.sites.folder import JUST_ASKED

    if name is not None:
        return folder.find(name)
    open_ = [run for run in folder.runs() if fits(run)]
    if len(open_) > 1:
        raise JobError(f"several runs are open, so say which: {', '.join(r.name for r in open_)}")
    if not open_:
        latest = folder.find(None)
        raise JobError(
            f"no run is open here; the latest, '{latest.name}', is {latest.status.state} already; "
            f"{JUST_ASKED}"
        )
    return open_[0]


def confirm(question: str) -> None:
    """Go on if whoever is asked says yes.

    Raises:
        JobError: nobody is there to be asked.
        typer.Abort: they say no.
    """
    with _somebody_there("--yes"):
        said = typer.confirm(question, err=True)
    if not said:
        raise typer.Abort


def prompt(question: str, option: str) -> str:
    """What whoever is asked says.

    Raises:
        JobError: nobody is there to be asked.
    """
    with _somebody_there(option):
        return str(typer.prompt(question, err=True))


@contextmanager
def _somebody_there(option: str) -> Iterator[None]:
    try:
        yield
    except typer.Abort:
        if sys.stdin.isatty():
            raise
        raise JobError(
            f"this asks, and nobody is at the terminal to answer; do it at one, or say {option}"
        ) from None


def show_contract(contract: Contract) -> None:
    """Print what a run is, as every party sees it."""
    from interlace.report.words import listed, plural
    from interlace.sites.plan import compared

    show(Text(contract.run, style="bold"))
    if contract.description:
        show(Text(contract.description))
    settings = ", ".join(f"{k} {v}" for k, v in contract.method.settings.items())
    baselines = [c.name for c in compared(contract)]
    facts = {
        "parties": f"{listed(contract.parties)}; '{contract.active}' drives",
        "method": contract.method.name + (f" ({settings})" if settings else ""),
        "beside it": listed(baselines) if baselines else "nothing",
        "trainings": plural(len(contract.seeds), "seed"),
        **({"arbiter": contract.arbiter} if contract.arbiter else {}),
        **({"scores": scored} if (scored := _scored(contract)) else {}),
        "for": contract.purpose or "(the job does not say what for)",
        "waits": f"up to {contract.wait:g} hours for an approval or a partner",
        "digest": contract.digest,
    }
    for name, fact in facts.items():
        show(Text.assemble((f"  {name:<10}", "dim"), fact))
    for word in _mixed(f"{contract.description} {settings} {contract.purpose}"):
        told = f"'{word}' mixes alphabets: some of its letters only look like others: {word!a}"
        show(Text.assemble(("! ", "bold yellow"), told))


def _mixed(text: str) -> list[str]:
    """Words of Latin letters with letters among them that are of another alphabet."""

    def alphabets(word: str) -> set[bool]:
        return {unicodedata.name(c, "").startswith("LATIN ") for c in word if c.isalpha()}

    return [word for word in re.findall(r"\w+", text) if len(alphabets(word)) > 1]


def _scored(contract: Contract) -> str:
    from interlace.report.words import count

    scores = contract.scores
    if scores is None:
        return ""
    how = f"{scores.batch:,} at a time, matched first" if scores.batch else "one by one, online"
    return f"up to {count(scores.people)} people, {how}, by the models of {scores.run}"


def warn(doubts: Iterable[str]) -> None:
    """Print what is doubtful."""
    for doubt in doubts:
        say(Text.assemble(("! ", "bold yellow"), f"{doubt}."))


def show_plan(plan: Plan) -> None:
    """Print a disclosure plan in plain words."""
    from interlace.report.words import count, size

    made = table("what would leave", "at most", "in messages", title=f"From '{plan.party}'")
    made.add_column("guarded by")
    for kind, leaving in plan.leaves.items():
        most = size(leaving.bytes) if plan.capped else "not limited"
        guard = plan.guards.get(kind, "")
        made.add_row(kind.value, most, count(leaving.messages), guard)
    show(made)
    if plan.epsilon is not None:
        spent = f"epsilon {plan.epsilon:.3g}, delta {plan.delta:.1g}"
        show(Text(f"Of one person it tells at most: {spent}."))
    else:
        kinds = ", ".join(plan.without_claim)
        show(Text(f"No privacy claim holds for: {kinds}."))
    show(
        Text("Raw features and labels never leave. The boundary holds the run to these bounds."),
        Text(f"Assumed: {'; '.join(plan.assumed)}.", style="dim"),
    )


def show_promises(party: str, policy: Policy) -> None:
    """Say what a site will and will not answer."""
    from interlace.boundary import Kind
    from interlace.boundary.kinds import NEVER_LEAVES
    from interlace.report.words import listed, plural

    def names(chosen: frozenset[str] | None) -> str:
        return "any" if chosen is None else listed(sorted(chosen)) if chosen else "none"

    kept = sorted(k.value for k in set(Kind) - policy.allowed - NEVER_LEAVES)
    say(Text(f"'{party}' answers approved runs:", style="bold"))
    say(
        f"  of partners: {names(policy.partners)}; methods: {names(policy.methods)}; purposes: "
        f"{names(policy.purposes)}"
    )
    bounds = {
        "bytes a run": policy.max_bytes,
        "people an answer": policy.max_rows,
        "people a run": policy.max_people,
        "requests a run": policy.max_requests,
        "runs a day": policy.runs_per_day,
    }
    limits = [f"{most:,} {what}" for what, most in bounds.items() if most is not None]
    if policy.max_epsilon is not None:
        limits.append(f"epsilon {policy.max_epsilon:g} a run")
    if policy.budget is not None:
        limits.append(f"epsilon {policy.budget.epsilon:g} over all runs")
    say(f"  at most: {', '.join(limits) or 'what the disclosure plan of each run says'}")
    guarded = [f"{kind.value} ({len(g)})" for kind, g in policy.guards.items()]
    say(f"  guards on: {', '.join(guarded) or 'nothing'}")
    say(Text("It never answers:", style="bold"))
    say("  with raw features or labels, whatever anybody agrees to")
    if kept:
        say(f"  with {listed(kept)}")
    if policy.smallest_group:
        say(f"  about fewer than {policy.smallest_group:,} people at once")
    say(f"  more than {policy.asks_per_day:,} contracts of one partner in a day")
    say(f"  in a run whose driver has said nothing for {policy.idle_hours:g} hours")
    say(
        "  a run that is not approved: "
        + (f"{plural(len(policy.approve), 'standing rule')} may, else " if policy.approve else "")
        + "`interlace approve` does"
    )
    say("  anything while the file STOP is in its folder (`interlace party stop`)")
