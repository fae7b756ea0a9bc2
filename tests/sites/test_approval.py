"""Nothing runs without a signed word, and the policy has the last one."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from itertools import count
from typing import Any

import pytest

import interlace
from interlace.boundary import Kind, Ledger, Message
from interlace.boundary.message import Part
from interlace.errors import InterlaceError, JobError, Refused
from interlace.sites import approval
from interlace.sites import folder as folders
from interlace.sites.account import Account
from interlace.sites.approval import Approval, Decision
from interlace.sites.contract import Contract
from interlace.sites.folder import PartyFolder, RunFolder, Status
from interlace.sites.limits import stops
from interlace.sites.plan import Leaving, Plan, rules_of

Make = Callable[..., PartyFolder]


def decide(folder: PartyFolder, contract: Contract, submitter: str = "bank") -> Decision:
    return approval.decide(folder, contract, submitter)


@pytest.fixture(autouse=True)
def plans(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans that are made up, for all but the tests that are about plans: rehearsals take long."""

    def made_up(folder: PartyFolder, contract: Contract) -> Plan:
        leaves = {Kind.EMBEDDING: Leaving(messages=10, bytes=5_000_000)}
        return Plan(run=contract.run, party=folder.name, leaves=leaves, without_claim=["embedding"])

    if request.node.get_closest_marker("usefixtures") is None:
        monkeypatch.setattr(approval, "plan_of", made_up)


rehearsed = pytest.mark.usefixtures("plans")  # for real


def test_without_a_rule_a_run_waits_and_a_hand_decides(
    make_party: Make, contract: Contract, root: Any
) -> None:
    shop = make_party("shop")
    first = decide(shop, contract)
    assert (first.state, first.approval) == ("waiting", None)
    plan = approval.plan_kept(shop.find(None))
    assert plan is not None
    run = shop.find(None)
    approval.approve(shop, run)
    second = decide(shop, contract)
    assert second.state == "approved"
    assert approval.plan_kept(shop.find(None)) == plan
    assert second.approval is not None
    assert second.approval.by == "hand"
    second.approval.verify(contract, root.pem)


def test_a_refusal_is_signed_and_says_why(make_party: Make, contract: Contract, root: Any) -> None:
    shop = make_party("shop")
    decide(shop, contract)
    approval.refuse(shop, shop.find(None), "not before the audit", by="hand")
    said = decide(shop, contract)
    assert (said.state, said.reason) == ("refused", "not before the audit")
    assert said.approval is not None
    said.approval.verify(contract, root.pem)
    approval.approve(shop, shop.find(None))  # it may change its mind
    assert decide(shop, contract).state == "approved"


RULE = {"drivers": ["bank"], "methods": ["split"], "purposes": ["credit"], "max_bytes": 10**9}


def test_a_standing_rule_approves_what_keeps_to_it(make_party: Make, contract: Contract) -> None:
    said = decide(make_party("shop", approve=[RULE]), contract)
    assert said.state == "approved"
    assert said.approval is not None
    assert said.approval.by == "standing rule"


@pytest.mark.parametrize(
    "narrower",
    [
        {"drivers": ["clinic"]},
        {"methods": ["agg"]},
        {"purposes": ["research"]},
        {"max_bytes": 1000},
        {"kinds": ["control"]},
    ],
)
def test_a_rule_approves_nothing_beyond_it(
    narrower: dict[str, Any], make_party: Make, contract: Contract
) -> None:
    assert decide(make_party("shop", approve=[{**RULE, **narrower}]), contract).state == "waiting"


def test_a_rule_for_trainings_covers_no_scores(make_party: Make, contract: Contract) -> None:
    shop = make_party("shop", approve=[RULE])
    assert decide(shop, contract).state == "approved"
    scores = contract.to_score(100, contract.seeds[0])
    assert scores.run != contract.run
    assert "not finished" in decide(shop, scores).reason
    shop.run(contract.run).note(Status(state="finished"))
    scores = contract.to_score(101, contract.seeds[0])
    assert decide(shop, scores).state == "waiting"
    make_party("shop", approve=[{**RULE, "max_people": 101}])
    assert decide(shop, scores).state == "approved"
    assert decide(shop, contract.to_score(102, contract.seeds[0])).state == "waiting"
    other = scores.model_copy(update={"purpose": "research"})
    assert "its words are not those" in decide(shop, other).reason
    nothing = {"scores": {"run": "nothing", "people": 1}}
    unknown = Contract.model_validate(scores.model_dump() | nothing)
    assert "has had no run 'nothing'" in decide(shop, unknown).reason


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ({"methods": ["agg"]}, "takes no part in 'split'"),
        ({"partners": ["clinic"]}, "does not train with 'bank'"),
        ({"purposes": ["research"]}, "is not for 'credit'"),
        ({"budget": {"epsilon": 1.0}}, "claims no privacy"),
    ],
)
def test_no_hand_puts_a_policy_aside(
    policy: dict[str, Any], said: str, make_party: Make, contract: Contract
) -> None:
    shop = make_party("shop", approve=[{"drivers": ["bank"]}], **policy)
    answer = decide(shop, contract)
    assert answer.state != "approved"
    assert said in answer.reason
    with pytest.raises(InterlaceError):
        approval.approve(shop, shop.find(None))


@rehearsed
def test_a_party_whose_table_is_away_waits_and_quotes_no_path(
    make_party: Make, contract: Contract, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approval, "TRY_AGAIN", 0.0)
    shop = make_party("shop", approve=[{"drivers": ["bank"]}])
    table = (shop.root / "table.csv").rename(shop.root / "secret.csv")
    said = decide(shop, contract)
    assert said.state == "waiting"
    assert "csv" not in said.reason
    table.rename(shop.root / "table.csv")
    assert decide(shop, contract).state == "approved"


@rehearsed
def test_what_the_policy_keeps_back_cannot_be_approved(
    make_party: Make, contract: Contract
) -> None:
    shop = make_party("shop", approve=[{"drivers": ["bank"]}], allow=["control", "blinded ids"])
    said = decide(shop, contract)
    assert said.state == "refused"
    assert "does not let embedding leave" in said.reason
    with pytest.raises(InterlaceError, match="does not let embedding leave"):
        approval.approve(shop, shop.find(None))


def test_another_version_of_the_package_is_refused(make_party: Make, contract: Contract) -> None:
    old = contract.model_copy(update={"version": "0.0.1"})
    said = decide(make_party("shop", approve=[{"drivers": ["bank"]}]), old)
    assert said.state == "refused"
    assert f"'shop' runs {interlace.__version__}" in said.reason


def test_what_was_approved_goes_on_with_no_other_version_of_the_package(
    make_party: Make, contract: Contract, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = make_party("shop", approve=[{"drivers": ["bank"]}])
    assert decide(shop, contract).state == "approved"
    with monkeypatch.context() as upgraded:
        upgraded.setattr(interlace, "__version__", "99.0")
        said = decide(shop, contract)
    assert (said.state, said.approval) == ("refused", None)
    assert "'shop' runs 99.0; install the same version at all sites" in said.reason
    assert decide(shop, contract).state == "approved"


def test_a_run_of_others_and_one_that_another_submitted_are_refused(
    make_party: Make, contract: Contract
) -> None:
    shop = make_party("shop", approve=[{"drivers": ["bank"]}])
    theirs = contract.model_copy(update={"parties": ["bank", "clinic"]})
    assert "not among its parties" in decide(shop, theirs).reason
    stranger = decide(shop, contract, submitter="shop")
    assert "'shop' submitted it" in stranger.reason
    assert stranger.approval is None  # it would stand in the way of the one who may
    assert decide(shop, contract).state == "approved"
    assert decide(shop, contract, submitter="shop").state == "refused"


def test_a_party_that_has_stopped_refuses_and_signs_nothing(
    make_party: Make, contract: Contract
) -> None:
    shop = make_party("shop", approve=[{"drivers": ["bank"]}])
    shop.stop_file.touch()
    said = decide(shop, contract)
    assert (said.state, said.approval) == ("refused", None)
    shop.stop_file.unlink()
    assert decide(shop, contract).state == "approved"


def test_so_many_runs_a_day(make_party: Make, contract: Contract) -> None:
    shop = make_party("shop", approve=[{"drivers": ["bank"]}], runs_per_day=1)
    assert decide(shop, contract).state == "approved"
    assert decide(shop, contract).state == "approved"  # the same run is asked about many times
    second = contract.model_copy(update={"name": "second"})
    assert "no more runs today" in decide(shop, second).reason
    yesterday = time.time() - 25 * 3600
    os.utime(shop.run(contract.run).path / "approval.json", (yesterday, yesterday))
    third = contract.model_copy(update={"name": "third"})
    assert decide(shop, third).state == "approved"


def test_an_approval_serves_no_other_contract_of_the_same_name(
    make_party: Make, contract: Contract
) -> None:
    """A run's name has eight digits of the digest: two contracts of one name take a second."""
    shop = make_party("shop", approve=[RULE])
    seen: dict[str, tuple[str, str]] = {}
    for number in count():
        for method in ("split", "boosted_trees"):
            text = contract.text.replace('"name":"split"', f'"name":"{method}"')
            text = text.replace('"description":""', f'"description":"{number}"')
            start = blake2b(text.encode(), digest_size=32).hexdigest()[:8]
            twin = seen.setdefault(start, (method, text))
            if twin[0] != method:
                break
        else:
            continue
        break
    mild, wild = sorted(map(Contract.read, (twin[1], text)), key=lambda c: c.method.name != "split")
    assert (mild.run, mild.method.name) == (wild.run, "split")
    assert decide(shop, mild).state == "approved"
    with pytest.raises(Refused, match="another contract"):
        decide(shop, wild)


def test_a_word_is_the_partys_own_and_an_approval(
    make_party: Make, contract: Contract, root: Any
) -> None:
    shop, bank = (make_party(name, approve=[{"drivers": ["bank"]}]) for name in ("shop", "bank"))
    word = decide(shop, contract).approval
    assert word is not None
    sent = word.model_dump_json()
    assert approval.approved_by("shop", sent, contract, root.pem) == word
    with pytest.raises(Refused, match="'bank' did not sign"):
        approval.approved_by("bank", sent, contract, root.pem)
    decide(bank, contract)
    no = approval.refuse(bank, bank.find(None), "no", by="hand").approval
    assert no is not None
    with pytest.raises(Refused, match="has refused"):
        approval.approved_by("bank", no.model_dump_json(), contract, root.pem)


def test_a_run_that_goes_on_is_charged_again(make_party: Make, contract: Contract) -> None:
    shop = make_party("shop", approve=[{"drivers": ["bank"]}], budget={"epsilon": 2.5})
    run = shop.run(contract.run)
    run.keep(contract)
    policy = shop.read().policy
    plan = Plan(run=run.name, party="shop", leaves={}, epsilon=1.0, rules=rules_of(policy))
    (run.path / "plan.json").write_text(plan.model_dump_json())
    approval.approve(shop, run)
    approval.approve(shop, run)  # the same run
    assert Account(shop.root).spent().epsilon == 1.0
    approval.charge_again(shop, run, policy, plan)
    with pytest.raises(Refused, match="beyond the `budget`"):
        approval.charge_again(shop, run, policy, plan)
    assert Account(shop.root).spent().epsilon == 2.0


NOISE = [{"clip": {"norm": 1.0}}, {"gaussian": {"sigma": 20.0}}]


@rehearsed
def test_the_privacy_budget_lasts_over_runs(make_party: Make, contract: Contract) -> None:
    policy = {"approve": [{"drivers": ["bank"]}], "guards": {"embedding": NOISE}}
    shop = make_party("shop", **policy)
    decide(shop, contract)
    plan = approval.plan_kept(shop.find(None))
    assert plan is not None
    assert plan.epsilon is not None
    assert plan.epsilon > 0
    names = iter(("first", "second", "third"))

    def next_run() -> Contract:
        return contract.model_copy(update={"name": next(names)})

    budget = {"epsilon": 1.5 * plan.epsilon, "delta": 1e-3}
    shop = make_party("shop", budget=budget, **policy)
    (shop.root / "account.sqlite").unlink()
    assert decide(shop, next_run()).state == "approved"
    assert Account(shop.root).spent().epsilon == pytest.approx(plan.epsilon)
    over = decide(shop, next_run())
    assert over.state == "refused"
    assert "privacy spent" in over.reason
    assert not any(map(str.isdigit, over.reason))  # by runs with others, which are not its affair
    assert Account(shop.root).spent().epsilon == pytest.approx(plan.epsilon)


# -- where the policy would stop a run ---------------------------------------------------------


@pytest.mark.parametrize(
    ("bound", "doubts"),
    [
        ({"max_bytes": 400_000}, 1),
        ({"max_bytes": 4_000_000}, 1),
        ({"max_bytes": 6_000_000}, 0),
        ({"max_bytes_of": {"embedding": 1000}}, 1),
        ({"max_bytes_of": {"gradient": 0}}, 0),
        ({"max_requests": 9}, 1),
        ({"max_epsilon": 1.0}, 1),
    ],
)
def test_what_the_policy_may_stop_is_said_and_is_for_a_hand(
    bound: dict[str, Any],
    doubts: int,
    make_party: Make,
    contract: Contract,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def made_up(folder: PartyFolder, contract: Contract) -> Plan:
        leaves = {Kind.EMBEDDING: Leaving(messages=10, bytes=5_000_000)}
        return Plan(run=contract.run, party=folder.name, leaves=leaves, epsilon=2.0)

    monkeypatch.setattr(approval, "plan_of", made_up)
    shop = make_party("shop", **bound)
    assert decide(shop, contract).state == "waiting"
    found = stops(shop.read().policy, made_up(shop, contract), contract)
    assert [stop.setting for stop in found] == [*bound][:doubts]
    # How many people are shared, or how soon a training stops, nobody knows beforehand.
    assert not any(stop.surely for stop in found)
    approval.approve(shop, shop.find(None))
    assert decide(shop, contract).state == "approved"


@rehearsed
def test_a_bound_on_single_answers_is_tried_before_anybody_approves(
    make_party: Make, contract: Contract
) -> None:
    shop = make_party("shop", smallest_group=50)
    assert decide(shop, contract).state == "waiting"  # with others shared it might pass
    plan = approval.plan_kept(shop.find(None))
    assert plan is not None
    assert "does not answer 'forward' for 16 people at once" in plan.stopped
    (stop,) = stops(shop.read().policy, plan, contract)
    assert (stop.setting, stop.surely) == ("smallest_group", False)
    assert "a larger `batch_size`" in stop.way_out
    run = shop.find(None)
    make_party("shop", smallest_group=2)
    approval.approve(shop, run)  # by a plan under the policy as it is now
    again = approval.plan_kept(run)
    assert again is not None
    assert again.stopped == ""
    logistic = {"name": "logistic", "max_iter": 2, "encryption": "rlwe-strict"}
    other = Contract.model_validate({**contract.model_dump(), "method": logistic})
    make_party("shop", encryption=["none"])
    said = decide(shop, other)
    assert said.state == "refused"
    assert "`encryption`); set an `encryption` of the method" in said.reason
    assert not any(map(str.isdigit, said.reason))  # how large its table is, is not told
    with pytest.raises(Refused, match="nobody can approve"):
        approval.approve(shop, shop.find(other.run))


# -- signatures -------------------------------------------------------------------------------


@pytest.fixture
def signed(make_party: Make, contract: Contract) -> Approval:
    said = decide(make_party("shop", approve=[{"drivers": ["bank"]}]), contract).approval
    assert said is not None
    return said


@pytest.mark.parametrize(
    "change",
    [
        {"answer": "refused"},
        {"time": "2020-01-01T00:00:00+00:00"},
        {"reason": "gladly"},
        {"by": "hand"},
        {"signature": "00"},
        {"signature": "no hexadecimal"},
    ],
)
def test_an_approval_that_was_changed_does_not_stand(
    change: dict[str, str], signed: Approval, contract: Contract, root: Any
) -> None:
    signed.verify(contract, root.pem)
    with pytest.raises(Refused, match="is not signed by it"):
        signed.model_copy(update=change).verify(contract, root.pem)


def test_an_approval_is_of_one_contract_by_one_party(
    signed: Approval, contract: Contract, root: Any
) -> None:
    with pytest.raises(Refused, match="another contract"):
        signed.verify(contract.model_copy(update={"purpose": "marketing"}), root.pem)
    for name, said in (("bank", "came for 'bank' names 'shop'"), ("clinic", "nobody that")):
        with pytest.raises(Refused, match=said):
            signed.model_copy(update={"party": name}).verify(contract, root.pem)


def test_certificates_of_another_federation_and_old_ones_do_not_stand(
    make_party: Make, contract: Contract, root: Any
) -> None:
    other = type(root)()
    said = decide(make_party("shop", by=other, approve=[{"drivers": ["bank"]}]), contract).approval
    assert said is not None
    with pytest.raises(Refused, match="not of this federation"):
        said.verify(contract, root.pem)
    said.verify(contract, other.pem)
    shop = make_party("shop", days=-2, approve=[{"drivers": ["bank"]}])
    old = approval.refuse(shop, shop.find(None), "", by="hand").approval
    assert old is not None
    with pytest.raises(Refused, match="not valid today"):
        old.verify(contract, root.pem)


def test_what_is_no_approval_is_refused() -> None:
    for text in ("", "{}", '{"run": 1}', "x" * 10_000_000):
        with pytest.raises(Refused, match="not an approval"):
            Approval.read(text)


def test_a_rule_for_so_many_runs_holds_where_two_are_decided_at_once(
    make_party: Make, contract: Contract, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = make_party("shop", approve=[{**RULE, "runs_per_day": 1}])
    alone = approval._one_at_a_time

    @contextmanager
    def after_another(folder: PartyFolder) -> Iterator[None]:
        monkeypatch.setattr(approval, "_one_at_a_time", alone)
        assert decide(shop, contract).state == "approved"
        with alone(folder):
            yield

    monkeypatch.setattr(approval, "_one_at_a_time", after_another)
    assert decide(shop, contract.model_copy(update={"name": "second"})).state == "waiting"


def test_no_rule_approves_what_somebody_refused_while_it_was_rehearsed(
    make_party: Make, contract: Contract, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = make_party("shop", approve=[RULE])
    rehearsed = approval.plan_of

    def refused_meanwhile(folder: PartyFolder, contract: Contract) -> Plan:
        approval.refuse(folder, folder.run(contract.run), "not today", by="hand")
        return rehearsed(folder, contract)

    monkeypatch.setattr(approval, "plan_of", refused_meanwhile)
    said = decide(shop, contract)
    assert (said.state, said.reason) == ("refused", "not today")


def test_a_plan_without_a_limit_is_under_no_rules_bytes(
    make_party: Make, contract: Contract, monkeypatch: pytest.MonkeyPatch
) -> None:
    def blind(folder: PartyFolder, contract: Contract) -> Plan:
        leaves = {Kind.CIPHERTEXT: Leaving(messages=1, bytes=1)}
        return Plan(run=contract.run, party=folder.name, leaves=leaves, capped=False, epsilon=0.0)

    monkeypatch.setattr(approval, "plan_of", blind)
    assert decide(make_party("shop", approve=[RULE]), contract).state == "waiting"


def test_a_partner_asks_so_often_in_a_day(
    make_party: Make, contract: Contract, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = make_party("shop", asks_per_day=2)
    looked: list[str] = []
    monkeypatch.setattr(approval, "objection", lambda _f, _p, c: looked.append(c.name))
    for name in ("first", "second", "second"):
        assert decide(shop, contract.model_copy(update={"name": name})).state == "waiting"
    third = contract.model_copy(update={"name": "third"})
    for _ in range(3):
        said = decide(shop, third)
        assert (said.state, said.approval) == ("refused", None)
        assert "'bank' has asked 'shop' too often today (`asks_per_day`" in said.reason
    assert "third" not in looked
    run = shop.run(third.run)
    assert [(e.direction, e.sender) for e in Ledger(run.ledger).entries()] == [("refused", "bank")]
    assert approval.plan_kept(run) is None
    other = third.model_copy(update={"parties": ["clinic", "shop"], "active": "clinic"})
    assert decide(shop, other, submitter="clinic").state == "waiting"  # another partner
    assert decide(make_party("bank", asks_per_day=2), third).state == "waiting"  # one's own
    tomorrow = time.time() + 25 * 3600
    monkeypatch.setattr(time, "time", lambda: tomorrow)
    assert decide(shop, third).state == "waiting"


def test_who_asks_again_and_again_leaves_lines_and_not_folders(
    make_party: Make, contract: Contract, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "MOST_REFUSED", 2)
    shop = make_party("shop", purposes=["research"])

    def asks(number: int, submitter: str = "bank") -> RunFolder:
        asked = contract.model_copy(update={"name": f"try{number}"})
        run = shop.run(asked.run)
        run.keep(asked)
        os.utime(run.path / "contract.json", (number, number))
        assert decide(shop, asked, submitter).state == "refused"
        return run

    sent = asks(0)
    ledger, part = Ledger(sent.ledger), Part(Kind.CONTROL, {"a": 1})
    ledger.record("sent", Message("run", "begin", "shop", "bank", 0, (part,)), part, "")
    ledger.close()
    runs = [sent, *(asks(n, "clinic" if n == 3 else "bank") for n in range(1, 4))]
    approval.refuse(shop, by_hand := asks(4), "not this one", by="hand")
    runs += [by_hand, asks(5), asks(6)]
    # What was refused after something had left is kept, or by hand, and so are the latest.
    assert [r.path.exists() for r in runs] == [True, False, False, False, True, True, True]
    lines = (shop.root / "refused.log").read_text().splitlines()
    assert [line.split("  ")[1] for line in lines] == [r.name for r in runs[1:4]]
    assert "is not for 'credit'" in lines[0]
    assert "'clinic' submitted it for 'bank' to drive" in lines[2]
    waits = contract.model_copy(update={"purpose": "research"})
    assert decide(shop, waits).state == "waiting"
    asks(7)
    assert shop.run(waits.run).path.exists()


def test_a_finished_run_is_answered_no_more(make_party: Make, contract: Contract) -> None:
    shop = make_party("shop", approve=[RULE])
    decide(shop, contract)
    run = shop.run(contract.run)
    run.note(Status(state="finished", done=1.0))
    for answer in (lambda: approval.refuse(shop, run, "no"), lambda: approval.approve(shop, run)):
        with pytest.raises(JobError, match="is finished already"):
            answer()
    assert decide(shop, contract).state == "approved"
    assert run.status.state == "finished"


def test_an_account_that_is_no_number_is_over_every_budget(
    make_party: Make, contract: Contract
) -> None:
    shop = make_party("shop", budget={"epsilon": 8.0})
    for epsilon in (float("nan"), float("inf")):
        plan = Plan(run="r", party="shop", leaves={}, epsilon=epsilon)
        assert approval.over_budget(shop, shop.read().policy, plan) is not None


def test_an_approval_stands_for_one_contract_one_party_and_one_federation(
    make_party: Make, contract: Contract, root: Any
) -> None:
    """What a hostile driver could hold up as an approval."""
    shop = make_party("shop", approve=[RULE])
    word = decide(shop, contract).approval
    assert word is not None
    longer = contract.model_copy(
        update={"method": contract.method.model_copy(update={"epochs": 400})}
    )
    forged = {
        "of another contract": word,
        "not signed by it": word.model_copy(update={"digest": longer.digest, "run": longer.run}),
        "of nobody that takes part": word.model_copy(
            update={"party": "clinic", "digest": longer.digest, "run": longer.run}
        ),
    }
    for said, one in forged.items():
        with pytest.raises(Refused, match=said):
            approval.approved_by(one.party, one.model_dump_json(), longer, root.pem)
    elsewhere = make_party("shop", by=type(root)(), approve=[RULE])
    (elsewhere.run(contract.run).path / "approval.json").unlink()
    stranger = decide(elsewhere, contract).approval
    assert stranger is not None
    with pytest.raises(Refused, match="not of this federation"):
        approval.approved_by("shop", stranger.model_dump_json(), contract, root.pem)
    bank = make_party("bank", approve=[RULE])
    own = decide(bank, contract).approval
    assert own is not None
    in_its_name = own.model_copy(update={"party": "shop"})
    with pytest.raises(Refused, match="names 'bank'"):
        approval.approved_by("shop", in_its_name.model_dump_json(), contract, root.pem)
    for text in ("", "[]", "[" * 70_000, word.model_dump_json()[:-1] + ',"by":"hand","x":1}'):
        with pytest.raises(Refused, match="not an approval"):
            approval.approved_by("shop", text, contract, root.pem)


def test_what_was_planned_when_it_was_approved_is_what_holds(
    make_party: Make, contract: Contract
) -> None:
    """A table or policy that changes later does not change what the approval let out."""
    shop = make_party("shop")
    run = shop.run(contract.run)
    run.keep(contract)
    approval.approve(shop, run)
    before = approval.plan_kept(run)
    with (shop.root / "table.csv").open("a") as table:
        table.write("C9999,1,1\n" * 1000)
    assert approval.plan_for(shop, run) == before


def test_no_method_comes_in_as_a_baseline(make_party: Make, contract: Contract) -> None:
    """`shared_only` is split learning by another name."""

    def asked(policy: dict[str, Any], method: str, compare: Any) -> Decision:
        fields = {"method": method, "compare": compare, "name": f"{method}-{len(str(compare))}"}
        shop = make_party("shop", approve=[{"drivers": ["bank"], **policy}], **policy)
        return decide(shop, Contract.model_validate(contract.model_dump() | fields))

    only: dict[str, Any] = {"methods": ["agg"]}
    assert "is a baseline" in asked({}, "shared_only", "none").reason
    assert "is a baseline" in asked(only, "active_alone", "none").reason
    assert "takes no part in 'shared_only'" in asked(only, "agg", ["shared_only"]).reason
    assert asked(only, "agg", "all").state == "approved"
    assert asked({"methods": ["fed_once"]}, "fed_once", "all").state == "approved"


def words_of(contract: Contract, *folders: PartyFolder) -> dict[str, str]:
    """What each of these parties says to a contract, signed, by its name."""
    said = {folder.name: decide(folder, contract).approval for folder in folders}
    return {name: word.model_dump_json() for name, word in said.items() if word is not None}


def test_a_partner_sees_for_itself_that_all_others_have_approved(
    make_party: Make, contract: Contract, tables: dict[str, Any]
) -> None:
    tables["clinic"] = tables["shop"]
    three = contract.model_copy(update={"parties": ["bank", "clinic", "shop"]})
    bank, clinic, shop = (make_party(n, approve=[RULE]) for n in three.parties)
    words = words_of(three, bank, clinic, shop)
    run = shop.run(three.run)

    def show(*shown: str) -> None:
        approval.approved_by_others(shop, run, json.dumps(shown).encode())

    no = approval.refuse(clinic, clinic.run(three.run), "no", by="hand").approval
    assert no is not None
    longer = contract.model_copy(update={"parties": three.parties, "seeds": [0, 1]})
    elsewhere = words_of(longer, clinic)["clinic"]
    bad = {
        "does not show that 'clinic' has approved": [words["bank"], words["shop"]],
        "does not show that 'bank' has approved": [words["clinic"]],
        "of another contract": [words["bank"], elsewhere],
        "has refused": [words["bank"], no.model_dump_json()],
        "not signed by it": [words["bank"], words["clinic"].replace('standing rule"', 'hand"')],
        "not an approval": [words["bank"], "{}"],
    }
    for said, shown in bad.items():
        with pytest.raises(Refused, match=said):
            show(*shown)
    for text in (b"", b"{}", b"[1]", b"\xff", b"[" * 100_000):
        with pytest.raises(Refused, match="not a list of approvals"):
            approval.approved_by_others(shop, run, text)
    noted = [(e.direction, e.operation) for e in Ledger(run.ledger).entries()]
    assert noted == [("refused", "approvals")] * (len(bad) + 5)
    assert approval.others_of(run) == []
    show(*words.values())
    assert sorted(approval.others_of(run)) == ["bank", "clinic"]
    assert shop.met == {"bank", "clinic"}
