"""How much, about whom and with whom: the bounds that a policy sets, held at the boundary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from interlace.boundary import Boundary, Kind, Ledger, Policy, Slot
from interlace.boundary.message import Message, Part
from interlace.errors import PolicyError, Refused
from interlace.party import Party

ROWS = torch.arange(4)


def asked(receiver: str = "vendor") -> Message:
    part = Part(Kind.ROW_SELECTION, ROWS)
    return Message("split-1", "forward", "insurer", receiver, 1, (part,))


def test_bytes_of_one_kind_are_limited_and_others_are_not(boundary: Any, release: Any) -> None:
    size = release(boundary(), torch.zeros(4, 4)).encoded_size()
    out = boundary(max_bytes_of={Kind.EMBEDDING: size})
    release(out, torch.zeros(4, 4))
    with pytest.raises(PolicyError, match=f"at most {size:,} bytes of embedding"):
        release(out, torch.zeros(4, 4))
    release(out, torch.zeros(4, 4), Kind.GRADIENT)
    assert out.sent_of[Kind.EMBEDDING] == size


def test_a_resumed_party_counts_on(boundary: Any, release: Any) -> None:
    size = release(boundary(), torch.zeros(4, 4)).encoded_size()
    first = boundary(max_bytes_of={Kind.EMBEDDING: size}, max_requests=1)
    release(first, torch.zeros(4, 4))
    first.answering(asked())
    resumed = boundary(max_bytes_of={Kind.EMBEDDING: size}, max_requests=1)
    resumed.load_state(first.state())
    with pytest.raises(PolicyError, match="of embedding"):
        release(resumed, torch.zeros(4, 4))
    with pytest.raises(Refused, match="at most 1 requests"):
        resumed.answering(asked())


def test_what_left_after_a_checkpoint_counts_too(boundary: Any, release: Any) -> None:
    size = release(boundary(), torch.zeros(4, 4)).encoded_size()
    out = boundary(max_bytes_of={Kind.EMBEDDING: size}, max_requests=1)
    checkpoint = out.state()
    out.answering(asked())
    release(out, torch.zeros(4, 4))
    out.load_state(checkpoint)
    with pytest.raises(PolicyError, match="of embedding"):
        release(out, torch.zeros(4, 4))
    with pytest.raises(Refused, match="at most 1 requests"):
        out.answering(asked())


def test_a_new_process_counts_on_from_the_ledger(boundary: Any, release: Any) -> None:
    out = boundary()
    release(out, torch.zeros(4, 4))
    out.admit(asked(out.party), [Slot("rows", Kind.ROW_SELECTION)])
    later = boundary(max_bytes=2 * out.sent_bytes - 1)
    later.go_on_after(out.ledger)
    assert later.sent_of == out.ledger.sent_by(out.party)
    assert later.sent_of[Kind.EMBEDDING] > 0
    assert later.requests == 1
    with pytest.raises(PolicyError, match="`max_bytes`"):
        release(later, torch.zeros(4, 4))


def test_people_are_counted_as_often_as_they_come(boundary: Any, release: Any) -> None:
    out = boundary(max_people=8)
    for _ in range(2):
        out.about(ROWS)
        release(out, torch.zeros(4, 4))
    resumed = boundary(max_people=8)
    resumed.load_state(out.state())
    for counted in (out, resumed):
        counted.about(ROWS[:1])
        with pytest.raises(PolicyError, match="at most 8 people in a run"):
            release(counted, torch.zeros(1, 4))
        assert counted.people == 8


def test_the_next_training_of_a_run_counts_on_and_another_run_does_not(release: Any) -> None:
    party = Party("vendor", {"id": ["a", "b"], "x": [1.0, 2.0]})
    party.policy = Policy(max_bytes_of={Kind.EMBEDDING: 10_000})
    run = Ledger()
    party.record_in(run, seed=1)
    release(party.boundary, torch.zeros(4, 4))
    party.record_in(run, seed=2)
    assert party.boundary.sent_of[Kind.EMBEDDING] == party.boundary.sent_bytes > 0
    party.record_in(Ledger(), seed=2)
    assert not party.boundary.sent_of
    assert not party.boundary.sent_bytes


def test_what_a_run_tells_of_one_person_is_limited_over_kinds_and_trainings(release: Any) -> None:
    noise = [{"clip": {"norm": 1.0}}, {"laplace": {"scale": 4.0}}]
    party = Party("vendor", {"id": ["a", "b"], "x": [1.0, 2.0]})
    party.policy = Policy(
        guards={Kind.EMBEDDING: noise, Kind.PARTIAL_SCORE: noise}, max_epsilon=2.0
    )
    run = Ledger()
    party.record_in(run, seed=1)
    each = 0.5  # 2√1 / 4
    for kind in (Kind.EMBEDDING, Kind.PARTIAL_SCORE):
        for person in (ROWS[:1], ROWS[1:2]):  # another person is no further release of the first
            release(party.boundary, torch.zeros(1, 1), kind, rows=person)
    assert party.boundary.epsilon == pytest.approx(2 * each)
    party.record_in(run, seed=2)
    checkpoint = party.boundary.state()
    assert party.boundary.epsilon == pytest.approx(2 * each)
    release(party.boundary, torch.zeros(1, 1), rows=ROWS[:1])
    kept = party.boundary.state()
    party.boundary.load_state(checkpoint)  # takes nothing back
    release(party.boundary, torch.zeros(1, 1), rows=ROWS[:1])
    sent = party.boundary.sent_bytes
    with pytest.raises(PolicyError, match=r"at most epsilon 2 in a run.* more noise"):
        release(party.boundary, torch.zeros(1, 1), rows=ROWS[:1])
    assert party.boundary.sent_bytes == sent
    release(party.boundary, torch.zeros(1, 1), Kind.GRADIENT)  # nothing is claimed of it
    later = Boundary("vendor", party.policy, Ledger(), seed=1)
    later.load_state(kept)
    assert later.epsilon == pytest.approx(3 * each)


@pytest.mark.parametrize(
    ("bound", "said", "way_out"),
    [
        ({"max_rows": 3}, "max_rows", "a smaller one, or raise `max_rows`"),
        ({"smallest_group": 5}, "smallest_group", "a larger one .*, or lower `smallest_group`"),
    ],
)
def test_an_answer_about_too_many_or_too_few_people_stays(
    bound: dict[str, int], said: str, way_out: str, boundary: Any, release: Any
) -> None:
    out = boundary(**bound)
    why = f"for 4 people at once: `{said}`.*`batch_size`, set {way_out}"
    with pytest.raises(PolicyError, match=why):
        release(out, torch.zeros(4, 4), rows=ROWS)
    assert out.sent_bytes == 0
    release(out, {"epoch": 1}, Kind.CONTROL, rows=ROWS)  # says nothing of each of them


def test_a_party_that_has_stopped_lets_nothing_out_and_takes_nothing_in(
    tmp_path: Path, boundary: Any, release: Any
) -> None:
    stop = tmp_path / "STOP"
    party: Boundary = boundary(stop_file=stop)
    release(party, torch.zeros(4, 4))
    stop.touch()
    with pytest.raises(PolicyError, match="has stopped everything"):
        release(party, torch.zeros(4, 4))
    with pytest.raises(Refused, match="it has stopped everything"):
        party.admit(asked(), [Slot("rows", Kind.ROW_SELECTION)])
    assert [e.direction for e in party.ledger.entries()] == ["sent", "refused"]
    stop.unlink()
    assert party.admit(asked(), [Slot("rows", Kind.ROW_SELECTION)])


def test_requests_are_counted_where_they_are_answered() -> None:
    party = Party("vendor", {"id": ["a", "b"], "x": [1.0, 2.0]}, policy=Policy(max_requests=1))
    party.boundary.answering(asked())
    with pytest.raises(Refused, match="`max_requests`"):
        party.boundary.answering(asked())


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ({"methods": {"split"}}, "takes no part in 'agg' (`methods`)"),
        ({"partners": {"bank"}}, "does not train with 'shop' (`partners`)"),
        ({"purposes": {"research"}}, "not for 'marketing' (`purposes`)"),
        ({"methods": set()}, "takes no part in 'agg' (`methods`)"),
    ],
)
def test_a_party_says_what_it_does_not_take_part_in(policy: dict[str, Any], said: str) -> None:
    objection = Policy(**policy).objection(["split", "agg"], ["bank", "shop"], "marketing")
    assert objection is not None
    assert said in objection
    assert "research" not in objection  # what else a policy says is not the driver's affair


def test_a_policy_without_such_lists_objects_to_nothing() -> None:
    assert Policy().objection(["agg"], ["anybody"], "") is None
    listed = Policy(methods={"agg"}, partners={"bank"}, purposes={""})
    assert listed.objection(["agg"], ["bank"], "") is None


@pytest.mark.parametrize(
    "bad",
    [
        {"max_rows": 0},
        {"max_bytes_of": {"embedding": -1}},
        {"max_bytes_of": {"thoughts": 1}},
        {"budget": {"epsilon": 0}},
        {"approve": [{"driver": ["bank"]}]},
    ],
)
def test_bounds_that_make_no_sense_are_errors(bad: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Policy(**bad)
