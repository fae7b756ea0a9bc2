"""Many answers in one ciphertext, by key switching.

An answer is a Ring-LWE ciphertext of which the coefficients at multiples of a stride hold sums, and
the others nothing. Two of them are merged into one whose stride is half as long::

    even + X^(stride/2)·odd + σ(even - X^(stride/2)·odd)

where σ: X → X^g with g = 1 + 2N/stride leaves the multiples of the stride where they are and turns
the sign of those halfway between, so what the halves held there cancels and the sums are doubled.
After ℓ rounds 2^ℓ answers share one ciphertext, their sums times 2^ℓ.

σ turns the key s into σ(s); a switching key, encryptions of σ(s)·2^i under s, turns it back.
Reading them as encryptions needs no more than Ring-LWE and, as every scheme with automorphisms,
circular security: that encryptions of functions of s under s itself are safe.

What is merged has been re-randomised before. Merging needs only public keys, so whoever gets the
merged answer learns no more than from the answers apart.

Source: Chen, Dai, Kim and Song, "Efficient homomorphic conversion between (ring) LWE ciphertexts",
ACNS 2021 (algorithm 2); approximate gadget decomposition as in Chillotti et al., TFHE, 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from interlace.crypto.ring import Ring, Spectrum
from interlace.crypto.sampling import VARIANCE, Integers

Limbs = list[tuple[int, Spectrum]]

LIMB = {False: 27, True: 16}  # bits of a key's limb for digits of up to 8 bits, and of more


@dataclass(frozen=True)
class Gadget:
    """How a polynomial is cut into digits.

    Attributes:
        drop: Low bits that are rounded away.
        digit: Bits of a digit.
        count: Digits.
    """

    drop: int
    digit: int
    count: int

    def variance(self, degree: int) -> float:
        """Variance proxy of the error that one key switching adds."""
        errors = self.count * degree * 4.0 ** (self.digit - 1) * VARIANCE
        return errors + degree * 4.0**self.drop / 4


def automorphism(ring: Ring, polynomials: Integers, g: int) -> Integers:
    """X → X^g on (..., N) polynomials; g is odd."""
    n = ring.degree
    source = np.arange(n) * pow(g, -1, 2 * n) % (2 * n)
    out: Integers = polynomials[..., source % n] * np.where(source < n, 1, -1)
    return out


def galois(ring: Ring, fold: int, level: int) -> int:
    """The g of a level's σ, when a fresh answer holds sums at ``fold`` coefficients."""
    return 1 + 2 * (fold << level) % (2 * ring.degree)


def _times_power(polynomials: Integers, power: int) -> Integers:
    """X^power times (..., N) polynomials."""
    return np.concatenate([-polynomials[..., -power:], polynomials[..., :-power]], axis=-1)


class Packer:
    """Merges answers with a public key's switching keys.

    Args:
        ring: Their ring.
        gadget: How polynomials are cut.
        fold: Coefficients of a fresh answer that hold sums.
        a: Shape (words, levels, digits, N): the switching keys' public halves.
        b: The same shape: the other halves.
    """

    def __init__(self, ring: Ring, gadget: Gadget, fold: int, a: Integers, b: Integers) -> None:
        self.ring, self.gadget, self.fold, self._a, self._b = ring, gadget, fold, a, b

    @cached_property
    def _keys(self) -> tuple[Limbs, Limbs]:
        width = LIMB[self.gadget.digit > 8]
        return self.ring.spectra(self._a, width), self.ring.spectra(self._b, width)

    def merge(self, level: int, a: Integers, b: Integers) -> tuple[Integers, Integers]:
        """Merge the first half of (words, count, N) answers with the second, one by one."""
        ring = self.ring
        half, power = a.shape[1] // 2, ring.degree // (self.fold << level) // 2
        g = galois(ring, self.fold, level)
        merged, turned = [], []
        for part in (a, b):
            odd = _times_power(part[:, half:], power)
            merged.append(part[:, :half] + odd)
            turned.append(ring.reduce(automorphism(ring, part[:, :half] - odd, g)))
        switched = self._switched(level, turned[0])
        return (
            ring.reduce(merged[0] + switched[0]),
            ring.reduce(merged[1] + turned[1] + switched[1]),
        )

    def _switched(self, level: int, a: Integers) -> tuple[Integers, Integers]:
        """Encryptions under s of what (words, count, N) polynomials are times σ(s)."""
        ring, gadget = self.ring, self.gadget
        drop = gadget.drop - ring.below_top
        rest = (a[-1] + (1 << drop >> 1)) >> drop
        half, mask = 1 << (gadget.digit - 1), (1 << gadget.digit) - 1
        digits = np.empty((a.shape[1], gadget.count, ring.degree), dtype=np.int64)
        for i in range(gadget.count):
            digits[:, i] = ((rest + half) & mask) - half
            rest = (rest - digits[:, i]) >> gadget.digit
        spectrum = ring.spectrum(digits)
        out = []
        for limbs in self._keys:
            total = ring.zeros(a.shape[1], ring.degree)
            for shift, limb in limbs:
                product = np.einsum("cdn,dn->cn", spectrum, limb[level])
                ring.accumulate(total, ring.polynomials(product), shift)
            out.append(total)
        return out[0], out[1]
