"""The guards by the names that party files use."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from interlace.boundary.guards.base import Codec, Guard
from interlace.boundary.guards.clip import Clip
from interlace.boundary.guards.compress import Half, Quantise, TopK
from interlace.boundary.guards.noise import Gaussian, Laplace
from interlace.errors import PolicyError

GUARDS: dict[str, type[Guard] | type[Codec]] = {
    "clip": Clip,
    "gaussian": Gaussian,
    "laplace": Laplace,
    TopK.name: TopK,
    Quantise.name: Quantise,
    Half.name: Half,
}


def build_guard(spec: dict[str, dict[str, Any]]) -> Guard | Codec:
    """Make a guard from a party file's entry, ``{"clip": {"norm": 1.0}}``.

    Raises:
        PolicyError: no guard has that name, or it does not take those settings.
    """
    if len(spec) != 1:
        raise PolicyError(
            "each guard is an entry of its own, a name and its settings: `- clip: {norm: 1.0}`"
        )
    ((name, settings),) = spec.items()
    if name not in GUARDS:
        raise PolicyError(f"there is no guard '{name}'; there are: {', '.join(sorted(GUARDS))}")
    try:
        return GUARDS[name](**settings)
    except ValidationError as e:
        faults = "; ".join(
            f"`{'.'.join(map(str, fault['loc']))}`: {fault['msg'].lower()}" for fault in e.errors()
        )
        raise PolicyError(f"the guard '{name}' does not take these settings: {faults}") from e
