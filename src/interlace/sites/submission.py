"""Submitting a contract to the federation's server, and following what becomes of it there.

What travels is the contract and the names of the classes that carry it out, no code. The server and
every site verify who submitted it; each site takes no class into its job process but those that its
own ``local/resources.json`` lists.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from interlace.boundary.policy import MOST_HOURS
from interlace.data.suggest import nearest
from interlace.errors import InterlaceError, JobError
from interlace.sites import NOT_INSTALLED
from interlace.sites.contract import Contract
from interlace.sites.folder import PartyFolder, RunFolder, Status

try:
    from nvflare.apis.job_def import JobMetaKey, RunStatus
    from nvflare.fuel.flare_api.api_spec import JobNotFound, NoConnection
    from nvflare.fuel.flare_api.flare_api import Session, new_secure_session
    from nvflare.fuel.hci.proto import MetaStatusValue
except ModuleNotFoundError as e:
    raise InterlaceError(NOT_INSTALLED) from e

LOGIN_SECONDS = 20.0
CONTRACT = "config/contract.json"  # in what FLARE unpacks of the job
# Seconds after which a site asks the server whether its job begins, or is over. For each such
# question FLARE keeps a thread for 65 seconds.
ASK_AGAIN = 1.0
START_SECONDS = 120.0  # how long FLARE waits for all job processes to come up
LOOK_AGAIN = 2.0
MOST_MISSED = 3  # looks in a row at which a job that is said to run has been left
NO_WORD = (MetaStatusValue.NO_REPLY, MetaStatusValue.ERROR)  # of a site about its jobs
MOST_BARREN = 4  # jobs in a row that a site does not even begin: that is no accident

# What FLARE says of a job that its user has ended. Of one whose sites, server or processes fell out
# it says otherwise, whatever way they did.
ENDED = RunStatus.FINISHED_ABORTED.value
BY_CONSOLE = "its job was ended at the server"

_STARTED = (RunStatus.DISPATCHED.value, RunStatus.RUNNING.value)


def submit(folder: PartyFolder, contract: Contract) -> str:
    """Hand a contract to the server, unless a job of it is under way there.

    Args:
        folder: The submitting party's.
        contract: What all parties have to approve.

    Returns:
        What FLARE calls the job.

    Raises:
        InterlaceError: the server cannot be reached, or does not take it.
    """
    run = folder.run(contract.run)
    if run.left_alone and take_up(folder, run):
        return run.status.job
    with session(folder.user) as server:
        return _under_way(server, run) or _submit(server, contract)


def state(kit: Path, job: str) -> str:
    """How the server says that a job stands, as ``RUNNING`` or ``FINISHED:COMPLETED``."""
    with session(kit) as server:
        return _state(server, job)


def stop(kit: Path, job: str) -> None:
    """Have the server end a job. What the parties have kept of the run stays with them."""
    with session(kit) as server:
        server.abort_job(job)


def connected(kit: Path) -> list[str]:
    """The sites that the server is connected to now."""
    with session(kit) as server:
        return [client.name for client in server.get_system_info().client_info]


def away(folder: PartyFolder, contract: Contract) -> list[str]:
    """Those of a contract's parties that the server is not connected to now.

    Raises:
        JobError: a party is away of whom this one has never had a signed word: it would be waited
            for, and the name may be nobody's.
        InterlaceError: the server cannot be reached.
    """
    here = set(connected(folder.user))
    known = here | folder.met | {folder.name}
    for name in contract.parties:
        if name not in known:
            meant = nearest(name, known - {folder.name})
            raise JobError(
                f"no site called '{name}' is up, nor has one ever taken part in a run with "
                f"'{folder.name}'{f'; did you mean {meant!r}?' if meant else '.'} There are: "
                f"{', '.join(sorted(known))}. If the name is right, have that site come up "
                "first (`interlace party up` there)"
            )
    return [name for name in contract.parties if name not in here]


def _submit(server: Session, contract: Contract) -> str:
    with TemporaryDirectory() as folder:
        write_job(contract, Path(folder) / contract.run)
        return str(server.submit_job(str(Path(folder) / contract.run)))


def _under_way(server: Session, run: RunFolder) -> str:
    """The job that carries out a run now, if one does: a second would wait for what it holds."""
    status = run.status
    try:
        over = status.over or not status.job or _state(server, status.job).startswith("FINISHED")
    except JobNotFound:
        over = True
    return "" if over else status.job


def _state(server: Session, job: str) -> str:
    return str(server.get_job_meta(job).get(JobMetaKey.STATUS.value))


def watch(
    folder: PartyFolder,
    contract: Contract,
    job: str = "",
    *,
    on_state: Callable[[str, str], None] = lambda _job, _state: None,
) -> Status:
    """Follow a contract to its end, and submit it again where a process or a site fell out.

    It goes on from the parties' checkpoints then; a site that does not come back is waited for as
    long as the contract says.

    Args:
        folder: The submitting party's.
        contract: What was submitted.
        job: What FLARE calls it; nothing: it is submitted, unless a job of it is under way.
        on_state: Told of the job and every new state, as the server has it.

    Returns:
        How the run stands at this party. ``paused``: it was waited long enough; submitting the
        contract again goes on with it.

    Raises:
        InterlaceError: the server was away for too long.
    """
    follow = _Following(folder, contract, job, on_state)
    follow.run.path.mkdir(parents=True, exist_ok=True)
    with follow.run.follow():
        while True:
            try:
                with session(folder.user) as server:  # it ends when the server does
                    while (status := follow.look(server)) is None:
                        time.sleep(LOOK_AGAIN)
                    return status
            except JobError:
                raise
            except InterlaceError:
                if follow.late:
                    raise
                time.sleep(LOOK_AGAIN)


def take_up(folder: PartyFolder, run: RunFolder) -> bool:
    """Hand in a run again that was left alone, as by a machine that was started anew.

    A run whose job this party's user has ended in FLARE's own console is noted as stopped instead.

    Args:
        folder: The party's that drives it.
        run: The run.

    Returns:
        Whether it was; else it is stopped, a partner's site is away, or the server still takes it
        for running.

    Raises:
        InterlaceError: the server cannot be reached.
    """
    before, follow = run.status, _Following(folder, run.contract, "", lambda _job, _state: None)
    with run.follow(), session(folder.user) as server:
        with suppress(JobNotFound):
            if _state(server, before.job) == ENDED:
                run.note(before.model_copy(update={"state": "stopped", "reason": BY_CONSOLE}))
                return False
        for _ in range(MOST_MISSED + 2):
            if follow.look(server) is not None:
                break
            if follow.job not in ("", before.job):
                doing = "for its sites to begin"
                run.note(Status(state="waiting", doing=doing, done=before.done, job=follow.job))
                return True
            time.sleep(LOOK_AGAIN)
    return False


class _Following:
    """What :func:`watch` knows of a run so far."""

    def __init__(
        self,
        folder: PartyFolder,
        contract: Contract,
        job: str,
        on_state: Callable[[str, str], None],
    ) -> None:
        self.folder, self.contract, self.job, self.on_state = folder, contract, job, on_state
        self.run = folder.run(contract.run)
        self.furthest, self.since = self.run.status.done, time.monotonic()
        self.last, self.barren, self.missed = "", 0, 0
        self.first, self.before = not job, Status(state="waiting")  # as it stood at the last look

    @property
    def late(self) -> bool:
        """Whether nothing has come forward for as long as the contract waits."""
        return time.monotonic() - self.since > self.contract.wait * 3600

    def look(self, server: Session) -> Status | None:
        """Submit the contract if no job of it is there; how the run stands, once it is over."""
        self.job = self.job or self._earlier(server) or _submit(server, self.contract)
        state, status = _state(server, self.job), self.run.status
        ends = ("finished", "refused", "failed", "stopped")
        over = status.job == self.job and status.state in ends
        if state == RunStatus.RUNNING.value and self._lost(server, status):
            if over:  # which a busy server notes late
                return status
            with suppress(Exception):  # it says that nothing is there to end
                server.abort_job(self.job)
            self.job, self.missed = "", 0
            return None
        if state != self.last:
            self.on_state(self.job, state)
            self.last = state
        answers = self.contract.online and status.state == "running"
        if status.done > self.furthest or answers:
            self.furthest, self.since = status.done, time.monotonic()
        if not state.startswith("FINISHED"):
            return self._given_up(server) if self.late and state not in _STARTED else None
        if state == ENDED:
            self.run.note(status.model_copy(update={"state": "stopped", "job": self.job}))
            return self.run.status
        self.barren = 0 if status.job == self.job else self.barren + 1
        if self.barren == MOST_BARREN:
            raise JobError(
                f"{self.barren} jobs ended before '{self.folder.name}' had begun them, the last "
                f"with {state}; {self.folder.kit / 'log.txt'} says more"
            )
        if over:
            return status
        if self.late:
            return self._given_up(server)
        self.job = ""
        return None

    def _earlier(self, server: Session) -> str:
        """A job from before, at the first look."""
        first, self.first = self.first, False
        return _under_way(server, self.run) if first else ""

    def _given_up(self, server: Session) -> Status:
        """End what waits; the run can go on once all are there."""
        with suppress(Exception):
            server.abort_job(self.job)
        here = {client.name for client in server.get_system_info().client_info}
        away = [name for name in self.contract.parties if name not in here]
        reason = f"not connected: {', '.join(away)}" if away else self.run.status.reason
        status = self.run.status.model_copy(
            update={"state": "paused", "reason": reason or "no site began the job"}
        )
        self.run.note(status)
        return status

    def _lost(self, server: Session, status: Status) -> bool:
        """Whether nothing will come of a job that the server says is running.

        A server that was started anew has forgotten it. A party's site that was is there again
        without a process of it: FLARE takes that for another site, and starts none.
        """
        running = {job.job_id for job in server.get_system_info().job_info or ()}
        gone = self.job not in running or (self._stands(status) and self._left(server))
        self.missed = self.missed + 1 if gone else 0
        return self.missed >= MOST_MISSED

    def _stands(self, status: Status) -> bool:
        """Whether nothing has moved since the last look, or a service is without a partner."""
        before, self.before = self.before, status
        if self.contract.online:
            return status.state == "running" and status.job == self.job and bool(status.reason)
        return status == before and not (status.over and status.job == self.job)

    def _left(self, server: Session) -> bool:
        """Whether all parties' sites are there, and one has left the job."""
        jobs: dict[str, set[str]] = {}
        try:
            rows = server.get_client_job_status() or ()
        except NoConnection:  # the server waits longer than we do for a site that is away
            return False
        for row in rows:
            if row["status"] not in NO_WORD:
                jobs.setdefault(row["client_name"], set()).add(row.get("job_id", ""))
        parties = self.contract.parties
        return set(parties) <= jobs.keys() and any(self.job not in jobs[name] for name in parties)


def write_job(contract: Contract, folder: Path) -> None:
    """Write the job folder that FLARE takes: configuration and the contract, no code."""
    _write(
        folder / "meta.json",
        {
            "name": contract.run,
            "resource_spec": {},
            "min_clients": len(contract.parties),
            "mandatory_clients": contract.parties,
            "deploy_map": {"hub": ["server"], "site": contract.parties},
        },
    )
    _write(
        folder / "hub" / "config" / "config_fed_server.json",
        {
            "format_version": 2,
            "server": {"task_request_interval": ASK_AGAIN},
            "workflows": [
                {
                    "id": "controller",
                    "path": "nvflare.collab.runtime.controller.CollabController",
                    "args": {"server_obj_id": "hub", "sync_task_timeout": START_SECONDS},
                }
            ],
            "components": [
                {
                    "id": "hub",
                    "path": "interlace.sites.hub.Hub",
                    "args": {"active": contract.active, "seconds": MOST_HOURS * 3600.0},
                }
            ],
        },
    )
    _write(
        folder / "site" / "config" / "config_fed_client.json",
        {
            "format_version": 2,
            "executors": [
                {
                    "tasks": ["*"],
                    "executor": {
                        "path": "nvflare.collab.runtime.executor.CollabExecutor",
                        "args": {"client_obj_id": "site"},
                    },
                }
            ],
            "components": [{"id": "site", "path": "interlace.sites.job.Site", "args": {}}],
        },
    )
    (folder / "site" / CONTRACT).write_text(contract.text)


def _write(file: Path, content: dict[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content, indent=1))


@contextmanager
def session(kit: Path) -> Iterator[Session]:
    """A session with the server, as the user whose kit it is.

    Raises:
        InterlaceError: no session, or the server did not do what it was asked.
    """
    try:
        admin = json.loads((kit / "startup" / "fed_admin.json").read_text())["admin"]
        with _quiet():
            opened = new_secure_session(admin["username"], str(kit), timeout=LOGIN_SECONDS)
    except Exception as e:
        raise InterlaceError(
            f"the federation's server cannot be reached with the user's kit {kit} "
            f"({type(e).__name__}: {e}); is it up, and does this network reach it?"
        ) from e
    try:
        yield opened
    except InterlaceError:
        raise
    except Exception as e:
        raise InterlaceError(f"the federation's server says: {type(e).__name__}: {e}") from e
    finally:
        with _quiet(), suppress(Exception):
            opened.close()


@contextmanager
def _quiet() -> Iterator[None]:
    """FLARE's client prints as it goes."""
    nowhere = io.StringIO()
    with redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield
