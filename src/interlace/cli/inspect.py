"""``interlace inspect``: how the parties' tables fit together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from interlace.cli.console import show, table
from interlace.errors import JobError

if TYPE_CHECKING:
    import polars as pl

    from interlace.data.geometry import Geometry
    from interlace.data.ids import IdRule
    from interlace.methods.recommend import Recommendation


def inspect(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="TABLE... or JOB", help="Two or more tables, PATH or NAME=PATH; or a job file."
        ),
    ],
    id: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]COLUMNS",
            help="The id column (several with commas) of all tables, or of one; empty where rows "
            "have no id.",
            show_default="id",
        ),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=COLUMN", help="The column to learn, and who has it."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs to read.")] = False,
) -> None:
    """Say how two or more parties' tables fit together, before anything is trained.

    It reads all the tables in the clear, so it is for one person who holds them all.

        interlace inspect insurer.csv vendor.csv --id customer --label insurer=bought

        interlace inspect bank=accounts.parquet shop=orders.csv --id bank=iban --id shop=account

        interlace inspect job.yaml

        interlace inspect north.csv south.csv --id "" --label north=ill --label south=ill

    What comes out: the geometry (horizontal, vertical or mixed), how many people are shared and
    with whom, which columns seem to be the same quantity, or in a horizontal case how the tables'
    columns differ, what is doubtful about the ids, and the method that fits, with the reason.
    """
    from interlace.data.geometry import inspect_parties
    from interlace.methods.recommend import recommend_for

    if len(sources) == 1 and Path(sources[0]).suffix in (".yaml", ".yml"):
        if id or label:
            raise JobError("the job says which columns are ids and label; leave --id and --label")
        tables, ids, labels = _from_job(Path(sources[0]))
    else:
        tables, ids, labels = _from_tables(sources, id or [], label or [])
    geometry = inspect_parties(tables, ids, labels=labels)
    if geometry.kind == "horizontal":
        found = _differences(tables, ids, labels)
        geometry = geometry.model_copy(update={"differences": found})
    method = recommend_for(geometry)
    if as_json:
        shapes = geometry.model_dump(mode="json")
        typer.echo(json.dumps(shapes | {"recommendation": method.model_dump()}, indent=2))
    else:
        _show(geometry, method, {n: _notes(n, tables[n], rule) for n, rule in ids.items()})


Inputs = tuple["dict[str, pl.DataFrame]", "dict[str, IdRule]", dict[str, str]]


def _from_job(path: Path) -> Inputs:
    from interlace.data.ids import IdRule
    from interlace.data.tables import read_table
    from interlace.job.spec import read_job

    tables, ids, labels = {}, {}, {}
    for name, file in read_job(path).parties.items():
        if file.table is None:  # it drives a horizontal federation and has no people
            continue
        columns = [file.id] if isinstance(file.id, str) else file.id or []
        ids[name] = columns if isinstance(columns, IdRule) else IdRule(columns=columns)
        label = [file.label] if isinstance(file.label, str) else file.label or []
        kept = None if file.columns is None else [*file.columns, *label]
        tables[name] = read_table(file.table, party=name, ids=ids[name].columns, columns=kept)
        if label:
            labels[name] = label[0]
    return tables, ids, labels


def _from_tables(sources: list[str], id: list[str], label: list[str]) -> Inputs:
    from interlace.data.ids import IdRule
    from interlace.data.tables import read_table
    from interlace.errors import DataError

    paths: dict[str, str] = {}
    for source in sources:
        name, equals, path = source.partition("=")
        if not equals or not name.isidentifier():
            name, path = Path(source).name.partition(".")[0], source
        if name in paths:
            raise JobError(f"two parties are called '{name}'; name them: NAME=PATH")
        paths[name] = path
    columns = dict.fromkeys(paths, "id")
    for text in id:
        name, equals, column = text.partition("=")
        if not equals:
            columns = dict.fromkeys(paths, text)
        elif name in paths:
            columns[name] = column
        else:
            raise JobError(f"--id {text}: there is no party '{name}': {', '.join(paths)}")
    labels = {}
    for text in label:
        name, _, column = text.partition("=")
        if name not in paths or not column:
            raise JobError(f"--label {text}: write NAME=COLUMN, for one of {', '.join(paths)}")
        labels[name] = column
    ids = {n: IdRule(columns=[c for c in columns[n].split(",") if c]) for n in paths}
    try:
        tables = {n: read_table(path, party=n, ids=ids[n].columns) for n, path in paths.items()}
    except DataError as e:
        if id or e.column != "id":
            raise
        raise JobError(f"{e} Name who a row is about by --id {e.party}=COLUMN") from e
    return tables, ids, labels


def _differences(
    tables: dict[str, pl.DataFrame], ids: dict[str, IdRule], labels: dict[str, str]
) -> dict[str, tuple[str, ...]]:
    """How each party's columns differ from the others', as a horizontal run would refuse them."""
    import numpy as np

    from interlace.methods.horizontal.schema import differences, expected_types, schema_of
    from interlace.party import Party

    schemas = {}
    for name, frame in tables.items():
        wanted = [c for c in frame.columns if c not in (*ids[name].columns, labels.get(name))]
        party = Party(name, frame, id=None, columns=wanted)
        schemas[name] = schema_of(party, np.arange(frame.height))
    types = expected_types(schemas)
    return {n: tuple(found) for n, s in schemas.items() if (found := differences(s, types))}


def _notes(party: str, frame: pl.DataFrame, rule: IdRule) -> list[str]:
    """What stands out in the form of a party's ids, whether a run would take them or not."""
    from interlace.data.ids import make_keys
    from interlace.errors import DataError

    if not rule.columns:
        return []
    try:
        report = make_keys(frame, rule, party=party).report
    except DataError:
        tolerant = rule.model_copy(update={"duplicates": "first", "blanks": "drop"})
        report = make_keys(frame, tolerant, party=party).report
    refused = {
        "Left out for want": rule.blanks == "refuse",
        "An id of another row": rule.duplicates == "refuse",
    }
    # These two the geometry warns of, as a run would refuse them.
    return [n for n in report.notes if not any(n.startswith(k) and r for k, r in refused.items())]


def _show(geometry: Geometry, method: Recommendation, notes: dict[str, list[str]]) -> None:
    show(Text(geometry.kind.capitalize(), style="bold"), Text(geometry.why))
    made = table("party", "rows", "people", "columns", "shared by all", "nobody else has", "label")
    for p in geometry.parties:
        counts = (f"{n:,}" for n in (p.rows, p.people, p.columns, p.shared, p.unaligned))
        made.add_row(p.party, *counts, p.label or "–")
    show(made)
    if len(geometry.parties) > 2:
        made = table("held by", "people", title="Who holds whom")
        for pattern in geometry.patterns:
            made.add_row(" and ".join(pattern.parties), f"{pattern.people:,}")
        show(made)
    if geometry.same and geometry.kind != "horizontal":  # there every column is
        made = table("column", "and", "what was found", "what can be done", title="One quantity?")
        for column in made.columns:
            column.justify = "left"
        for s in geometry.same:
            first, second = ".".join(s.first), ".".join(s.second)
            made.add_row(first, second, s.why, ", or ".join(s.offers))
        show(
            made,
            Text("To keep one, leave it out of the other party's `columns:` in its party file."),
        )
    if geometry.differences:
        made = table("party", "its columns differ from the others'")
        made.columns[1].justify = "left"
        for name, found in geometry.differences.items():
            made.add_row(name, "\n".join(found))
        show(made, Text("A horizontal run refuses tables that differ: rename or leave out first."))
    doubts = [f"{name}: {note}" for name, of in notes.items() for note in of]
    for text in (*geometry.warnings, *doubts):
        show(Text.assemble(("! ", "bold yellow"), text))
    named = (method.method or "none fits", "bold")
    show("", Text.assemble("Method: ", named, ". ", method.reason))
