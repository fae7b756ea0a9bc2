"""The disclosure plan is an upper bound, and the boundary makes it one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from pydantic import ValidationError

from interlace import runner
from interlace.boundary import Boundary, Kind, Ledger, Slot
from interlace.engines import InProcess
from interlace.errors import JobError, PolicyError
from interlace.federation import Federation
from interlace.job.spec import Job
from interlace.methods import Method
from interlace.serve.batch import Outputs, Trained, outputs_in_batches
from interlace.sites import compare
from interlace.sites.contract import Contract
from interlace.sites.folder import PartyFolder
from interlace.sites.plan import Plan, plan_of

Make = Callable[..., PartyFolder]

METHODS: list[dict[str, Any]] = [
    {"name": "split", "epochs": 6},
    {"name": "fedcvt", "epochs": 4},
    {"name": "boosted_trees", "n_estimators": 4, "max_depth": 3},
    {"name": "scorecard", "bad": "yes", "max_iter": 8, "min_bin_rows": 5},
]


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m["name"])
def test_no_more_leaves_than_was_planned(
    method: dict[str, Any], make_party: Make, contract: Contract, tmp_path: Path
) -> None:
    fields = {**contract.model_dump(), "method": method, "seeds": [0]}
    contract = Contract.model_validate(fields)
    folders = {name: make_party(name) for name in contract.parties}
    files = {name: folder.read() for name, folder in folders.items()}
    plans = {name: plan_of(folder, contract) for name, folder in folders.items()}
    narrowed = {
        name: file.model_copy(update={"policy": plans[name].applied(file.policy)})
        for name, file in files.items()
    }
    job = Job(
        name="real",
        parties=narrowed,
        active="bank",
        method=contract.method,
        compare="none",
        seeds=contract.seeds,
    )
    runner.run(job, tmp_path / "run")  # within the plans, else the boundaries stop it
    for name, plan in plans.items():
        ledger = Ledger(tmp_path / "run" / "parties" / name / "ledger.sqlite")
        held = compare.against_plan(plan, ledger, name)
        assert all(h.within for h in held)
        assert any(h.bytes for h in held)
        assert {h.kind for h in held if h.messages} <= set(plan.leaves)
        large = max(held, key=lambda h: h.bytes)
        assert large.planned_bytes < 5 * large.bytes + 200_000  # a bound that says something


def test_an_arbiter_plans_without_a_table_and_is_left_out_where_people_are_scored(
    make_party: Make, contract: Contract, tables: dict[str, pl.DataFrame]
) -> None:
    tables["notary"] = tables["shop"]  # which it has for other runs
    method = {"name": "logistic", "protocol": "arbiter", "sigmoid": "taylor", "max_iter": 3}
    changes = {"method": method, "parties": ["bank", "shop", "notary"], "arbiter": "notary"}
    contract = Contract.model_validate({**contract.model_dump(), **changes})
    notary = plan_of(make_party("notary"), contract)
    assert {Kind.CIPHERTEXT, Kind.CONTROL} <= set(notary.leaves)
    assert Kind.BLINDED_IDS not in notary.leaves
    assert not notary.capped  # it knows of nobody's table
    assert notary.epsilon == 0
    assert Kind.CIPHERTEXT in plan_of(make_party("shop"), contract).leaves
    scores = contract.to_score(50, 0, batch=40)
    assert scores.parties == ["bank", "shop"]
    assert plan_of(make_party("shop"), scores).people == 100
    with pytest.raises(ValidationError, match="not among those who answer"):
        Contract.model_validate({**contract.model_dump(), "arbiter": "bank"})


def test_so_many_people_are_scored_and_no_more(
    make_party: Make, contract: Contract, tmp_path: Path
) -> None:
    fields = {"method": {"name": "split", "epochs": 2}, "seeds": [0]}
    contract = Contract.model_validate({**contract.model_dump(), **fields})
    folders = {name: make_party(name) for name in contract.parties}
    files = {name: folder.read() for name, folder in folders.items()}
    job = Job(name="real", parties=files, active="bank", method=contract.method, compare="none")
    runner.run(job.model_copy(update={"seeds": [0]}), tmp_path / "run")
    trained = Trained.read(tmp_path / "run")
    federation = trained.simulate({name: str(file.table) for name, file in files.items()})
    people = trained.shared(federation)
    model = trained.model("split", federation)
    plans = {n: plan_of(f, contract.to_score(6, 0)) for n, f in folders.items()}
    assert isinstance(federation.engine, InProcess)
    for name, party in federation.engine.parties.items():
        party.boundary.policy = plans[name].applied(files[name].policy)
    for one in people[:4]:
        model.outputs(federation.view(np.array([one])))
    model.outputs(federation.view(people[4:6]))
    with pytest.raises(PolicyError, match="at most 6 people in a run"):
        model.outputs(federation.view(people[:1]))
    assert "row selection" in plans["bank"].without_claim  # it says who is scored
    leaves = plans["shop"].leaves
    assert set(leaves) == {Kind.EMBEDDING, Kind.CONTROL}
    sent = federation.engine.parties["shop"].boundary.sent_of[Kind.EMBEDDING]
    assert sent <= leaves[Kind.EMBEDDING].bytes < 5 * sent + 200_000


@pytest.mark.parametrize("method", METHODS[::2], ids=lambda m: m["name"])
def test_a_table_is_matched_and_scored_within_its_plan(
    method: dict[str, Any], make_party: Make, contract: Contract, tmp_path: Path
) -> None:
    contract = Contract.model_validate({**contract.model_dump(), "method": method})
    folders = {name: make_party(name) for name in contract.parties}
    files = {name: folder.read() for name, folder in folders.items()}
    job = Job(
        name="real", parties=files, active="bank", method=contract.method, compare="none", seeds=[0]
    )
    runner.run(job, tmp_path / "run")
    new = {}
    for (name, file), people in zip(files.items(), (200, 150), strict=True):  # 150 are shared
        table = pl.concat([pl.read_csv(file.table)] * 3)[:people]
        new[name] = tmp_path / f"new-{name}.csv"
        table.with_columns(id=pl.Series([f"N{i:04}" for i in range(people)])).write_csv(new[name])
    scores = contract.to_score(200, 0, batch=40, mark="0a")
    plans = {name: plan_of(folder, scores) for name, folder in folders.items()}
    trained = Trained.read(tmp_path / "run")
    federation = trained.simulate(new)
    assert isinstance(federation.engine, InProcess)
    parties = federation.engine.parties
    for name, party in parties.items():
        party.record_in(Ledger(), seed=None)
        party.boundary.policy = plans[name].applied(files[name].policy)
    told: list[int] = []

    def joint(method: Method, view: Federation) -> Outputs:
        return outputs_in_batches(method, view, 40, tmp_path / "kept", told.append)

    table = trained.scores(federation, joint)
    assert table["model"].to_list() == ["joint"] * 150 + ["none"] * 50
    assert np.diff([*told, 150]).tolist() == [38, 38, 37, 37]
    for name, plan in plans.items():
        held = compare.against_plan(plan, parties[name].boundary.ledger, name)
        assert all(h.within for h in held)
        left = {h.kind for h in held if h.messages}
        assert Kind.BLINDED_IDS in left
        assert left <= set(plan.leaves)
        for h in held:  # a bound that says something
            assert h.kind is Kind.BLINDED_IDS or h.planned_bytes < 5 * h.bytes + 200_000


def test_privacy_where_a_table_is_scored_is_of_each_person_and_held(
    make_party: Make, contract: Contract
) -> None:
    noise = [{"clip": {"norm": 1.0}}, {"gaussian": {"sigma": 20.0}}]
    shop = make_party("shop", guards={"embedding": noise})
    few, many = (plan_of(shop, contract.to_score(n, 0, batch=40)) for n in (50, 5000))
    online = plan_of(shop, contract.to_score(50, 0))
    assert few.epsilon == many.epsilon
    assert few.epsilon is not None
    assert online.epsilon is not None
    assert 0 < few.epsilon < online.epsilon
    boundary = Boundary("shop", many.applied(shop.read().policy), Ledger(), seed=0)

    def send() -> None:
        boundary.about(torch.arange(40))
        slot = Slot("answer", Kind.EMBEDDING)
        boundary.release("split-0", "forward", "bank", [slot], [torch.zeros(40, 4)])

    send()
    send()  # for a run that has lost the first
    with pytest.raises(PolicyError, match="at most epsilon"):
        send()


def test_people_who_cannot_be_counted_are_not_scored_over_sites(
    make_party: Make, contract: Contract, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A method that does not say whom its answers are about."""
    monkeypatch.setattr(Boundary, "about", lambda _self, _rows: None)
    with pytest.raises(JobError, match="'shop' cannot count the people"):
        plan_of(make_party("shop"), contract.to_score(6, 0))


def test_what_was_not_planned_does_not_leave(make_party: Make, contract: Contract) -> None:
    shop = make_party("shop")
    file, plan = shop.read(), plan_of(shop, contract)
    assert Kind.GRADIENT not in plan.leaves
    boundary = Boundary("shop", plan.applied(file.policy), Ledger(), seed=0)

    def send(kind: Kind, rows: int) -> None:
        value = torch.zeros(rows, 64)
        boundary.release("split-0", "forward", "bank", [Slot("answer", kind)], [value])

    with pytest.raises(PolicyError, match="does not let gradient leave"):
        send(Kind.GRADIENT, 10)
    many = plan.leaves[Kind.EMBEDDING].bytes // (64 * 4) + 1
    send(Kind.EMBEDDING, 10)
    with pytest.raises(PolicyError, match="disclosure plan"):
        send(Kind.EMBEDDING, many)


def test_a_plan_never_widens_a_policy(make_party: Make, contract: Contract) -> None:
    file = make_party("shop", max_bytes_of={"embedding": 5}, allow_also=["model weights"]).read()
    plan = Plan(run="r", party="shop", leaves={}).applied(file.policy)
    assert not plan.allowed
    with_embeddings = plan_of(make_party("shop"), contract).applied(file.policy)
    assert with_embeddings.max_bytes_of[Kind.EMBEDDING] == 5
    assert Kind.MODEL_WEIGHTS not in with_embeddings.allowed


def test_a_method_that_needs_more_than_the_policy_allows_has_no_plan(
    make_party: Make, contract: Contract
) -> None:
    shop = make_party("shop", allow=["control", "blinded ids"])
    with pytest.raises(PolicyError, match="does not let embedding leave"):
        plan_of(shop, contract)


def test_privacy_is_planned_where_guards_claim_it(make_party: Make, contract: Contract) -> None:
    noise = [{"clip": {"norm": 1.0}}, {"gaussian": {"sigma": 20.0}}]
    bare = plan_of(make_party("shop"), contract)
    assert bare.epsilon is None
    assert "embedding" in bare.without_claim
    guarded = plan_of(make_party("shop", guards={"embedding": noise}), contract)
    assert guarded.epsilon is not None
    assert guarded.guards[Kind.EMBEDDING].startswith("clip")
    longer = contract.model_copy(
        update={"method": contract.method.model_copy(update={"epochs": 40})}
    )
    more = plan_of(make_party("shop", guards={"embedding": noise}), longer)
    assert more.epsilon is not None
    assert more.epsilon > guarded.epsilon > 0
    assert more.short == []
    few = [{"clip": {"norm": 1.0}}, {"gaussian": {"epsilon": 8.0, "releases": 20}}]
    (short,) = plan_of(make_party("shop", guards={"embedding": few}), longer).short
    assert "`releases` of its guard is 20" in short


# -- ledgers of two parties --------------------------------------------------------------------


def test_two_ledgers_of_one_run_are_alike_until_one_is_changed(
    make_party: Make, contract: Contract, tmp_path: Path
) -> None:
    files = {name: make_party(name).read() for name in contract.parties}
    job = Job(
        name="r", parties=files, active="bank", method=contract.method, compare="none", seeds=[0]
    )
    runner.run(job, tmp_path / "run")
    ledgers = {n: Ledger(tmp_path / "run" / "parties" / n / "ledger.sqlite") for n in files}
    mine = list(compare.passed_between(ledgers["bank"].entries(), "bank", "shop"))
    rows = compare.export(
        compare.passed_between(ledgers["shop"].entries(), "bank", "shop"), tmp_path / "x.csv"
    )
    theirs = compare.exported(tmp_path / "x.csv")
    assert rows == len(theirs) == len(mine)
    assert compare.differences(mine, theirs) == []
    missing = compare.differences(mine, theirs[:-1])
    assert [(d.mine - d.theirs) for d in missing] == [1]
    assert missing[0].what == theirs[-1]
    larger = theirs[0]._replace(bytes=theirs[0].bytes + 1)
    assert len(compare.differences(mine, [larger, *theirs[1:]])) == 2
