"""Joint scores for a table of new people, and the holder's own model for those no partner holds."""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from interlace.data.tables import source_name
from interlace.engines import InProcess
from interlace.errors import DataError, JobError, NobodyShared
from interlace.federation import Federation, Rows
from interlace.job.results import Results
from interlace.job.spec import Job, MethodChoice, PartyFile, read_job
from interlace.methods import Method
from interlace.methods.catalogue import build_method, entry, is_horizontal
from interlace.methods.horizontal.method import HorizontalMethod
from interlace.party import Party, State, holds_state, read_state, write_state
from interlace.runner import compared, make_party
from interlace.serve.doubts import doubts, left_out

Outputs = NDArray[np.float64]

ALONE = ("active_alone", "own_columns")  # either scores the people whom no partner holds


def predict(
    run: str | Path,
    tables: Mapping[str, str | Path],
    *,
    seed: int | None = None,
    tell: Callable[[str], None] = warnings.warn,
) -> pl.DataFrame:
    """Score new people with the models of a run.

    Args:
        run: The run folder.
        tables: Each party's table of new people, by the party's name. A label column may be absent.
        seed: Which training's models to use; by default the first seed's.
        tell: Hears what is doubtful: rows left out for their ids, partners who hold hardly anybody,
            people who would match if ids were written as in training, values that do not read as
            they did there, and categories that are new. In counts; of a horizontal run the rows
            and the values alone.

    Returns:
        One row for each person of the active party's table: the id, ``prediction``, for a
        classification one column ``probability <class>`` each, and ``model``: ``joint`` where
        every party holds the person, or a partner where the method takes one alone; ``joint in
        part`` where some partner does not, and the method scores from the views that there are;
        ``alone`` where the active party's own model had to do, ``none`` where there is no such
        model (the other columns are empty then).

        Of a horizontal run, one row for each person of every table that is given, scored at its
        ``party`` by the ``global`` model. Nothing leaves the party, and not all need be given.

    Raises:
        JobError: the folder holds no trained model, or a party's table is not given.
        DataError: a table lacks a column that the models read.
    """
    trained = Trained.read(run, seed)
    trained.check(tables)
    job = trained.job
    if is_horizontal(job.method.name):
        files = {name: job.parties[name] for name in tables}
        folders = {name: trained.folder / "parties" / name for name in tables}
        return at_each_party(job.method, files, tables, folders, trained.seed, tell=tell)
    federation = trained.simulate(tables)
    with _naming_files(tables):
        scores = trained.scores(federation)
    flush_ledgers(federation)
    assert isinstance(federation.engine, InProcess)
    for doubt in doubts(federation.engine.parties, job, trained.results):
        tell(doubt)
    return scores


@contextmanager
def _naming_files(tables: Mapping[str, str | Path]) -> Iterator[None]:
    """Have an error about a party's table name the file that was given: models know columns."""
    try:
        yield
    except DataError as e:
        if e.file is not None or e.party is None or e.party not in tables:
            raise
        file = source_name(tables[e.party])
        raise DataError(
            e.problem, party=e.party, file=file, column=e.column, way_out=e.way_out
        ) from e


@dataclass(frozen=True)
class Trained:
    """One training of a finished run: its job, and which models the run's folder keeps of it."""

    folder: Path
    job: Job
    results: Results
    seed: int
    models: frozenset[str]

    @classmethod
    def read(cls, run: str | Path, seed: int | None = None) -> Trained:
        """Look into a run folder.

        Args:
            run: The folder.
            seed: Of which training; by default the first seed's.

        Raises:
            JobError: the folder holds no trained model of the job's method.
        """
        folder = Path(run)
        if not (folder / "results.json").exists():
            raise JobError(f"{folder} holds no results; train first with `interlace run`")
        results = Results.read(folder / "results.json")
        job = results.settled(read_job(folder / "job.yaml"))
        seed = results.seeds[0] if seed is None else seed
        models = {m.name for m in results.models for f in m.fits if f.seed == seed}
        if job.method.name not in models:
            way_out = "finish it by --resume"
            if seed not in results.seeds:
                way_out = f"its seeds are {', '.join(map(str, results.seeds))}"
            raise JobError(f"{folder} holds no trained model of seed {seed}; {way_out}")
        return cls(folder, job, results, seed, frozenset(models))

    @property
    def active(self) -> str:
        """The party that has the label."""
        return next(p.name for p in self.results.parties if p.active)

    @property
    def stand_in(self) -> str | None:
        """The model that asks no partner, if the run trained one."""
        return next((name for name in ALONE if name in self.models), None)

    def check(self, parties: Iterable[str]) -> None:
        """Make sure that these are names of parties.

        Raises:
            JobError: one is not.
        """
        for name in parties:
            if name not in self.job.parties:
                raise JobError(
                    f"there is no party '{name}' in this run: {', '.join(self.job.parties)}"
                )

    def simulate(self, tables: Mapping[str, str | Path]) -> Federation:
        """The run's parties in this process, with a table each of people to score.

        Raises:
            JobError: a party has no table, or its part of the model is at another site.
            DataError: a table is not usable.
        """
        if not self.results.simulation:
            raise JobError(
                f"the run in {self.folder} went over sites, so the partners' parts of its model "
                "are with them; the commands `interlace predict` and `interlace serve` score over "
                "sites, once they approve it"
            )
        parties = []
        for name, file in self.job.parties.items():
            if file.table is None:  # it held a key in training, and knows nobody
                continue
            if name not in tables:
                raise JobError(f"give party '{name}' a table of the people to score: {name}=PATH")
            new = file.model_copy(update={"table": str(tables[name])})
            parties.append(make_party(name, new, label_needed=False))
        federation = Federation.simulate(
            parties,
            active=self.active,
            wire=self.job.wire,
            seed=self.seed,
            folder=self.folder,
            protocol=self.job.align.protocol,
            reveal=self.job.align.reveal,
        )
        for party in parties:  # under the run's seed, the noise of its training would come again
            party.record_in(party.boundary.ledger, seed=None)
        return federation

    def shared(self, federation: Federation) -> Rows:
        """The people whom the joint model can score: whom all partners hold, or any of them where
        the method takes people with a missing view."""
        make = entry(self.job.method.name).make
        try:
            return federation.shared(partial=make.partial or make.scores_some).rows
        except NobodyShared:
            return np.empty(0, dtype=np.int64)

    def in_part(self, federation: Federation) -> Rows:
        """Those of :meth:`shared` whom some partner lacks, so that a view of them is missing."""
        if entry(self.job.method.name).make.partial:  # one partner's view is all it takes
            return np.empty(0, dtype=np.int64)
        shared = self.shared(federation)
        return np.setdiff1d(shared, federation.alignment.common) if len(shared) else shared

    def model(self, name: str, federation: Federation) -> Method:
        """A trained model; the partners take up their parts of it."""
        settings = {c.name: c.settings for c in (self.job.method, *compared(self.job))}
        return build_method(name, settings[name]).load(f"{name}-{self.seed}", federation)

    def scores(
        self, federation: Federation, joint: Callable[[Method, Federation], Outputs] | None = None
    ) -> pl.DataFrame:
        """Scores of everybody in the active party's table, as :func:`predict` gives them.

        Args:
            federation: The parties, with a table each of people to score.
            joint: Asks the joint model about the people of a view; by default about all at once.
        """
        shared = self.shared(federation)
        alone = np.setdiff1d(federation.rows, shared)
        parts, order = [], []
        for name, source, rows in (
            (self.job.method.name, "joint", shared),
            (self.stand_in, "alone", alone),
        ):
            if not len(rows):
                continue
            order.append(rows)
            view = federation.view(rows)
            columns: dict[str, object] = {}
            if name is not None:
                method = self.model(name, federation)
                ask = joint if joint and source == "joint" else type(method).outputs
                columns = _columns(method, ask(method, view))
            else:
                source = "none"
            part = np.isin(rows, self.in_part(federation))
            columns["model"] = np.where(part, "joint in part", source)
            parts.append(_beside(view.active, rows, columns))
        table = pl.concat(parts, how="diagonal_relaxed")[np.argsort(np.concatenate(order))]
        return table.select(*(c for c in table.columns if c != "model"), "model")


def outputs_in_batches(
    method: Method,
    view: Federation,
    most: int,
    folder: Path,
    progress: Callable[[int], None] = lambda _people: None,
) -> Outputs:
    """What a model says of a view's people, asked about some at a time, in random order.

    Args:
        method: The model.
        view: One person or more.
        most: Most people at a time; the batches are as even as can be, so none is very small.
        folder: Every answer is kept here; whom it has already is not asked about again.
        progress: Told how many people have been answered.
    """
    kept = [read_state(batch).tensors for batch in folder.glob("*") if holds_state(batch)]
    done = np.concatenate([[], *(batch["rows"] for batch in kept)]).astype(np.int64)
    left = np.random.default_rng().permutation(np.setdiff1d(view.rows, done))
    batches = -(-len(left) // most)
    for rows in np.array_split(left, batches) if batches else ():
        progress(len(done))
        outputs = torch.from_numpy(method.outputs(view.view(rows)))
        kept.append({"rows": torch.from_numpy(rows), "outputs": outputs})
        write_state(folder / secrets.token_hex(8), State(kept[-1], {}))
        done = np.append(done, rows)
    said = np.concatenate([batch["outputs"].numpy() for batch in kept])
    return np.asarray(said[np.argsort(done)[np.searchsorted(np.sort(done), view.rows)]])


def flush_ledgers(federation: Federation) -> None:
    """Write what waits in the ledgers of the parties that live in this process."""
    parties = [federation.active]
    if isinstance(federation.engine, InProcess):
        parties = list(federation.engine.parties.values())
    for party in parties:
        party.boundary.ledger.flush()


def at_each_party(
    choice: MethodChoice,
    files: Mapping[str, PartyFile],
    tables: Mapping[str, str | Path],
    folders: Mapping[str, Path],
    seed: int,
    *,
    tell: Callable[[str], None] = warnings.warn,
) -> pl.DataFrame:
    """Each party scores its own people with the model that it kept of a horizontal training.

    Args:
        choice: The method.
        files: The parties' files.
        tables: Their tables of people to score.
        folders: Where each keeps the model.
        seed: Of which training.
        tell: Hears, in counts, of rows left out for their ids, and of values that do not read as
            in training.

    Raises:
        JobError: a party had no people.
        InterlaceError: a party keeps no such model.
    """
    method = build_method(choice.name, choice.settings)
    assert isinstance(method, HorizontalMethod)
    parts = []
    for name, table in tables.items():
        if files[name].table is None:
            raise JobError(
                f"party '{name}' had no people in this run; give the other parties' tables"
            )
        new = files[name].model_copy(update={"table": str(table)})
        party = make_party(name, new, label_needed=False)
        party.folder = folders[name]
        with _naming_files({name: table}):
            outputs = method.outputs_at(party, f"{choice.name}-{seed}")
        for doubt in (*left_out(party), *method.plan_.unread(party.frame)):
            tell(doubt)
        who = {"party": np.full(len(party), name), "model": np.full(len(party), "global")}
        parts.append(_beside(party, np.arange(len(party)), {**_columns(method, outputs), **who}))
    scores = pl.concat(parts, how="diagonal_relaxed")
    return scores.select("party", pl.exclude("party", "model"), "model")


def _columns(method: Method, outputs: Outputs) -> dict[str, object]:
    """What is said of people: a decision, probabilities where there are classes, and what else the
    method has to say."""
    plan = getattr(method, "label_plan_", None)  # clusters have no label
    columns: dict[str, object] = {}
    if plan is None or plan.task != "multilabel":
        columns["prediction"] = method.decide(outputs)
    if plan is not None and plan.task != "regression":
        columns |= {f"probability {c}": outputs[:, i] for i, c in enumerate(plan.classes)}
    columns |= method.said(outputs)
    return columns


def _beside(party: Party, rows: Rows, columns: Mapping[str, object]) -> pl.DataFrame:
    """The ids of a party's people, as they stand in the table, and what is said of them; the
    numbers of the rows where people have no ids."""
    for name in party.id_rule.columns:
        if name in columns:
            raise DataError(
                "the scores have a column of this name too",
                party=party.name,
                file=party.file,
                column=name,
                way_out="Call the id column something else in the job and in the tables",
            )
    if party.id_rule.columns:
        ids = party.frame.select(party.id_rule.columns)[rows]
    else:
        ids = pl.DataFrame({"row": rows + 1})
    return ids.with_columns(pl.Series(name, np.asarray(v)) for name, v in columns.items())
