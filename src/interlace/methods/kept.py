"""Rows without a label that a method came to trust, and what it takes them for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from interlace.party import State


@dataclass(frozen=True)
class Kept:
    """Of one party's rows without a label, those that a method learnt from as if they had one.

    A method offers them by party as ``kept_``, as far as the active party knows them, and a partner
    that alone knows what it kept has them at its own side. Whether they are right, only a
    simulation can tell: see :func:`interlace.assess.rightness`.

    Attributes:
        of: How many rows there were to choose from.
        rows: Which were kept, (n,): at the active party rows of its table, at a partner positions
            as its operations take them, the shared people first and then the others in the order
            of its table.
        classes: What they are taken for, (n,): numbers of ``label_plan_.classes``.
    """

    of: int
    rows: Tensor
    classes: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def nothing(cls, of: int) -> Kept:
        """Not one of so many rows."""
        return cls(of, torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64))


def kept_state(kept: Mapping[str, Kept]) -> State:
    """What was kept, by party, for a checkpoint or a saved model."""
    tensors = {f"kept/{name}/rows": some.rows for name, some in kept.items()}
    tensors |= {f"kept/{name}/classes": some.classes for name, some in kept.items()}
    return State(tensors, {"kept": {name: some.of for name, some in kept.items()}})


def kept_from(state: State) -> dict[str, Kept]:
    """Back from a state that holds :func:`kept_state` among other things."""
    part = state.tensors
    return {
        name: Kept(of, part[f"kept/{name}/rows"], part[f"kept/{name}/classes"])
        for name, of in state.meta["kept"].items()
    }
