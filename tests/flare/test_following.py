"""What the party that submitted a run does when the server's word on its job is not the truth."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from nvflare.fuel.flare_api.api_spec import JobNotFound, NoConnection

from interlace.cli import party
from interlace.errors import InterlaceError
from interlace.sites import submission
from interlace.sites.contract import Contract
from interlace.sites.folder import PartyFolder, RunFolder, Site, Status

CONTRACT = Contract(name="small", parties=["bank", "shop"], active="bank")


class Server:
    """One that has a job running, and sites of which each has the jobs that a test says."""

    def __init__(self) -> None:
        self.jobs = {"first": "RUNNING"}
        self.sites: dict[str, str | None] = {"bank": "first", "shop": "first"}
        self.ended: list[str] = []

    def submit_job(self, _path: str) -> str:
        self.jobs["second"] = "SUBMITTED"
        return "second"

    def get_job_meta(self, job: str) -> dict[str, str]:
        if job not in self.jobs:
            raise JobNotFound
        return {"status": self.jobs[job]}

    def abort_job(self, job: str) -> None:
        self.ended.append(job)

    def get_system_info(self) -> Any:
        running = [
            SimpleNamespace(job_id=j) for j, state in self.jobs.items() if state == "RUNNING"
        ]
        return SimpleNamespace(job_info=running, client_info=[])

    def get_client_job_status(self) -> list[dict[str, str]]:
        if None in self.sites.values():
            raise NoConnection
        return [
            {"client_name": name, "job_id": job, "status": "started"}
            if job
            else {"client_name": name, "status": "no_jobs"}
            for name, job in self.sites.items()
        ]


@pytest.fixture
def folder(tmp_path: Path) -> PartyFolder:
    made = PartyFolder(tmp_path, Site(name="bank"))
    made.run(CONTRACT.run).note(Status(state="running", doing="epoch 3", job="first"))
    return made


def looked(folder: PartyFolder, server: Server, job: str = "first", times: int = 5) -> str:
    """Which job is followed after some looks."""
    follow = submission._Following(folder, CONTRACT, job, lambda _job, _state: None)
    for _ in range(times):
        assert follow.look(server) is None  # type: ignore[arg-type]
    return follow.job


def test_a_job_that_all_sites_have_is_left_alone(folder: PartyFolder) -> None:
    server = Server()
    assert looked(folder, server) == "first"
    assert server.ended == []


def test_a_job_that_a_site_has_left_is_handed_in_again(folder: PartyFolder) -> None:
    server = Server()
    server.sites["shop"] = ""  # it was started anew
    assert looked(folder, server, times=2) == "first"  # it may be ending
    assert looked(folder, server) == "second"
    assert server.ended == ["first"]


def test_a_site_that_is_away_is_waited_for(folder: PartyFolder) -> None:
    server = Server()
    server.sites["shop"] = None
    assert looked(folder, server) == "first"
    del server.sites["shop"]
    assert looked(folder, server) == "first"


def test_a_run_that_has_ended_here_is_ending_there(folder: PartyFolder) -> None:
    server = Server()
    server.sites["shop"] = ""
    folder.run(CONTRACT.run).note(Status(state="finished", done=1.0, job="first"))
    assert looked(folder, server) == "first"


def test_what_was_stopped_is_not_handed_in_again_by_who_follows_it(
    folder: PartyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, nothing = Server(), SimpleNamespace(job_info=[], client_info=[])
    monkeypatch.setattr(server, "get_system_info", lambda: nothing)  # it was started anew
    folder.run(CONTRACT.run).note(Status(state="stopped", job="first"))
    follow = submission._Following(folder, CONTRACT, "first", lambda _job, _state: None)
    looks = [follow.look(server) for _ in range(3)]  # type: ignore[arg-type]
    assert [look and look.state for look in looks] == [None, None, "stopped"]
    assert (follow.job, list(server.jobs)) == ("first", ["first"])


def test_a_job_under_way_is_followed_and_no_second_handed_in(folder: PartyFolder) -> None:
    server = Server()
    assert looked(folder, server, job="", times=1) == "first"
    server.jobs["first"] = "FINISHED:ABORTED"
    assert looked(folder, server, job="", times=1) == "second"
    folder.run(CONTRACT.run).note(Status(state="running", job="unheard of"))
    assert looked(folder, server, job="", times=1) == "second"


@contextmanager
def by_session(server: Server) -> Iterator[Server]:
    yield server


def test_a_run_left_alone_is_handed_in_again_once(
    folder: PartyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, run = Server(), folder.run(CONTRACT.run)
    monkeypatch.setattr(submission, "session", lambda _kit: by_session(server))
    monkeypatch.setattr(submission, "LOOK_AGAIN", 0.0)
    run.keep(CONTRACT)
    assert folder.left_alone() == []  # no process has begun it yet
    (run.path / "job").write_text("first")
    run.note(run.status.model_copy(update={"done": 0.4}))
    with run.follow():
        assert folder.left_alone() == []
    folder.stop_file.touch()
    assert folder.left_alone() == []
    folder.stop_file.unlink()
    assert folder.left_alone() == [run]
    assert not submission.take_up(folder, run)  # the server has it, and so have all sites
    server.sites["bank"] = ""
    assert submission.submit(folder, CONTRACT) == "second"
    assert (server.ended, run.status.job, run.status.done) == (["first"], "second", 0.4)
    assert folder.left_alone() == []


def test_a_run_whose_job_was_ended_in_flares_console_is_stopped_until_it_is_submitted(
    folder: PartyFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server, run = Server(), folder.run(CONTRACT.run)
    monkeypatch.setattr(submission, "session", lambda _kit: by_session(server))
    run.keep(CONTRACT)
    (run.path / "job").write_text("first")
    server.jobs["first"] = "FINISHED:ABORTED"
    party._go_on(folder)
    assert (run.status.state, list(server.jobs)) == ("stopped", ["first"])
    assert "is stopped (its job was ended at the server)" in capsys.readouterr().err
    assert folder.left_alone() == []
    assert submission.submit(folder, CONTRACT) == "second"


def test_what_is_stopped_while_the_server_is_away_is_not_handed_in_when_it_is_back(
    folder: PartyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, tried = folder.run(CONTRACT.run), []
    run.keep(CONTRACT)
    run.note(Status(state="running", job="first"))
    (run.path / "job").write_text("first")

    def away(_folder: PartyFolder, _run: RunFolder) -> bool:
        tried.append(_run.status.state)
        run.note(Status(state="stopped", job="first"))
        raise InterlaceError("the server is away")

    monkeypatch.setattr(submission, "take_up", away)
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)
    party._go_on(folder, 3)
    assert tried == ["running"]


def test_a_partner_does_not_hand_in_what_another_drives(folder: PartyFolder) -> None:
    theirs = CONTRACT.model_copy(update={"active": "shop"})
    run = folder.run(theirs.run)
    run.keep(theirs)
    run.note(Status(state="running", job="first"))
    (run.path / "job").write_text("first")
    assert run.left_alone
    assert folder.left_alone() == []
    run.note(Status(state="finished", job="first"))
    (run.path / "contract.json").write_text("{}")  # of a version of long ago
    assert folder.left_alone() == []
