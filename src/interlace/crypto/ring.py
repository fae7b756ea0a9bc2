"""Arithmetic in Z_q[X]/(X^N + 1) for a q that is a power of two of up to 127 bits.

A number mod q is one or two int64 words, the leading axis: with two, the lower holds ``low`` bits
and the upper the rest. The top word may wrap at 2^64, since q's part of it divides 2^64; the lower
one may grow to 63 bits before :meth:`Ring.reduce` carries.

Products with small polynomials go through a floating point FFT on short limbs. A limb of w bits
times a polynomial y is off by at most about ε·log2(N)·2^w·√N·‖y‖ (ε = 2^-53), which the callers
keep below 2^-5, so rounding is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from interlace.crypto.sampling import Integers

Spectrum = NDArray[np.complex128]


@dataclass(frozen=True)
class Ring:
    """Polynomials of degree below ``degree`` with coefficients mod 2^(sum of ``planes``).

    Attributes:
        degree: N, a power of two.
        planes: Bits of each word, the lowest first.
    """

    degree: int
    planes: tuple[int, ...]

    @property
    def log_q(self) -> int:
        """Bits of the modulus."""
        return sum(self.planes)

    @property
    def below_top(self) -> int:
        """Bits below the top word."""
        return self.log_q - self.planes[-1]

    def zeros(self, *shape: int) -> Integers:
        """Zeros of this shape, one for each word."""
        return np.zeros((len(self.planes), *shape), dtype=np.int64)

    def accumulate(self, words: Integers, values: Integers, shift: int) -> None:
        """``words += values · 2^shift``; each lower word gains less than 2^low."""
        if len(self.planes) == 1:
            words[0] += values << shift
        elif shift >= self.planes[0]:
            words[1] += values << (shift - self.planes[0])
        else:
            room = self.planes[0] - shift
            words[0] += (values & ((1 << room) - 1)) << shift
            words[1] += values >> room

    def carry(self, words: Integers) -> None:
        """Move what the lower word has too much into the upper one."""
        if len(self.planes) > 1:
            words[1] += words[0] >> self.planes[0]
            words[0] &= (1 << self.planes[0]) - 1

    def reduce(self, words: Integers) -> Integers:
        """Carry, and bring the numbers into 0 … q - 1 in place."""
        self.carry(words)
        words[-1] &= (1 << self.planes[-1]) - 1
        return words

    def limbs(self, words: Integers, width: int) -> list[tuple[int, Integers]]:
        """Reduced numbers cut into limbs of at most ``width`` bits, each with its shift."""
        out, base = [], 0
        for word, bits in zip(words, self.planes, strict=True):
            count = -(-bits // width)
            step = -(-bits // count)
            for start in range(0, bits, step):
                take = min(step, bits - start)
                out.append((base + start, (word >> start) & ((1 << take) - 1)))
            base += bits
        return out

    @cached_property
    def _twist(self) -> Spectrum:
        half = self.degree // 2
        twist: Spectrum = np.exp(1j * np.pi * np.arange(half) / self.degree)
        return twist

    def spectrum(self, polynomials: Integers) -> Spectrum:
        """The transform of (..., N) small polynomials, (..., N/2): products become pointwise."""
        from scipy.fft import fft

        half = self.degree // 2
        folded = np.empty((*polynomials.shape[:-1], half), dtype=np.complex128)
        folded.real, folded.imag = polynomials[..., :half], polynomials[..., half:]
        folded *= self._twist
        out: Spectrum = fft(folded, overwrite_x=True)
        return out

    def polynomials(self, spectrum: Spectrum) -> Integers:
        """Back from :meth:`spectrum`, rounded."""
        from scipy.fft import ifft

        half = self.degree // 2
        folded = ifft(spectrum, overwrite_x=True)
        folded *= self._twist.conj()
        out: Integers = np.empty((*spectrum.shape[:-1], self.degree), dtype=np.int64)
        np.rint(folded.real, out=out[..., :half], casting="unsafe")
        np.rint(folded.imag, out=out[..., half:], casting="unsafe")
        return out

    def multiply(self, limbs: list[tuple[int, Spectrum]], small: Integers) -> Integers:
        """Products mod q of polynomials, given by their limbs' spectra, and small ones."""
        factor = self.spectrum(small)
        out = self.zeros(*np.broadcast_shapes(small.shape, (*limbs[0][1].shape[:-1], self.degree)))
        for shift, limb in limbs:
            self.accumulate(out, self.polynomials(factor * limb), shift)
        return self.reduce(out)

    def spectra(self, words: Integers, width: int) -> list[tuple[int, Spectrum]]:
        """The limbs of (N,) or (k, N) numbers, transformed."""
        return [(shift, self.spectrum(limb)) for shift, limb in self.limbs(words, width)]

    def rotations(self, polynomial: Integers, fold: int) -> Integers:
        """The (fold, N) matrix whose line c, times a, is coefficient c·N/fold of the product."""
        stride = self.degree // fold
        at = stride * np.arange(fold)[:, None] - np.arange(self.degree)[None, :]
        out: Integers = polynomial[at % self.degree] * np.where(at < 0, -1, 1)
        return out
