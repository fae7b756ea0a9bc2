"""The noise is where and as large as the accountant assumes, and it claims no more than holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dp_accounting
import pytest
import torch
from torch import Tensor, nn

from interlace import Federation
from interlace.boundary.guards.noise import gaussian_epsilon
from interlace.errors import DataError, JobError
from interlace.methods.horizontal import (
    Agreement,
    FedAvg,
    FedProx,
    LocalTraining,
    Privacy,
    Scaffold,
)
from interlace.methods.horizontal.averaging import AveragingSide
from interlace.methods.horizontal.local import Client, FlatModel
from interlace.methods.horizontal.privacy import epsilon
from interlace.methods.objective import Objective

Make = Callable[..., Federation]


def rdp(noise: float, delta: float, releases: int, sampled: float) -> float:
    accountant = dp_accounting.rdp.RdpAccountant(orders=[1 + i / 10 for i in range(5, 400)])
    event = dp_accounting.PoissonSampledDpEvent(sampled, dp_accounting.GaussianDpEvent(noise))
    return float(accountant.compose(event, releases).get_epsilon(delta))


def test_epsilon_is_that_of_the_sampled_gaussian() -> None:
    assert epsilon(2.0, 1e-5, 10) == pytest.approx(gaussian_epsilon(2.0 / 10**0.5, 1e-5))
    sampled = epsilon(2.0, 1e-5, 50, 0.1)
    assert 0.5 * rdp(2.0, 1e-5, 50, 0.1) < sampled <= rdp(2.0, 1e-5, 50, 0.1)
    assert sampled < epsilon(2.0, 1e-5, 50)
    assert epsilon(2.0, 1e-5, 0) == 0


def test_the_account_claims_sampling_only_against_those_who_see_the_models(digits: Make) -> None:
    privacy = Privacy(unit="client", noise=3.0)
    model = FedAvg(rounds=2, participation=0.5, privacy=privacy).fit(digits())
    account = model.privacy_["all clients"]
    assert account["rounds"] == 2
    assert account["epsilon, against those who see the models"] == epsilon(3.0, 1e-5, 2, 0.5)
    assert account["against the server"].startswith("nothing")
    assert "only the server" in account["only if"] or "nobody but" in account["only if"]
    masked = FedAvg(rounds=2, secure=True, privacy=privacy).fit(digits())
    account = masked.privacy_["all clients"]
    assert account["epsilon, against the server"] == epsilon(3.0, 1e-5, 2)


def test_a_clients_update_is_no_longer_than_the_clip(digits: Make) -> None:
    fed = digits()
    model = FedAvg(rounds=1, privacy=Privacy(unit="client", clip=0.02, noise=1.0)).fit(fed)
    side = fed.engine.parties["c0"].sides[model.session_]  # type: ignore
    assert isinstance(side, AveragingSide)
    assert side.update(model.weights_).norm() == pytest.approx(0.02, rel=1e-4)
    wide = side.settings.privacy.model_copy(update={"clip": 1e6})  # type: ignore[union-attr]
    side.settings = side.settings.model_copy(update={"privacy": wide})
    assert 0.02 < side.update(model.weights_).norm() < 1e6


def test_the_servers_noise_has_the_claimed_size_and_a_fixed_denominator(
    digits: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AveragingSide, "update", lambda self, w, shift=None: torch.zeros_like(w))
    privacy = Privacy(unit="client", clip=0.5, noise=2.0)
    model = FedAvg(rounds=1, participation=0.75, privacy=privacy, agreement=Agreement(validation=0))
    model._check()
    model._begin(fed := digits())
    before = model.weights_.clone()
    model._round(fed, 1)
    moved = model.weights_ - before
    assert moved.std().item() == pytest.approx(2.0 * 0.5 / (0.75 * 4), rel=0.1)


def test_clients_take_part_by_independent_coins_that_the_jobs_seed_does_not_give(
    digits: Make,
) -> None:
    privacy = Privacy(unit="client", noise=5.0, clip=0.01)
    counts = []
    for secret in (1, 2):
        fed = digits(6)
        fed.active.record_in(fed.active.boundary.ledger, seed=secret)
        model = FedAvg(rounds=12, participation=0.5, privacy=privacy).fit(fed)
        counts.append([r.clients for r in model.history_])
    assert len(set(counts[0])) > 1  # not a fixed number
    assert counts[0] != counts[1]  # the same job, another server's own source


def rows_and_model() -> tuple[Client, FlatModel]:
    torch.manual_seed(0)
    x, y = torch.randn(60, 4), torch.randint(0, 3, (60,))
    training = LocalTraining(batch_size=20, learning_rate=0.5)
    client = Client(x, y, torch.arange(60), Objective("multiclass", 3), training, 0)
    return client, FlatModel(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)))


def test_a_private_step_is_the_clipped_mean_of_the_rows_gradients() -> None:
    client, model = rows_and_model()
    start = model.vector()
    tiny = Privacy(unit="row", clip=1.5, noise=1e-9)
    client.training = client.training.model_copy(
        update={"batch_size": 60}
    )  # every coin shows heads
    client.descend_privately(
        model, tiny, epochs=1, shift=None, proximal=0.0, generator=torch.Generator()
    )
    moved = model.vector() - start
    model.load(start)
    due = torch.zeros_like(start)
    lengths = []
    for i in range(60):
        model.gradient.zero_()
        client.objective.loss(model.module(client.x[i : i + 1]), client.y[i : i + 1]).backward()  # type: ignore
        lengths.append(model.gradient.norm().item())
        due += model.gradient * min(1.0, 1.5 / lengths[-1])
    assert min(lengths) < 1.5 < max(lengths)
    torch.testing.assert_close(moved, -0.5 * due / 60, rtol=1e-4, atol=1e-6)


def test_a_private_batch_is_drawn_by_coins_and_noised(monkeypatch: pytest.MonkeyPatch) -> None:
    client, model = rows_and_model()
    client.training = LocalTraining(batch_size=20, learning_rate=1.0)
    privacy = Privacy(unit="row", clip=1e-6, noise=1e6)  # all noise: its size is z C / B
    generator = torch.Generator().manual_seed(3)
    moves: list[Tensor] = []
    for _ in range(60):
        start = model.vector()
        client.descend_privately(
            model, privacy, epochs=1, shift=None, proximal=0.0, generator=generator
        )
        moves.append(model.vector() - start)
    steps = client.private_steps(1)
    assert steps == (20, 3)
    assert torch.stack(moves).std().item() == pytest.approx(3**0.5 / 20, rel=0.08)


def test_rows_have_an_account_at_each_client(digits: Make) -> None:
    privacy = Privacy(unit="row", noise=2.0)
    local = LocalTraining(epochs=2, batch_size=40)
    fed = digits(2)
    model = FedAvg(rounds=2, local=local, privacy=privacy).fit(fed)
    rows = model.meeting_.rows["c0"]["train"]
    account = model.privacy_["c0"]
    assert account["steps"] == 2 * 2 * -(-rows // 40)
    assert account["epsilon, against everybody"] == epsilon(2.0, 1e-5, account["steps"], 40 / rows)
    told = {e.operation for e in fed.active.boundary.ledger.entries()}
    assert "report" not in told  # losses would leave without noise


def test_layers_that_tie_rows_together_are_refused(build: Make, digits: Make) -> None:
    frames = {n: p.frame for n, p in digits(2).engine.parties.items() if n != "server"}  # type: ignore[attr-defined]
    tied = nn.Sequential(nn.BatchNorm1d(12, track_running_stats=False), nn.Linear(12, 10))
    fed = build(frames, parties={"bottom": tied})
    with pytest.raises(DataError, match="told apart"):
        FedAvg(rounds=1, privacy=Privacy(unit="row")).fit(fed)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Scaffold(privacy=Privacy(unit="client")),
        lambda: Scaffold(option="I", privacy=Privacy(unit="row")),
        lambda: FedProx(gamma=0.5, privacy=Privacy(unit="row")),
        lambda: FedAvg(stragglers=0.5, privacy=Privacy(unit="client")),
    ],
)
def test_what_would_leave_without_noise_is_refused(digits: Make, make: Callable[[], Any]) -> None:
    with pytest.raises(JobError):
        make().fit(digits(2))
