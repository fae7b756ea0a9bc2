"""Ways out for errors: the nearest name to a misspelt one, a line of a file to be copied."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

import yaml


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name most like ``name``, letter case ignored; ``None`` when none is alike."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    found = difflib.get_close_matches(name.lower(), list(by_lower), n=1, cutoff=0.6)
    return by_lower[found[0]] if found else None


def did_you_mean(name: str, known: Iterable[str], *, what: str) -> str:
    """One sentence: the nearest name, or the first of those there are.

    ``what`` names the things in the plural ("columns", "files").
    """
    candidates = list(known)
    found = nearest(name, candidates)
    if found is not None:
        return f"Did you mean '{found}'?"
    if not candidates:
        return f"There are no {what} here."
    shown = ", ".join(f"'{candidate}'" for candidate in candidates[:8])
    more = f" and {len(candidates) - 8} more" if len(candidates) > 8 else ""
    return f"The {what} here are {shown}{more}."


def line_of(field: str, value: Any) -> str:
    """A line of a party file, to be copied as it stands: names are in quotes where they need it."""
    text = yaml.safe_dump(
        {field: value}, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10**6
    )
    return str(text).strip()[1:-1]
