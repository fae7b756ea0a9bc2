"""Modular arithmetic on blocks of large numbers, for worker processes.

Everything here takes and gives plain numbers and byte arrays, so that a block of work can go to
another process. gmpy2 (GMP) is fast and not constant-time: a key holder that shares its machine
with somebody it does not trust should not use it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from interlace.crypto.kernels import cores
from interlace.errors import Refused

Bytes = NDArray[np.uint8]  # not from `wire`, which loads torch: workers start faster without
T = TypeVar("T")
Number = Any  # gmpy2.mpz: the library has no types
Partial = dict[int, Bytes]

DIGIT = 6  # bits of a multiplier handled at once
WORTH_SPREADING = 1.0  # seconds of work below which starting processes does not pay


def spread(
    function: Callable[..., T], blocks: Sequence[tuple[Any, ...]], seconds: float
) -> list[T]:
    """Call a function for each block, on all cores if the work is worth it."""
    if len(blocks) < 2 or seconds < WORTH_SPREADING:
        return [function(*block) for block in blocks]
    from joblib import Parallel, delayed

    # max_nbytes: nothing may be written to disk, for some blocks hold what is to be encrypted.
    run = Parallel(n_jobs=cores(), max_nbytes=None)
    done: list[T] = run(delayed(function)(*block) for block in blocks)
    return done


def cut(length: int, pieces: int) -> list[slice]:
    """Slices that cover ``length`` items in pieces of about the same size."""
    bounds = np.linspace(0, length, min(max(pieces, 1), max(length, 1)) + 1).astype(int)
    return [slice(int(a), int(b)) for a, b in pairwise(bounds)]


def numbers(block: Bytes) -> list[Number]:
    """The numbers that the lines of a byte array spell, big end first."""
    from gmpy2 import mpz

    return [mpz.from_bytes(line.tobytes(), "big") for line in block]


def spelled(values: Sequence[Number], size: int) -> Bytes:
    """Numbers as lines of ``size`` bytes."""
    joined = b"".join(value.to_bytes(size, "big") for value in values)
    return np.frombuffer(joined, dtype=np.uint8).reshape(len(values), size)


def random_prime(bits: int) -> Number:
    """A random prime of exactly ``bits`` bits, 3 mod 4, its two top bits set."""
    from gmpy2 import mpz, next_prime

    while True:
        start = mpz(secrets.randbits(bits)) | (mpz(3) << (bits - 2))
        prime = next_prime(start)
        if prime % 4 == 3 and prime.bit_length() == bits:
            return prime


class FixedBase:
    """Powers of one base from tables of all values of each ``window`` bits of the exponent.

    Args:
        base: The base.
        modulus: The modulus.
        exponent_bits: Bits of the largest exponent.
        window: 8, for the fewest multiplications, or 4, for tables of an eighth of the size.
    """

    def __init__(self, base: Number, modulus: Number, exponent_bits: int, window: int) -> None:
        self.modulus, self.window = modulus, window
        self.tables = []
        for _ in range(8 // window * -(-exponent_bits // 8)):
            line = [base**0]
            for _ in range((1 << window) - 1):
                line.append(line[-1] * base % modulus)
            self.tables.append(line)
            base = line[-1] * base % modulus

    def power(self, exponent: bytes) -> Number:
        """The base to an exponent given by its bytes, the smallest first."""
        digits = exponent
        if self.window == 4:
            digits = bytes(half for byte in exponent for half in (byte & 15, byte >> 4))
        modulus, out = self.modulus, self.tables[0][0]
        for table, digit in zip(self.tables, digits, strict=False):
            out = out * table[digit] % modulus
        return out


def short_exponent(n: int) -> int:
    """Bits of the randomiser of an encryption: half of n's."""
    return n.bit_length() // 16 * 8


def hiding_exponent(n: int) -> int:
    """Bits of the randomiser of an answer.

    The base's order is below n, so an exponent this long gives every power the same chance up to
    2^-40: what the randomiser was before, and so which ciphertexts were multiplied, is gone, also
    for the key holder, who knows all of those.
    """
    return (n.bit_length() + 47) // 8 * 8


@lru_cache(maxsize=2)
def _public_powers(n: int, base: int) -> FixedBase:
    from gmpy2 import mpz

    return FixedBase(mpz(base), mpz(n) ** 2, hiding_exponent(n), window=4)


@lru_cache(maxsize=2)
def _private_powers(p: int, q: int, base: int) -> tuple[FixedBase, FixedBase, Number]:
    from gmpy2 import invert, mpz

    pp, qq = mpz(p) ** 2, mpz(q) ** 2
    bits = short_exponent(p * q)
    by_p, by_q = (FixedBase(base % m, m, bits, window=8) for m in (pp, qq))
    return by_p, by_q, invert(pp, qq)


def encrypt_with_factors(p: int, q: int, base: int, plain: Sequence[int], size: int) -> Bytes:
    """Paillier encryptions by who knows the factors: two half-size powers, then the CRT."""
    by_p, by_q, inverse = _private_powers(p, q, base)
    pp, qq, n = by_p.modulus, by_q.modulus, p * q
    square, bits = pp * qq, short_exponent(n)
    out = []
    for value in plain:
        exponent = secrets.token_bytes(bits // 8)
        u, v = by_p.power(exponent), by_q.power(exponent)
        noise = u + pp * ((v - u) * inverse % qq)
        out.append(noise * (1 + value * n) % square)
    return spelled(out, size)


def encrypt_with_public(
    n: int, base: int, plain: Sequence[int], size: int, *, hiding: bool = False
) -> Bytes:
    """Paillier encryptions by anybody; ``hiding`` ones also re-randomise what they are added to."""
    powers = _public_powers(n, base)
    square, bits = powers.modulus, hiding_exponent(n) if hiding else short_exponent(n)
    out = []
    for value in plain:
        noise = powers.power(secrets.token_bytes(bits // 8))
        out.append(noise * (1 + value * n) % square)
    return spelled(out, size)


def decrypt(p: int, q: int, block: Bytes) -> list[int]:
    """Paillier plaintexts in 0 … pq - 1, by the CRT."""
    from gmpy2 import invert, mpz, powmod

    pm, qm = mpz(p), mpz(q)
    n, pp, qq = pm * qm, pm * pm, qm * qm

    def log(c: Number, prime: Number, square: Number) -> Number:
        return (powmod(c, prime - 1, square) - 1) // prime

    hp, hq = invert(log(1 + n, pm, pp), pm), invert(log(1 + n, qm, qq), qm)
    inverse = invert(pm, qm)
    out = []
    for c in numbers(block):
        mp, mq = log(c % pp, pm, pp) * hp % pm, log(c % qq, qm, qq) * hq % qm
        out.append(int(mp + pm * ((mq - mp) * inverse % qm)))
    return out


MASK_BITS = 40  # by which masks are longer than what they hide


def masks(count: int, bits: int) -> list[int]:
    """Random numbers that hide signed numbers of ``bits`` bits up to a chance of 2^-40."""
    return [secrets.randbits(bits + MASK_BITS) for _ in range(count)]


def residues(plain: Sequence[int], order: int, bits: int) -> NDArray[np.int64]:
    """Masked plaintexts modulo ``order``, taken as signed, modulo 2^bits: (n, 1).

    Raises:
        Refused: one is larger than any masked number.
    """
    signed = [v - order if v > order // 2 else v for v in plain]
    if any(abs(v) >> (bits + MASK_BITS) > 1 for v in signed):
        raise Refused(
            "an encrypted answer does not decrypt: it was made under another key, from other "
            "ciphertexts, or was damaged"
        )
    return np.array([[v % 2**bits] for v in signed], dtype=np.int64)


def sum_rows(n: int, block: Bytes, index: NDArray[np.int64], size: int) -> Partial:
    """Products of rows by group: the encrypted sums, not yet re-randomised."""
    from gmpy2 import mpz

    square = mpz(n) ** 2
    sums: dict[int, Number] = {}
    for c, groups in zip(numbers(block), index.tolist(), strict=True):
        for group in groups:
            if group in sums:
                sums[group] = sums[group] * c % square
            else:
                sums[group] = c
    sums.pop(-1, None)
    return dict(zip(sums, spelled(list(sums.values()), size), strict=True))


def products(n: int, block: Bytes, matrix: NDArray[np.int64], size: int) -> Bytes:
    """∏ c_i^x_ij for each column j, with buckets by digit and sign (Pippenger)."""
    from gmpy2 import invert, mpz, powmod

    square, one = mpz(n) ** 2, mpz(1)
    ciphers = numbers(block)
    digits = -(-int(np.abs(matrix).max(initial=1)).bit_length() // DIGIT)
    out = []
    for column in matrix.T.tolist():
        totals = [one, one]  # of the positive multipliers, of the negative ones
        for digit in reversed(range(digits)):
            buckets = [[one] * (1 << DIGIT) for _ in totals]
            for c, x in zip(ciphers, column, strict=True):
                value = (abs(x) >> (digit * DIGIT)) & ((1 << DIGIT) - 1)
                if value:
                    side = buckets[x < 0]
                    side[value] = side[value] * c % square
            for sign, side in enumerate(buckets):
                running = total = one
                for bucket in reversed(side[1:]):
                    running = running * bucket % square
                    total = total * running % square
                totals[sign] = powmod(totals[sign], 1 << DIGIT, square) * total % square
        out.append(totals[0] * invert(totals[1], square) % square)
    return spelled(out, size)


def squeeze(
    n: int, base: int, partials: Sequence[Partial], groups: range, slots: int, bits: int, size: int
) -> Bytes:
    """Neighbouring sums side by side in one plaintext each, re-randomised.

    Args:
        partials: Parts of the sums by group; a group that is in none is empty.
        groups: Which groups, from the first of an answer.
        slots: Groups in one answer.
        bits: Bits between two groups in the plaintext.
    """
    from gmpy2 import mpz, powmod

    powers = _public_powers(n, base)
    square, step, length = powers.modulus, mpz(1) << bits, hiding_exponent(n) // 8
    out = []
    for start in range(groups.start, groups.stop, slots):
        answer = mpz(1)
        for group in reversed(range(start, min(start + slots, groups.stop))):
            answer = powmod(answer, step, square)
            for partial in partials:
                if group in partial:
                    answer = answer * mpz.from_bytes(partial[group].tobytes(), "big") % square
        out.append(answer * powers.power(secrets.token_bytes(length)) % square)
    return spelled(out, size)


def multiplied(n: int, one: Bytes, other: Bytes, size: int) -> Bytes:
    """Ciphertexts multiplied line by line."""
    from gmpy2 import mpz

    square = mpz(n) ** 2
    pairs = zip(numbers(one), numbers(other), strict=True)
    return spelled([a * b % square for a, b in pairs], size)
