"""The label column: which task it poses, its classes, and its tensor form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Self

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from interlace.data.columns import as_levels, numbers
from interlace.data.gaps import is_gap
from interlace.errors import DataError

Task = Literal["binary", "multiclass", "multilabel", "regression"]

MOST_NUMBER_CLASSES = 10
_SEPARATORS = ("|", ";", ",")
_TRUTHS = {True: ("yes", "on", "true"), False: ("no", "off", "false")}


class LabelPlan(BaseModel):
    """What was learnt of the label: the task and, for classification, the classes in order.

    Unless told otherwise, two different whole numbers or texts make a binary task, up to ten
    whole numbers or any number of texts a multi-class task, lists (or a struct of yes-or-no
    columns) a multi-label task, and all else a regression.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    party: str
    column: str
    task: Task
    classes: tuple[bool | int | str, ...] = Field(
        description="Class of each code, sorted; the labels of a multi-label task; () else."
    )
    counts: tuple[int, ...] = Field(description="Rows of each class, seen when the plan was made.")
    unlabelled: int = Field(description="Rows without a label then.")
    center: float = Field(default=0.0, description="Mean of a regression's targets.")
    scale: float = Field(default=1.0, description="Standard deviation of a regression's targets.")
    note: str | None = None
    file: str | None = Field(default=None, exclude=True, description="For errors; not saved.")

    @classmethod
    def fit(
        cls,
        series: pl.Series,
        *,
        party: str,
        file: str | None = None,
        column: str | None = None,
        task: Literal["auto", "binary", "multiclass", "multilabel", "regression"] = "auto",
    ) -> Self:
        """Read the task off the label column.

        Args:
            series: the labels of the training rows; gaps are people without a label.
            party: whose column this is, for the errors.
            file: its file, for the errors.
            column: its name, when it is not the series' own.
            task: the task, where the values leave a doubt.

        Raises:
            DataError: no label at all; one class only; infinite targets; text with a value of its
                own in every row; a type or values that do not fit the task.
        """
        label = _Label(series, party, file, column or series.name)
        if len(series) == series.null_count():
            raise label.error("every label is missing", "Check the label column and the rows.")
        dtype = series.dtype
        lists = isinstance(dtype, pl.List | pl.Array | pl.Struct)
        if lists or task == "multilabel":
            if not (lists or dtype == pl.String) or task not in ("auto", "multilabel"):
                raise label.unfit(task)
            return cls._fit_multilabel(label)
        if dtype.is_numeric() or (dtype == pl.String and _spells_numbers(series)):
            return cls._fit_numbers(label, task)
        if task == "regression" or not (
            dtype in (pl.String, pl.Boolean, pl.Categorical) or isinstance(dtype, pl.Enum)
        ):
            raise label.unfit(task)
        level = as_levels(series).drop_nulls()
        if dtype != pl.Boolean and level.n_unique() == len(level) > 2:
            raise label.error(
                f"it is text with a value of its own in each of its {len(level)} rows",
                "Name the column that holds the outcome; this one looks like an id or a remark.",
            )
        return cls._fit_classes(label, level, task)

    @classmethod
    def _fit_numbers(cls, label: _Label, task: str) -> Self:
        values, infinite = numbers(label.series)
        if infinite:
            raise label.error(
                f"{infinite} targets are infinite or too large", "Correct or empty them."
            )
        known = values[~np.isnan(values)]
        if known.size == 0:
            raise label.error("every label is missing", "Check the label column and the rows.")
        distinct = len(np.unique(known))
        whole = bool(np.all(known == np.round(known)))
        if task != "regression" and whole and (task != "auto" or distinct <= MOST_NUMBER_CLASSES):
            level = as_levels(pl.Series(known))
            return cls._fit_classes(label, level, task)
        if task not in ("auto", "regression"):
            raise label.error(
                "it holds fractions, which are no classes", "Set the task to regression."
            )
        if distinct == 1:
            raise label.error("all targets are the same", "There is nothing to learn.")
        note = None
        if task == "auto" and whole:
            note = (
                f"{distinct} different whole numbers, read as a quantity to predict; if they are "
                "classes, set the task to multiclass"
            )
        return cls(
            party=label.party,
            column=label.column,
            task="regression",
            classes=(),
            counts=(),
            unlabelled=len(values) - known.size,
            center=float(known.mean()),
            scale=float(known.std()),
            note=note,
            file=label.file,
        )

    @classmethod
    def _fit_classes(cls, label: _Label, level: pl.Series, task: str) -> Self:
        found = level.unique().to_list()
        classes: list[bool] | list[int] | list[str]
        if label.series.dtype == pl.Boolean:
            classes = sorted(text == "true" for text in found)
            texts = ["true" if c else "false" for c in classes]
        elif label.series.dtype.is_numeric() or _spells_numbers(label.series):
            classes = sorted(int(text) for text in found)
            texts = [str(c) for c in classes]
        else:
            classes = texts = sorted(found)
        if len(classes) == 0:
            raise label.error("every label is missing", "Check the label column and the rows.")
        if len(classes) == 1:
            raise label.error(
                f"all {len(level)} labels are of one class",
                "A model needs people of two classes or more; check the label and the rows.",
            )
        if task == "binary" and len(classes) > 2:
            raise label.error(f"it has {len(classes)} classes", "Set the task to multiclass.")
        counts = dict(level.alias("class").value_counts().iter_rows())
        return cls(
            party=label.party,
            column=label.column,
            task="binary" if len(classes) == 2 and task != "multiclass" else "multiclass",
            classes=tuple(classes),
            counts=tuple(counts[text] for text in texts),
            unlabelled=len(label.series) - len(level),
            note=_doubts(texts),
            file=label.file,
        )

    @classmethod
    def _fit_multilabel(cls, label: _Label) -> Self:
        series = label.series
        classes: list[str] | list[int]
        if isinstance(series.dtype, pl.Struct):
            classes = [field.name for field in series.dtype.fields]
        elif _is_marks(series):
            classes = list(range(len(series.drop_nulls()[0])))
        else:
            items = _items(series).explode().drop_nulls()
            numeric = items.dtype.is_integer()
            found = items.unique().to_list()
            classes = sorted(int(i) for i in found) if numeric else sorted(str(i) for i in found)
        marks = _marks(label, tuple(classes))
        known = marks[~np.isnan(marks).any(axis=1)]
        if known.size == 0 or not (known.min(axis=0) < known.max(axis=0)).any():
            raise label.error(
                "every labelled row has the same labels",
                "A model needs people who differ; check the label and the rows.",
            )
        return cls(
            party=label.party,
            column=label.column,
            task="multilabel",
            classes=tuple(classes),
            counts=tuple(int(n) for n in known.sum(axis=0)),
            unlabelled=len(marks) - len(known),
            file=label.file,
        )

    def encode(self, series: pl.Series) -> Tensor:
        """The labels as a tensor.

        Returns:
            For classes int64 of shape (n,), -1 where there is no label; for regression float32 of
            shape (n,), NaN where there is none; for multi-label float32 of shape (n, m) of 0 and
            1, a row of NaN where there is none.

        Raises:
            DataError: a class that the plan does not have, infinite targets, or text among
                numbers; with the count of rows, never their values.
        """
        label = _Label(series, self.party, self.file, self.column)
        if self.task == "multilabel":
            return torch.from_numpy(_marks(label, self.classes))
        missing = as_levels(series).is_null().to_numpy()
        if self.task == "regression" or type(self.classes[0]) is int:
            values, infinite = numbers(series)
            if series.dtype == pl.String:
                missing |= is_gap(series).to_numpy()
            if infinite:
                raise label.error(
                    f"{infinite} labels are infinite or too large", "Correct or empty them."
                )
            if broken := int((np.isnan(values) & ~missing).sum()):
                raise label.error(
                    f"{broken} labels are no numbers, as those of training were",
                    "Correct or empty them.",
                )
            if self.task == "regression":
                return torch.from_numpy(values.astype(np.float32))
            level = as_levels(pl.Series(values))
        else:
            level = as_levels(series)
            if type(self.classes[0]) is bool:
                level = level.str.to_lowercase().replace({"1": "true", "0": "false"})
        texts = [str(c).lower() if isinstance(c, bool) else str(c) for c in self.classes]
        codes = level.replace_strict(
            texts, list(range(len(texts))), default=-1, return_dtype=pl.Int64
        ).to_numpy()
        if unseen := int(((codes < 0) & ~missing).sum()):
            raise label.unseen(unseen)
        return torch.from_numpy(codes.copy())

    def place(self, named: Any) -> int | None:
        """The code of the class that a job names, or ``None``.

        YAML reads ``yes``, ``on`` and ``true`` without quotes as true, and their opposites as
        false, so a truth value also stands for the one class that is such a word.
        """
        if named in self.classes:
            return self.classes.index(named)
        if not isinstance(named, bool):
            return None
        meant = [i for i, c in enumerate(self.classes) if str(c).lower() in _TRUTHS[named]]
        return meant[0] if len(meant) == 1 else None

    def to_json(self) -> str:
        """The plan as JSON, from which :meth:`from_json` makes the same plan."""
        return self.model_dump_json()

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Raises:
        DataError: the text is no plan.
        """
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            # Not chained: pydantic repeats the input, which holds the classes.
            raise DataError(
                f"this is no saved label plan ({error.error_count()} faults)",
                way_out="Use the file that the training run wrote.",
            ) from None


def is_known(y: Tensor) -> Tensor:
    """Who has a label, shape (n,), among labels as :meth:`LabelPlan.encode` gives them."""
    known = ~torch.isnan(y) if y.is_floating_point() else y >= 0
    return known.all(1) if known.dim() == 2 else known


def _doubts(classes: Sequence[str]) -> str | None:
    """Which classes may be none of their own, in counts: the classes are people's labels."""
    alike = len(classes) - len({"".join(c.split()).casefold() for c in classes})
    marks = int(is_gap(pl.Series(classes, dtype=pl.String)).sum())
    said = []
    if alike:
        verb = "differs" if alike == 1 else "differ"
        said.append(f"{alike} {verb} from another only by letter case or blanks")
    if marks:
        said.append(f"{marks} look{'s' * (marks == 1)} like a mark for a missing label")
    if not said:
        return None
    return (
        f"of its {len(classes)} classes {' and '.join(said)}; write each class in one way, and "
        "leave a label that is not known empty"
    )


class _Label:
    """A label column and where it is from, for the errors."""

    def __init__(self, series: pl.Series, party: str, file: str | None, column: str) -> None:
        self.series, self.party, self.file, self.column = series, party, file, column

    def error(self, problem: str, way_out: str) -> DataError:
        return DataError(
            f"as a label, {problem}",
            party=self.party,
            file=self.file,
            column=self.column,
            way_out=way_out,
        )

    def unfit(self, task: str) -> DataError:
        what = "be a label" if task == "auto" else f"pose a {task} task"
        return self.error(
            f"a column of type {self.series.dtype.base_type()} cannot {what}",
            "Classes are text, whole numbers or booleans; a regression needs numbers; "
            "multi-label needs lists.",
        )

    def unseen(self, rows: int) -> DataError:
        return self.error(
            f"{rows} rows are of a class that training never saw",
            "Train on rows of every class, or leave these rows out.",
        )


def _spells_numbers(series: pl.Series) -> bool:
    """Whether each value of a text column is a number or a mark for a gap."""
    if series.dtype != pl.String:
        return False
    said = series.filter(~is_gap(series))
    return len(said) > 0 and said.str.strip_chars().cast(pl.Float64, strict=False).count() == len(
        said
    )


def _is_marks(series: pl.Series) -> bool:
    """Whether each row is an array of one length, of 0 and 1, one for each label."""
    if not isinstance(series.dtype, pl.Array):
        return False
    values = series.explode().drop_nulls().unique()
    return values.dtype == pl.Boolean or (
        values.dtype.is_numeric() and bool(values.is_in([0, 1]).all())
    )


def _items(series: pl.Series) -> pl.Series:
    """The labels of each row as a list; text is cut at the first of ``|``, ``;``, ``,`` found."""
    if isinstance(series.dtype, pl.Array):
        return series.arr.to_list()
    if series.dtype != pl.String:
        return series
    mark = next((m for m in _SEPARATORS if series.str.contains(m, literal=True).any()), "|")
    parts = series.str.split(mark).list.eval(pl.element().str.strip_chars())
    return parts.list.eval(pl.element().filter(pl.element() != ""))


def _marks(label: _Label, classes: tuple[bool | int | str, ...]) -> NDArray[np.float32]:
    """Shape (n, m) of 0 and 1; NaN in rows without a label."""
    series = label.series
    n, m = len(series), len(classes)
    if isinstance(series.dtype, pl.Struct):
        fields = series.struct.unnest()
        if fields.columns != [str(c) for c in classes]:
            raise label.error("it has other labels than in training", "Give the same columns.")
        columns = [numbers(fields[name])[0] for name in fields.columns]
        out = np.stack(columns, axis=1).astype(np.float32)
        out[np.isnan(out).any(axis=1)] = np.nan
        if broken := int((~np.isnan(out) & (out != 0) & (out != 1)).any(axis=1).sum()):
            raise label.error(f"{broken} rows have marks other than 0 and 1", "Correct them.")
        return out
    if _is_marks(series):
        out = np.full((n, m), np.nan, dtype=np.float32)
        rows = series.is_not_null().to_numpy()
        flat = series.drop_nulls().explode().cast(pl.Float32)
        if len(flat) != rows.sum() * m:
            raise label.error("it has other labels than in training", f"Give {m} marks a row.")
        out[rows] = flat.to_numpy().reshape(-1, m)
        out[np.isnan(out).any(axis=1)] = np.nan
        return out
    lists = _items(series)
    position = {str(c): i for i, c in enumerate(classes)}
    out = np.zeros((n, m), dtype=np.float32)
    unseen = 0
    for row, items in enumerate(lists):
        if items is None:
            out[row] = np.nan
            continue
        places = [position.get(str(item), -1) for item in items]
        unseen += -1 in places
        out[row, [p for p in places if p >= 0]] = 1.0
    if unseen:
        raise label.unseen(unseen)
    return out
