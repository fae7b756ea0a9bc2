"""Additive encryption from Ring-LWE: the fast scheme.

**Scheme.** R = Z_q[X]/(X^N + 1), q a power of two, Y = X^(N/F). The private key is a ternary
polynomial s. Row i has a public pseudo-random a_i ∈ R, block j of which is AES-128 of (i, j) under
a public seed (as FrodoKEM expands its matrix): neither side ever sends it. The key holder sends
b_i = -a_i·s + e_i + Δ·m_i at the F powers of Y alone, with m_i = Σ_v value_v·Y^(v·F/width). The
summing party adds a_i·Y^k and b_i·Y^k for a row that belongs to the k-th of the F/width groups
that share a ciphertext. So one answer of N + F numbers serves F/width groups (16 for gradient and
hessian at F = 32), where an answer for each group would need N + 2: bytes for each bin fall by
that factor, while a row costs F numbers instead of 2. F is chosen for the fewest bytes in all. That
b_i is needed at all powers of Y is why F cannot simply be N: a row would then need N numbers.

**Answers** are re-randomised with a public-key encryption of zero (p1·u + e2, p0·u + e1), where
p1 comes from a public seed and p0 = -p1·s + e, and flooded with a uniform error in ±Δ/4; then the
low bits are dropped from both parts (modulus switching), as many as the noise budget leaves.

**Assumption.** Decision Ring-LWE with a uniform ternary secret and centred binomial errors of
standard deviation 3.24, and AES-128 as a random function for public randomness.

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
ANSWERS = 32  # answers re-randomised at once
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
    """

    name: SettingName
    ring: Ring
    statistical: int

    @property
    def masking(self) -> float:
        """Variance proxy of a public-key encryption of zero: e·u + e2·s + e1."""
        return VARIANCE * (2 * self.ring.degree + 1)


SETTINGS: dict[str, Setting] = {
    "fast": Setting("fast", Ring(2048, (54,)), 0),
    "strict": Setting("strict", Ring(4096, (48, 60)), 40),
}


@dataclass(frozen=True)
class Plan:
    """What both sides derive from a setting and a workload.

    Attributes:
        fold: F, the coefficients of each b that travel.
        cut: Low bits dropped from answers.
    """

    setting: Setting
    workload: Workload
    fold: int
    cut: int

    @classmethod
    def fit(cls, setting: Setting, workload: Workload) -> Plan:
        """The plan with the fewest bytes.

        Raises:
            CapacityError: the sums do not fit the noise budget.
        """
        plans = []
        fold = max(8, 2 ** (workload.width - 1).bit_length())
        while fold <= setting.ring.degree // TILE:
            plan = cls(setting, workload, fold, 0)
            cut = plan._largest_cut(plan.terms * _ROW, fold)
            if cut is not None:
                plans.append(replace(plan, cut=cut))
            fold *= 2
        if not plans:
            raise CapacityError(
                f"sums of {workload.rows:,} rows of numbers up to ±{workload.largest:,} do not fit "
                f"Ring-LWE's '{setting.name}' setting; use coarser numbers (`capacity` gives the "
                "largest that fit), fewer rows, or another scheme"
            )
        return min(plans, key=lambda plan: plan.bytes_in + plan.bytes_out)

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
        """log2(Δ)."""
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
        answers = -(-self.workload.groups // self.slots)
        numbers = self.setting.ring.degree + self.slots * self.workload.width
        return packed_size(answers * numbers, self.kept)

    def _noise(self, variance: float, cut: int) -> float:
        """A bound on all errors of an answer but the flood."""
        ring = self.setting.ring
        cut_error = (ring.degree + 1) * 4.0**cut / 4
        return TAIL * math.sqrt(variance + self.setting.masking + cut_error)

    def fits(self, variance: float, coefficients: int, cut: int | None = None) -> bool:
        """Whether an answer whose summed errors have this variance keeps the budget."""
        setting = self.setting
        hidden = TAIL * math.sqrt(variance + setting.masking) * coefficients
        return (
            self.delta > setting.ring.below_top
            and self._noise(variance, self.cut if cut is None else cut) <= 2.0 ** (self.delta - 3)
            and (not setting.statistical or hidden <= 2.0 ** (self.delta - 1 - setting.statistical))
        )

    def _largest_cut(self, variance: float, coefficients: int) -> int | None:
        cuts = range(self.setting.ring.below_top, self.setting.ring.log_q)
        return max((c for c in cuts if self.fits(variance, coefficients, c)), default=None)


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
        product: Whether of a scalar product: one number to an answer.
        a: Shape (answers, N).
        b: Shape (answers, slots · width): the coefficients that hold sums.
    """

    def __init__(
        self, key: RLWEPublicKey, groups: int, product: bool, a: Integers, b: Integers
    ) -> None:
        self.key, self.groups, self.product, self.a, self.b = key, groups, product, a, b
        self.slots = 1 if product else key.plan.slots
        self.width = 1 if product else key.workload.width

    def to_tensor(self) -> Tensor:
        kept = self.key.plan.kept
        header = self.key.header("sums", groups=self.groups, product=self.product)
        return seal(header, pack(self.a.view(np.uint64), kept), pack(self.b.view(np.uint64), kept))


# -- keys --------------------------------------------------------------------------------------


class RLWEPublicKey(PublicKey):
    """The encryption of zero that answers are re-randomised with.

    Attributes:
        plan: How numbers are laid out and how many fit.
        seed: What p1 comes from.
        p0: Shape (words, N).
    """

    def __init__(self, plan: Plan, seed: bytes, p0: Integers) -> None:
        self.plan, self.seed, self.p0 = plan, seed, p0
        self.workload, self.ring = plan.workload, plan.setting.ring
        parts = [part.tobytes() for part in _packed(self.ring, p0, 0)]
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
        return seal(header, _bytes(self.seed), *_packed(self.ring, self.p0, 0))

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
        _all_read(rest)
        return cls(plan, seed, p0)

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
        slots = 1 if product else self.plan.slots
        used = 1 if product else slots * self.workload.width
        answers = -(-groups // slots)
        parts, start = [], 0
        for columns in (self.ring.degree, used):
            end = start + packed_size(answers * columns, self.plan.kept)
            if end > len(payload):
                raise Refused("an encrypted answer is shorter than it says")
            words = unpack(payload[start:end], answers * columns, self.plan.kept)
            parts.append(words.view(np.int64).reshape(answers, columns))
            start = end
        _all_read(payload[start:])
        return RLWESums(self, groups, product, *parts)

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
        a, b = self._answer(a, b, plan.fold)
        return RLWESums(self, groups, False, a, b[:, : plan.slots * self.workload.width])

    def scalar_product(self, vector: Vector, matrix: AnyIntegers) -> RLWESums:
        vector = self._own(vector, RLWEVector)
        ring, plan = self.ring, self.plan
        numbers = checked_matrix(len(vector), matrix, self.workload)
        if not numbers.size:
            raise ValueError("a scalar product needs rows and columns")
        weight = int(np.abs(numbers).sum(axis=0).max())
        square = float((numbers.astype(np.float64) ** 2).sum(axis=0).max())
        if weight * self.workload.largest * vector.parts > self.workload.sum_limit or not plan.fits(
            vector.variance * square, 1
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
        return RLWESums(self, features, True, *self._answer(ring.reduce(a), b, 1))

    def _answer(self, a: Integers, b: Integers, fold: int) -> tuple[Integers, Integers]:
        """Re-randomise, flood and shorten (words, k, N) and (words, k, fold) sums."""
        ring, plan = self.ring, self.plan
        stride = ring.degree // fold

        def block(start: int) -> None:
            part = slice(start, start + ANSWERS)
            zero_a, zero_b = self._zeros(a[:, part].shape[1])
            a[:, part] += zero_a
            b[:, part] += zero_b[..., ::stride]
            _flood(ring, b[:, part], plan.delta - 2)

        _parallel(block, range(0, a.shape[1], ANSWERS))
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
        return cls(RLWEPublicKey(plan, seed, ring.reduce(p0)), secret)

    @cached_property
    def _folded(self) -> Integers:
        """Rotations of s for the powers of Y, (F, N)."""
        return self.public.ring.rotations(self._secret, self.public.plan.fold)

    def encrypt_rows(self, values: AnyIntegers) -> RLWERows:
        public = self.public
        ring, plan = public.ring, public.plan
        width = public.workload.width
        numbers = checked_values(values, public.workload, width)
        seed = os.urandom(SEED_BYTES)
        tiles, length = ring.degree // plan.fold // TILE, plan.fold * TILE
        # Rotations in the order in which a row's words come: tile, power of Y, coefficient.
        matrix = -self._folded.reshape(plan.fold, plan.fold, tiles, TILE).transpose(2, 0, 1, 3)
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
            ring.accumulate(out, message, plan.delta)
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
        kept = public.plan.kept
        if answer.product:
            phase = answer.a @ public.ring.rotations(self._secret, 1).T
        else:
            phase = np.zeros((len(answer.a), public.plan.fold), dtype=np.int64)
            kernels().project(answer.a, self._folded, phase)
        phase = (phase[:, : answer.b.shape[1]] + answer.b) & ((1 << kept) - 1)
        numbers = self._decoded(phase, kept).reshape(-1, answer.width, answer.slots)
        numbers = numbers.transpose(0, 2, 1).reshape(-1, answer.width)[: answer.groups]
        return checked_range(numbers, limit, public.workload)

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


def _blocks(numbers: Integers, degree: int) -> Integers:
    """(n,) numbers, padded with zeros, in lines of ``degree``."""
    padded = np.zeros(-(-len(numbers) // degree) * degree, dtype=np.int64)
    padded[: len(numbers)] = numbers
    return padded.reshape(-1, degree)


def _drop(ring: Ring, words: Integers) -> None:
    """Reduce, and round the low bits that do not travel away."""
    words[0] += 1 << DROPPED >> 1
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
