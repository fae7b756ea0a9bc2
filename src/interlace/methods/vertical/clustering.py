"""k-means and Gaussian mixtures over vertical parties.

A squared distance is a sum over columns, and so is the log-density of a normal distribution whose
columns are independent. Each party keeps its own columns' part of every cluster and sends its part
of these sums; the active party adds them up and says who belongs where::

    active                                                   passive k
      │ ── begin(training rows, clusters) ─────────────────────► │   scales its columns
      │ for each of several starts, until nothing gets better:
      │ ── distances_to(some people) ──────────────────────────► │   k-means++: c − 1 times
      │ ◄──────── each person's squared distance to these ────── │   (n, people)
      │ ── start(the people chosen) ───────────────────────────► │   centres: their rows
      │ ◄──────── each person's squared distance to these ────── │   (n, clusters)
      │    adds up; each person to the nearest centre
      │ ── move(cluster of each person) ───────────────────────► │   centres: clusters' means
      │ ◄─────── each person's squared distance to these ─────── │   (n, clusters)
      │    in a mixture, from the k-means clusters on:
      │ ── learn(probability of each cluster by person) ───────► │   means and variances
      │ ◄── its columns' part of each person's log-densities ─── │   (n, clusters)
      │ ── keep, checkpoint ───────────────────────────────────► │

These are the steps that the pooled, equally scaled table would take.

**What each party learns.** A passive party: who is in training and who belongs to which cluster,
never another party's columns or centres. The active party: for every person as many numbers as
there are clusters, again in every step, and the partner's share of the distance between any person
and those that k-means++ considers. It is never told a centre, but from so many distances it can
work out the partner's points up to a rotation or reflection: what leaves is an embedding of them.

Sources: Vaidya and Clifton, "Privacy-preserving k-means clustering over vertically partitioned
data", KDD 2003 (the same division of labour; its secure sums and comparisons are not here); Arthur
and Vassilvitskii, "k-means++", SODA 2007, with several candidates a centre as in scikit-learn;
Dempster, Laird and Rubin, "Maximum likelihood from incomplete data via the EM algorithm", JRSS B
1977.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import NotFittedError
from torch import Tensor

from interlace.boundary.control import whole_number
from interlace.boundary.kinds import Control, PartialScore, RowSelection
from interlace.data.features import FeaturePlan
from interlace.errors import AlignmentError, DataError, InterlaceError, JobError, Refused
from interlace.federation import Federation
from interlace.methods.base import (
    Clock,
    Count,
    Epoch,
    Method,
    OnEpoch,
    history_from_json,
    history_to_json,
    validated,
)
from interlace.methods.bottom import (
    MOST_EPOCHS,
    last_checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from interlace.methods.horizontal.linear import design
from interlace.methods.horizontal.side import Own
from interlace.models import seed_for
from interlace.party import PassiveSide, Peer, State, ask_all, operation, read_state, write_state

CHUNK = 2**17  # people scored in one message
MOST_CLUSTERS = 4096
FLOOR = 1e-6  # added to variances, as in scikit-learn, so that a cluster of one has a density

Covariance = Literal["diagonal", "spherical"]


class KMeansSide(PassiveSide):
    """A party's columns and its part of the centres; the active party has one for its own."""

    plan: FeaturePlan
    clusters: int
    rows: Tensor  # training people, in the conversation's order, as rows of the party's table
    x: Tensor  # their points, float64 (n, columns)
    part: dict[str, Tensor]  # what is learnt: `centres`, (clusters, columns)
    best: dict[str, Tensor]

    @operation
    def begin(self, rows: RowSelection, settings: Control) -> None:
        """Scale the columns by the people in training."""
        self.clusters = whole_number(settings, "clusters", MOST_CLUSTERS + 1, least=1)
        self.rows = self.mine(rows)
        party = self.party
        self.plan = FeaturePlan.fit(
            party.frame,
            party.columns,
            self.rows.numpy(),
            party=party.name,
            file=party.file,
            readings=party.readings,
        )
        if self.plan.spec.image:
            raise DataError(
                "clusters are found in tables, and this party holds images",
                party=party.name,
                file=party.file,
                way_out="Leave this party out",
            )
        self.x = self.points(self.rows)
        self.part, self.best = {}, {}

    @operation
    def distances_to(self, people: RowSelection) -> PartialScore:
        """Squared distances of all people in training to some of them; (n, people).

        ``people`` are places in the order of training.
        """
        return self._about_all(_squared(self.x, self._places(people)))

    @operation
    def start(self, people: RowSelection) -> PartialScore:
        """Take these people's points for centres; squared distances to them, (n, clusters)."""
        if len(people) != self.clusters:
            raise Refused(f"{self.clusters} people to start from were due")
        self.part = {"centres": self._places(people)}
        return self._about_all(_squared(self.x, self.part["centres"]))

    @operation
    def move(self, clusters: RowSelection) -> PartialScore:
        """Centres become the means of their clusters; squared distances to them, (n, clusters).

        The centre of a cluster without people stays where it is.
        """
        own = clusters.long()
        if len(own) != len(self.x) or own.min() < 0 or own.max() >= self.clusters:
            raise Refused(f"one of {self.clusters} clusters for each person was due")
        if "centres" not in self.part:
            raise Refused("there are no centres to move yet")
        counts = torch.bincount(own, minlength=self.clusters)[:, None]
        sums = torch.zeros_like(self.part["centres"]).index_add_(0, own, self.x)
        centres = torch.where(counts > 0, sums / counts.clamp(min=1), self.part["centres"])
        self.part = {"centres": centres}
        return self._about_all(_squared(self.x, centres))

    @operation
    def answer(self, rows: RowSelection) -> PartialScore:
        """The same of anybody shared, for the clusters that were kept; (rows, clusters)."""
        mine = self.mine(rows)
        self.party.boundary.about(mine)
        return self.sums(self.points(mine))

    @operation
    def keep(self) -> None:
        """Remember this start's clusters: it is the best so far."""
        self.best = {name: tensor.clone() for name, tensor in self.part.items()}

    @operation
    def checkpoint(self, at: Control) -> None:
        """Keep the best clusters so far in this party's own folder."""
        epoch = whole_number(at, "epoch", MOST_EPOCHS)
        write_checkpoint(self.party, at["name"], epoch, self.state())

    @operation
    def resume(self, at: Control) -> None:
        """Go back to a checkpoint."""
        epoch = whole_number(at, "epoch", MOST_EPOCHS)
        self.take(read_checkpoint(self.party, at["name"], epoch))

    @operation
    def save(self, model: Control) -> None:
        """Keep this party's part of the clusters in its own folder."""
        write_state(self.party.path("models", model["name"]), self.state())

    @operation
    def load(self, model: Control) -> None:
        """Take this party's part of the clusters."""
        self.take(read_state(self.party.path("models", model["name"])))

    # -- its own affairs -----------------------------------------------------------------------

    def sums(self, x: Tensor) -> Tensor:
        """What is added up over parties, for some points and the clusters that were kept."""
        return _squared(x, self.best["centres"])

    def points(self, rows: Tensor) -> Tensor:
        """Rows as points: standardised numbers and a column for each level; float64."""
        x = design(self.plan.transform(self.party.frame, rows), self.plan.spec)[:, :-1]
        self.party.boundary.protect(x)
        return x

    def mine(self, rows: Tensor) -> Tensor:
        """Rows of this party's table for the positions that are named.

        Raises:
            Refused: a position lies outside of the people shared with the active party.
        """
        if self.party.name == self.partner:
            return rows
        return torch.from_numpy(self._mine(rows))

    def forget_people(self) -> None:
        """The clusters stay; the former table's points go."""
        for name in ("rows", "x"):
            self.__dict__.pop(name, None)

    def state(self) -> State:
        """What a checkpoint or a saved model holds."""
        return State(self.best, {"plan": self.plan.to_json(), "clusters": self.clusters})

    def take(self, state: State) -> None:
        """Take back what :meth:`state` gave."""
        self.best = dict(state.tensors)
        self.plan = FeaturePlan.from_json(state.meta["plan"])
        self.clusters = int(state.meta["clusters"])

    def _places(self, people: Tensor) -> Tensor:
        if len(people) and not 0 <= int(people.min()) <= int(people.max()) < len(self.x):
            raise Refused("a person outside of the training was named")
        return self.x[people.long()]

    def _about_all(self, answer: Tensor) -> Tensor:
        self.party.boundary.about(self.rows)
        return answer


class MixtureSide(KMeansSide):
    """The same with a variance for every cluster and column (or for all columns of the party)."""

    spherical: bool

    @operation
    def spread(self, settings: Control) -> None:
        """Whether all columns of the party share a variance."""
        self.spherical = settings.get("covariance") == "spherical"

    @operation
    def learn(self, probabilities: PartialScore) -> PartialScore:
        """Means and variances from each person's probability of each cluster, (n, clusters).

        Returns:
            The columns' part of each person's log-density by cluster, (n, clusters).
        """
        r = probabilities.double()
        if r.shape != (len(self.x), self.clusters) or r.min() < 0 or r.max() > 1:
            raise Refused(f"probabilities of {self.clusters} clusters by person were due")
        weight = r.sum(0)[:, None] + 10 * torch.finfo(torch.float64).eps
        means = r.T @ self.x / weight
        variances = r.T @ self.x.square() / weight - means.square() + FLOOR
        if self.spherical:
            variances = variances.mean(1, keepdim=True).expand_as(means)
        self.part = {"means": means, "variances": variances.contiguous()}
        return self._about_all(_log_density(self.x, means, variances))

    def sums(self, x: Tensor) -> Tensor:
        """Log-densities of some points."""
        return _log_density(x, self.best["means"], self.best["variances"])


def _squared(x: Tensor, centres: Tensor) -> Tensor:
    """Squared distances (n, k)."""
    return torch.cdist(x, centres, compute_mode="donot_use_mm_for_euclid_dist").square()


def _log_density(x: Tensor, means: Tensor, variances: Tensor) -> Tensor:
    """Log-densities (n, k) of normal distributions with independent columns."""
    out = torch.empty(len(x), len(means), dtype=torch.float64)
    for k, (mean, variance) in enumerate(zip(means, variances, strict=True)):
        out[:, k] = -0.5 * ((x - mean).square() / variance + (2 * math.pi * variance).log()).sum(1)
    return out


class _Clustering(Method):
    """What k-means and mixtures over vertical parties share: starts, the best one, keeping."""

    supervised = False
    alike = True
    side: ClassVar[type[KMeansSide]]
    protocol: ClassVar[str]
    clusters: int
    rounds: int
    tolerance: float
    starts: int
    labels_: NDArray[np.int64]

    @abstractmethod
    def _one_start(self, rng: np.random.Generator) -> float:
        """Find clusters from one start; returns the loss, a mean over people."""

    @property
    def epochs(self) -> int:
        """Most epochs: starts."""
        return self.starts

    def fit(
        self,
        federation: Federation,
        *,
        checkpoint: str | None = None,
        on_epoch: OnEpoch | None = None,
    ) -> Self:
        """Find clusters of the people whom all parties hold; an epoch is one start.

        Raises:
            AlignmentError: fewer people are shared than there are clusters.
            DataError: a party's columns tell nobody apart, or are images.
        """
        validated(type(self), self.get_params(deep=False))
        fed = federation.shared()
        if not 1 <= self.clusters <= MOST_CLUSTERS:
            raise JobError(f"`clusters` lies between 1 and {MOST_CLUSTERS:,}")
        if len(fed.rows) < self.clusters:
            raise AlignmentError(
                f"{len(fed.rows):,} people are held by all parties, fewer than the "
                f"{self.clusters} clusters; ask for fewer"
            )
        self.people_ = torch.from_numpy(fed.rows)
        self._meet(fed)
        settings = {"clusters": self.clusters}
        for name, part in self.parts_.items():
            part.post(KMeansSide.begin, self._positions(fed, name), settings)
        self._agree()
        self.history_: list[Epoch] = []
        self.loss_ = math.inf
        done = self._resume(fed, checkpoint) if checkpoint else 0
        clock = Clock()
        for number in range(done, self.starts):
            fed.active.boundary.round += 1
            loss = self._one_start(np.random.default_rng(seed_for(fed.seed, "start", number)))
            if loss < self.loss_:
                self.loss_ = loss
                self._keep()
            record = Epoch(number + 1, loss, None, clock.lap())
            self.history_.append(record)
            if checkpoint:
                self._checkpoint(fed, checkpoint, number + 1)
            if on_epoch:
                on_epoch(record)
        self.labels_ = self.predict(fed)
        return self

    def _agree(self) -> None:
        """What else the parties agree on before the first start."""

    def _keep(self) -> None:
        """Remember this start's clusters at every party."""
        for part in self.parts_.values():
            part.post(KMeansSide.keep)

    def _meet(self, fed: Federation) -> None:
        """Open the conversation; the active party's own columns come first, if it has any."""
        self.active_ = fed.active
        peers = fed.open(self.protocol, self.side)
        self.session_ = next((peer.session for peer in peers.values()), None)
        self.parts_: dict[str, Own | Peer] = {**peers}
        if fed.active.columns:
            self.parts_ = {fed.active.name: Own(self.side(fed.active, fed.active.name)), **peers}

    def _positions(self, fed: Federation, party: str) -> Tensor:
        """Where a view's people stand at a party."""
        own = party == fed.active.name
        return torch.from_numpy(fed.rows) if own else fed.positions(party, fed.rows)

    def _total(self, op: Callable[..., Tensor], *arguments: Any) -> Tensor:
        """All parties' answers to one question about the people in training, added up."""
        return self._sum(self.people_, op, dict.fromkeys(self.parts_, arguments))

    def _sum(
        self, people: Tensor, op: Callable[..., Tensor], arguments: dict[str, tuple[Any, ...]]
    ) -> Tensor:
        """All parties' answers about some people of the active party, (people, columns).

        Raises:
            Refused: an answer has another shape than the others.
        """
        asked = {}
        for name, part in self.parts_.items():
            self.active_.boundary.about(people)
            asked[name] = part.start(op, *arguments[name])
        total: Tensor | None = None
        for name, waited in asked.items():
            answer = waited().double()
            if total is None:
                total = torch.zeros(len(people), answer.shape[-1], dtype=torch.float64)
            if answer.shape != total.shape:
                raise Refused(
                    f"party '{name}' answered with shape {tuple(answer.shape)}, "
                    f"{tuple(total.shape)} was due"
                )
            total += answer
        assert total is not None  # some party has columns
        return total

    # -- k-means, from which mixtures start ----------------------------------------------------

    def _seeds(self, rng: np.random.Generator) -> Tensor:
        """People to start from, far from each other: k-means++."""
        count = len(self.people_)
        chosen = [int(rng.integers(count))]
        tried = 2 + int(math.log(self.clusters))
        nearest: NDArray[np.float64] | None = None
        while len(chosen) < self.clusters:
            if nearest is None:
                first = self._total(KMeansSide.distances_to, torch.tensor(chosen))
                nearest = np.maximum(first.numpy()[:, 0], 0)
            reach = np.cumsum(nearest)
            at = np.searchsorted(reach, rng.random(tried) * reach[-1])
            some = np.minimum(at, count - 1)
            far = self._total(KMeansSide.distances_to, torch.from_numpy(some)).numpy()
            left = np.minimum(nearest[:, None], np.maximum(far, 0))  # a guard's noise may be below
            best = int(left.sum(0).argmin())
            nearest = left[:, best]
            chosen.append(int(some[best]))
        return torch.tensor(chosen)

    def _lloyd(self, rng: np.random.Generator, rounds: int, tolerance: float) -> Tensor:
        """Squared distances (n, clusters) after so many steps from one start."""
        distances = self._total(KMeansSide.start, self._seeds(rng))
        loss = math.inf
        for _ in range(rounds):
            nearest = distances.min(1)
            before, loss = loss, float(nearest.values.mean())
            if before - loss <= tolerance:
                break
            self.active_.boundary.round += 1
            small = torch.uint8 if self.clusters <= 256 else torch.int32
            distances = self._total(KMeansSide.move, nearest.indices.to(small))
        return distances

    # -- scoring -------------------------------------------------------------------------------

    def sums(self, federation: Federation) -> NDArray[np.float64]:
        """For a view's people, all of whom every party must hold, and each cluster: the squared
        distance to its centre (k-means) or the log-density (mixture); (n, clusters)."""
        if not hasattr(self, "parts_"):
            raise NotFittedError(f"this {type(self).__name__} has learnt nothing yet; call `fit`")
        if not len(federation.rows):
            raise InterlaceError("there is nobody to score in this view of the federation")
        if self.session_ is not None:
            peers = federation.peers(self.session_)
            self.parts_ = {n: peers.get(n, part) for n, part in self.parts_.items()}
        own = self.parts_.get(federation.active.name)
        if isinstance(own, Own) and own.side.party is not federation.active:
            self.parts_[federation.active.name] = Own(own.side.at(federation.active))
        where = {name: self._positions(federation, name) for name in self.parts_}
        found = []
        for start in range(0, len(federation.rows), CHUNK):
            some = slice(start, start + CHUNK)
            people = torch.from_numpy(federation.rows[some])
            rows = {name: (places[some],) for name, places in where.items()}
            found.append(self._sum(people, KMeansSide.answer, rows))
        return np.asarray(torch.cat(found))

    def predict_proba(self, federation: Federation) -> NDArray[np.float64]:
        """The probability of each cluster, (n, clusters); of k-means, 1 for the nearest centre."""
        return self.outputs(federation)

    def decide(self, outputs: NDArray[np.float64]) -> NDArray[Any]:
        """The most likely cluster of each person, from 0."""
        clusters: NDArray[np.int64] = outputs.argmax(1)
        return clusters

    # -- keeping -------------------------------------------------------------------------------

    def save(self, name: str) -> None:
        """Every party keeps its own part of the clusters under ``name`` in its own folder."""
        for peer in self._peers():
            peer.ask(KMeansSide.save, {"name": name})
        write_state(self.active_.path("models", name), self._state())

    def load(self, name: str, federation: Federation) -> Self:
        """Take the parts that :meth:`save` kept."""
        self._meet(federation)
        for peer in self._peers():
            peer.ask(KMeansSide.load, {"name": name})
        self._take(read_state(federation.active.path("models", name)))
        return self

    def _peers(self) -> Sequence[Peer]:
        return [part for part in self.parts_.values() if isinstance(part, Peer)]

    def _own(self) -> KMeansSide | None:
        own = self.parts_.get(self.active_.name)
        return own.side if isinstance(own, Own) and isinstance(own.side, KMeansSide) else None

    def _state(self) -> State:
        own = self._own()
        held = own.state() if own is not None else State({}, {})
        meta: dict[str, Any] = {
            "own": held.meta,
            "clusters": self.clusters,
            "history": history_to_json(self.history_),
            "loss": self.loss_,
            "round": self.active_.boundary.round,
        }
        return State(held.tensors, meta)

    def _take(self, state: State) -> None:
        own = self._own()
        if own is not None:
            own.take(State(state.tensors, state.meta["own"]))
        self.history_ = history_from_json(state.meta["history"])
        self.loss_ = float(state.meta["loss"])
        self.active_.boundary.round = int(state.meta["round"])

    def _checkpoint(self, fed: Federation, name: str, epoch: int) -> None:
        ask_all(self._peers(), KMeansSide.checkpoint, {"name": name, "epoch": epoch})
        state = self._state()
        state.meta["made_for"] = self._fingerprint(fed)
        write_checkpoint(fed.active, name, epoch, state)

    def _resume(self, fed: Federation, name: str) -> int:
        """Go back to the last checkpoint, if there is one. Returns the starts done.

        Raises:
            JobError: it was made with other settings or people.
        """
        last = last_checkpoint(fed.active, name, self._fingerprint(fed))
        if last is None:
            return 0
        epoch, state = last
        for peer in self._peers():
            peer.ask(KMeansSide.resume, {"name": name, "epoch": epoch})
        self._take(state)
        return epoch


class VerticalKMeans(_Clustering):
    """k-means over vertical parties; needs no label.

    Args:
        clusters: k.
        rounds: Most of Lloyd's steps in a start.
        tolerance: Stop when the mean squared distance falls by no more than that.
        starts: How often to begin anew by k-means++; the best end counts.

    After :meth:`fit`: ``labels_``, the cluster of each person in training, and ``loss_``, their
    mean squared distance from the nearest centre, over all parties' standardised columns. Each
    party's columns of the centres stay at that party.
    """

    side = KMeansSide
    protocol = "kmeans"

    def __init__(
        self,
        *,
        clusters: Count = 8,
        rounds: Count = 50,
        tolerance: float = 1e-6,
        starts: Count = 10,
    ) -> None:
        self.clusters = clusters
        self.rounds = rounds
        self.tolerance = tolerance
        self.starts = starts

    def _one_start(self, rng: np.random.Generator) -> float:
        distances = self._lloyd(rng, self.rounds, self.tolerance)
        return float(distances.min(1).values.mean())

    def outputs(self, federation: Federation) -> NDArray[np.float64]:
        """1 for the cluster of each person, 0 else; (n, clusters)."""
        nearest = self.sums(federation).argmin(1)
        return np.asarray(np.eye(self.clusters)[nearest])

    def score(self, federation: Federation) -> float:
        """Minus the mean squared distance of a view's people from their centres."""
        return -float(self.sums(federation).min(1).mean())

    def figures(self, federation: Federation) -> dict[str, float]:
        """``distance``, and with two clusters or more the simplified ``silhouette``."""
        found = np.sqrt(np.maximum(self.sums(federation), 0))
        out = {"distance": float(np.square(found.min(1)).mean())}
        if self.clusters > 1:
            own, other = np.sort(found, axis=1)[:, :2].T
            out["silhouette"] = float(((other - own) / np.where(other > 0, other, 1)).mean())
        return out


class VerticalGaussianMixture(_Clustering):
    """A mixture of normal distributions over vertical parties, by EM; needs no label.

    Columns are independent within a cluster, since only then does a density come apart by parties:
    a full covariance would need products of two parties' columns.

    Args:
        clusters: How many normal distributions.
        covariance: ``diagonal``: a variance for each cluster and column; ``spherical``: one for
            each cluster and party, over its columns.
        rounds: Most EM steps in a start.
        tolerance: Stop when the mean log-likelihood of a person rises by no more than that.
        starts: How often to begin anew, each time from a k-means; the best end counts.

    After :meth:`fit`: ``labels_``, the most likely cluster of each person in training;
    ``weights_``, (clusters,), how large each is; and ``loss_``, minus the mean log-likelihood.
    Means and variances stay at the party whose columns they are of.
    """

    side = MixtureSide
    protocol = "mixture"

    def __init__(
        self,
        *,
        clusters: Count = 8,
        covariance: Covariance = "diagonal",
        rounds: Count = 100,
        tolerance: float = 1e-3,
        starts: Count = 10,
    ) -> None:
        self.clusters = clusters
        self.covariance = covariance
        self.rounds = rounds
        self.tolerance = tolerance
        self.starts = starts

    def _agree(self) -> None:
        for part in self.parts_.values():
            part.post(MixtureSide.spread, {"covariance": self.covariance})

    def _one_start(self, rng: np.random.Generator) -> float:
        nearest = self._lloyd(rng, rounds=50, tolerance=1e-6).argmin(1)
        r = torch.nn.functional.one_hot(nearest, self.clusters).double()
        loss = math.inf
        for _ in range(self.rounds):
            self.active_.boundary.round += 1
            density = self._total(MixtureSide.learn, r)
            self._weights = r.mean(0).clamp(min=torch.finfo(torch.float64).tiny)
            joint = density + self._weights.log()
            before, loss = loss, -float(joint.logsumexp(1).mean())
            if before - loss <= self.tolerance:
                break
            r = joint.softmax(1)
        return loss

    def _keep(self) -> None:
        super()._keep()
        self.weights_ = np.asarray(self._weights)

    def outputs(self, federation: Federation) -> NDArray[np.float64]:
        """The probability of each cluster; (n, clusters)."""
        return np.asarray(self._joint(federation).softmax(1))

    def score(self, federation: Federation) -> float:
        """The mean log-likelihood of a view's people."""
        return float(self._joint(federation).logsumexp(1).mean())

    def figures(self, federation: Federation) -> dict[str, float]:
        """``log_likelihood``."""
        return {"log_likelihood": self.score(federation)}

    def _joint(self, federation: Federation) -> Tensor:
        return torch.from_numpy(self.sums(federation) + np.log(self.weights_))

    def _state(self) -> State:
        state = super()._state()
        state.meta["weights"] = self.weights_.tolist()
        return state

    def _take(self, state: State) -> None:
        super()._take(state)
        self.weights_ = np.array(state.meta["weights"])
