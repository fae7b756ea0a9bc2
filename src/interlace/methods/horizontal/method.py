"""What the server does in every horizontal method: meet, add up, evaluate, keep."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict
from statistics import fmean
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import NotFittedError
from torch import Tensor

from interlace.data.features import FeaturePlan
from interlace.data.labels import LabelPlan
from interlace.errors import InterlaceError, JobError, Refused
from interlace.federation import Federation
from interlace.methods.base import Method
from interlace.methods.horizontal.drift import Round
from interlace.methods.horizontal.secure import SMALLEST_COHORT, unmask
from interlace.methods.horizontal.side import (
    Agreement,
    HorizontalSide,
    Meeting,
    Own,
    clients_of,
    meet,
)
from interlace.methods.objective import Objective
from interlace.party import Party, Peer, State, ask_all, read_state, write_state

Part = Literal["all", "train", "validation", "test"]


def pooled(answers: dict[str, dict[str, float]]) -> dict[str, float]:
    """Figures over the rows of all clients, from their sums."""
    some = [a for a in answers.values() if a["rows"]]
    if not some:
        raise InterlaceError("no client has enough rows of this part to score")
    total = {key: sum(a[key] for a in some) for key in some[0]}
    rows = total["rows"]
    out = {"rows": rows, "loss": total["loss"] / rows}
    if "hits" in total:
        out["accuracy"] = total["hits"] / rows
        classes = [key.removeprefix("rows ") for key in total if key.startswith("rows ")]
        if classes and all(total[f"rows {c}"] for c in classes):
            shares = (total[f"hits {c}"] / total[f"rows {c}"] for c in classes)
            out["balanced_accuracy"] = fmean(shares)
    if "squared_error" in total:
        spread = total["squares"] - total["sum"] ** 2 / rows
        out["rmse"] = math.sqrt(total["squared_error"] / rows)
        out["r2"] = 1 - total["squared_error"] / spread if spread > 0 else math.nan
    return out


def by_client(answers: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Figures of each client that has enough rows, and ``pooled`` over all of them."""
    out = {n: pooled({n: a}) for n, a in answers.items() if a["rows"]}
    return {**out, "pooled": pooled(answers)}


class HorizontalMethod(Method):
    """A method over parties that have the same columns and other people.

    After :meth:`fit`: ``plan_`` (the common preprocessing), ``notes_`` (doubts about the tables),
    ``weights_`` (the model as it travels), ``privacy_`` (what can be claimed, by party).
    """

    side: ClassVar[type[HorizontalSide]]
    protocol: ClassVar[str]
    agreement: Agreement
    secure: bool
    history_: list[Round]  # type: ignore[assignment]
    weights_: Tensor

    def _logits(self, x: Tensor) -> Tensor:
        """What the model says of rows; (n, outputs)."""
        raise NotImplementedError

    def _place(self) -> None:
        """Make the finished ``weights_`` ready to use."""

    # -- meeting ------------------------------------------------------------------------------

    def _meet(self, fed: Federation) -> None:
        fed.active.boundary.round = 0
        self.active_: Party = fed.active
        clients = clients_of(fed, self.side, fed.open(self.protocol, self.side))
        self.meeting_: Meeting = meet(fed, clients, self.agreement, supervised=self.supervised)
        self.plan_, self.notes_ = self.meeting_.plan, self.meeting_.notes
        if self.supervised:
            assert self.meeting_.label_plan is not None
            assert self.meeting_.objective is not None
            self.label_plan_, self.objective_ = self.meeting_.label_plan, self.meeting_.objective
        self._remember_session()
        if self.secure:
            self._exchange_keys()
        self.history_ = []
        self.privacy_: dict[str, dict[str, Any]] = {}

    def _remember_session(self) -> None:
        peers = [c for c in self.meeting_.clients.values() if isinstance(c, Peer)]
        self.session_ = peers[0].session if peers else None

    def _exchange_keys(self) -> None:
        """Every peer's public key to every peer; the server's own rows need no mask."""
        peers = {n: c for n, c in self.meeting_.clients.items() if isinstance(c, Peer)}
        if len(peers) < SMALLEST_COHORT:
            raise JobError(
                f"secure aggregation takes at least {SMALLEST_COHORT} clients beside the server"
            )
        keys = list(ask_all(peers.values(), HorizontalSide.public_key).values())
        if any(k.shape != (32,) for k in keys):
            raise Refused("public keys of 32 bytes each were due")
        everyone = torch.stack(keys)
        for peer in peers.values():
            peer.post(HorizontalSide.keys, everyone)
        self.places_ = {name: i for i, name in enumerate(peers)}

    def _added_up(
        self,
        plain: Callable[..., Tensor],
        masked: Callable[..., Tensor],
        shape: tuple[int, ...],
        *arguments: Any,
    ) -> Tensor:
        """The sum of all clients' answers; float64.

        Args:
            plain: The operation that answers with a tensor of ``shape``.
            masked: Its twin that takes the cohort first and answers under masks.
        """
        self.active_.boundary.round += 1
        cohort = torch.arange(len(self.places_)) if self.secure else None
        total = torch.zeros(shape, dtype=torch.float64)
        under_masks, in_clear = [], {}
        for name, client in self.meeting_.clients.items():
            if cohort is not None and isinstance(client, Peer):
                under_masks.append(client.start(masked, cohort, *arguments))
            else:
                in_clear[name] = client.start(plain, *arguments)
        for name, answer in in_clear.items():
            found = answer()
            if tuple(found.shape) != shape:
                raise Refused(
                    f"party '{name}' answered with shape {tuple(found.shape)}, {shape} was due"
                )
            total += found
        hidden = [answer() for answer in under_masks]
        if hidden:
            summed = unmask(hidden)
            if summed.numel() != total.numel():
                raise Refused(f"masked vectors of {summed.numel():,} numbers came")
            total += summed.view(shape)
        return total

    def _finish(self) -> None:
        """Give every client the finished model."""
        for client in self.meeting_.clients.values():
            client.ask(HorizontalSide.finish, self.weights_)
        self._place()

    # -- how good it is -------------------------------------------------------------------------

    def evaluate(self, federation: Federation, part: Part = "all") -> dict[str, dict[str, float]]:
        """Loss, accuracy and balanced accuracy (R² and RMSE for a regression) by client, and
        ``pooled`` over all.

        Each client scores its own rows and sends sums; fewer than five rows, or five of a class,
        say nothing. Without rows of every class there is no balanced accuracy, nor is there on the
        rows kept aside for validation.

        Args:
            federation: The one it was fitted on, or new tables of the same parties
                (:meth:`Federation.with_tables`), all of whose rows are ``all``.
            part: Which rows: those that ``agreement`` set aside, or all.
        """
        return by_client(self.answers(federation, part))

    def answers(self, federation: Federation, part: Part) -> dict[str, dict[str, float]]:
        """Each client's sums, from which :meth:`evaluate` makes its figures."""
        self._reach(federation)
        return self._evaluations(part)

    def score(self, federation: Federation) -> float:
        """Accuracy, or R² for a regression, over all clients' labelled rows."""
        pooled = self.evaluate(federation)["pooled"]
        return pooled["r2" if self.label_plan_.task == "regression" else "accuracy"]

    def outputs(self, federation: Federation) -> NDArray[np.float64]:
        """Predictions for the server's own rows in a view; clients score theirs themselves."""
        logits = self._own_logits(federation)
        return self.objective_.probabilities(logits)

    def outputs_at(self, party: Party, name: str) -> NDArray[np.float64]:
        """What the model that :meth:`save` kept says of a client's whole table.

        The client has the model in its own folder and asks nobody.
        """
        state = read_state(party.path("models", name))
        side = self.side(party, party.name)
        side.take_finished(State(state.tensors, state.meta.get("own", state.meta)))
        if side.label_plan is not None:
            self.label_plan_ = side.label_plan
        self.plan_ = side.plan
        return side.outputs()

    def _own_logits(self, federation: Federation) -> Tensor:
        self._fitted()
        if not len(federation.rows):
            raise InterlaceError(
                "the server has no rows of its own to score; `evaluate` asks the clients"
            )
        with torch.no_grad():
            return self._logits(self.plan_.transform(federation.active.frame, federation.rows))

    def _evaluations(self, part: str) -> dict[str, dict[str, float]]:
        return {
            name: client.ask(HorizontalSide.evaluate, self.weights_, {"name": part})
            for name, client in self.meeting_.clients.items()
        }

    def _reach(self, federation: Federation) -> None:
        """Ask from now on the parties of this federation."""
        self._fitted()
        peers = federation.peers(self.session_) if self.session_ is not None else {}
        own = self.meeting_.clients.get(federation.active.name)
        self.meeting_.clients = dict(peers)
        if isinstance(own, Own):
            side = own.side
            if side.party is not federation.active:
                side = side.at(federation.active)
            self.meeting_.clients = {federation.active.name: Own(side), **peers}

    def _fitted(self) -> None:
        if not hasattr(self, "weights_"):
            raise NotFittedError(f"this {type(self).__name__} has learnt nothing yet; call `fit`")

    # -- keeping ------------------------------------------------------------------------------

    def save(self, name: str) -> None:
        """Every party keeps the model and its preprocessing under ``name`` in its own folder."""
        self._fitted()
        for client in self.meeting_.clients.values():
            if isinstance(client, Peer):
                client.ask(HorizontalSide.save, {"name": name})
        state = self._finished()
        own = self.meeting_.clients.get(self.active_.name)
        if isinstance(own, Own) and isinstance(own.side, HorizontalSide):
            state.meta["own"] = own.side.finished(self.weights_).meta
        write_state(self.active_.path("models", name), state)

    def load(self, name: str, federation: Federation) -> Self:
        """Take what :meth:`save` kept; the hyper-parameters must be the same."""
        state = read_state(federation.active.path("models", name))
        self.active_ = federation.active
        peers = federation.open(self.protocol, self.side)
        for peer in peers.values():
            peer.ask(HorizontalSide.load, {"name": name})
        clients = clients_of(federation, self.side, peers)
        for client in clients.values():
            if isinstance(client, Own) and isinstance(client.side, HorizontalSide):
                client.side.take_finished(State(state.tensors, state.meta["own"]))
        self._take_finished(state)
        self.meeting_ = Meeting(clients, self.plan_, None, None, torch.empty(0), {})
        self._remember_session()
        self._place()
        return self

    def _finished(self) -> State:
        """The model and all that the server knows about it."""
        meta: dict[str, Any] = {
            "plan": self.plan_.to_json(),
            "label_plan": self.label_plan_.to_json() if self.supervised else None,
            "objective": self.objective_.to_json() if self.supervised else None,
            "history": [asdict(r) for r in self.history_],
            "notes": self.notes_,
            "privacy": self.privacy_,
        }
        return State({"weights": self.weights_}, meta)

    def _take_finished(self, state: State) -> None:
        self.weights_ = state.tensors["weights"].clone()
        self.plan_ = FeaturePlan.from_json(state.meta["plan"])
        if self.supervised:
            self.label_plan_ = LabelPlan.from_json(state.meta["label_plan"])
            self.objective_ = Objective.from_json(state.meta["objective"])
        self.history_ = [Round(**r) for r in state.meta["history"]]
        self.notes_, self.privacy_ = state.meta["notes"], state.meta["privacy"]
