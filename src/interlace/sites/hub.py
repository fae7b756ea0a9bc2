"""The server's side of a run over sites. It lies apart from the parties' side, so that the server's
process of a job loads no more than it needs to say one word."""

from __future__ import annotations

import atexit
import gc

from nvflare.collab import collab

atexit.register(gc.freeze)  # else all that FLARE has loaded is searched for garbage: a second


class Hub:
    """The server's side: it sets the driver off, and sees nothing of the run but its outcome.

    Args:
        active: The party that drives.
        seconds: The longest that a run takes.
    """

    def __init__(self, active: str, seconds: float) -> None:
        self.active, self.seconds = active, seconds

    @collab.main
    def run(self) -> str:
        """Have the driver drive; the job fails with it."""
        outcome: str = collab.get_clients([self.active])[0](timeout=self.seconds).drive()
        if outcome != "finished":
            raise RuntimeError(f"the run is {outcome}; the parties have been told why")
        return outcome
