"""``interlace party``: one organisation's folder, from its first file to a site that is up."""

from __future__ import annotations

import time
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from interlace.cli.console import say, show
from interlace.cli.sites import FolderOption, FoldersOption, opened, prompt, show_promises
from interlace.errors import InterlaceError, JobError

if TYPE_CHECKING:
    from interlace.sites.folder import PartyFolder

PARTY_FILE = """\
# This organisation's own file. It is never sent to anybody.
table: {table}        # also .parquet, .feather, duckdb:///FILE?table=NAME, sql:SELECT ...
id: {id}                   # the column that says who a row is about
{label}
# What may leave, and to whom. No partner and no job can widen it.
policy:
  allow_also: []              # kinds besides the usual, as [model weights]
  # partners: [shop]          # with whom; by default all of the federation
  # methods: [split]          # which methods; by default all
  # purposes: [credit]        # for what, by the job's `purpose`
  # max_bytes: 100_000_000    # in one run
  # smallest_group: 10        # no answer about fewer people
  # runs_per_day: 5
  # asks_per_day: 100         # contracts of one partner that are looked at in a day
  # idle_hours: 48            # a run whose driver says nothing for so long is paused
  # budget: {{epsilon: 8.0}}    # over all runs; needs guards that claim privacy
  # guards:
  #   embedding: [{{clip: {{norm: 1.0}}}}, {{gaussian: {{sigma: 2.0}}}}]
  # approve:                  # runs that begin without asking; by default none does
  #   - drivers: [bank]
  #     methods: [split]
  #     max_bytes: 50_000_000
"""


def new(
    name: Annotated[str, typer.Argument(help="What the others call this organisation.")],
    out: Annotated[Path | None, typer.Option(help="The folder.", show_default="./NAME")] = None,
    table: Annotated[str, typer.Option(help="The table, relative to the folder.")] = "table.csv",
    id_column: Annotated[str, typer.Option("--id", help="Who a row is about.")] = "id",
    label: Annotated[
        str | None, typer.Option(help="The column to learn, if this party has it.")
    ] = None,
    drives: Annotated[
        bool, typer.Option("--drives/--answers-only", help="Whether it may submit jobs.")
    ] = True,
    hosts: Annotated[
        bool, typer.Option("--hosts", help="It hosts the federation's server.")
    ] = False,
) -> None:
    """Make a party's folder: its party file, and its policy to fill in.

        interlace party new bank --label bought --table customers.parquet

    What comes out: a folder with `party.yaml`, which is this organisation's own and never sent to
    anybody, and `site.yaml`. Next: `interlace party check`, then `interlace party request`.
    """
    from interlace.files import write_whole
    from interlace.sites.contract import check_site_name
    from interlace.sites.folder import PartyFolder, Site

    check_site_name(name)
    root = out or Path(name)
    if (root / "site.yaml").exists():
        raise JobError(f"{root} is a party's folder already; choose another by --out")
    PartyFolder(root, Site(name=name)).write(Site(name=name, drives=drives, hosts=hosts))
    file = root / "party.yaml"
    if not file.exists():
        line = (
            f"label: {label}"
            if label
            else "# label: bought           # at one party: what is to be learnt"
        )
        write_whole(file, PARTY_FILE.format(table=table, id=id_column, label=line).encode())
    show(Text.assemble("Party: ", (str(file), "bold cyan")))
    say(
        f"Put the table at {root / table}, or change `table:`, and write the policy. Then\n"
        f"\n    cd {root}\n    interlace party check\n    interlace party request INVITATION\n"
    )


def request(
    invitation: Annotated[Path, typer.Argument(help="The file that the coordinator handed out.")],
    party: FolderOption = None,
) -> None:
    """Ask to join a federation: make this party's keys, and what the coordinator has to sign.

        interlace party request invitation.yaml

    What comes out: a file to send to the coordinator, by any channel: no private key is in it.
    The private keys stay in `requests/`.
    """
    from interlace.sites import provision

    folder = opened(party)
    asked = provision.Invitation.read(invitation)
    file = provision.request(folder, asked)
    show(Text.assemble("Request: ", (str(file), "bold cyan")))
    say(
        f"Send it to the coordinator of '{asked.federation}', by mail or any other way. When they "
        "call back, read them this, so that they know that it is yours:\n"
        f"\n    {provision.digest_of(file)}\n\n"
        "What comes back is for `interlace party install`."
    )


def install(
    certificates: Annotated[Path, typer.Argument(help="What the coordinator sent back.")],
    fingerprint: Annotated[
        str | None,
        typer.Option(
            help="Of the federation's root certificate, by another channel than the file; asked "
            "for if it is not given."
        ),
    ] = None,
    party: FolderOption = None,
) -> None:
    """Take up the certificates: put this party's start-up kit together.

        interlace party install bank.certificates.zip --fingerprint SHA256:8A:8D:...

    The fingerprint is what makes the certificates trustworthy: have it read out over the telephone.
    What comes out: `kit/`, and `user/` and `server/` where this party drives and hosts. Nothing
    runs yet.
    """
    from interlace.report.words import listed
    from interlace.sites import provision

    folder = opened(party)
    if fingerprint is None:
        if not certificates.is_file():  # found before anybody is asked
            raise JobError(f"there is no file {certificates}")
        question = "The root's fingerprint, as the coordinator reads it out"
        fingerprint = prompt(question, "--fingerprint")
    kinds = provision.install(folder, certificates, fingerprint)
    show(Text(f"Installed: {listed(kinds)} of '{folder.name}' in '{folder.site.federation}'."))
    say("No code comes with a job here, and nobody can run commands. Next: `interlace party check`")


def check(
    party: FolderOption = None,
    connect: Annotated[
        bool, typer.Option("--connect/--offline", help="Whether to try the server too.")
    ] = True,
) -> None:
    """Check everything first: table, columns, ids, policy, certificates, clock, connection.

        interlace party check

    What comes out: a line for each check (also of what the columns are read as, and of what is
    doubtful in them), with what to do about those that failed; the exit code is 1 if one did.
    """
    from interlace.sites.check import check as checks

    marks = {"good": ("good   ", "bold green"), "doubt": ("look   ", "bold yellow")}
    bad = False
    for finding in checks(opened(party), connect=connect):
        bad = bad or finding.verdict == "bad"
        mark = marks.get(finding.verdict, ("bad    ", "bold red"))
        show(Text.assemble(mark, finding.what))
        if finding.way_out:
            show(Text(f"       {finding.way_out}", style="dim"))
    if bad:
        raise typer.Exit(1)


def up(
    party: FoldersOption = None,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay, as a service manager or container wants.")
    ] = False,
) -> None:
    """Start this organisation's site, and say what it will and will not answer.

        interlace party up

        interlace party up --party bank --party shop    # for trying, both on one machine

    The site dials out to the server alone: it needs no open port. The party that hosts the server
    starts it too, on its one port. With a certificate that nobody would take it does not start.
    A run that this party drives goes on, if its process ended and nobody follows it; also where the
    site is up already, since FLARE, which starts a site again that was killed, starts no run again.
    """
    from concurrent.futures import ThreadPoolExecutor

    from interlace.sites import service
    from interlace.sites.check import kits

    parties = _all(party)
    for one in parties:
        for found in kits(one):
            if found.verdict == "bad":
                raise JobError(f"{found.what}. {found.way_out}")
        show_promises(one.name, one.read().policy)
    if foreground:
        if len(parties) > 1:
            raise JobError("one party stays in the foreground; start the others by themselves")
        Thread(target=_go_on, args=(parties[0], 60), daemon=True).start()
        raise typer.Exit(service.stay(parties[0]))
    parties.sort(key=lambda one: not one.server.exists())
    with ThreadPoolExecutor(len(parties)) as pool:
        started = {one.name: pool.submit(service.up, one) for one in parties}
    for name, done in started.items():
        done.result()
        show(Text.assemble(("up     ", "bold green"), name))
    for one in parties:
        _go_on(one)


def _go_on(folder: PartyFolder, tries: int = 1) -> None:
    """Hand in again the runs that this party drives and that nobody follows."""
    from interlace.sites import submission

    for run in folder.left_alone():
        for left in reversed(range(tries)):
            if run not in folder.left_alone():  # stopped, or handed in, since the last try
                break
            try:
                taken = submission.take_up(folder, run)
                why = "a partner's site is away, or the server takes it for running"
            except InterlaceError as e:
                taken, why = False, str(e)
            if taken:
                say(f"{run.name} goes on")
                break
            if (now := run.status).over:
                say(f"{run.name} is {now.state} ({now.reason}); submit it again if it is to go on")
                break
            if left:
                time.sleep(5.0)
            else:
                say(f"{run.name} stands still ({why}); submit it again")


def down(party: FoldersOption = None) -> None:
    """End this organisation's site.

        interlace party down

    A run in progress can go on after the next `party up`.
    """
    from interlace.sites import service

    for one in _all(party):
        ended = service.down(one)
        show(Text(f"{one.name}: {'ended' if ended else 'was not up'}"))


def _all(folders: list[Path] | None) -> list[PartyFolder]:
    return [opened(folder) for folder in folders] if folders else [opened(None)]


def stop(
    party: FolderOption = None,
    lift: Annotated[bool, typer.Option("--lift", help="End the stop.")] = False,
) -> None:
    """Refuse everything, at once: the kill switch.

        interlace party stop

        interlace party stop --lift

    From this moment nothing leaves the party and nothing is answered, also in runs that are on
    their way, whatever was approved. It is the file `STOP` in the party's folder: making the file
    does the same.
    """
    folder = opened(party)
    if lift:
        folder.stop_file.unlink(missing_ok=True)
        show(Text(f"'{folder.name}' answers again, as its policy and approvals say."))
        return
    folder.stop_file.touch()
    show(Text.assemble(("stopped  ", "bold red"), f"'{folder.name}' lets nothing out any more."))
