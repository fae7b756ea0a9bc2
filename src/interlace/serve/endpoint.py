"""The online scores over HTTP: questions and answers in JSON, for programs of the active party.

No record's value is repeated in an answer's errors or written to a log; ids travel in bodies, never
in a path, so that no access log holds one.
"""

from __future__ import annotations

import errno
import ipaddress
import logging
import os
import secrets
import socket
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from interlace.errors import JobError
from interlace.serve.online import (
    LONGEST_DEADLINE_MS,
    Answers,
    InputError,
    Question,
    Scorer,
)

if TYPE_CHECKING:
    from fastapi import FastAPI

log = logging.getLogger(__name__)

MOST_BYTES = 4 * 2**20  # in one request
MOST_REQUESTS = 1000  # at once; more are turned away
SHORTEST_TOKEN = 16
ENVIRONMENT = "INTERLACE_TOKEN"


def application(scorer: Scorer, *, token: str | None = None, deadline_ms: float = 1000) -> FastAPI:
    """The web application.

    - ``POST /score``: a :class:`Question` in, :class:`Answers` out.
    - ``GET /health``: the process is up.
    - ``GET /ready``: somebody can answer, and who; 503 where nobody can.
    - ``GET /metrics``: counts and seconds as Prometheus reads them.

    Args:
        scorer: Entered already.
        token: What a caller must send as ``Authorization: Bearer ...`` for scores and metrics.
            Without one, only requests that name this machine by a loopback address are taken,
            which a page that some browser here has open cannot do.
        deadline_ms: How long partners may take where a question does not say.
    """
    from fastapi import Depends, FastAPI, HTTPException, Response
    from fastapi.exceptions import RequestValidationError
    from fastapi.middleware.trustedhost import TrustedHostMiddleware
    from fastapi.responses import JSONResponse, PlainTextResponse
    from fastapi.security import HTTPBearer
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram
    from prometheus_client import generate_latest as text_of

    registry = CollectorRegistry()
    people = Counter(
        "interlace_people", "People scored", ["answered_by", "reason"], registry=registry
    )
    seconds = Histogram("interlace_seconds", "Seconds for a question", registry=registry)
    bearer = Depends(HTTPBearer(auto_error=False))

    def known(given: Any = bearer) -> None:
        if token and not (
            given and secrets.compare_digest(given.credentials.encode(), token.encode())
        ):
            raise HTTPException(
                401, "the token is missing or wrong", {"WWW-Authenticate": "Bearer"}
            )

    app = FastAPI(
        title="interlace online scores",
        docs_url=None,  # its page loads scripts from elsewhere
        redoc_url=None,
        max_body_size=MOST_BYTES,
    )
    if token is None:
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=["localhost", "127.0.0.1", "[::1]"])

    @app.exception_handler(RequestValidationError)
    def invalid(_: Any, error: RequestValidationError) -> JSONResponse:
        # FastAPI's own handler repeats the input, which holds records.
        problems: dict[str, list[str]] = {}
        for found in error.errors():  # one for each type that a value might have had
            problems.setdefault(_field(found["loc"]), []).append(found["msg"])
        return _refusal([(field, ", or ".join(found)) for field, found in problems.items()][:20])

    @app.exception_handler(InputError)
    def unfit(_: Any, error: InputError) -> JSONResponse:
        return _refusal([(error.field, error.problem)])

    def _refusal(errors: list[tuple[str, str]]) -> JSONResponse:
        found = [{"field": field, "problem": problem} for field, problem in errors]
        return JSONResponse({"errors": found}, 422)

    @app.post("/score", dependencies=[Depends(known)])
    async def score(question: Question) -> Answers:
        began = time.perf_counter()
        try:
            answers = await scorer.answer(question, (question.deadline_ms or deadline_ms) / 1000)
        except InputError:
            raise
        except Exception as e:  # its text may quote the question, so neither log nor caller has it
            where = traceback.extract_tb(e.__traceback__)[-1]
            log.error("%s at %s:%s", type(e).__name__, where.filename, where.lineno)
            raise HTTPException(500, "a fault in interlace; the service's log has where") from None
        seconds.observe(time.perf_counter() - began)
        for answer in answers:
            people.labels(answer.answered_by, answer.reason or "").inc()
        return Answers(answers=answers)

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "up"}

    @app.get("/ready")
    async def ready() -> Any:
        able = scorer.has_joint or scorer.has_alone
        who = {"ready": able, "joint": scorer.has_joint, "alone": scorer.has_alone}
        return JSONResponse(who, 200 if able else 503)

    @app.get("/metrics", dependencies=[Depends(known)], response_class=PlainTextResponse)
    async def metrics() -> Any:
        return Response(text_of(registry), media_type=CONTENT_TYPE_LATEST)

    return app


def _field(place: tuple[Any, ...]) -> str:
    """Where in the question, without what pydantic adds of its own."""
    inside = place[1:]
    if inside and isinstance(inside[0], int):
        return f"character {inside[0]}"
    depth = {"ids": 2, "rows": 3}.get(inside[0], 1) if inside else 0
    return ".".join(str(part)[:60] for part in inside[:depth]) or "body"


def read_token(file: Path | None) -> str | None:
    """The token that callers must send: what stands in a file, or in ``INTERLACE_TOKEN``.

    Raises:
        JobError: the file cannot be read, or the token is too short to be a secret.
    """
    where = str(file) if file else f"${ENVIRONMENT}"
    try:
        token = file.read_text().strip() if file else os.environ.get(ENVIRONMENT)
    except (OSError, UnicodeError) as e:
        raise JobError(f"the token's file {file} cannot be read ({type(e).__name__})") from e
    if token is not None and (len(token) < SHORTEST_TOKEN or not token.isascii()):
        raise JobError(
            f"the token in {where} is not {SHORTEST_TOKEN} ASCII characters or more; make one with "
            "`openssl rand -hex 32`"
        )
    return token


def listen(host: str, port: int, *, token: str | None) -> socket.socket:
    """A socket that listens there.

    Raises:
        JobError: the port is taken, the address is not this machine's, or it can be reached from
            other machines and there is no token.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        if token is None and not ipaddress.ip_address(address[0]).is_loopback:
            raise JobError(
                f"{host} can be reached from other machines, so callers must show a token; give "
                f"one by --token-file or in ${ENVIRONMENT}, or listen on 127.0.0.1"
            )
        at = socket.create_server(address[:2], family=family)
    except OSError as e:
        taken = e.errno == errno.EADDRINUSE
        why = os.strerror(errno.EADDRINUSE) if taken else e.strerror
        way_out = "choose another by --port" if taken else "choose an address of this machine"
        raise JobError(f"cannot listen on {host}, port {port} ({why}); {way_out}") from e
    # Else the second half of every answer waits 40 ms for the caller to confirm the first.
    at.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return at


def url_of(at: socket.socket) -> str:
    """Where questions go that a socket hears."""
    name, port = at.getsockname()[:2]
    return f"http://{f'[{name}]' if ':' in name else name}:{port}/score"


def serve(
    scorer: Scorer,
    at: socket.socket,
    *,
    token: str | None = None,
    deadline_ms: float = 1000,
    over: threading.Event | None = None,
) -> None:
    """Answer until SIGINT or SIGTERM; questions that are in by then are answered.

    Args:
        scorer: Not entered yet.
        at: From :func:`listen`; closed at the end.
        token: See :func:`application`.
        deadline_ms: How long partners may take where a question does not say.
        over: Ends it as well, once set: signals reach the main thread alone.
    """
    import uvicorn

    with at, scorer:
        app = application(scorer, token=token, deadline_ms=deadline_ms)
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            limit_concurrency=MOST_REQUESTS,
            timeout_graceful_shutdown=LONGEST_DEADLINE_MS // 1000,
        )
        server = uvicorn.Server(config)

        def end() -> None:
            assert over is not None
            over.wait()
            server.should_exit = True

        if over is not None:
            threading.Thread(target=end, name="end", daemon=True).start()
        server.run(sockets=[at])
