"""Bottom models that first learn from their own party's rows, without a label or a message.

What FedOnce, SS-VFL and APC-VFL share: a party invents itself an exercise over its own rows
(:class:`Pretraining`), aligned or not, and its embeddings then travel once (:class:`SentOnce`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar, Self

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from interlace.boundary.kinds import Control, RowSelection
from interlace.errors import AlignmentError
from interlace.federation import Federation, Rows
from interlace.methods.base import (
    Clock,
    EarlyStopping,
    Epoch,
    OnEpoch,
    Passes,
    Several,
    batches,
    keep_aside,
    shuffled,
    usual_batch,
)
from interlace.methods.bottom import Bottom, BottomSide
from interlace.methods.vertical.joint import CHUNK, JointModel
from interlace.models import Optimisation, mlp, seed_for, seeded, set_rate
from interlace.party import Peer, State, operation


class Exercise(nn.Module, ABC):
    """A loss over a party's own rows, with whatever layers it needs besides the bottom model.

    Args:
        network: The bottom model.
        x: The rows to learn from, as the network reads them.
    """

    def __init__(self, network: nn.Module, x: Tensor) -> None:
        super().__init__()
        self.network, self.x = network, x

    @abstractmethod
    def loss(self, some: Tensor, epoch: int) -> Tensor:
        """The mean loss of some rows: positions (b,) among those to learn from."""

    def stepped(self) -> None:
        """What there is to do after a step of the optimiser."""


class Pretraining(BaseModel, ABC):
    """How a party trains its bottom model alone.

    Args:
        epochs: Passes over the party's rows.
        batch_size: Rows in a step.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    epochs: Passes = 100
    batch_size: Several = 100

    @abstractmethod
    def exercise(self, bottom: Bottom, rows: Tensor, draws: torch.Generator) -> Exercise:
        """The exercise over ``rows`` of the party's table; ``draws`` gives all random numbers."""

    def learn(self, bottom: Bottom, rows: Tensor) -> None:
        """Train the bottom model on rows of the party's table."""
        self.practise(
            lambda draws: self.exercise(bottom, rows, draws),
            len(rows),
            bottom.settings.optimisation,
            seed_for(bottom.party.secret, "alone", type(self).__name__, bottom.party.name),
            bottom.randomness.stream,
        )

    def practise(
        self,
        make: Callable[[torch.Generator], Exercise],
        rows: int,
        optimisation: Optimisation,
        seed: int,
        stream: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Train the network of an exercise over so many rows; its other layers are dropped."""
        draws = torch.Generator().manual_seed(seed)
        exercise = seeded(lambda: make(draws), seed)
        assert isinstance(exercise, Exercise)
        optimiser = optimisation.optimiser(exercise)
        if optimiser is None:
            return
        exercise.train()
        for epoch in range(self.epochs):
            set_rate(optimiser, optimisation.rate(epoch, self.epochs))
            order = torch.randperm(rows, generator=draws)
            for batch in batches(rows, self.batch_size):
                with stream():
                    loss = exercise.loss(order[batch], epoch)
                optimiser.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
                exercise.stepped()


class PretrainedSide(BottomSide):
    """What a passive party answers when its bottom model learns alone before anybody asks it."""

    pretraining: ClassVar[type[Pretraining]]

    @operation
    def begin(self, held_out: RowSelection, settings: Control) -> Control:
        """Build the bottom model; nothing at all is learnt from ``held_out`` people."""
        learn_from = np.setdiff1d(np.arange(len(self.party)), self.mine(held_out).numpy())
        self.rows = torch.from_numpy(learn_from)
        return super().begin(held_out, settings)

    @operation
    def pretrain(self, settings: Control) -> None:
        """Train the bottom model on all rows but the held-out ones, without a label."""
        self.pretraining.model_validate(settings).learn(self.bottom, self.rows)


class OnViews(JointModel):
    """A top model over embeddings that stay as they are and, it may be, an own bottom model that
    learns with it."""

    epochs: int
    batch_size: int | None
    top: Sequence[int]
    dropout: float
    validation: float
    patience: int | None

    def _build_top(self, widths: Sequence[int], outputs: int) -> nn.Module:
        return Standardised(widths, mlp(sum(widths), self.top, outputs, self.dropout))

    def _loss(self, logits: Tensor, y: Tensor, rows: Tensor) -> Tensor:
        """The mean loss of some people; ``rows`` are theirs at the active party."""
        return self.objective_.loss(logits, y)

    def _fit_top(
        self,
        fed: Federation,
        views: Sequence[Tensor],
        learner: Bottom | None,
        on_epoch: OnEpoch | None,
    ) -> None:
        """Fit the top model, and ``learner`` with it, and leave both at their best epoch.

        Args:
            fed: The view that is trained on, n labelled people.
            views: Embeddings (n, d_k), rows of NaN where a view is missing.
            learner: The active party's own bottom model, whose embeddings come last.
            on_epoch: Called after every epoch.
        """
        y, rows = fed.y, torch.from_numpy(fed.rows)
        strata = y if self.objective_.task in ("binary", "multiclass") else None
        train, aside = keep_aside(len(y), self.validation, fed.seed, strata)
        assert isinstance(self.top_, Standardised)
        self.top_.scale([view[train] for view in views])
        size = self.batch_size or usual_batch(len(train))
        own = learner.optimiser if learner is not None else None
        optimisers = [o for o in (own, self.optimiser_) if o is not None]
        stopping, clock = EarlyStopping(self.patience), Clock()
        for epoch in range(self.epochs):
            for optimiser in optimisers:
                set_rate(optimiser, self.optimisation.rate(epoch, self.epochs))
            self.top_.train()
            order = train[shuffled(len(train), fed.seed, epoch)]
            total = torch.zeros(())
            for batch in batches(len(order), size):
                some = order[batch]
                cuts = [view[some] for view in views]
                if learner is not None:
                    cuts.append(learner.forward(rows[some]))
                with self.randomness_.stream():
                    loss = self._loss(self.top_(cuts), y[some], rows[some])
                for optimiser in optimisers:
                    optimiser.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                for optimiser in optimisers:
                    optimiser.step()
                total += loss.detach() * len(some)
            validation = None
            if len(aside):
                cuts = [view[aside] for view in views]
                if learner is not None:
                    cuts.append(learner.embed(rows[aside]))
                self.top_.eval()
                with torch.no_grad():
                    validation = self.objective_.loss(self.top_(cuts), y[aside]).item()
                if stopping.better(epoch, validation):
                    self.best_top_ = {k: v.clone() for k, v in self.top_.state_dict().items()}
                    if learner is not None:
                        learner.keep()
            record = Epoch(epoch + 1, total.item() / len(train), validation, clock.lap())
            self.history_.append(record)
            if on_epoch:
                on_epoch(record)
            if len(aside) and stopping.over(epoch):
                break
        if self.best_top_ is not None:
            self.top_.load_state_dict(self.best_top_)
            if learner is not None:
                learner.recall()


class SentOnce(OnViews):
    """Every party learns alone, its embeddings travel once, and a top model is fitted on them.

    Learns from every labelled person whom at least one partner holds. A view that nobody has of a
    person enters the top model as that party's mean embedding (which is ours, as the sources
    suppose that all parties hold everybody); people whom no partner holds are neither learnt from
    nor scored.
    """

    side: ClassVar[type[PretrainedSide]]
    scores_some = True
    own_learns: ClassVar[bool] = True  # with the top and its labels; else alone, as the partners do

    @abstractmethod
    def _pretraining(self) -> Pretraining:
        """How the parties learn alone."""

    def fit(
        self,
        federation: Federation,
        *,
        checkpoint: str | None = None,
        on_epoch: OnEpoch | None = None,
    ) -> Self:
        """Learn from a view's labelled people and from all rows of each party.

        ``history_`` and ``on_epoch`` are about the top model. One checkpoint is kept, when the
        embeddings have come; a resumed fit sends none again. See :meth:`Method.fit`.
        """
        fed = known_to_partners(federation)
        self._start(fed)
        done = self._resume(fed, checkpoint, EarlyStopping(None)) if checkpoint else 0
        if not done:
            own = None if self.own_learns else self.own_
            learn_alone(fed, self.peers_, own, self._pretraining())
            fed.active.boundary.round += 1
            self.received_ = self._theirs(fed, fed.rows, self.peers_)
            if checkpoint:
                self._checkpoint(fed, checkpoint, 1, EarlyStopping(None))
        views = self.received_
        del self.received_  # a saved model needs no training embeddings
        learner = self.own_ if self.own_learns else None
        if self.own_ is not None and learner is None:
            views = [*views, self.own_.embed(torch.from_numpy(fed.rows))]
        self._fit_top(fed, views, learner, on_epoch)
        return self

    def _logits(self, fed: Federation, rows: Rows) -> Tensor:
        alone = int((~fed.alignment.holders[rows].any(1)).sum())
        if alone:
            raise AlignmentError(
                f"{alone:,} of {len(rows):,} people are held by no partner; "
                "score them with `WithFallback`, or a method that needs no partner"
            )
        out = []
        self.top_.eval()
        for start in range(0, len(rows), CHUNK):
            chunk = rows[start : start + CHUNK]
            views = self._views(fed, chunk)
            with torch.no_grad():
                out.append(self.top_(views))
        return torch.cat(out)

    # -- keeping ------------------------------------------------------------------------------

    def _state(self, stopping: EarlyStopping) -> State:
        state = super()._state(stopping)
        views = getattr(self, "received_", ())
        state.put("received", {str(k): view for k, view in enumerate(views)})
        return state

    def _take(self, state: State) -> None:
        super()._take(state)
        received = state.part("received").tensors
        if received:
            self.received_ = [received[str(k)] for k in range(len(received))]


class Standardised(nn.Module):
    """A top model over embeddings side by side, each column scaled by what it was in training.

    A missing view is a row of NaN, and becomes the mean.
    """

    def __init__(self, widths: Sequence[int], top: nn.Module) -> None:
        super().__init__()
        self.top = top
        self.register_buffer("mean", torch.zeros(sum(widths)))
        self.register_buffer("spread", torch.ones(sum(widths)))
        self.mean: Tensor
        self.spread: Tensor

    def scale(self, views: list[Tensor]) -> None:
        """Learn the scale of the first views; those after them stay as they come."""
        if views:
            mean, spread = scale_of(torch.cat(views, 1))
            self.mean[: len(mean)], self.spread[: len(mean)] = mean, spread

    def forward(self, views: list[Tensor]) -> Tensor:
        """From a list of (n, d_k) to (n, outputs)."""
        h = (torch.cat(views, 1) - self.mean) / self.spread
        out: Tensor = self.top(torch.where(h.isnan(), torch.zeros(()), h))
        return out


def scale_of(h: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each column (n, d), whose gaps are NaN."""
    held = (~h.isnan()).sum(0).clamp_min(1)
    mean = h.nansum(0) / held
    return mean, ((h - mean).square().nansum(0) / held).sqrt().clamp_min(1e-6)


def known_to_partners(federation: Federation) -> Federation:
    """The labelled people of a view whom at least one partner holds.

    Raises:
        AlignmentError: there are fewer than two.
    """
    people = federation.labelled()
    people = people.view(people.rows[federation.alignment.holders[people.rows].any(1)])
    if len(people.rows) < 2:
        raise AlignmentError(
            f"{len(people.rows)} people have a label and are held by a partner; "
            "at least two are needed to learn from"
        )
    return people


def learn_alone(
    fed: Federation, peers: Mapping[str, Peer], own: Bottom | None, pretraining: Pretraining
) -> None:
    """Have every partner train its bottom model on its own rows, and train ``own`` likewise."""
    told = pretraining.model_dump(mode="json")
    learning = [peer.start(PretrainedSide.pretrain, told) for peer in peers.values()]
    if own is not None:
        pretraining.learn(own, to_learn_from(fed))
    for done in learning:
        done()


def to_learn_from(fed: Federation) -> Tensor:
    """Rows of the active party's table, all but the held-out ones."""
    return torch.from_numpy(np.setdiff1d(np.arange(len(fed.active)), fed.held_out))
