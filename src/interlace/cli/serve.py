"""``interlace serve``: answer for people one request at a time."""

from __future__ import annotations

import logging
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from interlace.cli.console import say
from interlace.cli.predict import named_tables
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
) -> None:
    """Answer for people one request at a time, over HTTP.

    It is a service for the active party's own programs. People of its table are named by their
    ids and scored jointly; where a partner does not hold the person, fails or is late, the active
    party's own model answers, and the answer says so. A person who is not in the table is scored
    by that model from the row that is sent.

        interlace serve runs/caravan

        curl -H 'Content-Type: application/json' -d '{"ids": [17]}' 127.0.0.1:8321/score

    Stop it by Ctrl-C or SIGTERM.
    """
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as e:
        raise JobError("scoring online needs the extra `interlace[serve]`; install it") from e

    from interlace.serve.endpoint import listen, read_token
    from interlace.serve.endpoint import serve as answer
    from interlace.serve.online import open_run

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
    name, bound = at.getsockname()[:2]
    say(f"http://{f'[{name}]' if ':' in name else name}:{bound}/score")
    # The server answers what is in, then sends itself the signal again: that is a clean end too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, lambda *_: sys.exit(0))
    answer(scorer, at, token=token, deadline_ms=deadline_ms)
