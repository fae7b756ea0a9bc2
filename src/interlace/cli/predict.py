"""``interlace predict``: score new people with the models of a run."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from interlace.cli.console import say
from interlace.errors import JobError
from interlace.files import write_whole


def predict(
    run: Annotated[Path, typer.Argument(help="The run folder.")],
    table: Annotated[
        list[str],
        typer.Option(
            metavar="PARTY=PATH", help="A party's table of the people to score; one for each party."
        ),
    ],
    out: Annotated[
        Path, typer.Option(help="Where the scores go: .csv or .parquet; replaced if it is there.")
    ] = Path("scores.csv"),
) -> None:
    """Score new people with the models of a finished run.

    People whom all parties hold are scored jointly; people whom a partner lacks, by the model that
    the active party can use alone. Their tables need the columns the run had, but no label.

        interlace predict runs/caravan --table insurer=new.csv --table vendor=theirs.csv

    After a horizontal training each party has the whole model and scores its own people alone:

        interlace predict runs/clinics --table north=new.csv

    What comes out: one row for each person of the active party's table, with its id, the
    `prediction`, for classes a `probability` each, and the `model` that was used: `joint`, `alone`,
    or `none` where the run trained no model for those the partners lack. After a horizontal
    training, one row for each person of every table, with its `party`.
    """
    tables = named_tables(table)
    if out.suffix not in (".csv", ".parquet"):
        raise JobError(f"scores cannot be written as '{out.suffix}'; name a .csv or .parquet file")

    if out.resolve() in {Path(path).resolve() for path in tables.values()}:
        raise JobError(f"{out} is one of the tables to score; write the scores elsewhere by --out")
    if not out.resolve().parent.is_dir():
        raise JobError(f"{out} cannot be written: there is no folder {out.parent}")

    from interlace.serve.batch import predict as score

    scores = score(run, tables)
    content = io.BytesIO()
    scores.write_csv(content) if out.suffix == ".csv" else scores.write_parquet(content)
    write_whole(out, content.getvalue())
    used = dict(scores["model"].value_counts().iter_rows())
    say(f"{out}: {scores.height:,} people")
    for model, meaning in _MODELS.items():
        if model in used:
            say(f"{used[model]:>9,} {model:<6} {meaning}")


_MODELS = {
    "global": "scored at their own party with the model that all trained",
    "joint": "all parties hold them",
    "alone": "a partner lacks them: scored by the active party's own model",
    "none": "a partner lacks them, and the run trained no model of the active party alone",
}


def named_tables(options: Sequence[str]) -> dict[str, str]:
    """Tables by party, from options ``PARTY=PATH``.

    Raises:
        JobError: an option names no party and table, or two name one party.
    """
    tables = dict(_named(text) for text in options)
    if len(tables) < len(options):
        raise JobError("a party is given two tables; give one for each party")
    return tables


def _named(text: str) -> tuple[str, str]:
    name, equals, path = text.partition("=")
    if not (name and equals and path):
        raise JobError(f"'{text}' names no party and table; write PARTY=PATH")
    return name, path
