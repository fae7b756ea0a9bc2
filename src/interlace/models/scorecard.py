"""One party's part of a scorecard: its columns' bins, their weights of evidence, their points."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from pydantic import BaseModel, ConfigDict, Field
from scipy import stats

from interlace.errors import DataError
from interlace.models.binning import (
    Bins,
    Floats,
    Integers,
    bin_names,
    codes_of,
    information_values,
    weights_of_evidence,
)
from interlace.models.trees import MISSING


class Counted(BaseModel):
    """A column by number alone, with the goods and bads of its bins.

    Attributes:
        number: The column's number in the conversation, from 0.
        goods: Of each bin, that of missing values first.
        bads: The same.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    number: int
    goods: tuple[int, ...]
    bads: tuple[int, ...]

    @cached_property
    def counts(self) -> Floats:
        """(bins, 2)."""
        return np.array([self.goods, self.bads], dtype=np.float64).T

    @cached_property
    def woe(self) -> Floats:
        """Of each bin, and last the 0 of a value that training did not see."""
        return np.append(weights_of_evidence(self.counts), 0.0)

    @property
    def iv(self) -> float:
        """Information value."""
        return float(information_values(self.counts).sum())

    def whole(self, largest: int) -> Integers:
        """WOE of each bin less its mean, as whole numbers up to ``largest``."""
        people = self.counts.sum(axis=1)
        centred = self.woe[:-1] - np.average(self.woe[:-1], weights=people)
        centred[people == 0] = 0.0
        whole: Integers = np.rint(centred * largest / np.abs(centred).max()).astype(np.int64)
        return whole


class CardColumn(Counted):
    """A column of a scorecard as its owner keeps it.

    Attributes:
        bins: How values fall into bins.
        missing: The bin of missing values: 0, their own, or another if they were too few.
        coefficient: Of its WOE in the log-odds of being bad: below 0 as a rule, since a higher WOE
            is a lower risk.
        standard_error: Of the coefficient, if it was asked for.
        points: Of each bin, and last of a value that training did not see.
        reason: What the active party is told where this column costs a person points; ``None``:
            nothing. Its owner may change it in the file of the model.
    """

    bins: Bins
    missing: int = MISSING
    coefficient: float = 0.0
    standard_error: float | None = None
    points: tuple[int, ...] = ()
    reason: str | None = Field(default=None, max_length=60)

    @property
    def name(self) -> str:
        """The column's name."""
        return self.bins.name

    def codes(self, series: pl.Series, *, party: str) -> Integers:
        """The place of each value in ``woe`` and ``points``."""
        codes = codes_of(self.bins, series, party=party)
        return np.where(codes == MISSING, self.missing, codes)

    @property
    def mean_points(self) -> float:
        """Over the people in training."""
        return float(np.average(self.points[:-1], weights=self.counts.sum(axis=1)))


class Card(BaseModel):
    """A party's part of a scorecard.

    Attributes:
        party: Whose it is.
        columns: Those that were kept.
        left_out: Why each of the others was not, by name.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    party: str
    columns: tuple[CardColumn, ...]
    left_out: dict[str, str]

    def codes(self, frame: pl.DataFrame, rows: Integers) -> Integers:
        """The place of each person's value in each column's ``woe`` and ``points``, (n, columns).

        Raises:
            DataError: the table lacks a column, or nothing in it can be read.
        """
        out = np.empty((len(rows), len(self.columns)), dtype=np.int64)
        for j, column in enumerate(self.columns):
            if column.name not in frame.columns:
                raise DataError(
                    "the table has no such column",
                    party=self.party,
                    column=column.name,
                    way_out="Give the columns that the scorecard was made with.",
                )
            out[:, j] = column.codes(frame[column.name].gather(rows), party=self.party)
        return out

    def woe(self, frame: pl.DataFrame, rows: Integers) -> Floats:
        """Weights of evidence, (n, columns)."""
        return looked_up([column.woe for column in self.columns], self.codes(frame, rows))

    def points(self, frame: pl.DataFrame, rows: Integers) -> Floats:
        """Points, (n, columns)."""
        tables = [np.array(column.points, dtype=np.float64) for column in self.columns]
        return looked_up(tables, self.codes(frame, rows))

    def scaled(self, coefficients: Floats, errors: Floats | None, factor: float) -> Card:
        """The card with coefficients and points.

        Args:
            coefficients: Of each column, in the log-odds of being bad.
            errors: Their standard errors, if known.
            factor: By how many points a score rises for each unit of the log-odds of being good.
        """
        columns = [
            column.model_copy(
                update={
                    "coefficient": float(weight),
                    "standard_error": None if errors is None else float(errors[j]),
                    "points": tuple(np.rint(-factor * weight * column.woe).astype(int).tolist()),
                }
            )
            for j, (column, weight) in enumerate(zip(self.columns, coefficients, strict=True))
        ]
        return self.model_copy(update={"columns": tuple(columns)})

    def shortfalls(self, frame: pl.DataFrame, rows: Integers, most: int) -> Floats:
        """Where each person lacks the most points against the mean of the people in training.

        Only columns count that have a ``reason``.

        Returns:
            Shape (n, 2·most): numbers of columns, -1 for none, then the points lacking, from the
            most on.
        """
        told = [j for j, column in enumerate(self.columns) if column.reason is not None]
        number = np.full((len(rows), most), -1.0)
        lacking = np.zeros((len(rows), most))
        if told:
            mean = np.array([self.columns[j].mean_points for j in told])
            short = mean - self.points(frame, rows)[:, told]
            order = np.argsort(-short, axis=1, kind="stable")[:, :most]
            found = np.take_along_axis(short, order, axis=1)
            numbers = np.array([self.columns[j].number for j in told])[order]
            place = slice(0, order.shape[1])
            number[:, place] = np.where(found > 0, numbers, -1)
            lacking[:, place] = np.maximum(found, 0.0)
        return np.concatenate([number, lacking], axis=1)

    def table(self) -> pl.DataFrame:
        """A line for each bin of each column, as a credit officer reads a scorecard."""
        lines = []
        for column in self.columns:
            adds = information_values(column.counts)
            for b, name in enumerate(bin_names(column.bins)):
                goods, bads = column.goods[b], column.bads[b]
                if not goods + bads:
                    continue
                lines.append(
                    {
                        "column": column.name,
                        "bin": name,
                        "people": goods + bads,
                        "goods": goods,
                        "bads": bads,
                        "bad rate": bads / (goods + bads),
                        "WOE": float(column.woe[b]),
                        "IV": float(adds[b]),
                        "points": column.points[b] if column.points else None,
                    }
                )
        return pl.DataFrame(lines, schema=_SCHEMA)

    def summary(self) -> pl.DataFrame:
        """A line for each column: IV, coefficient, and, if they were asked for, the coefficient's
        standard error and the p-value of its being 0 (Wald); last those left out, and why."""
        lines: list[dict[str, Any]] = []
        for column in self.columns:
            line = {"column": column.name, "IV": column.iv, "coefficient": column.coefficient}
            if column.standard_error is not None:
                z = abs(column.coefficient) / column.standard_error
                line |= {"standard error": column.standard_error, "p": 2 * stats.norm.sf(z)}
            lines.append(line)
        lines += [{"column": name, "left out": why} for name, why in self.left_out.items()]
        return pl.DataFrame(lines, schema=_SUMMARY)


_SUMMARY = {
    "column": pl.String,
    "IV": pl.Float64,
    "coefficient": pl.Float64,
    "standard error": pl.Float64,
    "p": pl.Float64,
    "left out": pl.String,
}
_SCHEMA = {
    "column": pl.String,
    "bin": pl.String,
    "people": pl.Int64,
    "goods": pl.Int64,
    "bads": pl.Int64,
    "bad rate": pl.Float64,
    "WOE": pl.Float64,
    "IV": pl.Float64,
    "points": pl.Int64,
}


def looked_up(tables: Sequence[Floats], codes: Integers) -> Floats:
    """For each column of ``codes`` (n, columns) what its table says."""
    out = np.empty(codes.shape)
    for j, table in enumerate(tables):
        out[:, j] = table[codes[:, j]]
    return out
