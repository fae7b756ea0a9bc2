"""What every horizontal method begins with: the same columns, one scaling, one label.

The party that drives (the server) may hold rows itself, as one client among others, or none at
all. No ids are matched: a person missing at one party is a missing row and nothing else. ::

    server                                              every client
      │ ── meet(terms) ───────────────────────────────► │   keeps rows aside for itself
      │ ◄──────────── number of columns, label's type ── │
      │ ── schema(from which column on) ──────────────► │
      │ ◄───────────────────── names and types ───────── │   refused with the differences, if any
      │ ── sums(types) ───────────────────────────────► │
      │ ◄────────────── count, gaps, sum by column ───── │
      │ ── squares(means) ────────────────────────────► │
      │ ◄─────────────── centred squares by column ───── │
      │ ── agree(scaling, label) ─────────────────────► │   scales its columns, codes its labels
      │ ◄───────────────────────── numbers of rows ───── │
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from interlace.boundary.kinds import Ciphertext, Control, Histogram, Metric, ModelWeights
from interlace.data.features import FeaturePlan
from interlace.data.labels import LabelPlan
from interlace.errors import DataError, JobError, Refused
from interlace.federation import Federation
from interlace.methods.base import keep_aside
from interlace.methods.horizontal import schema as tables
from interlace.methods.horizontal.schema import FEWEST
from interlace.methods.horizontal.secure import Masks
from interlace.methods.objective import Objective
from interlace.models import seed_for
from interlace.party import (
    Party,
    PassiveSide,
    Peer,
    State,
    operation,
    read_state,
    write_state,
)

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound=PassiveSide)


class Agreement(BaseModel):
    """What the parties agree on about their tables.

    Args:
        validation: Share of each client's rows kept aside to choose the best round.
        test: Share of each client's rows that no model learns from, for ``evaluate(part="test")``.
        classes: The label's classes, when no party is to say which of them it has.
        levels: Known levels of categories, by column: each gets a code of its own.
        buckets: Codes for all other levels, by a hash of their text.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    validation: float = Field(default=0.1, ge=0, lt=1)
    test: float = Field(default=0.0, ge=0, lt=1)
    classes: tuple[bool | int | str, ...] | None = None
    levels: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    buckets: int = Field(default=64, ge=1)


class Terms(BaseModel):
    """What the server tells a client first."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    agreement: Agreement
    supervised: bool
    seed: int


class TableSide(PassiveSide):
    """What a client answers before the first round: its columns, their scaling, the label."""

    terms: Terms
    plan: FeaturePlan
    label_plan: LabelPlan | None = None
    objective: Objective

    def __init__(self, party: Party, partner: str) -> None:
        super().__init__(party, partner)
        self.rows = np.arange(len(party), dtype=np.int64)

    @operation
    def meet(self, terms: Control) -> Control:
        """Keep rows aside, and say how many columns there are and what the label is."""
        self.terms = Terms.model_validate(terms)
        label, known, strata = None, self.rows, None
        if self.terms.supervised:
            known = tables.labelled(self.party, self.rows)
            given = self.terms.agreement.classes is not None
            label = {"type": "given"} if given else tables.describe_label(self.party, known)
            strata = tables.strata_of(self.party, known)
        if not len(known):
            raise DataError(
                "it has no row to learn from",
                party=self.party.name,
                way_out="Check its label column, or leave this party out",
            )
        self._keep_aside(known, strata)
        self._schema = tables.schema_of(self.party, self._learn_from)
        return {"columns": len(self._schema), "label": label}

    @operation
    def schema(self, page: Control) -> Control:
        """Names and types of the columns from one on."""
        return tables.page_of(self._schema, int(page["start"]))

    @operation
    def sums(self, types: Control) -> Histogram:
        """Count, gaps and sum of each column that is scaled; (lines, 3)."""
        codes = str(types["types"])
        if len(codes) != len(self._schema) + 1:
            raise Refused(f"party '{self.party.name}' has {len(self._schema)} columns")
        self._types = tables.types_from(codes, self._schema)
        self._lines = tables.columns_to_sum(self.party, codes, self._learn_from)
        return tables.sums(self._lines)

    @operation
    def squares(self, means: Histogram) -> Histogram:
        """Squared distances from the common means; (lines,)."""
        if means.shape != (len(self._lines),):
            raise Refused(f"{len(self._lines)} means were due at party '{self.party.name}'")
        found = tables.squares(self._lines, means)
        self._lines = []
        return found

    @operation
    def agree(self, scaling: Histogram, label: Control) -> Control:
        """Take the common scaling and label; say how many rows there are of each part."""
        agreement = self.terms.agreement
        self.plan = tables.plan_from(
            self.party.name,
            self._types,
            scaling,
            party=self.party,
            rows=self._learn_from,
            levels=agreement.levels,
            buckets=agreement.buckets,
        )
        self.label_plan = None
        if self.terms.supervised:
            self.label_plan = LabelPlan.model_validate({**label, "party": self.party.name})
            self.objective = objective_of(self.label_plan, scaling)
        return {name: len(rows) for name, rows in self.parts.items()}

    @property
    def _learn_from(self) -> tables.Index:
        return self.parts["train"].numpy()

    def _keep_aside(self, known: tables.Index, strata: Tensor | None) -> None:
        """Draw this client's parts, which nobody else sees."""
        agreement, rows = self.terms.agreement, torch.from_numpy(known)
        seed = seed_for(self.terms.seed, "parts", self.party.name)
        rest, test = keep_aside(len(rows), agreement.test, seed, strata)
        share = agreement.validation / (1 - agreement.test)
        left = None if strata is None else strata[rest]
        train, validation = keep_aside(len(rest), share, seed, left)
        self.parts = {
            "train": rows[rest][train],
            "validation": rows[rest][validation],
            "test": rows[test],
            "all": rows,
        }


class HorizontalSide(TableSide):
    """What a client answers whatever the model: keys for masks, figures, keeping a model."""

    masks: Masks
    final: Tensor | None = None

    @operation
    def public_key(self) -> Ciphertext:
        """A fresh public key for secure aggregation; uint8 (32,)."""
        self.masks = Masks()
        return self.masks.public_key

    @operation
    def keys(self, everyone: Ciphertext) -> None:
        """Take all clients' public keys; uint8 (clients, 32)."""
        self.masks.meet(everyone)

    @operation
    def evaluate(self, weights: ModelWeights, part: Control) -> Metric:
        """Sums over a part of one's rows, from which loss and accuracy (or R²) follow."""
        rows = self.parts.get(part["name"], torch.empty(0, dtype=torch.int64))
        if len(rows) < FEWEST:
            return {"rows": 0}
        sums = self.figures(weights, rows)
        every = self.parts.get("all", rows)
        if part["name"] == "test" or len(self.parts.get("train", every)) == len(every):
            return sums
        # Of one part alone: of several, a class's few rows in another would follow by difference.
        return {key: sums[key] for key in sums if not key.startswith(("rows ", "hits "))}

    @operation
    def finish(self, weights: ModelWeights) -> None:
        """Take the finished model."""
        self.final = weights.clone()

    @operation
    def save(self, model: Control) -> None:
        """Keep the finished model and its preprocessing in this party's own folder."""
        if self.final is None:
            raise Refused(f"party '{self.party.name}' has no finished model to keep")
        write_state(self.party.path("models", model["name"]), self.finished(self.final))

    @operation
    def load(self, model: Control) -> None:
        """Take a finished model."""
        self.take_finished(read_state(self.party.path("models", model["name"])))

    # -- what no partner can ask for ------------------------------------------------------------

    def logits(self, weights: Tensor, x: Tensor) -> Tensor:
        """What the model says of some rows; (n, outputs)."""
        raise NotImplementedError

    def figures(self, weights: Tensor, rows: Tensor) -> dict[str, float]:
        """Sums over rows: of the loss, and of hits or, for a regression, of squares."""
        with torch.no_grad():
            said = self.logits(weights, self.x.index_select(0, rows))
        return figures(said, self.y.index_select(0, rows), self.objective)

    def outputs(self) -> NDArray[np.float64]:
        """What the finished model says of all of one's own rows, as for
        :meth:`~interlace.methods.base.Method.outputs`; it stays here."""
        assert self.final is not None
        with torch.no_grad():
            return self.objective.probabilities(self.logits(self.final, self.x))

    def finished(self, weights: Tensor) -> State:
        """A finished model with all that it takes to use it."""
        meta: dict[str, Any] = {"plan": self.plan.to_json(), "label_plan": None}
        if self.label_plan is not None:
            meta["label_plan"] = self.label_plan.to_json()
            meta["objective"] = self.objective.to_json()
        return State({"weights": weights}, meta)

    def take_finished(self, state: State) -> None:
        """Take back what :meth:`finished` gave."""
        self.plan = FeaturePlan.from_json(state.meta["plan"])
        if state.meta["label_plan"] is not None:
            self.label_plan = LabelPlan.from_json(state.meta["label_plan"])
            self.objective = Objective.from_json(state.meta["objective"])
        self.final = state.tensors["weights"]
        self.take_all(self.party)

    def take_all(self, party: Party) -> None:
        """Forget the former rows: all of another table's are neither trained on nor kept aside."""
        self.rows = np.arange(len(party), dtype=np.int64)
        known = tables.labelled(party, self.rows) if party.has_label else self.rows
        self.parts = {"all": torch.from_numpy(known)}

    def forget_people(self) -> None:
        """The agreed plan stays, the former table's features go."""
        for cached in ("x", "y"):
            self.__dict__.pop(cached, None)
        self.take_all(self.party)

    @cached_property
    def x(self) -> Tensor:
        """The whole table as a model reads it; never leaves."""
        x = self.plan.transform(self.party.frame)
        self.party.boundary.protect(x)
        return x

    @cached_property
    def y(self) -> Tensor:
        """The labels of the whole table; never leave."""
        assert self.label_plan is not None
        y = self.label_plan.encode(self.party.label_series)
        self.party.boundary.protect(y)
        return y


def objective_of(label: LabelPlan, scaling: Tensor) -> Objective:
    """The loss that follows from the agreed label; the last line of the scaling is the label's."""
    if label.task == "regression":
        return Objective("regression", 1, None, float(scaling[-1, 0]), float(scaling[-1, 1]) or 1.0)
    return Objective(label.task, len(label.classes))


def figures(logits: Tensor, y: Tensor, objective: Objective) -> dict[str, float]:
    """Sums over rows: of the loss, and of hits or, for a regression, of squares; of each class the
    rows and the hits, where these are of :data:`FEWEST` rows or more, and the rest is too."""
    out = {"rows": float(len(y)), "loss": objective.loss(logits, y).item() * len(y)}
    if objective.task == "regression":
        error = logits[:, 0].double() * objective.scale + objective.centre - y
        out["squared_error"] = float(error.square().sum())
        out["sum"], out["squares"] = float(y.double().sum()), float(y.double().square().sum())
    else:
        hits = logits.argmax(1) == y
        out["hits"] = float(hits.sum())
        rows = torch.bincount(y, minlength=objective.outputs)
        told = rows >= FEWEST
        if 0 < rows[~told].sum() < FEWEST:  # who knows the other classes knows the rest by it
            told[:] = False
        for c in range(objective.outputs):
            out[f"rows {c}"] = float(rows[c]) if told[c] else 0.0
            out[f"hits {c}"] = float(hits[y == c].sum()) if told[c] else 0.0
    return out


class Own:
    """The server's own rows: they answer as a client does, without a message."""

    def __init__(self, side: PassiveSide) -> None:
        self.side = side
        self.name = side.party.name

    def ask(self, op: Callable[Concatenate[S, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Carry out an operation on the server's own rows."""
        return op(self.side, *args, **kwargs)  # type: ignore[arg-type]

    def start(
        self, op: Callable[Concatenate[S, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> Callable[[], R]:
        """Carry out an operation once its answer is waited for: clients are at work by then."""
        return lambda: self.ask(op, *args, **kwargs)

    def post(
        self, op: Callable[Concatenate[S, P], None], *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """Carry out an operation that gives nothing back."""
        self.ask(op, *args, **kwargs)


@dataclass
class Meeting:
    """What the server knows once all agree.

    Attributes:
        clients: Whom to ask, by name; the server's own rows first, if it has any.
        plan: The common preprocessing.
        label_plan: The common label; ``None`` for a method without one.
        objective: The loss on it.
        scaling: Mean, spread and gaps by line, the label's last.
        rows: How many rows each client has of each part.
        notes: Doubts about the tables.
    """

    clients: dict[str, Peer | Own]
    plan: FeaturePlan
    label_plan: LabelPlan | None
    objective: Objective | None
    scaling: Tensor
    rows: dict[str, dict[str, int]]
    notes: list[str] = field(default_factory=list)

    def supplied(self, part: str = "train") -> dict[str, int]:
        """The clients that have rows of a part, and how many."""
        return {name: n for name, parts in self.rows.items() if (n := int(parts.get(part, 0)))}


def meet(
    fed: Federation,
    clients: dict[str, Peer | Own],
    agreement: Agreement,
    *,
    supervised: bool = True,
) -> Meeting:
    """Check all clients' tables, and agree on scaling and label.

    Args:
        fed: The federation.
        clients: Whom to ask; see :func:`clients_of`.
        agreement: What was agreed beforehand.
        supervised: Whether there is a label at every client.

    Raises:
        DataError: a party's columns or label differ; the message lists how.
        PolicyError: a party's policy keeps these figures at home.
    """
    side = TableSide
    terms = Terms(agreement=agreement, supervised=supervised, seed=fed.seed)
    told = {n: c.ask(side.meet, terms.model_dump(mode="json")) for n, c in clients.items()}
    schemas = {n: _schema(c, int(told[n]["columns"])) for n, c in clients.items()}
    reference = fed.active.name if fed.active.name in clients else None
    types = tables.agreed_types(schemas, reference)
    label = None
    if supervised:
        labels = {n: answer["label"] for n, answer in told.items()}
        label = tables.agreed_label(labels, agreement.classes, fed.active.task, fed.active.name)
    codes = tables.codes_of(types, label is not None and label.task == "regression")
    totals = {n: c.ask(side.sums, {"types": codes}) for n, c in clients.items()}
    names = _lines(types)
    _same_shape(totals, (len(names), 3))
    total = sum(totals.values(), torch.zeros(len(names), 3, dtype=torch.float64))
    means = total[:, 2] / total[:, 0].clamp(min=1)
    squared = {n: c.ask(side.squares, means) for n, c in clients.items()}
    _same_shape(squared, (len(names),))
    scaling = tables.scaling_of(
        total, sum(squared.values(), torch.zeros(len(names), dtype=torch.float64))
    )
    said = {} if label is None else label.model_dump(mode="json")
    rows = {n: c.ask(side.agree, scaling, said) for n, c in clients.items()}
    notes = tables.doubtful_units(totals, squared, names)
    for note in notes:
        warnings.warn(note, stacklevel=3)
    own = next((c.side for c in clients.values() if isinstance(c, Own)), None)
    if isinstance(own, TableSide):
        plan = own.plan
    else:
        plan = tables.plan_from(
            fed.active.name,
            types,
            scaling,
            party=None,
            rows=np.empty(0, dtype=np.int64),
            levels=agreement.levels,
            buckets=agreement.buckets,
        )
    objective = None if label is None else objective_of(label, scaling)
    return Meeting(clients, plan, label, objective, scaling, rows, notes)


def clients_of(
    fed: Federation, side: type[PassiveSide], peers: Mapping[str, Peer]
) -> dict[str, Peer | Own]:
    """Everyone who can have rows: the server itself, if it has columns, and its peers."""
    clients: dict[str, Peer | Own] = {}
    if fed.active.columns:
        own = side(fed.active, fed.active.name)
        if isinstance(own, TableSide):
            own.rows = np.setdiff1d(fed.rows, fed.held_out)
        clients[fed.active.name] = Own(own)
    clients.update(peers)
    if not clients:
        raise JobError("there is no client to learn from")
    return clients


def _schema(client: Peer | Own, columns: int) -> tables.Schema:
    found: tables.Schema = {}
    while len(found) < columns:
        page: list[tuple[str, str]] = client.ask(TableSide.schema, {"start": len(found)})["columns"]
        if not page:
            raise Refused(f"party '{client.name}' promised {columns} columns and named fewer")
        found.update(dict(page))
    return found


def _lines(types: tables.Schema) -> list[str]:
    """What each line of the sums is about."""
    out: list[str] = []
    for name, kind in types.items():
        channels = int(kind.removeprefix("image ").split("×")[0]) if kind[:5] == "image" else 1
        out += [name] * channels
    return [*out, "the label"]


def _same_shape(answers: Mapping[str, Tensor], due: tuple[int, ...]) -> None:
    for name, answer in answers.items():
        if tuple(answer.shape) != due:
            raise Refused(
                f"party '{name}' answered with sums of shape {tuple(answer.shape)}, {due} was due"
            )
