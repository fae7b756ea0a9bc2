"""Additive noise, with an accountant that claims no more than holds.

What a claim covers
    The person's value in each release of a kind to a receiver, given the models at that moment:
    whoever sees all these releases can hardly tell that person's values from any others (replace
    one). The budget is counted for every person by releases, and the claim is that of the person
    released most often. A release may depend on all earlier ones; both compositions used here
    allow for that.

What it does not cover
    What models that learnt from the person reveal through other people's rows; what other kinds or
    other receivers get (a claim is made for each of them alone); that the person is in the batch,
    which the partner knows since it named the rows. For the same reason no amplification by
    sampling is ever claimed. A person is a position in the order shared with the receiver, so one
    who stands in two tables, matched apart, is counted in each apart.

What a strict claim would need on top
    Noise from a cryptographic generator and a discrete mechanism (Canonne, Kamath and Steinke,
    NeurIPS 2020): torch's generator is a Mersenne Twister, and the low bits of floating-point noise
    can betray the value under it (Mironov, CCS 2012). Whoever knows the seed, or reads the
    generator in a checkpoint, can take the noise off again.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from functools import cache
from typing import Annotated

import torch
from pydantic import Field, validate_call
from torch import Tensor

from interlace.boundary.guards.base import Guard, Positive, Sending
from interlace.errors import PolicyError

Probability = Annotated[float, Field(gt=0, lt=1)]
Count = Annotated[int, Field(gt=0)]


class _Noise(Guard):
    """Noise in units of the clip's norm, and how often each person's value has left."""

    def __init__(self, epsilon: float | None, releases: int | None) -> None:
        self.epsilon, self.releases = epsilon, releases
        self.norm: float | None = None
        self.counts = torch.zeros(0, dtype=torch.int64)
        self.width = 1

    @abstractmethod
    def _multiple(self, width: int) -> float:
        """How large the noise on rows of ``width`` numbers is, as a multiple of the norm."""

    @abstractmethod
    def _draw(self, shape: torch.Size, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
        """Noise of scale one."""

    @abstractmethod
    def _claim(self, releases: int) -> dict[str, float | str]:
        """What holds for a person whose value left so often."""

    def __call__(self, value: Tensor, sending: Sending) -> Tensor:
        width = math.prod(value.shape[1:])
        scale = self._multiple(width) * (1.0 if self.norm is None else self.norm)
        if self.norm is not None:
            count = value.shape[0] if value.dim() else 1
            self._count(sending.people(self.label, count), sending)
            self.width = max(self.width, width)
        # Noise as fine as the value: coarser noise would leave the value's low bits bare.
        dtype = torch.promote_types(value.dtype, torch.float32)
        noise = self._draw(value.shape, dtype, sending.generator).mul_(scale)
        return (value + noise.to(value.device)).to(value.dtype)

    def _count(self, people: Tensor, sending: Sending) -> None:
        if not people.numel():
            return
        people = people.long()
        missing = int(people.max()) + 1 - len(self.counts)
        if missing > 0:
            self.counts = torch.nn.functional.pad(self.counts, (0, missing))
        once = torch.ones_like(people)
        self.counts.index_add_(0, people, once)
        if self.releases is None:
            return
        over = people[self.counts[people] > self.releases]
        if over.numel():
            self.counts.index_add_(0, people, -once)
            raise PolicyError(
                f"the privacy budget that party '{sending.sender}' has for "
                f"{len(set(over.tolist())):,} people is used up: their {sending.kind} can leave to "
                f"'{sending.receiver}' {self.releases:,} times, which is all that '{self.label}' "
                "under `guards` of its policy allows. Stop here, or train anew with more "
                "`releases` there (and so more noise), fewer epochs, or fewer predictions for the "
                "same people"
            )

    def follow(self, norm: float | None) -> float | None:
        if norm is None and self.epsilon is not None:
            raise PolicyError(
                f"noise for epsilon {self.epsilon:g} needs to know how large a row can be: put a "
                "`clip` right before it"
            )
        self.norm = norm
        return None

    def account(self) -> dict[str, float | str]:
        if self.norm is None:
            return {"claim": "none: without a clip before the noise, a row can be of any size"}
        releases = int(self.counts.max()) if len(self.counts) else 0
        return {
            "claim": "one person's value replaced, for the person released most often",
            "releases": releases,
            **self._claim(releases),
        }

    def state(self) -> dict[str, Tensor]:
        return {"counts": self.counts.clone(), "width": torch.tensor(self.width)}

    def load_state(self, state: dict[str, Tensor]) -> None:
        # What has left since the state was kept has left all the same.
        both = [self.counts, state["counts"]]
        self.counts = torch.nn.utils.rnn.pad_sequence(both).max(dim=1).values
        self.width = int(state["width"])


class Gaussian(_Noise):
    """Gaussian noise on each number of a row that a clip to L2 norm C has bounded.

    Give either ``sigma``, or a budget of ``epsilon``, ``delta`` and ``releases``. Two values in the
    ball of radius C differ by at most 2C, the sensitivity. T releases with noise of standard
    deviation σC are together as private as one with σC/√T, whose δ(ε) is known exactly
    (:func:`gaussian_delta`), so a budget is met by σ = 2√T times the analytic Gaussian's.

    Without a clip before it the noise has the standard deviation ``sigma`` and nothing is claimed.

    Args:
        sigma: Standard deviation as a multiple of C.
        epsilon: What a person's releases may cost in all.
        delta: The probability with which that may fail; well below one over the number of people.
        releases: How often a person's value may leave to one receiver. Training needs one for each
            epoch; every evaluation and prediction for the same person takes one more. After that
            nothing more leaves.

    Raises:
        PolicyError: neither or both of ``sigma`` and ``epsilon``, or a budget without ``releases``.

    Source: Balle and Wang, "Improving the Gaussian Mechanism for Differential Privacy", ICML 2018,
    theorem 8; Dong, Roth and Su, "Gaussian Differential Privacy", JRSS B 2022, corollary 3.3.
    """

    @validate_call
    def __init__(
        self,
        sigma: Positive | None = None,
        epsilon: Positive | None = None,
        delta: Probability = 1e-5,
        releases: Count | None = None,
    ) -> None:
        _one_of("sigma", sigma, epsilon, releases)
        super().__init__(epsilon, releases)
        self.delta = delta
        if sigma is not None:
            self.sigma = sigma
        elif epsilon is not None and releases is not None:
            self.sigma = 2 * math.sqrt(releases) * gaussian_sigma(epsilon, delta)

    def _multiple(self, width: int) -> float:
        return self.sigma

    def _draw(self, shape: torch.Size, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
        return torch.randn(shape, dtype=dtype, generator=generator)

    def _claim(self, releases: int) -> dict[str, float | str]:
        if not releases:
            return {"epsilon": 0.0, "delta": self.delta}
        spent = gaussian_epsilon(self.sigma / (2 * math.sqrt(releases)), self.delta)
        return {"epsilon": spent, "delta": self.delta}

    @property
    def label(self) -> str:
        return f"gaussian {self.sigma:.4g}"


class Laplace(_Noise):
    """Laplace noise on each number of a row that a clip to L2 norm C has bounded.

    Give either ``scale``, or a budget of ``epsilon`` and ``releases``. Two rows of d numbers in the
    L2 ball of radius C differ by at most 2C in L2, hence by at most 2C√d in L1, the sensitivity
    here; T releases cost T · 2√d / scale, with δ = 0. For wide rows that is far more noise than
    the Gaussian's: prefer that unless δ must be 0.

    Without a clip before it the noise has the scale ``scale`` and nothing is claimed.

    Args:
        scale: Scale b of the noise as a multiple of C.
        epsilon: What a person's releases may cost in all.
        releases: How often a person's value may leave to one receiver; see :class:`Gaussian`.

    Raises:
        PolicyError: neither or both of ``scale`` and ``epsilon``, or a budget without ``releases``.

    Source: Dwork, McSherry, Nissim and Smith, TCC 2006.
    """

    @validate_call
    def __init__(
        self,
        scale: Positive | None = None,
        epsilon: Positive | None = None,
        releases: Count | None = None,
    ) -> None:
        _one_of("scale", scale, epsilon, releases)
        super().__init__(epsilon, releases)
        self.scale = scale

    def _multiple(self, width: int) -> float:
        if self.scale is not None:
            return self.scale
        assert self.epsilon is not None
        assert self.releases is not None
        return 2 * math.sqrt(width) * self.releases / self.epsilon

    def _draw(self, shape: torch.Size, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
        # The difference of two exponentials: unlike the inverse of the distribution function it
        # never takes the logarithm of zero.
        pair = torch.empty(2, *shape, dtype=dtype).exponential_(generator=generator)
        return pair[0] - pair[1]

    def _claim(self, releases: int) -> dict[str, float | str]:
        each = 2 * math.sqrt(self.width) / self._multiple(self.width)
        return {"epsilon": releases * each, "delta": 0.0}

    @property
    def label(self) -> str:
        if self.scale is not None:
            return f"laplace {self.scale:.4g}"
        return f"laplace ε={self.epsilon:g} in {self.releases}"


def _one_of(name: str, size: float | None, epsilon: float | None, releases: int | None) -> None:
    if (size is None) == (epsilon is None):
        raise PolicyError(f"noise takes either `{name}` or a budget of `epsilon` and `releases`")
    if epsilon is not None and releases is None:
        raise PolicyError(
            "a budget of `epsilon` needs `releases`: how often a person's value may leave (one for "
            "each epoch, evaluation and prediction)"
        )


def gaussian_delta(epsilon: float, sigma: float) -> float:
    """The exact δ(ε) of Gaussian noise of standard deviation ``sigma`` at sensitivity one.

    δ = Φ(1/2σ − εσ) − e^ε Φ(−1/2σ − εσ)   (Balle and Wang 2018, theorem 8)
    """
    from scipy.special import log_ndtr

    a, b = 1 / (2 * sigma), epsilon * sigma
    return math.exp(log_ndtr(a - b)) - math.exp(epsilon + log_ndtr(-a - b))


@cache  # asked at every release, and changes with the person released most often alone
def gaussian_epsilon(sigma: float, delta: float) -> float:
    """The smallest ε that Gaussian noise of ``sigma`` at sensitivity one keeps with ``delta``."""
    from scipy.optimize import brentq

    if gaussian_delta(0.0, sigma) <= delta:
        return 0.0
    rho = 1 / (2 * sigma**2)  # zCDP gives a bound from above (Bun and Steinke 2016, prop. 1.3)
    top = rho + 2 * math.sqrt(rho * -math.log(delta))
    return float(brentq(lambda e: gaussian_delta(e, sigma) - delta, 0.0, top))


def gaussian_sigma(epsilon: float, delta: float) -> float:
    """The smallest standard deviation at sensitivity one that keeps ``epsilon`` and ``delta``."""
    from scipy.optimize import brentq

    high = math.sqrt(2 * math.log(1.25 / delta)) / min(epsilon, 1.0)  # the classical bound
    low = high
    while gaussian_delta(epsilon, low) <= delta:
        low /= 2
    sigma = float(brentq(lambda s: gaussian_delta(epsilon, s) - delta, low, high))
    return sigma * (1 + 1e-9)  # the solver may end a hair below
