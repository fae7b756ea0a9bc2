"""FedOnce: one upload, targets assigned as well as can be, and people with a missing view."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist
from sklearn.metrics import roc_auc_score

from interlace import Federation, Party
from interlace.errors import AlignmentError
from interlace.methods import FedOnce
from interlace.methods.bottom import Bottom, BottomSettings
from interlace.methods.vertical.fed_once import NoiseAsTargets, assign
from interlace.methods.vertical.pretrained import Standardised
from interlace.models import BottomSpec, Optimisation

SMALL = BottomSpec(hidden=(16,), width=6)
FAST = Optimisation(learning_rate=5e-3)


def small(**kw: Any) -> FedOnce:
    how = {"epochs": 20, "local_epochs": 5, "bottom": SMALL, "top": (16,), "optimisation": FAST}
    return FedOnce(**{**how, **kw})


def said(fed: Federation, since: int) -> list[tuple[str, str, str, str]]:
    return [
        (f"{e.sender}→{e.receiver}", e.operation, e.kind, e.shape)
        for e in list(fed.active.boundary.ledger.entries())[since:]
    ]


def spoken(fed: Federation) -> int:
    fed.align()
    return len(list(fed.active.boundary.ledger.entries()))


# -- noise as targets ---------------------------------------------------------------------------


@settings(max_examples=25)
@given(st.integers(2, 20), st.integers(1, 5), st.integers(0, 10_000))
def test_the_assignment_is_a_permutation_no_worse_than_any(n: int, d: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    points, targets = (torch.randn(n, d, generator=generator) for _ in range(2))
    taken = assign(points, targets)
    assert sorted(taken.tolist()) == list(range(n))
    best = (points - targets[taken]).square().sum()
    for _ in range(20):
        other = torch.randperm(n, generator=generator)
        assert best <= (points - targets[other]).square().sum() + 1e-4


def test_trading_targets_helps(breast: Any) -> None:
    """With the optimal assignment the model comes nearer to its targets than without."""
    vendor = breast().engine.parties["vendor"]
    rows = torch.arange(200)

    def last_loss(every: int) -> float:
        how = BottomSettings(bottom=SMALL, optimisation=FAST)
        bottom = Bottom.fit(vendor, how, np.arange(200))
        method = NoiseAsTargets(epochs=0, batch_size=50, every=every)
        exercise = method.exercise(bottom, rows, torch.Generator().manual_seed(0))
        given = exercise.targets.clone()
        optimiser = FAST.optimiser(exercise)
        for epoch in range(20):
            for some in torch.arange(200).split(50):
                loss = exercise.loss(some, epoch)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
        left = cdist(given.numpy(), exercise.targets.numpy()).min(1)
        assert left.max() < 1e-6, "targets are traded, never changed"
        torch.testing.assert_close(exercise.targets.norm(dim=1), torch.ones(200))
        return loss.item()

    assert last_loss(every=1) < 0.75 * last_loss(every=1000)


# -- what travels -------------------------------------------------------------------------------


def test_the_transcript_is_one_upload(breast: Any) -> None:
    fed = breast(missing=69, wire=True)
    since = spoken(fed)
    small().fit(fed)
    down, up = "bank→vendor", "vendor→bank"
    assert said(fed, since) == [
        (down, "begin", "row selection", "0"),
        (down, "begin", "control", ""),
        (up, "begin", "control", ""),
        (down, "pretrain", "control", ""),
        (up, "pretrain", "control", ""),
        (down, "embed", "row selection", "500"),
        (up, "embed", "embedding", "500×6"),
    ]


def test_the_wire_changes_nothing(breast: Any) -> None:
    runs = []
    for wire in (False, True):
        train, test = breast(wire=wire).split(0.3)
        runs.append(small(epochs=3).fit(train).predict_proba(test))
    np.testing.assert_array_equal(runs[0], runs[1])


# -- what it learns -----------------------------------------------------------------------------


def test_two_parties(breast: Any) -> None:
    train, test = breast().split(0.3)
    model = small().fit(train)
    assert roc_auc_score(test.y, model.predict_proba(test)[:, 1]) > 0.97


def test_several_classes_without_columns_at_the_active_party(federate: Any) -> None:
    from sklearn.datasets import load_wine

    x, y = load_wine(return_X_y=True)
    train, test = federate(x, y, [slice(0, 6), slice(6, 13)], None).split(0.3)
    model = small(local_epochs=30, epochs=60).fit(train)
    assert model.own_ is None
    assert model.score(test) > 0.85
    np.testing.assert_allclose(model.predict_proba(test).sum(1), 1)


def test_regression(diabetes: Any) -> None:
    train, test = diabetes().split(0.3)
    assert small(epochs=40).fit(train).score(test) > 0.3


def test_images(digits: Any) -> None:
    train, test = digits().split(0.3)
    flat = BottomSpec(network="mlp", hidden=(32,), width=16)
    assert small(epochs=10, bottom=flat).fit(train).score(test) > 0.6


def test_a_partners_other_rows_are_learnt_from_and_held_out_people_are_not() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((300, 6)), rng.integers(0, 2, 200)
    ids = [f"p{i}" for i in range(300)]

    def table(x: np.ndarray, **columns: Any) -> pl.DataFrame:
        named = {f"x{j}": x[:, j] for j in range(3)}
        return pl.DataFrame({"id": ids[: len(x)], **named, **columns})

    def outputs(x: np.ndarray) -> np.ndarray:
        bank = Party("bank", table(x[:200, :3], y=y), label="y")
        fed = Federation.simulate([bank, Party("shop", table(x[:, 3:]))])
        train, test = fed.split(0.3)
        assert held in test.rows
        return small(epochs=2, local_epochs=2).fit(train).predict_proba(train.view(train.rows[:50]))

    held = 9
    before = outputs(x)
    for row, matters in ((250, True), (held, False)):
        changed = x.copy()
        changed[row] += 5
        assert np.array_equal(before, outputs(changed)) is not matters


def test_a_person_at_two_of_three_clinics_is_used(clinics: Any) -> None:
    parties = clinics().engine.parties
    some = parties["clinic"].frame[:300]
    fed = Federation.simulate(
        [
            Party("bank", parties["bank"].frame, label="y"),
            *(Party(n, parties[n].frame) for n in ("vendor", "shop")),
            Party("clinic", some),
        ]
    )
    train, test = fed.split(0.3)
    since = spoken(fed)
    model = small().fit(train)
    shapes = {s[0]: s[3] for s in said(fed, since) if s[2] == "embedding"}
    assert shapes == {
        "vendor→bank": f"{569 - len(test.rows)}×6",
        "shop→bank": f"{569 - len(test.rows)}×6",
        "clinic→bank": f"{300 - len(test.rows)}×6",
    }
    partial = fed.view(np.setdiff1d(fed.rows, fed.alignment.common))
    assert roc_auc_score(partial.y, model.predict_proba(partial)[:, 1]) > 0.95
    assert roc_auc_score(test.y, model.predict_proba(test)[:, 1]) > 0.95


def test_people_whom_no_partner_holds_are_not_scored(breast: Any) -> None:
    fed = breast(missing=100)
    model = small(epochs=1, local_epochs=0).fit(fed)
    with pytest.raises(AlignmentError, match="100 of 569 people are held by no partner"):
        model.predict_proba(fed)


def test_a_missing_view_is_the_mean(breast: Any) -> None:
    top = Standardised([2, 1], torch.nn.Identity())
    h = torch.tensor([[1.0, 10.0], [3.0, 30.0], [torch.nan, torch.nan]])
    top.scale([h])
    out = top([h, torch.tensor([[5.0], [6.0], [7.0]])])
    torch.testing.assert_close(out, torch.tensor([[-1.0, -1, 5], [1, 1, 6], [0, 0, 7]]))


# -- kept on disk -------------------------------------------------------------------------------


class Killed(Exception):
    pass


def test_a_resumed_fit_ends_the_same_and_sends_nothing_again(breast: Any, tmp_path: Path) -> None:
    def fit(folder: Path, kill: bool) -> tuple[np.ndarray, list[str]]:
        fed = breast(folder=folder)
        since = spoken(fed)

        def on_epoch(epoch: Any) -> None:
            if kill and epoch.number == 3:
                raise Killed

        model = small(epochs=6).fit(fed, checkpoint="run", on_epoch=on_epoch)
        operations = [s[1] for s in said(fed, since)]
        return model.predict_proba(fed), operations

    whole, _ = fit(tmp_path / "whole", False)
    with pytest.raises(Killed):
        fit(tmp_path / "killed", True)
    resumed, operations = fit(tmp_path / "killed", False)
    np.testing.assert_array_equal(resumed, whole)
    assert "embed" not in operations
    assert "pretrain" not in operations


def test_a_saved_model_predicts_the_same(breast: Any, tmp_path: Path) -> None:
    fed = breast(folder=tmp_path)
    model = small(epochs=2).fit(fed)
    expected = model.predict_proba(fed)
    model.save("first")
    again = small(epochs=2).load("first", breast(folder=tmp_path))
    np.testing.assert_array_equal(again.predict_proba(fed), expected)
    assert not hasattr(again, "received_"), "no partner's embeddings of training people are kept"
