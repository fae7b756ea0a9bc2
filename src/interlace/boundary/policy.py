"""What a party lets out: its own rules, which no partner and no job can widen."""

from __future__ import annotations

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from interlace.boundary.kinds import NEVER_LEAVES, Kind


class Policy(BaseModel):
    """A party's rules for what may leave it.

    Args:
        allow: The kinds that may leave. By default every kind that a vertical method needs;
            ``model weights`` must be asked for, since in a vertical federation nobody needs them.
        guards: For a kind, the guards that every value of it passes before it leaves, in order,
            as ``[{"clip": {"norm": 1.0}}, {"gaussian": {"epsilon": 8.0, ...}}]``
            (see :mod:`interlace.boundary.guards`).
        max_bytes: Most bytes that may leave in one run; ``None`` sets no limit.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    allow: frozenset[Kind] = frozenset(Kind) - NEVER_LEAVES - {Kind.MODEL_WEIGHTS}
    guards: dict[Kind, list[dict[str, dict[str, Any]]]] = Field(default_factory=dict)
    max_bytes: int | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _no_policy_allows_records(self) -> Self:
        asked = sorted(k.value for k in self.allow & NEVER_LEAVES)
        if asked:
            raise ValueError(f"no policy can allow {' or '.join(asked)} to leave a party")
        return self
