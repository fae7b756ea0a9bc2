"""Generalised linear models in pieces: a family's loss, and one party's share of the model.

The score of a person is a sum over parties, η = b + Σ_k x_k·w_k, and the loss's derivative by a
party's weights is X_kᵀ d with d = ∂loss/∂η. So a party needs d (or X_kᵀ d) and nothing else to
move its own weights. What must be known of all parties' weights together, which way to go and how
far, are scalar products, and these are sums over parties too: L-BFGS runs on a table of them (Chen
et al., "Large-scale L-BFGS using MapReduce", NIPS 2014), and each party moves its own weights.

Every party first turns its columns into columns that are uncorrelated and of one size (unless there
is an L1 penalty, which means the columns as they are). It costs no message, takes most iterations
away, and lets whole numbers of 13 bits stand for columns without harm to any direction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.special import expit, logsumexp, softmax

from interlace.data.columns import CategoryColumn, Reading
from interlace.data.features import FeaturePlan
from interlace.errors import DataError

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

FamilyName = Literal["gaussian", "binomial", "multinomial", "tweedie"]
Sigmoid = Literal["exact", "taylor", "minimax"]

RANK = 1e-9  # directions in which columns vary less than this, beside the most, count as none
MEMORY = 30  # steps that L-BFGS remembers


# -- families ----------------------------------------------------------------------------------


def sigmoid_slope(kind: Sigmoid, radius: float) -> float:
    """Slope a of σ(z) ≈ ½ + a·z.

    Args:
        kind: ``taylor``: the tangent at 0, a = ¼. ``minimax``: the line whose largest error for
            \\|z\\| ≤ ``radius`` is least.
        radius: For ``minimax``.
    """
    if kind == "taylor":
        return 0.25
    low, high = 0.0, 0.25
    for _ in range(60):
        slope = (low + high) / 2
        # The error is largest where σ' = a, and at the end, with the other sign.
        inner = -np.log((1 - 2 * slope - np.sqrt(1 - 4 * slope)) / (2 * slope))
        over = expit(inner) - 0.5 - slope * inner
        under = 0.5 + slope * radius - expit(radius)
        low, high = (low, slope) if under > over else (slope, high)
    return (low + high) / 2


def sigmoid_error(slope: float, radius: float) -> float:
    """Largest error of ½ + slope·z for the sigmoid of \\|z\\| ≤ ``radius``, measured on a grid."""
    z = np.linspace(0, radius, 100_001)
    return float(np.abs(expit(z) - 0.5 - slope * z).max())


@dataclass(frozen=True)
class Family:
    """The distribution of the target, with its usual link.

    Attributes:
        name: ``gaussian`` (identity), ``binomial`` (logit), ``multinomial`` (softmax), or
            ``tweedie`` (log), whose variance is μ^power.
        outputs: Scores of one person: the classes for ``multinomial``, else 1.
        power: Of ``tweedie``: 1 is Poisson, 2 gamma, between them sums of gammas.
        slope: If given, the sigmoid is ½ + slope·z, one class against the rest, and the loss the
            parabola that has it as its derivative (log 2 at 0).
    """

    name: FamilyName
    outputs: int = 1
    power: float = 1.0
    slope: float | None = None

    @property
    def quadratic(self) -> bool:
        """Whether the loss is a quadratic function of the scores."""
        return self.name == "gaussian" or self.slope is not None

    def targets(self, y: Floats) -> Floats:
        """(n, outputs): a column for each class, or the target itself."""
        if self.name == "multinomial":
            return np.eye(self.outputs)[y.astype(np.int64)]
        return y[:, None]

    def losses(self, eta: Floats, y: Floats) -> Floats:
        """Each person's loss (n,) at scores (n, outputs): half the deviance, up to a constant."""
        target = self.targets(y)
        if self.slope is not None:
            parabola = np.log(2) - (target - 0.5) * eta + 0.5 * self.slope * eta**2
            return np.asarray(parabola.sum(axis=1))
        if self.name == "gaussian":
            return np.asarray(0.5 * (eta - target)[:, 0] ** 2)
        if self.name == "multinomial":
            return np.asarray(logsumexp(eta, axis=1) - (eta * target).sum(axis=1))
        one, y = eta[:, 0], target[:, 0]
        if self.name == "binomial":
            return np.asarray(np.logaddexp(0, one) - y * one)
        p = self.power
        with np.errstate(over="ignore", invalid="ignore"):
            first = y * one if p == 1 else y * np.exp((1 - p) * one) / (1 - p)
            return np.asarray((one if p == 2 else np.exp((2 - p) * one) / (2 - p)) - first)

    def residuals(self, eta: Floats, y: Floats) -> Floats:
        """Derivatives of :meth:`losses` by the scores, (n, outputs)."""
        target = self.targets(y)
        if self.slope is not None:
            return self.slope * eta - (target - 0.5)
        if self.name == "tweedie":
            p = self.power
            return np.asarray(np.exp((2 - p) * eta) - target * np.exp((1 - p) * eta))
        return self.mean(eta) - target

    def mean(self, eta: Floats) -> Floats:
        """What is expected at scores (n, outputs): the same shape."""
        if self.name == "gaussian":
            return eta
        if self.name == "tweedie":
            return np.asarray(np.exp(eta))
        if self.slope is not None and self.outputs > 1:
            each = expit(eta)
            return np.asarray(each / each.sum(axis=1, keepdims=True))
        return np.asarray(softmax(eta, axis=1) if self.name == "multinomial" else expit(eta))

    def information(self, eta: Floats) -> Floats:
        """Fisher's expected second derivative by the one score, (n,)."""
        mean = self.mean(eta)[:, 0]
        if self.name == "gaussian":
            return np.ones_like(mean)
        if self.name == "binomial":
            return mean * (1 - mean)
        return np.asarray(mean ** (2 - self.power))

    def scale(self, y: Floats, weight: Floats) -> float:
        """How large residuals are by nature: what a gradient is held against."""
        if self.name == "gaussian":
            return float(y.std()) or 1.0
        if self.name == "tweedie":
            return float(np.average(y, weights=weight) ** (2 - self.power)) or 1.0
        return 1.0

    def start(self, y: Floats, weight: Floats) -> Floats:
        """The best constant score, (outputs,)."""
        rate = np.average(self.targets(y), axis=0, weights=weight)
        if self.slope is not None:
            return np.asarray((rate - 0.5) / self.slope)
        if self.name == "gaussian":
            return rate
        if self.name == "binomial":
            return np.log(rate / (1 - rate))
        return np.log(rate)


# -- columns -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Columns:
    """A party's columns as a linear model reads them.

    Numbers are standardised; of a category's levels the most frequent is the reference and the
    others have a column of 0 and 1 each. A level that training did not see counts as missing, and
    missing, if training saw none, as the reference.

    Attributes:
        plan: The preprocessing.
        levels: For each category the codes that have a column.
    """

    plan: FeaturePlan
    levels: tuple[tuple[int, ...], ...]

    @classmethod
    def fit(
        cls,
        frame: pl.DataFrame,
        columns: Sequence[str],
        rows: Integers,
        *,
        party: str,
        file: str | None = None,
        readings: Mapping[str, Reading] | None = None,
    ) -> Self:
        """Learn the preprocessing from the training rows.

        Raises:
            DataError: no column is usable, or they are images.
        """
        plan = FeaturePlan.fit(frame, columns, rows, party=party, file=file, readings=readings)
        spec = plan.spec
        if spec.image:
            raise DataError(
                "a linear model does not read images",
                party=party,
                file=file,
                way_out="Use split learning, or leave the column out",
            )
        codes = plan.transform(frame, rows)[:, spec.numeric :].numpy().astype(np.int64)
        levels = []
        for j, cardinality in enumerate(spec.cardinalities):
            counts = np.bincount(codes[:, j], minlength=cardinality)
            seen = np.flatnonzero(counts)
            levels.append(tuple(int(c) for c in seen if c != counts.argmax()))
        return cls(plan, tuple(levels))

    @property
    def names(self) -> list[str]:
        """One name for each column of :meth:`matrix`."""
        spec = self.plan.spec
        out = list(spec.names[: spec.numeric])
        categories = [c for c in self.plan.columns if isinstance(c, CategoryColumn)]
        for column, codes in zip(categories, self.levels, strict=True):
            levels = ["missing", *column.levels]
            levels += [f"rare {k}" for k in range(1, column.buckets + 1)]
            out += [f"{column.name} = {levels[code]}" for code in codes]
        return out

    @property
    def made_of(self) -> dict[str, int]:
        """How many columns of :meth:`matrix` each category of the table became, most first."""
        categories = (c.name for c in self.plan.columns if isinstance(c, CategoryColumn))
        made = {name: len(codes) for name, codes in zip(categories, self.levels, strict=True)}
        return dict(sorted(made.items(), key=lambda item: -item[1]))

    def matrix(self, frame: pl.DataFrame, rows: Integers) -> Floats:
        """The columns of some rows, (n, d)."""
        x, spec = self.plan.transform(frame, rows).numpy(), self.plan.spec
        parts = [x[:, : spec.numeric].astype(np.float64)]
        for j, codes in enumerate(self.levels):
            parts.append((x[:, [spec.numeric + j]] == np.array(codes)).astype(np.float64))
        return np.concatenate(parts, axis=1)

    def to_json(self) -> dict[str, Any]:
        """For a checkpoint or a saved model."""
        return {"plan": self.plan.to_json(), "levels": [list(codes) for codes in self.levels]}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """What :meth:`to_json` gave."""
        levels = tuple(tuple(int(c) for c in codes) for codes in data["levels"])
        return cls(FeaturePlan.from_json(data["plan"]), levels)


# -- one party's share -------------------------------------------------------------------------


@dataclass(frozen=True)
class Penalty:
    """``l1`` ‖w‖₁ + ``l2``/2 ‖w‖², the intercept left free."""

    l1: float = 0.0
    l2: float = 0.0


def uncorrelated(x: Floats, penalised: Floats, l2: float) -> Floats:
    """T of shape (d, rank) with Tᵀ(XᵀX/n + l2·P)T = 1."""
    if not x.shape[1]:
        return np.zeros((0, 0))
    size, axes = np.linalg.eigh(x.T @ x / len(x) + np.diag(l2 * penalised))
    kept = size > RANK * size.max()
    return np.asarray(axes[:, kept] / np.sqrt(size[kept]))


@dataclass
class Block:
    """One party's weights W = T·V while they are learnt.

    Attributes:
        z: Its training rows X·T, (n, rank).
        transform: T, (columns, rank).
        penalised: Which of its columns the penalty is on, (columns,) of 0 and 1.
        penalty: On W.
        v: Its weights, (rank, outputs).
        trial: The weights that scores and gradients are asked for next.
        gradient: Of loss and L2 penalty at ``v``; ``None`` before it is known.
        steps, turns: The last steps, and how each changed the gradient.
    """

    z: Floats
    transform: Floats
    penalised: Floats
    penalty: Penalty
    v: Floats
    trial: Floats = field(init=False)
    gradient: Floats | None = None
    steps: list[Floats] = field(default_factory=list)
    turns: list[Floats] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.trial = self.v

    @classmethod
    def of(cls, x: Floats, penalised: Floats, outputs: int, penalty: Penalty) -> Self:
        """The share of a party with (n, d) columns, its weights 0."""
        transform = np.eye(x.shape[1]) if penalty.l1 else uncorrelated(x, penalised, penalty.l2)
        v = np.zeros((transform.shape[1], outputs))
        return cls(x @ transform, transform, penalised, penalty, v)

    @property
    def weights(self) -> Floats:
        """W, (columns, outputs)."""
        return self.transform @ self.v

    def scores(self, rows: Integers | slice) -> Floats:
        """This party's part of the scores at the trial weights, (n, outputs)."""
        return self.z[rows] @ self.trial

    def take(self, data: Floats) -> None:
        """Go to the trial weights, where the mean loss has the gradient ``data``.

        Args:
            data: By ``v``, (rank, outputs), without the penalty's part.
        """
        gradient = data + self._pull(self.trial)
        if self.gradient is not None:
            self.steps.append(self.trial - self.v)
            self.turns.append(gradient - self.gradient)
            del self.steps[:-MEMORY], self.turns[:-MEMORY]
        self.v, self.gradient = self.trial, gradient

    def products(self) -> Floats:
        """All scalar products among the last steps, their turns, and the gradient.

        Returns:
            Shape (2m + 1, 2m + 1) for m = MEMORY, the newest step last; 0 for steps not taken yet,
            so that every message is of one size.
        """
        basis = self._basis()
        return basis @ basis.T

    def propose(self, direction: Floats, length: float) -> tuple[float, float]:
        """Set the trial weights ``length`` along a combination of the vectors of `products`.

        Returns:
            The penalty there, and the scalar product of the gradient and the step.
        """
        pull = self._basis()[-1].reshape(self.v.shape)
        along = (direction @ self._basis()).reshape(self.v.shape)
        if self.penalty.l1:  # OWL-QN (Andrew and Gao, ICML 2007): no weight changes its sign
            held = self.penalised[:, None] > 0
            along = np.where(held & (along * pull >= 0), 0.0, along)
            side = np.where(self.v != 0, np.sign(self.v), -np.sign(pull))
            trial = self.v + length * along
            self.trial = np.where(held & (np.sign(trial) != side), 0.0, trial)
        else:
            self.trial = self.v + length * along
        return self.cost(), float((pull * (self.trial - self.v)).sum())

    def shorten(self, share: float) -> None:
        """Go back to a share of the last step; right only where the loss is quadratic."""
        step, turn = self.steps[-1], self.turns[-1]
        assert self.gradient is not None
        self.v = self.trial = self.v - (1 - share) * step
        self.gradient = self.gradient - (1 - share) * turn
        self.steps[-1], self.turns[-1] = share * step, share * turn

    def descend(self, data: Floats, rate: float) -> None:
        """One step of stochastic gradient descent, the L1 penalty by shrinking."""
        v = self.v - rate * (data + self._pull(self.v))
        if self.penalty.l1:
            less = rate * self.penalty.l1 * self.penalised[:, None]
            v = np.sign(v) * np.maximum(np.abs(v) - less, 0.0)
        self.v = self.trial = v

    def cost(self) -> float:
        """The penalty at the trial weights."""
        w = (self.transform @ self.trial) * self.penalised[:, None]
        return float(0.5 * self.penalty.l2 * (w**2).sum() + self.penalty.l1 * np.abs(w).sum())

    def _pull(self, v: Floats) -> Floats:
        """Gradient of the L2 penalty."""
        pull = self.penalised[:, None] * (self.transform @ v)
        return np.asarray(self.penalty.l2 * self.transform.T @ pull)

    def _basis(self) -> Floats:
        assert self.gradient is not None
        none = [np.zeros_like(self.v)] * (MEMORY - len(self.steps))
        steepest = self._steepest(self.gradient)
        vectors = [*none, *self.steps, *none, *self.turns, steepest]
        return np.stack([vector.ravel() for vector in vectors])

    def _steepest(self, gradient: Floats) -> Floats:
        """The gradient with the L1 penalty in it: of all that fit at 0 the one nearest to 0."""
        if not self.penalty.l1:
            return gradient
        held = self.penalty.l1 * self.penalised[:, None]
        shrunk = np.sign(gradient) * np.maximum(np.abs(gradient) - held, 0.0)
        return np.where(self.v != 0, gradient + held * np.sign(self.v), shrunk)


def lbfgs(products: Floats) -> Floats:
    """Which combination of the vectors of :meth:`Block.products` to go along.

    Args:
        products: Added up over all parties, (2m + 1, 2m + 1).

    Returns:
        Shape (2m + 1,): the two loops of L-BFGS (Nocedal 1980) on coefficients.
    """
    m = len(products) // 2
    out = np.zeros(2 * m + 1)
    out[-1] = -1.0
    curves = np.array([products[i, m + i] for i in range(m)])
    sizes = np.array([products[m + i, m + i] for i in range(m)])
    good = np.flatnonzero(curves > 1e-12 * sizes) if m else np.zeros(0, dtype=np.int64)
    alpha = np.zeros(m)
    for i in reversed(good):
        alpha[i] = products[i] @ out / curves[i]
        out[m + i] -= alpha[i]
    if len(good):
        last = good[-1]
        out *= curves[last] / sizes[last]
    for i in good:
        out[i] += alpha[i] - products[m + i] @ out / curves[i]
    return out
