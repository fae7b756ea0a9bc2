"""Models that the active party uses alone: what partners teach, and that nobody is asked later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch.nn import functional as F

from interlace import Federation, Party
from interlace.data.spec import InputSpec
from interlace.errors import AlignmentError, DataError
from interlace.methods import (
    APCVFL,
    FedOnce,
    PrivilegedDistillation,
    ProtoEVFL,
    SplitVFL,
    SSVFLIndependent,
    VFedTrans,
)
from interlace.methods.vertical.distillation import JointCode, Reconstruction, leading, soften
from interlace.models import BottomSpec, Optimisation

HOW: dict[str, Any] = {
    "epochs": 25,
    "bottom": BottomSpec(hidden=(16,), width=6),
    "top": (16,),
    "optimisation": Optimisation(learning_rate=5e-3),
}
ALL = [VFedTrans, APCVFL, PrivilegedDistillation]
APART = [VFedTrans, APCVFL]


def make(method: type, **kw: Any) -> Any:
    local = {"local_epochs": 10} if method in APART else {}
    return method(**{**HOW, **local, **kw})


def said(fed: Federation, since: int = 0) -> list[tuple[str, str, str, str]]:
    return [
        (f"{e.sender}→{e.receiver}", e.operation, e.kind, e.shape)
        for e in list(fed.active.boundary.ledger.entries())[since:]
    ]


# -- the mathematics ----------------------------------------------------------------------------


def test_singular_vectors_are_orthonormal_and_span_the_representations() -> None:
    h = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    h = torch.cat([h, h @ torch.randn(3, 4)], 1)
    u = leading(h, width=5)
    assert u.shape == (50, 3), "no more columns than the rank"
    torch.testing.assert_close(u.T @ u / 50, torch.eye(3), atol=1e-4, rtol=0)
    centred = (h - h.mean(0)) / h.std(0, correction=0)
    rebuilt = u @ (u.T @ centred) / 50
    torch.testing.assert_close(rebuilt, centred, atol=1e-3, rtol=0)


def test_a_gap_counts_as_the_mean() -> None:
    h = torch.randn(20, 2, generator=torch.Generator().manual_seed(0))
    gap = h.clone()
    gap[3, 1] = torch.nan
    filled = gap.clone()
    filled[3, 1] = gap[:, 1].nanmean()
    one, other = leading(gap, 2), leading(filled, 2)
    torch.testing.assert_close((one.T @ other / 20).abs().diag(), torch.ones(2), atol=0.05, rtol=0)


def test_reconstruction_counts_numbers_and_categories_alike() -> None:
    spec = InputSpec(numeric=2, cardinalities=(3,), image=None, names=("a", "b", "c"))
    loss = Reconstruction(spec, width=1, hidden=())
    with torch.no_grad():
        loss.decoder[0].weight.zero_()
        loss.decoder[0].bias.copy_(torch.tensor([1.0, 2, 0, 0, 0]))
    x = torch.tensor([[1.0, 2, 0], [1, 5, 2]])
    expected = (0 + 9 / 2 + np.log(3)) / 3
    assert loss(torch.zeros(2, 1), x).item() == pytest.approx(expected)


def test_a_missing_code_need_not_be_drawn() -> None:
    x = torch.tensor([[1.0, torch.nan], [2.0, 3.0]])
    code = JointCode(torch.nn.Linear(2, 1), x, (), 1)
    with torch.no_grad():
        for p in code.parameters():
            p.zero_()
    assert code.loss(torch.arange(2), 0).item() == pytest.approx((1 + 4 + 9) / 3)


def test_soft_targets() -> None:
    says = torch.tensor([[0.9, 0.1], [0.5, 0.5]])
    logits = says.log()
    torch.testing.assert_close(soften(says, logits, "binary", 2.0), torch.zeros(2))
    torch.testing.assert_close(soften(says, logits + 3, "binary", 2.0), torch.zeros(2))
    hot = soften(says, torch.zeros(2, 2), "multiclass", 1.0)
    kl = (says * (says / 0.5).log()).sum(1)
    torch.testing.assert_close(hot, kl)
    two = soften(says, torch.zeros(2, 2), "multiclass", 2.0)
    cooled = F.softmax(says.log() / 2, 1)
    torch.testing.assert_close(two, 4 * (cooled * (cooled / 0.5).log()).sum(1))
    torch.testing.assert_close(
        soften(torch.tensor([[1.0]]), torch.tensor([[3.0]]), "regression", 2.0), torch.tensor([4.0])
    )
    many = [soften(torch.full((1, 2), 0.3), torch.full((1, 2), v), "multilabel", 1.0) for v in
            (-2.0, torch.logit(torch.tensor(0.3)).item(), 2.0)]  # fmt: skip
    assert many[1] < min(many[0], many[2])


# -- what travels -------------------------------------------------------------------------------


@pytest.mark.parametrize("method", APART)
def test_the_transcript_is_one_upload(breast: Any, method: type) -> None:
    fed = breast(missing=69, wire=True)
    fed.align()
    since = len(said(fed))
    model = make(method, epochs=2).fit(fed)
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
    since = len(said(fed))
    assert model.predict_proba(fed).shape == (569, 2)
    assert said(fed, since) == [], "scoring asks nobody"


def test_the_teacher_is_split_learning_and_one_more_embedding(breast: Any) -> None:
    fed = breast(missing=69, wire=True)
    fed.align()
    since = len(said(fed))
    make(PrivilegedDistillation, epochs=1, batch_size=500, validation=0).fit(fed)
    down, up = "bank→vendor", "vendor→bank"
    assert said(fed, since) == [
        (down, "begin", "row selection", "0"),
        (down, "begin", "control", ""),
        (up, "begin", "control", ""),
        (down, "forward", "row selection", "500"),
        (up, "forward", "embedding", "500×6"),
        (down, "backward", "gradient", "500×6"),
        (up, "backward", "control", ""),
        (down, "embed", "row selection", "500"),
        (up, "embed", "embedding", "500×6"),
    ]


@pytest.mark.parametrize("method", ALL)
def test_the_wire_changes_nothing(breast: Any, method: type) -> None:
    runs = []
    for wire in (False, True):
        train, test = breast(wire=wire).split(0.3)
        runs.append(make(method, epochs=2).fit(train).predict_proba(test))
    np.testing.assert_array_equal(runs[0], runs[1])


# -- what it learns -----------------------------------------------------------------------------


@pytest.mark.parametrize("method", ALL)
def test_two_parties(breast: Any, method: type) -> None:
    train, test = breast(missing=200).split(0.3)
    model = make(method).fit(train)
    assert roc_auc_score(test.y, model.predict_proba(test)[:, 1]) > 0.93


@pytest.mark.parametrize("method", ALL)
def test_three_parties_and_several_classes(federate: Any, method: type) -> None:
    from sklearn.datasets import load_wine

    x, y = load_wine(return_X_y=True)
    fed = federate(x, y, [slice(5, 9), slice(9, 13)], slice(0, 5))
    train, test = fed.split(0.3)
    model = make(method, epochs=60).fit(train)
    assert model.score(test) > 0.7
    np.testing.assert_allclose(model.predict_proba(test).sum(1), 1)


@pytest.mark.parametrize("method", ALL)
def test_regression(diabetes: Any, method: type) -> None:
    train, test = diabetes().split(0.3)
    assert make(method, epochs=40).fit(train).score(test) > 0.15


@pytest.mark.parametrize("method", ALL)
def test_images(digits: Any, method: type) -> None:
    train, test = digits().split(0.3)
    local = {"local_epochs": 5} if method in APART else {}
    flat = BottomSpec(network="mlp", hidden=(32,), width=16)
    model = make(method, epochs=10, bottom=flat, **local)
    assert model.fit(train).score(test) > 0.5


@pytest.mark.parametrize("method", [*ALL, FedOnce, SSVFLIndependent, ProtoEVFL])
def test_categories_and_gaps(method: type) -> None:
    """Every way of learning alone reads categories, gaps, and parties with nothing else."""
    rng = np.random.default_rng(0)
    n = 160
    colour = rng.choice(["red", "green", "blue"], n)
    amount = np.where(rng.random(n) < 0.2, None, rng.standard_normal(n).round(2))
    ids = [f"p{i}" for i in range(n)]
    y = (colour == "red").astype(int)
    own = pl.DataFrame({"id": ids, "colour": colour, "y": y, "sum": pl.Series(amount.tolist())})
    theirs = pl.DataFrame({"id": ids, "shade": colour, "town": rng.choice(["a", "b"], n)})
    fed = Federation.simulate([Party("bank", own, label="y"), Party("shop", theirs)])
    train, test = fed.split(0.3)
    local = {"local_epochs": 5} if method not in (PrivilegedDistillation, ProtoEVFL) else {}
    assert method(**{**HOW, **local}).fit(train).score(test) > 0.75


def test_several_labels_at_once(federate: Any) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((200, 6))
    y = [["a"] * int(r[0] > 0) + ["b"] * int(r[3] > 0) for r in x]
    train, test = federate(x, y, [slice(3, 6)], slice(0, 3)).split(0.3)
    model = make(PrivilegedDistillation).fit(train)
    right = model.predict(test) == test.y.numpy()
    assert right[:, 0].mean() > 0.9, "what the own columns tell"


def test_a_teacher_helps_where_own_columns_are_a_noisy_copy(federate: Any) -> None:
    """The label is plain to the partner; the own columns are a blurred view of it, and labels of
    single people are noisy. What the teacher says is the better target."""
    rng = np.random.default_rng(1)
    z = rng.standard_normal((400, 4))
    clear = z.sum(1)
    y = (clear + rng.standard_normal(400) > 0).astype(int)
    x = np.concatenate([z + 0.7 * rng.standard_normal(z.shape), clear[:, None]], 1)
    fed = federate(x, y, [slice(4, 5)], slice(0, 4))
    train, test = fed.split(300)
    truth = (clear[test.rows] > 0).astype(int)
    scores = {}
    for weight in (0.0, 20.0):
        model = make(PrivilegedDistillation, weight=weight, temperature=3.0, validation=0.0)
        scores[weight] = roc_auc_score(truth, model.fit(train).predict_proba(test)[:, 1])
    assert scores[20.0] > scores[0.0]


@pytest.mark.parametrize("method", APART)
def test_a_person_at_one_of_two_partners_comes_with_a_lesson(method: type) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((120, 6))
    ids = [f"p{i}" for i in range(120)]

    def table(x: np.ndarray, rows: slice, **more: Any) -> pl.DataFrame:
        named = {f"x{j}": x[rows, j] for j in range(x.shape[1])}
        return pl.DataFrame({"id": ids[rows], **named, **more})

    fed = Federation.simulate(
        [
            Party("bank", table(x[:, :2], slice(0, 120), y=(x[:, 0] > 0).astype(int)), label="y"),
            Party("shop", table(x[:, 2:4], slice(0, 60))),
            Party("clinic", table(x[:, 4:], slice(40, 100))),
        ]
    )
    model = make(method, epochs=1)
    model._start(fed.labelled())
    taught = ~model._lesson(fed, None).isnan().any(1)
    assert taught.tolist() == [True] * 100 + [False] * 20


# -- what cannot be ------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ALL)
def test_without_own_columns_there_is_nothing_to_use_alone(clinics: Any, method: type) -> None:
    with pytest.raises(DataError, match="no model can be used there alone"):
        make(method).fit(clinics())


def test_nobody_shared(breast: Any) -> None:
    fed = breast(missing=100)
    with pytest.raises(AlignmentError, match="0 people are shared with a partner"):
        make(APCVFL).fit(fed.view(np.arange(469, 569)))


# -- kept on disk -------------------------------------------------------------------------------


class Killed(Exception):
    pass


@pytest.mark.parametrize("method", ALL)
def test_a_resumed_fit_ends_the_same_and_asks_nobody_again(
    breast: Any, tmp_path: Path, method: type
) -> None:
    def fit(folder: Path, kill: bool) -> tuple[np.ndarray, list[Any]]:
        fed = breast(folder=folder)
        fed.align()
        since = len(said(fed))

        def on_epoch(epoch: Any) -> None:
            if kill and epoch.number == 2:
                raise Killed

        local = {"local_epochs": 2} if method in APART else {}
        model = make(method, epochs=3, **local).fit(fed, checkpoint="run", on_epoch=on_epoch)
        return model.predict_proba(fed), said(fed, since)

    whole, _ = fit(tmp_path / "whole", False)
    with pytest.raises(Killed):
        fit(tmp_path / "killed", True)
    resumed, spoken = fit(tmp_path / "killed", False)
    np.testing.assert_array_equal(resumed, whole)
    assert spoken == []


def test_a_teacher_that_was_killed_goes_on(
    breast: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fit(folder: Path, most: int) -> np.ndarray:
        steps = iter(range(most))
        honest = SplitVFL._losses

        def losses(self: Any, *args: Any) -> Any:
            if next(steps, None) is None:
                raise Killed
            return honest(self, *args)

        with monkeypatch.context() as patch:
            patch.setattr(SplitVFL, "_losses", losses)
            fed = breast(folder=folder)
            model = make(PrivilegedDistillation, epochs=3, batch_size=128)
            return model.fit(fed, checkpoint="run").predict_proba(fed)

    whole = fit(tmp_path / "whole", 100)
    with pytest.raises(Killed):
        fit(tmp_path / "killed", 6)  # in the second of three epochs of four steps
    np.testing.assert_array_equal(fit(tmp_path / "killed", 8), whole)


@pytest.mark.parametrize("method", ALL)
def test_only_the_active_party_keeps_the_model(breast: Any, tmp_path: Path, method: type) -> None:
    fed = breast(folder=tmp_path)
    model = make(method, epochs=2).fit(fed)
    model.save("first")
    assert not (tmp_path / "parties" / "vendor" / "models").exists()
    again = make(method, epochs=2).load("first", breast(folder=tmp_path))
    np.testing.assert_array_equal(again.predict_proba(fed), model.predict_proba(fed))
    assert not hasattr(again, "lesson_")
