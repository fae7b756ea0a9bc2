"""Who is shared with whom, and how the parties find that out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from interlace.align import dh, kkrt, multi
from interlace.align.exchange import Matched, Progress, Rows, ids_of, random_order
from interlace.errors import JobError, NobodyShared
from interlace.party import Engine, Party, PassiveSide, Peer

Protocol = Literal["auto", "dh", "kkrt"]
Reveal = Literal["pairs", "common"]

DH_MOST = 100_000
"""Up to so many ids on either side ``auto`` takes Diffie-Hellman, above that KKRT."""

SESSION = "alignment"
"""The conversation's name in every ledger."""


class AlignmentReport(BaseModel):
    """What an alignment found and what each party learnt by it, in counts; it holds no id."""

    model_config = ConfigDict(frozen=True)

    reveal: Reveal = Field(description="'pairs', or 'common' for only whom all parties share.")
    protocols: dict[str, str] = Field(description="How each passive party was matched.")
    people: dict[str, int] = Field(description="How many people each party has.")
    shared: dict[str, int] = Field(description="How many people are shared with each passive one.")
    common: int = Field(description="How many people all parties share.")
    learnt: dict[str, list[str]] = Field(description="What each party now knows, in sentences.")


@dataclass(frozen=True, eq=False)
class Alignment:
    """Who is shared with whom, as the active party knows it. Rows are those of its table.

    Attributes:
        pairs: For each passive party, the active rows of the people shared with it, shape (s,),
            int64; the j-th is the same person as the j-th of the passive party's own
            ``Party.aligned``. The order is random and tells nothing of either table. With
            ``reveal="common"`` these are the people whom all share.
        common: Active rows of the people whom all parties share, rising.
        holders: Shape (n, passive parties), bool: who holds each of the active party's people,
            columns as in ``pairs``. With ``reveal="common"`` only people whom all hold are marked,
            since nothing is known of the others.
        report: What each party learnt.
    """

    pairs: dict[str, Rows]
    common: Rows
    holders: NDArray[np.bool_]
    report: AlignmentReport

    @classmethod
    def of(cls, pairs: dict[str, Rows], people: int, report: AlignmentReport) -> Alignment:
        """The alignment that follows from the pairs, for ``people`` rows at the active party."""
        holders = np.zeros((people, len(pairs)), bool)
        for column, rows in enumerate(pairs.values()):
            holders[rows, column] = True
        return cls(pairs, np.flatnonzero(holders.all(axis=1)), holders, report)

    def position(self, party: str) -> Rows:
        """Where each of the active party's people stands in the order shared with ``party``.

        Returns:
            Shape (n,), int64; -1 for people who are not shared with it. Not to be written to.
        """
        return self._positions[party]

    @cached_property
    def _positions(self) -> dict[str, Rows]:
        """Kept, for who scores one person of a million asks again and again."""
        found = {}
        for party, rows in self.pairs.items():
            found[party] = where = np.full(len(self.holders), -1, np.int64)
            where[rows] = np.arange(len(rows))
        return found


def align(
    active: Party,
    engine: Engine,
    passive: Sequence[str],
    *,
    protocol: Protocol = "auto",
    reveal: Reveal = "pairs",
    progress: Progress | None = None,
) -> Alignment:
    """Find the people whom the parties share, without anyone learning an id that it did not hold.

    Each passive party keeps its own rows of the shared people in ``Party.aligned[active.name]``.
    Nobody is told anything before all partners are matched.

    Args:
        active: The party that drives.
        engine: What carries the messages.
        passive: The partners' names.
        protocol: ``dh`` (Diffie-Hellman over Curve25519), ``kkrt`` (oblivious pseudo-random
            function), or by size.
        reveal: With two or more passive parties, ``pairs`` tells the active party whom it shares
            with each of them, ``common`` only whom all share.
        progress: Called as the work goes on.

    Raises:
        AlignmentError: fewer than two people are shared, or a party has no ids.
        JobError: Diffie-Hellman is asked for where only the common people may be revealed.
        Refused: a partner's answers are not as agreed.
    """
    report = progress or (lambda what, share: None)
    only_common = reveal == "common" and len(passive) > 1
    if only_common and protocol == "dh":
        raise JobError(
            "`reveal: common` needs the kkrt protocol among three or more parties; Diffie-Hellman "
            "shows the active party whom it shares with each (`reveal: pairs`)"
        )
    if not passive:
        raise JobError("there is no partner to align with")
    order = random_order(len(active))
    conversation = _Conversation(active, engine, passive, report)
    if only_common:
        return conversation.common(order)
    return conversation.pairs(order, protocol)


class _Conversation:
    """One alignment of the active party with its partners."""

    def __init__(
        self, active: Party, engine: Engine, passive: Sequence[str], progress: Progress
    ) -> None:
        self.active, self.engine, self.passive = active, engine, passive
        self.progress = progress
        self.ids = ids_of(active)
        self.peers = {name: Peer(active, name, engine, SESSION) for name in passive}

    def open(self, name: str, side: type[PassiveSide]) -> Peer:
        self.engine.open(SESSION, side, name, self.active.name)
        return self.peers[name]

    def pairs(self, order: Rows, protocol: Protocol) -> Alignment:
        """Match with each partner by itself."""
        asker, prepared = dh.Asker(self.ids), None
        found: dict[str, Matched] = {}
        used: dict[str, str] = {}
        for name in self.passive:
            used[name] = protocol
            if protocol != "kkrt":
                theirs = dh.ask_size(self.open(name, dh.DhSide), len(self.ids))
                large = max(theirs, len(self.ids)) > DH_MOST
                used[name] = "kkrt" if protocol == "auto" and large else "dh"
            if used[name] == "dh":
                found[name] = asker.match(self.peers[name], theirs, self.progress)
            else:
                prepared = prepared or kkrt.prepare(self.ids)
                peer = self.open(name, kkrt.KkrtSide)
                found[name] = kkrt.match(peer, prepared, self.progress)
            self._somebody(len(found[name].rows), f"'{name}'")
        # One random rank for all pairs: whom several partners share comes in one order at each.
        rank = np.argsort(order)
        pairs = {}
        for name, matched in found.items():
            by_rank = np.argsort(rank[matched.rows])
            pairs[name] = matched.rows[by_rank]
            positions = torch.from_numpy(matched.positions[by_rank])
            keep = dh.DhSide.keep if used[name] == "dh" else kkrt.KkrtSide.keep
            self.peers[name].ask(keep, positions)
        sizes = {name: m.theirs for name, m in found.items()}
        return self._alignment(pairs, used, sizes, "pairs")

    def common(self, order: Rows) -> Alignment:
        """Match with all partners at once."""
        prepared = kkrt.prepare(self.ids)
        for name in self.passive:
            self.open(name, multi.CommonSide)
        found = multi.match(self.peers, prepared, self.progress)
        self._somebody(len(found.rows), "all of " + ", ".join(f"'{n}'" for n in self.passive))
        rows = order[np.isin(order, found.rows)]
        for name, peer in self.peers.items():
            multi.tell(peer, prepared, found.mark_keys[name], rows)
        pairs = dict.fromkeys(self.passive, rows)
        used = dict.fromkeys(self.passive, "kkrt")
        return self._alignment(pairs, used, found.sizes, "common")

    def _somebody(self, shared: int, whom: str) -> None:
        if not shared:
            raise NobodyShared(
                f"no person of party '{self.active.name}' ({len(self.ids):,} people) is shared "
                f"with {whom}. Check that the parties' id columns mean the same and write a person "
                "alike: of blanks around ids, letter case and leading zeros `interlace inspect` "
                "says whether an id rule helps; all else (prefixes, signs, inner blanks) is to be "
                "made alike in the tables"
            )

    def _alignment(
        self, pairs: dict[str, Rows], used: dict[str, str], sizes: dict[str, int], reveal: Reveal
    ) -> Alignment:
        report = AlignmentReport(
            reveal=reveal,
            protocols=used,
            people={self.active.name: len(self.ids), **sizes},
            shared={name: len(rows) for name, rows in pairs.items()},
            common=len(reduce(np.intersect1d, pairs.values())),
            learnt=_learnt(self.active.name, list(pairs), used, reveal),
        )
        return Alignment.of(pairs, len(self.ids), report)


def _learnt(
    active: str, passive: Sequence[str], used: dict[str, str], reveal: Reveal
) -> dict[str, list[str]]:
    """What each party knows after the alignment and did not know before."""
    learnt = {active: [f"how many people each partner has ({', '.join(passive)})"]}
    if reveal == "common":
        learnt[active].append(
            "which of its own people all parties hold; not whom it shares with some of them only"
        )
    for name in passive:
        learnt[name] = [f"how many people '{active}' has"]
        if reveal == "common":
            learnt[name].append("which of its own people all parties hold, and of nobody else")
            continue
        learnt[name].append(f"which of its own people '{active}' holds too, and of nobody else")
        learnt[active].append(f"which of its own people '{name}' holds too, and of nobody else")
        if used[name] == "dh":
            learnt[active].append(
                f"a blinded token of each person of '{name}', which says nothing about people "
                "whom it does not hold itself"
            )
    return learnt
