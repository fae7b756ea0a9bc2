"""Online scores at the active party: people of its table one request at a time, by a deadline.

The people are those of the aligned tables. An id never goes to a partner: the active party looks
the person up in its own table, and asks the partners by the position in the order that both agreed
on when they matched their people. Whoever is not in the table has not been matched, so no partner
can be asked about them: their row, sent with the request, is scored by the active party's own
model. The same model stands in where a partner does not hold the person, fails, or is late; every
answer says who gave it and why.

Parties, networks and ledgers are not made for several threads, so one thread asks the partners.
Requests that arrive while it waits are joined into its next question.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr

from interlace.boundary import Ledger
from interlace.data.ids import IdRule, keys_of
from interlace.errors import DataError, InterlaceError, JobError, PolicyError
from interlace.federation import Federation, Rows
from interlace.methods import Method
from interlace.methods.catalogue import is_horizontal
from interlace.party import Party
from interlace.serve.batch import Trained, flush_ledgers

log = logging.getLogger(__name__)

Part = StrictStr | StrictInt
Id = Part | dict[str, Part]
Number = Annotated[float, Field(allow_inf_nan=False)]
Cell = StrictStr | StrictBool | StrictInt | Number | None
Said = StrictBool | StrictInt | Number | StrictStr | dict[str, int]
Reason = Literal["not shared", "deadline", "partner failed", "row given", "unknown id"]
Outputs = NDArray[np.float64]

LONGEST_DEADLINE_MS = 60_000
QUIET = 0.05  # seconds without a question after which the ledgers are written


class Question(BaseModel):
    """Whom to score: people of the active party's table by their ids, new ones by their rows."""

    model_config = ConfigDict(extra="forbid")

    ids: list[Id] = Field(
        default_factory=list,
        description="Ids as the table has them; where several columns make the id, an object "
        "with each of them.",
    )
    rows: list[dict[str, Cell]] = Field(
        default_factory=list,
        description="The active party's columns of people who are not in its table; `null` is a "
        "missing value. One that the model does not read may be left out; the id may stand there "
        "too.",
    )
    deadline_ms: float | None = Field(
        default=None,
        gt=0,
        le=LONGEST_DEADLINE_MS,
        description="How long the partners may take; by default as the service was started.",
    )


class Answer(BaseModel):
    """What is said of one person, by whom, and why not by the joint model."""

    id: Id | None = Field(description="As the request has it; `null` for a row without one.")
    prediction: Said | None = Field(
        default=None, description="A class or an estimate; 0 or 1 for each of several labels."
    )
    probabilities: dict[str, float] | None = Field(
        default=None, description="By class or label; `null` for an estimate."
    )
    answered_by: Literal["joint", "joint in part", "active alone", "nobody"]
    reason: Reason | None = Field(default=None, description="Why it is not the joint answer.")


class Answers(BaseModel):
    """One answer a person: those asked by id in their order, then the rows in theirs."""

    answers: list[Answer]


class InputError(InterlaceError):
    """A question cannot be answered as it stands; ``field`` is where, and no value is repeated."""

    def __init__(self, field: str, problem: str) -> None:
        self.field, self.problem = field, problem
        super().__init__(f"{field}: {problem}")


class _Scored(NamedTuple):
    """Outputs (n, ...) and the model that they are of."""

    method: Method
    outputs: Outputs


@dataclass
class _Ask:
    """People about whom the partners are to be asked; the result is ``None`` if they failed."""

    rows: Rows
    future: Future[_Scored | None] = field(default_factory=Future)


class Scorer:
    """Answers questions about people, with the partners' help where that can be had in time.

    Use it in a ``with``: on entering, the partners take up their parts of the model.

    Args:
        federation: The active party, its matched people and the engine that reaches the partners.
        join: Opens the conversation with the partners and gives the trained joint model. It is
            called again after partners failed, since one that was restarted has forgotten.
        shared: Rows of the people whom the joint model can score.
        alone: The trained model that needs no partner, if there is one. It scores the whole table
            at once when the scorer is made, so that a fallback takes no time.
        in_part: Rows of those of ``shared`` whom some partner lacks.
        most: Most people in one question, and in one message to a partner.

    Attributes:
        trouble: Why the partners could not answer when they were asked last, or ``None``.
    """

    def __init__(
        self,
        federation: Federation,
        join: Callable[[], Method],
        shared: Rows,
        alone: Method | None,
        *,
        in_part: Rows | None = None,
        most: int = 1000,
    ) -> None:
        self.federation, self.most = federation, most
        self.trouble: str | None = None
        self._join = join
        self._joint: Method | None = None
        self._who = {key: row for row, key in enumerate(federation.active.keys.values)}
        self._shared = np.zeros(len(federation.active), dtype=bool)
        self._shared[shared] = True
        self._in_part = {*(() if in_part is None else in_part.tolist())}
        self._alone = alone
        if alone is not None:
            everybody = federation.view(np.arange(len(federation.active)))
            self._fallback = alone.outputs(everybody)
            self._newcomers = _newcomers(federation)
        self._lone = threading.Lock()  # the model for rows that are given is one too
        self._waiting: deque[_Ask] = deque()
        self._news = threading.Condition()
        self._over = False
        self._random = np.random.default_rng()
        self._worker = threading.Thread(target=self._work, name="partners", daemon=True)

    def __enter__(self) -> Self:
        try:
            self._joint = self._join()
        except InterlaceError as e:
            if self._alone is None:
                raise
            self._failed(e)
        self._worker.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Let the question that is out be answered, and write the ledgers."""
        with self._news:
            self._over = True
            self._news.notify()
        self._worker.join(timeout=5)  # a partner that hangs does not hold us

    @property
    def has_joint(self) -> bool:
        """Whether the partners hold their parts of the model, as far as is known."""
        return self._joint is not None

    @property
    def has_alone(self) -> bool:
        """Whether there is a model that stands in for the joint one."""
        return self._alone is not None

    async def answer(self, question: Question, deadline: float) -> list[Answer]:
        """Answers for everybody in a question.

        Nobody is asked before the whole question is found to be in order.

        Args:
            question: The people.
            deadline: Seconds that the partners may take.

        Raises:
            InputError: the question is empty or too long, an id has another form than the table's,
                or a row does not fit the active party's columns.
        """
        people = len(question.ids) + len(question.rows)
        if not people:
            raise InputError("ids", "there is nobody to score; give `ids`, `rows` or both")
        if people > self.most:
            where = "ids" if len(question.ids) > self.most else "rows"
            raise InputError(where, f"{people:,} people are asked for; at most {self.most:,} may")
        rows = self._find(question.ids)
        newcomers = await asyncio.to_thread(self._score_given, question.rows)
        known = np.flatnonzero(rows >= 0)
        shared = known[self._shared[rows[known]]]
        joint, late = await self._ask(rows[shared], deadline)
        joined = dict(zip(shared.tolist(), _said(joint), strict=True)) if joint else {}
        lone = [i for i in known.tolist() if i not in joined] if self._alone else []
        stand_ins = dict(zip(lone, _said(self._table_alone(rows[lone])), strict=True))
        missed: Reason = "deadline" if late else "partner failed"
        answers = []
        for i, id in enumerate(question.ids):
            reason: Reason | None = None
            if rows[i] < 0:
                reason = "unknown id"
            elif i not in joined:
                reason = missed if self._shared[rows[i]] else "not shared"
            elif int(rows[i]) in self._in_part:
                reason = "not shared"
            answers.append(_answer(id, joined.get(i), stand_ins.get(i), reason))
        for row, said in zip(question.rows, _said(newcomers) or repeat(None), strict=False):
            answers.append(_answer(self._id_in(row), None, said, "row given"))
        return answers

    # -- people ---------------------------------------------------------------------------------

    def _find(self, ids: Sequence[Id]) -> Rows:
        """Rows of the active party's table, -1 for people who are not in it."""
        if not ids:
            return np.empty(0, dtype=np.int64)
        active = self.federation.active
        columns = active.id_rule.columns
        for i, id in enumerate(ids):
            if isinstance(id, dict):
                if set(id) != set(columns):
                    raise InputError(f"ids.{i}", f"an id has the columns {', '.join(columns)}")
            elif len(columns) != 1:
                raise InputError(
                    f"ids.{i}", f"an id is an object with the columns {', '.join(columns)}"
                )
        table = pl.DataFrame(
            {c: [str(id[c] if isinstance(id, dict) else id) for id in ids] for c in columns}
        )
        keys = keys_of(table, active.id_rule, party=active.name)
        return np.array([self._who.get(key, -1) for key in keys], dtype=np.int64)

    def _id_in(self, row: Mapping[str, Cell]) -> Id | None:
        """The id that stands in a row of a newcomer, if any."""
        columns = self.federation.active.id_rule.columns
        given = {c: row[c] for c in columns if isinstance(row.get(c), str | int)}
        if len(given) < len(columns):
            return None
        return next(iter(given.values())) if len(given) == 1 else given  # type: ignore[return-value]

    # -- the active party alone -----------------------------------------------------------------

    def _table_alone(self, rows: Rows) -> _Scored | None:
        if self._alone is None or not len(rows):
            return None
        return _Scored(self._alone, self._fallback[rows])

    def _score_given(self, rows: Sequence[Mapping[str, Cell]]) -> _Scored | None:
        """What the active party's own model says of newcomers.

        Raises:
            InputError: a column that the model reads is missing, one is unknown, or not what it was
                in training.
        """
        if not rows:
            return None
        table, lacking = _table(rows, self.federation), set()
        if self._alone is None:
            return None
        while True:  # which columns a model reads, it alone knows
            try:
                scored = self._newcomers_alone(table)
                break
            except DataError as e:
                if e.column is None or e.column in table.columns:
                    where = f"rows.{e.column}" if e.column else "rows"
                    raise InputError(where, e.problem) from None
                lacking.add(e.column)
                table = table.with_columns(pl.Series(e.column, [None] * len(rows)))
        for i, row in enumerate(rows):
            missing = sorted(lacking - row.keys())
            if len(missing) == 1:
                raise InputError(f"rows.{i}.{missing[0]}", "the column is missing")
            if missing:
                raise InputError(f"rows.{i}", f"these columns are missing: {', '.join(missing)}")
        return scored

    def _newcomers_alone(self, table: pl.DataFrame) -> _Scored:
        """What the active party's own model says of a table of newcomers.

        Raises:
            DataError: a column that it reads is not there, or not what it was in training.
        """
        assert self._alone is not None
        with self._lone:
            newcomers, party = copy.copy(self.federation), copy.copy(self._newcomers)
            party.columns = table.columns
            newcomers.active = party.with_table(table)
            newcomers = newcomers.view(np.arange(table.height))
            return _Scored(self._alone, self._alone.outputs(newcomers))

    # -- the partners ---------------------------------------------------------------------------

    async def _ask(self, rows: Rows, deadline: float) -> tuple[_Scored | None, bool]:
        """The joint answer, or ``None`` and whether that is because it came too late."""
        if not len(rows):
            return None, False
        ask = _Ask(rows)
        with self._news:
            self._waiting.append(ask)
            self._news.notify()
        done = asyncio.wrap_future(ask.future)
        try:
            # Whom nobody waits for any more, the partners are not asked about: this cancels it.
            return await asyncio.wait_for(done, deadline), False
        except TimeoutError:
            return None, True

    def _work(self) -> None:
        unwritten = False  # whether something may wait in the ledgers
        while not self._over:  # who waits still is answered by the deadline
            asks = self._together(QUIET if unwritten else None)
            # A disk takes longer than a round. So ledgers are written when it is quiet; before the
            # first round after that there is nothing to write, and their second begins anew.
            if not asks or not unwritten:
                self._flush()
            unwritten = bool(asks)
            if asks:
                self._answer(asks)
        self._flush()

    def _answer(self, asks: Sequence[_Ask]) -> None:
        found = self._round(np.concatenate([ask.rows for ask in asks]))
        ends = np.cumsum([len(ask.rows) for ask in asks])
        for ask, end in zip(asks, ends, strict=True):
            start = end - len(ask.rows)
            ask.future.set_result(found and _Scored(found.method, found.outputs[start:end]))

    def _together(self, seconds: float | None) -> list[_Ask]:
        """What waits to be asked, as far as it fits into one message; nothing where nothing came
        in so many seconds, or it is all over."""
        taken: list[_Ask] = []
        people = 0
        with self._news:
            self._news.wait_for(lambda: self._waiting or self._over, seconds)
            while self._waiting and people + len(self._waiting[0].rows) <= self.most:
                ask = self._waiting.popleft()
                if ask.future.set_running_or_notify_cancel():
                    taken.append(ask)
                    people += len(ask.rows)
        return taken

    def _round(self, rows: Rows) -> _Scored | None:
        """Ask the partners about some people, each once, in an order that tells nothing."""
        people, which = np.unique(rows, return_inverse=True)
        order = self._random.permutation(len(people))
        try:
            if self._joint is None:
                self._joint = self._join()
            self.federation.active.boundary.round += 1
            found = self._joint.outputs(self.federation.view(people[order]))
        except Exception as e:
            self._failed(e)
            return None
        if self.trouble is not None:
            log.warning("the partners answer again")
        self.trouble = None
        return _Scored(self._joint, found[np.argsort(order)[which]])

    def _failed(self, error: Exception) -> None:
        # The text of a foreign error may quote data.
        why = str(error) if isinstance(error, InterlaceError) else type(error).__name__
        if why != self.trouble:  # said once, however many questions it spoils
            log.warning("the partners do not answer: %s", why)
        self.trouble = why
        if not isinstance(error, PolicyError):  # a rule stays, and asking again costs messages
            self._joint = None

    def _flush(self) -> None:
        try:
            flush_ledgers(self.federation)
        except InterlaceError as e:  # the rows stay in memory until the disk takes them
            log.error("%s", e)


def open_run(
    run: str | Path,
    tables: Mapping[str, str | Path] | None = None,
    *,
    seed: int | None = None,
    most: int = 1000,
) -> Scorer:
    """The scorer of a finished run, with all parties in this process.

    Args:
        run: The run folder.
        tables: Newer tables of some parties, by name; the others' are those of the run. People who
            were matched before are not matched again.
        seed: Which training's models to use; by default the first seed's.
        most: Most people in one question, and in one message to a partner.

    Raises:
        JobError: the folder holds no trained model, or one that needs no partner to score.
        DataError: a table lacks a column that the models read.
    """
    trained = Trained.read(run, seed)
    if is_horizontal(trained.job.method.name):
        raise JobError(
            f"'{trained.job.method.name}' leaves the whole model at each party, so no partner need "
            "be asked; score people with `interlace predict`"
        )
    trained.check(tables or {})
    there = {name: file.table for name, file in trained.job.parties.items() if file.table}
    federation = trained.simulate({**there, **(tables or {})})
    return scorer(trained, federation, most=most)


def scorer(trained: Trained, federation: Federation, *, most: int = 1000) -> Scorer:
    """The scorer of a run whose federation is there, on whatever engine."""
    alone = trained.model(trained.stand_in, federation) if trained.stand_in else None
    return Scorer(
        federation,
        lambda: trained.model(trained.job.method.name, federation.without_conversations()),
        trained.shared(federation),
        alone,
        in_part=trained.in_part(federation),
        most=most,
    )


def _newcomers(federation: Federation) -> Party:
    """The active party for people without ids, apart from what the partners' thread uses."""
    party = copy.copy(federation.active)
    party.id_rule, party.categories = IdRule(columns=[]), ()
    party.record_in(Ledger(), seed=None)
    return party


def _table(rows: Sequence[Mapping[str, Cell]], federation: Federation) -> pl.DataFrame:
    """Rows as a table of those of the active party's columns that all of them have.

    Raises:
        InputError: a row has a column of another name, none is common to all, or one mixes types.
    """
    active = federation.active
    may = {*active.columns, *active.id_rule.columns}
    for i, row in enumerate(rows):
        if unknown := sorted(row.keys() - may):
            raise InputError(
                f"rows.{i}.{unknown[0][:60]}",
                f"no such column; there are {', '.join(active.columns)}",
            )
    columns = []
    for name in active.columns:
        if not all(name in row for row in rows):
            continue
        values = [row[name] for row in rows]
        decimals = pl.Float64 if any(isinstance(value, float) for value in values) else None
        try:
            columns.append(pl.Series(name, values, dtype=decimals))
        except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError):
            raise InputError(f"rows.{name}", "its values are of different types") from None
    if not columns:
        there = ", ".join(active.columns)
        raise InputError("rows", f"no column stands in all of them; there are {there}")
    return pl.DataFrame(columns)


def _said(scored: _Scored | None) -> list[dict[str, Any]]:
    """The decision on each person, and probabilities where there are classes."""
    if scored is None:
        return []
    plan = getattr(scored.method, "label_plan_", None)  # clusters have no label
    decided = scored.method.decide(scored.outputs).tolist()
    if plan is None or plan.task == "regression":
        return [{"prediction": value} for value in decided]
    classes = [str(c) for c in plan.classes]
    if plan.task == "multilabel":
        decided = [dict(zip(classes, values, strict=True)) for values in decided]
    return [
        {"prediction": value, "probabilities": dict(zip(classes, shares, strict=True))}
        for value, shares in zip(decided, scored.outputs.tolist(), strict=True)
    ]


def _answer(
    id: Id | None,
    joint: dict[str, Any] | None,
    alone: dict[str, Any] | None,
    reason: Reason | None,
) -> Answer:
    if joint is not None:
        return Answer(
            id=id, answered_by="joint in part" if reason else "joint", reason=reason, **joint
        )
    if alone is not None:
        return Answer(id=id, answered_by="active alone", reason=reason, **alone)
    return Answer(id=id, answered_by="nobody", reason=reason)
