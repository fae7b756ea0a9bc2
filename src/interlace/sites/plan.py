"""The disclosure plan: what a run would let out of one party, at most, known before it begins.

Each party makes its own, from the contract and its own table, so nobody tells anybody a size. It
rehearses the run in this process: its own table against partners made up of random numbers, who
have as many columns and hold all its people, then half of them and as many others; what is more of
the two counts. The rehearsal is of one epoch (round, tree), then of two;
since every further one sends what the second sent beside the first, the run's whole length follows
by a straight line. Of a large table a part is rehearsed, in two sizes, and the rest follows by a
line too. Where the policy bounds single answers, one more rehearsal keeps to it, so that what it
would stop is known before anybody approves the run.

What is assumed is said with the plan. It needs no faith: at the party's boundary the plan is a
limit (:meth:`Plan.applied`), and what would go beyond it is refused.
"""

from __future__ import annotations

import copy
import json
import math
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from interlace import runner
from interlace.align import SESSION
from interlace.boundary import Kind, Ledger, Policy
from interlace.boundary.guards import build_guard, chain
from interlace.boundary.guards.noise import Gaussian, Laplace
from interlace.data.ids import IdRule
from interlace.engines import InProcess
from interlace.errors import InterlaceError, JobError
from interlace.job.spec import Job, MethodChoice, PartyFile
from interlace.methods import Method
from interlace.methods.catalogue import accepted, build_method, entry, is_horizontal
from interlace.party import Party
from interlace.serve.batch import Trained
from interlace.sites.contract import Contract, Scoring
from interlace.sites.folder import PartyFolder

ROWS = 1024  # of a larger table so many are rehearsed, and half as many
# Of a policy: what bounds single answers. So many rows of a larger table show whether its people
# are too many or too few in an answer, since with more no method's batches grow.
OF_ONE_ANSWER = ("max_rows", "smallest_group", "min_bin_rows", "encryption")
TRIED = 2**14
# Settings that say how long a training is.
LENGTHS = (
    "epochs",
    "rounds",
    "n_estimators",
    "n_trees",
    "max_iter",
    "local_epochs",
    "refine_epochs",
)
# Whole numbers among a method's settings that make nothing wider than the table is long.
NOT_WIDE = (
    *LENGTHS,
    "batch_size",
    "local_batch_size",
    "queue",
    "patience",
    "early_stopping_rounds",
    "min_rows",
    "min_bin_rows",
)
NUMBER = 16  # bytes that one of a table or a layer takes, with all that is computed of it
SHARE = 4  # of this machine's memory a rehearsal may take one part
MARGIN = 1.2  # for what hangs on the partners' data, as the shape of trees does
FRAME = 65_536  # bytes of each kind beside: names are longer elsewhere, a batch more
# Over sites the driver tells partners how the run goes, which a rehearsal in one process does not.
TOLD = 8  # times for each training, beside once an epoch
TOLD_BYTES = 640  # at most, answers too
# Where people are scored
OPENINGS = 1000  # of the conversation with a service: at each start, and after a partner was away
TWICE = 2  # all about a table: what was under way when a process ended is asked again
ONE_BY_ONE = 8  # people of the rehearsal who are asked about, each alone
PARTNER = 10  # a partner may have so many times as many people when it comes to blinded ids
BLIND_ROWS = 256  # of the tables that a party without one makes up
ARBITER = "~"  # made up where people are scored with what one has helped to train
NO_CLAIM_DUE = frozenset({Kind.CONTROL, Kind.BLINDED_IDS, Kind.CIPHERTEXT})


Counts = NDArray[np.float64]  # messages, bytes


class Claim(NamedTuple):
    """What a guard claims: how often the person released most often has left, and for what."""

    releases: float
    epsilon: float


class Leaving(BaseModel):
    """What leaves of one kind, at most, over the whole run."""

    model_config = ConfigDict(frozen=True)

    messages: int
    bytes: int


class Plan(BaseModel):
    """A party's disclosure plan.

    ``epsilon`` bounds, with ``delta``, what the run tells of one person, all receivers, kinds and
    trainings added up; ``None`` where kinds (``without_claim``) leave without such a bound.
    ``assumed`` says what the figures rest on. ``people`` is how many answers may be about, where
    people are scored. ``stopped`` says how the policy's bounds on single answers stopped a
    rehearsal, ``short`` which guards allow fewer releases than the run may take. ``rules`` stands
    for what of the policy the plan rests on.
    """

    model_config = ConfigDict(frozen=True)

    run: str
    party: str
    leaves: dict[Kind, Leaving]
    capped: bool = True
    epsilon: float | None = None
    delta: float = 0.0
    without_claim: list[str] = Field(default_factory=list)
    guards: dict[Kind, str] = Field(default_factory=dict)
    assumed: list[str] = Field(default_factory=list)
    people: int | None = None
    stopped: str = ""
    short: list[str] = Field(default_factory=list)
    rules: str = ""

    @property
    def bytes(self) -> int:
        """All kinds together."""
        return sum(leaving.bytes for leaving in self.leaves.values())

    def within(self, most: int | None) -> bool:
        """Whether it is sure that no more bytes leave."""
        return most is None or (self.capped and self.bytes <= most)

    def applied(self, policy: Policy, *, again: bool = False) -> Policy:
        """The policy, made as narrow as the plan: its kinds, and its bytes of each.

        Args:
            policy: The party's.
            again: Whether the run goes on after its process ended. It sends again what followed
                its last checkpoint then; all such endings together may take the plan once more.
        """
        allowed = policy.allowed & set(self.leaves)
        changes: dict[str, Any] = {"allow": allowed, "allow_also": frozenset()}
        if self.people is not None:
            changes["max_people"] = min(policy.max_people or self.people, self.people)
        if self.epsilon is not None:  # of each process: every one is charged
            most = math.inf if policy.max_epsilon is None else policy.max_epsilon
            changes["max_epsilon"] = min(most, self.epsilon)
        if self.capped:
            bounds = policy.max_bytes_of
            times = 2 if again else 1
            changes["max_bytes_of"] = {
                kind: min(bounds.get(kind, times * leaving.bytes), times * leaving.bytes)
                for kind, leaving in self.leaves.items()
            }
        return policy.model_copy(update=changes)


def rules_of(policy: Policy) -> str:
    """What stands for all of a policy that a plan rests on, so that another plan is made when it
    changes; what else the policy says, the plan is compared with."""
    of = {"allow", "allow_also", "guards", *OF_ONE_ANSWER}
    text = json.dumps(policy.model_dump(include=of), sort_keys=True, default=sorted)
    return blake2b(text.encode(), digest_size=8).hexdigest()


def compared(contract: Contract) -> list[MethodChoice]:
    """The baselines of a run over sites; those that need all tables in one place are left out."""
    job = Job.model_construct(method=contract.method, compare=contract.compare)
    return [c for c in runner.compared(job) if not runner.in_one_place(c.name)]


def as_arbiter(file: PartyFile) -> PartyFile:
    """A party's file where it is the arbiter of a run, whatever table it has."""
    return PartyFile(policy=file.policy)


def plan_of(folder: PartyFolder, contract: Contract) -> Plan:
    """What a run would let out of a party.

    Args:
        folder: The party's, whose table is read.
        contract: The run.

    Raises:
        PolicyError: its policy does not let a kind leave that the method needs.
        JobError: the rehearsal would take more memory than it may.
        InterlaceError: the run cannot be, as for :func:`interlace.run`.
    """
    kind = _Scores if contract.scores else _Rehearsal
    with folder.scratch() as scratch:
        return kind(folder.name, folder.read(), contract, scratch).plan()


@dataclass(frozen=True)
class _Point:
    """One rehearsal: by conversation and kind, messages and bytes that left; releases by guard."""

    sent: Mapping[tuple[str, Kind], Counts]
    claims: Mapping[str, Claim]


class _Rehearsal:
    def __init__(self, name: str, file: PartyFile, contract: Contract, scratch: Path) -> None:
        self.name, self.contract, self.scratch = name, contract, scratch
        self.horizontal = is_horizontal(contract.method.name)
        if name == contract.arbiter:
            file = as_arbiter(file)
        # It drives horizontal clients, or is an arbiter: others' columns it cannot know.
        self.blind = file.table is None
        policy = Policy(
            allow=file.policy.allow, allow_also=file.policy.allow_also, guards=file.policy.guards
        )
        self.file = file.model_copy(update={"policy": policy, "secret": None})
        self.rules = rules_of(file.policy)
        self.bounds = {n: bound for n in OF_ONE_ANSWER if (bound := getattr(file.policy, n))}
        needed = name == contract.active or self.horizontal
        self.party = runner.make_party(name, self.file, label_needed=needed)
        self.choices = [contract.method, *compared(contract)]
        self.runs = 0
        most = len(self.party) if self.horizontal else min(len(self.party), ROWS)
        if self._memory(most) > _memory() / SHARE:
            # The driver reads this: how large the table is, is not its affair.
            raise JobError(
                f"to rehearse it would take too much of the memory of '{name}'; ask for fewer "
                "parties, narrower layers, or fewer bins, clusters or trees side by side"
            )

    def _memory(self, rows: int) -> int:
        """Bytes that a rehearsal takes, about, known before it takes any."""
        columns = max(1, len(self.party.columns))
        wide = [columns]
        for choice in self.choices:
            wide += _widths(build_method(choice.name, choice.settings))
        layers = max(wide) * sum(wide)  # no less than any two that meet
        return NUMBER * len(self.contract.parties) * (rows * sum(wide) + layers)

    def plan(self) -> Plan:
        """Rehearse, and draw the lines on."""
        rows = len(self.party)
        whole = rows <= ROWS or self.horizontal
        sizes = [rows] if whole else [ROWS, ROWS // 2]
        measured = [self._whole_length(size) for size in sizes]
        sent, claims = measured[0]
        if not whole:
            half, _ = measured[1]
            step = (rows - sizes[0]) / (sizes[0] - sizes[1])
            nothing = np.zeros(2)
            sent = {
                key: at + np.maximum(0, (at - half.get(key, nothing)) * step)
                for key, at in sent.items()
            }
        total: dict[Kind, Counts] = defaultdict(lambda: np.zeros(2))
        for (session, kind), found in sent.items():
            # Matching is done once; each seed is a training of its own.
            times = 1 if session == SESSION else len(self.contract.seeds)
            total[kind] = total[kind] + found * times
        privacy = self._privacy(set(total), claims)
        told = self._told()
        total[Kind.CONTROL] = total[Kind.CONTROL] + np.array([told, told * TOLD_BYTES])
        if self.name != self.contract.active:  # what its guards claim
            total[Kind.METRIC] = total[Kind.METRIC] + np.array([len(self.contract.seeds), 0])
        leaves = {}
        for kind in sorted(total, key=lambda k: -total[k][1]):
            messages, size = total[kind] * MARGIN
            partner = PARTNER if kind is Kind.BLINDED_IDS else 1
            leaves[kind] = Leaving(
                messages=math.ceil(messages), bytes=math.ceil(size * partner) + FRAME
            )
        return Plan(
            run=self.contract.run,
            party=self.name,
            leaves=leaves,
            capped=not self.blind,
            guards=self._guards(leaves),
            assumed=self._assumed(whole),
            rules=self.rules,
            stopped=self._within_bounds(),
            **privacy,
        )

    def _within_bounds(self) -> str:
        """How the policy's bounds on single answers stop a rehearsal, if they do."""
        most = TRIED if {"max_rows", "smallest_group"} & self.bounds.keys() else ROWS
        rows = len(self.party) if self.horizontal else min(len(self.party), most)
        if not self.bounds or self._memory(rows) > _memory() / SHARE:
            return ""
        bounded = copy.copy(self)
        policy = self.file.policy.model_copy(update=self.bounds)
        bounded.file = self.file.model_copy(update={"policy": policy})
        bounded.scratch = self.scratch / "bounded"
        bounded.scratch.mkdir()
        for shared in [1.0] if self.horizontal else [1.0, 0.5]:
            try:
                bounded._rehearse(rows, shared, {})
            except InterlaceError as e:
                return str(e)
        return ""

    def _guards(self, leaves: Mapping[Kind, Leaving]) -> dict[Kind, str]:
        """What stands on the kinds that leave."""
        return {
            kind: " and ".join(build_guard(g).label for g in guards)
            for kind, guards in self.file.policy.guards.items()
            if kind in leaves
        }

    def _whole_length(self, rows: int) -> tuple[dict[tuple[str, Kind], Counts], dict[str, Claim]]:
        """What leaves over the run's whole length if the table had so many rows."""
        whole, claims = self._drawn_on(rows, 1.0)
        if self.horizontal:
            return whole, claims
        half, _ = self._drawn_on(rows, 0.5)
        nothing = np.zeros(2)
        keys = whole.keys() | half.keys()
        return {
            key: np.maximum(whole.get(key, nothing), half.get(key, nothing)) for key in keys
        }, claims

    def _drawn_on(
        self, rows: int, shared: float
    ) -> tuple[dict[tuple[str, Kind], Counts], dict[str, Claim]]:
        """The same, if partners held such a share of the people."""
        base = self._rehearse(rows, shared, {})
        sent = {key: found.copy() for key, found in base.sent.items()}
        claims = dict(base.claims)
        for name in {n for choice in self.choices for n in self._lengths(choice)}:
            second = self._rehearse(rows, shared, {name: 2})
            longest = max(self._lengths(c).get(name, 1) for c in self.choices)
            of = {c.name: self._lengths(c).get(name, 1) for c in self.choices}
            for key in base.sent.keys() | second.sent.keys():
                nothing = np.zeros(2)
                more = second.sent.get(key, nothing) - base.sent.get(key, nothing)
                length = of.get(key[0], longest)
                sent[key] = sent.get(key, nothing) + np.maximum(0, more) * (length - 1)
            for guard, claim in second.claims.items():
                first = base.claims.get(guard, Claim(0, 0))
                more = (np.array(claim) - np.array(first)).clip(min=0) * (longest - 1)
                claims[guard] = Claim(*(np.array(claims.get(guard, first)) + more).tolist())
        return sent, claims

    def _told(self) -> int:
        """How often this party tells, or is told, how the run goes."""
        each = sum(TOLD + max(self._lengths(c).values(), default=1) for c in self.choices)
        partners = len(self.contract.passive) if self.name == self.contract.active else 1
        return partners * (TOLD + len(self.contract.seeds) * each)

    def _lengths(self, choice: MethodChoice) -> dict[str, int]:
        """How long a method's training is at most, by the settings that say so."""
        default = vars(entry(choice.name).make(**_arguments(choice)))
        taken = accepted(choice.name, dict.fromkeys(LENGTHS))
        return {n: default[n] for n in LENGTHS if n in taken and isinstance(default.get(n), int)}

    def _rehearse(self, rows: int, shared: float, lengths: Mapping[str, int]) -> _Point:
        """Run the job on made-up partners, with every length 1 but for those given."""
        self.runs += 1
        folder = self.scratch / f"run{self.runs}"
        tables = self._tables(rows, shared)
        short = []
        for choice in self.choices:
            least = {n: min(lengths.get(n, 1), most) for n, most in self._lengths(choice).items()}
            made = {**choice.settings, **entry(choice.name).make.rehearsal, **least}
            short.append(MethodChoice(name=choice.name, **made))
        c = self.contract
        job = Job(
            name="rehearsal",
            parties=tables,
            active=c.active,
            method=short[0],
            compare=short[1:] or "none",
            seeds=c.seeds[:1],
            test=c.test,
            align=c.align,
        )
        results = runner.run(job, folder)
        sent: dict[tuple[str, Kind], Counts] = defaultdict(lambda: np.zeros(2))
        ledger = Ledger(folder / "parties" / self.name / "ledger.sqlite")
        for flow in ledger.summary():
            if flow.sender == self.name:
                session = flow.session.split("+")[0]
                tagged = {f"{choice.name}-{c.seeds[0]}": choice.name for choice in self.choices}
                for tag, choice_name in tagged.items():
                    if session == tag or session.startswith(f"{tag}-"):
                        session = choice_name
                found = np.array([flow.messages, flow.bytes_after], dtype=np.float64)
                sent[session, Kind(flow.kind)] += found
        ledger.close()
        told = (p.privacy for p in results.parties if p.name == self.name)
        privacy = next(told, {})  # of an arbiter there is nothing to tell
        claims = {
            guard: Claim(float(of["releases"]), float(of["epsilon"]))
            for guard, of in privacy.items()
            if "epsilon" in of
        }
        return _Point(sent, claims)

    def _tables(self, rows: int, shared: float) -> dict[str, PartyFile]:
        """The party's own file, and those of partners made up."""
        file = self.scratch / f"own-{rows}.feather"
        frame = self.party.frame
        if self.blind and not self.horizontal:
            frame = pl.DataFrame({"id": range(BLIND_ROWS)})
        if rows < len(self.party):
            frame = frame[np.linspace(0, len(self.party) - 1, rows).astype(np.int64)]
        if not self.blind:
            frame.write_ipc(file)
        own = self.file.model_copy(update={"table": None if self.blind else str(file)})
        files = {}
        for i, name in enumerate(self.contract.parties):
            files[name] = own if name == self.name else self._partner(name, i, frame, shared)
        choice = self.contract.method
        if self.contract.arbiter not in (None, self.name):
            files[self.contract.arbiter] = PartyFile()
        elif self.contract.scores and build_method(choice.name, choice.settings).helped:
            files[ARBITER] = PartyFile()
        return files

    def _partner(self, name: str, number: int, frame: pl.DataFrame, shared: float) -> PartyFile:
        """A partner whose table is made up."""
        rng = np.random.default_rng(number)
        path = self.scratch / f"{name}-{frame.height}-{shared}.feather"
        weights = Policy(allow_also=frozenset({Kind.MODEL_WEIGHTS}))
        if self.horizontal and not self.blind:  # the same columns, of other people
            frame[rng.integers(0, frame.height, frame.height)].write_ipc(path)
            return self.file.model_copy(update={"table": str(path), "policy": weights})
        rows = BLIND_ROWS if self.blind else frame.height
        width = 16 if self.blind else max(1, len(self.party.columns))
        made = pl.DataFrame(rng.normal(size=(rows, width)), schema=[f"x{i}" for i in range(width)])
        label = None
        if name == self.contract.active or (self.blind and self.horizontal):
            label = "label"
            bad = self.contract.method.settings.get("bad")
            labels = _labels(rng, rows, self.contract.classes, bad)
            made = made.with_columns(pl.Series(label, labels))
        id_rule: Any = None
        if not self.horizontal:
            id_rule = IdRule(columns=["id"]) if self.blind else self.party.id_rule
            made = pl.concat(
                [_people(frame.select(id_rule.columns), shared), made], how="horizontal"
            )
        made.write_ipc(path)
        return PartyFile(table=str(path), id=id_rule, label=label, policy=weights)

    def _privacy(self, kinds: set[Kind], claims: Mapping[str, Claim]) -> dict[str, Any]:
        """What the party's guards can claim for the whole run, all receivers together."""
        due = kinds - NO_CLAIM_DUE
        if self.name == self.contract.active and self.contract.scores is None:
            due.discard(Kind.ROW_SELECTION)  # batches are drawn at random, not from the data
        epsilon = delta = 0.0
        short = []
        for whose, claim in claims.items():
            kind = Kind(whose.split(" to ")[0])
            for guard in chain(*map(build_guard, self.file.policy.guards[kind])).guards:
                if isinstance(guard, Gaussian | Laplace) and whose.endswith(guard.label):
                    most = min(claim.releases, guard.releases or claim.releases)
                    if most < claim.releases:
                        short.append(
                            f"{kind} may be due {math.ceil(claim.releases):,} times of one person, "
                            f"and `releases` of its guard is {guard.releases:,}"
                        )
                    due.discard(kind)
                    if isinstance(guard, Gaussian):
                        counts = torch.tensor([math.ceil(most)])
                        guard.load_state({"counts": counts, "width": torch.tensor(1)})
                        epsilon += float(guard.account()["epsilon"])
                        delta += guard.delta
                    elif most:  # pure: it adds up by releases
                        epsilon += claim.epsilon * most / claim.releases
        trainings = len(self.contract.seeds) * len(self.choices)
        return {
            "epsilon": None if due else epsilon * trainings,
            "delta": delta * trainings,
            "without_claim": sorted(due),
            "short": short,
        }

    def _assumed(self, whole: bool) -> list[str]:
        """What the figures rest on, in plain words."""
        said = [
            "rehearsed with one and two of each of "
            + (
                ", ".join(sorted({n for c in self.choices for n in self._lengths(c)}))
                or "its steps"
            )
            + ", and drawn on in a straight line to the length that the job allows; a training "
            "that stops early sends less",
            f"with {MARGIN - 1:.0%} and {FRAME // 1024} KiB a kind added for what hangs on the "
            "partners' data",
        ]
        if not whole:
            said.append(f"on {ROWS:,} and {ROWS // 2:,} of the table's rows, drawn on to all")
        if self.blind:
            said.append(
                "without a table there is no telling the others' columns: only the kinds "
                "are limited, not their bytes"
            )
        elif not self.horizontal:
            said.append(
                "as if every partner held all, or half, of your people; for blinded ids, as if it "
                f"had up to {PARTNER} times as many"
            )
        if self.contract.classes is None and self.name != self.contract.active:
            said.append("as if the label had two classes, since the contract does not say")
        return said


class _Scores(_Rehearsal):
    """People are scored with what a rehearsed training has learnt: one at a time, which takes the
    most of each; so many as are agreed take no more than so many times that. Those of a table are
    matched first, and take what one does for every batch, and what one more does for each."""

    def plan(self) -> Plan:
        """Rehearse, and draw the lines on."""
        scores, method = self.contract.scores, self.contract.method.name
        assert scores is not None
        if self.horizontal:
            raise JobError(
                f"'{method}' leaves the whole model at each party, so no partner need be asked"
            )
        rows = min(len(self.party), ROWS)
        self.answers = 0
        sent, claims = self._drawn_on(rows, 1.0)
        passive = self.name != self.contract.active
        if passive and not self.answers:
            raise JobError(
                f"'{self.name}' cannot count the people that it answers for where "
                f"'{method}' scores, so it scores nobody over sites yet"
            )
        batch, people = scores.batch, scores.people
        if batch is None:
            times: dict[str, float] = {"open": OPENINGS, "ask": people}
            told = TOLD * OPENINGS
        else:
            rounds = math.ceil(people / batch)
            larger = max(1.0, people / rows, len(self.party) / rows) * PARTNER
            times = {"match": larger, "open": 1, "ask": rounds, "more": people - rounds}
            times = {step: TWICE * often for step, often in times.items()}
            told = TWICE * (TOLD + rounds)
        total: dict[Kind, Counts] = defaultdict(lambda: np.zeros(2))
        for (step, kind), found in sent.items():
            total[kind] = total[kind] + found * times[step]
        told *= 1 if passive else len(self.contract.passive)
        total[Kind.CONTROL] = total[Kind.CONTROL] + np.array([told, told * TOLD_BYTES])
        leaves = {
            kind: Leaving(
                messages=math.ceil(messages * MARGIN), bytes=math.ceil(size * MARGIN) + FRAME
            )
            for kind, (messages, size) in sorted(total.items(), key=lambda item: -item[1][1])
        }
        asked = people if batch is None else TWICE * people
        # Whom of all these people the questions are about is the driver's choice: all may be one.
        # A table's are asked about in turn; the boundary holds the driver to that by their epsilon.
        of_one = people if batch is None else TWICE
        worst = {
            guard: Claim(claim.releases * of_one, claim.epsilon * of_one)
            for guard, claim in claims.items()
        }
        return Plan(
            run=self.contract.run,
            party=self.name,
            leaves=leaves,
            guards=self._guards(leaves),
            people=self.answers * asked if passive else None,
            rules=self.rules,
            assumed=[
                *_how_scored(scores),
                f"with {MARGIN - 1:.0%} and {FRAME // 1024} KiB a kind added",
            ],
            **self._privacy(set(total), worst),
        )

    def _rehearse(self, rows: int, shared: float, lengths: Mapping[str, int]) -> _Point:
        """What opening the conversation sends, and at most the question about one person."""
        training = super()._rehearse(rows, shared, lengths)
        trained = Trained.read(self.scratch / f"run{self.runs}")
        there = {name: str(file.table) for name, file in trained.job.parties.items()}
        federation = trained.simulate(there)
        assert isinstance(federation.engine, InProcess)
        party = federation.engine.parties[self.name]
        sent: dict[tuple[str, Kind], Counts] = {}
        before = _sent_by(party)
        people = trained.shared(federation)
        model = trained.model(trained.job.method.name, federation)
        claims: dict[str, dict[str, Any]] = {}
        steps = [("open", people[:0]), *(("ask", row) for row in people[:ONE_BY_ONE, None])]
        if together := self._together(len(people)):
            steps.append(("more", people[:together]))
        for step, some in steps:
            answered = party.boundary.people
            if len(some):
                model.outputs(federation.view(some))
            if step == "ask":
                self.answers = max(self.answers, party.boundary.people - answered)
                claims = claims or party.boundary.accounts()  # of one question
            now = _sent_by(party)
            for kind in now:
                found = now[kind] - before.get(kind, np.zeros(2))
                if step == "more":  # for each beside the first
                    found = (found - sent.get(("ask", kind), np.zeros(2))).clip(min=0)
                    found /= len(some) - 1
                sent[step, kind] = np.maximum(found, sent.get((step, kind), np.zeros(2)))
            before = now
        for one in federation.engine.parties.values():
            one.boundary.ledger.close()
        if together:
            matching = {k: found for (where, k), found in training.sent.items() if where == SESSION}
            sent |= {("match", kind): found for kind, found in matching.items()}
        return _Point(
            {key: found for key, found in sent.items() if found.any()},
            {
                guard: Claim(float(of["releases"]), float(of["epsilon"]))
                for guard, of in claims.items()
                if "epsilon" in of
            },
        )

    def _together(self, people: int) -> int:
        """How many of so many rehearsed people are asked about at once, as those of a table are."""
        scores = self.contract.scores
        if scores is None or scores.batch is None or people < 2:
            return 0
        rounds = math.ceil(scores.people / scores.batch)
        return max(2, min(people, math.ceil(scores.people / rounds)))


def _how_scored(scores: Scoring) -> list[str]:
    """What the figures rest on where people are scored."""
    if scores.batch is None:
        return [
            "rehearsed on made-up partners, people asked about one at a time, and drawn on in "
            f"a straight line to {scores.people:,}; more in one question take less",
            f"the conversation opened up to {OPENINGS:,} times, once at every start",
            "privacy counted as if every question were about one and the same person",
        ]
    return [
        "rehearsed on made-up partners, and drawn on in a straight line to "
        f"{scores.people:,} people, {scores.batch:,} at a time",
        "all of it twice, since a run that was killed asks again for what it had lost",
        f"to match them, as if a partner had up to {PARTNER} times as many people",
    ]


def _sent_by(party: Party) -> dict[Kind, Counts]:
    """Messages and bytes that a party has sent so far, by kind."""
    sent: dict[Kind, Counts] = defaultdict(lambda: np.zeros(2))
    for flow in party.boundary.ledger.summary():
        if flow.sender == party.name:
            sent[Kind(flow.kind)] += np.array([flow.messages, flow.bytes_after], dtype=np.float64)
    return dict(sent)


def _widths(value: Any) -> Iterator[int]:
    """Every whole number in a method's settings that can make something wide."""
    if isinstance(value, BaseModel | Method):
        value = vars(value)
    if isinstance(value, Mapping):
        value = [inner for name, inner in value.items() if name not in NOT_WIDE]
    if isinstance(value, list | tuple):
        for inner in value:
            yield from _widths(inner)
    elif isinstance(value, int):
        yield abs(value)


def _memory() -> int:
    """Bytes of memory that this machine, or its container, has."""
    has = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, ValueError):  # no container, or one without a limit
        has = min(has, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return has


def _arguments(choice: MethodChoice) -> dict[str, Any]:
    """A method's constructor arguments, as the catalogue would pass them."""
    return accepted(choice.name, choice.settings)


def _labels(rng: np.random.Generator, rows: int, classes: int | None, bad: Any) -> Any:
    """Made-up labels; ``bad`` is the name of a class that the method's settings give."""
    if classes == 1:
        return rng.normal(size=rows)
    drawn = rng.permutation(np.arange(rows) % (classes or 2))  # every class is there
    if bad is not None:
        other = f"not {bad}" if isinstance(bad, str) else type(bad)(not bad)
        return [bad if c else other for c in drawn]
    return drawn if classes in (None, 2) else [f"class {c}" for c in drawn]


def _people(ids: pl.DataFrame, shared: float) -> pl.DataFrame:
    """Ids of a made-up partner's people: the first of ours, and others."""
    others = ids.height - int(ids.height * shared)
    first = ids.columns[0]
    values = ids[first].to_list()
    for i in range(others):
        at = len(values) - 1 - i
        values[at] = f"~{at}" if isinstance(values[at], str) else -1 - at
    return ids.with_columns(pl.Series(first, values))
