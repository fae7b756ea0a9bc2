"""One-shot and few-shot VFL: what travels, what is learnt from whom, and the lecture's cases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from sklearn.metrics import adjusted_rand_score, homogeneity_score
from torch.nn import functional as F

from interlace import Federation, Party, Policy
from interlace.assess import rightness
from interlace.errors import AlignmentError, JobError, PolicyError, Refused
from interlace.methods import ActiveAlone, SplitVFL, WithFallback
from interlace.methods.bottom import BottomSide
from interlace.methods.clustering import cluster
from interlace.methods.semi_supervised import FixMatch, MixMatch, PseudoLabels
from interlace.methods.vertical import one_shot
from interlace.methods.vertical.missing import attend, complete
from interlace.methods.vertical.one_shot import (
    FewShotSide,
    FewShotVFL,
    OneShotSide,
    OneShotVFL,
    draw,
    keep_probability,
)
from interlace.models import BottomSpec, Optimisation, mlp

D = 8
HOW: dict[str, Any] = {
    "epochs": 30,
    "local_epochs": 30,
    "bottom": BottomSpec(hidden=(16,), width=D),
    "top": (16,),
    "optimisation": Optimisation(learning_rate=5e-3),
    "batch_size": 32,
}


def one(**kw: Any) -> OneShotVFL:
    return OneShotVFL(**{**HOW, **kw})


def few(**kw: Any) -> FewShotVFL:
    return FewShotVFL(**{**HOW, "refine_epochs": 15, **kw})


def said(fed: Federation) -> list[tuple[str, str, str, str]]:
    """The transcript after the matching: who to whom, operation, kind, shape."""
    return [
        (f"{e.sender}→{e.receiver}", e.operation, e.kind, e.shape)
        for e in fed.active.boundary.ledger.entries()
        if e.session != "alignment"
    ]


def payload(fed: Federation, *kinds: str) -> int:
    return sum(
        e.bytes_before
        for e in fed.active.boundary.ledger.entries()
        if e.session != "alignment" and e.kind in kinds
    )


# -- the lecture's cases ------------------------------------------------------------------------


def test_the_lectures_four_people_fall_in_their_clusters() -> None:
    """S0…S3 with labels 0, 1, 0, 2: gradients of S0 and S2 in one cluster, S1 and S3 apart."""
    ids = ["S0", "S1", "S2", "S3"]
    bank = pl.DataFrame({"id": ids, "age": [35, 40, 45, 23], "risk": [0, 1, 0, 2]})
    shop = pl.DataFrame({"id": [*ids[::-1], "U0", "U1"], "orders": [9, 3, 7, 1, 4, 5]})
    fed = Federation.simulate([Party("bank", bank, label="risk"), Party("shop", shop)])
    one(bottom=BottomSpec(width=3), validation=0, local_epochs=1, epochs=1).fit(fed)
    party = fed.engine.parties["shop"]
    side = next(s for s in party.sides.values() if isinstance(s, OneShotSide))
    names = party.frame["id"].gather(side.overlap.numpy()).to_list()
    label = dict(zip(names, side.labels.tolist(), strict=True))
    assert label["S0"] == label["S2"]
    assert len({label["S0"], label["S1"], label["S3"]}) == 3
    assert [s for s in said(fed) if s[1] == "learn"][:2] == [
        ("bank→shop", "learn", "gradient", "4×3"),
        ("bank→shop", "learn", "class count", ""),
    ]


@pytest.mark.parametrize("how", ["kmeans", "gaussian", "spectral", "hdbscan"])
@pytest.mark.parametrize("hidden", [(), (32,), (32, 32)])
def test_clusters_of_gradients_are_the_classes(how: Any, hidden: tuple[int, ...]) -> None:
    """At an untrained head, up to a permutation (acceptance test 1 of the specification)."""
    data = load_digits()
    few_classes = data.target < 4
    x = torch.from_numpy(data.data[few_classes]).float()[:200] / 16
    y = torch.from_numpy(data.target[few_classes])[:200]
    torch.manual_seed(0)
    h = mlp(64, (32,), 16)(x).detach().requires_grad_()
    loss = F.cross_entropy(mlp(16, hidden, 4)(h), y, reduction="sum")
    (gradient,) = torch.autograd.grad(loss, h)
    found = cluster(gradient, 4, how, seed=1)
    if how == "hdbscan":  # it may cut a class in several clusters and leave people out
        kept = found >= 0
        assert kept.float().mean() > 0.7
        assert homogeneity_score(y[kept], found[kept]) >= 0.99
    else:
        assert adjusted_rand_score(y, found) >= 0.99


def opinion(*sure: tuple[int, float]) -> torch.Tensor:
    """Probabilities of two classes, by the class named and how surely."""
    return torch.tensor([[1 - p, p] if c else [p, 1 - p] for c, p in sure])


def test_the_lectures_two_heads() -> None:
    """0.85 and 0.94 for class 1: kept with 0.94. If the joint head says class 0: rejected."""
    alone, joint = opinion((1, 0.85), (1, 0.85)), opinion((1, 0.94), (0, 0.94))
    torch.testing.assert_close(keep_probability(alone, joint, 0.8), torch.tensor([0.94, 0.0]))
    torch.testing.assert_close(keep_probability(alone, joint, 0.85), torch.zeros(2))
    torch.testing.assert_close(keep_probability(alone, joint, 0.0), torch.tensor([0.94, 0.0]))
    soft = keep_probability(alone, joint, 0.8, "soft")
    torch.testing.assert_close(
        soft, torch.tensor([0.85 * 0.94 + 0.15 * 0.06, 0.15 * 0.94 + 0.85 * 0.06])
    )


@given(st.integers(0, 2**31), st.floats(0, 0.99))
def test_rejected_rows_are_never_drawn(seed: int, floor: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    alone, joint = (torch.randn(50, 3, generator=generator).softmax(1) for _ in range(2))
    keep = keep_probability(alone, joint, floor)
    drawn = draw(keep, seed)
    says = alone.argmax(1)
    for i in drawn.tolist():
        assert says[i] == joint[i].argmax()
        assert min(alone[i].max(), joint[i].max()) > floor
    assert torch.equal(draw(torch.ones(50), seed), torch.arange(50))


def test_transform_with_one_pair_gives_that_vector() -> None:
    mine, theirs = torch.randn(1, 3), torch.randn(1, 5)
    torch.testing.assert_close(attend(torch.randn(4, 3), mine, theirs), theirs.expand(4, 5))


def test_transform_gives_a_weighted_mean_of_real_vectors() -> None:
    keys = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    values = torch.tensor([[10.0], [20.0]])
    query = torch.tensor([[2.0, 0.0]])
    weight = float(torch.tensor([2 / 2**0.5, 0.0]).softmax(0)[0])
    assert attend(query, keys, values).item() == pytest.approx(10 * weight + 20 * (1 - weight))
    sharp = attend(query, keys, values, temperature=0.05)
    assert sharp.item() == pytest.approx(10, abs=1e-3)
    without = attend(query, keys, values, but=torch.tensor([0]))
    assert without.item() == pytest.approx(20)


def test_views_are_completed_for_any_pattern() -> None:
    views = [torch.randn(5, 2), torch.randn(5, 3), torch.randn(5, 4)]
    held = torch.tensor([[1, 1, 1], [1, 1, 1], [1, 0, 0], [0, 1, 1], [1, 1, 0]]).bool()
    whole = complete(views, held)
    for k, view in enumerate(views):
        assert torch.equal(whole[k][held[:, k]], view[held[:, k]])
    torch.testing.assert_close(
        whole[1][2], attend(views[0][2:3], views[0][[0, 1, 4]], views[1][[0, 1, 4]])[0]
    )
    torch.testing.assert_close(
        whole[2][4],
        attend(torch.cat(views[:2], 1)[4:], torch.cat(views[:2], 1)[:2], views[2][:2])[0],
    )
    apart = complete(views[:2], torch.tensor([[1, 0], [1, 0], [0, 1], [0, 1], [0, 1]]).bool())
    torch.testing.assert_close(apart[1][0], views[1][2:].mean(0))


# -- what travels -------------------------------------------------------------------------------


def test_one_shot_is_two_uploads_and_one_download(limited: Any) -> None:
    fed = limited()
    one(validation=0.1).fit(fed)
    down, up = "bank→shop", "shop→bank"
    assert said(fed) == [
        (down, "begin", "row selection", "0"),
        (down, "begin", "control", ""),
        (up, "begin", "control", ""),
        (down, "represent", "row selection", "126"),
        (down, "represent", "row selection", "0"),  # nobody is shared who has no label
        (up, "represent", "embedding", "126×8"),
        (down, "learn", "gradient", "126×8"),
        (down, "learn", "class count", ""),
        (down, "learn", "control", ""),
        (up, "learn", "control", ""),
        (down, "embed", "row selection", "140"),  # with the 14 kept aside to stop the head early
        (up, "embed", "embedding", "140×8"),
    ]


def test_few_shot_is_three_uploads_and_two_downloads(limited: Any) -> None:
    fed = limited()
    model = few(validation=0).fit(fed)
    kept = len(model.kept_["shop"])
    assert kept > 0
    down, up = "bank→shop", "shop→bank"
    assert said(fed) == [
        (down, "begin", "row selection", "0"),
        (down, "begin", "control", ""),
        (up, "begin", "control", ""),
        (down, "represent", "row selection", "140"),
        (down, "represent", "row selection", "0"),
        (up, "represent", "embedding", "140×8"),
        (down, "learn", "gradient", "140×8"),
        (down, "learn", "class count", ""),
        (down, "learn", "control", ""),
        (up, "learn", "control", ""),
        (down, "embed", "row selection", "270"),
        (up, "embed", "embedding", "270×8"),  # 140 shared people and 130 of the shop's own
        (down, "refine", "keep probability", "130"),
        (up, "refine", "row selection", f"{kept}"),
        (down, "embed", "row selection", f"{140 + kept}"),
        (up, "embed", "embedding", f"{140 + kept}×8"),
    ]


@pytest.mark.parametrize("wire", [False, True])
def test_the_ledger_proves_the_cost_to_the_byte(limited: Any, wire: bool) -> None:
    """3·N_o·d_h·β and one class count; few-shot adds N_u·d_h·β, N_u·β and the third upload."""
    n, others, beta = 140, 130, 4
    fed = limited(wire=wire)
    one(validation=0).fit(fed)
    assert payload(fed, "embedding", "gradient") == 3 * n * D * beta
    assert payload(fed, "class count") == 8
    fed = limited(wire=wire)
    kept = len(few(validation=0).fit(fed).kept_["shop"])
    assert payload(fed, "embedding", "gradient", "keep probability") == (
        3 * n * D * beta + others * D * beta + others * beta + n * D * beta + kept * D * beta
    )


def test_the_cost_beside_split_learning(limited: Any) -> None:
    """Split learning passes 2·E·N_o·d_h·β, 2E/3 times as much as one-shot: 333 at 500 epochs."""
    fed = limited()
    SplitVFL(epochs=3, bottom=HOW["bottom"], validation=0, patience=None).fit(fed)
    assert payload(fed, "embedding", "gradient") == 2 * 3 * 140 * D * 4


def test_each_of_three_clinics_gets_gradients_of_its_own_people(three_clinics: Any) -> None:
    """A person at two of three clinics is used at both (100 of the registry's people each)."""
    fed = three_clinics()
    one(validation=0).fit(fed)
    assert payload(fed, "embedding", "gradient") == 3 * (3 * 100 * D * 4)
    assert payload(fed, "class count") == 3 * 8


def test_only_whom_all_share_are_used_where_no_more_is_known(three_clinics: Any) -> None:
    fed = three_clinics(reveal="common")
    few(validation=0, local_epochs=5, epochs=5, refine_epochs=2, floor=1.0).fit(fed)
    asked = [s for s in said(fed) if s[1] in ("represent", "refine") and s[0].startswith("reg")]
    assert [s[3] for s in asked] == ["40", "0"] * 3 + ["110"] * 3


def test_shared_people_without_a_label_are_learnt_from_like_the_unaligned(limited: Any) -> None:
    """100 of the 140 shared people have a label; few-shot asks about all who have none, and knows
    the real views of those whom both hold."""
    down, up = "bank→shop", "shop→bank"
    fed = limited(labelled=np.arange(100))
    model = few(validation=0).fit(fed)
    told = [s for s in said(fed) if s[1] in ("represent", "embed", "refine")]
    chosen = int(told[-1][3].split("×")[0]) - 100
    assert told == [
        (down, "represent", "row selection", "100"),
        (down, "represent", "row selection", "40"),
        (up, "represent", "embedding", "100×8"),
        (down, "embed", "row selection", "270"),
        (up, "embed", "embedding", "270×8"),
        (down, "refine", "keep probability", "170"),
        (up, "refine", "row selection", f"{len(model.kept_['shop'])}"),
        (down, "embed", "row selection", f"{100 + chosen}"),
        (up, "embed", "embedding", f"{100 + chosen}×8"),
    ]
    shop = fed.engine.parties["shop"]
    side = shop.sides[model.session_]
    known = set(fed.active.frame["id"][:100])
    assert set(shop.frame["id"].gather(side.unlabelled.numpy())) == {
        f"p{i:05d}" for i in range(100, 140)
    }
    assert not known & set(shop.frame["id"].gather(side.unlabelled.numpy()))
    assert {name: kept.of for name, kept in model.kept_.items()} == {"shop": 170, "bank": 170}


def test_nobody_is_learnt_from_twice_and_real_views_are_not_estimated(
    limited: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[list[torch.Tensor], torch.Tensor]] = []

    def spy(views: list[torch.Tensor], held: torch.Tensor, *known: Any) -> list[torch.Tensor]:
        seen.append((complete(views, held, *known), held))
        return seen[-1][0]

    monkeypatch.setattr(one_shot, "complete", spy)
    fed = limited(labelled=np.arange(100))
    model = few(validation=0).fit(fed)
    whole, held = seen[-1]  # of the head's last fit: 100 with a label, and everybody kept
    both = set()
    shared = set(range(140))
    for name, kept in model.kept_.items():
        side = fed.engine.parties[name]
        rows = kept.rows
        if name == "shop":
            people = fed.engine.parties["shop"].sides[model.session_]._people
            rows = people[rows]
        both |= set(side.frame["id"].gather(rows.numpy()))
    assert len(held) == 100 + len(both)
    assert int(held[100:].all(1).sum()) == sum(int(i[1:]) in shared for i in both) > 0
    assert all(len(view) == len(held) for view in whole)


@pytest.mark.parametrize("make", [one, few])
def test_people_at_some_clinics_are_scored_by_those(three_clinics: Any, make: Any) -> None:
    """Views that nobody has are estimated; where all are there, nothing changes."""
    train, test = three_clinics().split(16)
    model = make().fit(train)
    some = train.view(np.arange(130))  # 40 at all three clinics, then 30 at each two of them
    outputs = model.predict_proba(some)
    whole = np.intersect1d(np.arange(40), test.rows)
    np.testing.assert_array_equal(outputs[whole], model.predict_proba(train.view(whole)))
    assert (outputs[40:].argmax(1) == np.arange(40, 130) % 2).mean() > 0.8
    with pytest.raises(AlignmentError, match="20 of 150 people are held by no party"):
        model.predict_proba(train.view(np.arange(150)))


def test_a_fallback_is_for_people_whom_no_partner_holds(cut_people: Any, blobs: Any) -> None:
    x, y = blobs(200)
    columns = {"bank": slice(0, 3), "shop": slice(3, 6), "post": slice(6, 8)}
    people = {"bank": np.arange(200), "shop": np.arange(120), "post": np.arange(80, 160)}
    fed = cut_people(x, y, columns, people)
    quick = {"epochs": 2, "bottom": HOW["bottom"], "top": (16,)}
    sources = {
        type(joint): WithFallback(joint, ActiveAlone(**quick)).fit(fed).sources(fed).tolist()
        for joint in (SplitVFL(**quick), one(epochs=2, local_epochs=2))
    }
    assert sources[SplitVFL] == ["alone"] * 80 + ["joint"] * 40 + ["alone"] * 80
    assert sources[OneShotVFL] == ["joint"] * 160 + ["alone"] * 40


def test_the_bank_alone_scores_whom_no_partner_holds(limited: Any) -> None:
    fed = limited()
    model = one().fit(fed)
    everybody = fed.view(np.arange(270))
    assert (model.predict_proba(everybody).argmax(1)[140:] == np.arange(140, 270) % 3).mean() > 0.7


def test_the_head_learns_from_people_at_two_of_three_clinics(
    three_clinics: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted: list[list[int]] = []
    fit_head = OneShotVFL._fit_head

    def spy(self: OneShotVFL, *args: Any) -> Any:
        fitted.append([len(y) for _, y in args[3]])
        return fit_head(self, *args)

    monkeypatch.setattr(OneShotVFL, "_fit_head", spy)
    one(validation=0, epochs=1, local_epochs=1).fit(three_clinics())
    assert fitted == [[40, 90]], "40 at all three, 30 at each two"


def test_both_ledgers_tell_the_same_and_the_wire_changes_nothing(limited: Any) -> None:
    runs = []
    for wire in (False, True):
        fed = limited(wire=wire)
        model = few().fit(fed)
        ledgers = [p.boundary.ledger for p in fed.engine.parties.values()]
        told = [
            [(e.operation, e.kind, e.shape, e.bytes_after) for e in ledger.entries()]
            for ledger in ledgers
        ]
        assert told[0] == told[1]
        runs.append((model.predict_proba(fed.shared()), told[0]))
    np.testing.assert_array_equal(runs[0][0], runs[1][0])
    assert runs[0][1] == runs[1][1]


def test_guards_stand_before_the_one_gradient(limited: Any) -> None:
    noise = {"guards": {"gradient": [{"gaussian": {"sigma": 5.0}}]}}
    fed = limited(options={"bank": {"policy": Policy.model_validate(noise)}})
    one(local_epochs=1, epochs=1).fit(fed)
    side = next(s for s in fed.engine.parties["shop"].sides.values() if isinstance(s, OneShotSide))
    truth = {f"p{i:05d}": i % 3 for i in range(400)}
    ids = fed.engine.parties["shop"].frame["id"].gather(side.overlap.numpy())
    assert adjusted_rand_score([truth[i] for i in ids], side.labels) < 0.5


# -- what is learnt ------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [one, few])
def test_three_classes_with_columns_at_the_active_party(limited: Any, make: Any) -> None:
    train, test = limited().split(60)
    model = make().fit(train)
    assert model.score(test) > 0.85
    np.testing.assert_allclose(model.predict_proba(test).sum(1), 1)
    assert model.history_[-1].validation is not None


@pytest.mark.parametrize("make", [one, few])
def test_a_label_holder_without_columns(limited: Any, make: Any) -> None:
    train, test = limited(own=False, classes=2).split(60)
    model = make().fit(train)
    assert model.own_ is None
    assert model.score(test) > 0.9


@pytest.mark.parametrize("make", [one, few])
def test_three_clinics(three_clinics: Any, make: Any) -> None:
    train, test = three_clinics().split(16)
    model = make().fit(train)
    assert model.score(test) > 0.8


@pytest.mark.parametrize("make", [one, few])
def test_images_in_halves(digits: Any, make: Any) -> None:
    train, test = digits().split(500)
    split = FixMatch(augment={"flip": False}, ratio=2)
    model = make(
        bottom=BottomSpec(hidden=(8,), width=8),
        semi_supervised=split,
        local_epochs=10,
        optimisation=Optimisation(learning_rate=1e-2),
    ).fit(train)
    assert model.score(test) > 0.5


def test_with_everybody_shared_it_comes_close_to_split_learning(breast: Any) -> None:
    train, test = breast().split(0.3)
    split = SplitVFL(epochs=30, bottom=HOW["bottom"], optimisation=HOW["optimisation"]).fit(train)
    assert one(local_epochs=20).fit(train).score(test) > split.score(test) - 0.03


def test_which_cluster_has_which_number_does_not_matter(
    limited: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, test = limited().split(60)
    plain = one().fit(train).score(test)
    monkeypatch.setattr(one_shot, "cluster", lambda *a: (cluster(*a) + 1) % 3)
    assert one().fit(train).score(test) == pytest.approx(plain, abs=0.05)


def test_without_unaligned_rows_temporary_labels_are_all_there_is(breast: Any) -> None:
    train, test = breast().split(0.3)
    outputs = [
        one(local_epochs=5, semi_supervised=FixMatch(weight=w)).fit(train).predict_proba(test)
        for w in (0.0, 1.0)
    ]
    np.testing.assert_array_equal(*outputs)


def test_few_shot_that_rejects_all_is_one_shot_with_more_epochs(limited: Any) -> None:
    train, test = limited().split(60)
    model = few(floor=1.0).fit(train)
    assert [len(k) for k in model.kept_.values()] == [0, 0]
    assert [k.of for k in model.kept_.values()] == [130, 130]
    np.testing.assert_array_equal(
        model.predict_proba(test), one(local_epochs=45).fit(train).predict_proba(test)
    )


def test_kept_rows_are_mostly_right(limited: Any, true_classes: Any) -> None:
    """Where one person holds all tables, the truth about the kept rows is known."""
    train, _ = limited(spread=1.6).split(60)
    model = few().fit(train)
    for right in rightness(model, train, true_classes(train, 3)).values():
        assert 0 < right.kept == right.known < right.of == 130
        assert right.right > 0.75 * right.kept


def test_labels_of_people_whom_nobody_else_holds_are_used(limited: Any) -> None:
    """The bank's own 130 people have labels: its network, and few-shot's head, learn from them."""
    outputs = {}
    for labelled in (140, 270):
        fed = limited(labelled=np.arange(labelled))
        model = few().fit(fed)
        outputs[labelled] = model.predict_proba(fed.shared())
        assert model.kept_["bank"].of == 270 - labelled
    assert np.abs(outputs[140] - outputs[270]).max() > 1e-3


@pytest.mark.parametrize(
    "plugin", [MixMatch(weight=10), PseudoLabels(), FixMatch(threshold=0.7)], ids=lambda p: p.name
)
def test_semi_supervised_learning_is_a_plugin(limited: Any, plugin: Any) -> None:
    train, test = limited().split(60)
    assert one(semi_supervised=plugin).fit(train).score(test) > 0.8


@pytest.mark.parametrize("clustering", ["gaussian", "spectral", "hdbscan"])
def test_clustering_is_a_plugin(limited: Any, clustering: Any) -> None:
    train, test = limited().split(60)
    assert one(clustering=clustering).fit(train).score(test) > 0.8


def test_an_own_head_and_own_networks(limited: Any) -> None:
    own = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh())
    fed = limited(options={"shop": {"bottom": own}})
    train, test = fed.split(60)
    head = torch.nn.Linear(6 + D, 3)
    assert few(top=head).fit(train).score(test) > 0.8


def test_the_held_out_say_nothing(cut_people: Any, blobs: Any) -> None:
    """Neither the features nor the labels of people held out change the model."""
    x, y = blobs(400)
    columns = {"bank": slice(0, 4), "shop": slice(4, 8)}
    people = {"bank": np.arange(270), "shop": np.r_[np.arange(140), np.arange(270, 400)]}
    train, test = cut_people(x, y, columns, people).split(60)
    model = few(local_epochs=5, epochs=5, refine_epochs=5).fit(train)
    wild, other = x.copy(), y.copy()
    wild[test.rows] *= 1e3
    other[test.rows] = (y[test.rows] + 1) % 3
    again = cut_people(wild, other, columns, people)
    same = few(local_epochs=5, epochs=5, refine_epochs=5).fit(again.view(train.rows, test.rows))
    seen = train.shared()
    np.testing.assert_array_equal(
        model.predict_proba(seen), same.predict_proba(again.view(seen.rows))
    )


def test_only_the_seed_decides(limited: Any) -> None:
    def outputs(seed: int) -> np.ndarray:
        fed = limited(seed=7)
        model = few(dropout=0.2, epochs=8, local_epochs=8, refine_epochs=4)
        return model.fit(fed.fresh(seed, "")).predict_proba(fed.shared())

    np.testing.assert_array_equal(outputs(1), outputs(1))
    assert np.abs(outputs(1) - outputs(2)).max() > 1e-3


def test_regression_is_refused(diabetes: Any) -> None:
    for method in (one(), few()):
        with pytest.raises(JobError, match="it is for classes; the label is a regression"):
            method.fit(diabetes())


def test_people_whom_all_hold_are_needed(cut_people: Any, blobs: Any) -> None:
    x, y = blobs(40, 2)
    people = {"bank": np.arange(40), "shop": np.arange(10), "lab": np.arange(9, 30)}
    columns = {"bank": slice(0, 4), "shop": slice(4, 6), "lab": slice(6, 8)}
    with pytest.raises(AlignmentError, match="1 people are held by all parties"):
        one().fit(cut_people(x, y, columns, people))


# -- partners that do not keep to the agreement ----------------------------------------------------


def test_one_shot_never_shows_unaligned_people(limited: Any) -> None:
    fed = limited()
    shown = one(local_epochs=1, epochs=1).fit(fed)
    with pytest.raises(Refused, match="outside of the 140 people it shares with 'bank'"):
        shown.peers_["shop"].ask(BottomSide.embed, torch.tensor([140]))
    shown = few(local_epochs=1, epochs=1, refine_epochs=1).fit(fed)
    assert shown.peers_["shop"].ask(BottomSide.embed, torch.tensor([269])).shape == (1, D)
    with pytest.raises(Refused, match="140 people it shares with 'bank' and its 130 others"):
        shown.peers_["shop"].ask(BottomSide.embed, torch.tensor([270]))


def test_gradients_and_probabilities_of_the_wrong_shape_change_nothing(limited: Any) -> None:
    model = few(local_epochs=1, epochs=1, refine_epochs=1, validation=0).fit(limited())
    peer = model.peers_["shop"]
    before = peer.ask(BottomSide.embed, torch.arange(140))
    count, settings = torch.tensor(3), model._local_settings().model_dump(mode="json")
    with pytest.raises(Refused, match=r"shape \(139, 8\) came, \(140, 8\) were due"):
        peer.ask(OneShotSide.learn, torch.ones(139, D), count, settings)
    with pytest.raises(Refused, match=r"\(131,\) keep-probabilities came for 130"):
        peer.ask(FewShotSide.refine, torch.ones(131))
    with pytest.raises((Refused, PolicyError), match="NaN or infinity"):
        peer.ask(FewShotSide.refine, torch.full((130,), float("nan")))
    assert torch.equal(peer.ask(BottomSide.embed, torch.arange(140)), before)


def test_a_partner_cannot_draw_what_was_rejected(
    limited: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(one_shot, "draw", lambda keep, secret: torch.arange(len(keep)))
    with pytest.raises(Refused, match="party 'shop' drew rows that had been rejected"):
        few(floor=1.0, local_epochs=1, epochs=1, refine_epochs=1).fit(limited())


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"clustering": "kmean"}, "`clustering`"),
        ({"local_epochs": -1}, "`local_epochs`"),
        ({"semi_supervised": {"name": "fixmatch", "threshold": 2}}, "`semi_supervised"),
    ],
)
def test_wrong_settings_are_told_before_anything_is_asked(
    limited: Any, settings: dict[str, Any], complaint: str
) -> None:
    fed = limited()
    with pytest.raises(JobError, match=complaint):
        one(**settings).fit(fed)
    assert not said(fed)


# -- kept on disk ---------------------------------------------------------------------------------


class Killed(Exception):
    pass


@pytest.mark.parametrize("make", [one, few])
@pytest.mark.parametrize("during", ["refine", "head"])
def test_a_killed_training_goes_on_to_the_same_result(
    limited: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Any, during: str
) -> None:
    policies = {
        "shop": {
            "policy": Policy.model_validate(
                {"guards": {"embedding": [{"clip": {"norm": 1.0}}, {"gaussian": {"sigma": 0.1}}]}}
            )
        },
    }

    def fit(folder: Path, stop: bool) -> tuple[Any, np.ndarray]:
        train, _ = limited(folder=folder, options=policies).split(60)
        with monkeypatch.context() as patched:
            if stop and during == "refine":
                patched.setattr(FewShotVFL, "_second_round", _killed)
                patched.setattr(OneShotVFL, "_represent", _killed)
            model = make(dropout=0.3, epochs=8, local_epochs=8).fit(
                train, checkpoint="run", on_epoch=_killed if stop and during == "head" else None
            )
        return model, model.predict_proba(train.shared().labelled())

    whole, expected = fit(tmp_path / "whole", False)
    with pytest.raises(Killed):
        fit(tmp_path / "killed", True)
    first: list[int] = []
    monkeypatch.setattr(OneShotVFL, "_first_round", lambda *a: first.append(1))
    again, outputs = fit(tmp_path / "killed", False)
    assert not first, "the first round is not done again"
    np.testing.assert_array_equal(outputs, expected)
    assert [e.loss for e in again.history_] == [e.loss for e in whole.history_]
    if make is few:
        for name, kept in whole.kept_.items():
            assert torch.equal(again.kept_[name].rows, kept.rows)


def _killed(*args: Any) -> Any:
    raise Killed


@pytest.mark.parametrize("make", [one, few])
def test_a_saved_model_predicts_the_same(limited: Any, tmp_path: Path, make: Any) -> None:
    fed = limited(folder=tmp_path)
    model = make(local_epochs=3, epochs=3).fit(fed)
    model.save("first")
    again = make(local_epochs=3, epochs=3).load("first", limited(folder=tmp_path))
    assert again.history_ == model.history_
    fresh = limited(folder=tmp_path)
    again = make(local_epochs=3, epochs=3).load("first", fresh)
    np.testing.assert_array_equal(
        again.predict_proba(fresh.shared()), model.predict_proba(fed.shared())
    )


def test_new_people_are_scored_by_what_was_learnt(limited: Any) -> None:
    fed = limited()
    model = few(local_epochs=3, epochs=3).fit(fed)
    bank, shop = (fed.engine.parties[n].frame for n in ("bank", "shop"))
    new = fed.with_tables({"bank": bank.drop("y")[:50], "shop": shop[:80]})
    np.testing.assert_allclose(
        model.predict_proba(new), model.predict_proba(fed.view(np.arange(50))), rtol=1e-5
    )


# -- real data ------------------------------------------------------------------------------------


def test_it_beats_split_learning_on_digits_of_which_few_are_shared() -> None:
    """Halves of digits, 256 of them at both parties and 520 at each; 500 more are scored."""
    data = load_digits()
    x, y = data.images.reshape(-1, 64).astype(np.float32) / 16, data.target
    left = np.arange(64) % 8 < 4
    test, shared, a, b = np.split(np.random.default_rng(0).permutation(len(x)), [500, 756, 1276])
    parties = []
    for name, half, alone in (("left", left, a), ("right", ~left, b)):
        rows = np.r_[test, shared, alone]
        table = pl.DataFrame(x[rows][:, half])
        table = table.with_columns(id=pl.Series([f"d{i}" for i in rows]))
        if name == "left":
            known = [int(y[i]) if n < 756 else None for n, i in enumerate(rows)]
            table = table.with_columns(digit=pl.Series(known))
        parties.append(Party(name, table, label="digit" if name == "left" else None))
    fed = Federation.simulate(parties)
    held = np.arange(500)
    train, view = fed.view(np.setdiff1d(fed.rows, held), held), fed.view(held)
    assert OneShotVFL().fit(train).score(view) > SplitVFL().fit(train).score(view) + 0.02
