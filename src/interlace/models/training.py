"""What every trained network needs: seeds of its own, an optimiser, a schedule, and its state."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from hashlib import blake2b
from threading import RLock
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn


class Optimisation(BaseModel):
    """How a network is trained.

    Args:
        learning_rate: Adam's step size.
        weight_decay: L2 penalty, decoupled from the gradient (AdamW).
        schedule: ``constant``, ``cosine`` (to zero over all epochs), or ``step`` (a tenth after
            one half and again after three quarters of the epochs).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    learning_rate: float = Field(default=1e-3, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    schedule: Literal["constant", "cosine", "step"] = "constant"

    def optimiser(self, module: nn.Module) -> torch.optim.Optimizer | None:
        """Adam over what the module has to learn, in one fused kernel; ``None`` if nothing."""
        learnt = [p for p in module.parameters() if p.requires_grad]
        if not learnt:
            return None
        kind = torch.optim.AdamW if self.weight_decay else torch.optim.Adam
        return kind(learnt, lr=self.learning_rate, weight_decay=self.weight_decay, fused=True)

    def rate(self, epoch: int, epochs: int) -> float:
        """Learning rate of an epoch (counted from 0)."""
        if self.schedule == "cosine":
            return self.learning_rate * 0.5 * (1 + math.cos(math.pi * epoch / epochs))
        if self.schedule == "step":
            return self.learning_rate * 0.1 ** ((epoch >= epochs / 2) + (epoch >= 3 * epochs / 4))
        return self.learning_rate


def warm_up() -> None:
    """Load what PyTorch leaves until the first optimiser is made, its compiler: a second or two."""
    Optimisation().optimiser(nn.Linear(1, 1))


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of every parameter group."""
    for group in optimiser.param_groups:
        group["lr"] = rate


def seed_for(seed: int, *names: str | int) -> int:
    """A seed of its own for everything that has a name: equal on every engine and machine."""
    digest = blake2b("/".join(map(str, (seed, *names))).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


# Torch's stream is the process's, and two parties of one process may work in threads of their own.
_ONE_AT_A_TIME = RLock()


def seeded(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Build a module with initial weights from ``seed``, leaving torch's global state alone."""
    with _ONE_AT_A_TIME, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


class Randomness:
    """A network's own stream for dropout, so that parties in one process do not share one.

    Networks that surely draw nothing skip the bookkeeping.
    """

    def __init__(self, module: nn.Module, seed: int) -> None:
        self._random = any(map(_may_draw, module.modules()))
        self.generator = torch.Generator().manual_seed(seed)

    def stream(self) -> AbstractContextManager[None]:
        """Draw from the network's own stream inside this context."""
        return self._swapped() if self._random else nullcontext()

    @contextmanager
    def _swapped(self) -> Iterator[None]:
        with _ONE_AT_A_TIME:
            outside = torch.get_rng_state()
            torch.set_rng_state(self.generator.get_state())
            try:
                yield
            finally:
                self.generator.set_state(torch.get_rng_state())
                torch.set_rng_state(outside)


def _may_draw(module: nn.Module) -> bool:
    """Whether a layer may draw random numbers: dropout and its kin, and any layer of others' make,
    whose code may."""
    ours = type(module).__module__.startswith(("torch.nn.modules.", "interlace."))
    kin = nn.modules.dropout._DropoutNd | nn.RReLU | nn.FractionalMaxPool2d | nn.FractionalMaxPool3d
    return not ours or isinstance(module, kin)


def training_state(
    module: nn.Module, optimiser: torch.optim.Optimizer | None, randomness: Randomness
) -> dict[str, Tensor]:
    """All numbers that a resumed training needs, by name."""
    out = {f"module/{k}": v for k, v in module.state_dict().items()}
    state = optimiser.state_dict()["state"] if optimiser is not None else {}
    for i, slots in state.items():
        out.update({f"optimiser/{i}/{k}": torch.as_tensor(v) for k, v in slots.items()})
    out["randomness"] = randomness.generator.get_state()
    return out


def load_training_state(
    state: dict[str, Tensor],
    module: nn.Module,
    optimiser: torch.optim.Optimizer | None,
    randomness: Randomness,
) -> None:
    """Take back what :func:`training_state` gave."""
    module.load_state_dict(
        {k.removeprefix("module/"): v for k, v in state.items() if k.startswith("module/")}
    )
    randomness.generator.set_state(state["randomness"])
    if optimiser is None:
        return
    slots: dict[int, dict[str, Any]] = {}
    for key, tensor in state.items():
        if key.startswith("optimiser/"):
            _, i, name = key.split("/")
            slots.setdefault(int(i), {})[name] = tensor.clone()
    groups = optimiser.state_dict()["param_groups"]
    optimiser.load_state_dict({"state": slots, "param_groups": groups})
