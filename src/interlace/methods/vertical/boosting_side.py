"""The passive side of trees over vertical parties; :mod:`interlace.methods.vertical.boosting` draws
the conversation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from interlace.boundary.control import whole_number
from interlace.boundary.kinds import (
    Ciphertext,
    Control,
    Gradient,
    Histogram,
    PartialScore,
    RowSelection,
    SplitChoice,
)
from interlace.crypto.base import PublicKey, merge_small
from interlace.crypto.base import Rows as EncryptedRows
from interlace.crypto.schemes import read_public_key
from interlace.errors import DataError, PolicyError, Refused
from interlace.methods.bottom import (
    MOST_EPOCHS,
    read_checkpoint,
    write_checkpoint,
)
from interlace.models.trees import (
    Binning,
    Codes,
    Flags,
    Floats,
    Integers,
    Layout,
    Split,
    add_up,
)
from interlace.party import ModelFile, Party, PassiveSide, State, operation

MODEL = ModelFile("trees.json", "interlace boosted trees 1", "model of trees")
MOST_ECHO = 2**20  # bytes


class BoostingSettings(BaseModel):
    """What the active party and one partner agree on before training.

    Attributes:
        train: How many of the rows are learnt from; the others only find their leaves.
        max_bin: Most bins of a column.
        monotone: 1 or -1 for columns that the model must rise or fall with.
        min_bin_rows: Fewest rows of a node that a sum may be over.
        hide_order: Whether the order of bins is kept from the active party.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    train: int = Field(gt=0)
    max_bin: int = Field(ge=2, le=4096)
    monotone: dict[str, Literal[-1, 0, 1]] = Field(default_factory=dict)
    min_bin_rows: int = Field(default=1, ge=1)
    hide_order: bool = False


@dataclass(frozen=True)
class Candidates:
    """Every split that a party can make, in an order of its own making.

    Attributes:
        column: Which column each splits.
        left: Which bins each sends left, (candidates, cells of the widest column).
        gap: Whether the candidate itself says where missing values go.
    """

    column: Integers
    left: Flags
    gap: Flags

    @classmethod
    def of(cls, layout: Layout, gaps: Flags) -> Candidates:
        """All candidates, shuffled: the order comes from the system's randomness."""
        columns, lefts, own = [], [], []
        for f, width in enumerate(layout.widths):
            known = np.arange(layout.widest)
            for b in range(1, width + 1):
                left = known == b if layout.categorical[f] else (known >= 1) & (known <= b)
                for missing in (False, True) if gaps[f] else (False,):
                    if left[1 : width + 1].all() and (missing or not gaps[f]):
                        continue  # everything would go left
                    left[0] = missing
                    columns.append(f)
                    lefts.append(left.copy())
                    own.append(bool(gaps[f]))
        order = np.random.default_rng().permutation(len(columns))
        return cls(
            np.array(columns, dtype=np.int64)[order],
            np.array(lefts, dtype=np.bool_).reshape(len(columns), layout.widest)[order],
            np.array(own, dtype=np.bool_)[order],
        )


class BoostingSide(PassiveSide):
    """What a passive party answers in boosting. It keeps its splits; nobody else sees them."""

    settings: BoostingSettings
    binning: Binning
    splits: list[Split]
    importance: dict[str, float]  # by column, once the active party has said
    shapley: dict[str, Floats]  # by column, (people, outputs), for the table's rows `explained`
    explained: Integers
    key: PublicKey | None = None
    layout: Layout
    candidates: Candidates | None
    _rows: Integers  # rows of the party's table, in the conversation's order
    _codes: Codes
    _records: Tensor  # the same memory, which the boundary lets out under no kind
    _sampled: Flags
    _columns: Integers
    _figures: Floats | EncryptedRows
    _nodes: Integers
    # Where each cell of each open node went, and of those summed last, if small bins are merged.
    _runs_of: Integers | None
    _runs: Integers | None

    @operation
    def terms(self) -> Control:
        """What this party's policy asks of trees: `min_bin_rows`, and the schemes of encryption
        that it allows (``None``: all, and none at all)."""
        allowed = self.party.policy.encryption
        return {
            "min_bin_rows": self._fewest,
            "encryption": None if allowed is None else sorted(allowed),
        }

    @operation
    def echo(self, filler: Ciphertext) -> Ciphertext:
        """The same bytes, by which the active party measures how fast the link is."""
        if len(filler) > MOST_ECHO:
            raise Refused(f"at most {MOST_ECHO:,} bytes are sent back")
        return filler

    @operation
    def begin(self, rows: RowSelection, settings: Control) -> SplitChoice:
        """Bin the columns. Answers (columns, 3): bins, whether categories, and sign.

        With a hidden order every possible split looks like a column of one bin.
        """
        self.settings = BoostingSettings.model_validate(settings)
        if self.settings.min_bin_rows < self._fewest:
            raise PolicyError(
                f"the policy of party '{self.party.name}' asks for sums over {self._fewest} people "
                f"or more, and {self.settings.min_bin_rows} was agreed on (`min_bin_rows`)"
            )
        self._rows = self._mine(rows)
        train = self._rows[: self.settings.train]
        party = self.party
        self.binning = Binning.fit(
            party.frame,
            party.columns,
            train,
            self.settings.max_bin,
            party=party.name,
            file=party.file,
            readings=party.readings,
        )
        self._codes = self.binning.codes(party.frame, self._rows)
        self._records = torch.from_numpy(self._codes.view(np.uint8))
        party.boundary.protect(self._records)
        self.layout = Layout.of(self.binning, signs_of(self.binning, self.settings.monotone, party))
        self.splits, self.key, self.candidates, self.importance = [], None, None, {}
        layout = self.layout
        if self.settings.hide_order:
            gaps = (self._codes[: len(train)] == 0).any(axis=0)
            self.candidates = Candidates.of(layout, gaps)
            ones = np.ones(len(self.candidates.column), dtype=np.int64)
            table = np.stack([ones, 0 * ones, layout.signs[self.candidates.column]], axis=1)
        else:
            table = np.stack([layout.widths, layout.categorical, layout.signs], axis=1)
        return torch.from_numpy(table.astype(np.int32).reshape(-1, 3))

    @operation
    def take_key(self, key: Ciphertext) -> None:
        """Take the public key that this training's gradients are encrypted under."""
        self.key = read_public_key(key, self.party.policy.encryption)

    @operation
    def start(self, sampled: RowSelection, columns: SplitChoice, figures: Gradient) -> None:
        """Begin a tree in clear: (rows sampled, 2·outputs) of g, then h."""
        allowed = self.party.policy.encryption
        if allowed is not None and "none" not in allowed:
            raise PolicyError(
                f"the policy of party '{self.party.name}' does not let it add up gradients in "
                f"clear: `encryption` lists {', '.join(sorted(allowed))}"
            )
        if figures.dim() != 2:
            raise Refused("each row has a g and an h")
        self._begin_tree(sampled, columns, len(figures))
        self._figures = np.zeros((len(self._rows), figures.shape[1]))
        self._figures[self._sampled] = figures.double().numpy()

    @operation
    def start_encrypted(
        self, sampled: RowSelection, columns: SplitChoice, figures: Ciphertext
    ) -> None:
        """Begin a tree with encrypted g and h of the rows sampled."""
        if self.key is None:
            raise Refused(f"party '{self.party.name}' was sent ciphertexts before their key")
        rows = self.key.read(figures)
        if not isinstance(rows, EncryptedRows):
            raise Refused("encrypted rows were due")
        self._begin_tree(sampled, columns, len(rows))
        self._figures = rows

    @operation
    def histograms(self, nodes: RowSelection, summed: SplitChoice) -> Histogram:
        """Sums of g and h by summed node, column and bin: (summed, cells, 2·outputs).

        Args:
            nodes: For every row the number of its open node, from 1; 0 for rows at leaves.
            summed: Which open nodes, from 0, are asked for.
        """
        if not isinstance(self._figures, np.ndarray):
            raise Refused(f"party '{self.party.name}' has no gradients in clear")
        rows, slot = self._open(nodes, summed)
        layout = self.layout.only(self._columns)
        sums = add_up(
            self._codes, self._columns, layout, rows, slot, self._figures, max(1, len(summed))
        )[: len(summed)]
        if self._runs is not None:
            sums = _along(self._runs, sums)
        if self.candidates is not None:
            padded = layout.padded(sums)
            column = np.searchsorted(self._columns, self.candidates.column)
            left = self.candidates.left[:, : layout.widest].astype(np.float64)
            sums = np.einsum("ncbw,cb->ncw", padded[:, column], left)
            sums *= self._whole(len(summed))[:, :, None]
        return torch.from_numpy(sums)

    @operation
    def encrypted_histograms(self, nodes: RowSelection, summed: SplitChoice) -> Ciphertext:
        """The same sums of ciphertexts, re-randomised."""
        if self.key is None or isinstance(self._figures, np.ndarray):
            raise Refused(f"party '{self.party.name}' has no encrypted gradients")
        rows, slot = self._open(nodes, summed)
        if self.candidates is None:
            layout = self.layout.only(self._columns)
            cells = layout.total
            place = self._codes[rows][:, self._columns] + layout.offsets
            if self._runs is not None:
                place = self._runs[slot[:, None], place]
        else:
            column, cells = self.candidates.column, len(self.candidates.column)
            whole = self._whole(len(summed))
            left = self.candidates.left[np.arange(cells), self._codes[rows][:, column]]
            place = np.where(left & whole[slot], np.arange(cells), -1)
        index = np.where(place >= 0, slot[:, None] * cells + place, -1)
        sums = self.key.sum_by_index(
            self._figures,
            index,
            max(1, len(summed) * cells),
            selected=(np.cumsum(self._sampled) - 1)[rows],
        )
        return sums.to_tensor()

    @operation
    def hidden_histograms(self, columns: SplitChoice, figures: Ciphertext) -> Ciphertext:
        """Sums over everybody by column and bin, of figures that are 0 for all but the rows of some
        nodes, which stay unknown here. Splits that follow are of everybody."""
        if self.key is None or self.candidates is not None or self.settings.min_bin_rows > 1:
            raise Refused(f"party '{self.party.name}' did not agree to sums over hidden rows")
        rows = self.key.read(figures)
        if not isinstance(rows, EncryptedRows):
            raise Refused("encrypted rows were due")
        everybody = torch.ones(len(self._rows), dtype=torch.uint8)
        self._begin_tree(everybody, columns, len(rows))
        layout = self.layout.only(self._columns)
        place = self._codes[:, self._columns] + layout.offsets
        return self.key.sum_by_index(rows, place, layout.total).to_tensor()

    @operation
    def merged(self) -> SplitChoice:
        """Which cells of the histograms asked for last hold sums, (summed, cells) of 0 and 1.

        Bins with too few rows were added to a later one, or their whole column left out.
        """
        if self._runs is None:
            raise Refused(f"party '{self.party.name}' merges no bins")
        if self.candidates is not None:
            return torch.from_numpy(self._whole(len(self._runs)).astype(np.uint8))
        ends = self._runs == np.arange(self._runs.shape[1])
        return torch.from_numpy(ends.astype(np.uint8))

    @operation
    def split(self, choice: SplitChoice, left: SplitChoice) -> RowSelection:
        """Split open nodes on columns of this party.

        Args:
            choice: (splits, 2): open node, from 0, and column.
            left: (splits, cells of the widest column): which bins go left.

        Returns:
            For each split in turn and each row of its node, in the rows' order, 1 if it goes left.
        """
        if choice.dim() != 2 or choice.shape[1] != 2 or left.dim() != 2 or len(choice) != len(left):
            raise Refused("each split is a node, a column, and the bins that go left")
        answer = [np.zeros(0, dtype=np.uint8)]
        for (node, column), bins in zip(choice.tolist(), left.numpy() != 0, strict=True):
            if self.candidates is not None:
                self._within(column, len(self.candidates.column))
                taken = self.candidates.left[column].copy()
                if not self.candidates.gap[column]:
                    taken[0] = bins[0]
                column = int(self.candidates.column[column])
            else:
                self._within(column, len(self.layout))
                taken = np.zeros(self.layout.widest, dtype=np.bool_)
                taken[: min(len(bins), len(taken))] = bins[: len(taken)]
            bins = taken[: self.layout.widths[column] + 1]
            if self._runs_of is not None and self.candidates is None:
                bins = self._expanded(node, column, bins)
            self.splits.append(self.binning.columns[column].split(bins))
            rows = np.flatnonzero(self._nodes == node + 1)
            answer.append(bins[self._codes[rows, column]].astype(np.uint8))
        return torch.from_numpy(np.concatenate(answer))

    @operation
    def directions(self, rows: RowSelection) -> SplitChoice:
        """For each row a bit for each split of this party, in order: (n, bytes), 1 goes left."""
        mine = self._mine(rows)
        self.party.boundary.about(torch.from_numpy(mine))
        goes = self.binning.goes_left(self.splits, self.party.frame, mine)
        return torch.from_numpy(np.ascontiguousarray(np.packbits(goes, axis=0).T))

    @operation
    def take_importance(self, gains: PartialScore) -> None:
        """Take what each of this party's splits took off the loss; it alone can name columns."""
        if gains.shape != (len(self.splits),):
            raise Refused(f"party '{self.party.name}' has {len(self.splits)} splits")
        self.importance = {}
        for split, gain in zip(self.splits, gains.tolist(), strict=True):
            self.importance[split.column] = self.importance.get(split.column, 0.0) + gain

    @operation
    def take_shapley(self, rows: RowSelection, columns: SplitChoice, values: PartialScore) -> None:
        """Take what this party's columns added to people's scores: (rows, columns · outputs)."""
        mine, chosen = self._mine(rows), columns.numpy().astype(np.int64).reshape(-1)
        if values.dim() != 2 or not len(chosen) or values.shape[1] % len(chosen):
            raise Refused(f"party '{self.party.name}' was sent what its columns cannot have added")
        for number in chosen.tolist():
            self._within(number, len(self.binning.columns))
        if len(values) != len(mine):
            raise Refused(f"party '{self.party.name}' was sent shares of other people")
        shares = values.double().numpy().reshape(len(mine), len(chosen), -1)
        names = [self.binning.columns[number].name for number in chosen]
        self.shapley = {name: shares[:, j] for j, name in enumerate(names)}
        self.explained = mine

    @operation
    def keep(self, splits: Control) -> None:
        """Forget the splits after the first so many: later trees turned out to be no better."""
        del self.splits[whole_number(splits, "splits", len(self.splits) + 1) :]

    @operation
    def checkpoint(self, at: Control) -> None:
        """Keep the splits so far in this party's own folder."""
        epoch = whole_number(at, "epoch", MOST_EPOCHS)
        write_checkpoint(self.party, at["name"], epoch, self._state())

    @operation
    def resume(self, at: Control) -> None:
        """Go back to a checkpoint."""
        self._take(read_checkpoint(self.party, at["name"], whole_number(at, "epoch", MOST_EPOCHS)))

    @operation
    def save(self, model: Control) -> None:
        """Keep this party's part of the finished model, as JSON, in its own folder."""
        MODEL.write(self.party, model["name"], self._state().meta)

    @operation
    def load(self, model: Control) -> Control:
        """Take this party's part of a finished model; answers how many splits it has."""
        self._take(State({}, MODEL.read(self.party, model["name"])))
        return {"splits": len(self.splits)}

    # -- its own affairs -----------------------------------------------------------------------

    @property
    def _fewest(self) -> int:
        """Fewest people that a sum may be over, by the party's own policy."""
        policy = self.party.policy
        return max(policy.min_bin_rows or 1, policy.smallest_group or 1)

    def forget_people(self) -> None:
        """The splits stay; the former table's bins go."""
        for name in ("_rows", "_codes", "_figures", "_nodes"):
            self.__dict__.pop(name, None)

    def _begin_tree(self, sampled: Tensor, columns: Tensor, count: int) -> None:
        flags = sampled.numpy()
        if len(flags) != len(self._rows) or count != int((flags != 0).sum()):
            raise Refused("gradients do not fit the rows that they are said to be of")
        chosen = columns.numpy().astype(np.int64)
        if chosen.ndim != 1 or (np.diff(chosen) <= 0).any():
            raise Refused("columns are numbers in rising order")
        if self.candidates is not None:
            chosen = np.arange(len(self.layout))
        for column in chosen[:1].tolist() + chosen[-1:].tolist():
            self._within(column, len(self.layout))
        self._sampled, self._columns = flags != 0, chosen
        self._nodes = np.ones(len(self._rows), dtype=np.int64)
        self._runs = self._runs_of = None

    def _within(self, number: int, count: int) -> None:
        if not 0 <= number < count:
            raise Refused(f"party '{self.party.name}' has no column of that number")

    def _open(self, nodes: Tensor, summed: Tensor) -> tuple[Integers, Integers]:
        """Sampled rows of the summed nodes and the place of each one's node among these."""
        number = nodes.numpy().astype(np.int64)
        wanted = summed.numpy().astype(np.int64).reshape(-1)
        opened = int(number.max(initial=0))
        if len(number) != len(self._rows) or number.min(initial=0) < 0:
            raise Refused("every row of the training has one node")
        if wanted.size and (wanted.min() < 0 or wanted.max() >= opened):
            raise Refused("a histogram of a node without rows was asked for")
        before, self._nodes = self._nodes, number
        place = np.full(opened + 1, -1, dtype=np.int64)
        place[wanted + 1] = np.arange(len(wanted))
        slot = np.where(self._sampled, place[number], -1)
        rows = np.flatnonzero(slot >= 0)
        self._runs = None
        if self.settings.min_bin_rows > 1:
            self._runs_of = self._merge(before, opened)
            self._runs = self._runs_of[wanted]
        return rows, slot[rows]

    def _merge(self, before: Integers, opened: int) -> Integers:
        """Where each cell of each open node goes, so that no small sum leaves; -1: nowhere.

        Children never tell apart what was merged in their parent: the active party knows the
        parent's sums, and takes differences.
        """
        layout = self.layout.only(self._columns)
        rows = np.flatnonzero(self._sampled & (self._nodes > 0))
        ones = np.ones((len(self._rows), 1))
        counts = add_up(
            self._codes, self._columns, layout, rows, self._nodes[rows] - 1, ones, opened
        )[..., 0]
        parent = np.zeros(opened, dtype=np.int64)
        parent[self._nodes[rows] - 1] = before[rows] - 1
        former = self._runs_of
        out = np.empty((opened, layout.total), dtype=np.int64)
        for node in range(opened):
            family = np.flatnonzero(parent == parent[node])
            if node != family[0]:
                out[node] = out[family[0]]
                continue
            start = np.arange(layout.total) if former is None else former[parent[node]]
            out[node] = _merged_cells(counts[family], start, layout, self.settings.min_bin_rows)
        return out

    def _expanded(self, node: int, column: int, left: Flags) -> Flags:
        """Merged bins go where the bin goes that holds their sum."""
        assert self._runs_of is not None
        place = int(np.searchsorted(self._columns, column))
        layout = self.layout.only(self._columns)
        first = int(layout.offsets[place])
        run = self._runs_of[node, first : first + len(left)] - first
        if (run < 0).any():
            raise Refused("a column whose sums stayed here was chosen")
        return np.asarray(left[run])

    def _whole(self, summed: int) -> Flags:
        """Which candidates each summed node allows: those that cut no run of merged bins."""
        assert self.candidates is not None
        out = np.ones((summed, len(self.candidates.column)), dtype=np.bool_)
        if self._runs is None:
            return out
        layout = self.layout
        for node, runs in enumerate(self._runs):
            for c, (column, left) in enumerate(
                zip(self.candidates.column, self.candidates.left, strict=True)
            ):
                first = layout.offsets[column]
                run = runs[first : first + layout.widths[column] + 1] - first
                out[node, c] = (run >= 0).all() and bool((left[run] == left[: len(run)]).all())
        return out

    def _state(self) -> State:
        return State(
            {},
            {
                "party": self.party.name,
                "binning": self.binning.model_dump(mode="json"),
                "splits": [split.model_dump(mode="json") for split in self.splits],
                "importance": self.importance,
            },
        )

    def _take(self, state: State) -> None:
        self.importance = dict(state.meta["importance"])
        self.binning = Binning.model_validate(state.meta["binning"])
        self.splits = [Split.model_validate(split) for split in state.meta["splits"]]


def _along(runs: Integers, sums: Floats) -> Floats:
    """Add each cell of (nodes, cells, numbers) sums to the cell that it was merged into."""
    out = np.zeros_like(sums)
    for target, run, own in zip(out, runs, sums, strict=True):
        kept = run >= 0
        np.add.at(target, run[kept], own[kept])
    return out


def _merged_cells(counts: Floats, start: Integers, layout: Layout, smallest: int) -> Integers:
    """Merge a family's bins further, column by column; missing values lie behind the last bin."""
    out = np.full(layout.total, -1, dtype=np.int64)
    for first, width in zip(layout.offsets, layout.widths, strict=True):
        cells = slice(first, first + width + 1)
        before = start[cells] - first
        if (before < 0).any():
            continue
        held = np.zeros((len(counts), width + 1))
        for side, own in zip(held, counts[:, cells], strict=True):
            np.add.at(side, before, own)
        order = np.concatenate([np.arange(1, width + 1), [0]])
        run = merge_small(held[:, order].astype(np.int64), smallest)
        if (run < 0).any():
            continue
        to = np.empty(width + 1, dtype=np.int64)
        to[order] = order[run]
        if (to[1:] == 0).any():  # bins ran into the missing: all of them are the last bin
            to[to == 0] = width
        out[cells] = first + to[before]
    return out


def signs_of(binning: Binning, monotone: Mapping[str, int], party: Party) -> list[int]:
    """The sign of each binned column.

    Raises:
        DataError: there is no such column, or it holds categories.
    """
    by_name = {bins.name: bins for bins in binning.columns}
    for name in monotone:
        if name not in party.columns:
            raise DataError("there is no such column to be monotone in", party=party.name)
        if name in by_name and by_name[name].kind == "category":
            raise DataError(
                "categories have no order to be monotone in", party=party.name, column=name
            )
    return [monotone.get(bins.name, 0) for bins in binning.columns]
