"""Split learning over vertical parties: splitVFL and aggVFL (Liu et al., TKDE 2024, §2).

Every party k embeds a batch with its own bottom model, h_k = f_k(x_k; θ_k). The active party joins
the embeddings, computes the loss with its labels, and returns ∂L/∂h_k to each party, which goes on
through its own model::

    active                                         passive k
      │ ── begin(held-out rows, settings) ──────────► │   builds f_k, scales its columns
      │ ◄───────────────────────── width of h_k ───── │
      │ for every batch:                              │
      │ ── forward(rows) ───────────────────────────► │
      │ ◄──────────────────────────────── h_k ─────── │
      │ ── backward(∂L/∂h_k) ───────────────────────► │   θ_k ← θ_k − η ∂L/∂θ_k
      │ after every epoch: embed(validation rows), keep or recall the best, checkpoint

Nobody waits for a backward: it travels with the next forward, which the passive party answers once
it has learnt. So a batch costs one round trip, and the model is that of two.

splitVFL trains a top model on the joined embeddings; aggVFL adds the parties' outputs up and has
no top model. When the active party has no columns of its own they are the _c variants.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from interlace.boundary.kinds import Embedding, Gradient, RowSelection
from interlace.errors import JobError
from interlace.federation import Federation
from interlace.methods.base import Count, Share, Widths
from interlace.methods.bottom import BottomSide
from interlace.methods.objective import ClassWeight, Margin, Objective
from interlace.methods.vertical.joint import Joined, JointTraining
from interlace.models import BottomSpec, Optimisation, mlp
from interlace.party import operation


class SplitSide(BottomSide):
    """What a passive party answers in split learning."""

    @operation
    def forward(self, rows: RowSelection) -> Embedding:
        """Embeddings of a batch, in training."""
        mine = self.mine(rows)
        self.party.boundary.about(mine)
        return self.bottom.forward(mine)

    @operation
    def backward(self, gradient: Gradient) -> None:
        """Learn from the gradient at the cut, for the batch embedded last."""
        self.bottom.backward(gradient)


class _Split(JointTraining):
    """What splitVFL and aggVFL share: everything but how embeddings become a prediction."""

    side = SplitSide
    protocol = "split"

    def _step(
        self, fed: Federation, positions: dict[str, Tensor], own: Tensor, y: Tensor
    ) -> Tensor:
        """One batch: embeddings in, gradients out. Returns the mean loss."""
        boundary = fed.active.boundary
        boundary.round += 1
        asked = {
            name: peer.start(SplitSide.forward, positions[name])
            for name, peer in self.peers_.items()
        }
        mine = [] if self.own_ is None else [self.own_.forward(own)]
        cuts = [
            self._expect(name, answer(), len(y)).detach().requires_grad_()
            for name, answer in asked.items()
        ] + mine
        if not self.top_.training:
            self.top_.train()
        with self.randomness_.stream():
            loss = self.objective_.loss(self.top_(cuts), y)
        optimisers = self._optimisers()
        for optimiser in optimisers:
            optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        for (name, peer), cut in zip(self.peers_.items(), cuts, strict=False):
            assert cut.grad is not None
            boundary.about(positions[name])
            peer.post(SplitSide.backward, cut.grad)
        for optimiser in optimisers:
            optimiser.step()
        return loss.detach()


class SplitVFL(_Split):
    """splitVFL: a trained top model over the parties' joined embeddings.

    Works for two to many parties; binary, multi-class, multi-label and regression; tables and
    images; with columns at the active party or, as splitVFL_c, without.

    Args:
        epochs: Most passes over the shared people.
        batch_size: People in one message; ``None`` takes from 16 to 256 by how many there are.
        bottom: The network each party builds, unless it brings its own.
        top: Widths of the top model's hidden layers, or an own module from (n, Σd_k) to logits.
        dropout: Share of the top model's hidden units left out in training.
        optimisation: Learning rate, weight decay and schedule.
        class_weight: ``balanced``, a weight by class as in the label column, or ``None``.
        validation: Share of the training people kept aside to choose the best epoch.
        patience: Stop after that many epochs without a better validation loss; ``None`` never.

    Source: Liu et al., "Vertical Federated Learning: Concepts, Advances and Challenges",
    arXiv 2211.12814, §2 and algorithm 1.
    """

    def __init__(
        self,
        *,
        epochs: Count = 100,
        batch_size: Count | None = None,
        bottom: BottomSpec = BottomSpec(),
        top: Widths | nn.Module = (64,),
        dropout: Share = 0.0,
        optimisation: Optimisation = Optimisation(),
        class_weight: ClassWeight = None,
        validation: Share = 0.1,
        patience: Count | None = 10,
    ) -> None:
        self.epochs = epochs
        self.batch_size = batch_size
        self.bottom = bottom
        self.top = top
        self.dropout = dropout
        self.optimisation = optimisation
        self.class_weight = class_weight
        self.validation = validation
        self.patience = patience

    def _build_top(self, widths: Sequence[int], outputs: int) -> nn.Module:
        if isinstance(self.top, nn.Module):
            return Joined(copy.deepcopy(self.top))
        return Joined(mlp(sum(widths), self.top, outputs, self.dropout))


class AggVFL(_Split):
    """aggVFL: the parties' outputs are added up, without a trained top model.

    The active party sees each party's contribution to the logits; a passive party's gradient at
    the cut is ∂L/∂logits itself, which names the label: guard it, or take splitVFL.

    Args: as for :class:`SplitVFL`; the width of every bottom model is the number of logits. And:
        loss: ``hinge`` or ``squared_hinge`` make it a support vector machine, linear with
            ``bottom: {network: linear}`` or with the kernel of ``{network: fourier}``;
            ``optimisation: {weight_decay: ...}`` is its penalty. ``None`` takes the task's own.

    Source: Liu et al., arXiv 2211.12814, §2.1 (aggVFL).
    """

    def __init__(
        self,
        *,
        epochs: Count = 100,
        batch_size: Count | None = None,
        bottom: BottomSpec = BottomSpec(),
        optimisation: Optimisation = Optimisation(),
        class_weight: ClassWeight = None,
        loss: Margin | None = None,
        validation: Share = 0.1,
        patience: Count | None = 10,
    ) -> None:
        self.epochs = epochs
        self.batch_size = batch_size
        self.bottom = bottom
        self.optimisation = optimisation
        self.class_weight = class_weight
        self.loss = loss
        self.validation = validation
        self.patience = patience

    def _objective(self, fed: Federation) -> Objective:
        objective = super()._objective(fed)
        if self.loss is not None and objective.task == "regression":
            raise JobError(f"the loss '{self.loss}' is for classes and labels, not for a quantity")
        return replace(objective, margin=self.loss)

    def _build_top(self, widths: Sequence[int], outputs: int) -> nn.Module:
        return _Summed()

    def _bottom_spec(self, outputs: int) -> BottomSpec:
        return self.bottom.model_copy(update={"width": outputs})


class _Summed(nn.Module):
    """The sum h_1 + … + h_K."""

    def forward(self, cuts: list[Tensor]) -> Tensor:
        return torch.stack(cuts).sum(0)
