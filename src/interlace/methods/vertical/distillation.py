"""Distilling a federation into a model that the active party can use alone.

Partners are needed for learning only: whoever they share with the active party gives its model a
lesson, and after that nobody is asked any more. Three methods, which differ in the lesson::

    active                                         passive k
      │ VFedTrans, APC-VFL:                           │
      │ ── begin(held-out rows, settings) ──────────► │   builds f_k, scales its columns
      │ ◄───────────────────────── width of h_k ───── │
      │ ── pretrain(settings) ──────────────────────► │   learns alone, on its own rows
      │ ── embed(shared rows) ──────────────────────► │
      │ ◄──────────────────────────────── h_k ─────── │   the one upload
      │                                               │
      │ privileged distillation:                      │
      │ ◄─────────── split learning ────────────────► │   the teacher
      │ ── embed(shared rows) ──────────────────────► │
      │ ◄──────────────────────────────── h_k ─────── │   what the teacher says of them
      │ learns from all its people, some of whom come with a lesson

- :class:`VFedTrans` (Huang et al., WWW 2023): an encoder of the own columns imitates a
  representation of the shared people from all parties' columns, and its output joins the columns.
- :class:`APCVFL` (Irureta et al., arXiv 2410.17648): the same with auto-encoders throughout, and a
  classifier over the encoder's output alone.
- :class:`PrivilegedDistillation`: a model of all columns teaches its predictions to one of the own
  columns (as JPL and VFL-Infer do).
"""

from __future__ import annotations

import inspect
import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Self, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from interlace.boundary.control import whole_number
from interlace.data.spec import InputSpec
from interlace.errors import AlignmentError, DataError
from interlace.federation import Federation, Rows
from interlace.methods.base import (
    AboveZero,
    AtLeastZero,
    Count,
    EarlyStopping,
    OnEpoch,
    Passes,
    Several,
    Share,
    Widths,
)
from interlace.methods.bottom import MOST_WIDTH, Bottom, BottomSettings, BottomSide, SideBySide
from interlace.methods.objective import ClassWeight
from interlace.methods.vertical.fed_once import FedOnceSide, NoiseAsTargets
from interlace.methods.vertical.pretrained import (
    Exercise,
    OnViews,
    PretrainedSide,
    Pretraining,
    learn_alone,
    scale_of,
    to_learn_from,
)
from interlace.methods.vertical.split import SplitSide, SplitVFL
from interlace.models import BottomSpec, Optimisation, mlp, seed_for, seeded
from interlace.party import Peer, State


class AutoEncoder(Pretraining):
    """The bottom model learns to keep what is needed to draw a row again."""

    def exercise(self, bottom: Bottom, rows: Tensor, draws: torch.Generator) -> Exercise:
        return Imitation(bottom.module, bottom, rows)


class Imitation(Exercise):
    """Drawing rows again and, where there is a lesson about a row, being like it.

    The loss is reconstruction + weight · mean of (network(x) − lesson)² over the rows with one.

    Args:
        network: The encoder, to (n, d); a part of the bottom model or all of it.
        bottom: The bottom model whose party's rows these are.
        rows: Which, n of them.
        lesson: (n, r), r ≤ d, for the first r outputs; rows of NaN where there is none.
        weight: Of the lesson.
    """

    def __init__(
        self,
        network: nn.Module,
        bottom: Bottom,
        rows: Tensor,
        lesson: Tensor | None = None,
        weight: float = 0.0,
    ) -> None:
        super().__init__(network, bottom.x[rows])
        width = bottom.width // bottom.settings.views
        hidden = bottom.settings.bottom.hidden[::-1]
        self.reconstruction = Reconstruction(bottom.plan.spec, width, hidden)
        self.lesson, self.weight = lesson, weight

    def loss(self, some: Tensor, epoch: int) -> Tensor:
        x = self.x[some]
        h: Tensor = self.network(x)
        loss: Tensor = self.reconstruction(h, x)
        if self.lesson is not None:
            lesson = self.lesson[some]
            taught = ~lesson.isnan().any(1)
            if bool(taught.any()):
                imitated = F.mse_loss(h[taught, : lesson.shape[1]], lesson[taught])
                loss = loss + self.weight * imitated
        return loss


class Reconstruction(nn.Module):
    """A decoder and its loss: squared error of numbers and pixels, cross-entropy of categories, the
    mean over columns."""

    def __init__(self, spec: InputSpec, width: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.numeric, self.cardinalities = spec.numeric, spec.cardinalities
        if spec.image:
            self.numeric = int(np.prod(spec.image))
        self.decoder = mlp(width, hidden, self.numeric + sum(spec.cardinalities))

    def forward(self, h: Tensor, x: Tensor) -> Tensor:
        """From (n, d) and the rows they encode to the loss."""
        x = x.flatten(1)
        out = self.decoder(h).split([self.numeric, *self.cardinalities], 1)
        loss: Tensor = (out[0] - x[:, : self.numeric]).square().mean(0).sum()
        for logits, code in zip(out[1:], x[:, self.numeric :].T, strict=True):
            loss = loss + F.cross_entropy(logits, code.long())
        return loss / x.shape[1]


class JointCode(Exercise):
    """An auto-encoder over all parties' codes side by side; missing ones are NaN, enter as 0, and
    need not be drawn again."""

    def __init__(self, network: nn.Module, x: Tensor, hidden: Sequence[int], width: int) -> None:
        super().__init__(network, x)
        self.decoder = mlp(width, hidden, x.shape[1])

    def loss(self, some: Tensor, epoch: int) -> Tensor:
        x = self.x[some]
        held = ~x.isnan()
        out: Tensor = self.decoder(self.network(x.nan_to_num(0)))
        loss: Tensor = F.mse_loss(out[held], x[held])
        return loss


def leading(h: Tensor, width: int) -> Tensor:
    """The leading left singular vectors of the standardised columns of ``h`` (n, d).

    Gaps (NaN) count as the mean. Returns (n, r) of unit variance, r = ``width`` or the rank of
    ``h`` where that is less.
    """
    mean, spread = scale_of(h)
    u, s, _ = torch.linalg.svd(((h - mean) / spread).nan_to_num(0), full_matrices=False)
    rank = int((s > s[0] * 1e-5).sum())
    out: Tensor = u[:, : min(width, rank)] * math.sqrt(len(h))
    return out


class AutoEncoderSide(PretrainedSide):
    """What a passive party answers in APC-VFL."""

    pretraining = AutoEncoder


class Distilled(OnViews):
    """A model of the active party's columns alone, which the partners helped to learn."""

    def _open(self, federation: Federation) -> dict[str, Peer]:
        return {}

    @abstractmethod
    def _lesson(self, federation: Federation, checkpoint: str | None) -> Tensor:
        """What the partners teach: (rows of the active party's table, r), NaN where nothing."""

    @abstractmethod
    def _study(self, fed: Federation, lesson: Tensor, on_epoch: OnEpoch | None) -> None:
        """Learn from labelled people and the lesson."""

    def fit(
        self,
        federation: Federation,
        *,
        checkpoint: str | None = None,
        on_epoch: OnEpoch | None = None,
    ) -> Self:
        """Learn from all of the active party's people and what partners say of those they share.

        ``history_`` and ``on_epoch`` are about the last stage, at the active party. A checkpoint
        is kept when the lesson has come; a resumed fit does not ask for it again. See
        :meth:`Method.fit`.

        Raises:
            DataError: the active party has no columns, so it cannot use a model alone.
            AlignmentError: too few people are shared.
        """
        if not federation.active.columns:
            raise DataError(
                "the active party has no columns of its own, so no model can be used there alone",
                party=federation.active.name,
                way_out="Take a method whose model the parties use together, such as 'split'",
            )
        fed = federation.labelled()
        self._start(fed)
        done = self._resume(fed, checkpoint, EarlyStopping(None)) if checkpoint else 0
        if not done:
            self.lesson_ = self._lesson(federation, checkpoint)
            if checkpoint:
                self._checkpoint(fed, checkpoint, 1, EarlyStopping(None))
        self._study(fed, self.lesson_, on_epoch)
        del self.lesson_  # the partners' words are not part of the model
        return self

    def _state(self, stopping: EarlyStopping) -> State:
        state = super()._state(stopping)
        if hasattr(self, "lesson_"):
            state.tensors["lesson"] = self.lesson_
        return state

    def _take(self, state: State) -> None:
        super()._take(state)
        if "lesson" in state.tensors:
            self.lesson_ = state.tensors["lesson"]


class _FromRepresentations(Distilled):
    """Every party learns alone and sends its embeddings once; an encoder imitates their union."""

    side: ClassVar[type[PretrainedSide]]

    def __init__(
        self,
        *,
        epochs: Count = 100,
        local_epochs: Passes = 100,
        local_batch_size: Several = 100,
        weight: AtLeastZero = 1.0,
        batch_size: Count | None = None,
        bottom: BottomSpec = BottomSpec(),
        top: Widths = (64,),
        dropout: Share = 0.0,
        optimisation: Optimisation = Optimisation(),
        class_weight: ClassWeight = None,
        validation: Share = 0.1,
        patience: Count | None = 10,
    ) -> None:
        self.epochs = epochs
        self.local_epochs = local_epochs
        self.local_batch_size = local_batch_size
        self.weight = weight
        self.batch_size = batch_size
        self.bottom = bottom
        self.top = top
        self.dropout = dropout
        self.optimisation = optimisation
        self.class_weight = class_weight
        self.validation = validation
        self.patience = patience

    @abstractmethod
    def _pretraining(self) -> Pretraining:
        """How every party learns alone."""

    @abstractmethod
    def _union(self, views: list[Tensor]) -> Tensor:
        """One representation (n, r) of all parties' embeddings, NaN where a view is missing."""

    def _lesson(self, federation: Federation, checkpoint: str | None) -> Tensor:
        rows = federation.rows[federation.alignment.holders[federation.rows].any(1)]
        if len(rows) < 2:
            raise AlignmentError(
                f"{len(rows)} people are shared with a partner; at least two are needed"
            )
        views = self._learn_apart(federation, rows)
        union = self._union(views)
        lesson = torch.full((len(federation.active), union.shape[1]), torch.nan)
        lesson[torch.from_numpy(rows)] = union
        return lesson

    def _learn_apart(self, fed: Federation, rows: Rows) -> list[Tensor]:
        """Embeddings of shared people by every party, each trained alone; the own ones last."""
        settings = BottomSettings(bottom=self.bottom, optimisation=self.optimisation)
        peers = fed.open(self.protocol, self.side)
        for name, peer in peers.items():
            held_out = torch.from_numpy(fed.alignment.position(name)[fed.held_out])
            answer = peer.ask(
                BottomSide.begin, held_out[held_out >= 0], settings.model_dump(mode="json")
            )
            self.widths_[name] = whole_number(answer, "width", MOST_WIDTH, least=1)
        own = Bottom.fit(fed.active, settings, to_learn_from(fed).numpy())
        learn_alone(fed, peers, own, self._pretraining())
        fed.active.boundary.round += 1
        views = self._theirs(fed, rows, peers)
        self.widths_.clear()  # the model that is learnt here asks nobody
        return [*views, own.embed(torch.from_numpy(rows))]

    def _imitate(self, fed: Federation, encoder: nn.Module, lesson: Tensor) -> None:
        """Train the encoder to draw all own rows again and to be like the lesson."""
        own, rows = self.own_, to_learn_from(fed)
        assert own is not None
        AutoEncoder(epochs=self.local_epochs, batch_size=self.local_batch_size).practise(
            lambda draws: Imitation(encoder, own, rows, lesson[rows], self.weight),
            len(rows),
            self.optimisation,
            seed_for(own.party.secret, "imitation"),
            own.randomness.stream,
        )


class VFedTrans(_FromRepresentations):
    """VFedTrans: columns of the own party are joined by what an encoder of them has learnt from the
    partners' representation of the shared people; any classifier follows.

    1. Every party learns a representation alone, and partners send theirs of the shared people
       once (as in FedOnce); the leading left singular vectors of all, side by side, are the
       federated representation.
    2. An auto-encoder of the own columns trains on all own people, with ``weight`` times the
       squared distance of its code from that representation where there is one.
    3. The code joins the columns in a classifier trained on all labelled people.

    For all tasks, tables and images, two to many parties. At scoring nobody is asked. Where a
    partner does not hold a shared person, its mean embedding stands in (ours).

    The source has FedSVD and VFedPCA beside FedOnce for the first step; both need a further party
    or more rounds and are not here. Architecture and defaults are ours.

    Args:
        epochs: Most passes of the classifier over the labelled people.
        local_epochs: Passes of every party over its own rows, and of the encoder.
        local_batch_size: Rows in a step of these.
        weight: Weight of the lesson against reconstruction.
        batch_size: People in a step of the classifier; ``None`` takes 16 to 256 by how many there
            are.
        bottom: The network of every party, and of encoder and classifier.
        top: Widths of the classifier's last hidden layers.
        dropout: Share of these units left out in training.
        optimisation: Learning rate, weight decay and schedule, everywhere.
        class_weight: ``balanced``, a weight by class number, or ``None``.
        validation: Share of the labelled people kept aside to choose the best epoch.
        patience: Stop after that many epochs without a better validation loss; ``None`` never.
    """

    side = FedOnceSide
    protocol = "vfedtrans"
    views = 2  # the encoder and, beside it, the classifier's own network over the columns

    def _pretraining(self) -> Pretraining:
        return NoiseAsTargets(epochs=self.local_epochs, batch_size=self.local_batch_size)

    def _union(self, views: list[Tensor]) -> Tensor:
        assert self.own_ is not None
        return leading(torch.cat(views, 1), self.own_.width // self.views)

    def _study(self, fed: Federation, lesson: Tensor, on_epoch: OnEpoch | None) -> None:
        assert self.own_ is not None
        encoder = cast(SideBySide, self.own_.module).networks[0]
        self._imitate(fed, encoder, lesson)
        encoder.requires_grad_(False)
        self._fit_top(fed, [], self.own_, on_epoch)


class APCVFL(_FromRepresentations):
    """APC-VFL (active-participant-centric VFL): one upload of codes, then an encoder of the own
    columns imitates the joint code, and a classifier reads it.

    1. Every party trains an auto-encoder on its own rows; partners send the codes of the shared
       people once.
    2. The active party trains an auto-encoder over all codes side by side: its code is the joint
       one.
    3. An encoder of the own columns trains on all own people: reconstruction, and ``weight`` times
       the squared distance from the joint code where there is one.
    4. A classifier over that encoder's code is fitted on all labelled people.

    For all tasks, tables and images, two to many parties. At scoring nobody is asked. Where a
    partner does not hold a shared person, the joint auto-encoder reads its mean code and need not
    draw it again (ours). Architecture, ``weight`` and the other defaults are ours too.

    Args: as for :class:`VFedTrans`.
    """

    side = AutoEncoderSide
    protocol = "apc-vfl"

    def _pretraining(self) -> Pretraining:
        return AutoEncoder(epochs=self.local_epochs, batch_size=self.local_batch_size)

    def _union(self, views: list[Tensor]) -> Tensor:
        assert self.own_ is not None
        h = torch.cat(views, 1)
        mean, spread = scale_of(h)
        codes = (h - mean) / spread
        width, hidden = self.own_.width, self.bottom.hidden
        seed = seed_for(self.active_.secret, "joint code")
        encoder = seeded(lambda: mlp(codes.shape[1], hidden, width), seed)
        self._pretraining().practise(
            lambda draws: JointCode(encoder, codes, hidden[::-1], width),
            len(codes),
            self.optimisation,
            seed,
        )
        with torch.no_grad():
            out: Tensor = encoder(codes.nan_to_num(0))
        return out

    def _study(self, fed: Federation, lesson: Tensor, on_epoch: OnEpoch | None) -> None:
        assert self.own_ is not None
        self._imitate(fed, self.own_.module, lesson)
        self._fit_top(fed, [self.own_.embed(torch.from_numpy(fed.rows))], None, on_epoch)


class PrivilegedDistillation(Distilled):
    """Joint privileged distillation: a model of all parties' columns, which are privileged since
    scoring goes without the partners', teaches one of the active party's columns.

    1. Split learning on the labelled people whom all hold gives the teacher t.
    2. The student s trains on all labelled people of the active party by
       CE(y, s) + λ T² KL(softmax(t / T) ‖ softmax(s / T)) for those whom the teacher knows, and by
       CE(y, s) for the others. For several labels at once the second term is
       T² BCE(σ(t / T), σ(s / T)); for a regression (t − s)² of the standardised targets.

    Two to many parties, tables and images. At scoring nobody is asked. The family is that of JPL
    (joint privileged learning) and VFL-Infer, whose own losses and defaults we could not check:
    the form above, T and λ are ours.

    Args:
        temperature: T.
        weight: λ.
        epochs: Most passes, of the teacher and of the student.
        batch_size: People in a step of either; ``None`` takes 16 to 256 by how many there are.
        bottom: The network of every party, of teacher and student.
        top: Widths of both top models' hidden layers.
        dropout: Share of these units left out in training.
        optimisation: Learning rate, weight decay and schedule, of both.
        class_weight: ``balanced``, a weight by class number, or ``None``.
        validation: Share of the labelled people kept aside to choose the best epoch, of each.
        patience: Stop after that many epochs without a better validation loss; ``None`` never.
    """

    side = SplitSide
    protocol = "split"

    def __init__(
        self,
        *,
        epochs: Count = 100,
        temperature: AboveZero = 2.0,
        weight: AtLeastZero = 1.0,
        batch_size: Count | None = None,
        bottom: BottomSpec = BottomSpec(),
        top: Widths = (64,),
        dropout: Share = 0.0,
        optimisation: Optimisation = Optimisation(),
        class_weight: ClassWeight = None,
        validation: Share = 0.1,
        patience: Count | None = 10,
    ) -> None:
        self.epochs = epochs
        self.temperature = temperature
        self.weight = weight
        self.batch_size = batch_size
        self.bottom = bottom
        self.top = top
        self.dropout = dropout
        self.optimisation = optimisation
        self.class_weight = class_weight
        self.validation = validation
        self.patience = patience

    def _lesson(self, federation: Federation, checkpoint: str | None) -> Tensor:
        """The teacher's probabilities, or a regression's standardised estimates."""
        alike = {k: v for k, v in self.get_params(deep=False).items() if k in _TEACHERS}
        teacher = SplitVFL(**alike)
        teacher.fit(federation, checkpoint=f"{checkpoint}-teacher" if checkpoint else None)
        known = federation.shared().labelled()
        says = torch.from_numpy(teacher.outputs(known)).float().reshape(len(known.rows), -1)
        if self.objective_.task == "regression":
            says = (says - self.objective_.centre) / self.objective_.scale
        lesson = torch.full((len(federation.active), says.shape[1]), torch.nan)
        lesson[torch.from_numpy(known.rows)] = says
        return lesson

    def _study(self, fed: Federation, lesson: Tensor, on_epoch: OnEpoch | None) -> None:
        self._fit_top(fed, [], self.own_, on_epoch)

    def _loss(self, logits: Tensor, y: Tensor, rows: Tensor) -> Tensor:
        lesson = self.lesson_[rows]
        taught = ~lesson.isnan().any(1)
        learnt = soften(lesson[taught], logits[taught], self.objective_.task, self.temperature)
        return super()._loss(logits, y, rows) + self.weight * learnt.sum() / len(logits)


_TEACHERS = inspect.signature(SplitVFL).parameters


def soften(says: Tensor, logits: Tensor, task: str, temperature: float) -> Tensor:
    """How far a student's logits are from what a teacher says, for each person.

    Args:
        says: (n, classes) or (n, labels) probabilities, or (n, 1) standardised estimates.
        logits: The student's, of the same shape.
        task: Of the label.
        temperature: T; with T = 1 classes are compared as they are.

    Returns:
        Shape (n,).
    """
    if task == "regression":
        return (says - logits).square().mean(1)
    if task == "multilabel":
        target = (torch.logit(says, 1e-6) / temperature).sigmoid()
        each = F.binary_cross_entropy_with_logits(logits / temperature, target, reduction="none")
        return temperature**2 * each.mean(1)
    target = (says.clamp_min(1e-12).log() / temperature).log_softmax(1)
    student = (logits / temperature).log_softmax(1)
    each = F.kl_div(student, target, log_target=True, reduction="none")
    return temperature**2 * each.sum(1)
