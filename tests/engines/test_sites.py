"""The engine between sites, both ends in this process: a job over it is the job in one process, and
whatever a relay or a partner may do to a frame is refused and noted."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import polars as pl
import pytest
import torch
from torch import Tensor

from interlace import Federation, Party, SplitVFL
from interlace.boundary import Ledger, Message
from interlace.boundary.kinds import Control, Embedding, Kind, RowSelection
from interlace.engines import InProcess, sites
from interlace.engines.sealed import Identity, Line, Meeting
from interlace.engines.sites import Answering, Gate, Sites, Unreachable, sides_in
from interlace.errors import DataError, JobError, PartyAway, PartyFailed, PolicyError, Refused
from interlace.methods.base import Method
from interlace.methods.catalogue import accepted, build_method
from interlace.methods.horizontal.mixed import BankSide, MixedVFL
from interlace.methods.vertical.split import SplitSide
from interlace.methods.vertical.transfer import FederatedTransfer
from interlace.party import PassiveSide, Peer, operation

MEETING = Meeting("digest", "job-1")


class EchoSide(PassiveSide):
    """Answers what a test wants of it."""

    calls = 0
    notes: ClassVar[list[str]] = []

    @operation
    def echo(self, rows: RowSelection) -> RowSelection:
        """What came."""
        type(self).calls += 1
        return rows

    @operation
    def large(self, size: Control) -> Embedding:
        """Numbers, so many rows of a thousand."""
        return torch.ones(size["rows"], 1000)

    @operation
    def quote(self, what: Control) -> None:
        """Fail with an error that quotes the table."""
        raise {"data": DataError("bad value 7", column="income"), "python": KeyError("income 7")}[
            what["error"]
        ]

    @operation
    def note(self, what: Control) -> None:
        """Remember what came, unless it is nothing."""
        if what["name"] is None:
            raise Refused("there is no name")
        type(self).notes.append(what["name"])

    @operation
    def noted(self) -> Control:
        """What was remembered."""
        return {"names": type(self).notes}

    @operation
    def features(self) -> Embedding:
        """Try to give the records themselves."""
        records = torch.ones(3, 3)
        self.party.boundary.protect(records)
        return records


@dataclass
class Way:
    """Carries frames to the partner, and keeps what passed; a test may tamper with them."""

    receive: Callable[[bytes], bytes]
    sent: list[bytes] = field(default_factory=list)
    there: Callable[[bytes], bytes | None] = lambda frame: frame
    back: Callable[[bytes], bytes | None] = lambda answer: answer

    def __call__(self, party: str, frame: bytes, seconds: float) -> bytes:
        self.sent.append(frame)
        came = self.there(frame)
        answer = self.receive(came) if came is not None else None
        answer = self.back(answer) if answer is not None else None
        if answer is None:
            raise Unreachable("lost")
        return answer


@dataclass
class Pair:
    """A driver and a partner, whose sites have met."""

    driver: Party
    partner: Party
    engine: Sites
    answering: Answering
    way: Way
    peer: Peer

    def refusals(self) -> list[str]:
        return [
            e.operation for e in self.partner.boundary.ledger.entries() if e.direction == "refused"
        ]


@pytest.fixture
def pair(hospital: Identity, lab: Identity, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setattr(sites, "PAUSE", 0.0)
    me, partner = _parties()
    answering = Answering(
        "lab",
        "hospital",
        MEETING,
        lab,
        gate=lambda: Gate("approved", word="signed"),
        party=lambda: partner,
        sides={EchoSide, SplitSide, BankSide, *sides_in(["interlace.align.dh"])},
    )
    way = Way(answering.receive)
    engine = Sites("hospital", MEETING, hospital, way, patience=0.2)
    engine.join("lab")
    engine.open("echo", EchoSide, "lab", "hospital")
    EchoSide.calls, EchoSide.notes = 0, []
    return Pair(me, partner, engine, answering, way, Peer(me, "lab", engine, "echo"))


def _parties(apart: int = 0) -> tuple[Party, Party]:
    """Two parties of 80 people, ``apart`` of whom each of them lacks."""
    random = np.random.default_rng(0)
    x = random.normal(size=(80, 4))
    people = pl.DataFrame(x, schema=list("abcd")).with_row_index("id")
    label = pl.Series("y", (x.sum(1) > 0).astype(int))
    return (
        Party("hospital", people.select("id", "a", "b", label)[: 80 - apart], label="y", secret=1),
        Party("lab", people.select("id", "c", "d")[apart:], secret=2),
    )


ROWS = torch.arange(5)


@pytest.mark.parametrize(
    "name",
    [
        *("split", "one_shot", "few_shot", "fedcvt", "fed_once", "ss_vfl_c", "ss_vfl_i"),
        *("proto_evfl", "entity_augmentation", "transfer", "vfedtrans", "apc_vfl"),
        "privileged_distillation",
    ],
)
def test_a_job_over_sites_is_the_job_in_one_process(
    name: str, hospital: Identity, lab: Identity, tmp_path: Path
) -> None:
    quick = {"epochs": 2, "local_epochs": 2, "refine_epochs": 2, "validation": 0.0}
    made = build_method(name, accepted(name, quick))

    def trained(federation: Federation) -> tuple[np.ndarray, list[Any]]:
        federation.align()
        kept = federation.active.boundary.ledger
        model = made.fit(federation.fresh(5, "training"))
        # In no order: what nobody waits for is answered with what is asked next.
        passed = [s for s in sorted(kept.summary(), key=repr) if s.session == "training"]
        return model.outputs(federation.shared()), passed

    here, passed_here = trained(Federation.simulate(_parties(30), folder=tmp_path / "one"))
    me, partner = _parties(30)
    for party in (me, partner):
        party.folder = tmp_path / "two" / party.name
        # The matching's order is random, and decides the order of sums.
        (party.folder).mkdir(parents=True)
        (tmp_path / "one" / "parties" / party.name / "alignment").rename(party.folder / "alignment")
        party.record_in(Ledger(party.folder / "ledger.sqlite"), seed=None)
    answering = Answering(
        "lab",
        "hospital",
        MEETING,
        lab,
        gate=lambda: Gate("approved"),
        party=lambda: partner,
        sides=sides_in([type(made).__module__, made.side.__module__, "interlace.party.run"]),
    )
    engine = Sites("hospital", MEETING, hospital, Way(answering.receive), patience=5)
    engine.join("lab")
    there, passed_there = trained(Federation(me, ["lab"], engine))
    assert passed_there == passed_here
    np.testing.assert_allclose(here, there, rtol=0, atol=1e-6)


def test_a_large_message_goes_and_comes_in_pieces(pair: Pair) -> None:
    told: list[tuple[str, float]] = []
    pair.engine.progress = lambda what, share: told.append((what, share))
    many = torch.arange(1_200_000)
    assert torch.equal(pair.peer.ask(EchoSide.echo, many), many)
    assert len([f for f in pair.way.sent if len(f) > sites.PIECE]) >= 2
    assert {what.split()[0] for what, _ in told} == {"sending", "receiving"}
    assert pair.peer.ask(EchoSide.large, {"rows": 3000}).shape == (3000, 1000)


@pytest.mark.parametrize("where", ["there", "back"])
def test_a_lost_frame_is_asked_for_again_and_carried_out_once(pair: Pair, where: str) -> None:
    lost = iter([True, True])
    setattr(pair.way, where, lambda frame: None if next(lost, False) else frame)
    assert torch.equal(pair.peer.ask(EchoSide.echo, ROWS), ROWS)
    assert EchoSide.calls == 1


def test_a_partner_who_stays_away_ends_the_run_so_that_it_can_go_on(pair: Pair) -> None:
    pair.way.there = lambda _frame: None
    with pytest.raises(PartyAway, match=r"'lab'.*can go on"):
        pair.peer.ask(EchoSide.echo, ROWS)


def _tampered(frame: bytes) -> bytes:
    return frame[:-1] + bytes([frame[-1] ^ 1])


@pytest.mark.parametrize(
    "tamper",
    [
        pytest.param(_tampered, id="changed"),
        pytest.param(lambda _frame: b"garbage", id="garbage"),
        pytest.param(lambda _frame: b"", id="empty"),
        pytest.param(lambda f: f[:1] + (99).to_bytes(8, "big") + f[9:], id="out of order"),
    ],
)
def test_what_a_relay_does_to_a_frame_is_refused_and_noted(
    pair: Pair, tamper: Callable[[bytes], bytes]
) -> None:
    pair.peer.ask(EchoSide.echo, ROWS)
    pair.way.there = tamper
    with pytest.raises(Refused):
        pair.peer.ask(EchoSide.echo, ROWS)
    assert (EchoSide.calls, pair.refusals()) == (1, ["unread"])


def test_an_earlier_frame_that_comes_again_is_refused(pair: Pair) -> None:
    pair.peer.ask(EchoSide.echo, ROWS)
    again = pair.way.sent[-1]
    pair.peer.ask(EchoSide.echo, ROWS)
    assert pair.way.receive(again).startswith(b"-")
    assert (EchoSide.calls, pair.refusals()) == (2, ["unread"])
    pair.peer.ask(EchoSide.echo, ROWS)  # the site goes on


def test_a_flood_of_garbage_fills_no_ledger(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sites, "MOST_NOTED", 3)
    for _ in range(10):
        assert pair.way.receive(b"garbage").startswith(b"-")
    assert len(pair.refusals()) == 3


def test_an_answer_that_a_relay_changes_is_refused(pair: Pair) -> None:
    pair.way.back = _tampered
    with pytest.raises(Refused, match="changed"):
        pair.peer.ask(EchoSide.echo, ROWS)


def test_a_message_announced_as_ten_gigabytes_takes_no_memory(pair: Pair) -> None:
    with pytest.raises(Refused, match=r"10,000,000,000 bytes is larger"):
        pair.engine._frame("lab", {"do": "piece", "sizes": [10**10]}, b"x")
    assert pair.refusals() == ["unread"]
    with pytest.raises(Refused, match="not as long"):
        pair.engine._frame("lab", {"do": "deliver", "sizes": [4]}, b"12345")


def test_a_frame_of_many_large_questions_takes_the_memory_of_one(pair: Pair) -> None:
    large = EchoSide.operations["large"].takes
    message = pair.driver.boundary.release("echo", "large", "lab", large, [{"rows": 3000}])
    came = pair.engine._ask("lab", [sites._Asked.of(message)] * 3)
    assert len(came.answers) == 1
    assert "only the last may ask for much" in str(came.error)
    assert pair.refusals() == ["large", "large"]


@pytest.mark.parametrize(
    ("head", "body", "error"),
    [
        ({"do": "deliver", "sizes": [3]}, b"abc", Refused),
        ({"do": "deliver", "sizes": [3, -1]}, b"abc", Refused),
        ({"do": "deliver", "sizes": 3}, b"abc", Refused),
        ({"do": "fly"}, b"", Refused),
        ({"do": "open", "session": "s", "side": "os:system"}, b"", Refused),
        (
            {"do": "open", "session": "s", "side": "interlace.methods.bottom:BottomSide"},
            b"",
            Refused,
        ),
        ({"do": "open"}, b"", PartyFailed),
        ({}, b"", PartyFailed),
    ],
)
def test_what_no_driver_of_ours_asks_is_refused(
    pair: Pair, head: dict[str, Any], body: bytes, error: type[Exception]
) -> None:
    with pytest.raises(error):
        pair.engine._frame("lab", head, body, "x")
    assert torch.equal(pair.peer.ask(EchoSide.echo, ROWS), ROWS)


def _sent(pair: Pair, message: Message) -> Message:
    return pair.engine.deliver(message)


def test_messages_of_a_wrong_kind_shape_or_sender_are_refused_and_noted(pair: Pair) -> None:
    boundary = pair.driver.boundary
    slots = EchoSide.operations
    wrong_kind = boundary.release("echo", "echo", "lab", slots["large"].takes, [{"rows": 1}])
    right = boundary.release("echo", "echo", "lab", slots["echo"].takes, [ROWS])
    wrong_shape = Message("echo", "echo", "hospital", "lab", 0, right.parts)
    wrong_shape.parts[0].value = torch.ones(2, 2, dtype=torch.int64)
    foreign = Message("echo", "echo", "registry", "lab", 0, right.parts)
    for message, why in (
        (wrong_kind, "came as control"),
        (wrong_shape, "2 dimensions"),
        (foreign, "not who sent it"),
        (Message("other", "echo", "hospital", "lab", 0, ()), "no operation"),
    ):
        with pytest.raises(Refused, match=why):
            _sent(pair, message)
    assert len(pair.refusals()) == 4


@pytest.mark.parametrize("error", ["data", "python"])
def test_an_error_that_quotes_a_table_crosses_by_its_type_alone(pair: Pair, error: str) -> None:
    with pytest.raises(PartyFailed) as failed:
        pair.peer.ask(EchoSide.quote, {"error": error})
    text = str(failed.value)
    assert "own log" in text
    assert "income" not in text
    assert "7" not in text


@pytest.mark.parametrize("error", [["\x1b[2J"], "\x1b[2J" + "x" * 9999])
def test_a_partners_name_for_its_error_is_legible_and_short(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, error: object
) -> None:
    monkeypatch.setattr("interlace.engines.sites._unpacked", lambda _: ({"error": error}, b""))
    with pytest.raises(PartyFailed) as failed:
        pair.peer.ask(EchoSide.echo, ROWS)
    assert str(failed.value).isprintable()
    assert len(str(failed.value)) < 1000


def test_a_policys_no_crosses_in_its_own_words(pair: Pair) -> None:
    with pytest.raises(PolicyError, match="part of its records"):
        pair.peer.ask(EchoSide.features)


def test_nobody_is_answered_before_the_party_has_approved(
    hospital: Identity, lab: Identity
) -> None:
    said = Gate("waiting", "not yet")
    _, partner = _parties()
    answering = Answering(
        "lab", "hospital", MEETING, lab, gate=lambda: said, party=lambda: partner, sides=[EchoSide]
    )
    engine = Sites("hospital", MEETING, hospital, Way(answering.receive), patience=0.0)
    engine.join("lab")
    assert engine.state("lab") == said
    with pytest.raises(Refused, match="has not approved"):
        engine.open("echo", EchoSide, "lab", "hospital")
    said = Gate("approved", "", "{}")
    engine.open("echo", EchoSide, "lab", "hospital")
    assert engine.state("lab").word == "{}"


def test_a_partner_hears_what_the_run_came_to(pair: Pair) -> None:
    pair.engine.end("lab", "failed", "a KeyError at 'hospital'")
    assert pair.answering.outcome == ("failed", "a KeyError at 'hospital'")


def test_a_party_that_is_not_in_the_run_is_no_receiver(pair: Pair) -> None:
    with pytest.raises(JobError, match="no party 'bank'"):
        pair.engine.deliver(Message("echo", "echo", "hospital", "bank", 0))


def test_a_partner_that_sends_less_than_it_announced_does_not_keep_the_driver(pair: Pair) -> None:
    pair.answering._rest = memoryview(b"")
    answered = pair.answering._asked_for

    def short(head: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        return ({}, b"") if head["do"] == "more" else answered(head, body)

    pair.answering._asked_for = short  # type: ignore[method-assign]
    with pytest.raises(Refused, match=r"announced .* and sent"):
        pair.peer.ask(EchoSide.large, {"rows": 3000})
    for sizes in (None, "1", ["1"], [-1], [10**12], [0, 0]):
        pair.answering._asked_for = lambda _head, _body, sizes=sizes: ({"sizes": sizes}, b"")  # type: ignore[method-assign,misc]
        with pytest.raises(Refused, match="too many bytes"):
            pair.peer.ask(EchoSide.echo, ROWS)


def test_a_reason_moves_no_cursor(pair: Pair) -> None:
    pair.engine.end("lab", "failed", "\x1b[2Jfine\n")
    assert pair.answering.outcome == ("failed", " [2Jfine ")
    pair.way.back = lambda _answer: b"-\x1b]0;owned\x07"
    with pytest.raises(Refused, match=r"^ \]0;owned $"):
        pair.peer.ask(EchoSide.echo, ROWS)


# -- what nobody waits for ------------------------------------------------------------------------


def _passed(party: Party) -> list[tuple[Any, ...]]:
    return [
        (e.direction, e.operation, e.kind, e.shape, e.bytes_after, e.round)
        for e in party.boundary.ledger.entries()
    ]


def test_what_is_posted_goes_in_one_frame_with_what_is_asked_next(pair: Pair) -> None:
    pair.peer.post(EchoSide.note, {"name": "a"})
    pair.peer.post(EchoSide.note, {"name": "b"})
    assert EchoSide.notes == []
    before = len(pair.way.sent)
    assert pair.peer.ask(EchoSide.noted) == {"names": ["a", "b"]}
    assert len(pair.way.sent) == before + 1


def test_each_posted_message_is_noted_as_if_it_had_been_waited_for(pair: Pair) -> None:
    def notes() -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
        return _passed(pair.driver), _passed(pair.partner)

    def new(before: Any, after: Any) -> list[list[tuple[Any, ...]]]:
        return [sorted(b[len(a) :]) for a, b in zip(before, after, strict=True)]

    start = notes()
    for name in "ab":
        pair.peer.ask(EchoSide.note, {"name": name})
        pair.peer.ask(EchoSide.echo, ROWS)
    middle = notes()
    for name in "ab":
        pair.peer.post(EchoSide.note, {"name": name})
        pair.peer.ask(EchoSide.echo, ROWS)
    waited, posted = new(start, middle), new(middle, notes())
    assert waited == posted
    assert sum(row[:2] == ("received", "note") for row in posted[0]) == 2  # that they are done


@pytest.mark.parametrize("wire", [None, False, True])
def test_an_error_of_what_was_posted_is_raised_next_and_names_it(
    pair: Pair, wire: bool | None
) -> None:
    """The same over sites (``None``) and in one process."""
    peer = pair.peer
    if wire is not None:
        engine = InProcess([pair.driver, pair.partner], wire=wire)
        peer = Peer(pair.driver, "lab", engine, "echo")
    for name in ("a", None, "b"):
        peer.post(EchoSide.note, {"name": name})
    with pytest.raises(Refused, match="'note', which was sent before: there is no name"):
        peer.ask(EchoSide.echo, ROWS)
    assert EchoSide.notes == ["a"]
    assert EchoSide.calls == 0
    peer.post(EchoSide.quote, {"error": "python"})
    with pytest.raises(PartyFailed, match="'lab' could not answer 'quote'") as failed:
        peer.settle()
    assert "income" not in str(failed.value)
    assert torch.equal(peer.ask(EchoSide.echo, ROWS), ROWS)  # the site goes on


@pytest.mark.parametrize("wire", [None, False, True])
def test_a_training_does_not_hear_what_went_wrong_in_the_one_before(
    pair: Pair, wire: bool | None
) -> None:
    engine = pair.engine if wire is None else InProcess([pair.driver, pair.partner], wire=wire)
    federation = Federation(pair.driver, ["lab"], engine)
    peer = Peer(pair.driver, "lab", engine, "echo")
    for left in (lambda: peer.start(EchoSide.quote, {"error": "data"}), lambda: None):
        left()
        peer.post(EchoSide.note, {"name": None})
        federation.let_go()
        assert torch.equal(peer.ask(EchoSide.echo, ROWS), ROWS)
    peer.start(EchoSide.echo, ROWS)
    federation.let_go()
    assert EchoSide.calls == 3  # it was carried out, if late


def test_who_has_stopped_everything_sends_nothing_that_was_posted(
    pair: Pair, tmp_path: Path
) -> None:
    boundary, stop = pair.driver.boundary, tmp_path / "STOP"
    boundary.policy = boundary.policy.model_copy(update={"stop_file": stop})
    pair.peer.post(EchoSide.note, {"name": "a"})
    stop.touch()
    Federation(pair.driver, ["lab"], pair.engine).let_go()
    with pytest.raises(PolicyError, match="stopped everything"):
        pair.peer.ask(EchoSide.noted)
    assert EchoSide.notes == []


def test_a_partner_who_is_away_is_not_let_go(pair: Pair) -> None:
    pair.peer.post(EchoSide.note, {"name": "a"})
    pair.way.there = lambda _frame: None
    with pytest.raises(PartyAway):
        Federation(pair.driver, ["lab"], pair.engine).let_go()


def test_what_follows_a_failure_in_its_frame_is_refused_and_noted(pair: Pair) -> None:
    for name in (None, "b"):
        pair.peer.post(EchoSide.note, {"name": name})
    with pytest.raises(Refused):
        pair.peer.ask(EchoSide.echo, ROWS)
    assert pair.refusals() == ["note", "echo"]


def test_a_policy_counts_each_posted_message(pair: Pair) -> None:
    boundary = pair.partner.boundary
    boundary.policy = boundary.policy.model_copy(update={"max_requests": boundary.requests + 2})
    for name in "abc":
        pair.peer.post(EchoSide.note, {"name": name})
    with pytest.raises(Refused, match=r"'note', which was sent before: .* at most 2"):
        pair.peer.settle()
    assert EchoSide.notes == ["a", "b"]


@pytest.mark.parametrize("where", ["there", "back"])
def test_a_lost_frame_with_posted_messages_is_carried_out_once(pair: Pair, where: str) -> None:
    lost = iter([True, True])
    setattr(pair.way, where, lambda frame: None if next(lost, False) else frame)
    pair.peer.post(EchoSide.note, {"name": "a"})
    assert torch.equal(pair.peer.ask(EchoSide.echo, ROWS), ROWS)
    assert (EchoSide.notes, EchoSide.calls) == (["a"], 1)


def test_what_is_posted_does_not_pile_up(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sites, "MOST_TOGETHER", 4)
    for name in "abc":
        pair.peer.post(EchoSide.note, {"name": name})
    assert EchoSide.notes == ["a", "b", "c"]
    monkeypatch.setattr(sites, "PIECE", 1000)
    pair.peer.post(EchoSide.note, {"name": "x" * 2000})
    assert len(EchoSide.notes) == 4
    pair.peer.post(EchoSide.note, {"name": "d"})
    many = torch.arange(1000)  # for which there is no room in the same frame
    assert torch.equal(pair.peer.ask(EchoSide.echo, many), many)
    assert EchoSide.notes[-1] == "d"


def test_only_what_has_no_answer_can_be_posted(pair: Pair) -> None:
    with pytest.raises(TypeError, match="'noted' has an answer"):
        pair.peer.post(EchoSide.noted)  # type: ignore[arg-type]


def test_a_conversation_opens_after_what_was_posted(pair: Pair) -> None:
    pair.peer.post(EchoSide.note, {"name": "a"})
    pair.engine.open("other", EchoSide, "lab", "hospital")
    assert EchoSide.notes == ["a"]


@pytest.mark.parametrize(
    "method",
    [
        SplitVFL(epochs=1, validation=0.0),
        FederatedTransfer(epochs=1, validation=0.0),
        MixedVFL(rounds=1, validation=0.0),
    ],
    ids=lambda method: type(method).__name__,
)
def test_a_training_ends_with_nothing_still_to_be_carried_out(pair: Pair, method: Method) -> None:
    weights = frozenset({Kind.MODEL_WEIGHTS})
    for boundary in (pair.driver.boundary, pair.partner.boundary):
        boundary.policy = boundary.policy.model_copy(update={"allow_also": weights})
    fed = Federation(pair.driver, ["lab"], pair.engine)
    method.fit(fed)
    waiting: list[Message] = []
    deliver = pair.partner.answer
    pair.partner.answer = lambda message: waiting.append(message) or deliver(message)  # type: ignore[method-assign,func-returns-value]
    pair.engine.settle("lab")
    assert waiting == []


def test_a_training_that_is_resumed_has_lost_nothing_that_was_posted(
    hospital: Identity, lab: Identity, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backward is held back when the epoch's checkpoint is asked for, and another when the
    driver falls out."""
    monkeypatch.setattr(sites, "PAUSE", 0.0)
    me, partner = _parties()

    def federation(job: str) -> Federation:
        for party in (me, partner):
            party.folder = tmp_path / party.name
            party.train_anew(5)
        answering = Answering(
            "lab",
            "hospital",
            Meeting("digest", job),
            lab,
            gate=lambda: Gate("approved"),
            party=lambda: partner,
            sides=sides_in(
                [f"interlace.{m}" for m in ("methods.vertical.split", "align.dh", "party.run")]
            ),
        )
        engine = Sites(
            "hospital", Meeting("digest", job), hospital, Way(answering.receive), patience=0.2
        )
        engine.join("lab")
        return Federation(me, ["lab"], engine)

    method = {"epochs": 3, "batch_size": 16, "validation": 0.0}
    whole = SplitVFL(**method).fit(federation("one"), checkpoint="whole")
    losses, steps = SplitVFL._losses, iter(range(7))  # 5 batches make an epoch

    def failing(self: SplitVFL, *args: Any) -> tuple[Tensor, Tensor]:
        if next(steps, None) is None:
            raise KeyboardInterrupt
        return losses(self, *args)

    monkeypatch.setattr(SplitVFL, "_losses", failing)
    with pytest.raises(KeyboardInterrupt):
        SplitVFL(**method).fit(federation("two"), checkpoint="cut")
    monkeypatch.setattr(SplitVFL, "_losses", losses)
    resumed = SplitVFL(**method).fit(federation("three"), checkpoint="cut")
    assert [e.number for e in resumed.history_] == [1, 2, 3]
    for a, b in zip(whole.top_.parameters(), resumed.top_.parameters(), strict=True):
        assert torch.equal(a, b)
    for name in ("whole", "cut"):
        (resumed if name == "cut" else whole).save(name)
    ours, theirs = (
        (tmp_path / "lab" / "models" / name / "state.safetensors").read_bytes()
        for name in ("whole", "cut")
    )
    assert ours == theirs


# -- several partners at once ----------------------------------------------------------------------


def test_partners_who_are_started_work_at_once(
    hospital: Identity, authority: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = threading.Barrier(2, timeout=20)  # nobody passes alone

    class MeetingSide(PassiveSide):
        @operation
        def meet(self) -> Control:
            together.wait()
            return {"name": self.party.name}

    me, _ = _parties()
    engine_carry: dict[str, Callable[[bytes], bytes]] = {}
    engine = Sites(
        "hospital",
        MEETING,
        hospital,
        lambda party, frame, _seconds: engine_carry[party](frame),
        patience=0.2,
    )
    peers = {}
    for name in ("lab", "registry"):
        partner = Party(name, pl.DataFrame({"id": [1, 2], "x": [0.0, 1.0]}))
        answering = Answering(
            name,
            "hospital",
            MEETING,
            authority.issue(name),
            gate=lambda: Gate("approved"),
            party=lambda partner=partner: partner,  # type: ignore[misc]
            sides=[MeetingSide],
        )
        engine_carry[name] = answering.receive
        engine.join(name)
        engine.open("meet", MeetingSide, name, "hospital")
        peers[name] = Peer(me, name, engine, "meet")
    asked = [peer.start(MeetingSide.meet) for peer in peers.values()]
    assert [answer()["name"] for answer in asked] == ["lab", "registry"]


def test_an_error_of_what_was_started_is_raised_where_it_is_waited_for(pair: Pair) -> None:
    answer = pair.peer.start(EchoSide.quote, {"error": "data"})
    assert torch.equal(pair.peer.ask(EchoSide.echo, ROWS), ROWS)  # in turn
    with pytest.raises(PartyFailed, match="quote"):
        answer()


# -- hellos ----------------------------------------------------------------------------------------


def _hello(identity: Identity, me: str = "hospital", meeting: Meeting = MEETING) -> bytes:
    return Line(me, "lab", meeting, identity).hello()


def test_a_hello_of_another_federation_run_or_party_is_refused(
    authority: Any, other_authority: Any, hospital: Identity, lab: Identity
) -> None:
    for hello, why in (
        (_hello(other_authority.issue("hospital")), "not of this federation"),
        (_hello(authority.issue("hospital", days=-1)), "not valid today"),
        (_hello(authority.issue("bank")), "names 'bank'"),
        (_hello(hospital, me="bank"), "another run, job or party"),
        (_hello(hospital, meeting=Meeting("digest", "job-2")), "another run, job or party"),
        (_hello(hospital, meeting=Meeting("other", "job-1")), "another run, job or party"),
        (b"{}", "not a hello"),
        (b"[1]", "not a hello"),
        (b"\xff", "not a hello"),
        (b"x" * 100_000, "not a hello"),
    ):
        with pytest.raises(Refused, match=why):
            Line("lab", "hospital", MEETING, lab).meet(hello)


def test_a_hello_whose_key_was_swapped_is_refused(hospital: Identity, lab: Identity) -> None:
    told = json.loads(_hello(hospital))
    told["key"] = Line("relay", "lab", MEETING, hospital).key
    with pytest.raises(Refused, match="not signed"):
        Line("lab", "hospital", MEETING, lab).meet(json.dumps(told).encode())


def test_an_old_answer_to_a_hello_is_refused(hospital: Identity, lab: Identity) -> None:
    old = Line("lab", "hospital", MEETING, lab).hello(Line("x", "lab", MEETING, hospital).key)
    line = Line("hospital", "lab", MEETING, hospital)
    with pytest.raises(Refused, match="another run, job or party"):
        line.meet(old, answers=line.key)


def test_a_run_has_one_hello(pair: Pair, hospital: Identity) -> None:
    hello = pair.way.sent[0]
    assert pair.way.receive(hello).startswith(b"+")  # its answer was lost, and it is asked again
    other = b"H" + bytes(8) + _hello(hospital)
    assert b"said hello before" in pair.way.receive(other)


def test_frames_hide_what_they_say(pair: Pair) -> None:
    def secret(rows: Tensor) -> bytes:
        pair.peer.ask(EchoSide.echo, rows)
        return pair.way.sent[-1]

    frame = secret(torch.full((64,), 0x4142434445464748))
    assert b"HGFEDCBA" not in frame
    assert b"echo" not in frame
    assert frame[9:] != secret(torch.full((64,), 0x4142434445464748))[9:]


def test_a_partner_who_was_away_too_long_is_asked_again_when_it_is_back(pair: Pair) -> None:
    """Its late answer is nobody's: what is asked next is answered, each frame carried out once."""
    for lose in ("there", "back"):
        calls = EchoSide.calls
        setattr(pair.way, lose, lambda _frame: None)
        for _ in range(2):
            with pytest.raises(PartyAway):
                pair.peer.ask(EchoSide.echo, ROWS)
        setattr(pair.way, lose, lambda frame: frame)
        assert torch.equal(pair.peer.ask(EchoSide.echo, ROWS + 1), ROWS + 1)
        assert EchoSide.calls == calls + 2  # the first that was given up, and this one
    assert pair.refusals() == []
