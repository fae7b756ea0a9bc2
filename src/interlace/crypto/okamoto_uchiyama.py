"""Okamoto-Uchiyama encryption, computed by SecretFlow's HEU (the ``sf-heu`` library).

**Scheme.** Okamoto and Uchiyama, "A new public-key cryptosystem as secure as factoring" (1998):
n = p²q, plaintexts mod p, so a ciphertext has the size of n instead of n². **Assumption**: the
p-subgroup assumption. **Parameters**: n of 3072 bits by default, about 128 bits of security for
factoring (NIST SP 800-57 part 1, table 2); 2048 bits (112) is the least.

The ``width`` numbers of a row are signed lanes of one plaintext, and neighbouring sums of a
histogram are squeezed into one, as with Paillier; a plaintext has a third of n's bits only.

**What it is for**: many bins over a slow link, where Ring-LWE's answers are larger. It computes
several times longer than Ring-LWE and several times less long than Paillier.

**Threat model**: honest but curious, and this scheme needs it more than the others do: who learns
one decrypted number that was p or larger can factor n. Decrypted sums are therefore checked, and
nothing may be done with an answer that :meth:`~interlace.crypto.PrivateKey.decrypt` refuses, not
even telling the partner which number was wrong. An answer is re-randomised with one fresh
encryption of zero, whose exponent HEU chooses short: which rows were added is hidden from the key
holder only as far as discrete logarithms mod p are hard for it, not statistically. HEU is beta
software that reads what a partner sent in C++. No outside review of any of this has taken place.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache
from typing import Any, Self, TypeVar

import numpy as np
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
from interlace.crypto.lanes import joined, parted
from interlace.crypto.wire import Bytes, Sealed, fingerprint, opened, seal, whole
from interlace.errors import Refused

T = TypeVar("T")
Heu = Any  # the library has no types

SCHEME = "okamoto-uchiyama"
BITS = 3072
LEAST_BITS = 2048
SPARE = 8  # bits of a plaintext left free: p's exact length is HEU's affair
OVERHEAD = 16  # bytes of HEU's own around each ciphertext


class OURows(Rows):
    """Rows: one ciphertext each, as HEU's array of shape (n, 1)."""

    def __init__(self, key: OUPublicKey, array: Heu) -> None:
        self.key, self.array = key, array

    def __len__(self) -> int:
        return int(self.array.rows)

    def to_tensor(self) -> Tensor:
        return seal(self.key.header("rows", length=len(self)), _bytes(self.array.serialize()))


class OUVector(Vector):
    """A vector: one ciphertext a number, made of ``parts`` added vectors."""

    def __init__(self, key: OUPublicKey, array: Heu, parts: int = 1) -> None:
        self.key, self.array, self.parts = key, array, parts

    def __len__(self) -> int:
        return int(self.array.rows)

    def to_tensor(self) -> Tensor:
        header = self.key.header("vector", length=len(self), parts=self.parts)
        return seal(header, _bytes(self.array.serialize()))


class OUSums(Sums):
    """Answers: the sums of a histogram share ciphertexts, scalar products have one each."""

    def __init__(
        self, key: OUPublicKey, groups: int, product: bool, array: Heu, *, masked: bool = False
    ) -> None:
        self.key, self.groups, self.product, self.array = key, groups, product, array
        self.masked = masked
        self.width = 1 if product else key.workload.width

    def to_tensor(self) -> Tensor:
        header = self.key.header(
            "sums", groups=self.groups, product=self.product, masked=self.masked
        )
        return seal(header, _bytes(self.array.serialize()))


class OUPublicKey(PublicKey):
    """HEU's public key.

    Attributes:
        bits: Bits of n.
        lane: Bits of one number in a plaintext.
        slots: Sums of a histogram that share an answer.
    """

    def __init__(self, workload: Workload, bits: int, blob: bytes) -> None:
        self.workload, self.bits, self._blob = workload, bits, blob
        self.lane = workload.sum_bits
        self.slots = (bits // 3 - SPARE) // (workload.width * self.lane)
        if self.slots < 1:
            raise CapacityError(
                f"{workload.width} numbers of {self.lane} bits do not fit one Okamoto-Uchiyama "
                f"plaintext of {bits // 3 - SPARE} bits; encrypt fewer of them together"
            )
        phe, hnp = _heu()
        self._kit = hnp.setup(phe.PublicKey.load_from(blob))
        self._encoder = self._kit.bigint_encoder()
        self.fingerprint = fingerprint(repr(workload).encode(), str(bits).encode(), blob)

    def header(self, what: str, **more: Any) -> dict[str, Any]:
        """The header of a ciphertext under this key."""
        return {"scheme": SCHEME, "what": what, "key": self.fingerprint, **more}

    def to_tensor(self) -> Tensor:
        header = {
            "scheme": SCHEME,
            "what": "public key",
            "bits": self.bits,
            "workload": asdict(self.workload),
        }
        return seal(header, _bytes(self._blob))

    @classmethod
    def unsealed(cls, message: Sealed) -> Self:
        """The key out of its message.

        Raises:
            Refused: it cannot be read or is too short.
        """
        header, payload = message
        bits = whole(header, "bits", 1, 2**14)
        if bits < LEAST_BITS or 8 * len(payload) < bits:
            raise Refused(f"an Okamoto-Uchiyama key of fewer than {LEAST_BITS} bits came")
        try:
            return cls(Workload(**header["workload"]), bits, payload.tobytes())
        except (KeyError, TypeError, RuntimeError, CapacityError) as e:
            raise Refused("an Okamoto-Uchiyama public key that came cannot be used") from e

    def read(self, tensor: Tensor) -> Ciphertext:
        header, payload = opened(tensor, SCHEME, self.fingerprint)
        what = header.get("what")
        if what == "rows":
            return OURows(self, self._array(payload, whole(header, "length", 1, MOST_ROWS)))
        if what == "vector":
            length = whole(header, "length", 1, self.workload.rows)
            return OUVector(self, self._array(payload, length), whole(header, "parts", 1, 2**16))
        if what == "sums":
            groups, product = whole(header, "groups", 1, 2**30), header.get("product") is True
            answers = groups if product else -(-groups // self.slots)
            masked = product and header.get("masked") is True
            return OUSums(self, groups, product, self._array(payload, answers), masked=masked)
        raise Refused("a ciphertext of an unknown form came")

    def _array(self, payload: Bytes, count: int) -> Heu:
        try:
            array = _heu()[1].CiphertextArray.load_from(payload.tobytes())
        except RuntimeError as e:
            raise Refused("an Okamoto-Uchiyama ciphertext cannot be read") from e
        if array.rows != count or array.cols != 1:
            raise Refused("an Okamoto-Uchiyama ciphertext is not as long as it says")
        return array

    # -- computing -----------------------------------------------------------------------------

    def encrypt(self, values: AnyIntegers) -> OUVector:
        numbers = checked_values(values, self.workload, None)
        return OUVector(self, self.encrypted(numbers.tolist()))

    def encrypted(self, plain: list[int]) -> Heu:
        """HEU's array of shape (n, 1) of encrypted plaintexts."""
        if not plain:
            raise ValueError("there is nothing to encrypt")
        return self._kit.encryptor().encrypt(self._plaintexts(plain))

    def add(self, one: Vector, other: Vector) -> OUVector:
        one, other = self._own(one, OUVector), self._own(other, OUVector)
        if len(one) != len(other):
            raise ValueError(f"vectors of {len(one):,} and {len(other):,} numbers cannot be added")
        array = self._kit.evaluator().add(one.array, other.array)
        return OUVector(self, array, one.parts + other.parts)

    def sum_by_index(
        self,
        rows: Rows,
        index: AnyIntegers,
        groups: int,
        *,
        selected: AnyIntegers | None = None,
        smallest: int = 1,
    ) -> OUSums:
        rows = self._own(rows, OURows)
        where, index = checked_index(len(rows), index, groups, selected, smallest, self.workload)
        order = np.argsort(index, axis=None, kind="stable")
        members = where[order // max(1, index.shape[1])]
        bounds = np.searchsorted(index.ravel()[order], np.arange(groups + 1))
        answers = -(-groups // self.slots)
        kit = self._kit.evaluator()
        step = self._plaintexts([1 << (self.workload.width * self.lane)] * answers, flat=True)
        out = None
        for slot in reversed(range(self.slots)):
            lists: list[list[int]] = []
            for group in range(slot, answers * self.slots, self.slots):
                held = bounds[group : group + 2]
                lists.append(members[held[0] : held[1]].tolist() if group < groups else [])
            part = kit.batch_select_sum(rows.array, lists)
            if out is not None:
                step = self._plaintexts(
                    [1 << (self.workload.width * self.lane)] * answers, flat=True
                )
                part = kit.add(kit.mul(out, step), part)
            out = part
        zeros = self._kit.encryptor().encrypt(self._plaintexts([0] * answers, flat=True))
        return OUSums(self, groups, False, kit.add(out, zeros))

    def scalar_product(self, vector: Vector, matrix: AnyIntegers) -> OUSums:
        return self._product(vector, matrix, [0] * np.shape(matrix)[-1], masked=False)

    def masked_product(self, vector: Vector, matrix: AnyIntegers) -> tuple[OUSums, Integers]:
        bits = self.workload.sum_bits
        masks = modular.masks(np.shape(matrix)[-1], bits)
        low = np.array([mask % 2**bits for mask in masks], dtype=np.int64)
        return self._product(vector, matrix, masks, masked=True), low

    def _product(
        self, vector: Vector, matrix: AnyIntegers, masks: list[int], *, masked: bool
    ) -> OUSums:
        """Products and masks, re-randomised by the masks' encryption."""
        vector = self._own(vector, OUVector)
        numbers = checked_matrix(len(vector), matrix, self.workload)
        if not numbers.size:
            raise ValueError("a scalar product needs rows and columns")
        weight = int(np.abs(numbers).sum(axis=0).max())
        if weight * self.workload.largest * vector.parts > self.workload.sum_limit:
            raise CapacityError("a scalar product could outgrow what this key was made for")
        kit = self._kit.evaluator()
        # A negative multiplier would become an exponent as long as p: take the two signs apart.
        above, below = (
            kit.matmul(self._kit.array(side.T.astype(object), self._encoder), vector.array)
            for side in (np.maximum(numbers, 0), np.maximum(-numbers, 0))
        )
        array = kit.add(kit.sub(above, below), self.encrypted(masks))
        return OUSums(self, numbers.shape[1], True, array, masked=masked)

    def _plaintexts(self, plain: list[int], *, flat: bool = False) -> Heu:
        array = np.array(plain, dtype=object)
        return self._kit.array(array if flat else array.reshape(-1, 1), self._encoder)

    def _own(self, ciphertext: Ciphertext, form: type[T]) -> T:
        if not isinstance(ciphertext, form):
            raise Refused(f"{form.__name__} is due here, not {type(ciphertext).__name__}")
        key: OUPublicKey = ciphertext.key  # type: ignore[attr-defined]
        if key.fingerprint != self.fingerprint:
            raise Refused("a ciphertext under another key came")
        return ciphertext


class OUPrivateKey(PrivateKey):
    """HEU's secret key. Make one with :meth:`generate`."""

    public: OUPublicKey

    def __init__(self, public: OUPublicKey, kit: Heu) -> None:
        self.public, self._kit = public, kit

    @classmethod
    def generate(cls, workload: Workload, bits: int = BITS) -> Self:
        """A fresh key pair of ``bits`` bits.

        Raises:
            CapacityError: a row's numbers do not fit one plaintext, or n would be too short.
        """
        if bits < LEAST_BITS:
            raise CapacityError(f"an Okamoto-Uchiyama key has {LEAST_BITS} bits or more")
        phe, hnp = _heu()
        kit = hnp.setup(phe.SchemaType.OU, bits)
        return cls(OUPublicKey(workload, bits, kit.public_key().serialize()), kit)

    def encrypt_rows(self, values: AnyIntegers) -> OURows:
        public = self.public
        numbers = checked_values(values, public.workload, public.workload.width)
        return OURows(public, public.encrypted(joined(numbers, public.lane)))

    def encrypt(self, values: AnyIntegers) -> OUVector:
        return self.public.encrypt(values)

    def decrypt(self, sums: Sums | Vector, *, limit: int | AnyIntegers | None = None) -> Integers:
        public = self.public
        if isinstance(sums, Vector):
            numbers = self._decrypted(public._own(sums, OUVector).array, 1)[:, 0]
        else:
            answer = public._own(sums, OUSums)
            if answer.masked:
                plain = self._plain(answer.array)
                return modular.residues(plain, 2 ** (2 * public.bits), public.workload.sum_bits)
            lanes = 1 if answer.product else public.slots * answer.width
            numbers = self._decrypted(answer.array, lanes).reshape(-1, answer.width)
            numbers = numbers[: answer.groups]
        return checked_range(numbers, limit, public.workload)

    def _decrypted(self, array: Heu, lanes: int) -> Integers:
        return parted(self._plain(array), self.public.lane, lanes)

    def _plain(self, array: Heu) -> list[int]:
        """Signed plaintexts."""
        plain = self._kit.decryptor().decrypt(array).to_numpy(self._kit.bigint_encoder())
        return [int(value) for value in np.ravel(plain)]


@cache
def _heu() -> tuple[Any, Any]:
    """HEU's two modules, its threads started."""
    from heu import numpy as hnp
    from heu import phe

    with _nothing_on_standard_output():
        kit = hnp.setup(phe.SchemaType.Mock, LEAST_BITS)
        plain = kit.array(np.array([1] * 4096, dtype=object), kit.bigint_encoder())
        kit.encryptor().encrypt(plain)
    return phe, hnp


_REDIRECTION = threading.Lock()


@contextmanager
def _nothing_on_standard_output() -> Iterator[None]:
    """HEU reports the start of its threads on standard output, where our own results belong."""
    with _REDIRECTION:
        sys.stdout.flush()
        kept = os.dup(1)
        os.dup2(2, 1)
        try:
            yield
        finally:
            os.dup2(kept, 1)
            os.close(kept)


def _bytes(blob: bytes) -> Bytes:
    return np.frombuffer(blob, dtype=np.uint8)
