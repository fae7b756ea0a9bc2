"""One-shot and few-shot VFL (Sun et al., "Communication-Efficient Vertical Federated Learning with
Limited Overlapping Samples", ICCV 2023, arXiv 2303.16270).

The label side differentiates its loss once, at an untrained head, and every client learns the rest
at home: gradients of one class nearly coincide, so clusters of them are the classes up to a
permutation, and with these temporary labels a client trains its bottom model on the overlap and on
its unaligned rows, semi-supervised::

    active                                            passive k
      │ ── begin(held-out rows, settings) ───────────► │   builds f_k, scales its columns
      │ ── represent(overlap rows, unlabelled ones) ─► │
      │ ◄──────────────────────────────── H_o^k ────── │   upload 1
      │ ── learn(∂L/∂H_o^k, number of classes) ──────► │   download 1: clusters → labels, then
      │                                                │   E_c epochs on X_o^k and X_u^k
      │ ── embed(overlap rows [, others]) ───────────► │
      │ ◄─────────────────────── H_o^k [, H_u^k] ───── │   upload 2; the head is fitted
      │                                                │
      │ few-shot VFL goes on:                          │
      │ ── refine(keep-probabilities of others) ─────► │   download 2: draws rows, goes on learning
      │ ◄────────────────────── positions drawn ────── │
      │ ── embed(overlap rows, drawn rows) ──────────► │
      │ ◄────────────────────── H_o^k, H_uc^k ──────── │   upload 3; the head is fitted anew

The active party's own columns, if it has any, are one more client: it has labels already, and
needs no message.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from interlace.boundary.kinds import (
    ClassCount,
    Control,
    Embedding,
    Gradient,
    KeepProbability,
    RowSelection,
)
from interlace.errors import AlignmentError, Refused
from interlace.federation import Federation, Rows
from interlace.methods.base import (
    Clock,
    Count,
    EarlyStopping,
    Epoch,
    OnEpoch,
    Part,
    Passes,
    Share,
    Widths,
    batches,
    check_is_of_classes,
    keep_aside,
    shuffled,
    usual_batch,
)
from interlace.methods.bottom import BottomSide, WholeTableSide
from interlace.methods.clustering import NOISE, Clustering, cluster
from interlace.methods.kept import Kept, kept_from, kept_state
from interlace.methods.objective import ClassWeight
from interlace.methods.semi_supervised import (
    AnySemiSupervised,
    FixMatch,
    LocalLearner,
    LocalSettings,
)
from interlace.methods.vertical.joint import CHUNK, Joined, JointModel
from interlace.methods.vertical.missing import complete
from interlace.models import (
    BottomSpec,
    Optimisation,
    Randomness,
    mlp,
    seed_for,
    seeded,
    set_rate,
)
from interlace.party import State, operation

Agreement = Literal["hard", "soft"]


class OneShotSide(BottomSide):
    """What a passive party answers in one-shot VFL."""

    learner: LocalLearner

    @operation
    def represent(self, rows: RowSelection, unlabelled: RowSelection) -> Embedding:
        """H_o by the model as it is; the gradients that come next are about these people.

        ``unlabelled`` are shared people who have no label: to learn from as from unaligned rows.
        """
        self.overlap, self.unlabelled = self.mine(rows), self.mine(unlabelled)
        self.party.boundary.about(self.overlap)
        return self.bottom.embed(self.overlap)

    @operation
    def learn(self, gradient: Gradient, classes: ClassCount, settings: Control) -> None:
        """Cluster the gradients into temporary labels, and learn from them and the other rows."""
        if tuple(gradient.shape) != (len(self.overlap), self.bottom.width) or classes.dim():
            raise Refused(
                f"gradients of shape {tuple(gradient.shape)} came, "
                f"{(len(self.overlap), self.bottom.width)} were due, with one number of classes"
            )
        local = LocalSettings.model_validate(settings)
        seed = seed_for(self.party.secret, "clusters")
        self.labels = cluster(gradient, int(classes), local.clustering, seed)
        self.learner = LocalLearner(self.bottom, local, int(self.labels.max()) + 1)
        self._learn(local.epochs)

    def _learn(self, epochs: int, more: tuple[Tensor, Tensor] | None = None) -> None:
        """Some epochs more; rows that no cluster took count among those without a label."""
        taken = self.labels != NOISE
        without = torch.cat([self.unlabelled, self._unaligned, self.overlap[~taken]])
        self.learner.learn(self.overlap[taken], self.labels[taken], without, epochs, more)

    def _training(self) -> State:
        state = super()._training()
        state.put("learner", *self.learner.state())
        people = {"overlap": self.overlap, "labels": self.labels, "unlabelled": self.unlabelled}
        return State(state.tensors | people, state.meta)

    def _go_on(self, state: State) -> None:
        super()._go_on(state)
        self.learner = LocalLearner.from_state(self.bottom, state.part("learner"))
        self.overlap, self.labels = state.tensors["overlap"], state.tensors["labels"]
        self.unlabelled = state.tensors["unlabelled"]

    def forget_people(self) -> None:
        """The bottom model stays; whom it was learnt from goes."""
        super().forget_people()
        for learnt in ("overlap", "labels", "unlabelled", "learner"):
            self.__dict__.pop(learnt, None)


class FewShotSide(OneShotSide, WholeTableSide):
    """What a passive party answers in few-shot VFL."""

    @operation
    def refine(self, keep: KeepProbability) -> RowSelection:
        """Draw each row without a label with its probability, and go on learning with the drawn.

        The shared people without a label come first, then the unaligned. No label comes with them:
        a drawn row is labelled by this party's own head, whose classes are its clusters.
        """
        others = torch.cat([self.unlabelled, self._unaligned])
        if tuple(keep.shape) != (len(others),):
            raise Refused(
                f"{tuple(keep.shape)} keep-probabilities came for {len(others):,} rows without a "
                "label"
            )
        drawn = others[draw(keep, self.party.secret)]
        labels = self.learner.predict(drawn).argmax(1)
        self._learn(self.learner.settings.refine_epochs, (drawn, labels))
        return torch.argsort(self._people)[drawn]


def draw(keep: Tensor, secret: int) -> Tensor:
    """Positions of the rows drawn, each with its own probability (n,) in [0, 1]; 0 never is."""
    generator = torch.Generator().manual_seed(seed_for(secret, "drawn"))
    return (torch.rand(len(keep), generator=generator) < keep).nonzero()[:, 0]


def keep_probability(
    alone: Tensor, joint: Tensor, floor: float, agreement: Agreement = "hard"
) -> Tensor:
    """Equation 9: p̂ = 1[ŷ_A = ŷ_AB] · 1[p_A > t] · 1[p_AB > t] · p_AB.

    Args:
        alone: Probabilities (n, classes) by the head over the party's own view.
        joint: The same by the joint head, over that view and estimates of the missing ones.
        floor: t.
        agreement: ``soft`` is Σ_j p_A,j · p_AB,j instead, without a floor, to compare with.

    Returns:
        Shape (n,), float32.
    """
    if agreement == "soft":
        return (alone * joint).sum(1)
    sure_alone, says_alone = alone.max(1)
    sure_joint, says_joint = joint.max(1)
    kept = (says_alone == says_joint) & (sure_alone > floor) & (sure_joint > floor)
    return torch.where(kept, sure_joint, torch.zeros(()))


@dataclass(frozen=True)
class _Cast:
    """Whom a fit is about; rows are the active party's.

    Attributes:
        rows: People with a label to learn from, (n,).
        y: Their labels.
        held: (n, parties with columns), bool; the active party last, if it has columns.
        aside, y_aside: People whom all hold, kept aside to stop the head early.
        unlabelled: The active party's people without a label.
        unlabelled_held: (n, parties with columns), bool, of these.
    """

    rows: Rows
    y: Tensor
    held: Tensor
    aside: Rows
    y_aside: Tensor
    unlabelled: Rows
    unlabelled_held: Tensor


@dataclass(frozen=True)
class _Views:
    """Embeddings by party: of the people to learn from (n, d_k; 0 where not held), of those kept
    aside, and of further rows of each party's own."""

    train: list[Tensor]
    aside: list[Tensor]
    others: list[Tensor]


@dataclass(frozen=True)
class _Candidates:
    """People without a label, who may get one, n of them.

    Attributes:
        rows: By party with columns those whom it holds: positions at a partner, rows of the active
            party.
        held: (n, parties), bool; in each column as many as that party has ``rows``, in their order.
    """

    rows: dict[str, Tensor]
    held: Tensor

    def chosen(self, kept: Mapping[str, Kept]) -> tuple[Tensor, Tensor]:
        """Whom any party kept (n,), bool, and the classes of these."""
        classes = torch.full((len(self.held),), -1)
        for (name, rows), here in zip(self.rows.items(), self.held.T, strict=True):
            mine = torch.full((len(rows),), -1)
            mine[torch.isin(rows, kept[name].rows)] = kept[name].classes
            classes[here] = torch.maximum(classes[here], mine)
        chosen = classes >= 0
        return chosen, classes[chosen]


class OneShotVFL(JointModel):
    """One-shot VFL: two embeddings of each shared person leave a party, one gradient comes back.

    For classes, not for regression. Works for two to many parties, tables and images, with columns
    at the active party or without. Ours is how people count whom only some parties hold:

    - A client learns from everyone whom the active party shares with it and has a label for,
      whether other parties hold them or not; views that these lack are estimated
      (``missing.complete``) for the one gradient. The active party's own columns learn from all
      its labelled people.
    - Shared people without a label are among a client's rows without one, like its unaligned rows.
    - The head learns from the people whom all hold and, completed, from those whom several do.
    - Whom only some hold is scored over their views and estimates of the others, for which the
      active party keeps the embeddings of those it has learnt from.

    Every client learns the classes of the shared people up to a permutation, from that one
    gradient: guard it where the label is secret (``gradient`` in the active party's policy).

    Args:
        epochs: Most passes of the head over the shared people (E_s).
        local_epochs: Passes of each client over its labelled rows (E_c); each also draws rows
            without a label, anew.
        semi_supervised: How it learns from rows without a label: FixMatch (for tables in its
            table form), MixMatch or plain pseudo-labels.
        clustering: How gradients become labels: ``kmeans`` (ten starts), ``gaussian``,
            ``spectral``, ``hdbscan``.
        local_batch_size: Labelled rows in a step at a client.
        batch_size: People in a step of the head; ``None`` takes 16 to 256 by how many there are.
        bottom: The network each party builds, unless it brings its own.
        top: Widths of the head's hidden layers, or an own module from (n, Σd_k) to logits.
        dropout: Share of the head's hidden units left out in training.
        optimisation: Learning rate, weight decay and schedule, of clients and head.
        class_weight: ``balanced``, a weight by class number, or ``None``; of the head.
        validation: Share of the people whom all hold, kept aside to choose the head's best epoch.
        patience: Stop after that many epochs without a better validation loss; ``None`` never.

    The source's epochs, rates and thresholds are not known to us: the defaults are ours.
    """

    side = OneShotSide
    protocol = "one-shot"
    scores_some = True
    refine_epochs = 0  # there is no second round

    def __init__(
        self,
        *,
        epochs: Count = 100,
        local_epochs: Passes = 200,
        semi_supervised: AnySemiSupervised = FixMatch(),
        clustering: Clustering = "kmeans",
        local_batch_size: Count = 64,
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
        self.local_epochs = local_epochs
        self.semi_supervised = semi_supervised
        self.clustering = clustering
        self.local_batch_size = local_batch_size
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

    def _local_settings(self) -> LocalSettings:
        """What the clients are told."""
        return LocalSettings(
            semi_supervised=self.semi_supervised,
            clustering=self.clustering,
            epochs=self.local_epochs,
            refine_epochs=self.refine_epochs,
            batch_size=self.local_batch_size,
        )

    # -- learning -----------------------------------------------------------------------------

    def fit(
        self,
        federation: Federation,
        *,
        checkpoint: str | None = None,
        on_epoch: OnEpoch | None = None,
    ) -> Self:
        """Learn from the people of a view and the parties' unaligned rows; see :meth:`Method.fit`.

        ``history_`` and ``on_epoch`` are about the head. Checkpoints are kept after each round of
        learning at the clients, so a resumed fit does a round over at most.
        """
        fed = self._people(federation)
        self._start(fed)
        self.learner_: LocalLearner | None = None
        cast = self._cast(fed, federation)
        done = self._resume(fed, checkpoint, EarlyStopping(None)) if checkpoint else 0
        if done < 1:
            self._first_round(fed, cast, self._local_settings())
            if checkpoint:
                self._checkpoint(fed, checkpoint, 1, EarlyStopping(None))
        self._finish(fed, cast, done, checkpoint, on_epoch)
        return self

    def _finish(
        self,
        fed: Federation,
        cast: _Cast,
        done: int,
        checkpoint: str | None,
        on_epoch: OnEpoch | None,
    ) -> None:
        """What is left to do after the clients have learnt."""
        views = self._represent(fed, cast, {})
        several = (cast.held.sum(1) > 1) & ~cast.held.all(1)
        self._fit_top(cast, views, _completed(cast, views.train, several), fed.seed, on_epoch)

    def _people(self, federation: Federation) -> Federation:
        """The labelled people whom somebody with columns holds.

        Raises:
            JobError: the label is not a class.
            AlignmentError: fewer than two of them are held by all parties.
        """
        name = type(self).__name__
        check_is_of_classes(
            federation.label_plan, f"{name} learns from clusters of people of one class"
        )
        people = federation.labelled()
        whole = people.shared()
        if len(whole.rows) < 2:
            raise AlignmentError(
                f"{len(whole.rows)} people are held by all parties and have a label; "
                "at least two are needed to learn from"
            )
        if federation.active.columns:
            return people
        somewhere = federation.alignment.holders[people.rows].any(1)
        return people.view(people.rows[somewhere])

    def _cast(self, fed: Federation, federation: Federation) -> _Cast:
        held = self._held(fed, fed.rows)
        whole = held.all(1).nonzero()[:, 0]
        y = fed.y
        _, aside = keep_aside(len(whole), self.validation, fed.seed, y[whole])
        aside = whole[aside]
        train = torch.ones(len(y), dtype=torch.bool)
        train[aside] = False
        rest = np.setdiff1d(federation.rows, federation.labelled().rows)
        rest = np.setdiff1d(rest, federation.held_out)
        rest = rest[self._held(fed, rest).any(1).numpy()]
        return _Cast(
            rows=fed.rows[train.numpy()],
            y=y[train],
            held=held[train],
            aside=fed.rows[aside.numpy()],
            y_aside=y[aside],
            unlabelled=rest,
            unlabelled_held=self._held(fed, rest),
        )

    def _first_round(self, fed: Federation, cast: _Cast, settings: LocalSettings) -> None:
        """Upload 1, download 1, and learning at every client."""
        boundary = fed.active.boundary
        boundary.round += 1
        where = self._where(fed, cast.rows, cast.held)
        unlabelled = self._where(fed, cast.unlabelled, cast.unlabelled_held)
        asked = {
            name: peer.start(OneShotSide.represent, where[name], unlabelled[name])
            for name, peer in self.peers_.items()
        }
        views = []
        for (name, answer), held in zip(asked.items(), cast.held.T, strict=False):
            views.append(_spread(self._expect(name, answer(), len(where[name])), held))
        if self.own_ is not None:
            views.append(self.own_.embed(torch.from_numpy(cast.rows)))
        cuts = [view.requires_grad_() for view in complete(views, cast.held)]
        self.top_.eval()
        # The sum over people, so that every row of the gradient has the same scale.
        loss = F.cross_entropy(self.top_(cuts), cast.y, reduction="sum")
        gradients = torch.autograd.grad(loss, cuts)
        told, learning = settings.model_dump(mode="json"), []
        for k, (name, peer) in enumerate(self.peers_.items()):
            held = cast.held[:, k]
            classes = torch.bincount(cast.y[held]).count_nonzero()
            boundary.about(where[name])
            learning.append(peer.start(OneShotSide.learn, gradients[k][held], classes, told))
        if self.own_ is not None:
            self.learner_ = LocalLearner(self.own_, settings, self.objective_.outputs)
            self._learn_own(cast, settings.epochs, cast.unlabelled[:0], cast.y[:0])
        for done in learning:
            done()

    def _learn_own(self, cast: _Cast, epochs: int, rows: Rows, y: Tensor) -> None:
        """Some epochs more at the active party, with some of its rows labelled besides."""
        assert self.learner_ is not None
        whole = cast.held.all(1)
        mine = torch.from_numpy(cast.rows)
        more = torch.cat([mine[~whole], torch.from_numpy(rows)]), torch.cat([cast.y[~whole], y])
        without = torch.from_numpy(cast.unlabelled)
        self.learner_.learn(mine[whole], cast.y[whole], without, epochs, more)

    def _where(self, fed: Federation, rows: Rows, held: Tensor) -> dict[str, Tensor]:
        """Positions at each partner of those people whom it holds."""
        return {
            name: fed.positions(name, rows[here.numpy()])
            for name, here in zip(self.peers_, held.T, strict=False)
        }

    def _represent(self, fed: Federation, cast: _Cast, others: dict[str, Tensor]) -> _Views:
        """One more upload: embeddings of the overlap, and of ``others`` at each party."""
        fed.active.boundary.round += 1
        views = _Views([], [], [])
        where = self._where(fed, cast.rows, cast.held)
        asked = {
            name: [where[name], fed.positions(name, cast.aside), others.get(name, where[name][:0])]
            for name in self.peers_
        }
        answers = {
            name: peer.start(BottomSide.embed, torch.cat(asked[name]))
            for name, peer in self.peers_.items()
        }
        for (name, answer), held in zip(answers.items(), cast.held.T, strict=False):
            sizes = [len(part) for part in asked[name]]
            h = self._expect(name, answer(), sum(sizes))
            train, aside, rest = h.split_with_sizes(sizes)
            views.train.append(_spread(train, held))
            views.aside.append(aside)
            views.others.append(rest)
        if self.own_ is not None:
            own = [torch.from_numpy(cast.rows), torch.from_numpy(cast.aside)]
            own.append(others.get(fed.active.name, own[0][:0]))
            for part, rows in zip((views.train, views.aside, views.others), own, strict=True):
                part.append(self.own_.embed(rows))
        return views

    def _fit_top(
        self,
        cast: _Cast,
        views: _Views,
        completed: tuple[list[Tensor], Tensor] | None,
        seed: int,
        on_epoch: OnEpoch | None,
    ) -> None:
        """Fit the joint head from its first weights: on people whom all hold, and completed."""
        self._assemble([view.shape[1] for view in views.train])
        self.known_ = [*views.train, cast.held]
        whole = cast.held.all(1)
        self.history_ = self._fit_head(
            self.top_,
            self.optimiser_,
            self.randomness_,
            [([view[whole] for view in views.train], cast.y[whole])]
            + ([completed] if completed else []),
            (views.aside, cast.y_aside),
            seed,
            on_epoch,
        )

    def _fit_head(
        self,
        head: nn.Module,
        optimiser: torch.optim.Optimizer | None,
        randomness: Randomness,
        groups: list[tuple[list[Tensor], Tensor]],
        aside: tuple[list[Tensor], Tensor],
        seed: int,
        on_epoch: OnEpoch | None = None,
    ) -> list[Epoch]:
        """Fit a head on embeddings and labels, and leave it at its best epoch.

        An epoch is a pass over the first group; the others add the mean loss of as many people at
        each step, whatever their number, so that estimates do not drown what is known.
        """
        y = groups[0][1]
        size = self.batch_size or usual_batch(len(y))
        stopping, clock = EarlyStopping(self.patience), Clock()
        best = None
        history: list[Epoch] = []
        for epoch in range(self.epochs):
            if optimiser is not None:
                set_rate(optimiser, self.optimisation.rate(epoch, self.epochs))
            head.train()
            orders = [_around(shuffled(len(labels), seed, epoch), len(y)) for _, labels in groups]
            total = 0.0
            for batch in batches(len(y), size):
                losses = []
                for (cuts, labels), order in zip(groups, orders, strict=True):
                    some = order[batch]
                    with randomness.stream():
                        logits = head([cut[some] for cut in cuts])
                    losses.append(self.objective_.loss(logits, labels[some]))
                if optimiser is not None:
                    optimiser.zero_grad()
                    torch.stack(losses).sum().backward()  # type: ignore[no-untyped-call]
                    optimiser.step()
                total += losses[0].item() * len(y[batch])
            validation = None
            if len(aside[1]):
                head.eval()
                with torch.no_grad():
                    validation = self.objective_.loss(head(aside[0]), aside[1]).item()
                if stopping.better(epoch, validation):
                    best = {k: v.clone() for k, v in head.state_dict().items()}
            history.append(Epoch(epoch + 1, total / len(y), validation, clock.lap()))
            if on_epoch:
                on_epoch(history[-1])
            if len(aside[1]) and stopping.over(epoch):
                break
        if best is not None:
            head.load_state_dict(best)
        return history

    # -- predicting ---------------------------------------------------------------------------

    def _logits(self, fed: Federation, rows: Rows) -> Tensor:
        held = self._held(fed, rows)
        if bool(held.all()):
            return super()._logits(fed, rows)
        nobody = int((~held.any(1)).sum())
        if nobody:
            raise AlignmentError(f"{nobody:,} of {len(rows):,} people are held by no party")
        *known, known_held = self.known_
        out = []
        self.top_.eval()
        for start in range(0, len(rows), CHUNK):
            chunk = slice(start, start + CHUNK)
            whole = complete(self._views(fed, rows[chunk]), held[chunk], (known, known_held))
            with torch.no_grad():
                out.append(self.top_(whole))
        return torch.cat(out)

    # -- keeping ------------------------------------------------------------------------------

    def _state(self, stopping: EarlyStopping) -> State:
        state = super()._state(stopping)
        state.put("known", {str(k): part for k, part in enumerate(getattr(self, "known_", ()))})
        learner = getattr(self, "learner_", None)
        if learner is not None:
            state.put("learner", *learner.state())
        return state

    def _take(self, state: State) -> None:
        super()._take(state)
        known = state.part("known").tensors
        self.known_ = [known[str(k)] for k in range(len(known))]
        self.learner_ = None
        if "learner" in state.meta and self.own_ is not None:
            self.learner_ = LocalLearner.from_state(self.own_, state.part("learner"))


class FewShotVFL(OneShotVFL):
    """Few-shot VFL: one-shot VFL, then one more round in which unaligned rows get labels.

    For an unaligned row of a client the views of the others are estimated by attention over the
    overlap (T). A head over the client's view alone and the joint head must agree on its class, and
    both be confident, or the row is never drawn (:func:`keep_probability`). Drawn rows join the
    client's labelled rows, labelled by its own head (the active party's by the joint one, which is
    ours), and their completed views join what the joint head learns from. So do the active party's
    labelled people with a missing view, which is ours. ``kept_`` says by party what was drawn, with
    the class by the joint head.

    The source does not say whether rows are drawn once or in every epoch, nor its confidence floor:
    drawing once, and 0.8, are ours.

    Args:
        floor: Confidence t below which a row is never drawn.
        agreement: ``soft`` weighs by Σ_j p_A,j · p_AB,j instead of equation 9, to compare with.
        refine_epochs: Passes of each client over its labelled rows in the second round.

    The other arguments are those of :class:`OneShotVFL`.
    """

    side = FewShotSide
    protocol = "few-shot"

    def __init__(
        self,
        *,
        epochs: Count = 100,
        local_epochs: Passes = 200,
        refine_epochs: Passes = 100,
        floor: Part = 0.8,
        agreement: Agreement = "hard",
        semi_supervised: AnySemiSupervised = FixMatch(),
        clustering: Clustering = "kmeans",
        local_batch_size: Count = 64,
        batch_size: Count | None = None,
        bottom: BottomSpec = BottomSpec(),
        top: Widths | nn.Module = (64,),
        dropout: Share = 0.0,
        optimisation: Optimisation = Optimisation(),
        class_weight: ClassWeight = None,
        validation: Share = 0.1,
        patience: Count | None = 10,
    ) -> None:
        super().__init__(
            epochs=epochs,
            local_epochs=local_epochs,
            semi_supervised=semi_supervised,
            clustering=clustering,
            local_batch_size=local_batch_size,
            batch_size=batch_size,
            bottom=bottom,
            top=top,
            dropout=dropout,
            optimisation=optimisation,
            class_weight=class_weight,
            validation=validation,
            patience=patience,
        )
        self.refine_epochs = refine_epochs
        self.floor = floor
        self.agreement = agreement

    def _start(self, fed: Federation) -> None:
        super()._start(fed)
        self.kept_: dict[str, Kept] = {}

    def _finish(
        self,
        fed: Federation,
        cast: _Cast,
        done: int,
        checkpoint: str | None,
        on_epoch: OnEpoch | None,
    ) -> None:
        if done < 2:
            self._second_round(fed, cast)
            if checkpoint:
                self._checkpoint(fed, checkpoint, 2, EarlyStopping(None))
        people = self._candidates(fed, cast)
        chosen, y = people.chosen(self.kept_)
        asked = {
            name: rows[chosen[here]]
            for (name, rows), here in zip(people.rows.items(), people.held.T, strict=True)
        }
        views = self._represent(fed, cast, asked)
        self._fit_top(
            cast, views, self._all(cast, views, people.held[chosen], y), fed.seed, on_epoch
        )

    def _second_round(self, fed: Federation, cast: _Cast) -> None:
        """Upload 2 with H_u, both kinds of heads, download 2, and more learning at the clients."""
        people = self._candidates(fed, cast)
        views = self._represent(fed, cast, people.rows)
        completed = _completed(cast, views.train, ~cast.held.all(1))
        self._fit_top(cast, views, completed, fed.seed, None)
        joint = self._joint_opinion(cast, views, people.held)
        for k, (name, rows) in enumerate(people.rows.items()):
            alone, also = self._opinion_alone(cast, views, k, fed.seed), joint[people.held[:, k]]
            keep = keep_probability(alone, also, self.floor, self.agreement)
            if name in self.peers_:
                answer = self.peers_[name].ask(FewShotSide.refine, keep)
                drawn = self._possible(name, answer, rows, keep)
            else:
                drawn = draw(keep, fed.active.secret)
                classes = also[drawn].argmax(1)
                self._learn_own(cast, self.refine_epochs, rows[drawn].numpy(), classes)
            self.kept_[name] = Kept(len(keep), rows[drawn], also[drawn].argmax(1))

    def _candidates(self, fed: Federation, cast: _Cast) -> _Candidates:
        """Everybody without a label: the active party's people, then each partner's unaligned."""
        rows = self._where(fed, cast.unlabelled, cast.unlabelled_held)
        held = [cast.unlabelled_held]
        for k, name in enumerate(rows):
            shared = len(fed.alignment.pairs[name])
            unaligned = torch.arange(shared, fed.alignment.report.people[name])
            rows[name] = torch.cat([rows[name], unaligned])
            only = torch.zeros(len(unaligned), cast.held.shape[1], dtype=torch.bool)
            only[:, k] = True
            held.append(only)
        if self.own_ is not None:
            rows[fed.active.name] = torch.from_numpy(cast.unlabelled)
        return _Candidates(rows, torch.cat(held))

    def _opinion_alone(self, cast: _Cast, views: _Views, k: int, seed: int) -> Tensor:
        """What a head over party k's view alone says of its candidates."""
        mine, held = views.others[k], cast.held[:, k]
        head_seed = seed_for(self.active_.secret, "auxiliary head", k)
        hidden = self.top if not isinstance(self.top, nn.Module) else (64,)
        make = partial(mlp, mine.shape[1], hidden, self.objective_.outputs, self.dropout)
        head = seeded(lambda: Joined(make()), head_seed)
        self._fit_head(
            head,
            self.optimisation.optimiser(head),
            Randomness(head, head_seed),
            [([views.train[k][held]], cast.y[held])],
            ([views.aside[k]], cast.y_aside),
            seed,
        )
        head.eval()
        with torch.no_grad():
            out: Tensor = head([mine]).softmax(1)
        return out

    def _joint_opinion(self, cast: _Cast, views: _Views, held: Tensor) -> Tensor:
        """What the joint head says of all candidates, over the views there are and estimates."""
        both = _stacked(views, held)
        known = both, torch.cat([cast.held, held])
        whole = complete([view[len(cast.rows) :] for view in both], held, known)
        self.top_.eval()
        with torch.no_grad():
            out: Tensor = self.top_(whole).softmax(1)
        return out

    def _possible(self, name: str, answer: Tensor, rows: Tensor, keep: Tensor) -> Tensor:
        """Which of its candidates a partner says it drew.

        Raises:
            Refused: they are not among those that it could draw.
        """
        drawn = torch.isin(rows, answer)
        if len(answer) != int(drawn.sum()) or not bool((keep[drawn] > 0).all()):
            raise Refused(f"party '{name}' drew rows that had been rejected")
        return drawn.nonzero()[:, 0]

    def _all(
        self, cast: _Cast, views: _Views, held: Tensor, y: Tensor
    ) -> tuple[list[Tensor], Tensor] | None:
        """Completed views and labels of labelled people with a missing view, and of kept people."""
        partly = ~cast.held.all(1)
        more = replace(cast, held=torch.cat([cast.held, held]), y=torch.cat([cast.y, y]))
        chosen = torch.cat([partly, torch.ones(len(y), dtype=torch.bool)])
        return _completed(more, _stacked(views, held), chosen)

    def _state(self, stopping: EarlyStopping) -> State:
        state, kept = super()._state(stopping), kept_state(getattr(self, "kept_", {}))
        return State(state.tensors | kept.tensors, state.meta | kept.meta)

    def _take(self, state: State) -> None:
        super()._take(state)
        self.kept_ = kept_from(state)


def _completed(
    cast: _Cast, views: list[Tensor], chosen: Tensor
) -> tuple[list[Tensor], Tensor] | None:
    """Views of the chosen people, estimated where they are missing, and their labels."""
    if not bool(chosen.any()):
        return None
    return [view[chosen] for view in complete(views, cast.held)], cast.y[chosen]


def _stacked(views: _Views, held: Tensor) -> list[Tensor]:
    """Each party's views of the people to learn from and below them of others, held by ``held``."""
    pairs = zip(views.train, views.others, held.T, strict=True)
    return [torch.cat([train, _spread(others, here)]) for train, others, here in pairs]


def _spread(h: Tensor, held: Tensor) -> Tensor:
    """Embeddings (m, d) of the held people, in their places among all (n, d); 0 elsewhere."""
    out = h.new_zeros(len(held), h.shape[1])
    out[held] = h
    return out


def _around(order: Tensor, count: int) -> Tensor:
    """The first ``count`` of an order that begins again where it ends."""
    return order.repeat(-(-count // len(order)))[:count]
