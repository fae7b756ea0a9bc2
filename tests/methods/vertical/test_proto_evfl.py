"""Proto-EVFL (reconstruction): plans, priors, quotas and gates; rare, few and unseen classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from interlace import Federation, Party
from interlace.assess import rightness
from interlace.errors import AlignmentError, DataError, JobError, Refused
from interlace.methods import ProtoEVFL
from interlace.methods.vertical.proto_evfl import (
    GatedEnsemble,
    ProtoSide,
    backward_plan,
    class_means,
    forward_plan,
    from_semantics,
    likeness,
    mixed_prior,
    select,
    transport_cost,
    with_unseen,
)
from interlace.models import BottomSpec, Optimisation

SMALL = BottomSpec(hidden=(16,), width=8)
FAST = Optimisation(learning_rate=5e-3)


def small(**kw: Any) -> ProtoEVFL:
    return ProtoEVFL(**{"epochs": 8, "bottom": SMALL, "top": (16,), "optimisation": FAST, **kw})


def said(fed: Federation, since: int = 0) -> list[tuple[str, str, str, str]]:
    return [
        (f"{e.sender}→{e.receiver}", e.operation, e.kind, e.shape)
        for e in list(fed.active.boundary.ledger.entries())[since:]
    ]


def table(x: np.ndarray, ids: list[str], **more: Any) -> pl.DataFrame:
    return pl.DataFrame({"id": ids, **{f"x{j}": x[:, j] for j in range(x.shape[1])}, **more})


# -- prototypes, priors and transport -------------------------------------------------------------


def test_the_lectures_mixed_prior() -> None:
    """0.70 / 0.20 / 0.10 here and 0.40 / 0.35 / 0.25 everywhere, in equal parts: 0.55 first."""
    mixed = mixed_prior(torch.tensor([0.70, 0.20, 0.10]), torch.tensor([0.40, 0.35, 0.25]))
    torch.testing.assert_close(mixed, torch.tensor([0.55, 0.275, 0.175]))


def test_a_prototype_is_the_average_of_its_class() -> None:
    h = torch.tensor([[1.0, 0], [3, 2], [torch.nan, torch.nan], [5, 5]])
    means = class_means(h, torch.tensor([0, 0, 0, 2]), 3)
    assert means.tolist() == [[2, 1], [0, 0], [5, 5]], "zeros where there is nobody"


@settings(max_examples=30)
@given(st.integers(1, 12), st.integers(2, 5), st.floats(0.05, 2), st.integers(0, 1000))
def test_plans_are_distributions(n: int, classes: int, temperature: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(n, classes, generator=generator) * 2 - 1
    prior = torch.rand(classes, generator=generator).softmax(0)
    there = forward_plan(scores, prior, temperature)
    back = backward_plan(scores, temperature)
    torch.testing.assert_close(there.sum(1), torch.ones(n))
    torch.testing.assert_close(back.sum(0), torch.ones(classes))
    cost = 0.0
    for j in range(n):
        for k in range(classes):
            share = there[j, k] / n + prior[k] * back[j, k]
            cost += 0.5 * share.item() * (1 - scores[j, k].item())
    assert transport_cost(scores, prior, temperature).item() == pytest.approx(cost, abs=1e-4)


def test_the_prior_decides_where_features_do_not() -> None:
    scores = torch.zeros(1, 3)
    prior = torch.tensor([0.7, 0.2, 0.1])
    torch.testing.assert_close(forward_plan(scores, prior, 1.0)[0], prior, atol=1e-4, rtol=0)


def test_the_way_back_keeps_a_rare_class_alive() -> None:
    """Though no row is nearest to the rare prototype, the cost falls when one moves towards it."""
    prior = torch.tensor([0.9, 0.1])
    scores = torch.tensor([[0.9, 0.1], [0.9, 0.1]], requires_grad=True)
    assert (forward_plan(scores, prior, 0.2).argmax(1) == 0).all()
    transport_cost(scores, prior, 0.2).backward()
    assert (scores.grad[:, 1] < 0).all()


def test_likeness_is_seen_from_the_middle_and_knows_gaps() -> None:
    prototypes = torch.tensor([[[11.0, 0], [9, 0], [0, 0]], [[0, 6], [0, 0], [0, 4]]])
    h = torch.tensor([[15.0, 5]])
    local = (h - torch.tensor([10.0, 0])) @ torch.tensor([1.0, 0]) / 50**0.5
    everywhere = torch.tensor([0.0])
    out = likeness(h, prototypes, 0.5)[0]
    assert out[0].item() == pytest.approx((local.item() + everywhere.item()) / 2)
    assert out[1].item() == pytest.approx(-local.item())
    assert out[2].item() == pytest.approx(0, abs=1e-6)
    none = torch.zeros(2, 1, 2)
    assert likeness(h, torch.cat([prototypes, none], 1))[0, 3].isnan()


def test_selection_keeps_a_share_for_rare_classes() -> None:
    """90 rows look like the common class and 10 like the rare one, at a higher cost."""
    guess = torch.tensor([0] * 90 + [1] * 10)
    cost = torch.linspace(0, 1, 100)
    kept = select(guess, cost, torch.tensor([0.9, 0.1]), 0.1)
    counts = torch.bincount(guess[kept], minlength=2).tolist()
    assert counts == [1, 9]
    assert kept.tolist() == [0, *range(90, 99)], "the cheapest of each"
    assert len(select(guess, cost, torch.tensor([0.5, 0.5]), 0.2)) == 20
    assert len(select(guess[:0], cost[:0], torch.tensor([0.5, 0.5]), 0.2)) == 0


def test_prototypes_from_what_classes_mean() -> None:
    vectors = torch.tensor([[0.0, 0], [1, 0], [0, 1], [1, 1]])
    true = vectors @ torch.tensor([[1.0, 2, 3], [-1, 0, 1]]) + 1
    known = true.clone()
    known[3] = 0
    torch.testing.assert_close(from_semantics(vectors, known), true, atol=1e-5, rtol=0)


# -- gates --------------------------------------------------------------------------------------


def ensemble() -> GatedEnsemble:
    torch.manual_seed(0)
    return GatedEnsemble(3, 4, (5,), 2, 0.0)


def test_gates_sum_to_one_and_leave_out_who_is_missing() -> None:
    views = [torch.randn(6, 4) for _ in range(3)]
    views[1][2:] = torch.nan
    views[0][4:] = torch.nan
    gates = ensemble().weigh(views)
    torch.testing.assert_close(gates.sum(1), torch.ones(6))
    assert (gates[2:, 1] == 0).all()
    assert (gates[:2] > 0).all()
    assert gates[4:].tolist() == [[0, 0, 1]] * 2


def test_what_a_missing_party_would_have_said_does_not_matter() -> None:
    top = ensemble()
    views = [torch.randn(2, 4) for _ in range(3)]
    without = [v.clone() for v in views]
    without[2][:] = torch.nan
    two = top.weigh(without)[:, :2]
    expected = sum(g[:, None] * v for g, v in zip(two.T, views[:2], strict=True))
    torch.testing.assert_close(top.gather(without), expected)
    out = top(without)
    out.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in top.parameters())


def test_prototypes_count_where_there_are_some() -> None:
    """A class that one party knows is judged by that party alone."""
    top = ensemble()
    top.prototypes[0] = torch.tensor([[1.0, 0, 0, 0], [-1, 0, 0, 0]])
    top.prototypes[1, 0] = torch.tensor([0, 1.0, 0, 0])
    top.prototypes[1, 1] = torch.tensor([0, 0, 0, 0])
    views = [torch.tensor([[2.0, 0, 0, 0]]), torch.randn(1, 4), torch.full((1, 4), torch.nan)]
    near = top.near(views)[0]
    assert near[1].item() == pytest.approx(-1, abs=1e-5)
    views[0][:] = torch.nan
    assert top.near(views)[0, 1].item() == -1, "as unlike as can be where nobody can tell"


def test_unseen_classes_get_what_prototypes_give_them() -> None:
    near = torch.tensor([[1.0, -1.0, 0.0], [-1.0, 1.0, 0.0]])
    unseen = torch.tensor([False, True, False])
    p = with_unseen(torch.tensor([[0.0, 9, 1], [0, 9, 1]]), near, unseen, 0.2).exp()
    torch.testing.assert_close(p.sum(1), torch.ones(2))
    torch.testing.assert_close(p[:, 1], (near / 0.2).softmax(1)[:, 1])
    torch.testing.assert_close((p[:, 2] / p[:, 0]).log(), torch.ones(2))


# -- what travels -------------------------------------------------------------------------------


def test_the_transcript_of_one_epoch(breast: Any) -> None:
    fed = breast(missing=69, wire=True)
    fed.align()
    since = len(said(fed))
    small(epochs=1, batch_size=400, validation=0.1).fit(fed)
    down, up = "bank→vendor", "vendor→bank"
    assert said(fed, since) == [
        (down, "begin", "row selection", "0"),
        (down, "begin", "control", ""),
        (up, "begin", "control", ""),
        (down, "unlabelled", "row selection", "0"),
        (up, "unlabelled", "control", ""),
        (down, "embed", "row selection", "500"),
        (up, "embed", "embedding", "500×8"),
        (down, "guide", "prototype", "2×2×8"),
        (down, "guide", "class prior", "2"),
        (down, "guide", "control", ""),
        (up, "guide", "class prior", "2"),
        (down, "forward", "row selection", "400"),
        (up, "forward", "embedding", "400×8"),
        (down, "backward", "gradient", "400×8"),
        (up, "backward", "control", ""),
        (down, "forward", "row selection", "50"),
        (up, "forward", "embedding", "50×8"),
        (down, "backward", "gradient", "50×8"),
        (up, "backward", "control", ""),
        (down, "embed", "row selection", "50"),
        (up, "embed", "embedding", "50×8"),
        (down, "keep", "control", ""),
        (up, "keep", "control", ""),
        (down, "recall", "control", ""),
        (up, "recall", "control", ""),
    ]


def test_the_wire_changes_nothing(breast: Any) -> None:
    runs = []
    for wire in (False, True):
        train, test = breast(missing=69, wire=wire).split(0.3)
        runs.append(small(epochs=2).fit(train).predict_proba(test))
    np.testing.assert_array_equal(runs[0], runs[1])


@pytest.mark.parametrize("shape", [(2, 2, 7), (2, 3, 8), (1, 2, 8)])
def test_other_prototypes_are_refused(breast: Any, shape: tuple[int, ...]) -> None:
    model = small(epochs=1).fit(breast())
    with pytest.raises(Refused, match="were due"):
        model.peers_["vendor"].ask(ProtoSide.guide, torch.ones(shape), torch.ones(2), {})


@pytest.mark.parametrize("prior", [[-0.5, 1.5], [3.0, 4.0], [0.0, 0.0]])
def test_a_prior_is_one(breast: Any, prior: list[float]) -> None:
    model = small(epochs=1).fit(breast())
    with pytest.raises(Refused, match="do not sum to 1"):
        model.peers_["vendor"].ask(ProtoSide.guide, torch.ones(2, 2, 8), torch.tensor(prior), {})


# -- what it learns -----------------------------------------------------------------------------


def test_what_each_party_selected_is_mostly_right(limited: Any, true_classes: Any) -> None:
    """The partner tells nobody what it selected; in a simulation it can be asked."""
    train, _ = limited(spread=1.6).split(60)
    model = small().fit(train)
    assert list(model.kept_) == ["bank"]
    found = rightness(model, train, true_classes(train, 3))
    assert set(found) == {"bank", "shop"}
    for right in found.values():
        assert 0 < right.kept == right.known < right.of == 130
        assert right.right > 0.75 * right.kept
    counted = rightness(model, train)["shop"]
    assert (counted.kept, counted.known) == (found["shop"].kept, 0)
    assert counted.precision is None


def test_shared_people_without_a_label_are_learnt_from_like_the_unaligned(limited: Any) -> None:
    fed = limited(labelled=np.arange(100))
    model = small(epochs=2).fit(fed)
    side = fed.engine.parties["shop"].sides[model.session_]
    ids = fed.engine.parties["shop"].frame["id"]
    assert set(ids.gather(side.others.numpy())) == {
        f"p{i:05d}" for i in (*range(100, 140), *range(270, 400))
    }
    assert {name: r.of for name, r in rightness(model, fed).items()} == {"bank": 170, "shop": 170}


def test_two_parties(breast: Any) -> None:
    train, test = breast(missing=200).split(0.3)
    model = small().fit(train)
    assert roc_auc_score(test.y, model.predict_proba(test)[:, 1]) > 0.97
    assert model.top_.prior.sum().item() == pytest.approx(1)
    gates = model.gates(test)
    assert gates.shape == (len(test.rows), 2)
    torch.testing.assert_close(gates.sum(1), torch.ones(len(gates)))


def test_several_classes_without_columns_at_the_active_party(federate: Any) -> None:
    from sklearn.datasets import load_wine

    x, y = load_wine(return_X_y=True)
    train, test = federate(x, y, [slice(0, 6), slice(6, 13)], None).split(0.3)
    model = small(epochs=30).fit(train)
    assert model.score(test) > 0.85


def test_images(digits: Any) -> None:
    train, test = digits().split(0.3)
    flat = BottomSpec(network="mlp", hidden=(32,), width=16)
    assert small(bottom=flat, epochs=10).fit(train).score(test) > 0.7


def test_a_person_at_two_of_three_clinics_is_learnt_from_and_scored(clinics: Any) -> None:
    parties = clinics().engine.parties
    fed = Federation.simulate(
        [
            Party("bank", parties["bank"].frame, label="y"),
            *(Party(n, parties[n].frame) for n in ("vendor", "shop")),
            Party("clinic", parties["clinic"].frame[:300]),
        ]
    )
    train, _ = fed.split(0.3)
    model = small().fit(train)
    partial = fed.view(np.setdiff1d(fed.rows, fed.alignment.common))
    assert roc_auc_score(partial.y, model.predict_proba(partial)[:, 1]) > 0.95
    assert (model.gates(partial)[:, 2] == 0).all()


@pytest.fixture
def animals() -> Any:
    """Three classes, seen by two parties; few people are shared, most sit at one of them."""

    def make(
        shared: list[int], only_bank: list[int], only_shop: list[int], **kw: Any
    ) -> Federation:
        rng = np.random.default_rng(0)
        centres = np.array([[2.0, 0, 2, 0], [-2, 0, -2, 0], [0, 2.5, 0, 2.5]])

        def draw(counts: list[int]) -> tuple[np.ndarray, np.ndarray]:
            y = np.repeat(np.arange(3), counts)
            return centres[y] + rng.standard_normal((len(y), 4)), y

        (x, y), (a, ya), (b, _) = draw(shared), draw(only_bank), draw(only_shop)
        names = np.array(["dog", "cat", "yak"])
        ids = [[f"{k}{i}" for i in range(len(t))] for k, t in (("s", x), ("a", a), ("b", b))]
        bank = table(
            np.concatenate([x, a])[:, :2], ids[0] + ids[1], y=names[np.concatenate([y, ya])]
        )
        shop = table(np.concatenate([x, b])[:, 2:], ids[0] + ids[2])
        return Federation.simulate([Party("bank", bank, label="y"), Party("shop", shop)], **kw)

    return make


def recall(model: ProtoEVFL, test: Federation, animal: str) -> float:
    who = test.active.label_series.gather(test.rows).to_numpy() == animal
    return float((model.predict(test)[who] == animal).mean())


def test_few_shot(animals: Any) -> None:
    """A class with four shared people in training is recognised."""
    fed = animals([60, 60, 60], [0, 0, 0], [200, 60, 60])
    train, test = fed.split(0.5)
    yaks = np.flatnonzero(fed.active.frame["y"] == "yak")
    few = train.view(np.setdiff1d(train.rows, np.intersect1d(train.rows, yaks)[4:]))
    assert (few.active.frame["y"].gather(few.rows) == "yak").sum() == 4
    model = small(epochs=30, class_weight="balanced").fit(few)
    assert recall(model, test, "yak") > 0.7
    assert recall(model, test, "dog") > 0.7


def test_zero_shot_by_people_of_the_active_party_alone(animals: Any) -> None:
    """No shared person in training is a yak; the active party has some whom nobody else holds."""
    fed = animals([60, 60, 40], [10, 10, 40], [100, 100, 100])
    _, test = fed.split(0.5)
    yaks = np.flatnonzero(
        (fed.active.frame["y"] == "yak") & fed.active.frame["id"].str.starts_with("s")
    )
    train = fed.view(
        np.setdiff1d(fed.rows, np.union1d(test.rows, yaks)), np.union1d(test.rows, yaks)
    )
    model = small(epochs=20).fit(train)
    assert model.top_.unseen.tolist() == [False, False, True]
    assert recall(model, test, "yak") > 0.6
    assert recall(model, test, "dog") > 0.6
    np.testing.assert_allclose(model.predict_proba(test).sum(1), 1, rtol=1e-5)


def test_a_class_that_nobody_has_needs_a_description(animals: Any) -> None:
    fed = animals([60, 60, 40], [0, 0, 0], [100, 100, 100])
    _, test = fed.split(0.5)
    yaks = np.flatnonzero(fed.active.frame["y"] == "yak")
    away = np.union1d(test.rows, yaks)
    train = fed.view(np.setdiff1d(fed.rows, away), away)
    with pytest.raises(DataError, match="1 of 3 classes do not occur"):
        small(epochs=1).fit(train)
    with pytest.raises(JobError, match="describes 2 of the 3 classes"):
        small(epochs=1, semantics={"dog": [1.0], "cat": [0.0]}).fit(train)


@pytest.mark.parametrize("seed", [1, 3])
def test_zero_shot_by_what_classes_mean(seed: int) -> None:
    """Six classes that are combinations of three traits; nobody in training is of the sixth."""
    rng = np.random.default_rng(seed)
    traits = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [0, 1, 1], [1, 0, 1.0]]) * 2 - 1
    looks = rng.standard_normal((3, 8))
    y = rng.permutation(np.repeat(np.arange(6), 66))
    kinds = np.concatenate([y, rng.integers(0, 6, 300)])
    x = traits[kinds] @ looks + 0.5 * rng.standard_normal((len(kinds), 8))
    ids = [f"p{i}" for i in range(len(x))]
    names = np.array(list("abcdef"))
    bank = table(x[: len(y), :4], ids[: len(y)], y=names[y])
    parties = [Party("bank", bank, label="y"), Party("shop", table(x[:, 4:], ids))]
    fed = Federation.simulate(parties, seed=seed)
    _, test = fed.split(0.4)
    away = np.union1d(test.rows, np.flatnonzero(y == 5))
    train = fed.view(np.setdiff1d(fed.rows, away), away)
    meaning = {name: list(t) for name, t in zip(names, traits, strict=True)}
    model = small(epochs=20, semantics=meaning).fit(train)
    assert recall(model, test, "f") > 0.35, "six classes: 0.17 by chance, 0 for any trained model"
    assert model.score(test) > 0.75


# -- what cannot be ------------------------------------------------------------------------------


def test_a_regression_has_no_prototypes(diabetes: Any) -> None:
    with pytest.raises(JobError, match="it is for classes; the label is a regression"):
        small().fit(diabetes())


def test_embeddings_of_different_widths_cannot_be_added(breast: Any) -> None:
    own = {"vendor": {"bottom": torch.nn.Linear(20, 3)}}
    with pytest.raises(JobError, match="they need one width; they have 3, 8"):
        small().fit(breast(options=own))


def test_nobody_to_score(clinics: Any) -> None:
    fed = clinics(missing=50)
    model = small(epochs=1).fit(fed)
    with pytest.raises(AlignmentError, match="50 of 569 people are held by no party"):
        model.predict_proba(fed)


# -- kept on disk -------------------------------------------------------------------------------


class Killed(Exception):
    pass


def test_a_killed_training_goes_on_to_the_same_result(breast: Any, tmp_path: Path) -> None:
    def fit(folder: Path, stop: int | None) -> np.ndarray:
        fed = breast(folder=folder, missing=100)

        def on_epoch(epoch: Any) -> None:
            if epoch.number == stop:
                raise Killed

        model = small(epochs=4).fit(fed, checkpoint="run", on_epoch=on_epoch)
        return model.predict_proba(fed)

    whole = fit(tmp_path / "whole", None)
    with pytest.raises(Killed):
        fit(tmp_path / "killed", 2)
    np.testing.assert_array_equal(fit(tmp_path / "killed", None), whole)


def test_a_saved_model_predicts_the_same(breast: Any, tmp_path: Path) -> None:
    fed = breast(folder=tmp_path)
    model = small(epochs=2).fit(fed)
    expected = model.predict_proba(fed)
    model.save("first")
    again = small(epochs=2).load("first", breast(folder=tmp_path))
    np.testing.assert_array_equal(again.predict_proba(fed), expected)
