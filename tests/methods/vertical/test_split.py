"""Split learning: that it is what it says, on every task, and survives bad partners and kills."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from interlace import Federation, Party, Policy
from interlace.data.labels import LabelPlan
from interlace.errors import (
    AlignmentError,
    DataError,
    InterlaceError,
    JobError,
    PolicyError,
    Refused,
)
from interlace.methods import AggVFL, SplitVFL
from interlace.methods.base import batches, shuffled
from interlace.methods.catalogue import build_method
from interlace.methods.objective import Objective
from interlace.methods.vertical.split import Batch, SplitSide
from interlace.models import BottomSpec, Optimisation
from interlace.party import Peer

SMALL = BottomSpec(hidden=(16,), width=8)
FAST = Optimisation(learning_rate=5e-3)


def small(**kw: Any) -> SplitVFL:
    return SplitVFL(
        **{
            "epochs": 12,
            "batch_size": 64,
            "bottom": SMALL,
            "top": (16,),
            "optimisation": FAST,
            **kw,
        }
    )


# -- it is what it says -------------------------------------------------------------------------


def test_split_learning_is_one_undivided_network(breast: Any) -> None:
    """Cutting the network and passing embeddings and gradients changes nothing in the weights."""
    fed = breast()
    model = small(epochs=3, validation=0, patience=None)
    people = fed.shared().labelled()
    model._start(people)
    vendor = fed.engine.parties["vendor"].sides[model.session_].bottom
    nets = [copy.deepcopy(m) for m in (vendor.module, model.own_.module, model.top_.top)]
    x_vendor = vendor.x[torch.from_numpy(fed.engine.parties["vendor"].shared_with("bank"))]
    x_vendor = x_vendor[fed.positions("vendor", people.rows)]
    x_bank = model.own_.x[torch.from_numpy(people.rows)]

    model = small(epochs=3, validation=0, patience=None).fit(fed)

    optimiser = torch.optim.Adam([p for n in nets for p in n.parameters()], lr=5e-3)
    for epoch in range(3):
        order = shuffled(len(people.rows), fed.seed, epoch)
        for batch in batches(len(order), 64):
            i = order[batch]
            logits = nets[2](torch.cat([nets[0](x_vendor[i]), nets[1](x_bank[i])], 1))
            optimiser.zero_grad()
            nn.functional.cross_entropy(logits, people.y[i]).backward()
            optimiser.step()
    trained = fed.engine.parties["vendor"].sides[model.session_].bottom.module
    for mine, theirs in zip(nets[0].parameters(), trained.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-4)
    for mine, theirs in zip(nets[2].parameters(), model.top_.top.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-4)


def test_the_lectures_matrices_stand_side_by_side() -> None:
    """Two 4×3 matrices make a 4×6 joint one; labels 0, 1, 0, 2 make three classes."""
    ids = ["S0", "S1", "S2", "S3"]
    bank = pl.DataFrame({"id": ids, "age": [35, 40, 45, 23], "risk": [0, 1, 0, 2]})
    shop = pl.DataFrame({"id": [*ids[::-1], "U0"], "orders": [9, 3, 7, 1, 4]})
    fed = Federation.simulate([Party("bank", bank, label="risk"), Party("shop", shop)])
    seen: list[tuple[int, ...]] = []

    class Top(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, h: torch.Tensor) -> torch.Tensor:
            seen.append(tuple(h.shape))
            return self.layer(h)

    model = SplitVFL(epochs=1, bottom=BottomSpec(width=3), top=Top(), validation=0).fit(fed)
    assert seen == [(4, 6)]
    assert model.label_plan_.classes == (0, 1, 2)
    assert model.predict_proba(fed.shared()).shape == (4, 3)


def test_a_person_missing_at_a_party_is_a_missing_view(breast: Any) -> None:
    fed = breast(missing=100)
    assert len(fed.rows) == 569
    assert len(fed.shared().rows) == 469
    assert fed.alignment.holders.sum() == 469
    model = small(epochs=1).fit(fed)
    with pytest.raises(AlignmentError, match=r"100 of 569 people are not held by 'vendor'"):
        model.predict_proba(fed)


def test_the_transcript_is_the_protocol(breast: Any) -> None:
    fed = breast()
    fed.align()
    before = len(list(fed.active.boundary.ledger.entries()))
    small(epochs=1, batch_size=400, validation=0.1, patience=None).fit(fed)
    said = [
        (f"{e.sender}→{e.receiver}", e.operation, e.kind, e.shape)
        for e in list(fed.active.boundary.ledger.entries())[before:]
    ]
    up, down = "vendor→bank", "bank→vendor"
    batch = [
        (down, "forward", "row selection", "{n}"),
        (up, "forward", "embedding", "{n}×8"),
        (down, "backward", "gradient", "{n}×8"),
        (up, "backward", "control", ""),
    ]
    assert said == [
        (down, "begin", "row selection", "0"),
        (down, "begin", "control", ""),
        (up, "begin", "control", ""),
        *[(w, o, k, s.format(n=400)) for w, o, k, s in batch],
        *[(w, o, k, s.format(n=112)) for w, o, k, s in batch],
        (down, "embed", "row selection", "57"),
        (up, "embed", "embedding", "57×8"),
        (down, "keep", "control", ""),
        (up, "keep", "control", ""),
        (down, "recall", "control", ""),
        (up, "recall", "control", ""),
    ]


@pytest.mark.parametrize("name", ["split", "agg", "fedcvt", "transfer", "entity_augmentation"])
def test_partners_are_asked_for_the_next_batch_before_the_active_party_learns(
    breast: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed = breast()
    method = {"epochs": 2, "batch_size": 256, "validation": 0.0, "patience": None}
    model, events = build_method(name, method), []
    start = Peer.start

    def noted(peer: Peer, op: Any, *args: Any, **kwargs: Any) -> Any:
        if op is SplitSide.forward:
            events.append("ask")
        return start(peer, op, *args, **kwargs)

    monkeypatch.setattr(Peer, "start", noted)
    hook = register_optimizer_step_pre_hook(
        lambda optimiser, *_: events.append("learn") if optimiser is model.own_.optimiser else None
    )
    try:
        model.fit(fed)
    finally:
        hook.remove()
    batches = events.count("learn") // 2
    assert batches > 1
    assert events == 2 * ["ask", *(batches - 1) * ["ask", "learn"], "learn"]


def test_both_ledgers_tell_the_same(breast: Any) -> None:
    fed = breast()
    small(epochs=1).fit(fed)
    ledgers = [p.boundary.ledger for p in fed.engine.parties.values()]
    one, other = (
        [(e.operation, e.kind, e.sender, e.shape, e.bytes_after) for e in ledger.entries()]
        for ledger in ledgers
    )
    assert one == other
    assert [e.direction for e in ledgers[0].entries()] != [
        e.direction for e in ledgers[1].entries()
    ]


def test_the_wire_changes_neither_the_model_nor_the_bytes(breast: Any) -> None:
    runs = []
    for wire in (False, True):
        train, test = breast(wire=wire, protocol="dh").split(0.3)
        model = small(epochs=3).fit(train)
        sent = [
            (e.operation, e.kind, e.shape, e.bytes_before, e.bytes_after)
            for e in train.active.boundary.ledger.entries()
        ]
        runs.append((model.predict_proba(test), sent))
    np.testing.assert_array_equal(runs[0][0], runs[1][0])
    assert runs[0][1] == runs[1][1]


def test_only_the_seed_decides(breast: Any) -> None:
    def outputs(seed: int) -> np.ndarray:
        train, test = breast(seed=7).split(0.3)
        return small(epochs=2, dropout=0.2).fit(train.fresh(seed, "")).predict_proba(test)

    np.testing.assert_array_equal(outputs(1), outputs(1))
    assert np.abs(outputs(1) - outputs(2)).max() > 1e-3


def test_every_batch_is_seen_once_and_none_has_one_person() -> None:
    for rows in (1, 2, 64, 65, 129, 130):
        cut = list(batches(rows, 64))
        assert [i for s in cut for i in range(rows)[s]] == list(range(rows))
        assert rows == 1 or min(len(range(rows)[s]) for s in cut) > 1
    assert sorted(shuffled(50, 3, 1).tolist()) == list(range(50))
    assert shuffled(50, 3, 1).tolist() != shuffled(50, 3, 2).tolist()


# -- what it learns -----------------------------------------------------------------------------


@pytest.mark.parametrize("method", [SplitVFL, AggVFL])
def test_two_parties_beat_the_base_rate(breast: Any, method: type) -> None:
    train, test = breast().split(0.3)
    model = method(epochs=20, batch_size=64, bottom=SMALL, optimisation=FAST).fit(train)
    assert roc_auc_score(test.y, model.predict_proba(test)[:, 1]) > 0.97
    assert model.score(test) > 0.9
    assert set(model.predict(test)) <= {0, 1}


@pytest.mark.parametrize("method", [SplitVFL, AggVFL])
def test_a_label_holder_without_columns(clinics: Any, method: type) -> None:
    """The _c variants: three clinics and a registry that holds only the label."""
    train, test = clinics().split(0.3)
    model = method(epochs=20, batch_size=64, bottom=SMALL, optimisation=FAST).fit(train)
    assert model.own_ is None
    assert roc_auc_score(test.y, model.predict_proba(test)[:, 1]) > 0.97


def test_several_classes(wine: Any) -> None:
    train, test = wine().split(0.3)
    model = small(epochs=40).fit(train)
    assert model.score(test) > 0.9
    np.testing.assert_allclose(model.predict_proba(test).sum(1), 1)


def test_regression(diabetes: Any) -> None:
    train, test = diabetes().split(0.3)
    model = small(epochs=40, patience=10).fit(train)
    assert model.score(test) > 0.3
    assert model.predict(test).shape == (len(test.rows),)
    with pytest.raises(InterlaceError, match="no probabilities"):
        model.predict_proba(test)


def test_several_labels_at_once(federate: Any) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((300, 6))
    y = [["a"] * int(r[0] > 0) + ["b"] * int(r[3] > 0) for r in x]
    train, test = federate(x, y, [slice(3, 6)], slice(0, 3)).split(0.3)
    model = small(epochs=40).fit(train)
    assert model.predict(test).shape == (90, 2)
    assert (model.predict(test) == test.y.numpy()).mean() > 0.9


def test_images_in_halves(digits: Any) -> None:
    train, test = digits().split(0.3)
    model = SplitVFL(
        epochs=8, batch_size=32, bottom=BottomSpec(hidden=(8, 16), width=16), optimisation=FAST
    ).fit(train)
    assert model.score(test) > 0.8


def test_categories_and_gaps(federate: Any) -> None:
    """Categories are learnt through embeddings; unseen levels and gaps do no harm."""
    rng = np.random.default_rng(0)
    ids = [f"p{i}" for i in range(400)]
    colour = rng.choice(["red", "green", "blue"], 400)
    y = (colour == "red").astype(int)
    shop = pl.DataFrame({"id": ids, "colour": colour, "spend": rng.standard_normal(400)})
    bank = pl.DataFrame({"id": ids, "age": rng.standard_normal(400), "y": y})
    fed = Federation.simulate([Party("bank", bank, label="y"), Party("shop", shop)])
    for network in ("mlp", "linear"):
        model = small(epochs=30, bottom=BottomSpec(network=network, hidden=(8,), width=4)).fit(fed)
        assert model.score(fed) > 0.97
    odd = shop.with_columns(colour=pl.lit("violet"), spend=None)
    new = fed.with_tables({"bank": bank, "shop": odd})
    assert np.isfinite(model.predict_proba(new)).all()


def test_class_weights_are_of_classes_as_yaml_reads_them() -> None:
    plan = LabelPlan.fit(pl.Series("y", ["no", "yes"] * 3), party="bank")
    y = torch.tensor([0, 1] * 3)
    weight = Objective.fit(plan, y, {True: 3.0, "no": 2.0}).weight  # `yes: 3`
    assert weight is not None
    assert weight.tolist() == [2.0, 3.0]
    with pytest.raises(JobError, match="party 'bank', column 'y'"):
        Objective.fit(plan, y, {"never": 3.0})


def test_class_weights_move_the_threshold(federate: Any) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((600, 4))
    y = (x[:, 0] + x[:, 2] + rng.standard_normal(600) > 2.2).astype(int)
    fed = federate(x, y, [slice(2, 4)], slice(0, 2))
    for wrong in ({2: 5.0}, "even"):
        with pytest.raises(JobError, match="class_weight"):
            small(class_weight=wrong).fit(fed)
    weighted = small(class_weight={1: 20.0}).fit(fed).predict(fed).mean()
    plain = small().fit(fed).predict(fed).mean()
    balanced = small(class_weight="balanced").fit(fed).predict(fed).mean()
    assert balanced > plain + 0.05
    assert weighted > plain + 0.05


def test_the_best_epoch_is_kept(breast: Any) -> None:
    train, _ = breast().split(0.3)
    model = small(
        epochs=60, patience=3, validation=0.2, optimisation=Optimisation(learning_rate=0.05)
    ).fit(train)
    losses = [e.validation for e in model.history_]
    assert len(losses) < 60
    assert len(losses) - 1 - int(np.argmin(losses)) == 3
    people = train.shared().labelled()
    from interlace.methods.base import keep_aside

    _, aside = keep_aside(len(people.rows), 0.2, train.seed, people.y)
    logits = model._logits(people, people.rows[aside])
    loss = model.objective_.loss(logits, people.y[aside]).item()
    assert loss == pytest.approx(min(losses))


@pytest.mark.parametrize("schedule", ["cosine", "step"])
def test_schedules_reach_every_party(breast: Any, schedule: str) -> None:
    fed = breast()
    how = Optimisation(learning_rate=0.01, schedule=schedule)
    model = small(epochs=8, patience=None, optimisation=how).fit(fed)
    rate = how.rate(7, 8)
    assert rate < 0.002
    bottom = fed.engine.parties["vendor"].sides[model.session_].bottom
    for optimiser in (bottom.optimiser, model.own_.optimiser, model.optimiser_):
        assert optimiser.param_groups[0]["lr"] == pytest.approx(rate)


# -- own networks -------------------------------------------------------------------------------


def test_own_networks(breast: Any) -> None:
    own = {
        "bank": {"bottom": nn.Linear(10, 5)},
        "vendor": {"bottom": nn.Sequential(nn.Linear(20, 3), nn.Tanh())},
    }
    fed = breast(options=own)
    model = small(top=nn.Linear(8, 2)).fit(fed)
    assert model.widths_ == {"vendor": 3}
    assert model.score(fed) > 0.9
    assert torch.equal(own["bank"]["bottom"].weight, fed.active.bottom.weight), "the original stays"


class Named(nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"embedding": x}


@pytest.mark.parametrize(
    ("network", "found"),
    [
        (nn.Linear(7, 4), "failed with a RuntimeError"),
        (Named(), "returned a dict"),
        (nn.Sequential(nn.Linear(20, 4), nn.Unflatten(1, (2, 2))), r"float32 tensor \(2, 2, 2\)"),
    ],
    ids=["width", "dict", "shape"],
)
def test_a_network_that_does_not_fit_is_told_what_it_is_given(
    breast: Any, network: nn.Module, found: str
) -> None:
    fed = breast(options={"vendor": {"bottom": network}})
    said = rf"network of party 'vendor' .*{found}.* d = 20 features .* 20 are numeric and 0 are"
    with pytest.raises(InterlaceError, match=said) as caught:
        small().fit(fed)
    assert "LazyLinear" in str(caught.value)


def test_lazy_layers_take_their_width_from_the_features(breast: Any) -> None:
    """They are as deep in the optimiser, and as repeatable, as layers of a given width."""
    lazy = nn.Sequential(nn.LazyLinear(8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    scores = []
    for _ in range(2):
        fed = breast(options={"vendor": {"bottom": lazy}})
        model = small(epochs=2, validation=0).fit(fed)
        bottom = fed.engine.parties["vendor"].sides[model.session_].bottom
        assert bottom.module[0].weight.shape == (8, 20)
        assert len(bottom.optimiser.state) == len(list(bottom.module.parameters())) == 6
        scores.append(model.predict_proba(fed))
    assert np.array_equal(*scores)
    assert nn.parameter.is_lazy(lazy[0].weight), "the original stays"


def test_a_network_that_hands_columns_through_is_refused(breast: Any) -> None:
    fed = breast(options={"vendor": {"bottom": nn.Identity()}})
    with pytest.raises(PolicyError, match="'vendor' hands 20 of its columns through unchanged"):
        small().fit(fed)


# -- held-out people ----------------------------------------------------------------------------


def test_held_out_people_have_no_say(federate: Any) -> None:
    """Whatever stands in the test rows, the model is the same: no column is scaled by them."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((200, 6)), rng.integers(0, 2, 200)
    fed = federate(x, y, [slice(3, 6)], slice(0, 3))
    train, test = fed.split(0.3)
    model = small(epochs=2).fit(train)
    wild = x.copy()
    wild[test.rows] *= 1e6
    again, _ = federate(wild, y, [slice(3, 6)], slice(0, 3)).split(0.3)
    other = small(epochs=2).fit(again)
    seen = train.shared().labelled()
    np.testing.assert_array_equal(
        model.predict_proba(seen), other.predict_proba(again.view(seen.rows))
    )


def test_labels_may_be_missing(federate: Any) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((200, 4))
    y = [int(v > 0) if i % 3 else None for i, v in enumerate(x[:, 0])]
    fed = federate(x, y, [slice(2, 4)], slice(0, 2))
    assert len(fed.labelled().rows) == sum(v is not None for v in y)
    assert small(epochs=5).fit(fed).predict_proba(fed).shape == (200, 2)


def test_a_score_is_about_people_whose_label_is_known(federate: Any, tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((150, 4))
    x[:, 0] += 4 * (np.arange(150) % 3)
    y = [None if i % 5 == 0 else "abc"[i % 3] for i in range(150)]
    fed = federate(x, y, [slice(2, 4)], slice(0, 2), folder=tmp_path)
    model = small(epochs=40).fit(fed)
    assert model.score(fed) > 0.9
    model.save("model")
    # Other people, none of class a: the model's classes are those of training all the same.
    some = [i for i in range(150) if i % 3]
    others = federate(x[some], [y[i] for i in some], [slice(2, 4)], slice(0, 2), folder=tmp_path)
    assert small(epochs=40).load("model", others).score(others) > 0.9


def test_a_class_that_training_never_saw(federate: Any) -> None:
    x = np.random.default_rng(0).standard_normal((60, 4))
    y = np.array([0, 1] * 29 + [0, 2])
    fed = federate(x, y, [slice(2, 4)], slice(0, 2), missing=1)
    with pytest.raises(DataError, match="party 'bank', column 'y': 1 of 3 classes do not occur"):
        small().fit(fed)


# -- what the partner could make of it ----------------------------------------------------------


def test_initial_weights_are_each_partys_secret(breast: Any) -> None:
    """Whoever knew a network's weights could read the columns out of its embeddings. Neither the
    job's seed nor anything in a message gives them away."""
    from interlace.methods.bottom import BottomSettings
    from interlace.models import seed_for, seeded

    fed = breast()
    vendor = fed.engine.parties["vendor"]
    model = small(epochs=1)
    model._start(fed.shared().labelled())
    network = vendor.sides[model.session_].bottom.module
    settings = BottomSettings(bottom=SMALL, optimisation=FAST)
    assert "seed" not in settings.model_dump()
    assert vendor.secret != fed.active.secret
    spec = vendor.sides[model.session_].bottom.plan.spec
    for guess in (fed.seed, fed.active.secret):
        seed = seed_for(guess, "bottom", "vendor")
        guessed = seeded(lambda: settings.bottom.build(spec), seed)
        assert not torch.equal(guessed[0].weight, network[0].weight)
    real = Party("vendor", vendor.frame), Party("vendor", vendor.frame)
    assert real[0].secret != real[1].secret, "outside of a simulation it is the system's"


def test_a_partner_cannot_ask_for_more_than_there_is(breast: Any) -> None:
    fed = breast()
    model = small(epochs=1).fit(fed)
    peer = model.peers_["vendor"]
    with pytest.raises(Refused, match="asked for 570 rows at once"):
        peer.ask(SplitSide.embed, torch.zeros(570, dtype=torch.int64))
    empty = torch.empty(0, dtype=torch.int64)
    with pytest.raises(InterlaceError):
        peer.ask(SplitSide.begin, empty, {"bottom": {"width": 200_000_000}})
    with pytest.raises(Refused, match="'rate' is not a number"):
        peer.ask(SplitSide.schedule, {"rate": float("nan")})
    with pytest.raises(Refused, match="'epoch' is not a whole number"):
        peer.ask(SplitSide.checkpoint, {"name": "x", "epoch": -1})


def test_a_budget_is_of_the_persons_own_row(breast: Any) -> None:
    """Matching again in another order does not begin the account of a person anew."""
    budget = {"gaussian": {"epsilon": 50.0, "releases": 6}}
    policy = Policy.model_validate({"guards": {"embedding": [{"clip": {"norm": 1.0}}, budget]}})
    fed = breast(options={"vendor": {"policy": policy}})
    model = small(epochs=1, validation=0)
    model._start(fed.shared().labelled())
    vendor, peer = fed.engine.parties["vendor"], model.peers_["vendor"]
    for _ in range(6):
        peer.ask(SplitSide.embed, torch.tensor([0]))
    vendor.aligned["bank"] = np.roll(vendor.aligned["bank"], 1)
    vendor.sides[model.session_].forget_people()
    peer.ask(SplitSide.embed, torch.tensor([0]))
    with pytest.raises(PolicyError):
        peer.ask(SplitSide.embed, torch.tensor([1]))


def test_two_conversations_of_one_training_stay_apart(breast: Any) -> None:
    view = breast().fresh(3, "trial")
    first = small(epochs=2).fit(view)
    before = first.predict_proba(view)
    second = small(epochs=1, dropout=0.5).fit(view)
    assert first.session_ != second.session_
    np.testing.assert_array_equal(first.predict_proba(view), before)
    ledger = view.active.boundary.ledger
    both = ledger.totals(first.session_)
    assert both.messages > ledger.totals(second.session_).messages > 0


# -- kept on disk -------------------------------------------------------------------------------


class Killed(Exception):
    pass


NOISY = Policy.model_validate(
    {
        "guards": {
            "embedding": [
                {"clip": {"norm": 1.0}},
                {"gaussian": {"sigma": 0.1}},
            ]
        }
    }
)
SPARSE = Policy.model_validate(
    {"guards": {"gradient": [{"topk": {"share": 0.5, "feedback": True}}]}}
)


@pytest.mark.parametrize("stop_after", [1, 4, 5])
def test_a_killed_training_goes_on_to_the_same_result(
    breast: Any, tmp_path: Path, stop_after: int
) -> None:
    def fit(folder: Path, stop: int | None) -> np.ndarray:
        fed = breast(
            folder=folder, options={"vendor": {"policy": NOISY}, "bank": {"policy": SPARSE}}
        )
        train, _ = fed.split(0.3)

        def on_epoch(epoch: Any) -> None:
            if epoch.number == stop:
                raise Killed

        model = small(
            epochs=6,
            dropout=0.3,
            bottom=BottomSpec(hidden=(16,), width=8, dropout=0.3),
            # Its rate falls before the fourth epoch and before the sixth.
            optimisation=Optimisation(learning_rate=0.01, schedule="step"),
        )
        model.fit(train, checkpoint="run", on_epoch=on_epoch)
        assert [e.number for e in model.history_] == list(range(1, 7))
        return model.predict_proba(train.shared().labelled())

    whole = fit(tmp_path / "whole", None)
    with pytest.raises(Killed):
        fit(tmp_path / "killed", stop_after)
    np.testing.assert_array_equal(fit(tmp_path / "killed", None), whole)


def test_without_people_kept_aside_a_killed_training_goes_on_to_its_last_epoch(
    breast: Any, tmp_path: Path
) -> None:
    def stop(epoch: Any) -> None:
        if epoch.number == 3:
            raise Killed

    model = small(epochs=5, validation=0.0, patience=2)
    with pytest.raises(Killed):
        model.fit(breast(folder=tmp_path), checkpoint="run", on_epoch=stop)
    model.fit(breast(folder=tmp_path), checkpoint="run")
    assert [e.number for e in model.history_] == [1, 2, 3, 4, 5]


def test_a_checkpoint_of_another_table_is_not_taken(breast: Any, tmp_path: Path) -> None:
    small(epochs=2).fit(breast(folder=tmp_path), checkpoint="run")
    fed = breast(folder=tmp_path)
    vendor = fed.engine.parties["vendor"]
    vendor.frame = vendor.frame.with_columns(x0=pl.col("x0") + 1)
    with pytest.raises(JobError, match="table of party 'vendor' has changed"):
        small(epochs=2).fit(fed, checkpoint="run")


def test_a_damaged_checkpoint_is_answered_with_the_way_out(breast: Any, tmp_path: Path) -> None:
    small(epochs=2).fit(breast(folder=tmp_path), checkpoint="run")
    for file in tmp_path.glob("parties/*/checkpoints/run/*/*"):
        file.write_bytes(file.read_bytes()[:99])
    with pytest.raises(InterlaceError, match="remove checkpoints/run at every party"):
        small(epochs=2).fit(breast(folder=tmp_path), checkpoint="run")


def test_a_checkpoint_of_another_job_is_not_taken(breast: Any, tmp_path: Path) -> None:
    small(epochs=2).fit(breast(folder=tmp_path), checkpoint="run")
    with pytest.raises(JobError, match="made with other settings"):
        small(epochs=3).fit(breast(folder=tmp_path), checkpoint="run")


@pytest.mark.parametrize("method", [SplitVFL, AggVFL])
def test_a_saved_model_predicts_the_same(breast: Any, tmp_path: Path, method: type) -> None:
    model = method(epochs=2, bottom=SMALL).fit(breast(folder=tmp_path))
    model.save("first")
    fed = breast(folder=tmp_path)
    again = method(epochs=2, bottom=SMALL).load("first", fed)
    assert again.history_ == model.history_
    np.testing.assert_array_equal(
        again.predict_proba(fed), model.predict_proba(model_federation(model, fed))
    )


def model_federation(model: Any, like: Federation) -> Federation:
    """The federation that a model was fitted in."""
    view = copy.copy(like)
    view.active = model.active_
    view.engine = next(iter(model.peers_.values())).engine
    return view


def test_nothing_is_kept_without_a_folder(breast: Any) -> None:
    model = small(epochs=1).fit(breast())
    with pytest.raises(InterlaceError, match="has no folder"):
        model.save("first")


@pytest.mark.parametrize("name", ["../other", "", "a/b", ".hidden"])
def test_a_partner_cannot_choose_where_a_party_writes(
    breast: Any, tmp_path: Path, name: str
) -> None:
    fed = breast(folder=tmp_path)
    model = small(epochs=1).fit(fed)
    with pytest.raises(Refused, match="cannot be the name"):
        model.peers_["vendor"].ask(SplitSide.save, {"name": name})


def test_new_people_are_scored_by_what_was_learnt(breast: Any) -> None:
    fed = breast()
    model = small().fit(fed)
    bank, vendor = fed.active.frame, fed.engine.parties["vendor"].frame
    new = fed.with_tables({"bank": bank[:50].drop("y"), "vendor": vendor})
    np.testing.assert_allclose(
        model.predict_proba(new), model.predict_proba(fed.view(np.arange(50))), rtol=1e-5
    )


# -- partners that do not keep to the agreement ----------------------------------------------------


def test_new_people_after_a_training_that_could_not_begin(breast: Any) -> None:
    fed = breast(options={"vendor": {"columns": []}})
    with pytest.raises(DataError, match="party 'vendor'"):
        small().fit(fed)
    tables = {name: party.frame[:50] for name, party in fed.engine.parties.items()}
    assert len(fed.with_tables(tables).rows) == 50


def weights(fed: Federation, session: str) -> list[torch.Tensor]:
    module = fed.engine.parties["vendor"].sides[session].bottom.module
    return [p.clone() for p in module.parameters()]


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (lambda h: h[:-1], "asked for"),
        (lambda h: h[:, :-1], "asked for"),
        (lambda h: torch.full_like(h, float("nan")), "NaN or infinity"),
        (lambda h: h.long(), "number type int64"),
        (lambda h: h.flatten(), "1 dimensions"),
        (lambda h: torch.cat([h, h]), "asked for"),
    ],
)
def test_a_wrong_answer_is_refused(
    breast: Any, monkeypatch: pytest.MonkeyPatch, answer: Any, complaint: str
) -> None:
    fed = breast()
    model = small(epochs=1).fit(fed)
    top = [p.clone() for p in model.top_.parameters()]
    from interlace.methods.bottom import Bottom

    honest = Bottom.forward
    monkeypatch.setattr(
        Bottom,
        "forward",
        lambda self, rows: (
            answer(honest(self, rows)) if self.party.name == "vendor" else honest(self, rows)
        ),
    )
    people = fed.shared().labelled()
    where = {"vendor": fed.positions("vendor", people.rows[:32])}
    with pytest.raises((Refused, PolicyError), match=complaint):
        model._learn(people, [Batch(where, torch.from_numpy(people.rows[:32]), people.y[:32])])
    for before, after in zip(top, model.top_.parameters(), strict=True):
        assert torch.equal(before, after)


@pytest.mark.parametrize("rows", [[-1], [569], [0, 10_000]])
def test_rows_that_are_not_shared_are_refused(breast: Any, rows: list[int]) -> None:
    fed = breast()
    model = small(epochs=1).fit(fed)
    with pytest.raises(Refused, match="outside of the 569 people it shares with 'bank'"):
        model.peers_["vendor"].ask(SplitSide.forward, torch.tensor(rows))


def test_a_gradient_that_was_not_due_changes_nothing(breast: Any) -> None:
    fed = breast()
    model = small(epochs=1).fit(fed)
    peer = model.peers_["vendor"]
    before = weights(fed, model.session_)
    with pytest.raises(Refused, match="none was due"):
        peer.ask(SplitSide.backward, torch.ones(4, 8))
    peer.ask(SplitSide.forward, torch.arange(4))
    with pytest.raises(Refused, match=r"\(4, 8\) was due"):
        peer.ask(SplitSide.backward, torch.ones(3, 8))
    with pytest.raises((Refused, PolicyError), match="NaN or infinity"):
        peer.ask(SplitSide.backward, torch.full((4, 8), float("inf")))
    for one, other in zip(before, weights(fed, model.session_), strict=True):
        assert torch.equal(one, other)


def test_strangers_are_not_answered(breast: Any) -> None:
    fed = breast()
    model = small(epochs=1).fit(fed)
    vendor = fed.engine.parties["vendor"]
    peer = model.peers_["vendor"]
    asked = peer.me.boundary.release(model.session_, "keep", "vendor", (), ())
    asked.sender = "stranger"
    with pytest.raises(Refused, match="no operation 'keep' for 'stranger'"):
        vendor.answer(asked)
    asked.sender, asked.operation = "bank", "forget_people"
    with pytest.raises(Refused, match="no operation 'forget_people'"):
        vendor.answer(asked)
    noted = [e for e in vendor.boundary.ledger.entries() if e.direction == "refused"]
    assert [(e.sender, e.operation) for e in noted] == [
        ("stranger", "keep"),
        ("bank", "forget_people"),
    ]


def test_an_unexpected_error_does_not_quote_the_data(
    breast: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from interlace.methods.bottom import Bottom

    fed = breast()
    model = small(epochs=1).fit(fed)

    def broken(self: Any, rows: torch.Tensor) -> torch.Tensor:
        raise ValueError("secret 42.0")

    monkeypatch.setattr(Bottom, "embed", broken)
    with pytest.raises(InterlaceError) as caught:
        model.peers_["vendor"].ask(SplitSide.embed, torch.arange(3))
    assert str(caught.value) == "party 'vendor' could not answer 'embed': ValueError"


@pytest.mark.parametrize("name", ["split", "agg", "proto_evfl", "entity_augmentation"])
def test_one_person_kept_aside_to_stop_early(name: str) -> None:
    n = 8
    ids = [f"P{i}" for i in range(n)]
    x = torch.randn(n, 4, generator=torch.Generator().manual_seed(0)).double().numpy()
    mine = pl.DataFrame({"id": ids, "a": x[:, 0], "b": x[:, 1], "y": [0, 1] * 4})
    theirs = pl.DataFrame({"id": ids, "c": x[:, 2], "d": x[:, 3]})
    fed = Federation.simulate([Party("bank", mine, label="y"), Party("shop", theirs)])
    settings = {"epochs": 2, "validation": 0.125, "patience": 1}
    made = build_method(name, settings)
    assert len(made.fit(fed).outputs(fed)) == n
