"""Numbers as people read them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from interlace.assess import Interval

MINUS = "−"


def decimals_for(values: Iterable[float]) -> int:
    """How many decimals show three digits of the largest of some numbers, and at most six.

    Three where the largest is 1, so that a share of 0.995 beside it is not 1.00.
    """
    largest = max((abs(v) for v in values if math.isfinite(v)), default=0.0)
    if largest == 0 or math.isclose(largest, 1):
        return 3
    return min(6, max(0, 2 - math.floor(math.log10(largest))))


def decimal(value: float, decimals: int, *, sign: bool = False) -> str:
    """A number with a true minus sign and, if asked, a plus sign."""
    text = f"{abs(value):,.{decimals}f}"
    zero = not any(c in "123456789" for c in text)
    if value < 0 and not zero:
        return MINUS + text
    return f"+{text}" if sign and not zero else text


def figure(value: float) -> str:
    """A number in a table: a count as it is, anything else with three decimals, or, so that a small
    p-value or coefficient is not 0, by its power of ten."""
    if 0 < abs(value) < 5e-4:
        return (MINUS if value < 0 else "") + f"{abs(value):.1e}"
    return decimal(value, 0 if isinstance(value, int) else 3)


def span(interval: Interval, decimals: int, *, sign: bool = False) -> str | None:
    """``0.71 to 0.76``; ``None`` where there is no interval."""
    if interval.low is None or interval.high is None:
        return None
    low, high = (decimal(v, decimals, sign=sign) for v in (interval.low, interval.high))
    return f"{low} to {high}"


def count(value: float) -> str:
    """A whole number in groups of three."""
    return f"{value:,.0f}"


def size(value: float) -> str:
    """Bytes in the decimal unit that leaves three digits."""
    return _scaled(value, 1000, ("B", "kB", "MB", "GB", "TB", "PB"))


def duration(seconds: float) -> str:
    """Seconds, or minutes and hours when there are many."""
    if seconds < 9.95:
        return f"{seconds:.2g} s" if seconds < 1 else f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60:,} h {minutes % 60} min"


def percent(share: float) -> str:
    """A share in per cent, with two digits where it is small."""
    value = 100 * share
    if value != 0 and abs(value) < 10:
        return f"{value:.2g} %"
    return f"{value:.0f} %"


def sealed(schemes: Mapping[str, str]) -> str:
    """What was encrypted with which scheme: ``gradients with rlwe-fast``."""
    by_scheme: dict[str, list[str]] = {}
    for what, scheme in schemes.items():
        by_scheme.setdefault(scheme, []).append(what)
    return "; ".join(f"{listed(what)} with {scheme}" for scheme, what in by_scheme.items())


def columns_read(read: Mapping[str, list[str]], most: int = 6) -> str:
    """What columns became: ``numbers: a, b and 7 more; category: c; dropped: d``."""

    def some(names: list[str]) -> str:
        more = len(names) - most
        return ", ".join(names[:most]) + f" and {more} more" if more > 0 else ", ".join(names)

    return "; ".join(f"{became}: {some(names)}" for became, names in read.items())


def listed(words: Iterable[str]) -> str:
    """``a, b and c``."""
    *most, last = list(words)
    return f"{', '.join(most)} and {last}" if most else last


def plural(number: int, singular: str, many: str | None = None) -> str:
    """``1 seed``, ``5 seeds``."""
    return f"{number:,} {singular if number == 1 else many or singular + 's'}"


def _scaled(value: float, base: int, units: tuple[str, ...]) -> str:
    power = 0
    while value >= base and power < len(units) - 1:
        value, power = value / base, power + 1
    if power == 0 or value >= 100:
        return f"{value:,.0f} {units[power]}"
    return f"{value:.3g} {units[power]}"
