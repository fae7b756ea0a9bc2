"""A site whose job tries on its partner what no driver should, and then drives its run."""

from __future__ import annotations

import json
import secrets

import torch
from nvflare.collab import collab

from interlace.boundary import Kind, Message
from interlace.boundary.message import Part
from interlace.errors import InterlaceError
from interlace.methods.vertical.split import SplitSide
from interlace.sites.job import Driver, Site

SECONDS = 30.0
FOUND = "found.json"  # in the driver's folder: what was tried, and the partner's word on it


class HostileSite(Site):
    """Drives like any, in the end."""

    @collab.publish
    def drive(self) -> str:
        """Try, then drive."""
        return Hostile(self, self._carry(), collab.context.is_aborted).go()


class Hostile(Driver):
    """What the process of a driver can do to its partner."""

    def _run(self) -> None:
        me, name, engine = self.site.folder.name, self.contract.passive[0], self.engine
        frames: list[bytes] = []
        carry = engine.carry

        def watched(party: str, frame: bytes, seconds: float) -> bytes:
            frames.append(frame)
            return carry(party, frame, seconds)

        def bare(frame: bytes) -> str:
            """Past the engine, which would not send it."""
            answer = carry(name, frame, SECONDS)
            return answer[1:].decode() if answer.startswith(b"-") else "taken"

        def forward(part: Part, *, operation: str = "forward", sender: str = me) -> str:
            try:
                engine.deliver(Message("odd", operation, sender, name, 0, (part,)))
            except InterlaceError as e:
                return str(e)
            return "taken"

        def announce(size: int) -> str:
            try:
                engine._frame(name, {"do": "piece", "sizes": [size]}, b"x")
            except InterlaceError as e:
                return str(e)
            return "taken"

        engine.carry = watched
        engine.open("odd", SplitSide, name, me)
        engine.state(name)
        engine.carry = carry
        earlier, last = frames
        rows = Part(Kind.ROW_SELECTION, torch.arange(5))
        found = {
            "garbage": bare(b"garbage"),
            "nothing": bare(b""),
            "noise": bare(secrets.token_bytes(2**20)),
            "later": bare(last[:1] + (99).to_bytes(8, "big") + last[9:]),
            "replayed": bare(earlier),
            "10 GB": announce(10**10),
            "kind": forward(Part(Kind.METRIC, {"rows": 5})),
            "shape": forward(Part(Kind.ROW_SELECTION, torch.ones(2, 2, dtype=torch.int64))),
            "sender": forward(rows, sender="registry"),
            "operation": forward(rows, operation="fly"),
        }
        (self.site.folder.root / FOUND).write_text(json.dumps(found))
        super()._run()
