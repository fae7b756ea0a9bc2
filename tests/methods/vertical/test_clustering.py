"""Clusters over vertical parties: those of the pooled table, whatever is cut where."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.datasets import load_wine
from sklearn.exceptions import NotFittedError
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import GaussianMixture
from sklearn.preprocessing import StandardScaler

from interlace import Federation, Party, Policy, VerticalGaussianMixture, VerticalKMeans
from interlace.boundary import Kind
from interlace.errors import AlignmentError, DataError, JobError, PolicyError, Refused
from interlace.methods.vertical.clustering import FLOOR, KMeansSide, MixtureSide

Make = Callable[..., Federation]
X, Y = load_wine(return_X_y=True)
Z = StandardScaler().fit_transform(X)


@pytest.fixture
def cellars(federate: Make) -> Make:
    """The wine table at three parties; the one that drives has a label, which nobody reads."""
    return lambda **kw: federate(X, Y, [slice(4, 9), slice(9, 13)], slice(0, 4), **kw)


def started_from(model: Any, people: list[int], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The model, beginning from certain people."""
    monkeypatch.setattr(type(model), "_seeds", lambda self, rng: torch.tensor(people))
    return model


# -- the pooled table's clusters ----------------------------------------------------------------


@pytest.mark.parametrize("people", [[0, 70, 150], [3, 4, 5]])
def test_k_means_is_scikit_learns_from_the_same_centres(
    cellars: Make, people: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = started_from(VerticalKMeans(clusters=3, starts=1, tolerance=0.0), people, monkeypatch)
    fed = cellars()
    theirs = KMeans(3, init=Z[people], n_init=1, tol=0.0).fit(Z)
    assert model.fit(fed).labels_.tolist() == theirs.labels_.tolist()
    assert model.loss_ * len(Z) == pytest.approx(theirs.inertia_, rel=1e-5)
    assert model.score(fed) == pytest.approx(-model.loss_)
    centres = [fed.engine.parties[n].sides[model.session_].best["centres"] for n in fed.passive]
    found = np.concatenate([np.asarray(c) for c in centres], axis=1)
    np.testing.assert_allclose(found, theirs.cluster_centers_[:, 4:], atol=1e-5)


def test_a_mixture_is_scikit_learns_from_the_same_start(
    cellars: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same number of EM steps from the same k-means."""
    people = [0, 70, 150]
    labels = KMeans(3, init=Z[people], n_init=1, tol=0.0).fit(Z).labels_
    groups = [Z[labels == k] for k in range(3)]
    theirs = GaussianMixture(
        3,
        covariance_type="diag",
        means_init=[g.mean(0) for g in groups],
        weights_init=[len(g) / len(Z) for g in groups],
        precisions_init=[1 / (g.var(0) + FLOOR) for g in groups],
        max_iter=11,
        tol=0.0,
    )
    with pytest.warns(Warning, match="converge"):
        theirs.fit(Z)
    model = VerticalGaussianMixture(clusters=3, rounds=12, tolerance=0.0, starts=1)
    fed = cellars()
    started_from(model, people, monkeypatch)
    model.fit(fed)
    np.testing.assert_allclose(model.weights_, theirs.weights_, atol=1e-5)
    np.testing.assert_allclose(model.predict_proba(fed), theirs.predict_proba(Z), atol=1e-4)
    assert model.score(fed) == pytest.approx(theirs.score(Z), abs=1e-4)
    assert model.labels_.tolist() == theirs.predict(Z).tolist()


def test_a_spherical_mixture_over_one_partys_columns_is_scikit_learns(federate: Make) -> None:
    fed = federate(X, Y, [slice(0, 13)], None)
    model = VerticalGaussianMixture(clusters=3, covariance="spherical", tolerance=1e-8).fit(fed)
    theirs = GaussianMixture(3, covariance_type="spherical", n_init=10, tol=1e-8, random_state=0)
    assert model.score(fed) == pytest.approx(theirs.fit(Z).score(Z), abs=1e-3)
    assert adjusted_rand_score(model.labels_, theirs.predict(Z)) > 0.99


@pytest.mark.parametrize("make", [VerticalKMeans, VerticalGaussianMixture])
def test_ten_starts_find_what_the_wines_are(cellars: Make, make: Any) -> None:
    fed = cellars()
    model = make(clusters=3).fit(fed)
    assert adjusted_rand_score(Y, model.labels_) > 0.8
    assert len(model.history_) == 10
    assert model.loss_ == min(e.loss for e in model.history_)
    told = model.figures(fed)
    if make is VerticalKMeans:
        best = KMeans(3, n_init=10, random_state=0).fit(Z).inertia_ / len(Z)
        assert told["distance"] == pytest.approx(best, rel=1e-3)
        assert 0 < told["silhouette"] < 1
    else:
        assert told["log_likelihood"] == pytest.approx(-model.loss_, abs=1e-9)


def test_seeds_are_far_apart(cellars: Make) -> None:
    """k-means++: with three groups far from each other it begins in each."""
    x = Z.copy()
    x += 100.0 * Y[:, None]
    fed = Federation.simulate(parties_of(x), active="bank")
    model = VerticalKMeans(clusters=3, rounds=1, starts=4).fit(fed)
    assert [round(e.loss) for e in model.history_] == [round(model.loss_)] * 4
    assert adjusted_rand_score(Y, model.labels_) == 1.0


def parties_of(x: np.ndarray, **options: Any) -> list[Party]:
    """Two parties, none with a label."""
    ids = [f"p{i}" for i in range(len(x))]
    return [
        Party(name, pl.DataFrame({"id": ids} | {f"x{j}": x[:, j] for j in cut}), **options)
        for name, cut in (("bank", range(4)), ("shop", range(4, 13)))
    ]


def test_categories_gaps_and_new_people(cellars: Make) -> None:
    """A category is a column for each level; people are put to the clusters that were found."""
    bank, shop = (p.frame for p in parties_of(X))
    kinds = pl.Series("kind", np.where(Y == 0, "red", "white"))
    shop = shop.with_columns(kinds, x4=pl.when(pl.col("x4") > 120).then(None).otherwise("x4"))
    fed = Federation.simulate([Party("bank", bank), Party("shop", shop)], active="bank")
    for make in (VerticalKMeans, VerticalGaussianMixture):
        model = make(clusters=3, starts=3).fit(fed)
        some = fed.with_tables({"bank": bank[20:60], "shop": shop[10:50]})
        view = some.shared()
        assert len(view.rows) == 30
        expected = model.labels_[np.arange(20, 50)]
        assert model.predict(view).tolist() == expected.tolist()


# -- what leaves --------------------------------------------------------------------------------


def test_only_distances_and_clusters_pass(cellars: Make) -> None:
    fed = cellars()
    model = VerticalKMeans(clusters=3, starts=2).fit(fed)
    entries = [e for e in fed.active.boundary.ledger.entries() if e.session == model.session_]
    sent = {(e.operation, e.kind) for e in entries if e.direction == "sent"}
    assert sent == {
        ("begin", Kind.ROW_SELECTION),
        ("begin", Kind.CONTROL),
        ("distances_to", Kind.ROW_SELECTION),
        ("start", Kind.ROW_SELECTION),
        ("move", Kind.ROW_SELECTION),
        ("keep", Kind.CONTROL),
        ("answer", Kind.ROW_SELECTION),
    }
    got = {(e.operation, e.kind) for e in entries if e.direction == "received"}
    assert {kind for _, kind in got} == {Kind.PARTIAL_SCORE, Kind.CONTROL}
    shapes = {e.shape for e in entries if e.operation == "move" and e.direction == "received"}
    assert shapes == {f"{len(X)}×3"}


def test_a_mixture_sends_probabilities_and_gets_densities(cellars: Make) -> None:
    fed = cellars()
    model = VerticalGaussianMixture(clusters=3, starts=1).fit(fed)
    lines = [
        e
        for e in fed.active.boundary.ledger.entries()
        if e.session == model.session_ and e.operation == "learn"
    ]
    assert {(e.direction, e.kind, e.shape) for e in lines} == {
        ("sent", Kind.PARTIAL_SCORE, f"{len(X)}×3"),
        ("received", Kind.PARTIAL_SCORE, f"{len(X)}×3"),
    }


def test_the_wire_changes_nothing(cellars: Make) -> None:
    for make in (VerticalKMeans, VerticalGaussianMixture):
        plain, coded = cellars(), cellars(wire=True)
        one, other = make(clusters=4, starts=2).fit(plain), make(clusters=4, starts=2).fit(coded)
        assert one.labels_.tolist() == other.labels_.tolist()
        assert one.loss_ == other.loss_
        ledgers = (f.active.boundary.ledger for f in (plain, coded))
        assert len({ledger.totals(one.session_).bytes for ledger in ledgers}) == 1


def test_a_policy_keeps_distances_at_home_or_adds_noise(federate: Make) -> None:
    closed = Policy(allow=Policy().allow - {Kind.PARTIAL_SCORE})
    fed = federate(X, Y, [slice(4, 13)], slice(0, 4), options={"vendor": {"policy": closed}})
    with pytest.raises(PolicyError, match="partial score"):
        VerticalKMeans(clusters=3).fit(fed)
    guards = {Kind.PARTIAL_SCORE: [{"clip": {"norm": 50.0}}, {"gaussian": {"sigma": 0.01}}]}
    noisy = Policy(guards=guards)
    fed = federate(X, Y, [slice(4, 13)], slice(0, 4), options={"vendor": {"policy": noisy}})
    model = VerticalKMeans(clusters=3, starts=3).fit(fed)
    assert adjusted_rand_score(Y, model.labels_) > 0.6


# -- checkpoints and models ---------------------------------------------------------------------


@pytest.mark.parametrize("make", [VerticalKMeans, VerticalGaussianMixture])
def test_a_killed_training_goes_on_to_the_same_clusters(
    cellars: Make, tmp_path: Path, make: Any
) -> None:
    def kill(record: Any) -> None:
        if record.number == 2:
            raise KeyboardInterrupt

    whole = make(clusters=5, starts=4).fit(cellars(folder=tmp_path / "a"), checkpoint="run")
    fed = cellars(folder=tmp_path / "b")
    with pytest.raises(KeyboardInterrupt):
        make(clusters=5, starts=4).fit(fed, checkpoint="run", on_epoch=kill)
    fed = cellars(folder=tmp_path / "b")
    resumed = make(clusters=5, starts=4).fit(fed, checkpoint="run")
    assert [e.number for e in resumed.history_] == [1, 2, 3, 4]
    assert [e.loss for e in resumed.history_] == [e.loss for e in whole.history_]
    assert resumed.labels_.tolist() == whole.labels_.tolist()
    with pytest.raises(JobError, match="other settings"):
        make(clusters=4, starts=4).fit(fed, checkpoint="run")
    resumed.save("final")
    again = make(clusters=5).load("final", cellars(folder=tmp_path / "b"))
    assert again.predict(fed).tolist() == resumed.labels_.tolist()


# -- bad partners and bad input -----------------------------------------------------------------


@pytest.mark.parametrize("change", [lambda d: d[:-1], lambda d: d[:, :-1], lambda d: d[0]])
def test_answers_of_the_wrong_shape_are_refused(
    cellars: Make, monkeypatch: pytest.MonkeyPatch, change: Any
) -> None:
    honest = KMeansSide.move

    @wraps(honest)
    def answer(self: KMeansSide, clusters: torch.Tensor) -> torch.Tensor:
        found = honest(self, clusters)
        return change(found) if self.party.name == "shop" else found

    monkeypatch.setattr(KMeansSide, "move", answer)
    with pytest.raises(Refused, match="'shop' answered with shape"):
        VerticalKMeans(clusters=3).fit(cellars())


def test_partners_refuse_what_was_not_agreed(cellars: Make) -> None:
    fed = cellars()
    model = VerticalGaussianMixture(clusters=3, starts=1).fit(fed)
    peer, n = model.parts_["vendor"], len(X)
    bad: list[tuple[Any, tuple[Any, ...]]] = [
        (KMeansSide.begin, (torch.tensor([n + 3]), {"clusters": 3})),
        (KMeansSide.begin, (torch.arange(n), {"clusters": 0})),
        (KMeansSide.distances_to, (torch.tensor([n]),)),
        (KMeansSide.start, (torch.arange(4),)),
        (KMeansSide.move, (torch.zeros(n - 1, dtype=torch.int64),)),
        (KMeansSide.move, (torch.full((n,), 3),)),
        (KMeansSide.answer, (torch.tensor([-1]),)),
        (MixtureSide.learn, (torch.ones(n, 2, dtype=torch.float64),)),
        (MixtureSide.learn, (-torch.ones(n, 3, dtype=torch.float64),)),
    ]
    for operation, arguments in bad:
        with pytest.raises(Refused):
            peer.ask(operation, *arguments)


def test_what_cannot_be_clustered_is_said(federate: Make, digits: Make, cellars: Make) -> None:
    with pytest.raises(AlignmentError, match="ask for fewer"):
        VerticalKMeans(clusters=500).fit(cellars())
    for kw in ({"clusters": 0}, {"starts": 0}, {"rounds": -1}, {"clusters": 5000}):
        with pytest.raises(JobError, match=next(iter(kw))):
            VerticalKMeans(**kw).fit(cellars())
    with pytest.raises(JobError, match="covariance"):
        VerticalGaussianMixture(covariance="full").fit(cellars())  # type: ignore[arg-type]
    with pytest.raises(DataError, match="images"):
        VerticalKMeans(clusters=3).fit(digits())
    with pytest.raises(NotFittedError):
        VerticalKMeans().predict(cellars())


def test_as_many_clusters_as_different_people(federate: Make) -> None:
    """Twins leave clusters without people: their centres stay, and nothing is divided by nought."""
    x = np.repeat(np.eye(4), 10, axis=0)
    fed = federate(x, np.arange(40) % 2, [slice(2, 4)], slice(0, 2))
    model = VerticalKMeans(clusters=6, starts=2).fit(fed)
    assert model.loss_ == pytest.approx(0, abs=1e-12)
    assert len(set(model.labels_.tolist())) == 4
    mixture = VerticalGaussianMixture(clusters=6, starts=2).fit(fed)
    assert np.isfinite(mixture.predict_proba(fed)).all()
