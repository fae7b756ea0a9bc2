"""What every additively homomorphic scheme offers, and what the parties' sums are checked against.

The key holder encrypts; a partner adds up ciphertexts it cannot read; the key holder decrypts the
sums. Three forms of ciphertext exist, and nothing else is ever needed:

- :class:`Rows`: a few whole numbers for each row (a gradient and a hessian), packed so that they
  are added together. :meth:`PublicKey.sum_by_index` adds rows into groups: a histogram.
- :class:`Vector`: one whole number for each row. :meth:`PublicKey.scalar_product` takes Xᵀ[d].
- :class:`Sums`: an answer. It leaves the public key's methods only re-randomised, so there is no
  way to forget that: a plain sum of ciphertexts would tell their maker which ones were added.

All numbers are signed whole numbers; callers scale. All forms travel as ``uint8`` tensors.

Threat model: honest but curious. Both sides follow the protocol and try to learn more from what
they see. Nothing here proves to one side that the other computed what it should. A party that
sums still learns nothing about the numbers; the key holder learns the sums it asked for, exactly,
which for a group of one row is that row's membership: hence ``smallest``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from interlace.errors import InterlaceError, PolicyError, Refused

Integers = NDArray[np.int64]
AnyIntegers = NDArray[np.integer[Any]]

MOST_ROWS = 2**24


class CapacityError(InterlaceError):
    """The numbers could outgrow what a key was made for; nothing was computed."""


@dataclass(frozen=True)
class Workload:
    """What a key will be used for: fixes how large sums may grow and how numbers are packed.

    Attributes:
        rows: Most rows that are added into one sum.
        largest: Largest absolute value of an encrypted number.
        width: Whole numbers for each row of :class:`Rows`.
        groups: Sums asked of one encryption, over all features, bins and nodes. It only balances
            what is sent against what is answered.
        factor: Largest absolute value in the matrix of a scalar product.
    """

    rows: int
    largest: int
    width: int = 2
    groups: int = 416
    factor: int = 1

    def __post_init__(self) -> None:
        for name, most in (
            ("rows", MOST_ROWS),
            ("largest", 2**40),
            ("width", 64),
            ("groups", 2**30),
            ("factor", 2**15),
        ):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= most:
                raise CapacityError(f"`{name}` must be a whole number from 1 to {most:,}")

    @property
    def sum_bits(self) -> int:
        """Bits of the largest sum with its sign."""
        return (self.rows * self.largest * self.factor).bit_length() + 1

    @property
    def sum_limit(self) -> int:
        """Largest absolute sum that surely decrypts to itself."""
        return int(2 ** (self.sum_bits - 1) - 1)


class Ciphertext(ABC):
    """Numbers that only the key holder can read."""

    @abstractmethod
    def to_tensor(self) -> Tensor:
        """As it travels: a 1-D ``uint8`` tensor."""


class Rows(Ciphertext):
    """``width`` encrypted numbers for each row."""

    @abstractmethod
    def __len__(self) -> int:
        """How many rows."""


class Vector(Ciphertext):
    """One encrypted number for each row."""

    @abstractmethod
    def __len__(self) -> int:
        """How many numbers."""


class Sums(Ciphertext):
    """Re-randomised sums on their way back to the key holder.

    Attributes:
        groups: How many sums.
        width: Numbers in each.
    """

    groups: int
    width: int


class PublicKey(ABC):
    """What a partner needs to compute on ciphertexts.

    Attributes:
        workload: What the key was made for.
    """

    workload: Workload

    @abstractmethod
    def to_tensor(self) -> Tensor:
        """As it travels: a 1-D ``uint8`` tensor, for :func:`interlace.crypto.read_public_key`."""

    @abstractmethod
    def read(self, tensor: Tensor) -> Ciphertext:
        """A ciphertext that came from a partner.

        Raises:
            Refused: it is damaged, of another scheme, or under another key.
        """

    @abstractmethod
    def encrypt(self, values: AnyIntegers) -> Vector:
        """Encrypt (n,) whole numbers without the private key.

        Raises:
            CapacityError: a number is larger than the workload's ``largest``, or there are more
                than its ``rows``.
        """

    @abstractmethod
    def add(self, one: Vector, other: Vector) -> Vector:
        """The encrypted sums ``one[i] + other[i]``."""

    @abstractmethod
    def sum_by_index(
        self,
        rows: Rows,
        index: AnyIntegers,
        groups: int,
        *,
        selected: AnyIntegers | None = None,
        smallest: int = 1,
    ) -> Sums:
        """Add rows into groups: the encrypted histogram.

        Args:
            rows: Encrypted rows.
            index: Shape (m, columns): column f puts row i into group ``index[i, f]``; -1 into
                none. For boosted trees: ``(node · features + f) · bins + bin``.
            groups: How many groups there are.
            selected: Shape (m,), which rows; all of them where ``None``.
            smallest: Fewest rows that a group may hold unless it is empty.

        Raises:
            PolicyError: a group holds fewer rows than ``smallest``
                (:func:`interlace.crypto.merge_small` avoids that).
            CapacityError: a group holds more rows than the key was made for.
        """

    @abstractmethod
    def scalar_product(self, vector: Vector, matrix: AnyIntegers) -> Sums:
        """The encrypted products ``matrix.T @ vector``; ``matrix`` has shape (n, features).

        Raises:
            CapacityError: a product could outgrow what the key was made for.
        """

    @abstractmethod
    def masked_product(self, vector: Vector, matrix: AnyIntegers) -> tuple[Sums, Integers]:
        """The same with a random number added to each product, for who may ask the key holder to
        decrypt what the key holder is not to know.

        Returns:
            The answer, of which :meth:`PrivateKey.decrypt` gives (features, 1) numbers that are
            random by themselves, and the masks, which :func:`unmasked` takes off these.

        Raises:
            CapacityError: a product could outgrow what the key was made for.
        """


class PrivateKey(ABC):
    """What the key holder keeps. It is never written anywhere.

    Attributes:
        public: What partners get.
    """

    public: PublicKey

    @abstractmethod
    def encrypt_rows(self, values: AnyIntegers) -> Rows:
        """Encrypt (n, width) whole numbers.

        Raises:
            CapacityError: a number is larger than the workload's ``largest``.
        """

    @abstractmethod
    def encrypt(self, values: AnyIntegers) -> Vector:
        """Encrypt (n,) whole numbers; smaller and faster than with the public key."""

    @abstractmethod
    def decrypt(self, sums: Sums | Vector, *, limit: int | AnyIntegers | None = None) -> Integers:
        """The numbers: (groups, width) of sums, (n,) of a vector.

        Args:
            sums: What came back.
            limit: Largest absolute value that each number can have if the partner did what was
                agreed (rows of the node times ``largest``); broadcasts. By default the workload's.
                Masked products have none.

        Raises:
            Refused: it does not decrypt under this key, or a number is out of range. Nothing may
                be done with such an answer: acting on it can give the key away.
        """


# -- checks that all schemes share -------------------------------------------------------------


def checked_values(values: AnyIntegers, workload: Workload, width: int | None) -> Integers:
    """Numbers to encrypt, of the due shape and range.

    Raises:
        CapacityError: they are not.
    """
    array = np.asarray(values)
    shape = "(n,)" if width is None else f"(n, {width})"
    fits = array.ndim == 1 if width is None else array.ndim == 2 and array.shape[1] == width
    if not fits or array.dtype.kind not in "iu":
        raise CapacityError(f"whole numbers of shape {shape} are encrypted, not {array.shape}")
    if len(array) > MOST_ROWS or (width is None and len(array) > workload.rows):
        raise CapacityError(
            f"{len(array):,} rows are more than this key was made for; make one with more `rows`"
        )
    if array.size and (array.max() > workload.largest or array.min() < -workload.largest):
        raise CapacityError(
            f"a number is outside ±{workload.largest:,}, the range this key was made for; "
            "scale the numbers, or make a key with a larger `largest`"
        )
    return array.astype(np.int64)


def checked_index(
    rows: int,
    index: AnyIntegers,
    groups: int,
    selected: AnyIntegers | None,
    smallest: int,
    workload: Workload,
) -> tuple[Integers, Integers]:
    """Which rows and into which groups, in range, with no group too small or too large.

    Returns:
        Rows of shape (m,) and groups of shape (m, columns).

    Raises:
        ValueError: shapes or positions do not fit.
        PolicyError: a group holds fewer rows than ``smallest``.
        CapacityError: a group holds more rows than the key was made for.
    """
    where = np.arange(rows) if selected is None else np.asarray(selected).astype(np.int64)
    places: Integers = np.ascontiguousarray(index, dtype=np.int64)
    if where.ndim != 1 or places.ndim != 2 or len(places) != len(where):
        raise ValueError("`index` has one line for each selected row")
    if groups < 1 or (places.size and (places.min() < -1 or places.max() >= groups)):
        raise ValueError(f"`index` points outside the {groups:,} groups")
    if where.size and (where.min() < 0 or where.max() >= rows):
        raise ValueError(f"`selected` points outside the {rows:,} rows")
    counts = np.bincount(places.ravel() + 1, minlength=groups + 1)[1:]
    if int(counts.max()) > workload.rows:
        raise CapacityError(
            f"a group holds {int(counts.max()):,} rows, more than the {workload.rows:,} that this "
            "key was made for"
        )
    small = int(((counts > 0) & (counts < smallest)).sum())
    if small:
        raise PolicyError(
            f"{small} of {groups:,} groups hold fewer than {smallest} rows, and such small sums "
            "do not leave this party; merge their bins first"
        )
    return where, places


def checked_matrix(length: int, matrix: AnyIntegers, workload: Workload) -> Integers:
    """The matrix of a scalar product, of the due shape and range.

    Raises:
        ValueError: the shape does not fit.
        CapacityError: a number is too large.
    """
    matrix = np.asarray(matrix)
    if matrix.ndim != 2 or len(matrix) != length or matrix.dtype.kind not in "iu":
        raise ValueError(f"a matrix of whole numbers with {length:,} rows is due")
    if matrix.size and (matrix.max() > workload.factor or matrix.min() < -workload.factor):
        raise CapacityError(
            f"a number of the matrix is outside ±{workload.factor:,}, the range this key was made "
            "for; scale the columns, or make a key with a larger `factor`"
        )
    return np.ascontiguousarray(matrix, dtype=np.int64)


def checked_range(
    numbers: Integers, limit: int | AnyIntegers | None, workload: Workload
) -> Integers:
    """Decrypted numbers within their limit.

    Raises:
        Refused: one is not.
    """
    bound = workload.sum_limit if limit is None else limit
    beyond = int((np.abs(numbers) > bound).sum())
    if beyond:
        raise Refused(
            f"{beyond} of {numbers.size:,} decrypted sums are larger than any honest sum can be; "
            "the answer was dropped"
        )
    return numbers


def unmasked(
    opened: Integers, masks: Integers, matrix: AnyIntegers, workload: Workload
) -> Integers:
    """The products (features,) of a matrix behind masked ones that were decrypted, range-checked.

    Raises:
        Refused: one is larger than this matrix's product can be: something else was decrypted.
    """
    spare = 64 - workload.sum_bits  # masks work modulo 2^sum_bits
    products: Integers = ((opened.reshape(-1) - masks) << spare) >> spare
    largest = workload.largest * max(1, workload.rows // len(matrix))  # of vectors added up
    return checked_range(products, np.abs(matrix).sum(axis=0) * largest, workload)


def merge_small(counts: AnyIntegers, smallest: int) -> Integers:
    """Join neighbouring bins until each holds enough rows, or none.

    A sum over one or two rows shows who they are. Every bin is mapped to the last bin of the run
    it is joined with, so running totals over the bins stay true at every bin that keeps rows.

    Args:
        counts: Shape (..., sides, bins): rows in each bin, for every set of rows whose sums the
            key holder will know. Where it gets the sibling of a node by subtraction, give both
            the node's counts and its sibling's as two sides.
        smallest: Fewest rows in a bin that is not empty.

    Returns:
        Shape (..., bins): where each bin's rows go. A feature with fewer rows than ``smallest``
        altogether cannot be made safe, and all of its bins are -1: it stays out.
    """
    counts = np.asarray(counts)
    bins = counts.shape[-1]
    flat = counts.reshape(-1, counts.shape[-2], bins)
    out = np.full((len(flat), bins), -1, dtype=np.int64)
    for target, sides in zip(out, flat, strict=True):
        ends, held = [], np.zeros(len(sides), dtype=np.int64)
        for b in range(bins):
            held += sides[:, b]
            if ((held == 0) | (held >= smallest)).all():
                ends.append(b)
                held[:] = 0
        if held.any():  # the last run is too small: it joins the run before that holds rows
            while ends and not ((held == 0) | (held >= smallest)).all():
                ends.pop()
                start = ends[-1] + 1 if ends else 0
                held = sides[:, start:].sum(axis=1)
            if not ((held == 0) | (held >= smallest)).all():
                continue
            ends.append(bins - 1)
        target[:] = np.asarray(ends)[np.searchsorted(ends, np.arange(bins))]
    return out.reshape(*counts.shape[:-2], bins)
