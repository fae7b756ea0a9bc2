"""FedOnce (Wu, Li, He, "Practical Vertical Federated Learning with Unsupervised Representation
Learning", IEEE Transactions on Big Data, 2022, doi 10.1109/TBDATA.2022.3180117): one upload, and
nothing back.

Every passive party learns a representation of its rows without a label, by noise as targets
(Bojanowski and Joulin, ICML 2017), and sends it once::

    active                                         passive k
      │ ── begin(held-out rows, settings) ──────────► │   builds f_k, scales its columns
      │ ◄───────────────────────── width of h_k ───── │
      │ ── pretrain(settings) ──────────────────────► │   noise as targets, on its own rows
      │ ── embed(labelled rows) ────────────────────► │
      │ ◄──────────────────────────────── h_k ─────── │   the one upload
      │ trains its own bottom and a top model over [h_1 … h_K, h_own]

No gradient leaves the active party, so no partner learns anything of the label.
"""

from __future__ import annotations

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn import functional as F

from interlace.methods.base import Count, Passes, Several, Share, Widths
from interlace.methods.bottom import Bottom
from interlace.methods.objective import ClassWeight
from interlace.methods.vertical.pretrained import Exercise, PretrainedSide, Pretraining, SentOnce
from interlace.models import BottomSpec, Optimisation


class NoiseAsTargets(Pretraining):
    """Each row gets a random point of the unit sphere as its target; rows of a batch then trade
    targets so that the total squared distance is least, and the model moves towards them.

    Args:
        every: Targets are traded in every so many epochs.
    """

    every: Count = 1

    def exercise(self, bottom: Bottom, rows: Tensor, draws: torch.Generator) -> Exercise:
        return _Targets(self, bottom, rows, draws)


class _Targets(Exercise):
    def __init__(
        self, settings: NoiseAsTargets, bottom: Bottom, rows: Tensor, draws: torch.Generator
    ) -> None:
        super().__init__(bottom.module, bottom.x[rows])
        self.every = settings.every
        self.targets = F.normalize(torch.randn(len(rows), bottom.width, generator=draws))

    def loss(self, some: Tensor, epoch: int) -> Tensor:
        """Mean of ‖f(x) − target‖², after the batch has traded its targets."""
        out: Tensor = self.network(self.x[some])
        if (epoch + 1) % self.every == 0:
            target = self.targets[some]
            self.targets[some] = target[assign(out.detach(), target)]
        return (out - self.targets[some]).square().sum(1).mean()


def assign(points: Tensor, targets: Tensor) -> Tensor:
    """The target for each point by which the sum of squared distances is least.

    Args:
        points: (n, d).
        targets: (n, d).

    Returns:
        A permutation of 0..n-1, shape (n,): the i-th point takes target ``out[i]``.
    """
    # ‖p‖² and ‖t‖² are the same whoever takes what, so only the products decide.
    _, taken = linear_sum_assignment(-(points @ targets.T).double().numpy())
    return torch.from_numpy(taken)


class FedOnceSide(PretrainedSide):
    """What a passive party answers in FedOnce."""

    pretraining = NoiseAsTargets


class FedOnce(SentOnce):
    """FedOnce: representations learnt without a label travel once; no gradient ever comes back.

    Works for two to many parties; binary, multi-class, multi-label and regression; tables and
    images; with columns at the active party or without. Passive parties learn from all of their
    rows, shared or not (the source uses the aligned ones); the top model from every labelled
    person whom at least one partner holds, with the mean in place of a view that is missing
    (both ours).

    Args:
        epochs: Most passes of the top model over the labelled people.
        local_epochs: Passes of each passive party over its own rows.
        local_batch_size: Rows among which targets are traded.
        every: Targets are traded in every so many epochs.
        batch_size: People in a step of the top model; ``None`` takes 16 to 256 by how many there
            are.
        bottom: The network each party builds, unless it brings its own; its width is that of the
            representation (3 in the source).
        top: Widths of the top model's hidden layers.
        dropout: Share of the top model's hidden units left out in training.
        optimisation: Learning rate, weight decay and schedule, alone and of the top model.
        class_weight: ``balanced``, a weight by class number, or ``None``.
        validation: Share of the labelled people kept aside to choose the best epoch.
        patience: Stop after that many epochs without a better validation loss; ``None`` never.

    Source: as checked against the authors' code; the variant with differential privacy
    (FedOnce-L1) is not here: put a guard on ``embedding`` instead.
    """

    side = FedOnceSide
    protocol = "fed-once"

    def __init__(
        self,
        *,
        epochs: Count = 100,
        local_epochs: Passes = 100,
        local_batch_size: Several = 100,
        every: Count = 1,
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
        self.every = every
        self.batch_size = batch_size
        self.bottom = bottom
        self.top = top
        self.dropout = dropout
        self.optimisation = optimisation
        self.class_weight = class_weight
        self.validation = validation
        self.patience = patience

    def _pretraining(self) -> NoiseAsTargets:
        return NoiseAsTargets(
            epochs=self.local_epochs, batch_size=self.local_batch_size, every=self.every
        )
