"""The guards by the names that party files use."""

from __future__ import annotations

from typing import Any

from interlace.boundary.guards.base import Codec, Guard
from interlace.errors import PolicyError

GUARDS: dict[str, type[Guard] | type[Codec]] = {}


def build_guard(spec: dict[str, dict[str, Any]]) -> Guard | Codec:
    """Make a guard from a party file's entry, ``{"clip": {"norm": 1.0}}``.

    Raises:
        PolicyError: no guard has that name, or it does not take those settings.
    """
    ((name, settings),) = spec.items()
    if name not in GUARDS:
        raise PolicyError(f"there is no guard '{name}'; there are: {', '.join(sorted(GUARDS))}")
    try:
        return GUARDS[name](**settings)
    except TypeError as e:
        raise PolicyError(f"the guard '{name}' does not take these settings: {e}") from e
