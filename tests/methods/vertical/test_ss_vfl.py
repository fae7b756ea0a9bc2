"""SS-VFL: what the contrast is, what travels in either schedule, and that it learns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch.nn import functional as F

from interlace import Federation
from interlace.methods import SSVFLCollaborative, SSVFLIndependent
from interlace.methods.bottom import Bottom, BottomSettings
from interlace.methods.vertical.ss_vfl import Contrast, corrupt, info_nce
from interlace.models import BottomSpec, Optimisation

SMALL = BottomSpec(hidden=(16,), width=8)
FAST = Optimisation(learning_rate=5e-3)
BOTH = [SSVFLIndependent, SSVFLCollaborative]


def small(method: type, **kw: Any) -> Any:
    how = {"epochs": 20, "local_epochs": 5, "bottom": SMALL, "top": (16,), "optimisation": FAST}
    return method(**{**how, **kw})


def said(fed: Federation, since: int = 0) -> list[tuple[str, str, str, str]]:
    return [
        (f"{e.sender}→{e.receiver}", e.operation, e.kind, e.shape)
        for e in list(fed.active.boundary.ledger.entries())[since:]
    ]


# -- the contrast -------------------------------------------------------------------------------


def test_info_nce_is_the_formula() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k = (F.normalize(torch.randn(4, 3, generator=generator)) for _ in range(2))
    past = F.normalize(torch.randn(2, 3, generator=generator))
    keys = torch.cat([k, past])
    odds = (q @ keys.T / 0.2).exp()
    expected = -(odds[range(4), range(4)] / odds.sum(1)).log().mean()
    torch.testing.assert_close(info_nce(q, keys, 0.2), expected)
    assert info_nce(q, q, 0.2) < expected, "a view is most like itself"


def test_a_corrupted_row_keeps_some_columns_and_takes_the_others_from_the_table() -> None:
    draws = torch.Generator().manual_seed(0)
    table = torch.arange(50.0)[:, None] + torch.arange(10) * 1000
    seen = corrupt(table[:20], table, 0.6, draws)
    assert ((seen != table[:20]).sum(1) <= 6).all()
    assert (seen != table[:20]).float().mean() > 0.5
    column = torch.arange(10) * 1000
    assert ((seen - column >= 0) & (seen - column < 50)).all(), "values stay in their columns"


@pytest.mark.parametrize("momentum", [None, 0.9])
def test_views_of_one_row_find_each_other(federate: Any, momentum: float | None) -> None:
    rng = np.random.default_rng(0)
    z = rng.standard_normal((200, 2))
    x = np.repeat(z, 6, 1) + 0.1 * rng.standard_normal((200, 12))
    shop = federate(x, (z[:, 0] > 0).astype(int), [slice(0, 12)], None).engine.parties["vendor"]
    settings = BottomSettings(bottom=SMALL, optimisation=FAST)
    bottom = Bottom.fit(shop, settings, np.arange(200))
    rows, fresh = torch.arange(150), torch.arange(150, 200)
    draws = torch.Generator().manual_seed(1)
    other = corrupt(bottom.x[fresh], bottom.x, 0.4, draws)

    def loss() -> float:
        """Of telling fresh rows apart, by the embeddings that would travel."""
        bottom.module.eval()
        with torch.no_grad():
            one, two = (F.normalize(bottom.module(v)) for v in (bottom.x[fresh], other))
        return info_nce(one, two, 0.2).item()

    before = loss()
    how = Contrast(epochs=30, batch_size=50, temperature=0.2, corruption=0.4, momentum=momentum)
    how.learn(bottom, rows)
    assert loss() < before - 0.1


def test_the_slow_copy_follows_and_the_queue_is_bounded(breast: Any) -> None:
    vendor = breast().engine.parties["vendor"]
    bottom = Bottom.fit(vendor, BottomSettings(bottom=SMALL), np.arange(100))
    how = Contrast(momentum=0.75, queue=30)
    exercise = how.exercise(bottom, torch.arange(100), torch.Generator().manual_seed(0))
    with torch.no_grad():
        for p in bottom.module.parameters():
            p.add_(1)
    before = [p.clone() for p in exercise.slow[0].parameters()]
    exercise.stepped()
    for slow, was in zip(exercise.slow[0].parameters(), before, strict=True):
        torch.testing.assert_close(slow, was + 0.25)
    for some in torch.arange(100).split(20):
        exercise.loss(some, 0)
    assert len(exercise.past) == 30
    torch.testing.assert_close(exercise.past.norm(dim=1), torch.ones(30))


# -- what travels -------------------------------------------------------------------------------

DOWN, UP = "bank→vendor", "vendor→bank"
BEGIN = [
    (DOWN, "begin", "row selection", "0"),
    (DOWN, "begin", "control", ""),
    (UP, "begin", "control", ""),
    (DOWN, "pretrain", "control", ""),
    (UP, "pretrain", "control", ""),
]
INDEPENDENT = [
    (DOWN, "embed", "row selection", "500"),
    (UP, "embed", "embedding", "500×8"),
]
COLLABORATIVE = [
    (DOWN, "forward", "row selection", "500"),
    (UP, "forward", "embedding", "500×8"),
    (DOWN, "backward", "gradient", "500×8"),
    (UP, "backward", "control", ""),
]


@pytest.mark.parametrize(
    ("method", "then"), [(SSVFLIndependent, INDEPENDENT), (SSVFLCollaborative, COLLABORATIVE * 2)]
)
def test_the_transcript(breast: Any, method: type, then: list[Any]) -> None:
    fed = breast(missing=69, wire=True)
    fed.align()
    since = len(said(fed))
    small(method, epochs=2, batch_size=500, validation=0).fit(fed)
    assert said(fed, since) == BEGIN + then


@pytest.mark.parametrize("method", BOTH)
def test_the_wire_changes_nothing(breast: Any, method: type) -> None:
    runs = []
    for wire in (False, True):
        train, test = breast(wire=wire).split(0.3)
        runs.append(small(method, epochs=2, local_epochs=1).fit(train).predict_proba(test))
    np.testing.assert_array_equal(runs[0], runs[1])


# -- what it learns -----------------------------------------------------------------------------


@pytest.mark.parametrize("method", BOTH)
def test_two_parties(breast: Any, method: type) -> None:
    train, test = breast(missing=100).split(0.3)
    model = small(method).fit(train)
    assert roc_auc_score(test.y, model.predict_proba(test)[:, 1]) > 0.96


@pytest.mark.parametrize("method", BOTH)
def test_a_label_holder_without_columns(clinics: Any, method: type) -> None:
    train, test = clinics().split(0.3)
    model = small(method).fit(train)
    assert roc_auc_score(test.y, model.predict_proba(test)[:, 1]) > 0.96


@pytest.mark.parametrize("method", BOTH)
def test_regression(diabetes: Any, method: type) -> None:
    train, test = diabetes().split(0.3)
    assert small(method, epochs=40).fit(train).score(test) > 0.1


@pytest.mark.parametrize("momentum", [None, 0.9])
def test_images(digits: Any, momentum: float | None) -> None:
    train, test = digits().split(0.3)
    flat = BottomSpec(network="mlp", hidden=(64,), width=32)
    how = {"local_epochs": 3, "flip": False, "momentum": momentum}
    assert small(SSVFLIndependent, bottom=flat, **how).fit(train).score(test) > 0.5


def test_embeddings_stay_as_pretraining_left_them(breast: Any) -> None:
    """SS-VFL-I: labels change neither the partners' bottom models nor the own one."""
    fed = breast()
    one, other = (small(SSVFLIndependent, epochs=n).fit(fed.fresh(0, str(n))) for n in (1, 5))
    for a, b in zip(one.own_.module.parameters(), other.own_.module.parameters(), strict=True):
        assert torch.equal(a, b)


# -- kept on disk -------------------------------------------------------------------------------


class Killed(Exception):
    pass


@pytest.mark.parametrize("method", BOTH)
def test_a_killed_fit_goes_on_to_the_same_result(breast: Any, tmp_path: Path, method: type) -> None:
    def fit(folder: Path, kill: bool) -> tuple[np.ndarray, list[str]]:
        fed = breast(folder=folder)
        fed.align()
        since = len(said(fed))

        def on_epoch(epoch: Any) -> None:
            if kill and epoch.number == 2:
                raise Killed

        model = small(method, epochs=3, local_epochs=1)
        model.fit(fed, checkpoint="run", on_epoch=on_epoch)
        return model.predict_proba(fed), [s[1] for s in said(fed, since)]

    whole, _ = fit(tmp_path / "whole", False)
    with pytest.raises(Killed):
        fit(tmp_path / "killed", True)
    resumed, operations = fit(tmp_path / "killed", False)
    np.testing.assert_array_equal(resumed, whole)
    assert "pretrain" not in operations


@pytest.mark.parametrize("method", BOTH)
def test_a_saved_model_predicts_the_same(breast: Any, tmp_path: Path, method: type) -> None:
    fed = breast(folder=tmp_path)
    model = small(method, epochs=2, local_epochs=1).fit(fed)
    expected = model.predict_proba(fed)
    model.save("first")
    again = small(method, epochs=2, local_epochs=1).load("first", breast(folder=tmp_path))
    np.testing.assert_array_equal(again.predict_proba(fed), expected)
