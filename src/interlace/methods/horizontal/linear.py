"""Linear and logistic regression, to the pooled table's own solution, by Newton's method.

Gradients and Hessians of these losses are sums over rows, so what the clients add up is what the
pooled table would give, and a handful of rounds end at the same weights::

    server                                each client k
      │ ── step(w) ───────────────────────► │
      │ ◄─── Hessian, gradient and loss ──── │   summed over its rows
      │ w ← w − (Σ H_k + penalty)⁻¹ (Σ g_k + penalty)

The Hessian of a linear regression is XᵀX: over no more rows than columns the rows could be solved
for, so such a client refuses. With secure aggregation only sums over all clients are seen.
"""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from interlace.boundary.kinds import Ciphertext, Gradient, ModelWeights, RowSelection
from interlace.data.spec import InputSpec
from interlace.errors import DataError, JobError, Refused
from interlace.federation import Federation
from interlace.methods.base import Clock, OnEpoch
from interlace.methods.horizontal.drift import Round
from interlace.methods.horizontal.method import HorizontalMethod
from interlace.methods.horizontal.side import Agreement, HorizontalSide
from interlace.party import operation

MOST_WEIGHTS = 5000  # the Hessian has the square of it


def design(x: Tensor, spec: InputSpec) -> Tensor:
    """Rows as a linear model reads them: numbers, a column for each level, and 1; float64."""
    parts = [x[:, : spec.numeric].double()]
    for j, levels in enumerate(spec.cardinalities):
        codes = x[:, spec.numeric + j].long()
        parts.append(torch.nn.functional.one_hot(codes, levels).double())
    return torch.cat([*parts, torch.ones(len(x), 1, dtype=torch.float64)], 1)


class LinearSide(HorizontalSide):
    """What a client answers in a linear or logistic regression."""

    @operation
    def step(self, weights: ModelWeights) -> Gradient:
        """Hessian H, gradient g and loss l at w, as [[H, g], [gᵀ, l]]; float64 (q + 1, q + 1).

        ``weights`` are float64 of shape (scores, columns + 1) with q numbers.
        """
        return self.sums_at(weights)

    @operation
    def step_masked(self, cohort: RowSelection, weights: ModelWeights) -> Ciphertext:
        """The same under masks."""
        summed = self.sums_at(weights).flatten()
        return self.masks.mask(summed, 1.0, cohort, self.party.boundary.round)

    def sums_at(self, weights: Tensor) -> Tensor:
        """Hessian, gradient and loss over this client's rows."""
        rows = self.parts["train"]
        x = design(self.x.index_select(0, rows), self.plan.spec)
        y, q = self.y.index_select(0, rows), weights.numel()
        if weights.shape[1:] != x.shape[1:]:
            raise Refused(f"weights for {x.shape[1]} columns were due")
        if len(x) <= x.shape[1]:
            raise DataError(
                f"it has {len(x):,} rows for {x.shape[1]:,} weights a score, so its sums of "
                "squares would tell its rows",
                party=self.party.name,
                way_out="Use federated averaging with a linear network, or fewer columns",
            )
        score = x @ weights.T
        if self.objective.task == "regression":
            error = score[:, 0] - (y.double() - self.objective.centre) / self.objective.scale
            hessian, gradient, loss = x.T @ x, x.T @ error, 0.5 * error.square().sum()
        elif len(weights) == 1:
            p = score[:, 0].sigmoid()
            hessian, gradient = x.T @ (x * (p * (1 - p))[:, None]), x.T @ (p - y)
            loss = torch.nn.functional.binary_cross_entropy_with_logits(
                score[:, 0], y.double(), reduction="sum"
            )
        else:
            p, c = score.softmax(1), len(weights)
            error = p - torch.nn.functional.one_hot(y, c)
            blocks = torch.zeros(c, x.shape[1], c, x.shape[1], dtype=torch.float64)
            for a in range(c):
                for b in range(a + 1):
                    curve = p[:, a] * (float(a == b) - p[:, b])
                    blocks[a, :, b] = blocks[b, :, a] = x.T @ (x * curve[:, None])
            hessian, gradient = blocks.reshape(q, q), (error.T @ x).flatten()
            loss = torch.nn.functional.cross_entropy(score, y, reduction="sum")
        out = torch.empty(q + 1, q + 1, dtype=torch.float64)
        out[:q, :q], out[:q, q], out[q, :q], out[q, q] = hessian, gradient, gradient, loss
        return out

    def logits(self, weights: Tensor, x: Tensor) -> Tensor:
        """What the model says of some rows; (n, outputs)."""
        return logits_of(weights, x, self.plan.spec, self.objective.outputs)


def logits_of(weights: Tensor, x: Tensor, spec: InputSpec, outputs: int) -> Tensor:
    """Logits of shape (n, outputs), float32; one score stands against nought."""
    found = (design(x, spec) @ weights.T).float()
    if outputs == 2 and len(weights) == 1:
        return torch.cat([torch.zeros_like(found), found], 1)
    return found


class HorizontalLinear(HorizontalMethod):
    """Linear, logistic or multinomial regression over horizontal parties, as if pooled.

    Minimises the mean loss (half the squared error of the standardised target, or the log loss)
    plus ``l2``/2 ‖w‖², the intercept left free.

    Args:
        l2: Penalty.
        rounds: Most rounds.
        tolerance: Stop when no weight moves by more (or the loss by a billionth).
        secure: Aggregate securely; the server sees sums only.
        agreement: What the parties agree on about their tables.

    After :meth:`fit`: ``weights_``, float64 of shape (scores, columns + 1), the intercept last;
    columns as ``plan_.spec`` names them, categories as one column a code.
    """

    side = LinearSide
    protocol = "linear"

    def __init__(
        self,
        *,
        l2: float = 1e-3,
        rounds: int = 25,
        tolerance: float = 1e-6,
        secure: bool = False,
        agreement: Agreement = Agreement(validation=0.0),
    ) -> None:
        self.l2 = l2
        self.rounds = rounds
        self.tolerance = tolerance
        self.secure = secure
        self.agreement = agreement

    def fit(
        self,
        federation: Federation,
        *,
        checkpoint: str | None = None,
        on_epoch: OnEpoch | None = None,
    ) -> Self:
        """Learn from all clients' labelled rows.

        A fit takes a few rounds, so it keeps no checkpoint.

        Raises:
            DataError: the parties' columns or labels differ, or a client has too few rows.
        """
        if self.l2 < 0:
            raise JobError("`l2` is at least 0")
        self._meet(federation)
        spec = self.plan_.spec
        if spec.image:
            raise JobError("a linear model of images takes FedAvg with a linear network")
        width = spec.numeric + sum(spec.cardinalities) + 1
        count = self.objective_.outputs if self.objective_.outputs > 2 else 1
        if count * width > MOST_WEIGHTS:
            raise JobError(
                f"{count * width:,} weights are too many for Newton's method; "
                "use FedAvg with a linear network"
            )
        rows = sum(self.meeting_.supplied().values())
        self.weights_ = torch.zeros(count, width, dtype=torch.float64)
        free = torch.ones(count, width, dtype=torch.float64)
        free[:, -1] = 0.0
        penalty = self.l2 * free.flatten()
        before, direction, q, clock = float("inf"), torch.empty(0), count * width, Clock()
        for number in range(1, self.rounds + 1):
            shape = (q + 1, q + 1)
            total = self._added_up(LinearSide.step, LinearSide.step_masked, shape, self.weights_)
            total /= rows
            w = self.weights_.flatten()
            loss = float(total[q, q] + 0.5 * (penalty * w.square()).sum())
            slack = 1e-9 * abs(before) if number > 1 else 0.0
            settled = abs(before - loss) <= slack
            if loss > before + slack:  # overshot: half the step
                direction = direction / 2
                self.weights_ = self.weights_ + direction.view_as(self.weights_)
            else:
                before = loss
                hessian = total[:q, :q] + torch.diag(penalty)
                slope = total[:q, q] + penalty * w
                direction = torch.linalg.pinv(hessian, hermitian=True) @ slope
                self.weights_ = self.weights_ - direction.view_as(self.weights_)
            record = Round(number, loss, None, clock.lap(), len(self.meeting_.supplied()))
            self.history_.append(record)
            if on_epoch:
                on_epoch(record)
            if settled or float(direction.abs().max()) <= self.tolerance:
                break
        self._finish()
        return self

    def _logits(self, x: Tensor) -> Tensor:
        return logits_of(self.weights_, x, self.plan_.spec, self.objective_.outputs)
