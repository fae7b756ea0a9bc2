"""What passes, to whom, in which order and shape; and what happens when a client cannot go on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.exceptions import NotFittedError
from torch import Tensor, nn

from interlace import Federation, Kind, Policy
from interlace.errors import DataError, InterlaceError, JobError, PartyFailed, PolicyError, Refused
from interlace.methods.base import Epoch
from interlace.methods.horizontal import (
    Agreement,
    FedAdam,
    FedAvg,
    FedProx,
    LocalTraining,
    Round,
    Scaffold,
)
from interlace.methods.horizontal.averaging import AveragingSide
from interlace.models import BottomSpec

Make = Callable[..., Federation]
Line = tuple[str, str, str, str, str]

SMALL = BottomSpec(network="linear")  # 12 columns and 10 classes: 130 weights


def transcript(fed: Federation, client: str) -> list[Line]:
    """The conversation with one client, as the server's ledger has it."""
    return [
        (e.operation, "→" if e.sender == "server" else "←", e.kind, e.dtype, e.shape)
        for e in fed.active.boundary.ledger.entries()
        if client in (e.sender, e.receiver)
    ]


def asked(operation: str, *kinds: tuple[str, str, str]) -> list[Line]:
    sent = kinds or (("control", "json", ""),)
    return [(operation, "→", *k) for k in sent]


def told(operation: str, kind: str = "control", dtype: str = "json", shape: str = "") -> Line:
    return (operation, "←", kind, dtype, shape)


CONTROL = ("control", "json", "")
WEIGHTS = ("model weights", "float32", "130")

AGREEMENT = [
    *asked("meet"),
    told("meet"),
    *asked("schema"),
    told("schema"),
    *asked("sums"),
    told("sums", "histogram", "float64", "13×3"),
    *asked("squares", ("histogram", "float64", "13")),
    told("squares", "histogram", "float64", "13"),
    *asked("agree", ("histogram", "float64", "13×3"), CONTROL),
    told("agree"),
]
BUILT = [*asked("build"), told("build")]
EVALUATED = [*asked("evaluate", WEIGHTS, CONTROL), told("evaluate", "metric")]
FINISHED = [*asked("finish", WEIGHTS), told("finish")]
REPORTED = [*asked("report"), told("report", "metric")]


def test_the_whole_conversation_of_fedavg(digits: Make) -> None:
    fed = digits(3)
    FedAvg(rounds=2, network=SMALL).fit(fed)
    one = [
        *asked("train", WEIGHTS),
        told("train", "model weights", "float32", "1×130"),
        *REPORTED,
        *EVALUATED,
    ]
    for client in fed.passive:
        assert transcript(fed, client) == [*AGREEMENT, *BUILT, *one, *one, *FINISHED]


def test_the_whole_conversation_of_scaffold(digits: Make) -> None:
    fed = digits(3)
    Scaffold(rounds=1, network=SMALL, agreement=Agreement(validation=0.0)).fit(fed)
    one = [
        *asked("correct", WEIGHTS, WEIGHTS),
        told("correct", "model weights", "float32", "1×130"),
        *asked("variate"),
        told("variate", "model weights", "float32", "1×130"),
        *REPORTED,
    ]
    assert transcript(fed, "c1") == [*AGREEMENT, *BUILT, *one, *FINISHED]


def test_the_whole_conversation_under_masks(digits: Make) -> None:
    fed = digits(3)
    FedAvg(rounds=1, network=SMALL, secure=True, agreement=Agreement(validation=0.0)).fit(fed)
    keys = [
        *asked("public_key"),
        told("public_key", "ciphertext", "uint8", "32"),
        *asked("keys", ("ciphertext", "uint8", "3×32")),
        told("keys"),
    ]
    one = [
        *asked("train_masked", WEIGHTS, ("row selection", "int64", "3")),
        told("train_masked", "ciphertext", "uint8", "1040"),
        *REPORTED,
    ]
    assert transcript(fed, "c2") == [*AGREEMENT, *keys, *BUILT, *one, *FINISHED]


def test_no_ids_are_matched(digits: Make) -> None:
    fed = digits(3)
    FedAvg(rounds=1).fit(fed)
    kinds = {e.kind for e in fed.active.boundary.ledger.entries()}
    assert Kind.BLINDED_IDS.value not in kinds


@pytest.mark.parametrize("make", [FedAvg, Scaffold, FedAdam, lambda **k: FedAvg(secure=True, **k)])
def test_encoded_messages_give_the_same_model(digits: Make, make: Callable[..., FedAvg]) -> None:
    plain, wired = make(rounds=2).fit(digits()), make(rounds=2).fit(digits(wire=True))
    torch.testing.assert_close(plain.weights_, wired.weights_, rtol=0, atol=1e-7)


def test_model_weights_must_be_asked_for(build: Make, digits: Make) -> None:
    frames = {n: p.frame for n, p in digits(2).engine.parties.items() if n != "server"}  # type: ignore[attr-defined]
    closed = build(frames, policy=Policy())
    with pytest.raises(PolicyError, match="party 'c0' does not let model weights leave"):
        FedAvg(rounds=1).fit(closed)
    with pytest.raises(PolicyError, match="model weights"):
        FedAvg(rounds=1).fit(build(frames, policy=Policy(), server=False))


def test_a_clients_guards_stand_before_its_update(build: Make, digits: Make) -> None:
    frames = {n: p.frame for n, p in digits(2).engine.parties.items() if n != "server"}  # type: ignore[attr-defined]
    guards: Any = [{"clip": {"norm": 0.01}}, {"gaussian": {"sigma": 1e-6}}]
    allowed = Policy().allow | {Kind.MODEL_WEIGHTS}
    fed = build(frames, policy=Policy(allow=allowed, guards={Kind.MODEL_WEIGHTS: guards}))
    model = FedAvg(rounds=1, network=SMALL)
    model._check()
    model._begin(fed)
    before = model.weights_.clone()
    model._round(fed, 1)
    assert 0 < (model.weights_ - before).norm() <= 0.0101
    account = fed.engine.parties["c0"].boundary.accounts()  # type: ignore[attr-defined]
    assert any(a.get("releases") == 1 for a in account.values())


def test_part_of_the_clients_takes_part_and_each_at_some_time(digits: Make) -> None:
    fed = digits(5)
    model = FedAvg(rounds=12, participation=0.4).fit(fed)
    assert {r.clients for r in model.history_} == {2}
    trained = [e.receiver for e in fed.active.boundary.ledger.entries() if e.operation == "train"]
    assert set(trained) >= set(fed.passive)


def test_stragglers_are_dropped_by_fedavg_and_do_part_of_the_work_in_fedprox(
    digits: Make,
) -> None:
    settings: dict[str, Any] = {
        "rounds": 3,
        "stragglers": 0.5,
        "local": LocalTraining(epochs=5),
    }
    dropped = FedAvg(**settings).fit(digits())
    assert {(r.clients, r.dropped) for r in dropped.history_} == {(2, 2)}
    fed = digits()
    kept = FedProx(**settings).fit(fed)
    assert {(r.clients, r.dropped) for r in kept.history_} == {(4, 0)}
    asked = [e for e in fed.active.boundary.ledger.entries() if e.operation == "limit"]
    assert len([e for e in asked if e.sender == "server"]) == 3 * 2
    sides = [p.sides[kept.session_] for p in fed.engine.parties.values() if p.sides]  # type: ignore
    whole = max(s.steps_taken for s in sides)  # type: ignore[attr-defined]
    assert min(s.steps_taken for s in sides) < whole  # type: ignore[attr-defined]


def failing(monkeypatch: pytest.MonkeyPatch, names: set[str]) -> None:
    plain = AveragingSide.update

    def update(self: AveragingSide, weights: Tensor, shift: Tensor | None = None) -> Tensor:
        if self.party.name in names:
            raise OSError("the disk is full")
        return plain(self, weights, shift)

    monkeypatch.setattr(AveragingSide, "update", update)


def test_a_client_that_fails_is_left_out_of_the_round(
    digits: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, {"c1"})
    model = FedAvg(rounds=2).fit(digits(3))
    assert [(r.clients, r.dropped) for r in model.history_] == [(2, 1), (2, 1)]
    with pytest.raises(PartyFailed, match="c1"):
        FedAvg(rounds=1, secure=True).fit(digits(3))
    failing(monkeypatch, {"c0", "c1", "c2"})
    with pytest.raises(PartyFailed):
        FedAvg(rounds=1).fit(digits(3))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda w: torch.zeros(3),
        lambda w: w,
        lambda w: torch.zeros(1, len(w) + 1),
    ],
)
def test_an_update_of_another_shape_is_refused(
    digits: Make, monkeypatch: pytest.MonkeyPatch, wrong: Callable[[Tensor], Tensor]
) -> None:
    monkeypatch.setattr(AveragingSide, "as_one_row", lambda self, v: wrong(v))
    with pytest.raises(Refused, match="was due"):
        FedAvg(rounds=1).fit(digits(2))


def test_a_client_refuses_weights_of_another_size(digits: Make) -> None:
    fed = digits(2)
    model = FedAvg(rounds=1).fit(fed)
    with pytest.raises(Refused, match="weights"):
        model.meeting_.clients["c0"].ask(AveragingSide.train, torch.zeros(7))


def test_networks_of_different_shape_are_refused(build: Make, digits: Make) -> None:
    frames = {n: p.frame for n, p in digits(2).engine.parties.items() if n != "server"}  # type: ignore[attr-defined]
    net = nn.Sequential(nn.Linear(12, 5), nn.Linear(5, 10))
    fed = build(frames, parties={"bottom": net})
    fed.engine.parties["c1"].bottom = nn.Sequential(nn.Linear(12, 6), nn.Linear(6, 10))  # type: ignore[attr-defined]
    with pytest.raises(DataError, match="party 'c1': its network is not the one of the server"):
        FedAvg(rounds=1).fit(fed)
    narrow = build(frames, parties={"bottom": nn.Linear(12, 3)})
    with pytest.raises(DataError, match=r"\(10,\) is due"):
        FedAvg(rounds=1).fit(narrow)


def test_any_torch_module_can_be_trained_buffers_included(build: Make, digits: Make) -> None:
    frames = {n: p.frame for n, p in digits(3).engine.parties.items() if n != "server"}  # type: ignore[attr-defined]
    net = nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1),
                        nn.Linear(16, 10))  # fmt: skip
    fed = build(frames, parties={"bottom": net})
    model = FedAvg(rounds=6, local=LocalTraining(epochs=3)).fit(fed)
    norm = model.module_[1]  # type: ignore[index]
    assert isinstance(norm, nn.BatchNorm1d)
    assert norm.running_mean is not None
    assert norm.running_mean.norm() > 0.1
    assert model.score(fed) > 0.7
    assert net[1].running_mean.norm() == 0  # type: ignore[operator, union-attr]


def test_images_are_trained_on(build: Make) -> None:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    frames: dict[str, Any] = {
        f"c{i}": {"image": x[i:300:3].reshape(-1, 8, 8), "digit": y[i:300:3]} for i in range(3)
    }
    fed = build(frames)
    network = BottomSpec(network="resnet", hidden=(4, 8))
    model = FedAvg(rounds=2, network=network, local=LocalTraining(learning_rate=0.2)).fit(fed)
    assert model.plan_.image is not None
    assert model.plan_.image.mean[0] == pytest.approx(
        np.mean([x[j] for i in range(3) for j in range(i, 300, 3)]), rel=0.05
    )
    assert model.history_[1].loss < model.history_[0].loss


def test_the_server_may_hold_rows_itself_and_predict_them(digits: Make) -> None:
    fed = digits(3, server=False)
    model = FedAvg(rounds=8).fit(fed)
    assert model.predict_proba(fed).shape == (200, 10)
    y = fed.active.frame["digit"].to_numpy()
    own = model.evaluate(fed)["c0"]["accuracy"]
    assert np.mean(model.predict(fed) == y) == pytest.approx(own)
    assert model.history_[-1].clients == 3
    with pytest.raises(InterlaceError, match="no rows of its own"):
        FedAvg(rounds=1).fit(lone := digits(2)).outputs(lone)


def test_held_out_rows_of_the_server_teach_nothing(digits: Make) -> None:
    fed = digits(3, server=False)
    seen = fed.view(np.arange(100), held_out=np.arange(100, 200))
    model = FedAvg(rounds=1, agreement=Agreement(validation=0.0)).fit(seen)
    assert model.meeting_.rows["c0"]["train"] == 100
    assert model.meeting_.rows["c1"]["train"] == 200


def test_rows_kept_aside_are_drawn_at_each_client(digits: Make) -> None:
    fed = digits(2)
    model = FedAvg(rounds=3, agreement=Agreement(validation=0.2, test=0.25)).fit(fed)
    assert model.meeting_.rows["c0"] == {"train": 165, "validation": 60, "test": 75, "all": 300}
    side = fed.engine.parties["c0"].sides[model.session_]  # type: ignore
    parts = [set(side.parts[p].tolist()) for p in ("train", "validation", "test")]  # type: ignore
    assert not parts[0] & parts[1]
    assert not parts[0] & parts[2]
    assert not parts[1] & parts[2]
    test = model.evaluate(fed, "test")
    assert test["pooled"]["rows"] == 150
    answers = model.answers(fed, "validation").values()
    assert all(set(a) == {"rows", "loss", "hits"} for a in answers), "nothing by class in a round"
    best = min(r.validation for r in model.history_ if r.validation is not None)
    assert model.evaluate(fed, "validation")["pooled"]["loss"] == pytest.approx(best, rel=1e-5)


def test_new_tables_of_the_same_parties_are_scored(digits: Make) -> None:
    fed = digits(3)
    model = FedAvg(rounds=8).fit(fed)
    tables = {n: p.frame.head(60) for n, p in fed.engine.parties.items() if n != "server"}  # type: ignore[attr-defined]
    fresh = fed.with_tables(tables)
    found = model.evaluate(fresh)
    assert found["c1"]["rows"] == 60
    assert found["pooled"]["rows"] == 180
    assert model.evaluate(fed)["pooled"]["rows"] == 600
    few = fed.with_tables({**tables, "c1": tables["c1"].head(4)})
    assert "c1" not in model.evaluate(few)  # a loss over four rows would tell too much


MAKERS: list[Callable[..., FedAvg]] = [
    FedAvg,
    Scaffold,
    FedAdam,
    lambda **k: FedAvg(server_rate=0.7, participation=0.5, **k),
]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("server", [True, False])
def test_a_stopped_training_goes_on_to_the_same_result(
    digits: Make, tmp_path: Path, make: Callable[..., FedAvg], server: bool
) -> None:
    def stop(epoch: Epoch) -> None:
        if epoch.number == 2:
            raise KeyboardInterrupt

    whole = make(rounds=4).fit(digits(3, server=server))
    with pytest.raises(KeyboardInterrupt):
        make(rounds=4).fit(
            digits(3, server=server, folder=tmp_path), checkpoint="run", on_epoch=stop
        )
    resumed = make(rounds=4).fit(digits(3, server=server, folder=tmp_path), checkpoint="run")
    assert torch.equal(resumed.weights_, whole.weights_)
    losses = [[r.loss for r in m.history_] for m in (whole, resumed)]
    assert losses[0] == losses[1]
    with pytest.raises(JobError, match="other settings"):
        make(rounds=5).fit(digits(3, server=server, folder=tmp_path), checkpoint="run")


@pytest.mark.parametrize("server", [True, False])
def test_a_kept_model_is_the_same_at_every_party(
    digits: Make, tmp_path: Path, server: bool
) -> None:
    fed = digits(3, server=server, folder=tmp_path)
    model = FedAvg(rounds=2).fit(fed)
    model.save("finished")
    loaded = FedAvg(rounds=2).load("finished", digits(3, server=server, folder=tmp_path))
    assert torch.equal(loaded.weights_, model.weights_)
    assert isinstance(loaded.history_[0], Round)
    again = digits(3, server=server, folder=tmp_path)
    loaded.load("finished", again)
    found = loaded.evaluate(again)
    # Who has held rows out says hits by class of these alone.
    assert found["pooled"].pop("balanced_accuracy") > 0.3
    assert found == model.evaluate(fed)
    names = [p.name for p in (tmp_path / "parties" / "c2" / "models" / "finished").iterdir()]
    assert names == ["state.safetensors"]


def test_nothing_can_be_asked_before_it_has_learnt(digits: Make) -> None:
    for ask in (lambda m, f: m.score(f), lambda m, f: m.outputs(f), lambda m, f: m.save("x")):
        with pytest.raises(NotFittedError):
            ask(FedAvg(), digits(2))  # type: ignore[no-untyped-call]


def test_two_labels_and_a_number_can_be_learnt(build: Make, digits: Make) -> None:
    import polars as pl

    frames = {n: p.frame for n, p in digits(3).engine.parties.items() if n != "server"}  # type: ignore[attr-defined]
    even = {n: t.with_columns(digit=pl.col("digit") % 2 == 0) for n, t in frames.items()}
    fed = build(even)
    model = FedAvg(rounds=10, local=LocalTraining(epochs=3)).fit(fed)
    assert model.label_plan_.task == "binary"
    assert model.label_plan_.classes == (False, True)
    assert model.score(fed) > 0.8
    amount = pl.col("p28") * 0.37 - pl.col("p36")
    frames = {n: t.with_columns(digit=amount) for n, t in frames.items()}
    fed = build(frames)
    model = FedAvg(rounds=10, local=LocalTraining(epochs=3, learning_rate=0.05)).fit(fed)
    assert model.score(fed) > 0.9
