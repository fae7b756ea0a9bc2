"""k-means over horizontal parties: Lloyd's steps on the clients' sums.

Each client first clusters its own rows and sends its centres; the server clusters these, weighted
by their numbers of rows, for a start (k-FED). Then, until nothing moves::

    server                                      each client
      │ ── assign(centres) ───────────────────────► │   each row to its nearest centre
      │ ◄─ sums, counts and inertia by cluster ──── │   (k, columns + 2)
      │ centres ← sums / counts

which are the steps that the pooled rows would take. A centre or sum of fewer than five of a
client's rows would nearly be a row, so it stays at home; with secure aggregation, where the server
sees sums over all clients only, the sums are whole.

Source: Lloyd, IEEE Trans. Inf. Theory 1982; start: Dennis, Li and Smith, "Heterogeneity for the
Win: One-Shot Federated Clustering", ICML 2021.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interlace.boundary.kinds import (
    Ciphertext,
    Control,
    Histogram,
    ModelWeights,
    Prototype,
    RowSelection,
)
from interlace.errors import DataError, JobError, Refused
from interlace.federation import Federation
from interlace.methods.base import Clock, OnEpoch
from interlace.methods.horizontal.drift import Round
from interlace.methods.horizontal.linear import design
from interlace.methods.horizontal.method import HorizontalMethod
from interlace.methods.horizontal.schema import FEWEST
from interlace.methods.horizontal.side import Agreement, HorizontalSide
from interlace.models import seed_for
from interlace.party import operation


class KMeansSide(HorizontalSide):
    """What a client answers in k-means."""

    @operation
    def centres(self, start: Control) -> Prototype:
        """Centres of one's own clusters and their numbers of rows; float64 (k, columns + 1)."""
        from sklearn.cluster import KMeans

        x = self.points(self.parts["train"])
        k = min(int(start["clusters"]), len(x))
        seed = seed_for(self.terms.seed, "centres", self.party.name) % 2**32
        found = KMeans(k, n_init=3, random_state=seed).fit(x.numpy())
        out = torch.zeros(int(start["clusters"]), x.shape[1] + 1, dtype=torch.float64)
        counts = np.bincount(found.labels_, minlength=k)
        for i in np.flatnonzero(counts >= FEWEST):
            out[i, :-1] = torch.from_numpy(found.cluster_centers_[i])
            out[i, -1] = int(counts[i])
        return out

    @operation
    def assign(self, centres: ModelWeights) -> Histogram:
        """Sums, counts and inertia of the rows nearest to each centre; (k, columns + 2)."""
        sums = self.sums_near(centres)
        sums[sums[:, -2] < FEWEST] = 0.0
        return sums

    @operation
    def assign_masked(self, cohort: RowSelection, centres: ModelWeights) -> Ciphertext:
        """The same under masks, small clusters included."""
        sums = self.sums_near(centres)
        return self.masks.mask(sums.flatten(), 1.0, cohort, self.party.boundary.round)

    def sums_near(self, centres: Tensor) -> Tensor:
        """Sums, counts and inertia over this client's training rows."""
        x = self.points(self.parts["train"])
        if centres.shape[1:] != x.shape[1:]:
            raise Refused(f"centres of {x.shape[1]} columns were due")
        distance, nearest = torch.cdist(x, centres).min(1)
        out = torch.zeros(len(centres), x.shape[1] + 2, dtype=torch.float64)
        lines = torch.cat([x, torch.ones(len(x), 1), distance.square()[:, None]], 1)
        return out.index_add_(0, nearest, lines)

    def points(self, rows: Tensor) -> Tensor:
        """Rows as points; float64 (n, columns)."""
        return design(self.x.index_select(0, rows), self.plan.spec)[:, :-1]

    def outputs(self) -> NDArray[np.float64]:
        """1 for the cluster of each of one's own rows, 0 else; (n, k)."""
        assert self.final is not None
        rows = torch.arange(len(self.party))
        return np.asarray(clusters_of(self.points(rows), self.final))

    def figures(self, weights: Tensor, rows: Tensor) -> dict[str, float]:
        """Inertia of some rows."""
        distance = torch.cdist(self.points(rows), weights).min(1).values
        return {"rows": float(len(rows)), "loss": float(distance.square().sum())}


def clusters_of(points: Tensor, centres: Tensor) -> Tensor:
    """1 for the nearest centre of each point, 0 else; (n, k)."""
    nearest = torch.cdist(points, centres).argmin(1)
    return torch.nn.functional.one_hot(nearest, len(centres)).double()


class HorizontalKMeans(HorizontalMethod):
    """k-means over horizontal parties; needs no label.

    Args:
        clusters: k.
        rounds: Most of Lloyd's steps.
        tolerance: Stop when the centres move by less in all (squared distance).
        secure: Aggregate securely; the server sees the sums of all clients only (and, for the
            start, each client's centres of five rows or more).
        agreement: What the parties agree on about their tables.

    After :meth:`fit`: ``weights_``, the centres, float64 of shape (k, columns), standardised as
    ``plan_`` says, categories as one column a code.
    """

    side = KMeansSide
    protocol = "kmeans"
    supervised = False

    def __init__(
        self,
        *,
        clusters: int = 8,
        rounds: int = 50,
        tolerance: float = 1e-6,
        secure: bool = False,
        agreement: Agreement = Agreement(validation=0.0),
    ) -> None:
        self.clusters = clusters
        self.rounds = rounds
        self.tolerance = tolerance
        self.secure = secure
        self.agreement = agreement

    def fit(
        self,
        federation: Federation,
        *,
        checkpoint: str | None = None,
        on_epoch: OnEpoch | None = None,
    ) -> Self:
        """Find the clusters of all clients' rows.

        It keeps no checkpoint: a round is one pass over the rows.

        Raises:
            DataError: the parties' columns differ, or no client has clusters of five rows.
            JobError: fewer than one cluster.
        """
        if self.clusters < 1:
            raise JobError("`clusters` is at least 1")
        self._meet(federation)
        if self.plan_.spec.image:
            raise JobError("k-means reads tables, and these parties hold images")
        self.weights_ = self._start(federation.seed)
        clock, k = Clock(), self.clusters
        for number in range(1, self.rounds + 1):
            shape = (k, self.weights_.shape[1] + 2)
            sums = self._added_up(KMeansSide.assign, KMeansSide.assign_masked, shape, self.weights_)
            counts = sums[:, -2].round()
            moved = sums[:, :-2] / counts.clamp(min=1)[:, None]
            centres = torch.where((counts > 0)[:, None], moved, self.weights_)
            shift = float((centres - self.weights_).square().sum())
            loss = float(sums[:, -1].sum() / counts.sum().clamp(min=1))
            self.weights_ = centres
            record = Round(number, loss, None, clock.lap(), len(self.meeting_.clients))
            self.history_.append(record)
            if on_epoch:
                on_epoch(record)
            if shift <= self.tolerance:
                break
        self._finish()
        return self

    def _start(self, seed: int) -> Tensor:
        from sklearn.cluster import KMeans

        asked = {"clusters": self.clusters}
        found = torch.cat(
            [c.ask(KMeansSide.centres, asked) for c in self.meeting_.clients.values()]
        )
        some = found[found[:, -1] > 0]
        if len(some) < self.clusters:
            raise DataError(
                f"the clients have {len(some)} clusters of {FEWEST} rows or more between them, "
                f"{self.clusters} are asked for",
                party=self.active_.name,
                way_out="Ask for fewer clusters",
            )
        model = KMeans(self.clusters, n_init=10, random_state=seed_for(seed, "start") % 2**32)
        model.fit(some[:, :-1].numpy(), sample_weight=some[:, -1].numpy())
        return torch.from_numpy(model.cluster_centers_).double()

    def decide(self, outputs: NDArray[np.float64]) -> NDArray[Any]:
        """The cluster that is marked."""
        clusters: NDArray[np.int64] = outputs.argmax(1)
        return clusters

    def outputs(self, federation: Federation) -> NDArray[np.float64]:
        """1 for the cluster of each of the server's own rows in a view, 0 else; (n, k)."""
        return np.asarray(self._own_logits(federation))

    def score(self, federation: Federation) -> float:
        """Minus the mean squared distance of all clients' rows from their centres."""
        return -self.evaluate(federation)["pooled"]["loss"]

    def _logits(self, x: Tensor) -> Tensor:
        return clusters_of(design(x, self.plan_.spec)[:, :-1], self.weights_)
