"""What a party lets out: its own rules, which no partner and no job can widen."""

from __future__ import annotations

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from interlace.boundary.guards import build_guard, chain
from interlace.boundary.kinds import FORMS, NEVER_LEAVES, Kind
from interlace.errors import PolicyError


class Policy(BaseModel):
    """A party's rules for what may leave it.

    Args:
        allow: The kinds that may leave. By default every kind that a vertical method needs;
            ``model weights`` must be asked for, since in a vertical federation nobody needs them.
        allow_also: Kinds that may leave besides those, as ``[model weights]`` for most horizontal
            methods.
        guards: For a kind, the guards that every value of it passes before it leaves, in order,
            as ``[{"clip": {"norm": 1.0}}, {"gaussian": {"epsilon": 8.0, ...}}]``
            (see :mod:`interlace.boundary.guards`). Only kinds made of real numbers can be guarded.
        max_bytes: Most bytes that may leave in one training (in a simulation every seed is a
            training of its own); ``None`` sets no limit.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    allow: frozenset[Kind] = frozenset(Kind) - NEVER_LEAVES - {Kind.MODEL_WEIGHTS}
    allow_also: frozenset[Kind] = frozenset()
    guards: dict[Kind, list[dict[str, dict[str, Any]]]] = Field(default_factory=dict)
    max_bytes: int | None = Field(default=None, gt=0)

    @property
    def allowed(self) -> frozenset[Kind]:
        """Every kind that may leave."""
        return self.allow | self.allow_also

    @model_validator(mode="after")
    def _no_policy_allows_records(self) -> Self:
        asked = sorted(k.value for k in self.allowed & NEVER_LEAVES)
        if asked:
            raise ValueError(f"no policy can allow {' or '.join(asked)} to leave a party")
        return self

    @model_validator(mode="after")
    def _guards_exist(self) -> Self:
        for kind, guards in self.guards.items():
            if kind in NEVER_LEAVES:
                raise ValueError(f"{kind} never leave a party, so no guard can stand before them")
            if FORMS[kind].numbers != "float":
                raise ValueError(f"{kind} cannot be guarded: guards change real numbers alone")
            try:
                chain(*map(build_guard, guards))
            except PolicyError as e:
                raise ValueError(f"the guards of {kind}: {e}") from e
        return self
