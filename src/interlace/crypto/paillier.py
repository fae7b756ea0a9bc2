"""Paillier encryption: the conservative scheme.

**Scheme.** Paillier 1999 over n = pq, in the variant of Damgård, Jurik and Nielsen ("A
generalization of Paillier's public-key system with applications to electronic voting", 2010,
§4.2): the randomiser of an encryption is a short power of h = (-x²)ⁿ mod n², with an exponent of
half of n's bits, so it comes out of a table. The key holder computes mod p² and q² (CRT) both ways.

The ``width`` numbers of a row are signed lanes of one plaintext, so a gradient and a hessian cost
one encryption and one multiplication. Before an answer leaves, neighbouring sums are squeezed into
one plaintext (cipher compressing as in SecureBoost+, Chen et al. 2021, arXiv 2110.10927): at 3072
bits 42 sums of pairs of 36 bits share an answer of 768 bytes. It is then multiplied with a power of
h whose exponent is 40 bits longer than the order of h, so its randomness is uniform up to 2^-40 and
shows nobody, the key holder included, which rows were added.

**Assumption.** Decisional composite residuosity, and that short exponents do not weaken the
randomisers. **Parameters**: n of 3072 bits, about 128 bits of security (NIST SP 800-57 part 1,
table 2); 2048 bits (112) is the least. p and q are 3 mod 4, with gcd(p-1, q-1) = 2.

**Capacity.** A lane has as many bits as the workload's largest sum with its sign; every sum is
checked against it before it is computed, so no lane runs over into the next.

**Threat model**: honest but curious. The public key is not proven to be well made. gmpy2 does not
run in constant time. No outside review has taken place.
"""

from __future__ import annotations

import secrets
from dataclasses import asdict
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from interlace.crypto import modular
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
from interlace.crypto.kernels import cores
from interlace.crypto.lanes import joined, parted
from interlace.crypto.wire import Bytes, Sealed, fingerprint, opened, seal, whole
from interlace.errors import Refused

T = TypeVar("T")

SCHEME = "paillier"
BITS = 3072
LEAST_BITS = 2048

# Rough seconds of one operation at 3072 bits: they only decide whether processes are worth it.
_ENCRYPTION, _ADDITION, _SQUEEZE, _DECRYPTION = 1.5e-3, 1e-5, 7e-4, 1e-2


class PaillierRows(Rows):
    """Rows: one ciphertext each.

    Attributes:
        lines: Shape (n, bytes of n²).
    """

    def __init__(self, key: PaillierPublicKey, lines: Bytes) -> None:
        self.key, self.lines = key, lines

    def __len__(self) -> int:
        return len(self.lines)

    def to_tensor(self) -> Tensor:
        return seal(self.key.header("rows", length=len(self)), self.lines)


class PaillierVector(Vector):
    """A vector: one ciphertext a number.

    Attributes:
        lines: Shape (n, bytes of n²).
        parts: How many vectors were added to make it.
    """

    def __init__(self, key: PaillierPublicKey, lines: Bytes, parts: int = 1) -> None:
        self.key, self.lines, self.parts = key, lines, parts

    def __len__(self) -> int:
        return len(self.lines)

    def to_tensor(self) -> Tensor:
        return seal(self.key.header("vector", length=len(self), parts=self.parts), self.lines)


class PaillierSums(Sums):
    """Answers: many sums to a ciphertext; of masked products one.

    Attributes:
        lines: Shape (answers, bytes of n²).
        masked: Whether random numbers were added.
    """

    def __init__(
        self,
        key: PaillierPublicKey,
        groups: int,
        width: int,
        lines: Bytes,
        *,
        masked: bool = False,
    ) -> None:
        self.key, self.groups, self.width, self.lines = key, groups, width, lines
        self.masked = masked

    def to_tensor(self) -> Tensor:
        header = self.key.header("sums", groups=self.groups, width=self.width, masked=self.masked)
        return seal(header, self.lines)


class PaillierPublicKey(PublicKey):
    """The modulus and the base of all randomisers.

    Attributes:
        n: The modulus.
        base: h^n mod n².
        lane: Bits of one number in a plaintext.
        size: Bytes of a ciphertext.
    """

    def __init__(self, workload: Workload, n: int, base: int) -> None:
        self.workload, self.n, self.base = workload, n, base
        self.lane = workload.sum_bits
        self.size = (2 * n.bit_length() + 7) // 8
        if self.slots(workload.width) < 1:
            raise CapacityError(
                f"{workload.width} numbers of {self.lane} bits do not fit one Paillier plaintext "
                f"of {n.bit_length()} bits; encrypt fewer of them together"
            )
        self.fingerprint = fingerprint(repr(workload).encode(), str(n).encode(), str(base).encode())

    def slots(self, width: int) -> int:
        """Sums of ``width`` numbers that share an answer."""
        return (self.n.bit_length() - 2) // (width * self.lane)

    def header(self, what: str, **more: Any) -> dict[str, Any]:
        """The header of a ciphertext under this key."""
        return {"scheme": SCHEME, "what": what, "key": self.fingerprint, **more}

    def to_tensor(self) -> Tensor:
        header = {
            "scheme": SCHEME,
            "what": "public key",
            "bits": self.n.bit_length(),
            "workload": asdict(self.workload),
        }
        body = self.n.to_bytes(self.size, "big") + self.base.to_bytes(self.size, "big")
        return seal(header, np.frombuffer(body, dtype=np.uint8))

    @classmethod
    def unsealed(cls, message: Sealed, *, least_bits: int = LEAST_BITS) -> Self:
        """The key out of its message.

        Raises:
            Refused: it cannot be read or is too short.
        """
        header, payload = message
        bits = whole(header, "bits", 1, 2**14)
        if bits < least_bits:
            raise Refused(f"a Paillier key of {bits} bits came; {least_bits} are the least")
        size = (2 * bits + 7) // 8
        if len(payload) != 2 * size:
            raise Refused("a Paillier public key is not as long as it says")
        n = int.from_bytes(payload[:size].tobytes(), "big")
        base = int.from_bytes(payload[size:].tobytes(), "big")
        if n.bit_length() != bits or n % 2 == 0 or not 1 < base < n * n:
            raise Refused("a Paillier public key is no such key")
        try:
            return cls(Workload(**header["workload"]), n, base)
        except (KeyError, TypeError, CapacityError) as e:
            raise Refused("a Paillier public key that came cannot be used") from e

    def read(self, tensor: Tensor) -> Ciphertext:
        header, payload = opened(tensor, SCHEME, self.fingerprint)
        what = header.get("what")
        if what == "rows":
            count = whole(header, "length", 0, MOST_ROWS)
            return PaillierRows(self, self._lines(payload, count))
        if what == "vector":
            count = whole(header, "length", 0, self.workload.rows)
            parts = whole(header, "parts", 1, 2**16)
            return PaillierVector(self, self._lines(payload, count), parts)
        if what == "sums":
            groups = whole(header, "groups", 1, 2**30)
            width = whole(header, "width", 1, self.workload.width)
            masked = header.get("masked") is True
            slots = 1 if masked else self.slots(width)
            lines = self._lines(payload, -(-groups // slots))
            return PaillierSums(self, groups, width, lines, masked=masked)
        raise Refused("a ciphertext of an unknown form came")

    def _lines(self, payload: Bytes, count: int) -> Bytes:
        if len(payload) != count * self.size:
            raise Refused("a Paillier ciphertext is not as long as it says")
        lines = payload.reshape(count, self.size)
        if not lines.any(axis=1).all():
            raise Refused("a Paillier ciphertext of zero came, which no encryption gives")
        return lines

    # -- computing -----------------------------------------------------------------------------

    def encrypt(self, values: AnyIntegers) -> PaillierVector:
        plain = checked_values(values, self.workload, None).tolist()
        blocks = [
            (self.n, self.base, plain[part], self.size) for part in modular.cut(len(plain), cores())
        ]
        done = modular.spread(modular.encrypt_with_public, blocks, len(plain) * 3 * _ENCRYPTION)
        return PaillierVector(self, np.concatenate(done))

    def add(self, one: Vector, other: Vector) -> PaillierVector:
        one, other = self._own(one, PaillierVector), self._own(other, PaillierVector)
        if len(one) != len(other):
            raise ValueError(f"vectors of {len(one):,} and {len(other):,} numbers cannot be added")
        lines = modular.multiplied(self.n, one.lines, other.lines, self.size)
        return PaillierVector(self, lines, one.parts + other.parts)

    def sum_by_index(
        self,
        rows: Rows,
        index: AnyIntegers,
        groups: int,
        *,
        selected: AnyIntegers | None = None,
        smallest: int = 1,
    ) -> PaillierSums:
        rows = self._own(rows, PaillierRows)
        where, index = checked_index(len(rows), index, groups, selected, smallest, self.workload)
        blocks = [
            (self.n, rows.lines[where[part]], index[part], self.size)
            for part in modular.cut(len(where), cores())
        ]
        partials = modular.spread(modular.sum_rows, blocks, index.size * _ADDITION)
        return self._answer(partials, groups, self.workload.width)

    def scalar_product(self, vector: Vector, matrix: AnyIntegers) -> PaillierSums:
        done, features = self._products(vector, matrix)
        partials: list[modular.Partial] = [dict(enumerate(lines)) for lines in done]
        return self._answer(partials, features, 1)

    def masked_product(self, vector: Vector, matrix: AnyIntegers) -> tuple[PaillierSums, Integers]:
        done, features = self._products(vector, matrix)
        masks = modular.masks(features, self.workload.sum_bits)
        # One encryption of the mask for each product: it hides which ciphertexts were multiplied.
        lines = modular.encrypt_with_public(self.n, self.base, masks, self.size, hiding=True)
        for part in done:
            lines = modular.multiplied(self.n, lines, part, self.size)
        low = np.array([mask % 2**self.workload.sum_bits for mask in masks], dtype=np.int64)
        return PaillierSums(self, features, 1, lines, masked=True), low

    def _products(self, vector: Vector, matrix: AnyIntegers) -> tuple[list[Bytes], int]:
        """Each block of rows' products, not re-randomised, and how many columns there are."""
        vector = self._own(vector, PaillierVector)
        numbers = checked_matrix(len(vector), matrix, self.workload)
        if not numbers.size:
            raise ValueError("a scalar product needs rows and columns")
        weight = int(np.abs(numbers).sum(axis=0).max())
        if weight * self.workload.largest * vector.parts > self.workload.sum_limit:
            raise CapacityError("a scalar product could outgrow what this key was made for")
        blocks = [
            (self.n, vector.lines[part], numbers[part], self.size)
            for part in modular.cut(len(numbers), cores())
        ]
        done = modular.spread(modular.products, blocks, numbers.size * 2 * _ADDITION)
        return done, numbers.shape[1]

    def _answer(self, partials: list[modular.Partial], groups: int, width: int) -> PaillierSums:
        slots = self.slots(width)
        blocks = []
        for part in modular.cut(-(-groups // slots), cores()):
            own = range(part.start * slots, min(part.stop * slots, groups))
            held = [{g: p[g] for g in own if g in p} for p in partials]
            blocks.append((self.n, self.base, held, own, slots, width * self.lane, self.size))
        done = modular.spread(modular.squeeze, blocks, groups * _SQUEEZE)
        return PaillierSums(self, groups, width, np.concatenate(done))

    def _own(self, ciphertext: Ciphertext, form: type[T]) -> T:
        if not isinstance(ciphertext, form):
            raise Refused(f"{form.__name__} is due here, not {type(ciphertext).__name__}")
        key: PaillierPublicKey = ciphertext.key  # type: ignore[attr-defined]
        if key.fingerprint != self.fingerprint:
            raise Refused("a ciphertext under another key came")
        return ciphertext


class PaillierPrivateKey(PrivateKey):
    """The factors of n. Make one with :meth:`generate`."""

    public: PaillierPublicKey

    def __init__(self, public: PaillierPublicKey, p: int, q: int) -> None:
        self.public, self._p, self._q = public, p, q

    @classmethod
    def generate(
        cls, workload: Workload, bits: int = BITS, *, insecure_for_tests: bool = False
    ) -> Self:
        """A fresh key pair.

        Args:
            workload: What it will be used for.
            bits: Bits of n.
            insecure_for_tests: Let n be shorter than 2048 bits. Partners refuse such a key.

        Raises:
            CapacityError: a row's numbers do not fit one plaintext, or n would be too short.
        """
        if bits % 2 or (bits < LEAST_BITS and not insecure_for_tests):
            raise CapacityError(f"a Paillier key has an even number of bits, {LEAST_BITS} or more")
        from gmpy2 import gcd

        while True:
            p, q = (int(modular.random_prime(bits // 2)) for _ in range(2))
            if p != q and gcd(p - 1, q - 1) == 2:
                break
        n = p * q
        x = secrets.randbelow(n - 1) + 1
        base = pow(-x * x % n, n, n * n)
        return cls(PaillierPublicKey(workload, n, base), p, q)

    def encrypt_rows(self, values: AnyIntegers) -> PaillierRows:
        public = self.public
        numbers = checked_values(values, public.workload, public.workload.width)
        return PaillierRows(public, self._encrypted(numbers))

    def encrypt(self, values: AnyIntegers) -> PaillierVector:
        numbers = checked_values(values, self.public.workload, None)
        return PaillierVector(self.public, self._encrypted(numbers[:, None]))

    def decrypt(self, sums: Sums | Vector, *, limit: int | AnyIntegers | None = None) -> Integers:
        public = self.public
        if isinstance(sums, Vector):
            vector = public._own(sums, PaillierVector)
            numbers = self._decrypted(vector.lines, 1)[:, 0]
        else:
            answer = public._own(sums, PaillierSums)
            if answer.masked:
                return self._masked(answer)
            lanes = public.slots(answer.width) * answer.width
            numbers = self._decrypted(answer.lines, lanes).reshape(-1, answer.width)
            numbers = numbers[: answer.groups]
        return checked_range(numbers, limit, public.workload)

    def _masked(self, answer: PaillierSums) -> Integers:
        plain = modular.decrypt(self._p, self._q, answer.lines)
        return modular.residues(plain, self.public.n, self.public.workload.sum_bits)

    def _encrypted(self, numbers: NDArray[np.int64]) -> Bytes:
        public = self.public
        plain = joined(numbers, public.lane)
        blocks = [
            (self._p, self._q, public.base, plain[part], public.size)
            for part in modular.cut(len(plain), cores())
        ]
        seconds = len(plain) * _ENCRYPTION
        return np.concatenate(modular.spread(modular.encrypt_with_factors, blocks, seconds))

    def _decrypted(self, lines: Bytes, lanes: int) -> Integers:
        public = self.public
        blocks = [(self._p, self._q, lines[part]) for part in modular.cut(len(lines), cores())]
        done = modular.spread(modular.decrypt, blocks, len(lines) * _DECRYPTION)
        signed = [v - public.n if v > public.n // 2 else v for block in done for v in block]
        return parted(signed, public.lane, lanes)
