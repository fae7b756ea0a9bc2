"""Mixed geometry: several banks with the same columns, each sharing people with one shop.

Among the banks the cut is horizontal: they agree on one scaling and one bottom model. Between a
bank and the shop it is vertical: they match their people, and the bank's embeddings meet the shop's
columns and labels in the top model. A round::

    shop                                              bank k
      │ for every batch of the people shared with k:
      │ ── forward(rows) ───────────────────────────► │
      │ ◄────────────────────────────────────── h_k ── │   by k's copy of the one bottom model
      │ ── backward(∂L/∂h_k) ───────────────────────► │
      │ then, from every bank:
      │ ── weights() ───────────────────────────────► │
      │ ◄────────────────────────────────────── θ_k ── │
      │ ── take(Σ n_k θ_k / Σ n_k) ─────────────────► │

So each bank's people teach a model that all banks use, and no bank is matched with another. A
person whom several banks hold is learnt from at each, and scored by the mean of their logits.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import NotFittedError
from torch import Tensor, nn

from interlace.boundary.control import whole_number
from interlace.boundary.kinds import Control, Embedding, Gradient, ModelWeights, RowSelection
from interlace.data.labels import LabelPlan
from interlace.errors import AlignmentError, DataError, InterlaceError, Refused
from interlace.federation import Federation, Rows
from interlace.methods.base import (
    Clock,
    EarlyStopping,
    Epoch,
    Method,
    OnEpoch,
    batches,
    keep_aside,
    shuffled,
)
from interlace.methods.bottom import MOST_WIDTH, Bottom, BottomSettings, BottomSide
from interlace.methods.horizontal.local import load_vector, vector_of
from interlace.methods.horizontal.side import Agreement, Own, TableSide, meet
from interlace.methods.objective import ClassWeight, Objective
from interlace.models import BottomSpec, Optimisation, Randomness, mlp, seed_for, seeded
from interlace.party import Party, Peer, State, ask_all, operation, read_state, write_state

CHUNK = 8192  # people embedded in one message outside of training


class BankSide(BottomSide, TableSide):
    """What a bank answers: split learning with the shop, averaging with the other banks."""

    def __init__(self, party: Party, partner: str) -> None:
        TableSide.__init__(self, party, partner)

    @operation
    def leave_out(self, held_out: RowSelection) -> None:
        """These shared people have no say in how columns are scaled."""
        self.rows = np.setdiff1d(self.rows, self.mine(held_out).numpy())

    @operation
    def build(self, settings: Control) -> Control:
        """Build the bottom model over the agreed scaling."""
        self.bottom = Bottom(self.party, BottomSettings.model_validate(settings), self.plan)
        self.bottom.refuse_copies()
        return {"width": self.bottom.width}

    @operation
    def forward(self, rows: RowSelection) -> Embedding:
        """Embeddings of a batch, in training."""
        mine = self.mine(rows)
        self.party.boundary.about(mine)
        return self.bottom.forward(mine).detach()

    @operation
    def backward(self, gradient: Gradient) -> None:
        """Learn from the gradient at the cut, for the batch embedded last."""
        self.bottom.backward(gradient)

    @operation
    def weights(self) -> ModelWeights:
        """The bottom model as it is now; (1, d)."""
        self.party.boundary.about(torch.zeros(1, dtype=torch.int64))  # one row: this bank
        return vector_of(self.bottom.module)[None]

    @operation
    def take(self, weights: ModelWeights) -> None:
        """The mean of all banks' bottom models; (d,)."""
        size = len(vector_of(self.bottom.module))
        if weights.shape != (size,):
            raise Refused(f"{size:,} weights were due at party '{self.party.name}'")
        load_vector(self.bottom.module, weights)


class MixedVFL(Method):
    """Split learning of one shop with several banks, whose bottom model is averaged.

    The active party (the shop) has the label, and columns or none. Every passive party (a bank) has
    the same columns; its policy must let ``model weights`` leave.

    Args:
        rounds: Most rounds: passes over each bank's shared people, each followed by an average.
        batch_size: People in one message.
        bottom: The network of the banks (one architecture) and of the shop's own columns.
        top: Widths of the top model's hidden layers, or an own module from joined embeddings to
            logits.
        optimisation: Learning rate and weight decay; the rate stays as it is.
        class_weight: ``balanced``, a weight by class number, or ``None``.
        validation: Share of the training people kept aside to choose the best round.
        patience: Stop after that many rounds without a better validation loss; ``None`` never.
        agreement: What the banks agree on about their tables.
    """

    partial: ClassVar[bool] = True

    def __init__(
        self,
        *,
        rounds: int = 30,
        batch_size: int = 256,
        bottom: BottomSpec = BottomSpec(),
        top: Sequence[int] | nn.Module = (64,),
        optimisation: Optimisation = Optimisation(),
        class_weight: ClassWeight = None,
        validation: float = 0.1,
        patience: int | None = 5,
        agreement: Agreement = Agreement(validation=0.0),
    ) -> None:
        self.rounds = rounds
        self.batch_size = batch_size
        self.bottom = bottom
        self.top = top
        self.optimisation = optimisation
        self.class_weight = class_weight
        self.validation = validation
        self.patience = patience
        self.agreement = agreement

    # -- learning -----------------------------------------------------------------------------

    def fit(
        self,
        federation: Federation,
        *,
        checkpoint: str | None = None,
        on_epoch: OnEpoch | None = None,
    ) -> Self:
        """Learn from the labelled people whom at least one bank holds. It keeps no checkpoint.

        Raises:
            DataError: the banks' columns differ; the message lists how.
            AlignmentError: no labelled person is shared.
        """
        fed = federation.view(np.setdiff1d(federation.rows, federation.held_out)).labelled()
        holders = fed.alignment.holders[fed.rows]
        fed = fed.view(fed.rows[holders.any(1)])
        if len(fed.rows) < 2:
            raise AlignmentError("no labelled people are shared with any of the banks")
        y = fed.y
        self._start(fed, federation.held_out, y)
        strata = y if self.objective_.task in ("binary", "multiclass") else None
        train, aside = keep_aside(len(y), self.validation, fed.seed, strata)
        shares = {}
        for name in self.peers_:
            where = fed.alignment.position(name)[fed.rows]
            shares[name] = train[torch.from_numpy(where[train.numpy()] >= 0)]
        stopping, clock = EarlyStopping(self.patience), Clock()
        for number in range(1, self.rounds + 1):
            fed.active.boundary.round = number
            loss = self._round(fed, shares, y, number)
            validation = None
            if len(aside):
                logits = self._logits(fed, fed.rows[aside.numpy()])
                validation = self.objective_.loss(logits, y[aside]).item()
                if stopping.better(number, validation):
                    self._keep()
            record = Epoch(number, loss, validation, clock.lap())
            self.history_.append(record)
            if on_epoch:
                on_epoch(record)
            if len(aside) and stopping.over(number):
                break
        if len(aside):
            self._recall()
        for peer in self.peers_.values():
            peer.settle()
        return self

    def _start(self, fed: Federation, held_out: Rows, y: Tensor) -> None:
        self.active_ = fed.active
        self.label_plan_ = fed.label_plan
        self.objective_ = Objective.fit(fed.label_plan, y, self.class_weight)
        self.history_: list[Epoch] = []
        self.peers_ = fed.open("mixed", BankSide)
        self.session_ = next(iter(self.peers_.values())).session
        for name, peer in self.peers_.items():
            positions = fed.alignment.position(name)[held_out]
            peer.post(BankSide.leave_out, torch.from_numpy(positions[positions >= 0]))
        banks: dict[str, Peer | Own] = dict(self.peers_)
        self.notes_ = meet(fed, banks, self.agreement, supervised=False).notes
        settings = BottomSettings(bottom=self.bottom, optimisation=self.optimisation)
        told = settings.model_dump(mode="json")
        widths = {
            name: whole_number(answer, "width", MOST_WIDTH, least=1)
            for name, answer in ask_all(self.peers_.values(), BankSide.build, told).items()
        }
        if len(set(widths.values())) > 1:
            raise DataError(
                "its embeddings are not as wide as those of the other banks",
                party=max(widths, key=widths.__getitem__),
                way_out="Give every bank a bottom model of one architecture",
            )
        self.width_ = next(iter(widths.values()))
        self.own_: Bottom | None = None
        if fed.active.columns:
            learn_from = np.setdiff1d(np.arange(len(fed.active)), held_out)
            self.own_ = Bottom.fit(fed.active, settings, learn_from)
        self._assemble(fed.seed)
        self._average(dict.fromkeys(self.peers_, 1))  # all banks start from one model

    def _assemble(self, seed: int) -> None:
        inputs = self.width_ + (self.own_.width if self.own_ is not None else 0)
        seed = seed_for(seed, "top")

        def build() -> nn.Module:
            if isinstance(self.top, nn.Module):
                return copy.deepcopy(self.top)
            return mlp(inputs, self.top, self.objective_.outputs)

        self.top_ = seeded(build, seed)
        self.randomness_ = Randomness(self.top_, seed)
        rate, decay = self.optimisation.learning_rate, self.optimisation.weight_decay
        self.optimiser_ = torch.optim.AdamW(self.top_.parameters(), lr=rate, weight_decay=decay)
        self.best_top_: dict[str, Tensor] | None = None

    def _round(self, fed: Federation, shares: dict[str, Tensor], y: Tensor, number: int) -> float:
        """One pass over each bank's people, then the average. Returns the mean loss."""
        total, count = torch.zeros(()), 0
        for name, share in shares.items():
            if not len(share):
                continue
            order = share[shuffled(len(share), seed_for(fed.seed, name), number)]
            rows = torch.from_numpy(fed.rows)[order]
            positions = fed.positions(name, rows.numpy())
            for batch in batches(len(order), self.batch_size):
                some = y[order[batch]]
                loss = self._step(fed, name, positions[batch], rows[batch], some)
                total += loss * len(some)
                count += len(some)
        self._average({name: len(share) for name, share in shares.items()})
        return total.item() / count

    def _step(
        self, fed: Federation, bank: str, positions: Tensor, rows: Tensor, y: Tensor
    ) -> Tensor:
        """One batch of one bank: embeddings in, gradients out. Returns the mean loss."""
        peer = self.peers_[bank]
        answer = peer.ask(BankSide.forward, positions)
        cuts = [self._expect(bank, answer, len(y)).detach().requires_grad_()]
        if self.own_ is not None:
            cuts.append(self.own_.forward(rows).detach().requires_grad_())
        self.top_.train()
        with self.randomness_.stream():
            loss = self.objective_.loss(self.top_(torch.cat(cuts, 1)), y)
        self.optimiser_.zero_grad()
        torch.autograd.backward(loss)
        assert cuts[0].grad is not None
        fed.active.boundary.about(positions)
        peer.post(BankSide.backward, cuts[0].grad)
        if self.own_ is not None and cuts[1].grad is not None:
            self.own_.backward(cuts[1].grad)
        self.optimiser_.step()
        return loss.detach()

    def _average(self, counts: dict[str, int]) -> None:
        """Give every bank the mean of all banks' bottom models, weighted by their people."""
        found = ask_all(self.peers_.values(), BankSide.weights)
        if len({w.shape for w in found.values()}) > 1:
            raise DataError(
                "the banks' bottom models differ in size",
                way_out="Give every bank a bottom model of one architecture",
            )
        total = sum(counts.values())
        mean = torch.stack([found[n][0] * (counts[n] / total) for n in self.peers_]).sum(0)
        for peer in self.peers_.values():
            peer.post(BankSide.take, mean)

    def _keep(self) -> None:
        for peer in self.peers_.values():
            peer.post(BankSide.keep)
        if self.own_ is not None:
            self.own_.keep()
        self.best_top_ = {k: v.clone() for k, v in self.top_.state_dict().items()}

    def _recall(self) -> None:
        for peer in self.peers_.values():
            peer.ask(BankSide.recall)
        if self.own_ is not None:
            self.own_.recall()
        if self.best_top_ is not None:
            self.top_.load_state_dict(self.best_top_)

    # -- predicting ---------------------------------------------------------------------------

    def outputs(self, federation: Federation) -> NDArray[np.float64]:
        """Predictions for a view's people, each of whom at least one bank must hold."""
        if not hasattr(self, "top_"):
            raise NotFittedError("this MixedVFL has learnt nothing yet; call `fit`")
        if not len(federation.rows):
            raise InterlaceError("there is nobody to score in this view of the federation")
        self.peers_ = federation.peers(self.session_)
        if self.own_ is not None and self.own_.party is not federation.active:
            self.own_ = self.own_.over(federation.active)
        return self.objective_.probabilities(self._logits(federation, federation.rows))

    def _logits(self, fed: Federation, rows: Rows) -> Tensor:
        """Mean of the logits by each bank that holds a person; (n, outputs)."""
        total = torch.zeros(len(rows), self.objective_.outputs)
        times = torch.zeros(len(rows), 1)
        self.top_.eval()
        for name, peer in self.peers_.items():
            held = np.flatnonzero(fed.alignment.position(name)[rows] >= 0)
            for start in range(0, len(held), CHUNK):
                part = held[start : start + CHUNK]
                answer = peer.ask(BankSide.embed, fed.positions(name, rows[part]))
                cuts = [self._expect(name, answer, len(part))]
                if self.own_ is not None:
                    cuts.append(self.own_.embed(torch.from_numpy(rows[part])))
                with torch.no_grad():
                    total[part] += self.top_(torch.cat(cuts, 1))
                times[part] += 1
        alone = int((times == 0).sum())
        if alone:
            raise AlignmentError(f"{alone:,} of {len(rows):,} people are held by none of the banks")
        return total / times

    def _expect(self, party: str, embedding: Tensor, count: int) -> Tensor:
        if tuple(embedding.shape) != (count, self.width_):
            raise Refused(
                f"party '{party}' answered with an embedding of shape {tuple(embedding.shape)}, "
                f"{(count, self.width_)} was asked for"
            )
        return embedding

    # -- keeping ------------------------------------------------------------------------------

    def save(self, name: str) -> None:
        """Every party keeps its own part of the model under ``name`` in its own folder."""
        for peer in self.peers_.values():
            peer.ask(BankSide.save, {"name": name})
        meta: dict[str, Any] = {
            "label_plan": self.label_plan_.to_json(),
            "objective": self.objective_.to_json(),
            "width": self.width_,
            "history": [asdict(r) for r in self.history_],
            "own": None,
        }
        state = State({}, meta)
        state.put("top", self.top_.state_dict())
        if self.own_ is not None:
            state.put("own", *self.own_.state())
        write_state(self.active_.path("models", name), state)

    def load(self, name: str, federation: Federation) -> Self:
        """Take the parts that :meth:`save` kept; the hyper-parameters must be the same."""
        state = read_state(federation.active.path("models", name))
        self.active_, meta = federation.active, state.meta
        self.peers_ = federation.open("mixed", BankSide)
        self.session_ = next(iter(self.peers_.values())).session
        for peer in self.peers_.values():
            peer.ask(BankSide.load, {"name": name})
        self.label_plan_ = LabelPlan.from_json(meta["label_plan"])
        self.objective_ = Objective.from_json(meta["objective"])
        self.width_ = int(meta["width"])
        self.history_ = [Epoch(**e) for e in meta["history"]]
        self.own_ = None
        if meta["own"] is not None:
            self.own_ = Bottom.from_state(federation.active, state.part("own"))
        self._assemble(federation.seed)
        self.top_.load_state_dict(state.part("top").tensors)
        return self
