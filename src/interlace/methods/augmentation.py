"""Changing a record without changing what it says: weakly, strongly, and mixed with another."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor
from torch.nn import functional as F

from interlace.data.spec import InputSpec


class Augmentation(BaseModel):
    """How far a party's rows are changed.

    Args:
        mask: Share of a table's values that are hidden.
        noise: Standard deviation of what is added to a table's standardised numbers.
        flip: Whether images are mirrored; not where left and right differ, as in digits.

    The source names masking and noise for tables without their rates; these rates are ours.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    mask: float = Field(default=0.2, ge=0, lt=1)
    noise: float = Field(default=0.1, ge=0)
    flip: bool = True

    def over(self, spec: InputSpec, x: Tensor) -> Augmenter:
        """For rows shaped like ``spec``; what is typical is read off the training rows ``x``."""
        if spec.image:
            return Images(x, flip=self.flip)
        return Tables(x, spec.numeric, mask=self.mask, noise=self.noise)


class Augmenter(ABC):
    """Draws changed copies of rows; ``generator`` alone decides which."""

    @abstractmethod
    def weak(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """A copy that any reader would take for the same record."""

    @abstractmethod
    def strong(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """A copy that takes some knowledge to recognise."""

    @abstractmethod
    def mix(self, x: Tensor, other: Tensor, share: Tensor, generator: torch.Generator) -> Tensor:
        """Rows between ``x`` and ``other``, ``share`` (n,) of the way from the latter."""


class Tables(Augmenter):
    """FixMatch-tab (Sun et al., ICCV 2023): α(x) = m ⊙ x + (1 − m) ⊙ x̄, A(x) = α(x) + noise.

    x̄ holds the party's own means. A category has no mean: a hidden one gets code 0, the level that
    is missing or unknown, as a whole, and noise is for numbers alone (ours).
    """

    def __init__(self, x: Tensor, numeric: int, *, mask: float, noise: float) -> None:
        self.numeric, self.mask, self.noise = numeric, mask, noise
        self.typical = torch.cat([x[:, :numeric].mean(0), torch.zeros(x.shape[1] - numeric)])

    def weak(self, x: Tensor, generator: torch.Generator) -> Tensor:
        hidden = torch.rand(x.shape, generator=generator) < self.mask
        return torch.where(hidden, self.typical, x)

    def strong(self, x: Tensor, generator: torch.Generator) -> Tensor:
        x = self.weak(x, generator)
        noise = torch.randn(len(x), self.numeric, generator=generator)
        x[:, : self.numeric] += self.noise * noise
        return x

    def mix(self, x: Tensor, other: Tensor, share: Tensor, generator: torch.Generator) -> Tensor:
        """Numbers between the two; a category from either, with odds of share : 1 − share."""
        share = share[:, None]
        numbers = torch.lerp(other[:, : self.numeric], x[:, : self.numeric], share)
        codes = x[:, self.numeric :]
        mine = torch.rand(codes.shape, generator=generator) < share
        return torch.cat([numbers, torch.where(mine, codes, other[:, self.numeric :])], 1)


class Images(Augmenter):
    """FixMatch's images: weak is a flip and a shift; strong adds two changes drawn at random from
    RandAugment's and hides a square (Sohn et al., 2020; Cubuk et al., 2020).

    Shifts, shears and squares are in proportion to the image's own sides, since a party may hold
    half of one. The darkest and the brightest pixel of each channel in ``x`` stand for black and
    white.
    """

    def __init__(self, x: Tensor, *, flip: bool) -> None:
        self.flip = flip
        self.black = x.amin((0, 2, 3))[:, None, None]
        self.range = (x.amax((0, 2, 3))[:, None, None] - self.black).clamp_min(1e-6)

    def weak(self, x: Tensor, generator: torch.Generator) -> Tensor:
        n, _, h, w = x.shape
        rows = _shifted(n, h, generator)
        columns = _shifted(n, w, generator)
        if self.flip:
            mirrored = torch.rand(n, generator=generator) < 0.5
            columns = torch.where(mirrored[:, None], columns.flip(1), columns)
        which = torch.arange(n)[:, None, None]
        return x[which, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)

    def strong(self, x: Tensor, generator: torch.Generator) -> Tensor:
        x = (self.weak(x, generator) - self.black) / self.range
        for _ in range(2):
            chosen = torch.randint(len(_CHANGES), (len(x),), generator=generator)
            size = torch.rand(len(x), generator=generator)
            sign = torch.randint(2, (len(x),), generator=generator) * 2.0 - 1
            changed = x.clone()
            for i, change in enumerate(_CHANGES):
                some = (chosen == i).nonzero()[:, 0]
                if len(some):
                    changed[some] = change(x[some], size[some], sign[some]).clamp(0, 1)
            x = changed
        return _hide_square(x, generator) * self.range + self.black

    def mix(self, x: Tensor, other: Tensor, share: Tensor, generator: torch.Generator) -> Tensor:
        """Pixels between the two."""
        return torch.lerp(other, x, share[:, None, None, None])


def _shifted(n: int, side: int, generator: torch.Generator) -> Tensor:
    """Indices (n, side) of a side moved by up to an eighth (4 of 32), mirrored at its ends."""
    most = min(max(1, round(side / 8)), side - 1)
    move = torch.randint(-most, most + 1, (n, 1), generator=generator)
    index = (torch.arange(side) + move).abs()
    return side - 1 - (side - 1 - index).abs()


def _hide_square(x: Tensor, generator: torch.Generator) -> Tensor:
    """Grey squares of half the shorter side, anywhere."""
    n, _, h, w = x.shape
    half = min(h, w) / 4
    y0 = torch.rand(n, 1, generator=generator) * h
    x0 = torch.rand(n, 1, generator=generator) * w
    inside = ((torch.arange(h) + 0.5 - y0).abs() < half)[:, :, None] & (
        (torch.arange(w) + 0.5 - x0).abs() < half
    )[:, None, :]
    return torch.where(inside[:, None], 0.5, x)


# RandAugment's changes of images in [0, 1]: x is (n, c, h, w); size in [0, 1] and sign (n,) say how
# far each image goes and which way.
_Change = Callable[[Tensor, Tensor, Tensor], Tensor]


def _each(value: Tensor) -> Tensor:
    return value[:, None, None, None]


def _identity(x: Tensor, size: Tensor, sign: Tensor) -> Tensor:
    return x


def _autocontrast(x: Tensor, size: Tensor, sign: Tensor) -> Tensor:
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    return torch.where(high > low, (x - low) / (high - low).clamp_min(1e-6), x)


def _brightness(x: Tensor, size: Tensor, sign: Tensor) -> Tensor:
    return x * _each(0.05 + 0.9 * size)


def _colour(x: Tensor, size: Tensor, sign: Tensor) -> Tensor:
    return torch.lerp(x.mean(1, keepdim=True).expand_as(x), x, _each(0.05 + 0.9 * size))


def _contrast(x: Tensor, size: Tensor, sign: Tensor) -> Tensor:
    return torch.lerp(x.mean((1, 2, 3), keepdim=True).expand_as(x), x, _each(0.05 + 0.9 * size))


def _equalise(x: Tensor, size: Tensor, sign: Tensor) -> Tensor:
    levels = (x * 255).long().flatten(2)
    counts = torch.zeros(*levels.shape[:2], 256).scatter_add_(2, levels, torch.ones(levels.shape))
    below = counts.cumsum(2)
    first = below.gather(2, levels.amin(2, keepdim=True))
    spread = (below[:, :, -1:] - first).clamp_min(1)
    return ((below.gather(2, levels) - first) / spread).view_as(x)


def _invert(x: Tensor, size: Tensor, sign: Tensor) -> Tensor:
    return 1 - x


def _posterise(x: Tensor, size: Tensor, sign: Tensor) -> Tensor:
    step = _each(2.0 ** (4 * size).round())
    return (x * 255 / step).floor() * step / 255


def _sharpness(x: Tensor, size: Tensor, sign: Tensor) -> Tensor:
    kernel = torch.tensor([[1.0, 1, 1], [1, 5, 1], [1, 1, 1]]) / 13
    c = x.shape[1]
    padded = F.pad(x, (1, 1, 1, 1), mode="replicate")
    smooth = F.conv2d(padded, kernel.expand(c, 1, 3, 3), groups=c)
    return torch.lerp(smooth, x, _each(0.05 + 0.9 * size))


def _solarise(x: Tensor, size: Tensor, sign: Tensor) -> Tensor:
    return torch.where(x < _each(size), x, 1 - x)


def _rotate(x: Tensor, size: Tensor, sign: Tensor) -> Tensor:
    angle = size * sign * (math.pi / 6)
    ratio = x.shape[2] / x.shape[3]
    cos, sin, zero = angle.cos(), angle.sin(), torch.zeros(len(x))
    return _moved(x, (cos, -sin * ratio, zero), (sin / ratio, cos, zero))


def _shear_x(x: Tensor, size: Tensor, sign: Tensor) -> Tensor:
    one, zero = torch.ones(len(x)), torch.zeros(len(x))
    return _moved(x, (one, 0.3 * size * sign * x.shape[2] / x.shape[3], zero), (zero, one, zero))


def _shear_y(x: Tensor, size: Tensor, sign: Tensor) -> Tensor:
    one, zero = torch.ones(len(x)), torch.zeros(len(x))
    return _moved(x, (one, zero, zero), (0.3 * size * sign * x.shape[3] / x.shape[2], one, zero))


def _translate_x(x: Tensor, size: Tensor, sign: Tensor) -> Tensor:
    one, zero = torch.ones(len(x)), torch.zeros(len(x))
    return _moved(x, (one, zero, 0.9 * size * sign), (zero, one, zero))


def _translate_y(x: Tensor, size: Tensor, sign: Tensor) -> Tensor:
    one, zero = torch.ones(len(x)), torch.zeros(len(x))
    return _moved(x, (one, zero, zero), (zero, one, 0.9 * size * sign))


def _moved(x: Tensor, *rows: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Resample at affine places; coordinates run from -1 to 1 along each side."""
    matrix = torch.stack([torch.stack(row, 1) for row in rows], 1)
    grid = F.affine_grid(matrix, list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, align_corners=False)


_CHANGES: tuple[_Change, ...] = (
    _identity,
    _autocontrast,
    _brightness,
    _colour,
    _contrast,
    _equalise,
    _invert,
    _posterise,
    _sharpness,
    _solarise,
    _rotate,
    _shear_x,
    _shear_y,
    _translate_x,
    _translate_y,
)
