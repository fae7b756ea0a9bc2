"""SS-VFL (Castiglia, Wang and Patterson, "Self-Supervised Vertical Federated Learning", 2022; here
after the description in the authors' repository):
bottom models are trained on each party's own rows by contrast, before any label is used::

    active                                         passive k
      │ ── begin(held-out rows, settings) ──────────► │   builds f_k, scales its columns
      │ ◄───────────────────────── width of h_k ───── │
      │ ── pretrain(settings) ──────────────────────► │   contrasts its own rows, aligned or not
      │                                               │
      │ SS-VFL-I (independent):                       │
      │ ── embed(labelled rows) ────────────────────► │
      │ ◄──────────────────────────────── h_k ─────── │   the one upload; the top model is fitted
      │                                               │
      │ SS-VFL-C (collaborative):                     │
      │ ◄─────────── split learning ────────────────► │   from the pre-trained bottom models on

Two views of one row should be alike, and unlike the views of other rows. Images are seen twice
through random changes, as in MoCo (He et al., CVPR 2020) and SimCLR (Chen et al., ICML 2020); a
table's row is seen as it is and with many of its columns taken from other rows, as in SCARF (Bahri
et al., ICLR 2022).
"""

from __future__ import annotations

import copy
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from interlace.federation import Federation
from interlace.methods.augmentation import Augmentation
from interlace.methods.base import AboveZero, Count, Passes, Several, Share, Widths
from interlace.methods.bottom import Bottom
from interlace.methods.objective import ClassWeight
from interlace.methods.vertical.pretrained import (
    Exercise,
    PretrainedSide,
    Pretraining,
    SentOnce,
    learn_alone,
)
from interlace.methods.vertical.split import SplitSide, SplitVFL
from interlace.models import BottomSpec, Optimisation, mlp

Corruption = Annotated[float, Field(gt=0, le=1)]


class Contrast(Pretraining):
    """Which of these is another view of that row? (InfoNCE)

    Args:
        temperature: Divides the cosines; ``None`` takes 0.2 for images (as the source does) and 1
            for tables (as SCARF does).
        corruption: Share of a table's columns that a view takes from other rows (0.6 in SCARF).
        momentum: ``None`` contrasts the rows of a batch with each other (SimCLR, SCARF). A number
            has one view go through a copy of the network that follows it by that momentum, and
            contrasts with past views too (MoCo; 0.999 in the source).
        queue: How many past views MoCo keeps; at most half the rows.
        flip: Whether images may be mirrored.
    """

    temperature: AboveZero | None = None
    corruption: Corruption = 0.6
    momentum: Share | None = None
    queue: Count = 4096
    flip: bool = True

    def exercise(self, bottom: Bottom, rows: Tensor, draws: torch.Generator) -> Exercise:
        return _Contrast(self, bottom, rows, draws)


class _Contrast(Exercise):
    def __init__(
        self, settings: Contrast, bottom: Bottom, rows: Tensor, draws: torch.Generator
    ) -> None:
        super().__init__(bottom.module, bottom.x[rows])
        spec, width = bottom.plan.spec, bottom.width
        self.settings, self.draws = settings, draws
        self.images = None
        if spec.image:
            self.images = Augmentation(flip=settings.flip).over(spec, self.x)
        self.temperature = settings.temperature or (0.2 if spec.image else 1.0)
        self.projection = mlp(width, (width,), width)
        self.slow: nn.Module | None = None
        if settings.momentum is not None:
            self.slow = copy.deepcopy(nn.Sequential(self.network, self.projection))
            self.slow.requires_grad_(False)
            self.past = torch.empty(0, width)
            self.room = min(settings.queue, len(rows) // 2)

    def views(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Two views of each row."""
        if self.images is not None:
            return self.images.strong(x, self.draws), self.images.strong(x, self.draws)
        return x, corrupt(x, self.x, self.settings.corruption, self.draws)

    def loss(self, some: Tensor, epoch: int) -> Tensor:
        one, other = self.views(self.x[some])
        query = F.normalize(self.projection(self.network(one)))
        if self.slow is None:
            key = F.normalize(self.projection(self.network(other)))
            both = info_nce(query, key, self.temperature), info_nce(key, query, self.temperature)
            return (both[0] + both[1]) / 2
        with torch.no_grad():
            key = F.normalize(self.slow(other))
        loss = info_nce(query, torch.cat([key, self.past]), self.temperature)
        self.past = torch.cat([key, self.past])[: self.room]
        return loss

    def stepped(self) -> None:
        """The slow copy follows: θ' ← m θ' + (1 − m) θ."""
        if self.slow is not None and self.settings.momentum is not None:
            now = nn.Sequential(self.network, self.projection)
            with torch.no_grad():
                for slow, fast in zip(self.slow.parameters(), now.parameters(), strict=True):
                    slow.lerp_(fast, 1 - self.settings.momentum)


def info_nce(query: Tensor, keys: Tensor, temperature: float) -> Tensor:
    """−mean_i log(exp(q_i·k_i / τ) / Σ_j exp(q_i·k_j / τ)).

    Args:
        query: (n, d), of unit length.
        keys: (m, d), m ≥ n, of unit length; the first n belong to the queries in order.
        temperature: τ.
    """
    return F.cross_entropy(query @ keys.T / temperature, torch.arange(len(query)))


def corrupt(x: Tensor, table: Tensor, share: float, draws: torch.Generator) -> Tensor:
    """SCARF's view of rows (n, d): in each, ``share`` of the columns, at least one, hold what they
    hold in other rows of ``table`` (m, d), each column's row drawn by itself."""
    count = max(1, round(share * x.shape[1]))
    chosen = torch.rand(x.shape, generator=draws).argsort(1) < count
    donors = torch.randint(len(table), x.shape, generator=draws)
    return torch.where(chosen, table.gather(0, donors), x)


class SelfSupervisedSide(PretrainedSide, SplitSide):
    """What a passive party answers in SS-VFL."""

    pretraining = Contrast


class SSVFLIndependent(SentOnce):
    """SS-VFL-I: bottom models learn by contrast alone and stay as they are; embeddings travel once.

    Works for two to many parties; binary, multi-class, multi-label and regression; tables and
    images; with columns at the active party or without. Every party learns from all of its rows but
    the held-out ones; the top model from every labelled person whom at least one partner holds,
    with the mean in place of a view that is missing (ours). No gradient ever comes back.

    Args:
        epochs: Most passes of the top model over the labelled people.
        local_epochs: Passes of each party over its own rows.
        local_batch_size: Rows that are contrasted with each other.
        temperature: Of the contrast; ``None`` takes 0.2 for images and 1 for tables.
        corruption: Share of a table's columns that a view takes from other rows.
        momentum: ``None`` contrasts within a batch (SimCLR, SCARF); 0.999 is the source's MoCo.
        queue: How many past views MoCo keeps; at most half the rows.
        flip: Whether images may be mirrored.
        batch_size: People in a step of the top model; ``None`` takes 16 to 256 by how many there
            are.
        bottom: The network each party builds, unless it brings its own.
        top: Widths of the top model's hidden layers.
        dropout: Share of the top model's hidden units left out in training.
        optimisation: Learning rate, weight decay and schedule, alone and of the top model.
        class_weight: ``balanced``, a weight by class number, or ``None``.
        validation: Share of the labelled people kept aside to choose the best epoch.
        patience: Stop after that many epochs without a better validation loss; ``None`` never.

    The source pre-trains images by MoCo; tables, and contrast within a batch as the default (which
    suits small tables better than a queue), are ours.
    """

    side = SelfSupervisedSide
    protocol = "ss-vfl-i"
    own_learns = False

    def __init__(
        self,
        *,
        epochs: Count = 100,
        local_epochs: Passes = 100,
        local_batch_size: Several = 128,
        temperature: AboveZero | None = None,
        corruption: Corruption = 0.6,
        momentum: Share | None = None,
        queue: Count = 4096,
        flip: bool = True,
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
        self.temperature = temperature
        self.corruption = corruption
        self.momentum = momentum
        self.queue = queue
        self.flip = flip
        self.batch_size = batch_size
        self.bottom = bottom
        self.top = top
        self.dropout = dropout
        self.optimisation = optimisation
        self.class_weight = class_weight
        self.validation = validation
        self.patience = patience

    def _pretraining(self) -> Contrast:
        return _contrast(self)


class SSVFLCollaborative(SplitVFL):
    """SS-VFL-C: split learning that starts from bottom models pre-trained by contrast.

    Works wherever :class:`SplitVFL` does. Every party pre-trains on all rows but the held-out
    ones; split learning is on the labelled people whom all parties hold.

    Args:
        local_epochs: Passes of each party over its own rows, before the first epoch.
        local_batch_size: Rows that are contrasted with each other.
        temperature: Of the contrast; ``None`` takes 0.2 for images and 1 for tables.
        corruption: Share of a table's columns that a view takes from other rows.
        momentum: ``None`` contrasts within a batch (SimCLR, SCARF); 0.999 is the source's MoCo.
        queue: How many past views MoCo keeps; at most half the rows.
        flip: Whether images may be mirrored.

    The other arguments are those of :class:`SplitVFL`.
    """

    side = SelfSupervisedSide
    protocol = "ss-vfl-c"

    def __init__(
        self,
        *,
        epochs: Count = 100,
        local_epochs: Passes = 100,
        local_batch_size: Several = 128,
        temperature: AboveZero | None = None,
        corruption: Corruption = 0.6,
        momentum: Share | None = None,
        queue: Count = 4096,
        flip: bool = True,
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
            batch_size=batch_size,
            bottom=bottom,
            top=top,
            dropout=dropout,
            optimisation=optimisation,
            class_weight=class_weight,
            validation=validation,
            patience=patience,
        )
        self.local_epochs = local_epochs
        self.local_batch_size = local_batch_size
        self.temperature = temperature
        self.corruption = corruption
        self.momentum = momentum
        self.queue = queue
        self.flip = flip

    def _begin_epoch(self, fed: Federation, epoch: int) -> None:
        """Every party learns alone, once."""
        if epoch == 0:
            learn_alone(fed, self.peers_, self.own_, _contrast(self))


def _contrast(method: SSVFLIndependent | SSVFLCollaborative) -> Contrast:
    return Contrast(
        epochs=method.local_epochs,
        batch_size=method.local_batch_size,
        temperature=method.temperature,
        corruption=method.corruption,
        momentum=method.momentum,
        queue=method.queue,
        flip=method.flip,
    )
