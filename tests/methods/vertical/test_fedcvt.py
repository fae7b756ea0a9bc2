"""FedCVT: what travels, how views are estimated, classes agreed on, and the loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from torch.nn import functional as F

from interlace import Federation, Party
from interlace.assess import rightness
from interlace.errors import DataError, JobError, Refused
from interlace.methods.bottom import BottomSide
from interlace.methods.vertical.fedcvt import CrossViewClassifiers, FedCVT
from interlace.methods.vertical.missing import attend
from interlace.methods.vertical.split import SplitSide
from interlace.models import BottomSpec, Optimisation

D = 4
HOW: dict[str, Any] = {
    "epochs": 15,
    "bottom": BottomSpec(hidden=(16,), width=D),
    "top": (16,),
    "optimisation": Optimisation(learning_rate=1e-2),
}


def cvt(**kw: Any) -> FedCVT:
    return FedCVT(**{**HOW, **kw})


def said(fed: Federation) -> list[tuple[str, str, str, str]]:
    return [
        (f"{e.sender}→{e.receiver}", e.operation, e.kind, e.shape)
        for e in fed.active.boundary.ledger.entries()
        if e.session != "alignment"
    ]


SELECTED = ("forward", "row selection")


# -- what travels -------------------------------------------------------------------------------


def test_the_transcript_is_the_protocol(limited: Any) -> None:
    """[u; c] is twice as wide as a network; shared and unaligned people's travel together."""
    fed = limited()
    cvt(epochs=1, batch_size=100, validation=0.1, patience=None).fit(fed)
    down, up = "bank→shop", "shop→bank"

    def batch(n: int) -> list[tuple[str, str, str, str]]:
        return [
            (down, "forward", "row selection", f"{2 * n}"),
            (up, "forward", "embedding", f"{2 * n}×8"),
            (down, "backward", "gradient", f"{2 * n}×8"),
            (up, "backward", "control", ""),
        ]

    assert said(fed) == [
        (down, "begin", "row selection", "0"),
        (down, "begin", "control", ""),
        (up, "begin", "control", ""),
        *batch(100),
        *batch(26),
        (down, "embed", "row selection", "14"),
        (up, "embed", "embedding", "14×8"),
        (down, "keep", "control", ""),
        (up, "keep", "control", ""),
        (down, "recall", "control", ""),
        (up, "recall", "control", ""),
    ]


def test_each_clinic_is_asked_for_those_it_holds(three_clinics: Any) -> None:
    """40 people at all three, as many others of the registry, and as many of each clinic's own."""
    fed = three_clinics()
    cvt(epochs=1, batch_size=40, validation=0, patience=None).fit(fed)
    asked = [int(shape.split("×")[0]) for *_, kind, shape in said(fed) if kind == "gradient"]
    # The others are each at two clinics of three, so their views are asked for twice.
    assert sum(asked) == 3 * 40 + 2 * 40 + 3 * 40


def test_both_ledgers_tell_the_same_and_the_wire_changes_nothing(limited: Any) -> None:
    runs = []
    for wire in (False, True):
        fed = limited(wire=wire)
        model = cvt(epochs=3).fit(fed)
        told = [
            [(e.operation, e.kind, e.shape, e.bytes_after) for e in p.boundary.ledger.entries()]
            for p in fed.engine.parties.values()
        ]
        assert told[0] == told[1]
        runs.append((model.predict_proba(fed.shared()), told[0]))
    np.testing.assert_array_equal(runs[0][0], runs[1][0])
    assert runs[0][1] == runs[1][1]


# -- the method ----------------------------------------------------------------------------------


def fitted(limited: Any, **kw: Any) -> FedCVT:
    return cvt(epochs=1, validation=0, **kw).fit(limited(classes=2))


def some_views(n: int) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Five people at both parties, then ``n`` at each alone."""
    torch.manual_seed(0)
    held = torch.tensor([[1, 1]] * 5 + [[0, 1]] * n + [[1, 0]] * n).bool()
    views = [torch.randn(len(held), 2 * D) * here[:, None] for here in held.T]
    return views, held


def test_missing_views_are_estimated_as_in_the_paper(limited: Any) -> None:
    """û^B = Att(u^A, U^A_aligned, U^B_aligned) and ĉ^B = Att(c^A, C^B, C^B), sharpened."""
    model = fitted(limited)
    views, held = some_views(3)
    us, cs = zip(*(v.chunk(2, 1) for v in views), strict=True)
    whole = model._complete(us, cs, held, 5)
    for k in (0, 1):
        assert torch.equal(whole[k][held[:, k]], views[k][held[:, k]])
    only_a = slice(8, 11)
    u = attend(us[0][only_a], us[0][:5], us[1][:5], temperature=0.1)
    block = cs[1][held[:, 1]]
    c = attend(cs[0][only_a], block, block, temperature=0.1)
    torch.testing.assert_close(whole[1][only_a], torch.cat([u, c], 1))


def test_nobody_is_estimated_from_their_own_row(limited: Any) -> None:
    model = fitted(limited)
    views, held = some_views(3)
    us, cs = zip(*(v.chunk(2, 1) for v in views), strict=True)
    before = model._estimate_known(us, cs, held, 5, 1)
    views[1][2] += 100  # another own row for person 2
    us, cs = zip(*(v.chunk(2, 1) for v in views), strict=True)
    after = model._estimate_known(us, cs, held, 5, 1)
    torch.testing.assert_close(before[2], after[2])
    assert (before[[0, 1, 3, 4]] != after[[0, 1, 3, 4]]).any()


def logits(*sure: tuple[int, float]) -> torch.Tensor:
    return torch.tensor([[1 - p, p] if c else [p, 1 - p] for c, p in sure]).log()


def test_three_classifiers_must_agree_and_be_sure(limited: Any) -> None:
    model = fitted(limited, joint_threshold=0.8, single_threshold=0.6)
    joint = logits((1, 0.9), (1, 0.9), (1, 0.9), (1, 0.7), (0, 0.9))
    one = logits((1, 0.7), (0, 0.7), (1, 0.7), (1, 0.7), (0, 0.7))
    other = logits((1, 0.7), (1, 0.7), (1, 0.55), (1, 0.7), (0, 0.7))
    assert model._agreed(joint, [one, other]).tolist() == [1, -1, -1, -1, 0]


def test_the_loss_is_the_sum_of_its_terms(limited: Any) -> None:
    """L_AB + L_A + L_B + λ1 L_diff^AB + λ2 L_diff^A + λ3 L_diff^B + λ4 L_sim^A + λ5 L_sim^B."""
    model = fitted(
        limited, common_weight=0.3, estimate_weight=0.7, apart_weight=0.05, joint_threshold=1.0
    )
    views, held = some_views(2)
    labels = torch.tensor([0, 1, 0, 1, 1, -1, -1, 0, 1])
    total, supervised, agreed = model._loss(views, held, labels, 5)
    us, cs = zip(*(v.chunk(2, 1) for v in views), strict=True)
    whole = model._complete(us, cs, held, 5)
    assert isinstance(model.top_, CrossViewClassifiers)
    known = labels >= 0
    expected = F.cross_entropy(model.top_(whole)[known], labels[known])
    torch.testing.assert_close(supervised, expected)
    for k in (0, 1):
        mine = known & held[:, k]
        expected = expected + F.cross_entropy(model.top_.singles[k](views[k])[mine], labels[mine])
        estimate = model._estimate_known(us, cs, held, 5, k)
        expected = expected + 0.7 * F.mse_loss(estimate, views[k][:5])
        u, c = us[k][held[:, k]], cs[k][held[:, k]]
        expected = expected + 0.05 * (u @ c.T).square().sum().sqrt() / len(u)
    expected = expected + 0.3 * F.mse_loss(cs[0][:5], cs[1][:5])
    torch.testing.assert_close(total, expected)
    assert agreed.tolist() == [-1] * 9, "nobody is surer than 1"


def test_the_whole_of_a_step_reaches_every_network(limited: Any) -> None:
    fed = limited()
    model = cvt(epochs=1, validation=0)
    model._start(model._people(fed))
    shop = fed.engine.parties["shop"].sides[model.session_].bottom.module
    own = model.own_.module
    before = [p.clone() for net in (shop, own) for p in net.parameters()]
    model.fit(fed)
    shop = fed.engine.parties["shop"].sides[model.session_].bottom.module
    after = [p for net in (shop, model.own_.module) for p in net.parameters()]
    assert len(before) == len(after) == 16  # two networks of two layers at each party
    assert all((a != b).any() for a, b in zip(before, after, strict=True))


# -- what it learns -------------------------------------------------------------------------------


def test_three_classes(limited: Any, true_classes: Any) -> None:
    train, test = limited().split(60)
    model = cvt().fit(train)
    assert model.score(test) > 0.85
    np.testing.assert_allclose(model.predict_proba(test).sum(1), 1, rtol=1e-6)
    assert {name: kept.of for name, kept in model.kept_.items()} == {"bank": 130, "shop": 130}
    for name, right in rightness(model, train, true_classes(train, 3)).items():
        assert right.kept == right.known == len(model.kept_[name]) > 60
        assert right.right > 0.8 * right.known


def test_three_clinics(three_clinics: Any) -> None:
    train, test = three_clinics().split(16)
    assert cvt(epochs=30).fit(train).score(test) > 0.8


def test_images_in_halves(digits: Any) -> None:
    train, test = digits().split(400)
    model = cvt(epochs=5, bottom=BottomSpec(hidden=(8,), width=8)).fit(train)
    assert model.score(test) > 0.5


def test_people_with_a_missing_view_are_scored_by_those_who_hold_them(limited: Any) -> None:
    fed = limited()
    model = cvt().fit(fed)
    everybody = fed.view(np.arange(270))
    outputs = model.predict_proba(everybody)
    np.testing.assert_allclose(outputs[:140], model.predict_proba(fed.view(np.arange(140))))
    view = model.own_.embed(torch.arange(140, 270))
    with torch.no_grad():
        alone = model.top_.singles[1](view).softmax(1)
    np.testing.assert_allclose(outputs[140:], alone, rtol=1e-4, atol=1e-6)
    assert (outputs.argmax(1)[140:] == np.arange(140, 270) % 3).mean() > 0.7


def test_labels_of_people_whom_nobody_else_holds_are_used(limited: Any) -> None:
    runs = {}
    for labelled in (140, 270):
        fed = limited(labelled=np.arange(labelled))
        model = cvt(epochs=1, batch_size=140, validation=0).fit(fed)
        runs[labelled] = {name: kept.of for name, kept in model.kept_.items()}
    assert runs == {140: {"shop": 130, "bank": 130}, 270: {"shop": 130, "bank": 0}}


def test_shared_people_without_a_label_get_one_by_the_views_they_have(limited: Any) -> None:
    """40 shared people have no label: the shop is asked for them, as for those who have one."""
    fed = limited(labelled=np.arange(100))
    model = cvt(epochs=8, batch_size=100, validation=0, patience=None).fit(fed)
    assert {name: kept.of for name, kept in model.kept_.items()} == {"shop": 130, "bank": 170}
    asked = [int(shape) for _, name, kind, shape in said(fed) if (name, kind) == SELECTED]
    assert max(asked) > 100 + 100, "100 with a label, 100 of the shop's own, some of the 40"


def test_the_held_out_say_nothing(cut_people: Any, blobs: Any) -> None:
    x, y = blobs(400)
    columns = {"bank": slice(0, 4), "shop": slice(4, 8)}
    people = {"bank": np.arange(270), "shop": np.r_[np.arange(140), np.arange(270, 400)]}
    train, test = cut_people(x, y, columns, people).split(60)
    wild, other = x.copy(), y.copy()
    wild[test.rows] *= 1e3
    other[test.rows] = (y[test.rows] + 1) % 3
    again = cut_people(wild, other, columns, people)
    model = cvt(epochs=3).fit(train)
    same = cvt(epochs=3).fit(again.view(train.rows, test.rows))
    seen = train.shared()
    np.testing.assert_array_equal(
        model.predict_proba(seen), same.predict_proba(again.view(seen.rows))
    )


def test_own_networks_of_one_width(limited: Any) -> None:
    own = torch.nn.Sequential(torch.nn.Linear(4, D), torch.nn.Tanh())
    fed = limited(options={"shop": {"bottom": own}})
    model = cvt(epochs=1).fit(fed)
    u, c = fed.engine.parties["shop"].sides[model.session_].bottom.module.networks
    assert (u[0].weight != c[0].weight).all(), "the two copies begin anew"
    wide = limited(options={"shop": {"bottom": torch.nn.Linear(4, D + 1)}})
    with pytest.raises(DataError, match=r"theirs are \[10, 8\]"):
        cvt().fit(wide)


def test_it_takes_two_parties_with_columns_and_classes(limited: Any, diabetes: Any) -> None:
    with pytest.raises(DataError, match="two or more parties with columns"):
        cvt().fit(limited(own=False))
    with pytest.raises(JobError, match="it is for classes; the label is a regression"):
        cvt().fit(diabetes())


def test_rows_beyond_the_table_are_refused(limited: Any) -> None:
    model = cvt(epochs=1).fit(limited())
    with pytest.raises(Refused, match="140 people it shares with 'bank' and its 130 others"):
        model.peers_["shop"].ask(SplitSide.forward, torch.tensor([270]))
    assert model.peers_["shop"].ask(BottomSide.embed, torch.tensor([269])).shape == (1, 2 * D)


# -- kept on disk ---------------------------------------------------------------------------------


class Killed(Exception):
    pass


@pytest.mark.parametrize("stop", [1, 4])
def test_a_killed_training_goes_on_to_the_same_result(
    limited: Any, tmp_path: Path, stop: int
) -> None:
    def fit(folder: Path, stop: int | None) -> tuple[np.ndarray, Any]:
        train, _ = limited(folder=folder).split(60)

        def on_epoch(epoch: Any) -> None:
            if epoch.number == stop:
                raise Killed

        model = cvt(epochs=6).fit(train, checkpoint="run", on_epoch=on_epoch)
        return model.predict_proba(train.shared().labelled()), model.verdicts_

    whole = fit(tmp_path / "whole", None)
    with pytest.raises(Killed):
        fit(tmp_path / "killed", stop)
    again = fit(tmp_path / "killed", None)
    np.testing.assert_array_equal(again[0], whole[0])
    assert all(torch.equal(said, whole[1][name]) for name, said in again[1].items())


def test_a_saved_model_predicts_the_same(limited: Any, tmp_path: Path) -> None:
    fed = limited(folder=tmp_path)
    model = cvt(epochs=2).fit(fed)
    model.save("first")
    fresh = limited(folder=tmp_path)
    again = cvt(epochs=2).load("first", fresh)
    assert torch.equal(again.kept_["shop"].rows, model.kept_["shop"].rows)
    assert again.history_ == model.history_
    np.testing.assert_array_equal(again.predict_proba(fresh), model.predict_proba(fed))


def test_no_partner_is_asked_for_more_rows_than_it_has() -> None:
    x = torch.randn(14, 4, generator=torch.Generator().manual_seed(0)).double().numpy()
    people = pl.DataFrame(x, schema=["a", "b", "c", "d"]).with_columns(
        id=pl.int_range(14).cast(pl.String), y=pl.int_range(14) % 2
    )
    bank = Party("bank", people[:12].select("id", "a", "b", "y"), label="y")
    shop = Party("shop", people[1:].select("id", "c", "d"))  # two of its people are its own
    fed = Federation.simulate([bank, shop])
    assert len(cvt(epochs=2).fit(fed).outputs(fed.shared())) == 11
