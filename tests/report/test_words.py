"""Numbers as people read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.assess import Interval
from interlace.report import words


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (76_800_000, "76.8 MB"),
        (2.5e14, "250 TB"),
        (7e18, "7,000 PB"),
    ],
)
def test_sizes(value: float, text: str) -> None:
    assert words.size(value) == text


def test_small_figures_are_not_nought() -> None:
    found = [words.figure(value) for value in (7, 0.0, 0.0126, -0.5, 3.21e-8, -4e-4)]
    assert found == ["7", "0.000", "0.013", "−0.500", "3.2e-08", "−4.0e-04"]


@given(st.integers(0, 10**20))
def test_a_size_says_what_it_is_within_half_a_per_cent(value: int) -> None:
    number, unit = words.size(value).replace(",", "").split()
    scale = 1000 ** ["B", "kB", "MB", "GB", "TB", "PB"].index(unit)
    assert abs(float(number) * scale - value) <= max(0.5, 0.0051 * value)
    assert "e" not in number


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.034, "0.034 s"),
        (8.31, "8.3 s"),
        (9.97, "10 s"),
        (59.7, "1 min 0 s"),
        (74.2, "1 min 14 s"),
        (3599.6, "1 h 0 min"),
        (412_345, "114 h 32 min"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert words.duration(seconds) == text


@pytest.mark.parametrize(
    ("values", "decimals"),
    [
        ([0.71, 0.9], 3),
        ([0.04], 4),
        ([5.97, 4.1], 2),
        ([2392.1], 0),
        ([0.0], 3),
        ([0.995, 1.0], 3),
        ([1e-9], 6),
    ],
)
def test_three_digits_of_the_largest(values: list[float], decimals: int) -> None:
    assert words.decimals_for(values) == decimals


@pytest.mark.parametrize(
    ("value", "sign", "text"),
    [(-0.0123, False, "−0.012"), (0.0123, True, "+0.012"), (-0.0001, True, "0.000"),
     (12345.6, False, "12,345.600")],
)  # fmt: skip
def test_signs(value: float, sign: bool, text: str) -> None:
    assert words.decimal(value, 3, sign=sign) == text


def test_spans() -> None:
    assert words.span(Interval(0, -0.01, 0.018), 3, sign=True) == "−0.010 to +0.018"
    assert words.span(Interval(0.7, None, None), 3) is None


def test_small_words() -> None:
    assert words.listed(["a"]) == "a"
    assert words.listed(["a", "b", "c"]) == "a, b and c"
    assert words.sealed({"a": "x", "b": "y", "c": "x"}) == "a and c with x; b with y"
    assert words.plural(1, "seed") == "1 seed"
    assert words.plural(1200, "party", "parties") == "1,200 parties"
    assert words.percent(0.0598) == "6 %"
    assert words.percent(0.0042) == "0.42 %"
    assert words.percent(0.31) == "31 %"
