"""``interlace split``: cut one table into the tables of parties, for a simulation."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.text import Text

from interlace.cli.console import say, show, table
from interlace.errors import InterlaceError, JobError

if TYPE_CHECKING:
    import polars as pl

    from interlace.data.partition import CutDifficulty, Split


SERVER = "server"  # drives a horizontal federation and has no people
TRUTH = "truth.csv"  # the labels that the cut took away, which no party reads


def split(
    source: Annotated[str, typer.Argument(metavar="TABLE", help="The one table.")],
    label: Annotated[str, typer.Option(help="The column to learn.")],
    party: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[=COLUMNS]",
            help="A party, once for each. With columns, `NAME=age,income,card_*`, it gets these; "
            "the one party without any gets the rest.",
        ),
    ] = None,
    id: Annotated[
        str | None,
        typer.Option(
            help="The id column; of rows with one id the first is taken, and none without an id.",
            show_default="one is made up",
        ),
    ] = None,
    active: Annotated[
        str | None,
        typer.Option(
            help="Who has the label; in a horizontal cut, who drives.",
            show_default="the first party, or a server without people",
        ),
    ] = None,
    by: Annotated[
        Literal["random", "correlation", "importance"],
        typer.Option(
            help="How columns that nobody is named for are given out: at random, to reach the "
            "correlation `--beta` between parties, or the balance of importance `--alpha`."
        ),
    ] = "random",
    skew: Annotated[
        Literal["labels", "size"] | None,
        typer.Option(
            help="A horizontal cut into parties that differ in their labels, or in their numbers "
            "of people, both by a Dirichlet distribution with `--alpha`."
        ),
    ] = None,
    by_column: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="A horizontal cut into one party for each value of this column (a hospital, a "
            "region); name no parties then.",
        ),
    ] = None,
    alpha: Annotated[
        float,
        typer.Option(
            help="Near 0: one party has all that matters, or few classes, or most people. "
            "Large: balanced."
        ),
    ] = 1.0,
    beta: Annotated[
        float,
        typer.Option(help="0: parties' columns say different things. 1: they repeat each other."),
    ] = 0.5,
    horizontal: Annotated[
        bool,
        typer.Option("--horizontal", help="All columns at every party, and other people at each."),
    ] = False,
    shared: Annotated[
        int | None, typer.Option(help="People whom all parties hold.", show_default="everybody")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=N",
            help="People whom one party alone holds.",
            show_default="those not shared, divided evenly",
        ),
    ] = None,
    labelled: Annotated[
        str,
        typer.Option(
            metavar="all|shared|N",
            help="Whose labels are kept: all of the active party's people, the shared ones, or a "
            "number of them.",
        ),
    ] = "all",
    out: Annotated[
        Path | None, typer.Option(help="The folder.", show_default="the table's name and -parties")
    ] = None,
    format: Annotated[Literal["csv", "parquet"], typer.Option(help="Of the tables.")] = "csv",
    seed: Annotated[int, typer.Option(help="Seeds all that is random.")] = 0,
) -> None:
    """Cut one table into parties, to try out what their federation would bring.

    Columns by name, the rest to the vendor; 3,000 shared people, the others at one party only:

        interlace split people.csv --label bought --party us=age,card_* --party vendor --shared 3000

    Columns at random among three parties, labels for 500 people only:

        interlace split people.csv --label bought --party a --party b --party c --labelled 500

    All columns at both parties, whose people differ in what they bought:

        interlace split people.csv --label bought --skew labels --alpha 0.3 --party a --party b

    What comes out: a table and a party file for each party, and a `job.yaml` that `interlace run`
    takes as it stands, with the method that fits; the labels that the cut took from people go to
    `truth.csv`, which no party reads. With it two measures of the cut (VertiBench's): α, how
    evenly what matters is spread over the parties, and β, how much their columns correlate with
    each other's.
    """
    from interlace.data.partition import alpha_beta, cut_columns, cut_people, split_vertical
    from interlace.data.tables import read_table
    from interlace.party.party import check_name

    horizontal = horizontal or skew is not None or by_column is not None
    if horizontal and by != "random":
        raise JobError(f"--by {by} cuts columns; for people take --skew labels or --skew size")
    names: list[str] = []
    patterns: dict[str, list[str]] = {}
    if by_column is None:
        names, patterns = _parties(party or [])
    elif party or only or skew:
        raise JobError("--by-column names the parties; leave --party, --only and --skew out")
    if horizontal and active is None and SERVER in names:
        raise JobError(f"name a party other than '{SERVER}', which drives, or say --active")
    driver = active
    active = active or (names or [""])[0]
    if names and active not in names:
        raise JobError(f"the active party '{active}' is not among: {', '.join(names)}")
    folder = out or Path(f"{_stem(source)}-parties")
    for name in names:
        check_name(name)
    frame = read_table(source, party="one table", ids=[id] if id else [])
    if id is not None:
        frame = _one_row_each(frame, [id, *([by_column] if by_column else [])], source)
    features = [c for c in frame.columns if c not in (id, label)]
    counts = _counts(only or [], names)

    if horizontal:
        if shared is not None or patterns or labelled != "all":
            raise JobError(
                "a horizontal cut gives every party all columns and shares no people; leave "
                "--shared, --labelled and the parties' columns out"
            )
        cut, unlike = _cut_people(frame, names, counts, skew, by_column, alpha, label, id, seed)
        how = f"by {by_column or skew}" if by_column or skew else "at random"
        text = f"{Path(source).name}, its people cut {how}. {unlike}"
        method = {"name": "fedavg"}
        write_parties(folder, cut, method=method, description=text, active=driver, format=format)
        show_tables(folder, cut)
        show(unlike)
        show(Text.assemble("Next: ", (f"interlace run {folder / 'job.yaml'}", "bold cyan")))
        return

    named = _columns(patterns, features)
    columns = cut_columns(
        frame,
        features,
        names,
        "named" if named else by,
        named=named,
        alpha=alpha,
        beta=beta,
        label=label,
        seed=seed,
    )
    people = cut_people(
        frame.height,
        names,
        shared=frame.height if shared is None else shared,
        alone=counts or None,
        label_party=active,
        labelled=_labelled(labelled),
        seed=seed,
    )
    cut = split_vertical(frame, columns, people, label=label, label_party=active, id=id)
    difficulty = None
    if sum(bool(c) for c in columns.values()) > 1:
        difficulty = alpha_beta(frame, columns, label, seed=seed)
    description = _description(source, named, by, difficulty)
    write_parties(folder, cut, method={"name": "auto"}, description=description, format=format)
    show_tables(folder, cut, difficulty)
    say(f"Shared by all: {len(people.rows[active]) if shared is None else shared:,} people.")
    show(Text.assemble("Next: ", (f"interlace run {folder / 'job.yaml'}", "bold cyan")))


def _one_row_each(frame: pl.DataFrame, columns: list[str], source: str) -> pl.DataFrame:
    """The rows that a run would take: the first of each id, at each party where one id may stand at
    several. It tells how many are left out."""
    from interlace.data.ids import IdRule, make_keys

    rule = IdRule(columns=columns, duplicates="first", blanks="drop")
    keys = make_keys(frame, rule, party="one table", file=source)
    if left_out := frame.height - len(keys.rows):
        say(
            f"Left out: {left_out:,} of {frame.height:,} rows, {keys.report.blanks:,} without "
            f"{' or '.join(columns)} and {left_out - keys.report.blanks:,} beyond the first of "
            "their id, which a run refuses. To keep another row of an id, leave one row each in "
            "the table."
        )
    return frame[keys.rows]


def _cut_people(
    frame: pl.DataFrame,
    names: list[str],
    counts: dict[str, int],
    skew: str | None,
    by_column: str | None,
    alpha: float,
    label: str,
    id: str | None,
    seed: int,
) -> tuple[Split, str]:
    """The cut, and how unlike its parties are, in words."""
    import numpy as np

    from interlace.data.noniid import cut_by_column, cut_by_labels, cut_by_size, heterogeneity
    from interlace.data.partition import cut_rows, split_horizontal
    from interlace.data.tables import missing_column

    for column in (label, *([by_column] if by_column else [])):
        if column not in frame.columns:
            raise missing_column(column, frame.columns, party="one table")
    if counts:
        missing = sorted(set(names) - set(counts))
        if skew:
            raise JobError(f"--skew {skew} draws the numbers of people; leave --only out")
        if missing:
            raise JobError(f"say how many people '{missing[0]}' has: --only {missing[0]}=N")
        if sum(counts.values()) > frame.height:
            raise JobError(f"{sum(counts.values()):,} people cannot be cut from {frame.height:,}")
        frame = frame.sample(sum(counts.values()), shuffle=True, seed=seed)
    codes = frame[label].rank("dense").fill_null(0).to_numpy()
    if frame[label].dtype.is_numeric() and frame[label].n_unique() > 20:  # a quantity, by tenths
        codes = np.digitize(codes, np.quantile(codes, np.arange(1, 10) / 10))
    if by_column is not None:
        rows = cut_by_column(frame[by_column])
        frame = frame.drop(by_column)
    elif skew == "labels":
        rows = cut_by_labels(codes, names, alpha, seed=seed)
    elif skew == "size":
        rows = cut_by_size(frame.height, names, alpha, seed=seed)
    else:
        weights = [counts[n] for n in names] if counts else None
        rows = cut_rows(frame.height, names, weights=weights, seed=seed)
    found = heterogeneity(rows, codes)
    unlike = (
        f"How unlike the parties are, from 0 to 1: {found.labels:.2f} in the label, "
        f"{found.sizes:.2f} in numbers of people."
    )
    return split_horizontal(frame, rows, label=label, id=id), unlike


# -- what was asked for -----------------------------------------------------------------------


def _parties(texts: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """The parties' names, and the column patterns of those that have some."""
    names, patterns = [], {}
    for text in texts:
        name, equals, columns = text.partition("=")
        if name in names:
            raise JobError(f"two parties are called '{name}'; every party needs its own name")
        names.append(name)
        if equals:
            patterns[name] = [c.strip() for c in columns.split(",") if c.strip()]
    if len(names) < 2:
        raise JobError("a cut takes at least two parties: --party NAME, once for each")
    return names, patterns


def _columns(patterns: dict[str, list[str]], features: Sequence[str]) -> dict[str, list[str]]:
    """The patterns' columns; a pattern that is no column's name may hold * and ?."""
    from interlace.data.tables import missing_column

    named: dict[str, list[str]] = {}
    for party, wanted in patterns.items():
        named[party] = []
        for pattern in wanted:
            found = [c for c in features if c == pattern or fnmatchcase(c, pattern)]
            if not found:
                raise missing_column(pattern, features, party=party)
            named[party] += [c for c in found if c not in named[party]]
    return named


def _counts(texts: Sequence[str], names: Sequence[str]) -> dict[str, int]:
    counts = {}
    for text in texts:
        name, _, number = text.partition("=")
        if name not in names or not number.isdigit():
            raise JobError(
                f"--only {text}: write NAME=N, a number of people for one of {', '.join(names)}"
            )
        counts[name] = int(number)
    return counts


def _labelled(text: str) -> int | Literal["all", "shared"]:
    if text == "all":
        return "all"
    if text == "shared":
        return "shared"
    if not text.isdigit():
        raise JobError(f"--labelled {text}: write all, shared, or a number of people")
    return int(text)


def _stem(source: str) -> str:
    return Path(source).name.partition(".")[0] or "table"


# -- what comes of it -------------------------------------------------------------------------


def _description(
    source: str, named: dict[str, list[str]], by: str, difficulty: CutDifficulty | None
) -> str:
    how = {
        "random": "at random",
        "correlation": "by correlation",
        "importance": "by importance",
    }[by]
    text = f"{Path(source).name}, its columns cut {'by name' if named else how}"
    if difficulty is None:
        return f"{text}."
    return f"{text} (α {difficulty.alpha:.2f}, β {difficulty.beta:.2f})."


def write_parties(
    folder: Path,
    cut: Split,
    *,
    method: dict[str, Any],
    name: str = "",
    description: str = "",
    active: str | None = None,
    seeds: int = 3,
    format: Literal["csv", "parquet"] = "csv",
) -> None:
    """Write each party's table, its party file, the job, and what nobody but the one who simulates
    knows: the labels that were taken away.

    A horizontal cut is driven by ``active``, or else by a server without people.

    Raises:
        InterlaceError: one of the files is already there, or cannot be written.
    """
    import yaml

    from interlace.data.partition import write_split
    from interlace.files import write_whole

    names = {f"{party}.yaml" for party in cut.tables} | {"job.yaml", TRUTH}
    if Path(TRUTH).stem in cut.tables:
        raise InterlaceError(f"name the party '{Path(TRUTH).stem}' otherwise: {TRUTH} is not its")
    there = sorted(n for n in names if (folder / n).exists())
    if there:
        raise InterlaceError(
            f"{folder / there[0]} is already there; remove it, or choose another folder by --out"
        )
    tables = write_split(folder, cut, format=format)
    texts: dict[str, dict[str, Any]] = {}
    parties: dict[str, Any] = {party: f"{party}.yaml" for party in cut.tables}
    weights = {"policy": {"allow_also": ["model weights"]}}
    if cut.label_party is None and active is None:
        parties = {SERVER: weights, **parties}
    for party, path in tables.items():
        texts[f"{party}.yaml"] = {"table": path.name, "id": cut.id}
        if cut.label in cut.tables[party].columns:
            texts[f"{party}.yaml"]["label"] = cut.label
        if cut.label_party is None:
            texts[f"{party}.yaml"] |= weights
    texts["job.yaml"] = {
        "name": name or folder.resolve().name,
        "description": description or cut.description,
        "parties": parties,
        "active": cut.label_party or active or SERVER,
        "method": method,
        "seeds": list(range(seeds)),
    }
    if cut.truth is not None:
        write_whole(folder / TRUTH, cut.truth.write_csv().encode())
        texts["job.yaml"]["truth"] = TRUTH
    for file, fields in texts.items():
        text = yaml.safe_dump(fields, sort_keys=False, allow_unicode=True, width=1000)
        (folder / file).write_text(text)


def show_tables(folder: Path, cut: Split, difficulty: CutDifficulty | None = None) -> None:
    """Print what each party got and, where it was measured, how hard the cut is."""
    headings = ["party", "people", "labelled", "columns", *(["importance"] if difficulty else [])]
    made = table(*headings, title=str(folder))
    for name, frame in cut.tables.items():
        has_label = cut.label in frame.columns
        known = frame.height - frame[cut.label].null_count() if has_label else None
        row = [
            name,
            f"{frame.height:,}",
            "–" if known is None else f"{known:,}",
            f"{frame.width - 1 - has_label:,}",
        ]
        if difficulty:
            row.append(f"{difficulty.shares.get(name, 0.0):.0%}")
        made.add_row(*row)
    show(made)
    if difficulty:
        show(
            f"α = {difficulty.alpha:.2f}: {_in_words_alpha(difficulty.alpha)}",
            f"β = {difficulty.beta:.2f}: {_in_words_beta(difficulty.beta)}",
        )


def _in_words_alpha(alpha: float) -> str:
    if alpha < 0.5:
        return "nearly all that matters lies at one party."
    return "what matters is spread unevenly." if alpha < 5 else "what matters is spread evenly."


def _in_words_beta(beta: float) -> str:
    if beta < 1 / 3:
        return "the parties' columns say different things."
    return (
        "the parties' columns overlap somewhat in what they say."
        if beta < 2 / 3
        else "the parties' columns repeat each other as much as a cut of this table can."
    )
