"""Additive encryption from Ring-LWE: the fast scheme.

**Scheme.** R = Z_q[X]/(X^N + 1), q a power of two, Y = X^(N/F). The private key is a ternary
polynomial s. Row i has a public pseudo-random a_i ∈ R, block j of which is AES-128 of (i, j) under
a public seed (as FrodoKEM expands its matrix): neither side ever sends it. The key holder sends
b_i = -a_i·s + e_i + Δ·m_i at the F powers of Y alone, with m_i = Σ_v value_v·Y^(v·F/width). The
summing party adds a_i·Y^k and b_i·Y^k for a row that belongs to the k-th of the F/width groups
that share a ciphertext. So one answer of N + F numbers serves F/width groups, where an answer for
each group would need N + 2, while a row costs F numbers instead of 2. Then 2^ℓ answers are packed
into one ciphertext (:mod:`interlace.crypto.packing`). F and ℓ are chosen for the least time over a
link of 100 Mbit/s, as far as the noise budget allows. Packing costs ℓ bits of it and more, so
coarse numbers travel in far fewer bytes. For 30,000 rows and the 6,656 bins of a tree of depth 5
over 13 features:

=================================  ====  ====  ===========  ===============
numbers                               F     ℓ  bytes a row  bytes a bin
=================================  ====  ====  ===========  ===============
an answer for each bin, F = N = all     2     0           14           11,790
fast, ±2^19                            32     0          208              748
fast, ±2^13                            16     5          104               50
strict, ±2^19                          16     8          212               29
=================================  ====  ====  ===========  ===============

**Answers** are re-randomised with a public-key encryption of zero (p1·u + e2, p0·u + e1), where
p1 comes from a public seed and p0 = -p1·s + e, and flooded with a uniform error in ±Δ/4. Then they
are packed, which needs public keys alone and so tells nobody more, and their low bits are dropped
(modulus switching), as many as the noise budget leaves.

**Assumption.** Decision Ring-LWE with a uniform ternary secret and centred binomial errors of
standard deviation 3.24, AES-128 as a random function for public randomness and, where answers are
packed, circular security of the switching keys.

**Settings**, both of at least 128 bits of classical security by the HomomorphicEncryption.org
standard (Albrecht et al. 2018, table 1, ternary secret: log q <= 54 at N = 2048, 109 at N = 4096):

- ``fast``: N = 2048, log q = 54. The flooding error's standard deviation is at least ten times
  that of all other errors. So the key holder, who knows every e_i, gets one very noisy linear
  equation on which rows were added for each number of the answer, beside the exact equations (the
  sums) that the answer is there to give.
- ``strict``: N = 4096, log q = 108. The flooding error hides them statistically, up to 2^-40 for
  each answer ciphertext.

**Noise budget.** Every error is sub-Gaussian; at nine standard deviations (a chance of 2^-57 for
each number) all errors but the flood stay below Δ/8, so the total stays below 3Δ/8 and sums decode
exactly. A remainder above that is refused: another key, or a damaged answer. A key is made only
for a workload that keeps this budget, and each sum is checked against it before it is computed.

**Threat model**: honest but curious, both sides. The public key is not proven to be well made.
The scheme is our composition of standard parts. No outside review has taken place.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Literal, Self, TypeVar

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from torch import Tensor

from interlace.crypto.base import (
    MOST_ROWS,
    AnyIntegers,
    CapacityError,
    Ciphertext,
    Integers,
    PrivateKey,
    PublicKey,
    Rows,
    Sums,
    Vector,
    Workload,
    checked_index,
    checked_matrix,
    checked_range,
    checked_values,
)
from interlace.crypto.kernels import cores, kernels
from interlace.crypto.packing import Gadget, Packer, automorphism, galois
from interlace.crypto.ring import Ring
from interlace.crypto.sampling import VARIANCE, centred_binomial, random_words, ternary
from interlace.crypto.wire import (
    Bytes,
    Sealed,
    fingerprint,
    opened,
    pack,
    packed_size,
    seal,
    unpack,
    whole,
)
from interlace.errors import Refused

T = TypeVar("T")

SCHEME = "rlwe"
SettingName = Literal["fast", "strict"]

TAIL = 9  # standard deviations that the noise budget allows for
DROPPED = 2  # low bits of b_i that do not travel; their rounding is small beside e_i
TILE = 8  # coefficients next to each other that turn together: a cache line
CHUNK = 256  # rows expanded at once: a tile of them stays in the second-level cache
ANSWERS = 8  # answers re-randomised or merged at once
SEED_BYTES = 16
TERNARY_LIMB = 27  # bits of a limb in products with ternary polynomials: off by 2^-9 at most
MATRIX_LIMB = 16  # the same with a scalar product's matrix: off by 2^-5 at most

# Variance proxies (a uniform rounding error of width w has w²/4).
_ROW = VARIANCE + 4**DROPPED / 4


@dataclass(frozen=True)
class Setting:
    """A ring and how well its answers hide what was added.

    Attributes:
        name: ``fast`` or ``strict``.
        ring: The ring of all ciphertexts.
        statistical: Bits of statistical hiding that every answer must have; 0 asks for none.
        gadget: How polynomials are cut when answers are packed.
        answer: Bytes that take as long on a link of 100 Mbit/s as an answer takes to make.
    """

    name: SettingName
    ring: Ring
    statistical: int
    gadget: Gadget
    answer: int

    @property
    def masking(self) -> float:
        """Variance proxy of a public-key encryption of zero: e·u + e2·s + e1."""
        return VARIANCE * (2 * self.ring.degree + 1)


SETTINGS: dict[str, Setting] = {
    "fast": Setting("fast", Ring(2048, (54,)), 0, Gadget(drop=9, digit=5, count=9), 4000),
    "strict": Setting(
        "strict", Ring(4096, (48, 60)), 40, Gadget(drop=48, digit=15, count=4), 11_000
    ),
}


@dataclass(frozen=True)
class Plan:
    """What both sides derive from a setting and a workload.

    Attributes:
        fold: F, the coefficients of each b that travel.
        levels: ℓ, rounds of packing: up to 2^ℓ answers share a ciphertext.
        cut: Low bits dropped from answers.
    """

    setting: Setting
    workload: Workload
    fold: int
    levels: int
    cut: int

    @classmethod
    def fit(cls, setting: Setting, workload: Workload) -> Plan:
        """The plan that costs least.

        Raises:
            CapacityError: the sums do not fit the noise budget.
        """
        plans = []
        least, most = (8, workload.width), setting.ring.degree // TILE
        for fold in (2**k for k in range(16) if max(least) <= 2**k <= most):
            for levels in range((setting.ring.degree // fold).bit_length()):
                plan = cls(setting, workload, fold, levels, 0)
                cut = plan._largest_cut()
                if cut is not None:
                    plans.append(replace(plan, cut=cut))
        if not plans:
            raise CapacityError(
                f"sums of {workload.rows:,} rows of numbers up to ±{workload.largest:,} do not fit "
                f"Ring-LWE's '{setting.name}' setting; use coarser numbers (`capacity` gives the "
                "largest that fit), fewer rows, or another scheme"
            )
        return min(
            plans,
            key=lambda plan: plan.bytes_in + plan.bytes_out + setting.answer * plan.answers,
        )

    @property
    def slots(self) -> int:
        """Groups that share an answer."""
        return self.fold // self.workload.width

    @property
    def terms(self) -> int:
        """Most rows added into one answer: a column adds a row once and has two bins or more."""
        return self.workload.rows * max(1, self.slots // 2)

    @property
    def delta(self) -> int:
        """log2(Δ) of an answer."""
        return self.setting.ring.log_q - self.workload.sum_bits

    @property
    def kept(self) -> int:
        """Bits of an answer's numbers."""
        return self.setting.ring.log_q - self.cut

    @property
    def bytes_in(self) -> int:
        """Bytes of one encryption of the workload's rows."""
        return packed_size(self.workload.rows * self.fold, self.setting.ring.log_q - DROPPED)

    @property
    def bytes_out(self) -> int:
        """Bytes of the answers to all of the workload's groups."""
        levels, packs = self.packs(self.answers)
        return packed_size(packs * (self.setting.ring.degree + (self.fold << levels)), self.kept)

    @property
    def answers(self) -> int:
        """Answers to all of the workload's groups, before they are packed."""
        return -(-self.workload.groups // self.slots)

    def packs(self, answers: int) -> tuple[int, int]:
        """Rounds of packing for so many answers, and the ciphertexts that are left."""
        levels = min(self.levels, (answers - 1).bit_length())
        return levels, -(-answers >> levels)

    def fits(self, variance: float, coefficients: int, levels: int, cut: int) -> bool:
        """Whether an answer keeps the budget.

        Args:
            variance: Of the errors that were added up in it.
            coefficients: How many of its numbers leave.
            levels: Rounds of packing.
            cut: Low bits dropped from it.
        """
        setting, ring = self.setting, self.setting.ring
        before = variance + setting.masking
        hidden = TAIL * math.sqrt(before) * coefficients
        packing = setting.gadget.variance(ring.degree) * (4.0**levels - 1) / 3
        noise = before * 4.0**levels + packing + (ring.degree + 1) * 4.0**cut / 4
        free = self.delta - levels - 1 - setting.statistical
        return (
            self.delta - levels > ring.below_top
            and TAIL * math.sqrt(noise) <= 2.0 ** (self.delta - 3)
            and (not setting.statistical or hidden <= 2.0**free)
        )

    def _largest_cut(self) -> int | None:
        ring, variance = self.setting.ring, self.terms * _ROW
        cuts = range(ring.below_top, ring.log_q)
        fitting = (c for c in cuts if self.fits(variance, self.fold, self.levels, c))
        return max(fitting, default=None)


def capacity(setting: SettingName, workload: Workload) -> int:
    """The largest ``largest``, a power of two less one, with which a workload fits a setting.

    Raises:
        CapacityError: not even single bits fit.
    """
    for bits in range(40, 0, -1):
        try:
            Plan.fit(SETTINGS[setting], replace(workload, largest=2**bits - 1))
        except CapacityError:
            continue
        return int(2**bits - 1)
    raise CapacityError(f"{workload.rows:,} rows do not fit Ring-LWE's '{setting}' setting")


def holds_product(setting: SettingName, workload: Workload, norm: float, others: int) -> bool:
    """Whether a workload and its scalar products fit a setting.

    Args:
        setting: ``fast`` or ``strict``.
        workload: What the key would be made for.
        norm: Largest Euclidean norm of a column of the matrix.
        others: How many vectors, encrypted with the public key, are added up in the one that is
            multiplied; 0 if it is the key holder's own.
    """
    chosen = SETTINGS[setting]
    try:
        plan = Plan.fit(chosen, workload)
    except CapacityError:
        return False
    one = chosen.masking + 4**DROPPED / 4 if others else _ROW
    return plan.fits(max(1, others) * one * norm**2, 1, 0, plan.cut)


# -- ciphertexts -------------------------------------------------------------------------------


class RLWERows(Rows):
    """Rows: b_i at the powers of Y, and the seed of all a_i.

    Attributes:
        b: Shape (words, n, F).
    """

    def __init__(self, key: RLWEPublicKey, seed: bytes, b: Integers) -> None:
        self.key, self.seed, self.b = key, seed, b

    def __len__(self) -> int:
        return int(self.b.shape[1])

    def to_tensor(self) -> Tensor:
        header = self.key.header("rows", rows=len(self))
        return seal(header, _bytes(self.seed), *_packed(self.key.ring, self.b, DROPPED))


class RLWEVector(Vector):
    """A vector: N numbers to a ciphertext, in the coefficients.

    Attributes:
        length: How many numbers.
        parts: How many vectors were added to make it.
        variance: Variance proxy of each coefficient's error.
        seed: What a comes from, if the key holder made it.
        b: Shape (words, blocks, N).
    """

    def __init__(
        self,
        key: RLWEPublicKey,
        length: int,
        b: Integers,
        *,
        a: Integers | None = None,
        seed: bytes = b"",
        parts: int = 1,
        variance: float = _ROW,
    ) -> None:
        self.key, self.length, self.b, self.seed = key, length, b, seed
        self.parts, self.variance = parts, variance
        self._a = a

    def __len__(self) -> int:
        return self.length

    @property
    def a(self) -> Integers:
        """Shape (words, blocks, N)."""
        if self._a is None:
            self._a = _expand(self.key.ring, self.seed, self.b.shape[1])
        return self._a

    def to_tensor(self) -> Tensor:
        header = self.key.header(
            "vector",
            length=self.length,
            parts=self.parts,
            variance=math.ceil(self.variance),
            seeded=bool(self.seed),
        )
        ring = self.key.ring
        a = [_bytes(self.seed)] if self.seed else _packed(ring, self.a, 0)
        return seal(header, *a, *_packed(ring, self.b, DROPPED))


class RLWESums(Sums):
    """Answers: the upper bits of a re-randomised (a, b).

    Attributes:
        product: Whether of a scalar product: one number to a ciphertext.
        masked: Whether random numbers were added.
        levels: Rounds of packing.
        a: Shape (ciphertexts, N).
        b: Shape (ciphertexts, F·2^levels): the coefficients that hold sums.
    """

    def __init__(
        self,
        key: RLWEPublicKey,
        groups: int,
        product: bool,
        a: Integers,
        b: Integers,
        *,
        masked: bool = False,
    ) -> None:
        self.key, self.groups, self.product, self.a, self.b = key, groups, product, a, b
        self.masked = masked
        self.slots = 1 if product else key.plan.slots
        self.width = 1 if product else key.workload.width
        self.fold = 1 if product else key.plan.fold
        self.levels = (b.shape[1] // self.fold).bit_length() - 1

    def to_tensor(self) -> Tensor:
        kept = self.key.plan.kept
        header = self.key.header(
            "sums", groups=self.groups, product=self.product, masked=self.masked
        )
        return seal(header, pack(self.a.view(np.uint64), kept), pack(self.b.view(np.uint64), kept))


# -- keys --------------------------------------------------------------------------------------


class RLWEPublicKey(PublicKey):
    """What answers are re-randomised and packed with.

    Attributes:
        plan: How numbers are laid out and how many fit.
        seed: What p1 and the switching keys' public halves come from.
        p0: Shape (words, N).
        switching: Shape (words, levels, digits, N).
    """

    def __init__(self, plan: Plan, seed: bytes, p0: Integers, switching: Integers) -> None:
        self.plan, self.seed, self.p0, self.switching = plan, seed, p0, switching
        self.workload, self.ring = plan.workload, plan.setting.ring
        parts = [part.tobytes() for part in self._body()]
        self.fingerprint = fingerprint(repr(plan).encode(), seed, *parts)

    def header(self, what: str, **more: Any) -> dict[str, Any]:
        """The header of a ciphertext under this key."""
        return {"scheme": SCHEME, "what": what, "key": self.fingerprint, **more}

    def to_tensor(self) -> Tensor:
        header = {
            "scheme": SCHEME,
            "what": "public key",
            "setting": self.plan.setting.name,
            "workload": asdict(self.workload),
        }
        return seal(header, _bytes(self.seed), *self._body())

    def _body(self) -> list[Bytes]:
        return _packed(self.ring, self.p0, 0) + _packed(self.ring, self.switching, 0)

    @classmethod
    def unsealed(cls, message: Sealed) -> Self:
        """The key out of its message.

        Raises:
            Refused: it cannot be read, or asks for what no key of this scheme could do.
        """
        header, payload = message
        try:
            setting = SETTINGS[header["setting"]]
            plan = Plan.fit(setting, Workload(**header["workload"]))
        except (KeyError, TypeError, CapacityError) as e:
            raise Refused("a Ring-LWE public key that came cannot be used") from e
        seed, rest = payload[:SEED_BYTES].tobytes(), payload[SEED_BYTES:]
        p0, rest = _unpacked(setting.ring, rest, (setting.ring.degree,), 0)
        switching, rest = _unpacked(setting.ring, rest, _switching_shape(plan), 0)
        _all_read(rest)
        return cls(plan, seed, p0, switching)

    def read(self, tensor: Tensor) -> Ciphertext:
        header, payload = opened(tensor, SCHEME, self.fingerprint)
        what = header.get("what")
        ring = self.ring
        if what == "rows":
            count = whole(header, "rows", 0, MOST_ROWS)
            seed, rest = payload[:SEED_BYTES].tobytes(), payload[SEED_BYTES:]
            b, rest = _unpacked(ring, rest, (count, self.plan.fold), DROPPED)
            _all_read(rest)
            return RLWERows(self, seed, b)
        if what == "vector":
            return self._read_vector(header, payload)
        if what == "sums":
            return self._read_sums(header, payload)
        raise Refused("a ciphertext of an unknown form came")

    def _read_vector(self, header: dict[str, Any], payload: Bytes) -> RLWEVector:
        ring = self.ring
        length = whole(header, "length", 0, self.workload.rows)
        parts = whole(header, "parts", 1, 2**16)
        variance = whole(header, "variance", 1, 2**60)
        shape = (-(-length // ring.degree), ring.degree)
        if header.get("seeded") is True:
            seed, a, rest = payload[:SEED_BYTES].tobytes(), None, payload[SEED_BYTES:]
        else:
            seed = b""
            a, rest = _unpacked(ring, payload, shape, 0)
        b, rest = _unpacked(ring, rest, shape, DROPPED)
        _all_read(rest)
        return RLWEVector(self, length, b, a=a, seed=seed, parts=parts, variance=float(variance))

    def _read_sums(self, header: dict[str, Any], payload: Bytes) -> RLWESums:
        groups = whole(header, "groups", 1, 2**30)
        product = header.get("product") is True
        if product:
            used, packs = 1, groups
        else:
            levels, packs = self.plan.packs(-(-groups // self.plan.slots))
            used = self.plan.fold << levels
        parts, start = [], 0
        for columns in (self.ring.degree, used):
            end = start + packed_size(packs * columns, self.plan.kept)
            if end > len(payload):
                raise Refused("an encrypted answer is shorter than it says")
            words = unpack(payload[start:end], packs * columns, self.plan.kept)
            parts.append(words.view(np.int64).reshape(packs, columns))
            start = end
        _all_read(payload[start:])
        masked = product and header.get("masked") is True
        return RLWESums(self, groups, product, parts[0], parts[1], masked=masked)

    # -- computing -----------------------------------------------------------------------------

    def encrypt(self, values: AnyIntegers) -> RLWEVector:
        numbers = checked_values(values, self.workload, None)
        ring = self.ring
        message = _blocks(numbers, ring.degree)
        a, b = self._zeros(len(message))
        ring.accumulate(b, message, self.plan.delta)
        _drop(ring, b)
        variance = self.plan.setting.masking + 4**DROPPED / 4
        return RLWEVector(self, len(numbers), b, a=ring.reduce(a), variance=variance)

    def add(self, one: Vector, other: Vector) -> RLWEVector:
        one, other = self._own(one, RLWEVector), self._own(other, RLWEVector)
        if len(one) != len(other):
            raise ValueError(f"vectors of {len(one):,} and {len(other):,} numbers cannot be added")
        ring = self.ring
        return RLWEVector(
            self,
            len(one),
            ring.reduce(one.b + other.b),
            a=ring.reduce(one.a + other.a),
            parts=one.parts + other.parts,
            variance=one.variance + other.variance,
        )

    def sum_by_index(
        self,
        rows: Rows,
        index: AnyIntegers,
        groups: int,
        *,
        selected: AnyIntegers | None = None,
        smallest: int = 1,
    ) -> RLWESums:
        rows = self._own(rows, RLWERows)
        plan, ring = self.plan, self.ring
        where, index = checked_index(len(rows), index, groups, selected, smallest, self.workload)
        answers = -(-groups // plan.slots)
        place = index // plan.slots  # -1 stays -1
        turn = index - place * plan.slots
        if int(np.bincount(place.ravel() + 1, minlength=2)[1:].max()) > plan.terms:
            raise CapacityError("more columns than this key allows for add to neighbouring groups")
        tiles = ring.degree // plan.fold // TILE
        length = plan.fold * TILE
        scatter = kernels().scatter

        def tile(t: int) -> Integers:
            expander = _Expander(rows.seed)
            sums = ring.zeros(answers, length)
            for start in range(0, len(where), CHUNK):
                part = slice(start, start + CHUNK)
                for p in range(len(ring.planes)):
                    first = (p * tiles + t) * length // 2
                    words = expander.words(where[part], first, length)
                    if p < len(ring.planes) - 1:
                        words &= (1 << ring.planes[p]) - 1
                    scatter(words, place[part], turn[part], TILE, sums[p])
                if start // CHUNK % 4 == 3:  # the lower word gains 15 bits at most in four chunks
                    ring.carry(sums)
            return ring.reduce(sums)

        a = np.stack(_parallel(tile, range(tiles)), axis=2)  # (words, answers, tiles, F·TILE)
        a = a.reshape(len(ring.planes), answers, tiles, plan.fold, TILE)
        a = np.ascontiguousarray(a.transpose(0, 1, 3, 2, 4)).reshape(-1, answers, ring.degree)

        b = ring.zeros(answers, plan.fold)
        for start in range(0, len(where), 4 * CHUNK):
            part = slice(start, start + 4 * CHUNK)
            for p in range(len(ring.planes)):
                scatter(rows.b[p][where[part]], place[part], turn[part], 1, b[p])
            ring.carry(b)
        a, b = self._packed(*self._hidden(a, b, plan.fold, plan.delta - plan.levels))
        return RLWESums(self, groups, False, a, b)

    def scalar_product(self, vector: Vector, matrix: AnyIntegers) -> RLWESums:
        return self._product(vector, matrix, None)

    def masked_product(self, vector: Vector, matrix: AnyIntegers) -> tuple[RLWESums, Integers]:
        # Uniform over all plaintexts, so a masked product is too: it tells nothing at all.
        drawn = random_words(np.shape(matrix)[-1]) >> np.uint64(64 - self.workload.sum_bits)
        masks = drawn.astype(np.int64)
        return self._product(vector, matrix, masks), masks

    def _product(self, vector: Vector, matrix: AnyIntegers, masks: Integers | None) -> RLWESums:
        vector = self._own(vector, RLWEVector)
        ring, plan = self.ring, self.plan
        numbers = checked_matrix(len(vector), matrix, self.workload)
        if not numbers.size:
            raise ValueError("a scalar product needs rows and columns")
        weight = int(np.abs(numbers).sum(axis=0).max())
        square = float((numbers.astype(np.float64) ** 2).sum(axis=0).max())
        if weight * self.workload.largest * vector.parts > self.workload.sum_limit or not plan.fits(
            vector.variance * square, 1, 0, plan.cut
        ):
            raise CapacityError(
                "a scalar product could outgrow what this key was made for; use coarser numbers, "
                "smaller batches or the 'strict' setting"
            )
        features = numbers.shape[1]
        # Coefficient 0 of d·x for x = Σ x_i X^-i, and X^-i = -X^(N-i).
        small = np.zeros((vector.b.shape[1] * ring.degree, features), dtype=np.int64)
        small[: len(numbers)] = numbers
        small = small.reshape(-1, ring.degree, features).transpose(0, 2, 1)
        reversed_ = np.concatenate([small[..., :1], -small[..., :0:-1]], axis=-1)
        sums: dict[int, Any] = {}
        b = ring.zeros(features, 1)
        for block, polynomials in enumerate(reversed_):
            factor = ring.spectrum(polynomials)
            for shift, limb in ring.spectra(vector.a[:, block], MATRIX_LIMB):
                sums[shift] = sums.get(shift, 0) + factor * limb
            for shift, part in ring.limbs(vector.b[:, block], 24):
                ring.accumulate(b, (small[block] @ part)[:, None], shift)
            ring.carry(b)
        a = ring.zeros(features, ring.degree)
        for shift, spectrum in sums.items():
            ring.accumulate(a, ring.polynomials(spectrum), shift)
        if masks is not None:
            ring.accumulate(b, masks[:, None], plan.delta)
        a, b = self._hidden(ring.reduce(a), b, 1, plan.delta)
        a, b = self._shortened(a), self._shortened(b)
        return RLWESums(self, features, True, a, b, masked=masks is not None)

    def _hidden(self, a: Integers, b: Integers, fold: int, delta: int) -> tuple[Integers, Integers]:
        """Re-randomise and flood (words, k, N) and (words, k, fold) sums in place."""
        ring = self.ring
        stride = ring.degree // fold

        def block(start: int) -> None:
            part = slice(start, start + ANSWERS)
            zero_a, zero_b = self._zeros(a[:, part].shape[1])
            a[:, part] += zero_a
            b[:, part] += zero_b[..., ::stride]
            _flood(ring, b[:, part], delta - 2)

        _parallel(block, range(0, a.shape[1], ANSWERS))
        return ring.reduce(a), ring.reduce(b)

    def _packed(self, a: Integers, b: Integers) -> tuple[Integers, Integers]:
        """Pack and shorten re-randomised sums: (packs, N) and (packs, F·2^levels)."""
        ring, plan = self.ring, self.plan
        answers = a.shape[1]
        levels, packs = plan.packs(answers)
        # Answer k of a pack stands at [k, pack], so that halves of the list are merged.
        full = ring.zeros(2, packs << levels, ring.degree)
        full[:, 0, :answers] = a
        full[:, 1, :answers, :: ring.degree // plan.fold] = b
        order = np.arange(packs << levels).reshape(packs, -1).T.reshape(-1)
        a, b = full[:, 0, order], full[:, 1, order]
        for level in range(levels):
            half = a.shape[1] // 2
            merged = ring.zeros(2, half, ring.degree)

            def block(start: int, level: int = level, half: int = half) -> None:
                part = slice(start, min(start + ANSWERS, half))
                both = np.r_[part, start + half : part.stop + half]
                done = self._packer.merge(level, a[:, both], b[:, both])  # noqa: B023
                merged[:, 0, part], merged[:, 1, part] = done  # noqa: B023

            _parallel(block, range(0, half, ANSWERS))
            a, b = merged[:, 0], merged[:, 1]
        b = b[..., :: ring.degree // (plan.fold << levels)]
        missing = plan.levels - levels  # bring the sums of a smaller pack to the same Δ
        for words in (a, b) if missing else ():
            for _ in range(missing):
                words += words
                ring.carry(words)
        return self._shortened(a), self._shortened(b)

    def _shortened(self, words: Integers) -> Integers:
        cut = self.plan.cut - self.ring.below_top
        top = self.ring.reduce(words)[-1]
        out: Integers = ((top + (1 << cut >> 1)) >> cut) & ((1 << self.plan.kept) - 1)
        return out

    def _zeros(self, count: int) -> tuple[Integers, Integers]:
        """Public-key encryptions of zero: (words, count, N) twice, not yet reduced."""
        ring = self.ring
        u = ternary(count, ring.degree)
        p1, p0 = self._spectra
        a, b = ring.multiply(p1, u), ring.multiply(p0, u)
        ring.accumulate(a, centred_binomial(count, ring.degree), 0)
        ring.accumulate(b, centred_binomial(count, ring.degree), 0)
        return a, b

    @cached_property
    def _packer(self) -> Packer:
        a = _switching_halves(self.plan, self.seed)
        return Packer(self.ring, self.plan.setting.gadget, self.plan.fold, a, self.switching)

    @cached_property
    def _spectra(self) -> Any:
        p1 = _expand(self.ring, self.seed, 1)[:, 0]
        return self.ring.spectra(p1, TERNARY_LIMB), self.ring.spectra(self.p0, TERNARY_LIMB)

    def _own(self, ciphertext: Ciphertext, form: type[T]) -> T:
        if not isinstance(ciphertext, form):
            raise Refused(f"{form.__name__} is due here, not {type(ciphertext).__name__}")
        key: RLWEPublicKey = ciphertext.key  # type: ignore[attr-defined]
        if key.fingerprint != self.fingerprint:
            raise Refused("a ciphertext under another key came")
        return ciphertext


class RLWEPrivateKey(PrivateKey):
    """The secret s. Make one with :meth:`generate`."""

    public: RLWEPublicKey

    def __init__(self, public: RLWEPublicKey, secret: Integers) -> None:
        self.public, self._secret = public, secret

    @classmethod
    def generate(cls, workload: Workload, setting: SettingName = "fast") -> Self:
        """A fresh key pair.

        Raises:
            CapacityError: the workload does not fit the setting.
        """
        plan = Plan.fit(SETTINGS[setting], workload)
        ring = plan.setting.ring
        secret, seed = ternary(ring.degree), os.urandom(SEED_BYTES)
        p1 = _expand(ring, seed, 1)[:, 0]
        p0 = -ring.multiply(ring.spectra(p1, TERNARY_LIMB), secret)
        ring.accumulate(p0, centred_binomial(ring.degree), 0)
        switching = _switching_keys(plan, seed, secret)
        return cls(RLWEPublicKey(plan, seed, ring.reduce(p0), switching), secret)

    def encrypt_rows(self, values: AnyIntegers) -> RLWERows:
        public = self.public
        ring, plan = public.ring, public.plan
        width = public.workload.width
        numbers = checked_values(values, public.workload, width)
        seed = os.urandom(SEED_BYTES)
        tiles, length = ring.degree // plan.fold // TILE, plan.fold * TILE
        # Rotations in the order in which a row's words come: tile, power of Y, coefficient.
        matrix = -ring.rotations(self._secret, plan.fold)
        matrix = matrix.reshape(plan.fold, plan.fold, tiles, TILE).transpose(2, 0, 1, 3)
        columns = np.ascontiguousarray(matrix).reshape(tiles, plan.fold, length)
        b = ring.zeros(len(numbers), plan.fold)
        project = kernels().project

        def chunk(start: int) -> None:
            part = slice(start, start + CHUNK)
            rows = np.arange(start, min(start + CHUNK, len(numbers)))
            expander = _Expander(seed)
            out = ring.zeros(len(rows), plan.fold)
            for p in range(len(ring.planes)):
                for t in range(tiles):
                    words = expander.words(rows, (p * tiles + t) * length // 2, length)
                    if p < len(ring.planes) - 1:
                        words &= (1 << ring.planes[p]) - 1
                    project(words, columns[t], out[p])
            ring.carry(out)
            ring.accumulate(out, centred_binomial(len(rows), plan.fold), 0)
            message = np.zeros((len(rows), plan.fold), dtype=np.int64)
            message[:, : plan.slots * width : plan.slots] = numbers[part]
            ring.accumulate(out, message, plan.delta - plan.levels)
            _drop(ring, out)
            b[:, part] = out

        _parallel(chunk, range(0, len(numbers), CHUNK))
        return RLWERows(public, seed, b)

    def encrypt(self, values: AnyIntegers) -> RLWEVector:
        public = self.public
        ring = public.ring
        numbers = checked_values(values, public.workload, None)
        seed = os.urandom(SEED_BYTES)
        message = _blocks(numbers, ring.degree)
        b = -self._times_secret(_expand(ring, seed, len(message)))
        ring.accumulate(b, centred_binomial(*message.shape), 0)
        ring.accumulate(b, message, public.plan.delta)
        _drop(ring, b)
        return RLWEVector(public, len(numbers), b, seed=seed)

    def decrypt(self, sums: Sums | Vector, *, limit: int | AnyIntegers | None = None) -> Integers:
        public = self.public
        if isinstance(sums, Vector):
            vector = public._own(sums, RLWEVector)
            phase = public.ring.reduce(vector.b + self._times_secret(vector.a))[-1]
            numbers = self._decoded(phase, public.ring.planes[-1])
            return checked_range(numbers.reshape(-1)[: len(vector)], limit, public.workload)
        answer = public._own(sums, RLWESums)
        numbers = self._decoded(self._phase(answer), public.plan.kept)
        numbers = numbers.reshape(-1, answer.width, answer.slots)
        numbers = numbers.transpose(0, 2, 1).reshape(-1, answer.width)[: answer.groups]
        if answer.masked:
            return numbers
        return checked_range(numbers, limit, public.workload)

    def _phase(self, answer: RLWESums) -> Integers:
        """Δ·m + noise of each answer, (answers, slots · width), mod 2^kept."""
        plan, degree = self.public.plan, self.public.ring.degree
        ring = Ring(degree, (plan.kept,))
        product = ring.multiply(ring.spectra(answer.a[None], TERNARY_LIMB), self._secret)[0]
        phase = product[:, :: degree // answer.b.shape[1]] + answer.b
        phase &= (1 << plan.kept) - 1
        # Number c of answer k of a pack stands at c·2^levels + k.
        phase = phase.reshape(len(phase), answer.fold, -1).transpose(0, 2, 1)
        answers = -(-answer.groups // answer.slots)
        out: Integers = phase.reshape(-1, answer.fold)[:answers, : answer.slots * answer.width]
        return out

    def _decoded(self, phase: Integers, bits: int) -> Integers:
        """Round ``bits``-bit numbers Δ·m + noise to m.

        Raises:
            Refused: the noise is beyond the budget.
        """
        step = bits - self.public.workload.sum_bits
        rounded = phase + (1 << (step - 1))
        noise = (rounded & ((1 << step) - 1)) - (1 << (step - 1))
        if noise.size and int(np.abs(noise).max()) > 3 << step >> 3:
            raise Refused(
                "an encrypted answer does not decrypt: it was made under another key, from other "
                "ciphertexts, or was damaged"
            )
        sign = 64 - self.public.workload.sum_bits
        signed: Integers = (rounded >> step << sign) >> sign
        return signed

    def _times_secret(self, a: Integers) -> Integers:
        ring = self.public.ring
        return ring.multiply(ring.spectra(a, TERNARY_LIMB), self._secret)


# -- parts -------------------------------------------------------------------------------------


class _Expander:
    """The pseudo-random numbers a_i of one seed, into a buffer that is used again."""

    def __init__(self, seed: bytes) -> None:
        self._cipher = Cipher(algorithms.AES(seed), modes.ECB()).encryptor()
        self._counters = np.empty(0, dtype=np.uint64)
        self._out = np.empty(0, dtype=np.uint8)

    def words(self, rows: Integers, first: int, length: int) -> Integers:
        """``length`` 64-bit words of each row from block ``first``, valid until the next call."""
        size = len(rows) * length
        if len(self._counters) < size:
            self._counters = np.empty(size, dtype=np.uint64)
            self._out = np.empty(8 * size + 15, dtype=np.uint8)
        counters = self._counters[:size].reshape(len(rows), length // 2, 2)
        kernels().fill(counters, rows, first)
        self._cipher.update_into(counters.view(np.uint8).reshape(-1).data, self._out.data)
        return self._out[: 8 * size].view(np.int64).reshape(len(rows), length)


def _expand(ring: Ring, seed: bytes, count: int) -> Integers:
    """``count`` pseudo-random polynomials, (words, count, N)."""
    planes = len(ring.planes)
    words = _Expander(seed).words(np.arange(count), 0, planes * ring.degree)
    out = np.ascontiguousarray(words.reshape(count, planes, ring.degree).transpose(1, 0, 2))
    for word, bits in zip(out, ring.planes, strict=True):
        word &= (1 << bits) - 1
    return out


def _switching_shape(plan: Plan) -> tuple[int, ...]:
    return plan.levels, plan.setting.gadget.count, plan.setting.ring.degree


def _switching_halves(plan: Plan, seed: bytes) -> Integers:
    """The pseudo-random halves of the switching keys, after p1 in the seed's numbers."""
    ring, shape = plan.setting.ring, _switching_shape(plan)
    drawn = _expand(ring, seed, 1 + shape[0] * shape[1])
    return np.ascontiguousarray(drawn[:, 1:]).reshape(len(ring.planes), *shape)


def _switching_keys(plan: Plan, seed: bytes, secret: Integers) -> Integers:
    """Encryptions of σ(s)·2^(drop + i·digit), for each level's σ and each digit i."""
    ring, gadget = plan.setting.ring, plan.setting.gadget
    b = -ring.multiply(ring.spectra(_switching_halves(plan, seed), TERNARY_LIMB), secret)
    ring.accumulate(b, centred_binomial(*b.shape[1:]), 0)
    for level in range(plan.levels):
        turned = automorphism(ring, secret, galois(ring, plan.fold, level))
        for i in range(gadget.count):
            ring.accumulate(b[:, level, i], turned, gadget.drop + i * gadget.digit)
    return ring.reduce(b)


def _blocks(numbers: Integers, degree: int) -> Integers:
    """(n,) numbers, padded with zeros, in lines of ``degree``."""
    padded = np.zeros(-(-len(numbers) // degree) * degree, dtype=np.int64)
    padded[: len(numbers)] = numbers
    return padded.reshape(-1, degree)


def _drop(ring: Ring, words: Integers) -> None:
    """Reduce, and round the low bits that do not travel away.

    Up or down at random, so that the error's mean is zero: rounding to the nearest would be off by
    a half on average, and that adds up over the rows.
    """
    words[0] += random_words(words[0].size).view(np.int64).reshape(words[0].shape) & (
        (1 << DROPPED) - 1
    )
    ring.reduce(words)
    words[0] &= -(1 << DROPPED)


def _flood(ring: Ring, words: Integers, bits: int) -> None:
    """Add uniform errors out of -2^bits … 2^bits - 1."""
    shape = words.shape[1:]
    low = min(bits + 1, 60 if len(ring.planes) == 1 else ring.planes[0])

    def uniform(width: int) -> Integers:
        drawn = random_words(math.prod(shape)) >> np.uint64(64 - width)
        return drawn.astype(np.int64).reshape(shape)

    ring.accumulate(words, uniform(low), 0)
    if bits + 1 > low:
        ring.accumulate(words, uniform(bits + 1 - low), low)
    ring.accumulate(words, np.full(shape, -1, dtype=np.int64), bits)


def _packed(ring: Ring, words: Integers, dropped: int) -> list[Bytes]:
    """Reduced numbers as bytes, word by word, without the lowest ``dropped`` bits."""
    cuts = [dropped] + [0] * (len(ring.planes) - 1)
    return [
        pack((word >> cut).view(np.uint64), bits - cut)
        for word, bits, cut in zip(words, ring.planes, cuts, strict=True)
    ]


def _unpacked(
    ring: Ring, payload: Bytes, shape: tuple[int, ...], dropped: int
) -> tuple[Integers, Bytes]:
    """What :func:`_packed` gave, and the payload after it.

    Raises:
        Refused: the payload is too short.
    """
    count = math.prod(shape)
    out = ring.zeros(*shape)
    cuts = [dropped] + [0] * (len(ring.planes) - 1)
    for word, bits, cut in zip(out, ring.planes, cuts, strict=True):
        size = packed_size(count, bits - cut)
        if len(payload) < size:
            raise Refused("a ciphertext or key is shorter than it says")
        read = unpack(payload[:size], count, bits - cut).view(np.int64).reshape(shape)
        word[...] = read << cut
        payload = payload[size:]
    return out, payload


def _all_read(rest: Bytes) -> None:
    if len(rest):
        raise Refused("a ciphertext or key is longer than it says")


def _bytes(seed: bytes) -> Bytes:
    return np.frombuffer(seed, dtype=np.uint8)


def _parallel(function: Callable[[int], T], items: Iterable[int]) -> list[T]:
    """Call a function on all cores; the loops inside release the interpreter lock."""
    work = list(items)
    if len(work) < 2 or cores() == 1:
        return [function(item) for item in work]
    with ThreadPoolExecutor(cores()) as pool:
        return list(pool.map(function, work))
