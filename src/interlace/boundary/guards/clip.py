"""Clipping: no person's row is longer than a norm."""

from __future__ import annotations

import torch
from pydantic import validate_call
from torch import Tensor

from interlace.boundary.guards.base import Guard, Positive, Sending, by_row


class Clip(Guard):
    """Shorten each row to at most a given L2 norm; shorter rows stay as they are.

    Each row has its own factor min(1, C / ‖x_i‖₂), so that a long row leaves its neighbours alone.

    Args:
        norm: The largest L2 norm C that a row can have.

    Source: Abadi et al., "Deep Learning with Differential Privacy", CCS 2016, algorithm 1.
    """

    @validate_call
    def __init__(self, norm: Positive) -> None:
        self.norm = norm

    def __call__(self, value: Tensor, sending: Sending) -> Tensor:
        rows = by_row(value)
        # In float64, where the squares of no float32 overflow or vanish.
        norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True, dtype=torch.float64)
        # A little shorter than C, so that neither rounding to the value's number type can pass it,
        # nor a norm that is itself a rounded sum of d squares, here and where it is looked at.
        rounding = 2 * (rows.shape[1] + 2) * torch.finfo(torch.float64).eps
        shorter = self.norm * (1 - torch.finfo(value.dtype).eps - rounding) / norms
        factors = torch.where(norms > self.norm, shorter, 1.0)
        return (rows * factors).to(value.dtype).reshape(value.shape)

    def follow(self, norm: float | None) -> float | None:
        return self.norm

    @property
    def label(self) -> str:
        return f"clip {self.norm:g}"
