"""Joint scores for a table of new people, and the holder's own model for those no partner holds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from interlace.errors import DataError, JobError, NobodyShared
from interlace.federation import Federation, Rows
from interlace.job.results import Results
from interlace.job.spec import Job, read_job
from interlace.methods import Method
from interlace.methods.catalogue import build_method, entry, is_horizontal
from interlace.methods.horizontal.method import HorizontalMethod
from interlace.party import Party
from interlace.runner import compared, make_party


def predict(
    run: str | Path, tables: Mapping[str, str | Path], *, seed: int | None = None
) -> pl.DataFrame:
    """Score new people with the models of a run.

    Args:
        run: The run folder.
        tables: Each party's table of new people, by the party's name. A label column may be absent.
        seed: Which training's models to use; by default the first seed's.

    Returns:
        One row for each person of the active party's table: the id, ``prediction``, for a
        classification one column ``probability <class>`` each, and ``model``: ``joint`` where
        every party holds the person, ``alone`` where the active party's own model had to do,
        ``none`` where there is no such model (the other columns are empty then).

        Of a horizontal run, one row for each person of every table that is given, scored at its
        ``party`` by the ``global`` model. Nothing leaves the party, and not all need be given.

    Raises:
        JobError: the folder holds no trained model, or a party's table is not given.
        DataError: a table lacks a column that the models read.
    """
    folder = Path(run)
    if not (folder / "results.json").exists():
        raise JobError(f"{folder} holds no results; train first with `interlace run`")
    job, results = read_job(folder / "job.yaml"), Results.read(folder / "results.json")
    seed = results.seeds[0] if seed is None else seed
    trained = {m.name for m in results.models for f in m.fits if f.seed == seed}
    if job.method.name not in trained:
        raise JobError(f"{folder} holds no trained model of seed {seed}; finish it by --resume")
    for name in tables:
        if name not in job.parties:
            raise JobError(f"there is no party '{name}' in this run: {', '.join(job.parties)}")
    if is_horizontal(job.method.name):
        return _at_each_party(job, tables, folder, seed)
    parties = []
    for name, file in job.parties.items():
        if name not in tables:
            raise JobError(f"give party '{name}' a table of the people to score: {name}=PATH")
        new = file.model_copy(update={"table": str(tables[name])})
        parties.append(make_party(name, new, label_needed=False))
    active = next(p.name for p in results.parties if p.active)
    federation = Federation.simulate(
        parties,
        active=active,
        wire=job.wire,
        seed=seed,
        folder=folder,
        protocol=job.align.protocol,
        reveal=job.align.reveal,
    )
    for party in parties:  # under the run's seed, the noise of its training would come again
        party.record_in(party.boundary.ledger, seed=None)
    try:
        shared = federation.shared(partial=entry(job.method.name).make.partial).rows
    except NobodyShared:
        shared = np.empty(0, dtype=np.int64)  # nobody is held by the partners: all scored alone
    alone = np.setdiff1d(federation.rows, shared)
    settings = {c.name: c.settings for c in (job.method, *compared(job))}
    parts, order = [], []
    for name, source, rows in (
        (job.method.name, "joint", shared),
        ("active_alone", "alone", alone),
    ):
        if not len(rows):
            continue
        order.append(rows)
        if name in trained:
            method = build_method(name, settings[name]).load(f"{name}-{seed}", federation)
            parts.append(_scores(method, federation.view(rows), source))
        else:
            parts.append(_unscored(federation.view(rows)))
    table = pl.concat(parts, how="diagonal_relaxed")[np.argsort(np.concatenate(order))]
    for party in parties:
        party.boundary.ledger.flush()
    return table.select(*(c for c in table.columns if c != "model"), "model")


def _at_each_party(
    job: Job, tables: Mapping[str, str | Path], folder: Path, seed: int
) -> pl.DataFrame:
    """Each party scores its own people with the model that it kept of the training."""
    method = build_method(job.method.name, job.method.settings)
    assert isinstance(method, HorizontalMethod)
    parts = []
    for name, table in tables.items():
        if job.parties[name].table is None:
            raise JobError(
                f"party '{name}' had no people in this run; give the other parties' tables"
            )
        new = job.parties[name].model_copy(update={"table": str(table)})
        party = make_party(name, new, label_needed=False)
        party.folder = folder / "parties" / name
        outputs = method.outputs_at(party, f"{job.method.name}-{seed}")
        who = {"party": np.full(len(party), name), "model": np.full(len(party), "global")}
        parts.append(_beside(party, np.arange(len(party)), {**_columns(method, outputs), **who}))
    scores = pl.concat(parts, how="diagonal_relaxed")
    return scores.select("party", pl.exclude("party", "model"), "model")


def _scores(method: Method, view: Federation, source: str) -> pl.DataFrame:
    columns = _columns(method, method.outputs(view))
    return _beside(view.active, view.rows, {**columns, "model": np.full(len(view.rows), source)})


def _unscored(view: Federation) -> pl.DataFrame:
    return _beside(view.active, view.rows, {"model": np.full(len(view.rows), "none")})


def _columns(method: Method, outputs: NDArray[np.float64]) -> dict[str, object]:
    """What is said of people: a decision, and probabilities where there are classes."""
    plan = getattr(method, "label_plan_", None)  # clusters have no label
    columns: dict[str, object] = {}
    if plan is None or plan.task != "multilabel":
        columns["prediction"] = method.decide(outputs)
    if plan is not None and plan.task != "regression":
        columns |= {f"probability {c}": outputs[:, i] for i, c in enumerate(plan.classes)}
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
