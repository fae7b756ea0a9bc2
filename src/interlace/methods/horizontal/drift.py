"""How far clients wander apart: distances and angles between their updates, kept for each round.

Everything follows from three running sums, so a round of a thousand clients needs the memory of
three updates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from interlace.methods.base import Epoch


@dataclass(frozen=True)
class Round(Epoch):
    """One round. The measures of drift are ``None`` where the server saw no single update (secure
    aggregation), or fewer than two.

    Attributes:
        clients: Whose updates were used.
        dropped: Clients of this round that did not finish.
        distance: Root mean square distance between two clients' updates, ‖Δ_i − Δ_j‖₂.
        angle: Angle whose cosine is the mean cosine between two clients' updates, in degrees; 0
            when all go the same way, 90 when they have nothing in common.
        dissimilarity: Mean square length of an update over the square length of the mean update,
            the root of it; 1 when all are equal (B in Li et al., MLSys 2020, definition 3, with
            updates in place of gradients).
        inexactness: Largest γ that a client reached, ‖∇h_k(w)‖ / ‖∇h_k(w_t)‖, where it is measured.
    """

    clients: int = 0
    dropped: int = 0
    distance: float | None = None
    angle: float | None = None
    dissimilarity: float | None = None
    inexactness: float | None = None


class Drift:
    """The running sums of one round."""

    def __init__(self, size: int) -> None:
        self.total = torch.zeros(size)
        self.directions = torch.zeros(size)
        self.squares = 0.0
        self.moved = 0
        self.count = 0

    def add(self, update: Tensor) -> None:
        """Take a client's update into account; shape (size,)."""
        length = float(torch.linalg.vector_norm(update))
        self.count += 1
        self.squares += length**2
        self.total += update
        if length > 0:
            self.moved += 1
            self.directions.add_(update, alpha=1 / length)

    @property
    def distance(self) -> float | None:
        """Root mean square distance between two updates."""
        if self.count < 2:
            return None
        spread = self.count * self.squares - float(self.total.square().sum())
        return math.sqrt(max(0.0, 2 * spread / (self.count * (self.count - 1))))

    @property
    def angle(self) -> float | None:
        """Angle of the mean cosine between two updates, in degrees."""
        if self.moved < 2:
            return None
        n = self.moved
        cosine = (float(self.directions.square().sum()) - n) / (n * (n - 1))
        return math.degrees(math.acos(min(1.0, max(-1.0, cosine))))

    @property
    def dissimilarity(self) -> float | None:
        """Root of the mean square length over the square length of the mean."""
        together = float(self.total.square().sum())
        if self.count < 2 or together == 0:
            return None
        return math.sqrt(self.count * self.squares / together)
