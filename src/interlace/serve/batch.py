"""Joint scores for a table of new people, and the holder's own model for those no partner holds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import polars as pl

from interlace.errors import AlignmentError, JobError
from interlace.federation import Federation, Rows
from interlace.job.results import Results
from interlace.job.spec import read_job
from interlace.methods import Method
from interlace.methods.catalogue import build_method
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
    try:
        shared = federation.shared().rows
    except AlignmentError:
        shared = np.empty(0, dtype=np.int64)  # nobody is held by the partners: all scored alone
    alone = np.setdiff1d(federation.rows, shared)
    settings = {c.name: c.settings for c in (job.method, *compared(job))}
    parts = []
    for name, source, rows in (
        (job.method.name, "joint", shared),
        ("active_alone", "alone", alone),
    ):
        if not len(rows):
            continue
        if name in trained:
            method = build_method(name, settings[name]).load(f"{name}-{seed}", federation)
            parts.append(_scores(method, federation.view(rows), source))
        else:
            parts.append(_unscored(federation.view(rows)))
    table = pl.concat(parts, how="diagonal_relaxed").sort("row").drop("row")
    return table.select(*(c for c in table.columns if c != "model"), "model")


def _scores(method: Method, view: Federation, source: str) -> pl.DataFrame:
    plan = method.label_plan_
    outputs = method.outputs(view)
    columns: dict[str, object] = {"prediction": method.decide(outputs)}
    if plan.task == "multilabel":
        columns = {}
    if plan.task != "regression":
        columns |= {f"probability {c}": outputs[:, i] for i, c in enumerate(plan.classes)}
    return _people(view).with_columns(
        **{k: pl.Series(k, np.asarray(v)) for k, v in columns.items()}, model=pl.lit(source)
    )


def _unscored(view: Federation) -> pl.DataFrame:
    return _people(view).with_columns(model=pl.lit("none"))


def _people(view: Federation) -> pl.DataFrame:
    """Row and id columns of a view's people, as they stand in the table."""
    rows: Rows = view.rows
    ids = view.active.frame.select(view.active.id_rule.columns)[rows]
    return ids.with_columns(row=pl.Series(rows))
