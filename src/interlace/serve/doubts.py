"""What is doubtful about tables of people to score, in counts, where one person holds them all."""

from __future__ import annotations

from collections.abc import Mapping

from interlace.data.columns import as_levels
from interlace.data.features import FeaturePlan
from interlace.data.geometry import near_misses
from interlace.data.tables import read_table
from interlace.errors import DataError
from interlace.job.results import Results
from interlace.job.spec import Job, PartyFile
from interlace.party import Party
from interlace.report.words import plural

FEW = 1 / 10  # of the share of people whom a partner held in training


def doubts(parties: Mapping[str, Party], job: Job, results: Results) -> list[str]:
    """Sentences about rows left out for their ids, people whom partners hardly hold, ids that no
    longer match for their form alone, values that do not read as in training, and new categories.

    Args:
        parties: By name, with their tables of people to score.
        job: Of the run; names the tables that it learnt from.
        results: Of the run; name the columns and what it read them as.
    """
    trained = next(told for told in results.parties if told.active)
    active = parties[trained.name]
    said = [note for party in parties.values() for note in left_out(party)]
    for told in results.parties:
        if told.name in parties and not told.active:
            said += _unmatched(active, parties[told.name], told.shared / max(trained.people, 1))
    for told in results.parties:
        if told.name in parties:
            said += _unlike(parties[told.name], job.parties[told.name], told.columns_read)
    return said


def left_out(party: Party) -> list[str]:
    """How many rows of a table its party's id rule left out, if any."""
    report = party.keys.report
    if report.kept == report.rows:
        return []
    return [
        f"{party.name}: {plural(report.rows - report.kept, 'row')} of {report.rows:,} left out, "
        "without an id or with that of another row"
    ]


def _unmatched(active: Party, partner: Party, before: float) -> list[str]:
    """How few people are shared, where of the active party's people a share of ``before`` was."""
    sides = [(p.frame, p.id_rule, p.keys) for p in (active, partner)]
    if len({len(rule.columns) for _, rule, _ in sides}) > 1:
        return []
    misses = [
        f"{active.name} and {partner.name} would share {gain:,} more people if {what} were "
        "ignored; write the ids of both tables as they were in training"
        for what, gain in near_misses(*sides)
    ]
    shared = len({*active.keys.values} & {*partner.keys.values})
    if shared >= FEW * before * len(active):
        return misses
    few = (
        f"{'only ' if shared else ''}{shared or 'none'} of the {len(active):,} people of "
        f"{active.name} {'is' if shared < 2 else 'are'} among the {len(partner):,} of "
        f"{partner.name}, where in training {before:.0%} were"
    )
    if not misses:
        few += (
            "; check that the id columns are those of training, and their ids written as there "
            "(leading zeros, letter case, blanks, no 123.0 for 123)"
        )
    return [few, *misses]


def _unlike(party: Party, file: PartyFile, read: Mapping[str, list[str]]) -> list[str]:
    """Values that do not read as in training, and new categories."""
    there = {*party.frame.columns}
    scaled = [n for kind in ("numbers", "date parts") for n in read.get(kind, []) if n in there]
    coded = [n for n in read.get("category", []) if n in there]
    if not (scaled or coded):
        return []
    try:
        before = read_table(file.table, party=party.name, columns=[*scaled, *coded])
        rows = range(before.height)
        plan = FeaturePlan.fit(before, scaled, rows, party=party.name) if scaled else None
    except DataError:
        return [f"{party.name}: the table of the run is not there to hold these people's against"]
    said = plan.unread(party.frame) if plan else []
    for name in coded:
        level = as_levels(party.frame[name])
        new = int((~level.is_in(as_levels(before[name]).implode())).fill_null(False).sum())
        if new:
            said.append(
                f"{party.name}: {plural(new, 'person has', 'people have')} a category in '{name}' "
                "that the table of the run did not have, of which the models know nothing"
            )
    return said
