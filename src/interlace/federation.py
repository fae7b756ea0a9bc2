"""A federation: the parties that train together, who of their people are shared, and the engine."""

from __future__ import annotations

import copy
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interlace.align import Alignment, AlignmentReport, Progress, align
from interlace.boundary import Ledger
from interlace.data.labels import LabelPlan, is_known
from interlace.engines import InProcess
from interlace.errors import AlignmentError, DataError, InterlaceError, JobError, PartyAway
from interlace.party import (
    RUN,
    Engine,
    Party,
    PassiveSide,
    Peer,
    RunSide,
    State,
    ask_all,
    read_state,
    write_state,
)

Rows = NDArray[np.int64]
R = TypeVar("R")


@dataclass
class _Common:
    """What all views of one federation share."""

    protocol: Literal["auto", "dh", "kkrt"] = "auto"
    reveal: Literal["pairs", "common"] = "pairs"
    opened: set[str] = field(default_factory=set)
    met: bool = False  # whether the partners take part in the conversation about the run
    alignment: Alignment | None = None
    label_plan: LabelPlan | None = None


class Federation:
    """Parties, seen from the active one.

    ``rows`` are positions in the active party's table: the people that this view is about.
    ``held_out`` are people that no model fitted on this view may learn from, not even through the
    scaling of a column. :meth:`split` and :meth:`shared` return further views of the same parties.

    Make one with :meth:`simulate`; on real sites the driver makes it of itself, its partners' names
    and the engine that reaches them.

    Args:
        active: The party that drives.
        passive: Its partners' names.
        engine: What carries the messages.
        helpers: Parties without a table, that may hold a key for the others.
        seed: Seeds all that the parties draw together, such as the order of batches.
        protocol: How people are matched: ``dh``, ``kkrt``, or by the tables' size.
        reveal: ``pairs``: the active party learns whom it shares with each party.
            ``common``: only whom all parties share.
    """

    def __init__(
        self,
        active: Party,
        passive: Sequence[str],
        engine: Engine,
        *,
        helpers: Sequence[str] = (),
        seed: int = 0,
        protocol: Literal["auto", "dh", "kkrt"] = "auto",
        reveal: Literal["pairs", "common"] = "pairs",
    ) -> None:
        self.active = active
        self.passive = tuple(passive)
        self.helpers = tuple(helpers)
        self.engine = engine
        self.seed = seed
        self.rows: Rows = np.arange(len(active), dtype=np.int64)
        self.held_out: Rows = np.empty(0, dtype=np.int64)
        self._tag = ""
        self._common = _Common(protocol, reveal)

    def __repr__(self) -> str:
        names = [self.active.name, *self.passive]
        return f"Federation({names}, active={self.active.name!r}, {len(self.rows):,} people)"

    @classmethod
    def simulate(
        cls,
        parties: Sequence[Party],
        *,
        active: str | None = None,
        wire: bool = False,
        seed: int = 0,
        folder: str | Path | None = None,
        protocol: Literal["auto", "dh", "kkrt"] = "auto",
        reveal: Literal["pairs", "common"] = "pairs",
    ) -> Self:
        """All parties in this process.

        Args:
            parties: Two or more parties with different names. One without a table (besides the
                active one) matches nobody and learns nothing: it holds a key for the others.
            active: The party that drives; by default the one that has a label.
            wire: Encode and decode every message, as real sites would.
            seed: Seeds everything random: the order of batches, initial weights, guards' noise.
            folder: Where the parties keep ledgers, checkpoints and models
                (``folder/parties/<name>``); ``None`` keeps the ledgers in memory only.
            protocol: How people are matched: ``dh``, ``kkrt``, or by the tables' size.
            reveal: ``pairs``: the active party learns whom it shares with each party.
                ``common``: only whom all parties share.

        Raises:
            JobError: fewer than two parties, two of one name, or no or several label holders.
        """
        names = [p.name for p in parties]
        if len(parties) < 2:
            raise JobError("a federation takes at least two parties")
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice:
            raise JobError(f"two parties are called '{twice[0]}'; every party needs its own name")
        if active is None:
            holders = [p.name for p in parties if p.has_label]
            if len(holders) != 1:
                raise JobError(
                    "say which party is active: "
                    + (
                        f"{', '.join(holders)} have labels"
                        if holders
                        else "none has a label. If one is to be learnt, give its party `label:`, "
                        "the column's name"
                    )
                )
            active = holders[0]
        if active not in names:
            raise JobError(f"the active party '{active}' is not among: {', '.join(names)}")
        by_name = {p.name: p for p in parties}
        for i, party in enumerate(parties):
            if folder is not None:
                party.folder = Path(folder) / "parties" / party.name
            ledger = Ledger(party.folder / "ledger.sqlite" if party.folder else None)
            party.record_in(ledger, seed=None)
            party.train_anew(seed, otherwise=seed * 1009 + i)
        others = [n for n in names if n != active]
        return cls(
            by_name[active],
            [n for n in others if by_name[n].frame.width],
            InProcess(parties, wire=wire),
            helpers=[n for n in others if not by_name[n].frame.width],
            seed=seed,
            protocol=protocol,
            reveal=reveal,
        )

    # -- the run as a whole --------------------------------------------------------------------

    def tell(
        self, operation: Callable[[RunSide, dict[str, Any]], R], about: dict[str, Any]
    ) -> dict[str, R]:
        """Have every partner carry out an operation about the run itself (:class:`RunSide`).

        In one process nobody need be told over the boundary, so no ledger notes it.

        Returns:
            The partners' answers, by their names.
        """
        if isinstance(self.engine, InProcess):
            sides = {n: RunSide(self.engine.parties[n], self.active.name) for n in self.passive}
            return {name: operation(side, about) for name, side in sides.items()}
        if not self._common.met:
            self._common.met = True
            for name in self.passive:
                self.engine.open(RUN, RunSide, name, self.active.name)
        return ask_all(self.peers(RUN).values(), operation, about)

    # -- who is shared ------------------------------------------------------------------------

    def align(self, progress: Progress | None = None) -> Alignment:
        """Match the parties' people privately; done once, then remembered.

        Parties with a folder keep their own rows there, so that a resumed run finds the same order.

        Raises:
            NobodyShared: not one person is shared.
        """
        if self._common.alignment is None:
            self._common.alignment = self._kept_alignment()
        if self._common.alignment is None:
            self._common.alignment = align(
                self.active,
                self.engine,
                self.passive,
                protocol=self._common.protocol,
                reveal=self._common.reveal,
                progress=progress,
            )
            self._keep_alignment(self._common.alignment)
        return self._common.alignment

    def take_up_matching(self) -> None:
        """Take up the matching that all parties kept of these tables; nobody is matched anew.

        Raises:
            AlignmentError: a table has other people by now, or nothing was kept.
        """
        self._common.alignment = self._common.alignment or self._kept_alignment()
        if self._common.alignment is None:
            raise AlignmentError(
                "a party's table has other people than those who were matched, or its folder has "
                "lost the matching; put the table back, or train anew"
            )

    def _keep_alignment(self, alignment: Alignment) -> None:
        """Every party keeps its own side of the matching in its own folder."""
        if self.active.folder is None:
            return
        name = secrets.token_hex(8)
        self.tell(RunSide.keep_matching, {"name": name})
        pairs = {name: torch.from_numpy(rows) for name, rows in alignment.pairs.items()}
        meta = {"run": name, "report": alignment.report.model_dump(mode="json")}
        write_state(self.active.path("alignment", self.active.people), State(pairs, meta))

    def _kept_alignment(self) -> Alignment | None:
        """The matching of exactly these tables, if all parties kept it."""
        if self.active.folder is None:
            return None
        try:
            mine = read_state(self.active.path("alignment", self.active.people))
        except InterlaceError:
            return None
        report = AlignmentReport.model_validate(mine.meta["report"])
        protocols = set(report.protocols.values())
        # With one partner there is only one pair to reveal, whatever the job asks for.
        reveal = self._common.reveal if len(self.passive) > 1 else report.reveal
        if report.reveal != reveal or self._common.protocol not in ("auto", *protocols):
            return None
        kept = self.tell(RunSide.kept_matching, {}).values()
        if {mine.meta["run"]} != {answer["name"] for answer in kept}:
            return None
        pairs = {name: mine.tensors[name].numpy() for name in self.passive}
        return Alignment.of(pairs, len(self.active), report)

    @property
    def alignment(self) -> Alignment:
        """Who is shared with whom, as the active party knows it (matched on first use)."""
        return self.align()

    def positions(self, party: str, rows: Rows) -> Tensor:
        """Where the active party's ``rows`` stand in the order shared with ``party``.

        Returns:
            int64 tensor of shape (len(rows),).

        Raises:
            AlignmentError: some of the rows are not shared with that party.
        """
        where = self.alignment.position(party)[rows]
        missing = int((where < 0).sum())
        if missing:
            raise AlignmentError(
                f"{missing:,} of {len(rows):,} people are not held by '{party}'; use "
                "`federation.shared()`, `WithFallback`, or a method that takes people with a "
                "missing view"
            )
        return torch.from_numpy(where)

    # -- views --------------------------------------------------------------------------------

    def view(self, rows: Rows, held_out: Rows | None = None) -> Self:
        """The same federation about other people of the active party."""
        other = copy.copy(self)
        other.rows = np.asarray(rows, dtype=np.int64)
        if other.rows.size and not 0 <= other.rows.min() <= other.rows.max() < len(self.active):
            raise InterlaceError(
                f"a view names rows outside of the {len(self.active):,} people of "
                f"'{self.active.name}'"
            )
        if held_out is not None:
            other.held_out = np.asarray(held_out, dtype=np.int64)
        return other

    def shared(self, *, partial: bool = False) -> Self:
        """The people of this view whom every party holds, or any partner if ``partial``."""
        common = self.alignment.common
        if partial:
            common = np.flatnonzero(self.alignment.holders.any(axis=1))
        return self.view(np.intersect1d(self.rows, common))

    def labelled(self) -> Self:
        """The people of this view whose label the active party knows."""
        return self.view(self.rows[is_known(self.y).numpy()])

    def split(
        self,
        test: float | int = 0.25,
        *,
        seed: int | None = None,
        partial: bool = False,
        labelled: bool = True,
    ) -> tuple[Self, Self]:
        """Hold some shared, labelled people out for testing.

        Args:
            test: Share or number of the shared, labelled people to hold out.
            seed: Draws them; by default the federation's seed.
            partial: Take those whom any partner holds for shared, not only those whom all do.
            labelled: Whether a label is to be learnt; else any shared people are held out.

        Returns:
            The training view (everybody else, shared or not) and the test view. Classes keep
            their shares in both; as far as so few allow, both have somebody of every class, and a
            class of one person is left to train on.
        """
        from sklearn.model_selection import train_test_split

        pool = self.shared(partial=partial)
        if labelled:
            pool = pool.labelled()
        elif len(pool.rows) < 2:
            raise AlignmentError(
                f"{len(pool.rows)} people are held by all parties, too few to hold some out. "
                f"{self._more_shared}"
            )
        if not len(pool.rows):
            held_by_some = len(self.shared(partial=True).labelled().rows)
            raise AlignmentError(
                "0 shared people with a label are too few to learn from: of party "
                f"'{self.active.name}', {held_by_some:,} with a label are held by some partner "
                f"and none by all. {self._more_shared}"
            )
        if len(pool.rows) == 1:
            raise AlignmentError(
                f"only one person of party '{self.active.name}' is shared and has a label; check "
                "the id rules with `interlace inspect`"
            )
        seed = self.seed if seed is None else seed
        y, strata = None, None
        if labelled and self.label_plan.task in ("binary", "multiclass"):
            y = pool.y.numpy()
            counts = np.bincount(y)
            strata = y if min(counts[counts > 0], default=0) >= 2 else None
        try:
            _, held = train_test_split(
                pool.rows,
                test_size=test,
                random_state=seed,
                stratify=strata,
            )
        except ValueError as e:
            of = "" if strata is None else " of each class"
            raise AlignmentError(
                f"{len(pool.rows):,} shared people{' with a label' * labelled} are too few for "
                f"`test: {test}`, which leaves too few{of} to learn from or to test with; hold out "
                "another share of them, such as 0.25, or share more"
            ) from e
        held = np.sort(held)
        if y is not None:
            held = _of_every_class(pool.rows, y, held, np.random.default_rng(seed))
        return (
            self.view(np.setdiff1d(self.rows, held), np.union1d(self.held_out, held)),
            self.view(held),
        )

    @property
    def _more_shared(self) -> str:
        """The way out where too few people are shared."""
        several = (
            "Leave out a partner who shares few people, or check" if self.passive[1:] else "Check"
        )
        return f"{several} the id rules with `interlace inspect`"

    def with_tables(self, tables: Mapping[str, Any]) -> Self:
        """The same organisations and what they have learnt, with new people.

        Args:
            tables: A table for every party that has one, by name.
        """
        if not isinstance(self.engine, InProcess):
            raise InterlaceError("new tables are named in each party's own file on real sites")
        holders = {name for name, party in self.engine.parties.items() if len(party)}
        missing = sorted(holders - set(tables))
        if missing:
            raise JobError(f"there is no new table for party '{missing[0]}'")
        parties = [p.with_table(tables.get(n)) for n, p in self.engine.parties.items()]
        by_name = {p.name: p for p in parties}
        other = copy.copy(self)
        other.active = by_name[self.active.name]
        other.engine = InProcess(parties, wire=self.engine.wire)
        other.rows = np.arange(len(other.active), dtype=np.int64)
        other.held_out = np.empty(0, dtype=np.int64)
        other._common = replace(self._common, alignment=None)
        return other

    def fresh(self, seed: int, tag: str) -> Self:
        """The same people and ledgers for a training of its own: another seed, guards from new.

        In a simulation every seed is a what-if: each counts its privacy budget from zero, as the
        one training would that is done for real. A policy's limits on a run hold for all together.

        Args:
            seed: Seeds everything random.
            tag: Names the conversations in the ledger, so that their messages can be told apart.
        """
        other = copy.copy(self)
        other.seed, other._tag = seed, tag
        if isinstance(self.engine, InProcess):
            for i, party in enumerate(self.engine.parties.values()):
                party.train_anew(seed, otherwise=seed * 1009 + i)
        else:
            self.active.train_anew(seed)
            self.tell(RunSide.train, {"seed": seed})
        return other

    def let_go(self) -> None:
        """Bring what a training that failed has left with the engine to its end, so that the next
        one does not hear what went wrong with it.

        Raises:
            PartyAway: a party cannot be reached.
        """
        if self.active.boundary.stopped:  # then nothing leaves any more
            return
        for name in (*self.passive, *self.helpers):
            try:
                self.engine.settle(name)
            except PartyAway:
                raise
            except InterlaceError:
                pass

    # -- labels, which only the active party has ------------------------------------------------

    @property
    def label_plan(self) -> LabelPlan:
        """What is to be learnt: the task and its classes, read off the active party's label."""
        if self._common.label_plan is None:
            if not self.active.has_label:
                raise DataError(
                    "the active party has no label column",
                    party=self.active.name,
                    way_out="Name it as `label:` in its party file",
                )
            self._common.label_plan = LabelPlan.fit(
                self.active.label_series,
                party=self.active.name,
                file=self.active.file,
                column=", ".join(self.active.labels_columns),
                task=self.active.task,
            )
        return self._common.label_plan

    @property
    def y(self) -> Tensor:
        """Labels of this view's people: int64 classes, float32 targets, or float32 (n, m)."""
        y = self.label_plan.encode(self.active.label_series)[torch.from_numpy(self.rows)]
        self.active.boundary.protect(y)
        return y

    # -- conversations ------------------------------------------------------------------------

    def open(self, protocol: str, side: type[PassiveSide]) -> dict[str, Peer]:
        """Start a conversation with every passive party."""
        opened = self._common.opened
        session = self._tag or f"{protocol}-{len(opened) + 1:04d}"
        if session in opened:  # another conversation of the same training
            session = f"{session}+{len(opened)}"
        opened.add(session)
        self.active.boundary.expect(side.asked_with)
        for name in self.passive:
            self.engine.open(session, side, name, self.active.name)
        return self.peers(session)

    def without_conversations(self) -> Self:
        """The same people and partners with nothing opened yet, for conversations that have to be
        opened once more: they replace those of the same names, which partners would keep."""
        other = copy.copy(self)
        other._common = replace(self._common, opened=set())
        return other

    def peers(self, session: str) -> dict[str, Peer]:
        """The partners in a conversation that was opened before."""
        return {name: Peer(self.active, name, self.engine, session) for name in self.passive}


def _of_every_class(
    rows: Rows, y: NDArray[np.int64], held: Rows, random: np.random.Generator
) -> Rows:
    """As many of the rows held out, others only where a class had nobody to learn from or, though
    it has two, nobody to test on: of few people, equal shares leave a rare class out."""
    out = np.isin(rows, held)
    counts = np.bincount(y)
    for lacking, least in ((False, 1), (True, 2)):  # somebody to learn from comes first
        for c in np.flatnonzero(counts):
            there = np.bincount(y[out == lacking], minlength=len(counts))
            if counts[c] < least or there[c] or there.max() < 2:
                continue
            gives = random.choice(np.flatnonzero((out == lacking) & (y == there.argmax())))
            takes = random.choice(np.flatnonzero((out != lacking) & (y == c)))
            out[[gives, takes]] = out[[takes, gives]]
    return rows[out]
