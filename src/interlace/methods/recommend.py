"""Which method fits: one table of rules, read by ``interlace inspect`` and by ``method: auto``.

The first rule that applies decides. ``docs/methods/auto.md`` says what the rules rest on.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import BaseModel, ConfigDict

from interlace.data.geometry import Geometry, Situation, inspect_parties
from interlace.data.labels import is_known
from interlace.errors import JobError
from interlace.federation import Federation
from interlace.party import Party

# Methods that can learn where nobody is held by all; which is best there was not measured.
FOR_SOME = ("fed_once", "ss_vfl_i", "proto_evfl", "vfedtrans", "apc_vfl")
FEW = 100  # shared people: between the 64 and the 128 for which methods were measured


class Recommendation(BaseModel):
    """A method by its name in the catalogue, ``None`` when none fits, and why."""

    model_config = ConfigDict(frozen=True)

    method: str | None
    reason: str


@dataclass(frozen=True)
class Rule:
    """A line of the table: ``when`` it applies, the method, and ``because``."""

    when: Callable[[Situation], bool]
    method: str
    because: str


def classes(s: Situation) -> bool:
    """Whether the label is one of some classes."""
    return s.task in ("binary", "multiclass")


def named_elsewhere(s: Situation) -> int:
    """People with a label whom not all hold, but somebody with columns."""
    return s.partly + (s.labelled if s.own_columns else 0)


def nameless(s: Situation) -> int:
    """People without a label, at all parties together."""
    return sum(s.unlabelled.values())


# -- the table ------------------------------------------------------------------------------------

RULES: tuple[Rule, ...] = (
    Rule(
        lambda s: not classes(s),
        "split",
        "the methods that give, mix or estimate labels are for classes",
    ),
    Rule(
        lambda s: named_elsewhere(s) + nameless(s) < s.shared,
        "split",
        "the shared people are most of those there are to learn from",
    ),
    Rule(
        lambda s: s.shared < FEW and s.own_columns and named_elsewhere(s) >= s.shared,
        "vfedtrans",
        "few people are shared, more have a label without being shared, and it learns from all of "
        "these; so few shared people seldom say enough to score by the partner's columns",
    ),
    Rule(
        lambda s: named_elsewhere(s) >= s.shared / 2 and s.parties > 1,
        "fedcvt",
        "many people with a label are not shared, and it learns from them too by an estimate of "
        "the views that they lack",
    ),
    Rule(
        lambda s: True,
        "few_shot",
        "few people but the shared ones have a label, and each party learns from its others by "
        "itself before the surest of them get one",
    ),
)


def recommend(s: Situation) -> Recommendation:
    """The method for parties that share people, with the reason in words."""
    if s.shared < 2:
        whom = "both parties hold; check the id columns, and whose label is known"
        if len(s.unlabelled) > 2:
            whom = "every party holds; leave a party out, so that the others share some"
        reason = f"{in_numbers(s)}: what could be advised needs people with a label whom {whom}"
        if s.partly:
            reason += (
                ", or name a method that makes do with people whom some partners hold: "
                + ", ".join(f"`{name}`" for name in FOR_SOME)
            )
        return Recommendation(method=None, reason=f"{reason}.")
    rule = next(rule for rule in RULES if rule.when(s))
    reason = f"{in_numbers(s)}: {rule.method}, because {rule.because}."
    if s.shared < FEW:
        reason += (
            " They are few: compare with the active party alone, and with split learning on the "
            "shared people alone, before trusting it."
        )
    return Recommendation(method=rule.method, reason=reason)


def in_numbers(s: Situation) -> str:
    """The situation in a line: ``64 shared people with a label, 2,900 more at one party only``."""
    parts = [f"{s.shared:,} shared people with a label"]
    if s.partly:
        parts.append(f"{s.partly:,} more that only some partners hold")
    if s.labelled:
        parts.append(f"{s.labelled:,} more with a label at {s.active} only")
    parts += [f"{n:,} without one at {name}" for name, n in s.unlabelled.items() if n]
    return ", ".join(parts)


# -- where it is asked ----------------------------------------------------------------------------


def situation_of(federation: Federation) -> Situation:
    """What the active party of a federation knows that decides; its people are matched if need be.

    Raises:
        DataError: the label is not usable.
        NobodyShared: not one person is shared.
    """
    active, alignment = federation.active, federation.alignment
    known = is_known(federation.view(np.arange(len(active))).y).numpy()
    some, every = alignment.holders.any(1), alignment.holders.all(1)
    people = alignment.report.people
    return Situation(
        active=active.name,
        task=federation.label_plan.task,
        parties=len(federation.passive) + bool(active.columns),
        own_columns=bool(active.columns),
        shared=int((known & every).sum()),
        partly=int((known & some & ~every).sum()),
        labelled=int((known & ~some).sum()),
        unlabelled={active.name: int((~known).sum())}
        | {name: people[name] - len(pairs) for name, pairs in alignment.pairs.items()},
    )


def geometry_of(parties: Sequence[Party]) -> Geometry:
    """How the tables of a simulation's parties fit together, in the clear as ``inspect`` sees them.

    Raises:
        DataError: fewer than two parties have a table.
    """
    some = [party for party in parties if party.frame.width]
    used = {p.name: {*p.id_rule.columns, *p.labels_columns, *p.columns} for p in some}
    return inspect_parties(
        {p.name: p.frame.select(c for c in p.frame.columns if c in used[p.name]) for p in some},
        {p.name: p.id_rule for p in some},
        labels={p.name: p.labels_columns[0] for p in some if p.has_label},
    )


def share_names(parties: Sequence[Party]) -> bool:
    """Whether any two have half of their columns' names in common: no others train copies of one
    model, and to compare the values of many columns with each other takes long."""
    names = [set(party.columns) for party in parties if party.columns]
    pairs = itertools.combinations(names, 2)
    return any(2 * len(one & two) >= min(len(one), len(two)) for one, two in pairs)


def by_columns(geometry: Geometry) -> Recommendation | None:
    """The method for parties with the same columns and other people, if some are; to tell, nobody
    need be matched."""
    parties = geometry.parties
    if geometry.kind == "horizontal":
        return Recommendation(
            method="fedavg",
            reason="Each party has people of its own and all have the same columns, so they train "
            "copies of one model, whose changes are averaged; nobody is matched. `scaffold` or "
            "`fedprox` where the parties' people are unlike. The policies must allow `model "
            "weights`.",
        )
    kinds = {frozenset(pair.parties): pair.kind for pair in geometry.pairs}
    for shop in parties:
        banks = [p.party for p in parties if p is not shop]
        among = {kinds[frozenset(two)] for two in itertools.combinations(banks, 2)}
        joined = {kinds[frozenset((shop.party, bank))] for bank in banks}
        if among == {"horizontal"} and joined == {"vertical"}:
            return Recommendation(
                method="mixed",
                reason=f"{' and '.join(banks)} have the same columns and other people, and each "
                f"shares people with {shop.party}, which is to drive and have the label.",
            )
    return None


def recommend_for(geometry: Geometry) -> Recommendation:
    """The method for any tables that were inspected."""
    if geometry.kind == "unrelated":
        return Recommendation(
            method=None,
            reason="Nothing joins these tables; check the id columns first, and the warnings.",
        )
    if (found := by_columns(geometry)) is not None:
        return found
    if geometry.situation is None:
        return Recommendation(
            method=None,
            reason=f"{geometry.parties[0].shared:,} people are held by all parties. What there is "
            "to learn decides: name the party and column of the label first.",
        )
    found = recommend(geometry.situation)
    if geometry.kind == "mixed":
        more = " Settle first which of the columns that seem to be one quantity to keep."
        found = found.model_copy(update={"reason": found.reason + more})
    return found


def choose(federation: Federation) -> Recommendation:
    """The method that ``method: auto`` takes where the parties share people.

    Raises:
        JobError: none fits; the message says why.
    """
    found = recommend(situation_of(federation))
    if found.method is None:
        raise JobError(f"`method: auto` finds none that fits: {found.reason}")
    return found
