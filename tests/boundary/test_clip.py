"""Clipping is per person."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from interlace.boundary import Kind
from interlace.boundary.guards import Sending
from interlace.boundary.guards.clip import Clip

SENDING = Sending(Kind.GRADIENT, "bank", "vendor", None, torch.Generator())
FLOATS = st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16])


def test_a_long_row_leaves_its_neighbours_alone() -> None:
    # One factor for the batch would turn the norms 10 and 0.1 into 0.2 and 0.002.
    value = torch.tensor([[6.0, 8.0], [0.06, 0.08]])
    clipped = Clip(0.2)(value, SENDING)
    assert clipped.norm(dim=1).tolist() == pytest.approx([0.2, 0.1], rel=1e-5)
    assert torch.equal(clipped[1], value[1])
    assert value[0].tolist() == [6.0, 8.0], "the model's own tensor was changed"


@given(
    st.integers(0, 5),
    st.integers(0, 6),
    st.floats(1e-3, 1e3),
    st.sampled_from([1e-30, 1e-3, 1.0, 1e4, 1e30]),
    FLOATS,
    st.integers(0, 2**31),
)
@example(5, 5, 648.5, 1e4, torch.float64, 2)
def test_no_row_is_longer_than_the_norm_and_none_turns(
    n: int, d: int, norm: float, size: float, dtype: torch.dtype, seed: int
) -> None:
    drawn = torch.randn(n, d, generator=torch.Generator().manual_seed(seed)) * size
    value = drawn.clamp(-60_000, 60_000).to(dtype) if dtype is torch.float16 else drawn.to(dtype)
    clipped = Clip(norm)(value, SENDING)
    assert clipped.dtype is dtype
    assert clipped.shape == value.shape
    before, after = (v.double().norm(dim=1) for v in (value, clipped))
    # Only numbers too small for the type can be rounded up past the norm, by half its least step.
    slack = d * torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    assert bool((after <= norm + slack).all())
    short = before <= norm
    assert torch.equal(clipped[short], value[short])
    cosines = torch.nn.functional.cosine_similarity(
        value[~short].double(), clipped[~short].double()
    )
    assert bool((cosines > 0.99).all())


@pytest.mark.parametrize("shape", [(), (4,), (4, 3), (4, 3, 2), (4, 3, 2, 2), (0, 3)])
def test_rows_of_any_shape(shape: tuple[int, ...]) -> None:
    clipped = Clip(1.0)(torch.full(shape, 9.0), SENDING)
    assert clipped.shape == shape
    rows = clipped.reshape(shape[0] if shape else 1, -1) if clipped.numel() else clipped
    assert rows.norm(dim=1).tolist() == pytest.approx([1.0] * len(rows), rel=1e-5)
