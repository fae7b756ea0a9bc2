"""The sequence diagram holds every message, once."""

from __future__ import annotations

from interlace.boundary import Kind
from interlace.boundary.kinds import NEVER_LEAVES
from interlace.job.results import Flow, Results
from interlace.report.conversation import EXPLAINED, conversation


def flow(
    session: str, operation: str, kind: str, sender: str, receiver: str, messages: int = 1
) -> Flow:
    return Flow(
        session=session,
        operation=operation,
        kind=kind,
        sender=sender,
        receiver=receiver,
        messages=messages,
        bytes_before=8,
        bytes_after=10,
        shape="4",
        dtype="int64",
        guard="",
    )


def test_every_message_and_byte_is_drawn(results: Results) -> None:
    talk = conversation([(p.name, p.active) for p in results.parties], results.flows)
    steps = [s for phase in talk.phases for block in phase.blocks for s in block.steps]
    assert sum(s.messages for s in steps) == sum(f.messages for f in results.flows)
    assert sum(s.bytes_after for s in steps) == sum(f.bytes_after for f in results.flows)


def test_partners_asked_the_same_share_an_arrow_and_loops_are_framed() -> None:
    parties = [("b", False), ("a", True), ("c", False)]
    flows = [
        flow(session, operation, kind, *ends, messages)
        for partner in ("b", "c")
        for session, operation, kind, ends, messages in (
            ("align", "begin", "control", ("a", partner), 1),
            ("align", "begin", "blinded ids", (partner, "a"), 1),
            ("split", "begin", "row selection", ("a", partner), 9),
            ("split", "begin", "embedding", (partner, "a"), 9),
        )
    ]
    talk = conversation(parties, flows)
    assert [lane.name for lane in talk.lanes] == ["a", "b", "c"]
    matching, learning = talk.phases
    assert matching.title == "Finding the shared people"
    assert [b.times for b in matching.blocks] == [1]
    (loop,) = learning.blocks
    assert loop.times == 9
    asked, answered = loop.steps
    assert (asked.senders, asked.receivers) == (("a",), ("b", "c"))
    assert (answered.senders, answered.receivers) == (("b", "c"), ("a",))
    assert all(rightwards for _, rightwards in asked.heads)
    assert not any(rightwards for _, rightwards in answered.heads)
    assert asked.messages == 18
    assert (asked.left, asked.right) == (talk.lanes[0].x, talk.lanes[2].x)


def test_passive_parties_among_themselves() -> None:
    parties = [("a", True), ("b", False), ("c", False)]
    talk = conversation(
        parties,
        [flow("m", "mask", "ciphertext", "b", "c"), flow("m", "mask", "ciphertext", "c", "b")],
    )
    there, back = talk.phases[0].blocks[0].steps
    assert there.heads == ((talk.lanes[2].x, True),)
    assert back.heads == ((talk.lanes[1].x, False),)


def test_a_party_without_a_table_has_its_own_lane() -> None:
    flows = [
        flow("m", "open", "ciphertext", "a", "notary"),
        flow("m", "open", "ciphertext", "notary", "a"),
    ]
    talk = conversation([("a", True), ("b", False)], flows)
    assert [lane.name for lane in talk.lanes] == ["a", "b", "notary"]
    steps = [s for phase in talk.phases for block in phase.blocks for s in block.steps]
    assert [s.receivers for s in steps] == [("notary",), ("a",)]


def test_every_kind_that_can_leave_is_explained() -> None:
    assert set(EXPLAINED) == set(Kind) - NEVER_LEAVES
