"""Boosted trees by adding up histograms (the horizontal form of histogram gradient boosting).

All clients cut their columns at the same edges; for every level of every tree each sends, by node,
column and bin, the sums of its rows' gradients and Hessians. Their total is the pooled table's
histogram, so the trees are those that the pooled table would give with the same edges::

    server                                        each client k
      │ ── grid() ──────────────────────────────────► │
      │ ◄──────────── counts of each column by cell ── │
      │ ── cut(edges) ──────────────────────────────► │
      │ for every tree: start(score); for every level:
      │ ── histogram(level) ────────────────────────► │
      │ ◄──────── sums of g and h, and counts ──────── │   (nodes, columns, bins, 3)
      │ ── split(column and bin of each node) ──────► │
      │ ── leaves(values) ──────────────────────────► │   scores move by the leaves' values

A cell with a single row in it shows that row's gradient, and so its label: aggregate securely, or
trust the server with that.

Source of the splits: Chen and Guestrin, "XGBoost", KDD 2016, §2; of the horizontal form: Li et al.,
"Practical Federated Gradient Boosting Decision Trees", AAAI 2020, and FedTree.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from interlace.boundary.kinds import (
    Ciphertext,
    Control,
    Histogram,
    ModelWeights,
    RowSelection,
    SplitChoice,
)
from interlace.data.columns import CLIP
from interlace.data.spec import InputSpec
from interlace.errors import JobError
from interlace.federation import Federation
from interlace.methods.base import Clock, EarlyStopping, OnEpoch
from interlace.methods.horizontal.drift import Round
from interlace.methods.horizontal.method import HorizontalMethod
from interlace.methods.horizontal.side import Agreement, HorizontalSide, figures
from interlace.party import operation

CELLS = 1024  # of the grid on which the edges are found, over standardised values


class TreeSide(HorizontalSide):
    """What a client answers in boosting."""

    edges: Tensor
    bins: Tensor  # (rows of the table, columns)
    score: Tensor  # (rows of the table, scores)
    gradient: Tensor  # (rows of the table, scores)
    hessian: Tensor  # (rows of the table, scores)
    node: Tensor  # (rows of the table,)
    active_score: int = 0

    @operation
    def grid(self) -> Histogram:
        """How many training rows fall into each cell of each numeric column; (columns, cells)."""
        return self.grid_counts()

    @operation
    def grid_masked(self, cohort: RowSelection) -> Ciphertext:
        """The same under masks."""
        return self._masked(self.grid_counts(), cohort)

    @operation
    def cut(self, edges: Histogram, scores: Control) -> None:
        """Take the edges of the bins, (columns, bins − 1); all scores start at nought."""
        self.edges = edges.clone()
        self.bins = binned(self.x, self.edges, self.plan.spec)
        self.score = torch.zeros(len(self.x), int(scores["scores"]), dtype=torch.float64)

    @operation
    def start(self, tree: Control) -> None:
        """Begin a tree for one of the scores: all rows at the root."""
        self.active_score = int(tree["score"])
        if self.active_score == 0:  # all trees of a round see the scores from before it
            self._derivatives()
        self.node = torch.zeros(len(self.x), dtype=torch.int64)

    @operation
    def histogram(self, level: Control) -> Histogram:
        """Sums of g and h and counts by node, column and bin; (nodes, columns, bins, 3)."""
        return self.histogram_of(int(level["level"]))

    @operation
    def histogram_masked(self, cohort: RowSelection, level: Control) -> Ciphertext:
        """The same under masks."""
        return self._masked(self.histogram_of(int(level["level"])), cohort)

    @operation
    def split(self, choice: SplitChoice) -> None:
        """Send the rows of a level's nodes on: (nodes, 2), column and bin; column −1 is a leaf."""
        self.node = sent_on(self.node, self.bins, choice, self.plan.spec)

    @operation
    def leaves(self, values: ModelWeights) -> None:
        """Add the tree's value at each row's node to the row's score; (nodes of the tree,)."""
        self.score[:, self.active_score] += values[self.node]

    @operation
    def watch(self) -> Histogram:
        """Loss summed over training rows, over rows kept aside, and how many those are; (3,)."""
        return self.losses()

    @operation
    def watch_masked(self, cohort: RowSelection) -> Ciphertext:
        """The same under masks."""
        return self._masked(self.losses(), cohort)

    def grid_counts(self) -> Tensor:
        """Counts of the training rows' numeric values by cell."""
        x = self.x.index_select(0, self.parts["train"])[:, : self.plan.spec.numeric].double()
        cell = ((x + CLIP) * (CELLS / (2 * CLIP))).long().clamp(0, CELLS - 1)
        out = torch.zeros(x.shape[1], CELLS, dtype=torch.float64)
        return out.scatter_add_(1, cell.T, torch.ones_like(cell.T, dtype=torch.float64))

    def histogram_of(self, level: int) -> Tensor:
        """The histogram of a level over this client's training rows."""
        first, count = 2**level - 1, 2**level
        rows = self.parts["train"]
        rows = rows[(self.node[rows] >= first) & (self.node[rows] < first + count)]
        columns, bins = self.bins.shape[1], self.edges.shape[1] + 1
        g, h = self.gradient[:, self.active_score], self.hessian[:, self.active_score]
        at = (self.node[rows] - first)[:, None] * columns + torch.arange(columns)
        at = (at * bins + self.bins[rows]).flatten()
        sums = torch.stack([g[rows], h[rows], torch.ones(len(rows), dtype=torch.float64)], 1)
        out = torch.zeros(count * columns * bins, 3, dtype=torch.float64)
        out.index_add_(0, at, sums.repeat_interleave(columns, 0))
        return out.view(count, columns, bins, 3)

    def losses(self) -> Tensor:
        """Losses of training and kept-aside rows at the present scores."""
        out = []
        for part in ("train", "validation"):
            rows = self.parts[part]
            logits = as_logits(self.score[rows], self.objective.outputs)
            some = figures(logits, self.y[rows], self.objective)["loss"] if len(rows) else 0.0
            out += [some, float(len(rows))]
        return torch.tensor([out[0], out[2], out[3]], dtype=torch.float64)

    def logits(self, weights: Tensor, x: Tensor) -> Tensor:
        """What the trees say of some rows; (n, outputs)."""
        return as_logits(scores_of(weights, x, self.plan.spec), self.objective.outputs)

    def _derivatives(self) -> None:
        """First and second derivatives of the loss by each score, at the present scores."""
        if self.objective.task == "regression":
            target = (self.y.double() - self.objective.centre) / self.objective.scale
            self.gradient = self.score - target[:, None]
            self.hessian = torch.ones_like(self.score)
        elif self.score.shape[1] == 1:
            p = self.score.sigmoid()
            self.gradient, self.hessian = p - self.y[:, None].clamp(min=0), p * (1 - p)
        else:
            p = self.score.softmax(1)
            known = torch.nn.functional.one_hot(self.y.clamp(min=0), p.shape[1])
            self.gradient, self.hessian = p - known, p * (1 - p)

    def _masked(self, sums: Tensor, cohort: Tensor) -> Tensor:
        return self.masks.mask(sums.flatten(), 1.0, cohort, self.party.boundary.round)


def binned(x: Tensor, edges: Tensor, spec: InputSpec) -> Tensor:
    """The bin of each value: the number of edges below it, or a category's code; (n, columns)."""
    out = torch.empty(x.shape, dtype=torch.int64)
    for j in range(x.shape[1]):
        if j < spec.numeric:
            out[:, j] = torch.searchsorted(edges[j], x[:, j].double().contiguous())
        else:
            out[:, j] = x[:, j].long().clamp(max=edges.shape[1])
    return out


def sent_on(node: Tensor, bins: Tensor, choice: Tensor, spec: InputSpec) -> Tensor:
    """Where rows go from the nodes of a level: left if a number's bin is at most the chosen one, or
    if a category's is the chosen one."""
    first = len(choice) - 1
    within = (node >= first) & (node < first + len(choice))
    column, limit = choice[(node - first).clamp(0, len(choice) - 1)].unbind(1)
    splits = within & (column >= 0)
    value = bins.gather(1, column.clamp(min=0)[:, None])[:, 0]
    left = torch.where(column < spec.numeric, value <= limit, value == limit)
    return torch.where(splits, 2 * node + 2 - left.long(), node)


def scores_of(trees: Tensor, x: Tensor, spec: InputSpec) -> Tensor:
    """Scores of rows; ``trees`` is float64 of shape (rounds, scores, nodes, 3): column, limit (the
    largest value that goes left, or the code that does), value. (n, scores)."""
    out = torch.zeros(len(x), trees.shape[1], dtype=torch.float64)
    numbers = x.double()
    for boosted in trees:
        for s, tree in enumerate(boosted):
            node = torch.zeros(len(x), dtype=torch.int64)
            while True:
                column = tree[node, 0].long()
                inner = column >= 0
                if not bool(inner.any()):
                    break
                value = numbers.gather(1, column.clamp(min=0)[:, None])[:, 0]
                limit = tree[node, 1]
                left = torch.where(column < spec.numeric, value <= limit, value == limit)
                node = torch.where(inner, 2 * node + 2 - left.long(), node)
            out[:, s] += tree[node, 2]
    return out


def as_logits(scores: Tensor, outputs: int) -> Tensor:
    """Logits of shape (n, outputs), float32; one score stands against nought."""
    found = scores.float()
    return torch.cat([torch.zeros_like(found), found], 1) if outputs == 2 else found


class HorizontalTrees(HorizontalMethod):
    """Gradient-boosted trees over horizontal parties, the same as on the pooled table.

    Args:
        rounds: Most trees (for each class, if there are more than two).
        depth: Depth of a tree.
        learning_rate: What each tree's values are multiplied with.
        bins: Bins of a numeric column; a category has one for each of its first codes.
        l2: Penalty λ on leaf values.
        min_gain: Least gain γ of a split.
        min_rows: Fewest rows on either side of a split.
        patience: Stop after that many rounds without a better validation loss; ``None`` never.
        secure: Aggregate securely; the server sees sums only.
        agreement: What the parties agree on about their tables.

    After :meth:`fit`: ``weights_``, the trees; see :func:`scores_of`.
    """

    side = TreeSide
    protocol = "trees"

    # Made-up labels may end a tree early that real ones let grow to its depth.
    rehearsal: ClassVar[dict[str, Any]] = {"min_gain": -1e300, "min_rows": 1}

    def __init__(
        self,
        *,
        rounds: int = 50,
        depth: int = 4,
        learning_rate: float = 0.2,
        bins: int = 64,
        l2: float = 1.0,
        min_gain: float = 0.0,
        min_rows: int = 20,
        patience: int | None = 10,
        secure: bool = False,
        agreement: Agreement = Agreement(),
    ) -> None:
        self.rounds = rounds
        self.depth = depth
        self.learning_rate = learning_rate
        self.bins = bins
        self.l2 = l2
        self.min_gain = min_gain
        self.min_rows = min_rows
        self.patience = patience
        self.secure = secure
        self.agreement = agreement

    def fit(
        self,
        federation: Federation,
        *,
        checkpoint: str | None = None,
        on_epoch: OnEpoch | None = None,
    ) -> Self:
        """Learn from all clients' labelled rows; a round is one tree for each score.

        It keeps no checkpoint: a tree's histograms are asked for in seconds.

        Raises:
            DataError: the parties' columns or labels differ.
            JobError: the parties hold images, or a setting is out of range.
        """
        if self.depth < 1 or self.bins < 2 or self.rounds < 1:
            raise JobError("`depth` and `rounds` are at least 1 and `bins` at least 2")
        self._meet(federation)
        if self.plan_.spec.image:
            raise JobError("trees read tables, and these parties hold images")
        clients = self.meeting_.clients.values()
        outputs = self.objective_.outputs
        count = outputs if outputs > 2 else 1
        edges = self._edges()
        for client in clients:
            client.post(TreeSide.cut, edges, {"scores": count})
        grown: list[Tensor] = []
        rows = sum(self.meeting_.supplied().values())
        stopping, clock = EarlyStopping(self.patience), Clock()
        for number in range(1, self.rounds + 1):
            grown.append(torch.stack([self._tree(s, edges) for s in range(count)]))
            loss, aside, kept = self._added_up(TreeSide.watch, TreeSide.watch_masked, (3,)).tolist()
            validation = aside / kept if kept else None
            if validation is not None:
                stopping.better(number, validation)
            record = Round(number, loss / rows, validation, clock.lap(), len(clients))
            self.history_.append(record)
            if on_epoch:
                on_epoch(record)
            if validation is not None and stopping.over(number):
                break
        best = stopping.best_epoch if stopping.best_epoch > 0 else len(grown)
        self.weights_ = torch.stack(grown[:best])
        self._finish()
        return self

    def _edges(self) -> Tensor:
        """Edges between bins of about equal numbers of rows; float64 (columns, bins − 1)."""
        spec = self.plan_.spec
        counts = self._added_up(TreeSide.grid, TreeSide.grid_masked, (spec.numeric, CELLS))
        below = counts.cumsum(1) / counts.sum(1, keepdim=True).clamp(min=1)
        wanted = torch.arange(1, self.bins, dtype=torch.float64) / self.bins
        cells = torch.searchsorted(below, wanted.expand(spec.numeric, -1).contiguous())
        edges = (cells.double() + 1) * (2 * CLIP / CELLS) - CLIP
        nothing = torch.zeros(len(spec.cardinalities), self.bins - 1, dtype=torch.float64)
        return torch.cat([edges, nothing])

    def _tree(self, score: int, edges: Tensor) -> Tensor:
        """Grow one tree; (nodes, 3): column, limit, value."""
        clients = self.meeting_.clients.values()
        spec = self.plan_.spec
        for client in clients:
            client.post(TreeSide.start, {"score": score})
        tree = torch.zeros(2 ** (self.depth + 1) - 1, 3, dtype=torch.float64)
        tree[:, 0] = -1
        totals = torch.zeros(len(tree), 3, dtype=torch.float64)
        columns = len(edges)
        for level in range(self.depth):
            nodes, first = 2**level, 2**level - 1
            shape = (nodes, columns, self.bins, 3)
            sums = self._added_up(
                TreeSide.histogram, TreeSide.histogram_masked, shape, {"level": level}
            )
            choice, gain, left = self._best(sums, spec.numeric)
            here = sums[:, 0].sum(1)  # every column adds up to the same
            totals[first : first + nodes] = here
            choice[gain <= self.min_gain, 0] = -1
            for i in range(nodes):
                column, limit = choice[i].tolist()
                if column < 0:
                    continue
                numeric = column < spec.numeric
                node = first + i
                tree[node, 0] = column
                tree[node, 1] = edges[column, limit] if numeric else limit
                totals[2 * node + 1], totals[2 * node + 2] = left[i], here[i] - left[i]
            if not bool((choice[:, 0] >= 0).any()):
                break
            for client in clients:
                client.post(TreeSide.split, choice)
        tree[:, 2] = -self.learning_rate * totals[:, 0] / (totals[:, 1] + self.l2)
        for client in clients:
            client.post(TreeSide.leaves, tree[:, 2].clone())
        return tree

    def _best(self, sums: Tensor, numeric: int) -> tuple[Tensor, Tensor, Tensor]:
        """The best split of each node: column and bin (nodes, 2), its gain (nodes,), and the sums
        that go left (nodes, 3)."""
        left = sums.clone()
        left[:, :numeric] = sums[:, :numeric].cumsum(2)
        total = sums[:, :1].sum(2, keepdim=True)
        right = total - left
        worth = self._worth(left) + self._worth(right) - self._worth(total)
        few = (left[..., 2] < self.min_rows - 0.5) | (right[..., 2] < self.min_rows - 0.5)
        few[:, numeric:, -1] = True  # the last bin holds all further codes of a category
        worth = worth.masked_fill(few, -torch.inf).flatten(1)
        gain, at = worth.max(1)
        bins = sums.shape[2]
        choice = torch.stack([at // bins, at % bins], 1)
        chosen = left.flatten(1, 2)[torch.arange(len(sums)), at]
        return choice, 0.5 * gain, chosen

    def _worth(self, sums: Tensor) -> Tensor:
        return sums[..., 0].square() / (sums[..., 1] + self.l2)

    def _logits(self, x: Tensor) -> Tensor:
        return as_logits(scores_of(self.weights_, x, self.plan_.spec), self.objective_.outputs)
