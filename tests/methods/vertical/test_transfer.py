"""Federated transfer learning: what Φ is, what travels, and that a partner's view is enough."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from interlace import Federation
from interlace.errors import DataError, JobError
from interlace.methods import FederatedTransfer
from interlace.methods.base import keep_aside
from interlace.methods.vertical.transfer import Translator, translate
from interlace.models import BottomSpec, Optimisation


def small(**kw: Any) -> FederatedTransfer:
    how = {
        "epochs": 15,
        "bottom": BottomSpec(hidden=(16,), width=8),
        "optimisation": Optimisation(learning_rate=5e-3),
    }
    return FederatedTransfer(**{**how, **kw})


def said(fed: Federation, since: int = 0) -> list[tuple[str, str, str, str]]:
    return [
        (f"{e.sender}→{e.receiver}", e.operation, e.kind, e.shape)
        for e in list(fed.active.boundary.ledger.entries())[since:]
    ]


def test_phi_is_the_signed_mean() -> None:
    u = torch.tensor([[1.0, 0], [0, 2], [3, 3]])
    phi = translate(u, torch.tensor([0, 1, 1]), 2)
    torch.testing.assert_close(phi[0], (u[0] - u[1] - u[2]) / 3)
    torch.testing.assert_close(phi[1], -phi[0])


def test_several_partners_speak_as_their_mean_and_own_columns_not_at_all() -> None:
    top = Translator(2, 3, 4)
    top.phi.copy_(torch.randn(3, 4))
    one, two, own = (torch.randn(5, 4) for _ in range(3))
    out = top([one, two, own])
    torch.testing.assert_close(out, (one + two) / 2 @ top.phi.T)
    assert torch.equal(out, top([one, two, torch.zeros(5, 4)]))


def test_the_transcript(breast: Any) -> None:
    fed = breast(missing=69, wire=True)
    fed.align()
    since = len(said(fed))
    small(epochs=1, batch_size=500, validation=0).fit(fed)
    down, up = "bank→vendor", "vendor→bank"
    assert said(fed, since) == [
        (down, "begin", "row selection", "0"),
        (down, "begin", "control", ""),
        (up, "begin", "control", ""),
        (down, "forward", "row selection", "500"),
        (up, "forward", "embedding", "500×8"),
        (down, "backward", "gradient", "500×8"),
        (up, "backward", "control", ""),
    ]


def test_the_wire_changes_nothing(breast: Any) -> None:
    runs = []
    for wire in (False, True):
        train, test = breast(wire=wire).split(0.3)
        runs.append(small(epochs=2).fit(train).predict_proba(test))
    np.testing.assert_array_equal(runs[0], runs[1])


def test_forty_shared_people_are_enough(breast: Any) -> None:
    fed = breast(missing=450)
    train, test = fed.split(79)
    assert len(train.shared().rows) == 40
    model = small(epochs=40, patience=None).fit(train)
    assert roc_auc_score(test.y, model.predict_proba(test)[:, 1]) > 0.93


def test_people_who_are_not_shared_shape_phi(breast: Any) -> None:
    fed = breast(missing=450)
    model = small(epochs=1, validation=0.0).fit(fed)
    rows = torch.from_numpy(fed.labelled().rows)
    phi = translate(model.own_.embed(rows), fed.labelled().y, 2)
    torch.testing.assert_close(model.top_.phi, phi)


def test_people_by_whom_the_epoch_is_chosen_have_no_part_in_phi(breast: Any) -> None:
    fed = breast(missing=450)
    model = small(epochs=1, validation=0.2).fit(fed)
    people = fed.shared().labelled()
    _, aside = keep_aside(len(people.rows), 0.2, fed.seed, people.y)
    others = fed.view(np.setdiff1d(fed.labelled().rows, people.rows[aside.numpy()]))
    phi = translate(model.own_.embed(torch.from_numpy(others.rows)), others.y, 2)
    torch.testing.assert_close(model.top_.phi, phi)


def test_three_parties_and_several_classes(federate: Any) -> None:
    from sklearn.datasets import load_wine

    x, y = load_wine(return_X_y=True)
    train, test = federate(x, y, [slice(5, 9), slice(9, 13)], slice(0, 5)).split(0.3)
    assert small(epochs=50).fit(train).score(test) > 0.8


def test_images(digits: Any) -> None:
    train, test = digits().split(0.3)
    flat = BottomSpec(network="mlp", hidden=(32,), width=16)
    assert small(bottom=flat, epochs=20).fit(train).score(test) > 0.5


def test_what_cannot_be(breast: Any, clinics: Any, diabetes: Any) -> None:
    with pytest.raises(JobError, match="it is for classes; the label is a regression"):
        small().fit(diabetes())
    with pytest.raises(DataError, match="nothing to transfer from"):
        small().fit(clinics())
    with pytest.raises(JobError, match="one width, since they lie in one space; they have 3, 8"):
        small().fit(breast(options={"vendor": {"bottom": torch.nn.Linear(20, 3)}}))


def test_new_people_are_named_by_what_was_learnt(breast: Any) -> None:
    fed = breast()
    model = small(epochs=2, validation=0.0).fit(fed)
    bank, vendor = fed.active.frame, fed.engine.parties["vendor"].frame
    new = fed.with_tables({"bank": bank[:50].drop("y"), "vendor": vendor})
    scores = model.predict_proba(new)
    np.testing.assert_allclose(scores, model.predict_proba(fed.view(np.arange(50))), rtol=1e-5)


class Killed(Exception):
    pass


@pytest.mark.parametrize("validation", [0.0, 0.1])
def test_a_killed_training_goes_on_to_the_same_result(
    breast: Any, tmp_path: Path, validation: float
) -> None:
    def fit(folder: Path, stop: int | None) -> np.ndarray:
        fed = breast(folder=folder, missing=100)

        def on_epoch(epoch: Any) -> None:
            if epoch.number == stop:
                raise Killed

        model = small(epochs=3, validation=validation)
        model.fit(fed, checkpoint="run", on_epoch=on_epoch)
        return model.predict_proba(fed.shared())

    whole = fit(tmp_path / "whole", None)
    with pytest.raises(Killed):
        fit(tmp_path / "killed", 3)
    np.testing.assert_array_equal(fit(tmp_path / "killed", None), whole)


@pytest.mark.parametrize("validation", [0.0, 0.1])
def test_a_saved_model_predicts_the_same(breast: Any, tmp_path: Path, validation: float) -> None:
    fed = breast(folder=tmp_path)
    model = small(epochs=2, validation=validation).fit(fed)
    model.save("first")
    again = small(epochs=2, validation=validation).load("first", breast(folder=tmp_path))
    np.testing.assert_array_equal(again.predict_proba(fed), model.predict_proba(fed))
