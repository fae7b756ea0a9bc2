"""Secure federated transfer learning (Liu, Kang, Xing, Chen, Yang, "A Secure Federated Transfer
Learning Framework", IEEE Intelligent Systems 2020, arXiv 1812.03337): with its encryption.

The logistic loss is replaced by its second-order Taylor polynomial at 0, so that both gradients
are sums that can be formed of ciphertexts. Each side has a key of its own and sends what the other
needs encrypted under it; the other multiplies, masks the result, and has it opened::

    active                                               passive
      │ ── begin(held-out rows, rows in training) ───────► │   scales its columns, u = z·W
      │ ── terms ────────────────────────────────────────► │
      │ ◄─────────────── encryption that its policy allows │
      │ ── make_key ─────────────────────────────────────► │
      │ ◄────────────────────────────── its public key ─── │
      │ ── take_key(public key) ─────────────────────────► │
      │ for every step, over all shared people:            │
      │ ── scale ────────────────────────────────────────► │   how fine its whole numbers are
      │   for every dimension k of the embeddings:         │
      │ ── components(k) ────────────────────────────────► │
      │ ◄──────────────────────── [u_k, S_k] by its key ── │   S = Σ_i u_i uᵢᵀ
      │ ── open([∂L/∂W_active + random numbers]) ────────► │
      │ ◄──────────────────────────── the same, opened ─── │   the active party takes them off
      │ ── slope([components of ∂L/∂u]) ─────────────────► │   under the active party's key
      │ ◄───────────── [∂L/∂W_passive + random numbers] ── │
      │ ── unmask(the same, opened) ─────────────────────► │   takes its numbers off
      │ ── descend ──────────────────────────────────────► │   both take a step
      │                                                    │
      │ to score people:                                   │
      │ ── about(rows) ──────────────────────────────────► │
      │ ── scores([Φ]) ──────────────────────────────────► │
      │ ◄──────────────────────────────────── [Φ·u_i] ──── │   the active party opens its scores

With t_i = ±1 and Φ = mean over the active party's labelled people of t_j u_j, a person's score is
φ_i = Φ·u_i, and over N shared people

    L = 1/N Σ_i (log 2 − ½ t_i φ_i + ⅛ φ_i²) + γ/(N d) Σ_i ‖u_i^active − u_i‖²
        + λ/2 (‖W_active‖² + ‖W‖²).

**What each party learns.** The passive party: who is in training, and at every step its own
gradient, a sum over all of them. The active party: its own gradient at every step, and φ of those
it scores. Both learn a magnitude, to a power of two, of what the other encrypts. Neither sees an
embedding, nor a gradient of a person; a party with more than half as many columns as there are
shared people could solve its gradient for them, and is refused. Both are taken to be honest but
curious; what the gradients of many steps tell together is not bounded. With γ near 0 the passive
party's gradient is little else than Σ_i t_i z_i, and of signs a few sums can settle all: labels are
safer the larger γ is.

The polynomial and who encrypts what are from memory, not checked against the paper. Ours are sums S
in place of one product for each person, that no encrypted loss is formed (the number of steps is
set), and the form of scoring.
"""

from __future__ import annotations

import copy
import math
from dataclasses import asdict
from typing import Annotated, Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from torch import nn

from interlace.boundary.control import real_number, whole_number
from interlace.boundary.kinds import Ciphertext, Control, RowSelection
from interlace.crypto.base import PrivateKey, PublicKey, Sums, unmasked
from interlace.crypto.schemes import Scheme, generate, read_public_key
from interlace.data.labels import LabelPlan
from interlace.errors import AlignmentError, DataError, JobError, Refused
from interlace.federation import Federation
from interlace.methods.base import (
    AtLeastZero,
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
from interlace.methods.vertical.linear_side import (
    agree_on_schemes,
    allowed_by,
    from_bytes,
    key_for,
    opened,
    read_vector,
    scheme_for,
    whole_columns,
    whole_vector,
    workload_for,
)
from interlace.methods.vertical.transfer import check_has_columns
from interlace.models import (
    Optimisation,
    Randomness,
    load_training_state,
    seed_for,
    seeded,
    training_state,
)
from interlace.models.glm import Columns, Floats
from interlace.party import Party, PassiveSide, State, operation, read_state, write_state

CHUNK = 256  # people scored in one answer
MOST_UNIT = 1e12


Width = Annotated[int, Field(gt=0, le=64)]


class TransferSettings(BaseModel):
    """What both sides agree on before training."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    width: Width
    alignment: AtLeastZero
    l2: AtLeastZero
    optimisation: Optimisation = Optimisation()


class Weights(nn.Module):
    """W (p, d), at first as a linear layer's: no larger than 1/√p."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        first = 2 * torch.rand(inputs, width, dtype=torch.float64) - 1
        self.w = nn.Parameter(first / math.sqrt(inputs))


class Projection:
    """One side's embeddings u = z·W, z its columns as a linear model reads them, and a 1.

    Args:
        party: Whose columns.
        columns: Their fitted preprocessing.
        settings: What was agreed.
    """

    def __init__(self, party: Party, columns: Columns, settings: TransferSettings) -> None:
        self.party, self.columns, self.settings = party, columns, settings
        seed = seed_for(party.secret, "projection")
        inputs = len(columns.names) + 1
        self.layer = seeded(lambda: Weights(inputs, settings.width), seed)
        self.optimiser = settings.optimisation.optimiser(self.layer)
        self.randomness = Randomness(self.layer, seed)

    @classmethod
    def fit(cls, party: Party, rows: NDArray[np.int64], settings: TransferSettings) -> Self:
        """A fresh one; columns are scaled by ``rows`` alone.

        Raises:
            DataError: no column is usable, or they are images.
        """
        columns = Columns.fit(
            party.frame,
            party.columns,
            rows,
            party=party.name,
            file=party.file,
            readings=party.readings,
        )
        return cls(party, columns, settings)

    def z(self, rows: NDArray[np.int64]) -> Floats:
        """What it reads of some rows, (n, p)."""
        x = self.columns.matrix(self.party.frame, rows)
        z = np.concatenate([x, np.ones((len(x), 1))], 1)
        self.party.boundary.protect(torch.from_numpy(x))
        return z

    @property
    def w(self) -> Floats:
        """W, (p, d)."""
        assert isinstance(self.layer, Weights)
        weights: Floats = self.layer.w.detach().numpy()
        return weights

    def over(self, party: Party) -> Projection:
        """The same over another table of the same party."""
        other = copy.copy(self)
        other.party = party
        return other

    def descend(self, slope: Floats) -> None:
        """One step of the optimiser against ∂L/∂W (p, d)."""
        assert self.optimiser is not None
        assert isinstance(self.layer, Weights)
        self.layer.w.grad = torch.from_numpy(slope)
        self.optimiser.step()

    def state(self) -> State:
        """For a checkpoint or a saved model."""
        tensors = training_state(self.layer, self.optimiser, self.randomness)
        meta = {"columns": self.columns.to_json(), "settings": self.settings.model_dump()}
        return State(tensors, meta)

    @classmethod
    def from_state(cls, party: Party, state: State) -> Self:
        """What :meth:`state` gave."""
        settings = TransferSettings.model_validate(state.meta["settings"])
        made = cls(party, Columns.from_json(state.meta["columns"]), settings)
        load_training_state(state.tensors, made.layer, made.optimiser, made.randomness)
        return made


# -- the two gradients ---------------------------------------------------------------------------


def components(phi: Floats, u: Floats, t: Floats, alignment: float, k: int) -> Floats:
    """What the passive party's slope needs of the active one, for dimension k: (N + d,).

    −½ t_i Φ_k − 2γ/d u_ik for every person, then N/4 Φ_k Φ_l for every l.
    """
    n, d = u.shape
    return np.concatenate([-0.5 * t * phi[k] - 2 * alignment / d * u[:, k], n / 4 * phi[k] * phi])


def passive_matrix(z: Floats, u: Floats) -> Floats:
    """What these are multiplied with, (N + d, p): z, then uᵀz / N."""
    return np.concatenate([z, u.T @ z / len(z)])


def active_matrix(z: Floats, t: Floats, means: Floats, phi: Floats, alignment: float) -> Floats:
    """What the passive party's [u_k, S_k] is multiplied with for the active one's slope, (N+d, p).

    Args:
        z: Its columns of the shared people, (N, p).
        t: Their labels, ±1.
        means: Mean of t_j z_j over all its labelled people, (p,).
        phi: Φ, (d,).
        alignment: γ.
    """
    each = -0.5 * t[:, None] * means - 2 * alignment / len(phi) * z
    return np.concatenate([each, phi[:, None] * means / 4])


def power_of_two(largest: float, most: int) -> float:
    """A unit in which numbers up to ``largest`` are whole numbers up to ``most``; it says no more
    of them than their magnitude."""
    return 2.0 ** math.ceil(math.log2(max(largest, 1e-12) / most))


def enough(people: int, sums: int) -> bool:
    """Whether so many sums over people are too few to be solved for what each of them adds."""
    return people > 2 * sums


def check_enough(party: Party, z: Floats, told: str) -> None:
    """Make sure that a party's slopes are too few to be solved for what its partner keeps.

    Raises:
        DataError: they are not.
    """
    people, columns = z.shape
    if not enough(people, columns):
        raise DataError(
            f"{people:,} shared people for {columns:,} columns are too few under encryption: the "
            f"sums that this party gets would tell it {told}",
            party=party.name,
            way_out="Name fewer columns in its party file, or take the method 'transfer'",
        )


# -- the passive party ---------------------------------------------------------------------------


class SecureTransferSide(PassiveSide):
    """What the passive party answers. Its projection, and its gradient, stay with it."""

    projection: Projection
    key: PublicKey  # the active party's
    private: PrivateKey
    _slope: Floats

    @operation
    def begin(self, held_out: RowSelection, rows: RowSelection, settings: Control) -> None:
        """Build the projection; ``held_out`` people have no say in how columns are scaled."""
        learn_from = np.setdiff1d(np.arange(len(self.party)), self._mine(held_out))
        agreed = TransferSettings.model_validate(settings)
        self.projection = Projection.fit(self.party, learn_from, agreed)
        self.z = self.projection.z(self._mine(rows))
        check_enough(self.party, self.z, "labels")

    @operation
    def terms(self) -> Control:
        """The schemes of encryption that this party's policy allows; ``None``: all."""
        return allowed_by(self.party)

    @operation
    def make_key(self, workload: Control) -> Ciphertext:
        """Make this party's own key; answers its public half."""
        self.private = key_for(self.party, workload)
        return self.private.public.to_tensor()

    @operation
    def take_key(self, key: Ciphertext) -> None:
        """Take the active party's public key."""
        self.key = read_public_key(key, self.party.policy.encryption)

    @operation
    def scale(self) -> Control:
        """What one of the whole numbers of this step's components stands for, a power of two."""
        u = self.z @ self.projection.w
        self._u, self._products = u, u.T @ u
        self._slope = np.zeros_like(self.projection.w)
        largest = max(np.abs(self._u).max(), np.abs(self._products).max())
        self._unit = power_of_two(float(largest), self.private.public.workload.largest)
        return {"unit": self._unit}

    @operation
    def components(self, asked: Control) -> Ciphertext:
        """[u_k, S_k] under this party's own key, (N + d,)."""
        k = self._dimension(asked)
        numbers = np.concatenate([self._u[:, k], self._products[k]])
        largest = self.private.public.workload.largest
        whole = whole_vector(numbers, self._unit, largest, self.party.name)
        return self.private.encrypt(whole).to_tensor()

    @operation
    def open(self, sums: Ciphertext) -> Ciphertext:
        """Decrypt the active party's masked sums.

        Raises:
            Refused: they are so many that embeddings of single people could be solved from them.
        """
        shown = opened(self.private, sums)
        if not enough(len(self.z), len(shown) // 8):
            raise Refused(
                f"party '{self.partner}' has too many columns for {len(self.z):,} shared people: "
                "its sums would tell it embeddings of single people"
            )
        return shown

    @operation
    def slope(self, vector: Ciphertext, asked: Control) -> Ciphertext:
        """The product of this party's matrix with the active party's components, masked."""
        self._k, self._given = self._dimension(asked), real_number(asked, "unit", MOST_UNIT)
        matrix = passive_matrix(self.z, self._u)
        self._whole, self._fine = whole_columns(matrix, self.key.workload.factor)
        sums, self._masks = self.key.masked_product(
            read_vector(self.key, vector, len(self._whole)), self._whole
        )
        return sums.to_tensor()

    @operation
    def unmask(self, sums: Ciphertext) -> None:
        """Take the masked sums back, opened, and what this party knows of its slope itself."""
        k, how = self._k, self.projection.settings
        found = from_bytes(sums, self.z.shape[1])
        product = unmasked(found, self._masks, self._whole, self.key.workload)
        theirs = product * (self._given * self._fine)
        pulled = 2 * how.alignment / how.width * (self.z.T @ self._u[:, k])
        self._slope[:, k] = (theirs + pulled) / len(self.z) + how.l2 * self.projection.w[:, k]

    @operation
    def descend(self) -> None:
        """One step against the slope that came."""
        self.projection.descend(self._slope)

    @operation
    def finish(self) -> None:
        """Training is over: what was computed from rows goes."""
        self.forget_people()

    @operation
    def about(self, rows: RowSelection) -> Control:
        """Whom the next scores are about; answers what one of their whole numbers stands for."""
        mine = self._mine(rows)
        self._rows = torch.from_numpy(mine)
        u = self.projection.z(mine) @ self.projection.w
        unit = power_of_two(float(np.abs(u).max(initial=0.0)), self.key.workload.factor)
        self._asked = np.rint(u.T / unit).astype(np.int64)
        return {"unit": unit}

    @operation
    def scores(self, phi: Ciphertext) -> Ciphertext:
        """[Φ·u_i] of those people, under the active party's key."""
        self.party.boundary.about(self._rows)
        return self.key.scalar_product(
            read_vector(self.key, phi, len(self._asked)), self._asked
        ).to_tensor()

    @operation
    def checkpoint(self, at: Control) -> None:
        """Keep the projection, in this party's own folder."""
        epoch = whole_number(at, "epoch", MOST_EPOCHS)
        write_checkpoint(self.party, at["name"], epoch, self.projection.state())

    @operation
    def resume(self, at: Control) -> None:
        """Go back to a checkpoint."""
        epoch = whole_number(at, "epoch", MOST_EPOCHS)
        state = read_checkpoint(self.party, at["name"], epoch)
        self.projection = Projection.from_state(self.party, state)

    @operation
    def save(self, model: Control) -> None:
        """Keep this party's part of the finished model in its own folder."""
        write_state(self.party.path("models", model["name"]), self.projection.state())

    @operation
    def load(self, model: Control) -> None:
        """Take this party's part of a finished model."""
        state = read_state(self.party.path("models", model["name"]))
        self.projection = Projection.from_state(self.party, state)

    def forget_people(self) -> None:
        """The projection stays; what was computed from rows goes."""
        for name in ("z", "_u", "_products", "_slope", "_masks", "_whole", "_rows", "_asked"):
            self.__dict__.pop(name, None)
        if hasattr(self, "projection"):
            self.projection = self.projection.over(self.party)

    def _dimension(self, asked: dict[str, Any]) -> int:
        return whole_number(asked, "k", self.projection.settings.width)


# -- the method ----------------------------------------------------------------------------------


class SecureTransfer(Method):
    """Federated transfer learning under encryption: neither side sees an embedding or a person's
    gradient, and a person is named by what the partner knows of them.

    For two classes, two parties and tables, as in the source, which is from memory; the networks
    are one layer, since a gradient under encryption has to be linear in what is encrypted.
    :class:`FederatedTransfer` is the same without encryption, and without these bounds.

    Args:
        epochs: Steps; each is over all shared people with a label.
        width: d of the embeddings.
        alignment: γ, weight of the distance between both sides' embeddings of a shared person; it
            also keeps labels from the partner, see "what each party learns".
        l2: λ, penalty on the projections.
        optimisation: Learning rate and schedule of both sides.
        encryption: ``auto``, or a scheme's name.

    All defaults are ours.
    """

    def __init__(
        self,
        *,
        epochs: Count = 60,
        width: Width = 4,
        alignment: AtLeastZero = 0.1,
        l2: AtLeastZero = 1e-3,
        optimisation: Optimisation = Optimisation(learning_rate=0.05),
        encryption: Literal["auto"] | Scheme = "auto",
    ) -> None:
        self.epochs = epochs
        self.width = width
        self.alignment = alignment
        self.l2 = l2
        self.optimisation = optimisation
        self.encryption = encryption

    # -- learning -----------------------------------------------------------------------------

    def fit(
        self,
        federation: Federation,
        *,
        checkpoint: str | None = None,
        on_epoch: OnEpoch | None = None,
    ) -> Self:
        """Learn from the shared, labelled people, and from all labels; see :meth:`Method.fit`.

        The losses of ``history_`` are the active party's own share of L, the penalty on its W:
        nobody knows the whole.

        Raises:
            JobError: the label is not one of two classes, or there are more than two parties.
            DataError: a party has no usable column, or too many for so few people.
        """
        validated(type(self), self.get_params(deep=False))
        known, fed = self._people(federation)
        self.label_plan_ = fed.label_plan
        self._meet(fed)
        where = fed.alignment.position(self.partner_)[fed.held_out]
        settings = TransferSettings(
            width=self.width,
            alignment=self.alignment,
            l2=self.l2,
            optimisation=self.optimisation,
        )
        self.peer_.ask(
            SecureTransferSide.begin,
            torch.from_numpy(where[where >= 0]),
            fed.positions(self.partner_, fed.rows),
            settings.model_dump(mode="json"),
        )
        learn_from = np.setdiff1d(np.arange(len(fed.active)), fed.held_out)
        self.own_ = Projection.fit(fed.active, learn_from, settings)
        self.history_: list[Epoch] = []
        done = self._resume(fed, checkpoint) if checkpoint else 0
        z, t = self.own_.z(fed.rows), _signs(fed)
        check_enough(fed.active, z, "embeddings")
        theirs = self._exchange_keys(len(fed.rows) + self.width)
        signs = _signs(known)
        means = signs @ self.own_.z(known.rows) / len(signs)
        clock = Clock()
        for epoch in range(done, self.epochs):
            fed.active.boundary.round += 1
            self.phi_ = means @ self.own_.w
            self._step(theirs, z, t, means)
            cost = self.l2 / 2 * float((self.own_.w**2).sum())
            self.history_.append(Epoch(epoch + 1, cost, None, clock.lap()))
            if checkpoint:
                self._checkpoint(fed, checkpoint, epoch + 1)
            if on_epoch:
                on_epoch(self.history_[-1])
        self.phi_ = means @ self.own_.w
        self.peer_.ask(SecureTransferSide.finish)
        return self

    def _people(self, federation: Federation) -> tuple[Federation, Federation]:
        """All labelled people, and the shared ones among them.

        Raises:
            JobError: the label is not one of two classes, or there are more than two parties.
            DataError: the active party has no columns to transfer from.
            AlignmentError: too few people are shared.
        """
        if federation.label_plan.task != "binary":
            raise JobError(
                "secure transfer is for two classes; the label is a "
                f"{federation.label_plan.task} (take the method 'transfer' or 'split')"
            )
        if len(federation.passive) > 1:
            raise JobError("secure transfer is for two parties; take the method 'transfer'")
        check_has_columns(federation.active)
        known = federation.labelled()
        fed = known.shared()
        if len(fed.rows) < 2:
            raise AlignmentError(
                f"{len(fed.rows)} people are held by both parties and have a label; "
                "at least two are needed to learn from"
            )
        return known, fed

    def _meet(self, fed: Federation) -> None:
        self.active_ = fed.active
        (self.partner_, self.peer_), *_ = fed.open("secure-transfer", SecureTransferSide).items()
        self.session_ = self.peer_.session

    def _exchange_keys(self, rows: int) -> PublicKey:
        """Each side's key for the other; the partner's public one."""
        allowed = agree_on_schemes(
            self.encryption, self.active_, {self.partner_: self.peer_}, SecureTransferSide.terms
        )
        scheme = scheme_for(self.encryption, rows, 2, "two_keys", allowed)
        workload = workload_for(scheme, rows, 2, "two_keys")
        self.scheme_ = scheme
        self.key_ = generate(scheme, workload)
        asked = {"scheme": scheme, **asdict(workload)}
        theirs = read_public_key(self.peer_.ask(SecureTransferSide.make_key, asked))
        self.peer_.post(SecureTransferSide.take_key, self.key_.public.to_tensor())
        return theirs

    def _step(self, theirs: PublicKey, z: Floats, t: Floats, means: Floats) -> None:
        """One step of both sides."""
        n, d = len(z), self.width
        u, pull = z @ self.own_.w, 2 * self.alignment / d
        answer = self.peer_.ask(SecureTransferSide.scale)
        given = real_number(answer, "unit", MOST_UNIT)
        matrix = active_matrix(z, t, means, self.phi_, self.alignment)
        whole, fine = whole_columns(matrix, theirs.workload.factor)
        largest = self.key_.public.workload.largest
        wanted = [components(self.phi_, u, t, self.alignment, k) for k in range(d)]
        unit = power_of_two(float(np.abs(wanted).max()), largest)
        slope = np.zeros_like(self.own_.w)
        for k in range(d):
            received = self.peer_.ask(SecureTransferSide.components, {"k": k})
            sums, masks = theirs.masked_product(read_vector(theirs, received, n + d), whole)
            found = from_bytes(
                self.peer_.ask(SecureTransferSide.open, sums.to_tensor()), whole.shape[1]
            )
            product = unmasked(found, masks, whole, theirs.workload) * (given * fine)
            slope[:, k] = (product + pull * z.T @ u[:, k]) / n + self.l2 * self.own_.w[:, k]
            mine = whole_vector(wanted[k], unit, largest, self.active_.name)
            masked = self.peer_.ask(
                SecureTransferSide.slope,
                self.key_.encrypt(mine).to_tensor(),
                {"k": k, "unit": unit},
            )
            self.peer_.post(SecureTransferSide.unmask, opened(self.key_, masked))
        self.own_.descend(slope)
        self.peer_.post(SecureTransferSide.descend)

    # -- predicting ---------------------------------------------------------------------------

    def schemes(self) -> dict[str, str]:
        """The encryption of the components."""
        return {"components": self.scheme_}

    def outputs(self, federation: Federation) -> NDArray[np.float64]:
        """Probabilities (n, 2) of people whom both parties hold; the partner learns whom."""
        self.peer_ = federation.peers(self.session_)[self.partner_]
        where = federation.positions(self.partner_, federation.rows)
        if not hasattr(self, "key_"):
            self._exchange_keys(CHUNK)
        largest = self.key_.public.workload.largest
        unit = power_of_two(float(np.abs(self.phi_).max()), largest)
        numbers = whole_vector(self.phi_, unit, largest, self.active_.name)
        phi = self.key_.encrypt(numbers).to_tensor()
        scores = []
        for some in where.tensor_split(list(range(CHUNK, len(where), CHUNK))):
            given = real_number(self.peer_.ask(SecureTransferSide.about, some), "unit", MOST_UNIT)
            sums = self.key_.public.read(self.peer_.ask(SecureTransferSide.scores, phi))
            if not isinstance(sums, Sums) or sums.groups != len(some):
                raise Refused(f"a score for each of {len(some):,} people was due")
            scores.append(self.key_.decrypt(sums)[:, 0] * (unit * given))
        positive = 1 / (1 + np.exp(-np.concatenate(scores)))
        return np.stack([1 - positive, positive], 1)

    # -- keeping ------------------------------------------------------------------------------

    def save(self, name: str) -> None:
        """Each side keeps its own projection; the active party Φ too. Keys are not kept."""
        self.peer_.ask(SecureTransferSide.save, {"name": name})
        state = self._state()
        state.tensors["phi"] = torch.from_numpy(self.phi_)
        write_state(self.active_.path("models", name), state)

    def load(self, name: str, federation: Federation) -> Self:
        """Take the parts that :meth:`save` kept."""
        self._meet(federation)
        self.peer_.ask(SecureTransferSide.load, {"name": name})
        state = read_state(federation.active.path("models", name))
        self._take(state)
        self.phi_ = state.tensors["phi"].numpy()
        return self

    def _state(self) -> State:
        state = self.own_.state()
        state.meta["label_plan"] = self.label_plan_.to_json()
        state.meta["history"] = history_to_json(self.history_)
        return state

    def _take(self, state: State) -> None:
        self.label_plan_ = LabelPlan.from_json(state.meta["label_plan"])
        self.history_ = history_from_json(state.meta["history"])
        self.own_ = Projection.from_state(self.active_, state)

    def _checkpoint(self, fed: Federation, name: str, epoch: int) -> None:
        self.peer_.ask(SecureTransferSide.checkpoint, {"name": name, "epoch": epoch})
        state = self._state()
        state.meta["made_for"] = self._fingerprint(fed)
        write_checkpoint(fed.active, name, epoch, state)

    def _resume(self, fed: Federation, name: str) -> int:
        last = last_checkpoint(fed.active, name, self._fingerprint(fed))
        if last is None:
            return 0
        epoch, state = last
        self.peer_.ask(SecureTransferSide.resume, {"name": name, "epoch": epoch})
        self._take(state)
        return epoch


def _signs(fed: Federation) -> Floats:
    """±1 for the two classes of a view's people."""
    t: Floats = 2.0 * fed.y.double().numpy() - 1
    return t
