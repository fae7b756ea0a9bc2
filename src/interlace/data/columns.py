"""What each kind of column becomes: numbers, a missing indicator, parts of a date, a category code.

How a column is read follows from all of its party's table. Each kind is a small pydantic model
that holds what was learnt from the training rows, and nothing else: it is saved as JSON and applied
to any other rows as it stands.
"""

from __future__ import annotations

import functools
import hashlib
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from interlace.data.gaps import is_gap
from interlace.data.suggest import line_of
from interlace.errors import DataError

Floats = NDArray[np.float64]

CLIP = 10.0  # standardised values beyond it say no more than "extreme", and break training
LEVELS_KEPT = 64
RARE = 1 / 1000  # a level of fewer training rows than this share has no code of its own
BUCKETS = 16

FEW = 12  # different values that are as well read as a category, and may be codes
UNREAD = 1 / 10  # most of a column's values that may be no numbers, or dates, as the others are
_DATE_FORMATS = (
    "%Y-%m-%d",
    "%Y/%m/%d",
    "%d.%m.%Y",
    "%d/%m/%Y",  # before its American twin: where both fit, the day comes first, and it is noted
    "%m/%d/%Y",
    "%d-%m-%Y",
    "%d %b %Y",
    "%d-%b-%Y",
    "%b %d, %Y",
    "%Y-%m-%d %H:%M",
    "%Y-%m-%d %H:%M:%S%.f",
    "%Y-%m-%dT%H:%M:%S%.f",
    "%Y-%m-%dT%H:%M:%S%.f%#z",
    "%Y-%m-%d %H:%M:%S%.f%#z",
    "%d.%m.%Y %H:%M:%S%.f",
    "%d/%m/%Y %H:%M:%S%.f",
    "%m/%d/%Y %H:%M:%S%.f",
    "%Y-%m",
    "%m/%Y",
    "%b-%Y",
    "%b %Y",
)
_LETTERS = {
    "%Y": "YYYY",
    "%m": "MM",
    "%b": "MMM",
    "%d": "DD",
    "%H": "hh",
    "%M": "mm",
    "%S": "ss",
    "%.f": "",
    "%#z": "zone",
}
_DAY = 86_400_000_000  # in microseconds
_DECIMAL_COMMAS = (
    "these look like decimal commas; for numbers write them with a point, or part the file's "
    "fields by semicolons"
)


class _Plan(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str


class NumericColumn(_Plan):
    """A standardised number: ``clip((x - mean) / scale, -10, 10)``, gaps filled with the median.

    When the training rows had gaps, a second input says where (1 at a gap).
    """

    kind: Literal["numeric"] = "numeric"
    median: float
    mean: float
    scale: float
    indicator: bool

    def names(self) -> list[str]:
        return [self.name, f"{self.name} missing"] if self.indicator else [self.name]

    def transform(self, series: pl.Series) -> list[Floats]:
        values, _ = numbers(series)
        gap = np.isnan(values)
        scaled = _standardise(np.where(gap, self.median, values), self.mean, self.scale)
        return [scaled, gap.astype(np.float64)] if self.indicator else [scaled]


class IndicatorColumn(_Plan):
    """1 where the value is missing: all that a column holds that is otherwise constant."""

    kind: Literal["indicator"] = "indicator"

    def names(self) -> list[str]:
        return [f"{self.name} missing"]

    def transform(self, series: pl.Series) -> list[Floats]:
        return [np.isnan(numbers(series)[0]).astype(np.float64)]


DatePart = Literal["age", "year", "month sin", "month cos", "weekday sin", "weekday cos"]


class ScaledPart(BaseModel):
    """One part of a date and its standardisation; the circular parts are left as they are."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    part: DatePart
    mean: float
    scale: float


class DateColumn(_Plan):
    """A date: its age in days before the newest training date, its year, month and weekday.

    Month and weekday are points on a circle, so that December lies beside January. Parts that do
    not vary over the training rows are left out. At a gap every part is 0, the mean.
    """

    kind: Literal["date"] = "date"
    format: str | None = Field(description="How text spells the dates; None for a date column.")
    newest: float = Field(description="Newest training date, in days since 1970-01-01.")
    parts: tuple[ScaledPart, ...]
    indicator: bool

    def names(self) -> list[str]:
        names = [f"{self.name} {part.part}" for part in self.parts]
        return [*names, f"{self.name} missing"] if self.indicator else names

    def transform(self, series: pl.Series) -> list[Floats]:
        found = _date_parts(as_dates(series, self.format), self.newest)
        gap = np.isnan(found["age"])
        out = [np.where(gap, 0.0, _standardise(found[p.part], p.mean, p.scale)) for p in self.parts]
        return [*out, gap.astype(np.float64)] if self.indicator else out


class CategoryColumn(_Plan):
    """A category code.

    0 is a missing level, or one that the training rows did not have. Codes 1 to ``len(levels)``
    are the levels kept. With ``buckets``, every other level (rare in training, or never seen
    there) gets one of the codes after these: BLAKE2b of the level's text, modulo ``buckets``.
    """

    kind: Literal["category"] = "category"
    levels: tuple[str, ...]
    buckets: int

    @property
    def cardinality(self) -> int:
        return 1 + len(self.levels) + self.buckets

    def names(self) -> list[str]:
        return [self.name]

    def transform(self, series: pl.Series) -> list[Floats]:
        level = as_levels(series)
        table = {text: code for code, text in enumerate(self.levels, start=1)}
        if self.buckets:
            for text in level.unique().drop_nulls().to_list():
                table.setdefault(text, 1 + len(self.levels) + _hash(text) % self.buckets)
        codes = level.replace_strict(
            pl.Series(list(table), dtype=pl.String),
            pl.Series(list(table.values()), dtype=pl.Float64),
            default=0.0,
            return_dtype=pl.Float64,
        )
        return [codes.to_numpy()]


ColumnPlan = Annotated[
    NumericColumn | IndicatorColumn | DateColumn | CategoryColumn, Field(discriminator="kind")
]


class ColumnReport(BaseModel):
    """What one column became, in counts over the training rows; it never holds a value.

    ``unread`` is of the whole table, as how a column is read is.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    became: Literal["numbers", "missing indicator", "date parts", "category", "image", "dropped"]
    inputs: int = Field(description="Inputs of the model that come from this column.")
    gaps: int = Field(description="Training rows without a usable value, infinities included.")
    infinities: int = Field(
        default=0, description="Infinite, or too large for single precision; taken as gaps."
    )
    unread: int = Field(
        default=0, description="Values that are no number, or date, although most others are."
    )
    levels: int = Field(default=0, description="Different values of a category.")
    note: str | None = None
    unless: str | None = Field(
        default=None, description="When it is right to name the column under `categories`."
    )


def column_notes(read: Sequence[ColumnReport], categories: Sequence[str] = ()) -> list[str]:
    """What the reading of a party's columns found worth saying, columns of one note together.

    Args:
        read: How they were read.
        categories: What the party's file has under `categories` already.
    """
    alike: dict[tuple[str, str | None], list[str]] = {}
    for column in read:
        if column.note:
            alike.setdefault((column.note, column.unless), []).append(column.name)
    said = []
    for (note, unless), names in alike.items():
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        line = "`categories`"
        if len(names) <= 10:
            line = f"`{line_of('categories', [*categories, *names])}`"
        way_out = f"; if {unless}, set {line} in the party's file" if unless else ""
        quoted = ", ".join(f"'{name}'" for name in names[:3])
        said.append(f"{quoted}{more}: {note}{way_out}")
    return said


@dataclass(frozen=True)
class Reading:
    """How a column is read, which is a property of its party's whole table.

    So it is the same for ``interlace inspect``, every model and every seed. What is learnt from
    values, such as means and levels, is of training rows alone (:func:`fit_column`).

    Attributes:
        kind: ``text`` differs in nearly every row, and ``unfit`` is nothing a model here reads.
        spelling: How text spells dates.
        unread: Values of the table that are no number, or date, although most others are.
        note: What is worth saying of it.
        unless: When it is right to name the column under ``categories``.
    """

    kind: Literal["numbers", "dates", "category", "text", "unfit"]
    spelling: str | None = None
    unread: int = 0
    note: str | None = None
    unless: str | None = None


def read_columns(
    frame: pl.DataFrame, columns: Sequence[str], categories: Sequence[str] = ()
) -> dict[str, Reading]:
    """How each column is read.

    Args:
        frame: The party's whole table.
        columns: Its columns.
        categories: Those that hold codes although they look like numbers or dates.
    """
    return {name: _read(frame[name], categorical=name in categories) for name in columns}


def _read(series: pl.Series, *, categorical: bool) -> Reading:
    dtype = series.dtype
    if categorical:
        return Reading("category")
    if dtype in (pl.Date, pl.Datetime):
        return Reading("dates")
    if dtype.is_integer() and 2 < series.drop_nulls().n_unique() <= FEW:
        note = "few different whole numbers, read as a quantity"
        return Reading("numbers", note=note, unless="they are codes")
    if dtype.is_numeric() or dtype in (pl.Boolean, pl.Duration, pl.Time, pl.Null):
        return Reading("numbers")
    if dtype in (pl.Categorical, pl.Enum):
        return Reading(_level_kind(series))
    return _read_text(series) if dtype == pl.String else Reading("unfit")


def fit_column(
    series: pl.Series, reading: Reading, *, party: str, file: str | None
) -> tuple[NumericColumn | IndicatorColumn | DateColumn | CategoryColumn | None, ColumnReport]:
    """Learn one column from its training rows.

    Args:
        series: The column over these rows.
        reading: How the whole column is read.
        party: Whose it is, for the errors.
        file: Of which file, for the errors.

    Returns:
        The plan, or ``None`` when the column tells nothing apart, and the report.

    Raises:
        DataError: the column has a type that no model here can read.
    """
    if series.dtype == pl.Null or series.null_count() == len(series):
        return None, _dropped(series.name, len(series), 0, "every training row lacks it")
    plan: NumericColumn | IndicatorColumn | DateColumn | CategoryColumn | None
    if reading.kind == "numbers":
        plan, report = _fit_numeric(series)
    elif reading.kind == "dates":
        plan, report = _fit_date(series, reading.spelling)
    elif reading.kind == "unfit":
        raise DataError(
            f"a column of type {series.dtype.base_type()} cannot be a feature",
            party=party,
            file=file,
            column=series.name,
            way_out="Leave it out, or turn it into plain columns first.",
        )
    else:
        plan, report = _fit_category(series, text=reading.kind == "text")
    notes = [note for note in (reading.note, report.note) if note]
    return plan, report.model_copy(
        update={
            "unread": reading.unread,
            "note": "; ".join(notes) or None,
            "unless": reading.unless or report.unless,
        }
    )


# --- numbers -----------------------------------------------------------------------------------


def numbers(series: pl.Series) -> tuple[Floats, int]:
    """The values as float64 with NaN at each gap, and how many of the gaps were infinities.

    Durations are in days, times of day in hours, true is 1. Text that spells no number is a gap.
    """
    dtype = series.dtype
    if dtype == pl.String:
        series = series.str.strip_chars().cast(pl.Float64, strict=False)
    elif dtype == pl.Duration:
        series = series.dt.total_microseconds() / _DAY
    elif dtype == pl.Time:
        series = series.cast(pl.Int64) / 3.6e12
    elif not (dtype.is_numeric() or dtype in (pl.Boolean, pl.Null)):
        series = pl.Series(series.name, [None] * len(series), dtype=pl.Float64)
    values = series.cast(pl.Float64).to_numpy().astype(np.float64)
    # Beyond single precision a value would turn infinite in the model's tensors.
    infinite = np.abs(values) > np.finfo(np.float32).max
    return np.where(infinite, np.nan, values), int(infinite.sum())


def _standardise(values: Floats, mean: float, scale: float) -> Floats:
    return np.clip((values - mean) / scale, -CLIP, CLIP)


def _fit_numeric(
    series: pl.Series,
) -> tuple[NumericColumn | IndicatorColumn | None, ColumnReport]:
    values, infinities = numbers(series)
    gap = np.isnan(values)
    gaps = int(gap.sum())
    seen = values[~gap]
    name = series.name
    if seen.size == 0:
        return None, _dropped(name, gaps, infinities, "every training row lacks it")
    median = float(np.median(seen))
    filled = np.where(gap, median, values)
    mean, scale = float(filled.mean()), float(filled.std())
    if scale <= 1e-12 * abs(mean) or scale == 0.0:  # what rounding leaves of a constant
        if not gaps:
            return None, _dropped(name, 0, 0, "one value in every training row")
        return IndicatorColumn(name=name), ColumnReport(
            name=name,
            became="missing indicator",
            inputs=1,
            gaps=gaps,
            infinities=infinities,
            note="constant where it is known; only whether it is known tells rows apart",
        )
    plan = NumericColumn(name=name, median=median, mean=mean, scale=scale, indicator=gaps > 0)
    return plan, ColumnReport(
        name=name,
        became="numbers",
        inputs=len(plan.names()),
        gaps=gaps,
        infinities=infinities,
    )


# --- text --------------------------------------------------------------------------------------


def _read_text(series: pl.Series) -> Reading:
    """Text is numbers or dates if all its values spell one, gaps apart, or all but a few.

    The few are gaps then. Where not enough read, or so few values differ that as a category the
    column loses nothing, it is a category. Either way the note tells.
    """
    text = series.str.strip_chars()
    counted = text.filter(~is_gap(text)).alias("text").value_counts()
    values, known = counted["text"], int(counted["count"].sum())

    def rows(reads: pl.Series) -> int:
        return int(counted.filter(reads)["count"].sum())

    # Leading zeros mark a code (a postcode, an account), not a quantity.
    codes = values.str.contains(r"^0[0-9]+$").any()
    reads: dict[str | None, pl.Series]
    reads = {None: values.cast(pl.Float64, strict=False).is_not_null() & (not codes)}
    if known and rows(reads[None]) == known:
        return Reading("numbers")
    reads |= {f: as_dates(values, f).is_not_null() for f in _DATE_FORMATS}
    found = {f: rows(r) for f, r in reads.items()}
    spelling = max(found, key=found.__getitem__)  # None: numbers
    lost = known - found[spelling]
    # All may be dates although no one spelling reads them.
    if 2 * rows(functools.reduce(operator.or_, reads.values())) <= known:
        commas = values.str.contains(r"^[+-]?\d+,\d+$")
        decimals = commas.any() and 2 * rows(commas | reads[None]) > known
        return Reading(_level_kind(series), note=_DECIMAL_COMMAS if decimals else None)
    notes = []
    if found["%d/%m/%Y"] == found[spelling] == found["%m/%d/%Y"]:
        notes.append("day and month could be either way round; read as day/month")
    if not lost:
        return Reading("dates", spelling, note="; ".join(notes) or None)
    form = f"dates of the form {date_form(spelling)}" if spelling else "numbers"
    kind: Literal["numbers", "dates", "category", "text"]
    if lost > UNREAD * known or counted.height <= FEW:
        kind = _level_kind(series)
        done = f"so the column is {'left out' if kind == 'text' else 'read as a category'}"
    else:
        kind, done = "dates" if spelling else "numbers", "and are taken for gaps"
    notes.insert(
        0,
        f"{lost:,} of {known:,} values do not read as {form}, as the others do, {done}; "
        "write them as the others, or leave them empty",
    )
    return Reading(kind, spelling, lost, "; ".join(notes), "it holds categories")


def _level_kind(series: pl.Series) -> Literal["category", "text"]:
    level = as_levels(series).drop_nulls()
    return "text" if level.n_unique() > max(LEVELS_KEPT, 0.95 * len(level)) else "category"


def unread(series: pl.Series, *, dates: bool, spelling: str | None = None) -> tuple[int, int]:
    """How many values are no number, or no date, and how many values there are, gaps apart.

    Args:
        series: The column.
        dates: Whether dates are due.
        spelling: How text spells them.
    """
    if series.dtype.is_numeric() and not dates:  # the look at every value takes long
        return 0, len(series) - series.null_count()
    known = ~is_gap(series) if series.dtype == pl.String else series.is_not_null()
    values = series.filter(known)
    if dates:
        return as_dates(values, spelling).null_count(), len(values)
    found, infinities = numbers(values)
    return int(np.isnan(found).sum()) - infinities, len(values)


# --- dates -------------------------------------------------------------------------------------


def as_dates(series: pl.Series, spelling: str | None) -> pl.Series:
    """The column as wall-clock datetimes; what is no date between 1800 and 2200 is null."""
    dtype = series.dtype
    if dtype == pl.Date:
        dates = series.cast(pl.Datetime("us"))
    elif dtype == pl.Datetime:
        dates = series.dt.replace_time_zone(None).dt.cast_time_unit("us")
    elif dtype == pl.String:
        text = series.str.strip_chars()
        spelling = spelling or "%Y-%m-%d"
        if "%d" not in spelling:  # a month: its first day
            text, spelling = "1 " + text, f"%d {spelling}"
        dates = text.str.to_datetime(spelling, time_unit="us", strict=False)
        dates = dates.dt.replace_time_zone(None)
    else:
        return pl.Series(series.name, [None] * len(series), dtype=pl.Datetime("us"))
    year = dates.dt.year()
    return dates.set(((year < 1800) | (year > 2200)).fill_null(False), None)


def date_form(spelling: str) -> str:
    """How dates are spelt, as a spreadsheet has it: ``DD.MM.YYYY``."""
    for mark, letters in _LETTERS.items():
        spelling = spelling.replace(mark, letters)
    return spelling


def _date_parts(dates: pl.Series, newest: float) -> dict[DatePart, Floats]:
    def values(series: pl.Series) -> Floats:
        return series.cast(pl.Float64).to_numpy().astype(np.float64)

    month = 2 * np.pi * (values(dates.dt.month()) - 1) / 12
    weekday = 2 * np.pi * (values(dates.dt.weekday()) - 1) / 7
    return {
        "age": newest - _days(dates),
        "year": values(dates.dt.year()),
        "month sin": np.sin(month),
        "month cos": np.cos(month),
        "weekday sin": np.sin(weekday),
        "weekday cos": np.cos(weekday),
    }


def _days(dates: pl.Series) -> Floats:
    return dates.dt.epoch("us").cast(pl.Float64).to_numpy().astype(np.float64) / _DAY


def _fit_date(series: pl.Series, spelling: str | None) -> tuple[DateColumn | None, ColumnReport]:
    dates = as_dates(series, spelling)
    gaps = dates.null_count()
    if gaps == len(dates):
        return None, _dropped(series.name, gaps, 0, "every training row lacks it")
    newest = float(np.nanmax(_days(dates)))
    parts = []
    for part, values in _date_parts(dates, newest).items():
        mean, scale = float(np.nanmean(values)), float(np.nanstd(values))
        if scale <= 1e-9:
            continue
        circular = part.endswith(("sin", "cos"))
        parts.append(
            ScaledPart(part=part, mean=0.0 if circular else mean, scale=1.0 if circular else scale)
        )
    if not parts and not gaps:
        return None, _dropped(series.name, 0, 0, "one value in every training row")
    plan = DateColumn(
        name=series.name, format=spelling, newest=newest, parts=tuple(parts), indicator=gaps > 0
    )
    return plan, ColumnReport(
        name=series.name, became="date parts", inputs=len(plan.names()), gaps=gaps
    )


# --- categories --------------------------------------------------------------------------------


def as_levels(series: pl.Series) -> pl.Series:
    """The column as text levels: outer blanks removed, whole numbers without a decimal point.

    Missing, blank and NaN are null.
    """
    if series.dtype.is_float() or series.dtype.is_decimal():
        value = series.cast(pl.Float64).fill_nan(None)
        whole = value.cast(pl.Int64, strict=False)
        text = pl.select(
            pl.when(whole.cast(pl.Float64) == value)
            .then(whole.cast(pl.String))
            .otherwise(value.cast(pl.String))
        ).to_series()
    elif series.dtype == pl.Duration:
        text = series.dt.total_microseconds().cast(pl.String)
    else:
        text = series.cast(pl.String)
    text = text.str.strip_chars().alias(series.name)
    return text.set(text.eq("").fill_null(False), None)


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _fit_category(series: pl.Series, *, text: bool) -> tuple[CategoryColumn | None, ColumnReport]:
    name = series.name
    level = as_levels(series)
    gaps = level.null_count()
    counts = (
        level.drop_nulls()
        .alias("level")
        .value_counts()
        .sort("count", "level", descending=[True, False])
    )
    distinct = counts.height
    if distinct == 0:
        return None, _dropped(name, gaps, 0, "every training row lacks it")
    if distinct == 1 and not gaps:
        return None, _dropped(name, 0, 0, "one value in every training row")
    if text:
        why = "nearly every row has a level of its own, as an id or free text has"
        left_out = _dropped(name, gaps, 0, why)
        return None, left_out.model_copy(
            update={"levels": distinct, "unless": "it is to be used all the same"}
        )
    least = math.ceil(RARE * len(level))
    kept = counts.head(LEVELS_KEPT).filter(pl.col("count") >= least)["level"].to_list()
    others = distinct - len(kept)
    plan = CategoryColumn(name=name, levels=tuple(kept), buckets=min(BUCKETS, others))
    return plan, ColumnReport(
        name=name,
        became="category",
        inputs=1,
        gaps=gaps,
        levels=distinct,
        note=f"its rare levels share {plan.buckets} codes, so some count as one"
        if others > 1
        else None,
    )


def _dropped(name: str, gaps: int, infinities: int, why: str) -> ColumnReport:
    return ColumnReport(
        name=name, became="dropped", inputs=0, gaps=gaps, infinities=infinities, note=why
    )
