"""What a client does by itself: a network whose weights are one vector, and descent on its rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from interlace.errors import DataError
from interlace.methods.base import batches
from interlace.methods.horizontal.privacy import Privacy
from interlace.methods.objective import Objective
from interlace.models import Randomness, seed_for

CHUNK = 1024  # rows in one pass outside of training


class LocalTraining(BaseModel):
    """How each client trains between two rounds: plain gradient descent.

    Args:
        epochs: Passes over the client's rows in one round.
        batch_size: Rows in a step; ``None`` takes all of them.
        learning_rate: Step size.
        weight_decay: L2 penalty, as part of the gradient.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    epochs: int = Field(default=1, ge=1)
    batch_size: int | None = Field(default=32, ge=1)
    learning_rate: float = Field(default=0.1, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)


class FlatModel:
    """A module whose trainable parameters are views of one vector, and their gradients of another.

    A step, a penalty or a correction is then one operation on a vector, whatever the module.
    ``vector`` and ``load`` also carry the buffers made of real numbers (running means of a
    normalising layer), behind the parameters.

    Raises:
        DataError: the module has no trainable parameter, or some are not float32.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        parameters = [p for p in module.parameters() if p.requires_grad]
        if not parameters or any(p.dtype != torch.float32 for p in parameters):
            raise DataError(
                "the network has no trainable float32 weights",
                way_out="Give the parties a torch module with float32 parameters",
            )
        self.weights = torch.empty(sum(p.numel() for p in parameters))
        self.gradient = torch.zeros_like(self.weights)
        at = 0
        for p in parameters:
            part = slice(at, at + p.numel())
            view = self.weights[part].view_as(p)
            view.copy_(p.data)
            p.data, p.grad = view, self.gradient[part].view_as(p)
            at += p.numel()
        self.buffers = [b for b in module.buffers() if b.is_floating_point()]

    @property
    def size(self) -> int:
        """Length of the vector, buffers included."""
        return self.weights.numel() + sum(b.numel() for b in self.buffers)

    def vector(self) -> Tensor:
        """All weights, as a new vector of shape (size,)."""
        return torch.cat([self.weights, *(b.flatten() for b in self.buffers)])

    def load(self, vector: Tensor) -> None:
        """Take all weights from a vector of shape (size,)."""
        load_vector(self.module, vector)


def travelling(module: nn.Module) -> list[Tensor]:
    """What of a module travels: trainable parameters, then buffers of real numbers."""
    parameters = [p.data for p in module.parameters() if p.requires_grad]
    return [*parameters, *(b for b in module.buffers() if b.is_floating_point())]


def vector_of(module: nn.Module) -> Tensor:
    """All that travels of a module, as a new vector."""
    return torch.cat([t.flatten() for t in travelling(module)])


def load_vector(module: nn.Module, vector: Tensor) -> None:
    """Take what :func:`vector_of` gave, in place."""
    at = 0
    for t in travelling(module):
        t.copy_(vector[at : at + t.numel()].view_as(t))
        at += t.numel()


@dataclass
class Work:
    """What one round of local training came to: steps, mean loss over them, and, where it was
    measured, how far the local gradient shrank."""

    steps: int
    loss: float
    inexactness: float | None = None


@dataclass
class Client:
    """One client's rows and how it learns from them.

    Attributes:
        x, y: Features and labels of its whole table.
        rows: Positions of the rows to learn from.
        objective: The loss.
        training: How it descends.
        seed: Seeds the order of its rows.
    """

    x: Tensor
    y: Tensor
    rows: Tensor
    objective: Objective
    training: LocalTraining
    seed: int

    def descend(
        self,
        model: FlatModel,
        moment: int,
        *,
        epochs: int,
        shift: Tensor | None = None,
        proximal: float = 0.0,
        inexactness: float = 0.0,
    ) -> Work:
        """Plain descent: w ← w − η(∇F(w; batch) + shift + μ(w − w_t)).

        Args:
            model: Starts at w_t, and ends where the descent does.
            moment: Names the round, for the order of the rows.
            epochs: Passes over the rows.
            shift: Added to every gradient (SCAFFOLD's c − c_i); shape (parameters,).
            proximal: μ of FedProx.
            inexactness: γ of FedProx: stop after the first pass at whose end the gradient of the
                local objective is at most γ times what it was at the start. 0 never measures it.
        """
        start = model.weights.clone() if proximal or inexactness else None
        first = float(self.gradient(model).norm()) if inexactness else 0.0
        rate, decay = self.training.learning_rate, self.training.weight_decay
        weights, gradient = model.weights, model.gradient
        total, steps, shrunk = torch.zeros(()), 0, None
        model.module.train()
        randomness = Randomness(model.module, seed_for(self.seed, "dropout", moment))
        for epoch in range(epochs):
            for batch in self._batches(moment, epoch):
                gradient.zero_()
                with randomness.stream():
                    logits = model.module(self.x.index_select(0, batch))
                loss = self.objective.loss(logits, self.y.index_select(0, batch))
                torch.autograd.backward(loss)
                if shift is not None:
                    gradient.add_(shift)
                if decay:
                    gradient.add_(weights, alpha=decay)
                if proximal and start is not None:
                    gradient.add_(weights, alpha=proximal).sub_(start, alpha=proximal)
                weights.sub_(gradient, alpha=rate)
                total += loss.detach()
                steps += 1
            if inexactness and start is not None:
                local = self.gradient(model) + proximal * (weights - start)
                shrunk = float(local.norm()) / first if first > 0 else 0.0
                model.module.train()
                if shrunk <= inexactness:
                    break
        return Work(steps, total.item() / max(steps, 1), shrunk)

    def gradient(self, model: FlatModel) -> Tensor:
        """∇F at the model's weights over all rows; a new vector of shape (parameters,)."""
        model.module.eval()
        model.gradient.zero_()
        for rows in torch.split(self.rows, CHUNK):
            logits = model.module(self.x.index_select(0, rows))
            loss = self.objective.loss(logits, self.y.index_select(0, rows))
            torch.autograd.backward(loss * (len(rows) / len(self.rows)))
        return model.gradient + self.training.weight_decay * model.weights

    def descend_privately(
        self,
        model: FlatModel,
        privacy: Privacy,
        *,
        epochs: int,
        shift: Tensor | None,
        proximal: float,
        generator: torch.Generator,
    ) -> Work:
        """Descent on clipped and noised gradients (DP-SGD).

        A batch is drawn by a coin for each row (Poisson sampling), as the accountant assumes, and
        the sum over it is divided by the expected size, as its true size is private.

        Raises:
            DataError: the network ties the rows of a batch together.

        Source: Abadi et al., CCS 2016, algorithm 1.
        """
        expected, steps = self.private_steps(epochs)
        start = model.weights.clone()
        each = _gradients_of_rows(model, self.objective)
        rate, decay = self.training.learning_rate, self.training.weight_decay
        for _ in range(steps):
            coins = torch.rand(len(self.rows), generator=generator)
            batch = self.rows[coins < expected / len(self.rows)]
            total = torch.zeros_like(model.weights)
            for rows in torch.split(batch, CHUNK):
                gradients = each(self.x.index_select(0, rows), self.y.index_select(0, rows))
                lengths = torch.linalg.vector_norm(gradients, dim=1).clamp(min=1e-12)
                total += (privacy.clip / lengths).clamp(max=1.0) @ gradients
            noise = torch.randn(total.shape, generator=generator)
            total.add_(noise, alpha=privacy.noise * privacy.clip).div_(expected)
            if shift is not None:
                total.add_(shift)
            if decay:
                total.add_(model.weights, alpha=decay)
            if proximal:
                total.add_(model.weights, alpha=proximal).sub_(start, alpha=proximal)
            model.weights.sub_(total, alpha=rate)
        return Work(steps, math.nan)

    def private_steps(self, epochs: int) -> tuple[int, int]:
        """Expected batch size and number of steps of :meth:`descend_privately`."""
        expected = min(self.training.batch_size or len(self.rows), len(self.rows))
        return expected, epochs * math.ceil(len(self.rows) / expected)

    def _batches(self, moment: int, epoch: int) -> Iterator[Tensor]:
        size = self.training.batch_size
        if size is None or size >= len(self.rows):
            yield self.rows
            return
        generator = torch.Generator().manual_seed(seed_for(self.seed, "batches", moment, epoch))
        order = self.rows[torch.randperm(len(self.rows), generator=generator)]
        for batch in batches(len(order), size):
            yield order[batch]


def _gradients_of_rows(
    model: FlatModel, objective: Objective
) -> Callable[[Tensor, Tensor], Tensor]:
    """A function from (n, ...) rows and their labels to the gradient of each; (n, parameters)."""
    from torch.func import functional_call, grad, vmap

    names = [n for n, p in model.module.named_parameters() if p.requires_grad]
    model.module.eval()

    def loss_of_row(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        logits = functional_call(model.module, parameters, (x[None],))
        return objective.loss(logits, y[None])

    per_row = vmap(grad(loss_of_row), in_dims=(None, 0, 0))

    def gradients(x: Tensor, y: Tensor) -> Tensor:
        parameters = dict(model.module.named_parameters())
        try:
            found = per_row({n: parameters[n].detach() for n in names}, x, y)
        except (RuntimeError, ValueError) as e:
            raise DataError(
                "the network's rows cannot be told apart, so no row's gradient can be clipped",
                way_out="Use layers that treat each row by itself (group instead of batch "
                "normalisation)",
            ) from e
        return torch.cat([found[n].flatten(1) for n in names], 1)

    return gradients
