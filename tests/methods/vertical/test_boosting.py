"""Boosted trees: the pooled table's trees, encrypted or not, whatever partners send."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import wraps
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import polars as pl
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine
from sklearn.metrics import accuracy_score, r2_score, roc_auc_score

from interlace import Federation, Party, Policy
from interlace.boundary import Kind
from interlace.boundary.policy import Encryption as PolicyEncryption
from interlace.crypto import Workload, generate
from interlace.crypto.schemes import SCHEMES
from interlace.errors import (
    DataError,
    InterlaceError,
    JobError,
    PolicyError,
    Refused,
)
from interlace.methods.vertical import boosting
from interlace.methods.vertical.boosting import BoostedTrees, DecisionTree, RandomForest
from interlace.methods.vertical.boosting_side import BoostingSide
from interlace.models.trees import add_up
from interlace.party import Peer

Make = Callable[..., Federation]


_MATCHED: list[Federation] = []


@pytest.fixture
def breast(federate: Make) -> Make:
    """Breast cancer, ten columns at the bank and twenty at the vendor; people are matched once for
    all tests that ask for nothing special."""
    x, y = load_breast_cancer(return_X_y=True)

    def make(**kw: Any) -> Federation:
        if kw:
            return federate(x, y, [slice(10, 30)], slice(0, 10), **kw)
        if not _MATCHED:
            _MATCHED.append(make(seed=0))
        return _MATCHED[0]

    return make


def trees(**kw: Any) -> BoostedTrees:
    return BoostedTrees(**{"n_estimators": 3, "max_depth": 3, "encryption": "none", **kw})


def side(fed: Federation, model: Any, name: str) -> BoostingSide:
    found = fed.engine.parties[name].sides[model.session_]  # type: ignore[attr-defined]
    assert isinstance(found, BoostingSide)
    return found


def pooled_codes(fed: Federation, model: Any) -> np.ndarray:
    """What only a test may see: all parties' bins of the training rows, in one table."""
    own = model.own_.binning.codes(fed.active.frame, fed.rows)
    parts = [own] if own.shape[1] else []
    parts += [side(fed, model, name)._codes for name in fed.passive]
    return np.concatenate(parts, axis=1).astype(np.int64)


def boosted_pooled(
    codes: np.ndarray, y: np.ndarray, rounds: int, depth: int, *, lam: float = 1.0, lr: float = 0.3
) -> np.ndarray:
    """Scores of plain boosting on one table: every cut of every column is tried by itself."""
    score = np.full(len(y), np.log(y.mean() / (1 - y.mean())))

    def grow(rows: np.ndarray, left: int, out: np.ndarray) -> None:
        best, chosen = 1e-6, None
        total = g[rows].sum() ** 2 / (h[rows].sum() + lam)
        for column in range(codes.shape[1]) if left else ():
            values = codes[rows, column]
            for b in range(1, values.max() + 1):
                goes = values <= b
                if goes.all() or not goes.any():
                    continue
                a, c = rows[goes], rows[~goes]
                if min(h[a].sum(), h[c].sum()) < 1.0:
                    continue
                gain = sum(g[s].sum() ** 2 / (h[s].sum() + lam) for s in (a, c)) - total
                if gain > best + 1e-9:
                    best, chosen = gain, (a, c)
        if chosen is None:
            out[rows] += lr * -g[rows].sum() / (h[rows].sum() + lam)
        else:
            for half in chosen:
                grow(half, left - 1, out)

    for _ in range(rounds):
        p = 1 / (1 + np.exp(-score))
        g, h = p - y, p * (1 - p)
        after = score.copy()
        grow(np.arange(len(y)), depth, after)
        score = after
    return score


def same_trees(one: Any, other: Any) -> None:
    """Identical in shape, owners, and, up to rounding of g and h, in values."""
    for a, b in zip(chain(*one.trees_), chain(*other.trees_), strict=True):
        assert (a.owner, a.split, a.left, a.right) == (b.owner, b.split, b.left, b.right)
        np.testing.assert_allclose(np.array(a.value), np.array(b.value), atol=2e-3)


# -- it is the pooled table's boosting ----------------------------------------------------------


@pytest.mark.parametrize("who", ["breast", "clinics"])
def test_plain_trees_are_those_of_the_pooled_table(who: str, request: Any) -> None:
    """Two parties, and four of which the active one has no columns."""
    fed = request.getfixturevalue(who)()
    model = trees(n_estimators=2, max_bin=12).fit(fed)
    expected = boosted_pooled(pooled_codes(fed, model), fed.y.numpy(), 2, 3)
    np.testing.assert_allclose(model.scores(fed)[:, 0], expected, atol=1e-7)


def test_trees_are_those_of_xgboost_on_the_same_bins(breast: Make) -> None:
    xgboost = pytest.importorskip("xgboost")
    fed = breast()
    model = trees(n_estimators=10, base_score=0.5).fit(fed)
    codes = pooled_codes(fed, model).astype(np.float32)
    y = fed.y.numpy()
    options = {
        "objective": "binary:logistic",
        "max_depth": 3,
        "eta": 0.3,
        "tree_method": "hist",
        "base_score": 0.5,
        "nthread": 1,
    }
    theirs = xgboost.train(options, xgboost.DMatrix(codes, y), 10)
    margin = theirs.predict(xgboost.DMatrix(codes), output_margin=True)
    np.testing.assert_allclose(model.scores(fed)[:, 0], margin, atol=1e-3)


@pytest.mark.parametrize("scheme", ["rlwe-fast", "rlwe-strict"])
def test_encrypted_trees_are_the_plain_ones(clinics: Make, scheme: Any) -> None:
    plain = trees(n_estimators=2, max_bin=8).fit(clinics())
    fed = clinics()
    sealed = trees(n_estimators=2, max_bin=8, encryption=scheme, precision=18).fit(fed)
    same_trees(plain, sealed)
    kinds = {e.kind for e in fed.active.boundary.ledger.entries()}
    assert Kind.CIPHERTEXT in kinds
    assert not kinds & {Kind.GRADIENT, Kind.HISTOGRAM}


def test_paillier_too(federate: Make) -> None:
    pytest.importorskip("gmpy2")
    x, y = load_wine(return_X_y=True)
    cut = {"cuts": [slice(6, 8)], "own": slice(0, 2)}
    kw = {"n_estimators": 1, "max_depth": 2, "max_bin": 4}
    plain = trees(**kw).fit(federate(x[:60], y[:60] > 0, **cut))
    sealed = trees(encryption="paillier", **kw).fit(federate(x[:60], y[:60] > 0, **cut))
    same_trees(plain, sealed)


@pytest.mark.parametrize("options", [{}, {"hide_rows": True}], ids=str)
def test_okamoto_uchiyama_too(federate: Make, options: dict[str, Any]) -> None:
    pytest.importorskip("heu", reason="sf-heu is not installed")
    x, y = load_wine(return_X_y=True)
    cut = {"cuts": [slice(6, 8)], "own": slice(0, 2)}
    kw = {"n_estimators": 1, "max_depth": 2, "max_bin": 4, **options}
    sealed = trees(encryption="okamoto-uchiyama", **kw).fit(federate(x[:90], y[:90] > 0, **cut))
    plain = trees(**{**kw, "hide_rows": False}).fit(federate(x[:90], y[:90] > 0, **cut))
    same_trees(plain, sealed)


def test_the_order_of_parties_people_does_not_matter(breast: Make) -> None:
    over_wire = trees().fit(breast(wire=True))
    by_reference = trees().fit(breast())
    same_trees(over_wire, by_reference)


# -- every task ---------------------------------------------------------------------------------


@pytest.mark.parametrize("encryption", ["none", "rlwe-fast"])
@pytest.mark.parametrize("multi_output", [False, True])
def test_classes(wine: Make, encryption: Any, multi_output: bool) -> None:
    fed = wine()
    train, test = fed.split(0.3)
    model = trees(n_estimators=3, encryption=encryption, multi_output=multi_output).fit(train)
    assert model.score(test) > 0.85
    assert len(model.trees_[0]) == (1 if multi_output else 3)
    probabilities = model.predict_proba(test)
    np.testing.assert_allclose(probabilities.sum(1), 1)


def test_classes_as_xgboost_has_them(wine: Make) -> None:
    xgboost = pytest.importorskip("xgboost")
    fed = wine()
    model = trees(n_estimators=4).fit(fed)
    codes, y = pooled_codes(fed, model).astype(np.float32), fed.y.numpy()
    options = {"objective": "multi:softprob", "num_class": 3, "max_depth": 3, "nthread": 1}
    theirs = xgboost.train(options, xgboost.DMatrix(codes, y), 4).predict(xgboost.DMatrix(codes))
    np.testing.assert_allclose(model.predict_proba(fed), theirs, atol=1e-3)


@pytest.mark.parametrize(
    ("objective", "options"),
    [
        ("reg:squarederror", {}),
        ("count:poisson", {}),
        ("reg:squarederror", {"reg_alpha": 30.0, "reg_lambda": 0.5, "min_child_weight": 12}),
        ("reg:squarederror", {"gamma": 9000.0, "max_delta_step": 20.0}),
    ],
)
def test_regression_as_xgboost_has_it(
    diabetes: Make, objective: Any, options: dict[str, Any]
) -> None:
    xgboost = pytest.importorskip("xgboost")
    fed = diabetes()
    model = trees(n_estimators=8, objective=objective, base_score=150.0, **options).fit(fed)
    codes, y = pooled_codes(fed, model).astype(np.float32), fed.y.numpy()
    settings = {"objective": objective, "max_depth": 3, "base_score": 150.0, "nthread": 1}
    theirs = xgboost.train({**settings, **options}, xgboost.DMatrix(codes, y), 8)
    expected = theirs.predict(xgboost.DMatrix(codes))
    np.testing.assert_allclose(model.predict(fed), expected, rtol=2e-3)


def test_a_quantile_holds_its_share(diabetes: Make) -> None:
    fed = diabetes()
    for alpha in (0.2, 0.8):
        model = trees(n_estimators=10, objective="reg:quantileerror", quantile_alpha=alpha)
        below = (fed.y.numpy() <= model.fit(fed).predict(fed)).mean()
        assert abs(below - alpha) < 0.06


def test_several_labels(federate: Make) -> None:
    x, y = load_wine(return_X_y=True)
    marks = pl.Series([[int(a > 0), int(a > 1)] for a in y], dtype=pl.Array(pl.Int64, 2))
    fed = federate(x, marks, [slice(6, 13)], slice(0, 6))
    model = trees(n_estimators=5).fit(fed)
    assert model.score(fed) > 0.95


def test_missing_values_and_categories_find_their_way(federate: Make) -> None:
    rng = np.random.default_rng(0)
    n = 400
    known = rng.normal(size=n)
    gap = rng.random(n) < 0.3
    city = rng.choice(["ulm", "bonn", "kiel", "jena"], n)
    y = np.where(gap, np.isin(city, ["ulm", "jena"]), city == "ulm").astype(int)
    ids = [f"p{i}" for i in range(n)]
    shop = pl.DataFrame({"id": ids, "x": np.where(gap, np.nan, known), "city": city})
    bank = pl.DataFrame({"id": ids, "y": y})
    parties = [Party("bank", bank, label="y"), Party("shop", shop.sample(fraction=1.0, seed=1))]
    fed = Federation.simulate(parties)
    for kw in ({}, {"encryption": "rlwe-fast"}, {"hide_order": True}):
        model = trees(**kw).fit(fed)
        assert model.score(fed) == 1.0
    # People with a city that training never saw, and one without any, are scored all the same.
    model = trees().fit(fed)
    new = fed.with_tables(
        {
            "bank": pl.DataFrame({"id": ["a", "b", "c"], "y": [0, 1, 0]}),
            "shop": pl.DataFrame(
                {"id": ["a", "b", "c"], "x": [None, 0.1, 0.2], "city": ["rome", None, "ulm"]}
            ),
        }
    )
    assert np.isfinite(model.predict_proba(new)).all()
    assert model.predict(new)[2] == 1


def test_monotone_columns_are_monotone(federate: Make) -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (500, 2))
    y = x[:, 0] + np.sin(9 * x[:, 0]) + np.sin(7 * x[:, 1]) + 0.1 * rng.normal(size=500)
    limits = {"vendor": {"x0": 1}, "bank": {"x0": -1}}
    fed = federate(x, y, [slice(0, 1)], slice(1, 2))
    for kw in ({}, {"encryption": "rlwe-fast"}, {"hide_order": True}):
        model = trees(n_estimators=10, monotone_constraints=limits, **kw).fit(fed)
        for varied, sign in (("vendor", 1), ("bank", -1)):
            line, still = np.linspace(-1, 1, 60), np.full(60, 0.3)
            ids = [f"n{i}" for i in range(60)]
            tables = {
                name: pl.DataFrame({"id": ids, "x0": line if name == varied else still})
                for name in ("vendor", "bank")
            }
            found = model.predict(fed.with_tables(tables))
            assert (sign * np.diff(found) >= -1e-12).all()
            assert np.ptp(found) > 0.1
    free = trees(n_estimators=10).fit(fed)
    assert free.score(fed) > model.score(fed)
    with pytest.raises(JobError, match="no party here"):
        trees(monotone_constraints={"nobody": {"x0": 1}}).fit(fed)
    with pytest.raises(DataError, match="monotone"):
        trees(monotone_constraints={"vendor": {"x9": 1}}).fit(fed)


# -- options ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"subsample": 0.6, "colsample_bytree": 0.5},
        {"sampling_method": "goss"},
        {"first_tree_alone": True},
        {"mode": "mix"},
        {"mode": "layered", "partner_depth": 1},
        {"min_bin_rows": 8},
        {"hide_order": True},
        {"hide_order": True, "min_bin_rows": 8},
        {"num_parallel_tree": 2, "subsample": 0.7},
        {"class_weight": "balanced"},
    ],
    ids=lambda o: "+".join(o),
)
def test_options_learn_and_hold_under_encryption(breast: Make, options: dict[str, Any]) -> None:
    """Each option scores people as it did in training, and encryption changes nothing."""
    fed = breast()
    train, test = fed.split(0.3)
    model = trees(n_estimators=3, max_bin=8, **options).fit(train)
    assert roc_auc_score(test.y.numpy(), model.predict_proba(test)[:, 1]) > 0.94
    loss = model.loss_.loss(model.scores(train), train.y.double().numpy())
    assert loss == pytest.approx(model.history_[-1].loss, abs=1e-12)
    sealed = trees(n_estimators=3, max_bin=8, encryption="rlwe-fast", **options).fit(train)
    assert roc_auc_score(test.y.numpy(), sealed.predict_proba(test)[:, 1]) > 0.94
    if not options.get("hide_order"):  # whose shuffled order breaks ties by chance
        np.testing.assert_allclose(model.scores(train), sealed.scores(train), atol=0.02)


def test_a_hidden_order_gives_the_same_trees(breast: Make) -> None:
    fed = breast()
    np.testing.assert_allclose(
        trees(hide_order=True).fit(fed).scores(fed), trees().fit(fed).scores(fed), atol=0.05
    )


@pytest.mark.parametrize("options", [{}, {"multi_output": True}, {"validation": 0.3}])
def test_hidden_rows_give_the_same_trees(wine: Make, options: dict[str, Any]) -> None:
    """And the partner is told of no node: its answers are about everybody."""
    if "validation" in options:
        options = options | {"early_stopping_rounds": 2}
    plain = trees(max_bin=8, max_depth=4, **options).fit(wine())
    fed = wine()
    model = trees(max_bin=8, max_depth=4, hide_rows=True, encryption="rlwe-fast", **options)
    same_trees(plain, model.fit(fed))
    ledger = fed.active.boundary.ledger.entries()
    got = [e for e in ledger if e.session == model.session_ and e.operation != "begin"]
    kinds = {e.kind for e in got if e.direction == "sent"}
    assert kinds <= {Kind.CIPHERTEXT, Kind.SPLIT_CHOICE, Kind.CONTROL}
    everybody = {len(fed.rows) * k for k in range(1, 9)}
    assert {int(e.shape) for e in got if e.kind == Kind.ROW_SELECTION} <= everybody


@pytest.mark.parametrize("hide", [False, True])
def test_no_small_sum_leaves(breast: Make, hide: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over all nodes the active party knows sums of, larger siblings included."""
    counted = []
    histograms = BoostingSide.histograms

    @wraps(histograms)
    def spy(self: BoostingSide, nodes: torch.Tensor, summed: torch.Tensor) -> torch.Tensor:
        out = histograms(self, nodes, summed)
        runs, every = self._runs_of, np.arange(int(nodes.max()))
        rows = np.flatnonzero(self._sampled & (self._nodes > 0))
        layout = self.layout.only(self._columns)
        ones = np.ones((len(self._rows), 1))
        counts = add_up(
            self._codes, self._columns, layout, rows, self._nodes[rows] - 1, ones, len(every)
        )[..., 0]
        for run, own in zip(runs, counts, strict=True):
            merged = np.bincount(run[run >= 0], weights=own[run >= 0], minlength=len(own))
            counted.extend(merged[merged > 0])
        return out

    monkeypatch.setattr(BoostingSide, "histograms", spy)
    model = trees(min_bin_rows=7, hide_order=hide, n_estimators=2).fit(breast())
    assert len(counted) > 50
    assert min(counted) >= 7
    assert model.made_["vendor"] > 0


def test_the_first_tree_alone_asks_nobody(breast: Make) -> None:
    fed = breast(seed=1)
    trees(n_estimators=1, first_tree_alone=True).fit(fed)
    asked = {e.operation for e in fed.active.boundary.ledger.entries() if e.direction == "sent"}
    assert not asked & {"start", "histograms", "split"}


def test_mixed_trees_are_one_partys_each(clinics: Make) -> None:
    model = trees(n_estimators=3, mode="mix").fit(clinics())
    owners = [{o for o in t.owner if o} for (t,) in model.trees_]
    assert owners == [{"vendor"}, {"shop"}, {"clinic"}]


def test_layered_trees_are_partners_above_and_the_active_partys_below(breast: Make) -> None:
    model = trees(mode="layered", partner_depth=1, max_depth=4).fit(breast())
    for (tree,) in model.trees_:
        assert tree.owner[0] == "vendor"
        assert {owner for owner in tree.owner[1:] if owner} == {"bank"}


@pytest.mark.parametrize("encryption", ["none", "rlwe-fast"])
def test_of_two_siblings_one_is_asked_for(
    breast: Make, encryption: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The smaller one: the other is what their parent has more."""
    asked: list[tuple[np.ndarray, np.ndarray]] = []
    honest = BoostingSide._open

    def spy(self: BoostingSide, nodes: torch.Tensor, summed: torch.Tensor) -> Any:
        asked.append((np.bincount(nodes.numpy())[1:], summed.numpy()))
        return honest(self, nodes, summed)

    monkeypatch.setattr(BoostingSide, "_open", spy)
    trees(n_estimators=1, max_depth=4, max_bin=8, encryption=encryption).fit(breast())
    assert [len(summed) for _, summed in asked[:2]] == [1, 1]  # the root, then one of its children
    for sizes, summed in asked[1:]:
        assert len(summed) == len(sizes) // 2
        assert all(sizes[i] <= sizes[i ^ 1] for i in summed)


@pytest.mark.parametrize("encryption", ["none", "rlwe-fast"])
def test_a_side_without_sampled_rows_is_no_side(breast: Make, encryption: Any) -> None:
    """Though nothing is asked of a child's weight, and other rows would go there."""
    options = {"subsample": 0.05, "min_child_weight": 0.0, "max_depth": 6, "max_bin": 64}
    fed = breast()
    model = trees(encryption=encryption, precision=18, **options).fit(fed)
    covers = [cover for (tree,) in model.trees_ for cover in tree.cover]
    assert len(covers) > 20
    assert min(covers) > 0
    assert np.isfinite(model.scores(fed)).all()
    same_trees(model, trees(**options).fit(fed))


def test_early_stopping_keeps_the_best_round_at_every_party(breast: Make) -> None:
    fed = breast()
    model = trees(n_estimators=60, learning_rate=0.9, early_stopping_rounds=4, validation=0.3)
    model.fit(fed)
    losses = [e.validation for e in model.history_]
    assert len(model.trees_) == int(np.argmin(losses)) + 1
    assert len(model.history_) == len(model.trees_) + 4
    assert len(side(fed, model, "vendor").splits) == model.made_["vendor"]
    assert np.isfinite(model.scores(fed)).all()


def test_forest_and_single_tree(breast: Make) -> None:
    fed = breast()
    train, test = fed.split(0.3)
    forest = RandomForest(n_trees=6, max_depth=5, encryption="none").fit(train)
    assert len(forest.trees_[0]) == 6
    assert forest.score(test) > 0.9
    options = {"n_trees": 3, "max_depth": 3, "max_bin": 8}
    plain = RandomForest(encryption="none", **options).fit(train)
    sealed = RandomForest(encryption="rlwe-fast", precision=20, **options).fit(train)
    same_trees(plain, sealed)
    single = DecisionTree(max_depth=3, encryption="rlwe-fast").fit(train)
    assert len(single.trees_) == 1
    assert single.score(test) > 0.85


@pytest.mark.parametrize("multi_output", [False, True])
def test_explanations_add_up_to_the_scores(wine: Make, multi_output: bool) -> None:
    fed = wine()
    model = trees(multi_output=multi_output).fit(fed)
    told = model.explain(fed)
    total = told.base + sum(told.own.values()) + sum(told.partners.values())
    np.testing.assert_allclose(total, model.scores(fed))
    assert set(told.partners) == {"vendor"}
    assert set(told.own) <= {f"x{j}" for j in range(6)}


def test_explanations_are_xgboosts_and_partners_get_their_own(breast: Make) -> None:
    xgboost = pytest.importorskip("xgboost")
    fed = breast()
    model = trees(base_score=0.5).fit(fed)
    codes = pooled_codes(fed, model).astype(np.float32)
    options = {"objective": "binary:logistic", "max_depth": 3, "base_score": 0.5, "nthread": 1}
    theirs = xgboost.train(options, xgboost.DMatrix(codes, fed.y.numpy()), 3)
    expected = theirs.predict(xgboost.DMatrix(codes), pred_contribs=True)
    told = model.explain(fed, share=True)
    for name, values in told.own.items():
        np.testing.assert_allclose(values[:, 0], expected[:, int(name[1:])], atol=1e-4)
    np.testing.assert_allclose(told.partners["vendor"][:, 0], expected[:, 10:30].sum(1), atol=1e-4)
    vendor = side(fed, model, "vendor")
    for name, values in vendor.shapley.items():
        np.testing.assert_allclose(values[:, 0], expected[:, 10 + int(name[1:])], atol=1e-4)
    with pytest.raises(InterlaceError, match="told apart"):
        trees(hide_order=True).fit(fed).explain(fed, share=True)


# -- what leaves --------------------------------------------------------------------------------


def test_one_message_scores_everybody(clinics: Make) -> None:
    fed = clinics()
    model = trees(n_estimators=5, max_depth=6).fit(fed)
    before = len(list(fed.active.boundary.ledger.entries()))
    model.predict_proba(fed)
    sent = list(fed.active.boundary.ledger.entries())[before:]
    assert [e.operation for e in sent] == ["directions"] * 6  # out and back, three partners


def test_no_party_learns_anothers_columns(breast: Make, tmp_path: Path) -> None:
    x, y = load_breast_cancer(return_X_y=True)
    ids = [f"p{i}" for i in range(len(x))]
    shop = pl.DataFrame({"id": ids, **{f"secret{j}": x[:, j] for j in range(20)}})
    bank = pl.DataFrame({"id": ids, "y": y, **{f"hidden{j}": x[:, 20 + j] for j in range(10)}})
    parties = [Party("bank", bank, label="y"), Party("shop", shop)]
    fed = Federation.simulate(parties, folder=tmp_path)
    model = trees().fit(fed, checkpoint="run")
    model.save("final")
    for mine, other in (("bank", "secret"), ("shop", "hidden")):
        for file in (tmp_path / "parties" / mine).rglob("*.json"):
            assert other not in file.read_text()
    (kept,) = (tmp_path / "parties/shop/models/final").glob("*.json")
    splits = json.loads(kept.read_text())["splits"]
    assert splits
    assert set(splits[0]) == {"column", "below", "levels", "missing_left"}
    assert "value" not in kept.read_text()
    assert json.loads(kept.read_text())["importance"] == {}
    model.share_importance()
    told = side(fed, model, "shop").importance
    worth = model.importance()
    assert sum(told.values()) == pytest.approx(worth["shop"]["all columns"])
    assert all(name.startswith("secret") for name in told)
    assert set(worth["shop"]) == {"all columns"}
    assert all(name.startswith("hidden") for name in worth["bank"])
    assert sum(sum(w.values()) for w in model.importance("weight").values()) == sum(
        o is not None for t in chain(*model.trees_) for o in t.owner
    )


def test_gradients_are_encrypted_unless_asked_otherwise(breast: Make) -> None:
    fed = breast(seed=1)
    BoostedTrees(n_estimators=1, max_bin=8).fit(fed)
    entries = list(fed.active.boundary.ledger.entries())
    assert not {e.kind for e in entries} & {Kind.GRADIENT, Kind.HISTOGRAM}
    assert {e.operation for e in entries} >= {"take_key", "start_encrypted"}


def test_a_policy_can_insist_on_encryption(breast: Make) -> None:
    careful = Policy(allow=Policy().allow - {Kind.HISTOGRAM})
    options = {"vendor": {"policy": careful}}
    with pytest.raises(PolicyError, match="histogram"):
        trees().fit(breast(options=options))
    trees(n_estimators=1, encryption="rlwe-fast").fit(breast(options=options))


@pytest.mark.parametrize(
    "bound", [{"min_bin_rows": 7}, {"smallest_group": 7}, {"min_bin_rows": 7, "smallest_group": 2}]
)
def test_a_policy_bounds_the_smallest_bin(breast: Make, bound: dict[str, Any]) -> None:
    """The job need not say so; an active party that says otherwise is refused."""
    fed = breast(options={"vendor": {"policy": Policy(**bound)}})
    model = trees(max_bin=8).fit(fed)
    vendor = side(fed, model, "vendor")
    assert vendor.settings.min_bin_rows == 7
    same_trees(model, trees(max_bin=8, min_bin_rows=7).fit(breast()))
    peer, rows = model.peers_["vendor"], torch.arange(len(fed.rows))
    with pytest.raises(PolicyError, match="7 people or more, and 6 was agreed"):
        peer.ask(BoostingSide.begin, rows, {"train": 9, "max_bin": 8, "min_bin_rows": 6})
    with pytest.raises(JobError, match="cannot count"):
        trees(hide_rows=True, encryption="rlwe-fast").fit(fed)


def test_a_policy_names_the_encryption(breast: Make) -> None:
    strict = Policy(encryption=frozenset({"rlwe-strict"}))
    fed = breast(options={"vendor": {"policy": strict}})
    short = {"n_estimators": 1, "max_depth": 2, "max_bin": 4}
    model = trees(**{**short, "encryption": "auto"}).fit(fed)
    assert model.scheme_ == "rlwe-strict"
    with pytest.raises(JobError, match=r"'rlwe-fast'.*of 'vendor'; all allow: rlwe-strict"):
        trees(**{**short, "encryption": "rlwe-fast"}).fit(fed)
    with pytest.raises(JobError, match=r"'none'.*of 'vendor'"):
        trees(**short).fit(fed)
    with pytest.raises(JobError, match=r"'none'.*of 'bank'"):  # whose gradients they are
        trees(**short).fit(breast(options={"bank": {"policy": strict}}))
    vendor, rows = model.peers_["vendor"], torch.zeros(1, dtype=torch.int32)
    with pytest.raises(PolicyError, match="in clear"):  # it looks after itself too
        vendor.ask(BoostingSide.start, rows, rows, torch.zeros(1, 2))
    key = generate("rlwe-fast", Workload(rows=9, largest=255, groups=4)).public.to_tensor()
    with pytest.raises(Refused, match="not allowed here"):
        vendor.ask(BoostingSide.take_key, key)
    nothing = {"policy": Policy(encryption=frozenset({"paillier"}))}
    with pytest.raises(JobError, match="of 'bank', 'vendor'; all allow: nothing in common"):
        trees(encryption="auto").fit(
            breast(options={"vendor": {"policy": strict}, "bank": nothing})
        )
    clear = Policy(encryption=frozenset({"none"}))
    trees(**short).fit(breast(options={"vendor": {"policy": clear}}))


def test_policies_know_the_schemes_by_their_names() -> None:
    assert {*get_args(PolicyEncryption)} == {"none", *SCHEMES}


class Chosen(Exception):
    """Instead of a key."""


def test_auto_goes_by_the_link(breast: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a very slow link a small table's ciphertexts cost more than the work with them."""

    def scheme(**kw: Any) -> str:
        with pytest.raises(Chosen) as told:
            trees(max_depth=4, **{"encryption": "auto", **kw}).fit(fed)
        return str(told.value)

    def stop(scheme: str, _: Workload) -> None:
        raise Chosen(scheme)

    monkeypatch.setattr(boosting, "generate", stop)
    monkeypatch.setattr("interlace.crypto.schemes.available", lambda _: True)
    fed = breast()
    assert scheme(link_mbps=100) == "rlwe-fast"
    assert scheme(link_mbps=0.5) == "okamoto-uchiyama"
    assert scheme() == "rlwe-fast"  # in one process
    measured = []
    monkeypatch.setattr(boosting, "_link", lambda peer: measured.append(peer.name) or 62_500)
    assert scheme(encryption="rlwe-strict") == "rlwe-strict"
    assert not measured
    assert scheme() == "okamoto-uchiyama"
    assert measured == ["vendor"]
    with pytest.raises(JobError, match="link_mbps"):
        trees(link_mbps=0).fit(fed)


def test_a_resumed_training_keeps_its_scheme(
    breast: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the link is another by then: other gradients would be rounded otherwise."""

    def kill(_: Any) -> None:
        raise KeyboardInterrupt

    kw = {"n_estimators": 2, "max_depth": 2, "max_bin": 4, "encryption": "auto"}
    with pytest.raises(KeyboardInterrupt):
        trees(**kw).fit(breast(folder=tmp_path), checkpoint="run", on_epoch=kill)
    monkeypatch.setattr(boosting, "choose", lambda *_, **__: pytest.fail("it chose again"))
    assert trees(**kw).fit(breast(folder=tmp_path), checkpoint="run").scheme_ == "rlwe-fast"


def test_a_link_is_measured_by_what_comes_back(
    breast: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed = breast()
    peer = trees(n_estimators=1).fit(fed).peers_["vendor"]
    assert boosting._link(peer) > 1e6  # a function call

    now = 0.0

    class Slow:
        """Ten megabytes a second, and a round trip of 20 ms."""

        def deliver(self, message: Any) -> Any:
            nonlocal now
            answer = peer.engine.deliver(message)
            now += 0.02 + (message.encoded_size() + answer.encoded_size()) / 1e7
            return answer

    far = Peer(peer.me, peer.name, Slow(), peer.session)  # type: ignore[arg-type]
    with monkeypatch.context() as patched:
        patched.setattr(boosting, "time", SimpleNamespace(perf_counter=lambda: now))
        assert boosting._link(far) == pytest.approx(1e7, rel=0.01)
    with pytest.raises(Refused, match="sent back"):
        peer.ask(BoostingSide.echo, torch.zeros(2**20 + 1, dtype=torch.uint8))


def test_noise_on_gradients_is_taken_for_what_it_is(breast: Make) -> None:
    """Sums are then no whole numbers, and add up to nothing exactly; trees grow all the same."""
    noisy = Policy(guards={Kind.GRADIENT: [{"clip": {"norm": 1.5}}, {"gaussian": {"sigma": 0.01}}]})
    fed = breast(options={"bank": {"policy": noisy}})
    model = trees(n_estimators=5).fit(fed)
    assert model.made_["vendor"] > 0
    assert fed.active.boundary.accounts()


def test_images_are_no_columns_of_trees(digits: Make) -> None:
    with pytest.raises(DataError, match="trees read tables"):
        trees().fit(digits())


# -- checkpoints and models ---------------------------------------------------------------------


@pytest.mark.parametrize("encryption", ["none", "rlwe-fast"])
def test_a_killed_training_goes_on_to_the_same_model(
    breast: Make, tmp_path: Path, encryption: Any
) -> None:
    def kill(record: Any) -> None:
        if record.number == 2:
            raise KeyboardInterrupt

    kw = {"n_estimators": 3, "max_bin": 4, "subsample": 0.8, "encryption": encryption}
    whole = trees(**kw).fit(breast(folder=tmp_path / "a"), checkpoint="run")
    with pytest.raises(KeyboardInterrupt):
        trees(**kw).fit(breast(folder=tmp_path / "b"), checkpoint="run", on_epoch=kill)
    fed = breast(folder=tmp_path / "b")
    resumed = trees(**kw).fit(fed, checkpoint="run")
    assert [e.number for e in resumed.history_] == [1, 2, 3]
    assert resumed.trees_ == whole.trees_
    np.testing.assert_array_equal(resumed.scores(fed), whole.scores(breast_of(whole)))
    with pytest.raises(JobError, match="other settings"):
        trees(**{**kw, "max_depth": 2}).fit(fed, checkpoint="run")


def breast_of(model: Any) -> Federation:
    """The federation that a model was fitted on, from its partners."""
    (peer, *_) = model.peers_.values()
    fed = Federation(peer.me, list(model.peers_), peer.engine)
    fed.align()
    return fed


def test_saved_models_come_back_at_every_party(breast: Make, tmp_path: Path) -> None:
    fed = breast(folder=tmp_path)
    model = trees(multi_output=False).fit(fed)
    model.save("final")
    again = trees().load("final", breast(folder=tmp_path))
    fed = breast(folder=tmp_path)
    again = trees().load("final", fed)
    np.testing.assert_array_equal(again.scores(fed), model.scores(fed))
    assert again.predict(fed).tolist() == model.predict(fed).tolist()
    (kept,) = (tmp_path / "parties/vendor/models/final").glob("*.json")
    meta = json.loads(kept.read_text())
    meta["splits"].pop()
    kept.write_text(json.dumps(meta))
    with pytest.raises(InterlaceError, match="save the model anew"):
        trees().load("final", breast(folder=tmp_path))


# -- bad partners and bad input -----------------------------------------------------------------


def tampered(monkeypatch: pytest.MonkeyPatch, name: str, change: Callable[[Any], Any]) -> None:
    """Have passive parties change the answer of an operation."""
    honest = getattr(BoostingSide, name)

    @wraps(honest)  # it is still the same operation
    def answer(self: BoostingSide, *args: Any) -> Any:
        return change(honest(self, *args))

    monkeypatch.setattr(BoostingSide, name, answer)


def one_more(sums: torch.Tensor) -> torch.Tensor:
    out = sums.clone()
    out[0, 3, 1] += 1
    return out


@pytest.mark.parametrize(
    ("name", "change", "why"),
    [
        ("histograms", one_more, "do not add up"),
        ("histograms", lambda s: s * 2, "do not add up"),
        ("histograms", lambda s: s * 1e6, "cannot have"),
        ("histograms", lambda s: -s, "cannot have"),
        ("histograms", lambda s: s[:, :-1], "sums of shape"),
        ("histograms", lambda s: s * 0, "do not add up"),
        ("split", lambda b: 1 - b, "other rows to the left"),
        ("split", lambda b: b[:-1], "directions of"),
        ("split", lambda b: b + 1, "directions of"),
        ("begin", lambda t: t[:, :2], "unknown way"),
        ("begin", lambda t: t * 100, "more bins"),
    ],
)
def test_wrong_answers_are_refused(
    breast: Make, monkeypatch: pytest.MonkeyPatch, name: str, change: Any, why: str
) -> None:
    tampered(monkeypatch, name, change)
    with pytest.raises(Refused, match=why):
        trees().fit(breast())


def test_sums_over_other_rows_are_refused_under_encryption(
    breast: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partner that leaves a row out: its ciphertexts are fine and its counts are not."""
    honest = BoostingSide._open

    def short(self: BoostingSide, *args: Any) -> Any:
        rows, slot = honest(self, *args)
        return rows[1:], slot[1:]

    monkeypatch.setattr(BoostingSide, "_open", short)
    with pytest.raises(Refused, match="do not add up"):
        trees(encryption="rlwe-fast", max_bin=8).fit(breast())


def test_another_keys_ciphertexts_are_refused(
    breast: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = generate("rlwe-fast", Workload(rows=569, largest=255, groups=64))
    strange = other.encrypt_rows(np.ones((569, 2), dtype=np.int64)).to_tensor()
    sums = other.public.sum_by_index(
        other.public.read(strange), np.zeros((569, 1), dtype=np.int64), 4
    )
    tampered(monkeypatch, "encrypted_histograms", lambda _: sums.to_tensor())
    with pytest.raises(Refused, match="key"):
        trees(encryption="rlwe-fast", max_bin=8).fit(breast())


@pytest.mark.parametrize("cut", [slice(None, -1), slice(None, 20), slice(0, 0)])
def test_truncated_answers_are_refused(
    breast: Make, monkeypatch: pytest.MonkeyPatch, cut: slice
) -> None:
    tampered(monkeypatch, "encrypted_histograms", lambda sums: sums[cut])
    with pytest.raises(Refused):
        trees(encryption="rlwe-fast", max_bin=8).fit(breast())


def test_directions_of_the_wrong_size_are_refused(
    breast: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed = breast()
    model = trees().fit(fed)
    vendor = side(fed, model, "vendor")
    for _ in range(8):
        vendor.splits.append(vendor.splits[0])
    with pytest.raises(Refused, match="directions of shape"):
        model.scores(fed)


def test_partners_refuse_what_was_not_agreed(breast: Make) -> None:
    """The active party is not trusted blindly either."""
    fed = breast()
    model = trees(n_estimators=1).fit(fed)
    peer = model.peers_["vendor"]
    n, ints, bytes_ = len(fed.rows), torch.int32, torch.uint8
    full = torch.ones(n, dtype=bytes_)
    columns = torch.arange(20, dtype=ints)
    numbers = torch.ones(n, 2, dtype=torch.float64)
    bad: list[tuple[Any, tuple[Any, ...]]] = [
        (BoostingSide.begin, (torch.tensor([n + 5]), {"train": 1, "max_bin": 8})),
        (BoostingSide.start, (full[:-1], columns, numbers[:-1])),
        (BoostingSide.start, (full, columns, numbers[:-1])),
        (BoostingSide.start, (full, columns + 1, numbers)),
        (BoostingSide.start, (full, columns.flip(0), numbers)),
        (BoostingSide.histograms, (full[:-1], torch.zeros(1, dtype=ints))),
        (BoostingSide.histograms, (full, torch.ones(1, dtype=ints))),
        (BoostingSide.encrypted_histograms, (full, torch.zeros(1, dtype=ints))),
        (BoostingSide.start_encrypted, (full, columns, full)),
        (BoostingSide.take_key, (full,)),
        (BoostingSide.merged, ()),
        (BoostingSide.directions, (torch.tensor([-1]),)),
        (BoostingSide.split, (torch.tensor([[0, 20]]), torch.ones(1, 3, dtype=bytes_))),
        (BoostingSide.split, (torch.tensor([[0, 0]]), torch.zeros(1, 3, dtype=bytes_))),
        (BoostingSide.split, (torch.tensor([0, 0]), torch.ones(1, 3, dtype=bytes_))),
    ]
    for operation, arguments in bad:
        with pytest.raises(Refused):
            peer.ask(operation, *arguments)


def test_partners_refuse_damaged_ciphertexts(breast: Make) -> None:
    """Cut short, changed on the way, under another key, or of another number of rows."""
    fed = breast()
    peer = trees(n_estimators=1, max_bin=8, encryption="rlwe-fast").fit(fed).peers_["vendor"]
    n = len(fed.rows)
    mine = generate("rlwe-fast", Workload(rows=n, largest=255, groups=64))
    other = generate("rlwe-fast", Workload(rows=n, largest=255, groups=64))
    peer.ask(BoostingSide.take_key, mine.public.to_tensor())
    sampled, columns = torch.ones(n, dtype=torch.uint8), torch.arange(20, dtype=torch.int32)
    good = mine.encrypt_rows(np.ones((n, 2), dtype=np.int64)).to_tensor()
    few = mine.encrypt_rows(np.ones((n - 1, 2), dtype=np.int64)).to_tensor()
    strange = other.encrypt_rows(np.ones((n, 2), dtype=np.int64)).to_tensor()
    for figures in (good[:-1], good[:50], good[:0], few, strange, mine.public.to_tensor()):
        with pytest.raises(Refused):
            peer.ask(BoostingSide.start_encrypted, sampled, columns, figures)
    for key in (mine.public.to_tensor()[:-1], good):
        with pytest.raises(Refused):
            peer.ask(BoostingSide.take_key, key)
    peer.ask(BoostingSide.start_encrypted, sampled, columns, good)


def test_bad_settings_are_said_to_be_bad(breast: Make, federate: Make) -> None:
    for kw, why in (
        ({"max_depth": 0}, "max_depth"),
        ({"subsample": 0.0}, "subsample"),
        ({"encryption": "rot13"}, "encryption"),
        ({"objective": "reg:squarederror"}, "does not fit"),
        ({"objective": "rank:pairwise"}, "does not fit"),
        ({"sampling_method": "goss", "top_rate": 0.9, "other_rate": 0.9}, "top_rate"),
        ({"class_weight": {0: 0.0, 1: 0.0}}, "add up to 0"),
        ({"class_weight": {0: -1.0}}, "negative"),
        ({"hide_order": True, "colsample_bytree": 0.5}, "hidden"),
        ({"hide_rows": True}, "needs encryption"),
        ({"hide_rows": True, "encryption": "auto", "min_bin_rows": 5}, "cannot count"),
        ({"multi_output": True, "monotone_constraints": {"bank": {"x0": 1}}}, "monotone"),
    ):
        with pytest.raises(JobError, match=why):
            trees(**kw).fit(breast())
    x, y = load_diabetes(return_X_y=True)
    below = federate(x, y - 100, [slice(5, 10)], slice(0, 5))
    with pytest.raises(DataError, match="below 0"):
        trees(objective="count:poisson").fit(below)


def test_constant_columns_and_parties_without_any(federate: Make) -> None:
    x = np.random.default_rng(0).normal(size=(60, 3))
    y = (x[:, 0] > 0).astype(int)
    x[:, 2] = 4.0
    fed = federate(x, y, [slice(2, 3), slice(0, 1)], slice(1, 2))
    for kw in ({}, {"encryption": "rlwe-fast"}):
        model = trees(min_child_weight=0.1, **kw).fit(fed)
        assert model.score(fed) == 1.0
        assert "vendor" not in model.made_
    x[:] = 4.0
    with pytest.raises(DataError, match="tells the people to train on apart"):
        trees().fit(federate(x, y, [slice(0, 1)], slice(1, 2)))


def test_labels_all_but_alike_grow_no_endless_tree(federate: Make) -> None:
    """When every gradient is nought after the first trees, what follows are single leaves."""
    x = np.random.default_rng(0).normal(size=(40, 2))
    y = np.where(x[:, 0] > 0, 1.0, 2.0)
    options = {"bank": {"task": "regression"}}
    fed = federate(x, y, [slice(0, 1)], slice(1, 2), options=options)
    model = trees(n_estimators=3, learning_rate=1.0, reg_lambda=0.0, min_child_weight=0).fit(fed)
    assert r2_score(y, model.predict(fed)) == pytest.approx(1.0)
    assert [len(t.left) for (t,) in model.trees_] == [3, 1, 1]


# -- larger tables ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["student", "vehicle"])
def test_shared_tables_as_xgboost_does(shared_data: Path, name: str) -> None:
    """The sibling on data that installs with the project: wine and diabetes above."""
    xgboost = pytest.importorskip("xgboost")
    stem = {"student": "student_hetero", "vehicle": "vehicle_scale_hetero"}[name]
    tables = [
        pl.read_csv(shared_data / name / f"{stem}_{who}.csv").with_columns(
            id=pl.col("id").cast(pl.String)
        )
        for who in ("guest", "host")
    ]
    task: Any = "regression" if name == "student" else "multiclass"
    parties = [Party("guest", tables[0], label="y", task=task), Party("host", tables[1])]
    fed = Federation.simulate(parties)
    train, test = fed.split(0.3)
    model = trees(n_estimators=20, max_bin=32).fit(train)
    y, held = train.y.numpy(), test.y.numpy()
    codes = [
        np.concatenate(
            [
                model.own_.binning.codes(fed.active.frame, view.rows),
                side(fed, model, "host").binning.codes(
                    fed.engine.parties["host"].frame,
                    fed.engine.parties["host"].shared_with("guest")[
                        fed.positions("host", view.rows).numpy()
                    ],
                ),
            ],
            axis=1,
        ).astype(np.float32)
        for view in (train, test)
    ]
    options: dict[str, Any] = {"max_depth": 3, "nthread": 1, "objective": model.loss_.objective}
    if name == "vehicle":
        options["num_class"] = 4
    theirs = xgboost.train(options, xgboost.DMatrix(codes[0], y), 20).predict(
        xgboost.DMatrix(codes[1])
    )
    if name == "student":
        assert abs(model.score(test) - r2_score(held, theirs)) < 0.01
    else:
        assert abs(model.score(test) - accuracy_score(held, theirs.argmax(1))) < 0.01
