"""FedCVT: federated cross-view training (Kang, Liu, Liang, ACM TIST 13(4), 2022, arXiv 2008.10838).

Every party has two networks over its columns: u(·) for what only it knows and c(·) for what all
could know. For a person whom a party does not hold its [u; c] is estimated from the people whom
all hold, and a classifier over all views and one over each party's view learn together::

    active                                              passive k
      │ ── begin(held-out rows, settings) ─────────────► │   builds u_k and c_k
      │ for every batch of people whom all hold:         │
      │ ── forward(those, others it holds, unaligned) ─► │
      │ ◄───────────────────────────── [u_k; c_k] ────── │
      │    estimates missing views; an unaligned row     │
      │    whose classifiers agree and are sure gets     │
      │    their class                                   │
      │ ── backward(∂L/∂[u_k; c_k]) ───────────────────► │   a step of u_k and c_k
      │ after every epoch: embed(validation rows), keep or recall the best, checkpoint

The loss is that of the three classifiers, L_AB + L_A + L_B, and five terms with their weights:
λ1 L_diff^AB + λ2 L_diff^A + λ3 L_diff^B + λ4 L_sim^A + λ5 L_sim^B.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from interlace.errors import AlignmentError, DataError
from interlace.federation import Federation, Rows
from interlace.methods.base import (
    AboveZero,
    AtLeastZero,
    Count,
    EarlyStopping,
    Part,
    Share,
    Widths,
    check_is_of_classes,
)
from interlace.methods.bottom import WholeTableSide
from interlace.methods.kept import Kept
from interlace.methods.objective import ClassWeight
from interlace.methods.vertical.joint import CHUNK
from interlace.methods.vertical.missing import attend
from interlace.methods.vertical.split import Asked, Batch, SplitSide, SplitTraining
from interlace.models import BottomSpec, Optimisation, mlp, seed_for
from interlace.party import State

UNKNOWN = -1  # the label of a person who has none, and of whom the classifiers do not agree
UNSEEN = -2  # in place of their verdict: the row has not come up yet


class CrossViewSide(SplitSide, WholeTableSide):
    """What a passive party answers: as in split learning, for its unaligned rows too."""


@dataclass
class Drawn(Asked):
    """A batch with the people drawn beside it, as :meth:`FedCVT._batch` says."""

    rows: Tensor
    held: Tensor
    labels: Tensor
    others: list[tuple[str, Tensor]]


class FedCVT(SplitTraining):
    """FedCVT: learning from people with a missing view by estimating it, batch by batch.

    For classes, not for regression; for two to many parties with columns; tables and images. Each
    step takes people whom all hold, as many of the active party's others (with a label or not,
    held by some partners or none), and as many of each passive party's unaligned ones, or
    all if they are fewer.

    - A missing u_j is looked up by the views that there are (queries) among those of the people of
      the batch whom all hold (keys), whose u_j are the values; a missing c_j directly among the
      c_j of the batch. Weights are sharpened by ``temperature``. The authors look the latter up in
      a block of 5,000 rows redrawn at each step; keys from the batch itself, so that no further
      message is needed, are ours.
    - A person without a label counts as of a class when the classifiers over all views and over
      each single view, some of them estimated, all say so and are surer than their thresholds.
    - L_diff of a party compares its [u; c] with its estimate, for which a person does not see its
      own row (ours: else the estimate is the row itself). With three and more parties L_diff^AB is
      the mean over pairs; several views ask together, their u side by side and their c averaged
      (ours).

    ``kept_`` says by party on which of the rows without a label the classifiers agreed when they
    last came up, of those that came up at all. People whom some party does not hold are scored too:
    by the mean of the single-view classifiers of those that hold them.

    Args:
        epochs: Most passes over the people whom all hold.
        batch_size: People of each sort in a step.
        bottom: The network each party builds, twice; an own module is copied and begins anew.
        top: Widths of the joint classifier's hidden layers; () is the linear one of the authors'
            code. The others are linear.
        temperature: T of the sharpening w^(1/T) / Σ w^(1/T) of the attention's weights.
        joint_threshold: The joint classifier must be surer than this.
        single_threshold: So must the others.
        common_weight: λ1, of the distance between parties' c.
        estimate_weight: λ2 = λ3, of the distance between estimates and truth.
        apart_weight: λ4 = λ5, of ‖U Cᵀ‖_F / n, which keeps a party's u and c apart.
        optimisation: Learning rate, weight decay and schedule.
        class_weight: ``balanced``, a weight by class number, or ``None``.
        validation: Share of the people whom all hold, kept aside to choose the best epoch.
        patience: Stop after that many epochs without a better validation loss; ``None`` never.

    Temperature, thresholds and weights are those of the authors' code, which has a threshold for
    each classifier (0.7, 0.7, 0.6); their results could not be read.
    """

    side = CrossViewSide
    protocol = "fedcvt"
    scores_some = True
    views = 2

    def __init__(
        self,
        *,
        epochs: Count = 200,
        batch_size: Count = 32,
        bottom: BottomSpec = BottomSpec(),
        top: Widths = (64,),
        temperature: AboveZero = 0.1,
        joint_threshold: Part = 0.7,
        single_threshold: Part = 0.6,
        common_weight: AtLeastZero = 0.1,
        estimate_weight: AtLeastZero = 0.1,
        apart_weight: AtLeastZero = 0.01,
        optimisation: Optimisation = Optimisation(),
        class_weight: ClassWeight = None,
        validation: Share = 0.1,
        patience: Count | None = 20,
    ) -> None:
        self.epochs = epochs
        self.batch_size = batch_size
        self.bottom = bottom
        self.top = top
        self.temperature = temperature
        self.joint_threshold = joint_threshold
        self.single_threshold = single_threshold
        self.common_weight = common_weight
        self.estimate_weight = estimate_weight
        self.apart_weight = apart_weight
        self.optimisation = optimisation
        self.class_weight = class_weight
        self.validation = validation
        self.patience = patience

    def _build_top(self, widths: Sequence[int], outputs: int) -> nn.Module:
        if len(widths) < 2 or len(set(widths)) > 1 or widths[0] % 2:
            raise DataError(
                "cross-view training compares the parties' representations, so it takes two or "
                f"more parties with columns and networks of one width; theirs are {list(widths)}",
                way_out="Give every party a bottom network of the same width.",
            )
        return CrossViewClassifiers(widths, self.top, outputs)

    def _people(self, federation: Federation) -> Federation:
        """The labelled people whom all hold, and beside them the active party's others.

        Raises:
            JobError: the label is not a class.
        """
        check_is_of_classes(federation.label_plan, "FedCVT lets classifiers agree on a class")
        people = super()._people(federation)
        others = np.setdiff1d(federation.rows, np.union1d(people.rows, federation.held_out))
        if not federation.active.columns:
            others = others[federation.alignment.holders[others].any(1)]
        self._others = federation.view(others)
        self._other_labels = self._others.y
        return people

    def _begin_epoch(self, fed: Federation, epoch: int) -> None:
        seed = seed_for(fed.seed, "others", epoch)
        self._generator = torch.Generator().manual_seed(seed)

    def _start(self, fed: Federation) -> None:
        super()._start(fed)
        rows = {n: fed.alignment.report.people[n] for n in self.peers_}
        rows[fed.active.name] = len(fed.active)
        self.verdicts_ = {name: torch.full((n,), UNSEEN) for name, n in rows.items()}

    @property
    def kept_(self) -> dict[str, Kept]:
        """What the classifiers agreed on, by party."""
        return {
            name: Kept(int((said != UNSEEN).sum()), rows := (said >= 0).nonzero()[:, 0], said[rows])
            for name, said in self.verdicts_.items()
        }

    # -- one batch ----------------------------------------------------------------------------

    def _ask(self, fed: Federation, batch: Batch) -> Asked:
        asked, own, held, labels, others = self._batch(fed, batch)
        return Drawn(batch, asked, self._start_forward(fed, asked), own, held, labels, others)

    def _losses(self, fed: Federation, asked: Asked) -> tuple[Tensor, Tensor]:
        assert isinstance(asked, Drawn)
        cuts = self._cuts(asked, asked.rows)
        views = [
            torch.zeros(len(asked.held), h.shape[1]).index_copy(0, here.nonzero()[:, 0], h)
            for h, here in zip(cuts, asked.held.T, strict=True)
        ]
        start = len(asked.batch.y)
        loss, supervised, agreed = self._loss(views, asked.held, asked.labels, start)
        for name, rows in asked.others:
            stretch = slice(start, start + len(rows))
            without = asked.labels[stretch] == UNKNOWN
            self.verdicts_[name][rows[without]] = agreed[stretch][without]
            start += len(rows)
        return loss, supervised

    def _batch(
        self, fed: Federation, batch: Batch
    ) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor, list[tuple[str, Tensor]]]:
        """People whom all hold, then the active party's others, then each passive party's.

        Returns:
            The positions to ask each partner for, the active party's own rows, who holds whom
            (n, parties), labels (n,), -1 where there is none, and whose rows the others are: rows
            of the active party, positions at a passive one.
        """
        draw = self._generator
        n, parties = len(batch.y), len(self.peers_) + (self.own_ is not None)
        some = _draw(len(self._others.rows), n, draw)
        rows = self._others.rows[some.numpy()]
        held = [torch.ones(n, parties, dtype=torch.bool), self._held(fed, rows)]
        labels = [batch.y, self._other_labels[some]]
        drawn = [(fed.active.name, torch.from_numpy(rows))]
        asked = {}
        for k, (name, here) in enumerate(zip(self.peers_, held[1].T, strict=False)):
            shared = len(fed.alignment.pairs[name])
            others = fed.alignment.report.people[name] - shared
            theirs = shared + _draw(others, n, draw)
            where = fed.positions(name, rows[here.numpy()])
            asked[name] = torch.cat([batch.positions[name], where, theirs])
            only = torch.zeros(len(theirs), parties, dtype=torch.bool)
            only[:, k] = True
            held.append(only)
            labels.append(torch.full((len(theirs),), UNKNOWN))
            drawn.append((name, theirs))
        own_rows = torch.cat([batch.own, torch.from_numpy(rows)])
        return asked, own_rows, torch.cat(held), torch.cat(labels), drawn

    def _loss(
        self, views: list[Tensor], held: Tensor, labels: Tensor, whole: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The loss, its part L_AB, and the classes (n,) that the classifiers agree on; the first
        ``whole`` people are held by all."""
        us, cs = zip(*(view.chunk(2, 1) for view in views), strict=True)
        full = self._complete(us, cs, held, whole)
        joint = self.top_(full)
        singles = self._classifiers.each(full)
        agreed = self._agreed(joint.detach(), [s.detach() for s in singles])
        known = labels != UNKNOWN
        target = torch.where(known, labels, agreed)
        counts = target != UNKNOWN
        supervised = self.objective_.loss(joint[counts], target[counts])
        loss = supervised
        for single, here in zip(singles, held.T, strict=True):
            loss = loss + self.objective_.loss(single[known & here], labels[known & here])
        pairs = list(combinations([c[:whole] for c in cs], 2))
        alike = torch.stack([F.mse_loss(one, other) for one, other in pairs]).mean()
        loss = loss + self.common_weight * alike
        if whole > 1:
            for j, view in enumerate(views):
                estimate = self._estimate_known(us, cs, held, whole, j)
                loss = loss + self.estimate_weight * F.mse_loss(estimate, view[:whole])
        for u, c, here in zip(us, cs, held.T, strict=True):
            apart = torch.linalg.matrix_norm(u[here] @ c[here].T) / here.sum()
            loss = loss + self.apart_weight * apart
        return loss, supervised.detach(), agreed

    def _complete(
        self, us: Sequence[Tensor], cs: Sequence[Tensor], held: Tensor, whole: int
    ) -> list[Tensor]:
        """[u; c] of every party for everybody, estimated where it holds nothing."""
        full_u, full_c = list(us), list(cs)
        for pattern in torch.unique(held[whole:], dim=0):
            asking = ((held == pattern).all(1)).nonzero()[:, 0]
            present = pattern.nonzero()[:, 0].tolist()
            for j in (~pattern).nonzero()[:, 0].tolist():
                u, c = self._estimate(us, cs, asking, present, whole, j, cs[j][held[:, j]], None)
                full_u[j] = full_u[j].index_copy(0, asking, u)
                full_c[j] = full_c[j].index_copy(0, asking, c)
        return [torch.cat(pair, 1) for pair in zip(full_u, full_c, strict=True)]

    def _estimate_known(
        self, us: Sequence[Tensor], cs: Sequence[Tensor], held: Tensor, whole: int, j: int
    ) -> Tensor:
        """Party j's [u; c] of the people whom all hold, as if it did not hold them."""
        asking = torch.arange(whole)
        present = [k for k in range(len(us)) if k != j]
        # Those held by all come first, so a person's own place among j's rows is its number.
        block = cs[j][held[:, j]]
        return torch.cat(self._estimate(us, cs, asking, present, whole, j, block, asking), 1)

    def _estimate(
        self,
        us: Sequence[Tensor],
        cs: Sequence[Tensor],
        asking: Tensor,
        present: list[int],
        whole: int,
        j: int,
        block: Tensor,
        but: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """û_j = Att(u, U_aligned, U^j_aligned) and ĉ_j = Att(c, C^j, C^j) for people ``asking``."""
        side_by_side = torch.cat([us[k] for k in present], 1)
        u = attend(
            side_by_side[asking],
            side_by_side[:whole],
            us[j][:whole],
            temperature=self.temperature,
            but=but,
        )
        common = torch.stack([cs[k][asking] for k in present]).mean(0)
        c = attend(common, block, block, temperature=self.temperature, but=but)
        return u, c

    def _agreed(self, joint: Tensor, singles: list[Tensor]) -> Tensor:
        """The class (n,) that all classifiers name with enough confidence, or -1."""
        sure, says = joint.softmax(1).max(1)
        kept = sure > self.joint_threshold
        for single in singles:
            sure, also = single.softmax(1).max(1)
            kept &= (also == says) & (sure > self.single_threshold)
        return torch.where(kept, says, torch.tensor(UNKNOWN))

    # -- predicting and keeping ----------------------------------------------------------------

    def _logits(self, fed: Federation, rows: Rows) -> Tensor:
        held = self._held(fed, rows)
        whole = held.all(1)
        if bool(whole.all()):
            return super()._logits(fed, rows)
        out = torch.empty(len(rows), self.objective_.outputs)
        if bool(whole.any()):
            out[whole] = super()._logits(fed, rows[whole.numpy()])
        out[~whole] = self._without_some(fed, rows[~whole.numpy()], held[~whole])
        return out

    def _without_some(self, fed: Federation, rows: Rows, held: Tensor) -> Tensor:
        """Logarithms of the mean probabilities by the single-view classifiers of the holders."""
        nowhere = int((~held.any(1)).sum())
        if nowhere:
            raise AlignmentError(f"{nowhere:,} people are held by no party with columns")
        out = []
        for start in range(0, len(rows), CHUNK):
            here = held[start : start + CHUNK]
            views = self._views(fed, rows[start : start + CHUNK])
            total = torch.zeros(len(here), self.objective_.outputs)
            with torch.no_grad():
                for single, view, mine in zip(
                    self._classifiers.singles, views, here.T, strict=True
                ):
                    total[mine] += single(view[mine]).softmax(1)
            out.append((total / here.sum(1, keepdim=True)).log())
        return torch.cat(out)

    @property
    def _classifiers(self) -> CrossViewClassifiers:
        assert isinstance(self.top_, CrossViewClassifiers)
        return self.top_

    def _state(self, stopping: EarlyStopping) -> State:
        state = super()._state(stopping)
        state.put("verdicts", self.verdicts_)
        return state

    def _take(self, state: State) -> None:
        super()._take(state)
        self.verdicts_ = state.part("verdicts").tensors


class CrossViewClassifiers(nn.Module):
    """f over all parties' [u; c] side by side, and an f_k over each party's alone."""

    def __init__(self, widths: Sequence[int], hidden: Sequence[int], outputs: int) -> None:
        super().__init__()
        self.joint = mlp(sum(widths), hidden, outputs)
        self.singles = nn.ModuleList(nn.Linear(width, outputs) for width in widths)

    def forward(self, cuts: list[Tensor]) -> Tensor:
        """The joint classifier's logits (n, outputs)."""
        out: Tensor = self.joint(torch.cat(cuts, 1))
        return out

    def each(self, cuts: list[Tensor]) -> list[Tensor]:
        """Every party's classifier's logits."""
        return [single(cut) for single, cut in zip(self.singles, cuts, strict=True)]


def _draw(people: int, most: int, generator: torch.Generator) -> Tensor:
    """Some of so many people; of few, nobody twice, since a partner refuses to be asked for more
    rows at once than it has."""
    if people <= 4 * most:
        return torch.randperm(people, generator=generator)[:most]
    return torch.randint(people, (most,), generator=generator)
