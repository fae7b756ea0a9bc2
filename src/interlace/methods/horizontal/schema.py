"""Whether tables have the same columns, and how their columns are scaled without pooling a record.

Columns are matched by name, so their order in a table does not matter; the model reads them sorted
by name. What a party says of a column is its type, and of the numbers in it their count, sum and
centred squares. From these the common scaling follows exactly as it would from the pooled table
(gaps are filled with the mean, as no median can be had from sums).

The levels of a category never travel. A level's code is a hash of its text, or its place in a
codebook that the parties agreed on beforehand.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from interlace.data.columns import (
    CategoryColumn,
    ColumnPlan,
    DateColumn,
    DatePart,
    IndicatorColumn,
    NumericColumn,
    ScaledPart,
    as_dates,
    as_levels,
    fit_column,
    numbers,
)
from interlace.data.features import FeaturePlan
from interlace.data.images import ImagePlan, fit_images, is_image
from interlace.data.labels import MOST_NUMBER_CLASSES, LabelPlan
from interlace.errors import DataError
from interlace.party import Party

Schema = dict[str, str]
Index = NDArray[np.int64]

FEWEST = 5  # a sum over fewer values could give one of them away, so it is left out
ENOUGH = 30  # values, to say that a column's size at one party is another than elsewhere
PAGE_BYTES = 3000
PAGE_COLUMNS = 60
MOST_CLASSES = 200
_DAY = 86_400_000_000  # in microseconds

NUMBER, DATE, CATEGORY, EMPTY = "number", "date", "category", "empty"
_CIRCULAR: tuple[DatePart, ...] = ("month sin", "month cos", "weekday sin", "weekday cos")
_CODES = {NUMBER: "n", DATE: "d", CATEGORY: "c", EMPTY: "e"}


# --- one party's columns -------------------------------------------------------------------------


def schema_of(party: Party, rows: Index) -> Schema:
    """The type of each column, by name, in the order of the names.

    ``number``, ``date``, ``category``, ``image c×h×w``, or ``empty`` where the rows do not differ
    (or differ in every row, as an id does): such a column fits any type.
    """
    return {name: _type(party, name, rows) for name in sorted(party.columns)}


def _type(party: Party, name: str, rows: Index) -> str:
    series = party.frame[name].gather(rows)
    if series.null_count() == len(series):
        return EMPTY
    if name in party.categories:
        return CATEGORY
    if is_image(series.dtype):
        image, _ = fit_images(series, party=party.name, file=party.file)
        return f"image {'×'.join(map(str, image.shape))}"
    if series.dtype.is_numeric() or series.dtype == pl.Boolean:
        return NUMBER
    plan, _ = fit_column(series, party.readings[name], party=party.name, file=party.file)
    if isinstance(plan, NumericColumn | IndicatorColumn):
        return NUMBER
    if isinstance(plan, DateColumn):
        return DATE
    return EMPTY if plan is None else CATEGORY


def page_of(schema: Schema, start: int) -> dict[str, Any]:
    """As many columns from ``start`` on as fit into one message."""
    out: list[list[str]] = []
    size = 0
    for item in list(schema.items())[start : start + PAGE_COLUMNS]:
        size += len(json.dumps(item)) + 2
        if out and size > PAGE_BYTES:
            break
        out.append(list(item))
    return {"columns": out}


def describe_label(party: Party, rows: Index) -> dict[str, Any]:
    """Whether a party's label is a number or classes, and which classes it has.

    Raises:
        DataError: there is no label column, or its type cannot be one.
    """
    series = _label(party).gather(rows).drop_nulls()
    if series.dtype == pl.Boolean:
        return {"type": "classes", "classes": sorted(series.unique().to_list())}
    values, _ = numbers(series)
    if series.dtype.is_numeric() or (len(values) and not np.isnan(values).any()):
        distinct = np.unique(values[~np.isnan(values)])
        whole = bool(np.all(distinct == np.round(distinct)))
        classes = whole and (len(distinct) <= MOST_NUMBER_CLASSES or party.task == "multiclass")
        if party.task == "regression" or not classes:
            return {"type": "number"}
        return {"type": "classes", "classes": [int(v) for v in distinct]}
    if series.dtype in (pl.String, pl.Categorical) or isinstance(series.dtype, pl.Enum):
        found = as_levels(series).drop_nulls().unique().sort().to_list()
        if len(found) > MOST_CLASSES:
            raise DataError(
                f"its label has {len(found):,} different texts",
                party=party.name,
                column=party.labels_columns[0],
                way_out="Name the column that holds the outcome, or give the method its `classes`",
            )
        return {"type": "classes", "classes": found}
    raise DataError(
        f"a label of type {series.dtype.base_type()} cannot be learnt horizontally",
        party=party.name,
        column=party.labels_columns[0],
        way_out="Classes are text, whole numbers or booleans; a regression needs numbers",
    )


def _label(party: Party) -> pl.Series:
    if len(party.labels_columns) != 1:
        has = "no label column" if not party.labels_columns else "several label columns"
        raise DataError(
            f"it has {has}; in a horizontal federation every party holds the same one",
            party=party.name,
            file=party.file,
            way_out="Name it as `label:` in the party's file",
        )
    return party.label_series


def labelled(party: Party, rows: Index) -> Index:
    """The rows that have a label."""
    known: Index = rows[_label(party).gather(rows).is_not_null().to_numpy()]
    return known


def strata_of(party: Party, rows: Index) -> Tensor | None:
    """A code for each row's class, to keep classes in proportion; ``None`` for a number."""
    level = as_levels(_label(party).gather(rows))
    if level.n_unique() > MOST_CLASSES:
        return None
    return torch.from_numpy(level.rank("dense").fill_null(0).cast(pl.Int64).to_numpy().copy())


# --- sums, and the scaling that follows from them ------------------------------------------------


def _values(party: Party, name: str, code: str, rows: Index) -> NDArray[np.float64]:
    """A column as the numbers that are scaled, NaN at a gap; (n,), or (c, pixels) of images."""
    series = party.frame[name].gather(rows)
    if code == "i":
        return _pixels(series.drop_nulls(), party)
    if code == "d":
        days = as_dates(series, party.readings[name].spelling).dt.epoch("us").cast(pl.Float64)
        return -days.to_numpy().astype(np.float64) / _DAY
    return numbers(series)[0]


def _pixels(series: pl.Series, party: Party) -> NDArray[np.float64]:
    """Pixels as they are, of shape (channels, images · height · width)."""
    plan, _ = fit_images(series, party=party.name, file=party.file)
    # ``transform`` clips standardised pixels; scaled down by a million, none of them is clipped.
    nought = {"mean": (0.0,) * plan.channels, "scale": (1e6,) * plan.channels}
    small = plan.model_copy(update=nought)
    pixels = small.transform(series, party=party.name).astype(np.float64) * 1e6
    return np.moveaxis(pixels, 1, 0).reshape(plan.channels, -1)


def columns_to_sum(party: Party, codes: str, rows: Index) -> list[NDArray[np.float64]]:
    """The numbers behind each line of :func:`sums`: one a column, one a channel of an image, and
    the label last. A column that needs no scaling is an empty line."""
    nothing = np.empty(0)
    lines: list[NDArray[np.float64]] = []
    for name, code in zip(sorted(party.columns), codes[:-1], strict=True):
        if code in "ce":
            lines.append(nothing)
        else:
            lines.extend(np.atleast_2d(_values(party, name, code, rows)))
    target = numbers(_label(party).gather(rows))[0] if codes[-1] == "n" else nothing
    return [*lines, target]


def sums(lines: Sequence[NDArray[np.float64]]) -> Tensor:
    """Known values, gaps and sum of each line; float64 of shape (lines, 3)."""
    out = torch.zeros(len(lines), 3, dtype=torch.float64)
    for i, values in enumerate(lines):
        known = values[~np.isnan(values)]
        if len(known) >= FEWEST:
            out[i] = torch.tensor([len(known), len(values) - len(known), known.sum()])
    return out


def squares(lines: Sequence[NDArray[np.float64]], means: Tensor) -> Tensor:
    """Sum of squared distances of each line's known values from the common mean; (lines,)."""
    out = torch.zeros(len(lines), dtype=torch.float64)
    for i, (values, mean) in enumerate(zip(lines, means.tolist(), strict=True)):
        known = values[~np.isnan(values)]
        if len(known) >= FEWEST:
            out[i] = float(np.square(known - mean).sum())
    return out


def scaling_of(total: Tensor, squared: Tensor) -> Tensor:
    """Mean, standard deviation (with gaps at the mean) and whether there are gaps; (lines, 3)."""
    known, gaps, summed = total.unbind(1)
    mean = summed / known.clamp(min=1)
    scale = (squared / (known + gaps).clamp(min=1)).sqrt()
    scale = torch.where(scale <= 1e-12 * mean.abs(), 0.0, scale)  # what rounding leaves of nought
    return torch.stack([mean, scale, (gaps > 0).double()], 1)


def plan_from(
    name: str,
    types: Schema,
    scaling: Tensor,
    *,
    party: Party | None,
    rows: Index,
    levels: Mapping[str, Sequence[str]],
    buckets: int,
) -> FeaturePlan:
    """The agreed preprocessing: the same at every party but for how text spells a date there.

    Args:
        name: Whose plan it is.
        types: The agreed type of each column.
        scaling: What :func:`scaling_of` gave; the label's line is last and not used here.
        party: Whose table it will read; ``None`` for a coordinator without one.
        rows: Rows from which it is read how images lie in memory.
        levels: Agreed levels of categories, by column.
        buckets: Codes for all other levels of a category.

    Raises:
        DataError: no column is left that tells rows apart.
    """
    columns: list[ColumnPlan] = []
    image: ImagePlan | None = None
    line = 0
    for column, kind in types.items():
        if kind.startswith("image"):
            shape = [int(n) for n in kind.removeprefix("image ").split("×")]
            block = scaling[line : line + shape[0]]
            last = party is not None and _channels_last(party, column, rows)
            image = ImagePlan(
                name=column,
                channels=shape[0],
                height=shape[1],
                width=shape[2],
                channels_last=last,
                mean=tuple(block[:, 0].tolist()),
                scale=tuple(s or 1.0 for s in block[:, 1].tolist()),
            )
            line += shape[0]
            continue
        mean, scale, gaps = scaling[line].tolist()
        line += 1
        if kind == CATEGORY:
            known = tuple(levels.get(column, ()))
            columns.append(CategoryColumn(name=column, levels=known, buckets=buckets))
        elif kind == DATE:
            parts = [ScaledPart(part="age", mean=mean, scale=scale)] if scale else []
            parts += [ScaledPart(part=part, mean=0.0, scale=1.0) for part in _CIRCULAR]
            spelling = None if party is None else party.readings[column].spelling
            columns.append(
                DateColumn(
                    name=column,
                    format=spelling,
                    newest=0.0,
                    parts=tuple(parts),
                    indicator=bool(gaps),
                )
            )
        elif kind == NUMBER and scale:
            columns.append(
                NumericColumn(
                    name=column, median=mean, mean=mean, scale=scale, indicator=bool(gaps)
                )
            )
        elif kind == NUMBER and gaps:
            columns.append(IndicatorColumn(name=column))
    if not columns and image is None:
        raise DataError(
            "no column tells the parties' rows apart (each is missing or constant everywhere)",
            party=name,
            way_out="Give the parties other columns",
        )
    return FeaturePlan(party=name, columns=tuple(columns), image=image, report=())


def _channels_last(party: Party, column: str, rows: Index) -> bool:
    plan, _ = fit_images(party.frame[column].gather(rows), party=party.name, file=party.file)
    return plan.channels_last


def codes_of(types: Schema, regression: bool) -> str:
    """One letter a column and one for the label, short enough for a message."""
    letters = ["i" if t.startswith("image") else _CODES[t] for t in types.values()]
    return "".join(letters) + ("n" if regression else "e")


def types_from(codes: str, schema: Schema) -> Schema:
    """The agreed types, from their letters and one's own schema (for the size of images)."""
    names = {v: k for k, v in _CODES.items()}
    return {
        column: own if code == "i" else names[code]
        for (column, own), code in zip(schema.items(), codes[:-1], strict=True)
    }


# --- all parties' columns ------------------------------------------------------------------------


def geometry(schemas: Mapping[str, Schema]) -> Literal["horizontal", "vertical"]:
    """How a table is cut among parties, going by their columns' names alone.

    ``horizontal`` when any two parties have at least half of their columns in common.
    """
    names = [set(s) for s in schemas.values()]
    shares = [len(a & b) / max(len(a | b), 1) for i, a in enumerate(names) for b in names[:i]]
    return "horizontal" if min(shares, default=1.0) >= 0.5 else "vertical"


def agreed_types(schemas: Mapping[str, Schema], reference: str | None) -> Schema:
    """The columns and types that all parties have.

    Args:
        schemas: Each party's schema.
        reference: The party by whose columns the others are judged; by default those that most
            parties have.

    Raises:
        DataError: some party's columns differ; the message lists how.
    """
    types = expected_types(schemas, reference)
    for party, schema in schemas.items():
        found = differences(schema, types)
        if found:
            more = f"; and {len(found) - 8} more" if len(found) > 8 else ""
            vertical = geometry({party: schema, "others": types}) == "vertical"
            raise DataError(
                f"its columns are not those of the other parties: {'; '.join(found[:8])}{more}",
                party=party,
                way_out="These tables describe people by different columns, which is the vertical "
                "case: match the people and use a vertical method such as `split`"
                if vertical
                else "Rename the columns, leave them out with `columns:`, or say with "
                "`categories:` which numbers are codes",
            )
    return types


def expected_types(schemas: Mapping[str, Schema], reference: str | None = None) -> Schema:
    """The columns and types by which all parties are judged; see :func:`agreed_types`."""
    if reference is None:
        most = Counter(tuple(s) for s in schemas.values()).most_common(1)[0][0]
        columns = list(most)
    else:
        columns = list(schemas[reference])
    types: Schema = {}
    for column in columns:
        told = Counter(s.get(column, EMPTY) for s in schemas.values())
        del told[EMPTY]
        first = schemas.get(reference or "", {}).get(column, EMPTY)
        types[column] = first if first != EMPTY else (told.most_common(1)[0][0] if told else EMPTY)
    return types


_UNIT = re.compile(r"^(.*?)[\s_]*[(\[]\s*(.+?)\s*[)\]]$")


def differences(schema: Schema, agreed: Schema) -> list[str]:
    """How a party's columns differ from the agreed ones, one sentence each."""
    missing = [c for c in agreed if c not in schema]
    extra = [c for c in schema if c not in agreed]
    out = []
    for column in list(missing):
        for other in extra:
            unit, its = _UNIT.match(column), _UNIT.match(other)
            if unit and its and unit[1].lower() == its[1].lower():
                out.append(f"the unit of '{its[1]}' is '{its[2]}' here and '{unit[2]}' elsewhere")
            elif _plain(column) == _plain(other):
                out.append(f"'{other}' is called '{column}' elsewhere")
            else:
                continue
            missing.remove(column)
            extra.remove(other)
            break
    out += [f"it lacks '{c}'" for c in missing]
    out += [f"nobody else has '{c}'" for c in extra]
    for column, kind in schema.items():
        there = agreed.get(column, EMPTY)
        if EMPTY not in (kind, there) and kind != there:
            out.append(f"'{column}' is a {kind} here and a {there} elsewhere")
    return out


def _plain(name: str) -> str:
    return re.sub(r"[\W_]+", "", name).lower()


def doubtful_units(
    totals: Mapping[str, Tensor], squared: Mapping[str, Tensor], names: Sequence[str]
) -> list[str]:
    """Columns whose numbers at one party are a hundred times as large as at another (by the root of
    their mean square), as when one counts in thousands or in another currency.

    Args:
        totals: Each party's :func:`sums`.
        squared: Each party's :func:`squares`.
        names: What each line is called.
    """
    total = sum(totals.values(), torch.zeros(len(names), 3, dtype=torch.float64))
    middle = total[:, 2] / total[:, 0].clamp(min=1)
    sizes = {}
    for party, told in totals.items():
        known, mean = told[:, 0].clamp(min=1), told[:, 2] / told[:, 0].clamp(min=1)
        square = squared[party] / known + 2 * middle * mean - middle**2
        sizes[party] = torch.where(told[:, 0] > 0, square.clamp(min=0).sqrt(), 0.0)
    notes = []
    for i, name in enumerate(names):
        size = {
            party: float(s[i])
            for party, s in sizes.items()
            if s[i] > 0 and totals[party][i, 0] >= ENOUGH
        }
        low, high = (
            min(size, key=size.__getitem__, default=""),
            max(size, key=size.__getitem__, default=""),
        )
        if size and size[high] >= 100 * size[low]:
            notes.append(
                f"the numbers of '{name}' are over a hundred times as large at '{high}' as at "
                f"'{low}': check that both give it in the same unit"
            )
    return notes


def agreed_label(
    told: Mapping[str, Mapping[str, Any]], classes: Sequence[Any] | None, task: str, owner: str
) -> LabelPlan:
    """The label that all parties have: a number, or the classes of them all.

    Args:
        told: What each party said of its label; see :func:`describe_label`.
        classes: The classes, if they were agreed on beforehand.
        task: The task, where it was named.
        owner: The party that keeps the plan.

    Raises:
        DataError: the parties' labels are of different types, or there is one class only.
    """
    if classes is None:
        kinds = {label["type"] for label in told.values()}
        if "number" in kinds or task == "regression":
            text = [
                party
                for party, label in told.items()
                if label["type"] == "classes" and any(isinstance(c, str) for c in label["classes"])
            ]
            if text:
                raise DataError(
                    "its label is text, and a number elsewhere",
                    party=text[0],
                    way_out="Name the same outcome as `label:` at every party",
                )
            return LabelPlan(
                party=owner, column="label", task="regression", classes=(), counts=(), unlabelled=0
            )
        forms = {type(c).__name__: p for p, label in told.items() for c in label["classes"]}
        if len(forms) > 1:
            raise DataError(
                f"its classes are {min(forms)}s, and {max(forms)}s elsewhere",
                party=forms[min(forms)],
                way_out="Spell the classes alike at every party",
            )
        classes = sorted({c for label in told.values() for c in label["classes"]})
    if len(classes) < 2:
        raise DataError(
            "all parties' labels are of one class", party=owner, way_out="Check the label column"
        )
    return LabelPlan(
        party=owner,
        column="label",
        task="binary" if len(classes) == 2 and task != "multiclass" else "multiclass",
        classes=tuple(classes),
        counts=(0,) * len(classes),
        unlabelled=0,
    )
