"""``interlace serve``: answer for people one request at a time."""

from __future__ import annotations

import logging
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from interlace.cli.console import say
from interlace.cli.predict import named_tables
from interlace.cli.sites import Yes
from interlace.errors import JobError


def serve(
    run: Annotated[Path, typer.Argument(help="The run folder.")],
    table: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PARTY=PATH", help="A newer table of a party; by default the run's own."
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on.")] = 8321,
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="A file with the token that callers must send; or set $INTERLACE_TOKEN. Needed "
            "for any address that other machines reach."
        ),
    ] = None,
    deadline_ms: Annotated[
        float,
        typer.Option(
            min=1,
            max=60_000,
            help="Milliseconds that the partners may take, where a request does not say.",
        ),
    ] = 1000,
    most: Annotated[
        int, typer.Option(min=1, help="Most people in one request, and in one round.")
    ] = 1000,
    seed: Annotated[
        int | None, typer.Option(help="Of which training; by default the first seed's.")
    ] = None,
    people: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Over sites: most people whom the partners are asked about, who comes again "
            "counted again. They approve this number.",
        ),
    ] = None,
    yes: Yes = False,
) -> None:
    """Answer for people one request at a time, over HTTP.

    It is a service for the active party's own programs. People of its table are named by their
    ids and scored jointly; where a partner does not hold the person, fails or is late, the active
    party's own model answers, and the answer says so. A person who is not in the table is scored
    by that model from the row that is sent.

        interlace serve runs/caravan

        curl -H 'Content-Type: application/json' -d '{"ids": [17]}' 127.0.0.1:8321/score

    The run folder of a run over sites is the one in this party's folder. Its partners are asked
    to approve that so many people are scored, then their sites answer; `--table` is not for these.

        interlace serve bank/runs/credit-1a2b3c4d --people 10000

    Stop it by Ctrl-C or SIGTERM.
    """
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as e:
        raise JobError("scoring online needs the extra `interlace[serve]`; install it") from e

    from interlace.serve.endpoint import listen, read_token, url_of
    from interlace.serve.endpoint import serve as answer
    from interlace.serve.online import open_run

    if (run / "contract.json").exists():
        if table:
            raise JobError("over sites each party's own file names its table; leave out `--table`")
        if people is None:
            raise JobError("the partners approve how many people are scored; say so by `--people`")
        listening = {"host": host, "port": port, "deadline_ms": deadline_ms, "most": most}
        _over_sites(run, people, listening, token_file, seed, yes)
        return
    token = read_token(token_file)
    at = listen(host, port, token=token)
    try:
        scorer = open_run(run, named_tables(table or []), seed=seed, most=most)
    except BaseException:
        at.close()
        raise
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    if not scorer.has_alone:
        say(
            "The run trained no model of the active party alone (`compare:` in its job), so nobody "
            "answers where the partners cannot."
        )
    say(url_of(at))
    # The server answers what is in, then sends itself the signal again: that is a clean end too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, lambda *_: sys.exit(0))
    answer(scorer, at, token=token, deadline_ms=deadline_ms)


def _over_sites(
    run: Path,
    people: int,
    listening: dict[str, Any],
    token_file: Path | None,
    seed: int | None,
    yes: bool,
) -> None:
    """Have this party's site answer, with its partners' help, until it is stopped."""
    from interlace.cli.submit import hand_in, may_score, told
    from interlace.serve.batch import Trained
    from interlace.serve.endpoint import listen, read_token
    from interlace.sites.folder import Listening, PartyFolder

    run = run.resolve()
    folder = PartyFolder.open(run.parent.parent)
    agreed = folder.run(run.name).contract
    may_score(folder, agreed)
    contract = agreed.to_score(people, Trained.read(run, seed).seed)
    token_file = token_file and token_file.resolve()
    if token_file is None and read_token(None) is not None:
        raise JobError("the site's own process answers, so the token goes in by `--token-file`")
    from interlace.sites import submission

    where = Listening(**listening, token_file=token_file)
    listen(where.host, where.port, token=read_token(token_file)).close()  # it can be, here
    one = folder.run(contract.run)
    one.path.mkdir(parents=True, exist_ok=True)
    where.keep(one.path)
    jobs = [hand_in(folder, contract, yes=yes)]
    say(f"It answers once they have; `interlace status {one.name}` says where")

    def on_state(job: str, state: str) -> None:
        jobs.append(job)
        told(job, state)

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, lambda *_: sys.exit(0))
    try:
        done = submission.watch(folder, contract, jobs[0], on_state=on_state)
    except SystemExit:
        submission.stop(folder.user, jobs[-1])
        one.note(one.status.model_copy(update={"state": "stopped", "reason": "by hand"}))
        raise
    say(f"{done.state}  {done.reason}")
    if done.state != "stopped":
        raise typer.Exit(1)
