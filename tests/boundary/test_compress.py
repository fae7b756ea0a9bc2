"""Compression: close values, fewer counted bytes, the same in process and over the wire."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from interlace.boundary import Boundary, Kind, Slot
from interlace.boundary.guards import Codec, Sending, build_guard
from interlace.boundary.guards.compress import Half, Quantise, TopK
from interlace.boundary.message import Message
from interlace.errors import PolicyError

Told = Callable[..., Sending]
SENDING = Sending(Kind.GRADIENT, "bank", "vendor", None, torch.Generator())
CODECS: dict[str, dict[str, Any]] = {
    "topk 0.25": {"topk": {"share": 0.25}},
    "topk 3": {"topk": {"count": 3}},
    "8 bits": {"quantise": {"bits": 8}},
    "4 bits": {"quantise": {"bits": 4}},
    "2 bits": {"quantise": {"bits": 2}},
    "1 bit": {"quantise": {"bits": 1}},
    "4 bits by tensor": {"quantise": {"bits": 4, "scale": "tensor"}},
    "float16": {"half": {}},
    "bfloat16": {"half": {"dtype": "bfloat16"}},
}
SHAPES = [(), (5,), (5, 7), (3, 4, 5), (2, 3, 2, 2), (0, 7), (5, 0), (1, 300), (1, 40_000)]
BITS = st.sampled_from([8, 4, 2, 1])


def values(max_size: float = 1e6) -> st.SearchStrategy[Tensor]:
    largest = torch.tensor(max_size).item()  # as float32 has it
    number = st.floats(-largest, largest, width=32)
    return st.integers(1, 9).flatmap(
        lambda d: st.lists(st.lists(number, min_size=d, max_size=d), min_size=1, max_size=5).map(
            torch.tensor
        )
    )


# -- top-k -------------------------------------------------------------------------------------


def test_top_k_keeps_the_largest_and_not_the_smallest() -> None:
    value = torch.tensor([[0.1, -9.0, 0.2, 3.0], [5.0, 0.0, -0.4, 0.3]])
    coded = TopK(count=2).encode(value, SENDING)
    assert coded.value.tolist() == [[0.0, -9.0, 0.0, 3.0], [5.0, 0.0, pytest.approx(-0.4), 0.0]]


@given(values(), st.integers(1, 12))
def test_top_k_is_the_best_that_k_numbers_can_do(value: Tensor, k: int) -> None:
    read = TopK(count=k).encode(value, SENDING).value
    left_out = (value - read).abs().sort(dim=1).values
    due = value.abs().sort(dim=1).values.clone()
    due[:, max(0, value.shape[1] - k) :] = 0
    assert torch.equal(left_out, due.sort(dim=1).values)
    assert bool(((read == 0) | (read == value)).all()), "what is kept is kept exactly"


@pytest.mark.parametrize(
    ("share", "width", "kept"), [(0.25, 64, 16), (0.01, 10, 1), (1.0, 3, 3), (0.5, 1, 1)]
)
def test_a_share_of_a_row_is_at_least_one_number(share: float, width: int, kept: int) -> None:
    coded = TopK(share=share).encode(torch.randn(2, width), SENDING)
    assert coded.tensors["values"].shape == (2, kept)


@pytest.mark.parametrize(
    ("width", "dtype"), [(256, torch.uint8), (257, torch.int16), (2**15 + 1, torch.int32)]
)
def test_the_last_position_of_a_wide_row_arrives(width: int, dtype: torch.dtype) -> None:
    value = torch.zeros(1, width)
    value[0, -1] = 4.0
    coded = TopK(count=1).encode(value, SENDING)
    assert coded.tensors["index"].dtype is dtype
    assert coded.value[0, -1] == 4.0


def test_feedback_owes_each_person_what_was_left_out(sending: Told) -> None:
    codec = TopK(count=1, feedback=True)
    first, second = torch.tensor([[3.0, 2.0]]), torch.tensor([[1.0, 4.0]])
    assert codec.encode(first, sending(torch.tensor([6]))).value.tolist() == [[3.0, 0.0]]
    # Somebody else is owed nothing, and takes nothing away.
    assert codec.encode(first, sending(torch.tensor([2]))).value.tolist() == [[3.0, 0.0]]
    assert codec.encode(second, sending(torch.tensor([6]))).value.tolist() == [[0.0, 6.0]]
    assert codec.memory[6].tolist() == [1.0, 0.0]
    assert codec.memory[2].tolist() == [0.0, 2.0]


@given(st.integers(1, 4), st.integers(0, 2**31))
def test_with_feedback_nothing_is_lost_over_time(k: int, seed: int) -> None:
    noise = torch.Generator().manual_seed(seed)
    codec = TopK(count=k, feedback=True)
    put, got = torch.zeros(6, 5), torch.zeros(6, 5)
    for _ in range(12):
        people = torch.randperm(6, generator=noise)[:3]
        value = torch.randn(3, 5, generator=noise)
        told = Sending(Kind.GRADIENT, "bank", "vendor", people, noise)
        put[people] += value
        got[people] += codec.encode(value, told).value
    owed = torch.zeros(6, 5)
    owed[: len(codec.memory)] = codec.memory
    assert torch.allclose(put, got + owed, atol=1e-5)


def test_feedback_goes_on_after_a_resume(sending: Told) -> None:
    straight, stopped = (TopK(count=1, feedback=True) for _ in range(2))
    for codec in (straight, stopped):
        codec.encode(torch.tensor([[3.0, 2.0], [1.0, 5.0]]), sending(2))
    state = stopped.state()
    resumed = TopK(count=1, feedback=True)
    resumed.load_state(state)
    value = torch.tensor([[1.0, 0.5], [1.0, 1.0]])
    expected = straight.encode(value, sending(2)).value
    assert torch.equal(resumed.encode(value, sending(2)).value, expected)
    assert torch.equal(state["memory"], torch.tensor([[0.0, 2.0], [1.0, 0.0]])), "not a copy"
    assert TopK(count=1).state() == {}


def test_feedback_is_for_gradients_about_known_people(sending: Told) -> None:
    codec = TopK(count=1, feedback=True)
    with pytest.raises(PolicyError, match="for gradients, not for embedding"):
        codec.encode(torch.ones(2, 2), sending(2, Kind.EMBEDDING))
    with pytest.raises(PolicyError, match="account per person"):
        codec.encode(torch.ones(2, 2), sending(None))
    codec.encode(torch.ones(2, 2), sending(2))
    with pytest.raises(PolicyError, match="two widths"):
        codec.encode(torch.ones(2, 3), sending(2))
    with pytest.raises(PolicyError, match="two widths"):
        codec.encode(torch.ones(9, 1), sending(9))


# -- quantisation --------------------------------------------------------------------------------


def test_signed_values_stay_signed() -> None:
    # A peer's 16 levels read [-2, -1, 0, 1, 2] back as [-0.01, -0.03, -0.01, 1.06, 2.01].
    value = torch.tensor([[-2.0, -1.0, 0.0, 1.0, 2.0]])
    read = Quantise(4).encode(value, SENDING).value
    assert read[0].tolist() == pytest.approx(value[0].tolist(), abs=4 / 32 + 1e-6)
    assert Quantise(1).encode(value, SENDING).value[0].tolist() == [-1, -1, 1, 1, 1]


@given(values(1e30), BITS, st.sampled_from(["row", "tensor"]))
def test_the_error_is_at_most_half_a_cell(value: Tensor, bits: int, scale: Any) -> None:
    read = Quantise(bits=bits, scale=scale).encode(value, SENDING).value  # type: ignore[arg-type]
    low, high = value.aminmax() if scale == "tensor" else value.aminmax(dim=1, keepdim=True)
    span = high.double() - low.double()
    rounding = 4e-7 * torch.maximum(low.abs(), high.abs()).double() + 1e-38
    assert bool(((read.double() - value.double()).abs() <= span / 2 ** (bits + 1) + rounding).all())


@given(values(3e38), BITS)
def test_numbers_of_any_size_stay_finite_and_within_their_range(value: Tensor, bits: int) -> None:
    read = Quantise(bits=bits).encode(value, SENDING).value  # type: ignore[arg-type]
    low, high = value.aminmax(dim=1, keepdim=True)
    slack = 1e-6 * torch.maximum(low.abs(), high.abs()) + 1e-38
    assert torch.isfinite(read).all()
    assert bool(((read >= low - slack) & (read <= high + slack)).all())


def test_a_constant_row_arrives_exactly_and_more_bits_are_closer() -> None:
    constant = torch.full((2, 5), -0.3)
    assert torch.equal(Quantise(1).encode(constant, SENDING).value, constant)
    value = torch.randn(64, 32, generator=torch.Generator().manual_seed(0))
    errors = [
        (Quantise(bits).encode(value, SENDING).value - value).square().mean().item()
        for bits in (1, 2, 4, 8)
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] < value.square().mean(), "one bit is worse than sending nothing"


def test_a_range_for_each_row_is_not_spoilt_by_a_large_neighbour() -> None:
    value = torch.tensor([[0.1, 0.2, 0.3], [-900.0, 0.0, 900.0]])
    by_row, by_tensor = (
        (Quantise(4, scale).encode(value, SENDING).value - value)[0].abs().max().item()
        for scale in ("row", "tensor")
    )
    assert by_row < 0.01
    assert by_tensor > 1.0


@pytest.mark.parametrize("bits", [8, 4, 2, 1])
@pytest.mark.parametrize("count", [1, 3, 8, 9, 64])
def test_bits_are_packed(bits: Any, count: int) -> None:
    codes = Quantise(bits).encode(torch.randn(1, count), SENDING).tensors["codes"]
    assert codes.shape == (math.ceil(count * bits / 8),)


# -- half precision ------------------------------------------------------------------------------


def test_half_precision_keeps_eleven_or_eight_bits() -> None:
    value = torch.tensor([[1.0, -1000.1, 1e-3]])
    for codec, bits in ((Half(), 11), (Half("bfloat16"), 8)):
        read = codec.encode(value, SENDING).value
        assert read.dtype is torch.float32
        assert bool(((read - value).abs() <= value.abs() * 2.0**-bits).all())


def test_a_number_that_float16_cannot_hold_does_not_become_infinite() -> None:
    with pytest.raises(PolicyError, match="bfloat16"):
        Half().encode(torch.tensor([[7e4]]), SENDING)
    assert Half("bfloat16").encode(torch.tensor([[7e4]]), SENDING).value.isfinite().all()


# -- all of them ---------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", CODECS.values(), ids=CODECS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_what_is_decoded_is_what_was_handed_on(
    spec: dict[str, Any], shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    codec = build_guard(spec)
    assert isinstance(codec, Codec)
    value = torch.randn(shape, generator=torch.Generator().manual_seed(3)).to(dtype)
    kept = value.clone()
    coded = codec.encode(value, SENDING)
    assert coded.value.shape == shape
    assert torch.equal(codec.decode(coded.tensors), coded.value)
    assert coded.value.dtype is (torch.float32 if isinstance(codec, Half) else dtype)
    assert torch.equal(value, kept), "the model's own tensor was changed"


@pytest.mark.parametrize("spec", CODECS.values(), ids=CODECS)
def test_the_wire_and_the_process_agree_and_count_fewer_bytes(
    spec: dict[str, Any], boundary: Callable[..., Boundary], release: Any, over_the_wire: Any
) -> None:
    value = torch.randn(256, 64, generator=torch.Generator().manual_seed(0))
    plain = boundary()
    release(plain, value)
    dense = plain.sent_bytes
    out, near, far = (
        boundary("vendor", guards={Kind.EMBEDDING: [spec]}),
        boundary("insurer"),
        boundary("insurer"),
    )
    message: Message = release(out, value)
    slots = [Slot("answer", Kind.EMBEDDING)]
    (in_process,) = near.admit(message, slots)
    (wired,) = far.admit(over_the_wire(message), slots)
    assert isinstance(in_process, Tensor)
    assert isinstance(wired, Tensor)
    assert torch.equal(in_process, wired)
    assert wired.shape == value.shape
    assert out.sent_bytes == message.encoded_size() == len(message.encode())
    assert out.sent_bytes < 0.6 * dense
    for book, direction in ((out, "sent"), (near, "received"), (far, "received")):
        (entry,) = book.ledger.entries()
        assert entry.direction == direction
        assert entry.bytes_before == value.numel() * 4
        assert entry.bytes_after == out.sent_bytes
        assert entry.shape == "256×64"
        assert entry.guard
    (sent,) = out.ledger.entries()
    assert sent.guard == next(iter(out._chains.values())).label


def test_the_price_in_bytes(boundary: Callable[..., Boundary], release: Any) -> None:
    def ratio(spec: dict[str, Any] | None) -> float:
        out = boundary(guards={Kind.EMBEDDING: [spec]} if spec else {})
        release(out, torch.randn(256, 64))
        return 256 * 64 * 4 / out.sent_bytes

    assert ratio({"half": {}}) == pytest.approx(2, rel=0.05)
    assert ratio({"quantise": {"bits": 8}}) == pytest.approx(3.5, rel=0.05)
    assert ratio({"quantise": {"bits": 1}}) == pytest.approx(14, rel=0.1)
    assert ratio({"topk": {"share": 0.1}}) == pytest.approx(8, rel=0.1)


def test_a_code_does_not_unfold_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = TopK(count=1).encode(torch.randn(2, 8), SENDING).tensors
    monkeypatch.setattr("interlace.boundary.guards.compress.MAX_DECODED", 15)
    with pytest.raises(ValueError, match="shape"):
        TopK.decode(tensors)


def test_a_code_that_cannot_be_right_is_not_unfolded() -> None:
    value = torch.randn(4, 6)
    top, quantised, half = (
        c.encode(value, SENDING).tensors for c in (TopK(count=2), Quantise(4), Half())
    )
    wrong: list[tuple[type[Codec], dict[str, Tensor]]] = [
        (TopK, {**top, "index": top["index"] + 5}),  # positions outside of the row
        (TopK, {**top, "index": top["index"].to(torch.int16) - 7}),
        (TopK, {**top, "index": top["index"][:, :1]}),
        (TopK, {**top, "values": top["values"][:3], "index": top["index"][:3]}),
        (TopK, {**top, "shape": torch.tensor([4, 2**40])}),  # unfolds to terabytes
        (TopK, {**top, "shape": torch.tensor([2**62, 2**62])}),
        (TopK, {**top, "shape": torch.tensor([4, -6])}),
        (TopK, {**top, "shape": torch.tensor([4.0, 6.0])}),
        (TopK, {**top, "shape": torch.ones(9, dtype=torch.int64)}),
        (TopK, {"values": top["values"]}),
        (Quantise, {**quantised, "codes": quantised["codes"][:-1]}),
        (Quantise, {**quantised, "codes": quantised["codes"].float()}),
        (Quantise, {**quantised, "bits": torch.tensor(3)}),
        (Quantise, {**quantised, "bits": torch.tensor([8, 4])}),
        (Quantise, {**quantised, "low": quantised["low"][:2]}),
        (Quantise, {**quantised, "low": quantised["low"].double()}),
        (Quantise, {**quantised, "shape": torch.tensor([2**33, 6])}),
        (Half, {"half": half["half"].double()}),
        (Half, {}),
    ]
    for codec, tensors in wrong:
        with pytest.raises((KeyError, ValueError, RuntimeError, IndexError, TypeError)):
            codec.decode(tensors)
