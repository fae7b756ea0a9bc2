"""What a horizontal federation must be compared with: each client alone, and all rows in one table.

Both train the method itself, as it is set, in a federation of one: same network, as many steps a
row, no messages. With one client there is nothing to average, so FedAvg's relatives become FedAvg,
which is plain descent then; nothing leaves, so there is nothing to hide either: secure aggregation,
privacy, partial participation and stragglers are left out.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from typing import Any, Self

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from torch import Tensor

from interlace.engines import InProcess
from interlace.errors import InterlaceError
from interlace.federation import Federation
from interlace.methods.base import Method, OnEpoch
from interlace.methods.horizontal.averaging import FedAvg
from interlace.methods.horizontal.method import HorizontalMethod, by_client
from interlace.methods.horizontal.schema import agreed_label
from interlace.methods.horizontal.side import TableSide, Terms
from interlace.party import Party

_BY_ONESELF = {
    "secure": False,
    "privacy": None,
    "participation": 1.0,
    "stragglers": 0.0,
    "server_rate": 1.0,
}


class InOnePlace(Method):
    """Trains a horizontal method in federations of one.

    Args:
        method: What is trained, with its settings.
    """

    def __init__(self, method: HorizontalMethod) -> None:
        self.method = method

    @abstractmethod
    def evaluate(self, federation: Federation) -> dict[str, dict[str, float]]:
        """Figures on the rows that each client kept aside, by client and ``pooled`` over them."""

    def outputs(self, federation: Federation) -> NDArray[np.float64]:
        """Not defined: which model it were would depend on the row."""
        raise InterlaceError("this baseline is evaluated, and does not score single rows")

    def save(self, name: str) -> None:
        """A baseline of a simulation is not kept."""

    def load(self, name: str, federation: Federation) -> Self:
        """There is nothing to take."""
        raise InterlaceError("this baseline is not kept")

    def _by_oneself(self, **agreed: Any) -> HorizontalMethod:
        method: HorizontalMethod = clone(self.method)
        if isinstance(method, FedAvg):
            plain = inspect.signature(FedAvg).parameters
            settings = method.get_params(deep=False)
            method = FedAvg(**{k: v for k, v in settings.items() if k in plain})
        known = method.get_params(deep=False)
        method.set_params(**{k: v for k, v in _BY_ONESELF.items() if k in known})
        method.agreement = method.agreement.model_copy(update=agreed)
        return method

    def _met(self, federation: Federation) -> tuple[dict[str, TableSide], dict[str, Any]]:
        """Every client with its rows kept aside as in a federation, and the classes of them all.

        A client whose rows are of one class learns about the others' classes that they exist.
        """
        agreed, supervised = self.method.agreement, self.method.supervised
        terms = Terms(agreement=agreed, supervised=supervised, seed=federation.seed)
        sides = {p.name: TableSide(p, p.name) for p in _clients(federation)}
        told = {n: s.meet(terms.model_dump(mode="json"))["label"] for n, s in sides.items()}
        if not supervised or agreed.classes is not None:
            return sides, {}
        task = federation.active.task
        plan = agreed_label(told, None, task, federation.active.name)
        return sides, {"classes": plan.classes or None}


class ClientsAlone(InOnePlace):
    """Each client by itself: a model of its own rows, judged on the rows that it kept aside.

    Together these are the very rows that the federated model is judged on, each scored by the model
    that its own client would have. A client whose test rows hold few of the classes can look good.
    """

    def fit(
        self,
        federation: Federation,
        *,
        checkpoint: str | None = None,
        on_epoch: OnEpoch | None = None,
    ) -> Self:
        """Train one model at each client; ``on_epoch`` hears of none. It keeps no checkpoint."""
        sides, agreed = self._met(federation)
        self.history_ = []
        self.places_ = {n: _alone(side.party, federation.seed) for n, side in sides.items()}
        self.models_ = {
            name: self._by_oneself(**agreed).fit(place) for name, place in self.places_.items()
        }
        return self

    def evaluate(self, federation: Federation) -> dict[str, dict[str, float]]:
        """Figures of each client's model on its own rows kept aside."""
        answers: dict[str, dict[str, float]] = {}
        for name, place in self.places_.items():
            answers |= self.models_[name].answers(place, "test")
        return by_client(answers)


class PooledRows(InOnePlace):
    """All clients' rows in one table.

    It learns from the rows that no client kept aside for testing, and is judged on those that they
    did. It reads every table, so it runs only where one person holds them all.
    """

    def fit(
        self,
        federation: Federation,
        *,
        checkpoint: str | None = None,
        on_epoch: OnEpoch | None = None,
    ) -> Self:
        """Train one model on everybody's rows. It keeps no checkpoint."""
        sides, agreed = self._met(federation)
        self.tests_ = {n: _rows(s.party, s.parts["test"]) for n, s in sides.items()}
        learn_from = [
            _rows(s.party, torch.cat([s.parts["train"], s.parts["validation"]]).sort().values)
            for s in sides.values()
        ]
        validation = self.method.agreement.validation / (1 - self.method.agreement.test)
        first = next(iter(sides.values())).party
        pooled = Party(
            "pooled",
            pl.concat(learn_from, how="vertical_relaxed"),
            id=None,
            label=_LABEL if first.has_label else None,
            categories=sorted({c for s in sides.values() for c in s.party.categories}),
            task=federation.active.task,
            bottom=federation.active.bottom,
        )
        # As at the clients, who agreed; one whose rows all differ in a column has no say in it.
        told = [side.party.readings for side in sides.values()]
        pooled.readings = {
            name: next((r[name] for r in told if r[name].kind != "text"), told[0][name])
            for name in pooled.columns
        }
        self.pooled_ = _alone(pooled, federation.seed)
        model = self._by_oneself(**agreed, validation=validation, test=0.0)
        self.model_ = model.fit(self.pooled_, on_epoch=on_epoch)
        self.history_ = list(model.history_)
        return self

    def evaluate(self, federation: Federation) -> dict[str, dict[str, float]]:
        """Figures of the one model on each client's rows kept aside."""
        answers = {}
        for name, table in self.tests_.items():
            there = self.pooled_.with_tables({"pooled": table})
            (answers[name],) = self.model_.answers(there, "all").values()
        return by_client(answers)


_LABEL = "interlace label"


def _clients(federation: Federation) -> list[Party]:
    """Every party that has rows."""
    if not isinstance(federation.engine, InProcess):
        raise InterlaceError("other clients' tables can be read only where one person holds all")
    return [p for p in federation.engine.parties.values() if p.columns]


def _alone(party: Party, seed: int) -> Federation:
    """A federation of one."""
    return Federation(party, (), InProcess([party]), seed=seed)


def _rows(party: Party, rows: Tensor) -> pl.DataFrame:
    """Some rows of a client, its columns in one order and its label under one name."""
    frame = party.frame[rows.numpy()]
    label = [pl.col(c).alias(_LABEL) for c in party.labels_columns]
    return frame.select(*sorted(party.columns), *label)
