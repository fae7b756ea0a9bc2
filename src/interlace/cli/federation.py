"""``interlace federation``: what the coordinator of a federation does, once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from interlace.cli.console import say, show
from interlace.cli.sites import Yes, confirm
from interlace.errors import JobError


def new(
    parties: Annotated[
        list[str] | None, typer.Argument(help="With --here: what the parties are called.")
    ] = None,
    name: Annotated[str, typer.Option(help="The federation's name.")] = "federation",
    host: Annotated[
        str | None,
        typer.Option(help="The name, in the network, of the machine that hosts the server."),
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="The server's port.")] = 8002,
    here: Annotated[
        bool, typer.Option("--here", help="All parties on this machine, for trying.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="The coordinator's folder.", show_default="./ and the name")
    ] = None,
) -> None:
    """Found a federation: make its root key, and say what to hand to whom.

        interlace federation new --name credit --host bank.example.org

    The coordinator signs certificates and does nothing else: it may be one of the parties, and its
    folder can be put away once all have joined. The machine of --host runs the server; it belongs
    to the party that said `interlace party new --hosts`.

    To try everything on one machine, in one step:

        interlace federation new --here bank shop clinic

    What comes out: a folder with the root key, which stays, and `invitation.yaml`, which all get.
    With --here: a folder for each party, ready for `interlace party up`.
    """
    from interlace.sites import provision

    if here:
        _all_here(parties or [], name, port, out or Path())
        return
    if parties:
        raise JobError("name parties with --here alone; elsewhere each asks by `party request`")
    if host is None:
        raise JobError("say which machine hosts the server: --host bank.example.org")
    authority = provision.Authority(out or Path(name))
    authority.create(name, host, port)
    show(
        Text.assemble("Invitation: ", (str(authority.invitation), "bold cyan")),
        Text.assemble("Fingerprint: ", (authority.fingerprint, "bold")),
    )
    say(
        "\nHand out, and how:\n"
        f"  to every party   {authority.invitation}   by mail: nothing in it is secret\n"
        "  to every party   the fingerprint above, read out over the telephone when they install\n"
        f"  to nobody        {authority.root / 'ca'}   whoever has it can make certificates\n"
        "\nEach party then sends a request; sign it by\n"
        f"\n    interlace federation approve THEIR.request.zip --federation {authority.root}\n"
        f"\nEvery site must reach {host}, TCP port {port}. Nobody needs another open port."
    )


def approve(
    request: Annotated[Path, typer.Argument(help="What a party has sent.")],
    federation: Annotated[Path, typer.Option(help="The coordinator's folder.")] = Path(
        "federation"
    ),
    again: Annotated[
        bool, typer.Option("--again", help="The party was approved before, and has new keys.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Sign a party's request.

        interlace federation approve bank.request.zip --federation credit

    Make sure whose request it is: call the organisation on a number that you know, and compare the
    digits. What comes out: certificates to send back, by any channel: nothing in them is secret.
    """
    from interlace.report.words import listed
    from interlace.sites import provision

    authority = provision.Authority(federation)
    if not authority.invitation.exists():
        raise JobError(
            f"{federation} is no coordinator's folder; name it by --federation, or found one by "
            "`interlace federation new`"
        )
    party, kinds = authority.asked(request)
    what = {"site": "a site", "user": "a user who may submit jobs", "server": "the server"}
    show(
        Text.assemble((party, "bold"), f" asks for {listed(what[k] for k in kinds)}."),
        Text.assemble("Its digits: ", (provision.digest_of(request), "bold")),
    )
    if not yes:
        confirm("Has the organisation read you the same digits?")
    file = authority.approve(request, again=again)
    show(Text.assemble("Certificates: ", (str(file), "bold cyan")))
    say(
        f"Send them back to '{party}', by any channel, and read out over the telephone\n"
        f"\n    {authority.fingerprint}\n\n"
        f"They run: interlace party install {file.name} --fingerprint ..."
    )


def _all_here(parties: list[str], name: str, port: int, root: Path) -> None:
    from interlace.cli.party import PARTY_FILE
    from interlace.files import write_whole
    from interlace.sites import provision

    folders = provision.together(root, parties, name=name, port=port)
    for folder in folders:
        file = folder.root / "party.yaml"
        if not file.exists():
            line = "# label: bought           # at one party: what is to be learnt"
            text = PARTY_FILE.format(table="table.csv", id="id", label=line)
            write_whole(file, text.encode())
        show(Text.assemble("Party: ", (str(folder.root), "bold cyan")))
    show(Text.assemble("Fingerprint: ", (provision.Authority(root / name).fingerprint, "bold")))
    named = " ".join(f"--party {root / party}" for party in parties)
    say(
        "All keys lie on this machine: good for trying, not for organisations.\n"
        f"Write each party's table and label into its party.yaml; then\n"
        f"\n    interlace party up {named}\n"
        f"    interlace submit job.yaml --party {root / parties[0]}\n"
    )
