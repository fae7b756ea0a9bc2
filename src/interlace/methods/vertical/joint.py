"""Networks at every party and one over them at the active party: what such methods share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import NotFittedError
from torch import Tensor, nn

from interlace.boundary.control import whole_number
from interlace.data.labels import LabelPlan
from interlace.errors import InterlaceError, Refused
from interlace.federation import Federation, Rows
from interlace.methods.base import (
    Clock,
    EarlyStopping,
    Epoch,
    Method,
    OnEpoch,
    history_from_json,
    history_to_json,
    validated,
)
from interlace.methods.bottom import (
    MOST_WIDTH,
    Bottom,
    BottomSettings,
    BottomSide,
    last_checkpoint,
    write_checkpoint,
)
from interlace.methods.objective import ClassWeight, Objective
from interlace.models import (
    BottomSpec,
    Optimisation,
    Randomness,
    load_training_state,
    seed_for,
    seeded,
    set_rate,
    training_state,
)
from interlace.party import Peer, State, ask_all, read_state, write_state

CHUNK = 8192  # people embedded in one message outside of training


class JointModel(Method):
    """A bottom model at every party and a top model over their embeddings at the active one.

    A method says which side the passive parties take, builds the top model and trains; agreeing,
    predicting, saving and checkpoints are here, and what begins and ends an epoch of those that
    learn together in epochs.
    """

    bottom: BottomSpec
    optimisation: Optimisation
    class_weight: ClassWeight
    epochs: int
    patience: int | None
    side: ClassVar[type[BottomSide]]
    protocol: ClassVar[str]
    views: ClassVar[int] = 1

    @abstractmethod
    def _build_top(self, widths: Sequence[int], outputs: int) -> nn.Module:
        """A module from the list of embeddings (n, d_k), the active party's last, to logits."""

    def _bottom_spec(self, outputs: int) -> BottomSpec:
        return self.bottom

    def _objective(self, fed: Federation) -> Objective:
        """The loss of the view that is trained on."""
        return Objective.fit(fed.label_plan, fed.y, self.class_weight)

    def _open(self, federation: Federation) -> dict[str, Peer]:
        """The partners it talks to."""
        return federation.open(self.protocol, self.side)

    # -- beginning ----------------------------------------------------------------------------

    def _start(self, fed: Federation) -> None:
        """Agree with every partner on the bottom models, and build the active party's own parts."""
        validated(type(self), self.get_params(deep=False))
        self.label_plan_ = fed.label_plan
        self.objective_ = self._objective(fed)
        settings = BottomSettings(
            bottom=self._bottom_spec(self.objective_.outputs),
            optimisation=self.optimisation,
            views=self.views,
        )
        self.history_: list[Epoch] = []
        self._meet(fed, self._open(fed))
        begun = {}
        for name, peer in self.peers_.items():
            held_out = fed.alignment.position(name)[fed.held_out]
            rows = torch.from_numpy(held_out[held_out >= 0])
            begun[name] = peer.start(BottomSide.begin, rows, settings.model_dump(mode="json"))
        self.own_: Bottom | None = None
        if fed.active.columns:
            learn_from = np.setdiff1d(np.arange(len(fed.active)), fed.held_out)
            self.own_ = Bottom.fit(fed.active, settings, learn_from)
        self.widths_ = {
            name: whole_number(answer(), "width", MOST_WIDTH, least=1)
            for name, answer in begun.items()
        }
        widths = list(self.widths_.values())
        if self.own_ is not None:
            widths.append(self.own_.width)
        self._assemble(widths)

    def _meet(self, fed: Federation, peers: dict[str, Peer]) -> None:
        self.active_, self.peers_ = fed.active, peers
        self.session_ = next((peer.session for peer in peers.values()), None)

    def _assemble(self, widths: Sequence[int]) -> None:
        top_seed = seed_for(self.active_.secret, "top")
        self.top_ = seeded(lambda: self._build_top(widths, self.objective_.outputs), top_seed)
        self.randomness_ = Randomness(self.top_, top_seed)
        self.optimiser_ = self.optimisation.optimiser(self.top_)
        self.best_top_: dict[str, Tensor] | None = None

    # -- learning in epochs -------------------------------------------------------------------

    def _in_epochs(
        self,
        fed: Federation,
        learn: Callable[[int], float],
        aside: Federation,
        checkpoint: str | None,
        on_epoch: OnEpoch | None,
    ) -> None:
        """Learn epoch by epoch from where the last checkpoint is, and end with the best one.

        Args:
            fed: The view that is trained on.
            learn: Learns one epoch, counted from 0. Returns the mean loss.
            aside: The people by whom the best epoch is chosen; with nobody it is the last.
        """
        self._set_aside(aside)
        stopping, clock = EarlyStopping(self.patience), Clock()
        done = self._resume(fed, checkpoint, stopping) if checkpoint else 0
        judges, y = len(aside.rows), aside.y
        rate = self.optimisation.learning_rate  # which partners have again after a resumption
        for epoch in range(done, self.epochs):
            if epoch and judges and stopping.over(epoch - 1):
                break
            if (due := self.optimisation.rate(epoch, self.epochs)) != rate:
                self._set_rate(rate := due)
            loss, validation = learn(epoch), None
            if judges:
                validation = self.objective_.loss(self._judged(aside), y).item()
                if stopping.better(epoch, validation):
                    self._keep()
            self.history_.append(Epoch(epoch + 1, loss, validation, clock.lap()))
            if checkpoint:
                self._checkpoint(fed, checkpoint, epoch + 1, stopping)
            if on_epoch:
                on_epoch(self.history_[-1])
        if judges:
            self._recall()
        self._settle()

    def _set_aside(self, aside: Federation) -> None:
        """What there is to do so that people who judge the epochs have no part in what is learnt,
        where a method knows others than those of its batches."""

    def _judged(self, aside: Federation) -> Tensor:
        """The logits by which an epoch is judged."""
        return self._logits(aside, aside.rows)

    def _set_rate(self, rate: float) -> None:
        """Have everybody's networks learn at this rate."""
        for peer in self.peers_.values():
            peer.post(BottomSide.schedule, {"rate": rate})
        if self.own_ is not None:
            self.own_.set_rate(rate)
        if self.optimiser_ is not None:
            set_rate(self.optimiser_, rate)

    def _keep(self) -> None:
        for peer in self.peers_.values():
            peer.post(BottomSide.keep)
        if self.own_ is not None:
            self.own_.keep()
        self.best_top_ = {k: v.clone() for k, v in self.top_.state_dict().items()}

    def _recall(self) -> None:
        back = [peer.start(BottomSide.recall) for peer in self.peers_.values()]
        if self.own_ is not None:
            self.own_.recall()
        if self.best_top_ is not None:
            self.top_.load_state_dict(self.best_top_)
        for done in back:
            done()

    def _settle(self) -> None:
        """Have everything carried out that nobody has waited for."""
        for peer in self.peers_.values():
            peer.settle()

    # -- predicting ---------------------------------------------------------------------------

    def outputs(self, federation: Federation) -> NDArray[np.float64]:
        """Predictions for a view's people, all of whom every party must hold."""
        if not hasattr(self, "top_"):
            raise NotFittedError(f"this {type(self).__name__} has learnt nothing yet; call `fit`")
        if not len(federation.rows):
            raise InterlaceError("there is nobody to score in this view of the federation")
        if self.session_ is not None:
            self.peers_ = federation.peers(self.session_)
        if self.own_ is not None and self.own_.party is not federation.active:
            self.own_ = self.own_.over(federation.active)
        return self.objective_.probabilities(self._logits(federation, federation.rows))

    def _logits(self, fed: Federation, rows: Rows) -> Tensor:
        where = {name: fed.positions(name, rows) for name in self.peers_}
        out = []
        self.top_.eval()
        for start in range(0, len(rows), CHUNK):
            chunk = slice(start, start + CHUNK)
            count = len(rows[chunk])
            asked = {
                name: peer.start(BottomSide.embed, where[name][chunk])
                for name, peer in self.peers_.items()
            }
            own = []
            if self.own_ is not None:
                own.append(self.own_.embed(torch.from_numpy(rows[chunk])))
            cuts = [self._expect(name, answer(), count) for name, answer in asked.items()] + own
            with torch.no_grad():
                out.append(self.top_(cuts))
        return torch.cat(out)

    def _theirs(self, fed: Federation, rows: Rows, peers: Mapping[str, Peer]) -> list[Tensor]:
        """Each partner's embeddings (n, d_k) of the people whom it holds; NaN for the others."""
        views = []
        where = {n: torch.from_numpy(fed.alignment.position(n)[rows]) for n in peers}
        answers = {
            name: peers[name].start(BottomSide.embed, places[places >= 0])
            for name, places in where.items()
            if bool((places >= 0).any())
        }
        for name, places in where.items():
            held = places >= 0
            view = torch.full((len(rows), self.widths_[name]), torch.nan)
            if name in answers:
                view[held] = self._expect(name, answers[name](), int(held.sum()))
            views.append(view)
        return views

    def _views(self, fed: Federation, rows: Rows) -> list[Tensor]:
        """All parties' embeddings of people outside of training, the own ones last."""
        views = self._theirs(fed, rows, self.peers_)
        if self.own_ is not None:
            views.append(self.own_.embed(torch.from_numpy(rows)))
        return views

    def _held(self, fed: Federation, rows: Rows) -> Tensor:
        """Which parties with columns hold the active party's people, (n, parties), itself last."""
        held = torch.from_numpy(fed.alignment.holders[rows])
        if self.own_ is None:
            return held
        return torch.cat([held, torch.ones(len(held), 1, dtype=torch.bool)], 1)

    def _expect(self, party: str, embedding: Tensor, count: int) -> Tensor:
        """An embedding of the agreed shape, or a refusal.

        Raises:
            Refused: the partner answered for other rows or with another width.
        """
        due = (count, self.widths_[party])
        if tuple(embedding.shape) != due:
            raise Refused(
                f"party '{party}' answered with an embedding of shape {tuple(embedding.shape)}, "
                f"{due} was asked for"
            )
        return embedding

    # -- keeping ------------------------------------------------------------------------------

    def save(self, name: str) -> None:
        """Every party keeps its own part of the model under ``name`` in its own folder."""
        ask_all(self.peers_.values(), BottomSide.save, {"name": name})
        write_state(self.active_.path("models", name), self._state(EarlyStopping(None)))

    def load(self, name: str, federation: Federation) -> Self:
        """Take the parts that :meth:`save` kept; the hyper-parameters must be the same."""
        self._meet(federation, self._open(federation))
        self.widths_ = {
            n: whole_number(peer.ask(BottomSide.load, {"name": name}), "width", MOST_WIDTH, least=1)
            for n, peer in self.peers_.items()
        }
        state = read_state(federation.active.path("models", name))
        self._take(state)
        return self

    def _checkpoint(self, fed: Federation, name: str, epoch: int, stopping: EarlyStopping) -> None:
        ask_all(self.peers_.values(), BottomSide.checkpoint, {"name": name, "epoch": epoch})
        state = self._state(stopping)
        state.meta["made_for"] = self._fingerprint(fed)
        write_checkpoint(fed.active, name, epoch, state)

    def _resume(self, fed: Federation, name: str, stopping: EarlyStopping) -> int:
        """Go back to the last checkpoint, if there is one. Returns the epochs done."""
        last = last_checkpoint(fed.active, name, self._fingerprint(fed))
        if last is None:
            return 0
        epoch, state = last
        for n, peer in self.peers_.items():
            answer = peer.ask(BottomSide.resume, {"name": name, "epoch": epoch})
            self.widths_[n] = whole_number(answer, "width", MOST_WIDTH, least=1)
        self._take(state)
        stopping.best, stopping.best_epoch = state.meta["best"]
        return epoch

    def _state(self, stopping: EarlyStopping) -> State:
        meta: dict[str, Any] = {
            "label_plan": self.label_plan_.to_json(),
            "objective": self.objective_.to_json(),
            "widths": self.widths_,
            "history": history_to_json(self.history_),
            "best": [stopping.best, stopping.best_epoch],
            "round": self.active_.boundary.round,
            "own": None,
        }
        state = State({}, meta)
        state.put("top", training_state(self.top_, self.optimiser_, self.randomness_))
        state.put("best", self.best_top_ or {})
        if self.own_ is not None:
            state.put("own", *self.own_.state())
        return state

    def _take(self, state: State) -> None:
        meta = state.meta
        self.label_plan_ = LabelPlan.from_json(meta["label_plan"])
        self.objective_ = Objective.from_json(meta["objective"])
        self.history_ = history_from_json(meta["history"])
        self.own_ = None
        self.widths_ = {name: int(width) for name, width in meta["widths"].items()}
        widths = list(self.widths_.values())
        if meta["own"] is not None:
            self.own_ = Bottom.from_state(self.active_, state.part("own"))
            widths.append(self.own_.width)
        self._assemble(widths)
        top = state.part("top").tensors
        load_training_state(top, self.top_, self.optimiser_, self.randomness_)
        self.best_top_ = state.part("best").tensors or None
        self.active_.boundary.round = int(meta["round"])


class Joined(nn.Module):
    """The top model over the concatenation h_1 ∘ … ∘ h_K."""

    def __init__(self, top: nn.Module) -> None:
        super().__init__()
        self.top = top

    def forward(self, cuts: list[Tensor]) -> Tensor:
        out: Tensor = self.top(torch.cat(cuts, 1))
        return out
