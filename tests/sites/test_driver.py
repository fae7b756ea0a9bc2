"""What the driver's process owes its partners before they answer, and once the run is over."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from interlace.boundary import Ledger
from interlace.engines.sites import Unreachable
from interlace.errors import JobError, PartyAway
from interlace.job.results import Results
from interlace.party import RunSide
from interlace.sites import approval
from interlace.sites.contract import Contract
from interlace.sites.folder import ENVIRONMENT, PartyFolder, Status
from interlace.sites.plan import Leaving, Plan

pytest.importorskip("nvflare")

from interlace.sites import job
from interlace.sites.job import Driver, Site

pytestmark = pytest.mark.flare

Make = Callable[..., PartyFolder]


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Callable[[PartyFolder, Contract], Site]:
    """Start a party's process of a run, without FLARE around it."""

    def made_up(folder: PartyFolder, contract: Contract) -> Plan:
        leaves = {kind: Leaving(messages=1, bytes=1) for kind in folder.read().policy.allowed}
        return Plan(run=contract.run, party=folder.name, leaves=leaves, capped=False)

    monkeypatch.setattr(approval, "plan_of", made_up)
    monkeypatch.setattr(job, "ASK_AGAIN", 0.01)
    monkeypatch.setattr(job, "warm_up", lambda: None)
    monkeypatch.setattr(Site, "_make_way", lambda _site: None)
    monkeypatch.setattr(job, "_log_into", lambda _file: None)

    def start(folder: PartyFolder, contract: Contract) -> Site:
        app = folder.root / "app"
        (app / "config").mkdir(parents=True, exist_ok=True)
        (app / job.CONTRACT).write_text(contract.text)
        engine = SimpleNamespace(get_cell=lambda: None)
        about: dict[str, Any] = {
            job.FLContextKey.JOB_META: {job.SUBMITTER: "bank"},
            job.FLContextKey.WORKSPACE_OBJECT: SimpleNamespace(get_app_dir=lambda _job: str(app)),
        }
        context = SimpleNamespace(
            get_job_id=lambda: "one", get_prop=about.get, get_engine=lambda: engine
        )
        monkeypatch.setattr(job, "collab", SimpleNamespace(fl_ctx=context))
        monkeypatch.setenv(ENVIRONMENT, str(folder.root))
        made = Site()
        made.start()
        return made

    return start


class Meets(Driver):
    """A driver that asks its partner for a little, and has trained nothing."""

    def _run(self) -> None:
        self.engine.open("run", RunSide, "shop", "bank")


class Lies(Meets):
    """One that begins without showing who has approved."""

    def _show(self, name: str, words: list[Any]) -> None:
        pass


@pytest.fixture
def both(process: Any, make_party: Make, contract: Contract) -> tuple[Site, Site]:
    """The processes of the bank, which drives, and of the shop."""
    bank, shop = (make_party(n, approve=[{"drivers": ["bank"]}]) for n in contract.parties)
    return process(bank, contract), process(shop, contract)


def test_a_partner_answers_nothing_before_it_has_seen_that_all_have_approved(both: Any) -> None:
    bank, shop = both
    lies = Lies(bank, lambda _name, frame, _seconds: shop._receive(frame))
    assert lies.go() == "refused"
    assert "'shop' has not approved this run (waiting)" in bank.run.status.reason
    assert shop._party is None


def test_a_partner_that_has_seen_it_answers_and_keeps_the_proof(both: Any) -> None:
    bank, shop = both
    assert Meets(bank, lambda _name, frame, _seconds: shop._receive(frame)).go() == "finished"
    assert (bank.run.status.state, bank.run.status.reason) == ("finished", "")
    assert shop.run.status.state == "finished"
    assert approval.others_of(shop.run) == ["bank"]
    assert approval.others_of(bank.run) == ["shop"]


def test_the_log_says_what_a_running_party_does_and_why_it_failed(
    both: Any, caplog: pytest.LogCaptureFixture
) -> None:
    bank, shop = both
    with caplog.at_level(logging.INFO, "interlace.sites.job"):
        Meets(bank, lambda _name, frame, _seconds: shop._receive(frame)).go()
        bank.note("failed", reason="the disk is full")
    said = [record.getMessage() for record in caplog.records]
    assert "running: its table is read" in said
    assert "running" not in said
    assert said[-1] == "failed: the disk is full"


def test_who_was_shown_too_little_once_stays_with_it(both: Any) -> None:
    bank, shop = both
    assert shop._receive(b"W[]") == b"-"
    refused = Meets(bank, lambda _name, frame, _seconds: shop._receive(frame))
    assert refused.go() == "refused"
    assert "'shop' does not take the approvals" in bank.run.status.reason
    assert [e.operation for e in Ledger(shop.run.ledger).entries()] == ["approvals"]


def test_a_partner_that_cannot_be_shown_it_is_away(both: Any) -> None:
    bank, shop = both

    def carry(_name: str, frame: bytes, _seconds: float) -> bytes:
        if frame[:1] == b"W":
            raise Unreachable("lost")
        return shop._receive(frame)

    away = Meets(bank, carry)
    away.patience = 0.0
    assert away.go() == "paused"
    assert "'shop' could not answer 'the approvals'" in bank.run.status.reason


def test_a_run_whose_job_was_ended_by_no_one_stands_as_it_was(
    both: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bank, shop = both
    monkeypatch.setattr(job, "ABORT_SECONDS", 0.0)
    ended: list[bool] = []

    class Ended(Meets):
        def _run(self) -> None:
            bank.note("running", "epoch 3", 0.5)
            ended.append(True)
            raise PartyAway("shop", "a request", "the federation's server has ended the run")

    driver = Ended(bank, lambda _name, frame, _seconds: shop._receive(frame), lambda: bool(ended))
    assert driver.go() == "paused"
    now = bank.run.status
    assert (now.state, now.doing, now.done) == ("running", "epoch 3", 0.5)


def test_what_was_stopped_by_hand_is_not_called_running_by_a_process_that_has_yet_to_hear_it(
    both: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bank, shop = both
    monkeypatch.setattr(job, "ABORT_SECONDS", 0.0)
    ended: list[bool] = []

    class Stopped(Meets):
        def _run(self) -> None:
            bank.note("running", "epoch 3", 0.5)
            by_hand = bank.run.status.model_copy(update={"state": "stopped", "reason": "by hand"})
            bank.run.note(by_hand)
            bank.note("running", "epoch 4", 0.6)
            ended.append(True)
            raise PartyAway("shop", "a request", "the federation's server has ended the run")

    driver = Stopped(bank, lambda _name, frame, _seconds: shop._receive(frame), lambda: bool(ended))
    driver.go()
    assert (bank.run.status.state, bank.run.status.reason) == ("stopped", "by hand")
    assert not bank.run.stands_still


def test_who_takes_an_approval_back_in_the_middle_is_quoted(both: Any) -> None:
    bank, shop = both

    class TakenBack(Meets):
        def _run(self) -> None:
            super()._run()
            approval.refuse(shop.folder, shop.run, "not today", by="hand")
            shop._looked = float("-inf")
            super()._run()

    taken_back = TakenBack(bank, lambda _name, frame, _seconds: shop._receive(frame))
    assert taken_back.go() == "refused"
    assert bank.run.status.reason == "'shop' does not take part: not today"
    assert shop.run.status.reason == "'shop' refused"


def test_a_stop_takes_no_approval_back_and_a_signed_refusal_does(
    process: Any, make_party: Make, contract: Contract
) -> None:
    bank, shop = (make_party(n, approve=[{"drivers": ["bank"]}]) for n in contract.parties)
    driven, asked = bank.run(contract.run), shop.run(contract.run)

    class Pauses(Meets):
        def _run(self) -> None:
            raise PartyAway("shop", "a request", "it was cut off")

    def goes() -> str:
        here, there = process(bank, contract), process(shop, contract)
        return Pauses(here, lambda _name, frame, _seconds: there._receive(frame)).go()

    assert (goes(), approval.others_of(driven)) == ("paused", ["shop"])
    shop.stop_file.touch()
    assert (goes(), approval.others_of(driven)) == ("refused", ["shop"])
    assert "has stopped everything" in driven.status.reason
    shop.stop_file.unlink()
    approval.refuse(shop, asked, "not today", by="hand")
    assert (goes(), approval.others_of(driven)) == ("refused", [])
    approval.approve(shop, asked)
    assert (goes(), approval.others_of(driven)) == ("paused", ["shop"])


def test_a_job_that_another_submits_leaves_the_run_as_it_stands(both: Any) -> None:
    bank, shop = both
    for site in both:
        site.gate()
        site.submitter, site._looked = "shop", float("-inf")
        site.run.note(Status(state="finished", done=1.0, job="before"))
    assert Meets(bank, lambda _name, frame, _seconds: shop._receive(frame)).go() == "refused"
    assert [(s.run.status.state, s.run.status.job) for s in both] == [("finished", "before")] * 2


def test_a_driver_that_takes_its_own_approval_back_goes_no_further(both: Any) -> None:
    bank, shop = both
    reached: list[str] = []

    class TakenBack(Meets):
        def _run(self) -> None:
            federation = SimpleNamespace(tell=lambda _what, said: reached.append(said["doing"]))
            for epoch in ("epoch 1", "epoch 2"):
                self._tell(federation, epoch, 0.5)  # type: ignore[arg-type]
                approval.refuse(bank.folder, bank.run, "not today", by="hand")

    taken_back = TakenBack(bank, lambda _name, frame, _seconds: shop._receive(frame))
    assert taken_back.go() == "refused"
    assert reached == ["epoch 1"]
    assert bank.run.status.reason == "'bank' does not take part: not today"
    assert shop.run.status.reason == "'bank' refused"


def test_who_failed_is_told_where_to_look(both: Any) -> None:
    bank, shop = both

    class Fails(Meets):
        def _run(self) -> None:
            error = JobError("party 'shop': the table has changed")
            error.by = "shop"
            raise error

    assert Fails(bank, lambda _name, frame, _seconds: shop._receive(frame)).go() == "failed"
    assert bank.run.status.reason == "party 'shop': the table has changed"
    assert shop.run.status.reason == "JobError at 'shop'; `interlace logs` here says what"


def test_a_party_file_that_cannot_be_read_is_not_quoted_to_the_driver(both: Any) -> None:
    bank, shop = both

    class Broken(Meets):
        def _run(self) -> None:
            (shop.folder.root / "party.yaml").write_text("table: *private\n")
            super()._run()

    assert Broken(bank, lambda _name, frame, _seconds: shop._receive(frame)).go() == "failed"
    assert bank.run.status.reason == "the party file of 'shop' cannot be read"


def test_for_whom_it_waits_is_said_in_one_way_however_often_they_are_asked(
    process: Any, make_party: Make, contract: Contract, tables: dict[str, Any]
) -> None:
    tables["clinic"] = tables["shop"]
    three = contract.model_copy(update={"parties": ["shop", "bank", "clinic"]})
    sites = {n: process(make_party(n), three) for n in three.parties}
    bank = sites["bank"]
    said: list[str] = []
    driver = Driver(bank, lambda name, frame, _seconds: sites[name]._receive(frame))

    def note(_state: str, doing: str = "", **_more: Any) -> None:
        said.append(doing)
        if len(said) == 8:
            driver.patience = 0.0

    bank.note = note
    assert driver.go() == "paused"
    assert set(said) == {"for shop, bank and clinic to approve", ""}


def test_a_run_whose_end_a_partner_did_not_hear_says_so_until_it_is_told(both: Any) -> None:
    bank, shop = both

    class Deaf(Meets):
        def _run(self) -> None:
            super()._run()
            self.engine.patience = 0.0

            def carry(_name: str, _frame: bytes, _seconds: float) -> bytes:
                raise Unreachable("lost")

            self.engine.carry = carry

    assert Deaf(bank, lambda _name, frame, _seconds: shop._receive(frame)).go() == "finished"
    assert bank.run.status.state == "finished"
    assert "shop did not hear yet" in bank.run.status.reason
    assert shop.run.status.state == "running"


def test_what_needs_all_tables_in_one_place_is_left_out_and_not_begun(
    process: Any, make_party: Make, contract: Contract
) -> None:
    compared = {"compare": ["active_alone", "pooled", "mean_imputation"]}
    contract = Contract.model_validate(contract.model_dump() | compared)
    bank, shop = (
        process(make_party(n, approve=[{"drivers": ["bank"]}]), contract) for n in contract.parties
    )
    driver = Driver(bank, lambda _name, frame, _seconds: shop._receive(frame))
    doing: list[str] = []
    driver._tell = lambda _federation, what, _share: doing.append(what)  # type: ignore[method-assign]
    assert driver.go() == "finished"
    models = {m.name: m for m in Results.read(bank.run.path / "results.json").models}
    for name in ("pooled", "mean_imputation"):
        assert "only where one person holds them all" in str(models[name].skipped)
        assert not any(models[name].title in what for what in doing)
    assert models["active_alone"].fits
    assert any(models["active_alone"].title in what for what in doing)


def test_how_many_were_answered_for_is_written_by_one_thread_at_a_time(
    both: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver may ask for an answer again while the count of it is written."""
    shop = both[1]
    shop.contract = shop.contract.to_score(9, 0)
    shop.answering = SimpleNamespace(receive=lambda frame: frame, outcome=())
    party = shop._party = SimpleNamespace(progress=("", 0.0))
    party.boundary = SimpleNamespace(people=3, state=dict)
    writing: list[int] = []

    def slowly(_folder: object, _state: object) -> None:
        writing.append(1)
        time.sleep(0.2)
        writing.append(-1)

    monkeypatch.setattr(job, "write_state", slowly)
    with ThreadPoolExecutor() as threads:
        assert list(threads.map(shop._answered_to, [b"same", b"same"])) == [b"same", b"same"]
    assert writing == [1, -1]
