"""A partner that does not keep to the protocol is refused, and nothing has changed then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from interlace.align import align, dh, multi
from interlace.align.base_ot import Offerer
from interlace.align.curve import hash_to_curve
from interlace.align.dh import DhSide
from interlace.align.exchange import to_send
from interlace.align.kkrt import KkrtSide
from interlace.align.multi import CommonSide
from interlace.engines import InProcess
from interlace.errors import AlignmentError, Refused
from interlace.party import Party, PassiveSide, Peer

Make = Callable[..., list[Party]]
MINE = [str(i) for i in range(20)]
THEIRS = [str(i) for i in range(5, 40)]


def short(value: Tensor) -> Tensor:
    return value[:-1]


def narrow(value: Tensor) -> Tensor:
    return value[:, :-1]


def zeros(value: Tensor) -> Tensor:
    return torch.zeros_like(value)


def twisted(value: Tensor) -> Tensor:
    return torch.randint(0, 256, value.shape, dtype=torch.uint8)


def no_number(value: dict[str, Any]) -> dict[str, Any]:
    return {"ids": "many"}


def too_many(value: dict[str, Any]) -> dict[str, Any]:
    return {"ids": 2**40}


def nobody(_value: object) -> dict[str, Any]:
    return {"ids": 0}


def negative(value: dict[str, Any]) -> dict[str, Any]:
    return {"ids": -1}


def true(value: dict[str, Any]) -> dict[str, Any]:
    return {"ids": True}


@pytest.mark.parametrize(
    ("protocol", "operation", "change"),
    [
        *(("dh", "begin", f) for f in (no_number, too_many, nobody, negative, true)),
        *(("dh", "reblind", f) for f in (short, narrow, zeros, twisted)),
        *(("dh", "tokens", f) for f in (short, narrow)),
        *(("kkrt", "begin", f) for f in (no_number, too_many, nobody)),
        *(("kkrt", "transfers", f) for f in (short, narrow, zeros, twisted)),
        *(("kkrt", "values", f) for f in (short, narrow)),
        *(("common", "transfers", f) for f in (short, zeros)),
        *(("common", "public_key", f) for f in (short, zeros)),
        *(("common", "seal", f) for f in (short,)),
        *(("common", "sealed", f) for f in (short, narrow)),
    ],
)
def test_answers_that_are_not_as_agreed(
    parties: Make,
    spoiling: type,
    protocol: str,
    operation: str,
    change: Callable[[Any], Any],
) -> None:
    some = parties(MINE, THEIRS, *([THEIRS] if protocol == "common" else []))
    how = {"reveal": "common"} if protocol == "common" else {"protocol": protocol}
    with pytest.raises(Refused):
        align(some[0], spoiling(some, operation, change), [p.name for p in some[1:]], **how)  # type: ignore[arg-type]
    assert all(not p.aligned for p in some)


@pytest.mark.parametrize(("protocol", "operation"), [("dh", "tokens"), ("kkrt", "values")])
def test_a_person_sent_twice(parties: Make, spoiling: type, protocol: str, operation: str) -> None:
    some = parties(MINE, MINE)

    def doubled(value: Tensor) -> Tensor:
        return torch.cat([value[:1], value[:-1]])

    # All are shared, so under kkrt the doubled person is found in one of the three lists.
    with pytest.raises(Refused, match="twice"):
        align(some[0], spoiling(some, operation, doubled), ["p1"], protocol=protocol)  # type: ignore[arg-type]
    assert not some[1].aligned


def begun(parties: Make, side: type[PassiveSide], *more: list[str]) -> tuple[Peer, Party]:
    some = parties(MINE, THEIRS, *more)
    engine = InProcess(some)
    engine.open("alignment", side, "p1", "active")
    return Peer(some[0], "p1", engine, "alignment"), some[1]


def rows(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def test_what_diffie_hellman_refuses(parties: Make) -> None:
    peer, party = begun(parties, DhSide)
    points = torch.zeros(3, 32, dtype=torch.uint8)
    with pytest.raises(Refused):  # before the greeting
        peer.ask(DhSide.reblind, points)
    for hello in ({}, {"ids": -3}, {"ids": 0}, {"ids": 2.5}):
        with pytest.raises(Refused, match="whole number"):
            peer.ask(DhSide.begin, hello)
    assert peer.ask(DhSide.begin, {"ids": 20}) == {"ids": 35}
    bad = [points, points[:0], torch.zeros(3, 31, dtype=torch.uint8)]
    bad.append(torch.zeros(5000, 32, dtype=torch.uint8))
    for value in bad:
        with pytest.raises(Refused):
            peer.ask(DhSide.reblind, value)
    guesses = to_send(dh._joined(hash_to_curve(id.encode() for id in MINE)))
    assert peer.ask(DhSide.reblind, guesses[:15]).shape == (15, 32)
    with pytest.raises(Refused, match="more blinded ids came than the 20 announced"):
        peer.ask(DhSide.reblind, guesses[:6])
    assert peer.ask(DhSide.reblind, guesses[:5]).shape == (5, 32)
    for start in (35, -1, "0", None):
        with pytest.raises(Refused, match="start"):
            peer.ask(DhSide.tokens, {"start": start})
    for positions in (rows(35), rows(-1), rows(3, 3), rows(*range(21))):
        with pytest.raises(Refused):
            peer.ask(DhSide.keep, positions)
    assert not party.aligned
    peer.ask(DhSide.keep, rows(3, 1))
    assert len(party.aligned["active"]) == 2


def test_what_kkrt_refuses(parties: Make) -> None:
    peer, party = begun(parties, KkrtSide)
    masks = torch.zeros(544, 64, dtype=torch.uint8)
    with pytest.raises(Refused):
        peer.ask(KkrtSide.transfers, torch.zeros(32, dtype=torch.uint8))
    for key in ("", "xyz", 7, "00" * 15):
        with pytest.raises(Refused, match="session key"):
            peer.ask(KkrtSide.begin, {"ids": 20, "key": key})
    peer.ask(KkrtSide.begin, {"ids": 20, "key": "00" * 16})
    with pytest.raises(Refused):  # the identity is no point to offer
        peer.ask(KkrtSide.transfers, torch.tensor([1] + [0] * 31, dtype=torch.uint8))
    with pytest.raises(Refused, match="not due"):
        peer.ask(KkrtSide.masks, masks)
    point = torch.frombuffer(bytearray(Offerer().point), dtype=torch.uint8)
    assert peer.ask(KkrtSide.transfers, point).shape == (512, 32)
    for wrong in (masks[:-8], masks[:, :-1], masks[:0]):
        with pytest.raises(Refused):
            peer.ask(KkrtSide.masks, wrong)
    with pytest.raises(Refused, match="before all masks"):
        peer.ask(KkrtSide.values, {"hash": 0, "start": 0})
    peer.ask(KkrtSide.masks, masks)
    with pytest.raises(Refused, match="not due"):
        peer.ask(KkrtSide.masks, masks)
    for which in ({"hash": 3, "start": 0}, {"hash": 0, "start": 35}, {"hash": 0}):
        with pytest.raises(Refused):
            peer.ask(KkrtSide.values, which)
    assert peer.ask(KkrtSide.values, {"hash": 2, "start": 30}).shape == (5, 8)
    for positions in (rows(35), rows(-1), rows(3, 3), rows(*range(21))):
        with pytest.raises(Refused):
            peer.ask(KkrtSide.keep, positions)
    assert not party.aligned


def test_what_three_parties_refuse(parties: Make) -> None:
    peer, party = begun(parties, CommonSide, THEIRS)
    own = peer.ask(CommonSide.public_key)
    other = torch.frombuffer(bytearray(range(9, 41)), dtype=torch.uint8)
    third = torch.frombuffer(bytearray(range(50, 82)), dtype=torch.uint8)
    for keys in (
        [own, other],
        [own, own, other],
        [other, third, third],
        [other, other, own],
        [other, own, torch.zeros(32, dtype=torch.uint8)],
    ):
        with pytest.raises(Refused):
            peer.ask(CommonSide.agree, torch.stack(keys))
    peer.ask(CommonSide.agree, torch.stack([other, own, third]))
    with pytest.raises(Refused, match="before"):
        peer.ask(CommonSide.seal)
    with pytest.raises(Refused, match="before"):
        peer.ask(CommonSide.sealed, {"start": 0})
    with pytest.raises(Refused, match="before"):
        peer.ask(CommonSide.keep, torch.zeros(2, 16, dtype=torch.uint8))
    assert not party.aligned


def test_marks_of_people_that_the_party_does_not_have(
    parties: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    three = parties(MINE, THEIRS, THEIRS)
    real = multi._marks

    def others(inputs: Any, key: bytes) -> Any:
        marks = real(inputs, key)
        if len(marks) == 15:  # the active party's, when it tells whom all share
            marks[0] ^= 1
        return marks

    monkeypatch.setattr(multi, "_marks", others)
    with pytest.raises(Refused, match="does not have"):
        align(three[0], InProcess(three), ["p1", "p2"], reveal="common")
    assert not three[1].aligned


@pytest.mark.parametrize("without", [0, 1])
@pytest.mark.parametrize("protocol", ["dh", "kkrt"])
def test_a_party_without_ids(parties: Make, without: int, protocol: Any) -> None:
    some = parties(MINE, THEIRS)
    some[without] = Party(some[without].name, {"x": [1.0, 2.0]}, id=None)
    with pytest.raises(AlignmentError, match=f"party '{some[without].name}' has no ids"):
        align(some[0], InProcess(some), ["p1"], protocol=protocol)
