"""Federated transfer learning (Liu, Kang, Xing, Chen, Yang, "A Secure Federated Transfer Learning
Framework", IEEE Intelligent Systems 2020, arXiv 1812.03337), without its encryption.

Labels are at one side and few people are shared. Both sides embed their people into one space; what
the active party's labels mean there, Φ, is made of all its labelled people, shared or not, and a
person is named by where a partner's embedding lies::

    active                                         passive k
      │ ── begin(held-out rows, settings) ──────────► │   builds f_k, scales its columns
      │ ◄───────────────────────── width of u_k ───── │
      │ for every batch of shared people:             │
      │ ── forward(rows) ───────────────────────────► │
      │ ◄──────────────────────────────── u_k ─────── │   Φ from own labelled people
      │ ── backward(∂L/∂u_k) ───────────────────────► │   θ_k ← θ_k − η ∂L/∂θ_k
      │ after every epoch: embed(validation rows), keep or recall the best, checkpoint

The source encrypts what is exchanged, after replacing the logistic loss by a polynomial
(:mod:`secure_transfer <interlace.methods.vertical.secure_transfer>`); here embeddings and gradients
travel as in split learning, under the parties' guards, and the loss is the true one (the plain mode
of its public implementation exchanges as much).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from interlace.errors import DataError, JobError
from interlace.federation import Federation, Rows
from interlace.methods.base import (
    AtLeastZero,
    Count,
    EarlyStopping,
    OnEpoch,
    Share,
    check_is_of_classes,
)
from interlace.methods.objective import ClassWeight, Objective
from interlace.methods.vertical.split import Asked, SplitTraining
from interlace.models import BottomSpec, Optimisation, seed_for
from interlace.party import Party, State

MOST = 1024  # own labelled people that Φ is made of in a step, so that a step's work is bounded


def translate(u: Tensor, y: Tensor, classes: int) -> Tensor:
    """Φ, (classes, d): for each class the mean of t_i u_i, with t_i = 1 for its people and −1 else.

    Args:
        u: (n, d), embeddings of labelled people by the party that knows the labels.
        y: (n,), their classes.
        classes: How many there are.
    """
    signs = 2 * F.one_hot(y, classes).to(u.dtype) - 1
    return signs.T @ u / len(u)


class Translator(nn.Module):
    """Names a person by partners' embeddings: logits Φ · mean_k u_k.

    Args:
        partners: How many embeddings come first; the active party's own, last, is not used.
        classes: How many.
        width: d, of every party's embedding.
    """

    def __init__(self, partners: int, classes: int, width: int) -> None:
        super().__init__()
        self.partners = partners
        self.register_buffer("phi", torch.zeros(classes, width))
        self.phi: Tensor

    def name(self, cuts: Sequence[Tensor], phi: Tensor) -> Tensor:
        """Logits (n, classes) under a given Φ."""
        return torch.stack(list(cuts[: self.partners])).mean(0) @ phi.T

    def forward(self, cuts: list[Tensor]) -> Tensor:
        """Logits (n, classes), from the list of embeddings (n, d)."""
        return self.name(cuts, self.phi)


class FederatedTransfer(SplitTraining):
    """Federated transfer learning: all labels of the active party name people by a partner's view.

    L = CE(Φ · u_k, y) on shared people + ``alignment`` · mean ‖u_active − u_k‖² / d on the same,
    with Φ = mean over the active party's labelled people of ±u_active, recomputed in each step with
    its gradient. Shared people are those whom all parties hold. Scoring reads partners' embeddings
    alone; the active party's columns are needed in training only.

    For classes, not for regression; the active party needs columns, and all embeddings one width.
    Tables and images. Several classes (each against the rest) and several partners (the mean of
    their embeddings) are ours; the source has two of each. It encrypts, and this does not:
    :class:`SecureTransfer` does.

    Args:
        epochs: Most passes over the shared people.
        alignment: Weight of the distance between both sides' embeddings of a shared person.
        batch_size: People in one message; ``None`` takes from 16 to 256 by how many there are.
        bottom: The network each party builds, unless it brings its own.
        optimisation: Learning rate, weight decay and schedule.
        class_weight: ``balanced``, a weight by class number, or ``None``.
        validation: Share of the shared people kept aside to choose the best epoch.
        patience: Stop after that many epochs without a better validation loss; ``None`` never.
    """

    protocol = "transfer"
    top_: Translator

    def __init__(
        self,
        *,
        epochs: Count = 100,
        alignment: AtLeastZero = 0.1,
        batch_size: Count | None = None,
        bottom: BottomSpec = BottomSpec(),
        optimisation: Optimisation = Optimisation(),
        class_weight: ClassWeight = None,
        validation: Share = 0.1,
        patience: Count | None = 10,
    ) -> None:
        self.epochs = epochs
        self.alignment = alignment
        self.batch_size = batch_size
        self.bottom = bottom
        self.optimisation = optimisation
        self.class_weight = class_weight
        self.validation = validation
        self.patience = patience

    def _build_top(self, widths: Sequence[int], outputs: int) -> Translator:
        if len(set(widths)) > 1:
            raise JobError(
                "transfer needs embeddings of one width, since they lie in one space; "
                f"they have {', '.join(map(str, widths))}"
            )
        return Translator(len(widths) - 1, outputs, widths[0])

    def fit(
        self,
        federation: Federation,
        *,
        checkpoint: str | None = None,
        on_epoch: OnEpoch | None = None,
    ) -> Self:
        """Learn from the shared people, and from all labelled ones; see :meth:`Method.fit`."""
        super().fit(federation, checkpoint=checkpoint, on_epoch=on_epoch)
        self._average()
        del self._known
        return self

    def _people(self, federation: Federation) -> Federation:
        """The shared, labelled people; whoever else has a label is kept for Φ.

        Raises:
            JobError: the label is not a class.
            DataError: the active party has no columns to transfer from.
            AlignmentError: too few people are shared.
        """
        check_is_of_classes(federation.label_plan, "transfer names classes")
        check_has_columns(federation.active)
        known = federation.labelled()
        self._known = torch.from_numpy(known.rows), known.y
        return super()._people(federation)

    def _objective(self, fed: Federation) -> Objective:
        """The loss over the classes of all labelled people, shared or not."""
        return Objective.fit(fed.label_plan, self._known[1], self.class_weight)

    def _set_aside(self, aside: Federation) -> None:
        """Who judges has no part in Φ."""
        rows, known = self._known
        others = ~torch.isin(rows, torch.from_numpy(aside.rows))
        self._known = rows[others], known[others]

    def _begin_epoch(self, fed: Federation, epoch: int) -> None:
        seed = seed_for(fed.seed, "labelled", epoch)
        self._draws = np.random.default_rng(seed)

    def _losses(self, fed: Federation, asked: Asked) -> tuple[Tensor, Tensor]:
        """The loss with the parties' distance, and that of naming alone."""
        own, y = asked.batch.own, asked.batch.y
        rows, known = self._known
        if len(rows) > MOST:
            some = torch.from_numpy(self._draws.choice(len(rows), MOST, replace=False))
            rows, known = rows[some], known[some]
        *cuts, mine = self._cuts(asked, torch.cat([own, rows]))
        phi = translate(mine[len(own) :], known, self.objective_.outputs)
        named = self.objective_.loss(self.top_.name(cuts, phi), y)
        apart = torch.stack([F.mse_loss(mine[: len(own)], cut) for cut in cuts]).mean()
        self._stale = True
        return named + self.alignment * apart, named

    def _logits(self, fed: Federation, rows: Rows) -> Tensor:
        self._average()
        return super()._logits(fed, rows)

    def _state(self, stopping: EarlyStopping) -> State:
        self._average()
        return super()._state(stopping)

    def _average(self) -> None:
        """Φ from all labelled people, after steps that changed the own bottom model."""
        if getattr(self, "_stale", False) and self.own_ is not None:
            rows, known = self._known
            phi = translate(self.own_.embed(rows), known, self.objective_.outputs)
            self.top_.phi.copy_(phi)
            self._stale = False


def check_has_columns(active: Party) -> None:
    """Make sure that there is something to transfer from.

    Raises:
        DataError: the active party has no columns.
    """
    if not active.columns:
        raise DataError(
            "the active party has no columns of its own, so there is nothing to transfer from",
            party=active.name,
            way_out="Take the method 'split', which needs none",
        )
