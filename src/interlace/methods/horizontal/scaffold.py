"""SCAFFOLD: local steps corrected by control variates, so that clients do not drift apart.

Server x, c; client c_i, all variates nought at first. A round::

    server                                              each client i of the round
      │ ── correct(x, c) ─────────────────────────────► │   y ← y − η_l (∇f_i(y; batch) − c_i + c)
      │ ◄─────────────────────────────────── y − x ──── │
      │ ── variate() ─────────────────────────────────► │   I:  c_i⁺ = ∇f_i(x)
      │ ◄────────────────────────────── c_i⁺ − c_i ──── │   II: c_i⁺ = c_i − c + (x − y)/(K η_l)
      │ ── report() ──────────────────────────────────► │
      │ ◄──────────────────────────────── loss, K ───── │
      │ x ← x + η_g mean(y − x),   c ← c + |S|/N mean(c_i⁺ − c_i)

Twice the bytes of FedAvg travel. With secure aggregation both vectors travel as one ciphertext.

Source: Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML
2020, algorithm 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from interlace.boundary.kinds import Ciphertext, ModelWeights, RowSelection
from interlace.errors import JobError, Refused
from interlace.methods.horizontal.averaging import (
    AveragingSide,
    FedAvg,
    LocalSettings,
    Weighting,
)
from interlace.methods.horizontal.local import LocalTraining
from interlace.methods.horizontal.privacy import Privacy
from interlace.methods.horizontal.side import Agreement, Own
from interlace.models import BottomSpec
from interlace.party import Peer, operation

Option = Literal["I", "II"]


class ScaffoldSettings(LocalSettings):
    """What a client is told: as for FedAvg, and how its variate follows."""

    option: Option = "II"


class ScaffoldSide(AveragingSide):
    """What a client answers in SCAFFOLD."""

    settings_type = ScaffoldSettings
    control: Tensor | None = None  # c_i
    change: Tensor | None = None  # c_i⁺ − c_i of the last round

    @operation
    def correct(self, weights: ModelWeights, control: ModelWeights) -> ModelWeights:
        """Train from x with corrected steps; y − x, shape (1, d)."""
        return self.as_one_row(self.corrected(weights, control))

    @operation
    def variate(self) -> ModelWeights:
        """The change of one's control variate by the last round; (1, parameters)."""
        if self.change is None:
            raise Refused(f"party '{self.party.name}' has not trained in this round")
        change, self.change = self.change, None
        return self.as_one_row(change)

    @operation
    def correct_masked(
        self, weights: ModelWeights, control: ModelWeights, cohort: RowSelection
    ) -> Ciphertext:
        """Both vectors, one behind the other, weighted and under masks."""
        update = self.corrected(weights, control)
        assert self.change is not None
        return self.masked(torch.cat([update, self.change]), cohort)

    def corrected(self, weights: Tensor, control: Tensor) -> Tensor:
        """Train with corrected steps and renew the variate; the update of shape (d,)."""
        if self.control is None:
            self.control = torch.zeros_like(control)
        if self.control.shape != control.shape or control.numel() > weights.numel():
            raise Refused(f"a control variate of {self.control.numel():,} numbers was due")
        own = self.control
        renewed = None
        if self._option == "I":
            model = self.model()
            self._load(model, weights)
            renewed = self.client().gradient(model)
        update = self.update(weights, shift=control - own)
        if renewed is None:
            travelled = update[: own.numel()]  # y − x
            steps, rate = self.last.steps, self.settings.training.learning_rate
            renewed = own - control - travelled / (steps * rate)
        self.change = renewed - own
        self.control = renewed
        return update

    @property
    def _option(self) -> Option:
        assert isinstance(self.settings, ScaffoldSettings)
        return self.settings.option

    def learnt(self) -> dict[str, Tensor]:
        """The control variate."""
        return {} if self.control is None else {"control": self.control}

    def take_learnt(self, tensors: dict[str, Tensor]) -> None:
        """Take the control variate back."""
        self.control = tensors.get("control")


class Scaffold(FedAvg):
    """SCAFFOLD: corrects each client's steps by how its gradients differ from everybody's.

    Args:
        option: ``I`` takes the gradient at x over all of the client's rows as its new variate (one
            more pass), ``II`` the mean of the steps it took.
        server_rate: η_g; 1 is usual, √|S| what the theory of partial participation takes.
        weighting: ``uniform`` as in the source, or ``rows``: the objective, the steps and the
            variates then count each client as many times as it has rows.

    The others as for :class:`FedAvg`. Privacy can be asked for rows with option II, whose variate
    follows from the update; not for clients, whose variates would need noise of their own.

    Source: Karimireddy et al., ICML 2020, algorithm 1.
    """

    side = ScaffoldSide

    def __init__(
        self,
        *,
        option: Option = "II",
        rounds: int = 20,
        network: BottomSpec = BottomSpec(),
        local: LocalTraining = LocalTraining(),
        participation: float = 1.0,
        stragglers: float = 0.0,
        weighting: Weighting = "uniform",
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
        self.option = option

    def _check(self) -> None:
        super()._check()
        if self.privacy is not None and (self.privacy.unit == "client" or self.option == "I"):
            raise JobError(
                "SCAFFOLD's variates would leave without noise; take privacy for rows with "
                "option II, or FedAvg"
            )

    def _settings(self) -> LocalSettings:
        plain = super()._settings()
        return ScaffoldSettings(**dict(plain), option=self.option)

    def _take_server_state(self, state: dict[str, Tensor]) -> None:
        nought = torch.zeros_like(self.model_.weights)
        self.control_ = state.get("control", nought).clone()

    def _server_state(self) -> dict[str, Tensor]:
        return {"control": self.control_}

    def _start_training(self, client: Peer | Own) -> Callable[[], Tensor]:
        update = client.start(ScaffoldSide.correct, self.weights_, self.control_)

        def answer() -> Tensor:
            found = self._expect(client.name, update())
            change = client.ask(ScaffoldSide.variate)
            if change.shape != (1, self.control_.numel()):
                raise Refused(f"party '{client.name}' answered with a variate of another length")
            return torch.cat([found, change[0]])

        return answer

    def _start_masked(self, client: Peer | Own, cohort: Tensor) -> Callable[[], Tensor]:
        return client.start(ScaffoldSide.correct_masked, self.weights_, self.control_, cohort)

    @property
    def _width(self) -> int:
        return len(self.weights_) + len(self.control_)

    def _take(self, mean: Tensor, share: float) -> None:
        size = self.weights_.numel()
        self._server_step(mean[:size])
        self.control_ += share * mean[size:]
