"""Federated averaging and its relatives: FedAvg, FedProx, FedAvgM, FedAdam, FedYogi.

After the tables are agreed on (:mod:`interlace.methods.horizontal.side`), each round is::

    server                                         each client k of the round
      │ ── train(w_t) ─────────────────────────────► │   w ← w − η(∇F_k(w; batch) + μ(w − w_t)), ...
      │ ◄──────────────────────────────── w − w_t ── │
      │ ── report() ───────────────────────────────► │
      │ ◄──────────────────── loss, steps, γ ──────── │
      │ w_{t+1} = w_t + the server's step on Σ n_k Δ_k / Σ n_k
      │ ── evaluate(w_{t+1}, "validation") ────────► │   all clients
      │ ◄──────────────── sums of loss and hits ───── │

With secure aggregation ``train`` becomes ``train_masked`` and its answer a ciphertext.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from interlace.boundary.kinds import Ciphertext, Control, Metric, ModelWeights, RowSelection
from interlace.data.spec import InputSpec
from interlace.errors import DataError, JobError, PartyFailed, Refused
from interlace.federation import Federation
from interlace.methods.base import Clock, EarlyStopping, OnEpoch
from interlace.methods.bottom import last_checkpoint, read_checkpoint, write_checkpoint
from interlace.methods.horizontal.drift import Drift, Round
from interlace.methods.horizontal.local import CHUNK, Client, FlatModel, LocalTraining, Work
from interlace.methods.horizontal.method import HorizontalMethod, pooled
from interlace.methods.horizontal.privacy import Privacy, client_account, row_account
from interlace.methods.horizontal.secure import SMALLEST_COHORT, unmask
from interlace.methods.horizontal.side import (
    Agreement,
    HorizontalSide,
    Own,
)
from interlace.models import BottomSpec, seed_for, seeded
from interlace.party import Peer, State, operation

Weighting = Literal["rows", "uniform"]


class LocalSettings(BaseModel):
    """What a client is told of the network and its training."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    network: BottomSpec
    training: LocalTraining
    weighting: Weighting
    privacy: Privacy | None = None
    proximal: float = 0.0
    inexactness: float = 0.0


def build_network(
    spec: BottomSpec, inputs: InputSpec, outputs: int, own: nn.Module | None, seed: int | None
) -> FlatModel:
    """A party's own module, or the network that all agreed on, as a flat model.

    Args:
        spec: The agreed network.
        inputs: What it reads.
        outputs: How many numbers it gives a row.
        own: The party's own module, which it has instead.
        seed: Of the initial weights; ``None`` where others will take their place.
    """
    if own is not None:
        return FlatModel(copy.deepcopy(own))
    fitting = spec.model_copy(update={"width": outputs})
    if seed is not None:
        return FlatModel(seeded(lambda: fitting.build(inputs), seed))
    outside = torch.get_rng_state()  # seeding takes longer than building does
    module = fitting.build(inputs)
    torch.set_rng_state(outside)
    return FlatModel(module)


class AveragingSide(HorizontalSide):
    """What a client answers in federated averaging."""

    settings_type: ClassVar[type[LocalSettings]] = LocalSettings
    settings: LocalSettings
    last: Work
    epochs: int
    steps_taken = 0

    @operation
    def build(self, settings: Control) -> Control:
        """Make sure that the network fits, and say how large it is."""
        self.settings = self.settings_type.model_validate(settings)
        self.epochs = self.settings.training.epochs
        model = self.model()
        spec = self.plan.spec
        with torch.no_grad():
            model.module.eval()
            out = model.module(torch.zeros(2, *(spec.image or (spec.width,))))
        if tuple(out.shape) != (2, self.objective.outputs):
            raise DataError(
                f"its network gives outputs of shape {tuple(out.shape[1:])} a row, "
                f"({self.objective.outputs},) is due",
                party=self.party.name,
                way_out="Give every party a module of one architecture, from features to outputs",
            )
        return {"weights": model.size, "layout": layout_of(model)}

    @operation
    def limit(self, work: Control) -> None:
        """Do fewer epochs in the next round (a slow client's partial work)."""
        self.epochs = int(work["epochs"])

    @operation
    def train(self, weights: ModelWeights) -> ModelWeights:
        """Train from w_t on one's own rows; the update w − w_t, shape (1, d)."""
        return self.as_one_row(self.update(weights))

    @operation
    def train_masked(self, weights: ModelWeights, cohort: RowSelection) -> Ciphertext:
        """The same, weighted, in fixed point and under masks; uint8 (8 d,)."""
        return self.masked(self.update(weights), cohort)

    @operation
    def report(self) -> Metric:
        """What the last training came to."""
        if self.settings.privacy is not None:
            raise Refused("the loss would leave without noise")
        out: dict[str, Any] = {"steps": self.last.steps, "loss": self.last.loss}
        if self.last.inexactness is not None:
            out["inexactness"] = self.last.inexactness
        return out

    @operation
    def account(self) -> Metric:
        """What this client can claim for its rows."""
        privacy = self.settings.privacy
        if privacy is None or privacy.unit != "row":
            return {}
        expected, _ = self.client().private_steps(self.epochs)
        return row_account(privacy, self.steps_taken, expected / len(self.parts["train"]))

    @operation
    def checkpoint(self, at: Control) -> None:
        """Keep what a resumed training needs, in this party's own folder."""
        state = State(self.learnt(), {"steps": self.steps_taken})
        write_checkpoint(self.party, at["name"], int(at["epoch"]), state)

    @operation
    def resume(self, at: Control) -> None:
        """Go back to a checkpoint."""
        state = read_checkpoint(self.party, at["name"], int(at["epoch"]))
        self.steps_taken = int(state.meta["steps"])
        self.take_learnt(state.tensors)

    # -- what no partner can ask for ------------------------------------------------------------

    def logits(self, weights: Tensor, x: Tensor) -> Tensor:
        """What the network says of some rows; (n, outputs)."""
        model = self.model()
        self._load(model, weights)
        return say(model.module, x)

    def finished(self, weights: Tensor) -> State:
        """As for every method, and the network's settings."""
        state = super().finished(weights)
        state.meta["settings"] = self.settings.model_dump(mode="json")
        return state

    def take_finished(self, state: State) -> None:
        """Take back what :meth:`finished` gave."""
        super().take_finished(state)
        self.settings = self.settings_type.model_validate(state.meta["settings"])

    def learnt(self) -> dict[str, Tensor]:
        """What a client keeps from round to round."""
        return {}

    def take_learnt(self, tensors: dict[str, Tensor]) -> None:
        """Take back what :meth:`learnt` gave."""

    def as_one_row(self, vector: Tensor) -> Tensor:
        """A vector as it leaves: for the guards it is one row, about one unit, this client."""
        if self.partner != self.party.name:
            self.party.boundary.about(torch.zeros(1, dtype=torch.int64))
        return vector[None]

    def model(self) -> FlatModel:
        """The network; it lives as long as one answer, so that many clients fit into memory."""
        return build_network(
            self.settings.network, self.plan.spec, self.objective.outputs, self.party.bottom, None
        )

    def client(self) -> Client:
        """This party's rows and how it trains on them."""
        return Client(
            self.x,
            self.y,
            self.parts["train"],
            self.objective,
            self.settings.training,
            seed_for(self.terms.seed, "client", self.party.name),
        )

    def update(self, weights: Tensor, shift: Tensor | None = None) -> Tensor:
        """Train from ``weights``; the update of shape (d,), clipped and noised as agreed."""
        model = self.model()
        self._load(model, weights)
        client, settings, moment = self.client(), self.settings, self.party.boundary.round
        privacy = settings.privacy
        if privacy is not None and privacy.unit == "row":
            self.last = client.descend_privately(
                model,
                privacy,
                epochs=self.epochs,
                shift=shift,
                proximal=settings.proximal,
                generator=self.party.boundary.generator,
            )
        else:
            self.last = client.descend(
                model,
                moment,
                epochs=self.epochs,
                shift=shift,
                proximal=settings.proximal,
                inexactness=settings.inexactness,
            )
        self.steps_taken += self.last.steps
        self.epochs = settings.training.epochs
        update = model.vector().sub_(weights)
        if privacy is not None and privacy.unit == "client":
            length = float(torch.linalg.vector_norm(update))
            update *= min(1.0, privacy.clip / max(length, 1e-12))
        return update

    def masked(self, vector: Tensor, cohort: Tensor) -> Tensor:
        """A vector under masks, with this client's share of the noise if there is any."""
        privacy = self.settings.privacy
        if privacy is not None and privacy.unit == "client":
            share = privacy.noise * privacy.clip / math.sqrt(len(cohort))
            noise = torch.randn(vector.shape, generator=self.party.boundary.generator)
            vector = vector + share * noise
        rows = len(self.parts["train"]) if self.settings.weighting == "rows" else 1
        return self.masks.mask(vector, rows, cohort, self.party.boundary.round)

    def _load(self, model: FlatModel, weights: Tensor) -> None:
        if weights.shape != (model.size,):
            raise Refused(
                f"party '{self.party.name}' was sent {tuple(weights.shape)} weights, "
                f"its network has {model.size:,}"
            )
        model.load(weights)


def layout_of(model: FlatModel) -> str:
    """A short text that two networks share only if their weights have the same shapes."""
    shapes = [tuple(p.shape) for p in model.module.parameters() if p.requires_grad]
    shapes += [tuple(b.shape) for b in model.buffers]
    return blake2b(repr(shapes).encode(), digest_size=8).hexdigest()


def say(module: nn.Module, x: Tensor) -> Tensor:
    """A network's outputs outside of training; (n, outputs)."""
    module.eval()
    return torch.cat([module(rows) for rows in torch.split(x, CHUNK)])


class FedAvg(HorizontalMethod):
    """Federated averaging: clients train, the server averages.

    Works for binary, multi-class and regression labels, tables and images, with any torch module
    (``Party(..., bottom=module)``, one architecture at all parties) or with the network that
    ``network`` describes; ``BottomSpec(network="linear")`` makes it a linear or a
    logistic regression.

    Args:
        rounds: Most rounds.
        network: The network at every party; its width is the number of outputs.
        local: How clients train between rounds.
        participation: Share of the clients that a round asks, drawn anew each time.
        stragglers: Share of a round's clients that are slow, for a simulation. They are left out.
        weighting: ``rows``: a client counts as many times as it has rows; ``uniform``: once.
        server_rate: What the mean update is multiplied with.
        secure: Aggregate securely; the server sees sums only.
        privacy: Noise for a client or for a row.
        agreement: What the parties agree on about their tables.
        patience: Stop after that many rounds without a better validation loss; ``None`` never.

    After :meth:`fit`: ``history_`` (one :class:`~interlace.methods.horizontal.drift.Round` each),
    ``plan_`` (the common preprocessing), ``module_`` (the network of the best round), ``notes_``
    (doubts about the tables), ``privacy_`` (what can be claimed, by party).

    Source: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized
    Data", AISTATS 2017, algorithm 1.
    """

    side: ClassVar[type[HorizontalSide]] = AveragingSide
    protocol = "averaging"
    keeps_partial_work: ClassVar[bool] = False
    model_: FlatModel
    weights_: Tensor
    best_: Tensor | None

    def __init__(
        self,
        *,
        rounds: int = 20,
        network: BottomSpec = BottomSpec(),
        local: LocalTraining = LocalTraining(),
        participation: float = 1.0,
        stragglers: float = 0.0,
        weighting: Weighting = "rows",
        server_rate: float = 1.0,
        secure: bool = False,
        privacy: Privacy | None = None,
        agreement: Agreement = Agreement(),
        patience: int | None = None,
    ) -> None:
        self.rounds = rounds
        self.network = network
        self.local = local
        self.participation = participation
        self.stragglers = stragglers
        self.weighting = weighting
        self.server_rate = server_rate
        self.secure = secure
        self.privacy = privacy
        self.agreement = agreement
        self.patience = patience

    # -- what the relatives change ---------------------------------------------------------------

    def _settings(self) -> LocalSettings:
        weighting: Weighting = "uniform" if self._client_privacy else self.weighting
        return LocalSettings(
            network=self.network, training=self.local, weighting=weighting, privacy=self.privacy
        )

    def _server_step(self, mean: Tensor) -> None:
        """Move the server's weights by the mean update; both of shape (d,)."""
        self.weights_ += self.server_rate * mean

    def _server_state(self) -> dict[str, Tensor]:
        """What the server's step keeps from round to round."""
        return {}

    def _take_server_state(self, state: dict[str, Tensor]) -> None:
        """Take back what :meth:`_server_state` gave; start anew from an empty one."""

    def _start_training(self, client: Peer | Own) -> Callable[[], Tensor]:
        """Ask a client for its contribution in the clear; shape (width,)."""
        answer = client.start(AveragingSide.train, self.weights_)
        return lambda: self._expect(client.name, answer())

    def _start_masked(self, client: Peer | Own, cohort: Tensor) -> Callable[[], Tensor]:
        """Ask a client for its contribution under masks; uint8 of shape (8 width,)."""
        return client.start(AveragingSide.train_masked, self.weights_, cohort)

    @property
    def _width(self) -> int:
        """Length of a contribution; the update comes first."""
        return len(self.weights_)

    # -- learning ---------------------------------------------------------------------------------

    def fit(
        self,
        federation: Federation,
        *,
        checkpoint: str | None = None,
        on_epoch: OnEpoch | None = None,
    ) -> Self:
        """Learn from all clients' labelled rows; ``on_epoch`` hears of every round.

        A client that fails in mid-round is left out of that round; with secure aggregation the
        round's sum is lost with it, and the error goes to the caller.

        Raises:
            DataError: the parties' columns or labels differ; the message lists how.
            PolicyError: a party does not let model weights leave, which every policy must be
                asked for.
            JobError: settings that do not go together.
        """
        self._check()
        federation.active.boundary.round = 0
        self._begin(federation)
        stopping = EarlyStopping(self.patience)
        done = self._resume(federation, checkpoint, stopping) if checkpoint else 0
        watched = bool(self.meeting_.supplied("validation"))
        clock = Clock()
        for number in range(done + 1, self.rounds + 1):
            if watched and stopping.over(number - 1):
                break
            federation.active.boundary.round = number
            record = self._round(federation, number)
            if watched:
                validation = pooled(self._evaluations("validation"))["loss"]
                record["validation"] = validation
                if stopping.better(number, validation):
                    self.best_ = self.weights_.clone()
            result = Round(number=number, seconds=clock.lap(), **record)
            self.history_.append(result)
            if checkpoint:
                self._checkpoint(federation, checkpoint, number, stopping)
            if on_epoch:
                on_epoch(result)
        if self.best_ is not None:
            self.weights_ = self.best_
        self._account(len(self.history_))
        self._finish()
        return self

    def _check(self) -> None:
        if not 0 < self.participation <= 1 or not 0 <= self.stragglers < 1:
            raise JobError("`participation` lies in (0, 1] and `stragglers` in [0, 1)")
        if self._client_privacy and self.stragglers:
            raise JobError(
                "with privacy for clients, who takes part is decided by coins alone; "
                "set `stragglers: 0`"
            )

    @property
    def _client_privacy(self) -> bool:
        return self.privacy is not None and self.privacy.unit == "client"

    def _begin(self, fed: Federation) -> None:
        """Agree on tables and network; the server's weights are the initial ones."""
        self._meet(fed)
        self._build(fed.seed)
        settings = self._settings().model_dump(mode="json")
        for name, client in self.meeting_.clients.items():
            answer = client.ask(AveragingSide.build, settings)
            if answer != {"weights": self.weights_.numel(), "layout": layout_of(self.model_)}:
                raise DataError(
                    "its network is not the one of the server",
                    party=name,
                    way_out="Give every party, the server included, a module of one architecture",
                )
        self.best_ = None
        self._take_server_state({})

    def _build(self, seed: int) -> None:
        self.model_ = self._network(seed_for(seed, "network"))
        self.weights_ = self.model_.vector()

    def _network(self, seed: int | None) -> FlatModel:
        outputs, own = self.objective_.outputs, self.active_.bottom
        return build_network(self.network, self.plan_.spec, outputs, own, seed)

    # -- one round --------------------------------------------------------------------------

    def _round(self, fed: Federation, number: int) -> dict[str, Any]:
        """One round; returns the fields of its record."""
        cohort, dropped = self._cohort(fed, number)
        gather = self._gather_masked if self.secure else self._gather
        total, weight, drift, reports, failed = gather(cohort)
        if self._client_privacy:
            assert self.privacy is not None
            expected = self.participation * len(self.meeting_.supplied())
            if not self.secure:
                noise = torch.randn(total.shape, generator=fed.active.boundary.generator)
                total = total + self.privacy.noise * self.privacy.clip * noise
            self._take(total / expected, 1.0)
        elif weight:
            share = (len(cohort) - failed) / len(self.meeting_.supplied())
            self._take(total / weight, share)
        rows = {n: self.meeting_.rows[n]["train"] for n in reports}
        loss = math.nan  # nobody says what it came to under a privacy budget
        if rows:
            loss = sum(reports[n]["loss"] * k for n, k in rows.items()) / sum(rows.values())
        reached = [r["inexactness"] for r in reports.values() if "inexactness" in r]
        return {
            "loss": loss,
            "validation": None,
            "clients": len(cohort) - failed,
            "dropped": dropped + failed,
            "distance": drift.distance,
            "angle": drift.angle,
            "dissimilarity": drift.dissimilarity,
            "inexactness": max(reached, default=None),
        }

    def _take(self, mean: Tensor, share: float) -> None:
        """Use the mean contribution of a round in which ``share`` of all clients took part."""
        self._server_step(mean)

    def _cohort(self, fed: Federation, number: int) -> tuple[list[str], int]:
        """The clients of a round, and how many are left out for being slow."""
        names = list(self.meeting_.supplied())
        if self._client_privacy:
            # From the server's own source: whoever knows the job's seed must not know the coins.
            coins = torch.rand(len(names), generator=fed.active.boundary.generator)
            chosen = [
                n for n, c in zip(names, coins.tolist(), strict=True) if c < self.participation
            ]
            enough = not self.secure or len(chosen) >= SMALLEST_COHORT
            return (chosen, 0) if enough else ([], len(chosen))
        random = np.random.default_rng(seed_for(fed.seed, "cohort", number))
        count = max(1, round(self.participation * len(names)))
        places = np.sort(random.choice(len(names), size=count, replace=False))
        slow = set(
            random.choice(count, size=round(self.stragglers * count), replace=False).tolist()
        )
        chosen = [names[p] for i, p in enumerate(places) if i not in slow]
        if not self.keeps_partial_work:
            return chosen, len(slow)
        for i in slow:
            epochs = int(random.integers(1, self.local.epochs + 1))
            client = self.meeting_.clients[names[places[i]]]
            client.post(AveragingSide.limit, {"epochs": epochs})
        return [names[p] for p in places], 0

    def _weight(self, name: str) -> float:
        settings = self._settings()
        return float(self.meeting_.rows[name]["train"]) if settings.weighting == "rows" else 1.0

    def _gather(
        self, cohort: Sequence[str]
    ) -> tuple[Tensor, float, Drift, dict[str, dict[str, Any]], int]:
        """Sum of weighted contributions, sum of weights, drift, reports, number of failures."""
        drift = Drift(self.weights_.numel())
        total, weight = torch.zeros(self._width), 0.0
        reports: dict[str, dict[str, Any]] = {}
        failure: PartyFailed | None = None
        failed = 0
        clients = {name: self.meeting_.clients[name] for name in cohort}
        asked = {name: self._start_training(client) for name, client in clients.items()}
        for name, client in clients.items():
            try:
                contribution = asked[name]()
                if self.privacy is None:
                    reports[name] = client.ask(AveragingSide.report)
            except PartyFailed as e:
                failure, failed = e, failed + 1
                continue
            total.add_(contribution, alpha=self._weight(name))
            weight += self._weight(name)
            drift.add(contribution[: self.weights_.numel()])
        if failure is not None and failed == len(cohort):
            raise failure
        return total, weight, drift, reports, failed

    def _gather_masked(
        self, cohort: Sequence[str]
    ) -> tuple[Tensor, float, Drift, dict[str, dict[str, Any]], int]:
        """The same under masks: no single contribution is seen, so drift cannot be measured."""
        drift = Drift(self.weights_.numel())
        total, weight = torch.zeros(self._width), 0.0
        reports: dict[str, dict[str, Any]] = {}
        masked = []
        places = torch.tensor([self.places_[n] for n in cohort if n in self.places_])
        clients = {name: self.meeting_.clients[name] for name in cohort}
        asked = {
            name: self._start_training(client)
            if isinstance(client, Own)
            else self._start_masked(client, places)
            for name, client in clients.items()
        }
        for name, client in clients.items():
            if isinstance(client, Own):
                total.add_(asked[name](), alpha=self._weight(name))
            else:
                masked.append(asked[name]())
            if self.privacy is None:
                reports[name] = client.ask(AveragingSide.report)
            weight += self._weight(name)
        if masked:
            summed = unmask(masked).to(total.dtype)
            if summed.shape != total.shape:
                raise Refused(f"masked vectors of {summed.numel():,} numbers came")
            total += summed
        return total, weight, drift, reports, 0

    def _expect(self, party: str, update: Tensor) -> Tensor:
        if tuple(update.shape) != (1, self.weights_.numel()):
            raise Refused(
                f"party '{party}' answered with an update of shape {tuple(update.shape)}, "
                f"(1, {self.weights_.numel()}) was due"
            )
        return update[0]

    def _account(self, rounds: int) -> None:
        if self.privacy is None:
            return
        if self._client_privacy:
            self.privacy_["all clients"] = client_account(
                self.privacy, rounds, self.participation, self.secure
            )
            return
        for name, client in self.meeting_.clients.items():
            self.privacy_[name] = client.ask(AveragingSide.account)

    # -- keeping ----------------------------------------------------------------------------

    def _state(self, stopping: EarlyStopping) -> State:
        state = self._finished()
        state.put("server", self._server_state())
        if self.best_ is not None:
            state.tensors["best"] = self.best_
        state.meta["best"] = [stopping.best, stopping.best_epoch]
        return state

    def _take_state(self, state: State) -> None:
        self._take_finished(state)
        self.best_ = state.tensors.get("best")
        self._take_server_state(state.part("server").tensors)

    def _logits(self, x: Tensor) -> Tensor:
        return say(self.module_, x)

    def _place(self) -> None:
        model = self._network(None)
        model.load(self.weights_)
        self.module_ = model.module

    def _checkpoint(self, fed: Federation, name: str, number: int, stopping: EarlyStopping) -> None:
        for client in self.meeting_.clients.values():
            if isinstance(client, Peer):
                client.ask(AveragingSide.checkpoint, {"name": name, "epoch": number})
        state = self._state(stopping)
        state.meta["made_for"] = self._fingerprint(fed, self.meeting_.rows)
        state.meta["steps"] = 0
        own = self.meeting_.clients.get(fed.active.name)
        if isinstance(own, Own) and isinstance(own.side, AveragingSide):
            state.meta["steps"] = own.side.steps_taken
            state.put("own", own.side.learnt())
        write_checkpoint(fed.active, name, number, state)

    def _resume(self, fed: Federation, name: str, stopping: EarlyStopping) -> int:
        """Go back to the last checkpoint, if there is one. Returns the rounds done."""
        last = last_checkpoint(fed.active, name, self._fingerprint(fed, self.meeting_.rows))
        if last is None:
            return 0
        number, state = last
        for client in self.meeting_.clients.values():
            if isinstance(client, Peer):
                client.ask(AveragingSide.resume, {"name": name, "epoch": number})
            elif isinstance(client.side, AveragingSide):
                client.side.steps_taken = int(state.meta["steps"])
                client.side.take_learnt(state.part("own").tensors)
        self._take_state(state)
        stopping.best, stopping.best_epoch = state.meta["best"]
        return number


class FedProx(FedAvg):
    """FedAvg whose clients stay near the model they were sent, and whose slow clients count.

    Client k minimises h_k(w) = F_k(w) + μ/2 ‖w − w_t‖², and may stop as soon as the gradient of h_k
    has shrunk by the factor γ (a γ-inexact solution). A straggler's partial work is used; how many
    epochs it gets done is drawn from 1 to ``local.epochs``.

    Args:
        mu: μ.
        gamma: γ; 0 never stops early and does not measure the gradient.
        stragglers: Share of a round's clients that are slow, for a simulation.

    The others as for :class:`FedAvg`. With μ = 0, γ = 0 and no stragglers it is FedAvg.

    Source: Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020, algorithm 2
    and definition 2. The mean is weighted by rows over a uniform sample of clients.
    """

    keeps_partial_work = True

    def __init__(
        self,
        *,
        mu: float = 0.01,
        gamma: float = 0.0,
        rounds: int = 20,
        network: BottomSpec = BottomSpec(),
        local: LocalTraining = LocalTraining(),
        participation: float = 1.0,
        stragglers: float = 0.0,
        weighting: Weighting = "rows",
        server_rate: float = 1.0,
        secure: bool = False,
        privacy: Privacy | None = None,
        agreement: Agreement = Agreement(),
        patience: int | None = None,
    ) -> None:
        super().__init__(
            rounds=rounds,
            network=network,
            local=local,
            participation=participation,
            stragglers=stragglers,
            weighting=weighting,
            server_rate=server_rate,
            secure=secure,
            privacy=privacy,
            agreement=agreement,
            patience=patience,
        )
        self.mu = mu
        self.gamma = gamma

    def _check(self) -> None:
        super()._check()
        if self.mu < 0 or not 0 <= self.gamma < 1:
            raise JobError("`mu` is at least 0 and `gamma` lies in [0, 1)")
        if self.gamma and self.privacy is not None and self.privacy.unit == "row":
            raise JobError(
                "when to stop would depend on the rows without noise; set `gamma: 0`, or leave "
                "the privacy for rows out"
            )

    def _settings(self) -> LocalSettings:
        extra = {"proximal": self.mu, "inexactness": self.gamma}
        return super()._settings().model_copy(update=extra)


class _ServerOptimiser(FedAvg):
    """FedAvg whose server takes the mean update as a gradient for an optimiser of its own.

    Buffers of the network (behind the parameters) are averaged as they are.
    """

    def _take_server_state(self, state: dict[str, Tensor]) -> None:
        nought = torch.zeros_like(self.model_.weights)
        self.first_ = state.get("first", nought).clone()
        self.second_ = state.get("second", nought).clone()

    def _server_state(self) -> dict[str, Tensor]:
        return {"first": self.first_, "second": self.second_}

    def _server_step(self, mean: Tensor) -> None:
        size = self.first_.numel()
        self.weights_[:size] += self._step_from(mean[:size])
        self.weights_[size:] += mean[size:]

    def _step_from(self, mean: Tensor) -> Tensor:
        raise NotImplementedError


class FedAvgM(_ServerOptimiser):
    """FedAvg with momentum at the server: m ← β m + Δ, w ← w + η m.

    Args:
        momentum: β.
        server_rate: η.

    The others as for :class:`FedAvg`.

    Source: Hsu, Qi and Brown, "Measuring the Effects of Non-Identical Data Distribution for
    Federated Visual Classification", arXiv 1909.06335, §3.
    """

    def __init__(
        self,
        *,
        momentum: float = 0.9,
        rounds: int = 20,
        network: BottomSpec = BottomSpec(),
        local: LocalTraining = LocalTraining(),
        participation: float = 1.0,
        stragglers: float = 0.0,
        weighting: Weighting = "rows",
        server_rate: float = 1.0,
        secure: bool = False,
        privacy: Privacy | None = None,
        agreement: Agreement = Agreement(),
        patience: int | None = None,
    ) -> None:
        super().__init__(
            rounds=rounds,
            network=network,
            local=local,
            participation=participation,
            stragglers=stragglers,
            weighting=weighting,
            server_rate=server_rate,
            secure=secure,
            privacy=privacy,
            agreement=agreement,
            patience=patience,
        )
        self.momentum = momentum

    def _step_from(self, mean: Tensor) -> Tensor:
        self.first_ = self.momentum * self.first_ + mean
        return self.server_rate * self.first_


class FedAdam(_ServerOptimiser):
    """FedAvg with Adam at the server.

    m ← β₁ m + (1 − β₁) Δ, v ← β₂ v + (1 − β₂) Δ², w ← w + η m / (√v + τ); without correction of
    the start's bias, as in the source.

    Args:
        beta1, beta2: β₁ and β₂.
        tau: τ, how adaptive it is: the smaller, the more.
        server_rate: η.

    The others as for :class:`FedAvg`.

    Source: Reddi et al., "Adaptive Federated Optimization", ICLR 2021, algorithm 2.
    """

    def __init__(
        self,
        *,
        beta1: float = 0.9,
        beta2: float = 0.99,
        tau: float = 1e-3,
        rounds: int = 20,
        network: BottomSpec = BottomSpec(),
        local: LocalTraining = LocalTraining(),
        participation: float = 1.0,
        stragglers: float = 0.0,
        weighting: Weighting = "rows",
        server_rate: float = 0.01,
        secure: bool = False,
        privacy: Privacy | None = None,
        agreement: Agreement = Agreement(),
        patience: int | None = None,
    ) -> None:
        super().__init__(
            rounds=rounds,
            network=network,
            local=local,
            participation=participation,
            stragglers=stragglers,
            weighting=weighting,
            server_rate=server_rate,
            secure=secure,
            privacy=privacy,
            agreement=agreement,
            patience=patience,
        )
        self.beta1 = beta1
        self.beta2 = beta2
        self.tau = tau

    def _step_from(self, mean: Tensor) -> Tensor:
        self.first_ = self.beta1 * self.first_ + (1 - self.beta1) * mean
        self.second_ = self._second(mean.square())
        return self.server_rate * self.first_ / (self.second_.sqrt() + self.tau)

    def _second(self, square: Tensor) -> Tensor:
        return self.beta2 * self.second_ + (1 - self.beta2) * square


class FedYogi(FedAdam):
    """FedAdam whose v changes slowly: v ← v − (1 − β₂) Δ² sign(v − Δ²).

    Args: as for :class:`FedAdam`.

    Source: Reddi et al., "Adaptive Federated Optimization", ICLR 2021, algorithm 2.
    """

    def _second(self, square: Tensor) -> Tensor:
        return self.second_ - (1 - self.beta2) * square * (self.second_ - square).sign()
