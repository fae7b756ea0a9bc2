"""Entity augmentation: mixed labels, and learning where nobody in training is held by all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import roc_auc_score

from interlace import Federation, Party
from interlace.errors import AlignmentError, JobError
from interlace.methods import EntityAugmentation
from interlace.methods.vertical.entity_augmentation import first_seen, in_turn, mixed_labels
from interlace.models import BottomSpec, Optimisation


def small(**kw: Any) -> EntityAugmentation:
    how = {
        "epochs": 12,
        "bottom": BottomSpec(hidden=(16,), width=8),
        "top": (16,),
        "optimisation": Optimisation(learning_rate=5e-3),
    }
    return EntityAugmentation(**{**how, **kw})


def said(fed: Federation, since: int = 0) -> list[tuple[str, str, str, str]]:
    return [
        (f"{e.sender}→{e.receiver}", e.operation, e.kind, e.shape)
        for e in list(fed.active.boundary.ledger.entries())[since:]
    ]


def test_a_label_is_mixed_by_shares() -> None:
    y = mixed_labels([torch.tensor([0, 1]), torch.tensor([2, 1])], torch.tensor([0.25, 0.75]), 3)
    assert y.tolist() == [[0.25, 0, 0.75], [0, 1, 0]]


def test_nobody_comes_again_before_all_have_come() -> None:
    order = in_turn(4, 10, seed=0, party=1, epoch=0)
    assert sorted(order[:4].tolist()) == sorted(order[4:8].tolist()) == [0, 1, 2, 3]
    assert len(order) == 10
    assert order.tolist() != in_turn(4, 10, seed=0, party=2, epoch=0).tolist()


def test_each_person_of_a_batch_is_embedded_once() -> None:
    once, place = first_seen(torch.tensor([7, 3, 7, 0]))
    assert once.tolist() == [7, 3, 0]
    assert place.tolist() == [0, 1, 0, 2]


def test_the_transcript(breast: Any) -> None:
    """The bank has 569 labelled people, 69 of whom the vendor lacks. Some of the vendor's stand in
    the batch twice, and are embedded once."""
    fed = breast(missing=69, wire=True)
    fed.align()
    since = len(said(fed))
    model = small(epochs=1, batch_size=600, validation=0)
    model.fit(fed)
    down, up = "bank→vendor", "vendor→bank"
    assert said(fed, since) == [
        (down, "begin", "row selection", "0"),
        (down, "begin", "control", ""),
        (up, "begin", "control", ""),
        (down, "inputs", "control", ""),
        (up, "inputs", "control", ""),
        (down, "forward", "row selection", "500"),
        (up, "forward", "embedding", "500×8"),
        (down, "backward", "gradient", "500×8"),
        (up, "backward", "control", ""),
    ]
    torch.testing.assert_close(model._weights(), torch.tensor([20 / 30, 10 / 30]))


def apart(**kw: Any) -> tuple[Federation, Federation]:
    """A registry of labels and two clinics that share nobody but the people to test on."""
    x, y = load_breast_cancer(return_X_y=True)
    ids = np.array([f"p{i}" for i in range(len(x))])

    def table(rows: np.ndarray, columns: slice) -> pl.DataFrame:
        values = x[rows, columns]
        return pl.DataFrame({"id": ids[rows], **{f"x{j}": v for j, v in enumerate(values.T)}})

    test, one, other = np.split(np.random.default_rng(0).permutation(len(x)), [150, 360])
    fed = Federation.simulate(
        [
            Party("registry", pl.DataFrame({"id": ids, "y": y}), label="y"),
            Party("clinic", table(np.concatenate([test, one]), slice(0, 10))),
            Party("lab", table(np.concatenate([test, other]), slice(10, 30))),
        ],
        **kw,
    )
    test = np.sort(test)
    return fed.view(np.setdiff1d(fed.rows, test), test), fed.view(test)


def test_it_learns_though_no_person_in_training_is_shared_by_both_clinics() -> None:
    train, test = apart()
    assert len(train.shared().rows) == 0
    model = small(epochs=15).fit(train)
    assert roc_auc_score(test.y, model.predict_proba(test)[:, 1]) > 0.95


def test_a_partner_with_fewer_people_than_a_batch(breast: Any) -> None:
    train, test = breast(missing=519).split(20)
    model = small(epochs=3, batch_size=200, validation=0).fit(train)
    assert model.predict_proba(test).shape == (20, 2)


def test_several_classes(wine: Any) -> None:
    train, test = wine().split(0.3)
    assert small(epochs=40).fit(train).score(test) > 0.85


def test_images(digits: Any) -> None:
    train, test = digits().split(0.3)
    flat = BottomSpec(network="mlp", hidden=(32,), width=16)
    assert small(bottom=flat, epochs=15).fit(train).score(test) > 0.6


def test_the_wire_changes_nothing() -> None:
    runs = []
    for wire in (False, True):
        train, test = apart(wire=wire)
        runs.append(small(epochs=2).fit(train).predict_proba(test))
    np.testing.assert_array_equal(runs[0], runs[1])


def test_it_is_for_classes(diabetes: Any) -> None:
    with pytest.raises(JobError, match="it is for classes; the label is a regression"):
        small().fit(diabetes())


def test_a_partner_without_labelled_people(breast: Any) -> None:
    fed = breast(missing=300)
    lonely = fed.view(np.arange(269, 569))
    with pytest.raises(AlignmentError, match="0 people with a label are held by 'vendor'"):
        small().fit(lonely)


class Killed(Exception):
    pass


def test_a_killed_training_goes_on_to_the_same_result(tmp_path: Path) -> None:
    def fit(folder: Path, stop: int | None) -> np.ndarray:
        train, test = apart(folder=folder)

        def on_epoch(epoch: Any) -> None:
            if epoch.number == stop:
                raise Killed

        model = small(epochs=4).fit(train, checkpoint="run", on_epoch=on_epoch)
        return model.predict_proba(test)

    whole = fit(tmp_path / "whole", None)
    with pytest.raises(Killed):
        fit(tmp_path / "killed", 2)
    np.testing.assert_array_equal(fit(tmp_path / "killed", None), whole)


def test_a_saved_model_predicts_the_same(tmp_path: Path) -> None:
    train, test = apart(folder=tmp_path)
    model = small(epochs=2).fit(train)
    expected = model.predict_proba(test)
    model.save("first")
    again = small(epochs=2).load("first", apart(folder=tmp_path)[0])
    np.testing.assert_array_equal(again.predict_proba(test), expected)
