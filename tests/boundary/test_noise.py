"""Noise: what it claims is what holds, and a budget is a limit."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from interlace.boundary import Boundary, Kind, Policy
from interlace.boundary.guards import Sending, build_guard, chain
from interlace.boundary.guards.clip import Clip
from interlace.boundary.guards.compress import Half
from interlace.boundary.guards.noise import (
    Gaussian,
    Laplace,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_sigma,
)
from interlace.errors import PolicyError

Told = Callable[..., Sending]
Make = Callable[..., Boundary]
Noise = Gaussian | Laplace


def after_clip(guard: Noise, norm: float = 1.0) -> Noise:
    chain(Clip(norm), guard)
    return guard


# -- the closed forms --------------------------------------------------------------------------


@pytest.mark.parametrize(("epsilon", "sigma"), [(1, 16.68), (4, 4.835), (8, 2.684)])
def test_sigma_for_twenty_releases_is_the_published_one(epsilon: float, sigma: float) -> None:
    each = math.sqrt(20) * gaussian_sigma(epsilon, 1e-5)
    assert each == pytest.approx(sigma, rel=5e-4)
    # In multiples of the clip's norm it is twice that, for two values lie up to 2C apart.
    assert Gaussian(epsilon=epsilon, delta=1e-5, releases=20).sigma == pytest.approx(2 * each)


@pytest.mark.parametrize(
    ("sigma", "releases", "delta"), [(2.0, 20, 1e-5), (9.67, 20, 1e-5), (5.0, 1, 1e-6)]
)
def test_epsilon_agrees_with_the_privacy_loss_distribution(
    sigma: float, releases: int, delta: float, sending: Told
) -> None:
    pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    guard = after_clip(Gaussian(sigma=sigma, delta=delta), norm=3.0)
    for _ in range(releases):
        guard(torch.zeros(2, 4), sending(2))
    # Sensitivity 2C against noise σC.
    loss = pld.from_gaussian_mechanism(sigma / 2).self_compose(releases)
    assert guard.account()["epsilon"] == pytest.approx(
        loss.get_epsilon_for_delta(delta), rel=1e-3, abs=1e-3
    )


def test_laplace_epsilon_agrees_with_the_privacy_loss_distribution(sending: Told) -> None:
    pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    guard = after_clip(Laplace(scale=40.0), norm=0.5)
    for _ in range(3):
        guard(torch.zeros(2, 16), sending(2))
    assert guard.account()["epsilon"] == pytest.approx(3 * 2 * math.sqrt(16) / 40)
    one = pld.from_laplace_mechanism(40 * 0.5, sensitivity=2 * 0.5 * math.sqrt(16))
    three = one.self_compose(3)
    assert three.get_delta_for_epsilon(0.601) < 1e-9
    assert three.get_delta_for_epsilon(0.59) > 1e-4, "the claim is larger than it need be"


@given(st.floats(0.01, 50), st.floats(1e-10, 0.1))
def test_sigma_and_epsilon_undo_each_other(epsilon: float, delta: float) -> None:
    sigma = gaussian_sigma(epsilon, delta)
    assert gaussian_epsilon(sigma, delta) == pytest.approx(epsilon, rel=1e-5)
    assert gaussian_delta(epsilon, sigma) <= delta * (1 + 1e-9)
    assert gaussian_delta(epsilon, sigma * 0.999) > delta, "more noise than it takes"


def test_noise_so_large_that_delta_alone_covers_it_costs_nothing() -> None:
    assert gaussian_epsilon(1e9, 1e-5) == 0.0


# -- the mechanism -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_noise_has_the_size_that_the_account_counts_on(
    dtype: torch.dtype, sending: Told
) -> None:
    value = torch.zeros(2000, 8, dtype=dtype)
    gaussian = after_clip(Gaussian(sigma=1.5), norm=2.0)(value, sending(2000))
    laplace = after_clip(Laplace(scale=1.5), norm=2.0)(value, sending(2000))
    assert gaussian.dtype is laplace.dtype is dtype
    assert gaussian.double().std().item() == pytest.approx(3.0, rel=0.03)
    assert gaussian.double().mean().item() == pytest.approx(0, abs=0.1)
    assert laplace.double().abs().mean().item() == pytest.approx(3.0, rel=0.03)
    assert laplace.double().mean().item() == pytest.approx(0, abs=0.15)
    assert torch.isfinite(laplace).all()


def test_laplace_for_a_budget_follows_the_width_of_the_rows(sending: Told) -> None:
    guard = after_clip(Laplace(epsilon=2.0, releases=4), norm=3.0)
    noised = guard(torch.zeros(3000, 9), sending(3000))
    assert noised.abs().mean().item() == pytest.approx(3 * 2 * math.sqrt(9) * 4 / 2, rel=0.03)
    assert guard.account()["epsilon"] == pytest.approx(0.5)


def test_noise_on_double_precision_covers_its_low_bits(sending: Told) -> None:
    noised = after_clip(Gaussian(sigma=1.0))(torch.zeros(50, 4, dtype=torch.float64), sending(50))
    assert not torch.equal(noised, noised.float().double())


def test_one_seed_gives_the_same_noise_and_the_value_stays(sending: Told) -> None:
    value = torch.ones(4, 2)
    first, again, other = (
        after_clip(Gaussian(sigma=1.0))(value, sending(4, seed=s)) for s in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(value, torch.ones(4, 2))


# -- the account -------------------------------------------------------------------------------


@pytest.mark.parametrize("guard", [Gaussian(sigma=1.0), Laplace(scale=1.0)])
def test_without_a_clip_nothing_is_claimed(guard: Noise, sending: Told) -> None:
    chain(guard)
    noised = guard(torch.zeros(3, 2), sending(None))
    assert not torch.equal(noised, torch.zeros(3, 2))
    account = guard.account()
    assert "epsilon" not in account
    assert str(account["claim"]).startswith("none")


@pytest.mark.parametrize(
    "guard", [Gaussian(epsilon=1.0, releases=3), Laplace(epsilon=1.0, releases=3)]
)
def test_a_budget_without_a_clip_is_no_policy(guard: Noise) -> None:
    with pytest.raises(PolicyError, match="clip"):
        chain(guard)
    with pytest.raises(PolicyError, match="only once"):
        chain(Clip(1.0), Clip(2.0), guard)


def test_a_second_noise_claims_nothing_of_the_first() -> None:
    gaussian, laplace = Gaussian(sigma=1.0), Laplace(scale=1.0)
    chain(Clip(1.0), gaussian, laplace)
    assert "epsilon" in gaussian.account()
    assert "epsilon" not in laplace.account()


def test_the_claim_is_that_of_the_person_released_most_often(sending: Told) -> None:
    guard = after_clip(Gaussian(sigma=8.0))
    assert guard.account()["epsilon"] == 0.0
    guard(torch.zeros(3, 2), sending(torch.tensor([0, 1, 2])))
    guard(torch.zeros(2, 2), sending(torch.tensor([2, 7], dtype=torch.int32)))
    guard(torch.zeros(0, 2), sending(0))
    account = guard.account()
    assert account["releases"] == 2
    assert account["epsilon"] == pytest.approx(gaussian_epsilon(4 / math.sqrt(2), 1e-5))


def test_batches_earn_no_amplification(sending: Told) -> None:
    # 20 epochs in batches of 2 of 100 people cost what 20 releases of everybody cost.
    batched, whole = after_clip(Gaussian(sigma=2.0)), after_clip(Gaussian(sigma=2.0))
    for _ in range(20):
        whole(torch.zeros(100, 1), sending(100))
        for batch in torch.randperm(100).reshape(50, 2):
            batched(torch.zeros(2, 1), sending(batch))
    assert batched.account() == whole.account()
    assert batched.account()["epsilon"] == pytest.approx(28.3735, rel=1e-4)


def test_a_person_twice_in_a_batch_is_two_releases(sending: Told) -> None:
    guard = after_clip(Gaussian(sigma=1.0))
    guard(torch.zeros(3, 2), sending(torch.tensor([5, 5, 5])))
    assert guard.account()["releases"] == 3


@pytest.mark.parametrize(
    "rows", [None, torch.arange(2), torch.tensor([0, 1, -1]), torch.zeros(3, 1)]
)
def test_noise_with_an_account_knows_whom_it_is_about(rows: Any, sending: Told) -> None:
    guard = after_clip(Gaussian(sigma=1.0))
    with pytest.raises(PolicyError, match="account per person"):
        guard(torch.zeros(3, 2), sending(rows))
    assert guard.account()["releases"] == 0


@pytest.mark.parametrize(
    "guard", [Gaussian(epsilon=1.0, releases=2), Laplace(epsilon=1.0, releases=2)]
)
def test_a_used_up_budget_stops_everything(guard: Noise, sending: Told) -> None:
    after_clip(guard)
    for _ in range(2):
        guard(torch.zeros(2, 2), sending(2))
    before = guard.account()
    assert before["epsilon"] == pytest.approx(1.0, rel=1e-6)
    with pytest.raises(PolicyError, match=r"'bank' has for 2 people is used up.*`releases`"):
        guard(torch.zeros(3, 2), sending(3))
    assert guard.account() == before, "a refused release was counted"
    guard(torch.zeros(1, 2), sending(torch.tensor([2])))  # somebody else can still be released


# -- through the boundary ------------------------------------------------------------------------

BUDGET: list[dict[str, dict[str, Any]]] = [
    {"clip": {"norm": 1.0}},
    {"gaussian": {"epsilon": 4.0, "delta": 1e-6, "releases": 2}},
]


def test_each_receiver_and_kind_has_its_own_account(boundary: Make, release: Any) -> None:
    out = boundary(guards={Kind.EMBEDDING: BUDGET, Kind.PARTIAL_SCORE: BUDGET})
    rows = torch.arange(3)
    release(out, torch.ones(3, 2), rows=rows)
    release(out, torch.ones(3, 2), rows=rows)
    release(out, torch.ones(3, 2), Kind.PARTIAL_SCORE, rows=rows)
    accounts = {k.split(",")[0]: v for k, v in out.accounts().items()}
    assert accounts["embedding to insurer"]["releases"] == 2
    assert accounts["embedding to insurer"]["epsilon"] == pytest.approx(4.0, rel=1e-6)
    assert accounts["partial score to insurer"]["releases"] == 1
    assert float(accounts["partial score to insurer"]["epsilon"]) < 4.0
    with pytest.raises(PolicyError, match="used up"):
        release(out, torch.ones(3, 2), rows=rows)


def test_rows_announced_for_one_value_do_not_serve_the_next(boundary: Make, release: Any) -> None:
    out = boundary(guards={Kind.EMBEDDING: BUDGET})
    release(out, torch.ones(3, 2), rows=torch.arange(3))
    with pytest.raises(PolicyError, match="not announced"):
        release(out, torch.ones(3, 2))


def test_noise_then_half_precision(boundary: Make, release: Any) -> None:
    specs: list[dict[str, dict[str, Any]]] = [*BUDGET, {"half": {}}]
    out = boundary(guards={Kind.EMBEDDING: specs})
    message = release(out, torch.ones(3, 2), rows=torch.arange(3))
    assert message.parts[0].codec == "half"
    assert chain(*map(build_guard, specs)).label == f"clip 1 → gaussian {sigma():.4g} → float16"


def sigma() -> float:
    return Gaussian(epsilon=4.0, delta=1e-6, releases=2).sigma


def test_a_resumed_run_draws_the_same_noise_and_keeps_the_count(
    boundary: Make, release: Any
) -> None:
    def run(out: Boundary) -> torch.Tensor:
        value: torch.Tensor = release(out, torch.ones(3, 2), rows=torch.arange(3)).parts[0].value
        return value

    out = boundary(guards={Kind.EMBEDDING: BUDGET})
    run(out)
    state = out.state()
    straight = run(out)
    resumed = boundary(guards={Kind.EMBEDDING: BUDGET})
    resumed.load_state(state)
    assert torch.equal(run(resumed), straight)
    assert resumed.accounts() == out.accounts()
    assert resumed.sent_bytes == out.sent_bytes
    with pytest.raises(PolicyError, match="used up"):
        run(resumed)


def test_a_checkpoint_does_not_serve_other_guards(boundary: Make) -> None:
    state = boundary(guards={Kind.EMBEDDING: BUDGET}).state()
    for other in ({}, {Kind.EMBEDDING: [{"clip": {"norm": 2.0}}, BUDGET[1]]}):
        with pytest.raises(PolicyError, match="checkpoint"):
            boundary(guards=other).load_state(state)
    boundary(guards={Kind.EMBEDDING: BUDGET}, max_bytes=10).load_state(state)


def test_state_survives_half_a_chain() -> None:
    guard = Laplace(scale=2.0)
    after_clip(guard)
    guard(
        torch.zeros(2, 9),
        Sending(Kind.EMBEDDING, "b", "a", torch.tensor([0, 4]), torch.Generator()),
    )
    other = after_clip(Laplace(scale=2.0))
    other.load_state(guard.state())
    assert other.account() == guard.account()
    guard.state()["counts"] += 7
    assert other.account() == guard.account(), "the state is not a copy"


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"gaussian": {}}, "either `sigma` or a budget"),
        ({"gaussian": {"sigma": 1, "epsilon": 1, "releases": 1}}, "either"),
        ({"gaussian": {"epsilon": 1}}, "needs `releases`"),
        ({"gaussian": {"sigma": 0}}, "`sigma`.*greater than 0"),
        ({"gaussian": {"sigma": math.inf}}, "`sigma`.*finite"),
        ({"gaussian": {"sigma": 1, "delta": 1}}, "`delta`.*less than 1"),
        ({"gaussian": {"epsilon": 1, "releases": 0}}, "`releases`.*greater than 0"),
        ({"laplace": {"epsilon": 1}}, "needs `releases`"),
        ({"laplace": {"scale": -1}}, "greater than 0"),
        ({"laplace": {"scale": 1, "delta": 1e-5}}, "`delta`.*unexpected"),
        ({"clip": {"norm": "far"}}, "`norm`.*number"),
        ({"clip": {}}, "`norm`.*missing"),
        ({"topk": {}}, "either `share` or `count`"),
        ({"topk": {"share": 0.5, "count": 1}}, "either"),
        ({"topk": {"share": 1.5}}, "less than or equal to 1"),
        ({"topk": {"count": 0}}, "greater than 0"),
        ({"quantise": {"bits": 3}}, "8, 4, 2 or 1"),
        ({"quantise": {"scale": "batch"}}, "'row' or 'tensor'"),
        ({"half": {"dtype": "float8"}}, "'float16' or 'bfloat16'"),
        ({"noise": {}}, "there is no guard 'noise'; there are: clip, gaussian, half"),
        ({}, "entry of its own"),
        ({"clip": {"norm": 1}, "half": {}}, "entry of its own"),
    ],
)
def test_wrong_settings_say_which_and_why(spec: dict[str, Any], words: str) -> None:
    with pytest.raises(PolicyError, match=words):
        build_guard(spec)


def test_compression_stands_last_and_alone() -> None:
    with pytest.raises(PolicyError, match="last"):
        chain(Half(), Clip(1.0))
    with pytest.raises(PolicyError, match="at most one compression"):
        chain(Half(), Half())
    assert chain().label == ""


def test_a_policy_with_wrong_guards_is_not_made() -> None:
    with pytest.raises(ValueError, match="guards of embedding: there is no guard"):
        Policy(guards={Kind.EMBEDDING: [{"clipp": {"norm": 1}}]})
    with pytest.raises(ValueError, match="put a `clip` right before it"):
        Policy(guards={Kind.EMBEDDING: [{"gaussian": {"epsilon": 1, "releases": 1}}]})
