"""From labels to a loss and from logits to predictions, for each task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from interlace.data.labels import LabelPlan
from interlace.errors import DataError, JobError

ClassWeight = Literal["balanced"] | Mapping[Any, float] | None
Margin = Literal["hinge", "squared_hinge"]


@dataclass
class Objective:
    """The loss of a task and its reading of logits.

    Attributes:
        task: ``binary``, ``multiclass``, ``multilabel`` or ``regression``.
        outputs: How many numbers the model must give for one person.
        weight: Loss weight of each class, or ``None``.
        centre, scale: Mean and spread of a regression's training targets; the model learns the
            standardised target.
        margin: The loss of a support vector machine instead of the task's own: every class or label
            is told from the rest, max(0, 1 - t s) or its square over scores s and t of -1 or 1.
    """

    task: str
    outputs: int
    weight: Tensor | None = None
    centre: float = 0.0
    scale: float = 1.0
    margin: Margin | None = None

    @classmethod
    def fit(cls, plan: LabelPlan, y: Tensor, class_weight: ClassWeight) -> Objective:
        """Read what the loss needs off the training labels.

        Raises:
            DataError: the training people lack a class that other people of the party have, or
                have one class only.
            JobError: the class weights do not fit the label.
        """
        if class_weight is not None and plan.task not in ("binary", "multiclass"):
            raise JobError(f"`class_weight` is for classes, not for a {plan.task} label")
        if plan.task == "regression":
            spread = float(y.std()) if len(y) > 1 else 0.0
            return cls(plan.task, 1, None, float(y.mean()), spread or 1.0)
        if plan.task == "multilabel":
            return cls(plan.task, y.shape[1])
        counts = torch.bincount(y, minlength=len(plan.classes))
        unseen = int((counts == 0).sum())
        if unseen:
            doubts = f" ({plan.note})" if plan.note else ""
            raise DataError(
                f"{unseen} of {len(plan.classes)} classes do not occur among the {len(y):,} people "
                f"to train on, so the model could never name them{doubts}",
                party=plan.party,
                file=plan.file,
                column=plan.column,
                way_out="Share more people, hold out fewer, or drop the people of those classes; "
                "`interlace inspect` counts the classes",
            )
        weight = None
        if class_weight == "balanced":
            weight = len(y) / (len(counts) * counts.float())
        elif isinstance(class_weight, Mapping):
            places = {plan.place(c): float(w) for c, w in class_weight.items()}
            if None in places:
                raise JobError(
                    f"`class_weight` names a class that party '{plan.party}', column "
                    f"'{plan.column}' has not"
                )
            weight = torch.tensor([places.get(i, 1.0) for i in range(len(plan.classes))])
        elif class_weight is not None:
            raise JobError("`class_weight` is `balanced` or a weight for each class")
        return cls(plan.task, len(counts), weight)

    def to_json(self) -> dict[str, Any]:
        """For a checkpoint or a saved model."""
        weight = None if self.weight is None else self.weight.tolist()
        return {**vars(self), "weight": weight}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Objective:
        """What :meth:`to_json` gave."""
        weight = data["weight"]
        return cls(**{**data, "weight": None if weight is None else torch.tensor(weight)})

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """Mean loss of (n, outputs) logits against (n,) or (n, m) labels."""
        if self.margin is not None:
            return self._margin_loss(logits, y)
        if self.task == "regression":
            return F.mse_loss(logits[:, 0], (y - self.centre) / self.scale)
        if self.task == "multilabel":
            return F.binary_cross_entropy_with_logits(logits, y)
        return F.cross_entropy(logits, y, self.weight)

    def _margin_loss(self, logits: Tensor, y: Tensor) -> Tensor:
        marks = y if self.task == "multilabel" else F.one_hot(y, self.outputs)
        each = (1 - (2 * marks - 1) * logits).clamp_min(0)
        each = (each.square() if self.margin == "squared_hinge" else each).sum(1)
        if self.weight is None:
            return each.mean()
        weight = self.weight[y]
        return (weight * each).sum() / weight.sum()

    def probabilities(self, logits: Tensor) -> NDArray[np.float64]:
        """(n, classes) probabilities, (n, labels) probabilities, or (n,) regression estimates.

        Of a support vector machine they rank and decide as its scores do, and are not calibrated.
        """
        if self.task == "regression":
            return np.asarray(logits[:, 0].double() * self.scale + self.centre)
        if self.task == "multilabel":
            return np.asarray(logits.double().sigmoid())
        return np.asarray(logits.double().softmax(1))
