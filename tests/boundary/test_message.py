"""Messages: what is encoded is what is read, its size is known before, and garbage is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save
from torch import Tensor

from interlace.boundary import Kind, Message
from interlace.boundary.guards import Sending, build_guard
from interlace.boundary.guards.base import Codec
from interlace.boundary.kinds import FORMS
from interlace.boundary.message import MAX_HEADER_BYTES, MAX_NAME, Part, decode
from interlace.errors import InterlaceError, Refused

DTYPES = {
    "float": [torch.float32, torch.float64, torch.float16, torch.bfloat16],
    "int": [torch.int64, torch.int32, torch.int16, torch.uint8],
    "byte": [torch.uint8],
}
CODECS = ["topk", "quantise", "half"]
SETTINGS: dict[str, dict[str, Any]] = {"topk": {"count": 2}, "quantise": {"bits": 2}, "half": {}}
NAMES = st.text(st.characters(categories=["L", "N", "P", "S"]), max_size=20)
JSON = st.dictionaries(
    st.text(max_size=8),
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False)
        | st.text(max_size=9),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
        max_leaves=5,
    ),
    max_size=4,
)


@st.composite
def parts(draw: st.DrawFn) -> Part:
    kind = draw(st.sampled_from(sorted(FORMS)))
    form = FORMS[kind]
    if form.numbers == "json":
        return Part(kind, draw(JSON))
    dims = draw(st.sampled_from(form.dims))
    shape = draw(st.lists(st.integers(0, 4), min_size=dims, max_size=dims))
    value = torch.full(shape, 3).to(draw(st.sampled_from(DTYPES[form.numbers])))
    if dims > 1 and draw(st.booleans()):
        value = value.transpose(0, 1)
    if form.numbers == "float" and draw(st.booleans()):
        name = draw(st.sampled_from(CODECS))
        codec = build_guard({name: SETTINGS[name]})
        assert isinstance(codec, Codec)
        coded = codec.encode(value, Sending(kind, "a", "b", None, torch.Generator()))
        return Part(kind, coded.value, codec.name, coded.tensors)
    return Part(kind, value)


MESSAGES = st.builds(
    Message,
    NAMES,
    NAMES,
    NAMES,
    NAMES,
    st.integers(0, 10**10 - 1),
    st.lists(parts(), max_size=4).map(tuple),
)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    return bool(a == b)


@settings(max_examples=60)
@given(MESSAGES)
def test_a_message_arrives_as_it_was_sent(message: Message) -> None:
    blob = message.encode()
    arrived = decode(blob)
    assert message.encoded_size() == len(blob) == arrived.encoded_size()
    for field in ("session", "operation", "sender", "receiver", "round"):
        assert getattr(arrived, field) == getattr(message, field)
    assert len(arrived.parts) == len(message.parts)
    for sent, got in zip(message.parts, arrived.parts, strict=True):
        assert (got.kind, got.codec) == (sent.kind, sent.codec)
        if sent.coded is None:
            assert same(sent.value, got.value)
        else:
            assert got.coded is not None
            assert got.coded.keys() == sent.coded.keys()
            assert all(same(t, got.coded[n]) for n, t in sent.coded.items())
    assert len(arrived.encode()) == len(blob)


@pytest.mark.parametrize("round", [0, 7, 12345, 10**10 - 1])
def test_the_size_does_not_hang_on_the_round(round: int) -> None:
    message = Message("s", "o", "a", "b", round, (Part(Kind.EMBEDDING, torch.zeros(3, 2)),))
    assert message.encoded_size() == len(message.encode())


def test_values_that_share_memory_can_travel_together() -> None:
    x = torch.arange(6.0).reshape(3, 2)
    both = (Part(Kind.EMBEDDING, x), Part(Kind.GRADIENT, x[:2]), Part(Kind.EMBEDDING, x))
    arrived = decode(Message("s", "o", "a", "b", 0, both).encode())
    assert [same(p.value, q.value) for p, q in zip(both, arrived.parts, strict=True)] == [True] * 3


def test_a_view_travels_alone() -> None:
    big = torch.zeros(10_000, 4)
    blob = Message("s", "o", "a", "b", 0, (Part(Kind.EMBEDDING, big[:2]),)).encode()
    assert len(blob) < 1000


# -- what a partner may have made up ---------------------------------------------------------------

GOOD = Message(
    "s", "o", "a", "b", 3, (Part(Kind.EMBEDDING, torch.ones(2, 3)), Part(Kind.CONTROL, {"k": 1}))
).encode()


@given(st.binary(max_size=300))
def test_noise_is_refused(blob: bytes) -> None:
    with pytest.raises(Refused, match="not an interlace message"):
        decode(blob)


@given(st.integers(0, len(GOOD) - 1))
def test_a_cut_message_is_refused(length: int) -> None:
    with pytest.raises(Refused):
        decode(GOOD[:length])


@given(st.integers(0, len(GOOD) - 1), st.integers(1, 255))
def test_a_changed_byte_is_refused_or_gives_a_message(at: int, change: int) -> None:
    blob = bytearray(GOOD)
    blob[at] ^= change
    try:
        message = decode(bytes(blob))
    except InterlaceError:
        return
    assert 0 <= message.round < 10**10
    assert message.operation.isprintable()


@pytest.mark.parametrize("length", [0, 1, 2**20, 2**40, 2**63, 2**64 - 1])
def test_a_header_of_any_claimed_length_is_refused(length: int) -> None:
    with pytest.raises(Refused):
        decode(length.to_bytes(8, "little") + b'{"__metadata__":{}}')


def made_up(tensors: dict[str, Tensor] | None = None, **changes: Any) -> bytes:
    meta = {
        "session": "s",
        "operation": "o",
        "from": "a",
        "to": "b",
        "round": "0" * 10,
        "parts": '[["embedding","",null]]',
    }
    meta.update(changes)
    return bytes(save(tensors or {"0.": torch.zeros(1, 1)}, {k: v for k, v in meta.items() if v}))


def test_the_made_up_message_is_itself_fine() -> None:
    assert decode(made_up()).parts[0].kind is Kind.EMBEDDING


@pytest.mark.parametrize(
    "changes",
    [
        {"session": None},
        {"operation": "x" * (MAX_NAME + 1)},
        {"operation": "clear\x1b[2J"},  # it would reach a terminal, a file and a web page
        {"from": "a\nb"},
        {"to": None},
        {"round": "1"},
        {"round": "-000000001"},
        {"round": "9" * 40},  # more than the ledger's column can hold
        {"parts": "no JSON"},
        {"parts": "7"},
        {"parts": "{}", "x": "1"},
        {"parts": '[["embedding",""]]'},
        {"parts": '[["no kind","",null]]'},
        {"parts": '[["embedding",["half"],null]]'},
        {"parts": '[["embedding",5,null]]'},
        {"parts": json.dumps([["embedding", "half\ud800", None]])},
        {"parts": json.dumps([["embedding", "x" * 1000, None]])},
        {"parts": json.dumps([["embedding", "", None]] + [["control", "", {}]] * 100)},
        {"parts": "[" * 100_000},
        {"parts": '[["control","",{"x":' + '{"x":' * 50_000},
        {"session": "x" * (MAX_HEADER_BYTES + 1)},
    ],
    ids=range(21),
)
def test_a_made_up_header_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(Refused, match="not an interlace message"):
        decode(made_up(**changes))


@pytest.mark.parametrize("names", [["1."], ["0.", "1."], ["0.", "0.a"], ["x"], ["0.", ""]])
def test_tensors_that_belong_to_no_value_are_refused(names: list[str]) -> None:
    with pytest.raises(Refused):
        decode(made_up({n: torch.zeros(1, 1) for n in names}))


def test_a_message_of_two_gibibytes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interlace.boundary.message.MAX_MESSAGE_BYTES", len(GOOD) - 1)
    with pytest.raises(Refused, match="larger than the limit"):
        decode(GOOD)


def test_no_pickle_is_read() -> None:
    with pytest.raises(Refused):
        decode(b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00}\x94\x8c\x01x\x94K\x01s.")
