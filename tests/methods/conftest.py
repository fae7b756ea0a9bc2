"""Small federations over data that installs with the project."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine

from interlace import Federation, Party

Make = Callable[..., Federation]


def table(values: np.ndarray, ids: np.ndarray, label: Any = None) -> pl.DataFrame:
    columns: dict[str, Any] = {"id": ids}
    columns |= {f"x{j}": values[:, j] for j in range(values.shape[1])}
    if label is not None:
        columns["y"] = label
    return pl.DataFrame(columns)


@pytest.fixture
def federate() -> Make:
    """Cut a table of numbers into parties and federate them.

    ``cuts`` are the columns of each passive party; the active party gets ``own`` and the label.
    ``missing`` leaves that many of the last people out at every passive party.
    """

    def make(
        x: np.ndarray,
        y: Any,
        cuts: list[slice],
        own: slice | None,
        *,
        missing: int = 0,
        names: tuple[str, ...] = ("vendor", "shop", "clinic", "lab"),
        options: dict[str, dict[str, Any]] | None = None,
        **kwargs: Any,
    ) -> Federation:
        options = options or {}
        ids = np.array([f"p{i:05d}" for i in range(len(x))])
        mine = x[:, own] if own is not None else x[:, :0]
        parties = [
            Party("bank", table(mine, ids, y), label="y", **options.get("bank", {})),
        ]
        for name, cut in zip(names, cuts, strict=False):
            held = np.random.default_rng(len(name)).permutation(len(x) - missing)
            parties.append(Party(name, table(x[held][:, cut], ids[held]), **options.get(name, {})))
        return Federation.simulate(parties, active="bank", **kwargs)

    return make


@pytest.fixture
def breast(federate: Make) -> Make:
    """Breast cancer: 569 people, binary; ten columns at the bank, twenty at the vendor."""
    x, y = load_breast_cancer(return_X_y=True)
    return lambda **kw: federate(x, y, [slice(10, 30)], slice(0, 10), **kw)


@pytest.fixture
def clinics(federate: Make) -> Make:
    """Breast cancer at three parties; the fourth holds the label and no columns."""
    x, y = load_breast_cancer(return_X_y=True)
    return lambda **kw: federate(x, y, [slice(0, 10), slice(10, 20), slice(20, 30)], None, **kw)


@pytest.fixture
def wine(federate: Make) -> Make:
    """Wine: 178 samples, three classes."""
    x, y = load_wine(return_X_y=True)
    return lambda **kw: federate(x, y, [slice(6, 13)], slice(0, 6), **kw)


@pytest.fixture
def diabetes(federate: Make) -> Make:
    """Diabetes: 442 people, regression."""
    x, y = load_diabetes(return_X_y=True)
    return lambda **kw: federate(x, y, [slice(5, 10)], slice(0, 5), **kw)


@pytest.fixture
def digits() -> Make:
    """Digits cut in halves: the left half at the bank with the label, the right at the vendor."""
    data = load_digits()
    images = (data.images / 16).astype(np.float32)[:600]
    ids = [f"d{i}" for i in range(600)]

    def make(**kwargs: Any) -> Federation:
        halves = [
            pl.DataFrame(
                {"id": ids, "image": pl.Series(list(half), dtype=pl.Array(pl.Float32, (8, 4)))}
            )
            for half in (images[:, :, :4], images[:, :, 4:])
        ]
        left = halves[0].with_columns(y=pl.Series(data.target[:600]))
        return Federation.simulate(
            [Party("bank", left, label="y"), Party("vendor", halves[1])], **kwargs
        )

    return make
