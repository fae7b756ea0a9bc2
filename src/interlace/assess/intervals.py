"""How sure a mean over a few seeds is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

LEVEL = 0.95


class Interval(NamedTuple):
    """A mean and its 95 % interval; no interval (``None``) where one value cannot have one."""

    mean: float
    low: float | None
    high: float | None


def interval(values: Sequence[float]) -> Interval:
    """Mean of the values of several seeds and Student's t-interval around it.

    It speaks of what another seed would give (initial weights, batches, who is held out), not of
    other people than those at hand.

    Raises:
        ValueError: there are no values.
    """
    if not len(values):
        raise ValueError("an interval takes at least one value")
    mean = float(np.mean(values))
    if len(values) == 1:
        return Interval(mean, None, None)
    half = float(stats.t.ppf(0.5 + LEVEL / 2, len(values) - 1) * stats.sem(values))
    return Interval(mean, mean - half, mean + half)


def paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Interval | None:
    """The mean of ``ours - theirs`` over the seeds that both have, with its interval.

    What two models have in common under one seed, such as who is held out, cancels.

    Args:
        ours, theirs: A metric's value by seed.

    Returns:
        ``None`` where no seed is common to both.
    """
    differences = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
    return interval(differences) if differences else None
