"""Decision trees over binned columns: what a party computes by itself.

A column is cut into bins once. Bin 0 of every column holds what is missing (and a category that
training did not see); bins 1 … w hold its values in order. All sums are of whole numbers in
float64, far below 2^53, so they are exact: neither the order of rows, nor who added them up, nor
taking a sibling as the difference of two sums changes a tree.

Source of splits and leaf weights: Chen and Guestrin, "XGBoost: A Scalable Tree Boosting System",
KDD 2016, §2; missing values by a learnt direction, §3.4. Categories are ordered by G/H, in which
order the best two groups lie next to each other: Fisher, "On grouping for maximum homogeneity",
JASA 1958.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.util import find_spec
from math import factorial
from typing import Annotated, Any, Literal, NamedTuple, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from interlace.data.columns import (
    CategoryColumn,
    DateColumn,
    Reading,
    as_dates,
    as_levels,
    fit_column,
    numbers,
    read_columns,
)
from interlace.data.images import is_image
from interlace.errors import DataError, Refused

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]
Codes = NDArray[np.uint8] | NDArray[np.uint16]

MISSING = 0
LEAST_GAIN = 1e-6  # XGBoost's kRtEps: what rounding leaves of a gain of nought
_MOST_CELLS = 2**21  # cells searched at once, to bound the memory


class _Saved(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


# -- bins --------------------------------------------------------------------------------------


class Split(_Saved):
    """How a party sends rows on at one node. It never leaves that party.

    Attributes:
        column: Which column.
        below: Numbers below it go left. ``None``: every known value does.
        levels: Categories that go left, of a column of categories.
        missing_left: Whether what is missing goes left.
    """

    column: str
    below: float | None = None
    levels: tuple[str, ...] | None = None
    missing_left: bool = False


class NumericBins(_Saved):
    """A column of numbers or dates. Bin b ≥ 1 holds edges[b-2] <= value < edges[b-1].

    Attributes:
        dates: Whether the values are dates, read as days; ``spelling`` is how text spells them.
    """

    kind: Literal["numeric"] = "numeric"
    name: str
    edges: tuple[float, ...]
    dates: bool = False
    spelling: str | None = None

    @property
    def width(self) -> int:
        """Bins of known values."""
        return len(self.edges) + 1

    def values(self, series: pl.Series) -> Floats:
        """The column as numbers, NaN where it is missing."""
        return _numeric(series, self.dates, self.spelling)

    def codes(self, values: Floats) -> Integers:
        """The bin of each value."""
        found = np.searchsorted(np.asarray(self.edges), values, side="right") + 1
        found[np.isnan(values)] = MISSING
        return found

    def split(self, left: Flags) -> Split:
        """The split that sends bins on as said; ``left`` has shape (width + 1,).

        Raises:
            Refused: the bins that go left are not the lowest ones.
        """
        count = int(left[1:].sum())
        if not count or not left[1 : count + 1].all():
            raise Refused("a split of numbers sends the lowest bins left, and some")
        below = self.edges[count - 1] if count < self.width else None
        return Split(column=self.name, below=below, missing_left=bool(left[MISSING]))

    def goes_left(self, split: Split, values: Floats) -> Flags:
        """Which values go left."""
        known = ~np.isnan(values) if split.below is None else values < split.below
        return known | np.isnan(values) if split.missing_left else known


class CategoryBins(_Saved):
    """A column of categories, one bin for each level, the most frequent first."""

    kind: Literal["category"] = "category"
    name: str
    levels: tuple[str, ...]

    @property
    def width(self) -> int:
        """Bins of known levels."""
        return len(self.levels)

    def values(self, series: pl.Series) -> Floats:
        """The number of each level from 1, and 0 for what is missing or unknown."""
        codes = as_levels(series).replace_strict(
            self.levels, range(1, self.width + 1), default=MISSING, return_dtype=pl.Float64
        )
        return codes.fill_null(MISSING).to_numpy().astype(np.float64)

    def codes(self, values: Floats) -> Integers:
        """The bin of each value."""
        return values.astype(np.int64)

    def split(self, left: Flags) -> Split:
        """The split that sends bins on as said; ``left`` has shape (width + 1,)."""
        levels = tuple(level for level, goes in zip(self.levels, left[1:], strict=False) if goes)
        return Split(column=self.name, levels=levels, missing_left=bool(left[MISSING]))

    def goes_left(self, split: Split, values: Floats) -> Flags:
        """Which values go left."""
        goes = np.isin(self.levels, split.levels or ())
        table = np.concatenate([[split.missing_left], goes])
        return np.asarray(table[values.astype(np.int64)])


Bins = Annotated[NumericBins | CategoryBins, Field(discriminator="kind")]


class Binning(_Saved):
    """The bins of a party's columns, learnt from its training rows.

    Attributes:
        party: Whose columns.
        columns: Those that tell rows apart.
    """

    party: str
    columns: tuple[Bins, ...]

    @classmethod
    def fit(
        cls,
        frame: pl.DataFrame,
        columns: Sequence[str],
        rows: Integers,
        max_bin: int,
        *,
        party: str,
        file: str | None = None,
        readings: Mapping[str, Reading] | None = None,
    ) -> Self:
        """Cut columns at the quantiles of some rows; columns that are constant there stay out.

        Args:
            frame: The party's table.
            columns: Its feature columns.
            rows: Positions of the training rows.
            max_bin: Most bins of a column, that of missing values apart.
            party: Whose table it is, for errors.
            file: Its file, for errors.
            readings: How each column is read; by default as all of ``frame`` has it.

        Raises:
            DataError: a column holds images.
        """
        readings = readings or read_columns(frame, columns)
        found: list[NumericBins | CategoryBins] = []
        for name in columns:
            series = frame[name].gather(rows)
            if is_image(series.dtype):
                raise DataError(
                    "trees read tables, and this column holds images",
                    party=party,
                    file=file,
                    column=name,
                    way_out="Leave it out, or take a method with networks.",
                )
            plan, _ = fit_column(series, readings[name], party=party, file=file)
            if plan is None:
                continue
            if isinstance(plan, CategoryColumn):
                counts = as_levels(series).drop_nulls().alias("level").value_counts()
                levels = counts.sort("count", "level", descending=[True, False])["level"]
                found.append(CategoryBins(name=name, levels=tuple(levels.head(max_bin))))
                continue
            dates = isinstance(plan, DateColumn)
            spelling = plan.format if isinstance(plan, DateColumn) else None
            values = _numeric(series, dates, spelling)
            edges = quantile_edges(values[~np.isnan(values)], max_bin)
            found.append(NumericBins(name=name, edges=edges, dates=dates, spelling=spelling))
        return cls(party=party, columns=tuple(found))

    def values(self, frame: pl.DataFrame, rows: Integers, names: set[str]) -> dict[str, Floats]:
        """Columns by name, as :meth:`goes_left` reads them.

        Raises:
            DataError: the table lacks one of them.
        """
        out = {}
        for bins in self.columns:
            if bins.name in names:
                if bins.name not in frame.columns:
                    raise DataError(
                        "the table has no such column",
                        party=self.party,
                        column=bins.name,
                        way_out="Give the columns that the trees were trained with.",
                    )
                out[bins.name] = bins.values(frame[bins.name].gather(rows))
        return out

    def codes(self, frame: pl.DataFrame, rows: Integers) -> Codes:
        """The bin of every row and column, (n, columns)."""
        widest = max((bins.width for bins in self.columns), default=0)
        kind = np.uint8 if widest < 256 else np.uint16
        out = np.empty((len(rows), len(self.columns)), dtype=kind)
        values = self.values(frame, rows, {bins.name for bins in self.columns})
        for j, bins in enumerate(self.columns):
            out[:, j] = bins.codes(values[bins.name])
        return out

    def goes_left(self, splits: Sequence[Split], frame: pl.DataFrame, rows: Integers) -> Flags:
        """Which rows each split sends left, (splits, n)."""
        by_name = {bins.name: bins for bins in self.columns}
        values = self.values(frame, rows, {split.column for split in splits})
        out = np.empty((len(splits), len(rows)), dtype=np.bool_)
        for i, split in enumerate(splits):
            out[i] = by_name[split.column].goes_left(split, values[split.column])
        return out


def quantile_edges(values: Floats, max_bin: int) -> tuple[float, ...]:
    """Edges between bins of about equal numbers of values; each lies halfway between two values.

    Where there are no more different values than bins, each has a bin of its own. So has a value
    that would fill a bin by itself; the others share what is left.
    """
    distinct, counts = np.unique(values, return_counts=True)
    last = len(distinct) - 1
    if last < max_bin:
        cuts = np.arange(last)
    else:
        heavy = np.argsort(-counts, kind="stable")[: (max_bin - 1) // 2]
        heavy = heavy[counts[heavy] * max_bin >= len(values)]
        around = np.concatenate([heavy - 1, heavy])
        around = np.unique(around[(around >= 0) & (around < last)])
        counts[heavy] = 0
        upto, free = np.cumsum(counts), max_bin - len(around)
        wanted = upto[-1] * np.arange(1, free) / free
        cuts = np.union1d(around, np.searchsorted(upto, wanted))
        cuts = cuts[cuts < last]
    below, above = distinct[cuts], distinct[cuts + 1]
    middle = below + (above - below) / 2
    return tuple(np.where(middle > below, middle, above).tolist())


def _numeric(series: pl.Series, dates: bool, spelling: str | None) -> Floats:
    if not dates:
        return numbers(series)[0]
    days = as_dates(series, spelling).dt.epoch("us").cast(pl.Float64) / 86_400_000_000
    return days.fill_null(float("nan")).to_numpy().astype(np.float64)


# -- histograms --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """How a party's columns lie in a histogram: one after the other, bin 0 of each first.

    Attributes:
        widths: Bins of known values of each column, (columns,).
        categorical: Which columns hold categories.
        signs: 1 or -1 where the model must rise or fall with a column, else 0.
    """

    widths: Integers
    categorical: Flags
    signs: Integers

    @classmethod
    def of(cls, binning: Binning, signs: Sequence[int]) -> Layout:
        """The layout of a party's bins."""
        return cls(
            np.array([bins.width for bins in binning.columns], dtype=np.int64),
            np.array([isinstance(bins, CategoryBins) for bins in binning.columns], dtype=np.bool_),
            np.array(signs, dtype=np.int64),
        )

    def __len__(self) -> int:
        return len(self.widths)

    @cached_property
    def offsets(self) -> Integers:
        """Where each column begins."""
        return np.cumsum(self.widths + 1) - (self.widths + 1)

    @property
    def total(self) -> int:
        """Cells of one node."""
        return int((self.widths + 1).sum())

    @property
    def widest(self) -> int:
        """Cells of the widest column."""
        return int(self.widths.max(initial=0)) + 1

    @cached_property
    def _places(self) -> Integers:
        inside = np.arange(self.widest)[None] <= self.widths[:, None]
        return np.where(inside, self.offsets[:, None] + np.arange(self.widest), self.total)

    def only(self, columns: Integers) -> Layout:
        """The layout of some of the columns."""
        return Layout(self.widths[columns], self.categorical[columns], self.signs[columns])

    def padded(self, histograms: Floats) -> Floats:
        """(nodes, total, numbers) as (nodes, columns, widest, numbers), with zeros at the end."""
        nodes, _, width = histograms.shape
        longer = np.concatenate([histograms, np.zeros((nodes, 1, width))], axis=1)
        return np.take(longer, self._places, axis=1)


class _Kernels(NamedTuple):
    add: Callable[[Any, Integers, Integers, Integers, Integers, Floats, Floats], None]
    walk: Callable[[NDArray[np.uint8], Integers, Integers, Integers, Integers, Integers], None]


@cache
def _kernels(compiled: bool | None = None) -> _Kernels:
    """The inner loops, compiled where numba is installed, or as asked."""
    if compiled is None:
        compiled = find_spec("numba") is not None
    if not compiled:
        return _Kernels(_add, _walk)
    import numba

    jit = numba.njit(nogil=True, cache=True)
    return _Kernels(jit(_add_loop), jit(_walk_loop))


# `add`: out[slot[i], offsets[j] + codes[rows[i], columns[j]]] += figures[rows[i]].
# `walk`: from node 0 down to a leaf, which is its own child. Bit b of a row's packed bits says
#   whether the row goes left at the node that asks for bit b.


def _add_loop(
    codes: Any,
    columns: Integers,
    offsets: Integers,
    rows: Integers,
    slot: Integers,
    figures: Floats,
    out: Floats,
) -> None:
    for i in range(rows.shape[0]):
        row = rows[i]
        target = out[slot[i]]
        for j in range(columns.shape[0]):
            place = offsets[j] + codes[row, columns[j]]
            for c in range(figures.shape[1]):
                target[place, c] += figures[row, c]


def _walk_loop(
    bits: NDArray[np.uint8],
    bit: Integers,
    left: Integers,
    right: Integers,
    steps: Integers,
    out: Integers,
) -> None:
    for i in range(bits.shape[0]):
        node = 0
        for _ in range(steps[0]):
            b = bit[node]
            goes = (bits[i, b >> 3] >> (7 - (b & 7))) & 1
            node = left[node] if goes else right[node]
        out[i] = node


def _add(
    codes: Any,
    columns: Integers,
    offsets: Integers,
    rows: Integers,
    slot: Integers,
    figures: Floats,
    out: Floats,
) -> None:
    slots, total, width = out.shape
    chosen = codes[rows]
    weights = np.ascontiguousarray(figures[rows].T)
    for j, column in enumerate(columns):
        at = slot * total + offsets[j] + chosen[:, column]
        for c in range(width):
            sums = np.bincount(at, weights=weights[c], minlength=slots * total)
            out[:, :, c] += sums.reshape(slots, total)


def _walk(
    bits: NDArray[np.uint8],
    bit: Integers,
    left: Integers,
    right: Integers,
    steps: Integers,
    out: Integers,
) -> None:
    lines = np.arange(len(bits))
    out[:] = 0
    for _ in range(int(steps[0])):
        b = bit[out]
        goes = (bits[lines, b >> 3] >> (7 - (b & 7)).astype(np.uint8)) & 1
        out[:] = np.where(goes, left[out], right[out])


def add_up(
    codes: Codes,
    columns: Integers,
    layout: Layout,
    rows: Integers,
    slot: Integers,
    figures: Floats,
    slots: int,
) -> Floats:
    """Add rows' figures up by node, column and bin.

    Args:
        codes: Bins of all rows, (n, all columns).
        columns: Which columns; ``layout`` is theirs.
        layout: How they lie in the result.
        rows: Which rows, (m,).
        slot: Which histogram each of them goes into, (m,).
        figures: Of all rows, (n, numbers).
        slots: How many histograms.

    Returns:
        Shape (slots, cells, numbers).
    """
    out = np.zeros((slots, layout.total, figures.shape[1]))
    _kernels().add(codes, columns, layout.offsets, rows, slot, figures, out)
    return out


# -- the best split ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Penalty:
    """What keeps leaf weights small and splits few; XGBoost's names."""

    reg_lambda: float = 1.0
    reg_alpha: float = 0.0
    gamma: float = 0.0
    min_child_weight: float = 1.0
    max_delta_step: float = 0.0

    def weight(self, g: Floats, h: Floats) -> Floats:
        """Leaf weights w = -T(G)/(H + λ), where T takes α off |G|."""
        kept = np.sign(g) * np.maximum(np.abs(g) - self.reg_alpha, 0.0) if self.reg_alpha else g
        below = h + self.reg_lambda
        w = np.divide(-kept, below, out=np.zeros_like(g), where=below > 0)
        return np.clip(w, -self.max_delta_step, self.max_delta_step) if self.max_delta_step else w

    def score(self, g: Floats, h: Floats, w: Floats | None = None) -> Floats:
        """Twice what leaves of (..., outputs) sums take off the loss, summed over outputs."""
        if w is None and not self.max_delta_step:
            kept = np.maximum(np.abs(g) - self.reg_alpha, 0.0) if self.reg_alpha else g
            below = h + self.reg_lambda
            out = np.divide(kept * kept, below, out=np.zeros_like(g), where=below > 0)
        else:
            w = self.weight(g, h) if w is None else w
            out = -(2 * g * w + (h + self.reg_lambda) * w * w + 2 * self.reg_alpha * np.abs(w))
        total: Floats = out[..., 0] if out.shape[-1] == 1 else out.sum(axis=-1)
        return total


class Candidate(NamedTuple):
    """The best split of one node at one party.

    Attributes:
        gain: What it takes off the loss, by XGBoost's measure; -inf if there is none.
        column: Which of the party's columns.
        left: Which bins go left, (cells of the widest column,).
        sums: Figures of the rows that go left, (numbers,).
    """

    gain: float
    column: int
    left: Flags
    sums: Floats


def best_splits(
    histograms: Floats,
    layout: Layout,
    totals: Floats,
    units: Floats,
    penalty: Penalty,
    bounds: Floats,
) -> list[Candidate]:
    """The best split of each node over a party's columns; of equals, the first.

    Args:
        histograms: Shape (nodes, cells, 2·outputs): whole sums of g, then of h.
        layout: How the cells lie.
        totals: Shape (nodes, 2·outputs).
        units: What one of each number stands for, (2·outputs,).
        penalty: What splits must be worth.
        bounds: Shape (nodes, 2): limits of the weights below each node, where columns have signs.
    """
    out: list[Candidate] = []
    if not len(layout):
        nothing = np.zeros(0, dtype=np.bool_)
        return [Candidate(-np.inf, -1, nothing, totals[i]) for i in range(len(totals))]
    cells = len(layout) * layout.widest * histograms.shape[2]
    step = max(1, _MOST_CELLS // cells)
    for start in range(0, len(histograms), step):
        part = slice(start, start + step)
        out += _search(histograms[part], layout, totals[part], units, penalty, bounds[part])
    return out


def _search(
    histograms: Floats,
    layout: Layout,
    totals: Floats,
    units: Floats,
    penalty: Penalty,
    bounds: Floats,
) -> list[Candidate]:
    nodes, outputs = len(histograms), histograms.shape[2] // 2
    columns, widest = len(layout), layout.widest
    padded = layout.padded(histograms)
    missing, values = padded[:, :, :1], padded[:, :, 1:]
    order: Integers | None = None
    if layout.categorical.any():
        order, values = _ordered(values, layout.categorical, units, penalty, outputs)
    lefts = values.cumsum(axis=2)
    if layout.categorical.any() and outputs > 1:  # one level against the rest
        lefts[:, layout.categorical] = values[:, layout.categorical]
    # Missing values to the right, then to the left: (nodes, columns, 2, bins, numbers).
    lefts = np.stack([lefts, lefts + missing], axis=2)
    rights = totals[:, None, None, None] - lefts
    gl, hl = lefts[..., :outputs] * units[:outputs], lefts[..., outputs:] * units[outputs:]
    gr, hr = rights[..., :outputs] * units[:outputs], rights[..., outputs:] * units[outputs:]
    g, h = totals[:, :outputs] * units[:outputs], totals[:, outputs:] * units[outputs:]
    if layout.signs.any() or np.isfinite(bounds).any():
        low, high = (bounds[:, k, None, None, None, None] for k in (0, 1))
        wl = np.clip(penalty.weight(gl, hl), low, high)
        wr = np.clip(penalty.weight(gr, hr), low, high)
        gain = penalty.score(gl, hl, wl) + penalty.score(gr, hr, wr)
        falls = layout.signs[:, None, None] * (wr - wl)[..., 0] < 0
        gain = np.where(falls, -np.inf, gain)
        own = np.clip(penalty.weight(g, h), bounds[:, :1], bounds[:, 1:])
        gain -= penalty.score(g, h, own)[:, None, None, None]
    else:
        gain = penalty.score(gl, hl) + penalty.score(gr, hr)
        gain -= penalty.score(g, h)[:, None, None, None]
    least = penalty.min_child_weight
    thin = (hl.mean(axis=-1) < least) | (hr.mean(axis=-1) < least)
    # A side without rows has no sum at all; that is no split, whatever rounding makes of it.
    gain = np.where(thin | (lefts == 0).all(-1) | (rights == 0).all(-1), -np.inf, gain)
    flat = gain.reshape(nodes, -1)
    best = flat.argmax(axis=1)
    found = []
    for node, at in enumerate(best):
        column, side, b = np.unravel_index(at, (columns, 2, widest - 1))
        left = np.zeros(widest, dtype=np.bool_)
        chosen = np.arange(1, b + 2)
        if layout.categorical[column]:
            assert order is not None
            chosen = order[node, column, : b + 1] + 1
            if outputs > 1:
                chosen = np.array([b + 1])
        left[chosen] = True
        left[layout.widths[column] + 1 :] = False
        if (missing[node, column] == 0).all():  # nothing to learn a direction from: the heavier
            side = int(hl[node, column, side, b].sum() > hr[node, column, side, b].sum())
        left[MISSING] = bool(side)
        found.append(
            Candidate(float(flat[node, at]), int(column), left, lefts[node, column, side, b])
        )
    return found


def _ordered(
    values: Floats, categorical: Flags, units: Floats, penalty: Penalty, outputs: int
) -> tuple[Integers, Floats]:
    """Levels in the order of their leaf weights, those without rows last; numbers as they are."""
    order = np.broadcast_to(np.arange(values.shape[2]), values.shape[:3]).copy()
    if outputs > 1:
        return order, values
    g, h = values[..., 0] * units[0], values[..., 1] * units[1]
    weight = np.divide(g, h + penalty.reg_lambda, out=np.zeros_like(g), where=h > 0)
    weight = np.where(h > 0, weight, np.inf)
    order[:, categorical] = np.argsort(weight[:, categorical], axis=2, kind="stable")
    return order, np.take_along_axis(values, order[..., None], axis=2)


# -- trees -------------------------------------------------------------------------------------


class Tree(_Saved):
    """A tree as the active party keeps it: its shape, who owns each split, and its leaves' values.

    Attributes:
        owner: The party whose column splits each node; ``None`` at a leaf.
        split: The number of the split in that party's list.
        column: The number of the column among that party's.
        left: The child on the left; a leaf is its own child.
        right: The child on the right.
        value: Each node's value, (nodes, outputs); only leaves' values count.
        gain: What each split took off the loss.
        cover: Sum of h at each node.
    """

    owner: tuple[str | None, ...]
    split: tuple[int, ...]
    column: tuple[int, ...]
    left: tuple[int, ...]
    right: tuple[int, ...]
    value: tuple[tuple[float, ...], ...]
    gain: tuple[float, ...]
    cover: tuple[float, ...]

    @cached_property
    def depth(self) -> int:
        """Steps from the root to the deepest leaf."""
        depth = [0] * len(self.left)
        for node, child in enumerate(self.left):
            if child != node:
                depth[child] = depth[self.right[node]] = depth[node] + 1
        return max(depth)

    def leaves(self, bits: NDArray[np.uint8], first: dict[str, int]) -> Integers:
        """The leaf that each row ends at.

        Args:
            bits: All splits' packed bits of each row, (n, bytes): 1 goes left.
            first: Where each party's bits begin.
        """
        out = np.zeros(len(bits), dtype=np.int64)
        left, right = np.array(self.left), np.array(self.right)
        _kernels().walk(bits, self._asked(first), left, right, np.array([self.depth]), out)
        return out

    def _asked(self, first: dict[str, int]) -> Integers:
        """The bit that each node asks for."""
        pairs = zip(self.owner, self.split, strict=True)
        return np.array([0 if o is None else first[o] + s for o, s in pairs], dtype=np.int64)

    def shapley(
        self, bits: NDArray[np.uint8], first: dict[str, int]
    ) -> Iterator[tuple[tuple[str, int], Floats]]:
        """What each column on each path adds to the tree's value, beyond the mean over its leaves.

        A path's value counts in full where a row agrees with it, and where a column is unknown by
        the share of h that takes the branch ("path dependent").

        Args:
            bits: As for :meth:`leaves`.
            first: As for :meth:`leaves`.

        Yields:
            A column, as its owner and number, and shares of shape (n, outputs): a column occurs
            once for every leaf below it, and its shares are to be added up.

        Source: Lundberg et al., "From local explanations to global understanding with explainable
        AI for trees", Nature Machine Intelligence 2020, algorithm 1; over each leaf, with the
        subsets' weights gathered in a polynomial.
        """
        lefts = [(bits[:, b >> 3] >> (7 - (b & 7))) & 1 == 1 for b in self._asked(first).tolist()]
        # A node, and for each column above it: whether rows agree, and the share of h that does.
        todo: list[tuple[int, dict[tuple[str, int], tuple[Flags, float]]]] = [(0, {})]
        while todo:
            node, above = todo.pop()
            owner = self.owner[node]
            if owner is None:
                yield from self._shares(node, above)
                continue
            player = owner, self.column[node]
            agree, share = above.get(player, (np.ones(len(bits), dtype=np.bool_), 1.0))
            for child, goes in ((self.left[node], lefts[node]), (self.right[node], ~lefts[node])):
                part = self.cover[child] / self.cover[node] if self.cover[node] else 0.5
                todo.append((child, {**above, player: (agree & goes, share * part)}))

    def _shares(
        self, leaf: int, above: dict[tuple[str, int], tuple[Flags, float]]
    ) -> Iterator[tuple[tuple[str, int], Floats]]:
        """The columns' shares of one leaf's value."""
        value, count = np.array(self.value[leaf]), len(above)
        weight = [factorial(k) * factorial(count - 1 - k) / factorial(count) for k in range(count)]
        for player, (agree, share) in above.items():
            # Term k: over sets of k other columns, what a row has of the path if those are known
            # and the rest is not.
            terms = [np.ones(len(agree))]
            for other, (agrees, part) in above.items():
                if other != player:
                    longer = [part * term for term in terms] + [np.zeros(len(agree))]
                    for k, term in enumerate(terms):
                        longer[k + 1] += agrees * term
                    terms = longer
            total = sum(w * term for w, term in zip(weight, terms, strict=True))
            yield player, ((agree - share) * total)[:, None] * value

    @property
    def mean(self) -> Floats:
        """The mean over leaves, by their share of h; (outputs,)."""
        share, out = {0: 1.0}, np.zeros(len(self.value[0]))
        for node, child in enumerate(self.left):  # parents stand before their children
            if child == node:
                out += share[node] * np.array(self.value[node])
                continue
            for down in (child, self.right[node]):
                part = self.cover[down] / self.cover[node] if self.cover[node] else 0.5
                share[down] = share[node] * part
        return out


# -- losses ------------------------------------------------------------------------------------

TreeObjective = Literal[
    "binary:logistic",
    "multi:softprob",
    "reg:squarederror",
    "count:poisson",
    "reg:quantileerror",
]
_LEAST_HESSIAN = 1e-16


@dataclass(frozen=True)
class TreeLoss:
    """A loss of (n, outputs) scores, its derivatives, and what scores mean; as XGBoost has them.

    Attributes:
        objective: XGBoost's name of it. ``binary:logistic`` also takes several labels at once.
        outputs: Scores of one row.
        quantile_alpha: Which quantile is estimated.
    """

    objective: TreeObjective
    outputs: int = 1
    quantile_alpha: float = 0.5

    def start(self, y: Floats, weight: Floats, base_score: float | None) -> Floats:
        """The score that boosting starts from, (outputs,): the best constant, or as given."""
        if self.objective == "multi:softprob" and base_score is None:
            counts = np.bincount(y.astype(np.int64), weights=weight, minlength=self.outputs)
            logs = np.log(np.maximum(counts / counts.sum(), 1e-6))
            return np.asarray(logs - logs.mean())
        mean = np.average(y, axis=0, weights=weight) if base_score is None else base_score
        if self.objective == "binary:logistic":
            share = np.clip(mean, 1e-6, 1 - 1e-6)
            out = np.log(share / (1 - share))
        elif self.objective == "count:poisson":
            out = np.log(np.maximum(mean, 1e-6))
        elif self.objective == "reg:quantileerror" and base_score is None:
            out = np.quantile(y, self.quantile_alpha)
        else:
            out = mean
        return np.broadcast_to(np.asarray(out, dtype=np.float64), (self.outputs,)).copy()

    def derivatives(
        self, score: Floats, y: Floats, weight: Floats, step: float
    ) -> tuple[Floats, Floats]:
        """First and second derivatives by each score, (n, outputs) both.

        ``step`` is the largest leaf weight, which Poisson's second derivative allows for.
        """
        if self.objective == "multi:softprob":
            p = _softmax(score)
            known = np.zeros_like(p)
            known[np.arange(len(p)), y.astype(np.int64)] = 1.0
            g, h = p - known, np.maximum(2 * p * (1 - p), _LEAST_HESSIAN)
        else:
            target = y.reshape(len(y), -1)
            if self.objective == "binary:logistic":
                p = _sigmoid(score)
                g, h = p - target, np.maximum(p * (1 - p), _LEAST_HESSIAN)
            elif self.objective == "count:poisson":
                g, h = np.exp(score) - target, np.exp(score + step)
            elif self.objective == "reg:quantileerror":
                g = np.where(score >= target, 1 - self.quantile_alpha, -self.quantile_alpha)
                h = np.ones_like(score)
            else:
                g, h = score - target, np.ones_like(score)
        return g * weight[:, None], h * weight[:, None]

    def loss(self, score: Floats, y: Floats) -> float:
        """Mean loss."""
        if self.objective == "multi:softprob":
            p = _softmax(score)[np.arange(len(y)), y.astype(np.int64)]
            return float(-np.log(np.maximum(p, 1e-300)).mean())
        target = y.reshape(len(y), -1)
        if self.objective == "binary:logistic":
            return float((np.logaddexp(0, score) - target * score).mean())
        if self.objective == "count:poisson":
            return float((np.exp(score) - target * score).mean())
        if self.objective == "reg:quantileerror":
            beyond = target - score
            alpha = self.quantile_alpha
            return float(np.maximum(alpha * beyond, (alpha - 1) * beyond).mean())
        return float(((score - target) ** 2).mean())

    def leaf(self, residuals: Floats) -> float:
        """The best leaf value for some residuals y - score, where h says nothing of it."""
        return float(np.quantile(residuals, self.quantile_alpha))

    def predictions(self, score: Floats) -> Floats:
        """(n, classes) or (n, labels) probabilities, or (n,) estimates."""
        if self.objective == "multi:softprob":
            return _softmax(score)
        if self.objective == "binary:logistic":
            p = _sigmoid(score)
            return np.concatenate([1 - p, p], axis=1) if self.outputs == 1 else p
        return np.exp(score[:, 0]) if self.objective == "count:poisson" else score[:, 0]


def _sigmoid(score: Floats) -> Floats:
    out: Floats = 1.0 / (1.0 + np.exp(-np.clip(score, -700, 700)))
    return out


def _softmax(score: Floats) -> Floats:
    e = np.exp(score - score.max(axis=1, keepdims=True))
    out: Floats = e / e.sum(axis=1, keepdims=True)
    return out
