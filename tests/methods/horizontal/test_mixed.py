"""Banks with the same columns, each sharing people with one shop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from sklearn.datasets import load_breast_cancer

from interlace import Federation, Kind, Party, Policy
from interlace.errors import AlignmentError, DataError, PolicyError
from interlace.methods.horizontal import MixedVFL
from interlace.methods.horizontal.local import vector_of
from interlace.methods.horizontal.mixed import BankSide
from interlace.models import BottomSpec, Optimisation

X, Y = load_breast_cancer(return_X_y=True)
IDS = np.array([f"u{i:03d}" for i in range(len(Y))])
OPEN = Policy(allow=Policy().allow | {Kind.MODEL_WEIGHTS})
COLUMNS = [20, 21, 24, 27]


def geometry(
    banks: int = 3, *, shop_columns: int = 2, policy: Policy = OPEN, **kwargs: Any
) -> Federation:
    """The shop knows everybody's label, bank k every ``banks``-th person (and 30 of the next's)."""
    shop = pl.DataFrame(
        {"id": IDS, "y": Y} | {f"s{j}": X[:, j] for j in range(4, 4 + shop_columns)}
    )
    parties = [Party("shop", shop, label="y", policy=OPEN)]
    for k in range(banks):
        rows = np.concatenate([np.arange(k, 480, banks), np.arange((k + 1) % banks, 90, banks)])
        table = pl.DataFrame({"id": IDS[rows]} | {f"b{j}": X[rows, j] for j in COLUMNS})
        parties.append(Party(f"bank{k}", table, policy=policy))
    return Federation.simulate(parties, active="shop", **kwargs)


@pytest.mark.parametrize("shop_columns", [0, 2])
def test_it_learns_more_than_the_shop_knows(shop_columns: int) -> None:
    fed = geometry(shop_columns=shop_columns)
    held = fed.view(np.arange(0, 480, 5))
    train = fed.view(np.setdiff1d(fed.rows, held.rows), held.rows)
    model = MixedVFL(
        rounds=8,
        batch_size=32,
        bottom=BottomSpec(hidden=(16,), width=8),
        optimisation=Optimisation(learning_rate=0.01),
    ).fit(train)
    assert model.score(held) > 0.9
    assert model.predict_proba(held).shape == (96, 2)


def test_all_banks_end_with_one_model_whose_mean_is_weighted_by_people() -> None:
    fed = geometry()
    model = MixedVFL(rounds=1, validation=0.0).fit(fed)
    sides = [fed.engine.parties[f"bank{k}"].sides[model.session_] for k in range(3)]  # type: ignore
    vectors = [vector_of(s.bottom.module) for s in sides if isinstance(s, BankSide)]
    assert len(vectors) == 3
    assert torch.equal(vectors[0], vectors[1])
    assert torch.equal(vectors[0], vectors[2])
    plans = [s.plan for s in sides if isinstance(s, BankSide)]
    assert plans[0].columns == plans[1].columns == plans[2].columns


def test_a_banks_messages_are_embeddings_and_one_model_a_round() -> None:
    fed = geometry(wire=True)
    MixedVFL(rounds=2, validation=0.0, batch_size=1000).fit(fed)
    session = [e for e in fed.active.boundary.ledger.entries() if e.session.startswith("mixed")]
    got = [(e.operation, e.kind) for e in session if e.sender == "bank1"]
    one = [
        ("forward", "embedding"),
        ("backward", "control"),
        ("weights", "model weights"),
        ("take", "control"),
    ]
    start = [("weights", "model weights"), ("take", "control")]
    assert got[-10:] == [*start, *one, *one]


def test_wire_and_save_change_nothing(tmp_path: Path) -> None:
    plain = geometry()
    wired = geometry(wire=True, folder=tmp_path)
    people = plain.rows[plain.alignment.holders.any(1)]
    a = MixedVFL(rounds=2).fit(plain).outputs(plain.view(people))
    model = MixedVFL(rounds=2).fit(wired)
    b = model.outputs(wired.view(people))
    # The order in which people are matched is random, so batches differ; the models do not much.
    assert np.abs(a - b).mean() < 0.05
    model.save("m")
    loaded = MixedVFL(rounds=2).load("m", wired)
    np.testing.assert_array_equal(loaded.outputs(wired.view(people)), b)


def test_people_of_no_bank_cannot_be_scored() -> None:
    fed = geometry()
    model = MixedVFL(rounds=1).fit(fed)
    with pytest.raises(AlignmentError, match="held by none of the banks"):
        model.outputs(fed)


def test_banks_must_have_the_same_columns_and_let_weights_leave() -> None:
    with pytest.raises(PolicyError, match="'bank0' does not let model weights leave"):
        MixedVFL(rounds=1).fit(geometry(policy=Policy()))
    fed = geometry()
    other = pl.DataFrame({"id": IDS[:100], "c1": X[:100, 1], "c2": X[:100, 2]})
    parties = [*fed.engine.parties.values(), Party("odd", other, policy=OPEN)]  # type: ignore[attr-defined]
    with pytest.raises(DataError, match="party 'odd'"):
        MixedVFL(rounds=1).fit(Federation.simulate(parties, active="shop"))
