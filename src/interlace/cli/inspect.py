"""``interlace inspect``: how the parties' tables fit together."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from interlace.cli.console import show, table
from interlace.errors import DataError, JobError

if TYPE_CHECKING:
    import polars as pl
    from rich.table import Table

    from interlace.data.columns import ColumnReport
    from interlace.data.geometry import Geometry
    from interlace.data.ids import IdRule, Keys
    from interlace.data.labels import LabelPlan
    from interlace.methods.recommend import Recommendation

MOST_LISTED = 40  # columns of a party that have a line each
MOST_CLASSES = 12  # of a label that are named
_WORDS = {
    "numbers": "number",
    "date parts": "date",
    "category": "category",
    "image": "image",
    "missing indicator": "whether it is known",
    "dropped": "left out",
}


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
    with whom, what each column is read as, how many people each class has, which columns seem to be
    the same quantity, or in a horizontal case how the tables' columns differ, what is doubtful
    about ids, labels and columns, and the method that fits, with the reason.
    """
    from interlace.data.columns import column_notes
    from interlace.data.geometry import inspect_parties
    from interlace.methods.recommend import recommend_for

    if len(sources) == 1 and Path(sources[0]).suffix in (".yaml", ".yml"):
        if id or label:
            raise JobError("the job says which columns are ids and label; leave --id and --label")
        tables, ids, labels, categories = _from_job(Path(sources[0]))
    else:
        tables, ids, labels = _from_tables(sources, id or [], label or [])
        categories = {}
    geometry = inspect_parties(tables, ids, labels=labels)
    if geometry.kind == "horizontal":
        found = _differences(tables, ids, labels)
        geometry = geometry.model_copy(update={"differences": found})
    method = recommend_for(geometry)
    keys = _keys(tables, ids)
    read = {}
    for name, frame in tables.items():
        special = (*ids[name].columns, labels.get(name))
        features = frame[keys[name].rows].select(c for c in frame.columns if c not in special)
        read[name] = _read(name, features, categories.get(name, []))
    if as_json:
        said = geometry.model_dump(mode="json")
        said["columns_read"] = {n: [c.model_dump() for c in columns] for n, columns in read.items()}
        typer.echo(json.dumps(said | {"recommendation": method.model_dump()}, indent=2))
        return
    doubts = _id_notes(tables, ids, keys)
    plans = _labels(tables, labels, keys)
    doubts += [f"{n}: '{p.column}': {p.note}" for n, p in plans.items() if p.classes and p.note]
    for name, columns in read.items():
        doubts += [f"{name}: {n}" for n in column_notes(columns, categories.get(name, []))]
    _show(geometry, method, read, plans, doubts)


Inputs = tuple["dict[str, pl.DataFrame]", "dict[str, IdRule]", dict[str, str]]


def _from_job(path: Path) -> tuple[*Inputs, dict[str, list[str]]]:
    """Tables, ids and labels, and what the parties' files have under `categories`."""
    from interlace.data.ids import IdRule
    from interlace.data.tables import read_table
    from interlace.job.spec import read_job

    tables, ids, labels, categories = {}, {}, {}, {}
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
        categories[name] = file.categories
    return tables, ids, labels, categories


def _from_tables(sources: list[str], id: list[str], label: list[str]) -> Inputs:
    from interlace.data.ids import IdRule
    from interlace.data.tables import read_table

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


def _keys(tables: dict[str, pl.DataFrame], ids: dict[str, IdRule]) -> dict[str, Keys]:
    """The parties' keys, also where a run would refuse their ids."""
    from interlace.data.ids import make_keys, no_keys

    keys = {}
    for name, rule in ids.items():
        if not rule.columns:
            keys[name] = no_keys(tables[name].height)
            continue
        try:
            keys[name] = make_keys(tables[name], rule, party=name)
        except DataError:
            tolerant = rule.model_copy(update={"duplicates": "first", "blanks": "drop"})
            keys[name] = make_keys(tables[name], tolerant, party=name)
    return keys


def _id_notes(
    tables: dict[str, pl.DataFrame], ids: dict[str, IdRule], keys: dict[str, Keys]
) -> list[str]:
    """What stands out in the form of the parties' ids, whether a run would take them or not.

    Ids that a run would refuse the geometry warns of.
    """
    from interlace.data.ids import notes_once_matched

    said = []
    for name, own in keys.items():
        if not ids[name].columns:
            continue
        others = {key for n, k in keys.items() if n != name for key in k.values}
        matched = own.rows[[key in others for key in own.values]]
        notes = notes_once_matched(own.report, ids[name], tables[name][matched])
        refusals = {
            "Left out for want": ids[name].blanks == "refuse",
            "An id of another row": ids[name].duplicates == "refuse",
        }
        said += [
            f"{name}: {note}"
            for note in notes
            if not any(note.startswith(start) and r for start, r in refusals.items())
        ]
    return said


def _read(party: str, features: pl.DataFrame, categories: Sequence[str]) -> list[ColumnReport]:
    """What each column of a table is read as, over all its people."""
    from interlace.data.columns import ColumnReport, fit_column, read_columns
    from interlace.data.images import is_image

    found = []
    readings = read_columns(features, features.columns, categories)
    for series in features:
        if is_image(series.dtype) and series.name not in categories:
            gaps = series.null_count()
            found.append(ColumnReport(name=series.name, became="image", inputs=1, gaps=gaps))
            continue
        try:
            found.append(fit_column(series, readings[series.name], party=party, file=None)[1])
        except DataError as e:  # a run refuses it
            found.append(
                ColumnReport(name=series.name, became="dropped", inputs=0, gaps=0, note=e.problem)
            )
    return found


def _labels(
    tables: dict[str, pl.DataFrame], labels: dict[str, str], keys: dict[str, Keys]
) -> dict[str, LabelPlan]:
    """What each label is, of the parties whose label is usable; the geometry warns of others."""
    from interlace.data.labels import LabelPlan

    found = {}
    for name, column in labels.items():
        with suppress(DataError):
            found[name] = LabelPlan.fit(tables[name][column][keys[name].rows], party=name)
    return found


def _in_words(plan: LabelPlan) -> str:
    start = f"Label of {plan.party}: '{plan.column}', {plan.task}"
    if not plan.classes:
        return f"{start}."
    counted = [f"{c} {n:,}" for c, n in zip(plan.classes, plan.counts, strict=True)]
    more = f" and {len(counted) - MOST_CLASSES} more" if len(counted) > MOST_CLASSES else ""
    return f"{start}, {len(counted)} classes: {', '.join(counted[:MOST_CLASSES])}{more}."


def _columns(party: str, read: Sequence[ColumnReport], rows: int) -> Table:
    """A line for each column, or where they are many for all that are read alike."""
    from interlace.report.words import percent

    alike: dict[str, list[ColumnReport]] = {}
    for column in read:
        many = len(read) > MOST_LISTED
        key = column.became if many else column.name
        alike.setdefault(key, []).append(column)
    made = table("column", "read as", "gaps", title=f"Columns of {party}")
    made.columns[1].justify = "left"
    for group in alike.values():
        names = [c.name for c in group]
        start = f"{len(names):,} columns: " if len(names) > 1 else ""
        more = " ..." if len(names) > 6 else ""
        word = _WORDS[group[0].became]
        if levels := sorted({c.levels for c in group if c.became == "category"}):
            word += f" of {' to '.join(f'{n:,}' for n in dict.fromkeys((levels[0], levels[-1])))}"
        gaps = sorted(c.gaps / rows for c in group)
        shares = dict.fromkeys(percent(g) if g else "–" for g in (gaps[0], gaps[-1]))
        made.add_row(start + ", ".join(names[:6]) + more, word, " to ".join(shares))
    return made


def _show(
    geometry: Geometry,
    method: Recommendation,
    read: Mapping[str, Sequence[ColumnReport]],
    labels: Mapping[str, LabelPlan],
    doubts: Sequence[str],
) -> None:
    show(Text(geometry.kind.capitalize(), style="bold"), Text(geometry.why))
    made = table("party", "rows", "people", "columns", "shared by all", "nobody else has", "label")
    for p in geometry.parties:
        counts = (f"{n:,}" for n in (p.rows, p.people, p.columns, p.shared, p.unaligned))
        made.add_row(p.party, *counts, p.label or "–")
    show(made)
    show(*(_columns(p.party, read[p.party], p.rows) for p in geometry.parties if read[p.party]))
    show(*(Text(_in_words(plan)) for plan in labels.values()))
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
    for text in (*geometry.warnings, *doubts):
        show(Text.assemble(("! ", "bold yellow"), text))
    named = (method.method or "none fits", "bold")
    show("", Text.assemble("Method: ", named, ". ", method.reason))
