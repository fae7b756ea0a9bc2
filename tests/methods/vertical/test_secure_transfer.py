"""Secure federated transfer learning: what travels, whose gradients come out, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from interlace import Federation
from interlace.errors import DataError, JobError, Refused
from interlace.methods.vertical import secure_transfer
from interlace.methods.vertical.secure_transfer import (
    Projection,
    SecureTransfer,
    SecureTransferSide,
    power_of_two,
)
from interlace.models import Optimisation
from interlace.party import Peer


def secure(**kw: Any) -> SecureTransfer:
    return SecureTransfer(**{"epochs": 2, "width": 2, **kw})


def said(fed: Federation) -> list[tuple[str, str, str]]:
    return [
        (f"{e.sender}→{e.receiver}", e.operation, e.kind)
        for e in fed.active.boundary.ledger.entries()
        if e.session != "alignment"
    ]


def test_the_transcript_is_the_protocol(limited: Any) -> None:
    fed = limited(classes=2)
    secure(epochs=1).fit(fed).outputs(fed.shared())
    down, up = "bank→shop", "shop→bank"

    def asks(operation: str, *kinds: str, answer: str = "control") -> list[tuple[str, str, str]]:
        return [*((down, operation, kind) for kind in kinds), (up, operation, answer)]

    one_dimension = [
        *asks("components", "control", answer="ciphertext"),
        *asks("open", "ciphertext", answer="ciphertext"),
        *asks("slope", "ciphertext", "control", answer="ciphertext"),
        *asks("unmask", "ciphertext"),
    ]
    assert said(fed) == [
        *asks("begin", "row selection", "row selection", "control"),
        *asks("terms", "control"),
        *asks("make_key", "control", answer="ciphertext"),
        *asks("take_key", "ciphertext"),
        *asks("scale", "control"),
        *one_dimension,
        *one_dimension,
        *asks("descend", "control"),
        *asks("finish", "control"),
        *asks("about", "row selection"),
        *asks("scores", "ciphertext", answer="ciphertext"),
    ]


def test_both_gradients_are_those_of_the_polynomial_loss(
    limited: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes out of the ciphertexts, against the whole loss differentiated in one place."""
    slopes: dict[str, np.ndarray] = {}
    weights: dict[str, np.ndarray] = {}

    def spy(self: Projection, slope: np.ndarray) -> None:
        slopes[self.party.name], weights[self.party.name] = slope, self.w.copy()

    monkeypatch.setattr(Projection, "descend", spy)
    fed = limited(classes=2, labelled=np.arange(200))
    model = secure(epochs=1, alignment=0.3, l2=0.05).fit(fed)
    shop = fed.engine.parties["shop"]
    side = shop.sides[model.session_]
    known = fed.labelled()
    shared = known.shared()
    z = {
        "bank": model.own_.z(shared.rows),
        "shop": side.projection.z(shop.shared_with("bank")[fed.positions("shop", shared.rows)]),
    }
    w = {n: torch.tensor(v, requires_grad=True) for n, v in weights.items()}
    u = {n: torch.from_numpy(z[n]) @ w[n] for n in z}
    t = 2.0 * known.y.double() - 1
    every = torch.from_numpy(model.own_.z(known.rows)) @ w["bank"]
    phi = (t[:, None] * every).mean(0)
    mine = 2.0 * shared.y.double() - 1
    score = u["shop"] @ phi
    loss = (np.log(2) - mine * score / 2 + score**2 / 8).mean()
    loss = loss + 0.3 * ((u["bank"] - u["shop"]) ** 2).sum(1).mean() / 2
    loss = loss + 0.025 * sum((v**2).sum() for v in w.values())
    loss.backward()
    for name, tensor in w.items():
        np.testing.assert_allclose(slopes[name], tensor.grad, rtol=1e-2, atol=2e-4)


def test_what_is_opened_says_nothing(limited: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key holders decrypt numbers that are random: other ones when all else is the same."""
    runs, post = [], Peer.post
    for _ in range(2):
        fed = limited(classes=2)
        shown: list[np.ndarray] = []

        def spy(peer: Any, operation: Any, *values: Any, shown: Any = shown) -> None:
            if operation.__name__ == "unmask":
                shown.append(values[0].numpy().view(np.int64))
            post(peer, operation, *values)

        monkeypatch.setattr(Peer, "post", spy)
        model = secure(epochs=1).fit(fed)
        monkeypatch.undo()
        runs.append((np.concatenate(shown), model.outputs(fed.shared())))
    assert (runs[0][0] != runs[1][0]).all()
    np.testing.assert_allclose(runs[0][1], runs[1][1], atol=1e-3)


def test_it_learns_and_the_wire_changes_nothing(limited: Any) -> None:
    scores = {}
    for wire in (False, True):
        train, test = limited(classes=2, wire=wire).split(60)
        model = secure(epochs=12, optimisation=Optimisation(learning_rate=0.1)).fit(train)
        scores[wire] = model.score(test)
        assert len(model.history_) == 12
    assert scores[True] == scores[False] > 0.85


def test_a_killed_training_goes_on_and_a_saved_model_predicts_the_same(
    limited: Any, tmp_path: Path
) -> None:
    class Killed(Exception):
        pass

    def stop(epoch: Any) -> None:
        if epoch.number == 2:
            raise Killed

    outputs = {}
    for folder in ("whole", "killed"):
        train, test = limited(classes=2, folder=tmp_path / folder).split(60)
        if folder == "killed":
            with pytest.raises(Killed):
                secure(epochs=4).fit(train, checkpoint="run", on_epoch=stop)
            train, test = limited(classes=2, folder=tmp_path / folder).split(60)
        model = secure(epochs=4).fit(train, checkpoint="run")
        outputs[folder] = model.outputs(test)
        assert [e.number for e in model.history_] == [1, 2, 3, 4]
    np.testing.assert_allclose(outputs["whole"], outputs["killed"], atol=1e-3)
    model.save("first")
    fresh = limited(classes=2, folder=tmp_path / "killed")
    again = secure(epochs=4).load("first", fresh)
    np.testing.assert_allclose(again.outputs(fresh.view(test.rows)), outputs["killed"], atol=1e-3)


def test_what_it_is_not_for(limited: Any, breast: Any, clinics: Any, diabetes: Any) -> None:
    with pytest.raises(JobError, match="two classes; the label is a multiclass"):
        secure().fit(limited(classes=3))
    with pytest.raises(JobError, match="two classes; the label is a regression"):
        secure().fit(diabetes())
    with pytest.raises(JobError, match="two parties; take the method 'transfer'"):
        secure().fit(clinics())
    with pytest.raises(DataError, match="no columns of its own"):
        secure().fit(limited(classes=2, own=False))
    few = breast().labelled()
    with pytest.raises(DataError, match="30 shared people for 21 columns are too few"):
        secure().fit(few.view(few.rows[:30]))


def test_only_masked_sums_are_opened(limited: Any) -> None:
    fed = limited(classes=2)
    model = secure(epochs=1).fit(fed)
    side = fed.engine.parties["shop"].sides[model.session_]
    plain = side.private.public.scalar_product(
        side.private.encrypt(np.ones(4, dtype=np.int64)), np.ones((4, 1), dtype=np.int64)
    )
    with pytest.raises(Refused, match="only masked sums"):
        model.peer_.ask(SecureTransferSide.open, plain.to_tensor())


def test_an_active_party_cannot_solve_for_embeddings(
    cut_people: Any, blobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own check stops it, and where that is left out, the partner's."""
    x, y = blobs(40, 2)
    people = {"bank": np.arange(30), "shop": np.r_[np.arange(16), np.arange(30, 40)]}
    fed = cut_people(x, y, {"bank": slice(0, 7), "shop": slice(7, 8)}, people)
    with pytest.raises(DataError, match=r"16 shared people for 8 columns.* tell it embeddings"):
        secure().fit(fed)
    monkeypatch.setattr(secure_transfer, "check_enough", lambda *_: None)
    with pytest.raises(Refused, match="party 'bank' has too many columns for 16 shared people"):
        secure().fit(fed)


@pytest.mark.parametrize("setting", [{"alignment": -0.1}, {"width": 65}, {"l2": -1.0}])
def test_settings_out_of_range_are_named(limited: Any, setting: dict[str, Any]) -> None:
    with pytest.raises(JobError, match=f"`{next(iter(setting))}`: Input should be"):
        secure(**setting).fit(limited(classes=2))


def test_a_unit_says_no_more_than_a_magnitude() -> None:
    assert power_of_two(3.7, 1) == power_of_two(2.1, 1) == 4.0
    assert power_of_two(1000.0, 2**20) * 2**20 >= 1000.0
