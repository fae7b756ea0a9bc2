"""Numbers out of a received control value, which a partner may have made up."""

from __future__ import annotations

import math
from typing import Any

from interlace.errors import Refused


def whole_number(control: dict[str, Any], name: str, below: int, *, least: int = 0) -> int:
    """A number from ``least`` to ``below`` - 1.

    Raises:
        Refused: there is none.
    """
    number = control.get(name)
    if type(number) is not int or not least <= number < below:
        raise Refused(f"'{name}' is not a whole number from {least} to {below - 1:,}")
    return number


def real_number(control: dict[str, Any], name: str, most: float) -> float:
    """A number from 0 to ``most``.

    Raises:
        Refused: there is none.
    """
    number = control.get(name)
    if isinstance(number, int | float) and math.isfinite(number) and 0 <= number <= most:
        return float(number)
    raise Refused(f"'{name}' is not a number from 0 to {most:g}")
