"""Admission: a message that is not as agreed is refused, noted, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from interlace.boundary import Boundary, Kind, Message, Slot
from interlace.boundary.message import Part, decode
from interlace.errors import Refused

Make = Callable[..., Boundary]
SLOT = [Slot("gradient", Kind.GRADIENT)]


def sent(*parts: Part, to: str = "vendor") -> Message:
    return Message("split-1", "split.backward", "insurer", to, 4, tuple(parts))


def test_a_good_message_is_handed_on_by_reference(boundary: Make) -> None:
    value = torch.randn(3, 2)
    into = boundary()
    (got,) = into.admit(sent(Part(Kind.GRADIENT, value)), SLOT)
    assert got is value
    (entry,) = into.ledger.entries()
    assert (entry.direction, entry.sender, entry.round, entry.shape) == (
        "received",
        "insurer",
        4,
        "3×2",
    )


GRADIENT = Part(Kind.GRADIENT, torch.ones(2, 2))
BAD: dict[str, tuple[list[Part], str]] = {
    "no value": ([], "0 values came, 1 were due"),
    "two values": ([GRADIENT, GRADIENT], "2 values came"),
    "another kind": ([Part(Kind.EMBEDDING, torch.ones(2, 2))], "as embedding, not gradient"),
    "a record": ([Part(Kind.LABELS, torch.ones(2, 2))], "as labels, not gradient"),
    "integers": ([Part(Kind.GRADIENT, torch.ones(2, 2, dtype=torch.int64))], "number type int64"),
    "complex": (
        [Part(Kind.GRADIENT, torch.ones(2, 2, dtype=torch.complex64))],
        "number type complex64",
    ),
    "a number": ([Part(Kind.GRADIENT, torch.tensor(1.0))], "0 dimensions"),
    "five dimensions": ([Part(Kind.GRADIENT, torch.ones(1, 1, 1, 1, 1))], "5 dimensions"),
    "JSON": ([Part(Kind.GRADIENT, {"x": 1})], "not a plain tensor"),
    "NaN": ([Part(Kind.GRADIENT, torch.tensor([[1.0, torch.nan]]))], "NaN or infinity"),
    "infinity": ([Part(Kind.GRADIENT, torch.tensor([[-torch.inf, 1.0]]))], "NaN or infinity"),
    "both infinities": (
        [Part(Kind.GRADIENT, torch.tensor([[-torch.inf, torch.inf]]))],
        "NaN or infinity",
    ),
    "an unknown packing": (
        [Part(Kind.GRADIENT, torch.empty(0), "zip", {"x": torch.ones(1)})],
        "unknown way",
    ),
    "a defence for a packing": (
        [Part(Kind.GRADIENT, torch.empty(0), "clip", {"x": torch.ones(1)})],
        "unknown way",
    ),
    "a packing without its parts": (
        [Part(Kind.GRADIENT, torch.empty(0), "topk", {"x": torch.ones(1)})],
        "cannot be read",
    ),
    "a packed NaN": (
        [Part(Kind.GRADIENT, torch.empty(0), "half", {"half": torch.tensor([[torch.nan]]).half()})],
        "NaN or infinity",
    ),
    "a packing that unfolds to terabytes": (
        [
            Part(
                Kind.GRADIENT,
                torch.empty(0),
                "topk",
                {
                    "values": torch.ones(1, 1),
                    "index": torch.zeros(1, 1, dtype=torch.uint8),
                    "shape": torch.tensor([1, 2**40]),
                },
            )
        ],
        "cannot be read",
    ),
}


@pytest.mark.parametrize(("parts", "words"), BAD.values(), ids=BAD)
@pytest.mark.parametrize("wire", [False, True])
def test_a_bad_message_is_refused_and_noted(
    parts: list[Part], words: str, wire: bool, boundary: Make
) -> None:
    into = boundary()
    message = sent(*parts)
    if wire:
        message = decode(message.encode())
    before = into.state()
    with pytest.raises(Refused, match=words) as caught:
        into.admit(message, SLOT)
    for name in ("vendor", "insurer", "split.backward", "round 4"):
        assert name in str(caught.value)
    entries = list(into.ledger.entries())
    assert len(entries) == max(1, len(parts))
    assert {e.direction for e in entries} == {"refused"}
    after = into.state()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[k], after[k]) for k in before)
    assert into.ledger.summary() == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_large_finite_numbers_are_fine_though_their_sum_is_not(
    dtype: torch.dtype, boundary: Make
) -> None:
    value = torch.full((4, 4), torch.finfo(dtype).max, dtype=dtype)
    (got,) = boundary().admit(sent(Part(Kind.GRADIENT, value)), SLOT)
    assert isinstance(got, Tensor)
    assert torch.equal(got, value)


def test_a_message_for_somebody_else_is_refused(boundary: Make) -> None:
    into = boundary("vendor")
    with pytest.raises(Refused, match="it is for 'bank'"):
        into.admit(sent(GRADIENT, to="bank"), SLOT)


@pytest.mark.parametrize(
    "value",
    [{"x": [0] * 5000}, {"x": "y" * 5000}, [1, 2], "text", None, 7],
    ids=["items", "text", "list", "str", "null", "int"],
)
def test_oversized_or_odd_json_is_refused(value: Any, boundary: Make, over_the_wire: Any) -> None:
    message = over_the_wire(sent(Part(Kind.CONTROL, value)))
    with pytest.raises(Refused):
        boundary().admit(message, [Slot("settings", Kind.CONTROL)])


def test_a_refusal_holds_no_values(boundary: Make) -> None:
    for part in (
        Part(Kind.GRADIENT, torch.full((2,), 123456)),
        Part(Kind.GRADIENT, torch.tensor([123456.0, torch.nan])),
        Part(Kind.GRADIENT, {"x": 123456}),
        Part(Kind.CONTROL, {"x": 123456}),
    ):
        with pytest.raises(Refused) as caught:
            boundary().admit(sent(part), SLOT)
        assert "123456" not in str(caught.value)


def test_what_a_made_up_message_says_of_itself_does_not_stop_the_ledger(boundary: Make) -> None:
    into = boundary()
    message = Message("s", "o'); DROP TABLE ledger; --", "ü", "vendor", 10**10 - 1, (GRADIENT,))
    with pytest.raises(Refused):
        into.admit(decode(message.encode()), [Slot("rows", Kind.ROW_SELECTION)])
    into.admit(sent(GRADIENT), SLOT)
    assert [e.direction for e in into.ledger.entries()] == ["refused", "received"]
    assert into.ledger.verify() is None


def test_an_empty_answer_is_counted_too(boundary: Make) -> None:
    # An operation without a result is answered all the same, and those bytes leave.
    out, into = boundary("vendor"), boundary("insurer")
    message = out.release("s", "split.backward", "insurer", [], [])
    assert into.admit(decode(message.encode()), []) == []
    for party, direction in ((out, "sent"), (into, "received")):
        (entry,) = party.ledger.entries()
        assert entry.direction == direction
        assert entry.bytes_after == out.sent_bytes == len(message.encode())


def test_guards_change_what_leaves_and_not_what_the_model_holds(
    boundary: Make, release: Any
) -> None:
    out = boundary(guards={Kind.EMBEDDING: [{"clip": {"norm": 1.0}}]})
    value = torch.full((2, 4), 3.0, requires_grad=True)
    message = release(out, value)
    (got,) = boundary("insurer").admit(message, [Slot("answer", Kind.EMBEDDING)])
    assert isinstance(got, Tensor)
    assert not got.requires_grad
    assert got.norm(dim=1).tolist() == pytest.approx([1.0, 1.0])
    assert value[0, 0] == 3.0
    (entry,) = out.ledger.entries()
    assert entry.guard == "clip 1"
