"""What a site's job process makes of its party, again and again: its limits outlast the process."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import yaml

from interlace.boundary import Kind, Ledger, Slot
from interlace.engines.sites import Answering, Gate, Sites
from interlace.errors import PolicyError, Refused
from interlace.party import RunSide, State, read_state, write_state
from interlace.sites.account import Account
from interlace.sites.approval import Approval
from interlace.sites.contract import Contract
from interlace.sites.folder import PartyFolder
from interlace.sites.folder import Site as Membership
from interlace.sites.job import Driver, Site
from interlace.sites.plan import Leaving, Plan

CONTRACT = Contract(
    name="small",
    parties=["bank", "shop"],
    active="bank",
    method={"name": "split"},  # type: ignore[arg-type]
    compare="none",
    seeds=[0, 1],
)
EMBEDDING = [Slot("answer", Kind.EMBEDDING)]
SIZE = 10_000  # bytes that the plan lets out


def site(root: Path, contract: Contract = CONTRACT, **policy: Any) -> Site:
    """A new process of the shop's site, whose run is approved."""
    folder = PartyFolder(root, Membership(name="shop")).write(Membership(name="shop"))
    (root / "t.csv").write_text("id,x\na,1\nb,2\n")
    file = {"table": "t.csv", "policy": policy}
    (root / "party.yaml").write_text(yaml.safe_dump(file))
    made = Site()
    made.folder, made.contract, made.job = folder, contract, "job"
    made.submitter, made.answering = "bank", cast(Answering, SimpleNamespace(outcome=("finished",)))
    made.run = folder.run(contract.run)
    made.run.keep(contract)
    leaves = {kind: Leaving(messages=9, bytes=SIZE) for kind in (Kind.EMBEDDING, Kind.CONTROL)}
    plan = Plan(run=contract.run, party="shop", leaves=leaves, epsilon=1.0)
    (made.run.path / "plan.json").write_text(plan.model_dump_json())
    said = Approval(
        run=contract.run,
        digest=contract.digest,
        party="shop",
        answer="approved",
        by="hand",
        time="2026-01-01T00:00:00+00:00",
        certificate="",
    )
    (made.run.path / "approval.json").write_text(said.model_dump_json())
    return made


def release(party: Any, rows: int = 100) -> torch.Tensor:
    """About 4,000 bytes leave."""
    values = [torch.zeros(rows, 10)]
    party.boundary.about(torch.arange(rows))
    message = party.boundary.release("s", "forward", "bank", EMBEDDING, values)
    value: torch.Tensor = message.parts[0].value
    return value


def test_all_processes_of_a_run_together_send_no_more_than_the_plan_twice(tmp_path: Path) -> None:
    for left in (2, 2, 0):
        party = site(tmp_path).party()
        for _ in range(left):
            release(party)
        with pytest.raises(PolicyError, match="embedding leave"):
            release(party)
        party.boundary.ledger.close()


def test_what_threads_note_of_a_run_at_once_is_kept(tmp_path: Path) -> None:
    """Large messages to several partners are noted by a thread each."""
    one = site(tmp_path)
    with ThreadPoolExecutor() as threads:
        noted = [threads.submit(one.note, "running", f"sending {n}") for n in range(40)]
    assert [note.exception() for note in noted] == [None] * 40
    assert one.run.status.doing.startswith("sending")


def test_a_run_that_goes_on_is_charged_again_and_one_that_begins_is_not(tmp_path: Path) -> None:
    budget = {"epsilon": 1.5}
    first = site(tmp_path, budget=budget)
    release(first.party())
    first.stop()
    Account(tmp_path).charge(CONTRACT.run, 1.0, 0.0)  # as approved
    with pytest.raises(Refused, match="does not go on"):
        site(tmp_path, budget=budget).party()


def test_who_is_asked_about_again_and_again_tells_no_more_than_was_planned(tmp_path: Path) -> None:
    guards = {"embedding": [{"clip": {"norm": 1.0}}, {"laplace": {"scale": 20.0}}]}
    party = site(tmp_path, guards=guards).party()
    each = 2 * 10**0.5 / 20  # of a row of ten numbers
    for training in (0, 1):  # the plan's epsilon is 1.0 for both
        party.train_anew(training)
        release(party, 2)
    release(party, 2)
    assert party.boundary.epsilon == pytest.approx(3 * each)
    with pytest.raises(PolicyError, match="at most epsilon 1 in a run"):
        release(party, 2)


def test_who_hears_nothing_leaves_and_the_run_can_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    left = site(tmp_path, idle_hours=0.5)
    assert left._most_silence() == 1800
    left.answering = cast(Answering, SimpleNamespace(outcome=()))
    release(left.party())
    left._leave()
    status = left.run.status
    assert (status.state, codes) == ("paused", [1])
    assert "'bank' has said nothing for long (`idle_hours`)" in status.reason
    assert Ledger(left.run.ledger).sent_by("shop"), "nothing waits to be written"


def test_the_others_hear_who_refused_and_not_why(tmp_path: Path) -> None:
    class Refusing(Driver):
        def __init__(self, error: Exception) -> None:
            self.error = error
            self.engine = cast(Sites, SimpleNamespace(joined=[]))
            self.site = cast(Site, SimpleNamespace(folder=SimpleNamespace(name="bank")))

        def _meet(self) -> None:
            raise self.error

    secret = "at most 7 people at once (`max_rows`)"
    for error, state in ((Refused(secret), "refused"), (PolicyError(secret), "failed")):
        error.by = "shop"
        said = Refusing(error)._tried()
        assert said[0] == state
        assert secret in said[1]
        assert "7" not in said[2]
        assert "'shop'" in said[2]


def test_a_policy_that_was_narrowed_since_the_approval_holds(tmp_path: Path) -> None:
    site(tmp_path).party()
    with pytest.raises(Refused, match=r"does not train with 'bank'"):
        site(tmp_path, partners=["clinic"]).party()


def test_no_noise_comes_twice_and_networks_begin_alike(tmp_path: Path) -> None:
    guards = {"embedding": [{"clip": {"norm": 1.0}}, {"gaussian": {"sigma": 20.0}}]}
    drawn, kept = [], []
    for _process in range(2):
        party = site(tmp_path, guards=guards).party()
        party.train_anew(0)
        kept.append(party.secret)
        before = party.boundary.state()
        drawn.append(release(party, 2))
        party.boundary.load_state(before)
        drawn.append(release(party, 2))
    assert kept[0] == kept[1]
    assert len({tuple(noise.flatten().tolist()) for noise in drawn}) == 4
    (account,) = party.boundary.accounts().values()
    assert account["releases"] == 2  # a checkpoint takes none back


def test_a_driver_begins_no_more_trainings_than_were_agreed(tmp_path: Path) -> None:
    side = RunSide(site(tmp_path).party(), "bank")
    for _ in range(3):  # two seeds, and the clients' agreement in a horizontal federation
        side.train({"seed": 0})
    with pytest.raises(Refused, match="all trainings"):
        side.train({"seed": 0})


def test_a_stop_is_heeded_at_once(tmp_path: Path) -> None:
    stopped = site(tmp_path)
    stopped._gate, stopped._looked = Gate("approved"), float("inf")
    stopped._deciding = threading.Lock()
    assert stopped.gate().state == "approved"
    stopped.folder.stop_file.touch()
    assert stopped.gate().state == "refused"


def test_what_does_not_read_as_in_training_is_in_the_partys_own_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site(tmp_path).party()
    scoring = site(tmp_path, CONTRACT.to_score(10, 0))
    (tmp_path / "t.csv").write_text("id,x\na,1\nb,?x\n")
    scoring.party()
    (said,) = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert said.startswith("shop: 1 of 2 values of 'x' do not read as numbers")


def test_who_is_answered_by_a_model_does_not_write_it_anew(tmp_path: Path) -> None:
    trained = site(tmp_path).party().path("models", "split-0")
    write_state(trained, State({"weight": torch.ones(2)}, {}))
    scoring = site(tmp_path, CONTRACT.to_score(10, 0)).party()
    own = scoring.path("models", "split-0")
    assert read_state(own).tensors["weight"].tolist() == [1.0, 1.0]
    write_state(own, State({"weight": torch.zeros(2)}, {}))
    assert read_state(trained).tensors["weight"].tolist() == [1.0, 1.0]
    with pytest.raises(Refused, match="all trainings"):
        RunSide(scoring, "bank").train({"seed": 0})
