"""What the theory says must hold, to the last digits."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from torch import Tensor, nn

from interlace import Federation
from interlace.methods.horizontal import (
    Agreement,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedProx,
    FedYogi,
    LocalTraining,
    Scaffold,
)
from interlace.methods.horizontal.averaging import AveragingSide
from interlace.methods.horizontal.scaffold import ScaffoldSide
from interlace.models import BottomSpec

Make = Callable[..., Federation]

LINEAR = BottomSpec(network="linear")
ALL = Agreement(validation=0.0)


def sides(fed: Federation, method: FedAvg) -> list[AveragingSide]:
    assert method.session_ is not None
    return [p.sides[method.session_] for n, p in fed.engine.parties.items() if n in fed.passive]  # type: ignore


def pooled_descent(fed: Federation, method: FedAvg, side: AveragingSide, steps: int) -> Tensor:
    """Plain PyTorch on one client's rows (all clients hold the same)."""
    start = FedAvg(rounds=1, network=method.network, agreement=ALL)
    start._begin(fed)
    module = start.model_.module
    optimiser = torch.optim.SGD(module.parameters(), lr=method.local.learning_rate)
    for _ in range(steps):
        optimiser.zero_grad()
        side.objective.loss(module(side.x), side.y).backward()
        optimiser.step()
    return torch.cat([p.detach().flatten() for p in module.parameters()])


@pytest.mark.parametrize(
    "make",
    [
        FedAvg,
        lambda **k: FedProx(mu=0.0, **k),
        Scaffold,
        lambda **k: Scaffold(option="I", **k),
        lambda **k: FedAvgM(momentum=0.0, **k),
    ],
)
def test_identical_clients_train_as_the_pooled_table_does(
    build: Make, digits: Make, make: Callable[..., FedAvg]
) -> None:
    frame = digits(1).engine.parties["c0"].frame  # type: ignore[attr-defined]
    fed = build({f"c{i}": frame for i in range(3)})
    local = LocalTraining(epochs=4, batch_size=None, learning_rate=0.3)
    model = make(rounds=3, network=LINEAR, local=local, agreement=ALL).fit(fed)
    clients = sides(fed, model)
    if isinstance(model, Scaffold):
        for side in clients:
            assert isinstance(side, ScaffoldSide)
            assert side.control is not None
            assert model.control_.norm() > 0.01
            torch.testing.assert_close(side.control, model.control_)  # so c − c_i vanishes
    pooled = pooled_descent(fed, model, clients[0], steps=12)
    torch.testing.assert_close(model.weights_, pooled, rtol=1e-4, atol=1e-5)
    assert model.history_[-1].angle == pytest.approx(0, abs=0.1)
    assert model.history_[-1].distance == pytest.approx(0, abs=1e-3)


def test_scaffold_with_variates_frozen_at_nought_is_fedavg(
    digits: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {
        "rounds": 3,
        "local": LocalTraining(epochs=2, batch_size=16),
        "weighting": "rows",
        "participation": 0.5,
    }
    plain = FedAvg(**settings).fit(digits())
    free = Scaffold(**settings).fit(digits())
    assert not torch.allclose(free.weights_, plain.weights_, atol=1e-4)

    def frozen(self: ScaffoldSide, weights: Tensor, control: Tensor) -> Tensor:
        self.change = torch.zeros_like(control)
        return self.update(weights, shift=torch.zeros_like(control))

    monkeypatch.setattr(ScaffoldSide, "corrected", frozen)
    held = Scaffold(**settings).fit(digits())
    assert torch.equal(held.weights_, plain.weights_)


def test_fedprox_without_its_terms_is_fedavg(digits: Make) -> None:
    settings: dict[str, Any] = {"rounds": 2, "local": LocalTraining(epochs=2, batch_size=16)}
    plain = FedAvg(**settings).fit(digits())
    assert torch.equal(
        FedProx(mu=0.0, gamma=0.0, **settings).fit(digits()).weights_, plain.weights_
    )
    near = FedProx(mu=1.0, **settings).fit(digits())
    start = FedAvg(**settings)
    start._begin(digits())
    assert (near.weights_ - start.weights_).norm() < (plain.weights_ - start.weights_).norm()


@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("weighting", ["uniform", "rows"])
def test_with_full_participation_the_mean_of_the_variates_is_the_servers(
    build: Make, digits: Make, option: Any, weighting: Any
) -> None:
    frames = [p.frame for n, p in digits(4).engine.parties.items() if n != "server"]  # type: ignore[attr-defined]
    fed = build({f"c{i}": f.head(150 - 30 * i) for i, f in enumerate(frames)})
    local = LocalTraining(epochs=2, batch_size=16)
    model = Scaffold(
        option=option, weighting=weighting, rounds=4, local=local, network=LINEAR, agreement=ALL
    ).fit(fed)
    variates = torch.stack([s.control for s in sides(fed, model)])  # type: ignore
    rows = torch.tensor([float(len(s.parts["train"])) for s in sides(fed, model)])
    weights = rows / rows.sum() if weighting == "rows" else torch.full((4,), 0.25)
    assert variates.std(0).norm() > 0.01
    torch.testing.assert_close(weights @ variates, model.control_, rtol=1e-3, atol=1e-5)


def two_quadratics(build: Make) -> tuple[Federation, float]:
    """Two clients whose losses are parabolas of different curvature and place, and where the mean
    of both is lowest (as weight on the standardised column)."""
    x = np.array([1.0, -1.0] * 20 + [4.0, -4.0] * 20)
    y = np.concatenate([3.1 * x[:40], 0.55 * x[40:]])
    frames = {
        n: pl.DataFrame({"x": x[s], "y": y[s]})
        for n, s in (("steep", slice(0, 40)), ("flat", slice(40, 80)))
    }
    fed = build(frames, label="y", parties={"bottom": nn.Linear(1, 1, bias=False)})
    scaled = (x - x.mean()) / x.std(), (y - y.mean()) / y.std()
    return fed, float((scaled[0] * scaled[1]).sum() / (scaled[0] ** 2).sum())


def test_on_two_quadratics_scaffold_reaches_the_optimum_and_fedavg_does_not(build: Make) -> None:
    local = LocalTraining(epochs=10, batch_size=None, learning_rate=0.1)
    ends: dict[str, float] = {}
    for name, make in (("fedavg", FedAvg), ("scaffold", Scaffold)):
        fed, best = two_quadratics(build)
        model = make(rounds=80, local=local, agreement=ALL).fit(fed)
        ends[name] = abs(model.weights_.item() - best)
    assert ends["scaffold"] < 1e-5
    assert ends["fedavg"] > 0.05


def test_an_inexact_client_stops_once_its_gradient_has_shrunk_by_gamma(digits: Make) -> None:
    local = LocalTraining(epochs=30, batch_size=None, learning_rate=0.2)
    steps = {}
    for gamma in (0.8, 0.4):
        fed = digits()
        model = FedProx(
            mu=0.5, gamma=gamma, rounds=1, local=local, network=LINEAR, agreement=ALL
        ).fit(fed)
        works = [s.last for s in sides(fed, model)]
        assert all(w.inexactness is not None and w.inexactness <= gamma for w in works)
        assert model.history_[0].inexactness == max(w.inexactness for w in works)  # type: ignore
        steps[gamma] = max(w.steps for w in works)
    assert 1 <= steps[0.8] < steps[0.4] < 30


def test_the_measured_inexactness_is_that_of_the_local_objective(digits: Make) -> None:
    fed = digits()
    local = LocalTraining(epochs=3, batch_size=20, learning_rate=0.05)
    model = FedProx(mu=0.3, gamma=1e-9, rounds=1, local=local, network=LINEAR, agreement=ALL).fit(
        fed
    )
    fresh = FedProx(network=LINEAR, local=local, agreement=ALL)
    fresh._begin(digits())
    side = sides(fed, model)[0]
    start = fresh.weights_

    def slope(w: Tensor) -> Tensor:
        module = side.model()
        module.load(w)
        rows = side.parts["train"]
        module.gradient.zero_()
        side.objective.loss(module.module(side.x[rows]), side.y[rows]).backward()
        return module.gradient.clone()

    side.party.boundary.round = 1
    end = start + side.update(start)
    due = (slope(end) + 0.3 * (end - start)).norm() / slope(start).norm()
    assert side.last.inexactness == pytest.approx(float(due), rel=1e-4)


def test_server_optimisers_follow_their_equations() -> None:
    means = [torch.tensor([0.3, -0.2, 5.0]), torch.tensor([-0.1, -0.4, 5.0])]
    for method in (FedAvgM(momentum=0.5, server_rate=2.0), FedAdam(), FedYogi()):
        method.model_ = SimpleNamespace(weights=torch.zeros(2))  # type: ignore[assignment]
        method.weights_ = torch.zeros(3)  # the last number is a buffer
        method._take_server_state({})
        w, m, v = np.zeros(2), np.zeros(2), np.zeros(2)
        for mean in means:
            method._server_step(mean)
            d = mean[:2].double().numpy()
            if isinstance(method, FedAdam):
                m = 0.9 * m + 0.1 * d
                if isinstance(method, FedYogi):
                    v = v - 0.01 * d**2 * np.sign(v - d**2)
                else:
                    v = 0.99 * v + 0.01 * d**2
                w = w + 0.01 * m / (np.sqrt(v) + 1e-3)
            else:
                m = 0.5 * m + d
                w = w + 2.0 * m
        np.testing.assert_allclose(method.weights_[:2].numpy(), w, rtol=1e-4)
        assert method.weights_[2] == 10.0


def test_drift_is_what_all_pairs_of_updates_give(
    digits: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Tensor] = []
    plain = AveragingSide.update

    def noted(self: AveragingSide, weights: Tensor, shift: Tensor | None = None) -> Tensor:
        seen.append(plain(self, weights, shift))
        return seen[-1]

    monkeypatch.setattr(AveragingSide, "update", noted)
    record = FedAvg(rounds=1).fit(digits()).history_[0]
    u = torch.stack(seen)
    pairs = torch.combinations(torch.arange(len(u)))
    apart = (u[pairs[:, 0]] - u[pairs[:, 1]]).norm(dim=1)
    cosines = torch.cosine_similarity(u[pairs[:, 0]], u[pairs[:, 1]])
    assert record.distance == pytest.approx(apart.square().mean().sqrt().item(), rel=1e-4)
    assert record.angle == pytest.approx(np.degrees(np.arccos(cosines.mean().item())), rel=1e-4)
    spread = (u.norm(dim=1).square().mean() / u.mean(0).norm().square()).sqrt()
    assert record.dissimilarity == pytest.approx(spread.item(), rel=1e-4)
