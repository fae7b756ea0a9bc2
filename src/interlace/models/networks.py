"""Bottom and top networks. A network reads one float32 tensor per party: its numeric columns first,
then one column of codes for each category."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from interlace.data.spec import InputSpec
from interlace.errors import JobError

MOST = 16_384  # units in a layer: a partner proposes the network, and this bounds what it can ask


class BottomSpec(BaseModel):
    """Which bottom network a party builds over its own columns.

    Args:
        network: ``mlp``, ``linear``, ``fourier`` (a Gaussian kernel by random Fourier features, and
            a linear model over them), or ``resnet`` for images; ``auto`` takes ``resnet`` for
            images and ``mlp`` for everything else.
        hidden: Widths of the hidden layers of an MLP, or channels of the stages of a ResNet.
        width: Width d of the embedding.
        dropout: Share of hidden units left out in training.
        components: How many random features a ``fourier`` network has.
        gamma: Its kernel is exp(-gamma ‖x - x'‖²); ``None`` takes 1 / the number of inputs.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    network: Literal["auto", "mlp", "linear", "fourier", "resnet"] = "auto"
    hidden: tuple[Annotated[int, Field(gt=0, le=MOST)], ...] = Field(default=(64,), max_length=32)
    width: int = Field(default=64, gt=0, le=MOST)
    dropout: float = Field(default=0.0, ge=0, lt=1)
    components: int = Field(default=256, gt=0, le=MOST)
    gamma: float | None = Field(default=None, gt=0)

    def build(self, spec: InputSpec) -> nn.Module:
        """The network for a party's features; initial weights come from torch's global seed."""
        network = self.network
        if network == "auto":
            network = "resnet" if spec.image else "mlp"
        if network == "resnet" and spec.image is None:
            raise JobError("`network: resnet` is for images; this party's columns are a table")
        if network == "resnet" and spec.image:
            return SmallResNet(spec.image, self.hidden, self.width)
        if spec.image:
            pixels = spec.image[0] * spec.image[1] * spec.image[2]
            flat = InputSpec(numeric=pixels, cardinalities=(), image=None, names=())
            return nn.Sequential(nn.Flatten(), self._tabular(network, flat))
        return self._tabular(network, spec)

    def _tabular(self, network: str, spec: InputSpec) -> nn.Module:
        if network == "linear":
            return Linear(spec, self.width)
        if network == "fourier":
            features = FourierFeatures(spec, self.components, self.gamma)
            return nn.Sequential(features, nn.Linear(self.components, self.width))
        if not spec.cardinalities:
            return mlp(spec.numeric, self.hidden, self.width, self.dropout)
        columns = Columns(spec)
        return nn.Sequential(columns, *mlp(columns.width, self.hidden, self.width, self.dropout))


class Columns(nn.Module):
    """Numeric columns as they are, categories as learnt vectors, side by side.

    The width of a category's vector grows with the fourth root of its levels' number.
    """

    def __init__(self, spec: InputSpec) -> None:
        super().__init__()
        self.numeric = spec.numeric
        self.embeddings = nn.ModuleList(
            nn.Embedding(levels, min(16, max(2, round(1.6 * levels**0.56))))
            for levels in spec.cardinalities
        )
        self.width = spec.numeric + sum(e.embedding_dim for e in self.embeddings)  # type: ignore[misc]

    def forward(self, x: Tensor) -> Tensor:
        """From (n, numeric + categories) to (n, width)."""
        codes = x[:, self.numeric :].long()
        parts = [x[:, : self.numeric]]
        parts += [e(codes[:, j]) for j, e in enumerate(self.embeddings)]
        return torch.cat(parts, 1)


class Linear(nn.Module):
    """A linear map of the columns, each level of a category with a weight of its own."""

    def __init__(self, spec: InputSpec, width: int) -> None:
        super().__init__()
        self.numeric = spec.numeric
        self.dense = nn.Linear(spec.numeric, width)
        self.levels = nn.ModuleList(nn.Embedding(n, width) for n in spec.cardinalities)
        for table in self.levels:
            nn.init.zeros_(table.weight)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        """From (n, numeric + categories) to (n, width)."""
        out: Tensor = self.dense(x[:, : self.numeric])
        codes = x[:, self.numeric :].long()
        for j, table in enumerate(self.levels):
            out = out + table(codes[:, j])
        return out


class FourierFeatures(nn.Module):
    """Random features whose products are, on the average, a Gaussian kernel.

    √(2/D) cos(Wx + b) with rows of W from N(0, 2γ) and b from U(0, 2π); x has a column for each
    level of a category. Nothing in it is learnt: W and b stay as they were drawn.

    Source: Rahimi and Recht, "Random features for large-scale kernel machines", NIPS 2007.
    """

    weight: Tensor
    phase: Tensor

    def __init__(self, spec: InputSpec, components: int, gamma: float | None) -> None:
        super().__init__()
        self.numeric, self.cardinalities = spec.numeric, spec.cardinalities
        inputs = spec.numeric + sum(spec.cardinalities)
        spread = math.sqrt(2 * (gamma or 1 / inputs))
        self.register_buffer("weight", spread * torch.randn(components, inputs))
        self.register_buffer("phase", 2 * math.pi * torch.rand(components))

    def forward(self, x: Tensor) -> Tensor:
        """From (n, numeric + categories) to (n, components)."""
        parts = [x[:, : self.numeric]]
        for j, levels in enumerate(self.cardinalities):
            code = x[:, self.numeric + j].long()
            parts.append(nn.functional.one_hot(code, levels).to(x.dtype))
        angle = torch.cat(parts, 1) @ self.weight.T + self.phase
        return math.sqrt(2 / len(self.phase)) * angle.cos()


def mlp(inputs: int, hidden: Sequence[int], outputs: int, dropout: float = 0.0) -> nn.Sequential:
    """Linear layers with ReLU (and dropout) between them."""
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [nn.Linear(inputs, width), nn.ReLU()]
        if dropout:
            layers.append(nn.Dropout(dropout))
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, outputs))


class SmallResNet(nn.Module):
    """A small residual network for images (He et al., 2016, with group normalisation, since a
    batch's statistics would tie people's embeddings together)."""

    def __init__(self, image: tuple[int, int, int], channels: Sequence[int], width: int) -> None:
        super().__init__()
        stem = channels[0]
        layers: list[nn.Module] = [nn.Conv2d(image[0], stem, 3, padding=1), nn.ReLU()]
        before = stem
        for i, after in enumerate(channels):
            layers.append(_Residual(before, after, stride=1 if i == 0 else 2))
            before = after
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.head = nn.Linear(4 * before, width)

    def forward(self, x: Tensor) -> Tensor:
        """From (n, c, h, w) to (n, width)."""
        out: Tensor = self.head(self.body(x))
        return out


class _Residual(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.path = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, padding=1),
            nn.GroupNorm(min(8, after), after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, padding=1),
            nn.GroupNorm(min(8, after), after),
        )
        same = stride == 1 and before == after
        self.skip = nn.Identity() if same else nn.Conv2d(before, after, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.path(x) + self.skip(x))
