"""What a passive party, and an arbiter, answer in a linear model; and the whole numbers used.

See :mod:`interlace.methods.vertical.linear` for the conversation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from scipy import stats
from torch import Tensor

from interlace.boundary.control import real_number, whole_number
from interlace.boundary.kinds import (
    Ciphertext,
    Control,
    Gradient,
    Metric,
    PartialScore,
    RowSelection,
)
from interlace.crypto.base import PrivateKey, PublicKey, Sums, Vector, Workload, unmasked
from interlace.crypto.rlwe import holds_product
from interlace.crypto.schemes import (
    SCHEMES,
    Scheme,
    agreed_schemes,
    available,
    generate,
    read_public_key,
)
from interlace.errors import DataError, InterlaceError, JobError, PolicyError, Refused
from interlace.methods.bottom import MOST_EPOCHS, read_checkpoint, write_checkpoint
from interlace.models.glm import MEMORY, Block, Columns, Floats, Integers, Penalty
from interlace.party import ModelFile, Party, PassiveSide, Peer, State, operation

MODEL = ModelFile("linear.json", "interlace linear model 1", "linear model")

Protocol = Literal["active_key", "two_keys", "arbiter"]

CREST = 4  # whole numbers leave room for values of that many standard deviations, or more
LEAST_BITS = 16  # of columns and half a bit for each doubling of people, whose errors cancel
MOST_FINER = 8  # bits by which residuals may be finer than columns
FINER_SCORES = 4  # bits by which parts of residuals, which grow larger, must be
MOST_UNIT = 1e12


# -- whole numbers -----------------------------------------------------------------------------


def workload_for(scheme: Scheme, rows: int, parties: int, protocol: Protocol) -> Workload:
    """The finest numbers of columns and residuals that a scheme holds for so many rows.

    Raises:
        JobError: they would be too coarse.
    """
    others = parties - 1 if protocol == "arbiter" else 0
    least = math.ceil(LEAST_BITS - math.log2(rows) / 2)
    coarsest = 1 if protocol == "active_key" else FINER_SCORES
    for bits in range(15, max(least, 8) - 1, -1):  # coarse columns harm more than coarse residuals
        for finer in range(MOST_FINER, coarsest - 1, -1):
            workload = Workload(
                rows=rows * max(1, others),
                largest=2 ** (bits + finer) - 1,
                width=1,
                groups=1,
                factor=2**bits - 1,
            )
            norm = (workload.factor / CREST + 1) * rows**0.5
            if scheme in ("paillier", "okamoto-uchiyama"):
                return workload
            setting: Literal["fast", "strict"] = "fast" if scheme == "rlwe-fast" else "strict"
            if holds_product(setting, workload, norm, others):
                return workload
    raise JobError(
        f"the encryption '{scheme}' does not hold a linear model's numbers for {rows:,} people: "
        "take `rlwe-strict`, `paillier`, or fewer people"
    )


def agree_on_schemes(
    wanted: str, active: Party, peers: Mapping[str, Peer], terms: Callable[..., Any]
) -> list[Scheme]:
    """The schemes that all parties' policies allow.

    Args:
        wanted: A scheme, ``auto``, or ``none``.
        active: Who drives; its policy counts as well.
        peers: Its partners.
        terms: The operation by which they say what their policies allow.

    Raises:
        JobError: not every policy allows what is wanted.
    """
    if not peers:  # nothing leaves
        return list(SCHEMES)
    policies = {name: peer.ask(terms).get("encryption") for name, peer in peers.items()}
    return agreed_schemes(wanted, {active.name: active.policy.encryption, **policies})


def allowed_by(party: Party) -> dict[str, Any]:
    """What a partner's ``terms`` say: the schemes that its policy allows; ``None``: all."""
    allowed = party.policy.encryption
    return {"encryption": None if allowed is None else sorted(allowed)}


def scheme_for(
    encryption: str, rows: int, parties: int, protocol: Protocol, allowed: Sequence[Scheme]
) -> Scheme:
    """The scheme of a name; ``auto`` is the quickest allowed one that holds the numbers.

    Raises:
        JobError: none does.
    """
    if encryption in SCHEMES:
        return encryption
    usual: tuple[Scheme, ...] = ("rlwe-strict", "okamoto-uchiyama", "paillier")
    for scheme in (s for s in usual if s in allowed):
        try:
            workload_for(scheme, rows, parties, protocol)
        except JobError:
            continue
        if available(scheme):
            return scheme
    raise JobError(
        f"no encryption that is installed, and that every party allows, holds {rows:,} people's "
        "numbers"
    )


def key_for(party: Party, agreed: dict[str, Any]) -> PrivateKey:
    """A fresh key pair of a party's own, of a named ``scheme``, for a workload that a partner
    described.

    Raises:
        Refused: it describes none, or the party's policy does not allow the scheme.
    """
    allowed = party.policy.encryption
    scheme = next((s for s in SCHEMES if s == agreed.get("scheme")), None)
    if scheme is None or (allowed is not None and scheme not in allowed):
        raise Refused(f"party '{party.name}' makes no key of such an encryption")
    names = [name for name in agreed if name != "scheme"]
    try:
        workload = Workload(**{name: whole_number(agreed, name, 2**41) for name in names})
    except TypeError as e:
        raise Refused("a key was asked for in an unknown way") from e
    return generate(scheme, workload)


def whole_columns(z: Floats, factor: int) -> tuple[Integers, float]:
    """Columns as whole numbers up to ``factor``, and what one of them stands for.

    But for rounding no column's norm exceeds ``factor``/CREST·√n, which is what keys are made for.
    """
    spread = float(np.sqrt((z**2).mean(axis=0).max(initial=0.0)))
    unit = max(float(np.abs(z).max(initial=0.0)), CREST * spread) / factor or 1.0
    return np.rint(z / unit).astype(np.int64), unit


def whole_vector(values: Floats, unit: float, largest: int, party: str) -> Integers:
    """(n,) numbers in whole units.

    Raises:
        InterlaceError: one is too large.
    """
    numbers = np.rint(values / unit)
    if np.abs(numbers).max(initial=0.0) > largest:
        raise InterlaceError(
            f"the scores of party '{party}' outgrew what is encrypted: the model diverges; take a "
            "larger penalty `l2`"
        )
    return numbers.astype(np.int64)


def to_bytes(numbers: Integers) -> Tensor:
    """Masked numbers as they travel."""
    return torch.from_numpy(np.ascontiguousarray(numbers.reshape(-1)).view(np.uint8))


def from_bytes(tensor: Tensor, count: int) -> Integers:
    """What :func:`to_bytes` gave.

    Raises:
        Refused: it is another number of numbers.
    """
    if tensor.dtype is not torch.uint8 or tensor.dim() != 1 or len(tensor) != 8 * count:
        raise Refused(f"{count} opened numbers were due")
    return tensor.contiguous().numpy().view(np.int64).copy()


def read_vector(key: PublicKey, tensor: Tensor, length: int) -> Vector:
    """An encrypted number for each of ``length`` people.

    Raises:
        Refused: it is something else, damaged, or under another key.
    """
    vector = key.read(tensor)
    if not isinstance(vector, Vector) or len(vector) != length:
        raise Refused(f"an encrypted number for each of {length:,} people was due")
    return vector


def opened(key: PrivateKey, tensor: Tensor) -> Tensor:
    """Masked sums, decrypted for whoever masked them.

    Raises:
        Refused: they do not decrypt, or are not masked.
    """
    sums = key.public.read(tensor)
    if not isinstance(sums, Sums) or not getattr(sums, "masked", False):
        raise Refused("only masked sums are opened for a partner")
    return to_bytes(key.decrypt(sums))


# -- the passive party -------------------------------------------------------------------------


class LinearSettings(BaseModel):
    """What the parties agree on before training.

    Attributes:
        outputs: Scores of one person.
        l1, l2: Penalties.
        protocol: Who holds keys; ``None`` for training in clear.
        slope: What a score is multiplied with in the residual, where that is a line.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    outputs: int = Field(gt=0, le=1000)
    l1: float = Field(ge=0)
    l2: float = Field(ge=0)
    protocol: Protocol | None = None
    slope: float = Field(default=1.0, gt=0)


class LinearSide(PassiveSide):
    """A passive party's share of a linear model; its weights stay with it."""

    kind: ClassVar[type[Columns]] = Columns  # how its table is read
    settings: LinearSettings
    columns: Columns
    block: Block
    weights: Floats  # (columns, outputs), once training is over
    errors: Floats | None  # standard errors of the weights (columns, 1)
    freedom: float | None  # degrees of freedom, where the t distribution is due
    key: PublicKey | None
    private: PrivateKey | None
    _rows: Tensor  # people in training, as rows of the party's table
    _whole: Integers
    _unit: float
    _batch: Integers | slice
    _slope: Floats  # of the mean loss by this party's weights, as far as it is known
    _masks: Integers
    _turned: Floats  # this party's secret rotation of what it showed for standard errors

    @operation
    def terms(self) -> Control:
        """The schemes of encryption that this party's policy allows; ``None``: all."""
        return allowed_by(self.party)

    @operation
    def begin(self, rows: RowSelection, settings: Control) -> None:
        """Learn the preprocessing from the training rows; all weights are 0."""
        self.settings = LinearSettings.model_validate(settings)
        mine, party = self._mine(rows), self.party
        allowed = party.policy.encryption
        if self.settings.protocol is None and allowed is not None and "none" not in allowed:
            raise PolicyError(
                f"party '{party.name}' takes part in no training in clear: `encryption` of its "
                f"policy lists {', '.join(sorted(allowed))}"
            )
        self.columns = self.kind.fit(
            party.frame,
            party.columns,
            mine,
            party=party.name,
            file=party.file,
            readings=party.readings,
        )
        self._rows = torch.from_numpy(mine)
        x = self.columns.matrix(party.frame, mine)
        held = np.ones(x.shape[1])
        penalty = Penalty(self.settings.l1, self.settings.l2)
        self.block = Block.of(x, held, self.settings.outputs, penalty)
        self._x = torch.from_numpy(x)
        party.boundary.protect(self._x)
        self.key = self.private = self.errors = self.freedom = None
        self._everybody()
        if self.settings.protocol:
            check_enough(party, len(x), self.block, self.columns)

    @operation
    def make_key(self, workload: Control) -> Ciphertext:
        """Make this party's own key; answers its public half."""
        self.private = key_for(self.party, workload)
        return self.private.public.to_tensor()

    @operation
    def take_key(self, key: Ciphertext) -> None:
        """Take the public key of whoever opens this party's masked sums."""
        self.key = read_public_key(key, self.party.policy.encryption)
        self._whole, self._unit = whole_columns(self.block.z, self.key.workload.factor)

    @operation
    def batch(self, rows: RowSelection) -> None:
        """What follows is about some of the rows in training, by their places."""
        places = rows.numpy().astype(np.int64)
        if not places.size or places.min() < 0 or places.max() >= len(self.block.z):
            raise Refused("a batch is of rows in training")
        if self.settings.protocol:
            check_enough(self.party, len(places), self.block, self.columns)
        self._batch = places

    @operation
    def everybody(self) -> None:
        """What follows is about all rows in training."""
        self._everybody()

    @operation
    def scores(self) -> PartialScore:
        """This party's part of the scores (rows, outputs) at its trial weights."""
        if self.settings.protocol not in (None, "active_key"):
            raise Refused(f"party '{self.party.name}' agreed to show its scores to nobody")
        self.party.boundary.about(self._rows[self._batch])
        return torch.from_numpy(self.block.scores(self._batch))

    @operation
    def slope(self, residual: Gradient) -> None:
        """Take the derivative of each row's loss by its scores, (rows, outputs), in clear."""
        z = self.block.z[self._batch]
        if residual.shape != (len(z), self.settings.outputs):
            raise Refused(f"residuals of {len(z):,} people were due")
        self._slope = z.T @ residual.double().numpy() / len(z)

    @operation
    def sealed_scores(self, agreed: Control) -> Ciphertext:
        """This party's part of one output's residuals, encrypted so that the receiver cannot read
        it: under its own key, or the arbiter's."""
        key = self.private or self.key
        if self.key is None or key is None or self.settings.protocol == "active_key":
            raise Refused(f"party '{self.party.name}' has no key to encrypt its scores under")
        largest = self.key.workload.largest
        unit = self._agreed_unit(agreed)
        numbers = whole_vector(self._line(agreed), unit, largest, self.party.name)
        return key.encrypt(numbers).to_tensor()

    @operation
    def slope_encrypted(self, residual: Ciphertext, agreed: Control) -> Ciphertext:
        """Zᵀ[d] for one output's encrypted residuals, under random masks."""
        if self.key is None:
            raise Refused(f"party '{self.party.name}' was sent ciphertexts before their key")
        whole = self._whole[self._batch]
        vector = read_vector(self.key, residual, len(whole))
        sums, self._masks = self.key.masked_product(vector, whole)
        return sums.to_tensor()

    @operation
    def unmask(self, sums: Ciphertext, agreed: Control) -> None:
        """Take the masked sums of one output back, opened."""
        if self.key is None:
            raise Refused(f"party '{self.party.name}' has no sums to open")
        output = whole_number(agreed, "output", self.settings.outputs)
        found = from_bytes(sums, self._whole.shape[1])
        whole = self._whole[self._batch]
        products = unmasked(found, self._masks, whole, self.key.workload)
        z = self.block.z[self._batch]
        slope = products * (self._agreed_unit(agreed) * self._unit)
        if self.settings.protocol != "active_key":
            slope = slope + z.T @ self._line(agreed)
        if output == 0:
            self._slope = np.zeros_like(self.block.v)
        self._slope[:, output] = slope / len(z)

    @operation
    def open(self, sums: Ciphertext) -> Ciphertext:
        """Decrypt the active party's masked sums with this party's own key."""
        if self.private is None:
            raise Refused(f"party '{self.party.name}' has no key")
        return opened(self.private, sums)

    @operation
    def take(self) -> None:
        """Go to the trial weights, whose slope came."""
        self.block.take(self._slope)

    @operation
    def descend(self, step: Control) -> None:
        """One step of stochastic gradient descent against the slope that came."""
        self.block.descend(self._slope, real_number(step, "rate", 1e6))

    @operation
    def products(self) -> Gradient:
        """All scalar products among this party's last m steps, their turns, and its gradient:
        (2m + 1, 2m + 1), of one size from the first step on."""
        return torch.from_numpy(self.block.products())

    @operation
    def propose(self, direction: Gradient, step: Control) -> Metric:
        """Set trial weights along a combination of the vectors of `products`; answers the penalty
        there and the gradient along the step."""
        if self.block.gradient is None or direction.shape != (2 * MEMORY + 1,):
            raise Refused("a direction has a number for each step, each turn, and the gradient")
        length = real_number(step, "length", 1e6)
        penalty, along = self.block.propose(direction.double().numpy(), length)
        return {"penalty": penalty, "along": along}

    @operation
    def cost(self) -> Metric:
        """The penalty on this party's weights."""
        return {"penalty": self.block.cost()}

    @operation
    def shorten(self, step: Control) -> None:
        """Go back to a share of the last step."""
        if not self.block.steps:
            raise Refused("no step was taken that could be shortened")
        self.block.shorten(real_number(step, "share", 1e6))

    @operation
    def probe(self) -> PartialScore:
        """This party's uncorrelated columns in a random rotation, (rows, rank): what standard
        errors need to know of them."""
        if self.settings.protocol not in (None, "active_key"):
            raise Refused(f"party '{self.party.name}' agreed to show its scores to nobody")
        width, rank = self.block.transform.shape
        if rank < width:
            raise singular(self.party)
        self._turned, _ = np.linalg.qr(np.random.default_rng().standard_normal((rank, rank)))
        self.party.boundary.about(self._rows)
        return torch.from_numpy(self.block.z @ self._turned)

    @operation
    def take_covariance(self, covariance: Gradient, freedom: Control) -> None:
        """Take the covariance (rank, rank) of this party's rotated weights."""
        rank = len(self._turned)
        if covariance.shape != (rank, rank):
            raise Refused("a covariance of this party's weights was due")
        turned = self.block.transform @ self._turned
        self.errors = standard_errors(turned, covariance.double().numpy())
        left = freedom.get("freedom")
        self.freedom = None if left is None else real_number(freedom, "freedom", 1e12)

    @operation
    def finish(self) -> None:
        """Training is over: keep the weights, let the rows go."""
        self.weights = self.block.weights
        self.forget_people()

    @operation
    def partial_scores(self, rows: RowSelection) -> PartialScore:
        """This party's part of people's scores, (rows, outputs)."""
        mine = self._mine(rows)
        self.party.boundary.about(torch.from_numpy(mine))
        return torch.from_numpy(self.columns.matrix(self.party.frame, mine) @ self.weights)

    @operation
    def checkpoint(self, at: Control) -> None:
        """Keep where training stands, in this party's own folder."""
        epoch = whole_number(at, "epoch", MOST_EPOCHS)
        meta = {"columns": self.columns.to_json()}
        write_checkpoint(self.party, at["name"], epoch, State(block_state(self.block), meta))

    @operation
    def resume(self, at: Control) -> None:
        """Go back to a checkpoint."""
        state = read_checkpoint(self.party, at["name"], whole_number(at, "epoch", MOST_EPOCHS))
        restore_block(self.block, state.tensors, self._x.numpy())

    @operation
    def save(self, model: Control) -> None:
        """Keep this party's part of the finished model, as JSON, in its own folder."""
        part = share_to_json(self.columns, self.weights, self.errors, self.freedom)
        MODEL.write(self.party, model["name"], {"party": self.party.name} | part)

    @operation
    def load(self, model: Control) -> Control:
        """Take this party's part of a finished model; answers how many scores it gives."""
        part = MODEL.read(self.party, model["name"])
        self.columns = self.kind.from_json(part["columns"])
        self.weights = np.array(part["coefficients"]).reshape(len(self.columns.names), -1)
        self.errors, self.freedom = errors_from_json(part)
        return {"outputs": self.weights.shape[1]}

    # -- its own affairs -----------------------------------------------------------------------

    def summary(self) -> list[dict[str, Any]]:
        """Coefficients of this party's columns, for this party alone."""
        return summary(self.columns.names, self.weights, self.errors, self.freedom)

    def forget_people(self) -> None:
        """The weights stay; what was computed from rows goes."""
        for name in ("block", "_rows", "_x", "_whole", "_slope", "_masks", "_batch", "_turned"):
            self.__dict__.pop(name, None)
        self.key = self.private = None

    def _everybody(self) -> None:
        self._batch = slice(None)

    def _line(self, agreed: dict[str, Any]) -> Floats:
        """This party's part of one output's residuals."""
        output = whole_number(agreed, "output", self.settings.outputs)
        return self.settings.slope * self.block.scores(self._batch)[:, output]

    def _agreed_unit(self, agreed: dict[str, Any]) -> float:
        return real_number(agreed, "unit", MOST_UNIT)


class ArbiterSide(PassiveSide):
    """A party without a table that holds the key and opens masked sums, nothing else."""

    private: PrivateKey | None = None

    @operation
    def make_key(self, workload: Control) -> Ciphertext:
        """Make a key; answers its public half, which all parties encrypt under."""
        self.private = key_for(self.party, workload)
        return self.private.public.to_tensor()

    @operation
    def open(self, sums: Ciphertext) -> Ciphertext:
        """Decrypt sums that somebody masked."""
        if self.private is None:
            raise Refused(f"party '{self.party.name}' has no key")
        return opened(self.private, sums)


# -- what both sides do alike ------------------------------------------------------------------


def check_enough(party: Party, rows: int, block: Block, read: Columns | None) -> None:
    """Make sure that a party's slopes are too few to be solved for single residuals.

    Args:
        party: Whose they are.
        rows: People in a batch.
        block: Its weights.
        read: Its columns, if it has any.

    Raises:
        DataError: they are not; names the categories that most columns come from.
    """
    columns = len(block.v)
    if rows > 2 * columns:
        return
    made = read.made_of if read else {}
    wide = {name: n for name, n in list(made.items())[:3] if n > columns / 10}
    said = ", ".join(f"{n} are levels of the category '{name}'" for name, n in wide.items())
    way_out = "Take larger batches, or fewer columns"
    if wide:
        way_out += (
            ": leave out categories of so many levels by `columns:` in the party's file, or, where "
            "one should be a number or a date, mend the values that do not read as such, which "
            "`interlace inspect` counts"
        )
    raise DataError(
        f"{rows:,} people for {columns} columns{f' ({said})' if said else ''} are too few under "
        "encryption: the sums that this party gets would tell it single people's residuals",
        party=party.name,
        way_out=way_out,
    )


def singular(party: Party) -> DataError:
    """Standard errors were asked for, and do not exist."""
    return DataError(
        "some of its columns follow from others, so their coefficients have no standard errors",
        party=party.name,
        way_out="Leave these columns out, or train with `inference: false`",
    )


def standard_errors(turned: Floats, covariance: Floats) -> Floats:
    """(columns, 1) for weights turned·v, from the covariance of v."""
    return np.asarray(np.sqrt(np.einsum("ij,jk,ik->i", turned, covariance, turned))[:, None])


def summary(
    names: list[str], weights: Floats, errors: Floats | None, freedom: float | None
) -> list[dict[str, Any]]:
    """A line for each column: its coefficients, and, if known, standard error, z and p."""
    out: list[dict[str, Any]] = []
    for j, name in enumerate(names):
        line: dict[str, Any] = {"column": name, "coefficients": weights[j].tolist()}
        if errors is not None:
            z = float(weights[j, 0] / errors[j, 0])
            tail = stats.norm.sf(abs(z)) if freedom is None else stats.t.sf(abs(z), freedom)
            line |= {"standard_error": float(errors[j, 0]), "z": z, "p": 2 * float(tail)}
        out.append(line)
    return out


def share_to_json(
    columns: Columns | None, weights: Floats, errors: Floats | None, freedom: float | None
) -> dict[str, Any]:
    """A party's part of a model."""
    return {
        "columns": None if columns is None else columns.to_json(),
        "coefficients": weights.tolist(),
        "standard_errors": None if errors is None else errors.tolist(),
        "freedom": freedom,
    }


def errors_from_json(part: dict[str, Any]) -> tuple[Floats | None, float | None]:
    """Standard errors and degrees of freedom of :func:`share_to_json`."""
    errors = part["standard_errors"]
    return None if errors is None else np.array(errors).reshape(-1, 1), part["freedom"]


def block_state(block: Block) -> dict[str, Tensor]:
    """What a checkpoint keeps of a block."""
    found = {"v": block.v, "transform": block.transform}
    if block.gradient is not None:
        found["gradient"] = block.gradient
    if block.steps:
        found |= {"steps": np.stack(block.steps), "turns": np.stack(block.turns)}
    return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in found.items()}


def restore_block(block: Block, tensors: dict[str, Tensor], x: Floats) -> None:
    """What :func:`block_state` gave, into a block over the rows ``x``."""
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    block.transform = arrays["transform"]
    block.z = x @ block.transform
    block.v = block.trial = arrays["v"]
    block.gradient = arrays.get("gradient")
    block.steps, block.turns = list(arrays.get("steps", ())), list(arrays.get("turns", ()))
