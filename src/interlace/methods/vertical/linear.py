"""Generalised linear models over vertical parties: linear, logistic, Poisson, Tweedie.

A person's score is η = b + Σ_k x_k·w_k: each party keeps its own weights w_k, and the active party,
who has the label, the intercept b. With d = ∂loss/∂η, party k's slope is X_kᵀd/n. ::

    active                                                       passive k
      │ ── begin(training rows, penalties) ───────────────────────► │   scales its columns
      │ ── terms ─────────────────────────────────────────────────► │
      │ ◄──────────────────────── encryption that its policy allows │
      │ ── take_key(public key) ──────────────────────────────────► │
      │ for every step:
      │ ── propose(direction, length) ────────────────────────────► │   trial weights
      │ ◄──────────────────── penalty there, gradient along the step│
      │ ── scores ────────────────────────────────────────────────► │
      │ ◄──────────────────────────────────── its part of the scores│
      │    the loss is less, or the length is halved
      │ ── slope_encrypted([d]) ──────────────────────────────────► │
      │ ◄────────────────────────────────── [X_kᵀd + random numbers]│
      │ ── unmask(the same, opened) ──────────────────────────────► │   takes its numbers off
      │ ── products ──────────────────────────────────────────────► │
      │ ◄────────────── scalar products among steps and gradients ──│
      │    L-BFGS on the sums of these says where to go
      │ ── checkpoint ────────────────────────────────────────────► │

and to score people:
      │ ── partial_scores(rows) ──────────────────────────────────► │
      │ ◄───────────────────────────────────────── a number a person│

That is ``protocol="active_key"``: the loss is exact, and the active party sees each partner's part
of the scores at every step. With ``encryption="none"`` d travels in clear. Two more protocols show
scores to nobody; their residuals must be lines in the scores (least squares, or a sigmoid that is
approximated by one), since ciphertexts can only be added:

- ``two_keys`` (one partner): each side encrypts its part of d under its own key; the other takes
  the product with its columns, masks it, and has it opened. So each gets its own slope alone.
- ``arbiter``: all parts of d are encrypted under the key of a party without a table, and the sums
  that it opens are masked (Hardy et al., "Private federated learning on vertically partitioned data
  via entity resolution and additively homomorphic encryption", arXiv 1711.10677).

The step that L-BFGS proposes is then shortened or lengthened to the parabola's least, for which the
slope at its end says enough; nobody needs the loss.

**What each party learns.** A passive party: who is in training, its own slope at every step, and
the directions' coefficients; in clear, d, which names labels. The active party, in clear and with
``active_key``: the partner's part of the scores at every step: after as many steps as the partner
has columns, that is all linear combinations of these columns, without saying which is which; with
the other two protocols its own slope alone; and always scalar products among each partner's steps
and slopes. The arbiter: random numbers. Scoring shows the active party the partner's part of the
score. All are taken to be honest but curious: who opens masked sums cannot tell which they are.

Sources: Hardy et al. for the messages with an arbiter; Yang et al., "Parallel distributed logistic
regression for vertical federated learning without third-party coordinator", arXiv 1911.09824, for
the active party's key (both from memory, not checked against the papers); Chen et al. (NIPS 2014)
and Andrew and Gao (ICML 2007) for L-BFGS by scalar products and with an L1 penalty.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, Protocol, Self, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from sklearn.exceptions import NotFittedError
from torch import Tensor

from interlace.crypto.base import PrivateKey, PublicKey, Vector, Workload, unmasked
from interlace.crypto.schemes import SCHEMES, Scheme, generate, read_public_key
from interlace.data.labels import LabelPlan
from interlace.errors import AlignmentError, DataError, InterlaceError, JobError, Refused
from interlace.federation import Federation
from interlace.job.results import Sheet
from interlace.methods.base import (
    AboveZero,
    AtLeastZero,
    Clock,
    Count,
    Epoch,
    Method,
    OnEpoch,
    batches,
    history_from_json,
    history_to_json,
    shuffled,
)
from interlace.methods.bottom import last_checkpoint, write_checkpoint
from interlace.methods.objective import ClassWeight, Objective
from interlace.methods.vertical import linear_side as sides
from interlace.methods.vertical.linear_side import MODEL, ArbiterSide, LinearSettings, LinearSide
from interlace.models.glm import (
    MEMORY,
    Block,
    Columns,
    Family,
    Floats,
    Integers,
    Penalty,
    Sigmoid,
    lbfgs,
    sigmoid_error,
    sigmoid_slope,
)
from interlace.party import Peer, State, ask_all

CHUNK = 2**17  # people scored in one message
HALVINGS = 20  # of a step before it counts as none
SUFFICIENT = 1e-4  # share of the promised fall of the loss that a step must bring (Armijo)
ROUNDING = 1e-13  # rises of the loss, beside it, that count as none
HEADROOM = 4  # scores of a party, beside those of a usual one, that still can be encrypted
NOISE = 2  # a slope of that many times what rounding may have left of it counts as none
SINGULAR = 1e-10

Encryption = Literal["auto", "none", "rlwe-fast", "rlwe-strict", "okamoto-uchiyama", "paillier"]
Batch = Integers | None  # places among the rows in training; all of them


# -- parties as the optimiser sees them --------------------------------------------------------


class _Share(Protocol):
    """A party's share of the weights: the active party's own, or a partner's."""

    def products(self) -> Floats:
        """Scalar products among its last steps, their turns and its gradient."""

    def propose(self, direction: Floats, length: float) -> tuple[float, float]:
        """Set trial weights; the penalty there and the gradient along the step."""

    def cost(self) -> float:
        """The penalty."""

    def take(self) -> None:
        """Go to the trial weights, whose slope is known."""

    def shorten(self, share: float) -> None:
        """Go back to a share of the last step."""

    def descend(self, rate: float) -> None:
        """One step of gradient descent against the slope that is known."""


class _Own:
    """The active party's own columns and the intercept."""

    def __init__(self, columns: Columns | None, x: Floats, outputs: int, penalty: Penalty) -> None:
        self.columns = columns
        self.x = np.concatenate([x, np.ones((len(x), 1))], axis=1)
        penalised = np.append(np.ones(x.shape[1]), 0.0)
        self.block = Block.of(self.x, penalised, outputs, penalty)
        self.slope = np.zeros_like(self.block.v)
        self.whole, self.unit = np.zeros((0, 0), dtype=np.int64), 1.0

    def set_intercept(self, start: Floats) -> None:
        """Begin with scores that are ``start`` for everybody."""
        coefficients = np.zeros((self.x.shape[1], len(start)))
        coefficients[-1] = start
        inverse = np.linalg.pinv(self.block.transform)
        self.block.v = np.asarray(inverse @ coefficients, dtype=np.float64)
        self.block.trial = self.block.v

    def use_whole(self, factor: int) -> None:
        """Round the columns to whole numbers, for products with ciphertexts."""
        self.whole, self.unit = sides.whole_columns(self.block.z, factor)

    def scores(self, batch: Batch) -> Floats:
        """Its part of the scores."""
        return self.block.scores(slice(None) if batch is None else batch)

    def rows(self, batch: Batch) -> Floats:
        """Its uncorrelated columns."""
        return self.block.z if batch is None else self.block.z[batch]

    def products(self) -> Floats:
        return self.block.products()

    def propose(self, direction: Floats, length: float) -> tuple[float, float]:
        return self.block.propose(direction, length)

    def cost(self) -> float:
        return self.block.cost()

    def take(self) -> None:
        self.block.take(self.slope)

    def shorten(self, share: float) -> None:
        self.block.shorten(share)

    def descend(self, rate: float) -> None:
        self.block.descend(self.slope, rate)


class _Partner:
    """A partner's columns, of which nothing is known."""

    def __init__(self, peer: Peer, people: Tensor) -> None:
        self.peer, self.name, self.people = peer, peer.name, people

    def products(self) -> Floats:
        table = self.peer.ask(LinearSide.products).double().numpy()
        if table.shape != (2 * MEMORY + 1, 2 * MEMORY + 1):
            raise self.wrong("a table of scalar products that is none")
        return np.asarray(table)

    def propose(self, direction: Floats, length: float) -> tuple[float, float]:
        along = torch.from_numpy(direction)
        answer = self.peer.ask(LinearSide.propose, along, {"length": length})
        return self._number(answer, "penalty"), self._number(answer, "along")

    def cost(self) -> float:
        return self._number(self.peer.ask(LinearSide.cost), "penalty")

    def take(self) -> None:
        self.peer.post(LinearSide.take)

    def shorten(self, share: float) -> None:
        self.peer.post(LinearSide.shorten, {"share": share})

    def descend(self, rate: float) -> None:
        self.peer.post(LinearSide.descend, {"rate": rate})

    def wrong(self, what: str) -> Refused:
        """What a partner's answer cannot be."""
        return Refused(f"party '{self.name}' answered with {what}")

    def _number(self, answer: dict[str, Any], name: str) -> float:
        value = answer.get(name)
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise self.wrong("a figure that is no number")
        return float(value)


# -- protocols: how slopes come about ----------------------------------------------------------


class _Open:
    """The active party sees all scores; residuals travel in clear, or under its own key."""

    def __init__(self, own: _Own, partners: Sequence[_Partner], outputs: int) -> None:
        self.own, self.partners, self.outputs = own, partners, outputs
        self.key: PrivateKey | None = None
        self.batch: Batch = None
        self.noise = 0.0  # of the whole slope, as rounding to whole numbers left it

    def use_key(self, key: PrivateKey) -> None:
        """Encrypt residuals from now on."""
        self.key = key
        public = key.public.to_tensor()
        for partner in self.partners:
            partner.peer.post(LinearSide.take_key, public)

    def about(self, batch: Batch) -> None:
        """What follows is about these rows."""
        self.batch = batch
        _about(self.partners, batch)

    def scores(self) -> Floats:
        """All parties' scores together at the trial weights, (rows, outputs)."""
        asked = [(partner, partner.peer.start(LinearSide.scores)) for partner in self.partners]
        total = self.own.scores(self.batch)
        for partner, answer in asked:
            found = answer()
            if tuple(found.shape) != total.shape:
                raise partner.wrong(f"scores of shape {tuple(found.shape)}, not {total.shape}")
            total = total + found.double().numpy()
        return total

    def slope(self, residual: Floats) -> None:
        """Give every party its slope for residuals (rows, outputs)."""
        z = self.own.rows(self.batch)
        self.own.slope = z.T @ residual / len(z)
        if self.key is None:
            for partner in self.partners:
                people = partner.people if self.batch is None else partner.people[self.batch]
                partner.peer.me.boundary.about(people)
                partner.peer.post(LinearSide.slope, torch.from_numpy(residual))
            return
        largest = self.key.public.workload.largest
        most = float(np.abs(residual).max(initial=0.0))
        unit = 2.0 ** math.ceil(math.log2(most / largest)) if most else 1.0
        columns = 0
        for output in range(self.outputs):
            numbers = sides.whole_vector(residual[:, output], unit, largest, "all")
            sealed = self.key.encrypt(numbers).to_tensor()
            agreed = {"unit": unit, "output": output}
            asked = [
                (partner.peer, partner.peer.start(LinearSide.slope_encrypted, sealed, agreed))
                for partner in self.partners
            ]
            for peer, answer in asked:
                opened = sides.opened(self.key, answer())
                columns += len(opened) // 8
                peer.post(LinearSide.unmask, opened, agreed)
        self.noise = unit * math.sqrt(columns / 12 / len(z))


class _Sealed:
    """Nobody sees a score: parts of the residuals are encrypted, and are lines in the scores.

    Args:
        own: The active party's share.
        partners: The others.
        slope: Of the residual by the score.
        pull: The part of the residuals that no weight changes, (rows, outputs).
        unit: What one of the whole numbers encrypted stands for.
        key: The active party's own key, or ``None`` with an arbiter.
        publics: The keys that each partner's part is encrypted under.
        arbiter: Who opens everything, or ``None`` where each side opens for the other.
    """

    def __init__(
        self,
        own: _Own,
        partners: Sequence[_Partner],
        *,
        slope: float,
        pull: Floats,
        unit: float,
        key: PrivateKey | None,
        public: PublicKey,
        arbiter: Peer | None,
    ) -> None:
        self.own, self.partners = own, partners
        self.line, self.pull, self.unit = slope, pull, unit
        self.key, self.public, self.arbiter = key, public, arbiter
        self.noise = 0.0  # of the whole slope, as rounding to whole numbers left it

    def slope(self) -> None:
        """Give every party its slope at the trial weights."""
        own, people, columns = self.own, len(self.own.x), 0
        mine = self.line * own.scores(None) + self.pull
        largest = self.public.workload.largest
        for output in range(self.pull.shape[1]):
            agreed = {"unit": self.unit, "output": output}
            peers = (partner.peer for partner in self.partners)
            answers = ask_all(peers, LinearSide.sealed_scores, agreed).values()
            parts = [sides.read_vector(self.public, answer, people) for answer in answers]
            numbers = sides.whole_vector(mine[:, output], self.unit, largest, "active")
            sealed = (self.key or self.public).encrypt(numbers)
            for i, partner in enumerate(self.partners):
                others = [sealed, *parts[:i], *parts[i + 1 :]]
                total = others[0] if self.key else self._added(others)
                answer = partner.peer.ask(LinearSide.slope_encrypted, total.to_tensor(), agreed)
                opened = sides.opened(self.key, answer) if self.key else self._ask_arbiter(answer)
                columns += len(opened) // 8
                partner.peer.post(LinearSide.unmask, opened, agreed)
            columns += own.whole.shape[1]
            sums, masks = self.public.masked_product(self._added(parts), own.whole)
            answer = sums.to_tensor()
            if self.arbiter is None:
                opened = self.partners[0].peer.ask(LinearSide.open, answer)
            else:
                opened = self._ask_arbiter(answer)
            found = sides.from_bytes(opened, own.whole.shape[1])
            products = unmasked(found, masks, own.whole, self.public.workload)
            theirs = products * (self.unit * own.unit)
            own.slope[:, output] = (theirs + own.block.z.T @ mine[:, output]) / people
        self.noise = self.unit * math.sqrt(len(self.partners) * columns / 12 / people)

    def _added(self, parts: Sequence[Vector]) -> Vector:
        total = parts[0]
        for part in parts[1:]:
            total = self.public.add(total, part)
        return total

    def _ask_arbiter(self, sums: Tensor) -> Tensor:
        assert self.arbiter is not None
        return self.arbiter.ask(ArbiterSide.open, sums)


def _products(shares: Sequence[_Share]) -> Floats:
    """Scalar products over all parties' weights."""
    return np.asarray(np.sum([share.products() for share in shares], axis=0))


def _about(partners: Sequence[_Partner], batch: Batch) -> None:
    for partner in partners:
        if batch is None:
            partner.peer.post(LinearSide.everybody)
        else:
            partner.peer.post(LinearSide.batch, torch.from_numpy(batch.astype(np.int32)))


# -- the methods -------------------------------------------------------------------------------


class GeneralisedLinear(Method):
    """What linear, logistic, Poisson and Tweedie regression over vertical parties share.

    Minimises the mean loss (half the deviance) plus ``l1`` ‖w‖₁ + ``l2``/2 ‖w‖², the intercept left
    free, over standardised columns.

    After :meth:`fit`: ``family_``, ``own_`` (the active party's columns), ``weights_`` (of these,
    and of the intercept last, (columns + 1, outputs)), ``errors_`` (their standard errors) and
    ``converged_``. Partners' weights are with the partners.
    """

    # A subclass may read tables in another way, at the active party and at its partners.
    side: ClassVar[type[LinearSide]] = LinearSide
    # It is compared with itself on fewer and on all columns.
    alike: ClassVar[bool] = True

    l1: float
    l2: float
    solver: Literal["lbfgs", "sgd"]
    max_iter: int
    tol: float
    learning_rate: float
    batch_size: int
    class_weight: ClassWeight = None
    encryption: Encryption
    protocol: sides.Protocol = "active_key"
    sigmoid: Sigmoid = "exact"
    sigmoid_range: float = 8.0
    inference: bool

    # -- learning ------------------------------------------------------------------------------

    @property
    def helped(self) -> bool:  # type: ignore[override]
        """Whether it needs a party without a table, that holds the key."""
        return self.protocol == "arbiter"

    @property
    def epochs(self) -> int:
        """Most epochs: steps of L-BFGS, or passes of SGD."""
        return self.max_iter

    def fit(
        self,
        federation: Federation,
        *,
        checkpoint: str | None = None,
        on_epoch: OnEpoch | None = None,
    ) -> Self:
        """Learn from the shared, labelled people of a view; an epoch is one step of L-BFGS, or one
        pass of SGD.

        Raises:
            JobError: a setting is out of range or does not fit the task.
            DataError: a party has no usable column, or labels do not fit.
            Refused: a partner's answer cannot be honest.
        """
        self._check()
        fed = federation.shared().labelled()
        if len(fed.rows) < 2:
            raise AlignmentError(
                f"{len(fed.rows)} people are held by all parties and have a label; "
                "at least two are needed to learn from"
            )
        self.label_plan_ = fed.label_plan
        y, weight = self._labels(fed)
        own, partners = self._begin(fed)
        own.set_intercept(self.family_.start(y, weight))
        self.history_: list[Epoch] = []
        self._keep = _Keeper(self, fed, own, partners, checkpoint, on_epoch)
        loss = self._keep.resume()
        self._optimise(fed, own, partners, y, weight, loss)
        self.weights_, self.own_ = own.block.weights, own.columns
        self.errors_: Floats | None = None
        self.freedom_: float | None = None
        if self.inference:
            self._infer(fed, own, partners, y, weight)
        for partner in partners:
            partner.peer.ask(LinearSide.finish)
        del self._keep
        return self

    def _check(self) -> None:
        for name in ("l1", "l2", "tol"):
            if not getattr(self, name) >= 0:
                raise JobError(f"`{name}` must be at least 0")
        for name in ("max_iter", "batch_size"):
            if not getattr(self, name) >= 1:
                raise JobError(f"`{name}` must be at least 1")
        for name in ("learning_rate", "sigmoid_range"):
            if not getattr(self, name) > 0:
                raise JobError(f"`{name}` must be above 0")
        for name, known in (
            ("solver", ("lbfgs", "sgd")),
            ("encryption", ("auto", "none", *SCHEMES)),
            ("protocol", get_args(sides.Protocol)),
            ("sigmoid", get_args(Sigmoid)),
        ):
            if getattr(self, name) not in known:
                raise JobError(f"`{name}` is one of: {', '.join(known)}")
        if self.inference and self.l1:
            raise JobError("an L1 penalty leaves coefficients without standard errors; set l1=0")
        if self.inference and self.protocol != "active_key":
            raise JobError(
                "standard errors need partners' parts of the scores, which "
                f"`protocol: {self.protocol}` hides"
            )
        if self.inference and (self.class_weight is not None or self.sigmoid != "exact"):
            raise JobError(
                "standard errors are the likelihood's own, which `class_weight` and lines for the "
                "sigmoid change: leave these out, or train with `inference: false`"
            )
        if self.protocol == "active_key":
            return
        if self.encryption == "none":
            raise JobError(f"`protocol: {self.protocol}` needs an encryption")
        if self.l1 or self.solver == "sgd" or self.class_weight is not None:
            raise JobError(
                f"where nobody sees scores (`protocol: {self.protocol}`) there is no loss to find "
                "a step by, and no person's weight can be put on a ciphertext: use `lbfgs`, `l1` "
                "of 0, and no `class_weight`"
            )

    def _family(self, fed: Federation) -> Family:
        """The loss for a label.

        Raises:
            JobError: they do not fit.
        """
        raise NotImplementedError

    def _labels(self, fed: Federation) -> tuple[Floats, Floats]:
        """Labels and weights of a view's people, the weights' mean 1; fixes the family."""
        self.family_ = self._family(fed)
        if self.protocol != "active_key" and not self.family_.quadratic:
            raise JobError(
                f"ciphertexts can only be added, so `protocol: {self.protocol}` needs a residual "
                "that is a line in the scores: least squares, or a logistic regression with "
                "`sigmoid: taylor` or `minimax`"
            )
        if self.inference and self.family_.outputs > 1:
            raise JobError("standard errors are for models with one score a person")
        target = fed.y
        agreed = Objective.fit(fed.label_plan, target, self.class_weight)
        y = target.double().numpy()
        weight = np.ones(len(y))
        if agreed.weight is not None:
            if (agreed.weight < 0).any():
                raise JobError("a `class_weight` is negative")
            weight = agreed.weight.double().numpy()[target.numpy()]
        if not weight.sum() > 0:
            raise JobError("the weights of the people to train on add up to 0; see `class_weight`")
        return y, weight / weight.mean()

    def _begin(self, fed: Federation) -> tuple[_Own, list[_Partner]]:
        """Have every party read its columns."""
        self.active_, self.peers_ = fed.active, fed.open("linear", self.side)
        self.session_ = next((peer.session for peer in self.peers_.values()), None)
        outputs, penalty = self.family_.outputs, Penalty(self.l1, self.l2)
        columns, x = None, np.zeros((len(fed.rows), 0))
        if fed.active.columns:
            columns = self.side.kind.fit(
                fed.active.frame,
                fed.active.columns,
                fed.rows,
                party=fed.active.name,
                file=fed.active.file,
                readings=fed.active.readings,
            )
            x = columns.matrix(fed.active.frame, fed.rows)
        own = _Own(columns, x, outputs, penalty)
        fed.active.boundary.protect(torch.from_numpy(own.x), torch.from_numpy(own.block.z))
        settings = LinearSettings(
            outputs=outputs,
            l1=self.l1,
            l2=self.l2,
            protocol=None if self.encryption == "none" else self.protocol,
            slope=self.family_.slope or 1.0,
        ).model_dump(mode="json")
        partners = []
        for name, peer in self.peers_.items():
            rows = fed.positions(name, fed.rows).to(torch.int32)
            peer.ask(LinearSide.begin, rows, settings)
            partners.append(_Partner(peer, torch.from_numpy(fed.rows)))
        return own, partners

    def _optimise(
        self,
        fed: Federation,
        own: _Own,
        partners: list[_Partner],
        y: Floats,
        weight: Floats,
        loss: float | None,
    ) -> None:
        shares: list[_Share] = [own, *partners]
        rows = len(y)
        schemes = sides.agree_on_schemes(self.encryption, fed.active, self.peers_, LinearSide.terms)
        self.scheme_: Scheme | None = None
        if self.encryption == "none" or not partners:
            way = _Open(own, partners, self.family_.outputs)
        else:
            scheme = sides.scheme_for(self.encryption, rows, len(shares), self.protocol, schemes)
            workload = sides.workload_for(scheme, rows, len(shares), self.protocol)
            self.scheme_ = scheme
            if self.protocol != "active_key":
                sealed = self._sealed(fed, own, partners, scheme, asdict(workload), y)
                self._parabola(sealed, shares, y, loss)
                return
            way = _Open(own, partners, self.family_.outputs)
            way.use_key(generate(scheme, workload))
        if self.solver == "sgd":
            self._descend(fed.seed, way, shares, y, weight)
        else:
            self._quasi_newton(way, shares, y, weight)

    def _sealed(
        self,
        fed: Federation,
        own: _Own,
        partners: list[_Partner],
        scheme: Any,
        workload: dict[str, int],
        y: Floats,
    ) -> _Sealed:
        """Keys for the protocols that show scores to nobody."""
        family = self.family_
        slope = 1.0 if family.slope is None else family.slope
        pull = -(family.targets(y) - (0.0 if family.slope is None else 0.5))
        usual = 1.0 if family.slope is not None else float(y.std()) or 1.0
        largest = workload["largest"]
        unit = 2.0 ** math.ceil(math.log2(HEADROOM * usual / largest))
        asked = {"scheme": scheme, **workload}
        if self.protocol == "two_keys":
            if len(partners) > 1:
                raise JobError("`protocol: two_keys` is for two parties; more take an arbiter")
            key = generate(scheme, Workload(**workload))
            peer = partners[0].peer
            public = read_public_key(peer.ask(LinearSide.make_key, asked))
            peer.post(LinearSide.take_key, key.public.to_tensor())
            arbiter = None
        else:
            arbiter = self._arbiter(fed)
            made = arbiter.ask(ArbiterSide.make_key, asked)
            key, public = None, read_public_key(made)
            for partner in partners:
                partner.peer.post(LinearSide.take_key, made)
        sides.check_enough(fed.active, len(y), own.block, own.columns)
        own.use_whole(public.workload.factor)
        return _Sealed(
            own,
            partners,
            slope=slope,
            pull=pull,
            unit=unit,
            key=key,
            public=public,
            arbiter=arbiter,
        )

    def _arbiter(self, fed: Federation) -> Peer:
        """The party without a table that holds the key."""
        if not fed.helpers:
            raise JobError(
                "`protocol: arbiter` needs a party without a table, which holds the key: add one "
                "to the federation"
            )
        name = fed.helpers[0]
        session = self.session_ or "linear"
        fed.engine.open(session, ArbiterSide, name, fed.active.name)
        return Peer(fed.active, name, fed.engine, session)

    def _quasi_newton(
        self, way: _Open, shares: Sequence[_Share], y: Floats, weight: Floats
    ) -> None:
        """L-BFGS with steps that are halved until the loss falls enough."""
        family, clock = self.family_, Clock()
        scale = family.scale(y, weight)
        eta = way.scores()
        loss = float((weight * family.losses(eta, y)).mean()) + sum(s.cost() for s in shares)
        curvature = 1.0
        if not self.history_:
            self._take_slope(way, shares, eta, y, weight)
            if family.outputs == 1:
                curvature = float((weight * family.information(eta)).mean()) or 1.0
        self.converged_ = False
        for number in range(len(self.history_), self.max_iter):
            products = _products(shares)
            if math.sqrt(products[-1, -1]) <= max(self.tol * scale, NOISE * way.noise):
                self.converged_ = True
                break
            direction = lbfgs(products)
            if not number:
                direction /= curvature
            length = 1.0
            for _ in range(HALVINGS):
                figures = [share.propose(direction, length) for share in shares]
                eta = way.scores()
                with np.errstate(over="ignore", invalid="ignore"):
                    after = float((weight * family.losses(eta, y)).mean())
                after += sum(penalty for penalty, _ in figures)
                along = sum(along for _, along in figures)
                if after <= loss + SUFFICIENT * along + ROUNDING * abs(loss):
                    break
                if -along <= ROUNDING * abs(loss):
                    length = 0.0
                    break
                length /= 2
            else:
                length = 0.0
            if not length:  # whole numbers and floats tell no better weights apart
                self._stay(shares)
                self.converged_ = True
                break
            loss = after
            self._take_slope(way, shares, eta, y, weight)
            self._keep.epoch(Epoch(number + 1, loss, None, clock.lap()))

    def _stay(self, shares: Sequence[_Share]) -> None:
        """Set the trial weights back to where training stands."""
        for share in shares:
            share.propose(np.zeros(2 * MEMORY + 1), 0.0)

    def _take_slope(
        self, way: _Open, shares: Sequence[_Share], eta: Floats, y: Floats, weight: Floats
    ) -> None:
        way.slope(weight[:, None] * self.family_.residuals(eta, y))
        for share in shares:
            share.take()

    def _parabola(
        self, way: _Sealed, shares: Sequence[_Share], y: Floats, loss: float | None
    ) -> None:
        """L-BFGS on a quadratic function, whose least along each step two slopes tell."""
        clock, scale = Clock(), self.family_.scale(y, np.ones_like(y))
        if loss is None:
            own = shares[0]
            assert isinstance(own, _Own)
            loss = float(self.family_.losses(own.scores(None), y).mean())
            way.slope()
            for share in shares:
                share.take()
        self.converged_ = False
        for number in range(len(self.history_), self.max_iter):
            products = _products(shares)
            if math.sqrt(products[-1, -1]) <= max(self.tol * scale, NOISE * way.noise):
                self.converged_ = True
                break
            direction = lbfgs(products)
            for share in shares:
                share.propose(direction, 1.0)
            way.slope()
            for share in shares:
                share.take()
            products = _products(shares)
            curve, after = products[MEMORY - 1, 2 * MEMORY - 1], products[MEMORY - 1, -1]
            before = after - curve
            if not curve > 0:  # noise of the whole numbers: this is as near as they come
                for share in shares:
                    share.shorten(0.0)
                self.converged_ = True
                break
            share_of = max(0.0, -before / curve)
            for share in shares:
                share.shorten(share_of)
            loss += share_of * before + share_of**2 * curve / 2
            self._keep.epoch(Epoch(number + 1, loss, None, clock.lap()))

    def _descend(
        self, seed: int, way: _Open, shares: Sequence[_Share], y: Floats, weight: Floats
    ) -> None:
        """Stochastic gradient descent; the rate falls as one over the root of the pass."""
        family, clock = self.family_, Clock()
        self.converged_ = False
        # The same batches in every pass: sums over others would be further equations on the same
        # people's residuals, and in the end as many as there are people.
        order = shuffled(len(y), seed, 0).numpy()
        for number in range(len(self.history_), self.max_iter):
            for part in batches(len(y), self.batch_size):
                way.about(order[part])
                eta = way.scores()
                some = order[part]
                way.slope(weight[some, None] * family.residuals(eta, y[some]))
                for share in shares:
                    share.descend(self.learning_rate / math.sqrt(number + 1))
            way.about(None)
            loss = float((weight * family.losses(way.scores(), y)).mean())
            loss += sum(share.cost() for share in shares)
            if not math.isfinite(loss):
                raise InterlaceError("the loss is not finite: lower the `learning_rate`")
            before = self.history_[-1].loss if self.history_ else math.inf
            self._keep.epoch(Epoch(number + 1, loss, None, clock.lap()))
            if abs(before - loss) <= self.tol * abs(loss):
                self.converged_ = True
                break

    # -- standard errors -----------------------------------------------------------------------

    def _infer(
        self, fed: Federation, own: _Own, partners: list[_Partner], y: Floats, weight: Floats
    ) -> None:
        """Standard errors of all parties' coefficients, each party's own for itself.

        Partners show their uncorrelated columns, turned at random. With H the penalised and F the
        plain information matrix, the weights' covariance is φ H⁻¹FH⁻¹/n.
        """
        family = self.family_
        if own.block.transform.shape[0] > own.block.transform.shape[1]:
            raise sides.singular(fed.active)
        blocks = [own.block.z]
        for partner in partners:
            shown = partner.peer.ask(LinearSide.probe).double().numpy()
            if len(shown) != len(y):
                raise partner.wrong(f"columns of {len(shown):,} people, not {len(y):,}")
            blocks.append(shown)
        z, n = np.concatenate(blocks, axis=1), len(y)
        eta = own.scores(None)
        for partner in partners:
            eta = eta + partner.peer.ask(LinearSide.scores).double().numpy()
        information = weight * family.information(eta)
        plain = (z * information[:, None]).T @ z / n
        ends = np.cumsum([0, *(block.shape[1] for block in blocks)])
        spans = [slice(a, b) for a, b in pairwise(ends)]
        whole = plain.copy()
        for span, block in zip(spans, blocks, strict=True):
            if self.l2:  # each party's columns and its penalty together make 1
                whole[span, span] += np.eye(block.shape[1]) - block.T @ block / n
        sizes = np.linalg.eigvalsh(whole)
        if sizes[0] <= SINGULAR * sizes[-1]:
            raise InterlaceError(
                "columns of one party follow from another's, or tell the classes apart without "
                "error, so coefficients have no standard errors: leave some out, take a penalty "
                "`l2`, or train with `inference: false`"
            )
        inverse = np.linalg.inv(whole)
        self.freedom_, spread = self._dispersion(eta, y, weight, z.shape[1])
        covariance = spread * inverse @ plain @ inverse / n
        for span, partner in zip(spans[1:], partners, strict=True):
            partner.peer.ask(
                LinearSide.take_covariance,
                torch.from_numpy(np.ascontiguousarray(covariance[span, span])),
                {} if self.freedom_ is None else {"freedom": self.freedom_},
            )
        self.errors_ = sides.standard_errors(own.block.transform, covariance[spans[0], spans[0]])

    def _dispersion(
        self, eta: Floats, y: Floats, weight: Floats, weights: int
    ) -> tuple[float | None, float]:
        """Degrees of freedom, where the spread φ is estimated from the data, and φ."""
        family = self.family_
        if family.name == "binomial" or (family.name == "tweedie" and family.power == 1):
            return None, 1.0
        mean, left = family.mean(eta)[:, 0], len(y) - weights
        if left < 1:
            raise JobError("there are no more people than coefficients: no standard errors")
        variance = 1.0 if family.name == "gaussian" else mean**family.power
        return float(left), float((weight * (y - mean) ** 2 / variance).sum() / left)

    # -- what was learnt -----------------------------------------------------------------------

    def summary(self) -> list[dict[str, Any]]:
        """A line for each of the active party's own columns and the intercept: coefficients, and
        with ``inference`` standard error, z and p. Partners find theirs in their own model file,
        or by ``LinearSide.summary``."""
        names = [*(self.own_.names if self.own_ else ()), "intercept"]
        return sides.summary(names, self.weights_, self.errors_, self.freedom_)

    def schemes(self) -> dict[str, str]:
        """The encryption of the residuals."""
        return {"residuals": self.scheme_} if self.scheme_ else {}

    def sheets(self) -> list[Sheet]:
        """The active party's own coefficients; partners' are with the partners."""
        classes = self.label_plan_.classes
        many = self.family_.outputs > 1
        columns = [f"coefficient, {c}" for c in classes] if many else ["coefficient"]
        if self.errors_ is not None:
            columns += ["standard error", "z", "p"]
        rows: list[list[str | int | float | None]] = [
            [
                line["column"],
                *line["coefficients"],
                *(line[name] for name in ("standard_error", "z", "p") if name in line),
            ]
            for line in self.summary()
        ]
        note = (
            "Numbers are in standard deviations of their column. Each partner's coefficients are "
            "in its own model file."
        )
        if (slope := self.family_.slope) is not None:
            note += (
                f" The sigmoid is ½ + {slope:.3g} z, which is off by up to "
                f"{sigmoid_error(slope, 2):.2g} for scores z up to 2, and "
                f"{sigmoid_error(slope, 8):.2g} up to 8."
            )
        if not self.converged_:
            note += f" Training had not converged after {self.max_iter} steps: raise `max_iter`."
        return [
            Sheet(
                title=f"Coefficients at {self.active_.name}",
                note=note,
                columns=["column", *columns],
                rows=rows,
            )
        ]

    def outputs(self, federation: Federation) -> NDArray[np.float64]:
        """Predictions for a view's people, all of whom every party must hold."""
        mean = self.family_.mean(self.scores(federation))
        if self.label_plan_.task == "regression":
            return mean[:, 0]
        return np.concatenate([1 - mean, mean], axis=1) if self.family_.outputs == 1 else mean

    def scores(self, federation: Federation) -> NDArray[np.float64]:
        """Linear predictors η, (n, outputs); one message to each partner for 131,072 people."""
        if not hasattr(self, "weights_"):
            raise NotFittedError(f"this {type(self).__name__} has learnt nothing yet; call `fit`")
        rows = federation.rows
        if not len(rows):
            raise InterlaceError("there is nobody to score in this view of the federation")
        if self.session_ is not None:
            self.peers_ = federation.peers(self.session_)
        out = np.tile(self.weights_[-1], (len(rows), 1))
        where = {name: federation.positions(name, rows).to(torch.int32) for name in self.peers_}
        for start in range(0, len(rows), CHUNK):
            part = slice(start, start + CHUNK)
            asked = {
                name: peer.start(LinearSide.partial_scores, where[name][part])
                for name, peer in self.peers_.items()
            }
            if self.own_ is not None:
                x = self.own_.matrix(federation.active.frame, rows[part])
                out[part] += x @ self.weights_[:-1]
            for name, answer in asked.items():
                found = answer()
                if tuple(found.shape) != out[part].shape:
                    raise Refused(
                        f"party '{name}' answered with scores of shape {tuple(found.shape)}, "
                        f"{out[part].shape} was asked for"
                    )
                out[part] += found.double().numpy()
        return out

    # -- keeping -------------------------------------------------------------------------------

    def save(self, name: str) -> None:
        """Every party keeps its own coefficients as JSON."""
        for peer in self.peers_.values():
            peer.ask(LinearSide.save, {"name": name})
        part = sides.share_to_json(self.own_, self.weights_, self.errors_, self.freedom_)
        model = {
            "party": self.active_.name,
            "label_plan": self.label_plan_.to_json(),
            "family": asdict(self.family_),
            "history": history_to_json(self.history_),
            "converged": self.converged_,
        }
        MODEL.write(self.active_, name, model | part)

    def load(self, name: str, federation: Federation) -> Self:
        """Take the parts that :meth:`save` kept."""
        model = MODEL.read(federation.active, name)
        self.active_, self.peers_ = federation.active, federation.open("linear", self.side)
        self.session_ = next((peer.session for peer in self.peers_.values()), None)
        self.label_plan_ = LabelPlan.from_json(model["label_plan"])
        self.family_ = Family(**model["family"])
        self.history_ = history_from_json(model["history"])
        self.converged_ = bool(model["converged"])
        columns = model["columns"]
        self.own_ = None if columns is None else self.side.kind.from_json(columns)
        self.weights_ = np.array(model["coefficients"]).reshape(-1, self.family_.outputs)
        self.errors_, self.freedom_ = sides.errors_from_json(model)
        for partner, peer in self.peers_.items():
            if peer.ask(LinearSide.load, {"name": name}).get("outputs") != self.family_.outputs:
                raise InterlaceError(
                    f"party '{partner}' keeps a part of another model than '{name}'; save it anew"
                )
        return self


class _Keeper:
    """Records epochs, and keeps checkpoints if asked to."""

    def __init__(
        self,
        method: GeneralisedLinear,
        fed: Federation,
        own: _Own,
        partners: Sequence[_Partner],
        name: str | None,
        on_epoch: OnEpoch | None,
    ) -> None:
        self.method, self.fed, self.own, self.partners = method, fed, own, partners
        self.name, self.on_epoch = name, on_epoch

    def epoch(self, record: Epoch) -> None:
        """Note one epoch."""
        self.method.history_.append(record)
        self.fed.active.boundary.round += 1
        if self.name:
            at = {"name": self.name, "epoch": record.number}
            ask_all((partner.peer for partner in self.partners), LinearSide.checkpoint, at)
            meta = {
                "history": history_to_json(self.method.history_),
                "made_for": self.method._fingerprint(self.fed),
                "round": self.fed.active.boundary.round,
            }
            state = State(sides.block_state(self.own.block), meta)
            write_checkpoint(self.fed.active, self.name, record.number, state)
        if self.on_epoch:
            self.on_epoch(record)

    def resume(self) -> float | None:
        """Go back to the last checkpoint, if there is one; the loss then.

        Raises:
            JobError: it was made with other settings or people.
        """
        if self.name is None:
            return None
        last = last_checkpoint(self.fed.active, self.name, self.method._fingerprint(self.fed))
        if last is None:
            return None
        done, state = last
        for partner in self.partners:
            partner.peer.ask(LinearSide.resume, {"name": self.name, "epoch": done})
        sides.restore_block(self.own.block, state.tensors, self.own.x)
        self.method.history_ = history_from_json(state.meta["history"])
        self.fed.active.boundary.round = int(state.meta["round"])
        return self.method.history_[-1].loss


class LogisticRegression(GeneralisedLinear):
    """Logistic regression over vertical parties; multinomial where there are more classes.

    scikit-learn's ``C`` is 1 / (n · ``l2``).

    Args:
        l1, l2: Penalties; both together are an elastic net.
        solver: ``lbfgs`` (quasi-Newton, all people at every step) or ``sgd``.
        max_iter: Most steps, or passes.
        tol: ``lbfgs`` stops when the gradient's norm, by uncorrelated columns and in the target's
            units, is at most this; ``sgd`` when a pass changes the loss by no larger share.
        learning_rate: Of ``sgd``; it falls as one over the root of the pass.
        batch_size: Of ``sgd``.
        class_weight: ``balanced``, a weight by class as in the label column, or ``None``.
        encryption: ``none``, ``auto`` (the quickest that holds the numbers), or a scheme.
        protocol: ``active_key``, ``two_keys`` or ``arbiter``.
        sigmoid: ``exact``; ``taylor`` (½ + z/4) or ``minimax`` (the line with the least error up to
            ``sigmoid_range``), one class against the rest, which the last two protocols need.
        sigmoid_range: Of ``minimax``.
        inference: Standard errors, z and p. Partners then show the space that their columns span.
    """

    def __init__(
        self,
        *,
        l1: AtLeastZero = 0.0,
        l2: AtLeastZero = 1e-3,
        solver: Literal["lbfgs", "sgd"] = "lbfgs",
        max_iter: Count = 100,
        tol: AtLeastZero = 1e-6,
        learning_rate: AboveZero = 0.5,
        batch_size: Count = 256,
        class_weight: ClassWeight = None,
        encryption: Encryption = "auto",
        protocol: sides.Protocol = "active_key",
        sigmoid: Sigmoid = "exact",
        sigmoid_range: AboveZero = 8.0,
        inference: bool = False,
    ) -> None:
        self.l1 = l1
        self.l2 = l2
        self.solver = solver
        self.max_iter = max_iter
        self.tol = tol
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.class_weight = class_weight
        self.encryption = encryption
        self.protocol = protocol
        self.sigmoid = sigmoid
        self.sigmoid_range = sigmoid_range
        self.inference = inference

    def _family(self, fed: Federation) -> Family:
        plan = fed.label_plan
        if plan.task not in ("binary", "multiclass"):
            raise JobError(f"a logistic regression is for classes, not for a {plan.task} label")
        slope = None
        if self.sigmoid != "exact":
            slope = sigmoid_slope(self.sigmoid, self.sigmoid_range)
        if plan.task == "binary":
            return Family("binomial", slope=slope)
        return Family("multinomial", len(plan.classes), slope=slope)


class LinearRegression(GeneralisedLinear):
    """Least squares over vertical parties: ridge, lasso and elastic net by their penalties.

    Args:
        l1, l2: Penalties: scikit-learn's ``Ridge`` has ``alpha`` = n · ``l2``, its ``ElasticNet``
            ``alpha`` · ``l1_ratio`` = ``l1`` and ``alpha`` · (1 - ``l1_ratio``) = ``l2``.
        solver, max_iter, tol, learning_rate, batch_size, encryption, protocol, inference: As for
            :class:`LogisticRegression`.
    """

    def __init__(
        self,
        *,
        l1: AtLeastZero = 0.0,
        l2: AtLeastZero = 1e-3,
        solver: Literal["lbfgs", "sgd"] = "lbfgs",
        max_iter: Count = 100,
        tol: AtLeastZero = 1e-6,
        learning_rate: AboveZero = 0.1,
        batch_size: Count = 256,
        encryption: Encryption = "auto",
        protocol: sides.Protocol = "active_key",
        inference: bool = False,
    ) -> None:
        self.l1 = l1
        self.l2 = l2
        self.solver = solver
        self.max_iter = max_iter
        self.tol = tol
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.encryption = encryption
        self.protocol = protocol
        self.inference = inference

    def _family(self, fed: Federation) -> Family:
        _needs_quantity(fed)
        return Family("gaussian")


class TweedieRegression(GeneralisedLinear):
    """A quantity that is never negative, with log link and a variance of μ^``power``.

    Args:
        power: 1 is Poisson, 2 gamma; between them are sums of random length, as insurance claims.
        l1, l2: Penalties; scikit-learn's ``alpha`` is ``l2``.
        solver, max_iter, tol, learning_rate, batch_size, encryption, inference: As for
            :class:`LogisticRegression`.
    """

    def __init__(
        self,
        *,
        power: Annotated[float, Field(ge=1, le=3)] = 1.5,
        l1: AtLeastZero = 0.0,
        l2: AtLeastZero = 1e-3,
        solver: Literal["lbfgs", "sgd"] = "lbfgs",
        max_iter: Count = 100,
        tol: AtLeastZero = 1e-6,
        learning_rate: AboveZero = 0.1,
        batch_size: Count = 256,
        encryption: Encryption = "auto",
        inference: bool = False,
    ) -> None:
        self.power = power
        self.l1 = l1
        self.l2 = l2
        self.solver = solver
        self.max_iter = max_iter
        self.tol = tol
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.encryption = encryption
        self.inference = inference

    @property
    def variance_power(self) -> float:
        """The variance goes with μ^``power``."""
        return self.power

    def _family(self, fed: Federation) -> Family:
        _needs_quantity(fed)
        power = self.power
        if not 1 <= power <= 3:
            raise JobError("`power` lies between 1 and 3")
        y = fed.y
        wrong = int((y < 0).sum() if power < 2 else (y <= 0).sum())
        if wrong:
            raise DataError(
                f"{wrong} targets are {'below 0' if power < 2 else '0 or below'}, which such a "
                "quantity never is",
                party=fed.active.name,
                column=fed.label_plan.column,
                way_out="Take a linear regression, or correct the targets",
            )
        return Family("tweedie", power=power)


class PoissonRegression(TweedieRegression):
    """Counts, with log link.

    Args:
        l1, l2: Penalties; scikit-learn's ``alpha`` is ``l2``.
        solver, max_iter, tol, learning_rate, batch_size, encryption, inference: As for
            :class:`LogisticRegression`.
    """

    power = 1.0

    def __init__(
        self,
        *,
        l1: AtLeastZero = 0.0,
        l2: AtLeastZero = 1e-3,
        solver: Literal["lbfgs", "sgd"] = "lbfgs",
        max_iter: Count = 100,
        tol: AtLeastZero = 1e-6,
        learning_rate: AboveZero = 0.1,
        batch_size: Count = 256,
        encryption: Encryption = "auto",
        inference: bool = False,
    ) -> None:
        self.l1 = l1
        self.l2 = l2
        self.solver = solver
        self.max_iter = max_iter
        self.tol = tol
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.encryption = encryption
        self.inference = inference


def _needs_quantity(fed: Federation) -> None:
    if fed.label_plan.task != "regression":
        raise JobError(
            f"this is for a quantity, and the label of party '{fed.active.name}' is read as "
            f"{fed.label_plan.task}: set `task: regression` in its party file"
        )
