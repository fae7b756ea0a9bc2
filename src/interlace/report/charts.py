"""The geometry of charts: from points to SVG paths. Templates draw, the style sheet colours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

LEFT, RIGHT, TOP, BOTTOM = 44, 10, 10, 42

Point = tuple[float, float]


@dataclass(frozen=True)
class Tick:
    """A mark on an axis: where, and what it says."""

    at: float
    text: str


@dataclass(frozen=True)
class Series:
    """A line of a chart. ``look`` names its class in the style sheet."""

    name: str
    look: str
    points: Sequence[Point]
    dots: bool = False
    faint: bool = False


@dataclass(frozen=True)
class DrawnLine:
    """A series in the coordinates of the picture."""

    name: str
    look: str
    path: str
    dots: Sequence[Point]
    faint: bool


@dataclass(frozen=True)
class Chart:
    """A chart ready to draw."""

    title: str
    x_label: str
    y_label: str
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    lines: list[DrawnLine]
    reference: str | None
    described: str
    width: int
    height: int
    left: int
    right: int
    bottom: int


def line_chart(
    title: str,
    x_label: str,
    y_label: str,
    series: Sequence[Series],
    described: str,
    *,
    x_range: tuple[float, float] | None = None,
    y_range: tuple[float, float] | None = None,
    reference: Sequence[Point] = (),
    x_marks: Sequence[tuple[float, str]] = (),
    percent: str = "",
    width: int = 340,
    height: int = 270,
) -> Chart | None:
    """Lay a chart of lines out.

    Args:
        title: Its heading.
        x_label: What lies to the right.
        y_label: What lies upwards.
        series: The lines; points that are not finite are left out.
        described: What a reader who cannot see the chart is told.
        x_range: Ends of the x axis; by default the data's.
        y_range: Ends of the y axis; by default the data's.
        reference: A thin line to compare with.
        x_marks: Where the x axis is marked and what it says there; by default at round values.
        percent: Which axes, ``x``, ``y`` or ``xy``, show shares as per cent.
        width: Of the picture; as many pixels wide its texts are of their true size.
        height: Of the picture.

    Returns:
        ``None`` where there is nothing to draw.
    """
    kept = [[p for p in s.points if math.isfinite(p[0]) and math.isfinite(p[1])] for s in series]
    xs, ys = ([p[axis] for points in kept for p in points] for axis in (0, 1))
    if not xs:
        return None
    x_low, x_high = x_range or _padded(min(xs), max(xs), 0)
    y_low, y_high = y_range or _padded(min(ys), max(ys), 0.05)

    right, bottom = width - RIGHT, height - BOTTOM

    def place(p: Point) -> Point:
        x = LEFT + (p[0] - x_low) / (x_high - x_low) * (right - LEFT)
        y = bottom - (p[1] - y_low) / (y_high - y_low) * (bottom - TOP)
        return round(x, 1), round(y, 1)

    marks = x_marks or ticks(x_low, x_high, percent="x" in percent)
    lines = []
    for s, points in zip(series, kept, strict=True):
        if points:
            at = [place(p) for p in points]
            lines.append(DrawnLine(s.name, s.look, _path(at), at if s.dots else [], s.faint))
    return Chart(
        title,
        x_label,
        y_label,
        [Tick(place((v, y_low))[0], t) for v, t in marks],
        [Tick(place((x_low, v))[1], t) for v, t in ticks(y_low, y_high, percent="y" in percent)],
        lines,
        _path([place(p) for p in reference]) if reference else None,
        described,
        width,
        height,
        LEFT,
        right,
        bottom,
    )


def ticks(low: float, high: float, *, percent: bool = False) -> list[tuple[float, str]]:
    """At most six round values between two ends, with their texts."""
    raw = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    scale = 100 if percent else 1
    decimals = max(0, -math.floor(math.log10(step * scale) + 1e-9))
    unit = " %" if percent else ""
    return [
        (i * step, f"{i * step * scale:,.{decimals}f}{unit}".replace("-", "−"))
        for i in range(first, last + 1)
    ]


def _padded(low: float, high: float, share: float) -> tuple[float, float]:
    room = (high - low) * share
    if high - low <= 1e-12 * max(abs(low), abs(high), 1e-300):
        room = abs(low) * 0.1 or 1.0
    return low - room, high + room


def _path(points: Sequence[Point]) -> str:
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in points)
