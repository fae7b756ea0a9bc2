"""The in-process engine: by reference or by bytes, the same conversation."""

from __future__ import annotations

import polars as pl
import pytest
import torch

from interlace import Federation, Party
from interlace.boundary.kinds import (
    BlindedIds,
    ClassPrior,
    Control,
    Embedding,
    Metric,
    RowSelection,
)
from interlace.boundary.message import Message, decode
from interlace.errors import JobError, Refused
from interlace.party import PassiveSide, operation


class Echo(PassiveSide):
    @operation
    def embed(self, rows: RowSelection) -> Embedding:
        return rows[:, None].float() * 2

    @operation
    def mixed(self, tokens: BlindedIds, prior: ClassPrior, how: Control) -> Metric:
        return {"n": len(tokens), "sum": float(prior.sum()), **how}


def federation(wire: bool) -> Federation:
    bank = pl.DataFrame({"id": ["a", "b"], "x": [1, 2], "y": [0, 1]})
    shop = pl.DataFrame({"id": ["a", "b"], "z": [1, 2]})
    return Federation.simulate([Party("bank", bank, label="y"), Party("shop", shop)], wire=wire)


@pytest.mark.parametrize("wire", [False, True])
def test_values_arrive_as_they_were(wire: bool) -> None:
    peer = federation(wire).open("echo", Echo)["shop"]
    assert peer.ask(Echo.embed, torch.tensor([3, 4])).tolist() == [[6.0], [8.0]]
    tokens, prior = torch.zeros(5, 32, dtype=torch.uint8), torch.tensor([0.25, 0.5])
    assert peer.ask(Echo.mixed, tokens, prior, {"name": "ü"}) == {"n": 5, "sum": 0.75, "name": "ü"}
    assert peer.ask(Echo.mixed, tokens, how={"k": 1}, prior=prior)["k"] == 1, (
        "by name, in any order"
    )


def test_both_ways_count_the_same_bytes() -> None:
    counted = []
    for wire in (False, True):
        fed = federation(wire)
        peer = fed.open("echo", Echo)["shop"]
        peer.ask(Echo.embed, torch.arange(7))
        peer.ask(Echo.mixed, torch.zeros(2, 3, dtype=torch.uint8), torch.ones(3), {"a": [1, 2]})
        entries = list(fed.active.boundary.ledger.entries())
        counted.append([(e.operation, e.kind, e.bytes_before, e.bytes_after) for e in entries])
    assert counted[0] == counted[1]


@pytest.mark.parametrize("field", ["sender", "session", "operation", "round"])
def test_an_answer_to_something_else_is_refused(field: str) -> None:
    fed = federation(wire=False)
    peer = fed.open("echo", Echo)["shop"]
    deliver = fed.engine.deliver

    def other(message: Message) -> Message:
        answer: Message = deliver(message)
        setattr(answer, field, 7 if field == "round" else "other")
        return answer

    fed.engine.deliver = other
    with pytest.raises(Refused, match="something else than was asked"):
        peer.ask(Echo.embed, torch.arange(2))
    (refused,) = (e for e in fed.active.boundary.ledger.entries() if e.direction == "refused")
    assert refused.kind == "embedding"


@pytest.mark.parametrize("wire", [False, True])
def test_what_is_started_is_carried_out_in_turn(wire: bool) -> None:
    fed = federation(wire)
    peer = fed.open("echo", Echo)["shop"]
    first = peer.start(Echo.embed, torch.tensor([1]))
    second = peer.start(Echo.embed, torch.tensor([2]))
    peer.ask(Echo.embed, torch.tensor([3]))
    assert (second().item(), first().item(), first().item()) == (4.0, 2.0, 2.0)
    rows = [e for e in fed.engine.parties["shop"].boundary.ledger.entries() if e.session != "run"]
    assert [e.direction for e in rows] == ["received", "sent"] * 3


def test_an_error_of_what_was_started_is_raised_where_it_is_waited_for() -> None:
    fed = federation(False)
    peer = fed.open("echo", Echo)["shop"]
    boundary = fed.engine.parties["shop"].boundary
    boundary.policy = boundary.policy.model_copy(update={"max_requests": boundary.requests})
    answer = peer.start(Echo.embed, torch.tensor([3]))
    with pytest.raises(Refused, match="at most"):
        answer()


def test_nobody_else_can_be_reached() -> None:
    fed = federation(False)
    with pytest.raises(JobError, match="no party 'lab'"):
        fed.engine.deliver(Message("s", "embed", "bank", "lab", 0))
    with pytest.raises(Refused, match="no operation 'embed' for 'bank' in conversation 'none'"):
        fed.engine.deliver(Message("none", "embed", "bank", "shop", 0))


def test_encoded_messages_can_be_read_again() -> None:
    fed = federation(True)
    fed.open("echo", Echo)
    asked = fed.active.boundary.release(
        "echo-0001", "embed", "shop", Echo.operations["embed"].takes, (torch.tensor([1]),)
    )
    again = decode(asked.encode())
    assert (again.session, again.sender, again.receiver) == ("echo-0001", "bank", "shop")
    assert len(asked.encode()) == asked.encoded_size()
