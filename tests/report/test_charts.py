"""Axes and lines stay within the picture."""

from __future__ import annotations

import math
import re

from hypothesis import assume, given
from hypothesis import strategies as st

from interlace.report.charts import Series, line_chart, ticks

values = st.floats(-1e9, 1e9)


@given(values, st.floats(1e-6, 1e9))
def test_ticks_are_few_round_and_inside(low: float, width: float) -> None:
    high = low + width
    assume(width > 1e-7 * abs(low))
    marks = ticks(low, high)
    assert 2 <= len(marks) <= 6
    assert all(low - 1e-6 * width <= v <= high + 1e-6 * width for v, _ in marks)
    assert len({t for _, t in marks}) == len(marks)  # enough decimals to tell them apart


def test_ticks_by_hand() -> None:
    assert [t for _, t in ticks(0, 1)] == ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]
    assert [t for _, t in ticks(0, 1, percent=True)][1] == "20 %"
    assert [t for _, t in ticks(-3, 3)] == ["−2", "0", "2"]


points = st.lists(st.tuples(values, values | st.sampled_from([math.nan, math.inf])), max_size=8)


@given(st.lists(points, max_size=3))
def test_lines_stay_inside_and_finite(lines: list[list[tuple[float, float]]]) -> None:
    chart = line_chart("t", "x", "y", [Series("s", "method", p, dots=True) for p in lines], "d")
    finite = [p for line in lines for p in line if math.isfinite(p[1])]
    if not finite:
        assert chart is None
        return
    assert chart is not None
    for line in chart.lines:
        for x, y in re.findall(r"([-\d.e+]+) ([-\d.e+]+)", line.path):
            assert chart.left - 0.1 <= float(x) <= chart.right + 0.1
            assert 0 <= float(y) <= chart.bottom + 0.1
    assert sum(len(line.dots) for line in chart.lines) == len(finite)
