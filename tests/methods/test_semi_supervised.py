"""Learning from few labels: augmentations, the losses, and a learner of a party's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn import functional as F

from interlace import Party
from interlace.boundary import Ledger
from interlace.data.spec import InputSpec
from interlace.errors import InterlaceError
from interlace.methods.augmentation import _CHANGES, Augmentation, Images, Tables
from interlace.methods.bottom import Bottom, BottomSettings
from interlace.methods.clustering import cluster
from interlace.methods.semi_supervised import (
    AnySemiSupervised,
    FixMatch,
    LocalLearner,
    LocalSettings,
    MixMatch,
    PseudoLabels,
    Step,
)
from interlace.models import BottomSpec, Optimisation


def draws(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# -- tables -------------------------------------------------------------------------------------


def table(n: int = 500) -> tuple[Tensor, Tables]:
    """Three numbers and two categories; everything is a training row."""
    x = torch.cat([torch.randn(n, 3, generator=draws()) + 5, torch.ones(n, 2) * 4], 1)
    return x, Tables(x, 3, mask=0.2, noise=0.1)


def test_a_hidden_number_is_the_mean_and_a_hidden_category_unknown() -> None:
    x, augment = table()
    weak = augment.weak(x, draws())
    hidden = weak != x
    typical = torch.cat([x[:, :3].mean(0), torch.zeros(2)])
    assert torch.equal(weak, torch.where(hidden, typical, x))
    assert hidden.float().mean().item() == pytest.approx(0.2, abs=0.02)


def test_noise_comes_after_the_mask_and_to_numbers_alone() -> None:
    x, augment = table()
    weak, strong = augment.weak(x, draws(3)), augment.strong(x, draws(3))
    noise = strong - weak
    assert torch.equal(noise[:, 3:], torch.zeros(500, 2))
    assert noise[:, :3].std().item() == pytest.approx(0.1, abs=0.01)


def test_mixing_keeps_categories_whole() -> None:
    x = torch.tensor([[0.0, 3.0]]).repeat(1000, 1)
    other = torch.tensor([[10.0, 7.0]]).repeat(1000, 1)
    mixed = Tables(x, 1, mask=0, noise=0).mix(x, other, torch.full((1000,), 0.8), draws())
    torch.testing.assert_close(mixed[:, 0], torch.full((1000,), 2.0))
    assert set(mixed[:, 1].tolist()) == {3.0, 7.0}
    assert (mixed[:, 1] == 3).float().mean().item() == pytest.approx(0.8, abs=0.05)


# -- images -------------------------------------------------------------------------------------


@given(st.integers(0, 2**31), st.sampled_from([(1, 8, 4), (3, 32, 16), (1, 28, 14), (2, 5, 3)]))
def test_images_stay_images_within_their_range(seed: int, shape: tuple[int, int, int]) -> None:
    x = torch.rand(17, *shape, generator=draws(seed)) * 3 - 1
    augment = Images(x, flip=True)
    before = x.clone()
    for changed in (augment.weak(x, draws(seed)), augment.strong(x, draws(seed))):
        assert changed.shape == x.shape
        assert torch.isfinite(changed).all()
        assert changed.min() >= x.min() - 1e-4
        assert changed.max() <= x.max() + 1e-4
    assert torch.equal(x, before)
    assert torch.equal(augment.strong(x, draws(seed)), augment.strong(x, draws(seed)))


def test_a_weak_change_is_a_shift_of_an_eighth_and_a_flip() -> None:
    x = torch.arange(32.0 * 16).view(1, 1, 32, 16).repeat(200, 1, 1, 1)
    seen = {False: 0, True: 0}
    for image in Images(x, flip=True).weak(x, draws())[:, 0]:
        rows, columns = image[:, 8] // 16, image[16] % 16
        mirrored = bool(columns[8] < columns[7])
        seen[mirrored] += 1
        assert abs(int(rows[16]) - 16) <= 4
        assert abs(int(columns.flip(0)[8] if mirrored else columns[8]) - 8) <= 2
    assert min(seen.values()) > 60
    plain = Images(x, flip=False).weak(x, draws())[:, 0, 16] % 16
    assert (plain[:, 8] > plain[:, 7]).all()


@pytest.mark.parametrize("change", _CHANGES, ids=lambda c: c.__name__)
def test_every_change_keeps_shape_and_most_do_something(change: Any) -> None:
    x = torch.rand(6, 3, 12, 6, generator=draws()) * 0.8
    size, sign = torch.full((6,), 0.7), torch.tensor([1.0, -1] * 3)
    out = change(x, size, sign)
    assert out.shape == x.shape
    assert torch.isfinite(out).all()
    assert torch.equal(out, x) == (change.__name__ == "_identity")


def test_a_turn_by_nothing_changes_nothing_and_half_images_turn_round() -> None:
    x = torch.rand(2, 1, 12, 6, generator=draws())
    turn = next(c for c in _CHANGES if c.__name__ == "_rotate")
    torch.testing.assert_close(turn(x, torch.zeros(2), torch.ones(2)), x)
    dot = torch.zeros(1, 1, 33, 17)
    dot[0, 0, 4, 8] = 1  # twelve pixels above the middle
    place = turn(dot, torch.ones(1), torch.ones(1))[0, 0].flatten().argmax().item()
    y, x_ = divmod(int(place), 17)
    assert np.hypot(y - 16, x_ - 8) == pytest.approx(12, abs=1), (
        "a circle in pixels, not an ellipse"
    )


# -- losses -------------------------------------------------------------------------------------


class Still:
    """An augmentation that changes nothing."""

    def weak(self, x: Tensor, generator: torch.Generator) -> Tensor:
        return x

    strong = weak

    def mix(self, x: Tensor, other: Tensor, share: Tensor, generator: torch.Generator) -> Tensor:
        return torch.lerp(other, x, share[:, None])


def step(x: Tensor, y: Tensor, u: Tensor, **kw: Any) -> Step:
    """Rows are logits themselves."""
    how = {"logits": lambda rows: rows, "augment": Still(), "generator": draws(), "progress": 1.0}
    return Step(x=x, y=y, u=u, **{**how, **kw})


X, Y = torch.tensor([[2.0, 0, 0], [0, 1.0, 0]]), torch.tensor([0, 1])
U = torch.tensor([[4.0, 0, 0], [0, 0, 3.0], [0.5, 0, 0.4], [0.0, 9.0, 0]])


def test_fixmatch_learns_from_rows_that_it_is_sure_of() -> None:
    p = U.softmax(1)
    sure = p.amax(1) >= 0.93
    assert sure.tolist() == [True, False, False, True]
    each = F.cross_entropy(U, U.argmax(1), reduction="none")
    expected = F.cross_entropy(X, Y) + 0.5 * (each * sure).mean()
    method = FixMatch(threshold=0.93, weight=0.5)
    torch.testing.assert_close(method.loss(step(X, Y, U)), expected)
    sharper = FixMatch(threshold=0.93, weight=0.5, temperature=0.5)
    sure = (U / 0.5).softmax(1).amax(1) >= 0.93
    assert sure.tolist() == [True, True, False, True]
    expected = F.cross_entropy(X, Y) + 0.5 * (each * sure).mean()
    torch.testing.assert_close(sharper.loss(step(X, Y, U)), expected)


def test_fixmatchs_usual_threshold_is_lower_for_two_classes() -> None:
    two = torch.tensor([[2.0, 0.0]])  # 0.88 sure
    three = torch.tensor([[2.7, 0.0, 0.0]])  # 0.88 sure
    y = torch.tensor([0])
    assert FixMatch().loss(step(two, y, two)) > F.cross_entropy(two, y)
    assert FixMatch().loss(step(three, y, three)) == F.cross_entropy(three, y)


@pytest.mark.parametrize("method", [FixMatch(), MixMatch(alpha=1e-9), PseudoLabels()])
def test_without_other_rows_the_loss_is_supervised(method: Any) -> None:
    loss = method.loss(step(X, Y, U[:0]))
    torch.testing.assert_close(loss, F.cross_entropy(X, Y))


def test_mixmatch_sharpens_the_mean_guess() -> None:
    """Nearly no mixing: l_u is the distance of p from its own sharpening."""
    method = MixMatch(weight=2.0, alpha=1e-9, temperature=0.5)
    p = U.softmax(1)
    guess = p**2 / (p**2).sum(1, keepdim=True)
    expected = F.cross_entropy(X, Y) + 2.0 * 0.25 * F.mse_loss(p, guess)
    loss = method.loss(step(X, Y, U, progress=0.25))
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-5)


def test_mixing_shares_keep_the_larger_part() -> None:
    share = MixMatch()._shares(2000, draws())
    assert share.min() >= 0.5
    assert share.max() <= 1
    assert share.std() > 0.1


def test_pseudo_labels_take_every_guess_and_grow_in_weight() -> None:
    own = F.cross_entropy(U, U.argmax(1))
    for progress in (0.0, 0.3, 1.0):
        loss = PseudoLabels(weight=3).loss(step(X, Y, U, progress=progress))
        torch.testing.assert_close(loss, F.cross_entropy(X, Y) + 3 * progress * own)


def test_a_job_names_them() -> None:
    read = TypeAdapter(AnySemiSupervised).validate_python
    assert read("mixmatch") == MixMatch()
    assert read({"threshold": 0.9}) == FixMatch(threshold=0.9)
    assert read({"name": "pseudo_labels", "weight": 2}) == PseudoLabels(weight=2)
    assert read(FixMatch(augment={"flip": False})) == FixMatch(augment=Augmentation(flip=False))
    with pytest.raises(ValidationError):
        read("fixmach")


# -- the learner -----------------------------------------------------------------------------------


def learner(n: int = 300, schedule: Any = "constant", **kw: Any) -> tuple[LocalLearner, Tensor]:
    data = load_digits(n_class=3)
    frame = pl.DataFrame(data.data[:n]).with_columns(id=pl.Series(range(n)))
    party = Party("shop", frame)
    party.record_in(Ledger(), seed=0)
    settings = BottomSettings(
        bottom=BottomSpec(hidden=(16,), width=8),
        optimisation=Optimisation(learning_rate=5e-3, schedule=schedule),
    )
    bottom = Bottom.fit(party, settings, np.arange(n))
    local = LocalSettings(**{"epochs": 20, **kw})
    return LocalLearner(bottom, local, 3), torch.from_numpy(data.target[:n])


def test_it_learns_from_few_labels() -> None:
    local, y = learner()
    rows, others = torch.arange(20), torch.arange(20, 300)
    local.learn(rows, y[rows], others, 40)
    assert local.epoch == 40
    guess = local.predict(others)
    torch.testing.assert_close(guess.sum(1), torch.ones(280))
    assert (guess.argmax(1) == y[others]).float().mean() > 0.85


def test_further_labelled_rows_join_in() -> None:
    local, y = learner()
    rows, more = torch.arange(4), torch.arange(100, 300)
    local.learn(rows, y[rows], torch.empty(0, dtype=torch.int64), 40, (more, y[more]))
    others = torch.arange(4, 100)
    assert (local.predict(others).argmax(1) == y[others]).float().mean() > 0.85


def test_the_rate_follows_the_schedule_over_both_rounds() -> None:
    local, y = learner(schedule="step", epochs=4, refine_epochs=4)
    rows, others = torch.arange(20), torch.arange(20, 60)
    rates = []
    for _ in range(8):
        local.learn(rows, y[rows], others, 1)
        rates.append([o.param_groups[0]["lr"] for o in (local.optimiser, local.bottom.optimiser)])
    expected = [5e-3] * 4 + [5e-4] * 2 + [5e-5] * 2
    np.testing.assert_allclose(rates, np.stack([expected] * 2, 1))


def test_without_labels_nothing_is_learnt() -> None:
    local, y = learner()
    before = [p.clone() for p in local.bottom.module.parameters()]
    local.learn(torch.empty(0, dtype=torch.int64), y[:0], torch.arange(300), 3)
    for one, other in zip(before, local.bottom.module.parameters(), strict=True):
        assert torch.equal(one, other)


def test_training_in_two_parts_from_disk_is_training_at_once() -> None:
    rows, others = torch.arange(30), torch.arange(30, 300)
    whole, y = learner()
    whole.learn(rows, y[rows], others, 6)
    half, _ = learner()
    half.learn(rows, y[rows], others, 2)
    bottom = Bottom.from_state(half.bottom.party, half.bottom.state())
    again = LocalLearner.from_state(bottom, half.state())
    again.learn(rows, y[rows], others, 4)
    assert torch.equal(again.predict(others), whole.predict(others))


def test_images_take_the_images_changes() -> None:
    spec = InputSpec(0, (), (1, 8, 4), ("image",))
    assert isinstance(Augmentation().over(spec, torch.rand(5, 1, 8, 4)), Images)


# -- clustering ------------------------------------------------------------------------------------


def test_clusters_are_counted_without_gaps_and_noise_is_left_out() -> None:
    points = torch.cat([torch.randn(40, 2, generator=draws(i)) * 0.01 + 5 * i for i in range(3)])
    outlier = torch.tensor([[100.0, -100.0]])
    found = cluster(torch.cat([points, outlier]) * 1e-6, 3, "hdbscan", 0)
    assert found[-1] == -1
    assert sorted(set(found[:-1].tolist())) == [0, 1, 2]


def test_no_more_clusters_than_different_rows() -> None:
    assert set(cluster(torch.ones(5, 2), 3, "kmeans", 0).tolist()) == {0}
    assert len(set(cluster(torch.tensor([[0.0], [1.0], [1.0]]), 3, "kmeans", 0).tolist())) == 2


def test_only_the_seed_decides_clusters() -> None:
    points = torch.randn(60, 3, generator=draws())
    assert torch.equal(cluster(points, 4, "kmeans", 5), cluster(points, 4, "kmeans", 5))


def test_hdbscan_may_find_nothing() -> None:
    with pytest.raises(InterlaceError, match="found no cluster among 3 gradients"):
        cluster(torch.tensor([[0.0, 0.0], [5.0, 0.0], [0.0, 9.0]]), 3, "hdbscan", 0)
