"""Proto-EVFL (reconstruction), after Guo et al., "Proto-EVFL: Enhanced Vertical Federated Learning
via Dual Prototype with Extremely Unaligned Data", arXiv 2507.22488.

Only the abstract and a lecture's account of the paper were at hand. They fix the ideas: class
prototypes at every party, selection of unaligned rows by a two-way conditional transport cost
under class priors, priors mixed from local and global ones, gated aggregation, two levels of
optimisation. The equations here are ours, those of the transport after its ancestor PCT (Tanwisuth
et al., NeurIPS 2021). Do not take its figures for the paper's::

    active                                         passive m
      │ ── begin(held-out rows, settings) ──────────► │   builds f_m, scales its columns
      │ ◄───────────────────────── width of h_m ───── │
      │ ── unlabelled(shared rows without a label) ─► │   learns from them as from unaligned ones
      │ for every epoch:                              │
      │ ── embed(rows) ─────────────────────────────► │
      │ ◄──────────────────────────────── h_m ─────── │   class means of h_m and of the gated sum
      │ ── guide(prototypes, global prior, settings)► │   selects unaligned rows, learns from them
      │ ◄── how many of them it expects a class ───── │   → the next global prior
      │   for every batch:                            │
      │ ── forward(rows) ───────────────────────────► │
      │ ◄──────────────────────────────── h_m ─────── │   gated ensemble, loss
      │ ── backward(∂L/∂h_m) ───────────────────────► │   θ_m ← θ_m − η ∂L/∂θ_m
      │ after every epoch: embed(validation rows), keep or recall the best, checkpoint

No label of a person travels; prototypes tell a partner where the classes' means lie in its own
space, and gradients what they tell in split learning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn
from torch.nn import functional as F

from interlace.boundary.kinds import ClassPrior, Control, Prototype, RowSelection
from interlace.errors import AlignmentError, JobError, Refused
from interlace.federation import Federation, Rows
from interlace.methods.base import (
    AboveZero,
    Count,
    EarlyStopping,
    Natural,
    OnEpoch,
    Part,
    Several,
    Share,
    Widths,
    batches,
    check_is_of_classes,
    keep_aside,
    shuffled,
    usual_batch,
)
from interlace.methods.bottom import Bottom
from interlace.methods.kept import Kept, kept_from, kept_state
from interlace.methods.objective import ClassWeight, Objective
from interlace.methods.vertical.joint import CHUNK, JointModel
from interlace.methods.vertical.pretrained import known_to_partners
from interlace.methods.vertical.split import SplitSide
from interlace.models import BottomSpec, Optimisation, mlp, seed_for
from interlace.party import State, operation

UPPER_EVERY = 5  # steps of the bottom models and classifiers to each step of the gates


# -- prototypes, priors and transport -------------------------------------------------------------


def class_means(h: Tensor, y: Tensor, classes: int) -> Tensor:
    """Prototypes μ_z, the mean of the embeddings of each class.

    Args:
        h: (n, d); rows of NaN are people of whom there is no view.
        y: (n,), classes.
        classes: How many there are.

    Returns:
        (classes, d); a row of zeros for a class of which there is nobody.
    """
    held = ~h.isnan().any(1)
    member = F.one_hot(y[held], classes).to(h.dtype)
    return member.T @ h[held] / member.sum(0).clamp_min(1)[:, None]


def mixed_prior(local: Tensor, everywhere: Tensor, share: float = 0.5) -> Tensor:
    """share · local + (1 − share) · global class frequencies, (classes,)."""
    return share * local + (1 - share) * everywhere


def likeness(h: Tensor, prototypes: Tensor, balance: float = 0.5) -> Tensor:
    """How like each prototype an embedding is, from −1 to 1.

    The dual prototypes of a class are a local one (of the party) and a global one (of the gated
    sum); the two cosines are mixed by ``balance``. Cosines are taken as seen from the mean of the
    prototypes, since embeddings that share an offset all point one way (ours).

    Args:
        h: (n, d).
        prototypes: (2, classes, d), local and global; a row of zeros is none.
        balance: Weight ρ of the local one, where a class has both.

    Returns:
        (n, classes); NaN for a class that has no prototype.
    """
    total: Tensor | float = 0.0
    weight: Tensor | float = 0.0
    for mine, share in zip(prototypes, (balance, 1 - balance), strict=True):
        there = (mine != 0).any(1)
        if not bool(there.any()):
            continue
        centre = mine[there].mean(0)
        cosine = F.normalize(h - centre) @ F.normalize(mine - centre).T
        total = total + share * there * cosine
        weight = weight + share * there
    return total / torch.as_tensor(weight).expand(prototypes.shape[1])


def forward_plan(scores: Tensor, prior: Tensor, temperature: float) -> Tensor:
    """From a feature to the prototypes: A_jk ∝ π_k exp(s_jk / τ), (n, classes); rows sum to 1."""
    return (scores / temperature + (prior + 1e-6).log()).softmax(1)


def backward_plan(scores: Tensor, temperature: float) -> Tensor:
    """From a prototype to the features: B_jk ∝ exp(s_jk / τ), (n, classes); columns sum to 1."""
    return (scores / temperature).softmax(0)


def transport_cost(scores: Tensor, prior: Tensor, temperature: float) -> Tensor:
    """The two-way cost ½ mean_j Σ_k A_jk c_jk + ½ Σ_k π_k Σ_j B_jk c_jk with c = 1 − s.

    The first term moves features to prototypes; by the second every prototype, of a rare class
    too, claims some features.
    """
    cost = 1 - scores
    there = (forward_plan(scores, prior, temperature) * cost).sum(1).mean()
    back = (prior * (backward_plan(scores, temperature) * cost).sum(0)).sum()
    return (there + back) / 2


def select(guess: Tensor, cost: Tensor, prior: Tensor, share: float) -> Tensor:
    """Rows to trust: in each guessed class the cheapest, up to a quota that is larger for a rarer
    class.

    Of n rows about ``share`` · n are to be kept, divided among the classes in proportion to 1/π_k;
    a class that was guessed at all keeps at least one.

    Args:
        guess: (n,), classes.
        cost: (n,), expected cost of each row.
        prior: (classes,).
        share: From 0 to 1.

    Returns:
        Positions, rising.
    """
    inverse = 1 / (prior + 1e-6)
    quota = (share * len(guess) * inverse / inverse.sum()).round().clamp_min(1)
    kept = []
    for k in range(len(prior)):
        mine = (guess == k).nonzero()[:, 0]
        kept.append(mine[cost[mine].argsort(stable=True)[: int(quota[k])]])
    return torch.cat(kept).sort().values


def from_semantics(vectors: Tensor, prototypes: Tensor) -> Tensor:
    """Prototypes for classes that have none, by the least-squares map from what the classes mean.

    Args:
        vectors: (classes, a), one that describes each class.
        prototypes: (classes, d); a row of zeros is none.
    """
    there = (prototypes != 0).any(1)
    centre = prototypes[there].mean(0)
    middle = vectors[there].mean(0)
    linear = torch.linalg.lstsq(
        vectors[there] - middle, prototypes[there] - centre, driver="gelsd"
    ).solution
    guessed = (vectors - middle) @ linear + centre
    return torch.where(there[:, None], prototypes, guessed)


# -- a party's own learning ------------------------------------------------------------------------


class Guidance(BaseModel):
    """How a party learns from its unaligned rows in one epoch.

    Args:
        share: Of them to select.
        weight: λ, of their guessed classes against the transport cost.
        mixing: η, of the local prior in the mixed one.
        balance: ρ, of the local prototype in the dual ones.
        temperature: τ.
        rate: β, how fast the local prior follows what is seen.
        batch_size: Rows in a step.
        epoch: Counted from 0.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    share: Part
    weight: Part
    mixing: Part
    balance: Part
    temperature: AboveZero
    rate: Part
    batch_size: Several
    epoch: Natural


def learn_guided(
    bottom: Bottom,
    rows: Tensor,
    known: Tensor,
    local: Tensor,
    prototypes: Tensor,
    everywhere: Tensor,
    how: Guidance,
) -> tuple[Tensor, Kept]:
    """One epoch of a party's own learning.

    Args:
        bottom: Its bottom model.
        rows: Its unaligned rows, n of them.
        known: Their classes where known, else −1, (n,).
        local: Its prior, (classes,).
        prototypes: (2, classes, d), its own and the global ones.
        everywhere: The global prior, (classes,).
        how: Settings.

    Returns:
        Its new prior, and what it selected of the rows whose class is not known, as positions
        among ``rows``.
    """
    there = (prototypes != 0).any(2).any(0)
    others = (known < 0).nonzero()[:, 0]
    if not len(rows) or int(there.sum()) < 2:
        return local, Kept.nothing(len(others))
    duals = prototypes[:, there]
    prior = mixed_prior(local, everywhere, how.mixing)[there]
    prior = prior / prior.sum()
    number = torch.full((len(there),), -1)
    number[there] = torch.arange(int(there.sum()))
    labelled = known >= 0
    scores = likeness(bottom.embed(rows), duals, how.balance)
    plan = forward_plan(scores, prior, how.temperature)
    plan[labelled] = F.one_hot(number[known[labelled]], len(prior)).to(plan.dtype)
    guess = plan.argmax(1)
    expected = (plan * (1 - scores)).sum(1)
    selected = others[select(guess[others], expected[others], prior, how.share)]
    chosen = torch.cat([labelled.nonzero()[:, 0], selected])
    seed = seed_for(bottom.party.secret, "guided", how.epoch)
    draws = torch.Generator().manual_seed(seed)
    order = chosen[torch.randperm(len(chosen), generator=draws)]
    bottom.module.train()
    for batch in batches(len(order), how.batch_size):
        some = order[batch]
        with bottom.randomness.stream():
            h = bottom.module(bottom.x[rows[some]])
        s = likeness(h, duals, how.balance)
        named = F.cross_entropy(s / how.temperature + (prior + 1e-6).log(), guess[some])
        loss = transport_cost(s, prior, how.temperature) + how.weight * named
        if bottom.optimiser is not None:
            bottom.optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            bottom.optimiser.step()
    seen = torch.zeros_like(local)
    seen[there] = plan.mean(0)
    kept = Kept(len(others), selected, there.nonzero()[:, 0][guess[selected]])
    return (1 - how.rate) * local + how.rate * seen, kept


class ProtoSide(SplitSide):
    """What a passive party answers in Proto-EVFL. ``kept`` is what it selected in the last epoch,
    which it tells nobody."""

    prior: Tensor
    kept: Kept

    @operation
    def unlabelled(self, rows: RowSelection) -> None:
        """Shared people who have no label: to learn from as from unaligned rows."""
        self.others = torch.cat([self.mine(rows), self._unaligned])

    @operation
    def guide(self, prototypes: Prototype, prior: ClassPrior, settings: Control) -> ClassPrior:
        """Learn from unaligned rows; answer how many of them this party expects of each class."""
        classes = prior.shape[0]
        if prior.dim() != 1 or tuple(prototypes.shape) != (2, classes, self.bottom.width):
            raise Refused(
                f"prototypes of shape {tuple(prototypes.shape)} came with a prior of shape "
                f"{tuple(prior.shape)}, (2, classes, {self.bottom.width}) and (classes,) were due"
            )
        if bool((prior < 0).any()) or not 0.99 < float(prior.sum()) < 1.01:
            raise Refused("a class prior came whose shares are negative or do not sum to 1")
        rows = self.others
        local = getattr(self, "prior", torch.full((classes,), 1 / classes))
        how = Guidance.model_validate(settings)
        known = torch.full((len(rows),), -1)
        self.prior, kept = learn_guided(self.bottom, rows, known, local, prototypes, prior, how)
        position = torch.argsort(torch.cat([self._shared, self._unaligned]))
        self.kept = Kept(kept.of, position[rows[kept.rows]], kept.classes)
        return self.prior * len(rows)

    def _training(self) -> State:
        state, kept = super()._training(), kept_state({"own": self.kept})
        tensors = state.tensors | kept.tensors | {"prior": self.prior}
        return State(tensors, state.meta | kept.meta)

    def _go_on(self, state: State) -> None:
        super()._go_on(state)
        self.prior, self.kept = state.tensors["prior"], kept_from(state)["own"]

    def forget_people(self) -> None:
        """What was learnt stays; whom it was learnt from goes."""
        super().forget_people()
        for learnt_from in ("kept", "others"):
            self.__dict__.pop(learnt_from, None)


# -- the ensemble ----------------------------------------------------------------------------------


class GatedEnsemble(nn.Module):
    """Party classifiers and a joint one, combined by gates that know who is missing.

    g_m = softmax_m(w_m · tanh(V_m h_m)), −∞ before the softmax for a party without a view;
    H = Σ_m g_m h_m; logits = f(H) + Σ_m g_m f_m(h_m).

    Args:
        parties: How many.
        width: d, of every party's embedding.
        hidden: Widths of the hidden layers of f.
        outputs: Classes.
        dropout: Share of the hidden units of f left out in training.
    """

    def __init__(
        self, parties: int, width: int, hidden: Sequence[int], outputs: int, dropout: float
    ) -> None:
        super().__init__()
        self.gates = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 16), nn.Tanh(), nn.Linear(16, 1, bias=False))
            for _ in range(parties)
        )
        self.classifiers = nn.ModuleList(nn.Linear(width, outputs) for _ in range(parties))
        self.joint = mlp(width, hidden, outputs, dropout)
        self.register_buffer("prototypes", torch.zeros(parties, outputs, width))
        self.register_buffer("prior", torch.full((outputs,), 1 / outputs))
        self.register_buffer("unseen", torch.zeros(outputs, dtype=torch.bool))
        self.prototypes: Tensor
        self.prior: Tensor
        self.unseen: Tensor

    def weigh(self, views: list[Tensor]) -> Tensor:
        """Gates (n, parties); 0 for a party without a view, each row sums to 1."""
        held = torch.stack([~view.isnan().any(1) for view in views], 1)
        raw = [gate(view.nan_to_num(0)) for gate, view in zip(self.gates, views, strict=True)]
        return torch.cat(raw, 1).masked_fill(~held, -torch.inf).softmax(1)

    def gather(self, views: list[Tensor]) -> Tensor:
        """H (n, d), from each party's (n, d) with rows of NaN where it has no view."""
        gates = self.weigh(views)
        parts = [g[:, None] * v.nan_to_num(0) for g, v in zip(gates.T, views, strict=True)]
        return torch.stack(parts).sum(0)

    def alone(self, views: list[Tensor]) -> list[Tensor]:
        """What each party's classifier says, (n, outputs); meaningless where it has no view."""
        return [f(v.nan_to_num(0)) for f, v in zip(self.classifiers, views, strict=True)]

    def near(self, views: list[Tensor]) -> Tensor:
        """How like each class's prototypes a person is, (n, outputs): the mean over those parties
        that have a view of the person and a prototype of the class, weighed by their gates."""
        total = weight = torch.zeros(())
        for gate, view, mine in zip(self.weigh(views).T, views, self.prototypes, strict=True):
            there = gate[:, None] * (mine != 0).any(1)
            alike = likeness(view.nan_to_num(0), mine.expand(2, -1, -1)).nan_to_num(0)
            total, weight = total + there * alike, weight + there
        return torch.where(weight > 0, total / weight.clamp_min(1e-9), -torch.ones(()))

    def forward(self, views: list[Tensor]) -> Tensor:
        """Logits (n, outputs)."""
        gates = self.weigh(views)
        each = [g[:, None] * logits for g, logits in zip(gates.T, self.alone(views), strict=True)]
        out: Tensor = self.joint(self.gather(views)) + torch.stack(each).sum(0)
        return out


class ProtoEVFL(JointModel):
    """Proto-EVFL (reconstruction): prototypes guide how each party learns from its unaligned rows,
    and a gated ensemble of party classifiers names the class.

    For classes, not for regression. Works for two to many parties, tables and images, with columns
    at the active party or without; all embeddings have one width. A person whom some parties do not
    hold is learnt from, and scored, through the views there are.

    A class that no labelled person in the joint training has (zero-shot) enters by its prototype:
    from the active party's people whom no partner holds, if it has such people with a label of that
    class, or else from ``semantics``. Prototypes then say how likely a person is of an unseen
    class, and the ensemble divides the rest among the seen ones.

    ``kept_`` has the active party's selection in the last epoch; what a partner selects it tells
    nobody, and has as ``kept`` at its own side.

    Args:
        epochs: Most passes over the labelled people.
        batch_size: People in one message, and rows in a step of a party's own; ``None`` takes 16 to
            256 by how many labelled people there are.
        share: Share of the unaligned rows selected in the first and in the last epoch.
        mixing: η, weight of a party's own prior against the global one.
        balance: ρ, weight of a party's own prototype against the global one.
        temperature: τ of the transport plans, for cosines.
        prior_rate: β, how fast a party's prior follows what it sees.
        semantics: For every class of the label a vector that describes it, from which a prototype
            is guessed for a class that nobody has seen; ``None``: every class must be seen.
        bottom: The network each party builds, unless it brings its own.
        top: Widths of the hidden layers of the joint classifier.
        dropout: Share of these left out in training.
        optimisation: Learning rate, weight decay and schedule.
        class_weight: ``balanced``, a weight by class number, or ``None``.
        validation: Share of the labelled people kept aside, for the gates and to choose the best
            epoch.
        patience: Stop after that many epochs without a better validation loss; ``None`` never.

    All defaults are ours. So is the second level of optimisation: in every fifth step the gates
    learn, from the people kept aside (from the others, if none are), as of the epoch's beginning.
    """

    side = ProtoSide
    protocol = "proto-evfl"
    scores_some = True
    top_: GatedEnsemble

    def __init__(
        self,
        *,
        epochs: Count = 100,
        batch_size: Several | None = None,
        share: tuple[Part, Part] = (0.1, 0.5),
        mixing: Part = 0.5,
        balance: Part = 0.5,
        temperature: AboveZero = 0.1,
        prior_rate: Part = 0.1,
        semantics: Mapping[Any, Sequence[float]] | None = None,
        bottom: BottomSpec = BottomSpec(),
        top: Widths = (64,),
        dropout: Share = 0.0,
        optimisation: Optimisation = Optimisation(),
        class_weight: ClassWeight = None,
        validation: Share = 0.1,
        patience: Count | None = 10,
    ) -> None:
        self.epochs = epochs
        self.batch_size = batch_size
        self.share = share
        self.mixing = mixing
        self.balance = balance
        self.temperature = temperature
        self.prior_rate = prior_rate
        self.semantics = semantics
        self.bottom = bottom
        self.top = top
        self.dropout = dropout
        self.optimisation = optimisation
        self.class_weight = class_weight
        self.validation = validation
        self.patience = patience

    def _build_top(self, widths: Sequence[int], outputs: int) -> GatedEnsemble:
        if len(set(widths)) > 1:
            raise JobError(
                "Proto-EVFL adds the parties' embeddings up, so they need one width; "
                f"they have {', '.join(map(str, widths))}"
            )
        return GatedEnsemble(len(widths), widths[0], self.top, outputs, self.dropout)

    def _objective(self, fed: Federation) -> Objective:
        """The loss over all classes that the active party's people have, aligned or not.

        Raises:
            JobError: the label is not a class, or ``semantics`` lacks one.
            DataError: nobody has a class, and no vector describes it.
        """
        plan = fed.label_plan
        check_is_of_classes(plan, "Proto-EVFL has a prototype for each class")
        y = torch.cat([fed.y, self._others[1][self._others[1] >= 0]])
        if self.semantics is None:
            return Objective.fit(plan, y, self.class_weight)
        missing = [c for c in plan.classes if c not in self.semantics]
        if missing:
            raise JobError(
                f"`semantics` describes {len(plan.classes) - len(missing)} of the "
                f"{len(plan.classes)} classes; every class needs a vector"
            )
        seen = torch.arange(len(plan.classes))  # one of each, so that the loss covers all
        return Objective.fit(plan, torch.cat([y, seen]), self.class_weight)

    # -- learning -----------------------------------------------------------------------------

    def fit(
        self,
        federation: Federation,
        *,
        checkpoint: str | None = None,
        on_epoch: OnEpoch | None = None,
    ) -> Self:
        """Learn from the labelled people whom a partner holds and from everybody's unaligned rows;
        see :meth:`Method.fit`."""
        fed = known_to_partners(federation)
        shared = federation.shared(partial=True).rows
        nameless = np.setdiff1d(shared, np.union1d(fed.rows, fed.held_out))
        self._others = self._unaligned(federation, nameless)
        self._start(fed)
        for name, peer in self.peers_.items():
            where = torch.from_numpy(fed.alignment.position(name)[nameless])
            peer.post(ProtoSide.unlabelled, where[where >= 0])
        y = fed.y
        train, aside = keep_aside(len(y), self.validation, fed.seed, y)
        people = torch.cat([train, aside])
        upper = torch.arange(len(train) if len(aside) else 0, len(people))
        classes = torch.bincount(y, minlength=self.objective_.outputs)
        self.top_.unseen.copy_(classes == 0)
        self.top_.prior.copy_(classes / classes.sum())
        self.prior_ = torch.full((len(classes),), 1 / len(classes))
        self.kept_: dict[str, Kept] = {}
        size = self.batch_size or usual_batch(len(train))

        def learn(epoch: int) -> float:
            views = self._views(fed, fed.rows[people.numpy()])
            self._guide(fed, [view[: len(train)] for view in views], y[train], epoch, size)
            order = train[shuffled(len(train), fed.seed, epoch)]
            total = torch.zeros(())
            for step, batch in enumerate(batches(len(order), size)):
                some = order[batch]
                total += self._lower(fed, fed.rows[some.numpy()], y[some]) * len(some)
                if step % UPPER_EVERY == 0:
                    draws = seed_for(fed.seed, "upper", epoch)
                    some = upper[shuffled(len(upper), draws, step)[:size]]
                    self._upper([view[some] for view in views], y[people[some]])
            return total.item() / len(train)

        self._in_epochs(fed, learn, fed.view(fed.rows[aside.numpy()]), checkpoint, on_epoch)
        if bool(self.top_.unseen.any()):
            # Prototypes alone name an unseen class: they are those of the finished model.
            self._prototypes(fed, self._views(fed, fed.rows[train.numpy()]), y[train])
        del self._others
        return self

    def _unaligned(self, fed: Federation, nameless: Rows) -> tuple[Tensor, Tensor]:
        """Rows of the active party's people whom no partner holds or who have no label, and their
        classes or −1."""
        alone = fed.rows[~fed.alignment.holders[fed.rows].any(1)]
        rows = np.union1d(np.setdiff1d(alone, fed.held_out), nameless)
        if not fed.active.columns or fed.label_plan.task not in ("binary", "multiclass"):
            rows = rows[:0]
        return torch.from_numpy(rows), fed.view(rows).y

    def _prototypes(self, fed: Federation, views: list[Tensor], y: Tensor) -> list[Tensor]:
        """Dual prototypes (2, classes, d) for each party."""
        rows, known = self._others
        labelled = known >= 0
        if self.own_ is not None and bool(labelled.any()):
            gap = torch.full((int(labelled.sum()), views[0].shape[1]), torch.nan)
            more = [gap] * len(self.peers_) + [self.own_.embed(rows[labelled])]
            views = [torch.cat(both) for both in zip(views, more, strict=True)]
            y = torch.cat([y, known[labelled]])
        self.top_.eval()
        with torch.no_grad():
            means = [
                class_means(h, y, len(self.top_.prior)) for h in (*views, self.top_.gather(views))
            ]
        if self.semantics is not None:
            vectors = torch.tensor([list(self.semantics[c]) for c in self.label_plan_.classes])
            means = [from_semantics(vectors.float(), mean) for mean in means]
        self.top_.prototypes.copy_(torch.stack(means[:-1]))
        return [torch.stack([mine, means[-1]]) for mine in means[:-1]]

    def _guide(
        self, fed: Federation, views: list[Tensor], y: Tensor, epoch: int, size: int
    ) -> None:
        """Every party learns from its unaligned rows; then the global prior is formed anew."""
        duals = self._prototypes(fed, views, y)
        progress = epoch / max(1, self.epochs - 1)
        how = Guidance(
            share=self.share[0] + (self.share[1] - self.share[0]) * progress,
            weight=progress,
            mixing=self.mixing,
            balance=self.balance,
            temperature=self.temperature,
            rate=self.prior_rate,
            batch_size=size,
            epoch=epoch,
        )
        prior = self.top_.prior.clone()
        count = torch.bincount(y, minlength=len(prior)).float()
        told = how.model_dump(mode="json")
        answers = {
            name: peer.start(ProtoSide.guide, mine, prior, told)
            for (name, peer), mine in zip(self.peers_.items(), duals, strict=False)
        }
        rows, known = self._others
        if self.own_ is not None:
            self.prior_, kept = learn_guided(
                self.own_, rows, known, self.prior_, duals[-1], prior, how
            )
            self.kept_ = {fed.active.name: Kept(kept.of, rows[kept.rows], kept.classes)}
        for name, answer in answers.items():
            expected = answer()
            if expected.shape != prior.shape or bool((expected < 0).any()):
                raise Refused(f"party '{name}' answered with no count of {len(prior)} classes")
            count += expected
        if self.own_ is not None:
            count += self.prior_ * len(rows)
        self.top_.prior.copy_(count / count.sum())

    def _lower(self, fed: Federation, rows: Rows, y: Tensor) -> Tensor:
        """One batch: bottom models and classifiers learn, the gates stay."""
        boundary = fed.active.boundary
        boundary.round += 1
        cuts: dict[str, tuple[Tensor, Tensor]] = {}
        views = []
        where = {n: torch.from_numpy(fed.alignment.position(n)[rows]) for n in self.peers_}
        held_by = {name: places >= 0 for name, places in where.items()}
        answers = {
            name: self.peers_[name].start(SplitSide.forward, where[name][held])
            for name, held in held_by.items()
            if bool(held.any())
        }
        for name, held in held_by.items():
            view = torch.full((len(rows), self.widths_[name]), torch.nan)
            if name in answers:
                cut = self._expect(name, answers[name](), int(held.sum()))
                cut = cut.detach().requires_grad_()
                cuts[name] = where[name][held], cut
                view = view.index_put((held.nonzero()[:, 0],), cut)
            views.append(view)
        if self.own_ is not None:
            views.append(self.own_.forward(torch.from_numpy(rows)))
        self.top_.train()
        with self.randomness_.stream():
            loss = self.objective_.loss(self.top_(views), y)
        alone = [
            self.objective_.loss(logits[held], y[held])
            for view, logits in zip(views, self.top_.alone(views), strict=True)
            if bool((held := ~view.isnan().any(1)).any())
        ]
        self._step(loss + torch.stack(alone).mean(), gates=False)
        for name, (places, cut) in cuts.items():
            assert cut.grad is not None
            boundary.about(places)
            self.peers_[name].post(SplitSide.backward, cut.grad)
        return loss.detach()

    def _upper(self, views: list[Tensor], y: Tensor) -> None:
        """The gates learn, and nothing else does."""
        self.top_.eval()
        self._step(self.objective_.loss(self.top_(views), y), gates=True)

    def _step(self, loss: Tensor, gates: bool) -> None:
        own = self.own_.optimiser if self.own_ is not None and not gates else None
        optimisers = [o for o in (own, self.optimiser_) if o is not None]
        for optimiser in optimisers:
            optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        for name, parameter in self.top_.named_parameters():
            if name.startswith("gates.") is not gates:
                parameter.grad = None
        for optimiser in optimisers:
            optimiser.step()

    # -- predicting ---------------------------------------------------------------------------

    def gates(self, federation: Federation) -> Tensor:
        """How much each party counts for each person of a view, (n, parties): partners in their
        order, the active party last if it has columns."""
        self.top_.eval()
        with torch.no_grad():
            return self.top_.weigh(self._views(federation, federation.rows))

    def _judged(self, aside: Federation) -> Tensor:
        return self._raw(aside, aside.rows)

    def _raw(self, fed: Federation, rows: Rows) -> Tensor:
        """What the ensemble says."""
        self.top_.eval()
        with torch.no_grad():
            parts = [rows[i : i + CHUNK] for i in range(0, len(rows), CHUNK)]
            said: list[Tensor] = [self.top_(self._views(fed, part)) for part in parts]
        return torch.cat(said)

    def _logits(self, fed: Federation, rows: Rows) -> Tensor:
        nobody = 0 if self.own_ is not None else int((~fed.alignment.holders[rows].any(1)).sum())
        if nobody:
            raise AlignmentError(f"{nobody:,} of {len(rows):,} people are held by no party")
        if not bool(self.top_.unseen.any()):
            return self._raw(fed, rows)
        out = []
        self.top_.eval()
        for start in range(0, len(rows), CHUNK):
            views = self._views(fed, rows[start : start + CHUNK])
            with torch.no_grad():
                named, near = self.top_(views), self.top_.near(views)
            out.append(with_unseen(named, near, self.top_.unseen, self.temperature))
        return torch.cat(out)

    # -- keeping ------------------------------------------------------------------------------

    def _state(self, stopping: EarlyStopping) -> State:
        state, kept = super()._state(stopping), kept_state(self.kept_)
        return State(state.tensors | kept.tensors | {"prior": self.prior_}, state.meta | kept.meta)

    def _take(self, state: State) -> None:
        super()._take(state)
        self.prior_, self.kept_ = state.tensors["prior"], kept_from(state)


def with_unseen(named: Tensor, near: Tensor, unseen: Tensor, temperature: float) -> Tensor:
    """Log-probabilities of all classes: unseen ones by the prototypes, the rest by the ensemble.

    The prototypes speak without a prior: how frequent an unseen class is nobody could count.

    Args:
        named: The ensemble's logits, (n, classes).
        near: Likeness to the prototypes, (n, classes).
        unseen: Which classes are, (classes,), bool.
        temperature: τ.
    """
    by_prototype = (near / temperature).log_softmax(1)
    rest = by_prototype[:, ~unseen].logsumexp(1, keepdim=True)
    seen = named.masked_fill(unseen, -torch.inf).log_softmax(1) + rest
    return torch.where(unseen, by_prototype, seen)
