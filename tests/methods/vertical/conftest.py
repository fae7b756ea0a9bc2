"""Federations in which most people are at one party only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from interlace import Federation, Party


def cut(
    x: np.ndarray,
    y: np.ndarray,
    columns: Mapping[str, slice],
    people: Mapping[str, Sequence[int] | np.ndarray],
    *,
    active: str = "bank",
    labelled: Sequence[int] | np.ndarray | None = None,
    options: Mapping[str, dict[str, Any]] | None = None,
    **kwargs: Any,
) -> Federation:
    """A federation in which party k holds the rows ``people[k]`` and the ``columns[k]`` of ``x``.

    ``active`` holds the label, of the people ``labelled`` only if they are given.
    """
    parties = []
    for name, held in people.items():
        rows = np.asarray(held)
        values = x[rows][:, columns.get(name, slice(0))]
        table: dict[str, Any] = {"id": [f"p{i:05d}" for i in rows]}
        table |= {f"x{j}": values[:, j] for j in range(values.shape[1])}
        if name == active:
            known = np.isin(rows, rows if labelled is None else np.asarray(labelled))
            table["y"] = [v if k else None for v, k in zip(y[rows].tolist(), known, strict=True)]
        label = "y" if name == active else None
        extra = (options or {}).get(name, {})
        parties.append(Party(name, pl.DataFrame(table), label=label, **extra))
    return Federation.simulate(parties, active=active, **kwargs)


@pytest.fixture
def cut_people() -> Callable[..., Federation]:
    return cut


@pytest.fixture
def true_classes() -> Callable[..., dict[str, torch.Tensor]]:
    """What a simulation knows: the class of everybody, by party and row; blobs count them round."""

    def make(fed: Federation, classes: int) -> dict[str, torch.Tensor]:
        return {
            name: torch.from_numpy(
                (party.frame["id"].str.slice(1).cast(pl.Int64) % classes).to_numpy().copy()
            )
            for name, party in fed.engine.parties.items()
        }

    return make


@pytest.fixture
def blobs() -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    """Points around one centre a class, in eight columns: each half of them tells classes apart."""

    def make(n: int = 400, classes: int = 3, spread: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(0)
        y = np.arange(n) % classes
        centres = rng.standard_normal((classes, 8)) * 2
        return centres[y] + spread * rng.standard_normal((n, 8)), y

    return make


@pytest.fixture
def limited(
    cut_people: Callable[..., Federation], blobs: Callable[..., tuple[np.ndarray, np.ndarray]]
) -> Callable[..., Federation]:
    """Blobs at a bank with the label and a shop: of 400 people both hold the first 140."""

    def make(
        *, shared: int = 140, classes: int = 3, own: bool = True, spread: float = 1.0, **kw: Any
    ) -> Federation:
        x, y = blobs(400, classes, spread)
        columns = {"bank": slice(0, 4), "shop": slice(4, 8)}
        middle = shared + (400 - shared) // 2
        people = {
            "bank": np.arange(middle),
            "shop": np.r_[np.arange(shared), np.arange(middle, 400)],
        }
        if not own:
            columns = {"shop": slice(0, 8)}
            people["bank"] = np.arange(shared)
        kw.setdefault("labelled", np.arange(shared))
        return cut_people(x, y, columns, people, **kw)

    return make


@pytest.fixture
def three_clinics(
    cut_people: Callable[..., Federation], blobs: Callable[..., tuple[np.ndarray, np.ndarray]]
) -> Callable[..., Federation]:
    """Heart, eye and skin clinics and a registry with the label and no columns.

    Of 300 people 40 are at all three clinics, 30 at each two of them, and 50 at each one alone;
    the last 20 are known to nobody but the registry.
    """

    def make(**kw: Any) -> Federation:
        x, y = blobs(300, 2)
        at = {"heart": [], "eye": [], "skin": []}
        first = 0
        patterns = [("heart", "eye", "skin"), ("heart", "eye"), ("heart", "skin"), ("eye", "skin")]
        for pattern, count in zip(patterns, (40, 30, 30, 30), strict=True):
            for name in pattern:
                at[name] += range(first, first + count)
            first += count
        shared = first
        for name in at:
            at[name] += range(first, first + 50)
            first += 50
        columns = {"heart": slice(0, 3), "eye": slice(3, 6), "skin": slice(6, 8)}
        registry = np.r_[np.arange(shared), np.arange(first, 300)]
        return cut_people(x, y, columns, {"registry": registry, **at}, active="registry", **kw)

    return make
