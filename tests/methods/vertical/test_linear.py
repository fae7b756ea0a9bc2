"""Linear models across parties: the pooled table's coefficients, encrypted or not."""

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
from scipy import stats
from scipy.special import expit
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine
from sklearn.linear_model import ElasticNet, PoissonRegressor, Ridge, TweedieRegressor
from sklearn.linear_model import LogisticRegression as Pooled
from sklearn.metrics import roc_auc_score

from interlace import Federation, Party, Policy
from interlace.align import Alignment, AlignmentReport
from interlace.boundary import Kind
from interlace.crypto import SCHEMES, Workload, available, generate
from interlace.errors import DataError, InterlaceError, JobError, PolicyError, Refused
from interlace.methods.vertical.linear import (
    GeneralisedLinear,
    LinearRegression,
    LogisticRegression,
    PoissonRegression,
    TweedieRegression,
)
from interlace.methods.vertical.linear_side import (
    LinearSide,
    scheme_for,
    whole_columns,
    workload_for,
)
from interlace.models.glm import MEMORY, Block, Penalty, lbfgs, sigmoid_error, sigmoid_slope


def joined(
    x: np.ndarray,
    y: Any,
    cuts: list[slice],
    own: slice | None,
    *,
    options: dict[str, dict[str, Any]] | None = None,
    **kw: Any,
) -> Federation:
    """Parties whose people stand in one order, without the time that matching takes: the bank has
    the label, the others ``cuts`` of the columns."""
    options = options or {}

    def table(columns: slice) -> dict[str, Any]:
        return {f"x{j}": x[:, j] for j in range(x.shape[1])[columns]}

    mine = table(own if own is not None else slice(0))
    parties = [Party("bank", {**mine, "y": y}, label="y", id=None, **options.get("bank", {}))]
    for name, cut in zip(("vendor", "shop", "lab"), cuts, strict=False):
        parties.append(Party(name, table(cut), id=None, **options.get(name, {})))
    return aligned([*parties, *kw.pop("more", ())], **kw)


def aligned(parties: list[Party], **kw: Any) -> Federation:
    """A federation of parties that hold the same people in the same order."""
    fed = Federation.simulate(parties, active=parties[0].name, **kw)
    rows = np.arange(len(parties[0]))
    for party in parties[1:]:
        party.aligned[parties[0].name] = rows
    report = AlignmentReport(
        reveal="pairs",
        protocols=dict.fromkeys(fed.passive, "none"),
        people={},
        shared=dict.fromkeys(fed.passive, len(rows)),
        common=len(rows),
        learnt={},
    )
    pairs = dict.fromkeys(fed.passive, rows)
    fed._common.alignment = Alignment.of(pairs, len(rows), report)
    return fed


def breast(**kw: Any) -> Federation:
    """Breast cancer, ten columns at the bank and twenty at the vendor."""
    x, y = load_breast_cancer(return_X_y=True)
    return joined(x, y, [slice(10, 30)], slice(0, 10), **kw)


def clinics(**kw: Any) -> Federation:
    """The same at three parties; the bank has the label and no columns."""
    x, y = load_breast_cancer(return_X_y=True)
    return joined(x, y, [slice(0, 10), slice(10, 20), slice(20, 30)], None, **kw)


def wine() -> Federation:
    """Three classes."""
    x, y = load_wine(return_X_y=True)
    return joined(x, y, [slice(6, 13)], slice(0, 6))


def diabetes() -> Federation:
    """A regression."""
    x, y = load_diabetes(return_X_y=True)
    return joined(x, y, [slice(5, 10)], slice(0, 5))


def side(fed: Federation, model: GeneralisedLinear, name: str) -> LinearSide:
    found = fed.engine.parties[name].sides[model.session_]  # type: ignore[attr-defined]
    assert isinstance(found, LinearSide)
    return found


def pooled(fed: Federation, model: GeneralisedLinear) -> tuple[np.ndarray, np.ndarray]:
    """What only a test may see: all parties' columns in one table, and all coefficients
    (columns, outputs)."""
    parts, weights = [], [model.weights_[:-1]]
    if model.own_ is not None:
        parts.append(model.own_.matrix(fed.active.frame, fed.rows))
    for name in fed.passive:
        party, own = fed.engine.parties[name], side(fed, model, name)  # type: ignore[attr-defined]
        theirs = party.shared_with(fed.active.name)[fed.positions(name, fed.rows).numpy()]
        parts.append(own.columns.matrix(party.frame, theirs))
        weights.append(own.weights)
    return np.concatenate(parts, axis=1), np.concatenate(weights)


def close(found: np.ndarray, due: np.ndarray, share: float = 1e-3) -> None:
    """Equal up to a share of the largest."""
    assert found.shape == due.shape
    assert np.abs(found - due).max() <= share * np.abs(due).max()


# -- it is the pooled table's model --------------------------------------------------------------


@pytest.mark.parametrize("encryption", ["none", "rlwe-strict"])
def test_logistic_coefficients_are_those_of_the_pooled_table(encryption: Any) -> None:
    fed = breast()
    model = LogisticRegression(l2=1e-1, encryption=encryption).fit(fed)
    x, weights = pooled(fed, model)
    y = fed.y.numpy()
    due = Pooled(C=1 / (1e-1 * len(y)), tol=1e-8, max_iter=1000).fit(x, y)
    close(weights[:, 0], due.coef_[0])
    assert model.weights_[-1, 0] == pytest.approx(due.intercept_[0], abs=2e-3)
    ours, theirs = model.predict_proba(fed)[:, 1], due.predict_proba(x)[:, 1]
    assert abs(roc_auc_score(y, ours) - roc_auc_score(y, theirs)) < 1e-4
    assert model.converged_


def test_four_parties_over_the_wire() -> None:
    """The active party has no columns; every message is encoded and decoded."""
    fed = clinics(wire=True)
    model = LogisticRegression(l2=0.1, tol=1e-4).fit(fed)
    x, weights = pooled(fed, model)
    y = fed.y.numpy()
    due = Pooled(C=1 / (0.1 * len(y)), tol=1e-8, max_iter=1000).fit(x, y)
    close(weights[:, 0], due.coef_[0])
    assert model.own_ is None
    assert len(model.weights_) == 1


@pytest.mark.skipif(not available("paillier"), reason="gmpy2 is not installed")
def test_paillier_gives_the_same() -> None:
    x, y = load_breast_cancer(return_X_y=True)
    fed = joined(x[:40], y[:40], [slice(10, 12)], slice(0, 2))
    plain, sealed = (
        LogisticRegression(l2=0.5, tol=1e-3, encryption=encryption).fit(fed)
        for encryption in ("none", "paillier")
    )
    close(sealed.weights_, plain.weights_)


def test_multinomial_coefficients_are_those_of_the_pooled_table() -> None:
    fed = wine()
    model = LogisticRegression(l2=1e-2).fit(fed)
    x, weights = pooled(fed, model)
    y = fed.y.numpy()
    due = Pooled(C=1 / (1e-2 * len(y)), tol=1e-8, max_iter=1000).fit(x, y)
    close(weights.T, due.coef_)
    close(model.predict_proba(fed), due.predict_proba(x))


@pytest.mark.parametrize("encryption", ["none", "rlwe-strict"])
def test_least_squares_are_those_of_the_pooled_table(encryption: Any) -> None:
    fed = diabetes()
    y = fed.y.double().numpy()
    model = LinearRegression(l2=1e-2, encryption=encryption).fit(fed)
    x, weights = pooled(fed, model)
    due = Ridge(alpha=1e-2 * len(y)).fit(x, y)
    close(weights[:, 0], due.coef_)
    close(model.predict(fed), due.predict(x))
    net = LinearRegression(l1=2.0, l2=1e-2, encryption=encryption).fit(fed)
    alpha = 2.0 + 1e-2
    due = ElasticNet(alpha=alpha, l1_ratio=2.0 / alpha, tol=1e-10, max_iter=100_000).fit(x, y)
    _, weights = pooled(fed, net)
    close(weights[:, 0], due.coef_)
    assert ((weights[:, 0] == 0) == (due.coef_ == 0)).all()
    assert (due.coef_ == 0).any()


@pytest.mark.parametrize("power", [1.0, 1.5, 2.0])
def test_counts_and_claims_are_those_of_the_pooled_table(power: float) -> None:
    fed = diabetes()
    y = fed.y.double().numpy()
    if power == 1:
        model: GeneralisedLinear = PoissonRegression(l2=1e-2).fit(fed)
        due: Any = PoissonRegressor(alpha=1e-2, tol=1e-10, max_iter=10_000)
    else:
        model = TweedieRegression(power=power, l2=1e-2).fit(fed)
        due = TweedieRegressor(power=power, alpha=1e-2, tol=1e-10, max_iter=10_000, link="log")
    x, weights = pooled(fed, model)
    due.fit(x, y)
    close(weights[:, 0], due.coef_)
    close(model.predict(fed), due.predict(x))


def test_larger_tables_meet_what_they_must(shared_data: Path) -> None:
    guest, host = (
        pl.read_csv(shared_data / "default_credit" / f"default_credit_hetero_{who}.csv")
        for who in ("guest", "host")
    )
    host = guest.select("id").join(host, on="id", maintain_order="left")
    fed = aligned([Party("bank", guest, label="y"), Party("shop", host)])
    train, test = fed.split(0.25)
    model = LogisticRegression().fit(train)
    x, weights = pooled(train, model)
    due = Pooled(C=1 / (1e-3 * len(x)), tol=1e-8, max_iter=1000).fit(x, train.y.numpy())
    close(weights[:, 0], due.coef_[0])
    held, y = pooled(test, model)[0], test.y.numpy()
    theirs = roc_auc_score(y, due.predict_proba(held)[:, 1])
    assert abs(roc_auc_score(y, model.predict_proba(test)[:, 1]) - theirs) < 2e-3


def test_weights_of_classes() -> None:
    fed = breast()
    model = LogisticRegression(l2=1e-2, class_weight="balanced", encryption="none").fit(fed)
    x, weights = pooled(fed, model)
    y = fed.y.numpy()
    due = Pooled(C=1 / (1e-2 * len(y)), tol=1e-8, max_iter=1000, class_weight="balanced")
    close(weights[:, 0], due.fit(x, y).coef_[0])


def test_stochastic_descent_comes_near() -> None:
    train, test = breast().split(0.25)
    model = LogisticRegression(solver="sgd", max_iter=3, batch_size=64).fit(train)
    assert roc_auc_score(test.y.numpy(), model.predict_proba(test)[:, 1]) > 0.985
    losses = [epoch.loss for epoch in model.history_]
    assert losses[-1] < losses[0] < np.log(2)
    sparse = LogisticRegression(solver="sgd", l1=0.05, max_iter=5, encryption="none").fit(train)
    assert (pooled(train, sparse)[1] == 0).any()


# -- protocols that show scores to nobody --------------------------------------------------------


def parabola(x: np.ndarray, y: np.ndarray, slope: float, l2: float) -> np.ndarray:
    """The least of the mean of -(y - ½)η + slope η²/2, ridge: (columns + 1,), intercept last."""
    wide = np.c_[x, np.ones(len(x))]
    held = np.append(np.full(x.shape[1], l2), 0.0)
    hessian = slope * wide.T @ wide / len(x) + np.diag(held)
    return np.asarray(np.linalg.solve(hessian, wide.T @ (y - 0.5) / len(x)))


@pytest.mark.parametrize("sigmoid", ["taylor", "minimax"])
def test_two_keys_find_the_parabolas_least(sigmoid: Any) -> None:
    fed = breast()
    model = LogisticRegression(l2=0.1, protocol="two_keys", sigmoid=sigmoid).fit(fed)
    x, weights = pooled(fed, model)
    y = fed.y.numpy()
    due = parabola(x, y, sigmoid_slope(sigmoid, 8.0), 0.1)
    close(np.append(weights[:, 0], model.weights_[-1]), due)
    assert roc_auc_score(y, model.predict_proba(fed)[:, 1]) > 0.98
    sent = [e for e in fed.active.boundary.ledger.entries() if e.session == model.session_]
    training = [e for e in sent if e.operation != "partial_scores"]
    shown = {e.kind for e in training}
    assert Kind.PARTIAL_SCORE not in shown
    shown = {e.operation for e in training if e.kind == Kind.GRADIENT}
    assert shown == {"products", "propose"}  # neither is about anybody
    eta, slope = model.scores(fed)[:, 0], model.family_.slope  # the loss that nobody computed
    assert slope is not None
    loss = np.log(2) + (-(y - 0.5) * eta + slope * eta**2 / 2).mean()
    loss += 0.05 * (weights**2).sum()
    assert model.history_[-1].loss == pytest.approx(loss, rel=1e-4)


def test_an_arbiter_opens_masked_sums_alone() -> None:
    notary = Party("notary")
    x, y = load_breast_cancer(return_X_y=True)
    cuts = [slice(5, 18), slice(18, 30)]
    fed = joined(x, y, cuts, slice(0, 5), more=[notary], wire=True)
    assert fed.helpers == ("notary",)
    assert "notary" not in fed.passive
    model = LogisticRegression(l2=0.1, protocol="arbiter", sigmoid="taylor").fit(fed)
    table, weights = pooled(fed, model)
    due = parabola(table, fed.y.numpy(), 0.25, 0.1)
    close(np.append(weights[:, 0], model.weights_[-1]), due)
    got = {
        (e.operation, e.kind) for e in notary.boundary.ledger.entries() if e.direction == "received"
    }
    assert got == {("make_key", Kind.CONTROL), ("open", Kind.CIPHERTEXT)}


def test_least_squares_by_two_keys() -> None:
    fed = diabetes()
    model = LinearRegression(l2=1e-2, protocol="two_keys").fit(fed)
    x, weights = pooled(fed, model)
    y = fed.y.double().numpy()
    close(weights[:, 0], Ridge(alpha=1e-2 * len(y)).fit(x, y).coef_)


def test_one_against_the_rest_by_two_keys() -> None:
    fed = wine()
    model = LogisticRegression(l2=1e-2, protocol="two_keys", sigmoid="taylor").fit(fed)
    x, weights = pooled(fed, model)
    y = fed.y.numpy()
    for c in range(3):
        close(np.append(weights[:, c], model.weights_[-1, c]), parabola(x, y == c, 0.25, 1e-2))
    assert model.score(fed) > 0.95
    assert model.predict_proba(fed).sum(axis=1) == pytest.approx(1)


def test_lines_for_the_sigmoid_are_as_near_as_the_docs_say() -> None:
    z = np.linspace(-8, 8, 1601)
    for kind, slope, error in (("taylor", 0.25, 1.5), ("minimax", 0.0882, 0.2061)):
        found = sigmoid_slope(kind, 8.0)  # type: ignore[arg-type]
        assert found == pytest.approx(slope, abs=1e-4)
        measured = np.abs(expit(z) - 0.5 - found * z).max()
        assert measured == pytest.approx(error, abs=1e-3)
        assert sigmoid_error(found, 8.0) == pytest.approx(measured, abs=1e-5)
    best = sigmoid_error(sigmoid_slope("minimax", 8.0), 8.0)
    assert all(sigmoid_error(a, 8.0) > best for a in np.linspace(0.01, 0.25, 40))


def watched(operation: Callable[..., Any], seen: list[torch.Tensor]) -> Callable[..., Any]:
    """The same operation, noting what it is asked about."""

    @wraps(operation)
    def asked(self: LinearSide, rows: torch.Tensor) -> Any:
        seen.append(rows)
        return operation(self, rows)

    return asked


# -- what may be known -----------------------------------------------------------------------


def test_residuals_leave_encrypted_and_weights_stay(tmp_path: Path) -> None:
    fed = breast(folder=tmp_path)
    model = LogisticRegression(l2=1e-2, max_iter=5).fit(fed)
    model.save("one")
    ledger = fed.active.boundary.ledger.entries()
    sent = {(e.operation, e.kind) for e in ledger if e.direction == "sent"}
    assert ("slope_encrypted", "ciphertext") in sent
    assert "slope" not in {operation for operation, _ in sent}
    mine, theirs = (
        json.loads((tmp_path / "parties" / name / "models" / "one" / "linear.json").read_text())
        for name in ("bank", "vendor")
    )
    assert len(mine["coefficients"]) == 11
    assert len(theirs["coefficients"]) == 20
    names = [line["column"] for line in model.summary()]
    assert names == [*(f"x{j}" for j in range(10)), "intercept"]
    assert "label_plan" in mine
    assert "label_plan" not in theirs


def test_what_the_key_holder_opens_is_random(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same residuals twice: what the active party decrypts has nothing in common."""
    opened: list[np.ndarray] = []
    honest = LinearSide.unmask

    @wraps(honest)
    def spy(self: LinearSide, sums: torch.Tensor, agreed: dict[str, Any]) -> None:
        opened.append(sums.numpy().view(np.int64).copy())
        honest(self, sums, agreed)

    monkeypatch.setattr(LinearSide, "unmask", spy)
    fed = breast()
    for _ in range(2):
        LogisticRegression(l2=1e-2, max_iter=1).fit(fed)
    first, again = np.concatenate(opened[:2]), np.concatenate(opened[2:])
    assert len(first) == len(again) == 40
    assert (first != again).all()
    assert np.abs(np.corrcoef(first, again)[0, 1]) < 0.6


def test_too_few_people_for_their_columns_are_refused_under_encryption() -> None:
    x, y = load_breast_cancer(return_X_y=True)
    fed = joined(x[:40], y[:40], [slice(10, 30)], slice(0, 10))
    with pytest.raises(DataError, match=r"party 'vendor'.*40 people for 20 columns"):
        LogisticRegression().fit(fed)
    turned = joined(x[:40], y[:40], [slice(0, 10)], slice(10, 30))
    with pytest.raises(DataError, match="party 'bank'"):  # it would learn the vendor's scores
        LogisticRegression(protocol="two_keys", sigmoid="taylor").fit(turned)
    LogisticRegression(encryption="none").fit(fed)
    more = joined(x[:200], y[:200], [slice(10, 30)], slice(0, 10))
    with pytest.raises(DataError, match="32 people for 20 columns"):
        LogisticRegression(solver="sgd", batch_size=32).fit(more)


def test_too_few_people_for_the_levels_of_a_category_names_it() -> None:
    n = 60
    ids, draw = [f"p{i}" for i in range(n)], np.random.default_rng(0).integers(0, 50, n)
    bank = pl.DataFrame({"id": ids, "x": range(n), "y": [i % 2 for i in range(n)]})
    shop = pl.DataFrame({"id": ids, "town": [f"t{d}" for d in draw], "sex": ["f", "m"] * (n // 2)})
    fed = aligned([Party("bank", bank, label="y"), Party("shop", shop)])
    with pytest.raises(DataError, match=r"are levels of the category 'town'\) are too") as caught:
        LogisticRegression().fit(fed)
    assert "leave out categories of so many levels" in str(caught.value.way_out)
    assert "'sex'" not in str(caught.value)


def test_stochastic_descent_gives_a_partner_no_further_equations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Over other batches in every pass it could in the end solve for single people's residuals."""
    asked = []
    monkeypatch.setattr(LinearSide, "batch", watched(LinearSide.batch, asked))
    fed = breast()
    LogisticRegression(solver="sgd", max_iter=3, batch_size=128, encryption="none").fit(fed)
    assert len(asked) == 3 * 5
    assert len({rows.numpy().tobytes() for rows in asked}) == 5


def test_a_policy_can_keep_scores_at_home() -> None:
    kept = Policy(allow=frozenset(Policy().allow - {Kind.PARTIAL_SCORE}))
    fed = breast(options={"vendor": {"policy": kept}})
    with pytest.raises(PolicyError, match="partial score"):
        LogisticRegression().fit(fed)
    LogisticRegression(protocol="two_keys", sigmoid="taylor", max_iter=2).fit(fed)


def test_a_policy_names_the_encryption() -> None:
    fed = breast(options={"vendor": {"policy": Policy(encryption=frozenset({"paillier"}))}})
    with pytest.raises(PolicyError, match="no training in clear"):
        LogisticRegression(encryption="none").fit(fed)
    with pytest.raises(JobError, match=r"'rlwe-strict'.*of 'vendor'; all allow: paillier"):
        LogisticRegression(encryption="rlwe-strict").fit(fed)
    assert scheme_for("auto", 569, 2, "active_key", SCHEMES) == "rlwe-strict"
    if available("paillier"):
        assert scheme_for("auto", 569, 2, "active_key", ["paillier"]) == "paillier"
    with pytest.raises(JobError, match="that every party allows"):
        scheme_for("auto", 569, 2, "active_key", ["rlwe-fast"])
    strict = {"policy": Policy(encryption=frozenset({"rlwe-strict"}))}
    with pytest.raises(JobError, match=r"'none'.*of 'bank'"):  # whose residuals they are
        LogisticRegression(encryption="none").fit(breast(options={"bank": strict}))
    ours = breast(options={"bank": strict, "vendor": strict})
    assert LogisticRegression(max_iter=1).fit(ours).history_
    model = LogisticRegression()  # a partner looks after itself too
    model.family_ = model._family(fed)
    _, (vendor,) = model._begin(fed)
    key = generate("rlwe-strict", workload_for("rlwe-strict", 569, 2, "two_keys")).public
    with pytest.raises(Refused, match="not allowed here"):
        vendor.peer.ask(LinearSide.take_key, key.to_tensor())
    with pytest.raises(Refused, match="'vendor' makes no key"):
        vendor.peer.ask(LinearSide.make_key, {"scheme": "rlwe-strict", **vars(key.workload)})


# -- standard errors -----------------------------------------------------------------------------


def fisher(x: np.ndarray, information: np.ndarray, l2: float = 0.0) -> np.ndarray:
    """Covariance of ridge estimates, (columns + 1,) squared, intercept last."""
    wide = np.c_[x, np.ones(len(x))]
    plain = (wide * information[:, None]).T @ wide
    whole = plain + len(x) * np.diag(np.append(np.full(x.shape[1], l2), 0.0))
    inverse = np.linalg.inv(whole)
    return np.asarray(inverse @ plain @ inverse)


@pytest.mark.parametrize("l2", [0.0, 1e-2])
@pytest.mark.parametrize("encryption", ["none", "rlwe-strict"])
def test_standard_errors_are_those_of_the_pooled_table(encryption: Any, l2: float) -> None:
    x, y = load_breast_cancer(return_X_y=True)
    fed = joined(x[:, :9], y, [slice(4, 7), slice(7, 9)], slice(0, 2))
    model = LogisticRegression(l2=l2, encryption=encryption, inference=True).fit(fed)
    table, weights = pooled(fed, model)
    p = model.predict_proba(fed)[:, 1]
    due = np.sqrt(np.diag(fisher(table, p * (1 - p), l2)))
    assert model.errors_ is not None
    close(model.errors_[:, 0], due[[0, 1, -1]])
    close(side(fed, model, "vendor").errors[:, 0], due[2:5])  # type: ignore[index]
    lines = side(fed, model, "shop").summary()
    for line, error, weight in zip(lines, due[5:7], weights[5:7, 0], strict=True):
        assert line["standard_error"] == pytest.approx(error, rel=2e-3)
        assert line["p"] == pytest.approx(2 * stats.norm.sf(abs(weight / error)), rel=0.05)


def test_least_squares_have_students_p_values() -> None:
    fed = diabetes()
    model = LinearRegression(l2=0.0, inference=True).fit(fed)
    x, weights = pooled(fed, model)
    y = fed.y.double().numpy()
    wide = np.c_[x, np.ones(len(x))]
    rest = y - wide @ np.append(weights[:, 0], model.weights_[-1])
    spread = rest @ rest / (len(y) - 11)
    due = np.sqrt(spread * np.diag(np.linalg.inv(wide.T @ wide)))
    assert model.errors_ is not None
    close(model.errors_[:, 0], due[[*range(5), 10]])
    line = model.summary()[0]
    assert line["p"] == pytest.approx(2 * stats.t.sf(abs(line["z"]), len(y) - 11))


def test_standard_errors_where_there_are_none() -> None:
    x, y = load_breast_cancer(return_X_y=True)
    twice = np.c_[x[:, :4], x[:, 2], x[:, 1]]
    same = joined(twice, y, [slice(2, 5)], slice(0, 2))
    with pytest.raises(DataError, match=r"party 'vendor'.*follow from others"):
        LogisticRegression(l2=0.0, tol=1e-3, inference=True).fit(same)
    across = joined(twice, y, [slice(3, 6)], slice(0, 2))
    with pytest.raises(InterlaceError, match="follow from another's"):
        LogisticRegression(l2=0.0, tol=1e-3, inference=True).fit(across)
    with pytest.raises(JobError, match="one score"):
        LogisticRegression(inference=True, max_iter=1).fit(wine())
    with pytest.raises(JobError, match="L1"):
        LogisticRegression(inference=True, l1=0.1).fit(same)
    with pytest.raises(JobError, match="two_keys"):
        LogisticRegression(inference=True, protocol="two_keys", sigmoid="taylor").fit(same)
    for other in ({"sigmoid": "taylor"}, {"class_weight": "balanced"}):
        with pytest.raises(JobError, match="the likelihood's own"):
            LogisticRegression(inference=True, **other).fit(same)  # type: ignore[arg-type]


# -- going on, keeping, scoring ------------------------------------------------------------------


class Stopped(Exception):
    pass


@pytest.mark.parametrize(
    "settings",
    [
        {"encryption": "none"},
        {"encryption": "rlwe-strict"},
        {"protocol": "two_keys", "sigmoid": "taylor"},
        {"solver": "sgd", "max_iter": 3},
        {"encryption": "none", "l1": 0.01},
    ],
)
def test_a_stopped_fit_goes_on_to_the_same_model(tmp_path: Path, settings: dict[str, Any]) -> None:
    def stop(epoch: Any) -> None:
        if epoch.number == 2:
            raise Stopped

    settings = {"l2": 1e-2, "max_iter": 4, **settings}
    whole = LogisticRegression(**settings).fit(breast(folder=tmp_path / "a"), checkpoint="fit")
    with pytest.raises(Stopped):
        LogisticRegression(**settings).fit(
            breast(folder=tmp_path / "b"), checkpoint="fit", on_epoch=stop
        )
    fed = breast(folder=tmp_path / "b")
    with pytest.raises(JobError, match="other settings"):
        LogisticRegression(**{**settings, "l2": 0.5}).fit(fed, checkpoint="fit")
    again = LogisticRegression(**settings).fit(fed, checkpoint="fit")
    np.testing.assert_allclose(again.weights_, whole.weights_, rtol=1e-9)
    assert [e.loss for e in again.history_] == pytest.approx([e.loss for e in whole.history_])


def test_a_kept_model_scores_alike(tmp_path: Path) -> None:
    train, test = breast(folder=tmp_path).split(0.25)
    model = LogisticRegression(l2=1e-2, encryption="none", inference=True).fit(train)
    model.save("kept")
    fresh = LogisticRegression().load("kept", test)
    np.testing.assert_array_equal(fresh.predict_proba(test), model.predict_proba(test))
    assert fresh.summary() == model.summary()
    assert side(test, fresh, "vendor").summary() == side(train, model, "vendor").summary()
    (tmp_path / "parties" / "vendor" / "models" / "kept" / "linear.json").write_text("{}")
    with pytest.raises(InterlaceError, match="no linear model"):
        LogisticRegression().load("kept", test)


# -- bad input -----------------------------------------------------------------------------------


def mixed(seed: int = 0) -> tuple[pl.DataFrame, pl.DataFrame]:
    rng = np.random.default_rng(seed)
    n = 300
    city = rng.choice(["Ulm", "Bonn", "Kiel"], n, p=[0.6, 0.25, 0.15])
    age, score = rng.standard_normal((2, n))
    lift = {"Ulm": 0.0, "Bonn": 1.0, "Kiel": -1.0}
    eta = age + score + np.array([lift[c] for c in city])
    y = (rng.random(n) < expit(eta)).astype(int)
    ids = [f"p{i}" for i in range(n)]
    bank = pl.DataFrame({"id": ids, "age": age, "y": y})
    shop = pl.DataFrame({"id": ids, "score": score, "same": np.ones(n), "city": city})
    return bank, shop


def test_constant_columns_are_left_out_and_unseen_categories_are_the_reference() -> None:
    bank, shop = mixed()
    fed = aligned([Party("bank", bank, label="y"), Party("shop", shop)])
    model = LogisticRegression(l2=1e-3).fit(fed)
    names = [line["column"] for line in side(fed, model, "shop").summary()]
    assert sorted(names) == ["city = Bonn", "city = Kiel", "score"]
    few = shop.head(4).with_columns(city=pl.Series(["Ulm", "Rome", None, "Bonn"]), score=0.0)
    new = fed.with_tables({"bank": bank.head(4).with_columns(age=0.0), "shop": few})
    eta = model.scores(new.shared())[:, 0]
    assert eta[0] == eta[1] == eta[2] == pytest.approx(eta[0])
    assert eta[3] > eta[0]


def test_a_partner_without_a_usable_column_is_named() -> None:
    bank, shop = mixed()
    fed = aligned([Party("bank", bank, label="y"), Party("shop", shop[["id", "same"]])])
    with pytest.raises(DataError, match="party 'shop'"):
        LogisticRegression().fit(fed)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"class_weight": {0: 0.0, 1: 0.0}}, "add up to 0"),
        ({"class_weight": {0: -1.0}}, "negative"),
        ({"l2": -1.0}, "`l2`"),
        ({"solver": "newton"}, "`solver` is one of"),
        ({"encryption": "caesar"}, "`encryption` is one of"),
        ({"protocol": "two_keys"}, "line in the scores"),
        ({"protocol": "two_keys", "sigmoid": "taylor", "encryption": "none"}, "needs an encryp"),
        ({"protocol": "two_keys", "sigmoid": "taylor", "l1": 0.1}, "nobody sees scores"),
        ({"protocol": "arbiter", "sigmoid": "taylor"}, "a party without a table"),
        ({"encryption": "rlwe-fast"}, "does not hold"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(JobError, match=why):
        LogisticRegression(**settings).fit(breast())


def test_two_keys_are_for_two() -> None:
    with pytest.raises(JobError, match="two parties"):
        LogisticRegression(protocol="two_keys", sigmoid="taylor").fit(clinics())


def test_labels_that_do_not_fit() -> None:
    with pytest.raises(JobError, match="task: regression"):
        PoissonRegression().fit(breast())
    with pytest.raises(JobError, match="for classes"):
        LogisticRegression().fit(diabetes())
    x, y = load_diabetes(return_X_y=True)
    below = joined(x, y - 100, [slice(5, 10)], slice(0, 5))
    with pytest.raises(DataError, match="targets are below 0"):
        TweedieRegression().fit(below)


# -- bad partners --------------------------------------------------------------------------------


def tampered(monkeypatch: pytest.MonkeyPatch, name: str, change: Callable[[Any], Any]) -> None:
    """Have passive parties change the answer of an operation."""
    honest = getattr(LinearSide, name)

    @wraps(honest)  # it is still the same operation
    def answer(self: LinearSide, *args: Any) -> Any:
        return change(honest(self, *args))

    monkeypatch.setattr(LinearSide, name, answer)


def other_key(_: Any) -> torch.Tensor:
    key = generate("rlwe-strict", workload_for("rlwe-strict", 569, 2, "active_key"))
    vector = key.encrypt(np.zeros(569, dtype=np.int64))
    return key.public.masked_product(vector, np.ones((569, 20), dtype=np.int64))[0].to_tensor()


@pytest.mark.parametrize(
    ("name", "change", "why"),
    [
        ("scores", lambda s: s[:-1], "scores of shape"),
        ("scores", lambda s: torch.cat([s, s], 1), "scores of shape"),
        ("products", lambda t: t[:-1], "products that is none"),
        ("products", lambda t: t[0], "products that is none"),
        ("propose", lambda _: {"penalty": "x"}, "no number"),
        ("propose", lambda _: {"penalty": 0.0}, "no number"),
        ("slope_encrypted", other_key, "key"),
        ("slope_encrypted", lambda t: t[:-9], "truncated|cannot be read|not"),
        ("slope_encrypted", lambda t: t[:30], "truncated|not a ciphertext"),
    ],
)
def test_answers_that_cannot_be_are_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, change: Any, why: str
) -> None:
    tampered(monkeypatch, name, change)
    with pytest.raises(Refused, match=why):
        LogisticRegression(max_iter=3).fit(breast())


def test_a_partner_refuses_what_is_none_of_its_affair() -> None:
    fed = breast()
    model = LogisticRegression(max_iter=1, protocol="two_keys", sigmoid="taylor")
    model.family_ = model._family(fed)
    own, partners = model._begin(fed)
    peer = partners[0].peer
    assert own.block.z.shape[0] == len(fed.rows)
    with pytest.raises(Refused, match="show its scores"):
        peer.ask(LinearSide.scores)
    with pytest.raises(Refused, match="has no key"):
        peer.ask(LinearSide.open, torch.zeros(8, dtype=torch.uint8))
    with pytest.raises(Refused, match="before their key"):
        peer.ask(LinearSide.slope_encrypted, torch.zeros(8, dtype=torch.uint8), {"output": 0})
    with pytest.raises(Refused, match="no key of such an encryption"):
        peer.ask(LinearSide.make_key, {"scheme": "rot13"})
    key = generate("rlwe-strict", workload_for("rlwe-strict", 569, 2, "two_keys"))
    peer.ask(LinearSide.take_key, key.public.to_tensor())
    short = key.encrypt(np.zeros(100, dtype=np.int64)).to_tensor()
    with pytest.raises(Refused, match="each of 569 people"):
        peer.ask(LinearSide.slope_encrypted, short, {"output": 0, "unit": 1.0})
    sealed = key.encrypt(np.zeros(569, dtype=np.int64))
    peer.ask(LinearSide.slope_encrypted, sealed.to_tensor(), {"output": 0, "unit": 1.0})
    with pytest.raises(Refused, match="opened numbers were due"):
        peer.ask(LinearSide.unmask, torch.zeros(16, dtype=torch.uint8), {"output": 0, "unit": 1.0})
    plain = key.public.scalar_product(sealed, np.ones((569, 1), dtype=np.int64))
    peer.ask(LinearSide.make_key, {"scheme": "rlwe-strict", **vars(key.public.workload)})
    with pytest.raises(Refused):
        peer.ask(LinearSide.open, plain.to_tensor())


# -- the pieces ----------------------------------------------------------------------------------


def test_parties_columns_become_uncorrelated_and_whole() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((500, 4)) @ rng.standard_normal((4, 4)) + 1
    x = np.c_[x, x[:, 0] - x[:, 1]]
    block = Block.of(x, np.ones(5), 1, Penalty())
    assert block.z.shape == (500, 4)
    np.testing.assert_allclose(block.z.T @ block.z / 500, np.eye(4), atol=1e-9)
    whole, unit = whole_columns(block.z, 1000)
    assert np.abs(whole).max() <= 1000
    assert np.sqrt((whole**2.0).sum(axis=0)).max() <= (1000 / 4 + 1) * np.sqrt(500)
    np.testing.assert_allclose(whole * unit, block.z, atol=unit / 2)


def test_directions_by_scalar_products_are_those_of_lbfgs() -> None:
    """On a parabola with exact steps, L-BFGS gets there in as many steps as there are weights."""
    rng = np.random.default_rng(0)
    root = rng.standard_normal((6, 6))
    hessian, target = root @ root.T + np.eye(6), rng.standard_normal((6, 1))
    blocks = [
        Block(np.zeros((1, 3)), np.eye(3), np.ones(3), Penalty(), np.zeros((3, 1)))
        for _ in range(2)
    ]

    def slope() -> np.ndarray:
        v = np.concatenate([block.trial for block in blocks])
        return np.asarray(hessian @ (v - target))

    def take() -> None:
        found = slope()
        for k, block in enumerate(blocks):
            block.take(found[3 * k : 3 * k + 3])

    take()
    for _ in range(6):
        products = sum(block.products() for block in blocks)
        for block in blocks:
            block.propose(lbfgs(products), 1.0)
        take()
        table = sum(block.products() for block in blocks)
        last = MEMORY - 1
        curve = table[last, last + MEMORY]
        for block in blocks:
            block.shorten((curve - table[last, -1]) / curve)
    np.testing.assert_allclose(np.concatenate([b.v for b in blocks]), target, atol=1e-8)


def test_what_a_scheme_holds() -> None:
    for rows in (500, 30_000, 300_000):
        workload = workload_for("rlwe-strict", rows, 2, "active_key")
        assert workload.rows == rows
        assert workload.factor >= 2**10
        assert isinstance(workload, Workload)
    with pytest.raises(JobError, match=r"rlwe-fast.*does not hold"):
        workload_for("rlwe-fast", 30_000, 2, "active_key")
