"""Cutting one table's rows among parties that differ from each other, and saying how much they do.

Each cut gives every party its row positions, for
:func:`~interlace.data.partition.split_horizontal`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from interlace.data.columns import as_levels
from interlace.errors import DataError

Index = NDArray[np.int64]

_DRAWS = 1000  # tries to give every party enough rows


def cut_by_labels(
    labels: ArrayLike, parties: Sequence[str], alpha: float, *, fewest: int = 10, seed: int = 0
) -> dict[str, Index]:
    """Label skew: the rows of each class are shared out by a draw from a Dirichlet distribution.

    Args:
        labels: The class of each row; shape (n,).
        parties: The parties' names.
        alpha: Concentration: 0.1 leaves most parties with a few classes, 100 is nearly even.
        fewest: Fewest rows of a party; draws that give less are thrown away.
        seed: Of all that is random here.

    Raises:
        DataError: ``alpha`` is not above 0, or no draw gives every party enough rows.

    Source: Hsu, Qi and Brown, arXiv 1909.06335, §3, by class as in Li et al., "Federated Learning
    on Non-IID Data Silos", ICDE 2022, §4.1.
    """
    _check(alpha, parties)
    classes, codes = np.unique(np.asarray(labels), return_inverse=True)
    rng = np.random.default_rng(seed)
    for _ in range(_DRAWS):
        owner = np.empty(len(codes), dtype=np.int64)
        for c in range(len(classes)):
            rows = rng.permutation(np.flatnonzero(codes == c))
            owner[rows] = _owners(rng.dirichlet([alpha] * len(parties)), len(rows))
        if np.bincount(owner, minlength=len(parties)).min() >= fewest:
            return _by_owner(owner, parties)
    raise _too_few(fewest)


def cut_by_size(
    rows: int, parties: Sequence[str], alpha: float, *, fewest: int = 10, seed: int = 0
) -> dict[str, Index]:
    """Quantity skew: the same kind of rows at every party, in numbers drawn from a Dirichlet
    distribution; see :func:`cut_by_labels`."""
    _check(alpha, parties)
    rng = np.random.default_rng(seed)
    for _ in range(_DRAWS):
        owner = np.empty(rows, dtype=np.int64)
        owner[rng.permutation(rows)] = _owners(rng.dirichlet([alpha] * len(parties)), rows)
        if np.bincount(owner, minlength=len(parties)).min() >= fewest:
            return _by_owner(owner, parties)
    raise _too_few(fewest)


def cut_by_feature(
    values: ArrayLike, parties: Sequence[str], strength: float, *, seed: int = 0
) -> dict[str, Index]:
    """Feature shift: equal numbers of rows, the first party getting the lowest values and so on.

    Args:
        values: A feature, or a score made of several; shape (n,).
        parties: The parties' names.
        strength: 0 cuts at random, 1 by the order of the values alone; between, rows are ordered by
            ``strength`` · rank + (1 − ``strength``) · chance.
        seed: Of all that is random here.

    Raises:
        DataError: ``strength`` is not between 0 and 1.
    """
    if not 0 <= strength <= 1:
        raise DataError("the strength is not between 0 and 1", way_out="0 is none, 1 the most.")
    _check(1.0, parties)
    numbers = np.asarray(values, dtype=np.float64)
    rank = np.argsort(np.argsort(numbers, kind="stable")) / max(len(numbers) - 1, 1)
    chance = np.random.default_rng(seed).random(len(numbers))
    order = np.argsort(strength * rank + (1 - strength) * chance, kind="stable")
    pieces = np.array_split(order, len(parties))
    return {party: np.sort(piece) for party, piece in zip(parties, pieces, strict=True)}


def cut_by_column(column: pl.Series, *, most: int = 20, fewest: int = 10) -> dict[str, Index]:
    """A natural cut: one party for each level of a column, named after it (a hospital, a region).

    Args:
        column: The column; rows without a level go to nobody.
        most: Most parties: the levels with most rows.
        fewest: Levels of fewer rows go to nobody.

    Raises:
        DataError: fewer than two levels have enough rows.
    """
    level = as_levels(column)
    counts = level.drop_nulls().alias("level").value_counts()
    kept = counts.filter(pl.col("count") >= fewest).sort("count", "level", descending=[True, False])
    names = kept["level"].head(most).to_list()
    if len(names) < 2:
        raise DataError(
            f"fewer than two of its levels have {fewest} rows",
            column=column.name,
            way_out="Choose a column with more levels, or a lower number of rows.",
        )
    texts = level.to_numpy()
    return {name.replace("/", "-"): np.flatnonzero(texts == name) for name in names}


@dataclass(frozen=True)
class Heterogeneity:
    """How far parties are from being random pieces of one table; each from 0 (not at all) to 1.

    Small parties differ a little by chance alone: compare with a random cut of the same sizes.

    Attributes:
        labels: Mean Jensen-Shannon divergence (in bits) of a party's classes from everybody's,
            weighted by rows.
        sizes: One minus the effective share of parties, 1 / (K Σ p²), p being shares of rows.
        features: Mean over columns of the share of variance that lies between parties (η²);
            ``None`` where no features were given.
    """

    labels: float
    sizes: float
    features: float | None = None


def heterogeneity(
    cut: Mapping[str, Index], labels: ArrayLike, features: ArrayLike | None = None
) -> Heterogeneity:
    """Measure a cut.

    Args:
        cut: Each party's rows.
        labels: The class of each row of the table; shape (n,).
        features: Numbers of each row; shape (n, d). Constant columns do not count.
    """
    _, codes = np.unique(np.asarray(labels), return_inverse=True)
    rows = np.concatenate(list(cut.values()))
    everyone = np.bincount(codes[rows], minlength=codes.max() + 1) / len(rows)
    share = np.array([len(r) for r in cut.values()]) / len(rows)
    apart = 0.0
    for party, weight in zip(cut.values(), share, strict=True):
        own = np.bincount(codes[party], minlength=len(everyone)) / len(party)
        middle = (own + everyone) / 2
        apart += weight * (_divergence(own, middle) + _divergence(everyone, middle)) / 2
    sizes = 1 - 1 / (len(cut) * float(np.square(share).sum()))
    if features is None:
        return Heterogeneity(float(apart), sizes)
    x = np.asarray(features, dtype=np.float64)
    total = x[rows].var(axis=0)
    means = np.stack([x[party].mean(axis=0) for party in cut.values()])
    between = (share[:, None] * np.square(means - x[rows].mean(axis=0))).sum(axis=0)
    varied = total > 0
    return Heterogeneity(float(apart), sizes, float((between[varied] / total[varied]).mean()))


def _divergence(p: NDArray[np.float64], q: NDArray[np.float64]) -> float:
    some = p > 0
    return float((p[some] * np.log2(p[some] / q[some])).sum())


def _owners(shares: NDArray[np.float64], rows: int) -> Index:
    """An owner for each of ``rows`` places, in the proportions of ``shares``."""
    ends = np.round(np.cumsum(shares)[:-1] * rows).astype(np.int64)
    return np.searchsorted(ends, np.arange(rows), side="right").astype(np.int64)


def _by_owner(owner: Index, parties: Sequence[str]) -> dict[str, Index]:
    return {party: np.flatnonzero(owner == i) for i, party in enumerate(parties)}


def _check(alpha: float, parties: Sequence[str]) -> None:
    if not alpha > 0:
        raise DataError("alpha is not above 0", way_out="Large is even, small is skewed.")
    if len(parties) < 2 or len(set(parties)) < len(parties):
        raise DataError("a cut takes two or more parties of different names")


def _too_few(fewest: int) -> DataError:
    return DataError(
        f"no draw gave every party {fewest} rows",
        way_out="Take a larger alpha, fewer parties, or a lower `fewest`.",
    )
