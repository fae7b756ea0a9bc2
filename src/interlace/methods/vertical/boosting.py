"""Boosted trees over vertical parties: SecureBoost, encrypted or in clear.

The active party has the label, so it alone can compute each person's gradient g and hessian h of
the loss. Every party cuts its own columns into bins; a split is found from the sums of g and h by
node, column and bin. The partners' sums are computed on ciphertexts that they cannot read::

    active                                                       passive k
      │ ── terms() ───────────────────────────────────────────────► │
      │ ◄────── smallest bins and encryption that its policy allows │
      │ ── begin(training rows, settings) ────────────────────────► │   bins its columns
      │ ◄───────────── how many bins each (unnamed) column has ──── │
      │ ── echo(zeros), where encryption is `auto` ────────────────► │   how fast the link is
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

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import NotFittedError
from torch import Tensor

from interlace.boundary.control import whole_number
from interlace.crypto.base import PrivateKey, Workload
from interlace.crypto.kernels import cores
from interlace.crypto.schemes import SCHEMES, Scheme, agreed_schemes, choose, generate
from interlace.data.labels import LabelPlan
from interlace.errors import AlignmentError, DataError, InterlaceError, JobError, Refused
from interlace.federation import Federation
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
    last_checkpoint,
    latest_checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from interlace.methods.objective import ClassWeight, Objective
from interlace.methods.vertical.boosting_side import (
    MODEL,
    BoostingSettings,
    BoostingSide,
)
from interlace.methods.vertical.growing import BlindPartner, Kept, Own, Partner, Source, Work, grow
from interlace.models import seed_for
from interlace.models.trees import (
    Binning,
    Flags,
    Floats,
    Integers,
    Penalty,
    Split,
    Tree,
    TreeLoss,
    TreeObjective,
)
from interlace.party import Peer, State, ask_all

CHUNK = 2**17  # people scored in one message
EXPLAINED = 2**13  # people explained at once, whose paths are all kept in memory
PROBE = 2**18  # bytes by which a link is measured
BLIND_NODES = 4  # nodes whose sums share a ciphertext where rows are hidden

Encryption = Literal["auto", "none", "rlwe-fast", "rlwe-strict", "okamoto-uchiyama", "paillier"]
Bytes = NDArray[np.uint8]


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
    (the active party's bins and splits), ``made_`` (how many splits each partner keeps) and
    ``scheme_`` (the encryption that was used, if any).
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
    link_mbps: float | None = None
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
        self.scheme_ = self._scheme_before(fed, checkpoint)
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
        if self.link_mbps is not None and not self.link_mbps > 0:
            raise JobError("`link_mbps` must be above 0")
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
        agreed = Objective.fit(fed.label_plan, target, self.class_weight)
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

    def _begin(self, fed: Federation, rows: Integers, count: int) -> list[Source]:
        """Have every party bin its columns; make the key."""
        self.active_, self.peers_ = fed.active, fed.open("boosting", BoostingSide)
        self.session_ = next((peer.session for peer in self.peers_.values()), None)
        constraints = {k: dict(v) for k, v in (self.monotone_constraints or {}).items()}
        for name in constraints:
            if name not in (fed.active.name, *self.peers_):
                raise JobError(f"`monotone_constraints` names '{name}', which is no party here")

        terms = {name: _Terms.of(peer) for name, peer in self.peers_.items()}
        allowed: list[Scheme] = []
        if terms:
            asked = {name: told.encryption for name, told in terms.items()}
            mine = {fed.active.name: fed.active.policy.encryption}
            allowed = agreed_schemes(self.encryption, mine | asked)

        def settings(party: str) -> BoostingSettings:
            asked = terms[party].min_bin_rows if party in terms else 1
            if self.hide_rows and asked > 1:
                raise JobError(
                    f"party '{party}' adds up {asked} people or more, which it cannot count if it "
                    "sees no rows (`hide_rows`)"
                )
            return BoostingSettings.model_validate(
                {
                    "train": count,
                    "max_bin": self.max_bin,
                    "monotone": constraints.get(party, {}),
                    "min_bin_rows": max(self.min_bin_rows, asked),
                    "hide_order": self.hide_order,
                }
            )

        sources: list[Source] = []
        own = Own(fed.active, rows, settings(fed.active.name))
        self.own_: Kept = own
        if len(own.full):
            sources.append(own)
        partners: list[Partner] = []
        agreed = {name: settings(name) for name in self.peers_}
        tables = {
            name: peer.start(
                BoostingSide.begin,
                fed.positions(name, rows).to(torch.int32),
                agreed[name].model_dump(mode="json"),
            )
            for name, peer in self.peers_.items()
        }
        for name, peer in self.peers_.items():
            kind = BlindPartner if self.hide_rows else Partner
            partner = kind(peer, rows, tables[name](), agreed[name])
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
            self._key = self._new_key(len(rows), partners, allowed)
            public = self._key.public.to_tensor()
            for partner in partners:
                partner.key = self._key
                partner.peer.post(BoostingSide.take_key, public)
        self._rows = count
        self.made_ = {source.name: 0 for source in (*sources, *partners)}
        return [*sources, *partners]

    def _new_key(
        self, rows: int, partners: Sequence[Partner], allowed: Sequence[Scheme]
    ) -> PrivateKey:
        """A key of the scheme that was asked for, or of the fastest that all parties allow.

        Raises:
            JobError: none of these is installed and fits.
        """
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
        if self.encryption == "auto":
            if self.scheme_ not in allowed:  # else a training that goes on keeps to its scheme
                link = (self.link_mbps or 0) * 125_000 or min(_link(p.peer) for p in partners)
                estimates = choose(
                    _fitting(workload, "fast"),
                    columns=max(len(partner.full) for partner in partners),
                    link=link,
                    cores=cores(),
                    levels=(self.max_depth + 1) / 2,
                    allowed=allowed,
                )
                self.scheme_ = estimates[0].scheme
        else:
            assert self.encryption != "none"
            self.scheme_ = self.encryption
        scheme = self.scheme_
        assert scheme is not None
        if scheme in ("rlwe-fast", "rlwe-strict"):
            workload = _fitting(workload, "fast" if scheme == "rlwe-fast" else "strict")
        self._largest = workload.largest
        return generate(scheme, workload)

    def _round(
        self,
        number: int,
        sources: Sequence[Source],
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
                work = Work(
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

    def _columns(self, sources: Sequence[Source], rng: np.random.Generator) -> dict[str, Integers]:
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
        work: Work,
        asked: Callable[[int], Sequence[Source]],
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
        grown = grow(work, list(every.values()), asked, penalty, self.max_depth)
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
        self, number: int, turn: int, sources: Sequence[Source]
    ) -> Callable[[int], Sequence[Source]]:
        """Which parties a tree's depths are split by."""
        own = [s for s in sources if isinstance(s, Own)]
        partners = [s for s in sources if isinstance(s, Partner)]
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
        asked = {
            name: self.peers_[name].start(BoostingSide.directions, rows[part])
            for name, rows in where.items()
        }
        goes = self.own_.binning.goes_left(self.own_.splits, fed.active.frame, mine)
        parts, first = [np.packbits(goes, axis=0).T], {fed.active.name: 0}
        for name, waited in asked.items():
            answer = waited().numpy()
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

    def schemes(self) -> dict[str, str]:
        """The encryption of the gradients."""
        return {"gradients": self.scheme_} if self.scheme_ else {}

    @property
    def variance_power(self) -> float | None:
        """1 for counts."""
        return 1.0 if self.objective == "count:poisson" else None

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
        MODEL.write(self.active_, name, self._model())

    def load(self, name: str, federation: Federation) -> Self:
        """Take the parts that :meth:`save` kept."""
        model = MODEL.read(federation.active, name)
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
        self.own_ = Kept(
            Binning.model_validate(model["binning"]),
            [Split.model_validate(split) for split in model["splits"]],
        )

    def _scheme_before(self, fed: Federation, checkpoint: str | None) -> Scheme | None:
        """The scheme of a training that was stopped: another would round gradients otherwise."""
        done = latest_checkpoint(fed.active, checkpoint) if checkpoint else None
        if checkpoint is None or done is None:
            return None
        scheme: Scheme | None = read_checkpoint(fed.active, checkpoint, done).meta["scheme"]
        return scheme

    def _checkpoint(
        self, fed: Federation, name: str, done: int, score: Floats, stopping: EarlyStopping
    ) -> None:
        ask_all(self.peers_.values(), BoostingSide.checkpoint, {"name": name, "epoch": done})
        meta = self._model() | {
            "made_for": self._fingerprint(fed),
            "best": [stopping.best, stopping.best_epoch],
            "round": fed.active.boundary.round,
            "seed": self._seed,
            "scheme": self.scheme_,
        }
        write_checkpoint(fed.active, name, done, State({"score": torch.from_numpy(score)}, meta))

    def _resume(
        self,
        fed: Federation,
        name: str,
        sources: Sequence[Source],
        score: Floats,
        stopping: EarlyStopping,
    ) -> Floats:
        """Go back to the last checkpoint, if there is one; returns the scores then.

        Raises:
            JobError: it was made with other settings or people.
        """
        last = last_checkpoint(fed.active, name, self._fingerprint(fed))
        if last is None:
            return score
        done, state = last
        for peer in self.peers_.values():
            peer.ask(BoostingSide.resume, {"name": name, "epoch": done})
        own = self.own_
        self._take(state.meta)
        own.splits, self.own_ = self.own_.splits, own
        for source in sources:
            if isinstance(source, Partner):
                source.made = self.made_[source.name]
        stopping.best, stopping.best_epoch = state.meta["best"]
        fed.active.boundary.round = int(state.meta["round"])
        self._seed = int(state.meta["seed"])
        return state.tensors["score"].numpy().copy()


@dataclass(frozen=True)
class _Terms:
    """What a partner's policy asks."""

    min_bin_rows: int
    encryption: Any

    @classmethod
    def of(cls, peer: Peer) -> _Terms:
        """Ask for them.

        Raises:
            Refused: the answer cannot be read.
        """
        told = peer.ask(BoostingSide.terms)
        return cls(whole_number(told, "min_bin_rows", 2**31, least=1), told.get("encryption"))


def _link(peer: Peer) -> float:
    """Bytes a second to a partner and back, measured; what one round trip takes is left out."""

    def seconds(size: int) -> float:
        filler = torch.zeros(size, dtype=torch.uint8)
        began = time.perf_counter()
        if len(peer.ask(BoostingSide.echo, filler)) != size:
            raise Refused(f"party '{peer.name}' sent other bytes back than it was sent")
        return time.perf_counter() - began

    trip = min(seconds(1) for _ in range(3))
    return 2 * PROBE / max(min(seconds(PROBE) for _ in range(2)) - trip, 1e-9)


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
            ``auto``: the one that is fastest among those that all parties' policies allow, over the
            slowest link to a partner, which is measured first.
        link_mbps: The link in Mbit/s if ``auto`` is to reckon with another than it measures, as in
            a simulation of sites.
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
        link_mbps: float | None = None,
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
        self.link_mbps = link_mbps
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
