"""A party's folder: all that one organisation keeps for its runs with others.

::

    bank/
      party.yaml       its table, ids, label and policy: the organisation's own to write
      site.yaml        its name, its federation, what it takes on there
      kit/             its start-up kit of NVIDIA FLARE: certificate, private key, settings
      server/          the server's kit, where it hosts the federation's server
      user/            its user's kit, where it may submit jobs
      requests/        requests for certificates, with the private keys made for them
      account.sqlite   the privacy budget that its runs have used
      refused.log      a line for each refused run whose folder is no longer kept
      STOP             while this is here, nothing leaves and nothing is answered
      tmp/             what rehearsals copy of the table; what a killed one left goes with the next
      runs/<run>/      contract.json, plan.json, approval.json, approvals/ and refusals/
                       of the others, status.json, log.txt, ledger.sqlite, checkpoints/, models/,
                       results.json, columns.json (how the table reads), report.html; where people
                       are scored listening.json, or people.json and scores.parquet
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from interlace.boundary import Ledger
from interlace.errors import InterlaceError, JobError, Refused
from interlace.files import write_whole
from interlace.job.spec import PartyFile, read_party_file
from interlace.sites.contract import Contract

ENVIRONMENT = "INTERLACE_PARTY"  # where a site's processes find their party's folder

JUST_ASKED = "what was just submitted takes some seconds to come"
MOST_REFUSED = 100  # runs that were refused and whose folders are kept

State = Literal[
    "waiting",  # for an approval
    "approved",  # by all, not begun
    "running",
    "paused",  # a partner was away for too long; submitting the job again goes on with it
    "finished",
    "refused",
    "stopped",  # by hand
    "failed",
]


class Site(BaseModel):
    """What an organisation takes on in a federation (``site.yaml``)."""

    model_config = ConfigDict(extra="forbid")

    name: str
    drives: bool = Field(default=True, description="It may submit jobs and drive them.")
    hosts: bool = Field(default=False, description="It hosts the federation's server.")
    federation: str = Field(default="", description="The federation's name.")
    host: str = Field(default="", description="The server's name in the network.")
    port: int = Field(default=8002, description="The server's port.")


class Status(BaseModel):
    """How a run stands at one party. ``done`` is the share of it that is behind."""

    state: State
    doing: str = ""
    done: float = Field(default=0.0, ge=0, le=1)
    reason: str = ""
    job: str = ""  # what FLARE calls it
    began: float = Field(default_factory=time.time)
    updated: float = Field(default_factory=time.time)

    @property
    def over(self) -> bool:
        """Whether nothing more happens by itself."""
        return self.state in ("paused", "finished", "refused", "stopped", "failed")

    @property
    def seconds_left(self) -> float | None:
        """By the pace so far; ``None`` where it cannot be told."""
        if self.state != "running" or self.done <= 0.01:
            return None
        return (self.updated - self.began) * (1 - self.done) / self.done


class Listening(BaseModel):
    """Where the party that drives answers questions about people (``listening.json``): its own
    affair, which no contract holds."""

    host: str = "127.0.0.1"
    port: int = 8321
    token_file: Path | None = None
    deadline_ms: float = 1000
    most: int = 1000

    @classmethod
    def of(cls, run: Path) -> Listening:
        """As it was kept in a run's folder; else the usual."""
        file = run / "listening.json"
        return cls.model_validate_json(file.read_text()) if file.exists() else cls()

    def keep(self, run: Path) -> None:
        """Keep it in a run's folder."""
        write_whole(run / "listening.json", self.model_dump_json().encode())


class People(BaseModel):
    """The table whose people a run scores, at the party that drives (``people.json``): its own
    affair, which no contract holds.

    ``digest`` is of the table as it was when the run was asked for; ``taken``: whoever asked has
    got the scores.
    """

    table: str
    digest: str
    taken: bool = False

    @classmethod
    def of(cls, run: Path) -> People:
        """As it was kept in a run's folder."""
        return cls.model_validate_json((run / "people.json").read_text())

    def keep(self, run: Path) -> None:
        """Keep it in a run's folder."""
        write_whole(run / "people.json", self.model_dump_json().encode())


@dataclass(frozen=True)
class RunFolder:
    """What a party keeps of one run."""

    path: Path

    @property
    def name(self) -> str:
        """The run's name."""
        return self.path.name

    @property
    def ledger(self) -> Path:
        """The party's ledger of this run."""
        return self.path / "ledger.sqlite"

    @property
    def scores(self) -> Path:
        """What the run said of a table's people, at the party that drives."""
        return self.path / "scores.parquet"

    @property
    def log(self) -> Path:
        """What the party's job said on the way."""
        return self.path / "log.txt"

    def keep(self, contract: Contract) -> None:
        """Keep the contract; a run has one for good.

        Raises:
            Refused: there is another of that name, whose approval and plan this one would take.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        if not (self.path / "contract.json").exists():
            write_whole(self.path / "contract.json", contract.text.encode())
        elif self.contract.digest != contract.digest:
            raise Refused(
                f"'{self.name}' is the name of another contract here; change the job's `name`"
            )

    @property
    def contract(self) -> Contract:
        """What the run is about.

        Raises:
            JobError: there is no such run here.
        """
        try:
            return Contract.read((self.path / "contract.json").read_text())
        except FileNotFoundError:
            raise JobError(
                f"there is no run '{self.name}' here; `interlace status` lists them"
            ) from None

    @property
    def status(self) -> Status:
        """How it stands; waiting, where nothing else is known."""
        try:
            return Status.model_validate_json((self.path / "status.json").read_text())
        except (FileNotFoundError, ValidationError):
            return Status(state="waiting", doing="asked for, not yet answered")

    def occupy(self, job: str) -> None:
        """Say that this process carries the run out, as long as it lives, for a job of FLARE's."""
        fcntl.flock(os.open(self.path, os.O_RDONLY), fcntl.LOCK_SH)  # a later job's may be here too
        write_whole(self.path / "job", job.encode())

    @property
    def begun(self) -> bool:
        """Whether a process here began the job that was handed in last."""
        try:
            return (self.path / "job").read_text() == self.status.job
        except FileNotFoundError:
            return False

    @property
    def stands_still(self) -> bool:
        """Whether a process had begun to carry the run out, and ended before it was over."""
        return not self.status.over and self.begun and not _held(self.path)

    @contextmanager
    def follow(self) -> Iterator[None]:
        """Say for the time of a ``with`` that this process hands the run in again where it must."""
        (self.path / ".followed").touch()
        with _locked(self.path / ".followed", fcntl.LOCK_SH):
            yield

    @property
    def left_alone(self) -> bool:
        """Whether it stands still, and no process will hand it in again."""
        return self.stands_still and not _held(self.path / ".followed")

    @property
    def noted(self) -> bool:
        """Whether anything is known of how it stands."""
        return (self.path / "status.json").exists()

    def note(self, status: Status) -> None:
        """Keep how it stands."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_whole(self.path / "status.json", status.model_dump_json().encode())


@dataclass(frozen=True)
class PartyFolder:
    """One organisation's folder."""

    root: Path
    site: Site

    @classmethod
    def open(cls, root: Path) -> PartyFolder:
        """Open a folder that ``interlace party new`` made.

        Raises:
            JobError: it is none.
        """
        file = root / "site.yaml"
        try:
            return cls(root.resolve(), Site.model_validate(yaml.safe_load(file.read_text())))
        except FileNotFoundError:
            raise JobError(
                f"{root} is not a party's folder; make one by `interlace party new NAME`, or say "
                "which it is by --party"
            ) from None
        except (ValidationError, yaml.YAMLError) as e:
            raise JobError(f"{file} is damaged: {str(e).splitlines()[0]}") from e

    @classmethod
    def here(cls) -> PartyFolder:
        """The folder that the environment names, or the one we are in.

        Raises:
            JobError: there is none.
        """
        return cls.open(Path(os.environ.get(ENVIRONMENT, ".")))

    @property
    def name(self) -> str:
        """The party's name."""
        return self.site.name

    @property
    def kit(self) -> Path:
        """FLARE's start-up kit of this site."""
        return self.root / "kit"

    @property
    def server(self) -> Path:
        """FLARE's start-up kit of the server, at the party that hosts it."""
        return self.root / "server"

    @property
    def user(self) -> Path:
        """FLARE's start-up kit of the user who submits jobs."""
        return self.root / "user"

    @property
    def stop_file(self) -> Path:
        """While it is there, nothing leaves the party and nothing is answered."""
        return self.root / "STOP"

    @property
    def stopped(self) -> bool:
        """Whether the party has stopped everything."""
        return self.stop_file.exists()

    def read(self) -> PartyFile:
        """The party file; its policy heeds :attr:`stop_file`.

        Raises:
            JobError: it is missing or wrong.
        """
        file = read_party_file(self.root / "party.yaml")
        policy = file.policy.model_copy(update={"stop_file": self.stop_file})
        return file.model_copy(update={"policy": policy})

    def write(self, site: Site) -> PartyFolder:
        """Keep what the organisation takes on."""
        # Models and checkpoints are as private as the table.
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        text = yaml.safe_dump(site.model_dump(), sort_keys=False)
        write_whole(self.root / "site.yaml", text.encode())
        return PartyFolder(self.root.resolve(), site)

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """An empty folder for the time of a ``with``. What processes that were killed left of
        theirs is removed first: a lock ends with the process that holds it."""
        place = self.root / "tmp"
        place.mkdir(mode=0o700, exist_ok=True)
        with ExitStack() as mine:
            with _locked(place):
                for left in place.iterdir():
                    with suppress(BlockingIOError), _locked(left, fcntl.LOCK_EX | fcntl.LOCK_NB):
                        shutil.rmtree(left)
                made = Path(tempfile.mkdtemp(dir=place))
                mine.enter_context(_locked(made))
            mine.callback(shutil.rmtree, made, ignore_errors=True)
            yield made

    def run(self, name: str) -> RunFolder:
        """What is kept of a run.

        Raises:
            JobError: a run cannot be called so.
        """
        if not name or Path(name).name != name or name.startswith("."):
            raise JobError(f"'{name[:80]}' is not the name of a run")
        return RunFolder(self.root / "runs" / name)

    def runs(self) -> Iterator[RunFolder]:
        """All runs that were asked for, the latest first."""
        asked: dict[Path, float] = {}
        for file in (self.root / "runs").glob("*/contract.json"):
            with suppress(FileNotFoundError):  # another process forgets refused runs meanwhile
                asked[file] = file.stat().st_mtime
        for file in sorted(asked, key=asked.__getitem__, reverse=True):
            if file.exists():
                yield RunFolder(file.parent)

    def forget_refused(self) -> None:
        """Keep no more than the latest of the runs that were refused before anything left, and of
        the others a line in ``refused.log``: whoever asks again and again fills no disk. A word
        given by hand stays: without it a standing rule would answer when the run comes again."""
        refused = [run for run in self.runs() if run.status.state == "refused"]
        for run in refused[MOST_REFUSED:]:
            given = run.path / "approval.json"
            if given.exists() and json.loads(given.read_text())["by"] == "hand":
                continue
            if _held(run.path) or (run.ledger.exists() and Ledger(run.ledger).sent_by(self.name)):
                continue
            with (self.root / "refused.log").open("a") as log:
                when = datetime.fromtimestamp(run.status.updated, UTC)
                log.write(f"{when:%F %T} UTC  {run.name}  {run.status.reason}\n")
            shutil.rmtree(run.path)

    @property
    def met(self) -> set[str]:
        """The parties whose signed approval of some run is kept here."""
        return {file.stem for file in self.root.glob("runs/*/approvals/*.json")}

    def left_alone(self) -> list[RunFolder]:
        """The runs that this party drives, and that stand still until it hands them in again; none
        while it has stopped everything."""
        if self.stopped:
            return []
        # In this order: a finished run's contract may be of a version that can no longer be read.
        return [r for r in self.runs() if r.left_alone and r.contract.active == self.name]

    def find(self, name: str | None) -> RunFolder:
        """A run by its name, its job's name, or the beginning of it; without one, the latest.

        Raises:
            JobError: there is none, or several begin so.
        """
        runs = list(self.runs())
        if not runs:
            raise JobError(f"nobody has asked '{self.name}' for a run yet; {JUST_ASKED}")
        if name is None:
            return runs[0]
        fits = (
            [r for r in runs if r.name == name]
            or [r for r in runs if r.name.rpartition("-")[0] == name]
            or [r for r in runs if r.name.startswith(name)]
        )
        if len(fits) != 1:
            names = ", ".join(r.name for r in (fits or runs)[:5])
            problem = "several runs begin so" if fits else f"there is no run '{name}'"
            raise JobError(f"{problem}; there are: {names}")
        return fits[0]


@contextmanager
def _locked(place: Path, how: int = fcntl.LOCK_EX) -> Iterator[None]:
    """Hold a file or folder for the time of a ``with``, or as long as this process lives."""
    # Over NFS a file is locked for one alone only by whom it is open for writing.
    held = os.open(place, os.O_RDONLY if place.is_dir() else os.O_RDWR)
    try:
        fcntl.flock(held, how)
        yield
    finally:
        os.close(held)


def _held(place: Path) -> bool:
    """Whether some process holds a file or folder."""
    try:
        with _locked(place, fcntl.LOCK_EX | fcntl.LOCK_NB):
            return False
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True


def here(folder: Path | None) -> PartyFolder:
    """The folder that a command is about: the one named, or the one we are in.

    Raises:
        InterlaceError: there is none.
    """
    try:
        return PartyFolder.open(folder) if folder is not None else PartyFolder.here()
    except OSError as e:
        raise InterlaceError(f"{folder} cannot be read: {e.strerror}") from e
