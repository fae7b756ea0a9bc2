"""One run over sites as a job of NVIDIA FLARE: what each site's job process does.

FLARE starts one process at each party and one at the server, and hands each the contract. The
server's only says "go" to the party that drives. That one greets its partners, waits until all have
approved, shows each that all others have, and carries out the job with
:func:`interlace.runner.drive`; the others answer it until it says that the run is over. No code
comes with a job: the processes load this module of the installed package.

FLARE resumes no job. A contract that is submitted again finds the run folders as they were left,
and goes on from the checkpoints in them.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import io
import json
import logging
import os
import secrets
import shutil
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.job_def import JobMetaKey
from nvflare.collab import collab

from interlace import runner
from interlace.boundary import Ledger
from interlace.engines import flare
from interlace.engines.flare import Aborted
from interlace.engines.sealed import Identity, Meeting
from interlace.engines.sites import Answering, Carry, Gate, Sites, Unreachable, sides_in
from interlace.errors import InterlaceError, JobError, PartyAway, PartyFailed, Refused
from interlace.federation import Federation
from interlace.files import write_whole
from interlace.job.spec import Job, PartyFile
from interlace.methods import Method
from interlace.methods.catalogue import entry
from interlace.models import warm_up
from interlace.party import Party, PassiveSide, RunSide, holds_state, read_state, write_state
from interlace.party import State as Kept
from interlace.report.words import listed
from interlace.serve.batch import Outputs, Trained, outputs_in_batches
from interlace.serve.endpoint import listen, read_token, serve, url_of
from interlace.serve.online import Scorer
from interlace.sites import columns
from interlace.sites.approval import (
    Approval,
    answer_of,
    approved_by,
    approved_by_others,
    charge_again,
    decide,
    keep_others,
    methods_of,
    plan_for,
    said_by,
)
from interlace.sites.contract import Contract
from interlace.sites.folder import Listening, PartyFolder, People, State, Status
from interlace.sites.plan import as_arbiter
from interlace.sites.provision import party_of
from interlace.sites.silence import Silence
from interlace.sites.submission import CONTRACT

ASK_AGAIN = 2.0  # seconds between two questions whether a partner has approved
PREDECESSOR_SECONDS = 120.0
ABORT_SECONDS = 20.0  # until FLARE has ended this process
SCORING_PATIENCE = 5.0  # seconds; whoever asks for a score waits less
LOOK_AGAIN = 1.0  # seconds for which a party's own word is not looked up again
SHOW_SECONDS = 30.0  # for one try to show a partner the approvals

# The first byte of the one frame that is not sealed: approvals prove by themselves whose they are.
_WORDS, _TAKEN, _NOT_TAKEN = b"W", b"+", b"-"

SUBMITTER = JobMetaKey.SUBMITTER_NAME.value

OUTCOMES: dict[str, State] = {s: s for s in ("finished", "refused", "paused", "failed")}

log = logging.getLogger(__name__)

atexit.register(gc.freeze)  # else all that was loaded is searched for garbage: a second


class Site:
    """A party's side of one run."""

    @collab.init
    def start(self) -> None:
        """Read the contract, and be ready to answer the driver."""
        context = collab.fl_ctx
        self.job = context.get_job_id()
        self.submitter = party_of(context.get_prop(FLContextKey.JOB_META)[SUBMITTER])
        self.cell = context.get_engine().get_cell()
        app = Path(context.get_prop(FLContextKey.WORKSPACE_OBJECT).get_app_dir(self.job))
        self.contract = Contract.read((app / CONTRACT).read_text())
        self.folder = PartyFolder.here()
        self.run = self.folder.run(self.contract.run)
        self.run.keep(self.contract)
        _log_into(self.run.log)
        self.meeting = Meeting(self.contract.digest, self.job)
        self.identity = Identity.of(self.folder.kit)
        self._gate, self._looked, self._told = Gate("waiting"), float("-inf"), ("", 0.0)
        self._deciding, self._counting = threading.Lock(), threading.Lock()
        self._shown: bool | None = None  # whether all others have approved, once it was looked at
        if self.submitter == self.contract.active:  # nobody else ends what it began
            self.run.occupy(self.job)
            threading.Thread(target=self._make_way, name="make way", daemon=True).start()
        self.answering: Answering | None = None
        if self.folder.name != self.contract.active:
            self.answering = Answering(
                self.folder.name,
                self.contract.active,
                self.meeting,
                self.identity,
                gate=self.to_driver,
                party=self.party,
                sides=sides_of(self.contract),
            )
            self.silence = Silence(self._most_silence, self._leave)
            if core := flare.core_of(self.cell):
                flare.answer_by(core, self.job, self.contract.active, self._receive)
        # What it would let out takes seconds to reckon: all parties do so at once.
        threading.Thread(target=self.gate, daemon=True).start()
        if not self.contract.scores:  # else they load it one after the other
            threading.Thread(target=warm_up, daemon=True).start()

    def _make_way(self) -> None:
        """End this process once a later job goes on with the run here. A server that was started
        anew has forgotten this one, which nobody else would end."""
        while (self.run.path / "job").read_text() == self.job:
            time.sleep(LOOK_AGAIN)
        if self._party is not None:
            self._party.boundary.ledger.flush()
        os._exit(1)

    @collab.publish
    def receive(self, frame: bytes) -> bytes:
        """Answer a frame that came by a Collab call."""
        if collab.caller != self.contract.active:
            raise Refused("frames come from the driver alone")
        return self._receive(frame)

    @collab.publish
    def drive(self) -> str:
        """Carry out the run, and say what it came to; only the server's side may ask for it."""
        if collab.caller != "server" or self.folder.name != self.contract.active:
            raise Refused(f"'{self.folder.name}' does not drive this run")
        return Driver(self, self._carry(), collab.context.is_aborted).go()

    @collab.final
    def stop(self) -> None:
        """The job is over; where it did not come to its end, the run can go on."""
        self._pause(f"the job ended before '{self.contract.active}' said so")

    def _pause(self, reason: str) -> None:
        if self._party is not None:
            self._party.boundary.ledger.flush()
        if self.answering is not None and not self.answering.outcome:
            self.note("paused", reason=reason)

    def gate(self) -> Gate:
        """Whether this party takes part."""
        with self._deciding:
            if self.folder.stopped or time.monotonic() - self._looked > LOOK_AGAIN:
                said = decide(self.folder, self.contract, self.submitter)
                word = said.approval.model_dump_json() if said.approval else ""
                self._gate, self._looked = Gate(said.state, said.reason, word), time.monotonic()
            return self._gate

    def to_driver(self) -> Gate:
        """The gate as the driver meets it, which shows the approvals of all others before its
        partner's own stands."""
        gate = self.gate()
        if gate.state == "approved" and not self._shown:
            return gate._replace(state="waiting", reason="for the approvals of all others")
        return gate

    def party(self) -> Party:
        """This party, from its own file, in the run's folder.

        Raises:
            Refused: its policy has come to object since it approved, or its privacy budget does not
                allow that the run goes on.
            JobError: its file cannot be read; or it is to be scored, and its table does not fit.
        """
        scores, drives = self.contract.scores, self.answering is None
        try:
            file = self.folder.read()
        except JobError as e:
            if drives:
                raise
            # The driver reads this: what stands in the file, and where it lies, is not its affair.
            raise JobError(f"the party file of '{self.folder.name}' cannot be read") from e
        plan = plan_for(self.folder, self.run)
        if self.folder.name == self.contract.arbiter:
            file = as_arbiter(file)
        if scores and scores.batch and drives:
            file = file.model_copy(update={"table": People.of(self.run.path).table})
        others = [name for name in self.contract.parties if name != self.folder.name]
        methods = methods_of(self.contract)
        if why := file.policy.objection(methods, others, self.contract.purpose):
            raise Refused(why)
        ledger = Ledger(self.run.ledger, at_once=True)
        # Where people are scored, the plan allows for what is sent again.
        again = not scores and bool(ledger.sent_by(self.folder.name))
        # What was approved is all that leaves.
        narrow = file.model_copy(update={"policy": plan.applied(file.policy, again=again)})
        party = runner.make_party(self.folder.name, narrow, label_needed=drives and not scores)
        if scores and (why := columns.misfit(party, self.folder.run(scores.run))):
            raise JobError(why)
        if scores:
            for doubt in columns.unread(party, self.folder.run(scores.run)):
                log.warning("%s", doubt)  # in this party's own log, and nowhere else
        else:
            columns.keep(party, self.run)
        runner.few_threads([party])
        if again:
            charge_again(self.folder, self.run, file.policy, plan)
        party.folder = self._own_copy()
        if party.own_secret is None:
            party.own_secret = _kept_secret(self.run.path / "secret")
            party.noise_anew = True  # the networks go on, and no noise comes twice
        party.trainings = trainings_of(self.contract)
        party.record_in(ledger, seed=None)
        party.boundary.go_on_after(ledger)
        if scores and holds_state(self.counts()):  # it goes on where it was
            party.boundary.load_state(read_state(self.counts()).tensors)
        self.note("running", "its table is read")
        self._party = party
        return party

    def models(self) -> Path:
        """Where this party keeps what it learns, or has learnt."""
        scores = self.contract.scores
        return self.folder.run(scores.run).path if scores else self.run.path

    def _own_copy(self) -> Path:
        """The run's folder, with a copy of what scores in it: a model can be written anew by whom
        this party answers, and a matching by people to score, but not those of another run."""
        for part in ("models", "alignment"):
            source, copy = self.models() / part, self.run.path / part
            if not copy.exists() and source.exists():
                fresh = copy.with_name(f".{part}.new")
                shutil.rmtree(fresh, ignore_errors=True)
                shutil.copytree(source, fresh)
                fresh.rename(copy)
        return self.run.path

    def counts(self) -> Path:
        """Where this party keeps how much it has answered, so that limits outlast a restart."""
        return self.run.path / "counts"

    _party: Party | None = None
    _answered = 0  # people
    _noting = threading.Lock()

    def note(self, state: State, doing: str = "", done: float = 0.0, reason: str = "") -> None:
        """Keep how the run stands here; large messages to several partners have it said at once."""
        if self.submitter != self.contract.active:  # a job that is not its driver's changes nothing
            return
        with self._noting:
            before = self.run.status
            stopped = (before.state, before.job) == ("stopped", self.job)
            if stopped and state in ("waiting", "running"):  # by hand; it has yet to be heard here
                return
            began = before.began if before.state == state else time.time()
            if (before.state, before.doing) != (state, doing):
                log.info(": ".join(filter(None, (state, doing or reason))))
            self.run.note(
                Status(
                    state=state, doing=doing, done=done, reason=reason, job=self.job, began=began
                )
            )

    def _most_silence(self) -> float:
        """Seconds that the driver may say nothing."""
        try:
            return self.folder.read().policy.idle_hours * 3600
        except InterlaceError:  # somebody is writing it
            return float("inf")

    def _leave(self) -> None:
        """End this process, of which nobody has wanted anything for long; the run can go on."""
        self._pause(f"'{self.contract.active}' has said nothing for long (`idle_hours`)")
        os._exit(1)  # FLARE sees a process that fell out, and ends the job

    def _receive(self, frame: bytes) -> bytes:
        with self.silence.broken():
            return self._see(frame[1:]) if frame[:1] == _WORDS else self._answered_to(frame)

    def _see(self, words: bytes) -> bytes:
        """Take the approvals of all others, which the driver shows."""
        with self._deciding:
            if self._shown is None:  # one look: a driver that means it well shows them as they are
                try:
                    approved_by_others(self.folder, self.run, words)
                    self._shown = True
                except Refused as e:
                    log.warning("'%s' drives without all approvals: %s", self.contract.active, e)
                    self._shown = False
        return _TAKEN if self._shown else _NOT_TAKEN

    def _answered_to(self, frame: bytes) -> bytes:
        assert self.answering is not None
        answer = self.answering.receive(frame)
        party = self._party
        with self._counting:  # an answer that is asked for again leaves no sooner than the count
            if self.contract.scores and party and party.boundary.people != self._answered:
                write_state(self.counts(), Kept(party.boundary.state(), {}))
                self._answered = party.boundary.people
        if self.answering.outcome:
            outcome, reason = self.answering.outcome
            if party is not None:
                party.boundary.ledger.flush()
            if reason.endswith(f" at '{self.folder.name}'"):  # of which the driver knows no more
                reason += "; `interlace logs` here says what"
            if outcome in OUTCOMES:
                self.note(OUTCOMES[outcome], done=float(outcome == "finished"), reason=reason)
        elif party is not None and party.progress != self._told:
            self._told = party.progress
            self.note("running", *party.progress)
        return answer

    def _carry(self) -> Carry:
        context = collab.context
        if core := flare.core_of(self.cell):
            return flare.carry_by(core, self.job, context.is_aborted)
        return flare.carry_by_calls(
            lambda name, seconds: collab.get_clients([name])[0](timeout=seconds),
            context.is_aborted,
        )


class Driver:
    """What the active party does for a run.

    Args:
        site: Its site.
        carry: What carries frames.
        aborted: Whether FLARE has ended the job.
    """

    def __init__(self, site: Site, carry: Carry, aborted: Aborted = lambda: False) -> None:
        self.aborted, self.carry = aborted, carry
        self.site, self.contract = site, site.contract
        self.patience = self.contract.wait * 3600
        self.engine = Sites(
            site.folder.name, site.meeting, site.identity, carry, patience=self.patience
        )

    def go(self) -> str:
        """Greet, wait for all approvals, run, and tell everybody what it came to."""
        state, reason, told = self._tried()
        finished, untold = state == "finished", self.engine.joined
        # Whoever stopped it has noted that. Where FLARE ended the job, as when a site goes down, it
        # stands still until it is handed in again.
        stopped = self.aborted() and (
            self.site.run.status.state == "stopped"
            or (state == "paused" and not self.contract.online)
        )
        if not stopped:
            yet = _untold(untold) if finished else ""
            self.site.note(OUTCOMES[state], done=float(finished), reason=reason or yet)
        for name in self.engine.joined:
            with suppress(InterlaceError):
                self.engine.end(name, state, told)
                untold.remove(name)
        if finished and not stopped:
            self.site.note("finished", done=1.0, reason=_untold(untold))
        if self.aborted():  # by somebody: a job that gave an outcome now would be one that failed
            time.sleep(ABORT_SECONDS)
        return state

    def _tried(self) -> tuple[str, str, str]:
        """What the run came to, why, and what of that others may read."""
        try:
            self._meet()
            _wait_for_predecessor(self.site.run.path / ".lock")
            if self.contract.scores and self.contract.scores.batch:
                self._score_table(self.contract.scores.batch)
                return "finished", "", ""
            if self.contract.scores:
                self._score()
                ended = "the job was ended; the service can go on"
                return "paused", ended, ended
            self._run()
        except Refused as e:  # its words are for the driver, and not for all
            return "refused", self._why(e), f"'{e.by or self.site.folder.name}' refused"
        except PartyAway as e:
            self.engine.patience = 0.0  # who is away is not waited for once more
            return "paused", str(e), str(e)
        except PartyFailed as e:
            return "failed", str(e), str(e)
        except Exception as e:  # the text may quote the driver's own table
            log.exception("the run failed")
            kind = type(e).__name__
            own = str(e) if isinstance(e, InterlaceError) else f"{kind}; {self.site.run.log} has it"
            by = e.by if isinstance(e, InterlaceError) else ""
            return "failed", own, f"{kind} at '{by or self.site.folder.name}'"
        return "finished", "", ""

    def _why(self, error: Refused) -> str:
        """What a partner says who takes its approval back, instead of which message met that."""
        with suppress(InterlaceError):
            if error.by in self.engine.joined:
                gate = self.engine.state(error.by)
                if gate.state == "refused":
                    return str(self._declined(error.by, gate))
        return str(error)

    def _meet(self) -> None:
        """Have everybody's signed approval, the driver's own among them.

        Raises:
            Refused: a party does not take part.
            PartyAway: a party cannot be reached, or has not answered in the time that the job has.
        """
        since, words = time.monotonic(), []
        waiting = [self.site.folder.name, *self.contract.passive]
        for name in self.contract.passive:
            self.engine.join(name)
        while waiting:
            name = waiting[0]
            gate = self.engine.state(name) if name in self.contract.passive else self.site.gate()
            if gate.state == "refused":
                raise self._declined(name, gate)
            if gate.word:
                words.append(approved_by(name, gate.word, self.contract, self._root()))
                if name in self.contract.passive:
                    keep_others(self.site.run, words[-1:])
                waiting.remove(name)
                continue
            if time.monotonic() - since > self.patience:
                raise PartyAway(
                    name, "the contract", f"it has not approved within {self.contract.wait:g} hours"
                )
            due = sorted(waiting, key=self.contract.parties.index)  # or each look is a line of log
            self.site.note("waiting", f"for {listed(due)} to approve")
            time.sleep(ASK_AGAIN)
            waiting.append(waiting.pop(0))
        for name in self.contract.passive:
            self._show(name, words)

    def _show(self, name: str, words: list[Approval]) -> None:
        """Show a partner that all others have approved: it answers nothing before.

        Raises:
            PartyAway: it cannot be reached.
            Refused: it is not convinced.
        """
        frame = _WORDS + json.dumps([word.model_dump_json() for word in words]).encode()
        since = time.monotonic()
        while True:
            try:
                taken = self.carry(name, frame, SHOW_SECONDS)
                break
            except Unreachable as e:
                if time.monotonic() - since > self.patience:
                    raise PartyAway(name, "the approvals", f"it cannot be reached ({e})") from None
                time.sleep(ASK_AGAIN)
        if taken != _TAKEN:
            raise Refused(
                f"'{name}' does not take the approvals of all others for such; its own log says why"
            )

    def _score(self) -> None:
        """Answer questions about people over HTTP until the job is ended.

        Raises:
            Refused: a partner, or the driver itself, has taken its approval back.
        """
        listening = Listening.of(self.site.run.path)
        token = read_token(listening.token_file)
        federation = self._federation()
        federation.take_up_matching()
        trained = Trained.read(self.site.models(), self.contract.seeds[0])
        alone = trained.model(trained.stand_in, federation) if trained.stand_in else None
        over = threading.Event()
        refusals: list[Refused] = []
        away = ""  # why a partner cannot be reached

        def join() -> Method:
            nonlocal away
            try:
                model = trained.model(trained.job.method.name, federation.without_conversations())
                away = ""
                return model
            except PartyAway as e:
                away = str(e)
                raise
            except Refused:
                for name in self.contract.passive:
                    if (gate := self.engine.state(name)).state == "refused":
                        refusals.append(self._declined(name, gate))
                        over.set()
                raise

        shared = trained.shared(federation)
        scorer = Scorer(federation, join, shared, alone, most=listening.most)
        self.engine.patience = SCORING_PATIENCE
        at = listen(listening.host, listening.port, token=token)
        address = url_of(at)

        def look() -> None:
            while not self.aborted():
                if why := self._taken_back():
                    refusals.append(why)
                    break
                alone = "" if scorer.has_joint else ", alone"
                self.site.note("running", f"answers at {address}{alone}", reason=away)
                if over.wait(ASK_AGAIN):
                    return
            over.set()

        looking = threading.Thread(target=look, name="look", daemon=True)
        looking.start()
        serve(scorer, at, token=token, deadline_ms=listening.deadline_ms, over=over)
        over.set()
        looking.join()  # it says how the run stands, and has said it for the last time
        self.engine.patience = 0.0
        if refusals:
            raise refusals[0]

    def _score_table(self, batch: int) -> None:
        """Match the people of a table, ask about them, and leave their scores in the run's folder.

        Raises:
            JobError: a table has changed since it was first read for this.
        """
        run, federation = self.site.run, self._federation()
        if federation.active.table != People.of(run.path).digest:
            raise JobError(
                "the table of people to score has changed since they were asked for; put it back, "
                "or begin anew by `interlace predict`"
            )
        kept = run.path / "scored"
        federation.tell(RunSide.begin, {"resumed": kept.exists()})
        kept.mkdir(exist_ok=True)

        def joint(method: Method, view: Federation) -> Outputs:
            def progress(people: int) -> None:
                doing = f"scored {people:,} of {len(view.rows):,} people"
                self._tell(federation, doing, people / len(view.rows))

            return outputs_in_batches(method, view, batch, kept, progress)

        self._tell(federation, "matching people", 0.0)
        scores = Trained.read(self.site.models(), self.contract.seeds[0]).scores(federation, joint)
        content = io.BytesIO()
        scores.write_parquet(content)
        write_whole(run.scores, content.getvalue())

    def _tell(self, federation: Federation, doing: str, done: float) -> None:
        """Note how far the run is, and tell the partners.

        Raises:
            Refused: the driver itself has taken its approval back.
        """
        if why := self._taken_back():
            raise why
        self.site.note("running", doing, done)
        federation.tell(RunSide.progress, {"doing": doing[:200], "share": done})

    def _taken_back(self) -> Refused | None:
        """Why the run ends, where the driver has refused what it had approved before."""
        given = answer_of(self.site.run)
        if given is None or given.answer == "approved":
            return None
        return self._declined(given.party, Gate("refused", given.reason))

    def _declined(self, name: str, gate: Gate) -> Refused:
        """The error that a party takes no part. What a partner has signed of that is kept; what it
        has not, as while it has stopped everything, takes no approval back."""
        if gate.word and name in self.contract.passive:
            keep_others(self.site.run, [said_by(name, gate.word, self.contract, self._root())])
        error = Refused(f"'{name}' does not take part: {gate.reason}")
        error.by = name
        return error

    def _root(self) -> bytes:
        return (self.site.folder.kit / "startup" / "rootCA.pem").read_bytes()

    def _federation(self) -> Federation:
        contract = self.contract
        return Federation(
            self.site.party(),
            contract.partners,
            self.engine,
            helpers=[contract.arbiter] if contract.arbiter else [],
            seed=contract.seeds[0],
            protocol=contract.align.protocol,
            reveal=contract.align.reveal,
        )

    def _run(self) -> None:
        federation, contract = self._federation(), self.contract
        party = federation.active
        self.engine.progress = lambda what, _share: self.site.note(
            "running", what, self.site.run.status.done
        )
        runner.drive(
            job_of(contract, {party.name: self.site.folder.read()}),
            federation,
            progress=partial(self._tell, federation),
            command=f"interlace submit  # {contract.run}",
        )


def job_of(contract: Contract, own: dict[str, PartyFile] | None = None) -> Job:
    """The job that a contract asks for; of the party files it holds one's own."""
    shared = contract.model_dump(exclude={"parties", "version", "classes", "arbiter", "scores"})
    parties = {name: PartyFile() for name in contract.parties}
    return Job(**{**shared, "parties": {**parties, **(own or {})}})


def sides_of(contract: Contract) -> set[type[PassiveSide]]:
    """The passive sides that the methods of a contract, and every run, may open."""
    modules = ["interlace.party.run", "interlace.align.alignment"]
    modules += ["interlace.align.dh", "interlace.align.kkrt", "interlace.align.multi"]
    for choice in (contract.method, *runner.compared(job_of(contract))):
        modules.append(entry(choice.name).make.__module__)
    return sides_in(modules)


def trainings_of(contract: Contract) -> int:
    """How often guards' accounts may start from nought: once a training, and once more where
    clients of a horizontal federation compare their columns. To score takes no training."""
    if contract.scores:
        return 0
    return len(contract.seeds) * (1 + len(runner.compared(job_of(contract)))) + 1


def _untold(names: list[str]) -> str:
    """What is left to do once a run is finished, or nothing."""
    if not names:
        return ""
    return f"{', '.join(names)} did not hear yet that it is finished; submit the job again for that"


def _kept_secret(file: Path) -> int:
    """The secret that this party draws from in this run: made once, and read when it goes on."""
    if not file.exists():
        write_whole(file, str(secrets.randbits(63)).encode())
        file.chmod(0o600)  # the folder lets nobody else in before
    return int(file.read_text())


def _wait_for_predecessor(lock: Path) -> None:
    """Wait until the process of an earlier job, whose server is gone, has let go of the run."""
    lock.touch()
    until = time.monotonic() + PREDECESSOR_SECONDS
    with lock.open("r+") as file:
        while time.monotonic() < until:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                time.sleep(1.0)


def _log_into(file: Path) -> None:
    """Have what this process says of the run go into the run's folder too."""
    handler = logging.FileHandler(file)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    said = logging.getLogger("interlace")
    said.addHandler(handler)
    said.setLevel(logging.INFO)
