"""What a party answers about a run as a whole, whatever the method: its tables' sizes, the matching
that it kept, a new training, progress, the end."""

from __future__ import annotations

import glob
import shutil
from pathlib import Path
from typing import Any

import torch

from interlace.boundary.control import real_number, whole_number
from interlace.boundary.kinds import Control, Metric
from interlace.errors import InterlaceError, JobError, Refused
from interlace.files import write_whole
from interlace.party.operation import PassiveSide, operation
from interlace.party.store import State, read_state, write_state

RUN = "run"  # the conversation's name in every ledger


class RunSide(PassiveSide):
    """The side that answers the driver of a run."""

    @operation
    def begin(self, run: Control) -> Control:
        """Note which table this is, for a run goes on with no other; give ``people``, ``columns``.

        ``resumed``: whether the run has begun before.

        Raises:
            JobError: the table has changed since.
        """
        note = self.party.path("table")
        if run.get("resumed") and note.exists() and note.read_text() != self.party.table:
            file = f", file '{Path(self.party.file).name}'" if self.party.file else ""
            raise JobError(  # of which a driver at another site is told the text
                f"party '{self.party.name}'{file}: the table has changed since the run began, and "
                "a run is of one table. Go on with the table as it was, or begin another run: on "
                "one machine by another --out, over sites under another `name` in the job"
            )
        note.parent.mkdir(parents=True, exist_ok=True)
        write_whole(note, self.party.table.encode())
        return {"people": len(self.party), "columns": len(self.party.columns)}

    @operation
    def keep_matching(self, matching: Control) -> None:
        """Keep this party's rows of the people who were just matched, under a random ``name``."""
        rows = torch.from_numpy(self.party.shared_with(self.partner))
        state = State({"rows": rows}, {"run": _text(matching, "name")})
        write_state(self.party.path("alignment", self.party.people), state)

    @operation
    def kept_matching(self, matching: Control) -> Control:
        """Take up the matching of exactly these people that was kept; give its ``name``, or ''."""
        try:
            state = read_state(self.party.path("alignment", self.party.people))
        except InterlaceError:
            return {"name": ""}
        self.party.aligned[self.partner] = state.tensors["rows"].numpy()
        return {"name": state.meta["run"]}

    @operation
    def train(self, training: Control) -> None:
        """Begin a training of its own: another ``seed``, guards and accounts from new.

        Raises:
            Refused: all trainings of the run have begun.
        """
        seed = whole_number(training, "seed", 2**32)
        if self.party.trainings is not None:
            if not self.party.trainings:
                raise Refused(f"party '{self.party.name}' has begun all trainings of this run")
            self.party.trainings -= 1
        self.party.train_anew(seed)

    @operation
    def progress(self, progress: Control) -> None:
        """Hear what is being done, and which share of the whole is behind."""
        self.party.progress = (_text(progress, "doing"), real_number(progress, "share", 1.0))

    @operation
    def account(self, training: Control) -> Metric:
        """What this party's guards can claim of the training so far."""
        return {"privacy": self.party.boundary.accounts()}

    @operation
    def close(self, training: Control) -> Control:
        """End a training, whose model is saved: forget its conversations, and drop its checkpoints
        and those of models inside its model, such as a teacher's. Give the ledger's head.
        """
        name, party = _text(training, "name"), self.party
        party.sides = {session: side for session, side in party.sides.items() if side is self}
        within = party.path("checkpoints").glob(f"{glob.escape(name)}-*")
        for done in (party.path("checkpoints", name), *within):
            shutil.rmtree(done, ignore_errors=True)
        return {"ledger_head": party.boundary.ledger.head}


def _text(control: dict[str, Any], name: str) -> str:
    """A short text out of a received control value.

    Raises:
        Refused: there is none.
    """
    text = control.get(name)
    if not isinstance(text, str) or not 0 < len(text) <= 200 or not text.isprintable():
        raise Refused(f"'{name}' is not a text of at most 200 characters")
    return text
