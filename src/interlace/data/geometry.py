"""Which geometry two or more tables have: the brain of ``interlace inspect``.

This runs where one person holds all the tables (a simulation, or a trial before a project), so it
compares ids and values in the clear. What it returns holds counts and column names only.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from interlace.data.columns import as_dates, as_levels, fit_column, numbers, read_columns
from interlace.data.ids import IdRule, Keys, make_keys, no_keys, set_in
from interlace.data.images import is_image
from interlace.data.labels import LabelPlan, Task
from interlace.data.tables import missing_column
from interlace.errors import DataError

Kind = Literal["horizontal", "vertical", "mixed", "unrelated"]
Offer = Literal["keep one", "average", "keep both"]

_MOST_COMPARED = 2_000  # shared people whose values are compared
_FEWEST_COMPARED = 20  # fewer say nothing about whether two columns are one quantity
_ALIKE_NAMES = 85.0  # of 100, by rapidfuzz's WRatio
_SAME, _CLOSE = 0.99, 0.9  # share of equal values, or rank correlation
_SAME_COLUMNS, _OTHER_COLUMNS = 0.8, 0.3  # share of the columns of the party that has fewer
_MANY_PEOPLE = 0.5  # share of the people of the party that has fewer


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)


class PartyShape(_Frozen):
    """One party's table."""

    party: str
    rows: int
    people: int = Field(description="Rows with an id of their own.")
    columns: int = Field(description="Without ids and label.")
    shared: int = Field(description="People whom every party holds.")
    unaligned: int = Field(description="People whom no other party holds.")
    label: str | None


class Pattern(_Frozen):
    """How many people are held by exactly these parties."""

    parties: tuple[str, ...]
    people: int


class SameQuantity(_Frozen):
    """Two columns of two parties that seem to be one quantity.

    ``equal`` is the share of equal values and ``correlation`` the rank correlation over people
    whom both hold; both are ``None`` when too few are shared to tell.
    """

    first: tuple[str, str] = Field(description="Party and column.")
    second: tuple[str, str]
    equal: float | None
    correlation: float | None
    why: str
    offers: tuple[Offer, ...] = Field(description="What can be done; the first is advised.")


class PairGeometry(_Frozen):
    """The geometry of two parties."""

    parties: tuple[str, str]
    kind: Kind
    shared: int = Field(description="People whom both hold.")
    same_columns: int


class Situation(_Frozen):
    """What decides which method fits parties that share people: what the label is, and counts."""

    active: str = Field(description="Who has the label.")
    task: Task
    parties: int = Field(description="Parties with columns.")
    own_columns: bool = Field(description="Whether the active party is one of them.")
    shared: int = Field(description="People with a label whom every party holds.")
    partly: int = Field(description="Others with a label whom some partner holds.")
    labelled: int = Field(description="People with a label whom no partner holds.")
    unlabelled: dict[str, int] = Field(
        description="People without a label, by party: at the active one those whose label is not "
        "known, at a partner those whom the active party does not hold."
    )


class Geometry(_Frozen):
    """What ``inspect`` tells about some parties' tables."""

    kind: Kind
    why: str
    parties: tuple[PartyShape, ...]
    patterns: tuple[Pattern, ...] = Field(description="Most people first.")
    pairs: tuple[PairGeometry, ...]
    same: tuple[SameQuantity, ...]
    situation: Situation | None = Field(
        description="Of parties that share people, if one has a label that can be learnt."
    )
    warnings: tuple[str, ...]
    differences: dict[str, tuple[str, ...]] = Field(
        default_factory=dict,
        description="In a horizontal case, how a party's columns differ from the others'.",
    )


@dataclass(frozen=True, eq=False)
class _Member:
    """A party under inspection."""

    name: str
    frame: pl.DataFrame
    rule: IdRule
    label: str | None
    features: list[str]
    keys: Keys
    position: dict[bytes, int]


def inspect_parties(
    tables: Mapping[str, pl.DataFrame],
    ids: Mapping[str, IdRule],
    *,
    labels: Mapping[str, str] | None = None,
) -> Geometry:
    """Compare the parties' people and columns.

    Repeated and blank ids do not stop it as they would stop a run: the first row of each id is
    used, and a warning says so.

    Args:
        tables: each party's table.
        ids: each party's id rule.
        labels: the label column of the parties that have one.

    Raises:
        DataError: fewer than two parties; an id or label column is not there; a table in which
            nobody has an id.
    """
    if len(tables) < 2:
        raise DataError("one table has no geometry", way_out="Give two tables or more.")
    warnings: list[str] = []
    members = [
        _member(name, frame, ids[name], (labels or {}).get(name), warnings)
        for name, frame in tables.items()
    ]
    holders: Counter[frozenset[int]] = Counter(_holders(members).values())
    patterns = tuple(
        Pattern(parties=tuple(members[i].name for i in sorted(who)), people=count)
        for who, count in sorted(holders.items(), key=lambda item: (-item[1], sorted(item[0])))
    )
    everyone = frozenset(range(len(members)))
    shapes = tuple(
        PartyShape(
            party=m.name,
            rows=m.frame.height,
            people=len(m.keys.values),
            columns=len(m.features),
            shared=holders[everyone],
            unaligned=holders[frozenset({i})],
            label=m.label,
        )
        for i, m in enumerate(members)
    )
    pairs, same = [], []
    for one, two in itertools.combinations(members, 2):
        pair, found = _compare(one, two, warnings)
        pairs.append(pair)
        same += found
        misses = _near_misses(one, two)
        if pair.kind == "unrelated" and not misses:
            misses = [
                f"{one.name} and {two.name}: no id rule (leading zeros, letter case, blanks around "
                "ids) would make their ids match; where they name the same people, write them "
                "alike in the tables, prefixes, signs and inner blanks too."
            ]
        warnings += misses
    kind, why = _overall(members, pairs, shapes)
    situation = _situation(members, warnings) if kind in ("vertical", "mixed") else None
    return Geometry(
        kind=kind,
        why=why,
        parties=shapes,
        patterns=patterns,
        pairs=tuple(pairs),
        same=tuple(same),
        situation=situation,
        warnings=tuple(warnings),
    )


# --- people ------------------------------------------------------------------------------------


def _tolerant(rule: IdRule, **changes: str | bool) -> IdRule:
    return rule.model_copy(update={"duplicates": "first", "blanks": "drop", **changes})


def _member(
    name: str, frame: pl.DataFrame, rule: IdRule, label: str | None, warnings: list[str]
) -> _Member:
    if rule.columns:
        keys = make_keys(frame, _tolerant(rule), party=name)
    else:  # rows without ids are each about somebody else
        nobody = no_keys(frame.height)
        keys = replace(nobody, values=[f"{name} {i}".encode() for i in range(frame.height)])
    if label is not None and label not in frame.columns:
        raise missing_column(label, frame.columns, party=name)
    if keys.report.duplicates and rule.duplicates == "refuse":
        warnings.append(
            f"{name}: rows that repeat an id: {keys.report.duplicates}; a run refuses them unless "
            f"the party file sets {set_in(rule, duplicates='first')}, or `drop` for `first`."
        )
    if keys.report.blanks and rule.blanks == "refuse":
        warnings.append(
            f"{name}: rows without an id: {keys.report.blanks}; a run refuses them unless the "
            f"party file sets {set_in(rule, blanks='drop')}."
        )
    features = [c for c in frame.columns if c not in rule.columns and c != label]
    position = dict(zip(keys.values, keys.rows.tolist(), strict=True))
    return _Member(name, frame, rule, label, features, keys, position)


def _holders(members: Sequence[_Member]) -> dict[bytes, frozenset[int]]:
    """For each key, who holds it."""
    masks: dict[bytes, int] = {}
    for i, member in enumerate(members):
        for key in member.keys.values:
            masks[key] = masks.get(key, 0) | 1 << i
    sets = {
        mask: frozenset(i for i in range(len(members)) if mask >> i & 1)
        for mask in set(masks.values())
    }
    return {key: sets[mask] for key, mask in masks.items()}


_ALL_FORMS = "leading zeros, letter case and blanks around ids"
_LOOSER: dict[str, dict[str, str | bool]] = {
    "leading zeros": {"zeros": "strip"},
    "letter case": {"case": "lower"},
    "blanks around ids": {"strip": True},
    _ALL_FORMS: {"zeros": "strip", "case": "lower", "strip": True},
}


def _near_misses(one: _Member, two: _Member) -> list[str]:
    """How many more people would match if a difference of form were ignored."""
    if len(one.rule.columns) != len(two.rule.columns):
        return [
            f"{one.name} has {len(one.rule.columns)} id columns and {two.name} "
            f"{len(two.rule.columns)}: keys of a different number of columns never match."
        ]
    notes = []
    for what, gain in near_misses((one.frame, one.rule, one.keys), (two.frame, two.rule, two.keys)):
        lines = [f"{set_in(m.rule, **_LOOSER[what])} at {m.name}" for m in (one, two)]
        notes.append(
            f"{one.name} and {two.name} would share {gain} more people if {what} were ignored: set "
            f"{' and '.join(lines)}."
        )
    return notes


Matched = tuple[pl.DataFrame, IdRule, Keys]  # a table, its id rule, and its keys by the rule


def near_misses(one: Matched, two: Matched) -> list[tuple[str, int]]:
    """How many more people two tables would share if a difference of form were ignored.

    Their ids have as many columns.

    Returns:
        Differences that keep people apart, in words, each with how many; all of them at once where
        no single one does.
    """
    sides = (one, two)
    possible = {
        "leading zeros": any(keys.report.with_leading_zeros for _, _, keys in sides),
        "letter case": any(v.lower() != v for _, _, keys in sides for v in keys.values),
        "blanks around ids": any(keys.report.with_surrounding_blanks for _, _, keys in sides),
    }
    now = _in_both(keys.values for _, _, keys in sides)
    tried = [what for what, may in possible.items() if may]
    if len(tried) > 1:
        tried.append(_ALL_FORMS)
    found: list[tuple[str, int]] = []
    for what in tried:
        if found and what == _ALL_FORMS:
            break
        looser = (
            make_keys(frame, _tolerant(rule, **_LOOSER[what]), party="").values
            for frame, rule, _ in sides
        )
        if (gain := _in_both(looser) - now) > 0:
            found.append((what, gain))
    return found


def _in_both(keys: Iterable[Sequence[bytes]]) -> int:
    one, two = keys
    return len({*one} & {*two})


# --- columns -----------------------------------------------------------------------------------


def _compare(
    one: _Member, two: _Member, warnings: list[str]
) -> tuple[PairGeometry, list[SameQuantity]]:
    shared = [key for key in one.keys.values if key in two.position]
    chosen = shared[:_MOST_COMPARED]
    rows = [np.array([m.position[key] for key in chosen], dtype=np.int64) for m in (one, two)]
    found: list[SameQuantity] = []
    unlike: list[str] = []
    first, second = _values(one, rows[0]), _values(two, rows[1])
    for a, b in itertools.product(one.features, two.features):
        same = _same_quantity(one, two, a, b, first, second, len(chosen))
        if same is not None:
            found.append(same)
        elif a == b and not is_image(one.frame[a].dtype):
            unlike.append(a)
    if unlike:
        names = ", ".join(unlike[:5]) + (" ..." if len(unlike) > 5 else "")
        warnings.append(
            f"{one.name} and {two.name} use one name for columns that differ on the people they "
            f"share ({names}); both are kept, and each party's stays its own."
        )
    # A column may be like several; what counts is how many have a partner.
    same_columns = min(len({s.first for s in found}), len({s.second for s in found}))
    pair = PairGeometry(
        parties=(one.name, two.name),
        kind=_pair_kind(one, two, same_columns, len(shared)),
        shared=len(shared),
        same_columns=same_columns,
    )
    return pair, found


@dataclass(frozen=True, eq=False)
class _Values:
    """One column over the compared people, in the forms in which it can be compared."""

    number: NDArray[np.float64] | None
    ranks: NDArray[np.float64] | None
    level: NDArray[np.object_]
    known: NDArray[np.bool_]
    distinct: int


def _values(member: _Member, rows: NDArray[np.int64]) -> dict[str, _Values]:
    from scipy.stats import rankdata

    out = {}
    readings = read_columns(member.frame, member.features)
    for name in member.features:
        series = member.frame[name].gather(rows)
        if is_image(series.dtype) or series.dtype.is_nested() or len(rows) < _FEWEST_COMPARED:
            continue
        plan, _ = fit_column(series, readings[name], party=member.name, file=None)
        number = ranks = None
        if plan is not None and plan.kind == "date":
            number = numbers(as_dates(series, plan.format).dt.epoch("s"))[0]
        elif plan is not None and plan.kind == "numeric":
            number = numbers(series)[0]
        if number is not None:
            ranks = rankdata(number, nan_policy="omit")
        level = as_levels(series)
        out[name] = _Values(
            number, ranks, level.to_numpy(), level.is_not_null().to_numpy(), level.n_unique()
        )
    return out


def _same_quantity(
    one: _Member,
    two: _Member,
    a: str,
    b: str,
    first: Mapping[str, _Values],
    second: Mapping[str, _Values],
    compared: int,
) -> SameQuantity | None:
    from rapidfuzz import fuzz, utils

    images = is_image(one.frame[a].dtype), is_image(two.frame[b].dtype)
    names = fuzz.WRatio(*(utils.default_process(n.replace("_", " ")) for n in (a, b)))
    alike = a == b or names >= _ALIKE_NAMES
    named = "one name" if a == b else "alike names" if alike else "two names"
    ends = ((one.name, a), (two.name, b))
    if compared < _FEWEST_COMPARED:
        if a != b or images[0] != images[1]:
            return None
        return SameQuantity(
            first=ends[0],
            second=ends[1],
            equal=None,
            correlation=None,
            why="one name; too few people are shared to compare values",
            offers=("keep both",),
        )
    if a not in first or b not in second:
        return None
    x, y = first[a], second[b]
    equal, correlation, chance = _agreement(x, y)
    # Under two names only what can hardly be chance counts: many values, and all but all the same.
    telling = min(x.distinct, y.distinct) > 10
    # Columns that hardly ever leave one value agree by chance (Cohen's kappa takes that off).
    kappa = (equal - chance) / (1 - chance) if chance < 1 else 0.0
    likeness = max(kappa, abs(correlation or 0.0))
    if not (likeness >= _CLOSE if alike else telling and likeness >= 0.995):
        return None
    if equal >= _SAME:
        offers: tuple[Offer, ...] = ("keep one", "keep both")
    elif x.number is not None and y.number is not None and _on_one_scale(x.number, y.number):
        offers = ("average", "keep one", "keep both")
    else:
        offers = ("keep one", "keep both") if likeness >= _SAME else ("keep both", "keep one")
    said = f"{equal:.0%} of the values are equal"
    if correlation is not None:
        said += f", rank correlation {correlation:.2f}"
    return SameQuantity(
        first=ends[0],
        second=ends[1],
        equal=equal,
        correlation=correlation,
        why=f"{named}; over {compared} shared people {said}",
        offers=offers,
    )


def _agreement(x: _Values, y: _Values) -> tuple[float, float | None, float]:
    """Share of equal values, for two numbers rank correlation, and the share that would be equal
    if one column were shuffled; over rows known to both."""
    if x.number is None or y.number is None or x.ranks is None or y.ranks is None:
        known = x.known & y.known
        if known.sum() < _FEWEST_COMPARED:
            return 0.0, None, 0.0
        levels = x.level[known], y.level[known]
        return float((levels[0] == levels[1]).mean()), None, _by_chance(*levels)
    known = ~(np.isnan(x.number) | np.isnan(y.number))
    if known.sum() < _FEWEST_COMPARED:
        return 0.0, None, 0.0
    chance = _by_chance(x.number[known], y.number[known])
    equal = float(np.isclose(x.number[known], y.number[known], rtol=1e-6, atol=0).mean())
    one, two = x.ranks[known], y.ranks[known]
    if one.std() == 0 or two.std() == 0:
        return equal, None, chance
    return equal, float(np.corrcoef(one, two)[0, 1]), chance


def _by_chance(one: NDArray[Any], two: NDArray[Any]) -> float:
    """Σ_v p(v) q(v), how often values of two columns (n,) are equal that have nothing to do with
    each other."""
    values, place = np.unique(np.concatenate([one, two]), return_inverse=True)
    counts = [np.bincount(part, minlength=len(values)) for part in np.split(place, 2)]
    return float(counts[0] @ counts[1]) / len(one) ** 2


def _on_one_scale(x: NDArray[np.float64], y: NDArray[np.float64]) -> bool:
    """Whether the mean difference is small beside the spread."""
    known = ~(np.isnan(x) | np.isnan(y))
    return float(np.abs(x[known] - y[known]).mean()) < 0.5 * float(x[known].std())


# --- the whole ---------------------------------------------------------------------------------


def _pair_kind(one: _Member, two: _Member, same_columns: int, shared: int) -> Kind:
    fewer = max(1, min(len(one.features), len(two.features)))
    columns = same_columns / fewer
    people = shared / min(len(one.keys.values), len(two.keys.values))
    if shared == 0:
        return "horizontal" if columns >= 0.5 else "unrelated"
    if columns < _OTHER_COLUMNS:
        return "vertical"
    return "horizontal" if columns >= _SAME_COLUMNS and people < _MANY_PEOPLE else "mixed"


def _overall(
    members: Sequence[_Member], pairs: Sequence[PairGeometry], shapes: Sequence[PartyShape]
) -> tuple[Kind, str]:
    related = {pair.kind for pair in pairs} - {"unrelated"}
    joined = {name for pair in pairs if pair.kind != "unrelated" for name in pair.parties}
    apart = [m.name for m in members if m.name not in joined]
    most = max(pair.shared for pair in pairs)
    same = max(pair.same_columns for pair in pairs)
    if not related:
        return "unrelated", "No two parties share people, and their columns differ."
    end = f" {', '.join(apart)} shares neither people nor columns with anyone." if apart else ""
    if related == {"horizontal"}:
        shared = f"at most {most} are shared" if most else "none are shared"
        why = f"The parties have the same columns and other people ({shared})."
        return "horizontal", why + end
    if related == {"vertical"}:
        who = f"{shapes[0].shared} people are at every party"
        if len(members) > 2:
            who += f", up to {most} at two"
        why = f"The parties have other columns and partly the same people: {who}."
        if same:
            why += (
                " One column seems to be the same quantity at two parties."
                if same == 1
                else f" Up to {same} columns seem to be the same quantities at two parties."
            )
        return "vertical", why + end
    if len(related) > 1:
        why = "Some parties share columns, others share people."
    else:
        why = f"The parties share people (up to {most}) and columns (up to {same}) at once."
    return "mixed", why + end


def _situation(members: Sequence[_Member], warnings: list[str]) -> Situation | None:
    """What there is to learn from, for the first party that has a label."""
    having = [(m, m.label) for m in members if m.label is not None]
    if not having:
        return None
    active, column = having[0]
    label = active.frame[column][active.keys.rows]
    try:
        task = LabelPlan.fit(label, party=active.name).task
    except DataError as e:
        warnings.append(f"{e}.")
        return None
    partners = [m for m in members if m is not active]
    known = label.is_not_null().to_numpy()
    holders = np.array(
        [[key in m.position for m in partners] for key in active.keys.values], dtype=np.bool_
    )
    every, some = holders.all(1), holders.any(1)
    unlabelled = {active.name: int((~known).sum())}
    for m in partners:
        unlabelled[m.name] = len(m.position.keys() - active.position.keys())
    return Situation(
        active=active.name,
        task=task,
        parties=sum(bool(m.features) for m in members),
        own_columns=bool(active.features),
        shared=int((known & every).sum()),
        partly=int((known & some & ~every).sum()),
        labelled=int((known & ~some).sum()),
        unlabelled=unlabelled,
    )
