"""What is doubtful about tables of people to score, in counts, where one person holds them all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from interlace.data.columns import as_levels
from interlace.data.geometry import near_misses
from interlace.data.tables import read_table
from interlace.errors import DataError
from interlace.job.results import Results
from interlace.job.spec import Job
from interlace.party import Party
from interlace.report.words import plural


def doubts(parties: Mapping[str, Party], job: Job, results: Results) -> list[str]:
    """Sentences about ids that no longer match for their form alone, and about new categories.

    Args:
        parties: By name, with their tables of people to score.
        job: Of the run; names the tables that it learnt from.
        results: Of the run; name the columns that it read as categories.
    """
    active = next(told.name for told in results.parties if told.active)
    partners = [party for name, party in parties.items() if name != active]
    said = _unmatched(parties[active], partners)
    for told in results.parties:
        names = told.columns_read.get("category", [])
        if names and told.name in parties:
            said += _new_categories(parties[told.name], job.parties[told.name].table, names)
    return said


def _unmatched(active: Party, partners: Iterable[Party]) -> list[str]:
    said = []
    for partner in partners:
        sides = [(p.frame, p.id_rule, p.keys) for p in (active, partner)]
        if len({len(rule.columns) for _, rule, _ in sides}) == 1:
            said += [
                f"{active.name} and {partner.name} would share {gain:,} more people if {what} were "
                "ignored; write the ids of both tables as they were in training"
                for what, gain in near_misses(*sides)
            ]
    return said


def _new_categories(party: Party, table: str | None, names: list[str]) -> list[str]:
    try:
        before = read_table(table, party=party.name, columns=names)
    except DataError:
        return [f"{party.name}: the table of the run is not there to look for new categories by"]
    new = {}
    for name in (n for n in names if n in party.frame.columns):
        level = as_levels(party.frame[name])
        new[name] = int((~level.is_in(as_levels(before[name]).implode())).fill_null(False).sum())
    return [
        f"{party.name}: {plural(count, 'person has', 'people have')} a category in '{name}' that "
        "the table of the run did not have, of which the models know nothing"
        for name, count in new.items()
        if count
    ]
