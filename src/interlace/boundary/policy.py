"""What a party lets out: its own rules, which no partner and no job can widen."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from interlace.boundary.guards import build_guard, chain
from interlace.boundary.kinds import FORMS, NEVER_LEAVES, Kind
from interlace.errors import PolicyError

Encryption = Literal["none", "rlwe-fast", "rlwe-strict", "okamoto-uchiyama", "paillier"]
Names = frozenset[str]
Number = Annotated[int, Field(gt=0)]
MOST_HOURS = 30 * 24  # that a run over sites takes, waiting for partners included


class Budget(BaseModel):
    """What all runs together may tell of one person, at most (differential privacy, added up).

    Args:
        epsilon: The sum over all runs. It is kept in the party's own folder, so a run counts
            against it wherever it was driven from.
        delta: The sum over all runs of the probability with which that may fail.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    epsilon: float = Field(gt=0, allow_inf_nan=False)
    delta: float = Field(default=1e-4, ge=0, lt=1)


class Standing(BaseModel):
    """A standing rule: a run that keeps to all that it says is approved without asking anybody.

    Args:
        drivers: Parties that may drive such a run; no rule is for all.
        methods: Methods of such a run, and the baselines that are usual beside them.
        kinds: Kinds that may leave in it.
        purposes: What it may be for, by the job's `purpose`.
        max_bytes: Most bytes that may leave in it, by the disclosure plan.
        max_people: Most people that the partners may be asked about where a run scores people;
            without it, the rule is for trainings alone.
        runs_per_day: How many runs it approves in 24 hours.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    drivers: Annotated[Names, Field(min_length=1)]
    methods: Names | None = None
    kinds: frozenset[Kind] | None = None
    purposes: Names | None = None
    max_bytes: Number | None = None
    max_people: Number | None = None
    runs_per_day: Number | None = None


class Policy(BaseModel):
    """A party's rules for what may leave it, whom it trains with, and how much it answers.

    Args:
        allow: The kinds that may leave. By default every kind that a vertical method needs;
            ``model weights`` must be asked for, since in a vertical federation nobody needs them.
        allow_also: Kinds that may leave besides those, as ``[model weights]`` for most horizontal
            methods.
        guards: For a kind, the guards that every value of it passes before it leaves, in order,
            as ``[{"clip": {"norm": 1.0}}, {"gaussian": {"epsilon": 8.0, ...}}]``
            (see :mod:`interlace.boundary.guards`). Only kinds made of real numbers can be guarded.
        max_bytes: Most bytes that may leave in one run, all its trainings together; ``None`` sets
            no limit.
        max_bytes_of: The same for single kinds, as ``{embedding: 50000000}``.
        max_epsilon: Most that one run may tell of one person by what the guards claim, all
            trainings, kinds and receivers added up. Over sites a process of a run is held to its
            disclosure plan at least.
        max_rows: Most people that one answer may be about.
        max_people: Most people that the answers of one run may be about; who comes again counts
            again.
        max_requests: Most requests that are answered in one run.
        smallest_group: Fewest people that one answer, or one sum in it, may be about: no partner
            learns what holds for one person alone.
        min_bin_rows: Fewest people that a sum over a bin may be about, where trees are trained;
            ``smallest_group`` bounds it too. Smaller bins are merged.
        encryption: The schemes under which gradients, residuals and outcomes travel from the party
            or to it where a method encrypts them, and ``none`` if they may in clear too; ``None``
            stands for all.
        methods: Methods that the party takes part in, and the baselines that are usual beside them;
            ``None`` stands for all.
        partners: Parties that it trains with; ``None`` stands for all of the federation.
        purposes: What it takes part for: the job's ``purpose`` must be one of them.
        runs_per_day: Most runs over sites that may begin within 24 hours.
        asks_per_day: Most contracts of one partner that are looked at within 24 hours; others are
            refused unread, since each takes a rehearsal.
        idle_hours: How long a run over sites may go without a word of its driver. After that the
            party's process for it ends, and the run can go on when it is submitted again.
        budget: What all runs over sites together may tell of one person; it asks that a guard with
            a privacy claim stands on what leaves.
        approve: Standing rules, by any of which a run over sites is approved without asking. With
            none, every run waits for ``interlace approve``.
        stop_file: While this file is there, nothing leaves the party and nothing is answered. On
            real sites it is ``STOP`` in the party's folder.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    allow: frozenset[Kind] = frozenset(Kind) - NEVER_LEAVES - {Kind.MODEL_WEIGHTS}
    allow_also: frozenset[Kind] = frozenset()
    guards: dict[Kind, list[dict[str, dict[str, Any]]]] = Field(default_factory=dict)
    max_bytes: Number | None = None
    max_bytes_of: dict[Kind, Annotated[int, Field(ge=0)]] = Field(default_factory=dict)
    max_epsilon: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    max_rows: Number | None = None
    max_people: Number | None = None
    max_requests: Number | None = None
    smallest_group: Number | None = None
    min_bin_rows: Number | None = None
    encryption: frozenset[Encryption] | None = None
    methods: Names | None = None
    partners: Names | None = None
    purposes: Names | None = None
    runs_per_day: Number | None = None
    asks_per_day: Number = 100
    idle_hours: float = Field(default=48.0, gt=0, le=MOST_HOURS)
    budget: Budget | None = None
    approve: list[Standing] = Field(default_factory=list)
    stop_file: Path | None = None

    def objection(
        self, methods: Iterable[str], partners: Iterable[str], purpose: str
    ) -> str | None:
        """Why the party takes no part in a job, or ``None``.

        The driver reads it, so it names the setting and not what else stands there.

        Args:
            methods: The methods' names.
            partners: The other parties.
            purpose: What the job is for.
        """
        if self.methods is not None and (others := sorted(set(methods) - self.methods)):
            return f"its policy takes no part in '{others[0]}' (`methods`)"
        if self.partners is not None and (others := sorted(set(partners) - self.partners)):
            return f"its policy does not train with '{others[0]}' (`partners`)"
        if self.purposes is not None and purpose not in self.purposes:
            asked = f"'{purpose}'" if purpose else "a job that does not say what it is for"
            return f"its policy is not for {asked} (`purposes`)"
        return None

    @property
    def allowed(self) -> frozenset[Kind]:
        """Every kind that may leave."""
        return self.allow | self.allow_also

    @model_validator(mode="after")
    def _no_policy_allows_records(self) -> Self:
        asked = sorted(k.value for k in self.allowed & NEVER_LEAVES)
        if asked:
            raise ValueError(f"no policy can allow {' or '.join(asked)} to leave a party")
        return self

    @model_validator(mode="after")
    def _guards_exist(self) -> Self:
        for kind, guards in self.guards.items():
            if kind in NEVER_LEAVES:
                raise ValueError(f"{kind} never leave a party, so no guard can stand before them")
            if FORMS[kind].numbers != "float":
                raise ValueError(f"{kind} cannot be guarded: guards change real numbers alone")
            try:
                chain(*map(build_guard, guards))
            except PolicyError as e:
                raise ValueError(f"the guards of {kind}: {e}") from e
        return self
