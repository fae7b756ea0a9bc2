"""Cutting one table into party tables, for a simulation, and saying how hard the cut is.

The two measures of a cut are those of VertiBench (Wu, Hou and He, ICLR 2024): α, the concentration
of the Dirichlet distribution that the parties' shares of the importance would come from, and β,
where the cut's inter-party correlation lies between the lowest and the highest that a cut of the
same sizes reaches. Both are computed here from their definitions, in seconds.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from interlace.data.columns import (
    CategoryColumn,
    DateColumn,
    as_dates,
    fit_column,
    numbers,
    read_columns,
)
from interlace.data.images import is_image
from interlace.data.labels import LabelPlan
from interlace.data.tables import missing_column
from interlace.errors import DataError

Index = NDArray[np.int64]
Matrix = NDArray[np.float64]

_MOST_ROWS = 10_000  # of a table, for a correlation or an importance
_MOST_STEPS = 1_500  # from each start of a local search
_RANDOM = 2  # starts of it that are random
_WARMTH = 0.003  # a swap that costs this much Icor is at first accepted one time in e


@dataclass(frozen=True, eq=False)
class Split:
    """Party tables cut from one table, and what a job needs to know about them.

    Attributes:
        tables: each party's table: the id column, its features and, at the label's party, the
            label, which is null for people without one.
        id: the id column, in every table.
        label: the label column.
        label_party: who holds the label; ``None`` in a horizontal cut, where every party does.
        description: what the data are, in a sentence or two.
        truth: ids and labels of the people whose label the label's party does not have, for
            whoever simulates; ``None`` if there are none.
    """

    tables: dict[str, pl.DataFrame]
    id: str
    label: str
    label_party: str | None
    description: str = ""
    truth: pl.DataFrame | None = None


@dataclass(frozen=True, eq=False)
class People:
    """Who is held by whom, as row positions in the one table; each party's in an order of its own.

    Attributes:
        rows: for each party, the rows of its people.
        labelled: rows of the people whose label is kept.
    """

    rows: dict[str, Index]
    labelled: Index


@dataclass(frozen=True)
class CutDifficulty:
    """VertiBench's measures of a cut.

    Attributes:
        alpha: balance of importance; near 0 one party holds nearly all of it, infinite when all
            parties hold as much.
        beta: inter-party correlation in [0, 1]; near 0 the parties' columns say different things
            and each party's own repeat each other, near 1 it is the other way round.
        shares: each party's share of the importance, in sum 1.
    """

    alpha: float
    beta: float
    shares: dict[str, float] = field(compare=False)


# --- columns -----------------------------------------------------------------------------------


def cut_columns(
    frame: pl.DataFrame,
    features: Sequence[str],
    parties: Sequence[str],
    how: Literal["named", "random", "correlation", "importance"] = "random",
    *,
    named: Mapping[str, Sequence[str]] | None = None,
    alpha: float = 1.0,
    beta: float = 0.5,
    label: str | None = None,
    seed: int = 0,
) -> dict[str, list[str]]:
    """Give each party its columns.

    Args:
        frame: the one table.
        features: the columns to cut, without ids and label.
        parties: the parties' names.
        how: ``named``: as ``named`` says, what it does not name going to the one party that it
            does not name, if there is one; ``random``: equal numbers at random; ``correlation``:
            equal numbers, so that the cut's β comes as near to ``beta`` as a local search finds;
            ``importance``: shares of importance drawn from a Dirichlet distribution with
            concentration ``alpha``, and columns given out so that the parties come near them.
        label: the label column, by which importance is measured.
        seed: of all that is random here.

    Returns:
        For each party its columns, in the table's order.

    Raises:
        DataError: a column is not there, is not given to anyone, or there are fewer columns than
            parties; ``alpha`` or ``beta`` out of range; importance without a label.
    """
    if len(set(parties)) < len(parties):
        twice = next(p for i, p in enumerate(parties) if p in parties[:i])
        raise DataError("two parties have this name", party=twice, way_out="Rename one of them.")
    for name in features:
        if name not in frame.columns:
            raise missing_column(name, frame.columns, party="one table")
    if how == "named":
        return _cut_as_named(features, parties, named or {})
    if len(features) < len(parties):
        raise DataError(
            f"{len(features)} columns cannot be cut among {len(parties)} parties",
            way_out="Name fewer parties, or name the columns of each.",
        )
    rng = np.random.default_rng(seed)
    sizes = [len(part) for part in np.array_split(np.arange(len(features)), len(parties))]
    if how == "random":
        order = rng.permutation(len(features))
        owner = np.repeat(np.arange(len(parties)), sizes)[np.argsort(order)]
    elif how == "correlation":
        if not 0 <= beta <= 1:
            raise DataError("beta is not between 0 and 1", way_out="0 is the least, 1 the most.")
        search = _Search(_correlation(_matrix(frame, features, seed)), sizes, seed)
        low, high = search.bounds()
        target = low + beta * (high - low)
        owner = search.best(lambda icor: abs(icor - target))[1]
    else:
        if not alpha > 0:
            raise DataError("alpha is not above 0", way_out="Large is balanced, small is not.")
        if label is None:
            raise DataError("importance needs a label", way_out="Name the label column.")
        importance = feature_importance(frame, features, label, seed=seed)
        owner = _share_out(importance, rng.dirichlet([alpha] * len(parties)))
    return {
        party: [name for name, who in zip(features, owner, strict=True) if who == i]
        for i, party in enumerate(parties)
    }


def _cut_as_named(
    features: Sequence[str], parties: Sequence[str], named: Mapping[str, Sequence[str]]
) -> dict[str, list[str]]:
    for party, names in named.items():
        if party not in parties:
            raise DataError(
                "columns are named for it, but it is not a party of the cut",
                party=party,
                way_out=f"The parties are {', '.join(parties)}.",
            )
        for name in names:
            if name not in features:
                raise missing_column(name, features, party=party)
    given = {name for names in named.values() for name in names}
    rest = [name for name in features if name not in given]
    unnamed = [party for party in parties if party not in named]
    if rest and len(unnamed) != 1:
        raise DataError(
            f"it and {len(rest) - 1} other columns are given to no party",
            column=rest[0],
            way_out="Name them at a party, or leave one party unnamed to give it the rest.",
        )
    return {
        party: [n for n in features if n in named[party]] if party in named else rest
        for party in parties
    }


def _share_out(importance: Matrix, shares: Matrix) -> Index:
    """An owner for each column, so that the owners' sums of importance come near their shares.

    Greedy, the most important column first, always to the party that lacks most.
    """
    owner = np.zeros(len(importance), dtype=np.int64)
    lacking = shares * importance.sum()
    held = np.zeros(len(shares), dtype=np.int64)
    for column in np.argsort(-importance, kind="stable"):
        most = np.flatnonzero(lacking >= lacking.max() - 1e-12)
        party = most[np.argmin(held[most])]
        owner[column] = party
        lacking[party] -= importance[column]
        held[party] += 1
    for party in np.flatnonzero(held == 0):  # nobody is left without a column
        spare = np.flatnonzero(held[owner] > 1)
        column = spare[np.argmin(importance[spare])]
        held[owner[column]] -= 1
        owner[column] = party
        held[party] = 1
    return owner


# --- people ------------------------------------------------------------------------------------


def cut_people(
    rows: int,
    parties: Sequence[str],
    *,
    shared: int,
    alone: int | Mapping[str, int] | None = None,
    label_party: str,
    labelled: int | Literal["all", "shared"] = "all",
    seed: int = 0,
) -> People:
    """Give each party its people, at random.

    Args:
        rows: people in the one table.
        parties: the parties' names.
        shared: people that all parties hold.
        alone: people that one party alone holds: for each party, or one number for all; ``None``
            divides those who are not shared evenly.
        label_party: who holds the label.
        labelled: whose label is kept: ``all`` people of the label's party, the ``shared`` ones, or
            a number of them, shared people first.
        seed: of the draw.

    Raises:
        DataError: more people are asked for than there are, or fewer than one is shared.
    """
    if label_party not in parties:
        raise DataError(
            "the label's party is not one of the parties",
            party=label_party,
            way_out=f"The parties are {', '.join(parties)}.",
        )
    if isinstance(alone, Mapping):
        wanted = [alone.get(party, 0) for party in parties]
    elif alone is None:
        left = max(rows - shared, 0)
        wanted = [len(part) for part in np.array_split(np.arange(left), len(parties))]
    else:
        wanted = [alone] * len(parties)
    if shared < 1 or min(wanted) < 0 or shared + sum(wanted) > rows:
        raise DataError(
            f"{shared} shared people and {sum(wanted)} at one party only cannot be cut from {rows}",
            way_out="Share at least one person, and ask for no more people than the table has.",
        )
    rng = np.random.default_rng(seed)
    order = rng.permutation(rows)
    common = order[:shared]
    ends = shared + np.cumsum([0, *wanted])
    held = {
        party: rng.permutation(np.concatenate([common, order[ends[i] : ends[i + 1]]]))
        for i, party in enumerate(parties)
    }
    if labelled == "shared":
        known = common
    elif labelled == "all":
        known = held[label_party]
    else:
        others = np.setdiff1d(held[label_party], common)
        candidates = np.concatenate([common, rng.permutation(others)])
        if not 0 < labelled <= len(candidates):
            raise DataError(
                f"{labelled} labels cannot be kept of {len(candidates)} people",
                party=label_party,
                way_out="Keep at least one label, and no more than the party has people.",
            )
        known = candidates[:labelled]
    return People(held, np.sort(known))


def cut_rows(
    rows: int,
    parties: Sequence[str],
    *,
    weights: Sequence[float] | None = None,
    seed: int = 0,
) -> dict[str, Index]:
    """A horizontal cut: each person goes to one party, in equal or weighted numbers.

    Raises:
        DataError: a party would have nobody.
    """
    share = np.asarray(weights or [1.0] * len(parties), dtype=np.float64)
    if len(share) != len(parties) or not (share > 0).all():
        raise DataError("one weight above 0 is needed for each party", way_out="Or give none.")
    ends = np.rint(np.cumsum(share) / share.sum() * rows).astype(np.int64)
    parts = np.split(np.random.default_rng(seed).permutation(rows), ends[:-1])
    if min(len(part) for part in parts) == 0:
        raise DataError(
            f"{rows} people cannot be cut among {len(parties)} parties by these weights",
            way_out="Name fewer parties or other weights.",
        )
    return dict(zip(parties, parts, strict=True))


# --- tables ------------------------------------------------------------------------------------


def split_vertical(
    frame: pl.DataFrame,
    columns: Mapping[str, Sequence[str]],
    people: People,
    *,
    label: str,
    label_party: str,
    id: str | None = None,
    description: str = "",
) -> Split:
    """The party tables of a vertical cut.

    Args:
        id: the table's id column; ``None`` makes one up, ``id``.

    Raises:
        DataError: the id or label column is not there.
    """
    frame, key = _with_id(frame, id)
    if label not in frame.columns:
        raise missing_column(label, frame.columns, party=label_party)
    known = pl.Series(np.isin(np.arange(frame.height), people.labelled))
    kept = frame.with_columns(pl.when(known).then(pl.col(label)).alias(label))
    tables = {
        party: kept.select(key, *([label] if party == label_party else []), *names)[
            people.rows[party]
        ]
        for party, names in columns.items()
    }
    held = np.unique(np.concatenate([people.rows[party] for party in columns]))
    rest = np.setdiff1d(held, people.labelled)
    others = frame.select(key, label)[rest].drop_nulls(label)
    truth = others if others.height else None
    return Split(tables, key, label, label_party, description, truth)


def split_horizontal(
    frame: pl.DataFrame,
    rows: Mapping[str, Index],
    *,
    label: str,
    id: str | None = None,
    description: str = "",
) -> Split:
    """The party tables of a horizontal cut: all columns, the label included, at every party.

    Raises:
        DataError: the id or label column is not there.
    """
    frame, key = _with_id(frame, id)
    if label not in frame.columns:
        raise missing_column(label, frame.columns, party="one table")
    return Split({p: frame[index] for p, index in rows.items()}, key, label, None, description)


def _with_id(frame: pl.DataFrame, id: str | None) -> tuple[pl.DataFrame, str]:
    if id is not None:
        if id not in frame.columns:
            raise missing_column(id, frame.columns, party="one table", is_id=True)
        return frame, id
    if "id" in frame.columns:
        raise DataError(
            "it would be taken for the ids",
            column="id",
            way_out="Name the id column, or rename this one.",
        )
    made_up = pl.format("P{}", pl.int_range(1, pl.len() + 1).cast(pl.String).str.zfill(7))
    return frame.select(made_up.alias("id"), pl.all()), "id"


def write_split(
    out_dir: Path, split: Split, *, format: Literal["csv", "parquet"] = "csv"
) -> dict[str, Path]:
    """Write each party's table as ``<party>.<format>``; images are always written as Parquet.

    A file is put in place only once it is complete.

    Returns:
        For each party, its file.

    Raises:
        DataError: a file is already there, or cannot be written.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    written: dict[str, Path] = {}
    for party, table in split.tables.items():
        nested = any(is_image(dtype) or dtype.is_nested() for dtype in table.dtypes)
        path = out_dir / f"{party}.{'parquet' if nested else format}"
        if path.exists():
            raise DataError(
                "the file is already there",
                party=party,
                file=str(path),
                way_out="Choose another folder, or remove the file.",
            )
        part = path.with_name(f"{path.name}.part")
        try:
            if path.suffix == ".csv":
                table.write_csv(part)
            else:
                table.write_parquet(part)
            part.replace(path)
        except (OSError, pl.exceptions.PolarsError) as error:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            reason = error.strerror if isinstance(error, OSError) and error.strerror else None
            raise DataError(
                f"the file cannot be written ({reason or type(error).__name__})",
                party=party,
                file=str(path),
                way_out="Check that the disk has room and that the folder may be written.",
            ) from None
        written[party] = path
    return written


# --- how hard a cut is -------------------------------------------------------------------------


def alpha_beta(
    frame: pl.DataFrame,
    columns: Mapping[str, Sequence[str]],
    label: str,
    *,
    seed: int = 0,
) -> CutDifficulty:
    """VertiBench's α and β of a cut.

    Parties without columns do not count. α is the moment estimate from the variance v of the K
    parties' shares of importance, ``(K - 1 - K² v) / (K³ v)``. β is ``(Icor - low) / (high - low)``
    for the lowest and highest Icor of any cut of the same sizes, found by a local search.

    Raises:
        DataError: fewer than two parties have columns; the label cannot be learnt from.
    """
    held = {party: list(names) for party, names in columns.items() if names}
    if len(held) < 2:
        raise DataError(
            "alpha and beta need two parties with columns", way_out="Cut the columns otherwise."
        )
    flat = list(dict.fromkeys(name for names in held.values() for name in names))
    importance = dict(
        zip(flat, feature_importance(frame, flat, label, seed=seed).tolist(), strict=True)
    )
    sums = np.array([sum(importance[n] for n in names) for names in held.values()])
    shares = sums / sums.sum() if sums.sum() > 0 else np.full(len(held), 1 / len(held))
    place = {name: i for i, name in enumerate(flat)}
    order = [place[name] for names in held.values() for name in names]
    correlation = _correlation(_matrix(frame, flat, seed))[np.ix_(order, order)]
    search = _Search(correlation, [len(names) for names in held.values()], seed)
    actual = search.icor(search.blocks(search.start))
    low, high = search.bounds()
    low, high = min(low, actual), max(high, actual)
    return CutDifficulty(
        alpha=_concentration(shares),
        beta=(actual - low) / (high - low) if high > low else 0.5,
        shares=dict(zip(held, shares.tolist(), strict=True)),
    )


def _concentration(shares: Matrix) -> float:
    """Concentration of the symmetric Dirichlet whose variance the shares have."""
    k, v = len(shares), float(np.var(shares))
    return math.inf if v < 1e-15 else max(0.0, (k - 1 - k * k * v) / (k**3 * v))


def feature_importance(
    frame: pl.DataFrame, features: Sequence[str], label: str, *, seed: int = 0
) -> Matrix:
    """How much a model's output hangs on each column.

    A gradient boosting machine is trained on up to 10,000 labelled rows; a column's importance is
    the mean absolute change of the output (class probabilities, or the standardised target) when
    the column is permuted over other rows, which are held out.

    Returns:
        Shape (columns,), not negative.

    Raises:
        DataError: the label is not there, is a multi-label one, or cannot be learnt from.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    if label not in frame.columns:
        raise missing_column(label, frame.columns, party="one table")
    plan = LabelPlan.fit(frame[label], party="one table")
    if plan.task == "multilabel":
        raise DataError(
            "importance needs a single label", column=label, way_out="Cut the columns otherwise."
        )
    target = plan.encode(frame[label]).numpy()
    regression = plan.task == "regression"
    known = np.flatnonzero(~np.isnan(target) if regression else target >= 0)
    rng = np.random.default_rng(seed)
    rows = rng.permutation(known)[:_MOST_ROWS]
    table = _matrix(frame[rows], features, seed)
    outcome = (target[rows] - plan.center) / plan.scale if regression else target[rows]
    train = max(1, int(0.7 * len(rows)))
    kind = HistGradientBoostingRegressor if regression else HistGradientBoostingClassifier
    model = kind(max_iter=50, early_stopping=False, random_state=seed)
    score: Callable[[Matrix], Matrix] = model.predict if regression else model.predict_proba
    held_out = table[train:][:2000] if train < len(table) else table
    importance = np.zeros(len(features))
    with _one_thread():
        model.fit(table[:train], outcome[:train])
        base = score(held_out)
        for i in range(len(features)):
            changed = held_out.copy()
            changed[:, i] = rng.permutation(changed[:, i])
            importance[i] = np.abs(score(changed) - base).mean()
    return importance


def _one_thread() -> AbstractContextManager[object]:
    """For many small computations, which more threads only slow down."""
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    limits: AbstractContextManager[object] = threadpool_limits(1)
    return limits


def _matrix(frame: pl.DataFrame, features: Sequence[str], seed: int) -> Matrix:
    """Shape (rows, columns): one number for each value; gaps filled, categories as codes."""
    if frame.height > _MOST_ROWS:
        rows = np.random.default_rng(seed).permutation(frame.height)[:_MOST_ROWS]
        frame = frame[rows]
    out = np.zeros((frame.height, len(features)))
    readings = read_columns(frame, features)
    for i, name in enumerate(features):
        plan, _ = fit_column(frame[name], readings[name], party="one table", file=None)
        if isinstance(plan, CategoryColumn):
            out[:, i] = plan.transform(frame[name])[0]
        elif isinstance(plan, DateColumn):
            out[:, i] = _filled(numbers(as_dates(frame[name], plan.format).dt.epoch("s"))[0])
        elif plan is not None:
            out[:, i] = _filled(numbers(frame[name])[0])
    return out


def _filled(values: Matrix) -> Matrix:
    return np.where(np.isnan(values), np.nanmedian(values), values)


def _correlation(table: Matrix) -> Matrix:
    """Spearman's rank correlation, 0 for constant columns."""
    ranks = pl.DataFrame(table).select(pl.all().rank()).to_numpy()
    ranks = ranks - ranks.mean(axis=0)
    length = np.sqrt(np.square(ranks).sum(axis=0))
    ranks = np.divide(ranks, length, out=np.zeros_like(ranks), where=length > 0)
    correlation: Matrix = ranks.T @ ranks
    return correlation


def pcor(block: Matrix) -> float:
    """Correlation between two parties: the spread of their correlation matrix's singular values.

    The standard deviation (n - 1 in its denominator) of the singular values over the square root
    of their number; 0 for a single one. VertiBench, section 4.2.
    """
    size = min(block.shape)
    if size < 2:
        return 0.0
    return float(np.std(np.linalg.svd(block, compute_uv=False), ddof=1) / math.sqrt(size))


def _inner_pcor(block: Matrix) -> float:
    """:func:`pcor` of a party with itself, without singular values.

    Of a positive semi-definite matrix they sum to the trace, and their squares to the square of
    the Frobenius norm.
    """
    size = len(block)
    if size < 2:
        return 0.0
    variance = (np.square(block).sum() - np.trace(block) ** 2 / size) / (size - 1)
    return math.sqrt(max(float(variance), 0.0) / size)


class _Search:
    """Local search over the cuts of some columns into parties of given sizes.

    The neighbours of a cut swap two columns of two parties. Icor is the mean, over ordered pairs
    of parties (i, j), of ``pcor(i, j) - pcor(i, i)``; only the blocks of the two parties that swap
    are computed anew. The search starts at random cuts, and at the better of two cuts along a
    spectral ordering of the columns, by which like columns are neighbours.
    """

    def __init__(self, correlation: Matrix, sizes: Sequence[int], seed: int) -> None:
        self.correlation, self.seed = correlation, seed
        self.parties = len(sizes)
        self.start: Index = np.repeat(np.arange(self.parties), sizes)
        # Fewer columns have fewer cuts; many make each step slow.
        columns = len(correlation)
        self.steps = max(
            200, int(min(50 * columns, _MOST_STEPS * (100 / columns) ** 2, _MOST_STEPS))
        )

    def bounds(self) -> tuple[float, float]:
        """The lowest and the highest Icor found."""
        return self.best(lambda icor: icor)[0], self.best(lambda icor: -icor)[0]

    def best(self, cost: Callable[[float], float]) -> tuple[float, Index]:
        """The Icor and the owners of the cheapest cut found, by simulated annealing."""
        rng = np.random.default_rng(self.seed)
        with _one_thread():
            suggested = min(self._suggested(), key=lambda o: cost(self.icor(self.blocks(o))))
            starts = [suggested, *(rng.permutation(self.start) for _ in range(_RANDOM))]
            runs = [self._anneal(cost, start, rng) for start in starts]
        return min(runs, key=lambda run: cost(run[0]))

    def _suggested(self) -> list[Index]:
        """Cuts with like columns together and apart, along the Fiedler vector of the columns."""
        weight = np.square(self.correlation)
        np.fill_diagonal(weight, 0.0)
        degree = weight.sum(axis=1) + 1e-9
        laplacian = np.eye(len(weight)) - weight / np.sqrt(np.outer(degree, degree))
        order = np.argsort(np.linalg.eigh(laplacian)[1][:, 1] / np.sqrt(degree))
        together, apart = np.empty_like(self.start), np.empty_like(self.start)
        together[order] = self.start
        # Dealt out in turn, as long as a party still lacks columns.
        sizes = np.bincount(self.start)
        apart[order] = [p for turn in range(sizes.max()) for p in np.flatnonzero(sizes > turn)]
        return [together, apart]

    def _anneal(
        self, cost: Callable[[float], float], start: Index, rng: np.random.Generator
    ) -> tuple[float, Index]:
        owner = start.copy()
        blocks = self.blocks(owner)
        current = self.icor(blocks)
        found, found_owner = current, owner.copy()
        for step in range(self.steps):
            warmth = _WARMTH * (1 - step / self.steps) ** 2
            one, two = self._pair(owner, rng)
            owner[one], owner[two] = owner[two], owner[one]
            tried = self.blocks(owner, blocks, (owner[one], owner[two]))
            icor = self.icor(tried)
            worse = cost(icor) - cost(current)
            if worse <= 0 or rng.random() < math.exp(-worse / max(warmth, 1e-12)):
                blocks, current = tried, icor
                if cost(current) < cost(found):
                    found, found_owner = current, owner.copy()
            else:
                owner[one], owner[two] = owner[two], owner[one]
        return found, found_owner

    def _pair(self, owner: Index, rng: np.random.Generator) -> tuple[int, int]:
        one = int(rng.integers(len(owner)))
        others = np.flatnonzero(owner != owner[one])
        return one, int(others[rng.integers(len(others))])

    def blocks(
        self,
        owner: Index,
        known: Matrix | None = None,
        changed: tuple[int, ...] | None = None,
    ) -> Matrix:
        """pcor of every two parties; only the changed parties' where the others are known."""
        out = np.zeros((self.parties, self.parties)) if known is None else known.copy()
        members = [np.flatnonzero(owner == party) for party in range(self.parties)]
        for i in range(self.parties):
            for j in range(i, self.parties):
                if changed is None or i in changed or j in changed:
                    block = self.correlation[np.ix_(members[i], members[j])]
                    out[i, j] = out[j, i] = _inner_pcor(block) if i == j else pcor(block)
        return out

    def icor(self, blocks: Matrix) -> float:
        inner = np.diag(blocks)
        inter = (blocks.sum(axis=1) - inner) / (self.parties - 1)
        return float((inter - inner).mean())
