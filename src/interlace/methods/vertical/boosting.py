"""Boosted trees over vertical parties: SecureBoost, encrypted or in clear.

The active party has the label, so it alone can compute each person's gradient g and hessian h of
the loss. Every party cuts its own columns into bins; a split is found from the sums of g and h by
node, column and bin. The partners' sums are computed on ciphertexts that they cannot read::

    active                                                       passive k
      │ ── begin(training rows, settings) ────────────────────────► │   bins its columns
      │ ◄───────────── how many bins each (unnamed) column has ──── │
      │ ── take_key(public key) ──────────────────────────────────► │
      │ for every tree:
      │ ── start_encrypted(sampled rows, columns, [g, h]) ────────► │
      │    for every level:
      │ ── encrypted_histograms(node of each row, smaller children)►│   adds ciphertexts up
      │ ◄────────── [Σg, Σh] by node, column, bin; re-randomised ── │
      │    decrypts, checks, takes larger children as parent - smaller; finds the best splits
      │ ── split(node and column, bins that go left) ─────────────► │   notes its threshold
      │ ◄─────────────────────── which of the nodes' rows go left ──│
      │ ── checkpoint ────────────────────────────────────────────► │

    and to score people, one message whatever the depth and the number of trees:
      │ ── directions(rows) ──────────────────────────────────────► │
      │ ◄──────────────────── a bit for each of its splits and row ─│

g and h are rounded to whole numbers first, so every sum is exact: encrypted and plain training give
the same trees, and these are the trees of the pooled table with the same bins.

**What each party learns.** A passive party: which of its people are in training, the rows of every
open node, which of its columns and bins split, never a label, gradient, gain or leaf. The active
party: the sums of g and h by bin of unnamed columns, and the rows that each split sends left, never
a value, threshold or name of a partner's column. Rows of nodes say something of labels (Takahashi
et al., "Eliminating label leakage in tree-based vertical federated learning", arXiv 2307.10318):
``hide_rows`` keeps them from partners, at a price; ``first_tree_alone`` and few, shallow trees
reduce what they say. Sums over a bin with few people say something
of these people: ``min_bin_rows`` bounds that. Both sides are taken to be honest but curious.

Every answer is checked before it is acted on: a partner's sums must add up to the node's own, stay
within what its rows can give, and agree with the rows that the partner then sends left.

Source: Cheng et al., "SecureBoost: A Lossless Federated Learning Framework", IEEE Intelligent
Systems 2021; Chen et al., "SecureBoost+", arXiv 2110.10927 (packing, subtraction, GOSS, mix and
layered mode, multi-output trees).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import Any, Literal, Protocol, Self, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from sklearn.exceptions import NotFittedError
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
from interlace.crypto.base import PrivateKey, PublicKey, Sums, Workload, merge_small
from interlace.crypto.base import Rows as EncryptedRows
from interlace.crypto.kernels import cores
from interlace.crypto.schemes import SCHEMES, Scheme, choose, generate, read_public_key
from interlace.data.labels import LabelPlan
from interlace.errors import AlignmentError, DataError, InterlaceError, JobError, Refused
from interlace.federation import Federation
from interlace.files import write_whole
from interlace.methods.base import (
    Clock,
    EarlyStopping,
    Epoch,
    Method,
    OnEpoch,
    history_from_json,
    history_to_json,
    keep_aside,
)
from interlace.methods.bottom import (
    MOST_EPOCHS,
    latest_checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from interlace.methods.objective import ClassWeight, Objective
from interlace.models import seed_for
from interlace.models.trees import (
    LEAST_GAIN,
    Binning,
    Candidate,
    Codes,
    Flags,
    Floats,
    Integers,
    Layout,
    Penalty,
    Split,
    Tree,
    TreeLoss,
    TreeObjective,
    add_up,
    best_splits,
)
from interlace.party import Party, PassiveSide, Peer, State, operation

CHUNK = 2**17  # people scored in one message
EXPLAINED = 2**13  # people explained at once, whose paths are all kept in memory
LINK = 12.5e6  # bytes a second that `auto` reckons with: 100 Mbit/s
BLIND_NODES = 4  # nodes whose sums share a ciphertext where rows are hidden
MODEL_FILE = "trees.json"
FORMAT = "interlace boosted trees 1"

Encryption = Literal["auto", "none", "rlwe-fast", "rlwe-strict", "okamoto-uchiyama", "paillier"]
Bytes = NDArray[np.uint8]


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


# -- the passive party -------------------------------------------------------------------------


@dataclass(frozen=True)
class _Candidates:
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
    def of(cls, layout: Layout, gaps: Flags) -> _Candidates:
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
    candidates: _Candidates | None
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
    def begin(self, rows: RowSelection, settings: Control) -> SplitChoice:
        """Bin the columns. Answers (columns, 3): bins, whether categories, and sign.

        With a hidden order every possible split looks like a column of one bin.
        """
        self.settings = BoostingSettings.model_validate(settings)
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
            categories=party.categories,
        )
        self._codes = self.binning.codes(party.frame, self._rows)
        self._records = torch.from_numpy(self._codes.view(np.uint8))
        party.boundary.protect(self._records)
        self.layout = Layout.of(self.binning, signs_of(self.binning, self.settings.monotone, party))
        self.splits, self.key, self.candidates, self.importance = [], None, None, {}
        layout = self.layout
        if self.settings.hide_order:
            gaps = (self._codes[: len(train)] == 0).any(axis=0)
            self.candidates = _Candidates.of(layout, gaps)
            ones = np.ones(len(self.candidates.column), dtype=np.int64)
            table = np.stack([ones, 0 * ones, layout.signs[self.candidates.column]], axis=1)
        else:
            table = np.stack([layout.widths, layout.categorical, layout.signs], axis=1)
        return torch.from_numpy(table.astype(np.int32).reshape(-1, 3))

    @operation
    def take_key(self, key: Ciphertext) -> None:
        """Take the public key that this training's gradients are encrypted under."""
        self.key = read_public_key(key)

    @operation
    def start(self, sampled: RowSelection, columns: SplitChoice, figures: Gradient) -> None:
        """Begin a tree in clear: (rows sampled, 2·outputs) of g, then h."""
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
        goes = self.binning.goes_left(self.splits, self.party.frame, self._mine(rows))
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
        _write_model(self.party, model["name"], self._state().meta)

    @operation
    def load(self, model: Control) -> Control:
        """Take this party's part of a finished model; answers how many splits it has."""
        self._take(State({}, _read_model(self.party, model["name"])))
        return {"splits": len(self.splits)}

    # -- its own affairs -----------------------------------------------------------------------

    def forget_people(self) -> None:
        """The splits stay; the former table's bins go."""
        for name in ("_rows", "_codes", "_figures", "_nodes"):
            self.__dict__.pop(name, None)

    def _mine(self, rows: Tensor) -> Integers:
        shared = self.party.shared_with(self.partner)
        wanted = rows.numpy().astype(np.int64)
        if wanted.size and (wanted.min() < 0 or wanted.max() >= len(shared)):
            raise Refused(
                f"party '{self.party.name}' was asked for a row outside of the {len(shared):,} "
                f"people it shares with '{self.partner}'"
            )
        return np.asarray(shared[wanted])

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
                "format": FORMAT,
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


def _write_model(party: Party, name: str, model: dict[str, Any]) -> None:
    """Keep a party's part of a model as JSON that people can read.

    Raises:
        InterlaceError: the disk does not take it.
    """
    folder = party.path("models", name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / MODEL_FILE, json.dumps(model, indent=1).encode())
    except OSError as e:
        raise InterlaceError(f"{folder} cannot be written ({e.strerror or e})") from e


def _read_model(party: Party, name: str) -> dict[str, Any]:
    """What :func:`_write_model` wrote.

    Raises:
        InterlaceError: there is none, or it is not a model of trees.
    """
    folder = party.path("models", name)
    try:
        model: dict[str, Any] = json.loads((folder / MODEL_FILE).read_bytes())
        if model["format"] != FORMAT:
            raise ValueError("another format")
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise InterlaceError(f"{folder} holds no model of trees that can be read") from e
    return model


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


# -- the active party: where sums come from ----------------------------------------------------


@dataclass
class _Node:
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


class _Source(Protocol):
    """A party as the growing of trees sees it: the active party's own columns, or a partner's."""

    name: str
    full: Layout  # of all its columns
    layout: Layout  # of those that the tree may split on

    @property
    def made(self) -> int:
        """How many splits it has made so far."""

    def start(self, work: _Work, columns: Integers) -> None:
        """Begin a tree."""

    def number(self, choice: Candidate) -> int:
        """The number of the column that a split is on, among all of the party's."""

    def sums(self, opened: Sequence[_Node], summed: Integers) -> tuple[Floats, Flags | None]:
        """Histograms (summed, cells, numbers) of some open nodes, and which cells hold sums."""

    def split(self, opened: Sequence[_Node], choices: Mapping[int, Candidate]) -> list[Flags]:
        """Which rows of each chosen open node go left."""


@dataclass
class _Work:
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
class _Kept:
    """The active party's own part of a model: its bins and its splits."""

    binning: Binning
    splits: list[Split]


class _Own(_Kept):
    """The active party's own columns in training."""

    def __init__(self, party: Party, rows: Integers, settings: BoostingSettings) -> None:
        binning = Binning.fit(
            party.frame,
            party.columns,
            rows[: settings.train],
            settings.max_bin,
            party=party.name,
            file=party.file,
            categories=party.categories,
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

    def start(self, work: _Work, columns: Integers) -> None:
        """Begin a tree."""
        self._work, self._columns = work, columns
        self.layout = self.full.only(columns)

    def number(self, choice: Candidate) -> int:
        """The number of the column that a split is on."""
        return int(self._columns[choice.column])

    def sums(self, opened: Sequence[_Node], summed: Integers) -> tuple[Floats, None]:
        """Histograms of some open nodes."""
        taken = [opened[i].taken for i in summed]
        slot = np.repeat(np.arange(len(taken)), [len(rows) for rows in taken])
        rows = np.concatenate(taken)
        found = add_up(
            self.codes, self._columns, self.layout, rows, slot, self._work.figures, len(taken)
        )
        return found, None

    def split(self, opened: Sequence[_Node], choices: Mapping[int, Candidate]) -> list[Flags]:
        """Which rows of each chosen open node go left."""
        out = []
        for i, choice in choices.items():
            column = int(self._columns[choice.column])
            left = choice.left[: self.full.widths[column] + 1]
            self.splits.append(self.binning.columns[column].split(left))
            out.append(left[self.codes[opened[i].rows, column]])
        return out


class _Partner:
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

    def start(self, work: _Work, columns: Integers) -> None:
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
            self.peer.ask(BoostingSide.start, sampled, chosen, figures)
        else:
            self.peer.ask(BoostingSide.start_encrypted, sampled, chosen, work.sealed)

    def number(self, choice: Candidate) -> int:
        """The number of the column that a split is on; with a hidden order all are one."""
        return 0 if self.hidden else int(self._columns[choice.column])

    def sums(self, opened: Sequence[_Node], summed: Integers) -> tuple[Floats, Flags | None]:
        """Histograms of some open nodes, checked.

        Raises:
            Refused: they are not what honest sums over these nodes' rows can be.
        """
        kind = np.uint8 if len(opened) < 256 else np.int32
        number = np.zeros(self._work.rows, dtype=kind)
        for i, node in enumerate(opened, 1):
            number[node.rows] = i
        asked = torch.from_numpy(number), torch.from_numpy(summed.astype(np.int32))
        cells = len(self.layout) if self.hidden else self.layout.total
        width = self._work.figures.shape[1]
        shape = (len(summed), cells, width)
        spread = np.stack([opened[i].spread for i in summed])
        if self.key is None:
            answer = self.peer.ask(BoostingSide.histograms, *asked)
            if tuple(answer.shape) != shape:
                raise self._wrong(f"sums of shape {tuple(answer.shape)}, not {shape}")
            found = answer.double().numpy() / self._work.units
        else:
            answer = self.peer.ask(BoostingSide.encrypted_histograms, *asked)
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

    def split(self, opened: Sequence[_Node], choices: Mapping[int, Candidate]) -> list[Flags]:
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


class _BlindPartner(_Partner):
    """A partner that is kept from knowing which rows a node has.

    It gets, for every level, everybody's figures once more, encrypted, with zeros in place of those
    of other nodes' rows; and says of everybody which way a split would send them.
    """

    blind = True

    def start(self, work: _Work, columns: Integers) -> None:
        """Begin a tree; the partner is told nothing of it."""
        self._work, self._columns = work, columns
        self.layout = self.full.only(columns)

    def sums(self, opened: Sequence[_Node], summed: Integers) -> tuple[Floats, None]:
        """Histograms of some open nodes, as many at a time as a ciphertext has room for."""
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


# -- the active party: growing a tree ----------------------------------------------------------


@dataclass
class _Growing:
    """A tree's lists while it grows."""

    owner: list[str | None] = field(default_factory=list)
    split: list[int] = field(default_factory=list)
    column: list[int] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    right: list[int] = field(default_factory=list)
    gain: list[float] = field(default_factory=list)
    nodes: list[_Node] = field(default_factory=list)

    def add(self, node: _Node) -> _Node:
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


def _grow(
    work: _Work,
    sources: Sequence[_Source],
    asked: Callable[[int], Sequence[_Source]],
    penalty: Penalty,
    max_depth: int,
) -> _Growing:
    """Grow one tree, level by level.

    Args:
        work: Its numbers.
        sources: All parties with columns, in the order in which ties are broken.
        asked: Which of them take part at a depth.
        penalty: What splits must be worth.
        max_depth: Steps from the root to the deepest leaf.
    """
    tree = _Growing()
    everybody = np.arange(work.rows)
    tree.add(_node(work, everybody, np.array([-np.inf, np.inf]), -1))
    opened = list(tree.nodes)
    known: dict[str, dict[int, Floats]] = {source.name: {} for source in sources}
    outputs = work.figures.shape[1] // 2
    for depth in range(max_depth):
        if not opened:
            break
        best: list[tuple[_Source, Candidate] | None] = [None] * len(opened)
        totals = np.stack([node.totals for node in opened])
        bounds = np.stack([node.bounds for node in opened])
        for source in asked(depth):
            histograms = _histograms(source, opened, known[source.name])
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
        children: list[_Node] = []
        chosen = {
            i: pair
            for i, pair in enumerate(best)
            if pair is not None and pair[1].gain > LEAST_GAIN and pair[1].gain >= penalty.gamma
        }
        ways: dict[int, Flags] = {}
        for source in asked(depth):
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


def _node(work: _Work, rows: Integers, bounds: Floats, parent: int) -> _Node:
    taken = rows[work.sampled[rows]]
    figures = work.figures[taken]
    return _Node(0, rows, taken, figures.sum(axis=0), np.abs(figures).sum(axis=0), bounds, parent)


def _weight_of(node: _Node, units: Floats, outputs: int) -> float:
    """Sum of h, the mean over outputs."""
    return float((node.totals[outputs:] * units[outputs:]).mean())


def _histograms(
    source: _Source, opened: Sequence[_Node], parents: Mapping[int, Floats]
) -> list[Floats]:
    """Histograms of all open nodes: of two siblings the smaller is asked for, the other is the
    difference to their parent."""
    ask: list[int] = []
    for i, node in enumerate(opened):
        if node.parent not in parents:
            ask.append(i)
        elif i % 2 == 0:  # siblings stand side by side
            ask.append(i if len(node.taken) <= len(opened[i + 1].taken) else i + 1)
    found, kept = source.sums(opened, np.array(ask, dtype=np.int64))
    out: dict[int, Floats] = dict(zip(ask, found, strict=True))
    for place, i in enumerate(ask):
        if opened[i].parent in parents:
            whole = parents[opened[i].parent]
            if kept is not None:
                whole = _coarser(whole, kept[place], source.layout)
            out[i ^ 1] = whole - found[place]
    return [out[i] for i in range(len(opened))]


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
    node: _Node, choice: Candidate, sign: int, units: Floats, penalty: Penalty, outputs: int
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


@dataclass(frozen=True)
class Explanation:
    """What columns added to people's scores (SHAP values); all of it adds up to the scores.

    Attributes:
        base: The mean score, (outputs,).
        own: By column of the active party, (people, outputs).
        partners: By partner, over all of its columns, (people, outputs).
    """

    base: Floats
    own: dict[str, Floats]
    partners: dict[str, Floats]


# -- the methods -------------------------------------------------------------------------------


class VerticalTrees(Method):
    """What boosted trees, random forests and single trees over vertical parties share.

    After :meth:`fit`: ``trees_`` (rounds, each a list of trees), ``loss_``, ``base_``, ``own_``
    (the active party's bins and splits) and ``made_`` (how many splits each partner keeps).
    """

    alike = True
    n_estimators: int = 1
    num_parallel_tree: int = 1
    learning_rate: float = 1.0
    max_depth: int
    max_bin: int
    objective: TreeObjective | None = None
    quantile_alpha: float = 0.5
    base_score: float | None = None
    reg_lambda: float
    reg_alpha: float = 0.0
    gamma: float = 0.0
    min_child_weight: float
    max_delta_step: float | None = None
    subsample: float = 1.0
    colsample_bytree: float = 1.0
    sampling_method: Literal["uniform", "goss"] = "uniform"
    top_rate: float = 0.2
    other_rate: float = 0.1
    multi_output: bool = False
    monotone_constraints: Mapping[str, Mapping[str, int]] | None = None
    class_weight: ClassWeight
    early_stopping_rounds: int | None = None
    validation: float = 0.1
    encryption: Encryption
    precision: int
    first_tree_alone: bool = False
    mode: Literal["all", "mix", "layered"] = "all"
    partner_depth: int = 2
    min_bin_rows: int = 1
    hide_order: bool = False
    hide_rows: bool = False

    # -- learning ------------------------------------------------------------------------------

    @property
    def epochs(self) -> int:
        """Most epochs: rounds of trees."""
        return self.n_estimators

    def fit(
        self,
        federation: Federation,
        *,
        checkpoint: str | None = None,
        on_epoch: OnEpoch | None = None,
    ) -> Self:
        """Learn from the shared, labelled people of a view; an epoch is one round of trees.

        Raises:
            JobError: a setting is out of range or does not fit the task.
            DataError: no party has a column that tells people apart, or labels do not fit.
            Refused: a partner's answer cannot be honest.
        """
        self._check()
        fed = federation.shared().labelled()
        if len(fed.rows) < 2:
            raise AlignmentError(
                f"{len(fed.rows)} people are held by all parties and have a label; "
                "at least two are needed to learn from"
            )
        self.label_plan_ = fed.label_plan
        y, weight = self._labels(fed)
        share = self.validation if self.early_stopping_rounds else 0.0
        strata = fed.y if fed.label_plan.task in ("binary", "multiclass") else None
        train, aside = (part.numpy() for part in keep_aside(len(y), share, fed.seed, strata))
        order = np.concatenate([train, aside])
        y, weight, count = y[order], weight[order], len(train)
        if not weight[:count].sum() > 0:
            raise JobError("the weights of the people to train on add up to 0; see `class_weight`")
        sources = self._begin(fed, fed.rows[order], count)
        self.base_ = self.loss_.start(y[:count], weight[:count], self.base_score)
        self.trees_: list[list[Tree]] = []
        self.history_: list[Epoch] = []
        score = np.tile(self.base_, (len(y), 1))
        stopping = EarlyStopping(self.early_stopping_rounds)
        self._seed = fed.active.secret  # who is sampled is nobody else's business
        if checkpoint:
            score = self._resume(fed, checkpoint, sources, score, stopping)
        clock = Clock()
        for number in range(len(self.trees_), self.n_estimators):
            if number and stopping.over(number - 1) and len(aside):
                break
            fed.active.boundary.round += 1
            self._round(number, sources, score, y, weight, count)
            self.made_ = {s.name: s.made for s in sources}
            validation = self.loss_.loss(score[count:], y[count:]) if len(aside) else None
            if validation is not None:
                stopping.better(number, validation)
            record = Epoch(
                number + 1, self.loss_.loss(score[:count], y[:count]), validation, clock.lap()
            )
            self.history_.append(record)
            if checkpoint:
                self._checkpoint(fed, checkpoint, number + 1, score, stopping)
            if on_epoch:
                on_epoch(record)
        if len(aside):
            self._keep(stopping.best_epoch + 1)
        return self

    def _check(self) -> None:
        at_least = {
            "n_estimators": 1,
            "num_parallel_tree": 1,
            "max_depth": 1,
            "max_bin": 2,
            "min_bin_rows": 1,
            "precision": 2,
            "reg_lambda": 0,
            "reg_alpha": 0,
            "gamma": 0,
            "min_child_weight": 0,
            "partner_depth": 1,
        }
        for name, least in at_least.items():
            if not getattr(self, name) >= least:
                raise JobError(f"`{name}` must be at least {least}")
        for name in ("subsample", "colsample_bytree", "learning_rate", "quantile_alpha"):
            if not 0 < getattr(self, name) <= 1:
                raise JobError(f"`{name}` must lie above 0 and be at most 1")
        if self.encryption not in ("auto", "none", *SCHEMES):
            raise JobError(f"`encryption` is one of: auto, none, {', '.join(SCHEMES)}")
        if self.max_depth > 14:
            raise JobError("`max_depth` is at most 14")
        if self.hide_rows and (self.encryption == "none" or self.hide_order):
            raise JobError("`hide_rows` needs encryption, and does not go with `hide_order`")
        if self.hide_rows and self.min_bin_rows > 1:
            raise JobError("a partner that sees no rows (`hide_rows`) cannot count `min_bin_rows`")
        if self.hide_order and self.colsample_bytree < 1:
            raise JobError(
                "`colsample_bytree` cannot be used with `hide_order`: columns are hidden"
            )
        if self.sampling_method == "goss" and not (
            0 < self.top_rate < 1 and self.other_rate > 0 and self.top_rate + self.other_rate <= 1
        ):
            raise JobError("`top_rate` and `other_rate` lie between 0 and 1, as does their sum")
        if self.multi_output and self.monotone_constraints:
            raise JobError("trees of several outputs take no `monotone_constraints`")

    def _labels(self, fed: Federation) -> tuple[Floats, Floats]:
        """Labels and weights of a view's people; fixes the loss."""
        task = fed.label_plan.task
        usual: dict[str, TreeObjective] = {
            "binary": "binary:logistic",
            "multilabel": "binary:logistic",
            "multiclass": "multi:softprob",
            "regression": "reg:squarederror",
        }
        objective = self.objective or usual[task]
        fits = objective == usual[task] or (
            task == "regression" and objective in ("count:poisson", "reg:quantileerror")
        )
        if objective not in get_args(TreeObjective) or not fits:
            raise JobError(f"the objective '{objective}' does not fit a {task} label")
        target = fed.y
        agreed = Objective.fit(fed.label_plan, target, self.class_weight, fed.active.name)
        y = target.double().numpy()
        weight = np.ones(len(y))
        if agreed.weight is not None:
            weight = agreed.weight.double().numpy()[target.numpy()]
            if (weight < 0).any():
                raise JobError("a `class_weight` is negative")
        if objective == "count:poisson" and (y < 0).any():
            raise DataError(
                f"{int((y < 0).sum())} targets are below 0, which no count is",
                party=fed.active.name,
                column=fed.label_plan.column,
                way_out="Take the objective reg:squarederror.",
            )
        outputs = agreed.outputs if task in ("multiclass", "multilabel") else 1
        self.loss_ = TreeLoss(objective, outputs, self.quantile_alpha)
        return y, weight

    def _begin(self, fed: Federation, rows: Integers, count: int) -> list[_Source]:
        """Have every party bin its columns; make the key."""
        self.active_, self.peers_ = fed.active, fed.open("boosting", BoostingSide)
        self.session_ = next((peer.session for peer in self.peers_.values()), None)
        constraints = {k: dict(v) for k, v in (self.monotone_constraints or {}).items()}
        for name in constraints:
            if name not in (fed.active.name, *self.peers_):
                raise JobError(f"`monotone_constraints` names '{name}', which is no party here")

        def settings(party: str) -> BoostingSettings:
            return BoostingSettings.model_validate(
                {
                    "train": count,
                    "max_bin": self.max_bin,
                    "monotone": constraints.get(party, {}),
                    "min_bin_rows": self.min_bin_rows,
                    "hide_order": self.hide_order,
                }
            )

        sources: list[_Source] = []
        own = _Own(fed.active, rows, settings(fed.active.name))
        self.own_: _Kept = own
        if len(own.full):
            sources.append(own)
        partners: list[_Partner] = []
        for name, peer in self.peers_.items():
            agreed = settings(name)
            table = peer.ask(
                BoostingSide.begin,
                fed.positions(name, rows).to(torch.int32),
                agreed.model_dump(mode="json"),
            )
            kind = _BlindPartner if self.hide_rows else _Partner
            partner = kind(peer, rows, table, agreed)
            if len(partner.full):
                partners.append(partner)
        if not sources and not partners:
            raise DataError(
                "no party has a column that tells the people to train on apart",
                party=fed.active.name,
                way_out="Give the parties other columns.",
            )
        if self.first_tree_alone and not sources:
            raise JobError("`first_tree_alone` needs columns at the active party")
        self._key: PrivateKey | None = None
        if self.encryption != "none" and partners:
            self._key = self._new_key(len(rows), partners)
            public = self._key.public.to_tensor()
            for partner in partners:
                partner.key = self._key
                partner.peer.ask(BoostingSide.take_key, public)
        self._rows = count
        self.made_ = {source.name: 0 for source in (*sources, *partners)}
        return [*sources, *partners]

    def _new_key(self, rows: int, partners: Sequence[_Partner]) -> PrivateKey:
        cells = max(partner.cells for partner in partners)
        width = 2 * (self.loss_.outputs if self.multi_output else 1)
        nodes = 2 ** max(0, self.max_depth - 2)  # asked for at the deepest level
        apart = min(nodes, BLIND_NODES) if self.hide_rows else 1
        workload = Workload(
            rows=rows * (2 if self.hide_order else 1),  # half of the candidates hold each row
            largest=2**self.precision - 1,
            width=width * apart,
            groups=min(cells * (1 if self.hide_rows else 2 * nodes), 2**30),
        )
        scheme: Scheme
        if self.encryption == "auto":
            columns = max(len(partner.full) for partner in partners)
            scheme = choose(
                _fitting(workload, "fast"),
                columns=columns,
                link=LINK,
                cores=cores(),
                levels=(self.max_depth + 1) / 2,
            )[0].scheme
        else:
            assert self.encryption != "none"
            scheme = self.encryption
        if scheme in ("rlwe-fast", "rlwe-strict"):
            workload = _fitting(workload, "fast" if scheme == "rlwe-fast" else "strict")
        self._largest = workload.largest
        return generate(scheme, workload)

    def _round(
        self,
        number: int,
        sources: Sequence[_Source],
        score: Floats,
        y: Floats,
        weight: Floats,
        count: int,
    ) -> None:
        """Grow a round's trees from the scores before it, and move the scores by them."""
        step = self._step()
        g, h = self.loss_.derivatives(score[:count], y[:count], weight[:count], step)
        before = score.copy()
        trees = []
        for turn in range(self.num_parallel_tree):
            rng = np.random.default_rng(seed_for(self._seed, "trees", number, turn))
            sampled, factor = self._sample(g, rng)
            columns = self._columns(sources, rng)
            outputs = self.loss_.outputs
            groups = (
                [slice(0, outputs)]
                if self.multi_output
                else [slice(k, k + 1) for k in range(outputs)]
            )
            for group in groups:
                figures, units = self._whole_numbers(g[:, group] * factor, h[:, group] * factor)
                figures[~sampled] = 0
                extra = len(score) - count
                work = _Work(
                    np.concatenate([figures, np.zeros((extra, figures.shape[1]))]),
                    np.concatenate([sampled, np.zeros(extra, dtype=np.bool_)]),
                    units,
                    self._key,
                    len(score),
                )
                used = [source for source in sources if len(columns[source.name])]
                asked = self._asked(number, turn, used)
                trees.append(self._tree(work, asked, columns, before, score, y, group))
        self.trees_.append(trees)

    def _step(self) -> float:
        if self.max_delta_step is not None:
            return self.max_delta_step
        return 0.7 if self.loss_.objective == "count:poisson" else 0.0

    def _sample(self, g: Floats, rng: np.random.Generator) -> tuple[Flags, Floats]:
        """Which rows a tree learns from, and what their figures are multiplied with, (n, 1)."""
        n = len(g)
        sampled, factor = np.ones(n, dtype=np.bool_), np.ones((n, 1))
        if self.sampling_method == "goss":
            order = np.argsort(-np.abs(g).sum(axis=1), kind="stable")
            top, other = math.ceil(self.top_rate * n), math.ceil(self.other_rate * n)
            rest = rng.permutation(order[top:])[:other]
            sampled[:] = False
            sampled[order[:top]] = sampled[rest] = True
            factor[rest] = (1 - self.top_rate) / self.other_rate
        elif self.subsample < 1:
            sampled[rng.permutation(n)[max(1, round(self.subsample * n)) :]] = False
        return sampled, factor

    def _columns(self, sources: Sequence[_Source], rng: np.random.Generator) -> dict[str, Integers]:
        """Which columns of each party a tree may split on."""
        sizes = [len(source.full) for source in sources]
        every = np.arange(sum(sizes))
        if self.colsample_bytree < 1:
            count = max(1, round(self.colsample_bytree * len(every)))
            every = np.sort(rng.choice(every, count, replace=False))
        ends = np.cumsum(sizes)
        parts = np.split(every, np.searchsorted(every, ends[:-1]))
        return {
            source.name: part - (end - size)
            for source, part, end, size in zip(sources, parts, ends, sizes, strict=True)
        }

    def _whole_numbers(self, g: Floats, h: Floats) -> tuple[Floats, Floats]:
        """g and h as whole numbers side by side, and what one of each stands for.

        That is a power of two, so that what travels in clear, in the loss's own units, adds up as
        exactly.
        """
        n, outputs = g.shape
        exact = 2 ** min(40, 51 - n.bit_length()) - 1
        largest = exact if self._key is None else self._largest
        most = [float(np.abs(x).max(initial=0)) for x in (g, h)]
        units = [2.0 ** math.ceil(math.log2(m / largest)) if m else 1.0 for m in most]
        figures = np.concatenate([np.rint(g / units[0]), np.rint(h / units[1])], axis=1)
        return figures, np.repeat(units, outputs)

    def _tree(
        self,
        work: _Work,
        asked: Callable[[int], Sequence[_Source]],
        columns: Mapping[str, Integers],
        before: Floats,
        score: Floats,
        y: Floats,
        group: slice,
    ) -> Tree:
        """Grow one tree and add its leaves' values to the scores."""
        every = {s.name: s for depth in range(self.max_depth) for s in asked(depth)}
        for source in every.values():
            source.start(work, columns[source.name])
        penalty = Penalty(
            self.reg_lambda, self.reg_alpha, self.gamma, self.min_child_weight, self._step()
        )
        grown = _grow(work, list(every.values()), asked, penalty, self.max_depth)
        outputs = work.figures.shape[1] // 2
        rate = self.learning_rate / self.num_parallel_tree
        values, covers = [], []
        for i, node in enumerate(grown.nodes):
            real = node.totals * work.units
            covers.append(float(real[outputs:].sum()))
            w = np.clip(penalty.weight(real[:outputs], real[outputs:]), *node.bounds)
            if grown.left[i] == i:
                if self.loss_.objective == "reg:quantileerror" and len(node.taken):
                    w = np.array([self.loss_.leaf(y[node.taken] - before[node.taken, 0])])
                score[node.rows, group] += rate * w
            values.append(tuple((rate * w).tolist()))
        return Tree(
            owner=tuple(grown.owner),
            split=tuple(grown.split),
            column=tuple(grown.column),
            left=tuple(grown.left),
            right=tuple(grown.right),
            value=tuple(values),
            gain=tuple(grown.gain),
            cover=tuple(covers),
        )

    def _asked(
        self, number: int, turn: int, sources: Sequence[_Source]
    ) -> Callable[[int], Sequence[_Source]]:
        """Which parties a tree's depths are split by."""
        own = [s for s in sources if isinstance(s, _Own)]
        partners = [s for s in sources if isinstance(s, _Partner)]
        if self.first_tree_alone and number == 0:
            return lambda depth: own
        if self.mode == "mix" and sources:
            return lambda depth: [sources[(number + turn) % len(sources)]]
        if self.mode == "layered" and own and partners:
            return lambda depth: partners if depth < self.partner_depth else own
        return lambda depth: sources

    def _keep(self, rounds: int) -> None:
        """Forget what came after the best round."""
        del self.trees_[rounds:]
        made = dict.fromkeys(self.made_, 0)
        for tree in (tree for trees in self.trees_ for tree in trees):
            for owner, split in zip(tree.owner, tree.split, strict=True):
                if owner is not None:
                    made[owner] = max(made[owner], split + 1)
        self.made_ = made
        del self.own_.splits[made.get(self.active_.name, 0) :]
        for name, peer in self.peers_.items():
            if name in made:
                peer.ask(BoostingSide.keep, {"splits": made[name]})

    # -- scoring -------------------------------------------------------------------------------

    def outputs(self, federation: Federation) -> NDArray[np.float64]:
        """Predictions for a view's people, all of whom every party must hold.

        Each partner is asked once for every 131,072 people, whatever the trees' number and depth.
        """
        return self.loss_.predictions(self.scores(federation))

    def scores(self, federation: Federation) -> NDArray[np.float64]:
        """The trees' sums, before they are made probabilities or counts; (n, outputs)."""
        where = self._where(federation)
        out = np.tile(self.base_, (len(federation.rows), 1))
        for start in range(0, len(out), CHUNK):
            part = slice(start, start + CHUNK)
            bits, first = self._bits(federation, part, where)
            for trees in self.trees_:
                for i, tree in enumerate(trees):
                    value = np.array(tree.value)[tree.leaves(bits, first)]
                    if self.multi_output:
                        out[part] += value
                    else:
                        out[part, i % self.loss_.outputs] += value[:, 0]
        return out

    def _where(self, federation: Federation) -> dict[str, Tensor]:
        """Positions of a view's people at every partner that has splits."""
        if not hasattr(self, "trees_"):
            raise NotFittedError(f"this {type(self).__name__} has learnt nothing yet; call `fit`")
        if not len(federation.rows):
            raise InterlaceError("there is nobody to score in this view of the federation")
        if self.session_ is not None:
            self.peers_ = federation.peers(self.session_)
        return {
            name: federation.positions(name, federation.rows).to(torch.int32)
            for name in self.peers_
            if self.made_.get(name)
        }

    def _bits(
        self, fed: Federation, part: slice, where: Mapping[str, Tensor]
    ) -> tuple[Bytes, dict[str, int]]:
        """Every party's directions for some people, and where each party's begin."""
        mine = fed.rows[part]
        goes = self.own_.binning.goes_left(self.own_.splits, fed.active.frame, mine)
        parts, first = [np.packbits(goes, axis=0).T], {fed.active.name: 0}
        for name, rows in where.items():
            answer = self.peers_[name].ask(BoostingSide.directions, rows[part]).numpy()
            due = (len(mine), -(-self.made_[name] // 8))
            if answer.shape != due or answer.dtype != np.uint8:
                raise Refused(
                    f"party '{name}' answered with directions of shape {answer.shape}, "
                    f"{due} was asked for"
                )
            first[name] = 8 * sum(p.shape[1] for p in parts)
            parts.append(answer)
        every = np.ascontiguousarray(np.concatenate(parts, axis=1))
        return (every if every.shape[1] else np.zeros((len(mine), 1), dtype=np.uint8)), first

    def importance(self, kind: Literal["gain", "weight"] = "gain") -> dict[str, dict[str, float]]:
        """What splits were worth: of the active party's own columns by name, of each partner's
        together. No partner's columns are named, since nobody else knows them.

        Args:
            kind: ``gain``: what splits took off the loss; ``weight``: how many there are.
        """
        out: dict[str, dict[str, float]] = {}
        for tree in (tree for trees in self.trees_ for tree in trees):
            for owner, split, gain in zip(tree.owner, tree.split, tree.gain, strict=True):
                if owner is None:
                    continue
                mine = owner == self.active_.name
                column = self.own_.splits[split].column if mine else "all columns"
                columns = out.setdefault(owner, {})
                columns[column] = columns.get(column, 0.0) + (gain if kind == "gain" else 1.0)
        return out

    def share_importance(self) -> None:
        """Tell each partner what its own splits took off the loss, so that it can say which of its
        columns matter: they stand in its own model file after :meth:`save`.

        Gains say a little of labels, so no partner is told unless you call this.
        """
        gains = {name: np.zeros(count) for name, count in self.made_.items()}
        for tree in (tree for trees in self.trees_ for tree in trees):
            for owner, split, gain in zip(tree.owner, tree.split, tree.gain, strict=True):
                if owner is not None:
                    gains[owner][split] = gain
        for name, peer in self.peers_.items():
            if name in gains:
                peer.ask(BoostingSide.take_importance, torch.from_numpy(gains[name]))

    def explain(self, federation: Federation, *, share: bool = False) -> Explanation:
        """What each column added to the scores of a view's people: SHAP values of the trees.

        Args:
            federation: Whom to explain.
            share: Send each partner the values of its own columns, by name there: they say
                something of people's scores. With ``hide_order`` they cannot be told apart.

        Raises:
            InterlaceError: ``share`` with ``hide_order``.
        """
        if share and self.hide_order:
            raise InterlaceError("with `hide_order` partners' columns cannot be told apart")
        where = self._where(federation)
        outputs, me = self.loss_.outputs, federation.active.name
        base = self.base_.copy()
        found: dict[tuple[str, int], Floats] = {}
        for start in range(0, len(federation.rows), EXPLAINED):
            part = slice(start, start + EXPLAINED)
            bits, first = self._bits(federation, part, where)
            for trees in self.trees_:
                for i, tree in enumerate(trees):
                    group = (
                        slice(None) if self.multi_output else slice(i % outputs, i % outputs + 1)
                    )
                    if not start:
                        base[group] += tree.mean
                    for player, shares in tree.shapley(bits, first):
                        if player not in found:
                            found[player] = np.zeros((len(federation.rows), outputs))
                        found[player][part, group] += shares
        own: dict[str, Floats] = {}
        partners: dict[str, Floats] = {}
        for (owner, number), values in sorted(found.items()):
            if owner == me:
                own[self.own_.binning.columns[number].name] = values
            else:
                partners[owner] = partners.get(owner, 0.0) + values
        if share:
            for name, rows in where.items():
                numbers = sorted(number for owner, number in found if owner == name)
                if numbers:
                    values = np.concatenate([found[name, n] for n in numbers], axis=1)
                    self.peers_[name].ask(
                        BoostingSide.take_shapley,
                        rows,
                        torch.tensor(numbers, dtype=torch.int32),
                        torch.from_numpy(values),
                    )
        return Explanation(base, own, partners)

    # -- keeping -------------------------------------------------------------------------------

    def save(self, name: str) -> None:
        """Every party keeps its own splits as JSON; the active party keeps shapes and leaves."""
        for peer in self.peers_.values():
            peer.ask(BoostingSide.save, {"name": name})
        _write_model(self.active_, name, self._model())

    def load(self, name: str, federation: Federation) -> Self:
        """Take the parts that :meth:`save` kept."""
        model = _read_model(federation.active, name)
        self.active_, self.peers_ = federation.active, federation.open("boosting", BoostingSide)
        self.session_ = next((peer.session for peer in self.peers_.values()), None)
        self._take(model)
        for partner, peer in self.peers_.items():
            held = peer.ask(BoostingSide.load, {"name": name}).get("splits")
            if held != self.made_.get(partner, 0):
                raise InterlaceError(
                    f"party '{partner}' keeps another part of the model '{name}' than the "
                    f"{self.made_.get(partner, 0)} splits that belong to the active party's part; "
                    "save the model anew"
                )
        return self

    def _model(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "label_plan": self.label_plan_.to_json(),
            "loss": vars(self.loss_),
            "base": self.base_.tolist(),
            "multi_output": self.multi_output,
            "hide_order": self.hide_order,
            "trees": [[t.model_dump(mode="json") for t in trees] for trees in self.trees_],
            "made": self.made_,
            "history": history_to_json(self.history_),
            "binning": self.own_.binning.model_dump(mode="json"),
            "splits": [split.model_dump(mode="json") for split in self.own_.splits],
        }

    def _take(self, model: dict[str, Any]) -> None:
        self.label_plan_ = LabelPlan.from_json(model["label_plan"])
        self.loss_ = TreeLoss(**model["loss"])
        self.base_ = np.array(model["base"], dtype=np.float64)
        self.multi_output, self.hide_order = bool(model["multi_output"]), bool(model["hide_order"])
        self.trees_ = [[Tree.model_validate(t) for t in trees] for trees in model["trees"]]
        self.made_ = {name: int(count) for name, count in model["made"].items()}
        self.history_ = history_from_json(model["history"])
        self.own_ = _Kept(
            Binning.model_validate(model["binning"]),
            [Split.model_validate(split) for split in model["splits"]],
        )

    def _fingerprint(self, fed: Federation) -> str:
        text = f"{sorted(self.get_params().items())!r} {fed.seed}"
        return blake2b(text.encode() + fed.rows.tobytes(), digest_size=16).hexdigest()

    def _checkpoint(
        self, fed: Federation, name: str, done: int, score: Floats, stopping: EarlyStopping
    ) -> None:
        for peer in self.peers_.values():
            peer.ask(BoostingSide.checkpoint, {"name": name, "epoch": done})
        meta = self._model() | {
            "made_for": self._fingerprint(fed),
            "best": [stopping.best, stopping.best_epoch],
            "round": fed.active.boundary.round,
            "seed": self._seed,
        }
        write_checkpoint(fed.active, name, done, State({"score": torch.from_numpy(score)}, meta))

    def _resume(
        self,
        fed: Federation,
        name: str,
        sources: Sequence[_Source],
        score: Floats,
        stopping: EarlyStopping,
    ) -> Floats:
        """Go back to the last checkpoint, if there is one; returns the scores then.

        Raises:
            JobError: it was made with other settings or people.
        """
        done = latest_checkpoint(fed.active, name)
        if done is None:
            return score
        state = read_checkpoint(fed.active, name, done)
        if state.meta["made_for"] != self._fingerprint(fed):
            raise JobError(
                f"the checkpoint '{name}' was made with other settings or other people; "
                "choose another run folder, or the job as it was"
            )
        for peer in self.peers_.values():
            peer.ask(BoostingSide.resume, {"name": name, "epoch": done})
        own = self.own_
        self._take(state.meta)
        own.splits, self.own_ = self.own_.splits, own
        for source in sources:
            if isinstance(source, _Partner):
                source.made = self.made_[source.name]
        stopping.best, stopping.best_epoch = state.meta["best"]
        fed.active.boundary.round = int(state.meta["round"])
        self._seed = int(state.meta["seed"])
        return state.tensors["score"].numpy().copy()


def _fitting(workload: Workload, setting: Literal["fast", "strict"]) -> Workload:
    """The workload with numbers as fine as asked, or as Ring-LWE takes them."""
    from interlace.crypto.rlwe import capacity

    largest = min(workload.largest, capacity(setting, workload))
    return Workload(workload.rows, largest, workload.width, workload.groups)


class BoostedTrees(VerticalTrees):
    """Gradient-boosted trees over vertical parties (SecureBoost); options by XGBoost's names.

    Args:
        n_estimators: Rounds of trees (one tree a round, or one for each class or label).
        max_depth: Most splits from the root to a leaf.
        learning_rate: What each tree's values are multiplied with.
        max_bin: Most bins of a column.
        objective: ``binary:logistic``, ``multi:softprob``, ``reg:squarederror``,
            ``count:poisson`` or ``reg:quantileerror``; by default as the label has it.
        quantile_alpha: Which quantile ``reg:quantileerror`` estimates.
        base_score: What boosting starts from, as a probability or a quantity; by default the best
            constant.
        reg_lambda: L2 penalty λ on leaf weights.
        reg_alpha: L1 penalty α on leaf weights.
        gamma: Least gain of a split.
        min_child_weight: Least sum of h on either side of a split.
        max_delta_step: Largest leaf weight; by default 0.7 for Poisson, else unlimited (0).
        subsample: Share of the people that each round learns from.
        colsample_bytree: Share of all parties' columns that each round may split on.
        sampling_method: ``uniform`` takes ``subsample``; ``goss`` takes those with the largest
            gradients (``top_rate``) and some of the others (``other_rate``); partners see who was
            taken, and so whose gradients are large.
        multi_output: One tree for all classes, with a value for each at its leaves.
        num_parallel_tree: Trees grown side by side in each round.
        monotone_constraints: ``{party: {column: 1 or -1}}``. A party learns of its own alone.
        class_weight: ``balanced``, a weight by class as in the label column, or ``None``.
        early_stopping_rounds: Stop after that many rounds without a better loss on people kept
            aside; ``None`` keeps nobody aside and never stops.
        validation: Share of people kept aside to stop early by.
        encryption: ``none``, ``rlwe-fast``, ``rlwe-strict``, ``paillier``, ``okamoto-uchiyama``, or
            ``auto``: the one of these that is fastest over a link of 100 Mbit/s.
        precision: Bits of g and h under encryption; fewer if the scheme does not take so many.
        first_tree_alone: The first round uses the active party's columns alone, so that partners
            never see rows parted by labels as such ("complete secure").
        mode: ``all`` parties may make every split; ``mix``: each round is one party's, in turn;
            ``layered``: partners make the splits above ``partner_depth``, the active party the
            others. Fewer messages, about the same quality.
        partner_depth: For ``layered``.
        min_bin_rows: Fewest people of a node that a sum may be over. Smaller bins are merged, which
            costs a little accuracy.
        hide_order: Keep the order of a partner's bins from the active party: it gets the sums left
            of every possible split, shuffled over all columns. With 32 bins about five times the
            work under encryption. Categories are then split one against the rest.
        hide_rows: Keep the rows of nodes from partners, so that these say nothing of labels: for
            every level everybody's figures are sent again, encrypted, with zeros for the rows of
            other nodes. A partner still learns which of its columns and bins split. Needs
            encryption; three to four times the work.
    """

    def __init__(
        self,
        *,
        n_estimators: int = 100,
        max_depth: int = 4,
        learning_rate: float = 0.3,
        max_bin: int = 32,
        objective: TreeObjective | None = None,
        quantile_alpha: float = 0.5,
        base_score: float | None = None,
        reg_lambda: float = 1.0,
        reg_alpha: float = 0.0,
        gamma: float = 0.0,
        min_child_weight: float = 1.0,
        max_delta_step: float | None = None,
        subsample: float = 1.0,
        colsample_bytree: float = 1.0,
        sampling_method: Literal["uniform", "goss"] = "uniform",
        top_rate: float = 0.2,
        other_rate: float = 0.1,
        multi_output: bool = False,
        num_parallel_tree: int = 1,
        monotone_constraints: Mapping[str, Mapping[str, int]] | None = None,
        class_weight: ClassWeight = None,
        early_stopping_rounds: int | None = None,
        validation: float = 0.1,
        encryption: Encryption = "auto",
        precision: int = 16,
        first_tree_alone: bool = False,
        mode: Literal["all", "mix", "layered"] = "all",
        partner_depth: int = 2,
        min_bin_rows: int = 1,
        hide_order: bool = False,
        hide_rows: bool = False,
    ) -> None:
        self.n_estimators = n_estimators
        self.max_depth = max_depth
        self.learning_rate = learning_rate
        self.max_bin = max_bin
        self.objective = objective
        self.quantile_alpha = quantile_alpha
        self.base_score = base_score
        self.reg_lambda = reg_lambda
        self.reg_alpha = reg_alpha
        self.gamma = gamma
        self.min_child_weight = min_child_weight
        self.max_delta_step = max_delta_step
        self.subsample = subsample
        self.colsample_bytree = colsample_bytree
        self.sampling_method = sampling_method
        self.top_rate = top_rate
        self.other_rate = other_rate
        self.multi_output = multi_output
        self.num_parallel_tree = num_parallel_tree
        self.monotone_constraints = monotone_constraints
        self.class_weight = class_weight
        self.early_stopping_rounds = early_stopping_rounds
        self.validation = validation
        self.encryption = encryption
        self.precision = precision
        self.first_tree_alone = first_tree_alone
        self.mode = mode
        self.partner_depth = partner_depth
        self.min_bin_rows = min_bin_rows
        self.hide_order = hide_order
        self.hide_rows = hide_rows


class RandomForest(VerticalTrees):
    """A random forest over vertical parties: trees side by side, none learns from another.

    Args:
        n_trees: How many trees.
        max_depth: Most splits from the root to a leaf.
        max_bin: Most bins of a column.
        subsample: Share of the people that each tree learns from.
        colsample_bytree: Share of all parties' columns that each tree may split on.
        reg_lambda, min_child_weight, class_weight: As for :class:`BoostedTrees`.
        encryption, precision, min_bin_rows: As for :class:`BoostedTrees`.

    Leaves hold one Newton step from the best constant, as in XGBoost's forests.
    """

    def __init__(
        self,
        *,
        n_trees: int = 50,
        max_depth: int = 8,
        max_bin: int = 32,
        subsample: float = 0.8,
        colsample_bytree: float = 0.8,
        reg_lambda: float = 1e-5,
        min_child_weight: float = 1.0,
        class_weight: ClassWeight = None,
        encryption: Encryption = "auto",
        precision: int = 16,
        min_bin_rows: int = 1,
    ) -> None:
        self.n_trees = n_trees
        self.max_depth = max_depth
        self.max_bin = max_bin
        self.subsample = subsample
        self.colsample_bytree = colsample_bytree
        self.reg_lambda = reg_lambda
        self.min_child_weight = min_child_weight
        self.class_weight = class_weight
        self.encryption = encryption
        self.precision = precision
        self.min_bin_rows = min_bin_rows

    @property
    def num_parallel_tree(self) -> int:  # type: ignore[override]
        """All trees are of one round."""
        return self.n_trees


class DecisionTree(VerticalTrees):
    """One tree over vertical parties.

    Args:
        max_depth: Most splits from the root to a leaf.
        max_bin: Most bins of a column.
        reg_lambda, gamma, min_child_weight, class_weight: As for :class:`BoostedTrees`.
        encryption, precision, min_bin_rows, hide_order: As for :class:`BoostedTrees`.
    """

    def __init__(
        self,
        *,
        max_depth: int = 4,
        max_bin: int = 32,
        reg_lambda: float = 1e-5,
        gamma: float = 0.0,
        min_child_weight: float = 1.0,
        class_weight: ClassWeight = None,
        encryption: Encryption = "auto",
        precision: int = 16,
        min_bin_rows: int = 1,
        hide_order: bool = False,
    ) -> None:
        self.max_depth = max_depth
        self.max_bin = max_bin
        self.reg_lambda = reg_lambda
        self.gamma = gamma
        self.min_child_weight = min_child_weight
        self.class_weight = class_weight
        self.encryption = encryption
        self.precision = precision
        self.min_bin_rows = min_bin_rows
        self.hide_order = hide_order
