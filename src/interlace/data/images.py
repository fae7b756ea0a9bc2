"""Images: arrays in a column, or encoded bytes, to standardised tensors of one size."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from interlace.data.columns import CLIP, ColumnReport
from interlace.errors import DataError

Pixels = NDArray[np.float32]

_CHUNK = 1024  # images decoded at a time while fitting, so that memory stays bounded
_GREY_MODES = frozenset({"1", "L", "LA", "I", "I;16", "F"})


def is_image(dtype: pl.DataType) -> bool:
    """Whether a column of this type is read as images."""
    return dtype == pl.Binary or isinstance(dtype, pl.Array | pl.List)


class ImagePlan(BaseModel):
    """The size and the pixel statistics of the training images.

    Pixels are standardised by channel, ``clip((x - mean) / scale, -10, 10)``; an image that is
    missing or not readable, and any pixel that is not finite, is 0, the mean.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    channels: int
    height: int
    width: int
    channels_last: bool = Field(description="Array columns only: (h, w, c) instead of (c, h, w).")
    mean: tuple[float, ...]
    scale: tuple[float, ...]

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.channels, self.height, self.width

    def transform(self, series: pl.Series, *, party: str) -> Pixels:
        """Shape (n, c, h, w)."""
        pixels = _read(series, self.shape, self.channels_last, party, None)
        mean = np.asarray(self.mean, dtype=np.float32)[:, None, None]
        scale = np.asarray(self.scale, dtype=np.float32)[:, None, None]
        pixels -= mean
        pixels /= scale
        pixels[~np.isfinite(pixels)] = 0.0
        return np.clip(pixels, -CLIP, CLIP, out=pixels)


def fit_images(
    series: pl.Series, *, party: str, file: str | None
) -> tuple[ImagePlan, ColumnReport]:
    """Learn size and pixel statistics from the training images.

    Encoded images of another size than the most common one are resized to it.

    Raises:
        DataError: no image is readable, or arrays differ in shape or have no image's shape.
    """
    note = None
    if series.dtype == pl.Binary:
        shape, others = _common_shape(series, party, file)
        channels_last = False
        if others:
            note = f"{others} images of another size are resized to {shape[2]}x{shape[1]}"
    else:
        shape, channels_last = _array_shape(series, party, file)
    gaps = 0
    seen = np.zeros(shape[0])
    total = np.zeros(shape[0])
    squares = np.zeros(shape[0])
    for chunk in _chunks(series):
        pixels = _read(chunk, shape, channels_last, party, file).astype(np.float64)
        finite = np.isfinite(pixels)
        gaps += int((~finite.any(axis=(1, 2, 3))).sum())
        pixels[~finite] = 0.0
        seen += finite.sum(axis=(0, 2, 3))
        total += pixels.sum(axis=(0, 2, 3))
        squares += np.square(pixels).sum(axis=(0, 2, 3))
    if not seen.all():
        raise _unreadable(series.name, party, file)
    mean = total / seen
    deviation = np.sqrt(np.maximum(squares / seen - mean**2, 0.0))
    if not deviation.any():
        raise DataError(
            "all pixels of the training images are the same",
            party=party,
            file=file,
            column=series.name,
            way_out="Check how the images were written.",
        )
    scale = np.where(deviation > 0, deviation, 1.0)
    plan = ImagePlan(
        name=series.name,
        channels=shape[0],
        height=shape[1],
        width=shape[2],
        channels_last=channels_last,
        mean=tuple(mean.tolist()),
        scale=tuple(scale.tolist()),
    )
    report = ColumnReport(
        name=series.name, became="image", inputs=int(np.prod(shape)), gaps=gaps, note=note
    )
    return plan, report


def _chunks(series: pl.Series) -> Iterator[pl.Series]:
    for start in range(0, len(series), _CHUNK):
        yield series.slice(start, _CHUNK)


def _read(
    series: pl.Series,
    shape: tuple[int, int, int],
    channels_last: bool,
    party: str,
    file: str | None,
) -> Pixels:
    """Shape (n, c, h, w), a missing or unreadable image all NaN."""
    out = np.full((len(series), *shape), np.nan, dtype=np.float32)
    if series.dtype == pl.Binary:
        for i, data in enumerate(series):
            image = None if data is None else _decoded(data, shape)
            if image is not None:
                out[i] = image
        return out
    there = series.is_not_null().to_numpy()
    arrays = _stacked(series.drop_nulls(), party, file)
    if arrays.size:
        if arrays.ndim == 3:
            arrays = arrays[:, None]
        elif channels_last:
            arrays = np.moveaxis(arrays, -1, 1)
        if arrays.shape[1:] != shape:
            raise DataError(
                f"its images have the shape {arrays.shape[1:]} and those of training {shape}",
                party=party,
                file=file,
                column=series.name,
                way_out="Give images of one shape (channels, height, width).",
            )
        out[there] = arrays
    return out


def _stacked(series: pl.Series, party: str, file: str | None) -> Pixels:
    """A column of nested lists or arrays without nulls, as one array."""
    shape = [len(series)]
    name, leaf = series.name, series
    while isinstance(leaf.dtype, pl.Array | pl.List):
        nested = leaf.arr.to_list() if isinstance(leaf.dtype, pl.Array) else leaf
        lengths = nested.list.len().unique().to_list()
        if len(lengths) > 1:
            raise DataError(
                "its arrays differ in shape",
                party=party,
                file=file,
                column=name,
                way_out="Bring all images to one size first.",
            )
        shape.append(lengths[0] if lengths else 0)
        leaf = nested.explode()
    if not leaf.dtype.is_numeric():
        raise DataError(
            f"its arrays hold {leaf.dtype.base_type()} and not numbers",
            party=party,
            file=file,
            column=name,
            way_out="Leave the column out, or give pixels as numbers.",
        )
    if 0 in shape:
        return np.empty((0, *shape[1:]), dtype=np.float32)
    return leaf.cast(pl.Float32).to_numpy().reshape(shape)


def _array_shape(
    series: pl.Series, party: str, file: str | None
) -> tuple[tuple[int, int, int], bool]:
    """(c, h, w) of an array column, and whether its arrays have the channels last."""
    size = _stacked(series.drop_nulls(), party, file).shape[1:]
    if len(size) == 2:
        return (1, size[0], size[1]), False
    if len(size) == 3:
        # Of two possible readings, the one whose image is less of a strip.
        first = min(size[1:]) if size[0] in (1, 3, 4) else 0
        last = min(size[:2]) if size[2] in (1, 3, 4) else 0
        if last and last >= first:
            return (size[2], size[0], size[1]), True
        if first:
            return (size[0], size[1], size[2]), False
    raise DataError(
        f"arrays of shape {size} are no images",
        party=party,
        file=file,
        column=series.name,
        way_out="Images are (height, width), or have 1, 3 or 4 channels first or last; give "
        "the values of a vector as one column each.",
    )


def _pillow(party: str | None = None) -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise DataError(
            "encoded images need Pillow",
            party=party,
            way_out="Install it with `pip install 'interlace[images]'`.",
        ) from None
    return Image


def _common_shape(
    series: pl.Series, party: str, file: str | None
) -> tuple[tuple[int, int, int], int]:
    """The most common size with the channels that all images need, and how many differ in size.

    Only the headers are read.
    """
    pillow = _pillow(party)
    sizes: Counter[tuple[int, int]] = Counter()
    grey = True
    for data in series.drop_nulls():
        try:
            with pillow.open(io.BytesIO(data)) as image:
                sizes[image.size] += 1
                grey = grey and image.mode in _GREY_MODES
        except (OSError, ValueError, SyntaxError, pillow.DecompressionBombError):
            continue  # counted as a gap when it is decoded
    if not sizes:
        raise _unreadable(series.name, party, file)
    (width, height), count = max(sizes.items(), key=lambda item: (item[1], item[0]))
    return (1 if grey else 3, height, width), sizes.total() - count


def _decoded(data: bytes, shape: tuple[int, int, int]) -> Pixels | None:
    pillow = _pillow()
    channels, height, width = shape
    try:
        with pillow.open(io.BytesIO(data)) as opened:
            image = opened
            if channels == 3:
                image = image.convert("RGB")
            elif image.mode not in ("L", "I", "I;16", "F"):
                image = image.convert("L")
            if image.size != (width, height):
                image = image.resize((width, height))
            pixels = np.asarray(image, dtype=np.float32)
    except (OSError, ValueError, SyntaxError, pillow.DecompressionBombError):
        return None
    return pixels[None] if channels == 1 else np.moveaxis(pixels, -1, 0)


def _unreadable(column: str, party: str, file: str | None) -> DataError:
    return DataError(
        "no training image can be read",
        party=party,
        file=file,
        column=column,
        way_out="Give PNG, JPEG or other images that Pillow can decode, or arrays of pixels.",
    )
