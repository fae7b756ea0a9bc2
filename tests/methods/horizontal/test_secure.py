"""Masks cancel exactly in the sum, and a single masked vector tells nothing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from interlace import Federation
from interlace.boundary import Kind
from interlace.errors import JobError, Refused
from interlace.methods.horizontal import FedAvg, HorizontalTrees, LocalTraining, Scaffold
from interlace.methods.horizontal.secure import FRACTION_BITS, Masks, unmask

Make = Callable[..., Federation]


def group(count: int) -> list[Masks]:
    masks = [Masks() for _ in range(count)]
    keys = torch.stack([m.public_key for m in masks])
    for m in masks:
        m.meet(keys)
    return masks


@settings(max_examples=25)
@given(
    count=st.integers(3, 6),
    size=st.integers(1, 40),
    scale=st.floats(1e-6, 1e6),
    moment=st.integers(0, 2**40),
    data=st.data(),
)
def test_masks_cancel_to_the_last_bit(
    count: int, size: int, scale: float, moment: int, data: st.DataObject
) -> None:
    masks = group(count)
    cohort = data.draw(st.permutations(range(count)))
    cohort = cohort[: data.draw(st.integers(3, count))]
    vectors = {i: torch.randn(size, dtype=torch.float64) * scale for i in cohort}
    weights = {i: data.draw(st.integers(1, 1000)) for i in cohort}
    sent = [masks[i].mask(vectors[i], weights[i], torch.tensor(cohort), moment) for i in cohort]
    fixed = [(vectors[i] * (weights[i] * 2**FRACTION_BITS)).round().long() for i in cohort]
    assert torch.equal(unmask(sent), torch.stack(fixed).sum(0).double() / 2**FRACTION_BITS)


def test_a_single_masked_vector_looks_random_and_differs_each_round() -> None:
    masks = group(3)
    cohort = torch.arange(3)
    first = masks[0].mask(torch.zeros(4000), 1.0, cohort, 1)
    second = masks[0].mask(torch.zeros(4000), 1.0, cohort, 2)
    for sent in (first, second):
        counts = np.bincount(sent.numpy(), minlength=256)
        chi2 = ((counts - counts.mean()) ** 2 / counts.mean()).sum()
        assert 150 < chi2 < 380  # 255 degrees of freedom: far beyond five standard deviations
    assert (first == second).float().mean() < 0.02


def test_what_would_hide_nothing_is_refused() -> None:
    masks = group(4)
    zeros, cohort = torch.zeros(3), torch.arange(4)
    masks[0].mask(zeros, 1.0, cohort, 5)
    with pytest.raises(Refused, match="twice"):
        masks[0].mask(zeros, 1.0, cohort, 5)
    with pytest.raises(Refused, match="too little"):
        masks[1].mask(zeros, 1.0, torch.tensor([0, 1]), 5)
    with pytest.raises(Refused, match="too little"):
        masks[1].mask(zeros, 1.0, torch.tensor([1, 1, 1]), 5)
    with pytest.raises(Refused, match="not this one"):
        masks[1].mask(zeros, 1.0, torch.tensor([0, 2, 3]), 5)
    with pytest.raises(Refused, match="did not agree"):
        masks[1].mask(zeros, 1.0, torch.tensor([0, 1, 7]), 5)
    with pytest.raises(Refused, match="too large"):
        masks[1].mask(zeros + 1e12, 1.0, cohort, 5)


def test_swapped_or_repeated_keys_are_refused_or_show() -> None:
    masks = [Masks() for _ in range(3)]
    keys = torch.stack([m.public_key for m in masks])
    with pytest.raises(Refused, match="included"):
        Masks().meet(keys)
    with pytest.raises(Refused, match="different clients"):
        masks[0].meet(keys[[0, 1, 1]])
    masks[0].meet(keys)
    swapped = keys.clone()
    swapped[2] = Masks().public_key
    masks[1].meet(swapped)
    assert masks[0].fingerprint != masks[1].fingerprint
    masks[1].meet(keys)
    assert masks[0].fingerprint == masks[1].fingerprint


@pytest.mark.parametrize("make", [FedAvg, Scaffold])
@pytest.mark.parametrize("server", [True, False])
def test_the_model_is_the_same_and_no_client_sends_weights(
    digits: Make, make: type[FedAvg], server: bool
) -> None:
    kwargs = {"rounds": 2, "local": LocalTraining(epochs=2), "participation": 0.8}
    clear = make(**kwargs).fit(digits(5, server=server))  # type: ignore[arg-type]
    fed = digits(5, server=server, wire=True)
    hidden = make(**kwargs, secure=True).fit(fed)  # type: ignore[arg-type]
    torch.testing.assert_close(hidden.weights_, clear.weights_, rtol=0, atol=1e-5)
    received = {e.kind for e in fed.active.boundary.ledger.entries() if e.direction == "received"}
    assert Kind.MODEL_WEIGHTS.value not in received
    assert Kind.CIPHERTEXT.value in received
    assert hidden.history_[0].distance is None


def test_trees_are_the_same_under_masks(digits: Make) -> None:
    clear = HorizontalTrees(rounds=1, depth=2, bins=8).fit(digits(3))
    hidden = HorizontalTrees(rounds=1, depth=2, bins=8, secure=True).fit(digits(3))
    assert torch.equal(clear.weights_[..., :2], hidden.weights_[..., :2])
    torch.testing.assert_close(clear.weights_, hidden.weights_, atol=1e-6, rtol=0)


def test_fewer_than_three_clients_cannot_hide_in_a_sum(digits: Make) -> None:
    with pytest.raises(JobError, match="at least 3 clients"):
        FedAvg(secure=True).fit(digits(2))


def test_shares_of_noise_add_up_to_the_whole(digits: Make) -> None:
    from interlace.methods.horizontal import Privacy
    from interlace.methods.horizontal.averaging import AveragingSide

    fed = digits(4)
    privacy = Privacy(unit="client", clip=0.5, noise=2.0)
    model = FedAvg(rounds=1, secure=True, privacy=privacy).fit(fed)
    sides = [fed.engine.parties[f"c{i}"].sides[model.session_] for i in range(4)]  # type: ignore
    for i, side in enumerate(sides):
        side.party.boundary.round = 10
        assert isinstance(side, AveragingSide), i
    cohort = torch.arange(4)
    sent: list[Tensor] = [s.masked(torch.zeros(20_000), cohort) for s in sides]  # type: ignore[union-attr]
    assert unmask(sent).std().item() == pytest.approx(2.0 * 0.5, rel=0.03)
