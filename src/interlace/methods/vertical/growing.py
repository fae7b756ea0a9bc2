"""How trees over vertical parties grow at the active party.

A tree sees parties as sources of histograms: its own columns, and partners whose sums are decrypted
and checked here before anything is made of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from interlace.crypto.base import PrivateKey, Sums
from interlace.errors import Refused
from interlace.methods.vertical.boosting_side import BoostingSettings, BoostingSide, signs_of
from interlace.models.trees import (
    LEAST_GAIN,
    Binning,
    Candidate,
    Flags,
    Floats,
    Integers,
    Layout,
    Penalty,
    Split,
    add_up,
    best_splits,
)
from interlace.party import Party, Peer

# -- where sums come from ----------------------------------------------------------------------

Waited = Callable[[], tuple[Floats, Flags | None]]
"""What waits for histograms (nodes, cells, numbers), and for which bins were kept apart."""


@dataclass
class Node:
    """A node while its tree grows.

    Attributes:
        number: Its place in the tree.
        rows: All rows that reach it.
        taken: Those of them that were sampled.
        totals: Sums of the latter's figures, (2·outputs,).
        spread: Sums of their absolute values.
        bounds: Limits of the weights below it.
        parent: The parent's place, -1 at the root.
    """

    number: int
    rows: Integers
    taken: Integers
    totals: Floats
    spread: Floats
    bounds: Floats
    parent: int = -1


class Source(Protocol):
    """A party as the growing of trees sees it: the active party's own columns, or a partner's."""

    name: str
    full: Layout  # of all its columns
    layout: Layout  # of those that the tree may split on

    @property
    def made(self) -> int:
        """How many splits it has made so far."""

    def start(self, work: Work, columns: Integers) -> None:
        """Begin a tree."""

    def number(self, choice: Candidate) -> int:
        """The number of the column that a split is on, among all of the party's."""

    def sums(self, opened: Sequence[Node], summed: Integers) -> Waited:
        """Ask for histograms (summed, cells, numbers) of some open nodes, and which cells hold
        sums."""

    def split(self, opened: Sequence[Node], choices: Mapping[int, Candidate]) -> list[Flags]:
        """Which rows of each chosen open node go left."""


@dataclass
class Work:
    """One tree's numbers.

    Attributes:
        figures: Whole g and h of all rows, (n, 2·outputs); 0 where not sampled.
        sampled: Which rows count, (n,).
        units: What one of each number stands for.
        sealed: The same encrypted, made when the first partner asks for it.
    """

    figures: Floats
    sampled: Flags
    units: Floats
    key: PrivateKey | None
    rows: int

    @cached_property
    def sealed(self) -> Tensor:
        """Sampled rows under the key, as they travel."""
        assert self.key is not None
        return self.key.encrypt_rows(self.figures[self.sampled].astype(np.int64)).to_tensor()


@dataclass
class Kept:
    """The active party's own part of a model: its bins and its splits."""

    binning: Binning
    splits: list[Split]


class Own(Kept):
    """The active party's own columns in training."""

    def __init__(self, party: Party, rows: Integers, settings: BoostingSettings) -> None:
        binning = Binning.fit(
            party.frame,
            party.columns,
            rows[: settings.train],
            settings.max_bin,
            party=party.name,
            file=party.file,
            readings=party.readings,
        )
        super().__init__(binning, [])
        self.name = party.name
        self.codes = self.binning.codes(party.frame, rows)
        self._records = torch.from_numpy(self.codes.view(np.uint8))
        party.boundary.protect(self._records)
        self.full = Layout.of(self.binning, signs_of(self.binning, settings.monotone, party))
        self.layout = self.full

    @property
    def made(self) -> int:
        """Splits so far."""
        return len(self.splits)

    def start(self, work: Work, columns: Integers) -> None:
        """Begin a tree."""
        self._work, self._columns = work, columns
        self.layout = self.full.only(columns)

    def number(self, choice: Candidate) -> int:
        """The number of the column that a split is on."""
        return int(self._columns[choice.column])

    def sums(self, opened: Sequence[Node], summed: Integers) -> Waited:
        """Histograms of some open nodes."""
        taken = [opened[i].taken for i in summed]
        slot = np.repeat(np.arange(len(taken)), [len(rows) for rows in taken])
        rows = np.concatenate(taken)
        codes, figures = self.codes, self._work.figures
        return lambda: (
            add_up(codes, self._columns, self.layout, rows, slot, figures, len(taken)),
            None,
        )

    def split(self, opened: Sequence[Node], choices: Mapping[int, Candidate]) -> list[Flags]:
        """Which rows of each chosen open node go left."""
        out = []
        for i, choice in choices.items():
            column = int(self._columns[choice.column])
            left = choice.left[: self.full.widths[column] + 1]
            self.splits.append(self.binning.columns[column].split(left))
            out.append(left[self.codes[opened[i].rows, column]])
        return out


class Partner:
    """A partner's columns, known by number alone."""

    blind = False  # whether it is kept from knowing which rows a node has

    def __init__(
        self, peer: Peer, rows: Integers, table: Tensor, settings: BoostingSettings
    ) -> None:
        self.name, self.peer, self.people = peer.name, peer, torch.from_numpy(rows)
        self.key: PrivateKey | None = None
        self.merging, self.hidden = settings.min_bin_rows > 1, settings.hide_order
        if table.dim() != 2 or table.shape[1] != 3:
            raise Refused(f"party '{self.name}' described its columns in an unknown way")
        widths, categorical, signs = table.numpy().astype(np.int64).T
        if widths.size and (widths.min() < 1 or (widths > settings.max_bin).any()):
            raise Refused(f"party '{self.name}' has more bins than were agreed on")
        self.full = Layout(widths, categorical != 0, np.sign(signs))
        self.layout = self.full
        self.made = 0

    @property
    def cells(self) -> int:
        """Sums of one node over all of its columns."""
        return len(self.full) if self.hidden else self.full.total

    def start(self, work: Work, columns: Integers) -> None:
        """Begin a tree."""
        if self.hidden:
            columns = np.arange(len(self.full))
        self._work, self._columns = work, columns
        self.layout = self.full.only(columns)
        sampled = torch.from_numpy(work.sampled.astype(np.uint8))
        chosen = torch.from_numpy(columns[: 0 if self.hidden else None].astype(np.int32))
        if self.key is None:
            figures = torch.from_numpy(work.figures[work.sampled] * work.units)
            self.peer.me.boundary.about(self.people[torch.from_numpy(work.sampled)])
            self.peer.post(BoostingSide.start, sampled, chosen, figures)
        else:
            self.peer.post(BoostingSide.start_encrypted, sampled, chosen, work.sealed)

    def number(self, choice: Candidate) -> int:
        """The number of the column that a split is on; with a hidden order all are one."""
        return 0 if self.hidden else int(self._columns[choice.column])

    def sums(self, opened: Sequence[Node], summed: Integers) -> Waited:
        """Ask for histograms of some open nodes; they are checked when they are waited for.

        Raises:
            Refused: they are not what honest sums over these nodes' rows can be.
        """
        kind = np.uint8 if len(opened) < 256 else np.int32
        number = np.zeros(self._work.rows, dtype=kind)
        for i, node in enumerate(opened, 1):
            number[node.rows] = i
        asked = torch.from_numpy(number), torch.from_numpy(summed.astype(np.int32))
        clear = self.key is None
        op = BoostingSide.histograms if clear else BoostingSide.encrypted_histograms
        answer = self.peer.start(op, *asked)
        return lambda: self._checked(answer(), opened, summed)

    def _checked(
        self, answer: Tensor, opened: Sequence[Node], summed: Integers
    ) -> tuple[Floats, Flags | None]:
        """What a partner answered, in numbers."""
        cells = len(self.layout) if self.hidden else self.layout.total
        width = self._work.figures.shape[1]
        shape = (len(summed), cells, width)
        spread = np.stack([opened[i].spread for i in summed])
        if self.key is None:
            if tuple(answer.shape) != shape:
                raise self._wrong(f"sums of shape {tuple(answer.shape)}, not {shape}")
            found = answer.double().numpy() / self._work.units
        else:
            limit = np.repeat(spread, cells, axis=0)
            found = self._sealed_sums(answer, len(limit), width, limit, shape)
        kept = None
        if self.merging:
            kept = self.peer.ask(BoostingSide.merged).numpy() != 0
            if kept.shape != shape[:2]:
                raise self._wrong("another number of bins than it has")
        # Guards may add noise to what travels in clear; whole numbers are held to account.
        if self.key is not None or bool((found == np.rint(found)).all()):
            self._check(found, kept, np.stack([opened[i].totals for i in summed]), spread)
        if self.hidden:  # each candidate looks like a column with one bin
            found = np.stack([np.zeros_like(found), found], axis=2).reshape(len(summed), -1, width)
            kept = None if kept is None else np.repeat(kept, 2, axis=1)
        return found, kept

    def _check(self, found: Floats, kept: Flags | None, totals: Floats, spread: Floats) -> None:
        outputs = found.shape[2] // 2
        if (np.abs(found) > spread[:, None]).any() or (found[..., outputs:] < 0).any():
            raise self._wrong("sums that its rows cannot have")
        if self.hidden or not len(self.layout):
            return
        over = np.add.reduceat(found, self.layout.offsets, axis=1)
        wrong = (over != totals[:, None]).any(axis=2)
        if kept is not None:  # a column that would show too few rows stays out as a whole
            wrong &= np.logical_or.reduceat(kept, self.layout.offsets, axis=1)
        if wrong.any():
            raise self._wrong(
                f"sums over {int(wrong.sum())} columns that do not add up to their nodes'"
            )

    def split(self, opened: Sequence[Node], choices: Mapping[int, Candidate]) -> list[Flags]:
        """Which rows of each chosen open node go left, checked against the sums.

        Raises:
            Refused: they are not the rows that the sums were over.
        """
        pairs = [
            [0 if self.blind else i, int(self._columns[choice.column])]
            for i, choice in choices.items()
        ]
        widest = 2 if self.hidden else self.full.widest
        left = np.zeros((len(pairs), widest), dtype=np.uint8)
        for line, choice in zip(left, choices.values(), strict=True):
            line[: len(choice.left)] = choice.left
        answer = self.peer.ask(
            BoostingSide.split, torch.tensor(pairs, dtype=torch.int32), torch.from_numpy(left)
        ).numpy()
        sizes = [self._work.rows if self.blind else len(opened[i].rows) for i in choices]
        if len(answer) != sum(sizes) or answer.max(initial=0) > 1:
            raise self._wrong(f"the directions of {len(answer):,} rows, not {sum(sizes):,}")
        self.made += len(pairs)
        out = []
        parts = np.split(answer != 0, np.cumsum(sizes)[:-1])
        for (i, choice), goes in zip(choices.items(), parts, strict=True):
            out.append(goes[opened[i].rows] if self.blind else goes)
            rows = opened[i].rows[out[-1]]
            if (choice.sums == np.rint(choice.sums)).all() and not np.array_equal(
                self._work.figures[rows].sum(axis=0), choice.sums
            ):
                raise self._wrong("other rows to the left than those that its sums were over")
        return out

    def _sealed_sums(
        self, answer: Tensor, groups: int, width: int, limit: Floats, shape: tuple[int, ...]
    ) -> Floats:
        """Decrypted sums, of the due number and in range."""
        assert self.key is not None
        sums = self.key.public.read(answer)
        if not isinstance(sums, Sums) or (sums.groups, sums.width) != (groups, width):
            raise self._wrong("another number of sums than was asked for")
        return self.key.decrypt(sums, limit=limit.astype(np.int64)).reshape(shape).astype(float)

    def _wrong(self, what: str) -> Refused:
        return Refused(f"party '{self.name}' answered with {what}; the tree was dropped")


class BlindPartner(Partner):
    """A partner that is kept from knowing which rows a node has.

    It gets, for every level, everybody's figures once more, encrypted, with zeros in place of those
    of other nodes' rows; and says of everybody which way a split would send them.
    """

    blind = True

    def start(self, work: Work, columns: Integers) -> None:
        """Begin a tree; the partner is told nothing of it."""
        self._work, self._columns = work, columns
        self.layout = self.full.only(columns)

    def sums(self, opened: Sequence[Node], summed: Integers) -> Waited:
        """Histograms of some open nodes, as many at a time as a ciphertext has room for."""
        return lambda: self._in_turn(opened, summed)

    def _in_turn(self, opened: Sequence[Node], summed: Integers) -> tuple[Floats, None]:
        assert self.key is not None
        figures, cells = self._work.figures, self.layout.total
        width, room = figures.shape[1], self.key.public.workload.width
        chosen = torch.from_numpy(self._columns.astype(np.int32))
        out = np.empty((len(summed), cells, width))
        for start in range(0, len(summed), room // width):
            part = summed[start : start + room // width]
            apart = np.zeros((self._work.rows, room), dtype=np.int64)
            limit = np.zeros(room)
            for place, i in enumerate(part):
                own = slice(place * width, (place + 1) * width)
                apart[opened[i].taken, own] = figures[opened[i].taken]
                limit[own] = opened[i].spread
            sealed = self.key.encrypt_rows(apart).to_tensor()
            answer = self.peer.ask(BoostingSide.hidden_histograms, chosen, sealed)
            found = self._sealed_sums(answer, cells, room, limit, (cells, room // width, width))
            out[start : start + len(part)] = found[:, : len(part)].transpose(1, 0, 2)
        spread, totals = (
            np.stack([getattr(opened[i], name) for i in summed]) for name in ("spread", "totals")
        )
        self._check(out, None, totals, spread)
        return out, None


# -- growing a tree ----------------------------------------------------------------------------


@dataclass
class Growing:
    """A tree's lists while it grows."""

    owner: list[str | None] = field(default_factory=list)
    split: list[int] = field(default_factory=list)
    column: list[int] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    right: list[int] = field(default_factory=list)
    gain: list[float] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)

    def add(self, node: Node) -> Node:
        """A leaf, for now."""
        node.number = len(self.nodes)
        self.nodes.append(node)
        self.owner.append(None)
        self.split.append(0)
        self.column.append(0)
        self.left.append(node.number)
        self.right.append(node.number)
        self.gain.append(0.0)
        return node


def grow(
    work: Work,
    sources: Sequence[Source],
    asked: Callable[[int], Sequence[Source]],
    penalty: Penalty,
    max_depth: int,
) -> Growing:
    """Grow one tree, level by level.

    Args:
        work: Its numbers.
        sources: All parties with columns, in the order in which ties are broken.
        asked: Which of them take part at a depth.
        penalty: What splits must be worth.
        max_depth: Steps from the root to the deepest leaf.
    """
    tree = Growing()
    everybody = np.arange(work.rows)
    tree.add(_node(work, everybody, np.array([-np.inf, np.inf]), -1))
    opened = list(tree.nodes)
    known: dict[str, dict[int, Floats]] = {source.name: {} for source in sources}
    outputs = work.figures.shape[1] // 2
    for depth in range(max_depth):
        if not opened:
            break
        best: list[tuple[Source, Candidate] | None] = [None] * len(opened)
        totals = np.stack([node.totals for node in opened])
        bounds = np.stack([node.bounds for node in opened])
        here = asked(depth)
        sums = {source.name: _histograms(source, opened, known[source.name]) for source in here}
        for source in here:
            histograms = sums[source.name]()
            found = best_splits(
                np.stack(histograms), source.layout, totals, work.units, penalty, bounds
            )
            for i, candidate in enumerate(found):
                before = best[i]
                if before is None or candidate.gain > before[1].gain:
                    best[i] = source, candidate
            known[source.name] = {
                node.number: h for node, h in zip(opened, histograms, strict=True)
            }
        children: list[Node] = []
        chosen = {
            i: pair
            for i, pair in enumerate(best)
            if pair is not None and pair[1].gain > LEAST_GAIN and pair[1].gain >= penalty.gamma
        }
        ways: dict[int, Flags] = {}
        for source in here:
            mine = {i: c for i, (owner, c) in chosen.items() if owner is source}
            if mine:
                first = source.made
                goes = source.split(opened, mine)
                for place, (i, flags) in enumerate(zip(mine, goes, strict=True)):
                    tree.owner[opened[i].number] = source.name
                    tree.split[opened[i].number] = first + place
                    ways[i] = flags
        for i in sorted(ways):
            node, (source, choice) = opened[i], chosen[i]
            sign = int(source.layout.signs[choice.column])
            limits = _limits(node, choice, sign, work.units, penalty, outputs)
            pair = [
                tree.add(_node(work, node.rows[side], limit, node.number))
                for side, limit in zip((ways[i], ~ways[i]), limits, strict=True)
            ]
            tree.left[node.number], tree.right[node.number] = pair[0].number, pair[1].number
            tree.gain[node.number] = choice.gain
            tree.column[node.number] = source.number(choice)
            heavy = [_weight_of(n, work.units, outputs) for n in pair]
            if any(h >= 2 * penalty.min_child_weight and h > 0 for h in heavy):
                children += pair
        opened = children
    return tree


def _node(work: Work, rows: Integers, bounds: Floats, parent: int) -> Node:
    taken = rows[work.sampled[rows]]
    figures = work.figures[taken]
    return Node(0, rows, taken, figures.sum(axis=0), np.abs(figures).sum(axis=0), bounds, parent)


def _weight_of(node: Node, units: Floats, outputs: int) -> float:
    """Sum of h, the mean over outputs."""
    return float((node.totals[outputs:] * units[outputs:]).mean())


def _histograms(
    source: Source, opened: Sequence[Node], parents: Mapping[int, Floats]
) -> Callable[[], list[Floats]]:
    """Ask for histograms of all open nodes: of two siblings for the smaller, the other is the
    difference to their parent."""
    ask: list[int] = []
    for i, node in enumerate(opened):
        if node.parent not in parents:
            ask.append(i)
        elif i % 2 == 0:  # siblings stand side by side
            ask.append(i if len(node.taken) <= len(opened[i + 1].taken) else i + 1)
    sums = source.sums(opened, np.array(ask, dtype=np.int64))

    def answer() -> list[Floats]:
        found, kept = sums()
        out: dict[int, Floats] = dict(zip(ask, found, strict=True))
        for place, i in enumerate(ask):
            if opened[i].parent in parents:
                whole = parents[opened[i].parent]
                if kept is not None:
                    whole = _coarser(whole, kept[place], source.layout)
                out[i ^ 1] = whole - found[place]
        return [out[i] for i in range(len(opened))]

    return answer


def _coarser(parent: Floats, kept: Flags, layout: Layout) -> Floats:
    """A parent's (cells, numbers) with its bins merged as its child's were."""
    out = np.zeros_like(parent)
    for first, width in zip(layout.offsets, layout.widths, strict=True):
        ends = np.flatnonzero(kept[first + 1 : first + width + 1]) + 1
        if not len(ends):
            continue
        to = ends[np.minimum(np.searchsorted(ends, np.arange(1, width + 1)), len(ends) - 1)]
        np.add.at(out, first + to, parent[first + 1 : first + width + 1])
        out[first if kept[first] else first + ends[-1]] += parent[first]
    return out


def _limits(
    node: Node, choice: Candidate, sign: int, units: Floats, penalty: Penalty, outputs: int
) -> tuple[Floats, Floats]:
    """Limits of the weights below both children: a monotone split parts them in the middle."""
    if not sign:
        return node.bounds, node.bounds
    weights = []
    for sums in (choice.sums, node.totals - choice.sums):
        real = sums * units
        w = penalty.weight(real[:outputs], real[outputs:])
        weights.append(float(np.clip(w, *node.bounds)[0]))
    middle = sum(weights) / 2
    lower, upper = np.array([node.bounds[0], middle]), np.array([middle, node.bounds[1]])
    return (lower, upper) if sign > 0 else (upper, lower)
