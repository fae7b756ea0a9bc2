"""From id columns to the keys by which parties find the people they share.

Two parties agree on a person only if their keys are the same bytes, so everything here is exact:
an integer and the text that spells it give one key, several columns are joined without ambiguity,
and whatever the rule changes or leaves is counted in the report. Nothing is handled silently.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, field_validator

from interlace.data.suggest import line_of
from interlace.data.tables import missing_column
from interlace.errors import DataError


class IdRule(BaseModel):
    """How a party's id columns become keys; the ``id`` part of a party file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    columns: list[str] = Field(
        description="Id columns; several make one key, none where nobody is matched. One may stand "
        "without brackets."
    )
    strip: bool = Field(default=False, description="Remove blanks around each id.")
    case: Literal["keep", "lower"] = Field(
        default="keep", description="'lower': letter case does not tell people apart."
    )
    zeros: Literal["keep", "strip"] = Field(
        default="keep",
        description="'strip': leading zeros of ids that are digits only do not tell people apart.",
    )
    duplicates: Literal["refuse", "first", "drop"] = Field(
        default="refuse",
        description="'first' keeps the first row of a repeated id, 'drop' none of its rows.",
    )
    blanks: Literal["refuse", "drop"] = Field(
        default="refuse", description="'drop' leaves out rows whose id is missing or blank."
    )

    @field_validator("columns", mode="before")
    @classmethod
    def _one(cls, columns: Any) -> Any:
        return [columns] if isinstance(columns, str) else columns


def id_line(columns: Sequence[str], **options: Any) -> str:
    """A line of a party file that sets options of the id rule, to be copied as it stands."""
    return f"`{line_of('id', {'columns': list(columns), **options})}`"


class IdReport(BaseModel):
    """What was found in the id columns, in counts; it never holds an id.

    The counts of forms (blanks around ids, leading zeros, letter case) are of rows as they stand
    in the table, before the rule is applied. The three ``would_merge_...`` count the kept ids that
    would fall together with another kept id if that difference were ignored.
    """

    model_config = ConfigDict(frozen=True)

    rows: int
    kept: int
    blanks: int = Field(description="Rows whose id is missing, empty or only whitespace.")
    duplicates: int = Field(description="Rows beyond the first of their id.")
    with_surrounding_blanks: int
    with_leading_zeros: int
    mixed_case: int = Field(description="Rows whose letter case is not that of most rows.")
    would_merge_without_blanks: int
    would_merge_without_case: int
    would_merge_without_zeros: int
    done: list[str] = Field(description="What was left out or changed, in sentences.")
    forms: dict[str, str] = Field(
        description="By the form of some ids, what keeps them from a partner's of another form."
    )

    @property
    def notes(self) -> list[str]:
        """What a reader should know before ids are matched, in sentences with counts."""
        return [*self.done, *self.forms.values()]


@dataclass(frozen=True, eq=False)
class Keys:
    """The keys of the rows that were kept.

    Attributes:
        values: one key a kept row, all different.
        rows: shape (n,), int64; the position of each key's row in the table, rising.
        report: what was found and done.
    """

    values: list[bytes]
    rows: NDArray[np.int64]
    report: IdReport


_LEADING_ZEROS = r"^0+([0-9]+)$"  # leaves one digit of "000"


def no_keys(rows: int) -> Keys:
    """The keys of a table without ids, whose rows can be matched with nobody's."""
    counts = dict.fromkeys(IdReport.model_fields, 0)
    report = IdReport.model_validate(
        {**counts, "rows": rows, "kept": rows, "done": [], "forms": {}}
    )
    return Keys([], np.arange(rows, dtype=np.int64), report)


def make_keys(frame: pl.DataFrame, rule: IdRule, *, party: str, file: str | None = None) -> Keys:
    """One key for each row that the rule keeps.

    A key is the UTF-8 text of the id; a key of several columns is the sequence of
    ``length:text`` of its columns, lengths in bytes, so no two different ids share a key.

    Raises:
        DataError: an id column is not there or has a type that cannot name people (fractions,
            lists, bytes); blank or duplicate ids that the rule refuses; no row is left.
    """
    texts = _texts(frame, rule, party, file)
    names = [t.name for t in texts]
    where = ", ".join(rule.columns)
    blank = pl.any_horizontal(_cleaned(pl.col(t.name), strip=True).eq("") for t in texts)
    table = pl.DataFrame(texts).select(
        pl.all(), row=pl.int_range(pl.len(), dtype=pl.Int64), blank=blank
    )
    blanks = int(table["blank"].sum())
    if blanks and rule.blanks == "refuse":
        raise DataError(
            f"{blanks} of {frame.height} rows have no id (missing, empty or only blanks)",
            party=party,
            file=file,
            column=where,
            way_out=f"Fill them in, or set {set_in(rule, blanks='drop')} to leave them out.",
        )
    table = table.filter(~pl.col("blank"))
    table = table.with_columns(key=_key(names, rule))
    duplicates = table.height - table["key"].n_unique()
    if duplicates and rule.duplicates == "refuse":
        raise DataError(
            f"{duplicates} of {frame.height} rows repeat the id of another row",
            party=party,
            file=file,
            column=where,
            way_out=f"Make one row a person, or set {set_in(rule, duplicates='first')} to keep the "
            "first row of each, or `duplicates: drop` to keep none of them.",
        )
    if duplicates:
        first = rule.duplicates == "first"
        kept = table.filter(
            pl.col("key").is_first_distinct() if first else pl.col("key").is_unique()
        )
    else:
        kept = table
    if kept.height == 0:
        raise DataError(
            "no row is left that has an id of its own",
            party=party,
            file=file,
            column=where,
            way_out="Check the id columns and the id rule in the party file.",
        )
    report = _report(frame.height, blanks, duplicates, table, kept, names, rule)
    values = kept["key"].cast(pl.Binary).to_list()
    return Keys(values, kept["row"].to_numpy().astype(np.int64), report)


def keys_of(frame: pl.DataFrame, rule: IdRule, *, party: str) -> list[bytes]:
    """The key of each row's id as :func:`make_keys` makes it, blank and repeated ones too.

    Raises:
        DataError: an id column is not there or has a type that cannot name people.
    """
    texts = _texts(frame, rule, party, None)
    keys = pl.DataFrame(texts).select(_key([t.name for t in texts], rule)).to_series()
    return keys.cast(pl.Binary).to_list()


def _texts(frame: pl.DataFrame, rule: IdRule, party: str, file: str | None) -> list[pl.Series]:
    """The id columns as text, renamed so that none can be taken for one of ours."""
    for name in rule.columns:
        if name not in frame.columns:
            raise missing_column(name, frame.columns, party=party, file=file, is_id=True)
    return [
        _as_text(frame[column], party, file).alias(f"id{i}")
        for i, column in enumerate(rule.columns)
    ]


def _as_text(series: pl.Series, party: str, file: str | None) -> pl.Series:
    """The id column as text; missing values become empty text."""
    dtype = series.dtype
    if dtype.is_float() or dtype.is_decimal():
        # A column of integers with gaps reaches us as floats from pandas.
        number = series.cast(pl.Float64).fill_nan(None)
        whole = number.is_finite() & (number == number.round()) & (number.abs() <= 2**53)
        broken = int((~whole).sum())
        if broken:
            raise DataError(
                f"{broken} ids are fractions, infinite or too large to be exact as decimals",
                party=party,
                file=file,
                column=series.name,
                way_out="Read the ids as text or as integers.",
            )
        text = number.cast(pl.Int64).cast(pl.String)
    elif (
        dtype.is_integer()
        or dtype.is_temporal()
        or dtype in (pl.String, pl.Categorical, pl.Boolean, pl.Null)
        or isinstance(dtype, pl.Enum)
    ):
        text = series.cast(pl.String)
    else:
        raise DataError(
            f"a column of type {dtype.base_type()} cannot name people",
            party=party,
            file=file,
            column=series.name,
            way_out="Use text or integers as ids.",
        )
    return text.fill_null("")


def _cleaned(
    text: pl.Expr, *, strip: bool = False, lower: bool = False, zeros: bool = False
) -> pl.Expr:
    text = text.str.strip_chars() if strip else text
    text = text.str.to_lowercase() if lower else text
    return text.str.replace(_LEADING_ZEROS, "$1") if zeros else text


def _key(
    names: list[str],
    rule: IdRule,
    *,
    strip: bool = False,
    lower: bool = False,
    zeros: bool = False,
) -> pl.Expr:
    """The key under the rule, or under the rule with one more difference ignored."""
    parts = [
        _cleaned(
            pl.col(name),
            strip=strip or rule.strip,
            lower=lower or rule.case == "lower",
            zeros=zeros or rule.zeros == "strip",
        )
        for name in names
    ]
    if len(parts) == 1:
        return parts[0]
    joined: list[pl.Expr] = []
    for part in parts:
        joined += [part.str.len_bytes().cast(pl.String), pl.lit(":"), part]
    return pl.concat_str(joined)


def _report(
    rows: int,
    blanks: int,
    duplicates: int,
    table: pl.DataFrame,
    kept: pl.DataFrame,
    names: list[str],
    rule: IdRule,
) -> IdReport:
    def either(tests: list[pl.Expr]) -> pl.Expr:
        return pl.any_horizontal(tests)

    columns = [pl.col(name) for name in names]
    upper = either([c.str.contains(r"\p{Lu}") for c in columns])
    lower = either([c.str.contains(r"\p{Ll}") for c in columns])
    found = table.select(
        surrounded=either([c != c.str.strip_chars() for c in columns]).sum(),
        zeros=either([c.str.contains(_LEADING_ZEROS) for c in columns]).sum(),
        only_upper=(upper & ~lower).sum(),
        only_lower=(lower & ~upper).sum(),
        both=(upper & lower).sum(),
        decimals=either([c.str.contains(r"^[0-9]+\.0+$") for c in columns]).sum(),
    ).row(0, named=True)
    cases = (found["only_upper"], found["only_lower"], found["both"])
    mixed = sum(cases) - max(cases)
    has_letters = sum(cases) > 0
    merged = kept.select(
        strip=_merges(names, rule, found["surrounded"] > 0, strip=True),
        lower=_merges(names, rule, has_letters, lower=True),
        zeros=_merges(names, rule, found["zeros"] > 0, zeros=True),
    ).row(0, named=True)
    removed = table.height - kept.height
    return IdReport(
        rows=rows,
        kept=kept.height,
        blanks=blanks,
        duplicates=duplicates,
        with_surrounding_blanks=found["surrounded"],
        with_leading_zeros=found["zeros"],
        mixed_case=mixed,
        would_merge_without_blanks=merged["strip"],
        would_merge_without_case=merged["lower"],
        would_merge_without_zeros=merged["zeros"],
        done=_done(rule, blanks, duplicates, removed, found),
        forms=_forms(rule, found, mixed, merged),
    )


def _merges(
    names: list[str],
    rule: IdRule,
    possible: bool,
    *,
    strip: bool = False,
    lower: bool = False,
    zeros: bool = False,
) -> pl.Expr:
    """How many kept ids would fall together with another one."""
    if not possible:
        return pl.lit(0)
    looser = _key(names, rule, strip=strip, lower=lower, zeros=zeros)
    return pl.len() - looser.n_unique()


def _done(
    rule: IdRule, blanks: int, duplicates: int, removed: int, found: dict[str, int]
) -> list[str]:
    """What the rule left out or changed, in sentences with counts."""
    notes = []
    if blanks:
        notes.append(f"Left out for want of an id: {_count(blanks, 'row')} (`blanks: drop`).")
    if duplicates:
        notes.append(
            f"An id of another row is repeated in {_count(duplicates, 'row')}; "
            f"left out: {_count(removed, 'row')} (`duplicates: {rule.duplicates}`)."
        )
    if rule.strip and (count := found["surrounded"]):
        notes.append(f"Blanks around {_count(count, 'id')} were removed (`strip: true`).")
    if rule.zeros == "strip" and (count := found["zeros"]):
        notes.append(f"Leading zeros of {_count(count, 'id')} were removed (`zeros: strip`).")
    if rule.case == "lower" and (count := found["only_upper"] + found["both"]):
        notes.append(f"Capital letters of {_count(count, 'id')} were made small (`case: lower`).")
    return notes


def _forms(
    rule: IdRule, found: dict[str, int], mixed: int, merged: dict[str, int]
) -> dict[str, str]:
    """What keeps ids of some form from a partner's of another, in sentences with counts."""
    notes = {}
    if not rule.strip and (count := found["surrounded"]):
        notes["blanks"] = (
            f"Blanks stand around {_count(count, 'id')}, which match only ids with the same "
            f"blanks; {set_in(rule, strip=True)} removes them{_would_merge(merged['strip'])}."
        )
    if rule.zeros == "keep" and (count := found["zeros"]):
        notes["zeros"] = (
            f"Leading zeros stand in {_count(count, 'id')}, and 00123 does not match 123; if "
            f"a partner's ids have lost theirs, set {set_in(rule, zeros='strip')}, and the "
            f"like at each partner{_would_merge(merged['zeros'])}."
        )
    if rule.case == "keep" and mixed:
        notes["case"] = (
            f"The letter case of {_count(mixed, 'id')} is not that of the others, and Ab does not "
            f"match ab; {set_in(rule, case='lower')}, and the like at each partner, "
            f"ignores it{_would_merge(merged['lower'])}."
        )
    if count := found["decimals"]:
        notes["decimals"] = (
            f"Whole numbers are written as decimals (123.0) in {_count(count, 'id')}, and do not "
            "match 123; write the id column again as integers or text."
        )
    return notes


def notes_once_matched(report: IdReport, rule: IdRule, matched: pl.DataFrame) -> list[str]:
    """The notes on ids of which some were matched.

    A form that matched ids have too is the partners' as well, and keeps nobody apart.

    Args:
        report: Of all the ids.
        rule: By which they became keys.
        matched: The rows whose people a partner holds.
    """
    common = make_keys(matched, rule, party="").report.forms if matched.height else {}
    return [*report.done, *(note for form, note in report.forms.items() if form not in common)]


def set_in(rule: IdRule, **options: Any) -> str:
    """The line that sets one more option of a party's own rule."""
    return id_line(**{**rule.model_dump(exclude_defaults=True), **options})


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _would_merge(count: int) -> str:
    if not count:
        return ""
    return f" (by which {_count(count, 'id')} would fall together with another one here)"
