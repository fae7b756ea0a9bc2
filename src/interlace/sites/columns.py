"""How a party's columns read in training, held against the tables whose people are scored later:
what the models cannot read is told before anybody is asked anything."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from interlace.data.features import FeaturePlan
from interlace.errors import DataError
from interlace.files import write_whole
from interlace.party import Party
from interlace.runner import make_party
from interlace.sites.contract import Contract
from interlace.sites.folder import PartyFolder, RunFolder

FILE = "columns.json"  # in a training's folder, as private as the model


def keep(party: Party, run: RunFolder) -> None:
    """Keep how a party's columns read, once for a training."""
    file = run.path / FILE
    if not party.columns or file.exists():
        return
    with suppress(DataError):  # which the training finds too, if it is one to it
        plan = FeaturePlan.fit(
            party.frame,
            party.columns,
            range(len(party)),
            party=party.name,
            readings=party.readings,
        )
        write_whole(file, plan.to_json().encode())


def misfit(party: Party, trained: RunFolder) -> str | None:
    """Why a training's models cannot read a party's table, or ``None``: the first column that is
    missing, or of which no value reads as it did."""
    plan = _kept(trained)
    if plan is None:
        return None
    try:
        plan.transform(party.frame, [0] if plan.image else None)
    except DataError as e:
        return _told(e, party.name, party.file)
    return None


def unread(party: Party, trained: RunFolder) -> list[str]:
    """Which columns of a party's table have values that do not read as they did in a training, and
    how many: counts that are the party's own affair, told to nobody else."""
    plan = _kept(trained)
    return [] if plan is None else plan.unread(party.frame)


def _kept(trained: RunFolder) -> FeaturePlan | None:
    file = trained.path / FILE
    return FeaturePlan.from_json(file.read_text()) if file.exists() else None


def unscorable(folder: PartyFolder, contract: Contract) -> str | None:
    """Why a party's own table cannot be scored as a contract asks, or ``None``.

    Raises:
        DataError: the table cannot be read at all.
    """
    scores = contract.scores
    if scores is None:
        return None
    try:
        party = _scored(folder, contract)
    except DataError as e:
        if e.column is None:
            raise
        return _told(e, folder.name, e.file)
    return misfit(party, folder.run(scores.run)) if party else None


def doubts(folder: PartyFolder, contract: Contract) -> list[str]:
    """What :func:`unread` has to say of a party's own table that is scored as a contract asks.

    Raises:
        DataError: the table cannot be read.
    """
    if contract.scores is None:
        return []
    party = _scored(folder, contract)
    return unread(party, folder.run(contract.scores.run)) if party else []


def _scored(folder: PartyFolder, contract: Contract) -> Party | None:
    """The party with the table of its file, if that is scored. Who drives may name another table
    of people, and has had it looked at by then."""
    assert contract.scores is not None
    if contract.scores.batch and folder.name == contract.active:
        return None
    return make_party(folder.name, folder.read(), label_needed=False)


def _told(error: DataError, party: str, file: str | None) -> str:
    """A fault in words that a partner may read: without the columns that there are instead."""
    where = f"file '{Path(file).name}', " if file else ""
    return (
        f"party '{party}', {where}column '{error.column}': {error.problem}. Give the table the "
        "form that it had in training"
    )
