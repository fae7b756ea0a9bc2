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
it has learnt. So a batch costs one round trip, in which the active party's own networks learn too,
and the model is that of two.

splitVFL trains a top model on the joined embeddings; aggVFL adds the parties' outputs up and has
no top model. When the active party has no columns of its own they are the _c variants.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn

from interlace.boundary.kinds import Embedding, Gradient, RowSelection
from interlace.errors import AlignmentError, JobError
from interlace.federation import Federation
from interlace.methods.base import (
    Count,
    OnEpoch,
    Share,
    Widths,
    batches,
    keep_aside,
    shuffled,
    usual_batch,
)
from interlace.methods.bottom import BottomSide
from interlace.methods.objective import ClassWeight, Margin, Objective
from interlace.methods.vertical.joint import Joined, JointModel
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


class Batch(NamedTuple):
    """One batch: where its people stand in the order shared with each partner, their rows at the
    active party, and their labels."""

    positions: dict[str, Tensor]
    own: Tensor
    y: Tensor


@dataclass
class Asked:
    """A batch whose embeddings partners have been asked for.

    Attributes:
        batch: Which.
        positions: Whose, of each partner.
        answers: What waits for them.
        cuts: The partners' embeddings, once they have come: leaves, at which gradients gather.
        own: The active party's, likewise.
    """

    batch: Batch
    positions: dict[str, Tensor]
    answers: dict[str, Callable[[], Tensor]]
    cuts: dict[str, Tensor] = field(init=False, default_factory=dict)
    own: Tensor | None = field(init=False, default=None)


class SplitTraining(JointModel):
    """A joint model that is trained by split learning, batch by batch.

    A method says what it asks for a batch (:meth:`_ask`) and what the loss of it is
    (:meth:`_losses`).
    """

    side = SplitSide
    batch_size: int | None
    validation: float

    def _people(self, federation: Federation) -> Federation:
        """Whom the method learns from.

        Raises:
            AlignmentError: fewer than two people are shared by all parties and have a label.
        """
        people = federation.shared().labelled()
        if len(people.rows) < 2:
            raise AlignmentError(
                f"{len(people.rows)} people are held by all parties and have a label; "
                "at least two are needed to learn from"
            )
        return people

    def _begin_epoch(self, fed: Federation, epoch: int) -> None:
        """What there is to do before the batches of an epoch (counted from 0)."""

    def _ask(self, fed: Federation, batch: Batch) -> Asked:
        """Ask partners for the embeddings of a batch."""
        return Asked(batch, batch.positions, self._start_forward(fed, batch.positions))

    @abstractmethod
    def _losses(self, fed: Federation, asked: Asked) -> tuple[Tensor, Tensor]:
        """The loss of a batch, to learn from and to report (often the same), means over people."""

    def _start_forward(
        self, fed: Federation, positions: dict[str, Tensor]
    ) -> dict[str, Callable[[], Tensor]]:
        """Have partners embed a batch, a round of its own; gives what waits for them."""
        fed.active.boundary.round += 1
        return {
            name: self.peers_[name].start(SplitSide.forward, rows)
            for name, rows in positions.items()
        }

    def _cuts(self, asked: Asked, own: Tensor) -> list[Tensor]:
        """The embeddings that partners were asked for, and the active party's last, if it has
        columns, of these rows of its own."""
        if self.own_ is not None:
            asked.own = self.own_.forward(own).detach().requires_grad_()
        asked.cuts = {
            name: self._expect(name, answer(), len(asked.positions[name])).detach().requires_grad_()
            for name, answer in asked.answers.items()
        }
        return [*asked.cuts.values()] + ([] if asked.own is None else [asked.own])

    def _learn(self, fed: Federation, batches: Iterable[Batch]) -> Tensor:
        """Learn from batches, one after the other. Returns the sum of the people's losses.

        While the active party's bottom model learns from a batch its partners' do so as well, and
        embed the next.
        """
        total = torch.zeros(())
        ahead = (self._ask(fed, batch) for batch in batches)
        asked = next(ahead, None)
        while asked is not None:
            loss, reported = self._losses(fed, asked)
            if self.optimiser_ is not None:
                self.optimiser_.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            for name, cut in asked.cuts.items():
                assert cut.grad is not None
                fed.active.boundary.about(asked.positions[name])
                self.peers_[name].post(SplitSide.backward, cut.grad)
            total += reported.detach() * len(asked.batch.y)
            own, asked = asked.own, next(ahead, None)
            if self.own_ is not None and own is not None and own.grad is not None:
                self.own_.backward(own.grad)
            if self.optimiser_ is not None:
                self.optimiser_.step()
        return total

    def fit(
        self,
        federation: Federation,
        *,
        checkpoint: str | None = None,
        on_epoch: OnEpoch | None = None,
    ) -> Self:
        """Learn from the shared, labelled people of a view; see :meth:`Method.fit`."""
        fed = self._people(federation)
        self._start(fed)
        y = fed.y
        strata = y if self.objective_.task in ("binary", "multiclass") else None
        train, aside = keep_aside(len(y), self.validation, fed.seed, strata)
        y, rows = y[train], fed.rows[train.numpy()]
        where = {name: fed.positions(name, rows) for name in self.peers_}
        own = torch.from_numpy(rows)
        size = self.batch_size or usual_batch(len(train))

        def drawn(epoch: int) -> Iterator[Batch]:
            order = shuffled(len(train), fed.seed, epoch)
            for some in (order[batch] for batch in batches(len(train), size)):
                yield Batch({name: p[some] for name, p in where.items()}, own[some], y[some])

        def learn(epoch: int) -> float:
            self._begin_epoch(fed, epoch)
            return self._learn(fed, drawn(epoch)).item() / len(train)

        self._in_epochs(fed, learn, fed.view(fed.rows[aside.numpy()]), checkpoint, on_epoch)
        return self


class _Split(SplitTraining):
    """What splitVFL and aggVFL share: everything but how embeddings become a prediction."""

    protocol = "split"

    def _losses(self, fed: Federation, asked: Asked) -> tuple[Tensor, Tensor]:
        cuts = self._cuts(asked, asked.batch.own)
        if not self.top_.training:
            self.top_.train()
        with self.randomness_.stream():
            loss = self.objective_.loss(self.top_(cuts), asked.batch.y)
        return loss, loss


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
