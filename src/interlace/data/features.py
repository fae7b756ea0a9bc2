"""A party's preprocessing: its columns are read as its whole table has them, what is learnt of them
is of its training rows alone; saved as JSON, applied anywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from interlace.data.columns import (
    CategoryColumn,
    ColumnPlan,
    ColumnReport,
    DateColumn,
    Reading,
    date_form,
    fit_column,
    read_columns,
    unread,
)
from interlace.data.images import ImagePlan, fit_images, is_image
from interlace.data.spec import InputSpec
from interlace.data.tables import missing_column
from interlace.errors import DataError

Rows = NDArray[np.int64] | Sequence[int] | Tensor


class FeaturePlan(BaseModel):
    """How a party's columns become its model's input.

    Numbers are standardised, gaps filled with the median and, where training rows had gaps,
    marked by an indicator; booleans are numbers; dates become age, year, month and weekday; text
    becomes a category code, unless all of it spells numbers or dates. Constant and all-missing
    columns are left out. The plan holds statistics of the training rows and the levels of
    categories, never rows; it is as private as the party's model.

    Attributes:
        party: whose plan it is.
        columns: the tabular columns that are used, in order.
        image: the image column of an image party.
        report: what each column became, those left out included.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    party: str
    columns: tuple[ColumnPlan, ...]
    image: ImagePlan | None
    report: tuple[ColumnReport, ...]

    @classmethod
    def fit(
        cls,
        frame: pl.DataFrame,
        columns: Sequence[str],
        rows: Rows,
        *,
        party: str,
        file: str | None = None,
        readings: Mapping[str, Reading] | None = None,
    ) -> Self:
        """Learn the preprocessing from the training rows.

        Args:
            frame: the party's table.
            columns: its feature columns (no ids, no label).
            rows: positions of the training rows; nothing is learnt from any other.
            party: whose table this is, for the errors.
            file: its file, for the errors.
            readings: how each column is read; by default as all of ``frame`` has it.

        Raises:
            DataError: a column is not there or cannot be a feature; no training row; an image
                column among others; no column is left that tells rows apart.
        """
        for name in columns:
            if name not in frame.columns:
                raise missing_column(name, frame.columns, party=party, file=file)
        index = _positions(rows)
        if index.size == 0:
            raise DataError(
                "there is no training row to learn the preprocessing from",
                party=party,
                file=file,
                way_out="Check that parties share people and that some are left for training.",
            )
        readings = readings or read_columns(frame, columns)
        images = [n for n in columns if readings[n].kind == "unfit" and is_image(frame[n].dtype)]
        if images:
            if len(columns) > 1:
                raise DataError(
                    "an image column cannot stand among other columns",
                    party=party,
                    file=file,
                    column=images[0],
                    way_out="Name it alone as this party's features, or leave it out.",
                )
            image, report = fit_images(frame[images[0]].gather(index), party=party, file=file)
            return cls(party=party, columns=(), image=image, report=(report,))
        plans, reports = [], []
        for name in dict.fromkeys(columns):
            plan, report = fit_column(
                frame[name].gather(index), readings[name], party=party, file=file
            )
            reports.append(report)
            if plan is not None:
                plans.append(plan)
        if not plans:
            raise DataError(
                f"none of its {len(reports)} columns tells the {index.size} training rows apart "
                "(each is missing, constant, or different in every row)",
                party=party,
                file=file,
                way_out="Give this party other columns, or leave it out of the federation.",
            )
        return cls(party=party, columns=tuple(plans), image=None, report=tuple(reports))

    @property
    def spec(self) -> InputSpec:
        """The shape of what :meth:`transform` returns."""
        if self.image is not None:
            return InputSpec(0, (), self.image.shape, (self.image.name,))
        numeric = [n for c in self.columns if not isinstance(c, CategoryColumn) for n in c.names()]
        categories = [c for c in self.columns if isinstance(c, CategoryColumn)]
        return InputSpec(
            len(numeric),
            tuple(c.cardinality for c in categories),
            None,
            (*numeric, *(c.name for c in categories)),
        )

    def transform(self, frame: pl.DataFrame, rows: Rows | None = None) -> Tensor:
        """The model's input for some rows, or all.

        Returns:
            float32, finite. Shape (n, numeric + categories), the numeric block first and then the
            category codes, as :attr:`spec` names them; or (n, c, h, w) of an image party.

        Raises:
            DataError: a column of the plan is not in the table, or none of its values can be read
                as what it was in training.
        """
        index = None if rows is None else _positions(rows)
        if self.image is not None:
            series = self._column(frame, self.image.name, index)
            if not is_image(series.dtype):
                raise self._changed(series)
            return torch.from_numpy(self.image.transform(series, party=self.party))
        numeric: list[NDArray[np.float64]] = []
        categories: list[NDArray[np.float64]] = []
        height = frame.height if index is None else index.size
        for plan in self.columns:
            series = self._column(frame, plan.name, index)
            lost, known = _unread(plan, series)
            if known and lost == known:
                raise self._changed(series)
            block = categories if isinstance(plan, CategoryColumn) else numeric
            block += plan.transform(series)
        out = np.empty((height, len(numeric) + len(categories)), dtype=np.float32)
        for i, values in enumerate((*numeric, *categories)):
            out[:, i] = values
        return torch.from_numpy(out)

    def unread(self, frame: pl.DataFrame) -> list[str]:
        """For each column with values that are no number, or date, as in training: how many.

        They are gaps to the model. In sentences that hold no value.
        """
        said = []
        for plan in self.columns:
            if plan.name not in frame.columns:
                continue
            lost, known = _unread(plan, frame[plan.name])
            if lost:
                kind = "numbers"
                if isinstance(plan, DateColumn):
                    kind = f"dates of the form {date_form(plan.format)}" if plan.format else "dates"
                said.append(
                    f"{self.party}: {lost:,} of {known:,} values of '{plan.name}' do not read as "
                    f"{kind}, as in training, and are taken for gaps"
                )
        return said

    def to_json(self) -> str:
        """The plan as JSON, from which :meth:`from_json` makes the same plan to the last bit."""
        return self.model_dump_json()

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Raises:
        DataError: the text is no plan.
        """
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            # Not chained: pydantic repeats the input, which holds levels of categories.
            raise DataError(
                f"this is no saved preprocessing ({error.error_count()} faults)",
                way_out="Use the file that the training run wrote.",
            ) from None

    def _column(self, frame: pl.DataFrame, name: str, index: NDArray[np.int64] | None) -> pl.Series:
        if name not in frame.columns:
            raise missing_column(name, frame.columns, party=self.party)
        return frame[name] if index is None else frame[name].gather(index)

    def _changed(self, series: pl.Series) -> DataError:
        return DataError(
            f"none of its {len(series):,} values ({series.dtype.base_type()}) can be read as what "
            "it was in training",
            party=self.party,
            column=series.name,
            way_out="Give the column in the form that it had in the training table.",
        )


def _unread(plan: Any, series: pl.Series) -> tuple[int, int]:
    """How many values the plan does not understand, and how many there are."""
    if is_image(series.dtype):
        return len(series), len(series)
    if isinstance(plan, CategoryColumn):
        return 0, len(series)
    dates = isinstance(plan, DateColumn)
    return unread(series, dates=dates, spelling=plan.format if dates else None)


def _positions(rows: Rows) -> NDArray[np.int64]:
    return np.asarray(rows, dtype=np.int64).reshape(-1)
