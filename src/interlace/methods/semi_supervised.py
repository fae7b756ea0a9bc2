"""Learning at one party, without a message, from few rows with a label and many without.

A plug-in is a small model of settings with one method, :meth:`SemiSupervised.loss`;
:class:`LocalLearner` trains a party's bottom model and a head of its own by it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from torch import Tensor, nn
from torch.nn import functional as F

from interlace.methods.augmentation import Augmentation, Augmenter
from interlace.methods.base import Count, Passes
from interlace.methods.bottom import Bottom
from interlace.methods.clustering import Clustering
from interlace.models import (
    Randomness,
    load_training_state,
    seed_for,
    seeded,
    set_rate,
    training_state,
)
from interlace.party import State


@dataclass(frozen=True)
class Step:
    """What one step of local learning works on.

    Attributes:
        logits: From rows to class scores (n, classes), with the graph to the weights.
        x, y: Rows with a label, and the labels (int64).
        u: Rows without; there may be none.
        augment: Changes rows.
        generator: Decides everything random.
        progress: Share of the training that is done, for losses that grow with it.
    """

    logits: Callable[[Tensor], Tensor]
    x: Tensor
    y: Tensor
    u: Tensor
    augment: Augmenter
    generator: torch.Generator
    progress: float


class SemiSupervised(BaseModel, ABC):
    """l_ssl = l_s(labelled rows) + λ_u · l_u(rows without a label)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    weight: float = Field(default=1.0, ge=0, description="λ_u.")
    ratio: int = Field(
        default=7, gt=0, description="Rows without a label for each with one in a step (μ)."
    )
    augment: Augmentation = Field(
        default=Augmentation(), description="How far rows are changed; see below."
    )

    @abstractmethod
    def loss(self, step: Step) -> Tensor:
        """The loss of one step; without ``step.u`` it is the supervised part alone."""


class FixMatch(SemiSupervised):
    """FixMatch (Sohn et al., 2020), for tables in the form of Sun et al. (FixMatch-tab).

    l_u is the mean over rows u of 1[max q ≥ τ] · CE(argmax q, p(A(u))), with q the softmax of the
    class scores of α(u) over ``temperature``, without gradient; α changes a row weakly, A strongly.

    The source's threshold for tables is not known to us; 0.8 for two classes is ours. The weights
    used afterwards are the last ones, not a running mean of them.
    """

    name: Literal["fixmatch"] = Field(default="fixmatch", description="Which loss it is.")
    threshold: float | None = Field(
        default=None, ge=0, le=1, description="τ; without it 0.95, and 0.8 for two classes."
    )
    temperature: float = Field(default=1.0, gt=0, description="Divides the scores of α(u).")

    def loss(self, step: Step) -> Tensor:
        x = step.augment.weak(step.x, step.generator)
        if not len(step.u):
            return F.cross_entropy(step.logits(x), step.y)
        weak = step.augment.weak(step.u, step.generator)
        strong = step.augment.strong(step.u, step.generator)
        with torch.no_grad():
            sure, guess = (step.logits(weak) / self.temperature).softmax(1).max(1)
        logits = step.logits(torch.cat([x, strong]))
        supervised = F.cross_entropy(logits[: len(x)], step.y)
        threshold = self.threshold
        if threshold is None:
            threshold = 0.95 if logits.shape[1] > 2 else 0.8
        each = F.cross_entropy(logits[len(x) :], guess, reduction="none")
        return supervised + self.weight * (each * (sure >= threshold)).mean()


class MixMatch(SemiSupervised):
    """MixMatch (Berthelot et al., 2019).

    A row without a label gets the sharpened mean of what the model says of two weak copies; then
    all rows are mixed with each other (MixUp), and l_u is the squared distance of probabilities.
    λ_u grows linearly from 0 to ``weight`` over the training.
    """

    name: Literal["mixmatch"] = Field(default="mixmatch", description="Which loss it is.")
    weight: float = Field(default=75.0, ge=0, description="λ_u at the end.")
    ratio: int = Field(
        default=1, gt=0, description="Rows without a label for each with one in a step (μ)."
    )
    temperature: float = Field(
        default=0.5, gt=0, description="T of the sharpening p^(1/T) / Σ p^(1/T)."
    )
    alpha: float = Field(
        default=0.75, gt=0, description="Parameter of the Beta distribution of mixing shares."
    )

    def loss(self, step: Step) -> Tensor:
        draw = step.generator
        x = step.augment.weak(step.x, draw)
        copies = [step.augment.weak(step.u, draw) for _ in range(2)] if len(step.u) else []
        with torch.no_grad():
            classes = step.logits(x[:1]).shape[1]
            targets = [F.one_hot(step.y, classes).float()]
            if copies:
                mean = torch.stack([step.logits(u).softmax(1) for u in copies]).mean(0)
                guess = F.normalize(mean ** (1 / self.temperature), p=1, dim=1)
                targets += [guess] * len(copies)
        rows, target = torch.cat([x, *copies]), torch.cat(targets)
        partner = torch.randperm(len(rows), generator=draw)
        share = self._shares(len(rows), draw)
        mixed = step.augment.mix(rows, rows[partner], share, draw)
        target = torch.lerp(target[partner], target, share[:, None])
        logits = step.logits(mixed)
        n = len(x)
        supervised = F.cross_entropy(logits[:n], target[:n])
        if not copies:
            return supervised
        consistency = F.mse_loss(logits[n:].softmax(1), target[n:])
        return supervised + self.weight * step.progress * consistency

    def _shares(self, n: int, generator: torch.Generator) -> Tensor:
        """max(λ, 1 − λ) of λ ~ Beta(α, α): each row keeps the larger part of itself."""
        seed = int(torch.randint(2**62, (1,), generator=generator))
        share = np.random.default_rng(seed).beta(self.alpha, self.alpha, n)
        return torch.from_numpy(np.maximum(share, 1 - share)).float()


class PseudoLabels(SemiSupervised):
    """Plain pseudo-labels (Lee, 2013): the model's own guess is the label, whatever its confidence.

    Rows are not changed. λ_u grows linearly from 0 to ``weight`` over the training.
    """

    name: Literal["pseudo_labels"] = Field(default="pseudo_labels", description="Which loss it is.")
    weight: float = Field(default=1.0, ge=0, description="λ_u at the end.")

    def loss(self, step: Step) -> Tensor:
        logits = step.logits(torch.cat([step.x, step.u]))
        n = len(step.x)
        supervised = F.cross_entropy(logits[:n], step.y)
        if not len(step.u):
            return supervised
        guessed = F.cross_entropy(logits[n:], logits[n:].detach().argmax(1))
        return supervised + self.weight * step.progress * guessed


def _by_name(value: Any) -> Any:
    """A job may give the name alone, or settings of FixMatch without its name."""
    if isinstance(value, str):
        return {"name": value}
    return {"name": "fixmatch", **value} if isinstance(value, dict) else value


AnySemiSupervised = Annotated[
    FixMatch | MixMatch | PseudoLabels, Field(discriminator="name"), BeforeValidator(_by_name)
]


class LocalSettings(BaseModel):
    """What the parties agree on about learning at each of them.

    Args:
        semi_supervised: The loss.
        clustering: How gradients become temporary labels.
        epochs: Passes over the overlap; each also draws ``ratio`` times as many other rows, anew.
        refine_epochs: Passes in a second round, with more rows labelled.
        batch_size: Rows with a label in a step.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    semi_supervised: AnySemiSupervised = FixMatch()
    clustering: Clustering = "kmeans"
    epochs: Passes = 200
    refine_epochs: Passes = 0
    batch_size: Count = 64


class LocalLearner:
    """A party's bottom model with a linear head of its own, trained on the party's rows alone.

    Args:
        bottom: The bottom model; it goes on being trained by its own optimiser.
        settings: What was agreed.
        classes: Outputs of the head.
    """

    def __init__(self, bottom: Bottom, settings: LocalSettings, classes: int) -> None:
        self.bottom, self.settings, self.classes = bottom, settings, classes
        seed = seed_for(bottom.party.secret, "local head")
        self.head = seeded(lambda: nn.Linear(bottom.width, classes), seed)
        self.optimiser = bottom.settings.optimisation.optimiser(self.head)
        self.randomness = Randomness(self.head, seed)
        self.epoch = 0

    def learn(
        self,
        rows: Tensor,
        labels: Tensor,
        unlabelled: Tensor,
        epochs: int,
        more: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        """Train for some epochs more.

        Args:
            rows: Rows of the party's table that have a label; without any, nothing is learnt.
            labels: Their labels (int64, below ``classes``).
            unlabelled: Rows without a label.
            epochs: How many passes over ``rows``.
            more: Further rows and their labels, if any, of which there may be far more than of
                ``rows``: each step adds the mean loss of some, so that they do not drown those.
        """
        method, x = self.settings.semi_supervised, self.bottom.x
        if not len(rows):
            return
        if more is None:
            more = rows[:0], labels[:0]
        seen = torch.cat([rows, unlabelled, more[0]])
        augment = method.augment.over(self.bottom.plan.spec, x[seen])
        optimisers = [o for o in (self.bottom.optimiser, self.optimiser) if o is not None]
        optimisation, party = self.bottom.settings.optimisation, self.bottom.party
        due = self.settings.epochs + self.settings.refine_epochs
        self.bottom.module.train()
        for _ in range(epochs):
            for optimiser in optimisers:
                set_rate(optimiser, optimisation.rate(self.epoch, due))
            self.epoch += 1
            party.tell(f"{party.name} learns by itself, epoch {self.epoch} of {due}")
            seed = seed_for(party.secret, "local", self.epoch)
            generator = torch.Generator().manual_seed(seed)
            steps = math.ceil(len(rows) / self.settings.batch_size)
            size = len(rows) * method.ratio
            for first, without, further in zip(
                _parts(len(rows), len(rows), steps, generator),
                _parts(len(unlabelled), size, steps, generator),
                _parts(len(more[0]), size, steps, generator),
                strict=True,
            ):
                loss = method.loss(
                    Step(
                        logits=self._logits,
                        x=x[rows[first]],
                        y=labels[first],
                        u=x[unlabelled[without]],
                        augment=augment,
                        generator=generator,
                        progress=min(1.0, self.epoch / max(1, self.settings.epochs)),
                    )
                )
                if len(further):
                    weak = augment.weak(x[more[0][further]], generator)
                    loss = loss + F.cross_entropy(self._logits(weak), more[1][further])
                for optimiser in optimisers:
                    optimiser.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                for optimiser in optimisers:
                    optimiser.step()

    def predict(self, rows: Tensor) -> Tensor:
        """Probabilities (n, classes) by the head of this party's own."""
        with torch.no_grad():
            out: Tensor = self.head(self.bottom.embed(rows)).softmax(1)
        return out

    def state(self) -> State:
        """The head and how far it has come, for a checkpoint; the bottom model keeps its own."""
        meta: dict[str, Any] = {
            "settings": self.settings.model_dump(mode="json"),
            "classes": self.classes,
            "epoch": self.epoch,
        }
        return State(training_state(self.head, self.optimiser, self.randomness), meta)

    @classmethod
    def from_state(cls, bottom: Bottom, state: State) -> LocalLearner:
        """A learner as :meth:`state` gave it, over its bottom model."""
        settings = LocalSettings.model_validate(state.meta["settings"])
        learner = cls(bottom, settings, int(state.meta["classes"]))
        load_training_state(state.tensors, learner.head, learner.optimiser, learner.randomness)
        learner.epoch = int(state.meta["epoch"])
        return learner

    def _logits(self, x: Tensor) -> Tensor:
        with self.bottom.randomness.stream():
            out: Tensor = self.head(self.bottom.module(x))
        return out


def _parts(rows: int, most: int, steps: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    """Up to ``most`` of the positions 0..rows-1, drawn without replacement, in so many parts."""
    return torch.randperm(rows, generator=generator)[:most].tensor_split(steps)
