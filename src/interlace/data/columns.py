"""What each kind of column becomes: numbers, a missing indicator, parts of a date, a category code.

Each kind is a small pydantic model that holds what was learnt from the training rows, and nothing
else: it is saved as JSON and applied to any other rows as it stands.
"""

from __future__ import annotations

import hashlib
import math
from typing import Annotated, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from interlace.errors import DataError

Floats = NDArray[np.float64]

CLIP = 10.0  # standardised values beyond it say no more than "extreme", and break training
LEVELS_KEPT = 64
RARE = 1 / 1000  # a level of fewer training rows than this share has no code of its own
BUCKETS = 16

GAP_MARKS = ("na", "n/a", "#n/a", "nan", "null", "none", "?", "-")
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
_DAY = 86_400_000_000  # in microseconds


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
    """What one column became, in counts over the training rows; it never holds a value."""

    model_config = ConfigDict(frozen=True)

    name: str
    became: Literal["numbers", "missing indicator", "date parts", "category", "image", "dropped"]
    inputs: int = Field(description="Inputs of the model that come from this column.")
    gaps: int = Field(description="Training rows without a usable value, infinities included.")
    infinities: int = Field(
        default=0, description="Infinite, or too large for single precision; taken as gaps."
    )
    note: str | None = None


def fit_column(
    series: pl.Series, *, categorical: bool, party: str, file: str | None
) -> tuple[NumericColumn | IndicatorColumn | DateColumn | CategoryColumn | None, ColumnReport]:
    """Learn one column from its training rows.

    Returns:
        The plan, or ``None`` when the column tells nothing apart, and the report.

    Raises:
        DataError: the column has a type that no model here can read.
    """
    dtype = series.dtype
    if dtype == pl.Null or series.null_count() == len(series):
        return None, _dropped(series.name, len(series), 0, "every training row lacks it")
    if categorical:
        return _fit_category(series, None, forced=True)
    if dtype in (pl.Date, pl.Datetime):
        return _fit_date(series, None, None)
    if dtype.is_numeric() or dtype in (pl.Boolean, pl.Duration, pl.Time):
        return _fit_numeric(series)
    if dtype in (pl.Categorical, pl.Enum):
        return _fit_category(series, None, forced=False)
    if dtype == pl.String:
        return _fit_text(series)
    raise DataError(
        f"a column of type {dtype.base_type()} cannot be a feature",
        party=party,
        file=file,
        column=series.name,
        way_out="Leave it out, or turn it into plain columns first.",
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
    note = None
    if series.dtype.is_integer() and 2 < (distinct := len(np.unique(seen))) <= 12:
        note = (
            f"{distinct} different whole numbers, read as a quantity; if they are codes, "
            f"name the column under `categories`"
        )
    return plan, ColumnReport(
        name=name,
        became="numbers",
        inputs=len(plan.names()),
        gaps=gaps,
        infinities=infinities,
        note=note,
    )


# --- text --------------------------------------------------------------------------------------


def _fit_text(
    series: pl.Series,
) -> tuple[NumericColumn | IndicatorColumn | DateColumn | CategoryColumn | None, ColumnReport]:
    """Text is numbers or dates if every training row that has a value spells one."""
    text = series.str.strip_chars().str.to_lowercase()
    plain = text.filter(text.is_not_null() & ~text.is_in([*GAP_MARKS, ""])).unique()
    if len(plain) == 0:
        return _fit_category(series, None, forced=False)
    number = plain.cast(pl.Float64, strict=False).is_not_null()
    # Leading zeros mark a code (a postcode, an account), not a quantity.
    if number.all() and not plain.str.contains(r"^0[0-9]+$").any():
        return _fit_numeric(series)
    spelt = series.str.strip_chars().unique()
    spelt = spelt.filter(spelt.str.to_lowercase().is_in(plain.to_list()))
    fitting = [f for f in _DATE_FORMATS if as_dates(spelt, f).null_count() == 0]
    if fitting:
        ambiguous = any("%d/%m" in f for f in fitting) and any("%m/%d" in f for f in fitting)
        note = "day and month could be either way round; read as day/month" if ambiguous else None
        return _fit_date(series, fitting[0], note)
    note = None
    if 2 * number.sum() > len(plain):
        note = f"{int((~number).sum())} of {len(plain)} different values are not numbers"
    return _fit_category(series, note, forced=False)


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


def _fit_date(
    series: pl.Series, spelling: str | None, note: str | None
) -> tuple[DateColumn | None, ColumnReport]:
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
        name=series.name, became="date parts", inputs=len(plan.names()), gaps=gaps, note=note
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


def _fit_category(
    series: pl.Series, note: str | None, *, forced: bool
) -> tuple[CategoryColumn | None, ColumnReport]:
    name = series.name
    level = as_levels(series)
    gaps = level.null_count()
    known = len(level) - gaps
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
    if not forced and distinct > max(LEVELS_KEPT, 0.95 * known):
        why = (
            "nearly every row has a level of its own, as an id or free text has; to use it all "
            "the same, name it under `categories`"
        )
        return None, _dropped(name, gaps, 0, why)
    least = math.ceil(RARE * len(level))
    kept = counts.head(LEVELS_KEPT).filter(pl.col("count") >= least)["level"].to_list()
    others = distinct - len(kept)
    plan = CategoryColumn(name=name, levels=tuple(kept), buckets=min(BUCKETS, others))
    if others:
        hashed = f"{others} rare levels share {plan.buckets} hashed codes"
        note = f"{note}; {hashed}" if note else hashed
    return plan, ColumnReport(name=name, became="category", inputs=1, gaps=gaps, note=note)


def _dropped(name: str, gaps: int, infinities: int, why: str) -> ColumnReport:
    return ColumnReport(
        name=name, became="dropped", inputs=0, gaps=gaps, infinities=infinities, note=why
    )
