"""What a run came to: written after every finished fit, read by the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from interlace.errors import JobError
from interlace.files import write_whole
from interlace.job.spec import Job, MethodChoice


class EpochResult(BaseModel):
    """One epoch of one fit."""

    model_config = ConfigDict(ser_json_inf_nan="constants")  # a diverged loss is a result too

    number: int
    loss: float
    validation: float | None
    seconds: float
    # Of a round of federated averaging, see `interlace.methods.horizontal.Round`.
    clients: int | None = None
    dropped: int | None = None
    distance: float | None = None
    angle: float | None = None
    dissimilarity: float | None = None


class KeptResult(BaseModel):
    """Rows of one party without a label that a method learnt from as if they had one.

    ``of`` is how many there were to choose from. Of ``known`` of the ``kept`` ones the simulation
    knows the true class, and ``right`` of these were taken for it.
    """

    party: str
    of: int
    kept: int
    known: int = 0
    right: int = 0


class FitResult(BaseModel):
    """One model, one seed.

    ``metrics`` holds the utility on the held-out people by name (``auc``, ``ks``, ``accuracy``,
    ``log_loss``, ``lift``, ``calibration_error``; ``r2``, ``rmse``, ``mae`` for a regression, and
    ``d2``, ``deviance`` for one by a deviance).
    ``omitted`` says why a usual measure is not among them.
    ``by_party`` holds, in a horizontal federation, the metrics on each party's own held-out people.
    ``curves`` holds points (x, y) to draw: ``roc``, ``lift``, ``calibration``.
    ``kept`` has a line for each party whose rows without a label the method chose from.
    """

    model_config = ConfigDict(ser_json_inf_nan="constants")

    seed: int
    metrics: dict[str, float]
    omitted: dict[str, str] = Field(default_factory=dict)
    curves: dict[str, list[tuple[float, float]]] = Field(default_factory=dict)
    by_party: dict[str, dict[str, float]] = Field(default_factory=dict)
    history: list[EpochResult] = Field(default_factory=list)
    seconds: float
    rounds: int = 0
    messages: int = 0
    bytes: int = 0
    kept: list[KeptResult] = Field(default_factory=list)


class Sheet(BaseModel):
    """A table that says what a model has learnt, for people to read: the first seed's, as the
    active party knows it. The first column holds texts; where a cell is empty, the one above holds.
    """

    title: str
    note: str = ""
    columns: list[str]
    rows: list[list[str | int | float | None]]


class ModelResult(BaseModel):
    """One model over all seeds.

    ``encryption``: the scheme of the first seed's training by what it encrypted; else empty.
    ``role``: ``method`` (what the job is about), ``baseline`` (what is there without it), or
    ``in one place`` (possible only where one person holds all tables).
    """

    name: str
    title: str
    role: Literal["method", "baseline", "in one place"]
    explanation: str
    fits: list[FitResult] = Field(default_factory=list)
    skipped: str | None = None  # why it could not be fitted
    encryption: dict[str, str] = Field(default_factory=dict)
    sheets: list[Sheet] = Field(default_factory=list)


class PartyResult(BaseModel):
    """A party as the run saw it: counts only."""

    name: str
    active: bool
    people: int
    columns: int
    shared: int
    alone: int
    learnt: list[str]  # what it learnt of others by the matching, in plain words
    id_notes: list[str] = Field(default_factory=list)
    columns_read: dict[str, list[str]] = Field(default_factory=dict)  # by what they became
    column_notes: list[str] = Field(default_factory=list)
    ledger_head: str = ""
    privacy: dict[str, dict[str, int | float | str]] = Field(default_factory=dict)


class Flow(BaseModel):
    """All messages of one operation and kind between two parties, added up (first seed).

    ``session`` names the conversation: the matching, or the method's.
    """

    session: str
    operation: str
    kind: str
    sender: str
    receiver: str
    messages: int
    bytes_before: int
    bytes_after: int
    shape: str
    dtype: str
    guard: str


class Chosen(BaseModel):
    """The method that ``method: auto`` came to, and why."""

    method: str
    reason: str


class Apart(BaseModel):
    """How far the parties of a horizontal federation are from being random pieces of one table,
    each from 0 to 1 as `interlace.data.noniid.heterogeneity` has it; ``None`` where there is no
    such thing. ``*_by_chance``: the same for a random cut into pieces of these sizes.
    """

    sizes: float
    labels: float | None = None
    features: float | None = None
    labels_by_chance: float | None = None
    features_by_chance: float | None = None


class Machine(BaseModel):
    """Where and with what the run was made."""

    interlace: str
    python: str
    torch: str
    platform: str
    cores: int


class Results(BaseModel):
    """A whole run."""

    name: str
    description: str = ""
    task: str
    label: str
    classes: int = 0
    outcomes: dict[int, int] = Field(default_factory=dict)  # by seed: held out, with the outcome
    simulation: bool = True
    geometry: Literal["vertical", "horizontal"] = "vertical"
    apart: Apart | None = None
    parties: list[PartyResult]
    shared_by_all: int
    trained_on: int
    tested_on: int
    models: list[ModelResult] = Field(default_factory=list)
    flows: list[Flow] = Field(default_factory=list)  # the method's conversation, matching included
    seeds: list[int]
    chosen: Chosen | None = None  # if the job left the method to the run
    job: str  # the job as YAML
    command: str
    started: str
    seconds: float = 0.0
    finished: bool = False
    machine: Machine

    def write(self, path: Path) -> None:
        """Write as JSON, whole or not at all."""
        write_whole(path, self.model_dump_json(indent=1).encode())

    def settled(self, job: Job) -> Job:
        """The job with the method that was run, where it left the choice to the run."""
        if self.chosen is None:
            return job
        method = MethodChoice(name=self.chosen.method)
        return job.model_copy(update={"method": method})

    @classmethod
    def read(cls, path: Path) -> Results:
        """Read what :meth:`write` wrote.

        Raises:
            JobError: the file is damaged, or not one of ours.
        """
        try:
            data: dict[str, Any] = json.loads(path.read_text())
            return cls.model_validate(data)
        except ValueError:  # not chained: pydantic's text repeats what stands in the file
            raise JobError(
                f"{path} is damaged; remove it, then `interlace run --resume` makes it again"
            ) from None
