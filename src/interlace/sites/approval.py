"""Approvals: a party's signed word on a contract, given by hand or by a standing rule.

An approval is signed with the private key of the party's site certificate (RSA-PSS, SHA-256, by
``cryptography``), which the federation's root certificate has issued. It holds the contract's
digest, so it stands for exactly that contract.
"""

from __future__ import annotations

import fcntl
import json
import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from cryptography import x509
from pydantic import BaseModel, ConfigDict, ValidationError

import interlace
from interlace.boundary import Kind, Ledger, Message, Policy
from interlace.boundary.message import Part
from interlace.boundary.policy import Standing
from interlace.engines.sealed import Identity, check
from interlace.errors import InterlaceError, JobError, PolicyError, Refused
from interlace.files import write_whole
from interlace.methods.catalogue import entry
from interlace.sites.account import DAY, Account
from interlace.sites.columns import unscorable
from interlace.sites.contract import MOST_PARTIES, Contract
from interlace.sites.folder import PartyFolder, RunFolder, Status
from interlace.sites.limits import stops
from interlace.sites.plan import Plan, compared, plan_of, rules_of

TRY_AGAIN = 300.0  # seconds after which a rehearsal that went wrong is done once more

log = logging.getLogger(__name__)

Answer = Literal["approved", "refused"]


class Approval(BaseModel):
    """What a party says to a contract, and the proof that it was that party."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    run: str
    digest: str
    party: str
    answer: Answer
    by: Literal["hand", "standing rule", "policy"]
    reason: str = ""
    time: str
    certificate: str  # PEM
    signature: str = ""  # hexadecimal

    @property
    def signed(self) -> bytes:
        """What the signature is over."""
        fields = self.model_dump(mode="json", exclude={"signature"})
        return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def read(cls, text: str) -> Approval:
        """Read an approval that was kept or sent.

        Raises:
            Refused: it is none.
        """
        try:
            return cls.model_validate_json(text[: 2**16])
        except ValidationError as e:
            raise Refused("this is not an approval") from e

    def verify(self, contract: Contract, root: bytes) -> None:
        """Make sure that a party of the contract has said this, and of this very contract.

        Args:
            contract: What it must be about.
            root: The federation's root certificate, as PEM.

        Raises:
            Refused: another contract, a certificate of another federation or of somebody else, one
                that has expired, or a signature that does not fit.
        """
        whose = f"the approval of '{self.party}'"
        if (self.run, self.digest) != (contract.run, contract.digest):
            raise Refused(f"{whose} is of another contract ({self.run})")
        if self.party not in contract.parties:
            raise Refused(f"{whose} is of nobody that takes part in '{contract.run}'")
        issuer = x509.load_pem_x509_certificate(root)
        check(self.party, self.certificate.encode(), self.signature, self.signed, issuer)


MOST_SHOWN = MOST_PARTIES * 2**14  # bytes of all parties' approvals

_NOT_YET = "tried again soon"


@dataclass(frozen=True)
class Decision:
    """What a party says to a contract now.

    ``approval`` is its signed form, which the driver collects; absent while it is waiting.
    """

    state: Literal["approved", "refused", "waiting"]
    reason: str = ""
    approval: Approval | None = None


def approved_by(party: str, word: str, contract: Contract, root: bytes) -> Approval:
    """The approval that a party has sent, once it is sure to be one, its own and of this contract.

    Raises:
        Refused: it is not.
    """
    said = said_by(party, word, contract, root)
    if said.answer != "approved":
        raise Refused(f"'{party}' did not sign an approval: it has {said.answer}")
    return said


def said_by(party: str, word: str, contract: Contract, root: bytes) -> Approval:
    """The answer that a party has sent, once it is sure to be one, its own and of this contract.

    Raises:
        Refused: it is not.
    """
    said = Approval.read(word)
    said.verify(contract, root)
    if said.party != party:
        raise Refused(f"'{party}' did not sign an answer: it is that of '{said.party}'")
    return said


def approved_by_others(folder: PartyFolder, run: RunFolder, words: bytes) -> None:
    """Make sure that all other parties of a run have approved it, and keep their words.

    Args:
        folder: The party's that wants to know.
        run: The run.
        words: What the driver shows: a list of approvals as JSON.

    Raises:
        Refused: one is missing or not what it seems. The run's ledger notes it.
    """
    contract, root = run.contract, (folder.kit / "startup" / "rootCA.pem").read_bytes()
    try:
        shown = {}
        for word in _listed(words):
            shown[Approval.read(word).party] = word
        kept = []
        for name in contract.parties:
            if name == folder.name:
                continue
            if name not in shown:
                raise Refused(f"'{contract.active}' does not show that '{name}' has approved")
            kept.append(approved_by(name, shown[name], contract, root))
    except Refused:
        _note_refusal(run, "approvals", contract.active, folder.name)
        raise
    keep_others(run, kept)


def _listed(words: bytes) -> list[str]:
    """The texts in a list as JSON, which somebody else wrote."""
    try:
        told = json.loads(words) if len(words) <= MOST_SHOWN else None
    except (ValueError, RecursionError):
        told = None
    if not isinstance(told, list) or not all(isinstance(word, str) for word in told):
        raise Refused("this is not a list of approvals")
    return told


def decide(folder: PartyFolder, contract: Contract, submitter: str) -> Decision:
    """Answer a contract: by what was said by hand, else by the party's policy.

    A waiting party is asked again: somebody may have answered by hand in the meantime. The contract
    and the disclosure plan are kept in the run's folder, for whoever is to answer.

    Args:
        folder: The party's.
        contract: What is asked.
        submitter: Which party submitted it: it must be the one that drives, for others could use up
            what a policy leaves to that one.

    Raises:
        Refused: another contract has this one's name here.
    """
    said = _decided(folder, contract, submitter)
    if said.state == "refused":
        with _one_at_a_time(folder):  # two may be refused at once
            folder.forget_refused()
    return said


def _decided(folder: PartyFolder, contract: Contract, submitter: str) -> Decision:
    run = folder.run(contract.run)
    run.keep(contract)
    # What follows is not signed: it is no answer to this contract, which may come once more.
    if submitter != contract.active:
        not_theirs = f"'{submitter}' submitted it for '{contract.active}' to drive"
        if not run.noted:
            run.note(Status(state="refused", reason=not_theirs))
        return Decision("refused", not_theirs)
    if folder.stopped:
        return Decision(
            "refused", f"'{folder.name}' has stopped everything (`party stop --lift` ends it)"
        )
    given = answer_of(run)
    if given is not None:
        if given.answer == "approved" and (why := _other_version(folder, contract)):
            return Decision("refused", why)  # unsigned: with the version of then it goes on
        return Decision(given.answer, given.reason, given)
    before = run.status
    if before.doing == _NOT_YET and time.time() - before.updated < TRY_AGAIN:
        return Decision("waiting", before.reason)
    try:
        policy = folder.read().policy
    except InterlaceError:
        return Decision("waiting", f"the party file of '{folder.name}' cannot be read")
    try:
        if too_many := _asked_too_often(folder, run, policy, contract):
            return too_many
        if why := objection(folder, policy, contract):
            return refuse(folder, run, why)
        plan = plan_for(folder, run)
        if why := against(folder, policy, contract, plan):
            return refuse(folder, run, why)
    except (PolicyError, JobError) as e:
        return refuse(folder, run, str(e))
    except Refused as e:  # for its table, which may be mended: not signed
        run.note(Status(state="refused", reason=str(e)))
        return Decision("refused", str(e))
    except (InterlaceError, OSError) as e:  # its table cannot be read, say; somebody will mend it
        log.warning("'%s' cannot answer yet: %s", folder.name, e)
        why = f"'{folder.name}' cannot answer yet: {type(e).__name__}"
        run.note(Status(state="waiting", doing=_NOT_YET, reason=why))
        return Decision("waiting", why)
    except Exception as e:  # what it asks for cannot be rehearsed: no plan, no approval
        log.exception("no plan could be made")
        return refuse(folder, run, f"'{folder.name}' cannot rehearse it ({type(e).__name__})")
    with _one_at_a_time(folder):  # a rule counts runs, which others may be about to approve
        if given := answer_of(run):  # by hand, while the plan was made
            return Decision(given.answer, given.reason, given)
        if not all(_why_not(rule, folder, contract, plan) for rule in policy.approve):
            for stop in stops(policy, plan, contract):  # nobody is there to be asked
                log.warning(
                    "`%s` of the policy may stop '%s': %s", stop.setting, run.name, stop.why
                )
            try:
                return _approved(folder, run, policy, plan, "standing rule")
            except Refused as e:  # another run has just used up what was left
                return refuse(folder, run, str(e))
    run.note(Status(state="waiting", doing=f"for `interlace approve {run.name}`"))
    return Decision("waiting", f"'{folder.name}' has not answered yet")


def approve(folder: PartyFolder, run: RunFolder) -> Decision:
    """Approve a run by hand, and count its privacy budget against the party's.

    Raises:
        Refused: the party's policy objects, which no approval by hand can put aside; or people are
            to be scored, and its table is not one that the models can read.
        JobError: the run is finished.
    """
    make_sure_open(run)
    if why := unscorable(folder, run.contract):
        raise Refused(why)
    policy, plan = folder.read().policy, plan_for(folder, run)
    with _one_at_a_time(folder):
        return _approved(folder, run, policy, plan, "hand")


def _approved(
    folder: PartyFolder,
    run: RunFolder,
    policy: Policy,
    plan: Plan,
    by: Literal["hand", "standing rule"],
) -> Decision:
    """Approve a run while nobody else counts."""
    if why := against(folder, policy, run.contract, plan):
        raise Refused(nobody_can(run, why))
    # In this order: a crash between the two leaves a charge without a run, not the reverse.
    Account(folder.root).charge(run.name, plan.epsilon or 0.0, plan.delta)
    approval = _keep(folder, run, "approved", by, "")
    run.note(Status(state="approved", doing=f"approved by {by}"))
    return Decision("approved", "", approval)


def nobody_can(run: RunFolder, why: str) -> str:
    """What whoever wants to approve a run is told that the policy objects to."""
    return f"{why}; nobody can approve '{run.name}' while the policy says so"


def charge_again(folder: PartyFolder, run: RunFolder, policy: Policy, plan: Plan) -> None:
    """Count a run once more that goes on after its process ended: it may send again what it sent.

    Raises:
        Refused: the party's privacy budget does not allow it.
    """
    with _one_at_a_time(folder):
        if why := over_budget(folder, policy, plan, again=True):
            raise Refused(f"'{folder.name}' does not go on with '{run.name}': {why}")
        Account(folder.root).charge(run.name, plan.epsilon or 0.0, plan.delta, again=True)


def refuse(
    folder: PartyFolder, run: RunFolder, why: str, by: Literal["hand", "policy"] = "policy"
) -> Decision:
    """Refuse a run, and say why: the driver is told.

    Raises:
        JobError: the run is finished: what left cannot be taken back.
    """
    make_sure_open(run)
    approval = _keep(folder, run, "refused", by, why)
    run.note(Status(state="refused", reason=why))
    return Decision("refused", why, approval)


def make_sure_open(run: RunFolder) -> None:
    """Make sure that a run can still be answered.

    Raises:
        JobError: it is finished.
    """
    if run.status.state == "finished":
        raise JobError(f"'{run.name}' is finished already; what left cannot be taken back")


def answer_of(run: RunFolder) -> Approval | None:
    """What the party has said to a run, if it has."""
    try:
        return Approval.read((run.path / "approval.json").read_text())
    except FileNotFoundError:
        return None


def keep_others(run: RunFolder, answers: Iterable[Approval]) -> None:
    """Keep what the other parties said, as evidence: an approval also where it is taken back, and a
    refusal until another approval."""
    for said in answers:
        approval, refusal = (
            run.path / kind / f"{said.party}.json" for kind in ("approvals", "refusals")
        )
        file = approval if said.answer == "approved" else refusal
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, said.model_dump_json(indent=1).encode())
        if said.answer == "approved":
            refusal.unlink(missing_ok=True)


def others_of(run: RunFolder) -> list[str]:
    """The other parties who have approved a run, and have not signed since that they refuse it."""
    approved, refused = (
        {file.stem for file in (run.path / kind).glob("*.json")}
        for kind in ("approvals", "refusals")
    )
    return sorted(approved - refused)


def plan_kept(run: RunFolder) -> Plan | None:
    """The disclosure plan that was made before, if one was."""
    file = run.path / "plan.json"
    return Plan.model_validate_json(file.read_text()) if file.exists() else None


def plan_for(folder: PartyFolder, run: RunFolder) -> Plan:
    """The disclosure plan of a run, made once and then kept; until the run is approved it is made
    anew where the policy has come to allow something else.

    Raises:
        Refused: people are to be scored, and the party's table is not one that the models can read.
    """
    with (run.path / ".plan").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the site and a person may ask for it at once
        plan, given = plan_kept(run), answer_of(run)
        approved = given is not None and given.answer == "approved"
        if plan is None or not (approved or plan.rules == rules_of(folder.read().policy)):
            if why := unscorable(folder, run.contract):
                raise Refused(why)
            plan = plan_of(folder, run.contract)
            write_whole(run.path / "plan.json", plan.model_dump_json(indent=1).encode())
    return plan


def against(folder: PartyFolder, policy: Policy, contract: Contract, plan: Plan) -> str | None:
    """Why nobody can approve a run while the party's policy is as it is, or ``None``.

    The driver reads it: it tells nothing of the plan's figures.
    """
    return (
        objection(folder, policy, contract)
        or over_budget(folder, policy, plan)
        or next(
            (
                f"its policy would stop it (`{stop.setting}`); {stop.way_out}, or have "
                f"'{folder.name}' change that line"
                for stop in stops(policy, plan, contract)
                if stop.surely
            ),
            None,
        )
    )


def objection(folder: PartyFolder, policy: Policy, contract: Contract) -> str | None:
    """Why the party's policy takes no part in this, or ``None``."""
    if why := _other_version(folder, contract):
        return why
    if folder.name not in contract.parties:
        return f"'{folder.name}' is not among its parties: {', '.join(contract.parties)}"
    if contract.scores and (why := _no_such_models(folder, contract)):
        return why
    try:
        names = methods_of(contract)
    except InterlaceError as e:
        return str(e)
    others = [name for name in contract.parties if name != folder.name]
    why = policy.objection(names, others, contract.purpose)
    if why is None and policy.runs_per_day is not None:
        today = _runs_today(folder, folder.run(contract.run))
        if today >= policy.runs_per_day:
            why = "its policy begins no more runs today (`runs_per_day`)"
    return why


def _other_version(folder: PartyFolder, contract: Contract) -> str | None:
    """Why the package installed here is not the one that a run is for, or ``None``."""
    if contract.version == interlace.__version__:
        return None
    return (
        f"it is for interlace {contract.version}, and '{folder.name}' runs "
        f"{interlace.__version__}; install the same version at all sites"
    )


def _asked_too_often(
    folder: PartyFolder, run: RunFolder, policy: Policy, contract: Contract
) -> Decision | None:
    """The refusal of a contract beyond those that a partner may ask for in a day, or ``None``.

    It is unsigned, since the contract may come again, and stands in the run's ledger.
    """
    driver, most = contract.active, policy.asks_per_day
    if driver == folder.name or Account(folder.root).look_at(run.name, driver, most):
        return None
    why = f"'{driver}' has asked '{folder.name}' too often today (`asks_per_day` of its policy)"
    if run.status.reason != why:
        _note_refusal(run, "ask", driver, folder.name)
        run.note(Status(state="refused", reason=why))
    return Decision("refused", why)


def _note_refusal(run: RunFolder, what: str, driver: str, name: str) -> None:
    """Have the run's ledger note what a driver was refused before anything was answered."""
    ledger, part = Ledger(run.ledger), Part(Kind.CONTROL, {})
    ledger.record("refused", Message("", what, driver, name, 0, (part,)), part, "")
    ledger.close()


def _no_such_models(folder: PartyFolder, contract: Contract) -> str | None:
    """Why a run cannot score with the models that this party keeps, or ``None``."""
    scores = contract.scores
    assert scores is not None
    try:
        trained = folder.run(scores.run)
        agreed = trained.contract
    except InterlaceError:
        return f"'{folder.name}' has had no run '{scores.run}' whose models could score"
    if trained.status.state != "finished":
        return f"'{trained.name}' is {trained.status.state} at '{folder.name}', not finished"
    if contract != agreed.to_score(
        scores.people, contract.seeds[0], batch=scores.batch, mark=scores.mark
    ):
        return f"its words are not those of '{trained.name}', whose models are to score"
    return None


def methods_of(contract: Contract) -> list[str]:
    """The methods of a run by name. The baselines that are usual beside one come with it; others
    stand for themselves, since one may send as much as a method does.

    Raises:
        JobError: there is no such method, or it is a baseline.
    """
    name = contract.method.name
    if entry(name).role != "method":
        raise JobError(f"'{name}' is a baseline: name it under `compare`, beside a method")
    usual = {c.name for c in compared(contract.model_copy(update={"compare": "all"}))}
    return [name, *(c.name for c in compared(contract) if c.name not in usual)]


def over_budget(
    folder: PartyFolder, policy: Policy, plan: Plan, *, again: bool = False
) -> str | None:
    """Why the party's privacy budget does not allow a run, or ``None``.

    Args:
        folder: The party's.
        policy: Its policy.
        plan: The run's.
        again: Whether the run counts beside what was counted for it before.
    """
    if policy.budget is None:
        return None
    if plan.epsilon is None:
        return (
            "its policy has a privacy budget, and the run claims no privacy: put a `clip` and "
            f"noise before {' and '.join(plan.without_claim)}"
        )
    spent = Account(folder.root).spent(without="" if again else plan.run)
    epsilon, delta = spent.epsilon + plan.epsilon, spent.delta + plan.delta
    if not (epsilon <= policy.budget.epsilon and delta <= policy.budget.delta):
        # The driver reads this: how much is spent, and by runs with others, is not its affair.
        return (
            "it would take the privacy spent in all runs beyond the `budget` of its policy; ask "
            "for fewer epochs or `seeds`, or for more noise there"
        )
    return None


def _why_not(rule: Standing, folder: PartyFolder, contract: Contract, plan: Plan) -> str | None:
    """What of a run a standing rule does not cover, or ``None``."""
    if contract.active not in rule.drivers:
        return "drivers"
    if rule.methods is not None and not set(methods_of(contract)) <= rule.methods:
        return "methods"
    if rule.purposes is not None and contract.purpose not in rule.purposes:
        return "purposes"
    if rule.kinds is not None and not set(plan.leaves) <= rule.kinds:
        return "kinds"
    if not plan.within(rule.max_bytes):
        return "max_bytes"
    if contract.scores and contract.scores.people > (rule.max_people or 0):
        return "max_people"
    today = _runs_today(folder, folder.run(contract.run))
    if rule.runs_per_day is not None and today >= rule.runs_per_day:
        return "runs_per_day"
    return None


def _runs_today(folder: PartyFolder, but: RunFolder) -> int:
    """How many other runs were approved in the last 24 hours."""
    since, count = time.time() - DAY, 0
    for run in folder.runs():
        with suppress(FileNotFoundError):  # no answer, or another process forgets it meanwhile
            when = (run.path / "approval.json").stat().st_mtime
            given = answer_of(run) if run.name != but.name and when >= since else None
            count += given is not None and given.answer == "approved"
    return count


@contextmanager
def _one_at_a_time(folder: PartyFolder) -> Iterator[None]:
    """Limits over all runs hold only if nobody else counts meanwhile."""
    with (folder.root / ".counting").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _keep(
    folder: PartyFolder,
    run: RunFolder,
    answer: Answer,
    by: Literal["hand", "standing rule", "policy"],
    why: str,
) -> Approval:
    """Sign an answer and keep it."""
    identity = Identity.of(folder.kit)
    unsigned = Approval(
        run=run.name,
        digest=run.contract.digest,
        party=folder.name,
        answer=answer,
        by=by,
        reason=why,
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        certificate=identity.certificate.decode(),
    )
    approval = unsigned.model_copy(update={"signature": identity.sign(unsigned.signed)})
    write_whole(run.path / "approval.json", approval.model_dump_json(indent=1).encode())
    return approval
