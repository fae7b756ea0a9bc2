"""NVIDIA FLARE carries the frames of `interlace.engines.sites` between the job processes of sites.

A frame goes by FLARE's core cell, which sends it as it is and waits for the answer: a round trip of
few milliseconds. Collab calls, FLARE's documented way for a job, take ten times as long; they stand
in where a release has no core cell of this form. Either way the server relays, and either way FLARE
has made sure by certificates from which site a frame comes; the receiver looks at that itself, and
opens only what its driver sealed.

The names of FLARE that are used here and in `interlace.sites` are held by a test of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nvflare.collab.api.context import get_call_context, set_call_context
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.cellnet.utils import new_cell_message

from interlace.engines.sites import Carry, Unreachable
from interlace.errors import PartyAway

CHANNEL, TOPIC = "interlace", "frame"

Aborted = Callable[[], bool]


def core_of(cell: Any) -> Any | None:
    """The core cell under a job's cell, if this release has one that can do what is needed."""
    core = getattr(cell, "core_cell", None)
    able = all(callable(getattr(core, n, None)) for n in ("send_request", "register_request_cb"))
    return core if able else None


def carry_by(core: Any, job: str, aborted: Aborted) -> Carry:
    """Carry frames by the core cell.

    Args:
        core: This job process's.
        job: What FLARE calls the job.
        aborted: Whether FLARE has ended the job.
    """

    def carry(party: str, frame: bytes, seconds: float) -> bytes:
        _still_on(aborted, party)
        to, request = FQCN.join([party, job]), new_cell_message({}, frame)
        reply = core.send_request(CHANNEL, TOPIC, to, request, timeout=seconds)
        came = reply.get_header(MessageHeaderKey.RETURN_CODE)
        if came != ReturnCode.OK:
            raise Unreachable(str(came))
        return bytes(reply.payload)

    return carry


def answer_by(core: Any, job: str, driver: str, receive: Callable[[bytes], bytes]) -> None:
    """Have frames of the driver's job process answered, and no one else's."""
    expected = FQCN.join([driver, job])

    def answer(request: Any) -> Any:
        if request.get_header(MessageHeaderKey.ORIGIN) != expected:
            return new_cell_message({MessageHeaderKey.RETURN_CODE: ReturnCode.UNAUTHENTICATED}, b"")
        return new_cell_message(
            {MessageHeaderKey.RETURN_CODE: ReturnCode.OK}, receive(bytes(request.payload or b""))
        )

    core.register_request_cb(CHANNEL, TOPIC, answer)


def carry_by_calls(call: Callable[[str, float], Any], aborted: Aborted) -> Carry:
    """Carry frames by Collab calls of a site's ``receive``.

    Args:
        call: The proxy of a site, whose calls may take so many seconds.
        aborted: Whether FLARE has ended the job.
    """
    context = get_call_context()  # of this thread; several partners are asked from others

    def carry(party: str, frame: bytes, seconds: float) -> bytes:
        _still_on(aborted, party)
        set_call_context(context)
        try:
            return bytes(call(party, seconds).receive(frame))
        except Exception as e:  # Collab raises whatever the other side did
            raise Unreachable(type(e).__name__) from None

    return carry


def _still_on(aborted: Aborted, party: str) -> None:
    if aborted():
        raise PartyAway(party, "a request", "the federation's server has ended the run")
