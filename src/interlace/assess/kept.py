"""How right the labels are that a method gave to rows without one: only a simulation can tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import torch
from torch import Tensor

from interlace.data.labels import LabelPlan
from interlace.engines import InProcess
from interlace.federation import Federation
from interlace.methods.base import Method
from interlace.methods.kept import Kept
from interlace.party import Party


@dataclass(frozen=True)
class Rightness:
    """One party's rows without a label, in numbers.

    Attributes:
        of: How many there were to choose from.
        kept: How many the method learnt from as if they had a label.
        known: Of how many of these the true class is known.
        right: How many of those were taken for their true class.
    """

    of: int
    kept: int
    known: int
    right: int

    @property
    def precision(self) -> float | None:
        """Share of the kept rows whose class was right, of those where it is known."""
        return self.right / self.known if self.known else None


def rightness(
    method: Method, federation: Federation, truth: Mapping[str, Tensor] | None = None
) -> dict[str, Rightness]:
    """Count what a fitted method kept and, in a simulation, compare it with the truth.

    None of the parties sees the outcome. Over real sites there is no truth, and what a partner
    keeps without telling is not counted.

    Args:
        method: As it was just fitted; any method, whether it keeps rows or not.
        federation: Where it was.
        truth: For each party of a simulation the true class of every row of its table
            (len(party),), as numbers of ``label_plan_.classes``, −1 where unknown; ``None``
            counts only.

    Returns:
        By party, of those at which the method had rows to choose from.
    """
    engine = federation.engine
    parties = engine.parties if isinstance(engine, InProcess) else {}
    told: dict[str, Kept] = getattr(method, "kept_", {})
    out = {}
    for name in (federation.active.name, *federation.passive):
        kept = told[name] if name in told else _at_home(method, parties.get(name))
        if kept is None or not kept.of:
            continue
        true = torch.full((len(kept),), -1)
        if truth is not None and name in truth:
            true = truth[name][_rows(kept, parties[name], federation)]
        known = true >= 0
        right = int((true == kept.classes)[known].sum())
        out[name] = Rightness(kept.of, len(kept), int(known.sum()), right)
    return out


def _at_home(method: Method, party: Party | None) -> Kept | None:
    """What a partner kept and told nobody."""
    session: str | None = getattr(method, "session_", None)
    if party is None or session is None:
        return None
    return getattr(party.sides.get(session), "kept", None)


def _rows(kept: Kept, party: Party, federation: Federation) -> Tensor:
    """The kept rows in the party's table."""
    if party is federation.active:
        return kept.rows
    shared = party.shared_with(federation.active.name)
    others = np.setdiff1d(np.arange(len(party)), shared)
    return torch.from_numpy(np.concatenate([shared, others]))[kept.rows]


def true_classes(truth: Party, parties: Sequence[Party], plan: LabelPlan) -> dict[str, Tensor]:
    """What a table of ids and true labels says of every party's people.

    Args:
        truth: That table, as a party with a label would have it.
        parties: Whose people it is about.
        plan: The classes.

    Returns:
        For each party (len(party),) class numbers, −1 where the table does not have a person.

    Raises:
        DataError: the table has a class that the plan does not.
    """
    table = pl.DataFrame({"key": truth.keys.values, "class": plan.encode(truth.label_series)})
    out = {}
    for party in parties:
        keys = pl.DataFrame({"key": party.keys.values}, schema={"key": pl.Binary})
        found = keys.join(table, on="key", how="left", maintain_order="left")["class"].fill_null(-1)
        out[party.name] = torch.from_numpy(found.to_numpy().copy())
    return out
