"""Small horizontal federations: digits cut by rows, with or without a server of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import polars as pl
import pytest
from sklearn.datasets import load_digits

from interlace import Federation, Kind, Party, Policy

OPEN = Policy(allow=Policy().allow | {Kind.MODEL_WEIGHTS})
_X, _Y = load_digits(return_X_y=True)
PIXELS = [20, 21, 26, 28, 29, 33, 36, 42, 43, 44, 51, 58]

Make = Callable[..., Federation]


def table(rows: np.ndarray) -> pl.DataFrame:
    """Twelve pixels of some digits, and which digit."""
    return pl.DataFrame({f"p{j:02d}": _X[rows, j] for j in PIXELS} | {"digit": _Y[rows]})


def federation(
    tables: Mapping[str, pl.DataFrame],
    *,
    label: str = "digit",
    server: bool = True,
    policy: Policy = OPEN,
    parties: Mapping[str, Any] | None = None,
    **simulate: Any,
) -> Federation:
    """One party a table; with a server that holds nothing, or the first party in its place."""
    clients = [
        Party(name, t, id=None, label=label, policy=policy, **(parties or {}))
        for name, t in tables.items()
    ]
    if not server:
        return Federation.simulate(clients, active=clients[0].name, **simulate)
    bottom = (parties or {}).get("bottom")
    coordinator = Party("server", policy=OPEN, bottom=bottom)
    return Federation.simulate([coordinator, *clients], active="server", **simulate)


@pytest.fixture(scope="session")
def digits() -> Make:
    """A maker of federations of 600 digits, sorted a little by class so that clients differ."""

    def make(clients: int = 4, **kwargs: Any) -> Federation:
        rows = np.arange(600)
        order = np.argsort(_Y[rows] + 6 * np.random.default_rng(0).random(600), kind="stable")
        pieces = np.array_split(order, clients)
        return federation({f"c{i}": table(p) for i, p in enumerate(pieces)}, **kwargs)

    return make


@pytest.fixture(scope="session")
def build() -> Make:
    """A maker of federations of given tables; see :func:`federation`."""
    return federation
