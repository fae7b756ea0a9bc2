"""Labels and raw features cannot leave: every public path is tried."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from interlace.boundary import Boundary, Kind, Ledger, Policy, Slot
from interlace.boundary.boundary import MAX_JSON_BYTES, MAX_JSON_ITEMS
from interlace.boundary.kinds import FORMS, NEVER_LEAVES
from interlace.errors import PolicyError

Make = Callable[..., Boundary]
RECORDS = sorted(NEVER_LEAVES)
SECRET = 123456.789


def nothing_left(out: Boundary) -> bool:
    return out.sent_bytes == 0 and not list(out.ledger.entries())


# -- by kind -----------------------------------------------------------------------------------


def test_both_kinds_of_records_are_named() -> None:
    assert {Kind.RAW_FEATURES, Kind.LABELS} == NEVER_LEAVES
    assert set(FORMS) == set(Kind) - NEVER_LEAVES


@pytest.mark.parametrize("kind", RECORDS)
@pytest.mark.parametrize("allow", [lambda k: {k}, lambda k: set(Kind), lambda k: {k.value}])
def test_no_policy_allows_records(kind: Kind, allow: Any) -> None:
    with pytest.raises(ValidationError, match="no policy can allow"):
        Policy(allow=allow(kind))
    with pytest.raises(ValidationError, match="no policy can allow"):
        Policy.model_validate_json(f'{{"allow": ["{kind.value}"]}}')


@pytest.mark.parametrize("kind", RECORDS)
def test_a_policy_made_around_the_rules_lets_no_record_out(kind: Kind, release: Any) -> None:
    everything = frozenset(Kind)
    copied = Policy().model_copy(update={"allow": everything})
    bent = Policy()
    object.__setattr__(bent, "allow", everything)
    guarded = Policy.model_construct(
        allow=everything, guards={kind: [{"half": {}}]}, max_bytes=None
    )
    for policy in (Policy.model_construct(allow=everything, guards={}), copied, bent, guarded):
        out = Boundary("vendor", policy, Ledger(), seed=1)
        for as_what in (kind, kind.value):
            with pytest.raises(PolicyError, match="never leave a party"):
                release(out, torch.ones(2, 2), as_what)
        assert nothing_left(out)


def test_a_policy_cannot_be_changed_once_made(boundary: Make) -> None:
    with pytest.raises(ValidationError):
        boundary().policy.allow = frozenset(Kind)


@pytest.mark.parametrize("kind", RECORDS)
def test_no_guard_makes_a_record_releasable(kind: Kind) -> None:
    with pytest.raises(ValidationError, match="no guard can stand before them"):
        Policy(guards={kind: [{"clip": {"norm": 1.0}}]})


@pytest.mark.parametrize("kind", [Kind.ROW_SELECTION, Kind.CONTROL, Kind.METRIC, Kind.BLINDED_IDS])
def test_a_guard_that_could_not_act_is_no_policy(kind: Kind) -> None:
    with pytest.raises(ValidationError, match="guards change real numbers alone"):
        Policy(guards={kind: [{"half": {}}]})


def test_unknown_settings_and_kinds_are_named() -> None:
    with pytest.raises(ValidationError, match="alow"):
        Policy(alow=[])  # type: ignore[call-arg]
    with pytest.raises(ValidationError, match="embedding"):
        Policy(allow={"embeddings"})  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="max_bytes"):
        Policy(max_bytes=0)


def test_further_kinds_can_be_allowed_beside_the_usual_ones() -> None:
    policy = Policy.model_validate({"allow_also": ["model weights"]})
    assert policy.allowed == Policy().allow | {Kind.MODEL_WEIGHTS}
    with pytest.raises(ValidationError, match="no policy can allow labels"):
        Policy.model_validate({"allow_also": ["labels"]})


def test_what_is_not_allowed_stays_and_the_error_says_what_to_do(
    boundary: Make, release: Any
) -> None:
    assert Kind.MODEL_WEIGHTS not in Policy().allow
    out = boundary(allow={Kind.GRADIENT})
    with pytest.raises(PolicyError, match=r"'vendor'.*`policy: {allow_also: \[embedding\]}`"):
        release(out, torch.ones(2, 2))
    assert nothing_left(out)


def test_all_that_may_be_due_and_is_not_allowed_is_named_at_once(
    boundary: Make, release: Any
) -> None:
    out = boundary(allow={Kind.EMBEDDING})
    out.expect({Kind.EMBEDDING, Kind.METRIC, Kind.GRADIENT})
    with pytest.raises(
        PolicyError,
        match=r"does not let row selection leave, nor gradient and metric, which may be due too; "
        r"add `policy: {allow_also: \[row selection, gradient, metric\]}`.* or choose a method",
    ):
        release(out, torch.ones(2, dtype=torch.int64), Kind.ROW_SELECTION)
    with pytest.raises(PolicyError, match=r"blinded ids and control.*its party file$"):
        out.require([Kind.CONTROL, Kind.BLINDED_IDS, Kind.EMBEDDING])
    assert nothing_left(out)


def test_an_unknown_kind_of_slot_is_not_allowed(boundary: Make, release: Any) -> None:
    for kind in ("Labels", "anything", None):
        with pytest.raises(PolicyError):
            release(boundary(), torch.ones(2, 2), kind)


# -- by memory ---------------------------------------------------------------------------------


def views(x: Tensor) -> dict[str, Tensor]:
    array = x.numpy()
    return {
        "itself": x,
        "a view": x.view(-1, 2),
        "some rows": x[2:5],
        "a column": x[:, 1:2],
        "transposed": x.T,
        "reshaped": x.reshape(2, -1),
        "expanded": x[:1].expand(5, 4),
        "a parameter": nn.Parameter(x),
        "detached": x.detach(),
        "through numpy": torch.from_numpy(array),
        "later rows through numpy": torch.from_numpy(array[3:]),
        "a column through numpy": torch.from_numpy(array[:, 2:3]),
        "a buffer": torch.frombuffer(array[4:].data.cast("B"), dtype=torch.float32)[None],
        "dlpack": torch.from_dlpack(array[1:]),  # type: ignore[attr-defined]
        "other numbers": x.view(torch.float64),
        "strided": torch.as_strided(x, (2, 2), (1, 1), 3),
    }


@pytest.mark.parametrize("name", views(torch.randn(6, 4)))
@pytest.mark.parametrize("kind", [Kind.EMBEDDING, Kind.HISTOGRAM])
def test_records_do_not_leave_as_something_else(
    name: str, kind: Kind, boundary: Make, release: Any
) -> None:
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32))
    out = boundary()
    out.protect(x)
    with pytest.raises(PolicyError, match="part of its records"):
        release(out, views(x)[name], kind)
    assert nothing_left(out)


def test_a_part_that_was_protected_covers_only_itself(boundary: Make, release: Any) -> None:
    array = np.zeros((8, 4), dtype=np.float32)
    out = boundary()
    protected = torch.from_numpy(array[:4])
    out.protect(protected, torch.empty(0))
    with pytest.raises(PolicyError):
        release(out, torch.from_numpy(array))
    with pytest.raises(PolicyError):
        release(out, torch.from_numpy(array[3:]))
    release(out, torch.from_numpy(array[4:]))
    release(out, torch.from_numpy(array[:4].copy()))


def test_integer_labels_do_not_leave_as_a_selection_of_rows(boundary: Make, release: Any) -> None:
    y = torch.tensor([0, 1, 1, 0])
    out = boundary()
    out.protect(y)
    for value, kind in ((y[1:], Kind.ROW_SELECTION), (y, Kind.CLASS_COUNT)):
        with pytest.raises(PolicyError, match="part of its records"):
            release(out, value, kind)


def test_freed_records_do_not_forbid_what_takes_their_place(boundary: Make, release: Any) -> None:
    out = boundary()
    for _ in range(50):
        out.protect(torch.randn(64, 64))
        release(out, torch.randn(64, 64))
    view = torch.randn(64, 64)
    out.protect(view)
    view = view[10:]  # the tensor is gone, its memory is not
    with pytest.raises(PolicyError, match="part of its records"):
        release(out, view)
    assert len(out._private) <= 2


# -- by form -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        np.full((2, 2), SECRET, dtype=np.float32),
        [[SECRET, SECRET]],
        {"rows": [SECRET]},
        SECRET,
        None,
        torch.full((2,), SECRET),
        torch.full((2, 2), int(SECRET)),
        torch.full((2, 2), SECRET).to_sparse(),
        torch.full((2, 2), SECRET, dtype=torch.complex64),
    ],
    ids=lambda v: type(v).__name__,
)
def test_only_what_the_kind_says_leaves_and_errors_hold_no_values(
    value: Any, boundary: Make, release: Any
) -> None:
    # A list or an array would pass by every guard, and travel as JSON.
    out = boundary(guards={Kind.EMBEDDING: [{"clip": {"norm": 1.0}}]})
    with pytest.raises(PolicyError, match="cannot leave as embedding") as caught:
        release(out, value)
    assert "123456" not in str(caught.value)
    assert nothing_left(out)


@pytest.mark.parametrize(
    "value",
    [
        {"x": torch.tensor([SECRET])},
        {"x": np.array([SECRET])},
        {"x": np.float32(SECRET)},
        {"x": {"deep": [torch.tensor(SECRET)]}},
        {"x": b"123456.789"},
        {("a", "b"): SECRET},
        {"x": [SECRET] * (MAX_JSON_ITEMS + 1)},
        {str(i): SECRET for i in range(MAX_JSON_ITEMS + 1)},
        {"x": "123456.789 " * (MAX_JSON_BYTES // 10)},
        [SECRET],
        torch.tensor([SECRET]),
        "123456.789",
    ],
    ids=range(12),
)
@pytest.mark.parametrize("kind", [Kind.CONTROL, Kind.METRIC])
def test_settings_and_figures_carry_no_tables(
    value: Any, kind: Kind, boundary: Make, release: Any
) -> None:
    out = boundary()
    with pytest.raises(PolicyError, match=f"cannot leave as {kind}") as caught:
        release(out, value, kind)
    assert "123456" not in str(caught.value)
    assert nothing_left(out)


def test_a_circle_or_a_tower_is_not_json(boundary: Make, release: Any) -> None:
    circle: dict[str, Any] = {}
    circle["x"] = circle
    tower: dict[str, Any] = {}
    for _ in range(100_000):
        tower = {"x": tower}
    for value in (circle, tower):
        with pytest.raises(PolicyError):
            release(boundary(), value, Kind.CONTROL)


def test_json_is_handed_on_as_it_would_arrive(
    boundary: Make, release: Any, over_the_wire: Any
) -> None:
    value = {"widths": (64, 32), 3: None, "rate": 1e-3, "name": "Zoë", "on": True}
    message = release(boundary(), value, Kind.CONTROL)
    arrived = {"widths": [64, 32], "3": None, "rate": 1e-3, "name": "Zoë", "on": True}
    assert message.parts[0].value == arrived
    assert over_the_wire(message).parts[0].value == arrived
    value["rate"] = 5  # the sender's own dictionary is not the receiver's
    assert message.parts[0].value == arrived


# -- by size -----------------------------------------------------------------------------------


def test_the_allowance_of_bytes_is_a_limit_on_the_whole_run(boundary: Make, release: Any) -> None:
    size = release(boundary(), torch.zeros(4, 4)).encoded_size()
    out = boundary(max_bytes=2 * size)
    release(out, torch.zeros(4, 4))
    resumed = boundary(max_bytes=2 * size)
    resumed.load_state(out.state())
    for each in (out, resumed):
        release(each, torch.zeros(4, 4))
        with pytest.raises(PolicyError, match="`max_bytes`"):
            release(each, torch.zeros(4, 4))
        assert each.sent_bytes == 2 * size


def test_one_bad_value_holds_the_whole_message_back(boundary: Make) -> None:
    out = boundary(allow={Kind.EMBEDDING})
    slots = [Slot("h", Kind.EMBEDDING), Slot("g", Kind.GRADIENT)]
    with pytest.raises(PolicyError):
        out.release("s", "o", "insurer", slots, [torch.ones(2, 2), torch.ones(2, 2)])
    assert nothing_left(out)
    with pytest.raises(ValueError, match="shorter"):
        out.release("s", "o", "insurer", slots, [torch.ones(2, 2)])


def test_real_parties_do_not_share_a_generator() -> None:
    first, second = (Boundary("a", Policy(), Ledger()).generator.initial_seed() for _ in range(2))
    assert first != second
