"""Differential privacy in a horizontal federation, for a whole client or for a single row.

Both mechanisms are Gaussian noise on a sum of clipped vectors, drawn from a random part of the
clients or rows. That the part is random makes the noise count for more ("amplification by
sampling"), but only where three things hold, and each is built in here:

- everyone takes part or not by an independent coin (Poisson sampling), as the accountant assumes;
- the sum is divided by the *expected* number, not by how many there were;
- who took part stays unknown to the one against whom the claim is made.

For rows the last holds against everybody: the client tosses the coins and tells nobody. For clients
it holds against those who see the models only (the other clients, and users of the model), not
against the server, which asks the clients by name.

What a claim does not cover: the sums behind the common scaling, the numbers of rows, the figures of
a validation, and the classes that a party has, all of which leave without noise; several runs over
the same people, whose budgets add up; noise that is not from a cryptographic generator (see
:mod:`interlace.boundary.guards.noise`).
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from interlace.boundary.guards.noise import gaussian_epsilon
from interlace.errors import InterlaceError


class Privacy(BaseModel):
    """Gaussian noise on sums of clipped vectors.

    ``unit: client``: one client's whole table, present or not, hardly changes the model. Each
    client clips its update to L2 norm C; the sum gets noise of standard deviation zC, from the
    server, or in equal shares from the clients when they aggregate securely. All clients count the
    same, and a round takes each with the probability ``participation``.

    ``unit: row``: one row of a client's table, present or not, hardly changes what leaves that
    client. Each row's gradient is clipped to L2 norm C and the sum over a batch gets noise of
    standard deviation zC before anything leaves, so that the server need not be trusted.

    Args:
        unit: Whom the claim is about.
        clip: C.
        noise: z.
        delta: The probability with which the claim may fail; below one over the number of units.

    Source: client: McMahan et al., "Learning Differentially Private Recurrent Language Models",
    ICLR 2018, algorithm 1 (with the fixed denominator); shares of noise: Kairouz, Liu and Steinke,
    ICML 2021; row: Abadi et al., "Deep Learning with Differential Privacy", CCS 2016.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    unit: Literal["client", "row"]
    clip: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    noise: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    delta: float = Field(default=1e-5, gt=0, lt=1)


@cache
def epsilon(noise: float, delta: float, releases: int, sampled: float = 1.0) -> float:
    """ε of ``releases`` sums with Gaussian noise of ``noise`` times the clip.

    Neighbours differ in one client or row that is there or not (add-or-remove one).

    Args:
        noise: Standard deviation over the clip.
        delta: δ.
        releases: How many sums were released.
        sampled: Probability with which each takes part, by an independent coin.

    Raises:
        InterlaceError: the accountant is not installed.
    """
    if releases == 0:
        return 0.0
    if sampled >= 1:
        return gaussian_epsilon(noise / math.sqrt(releases), delta)
    try:
        import dp_accounting
        from dp_accounting.pld import PLDAccountant
    except ImportError:
        raise InterlaceError(
            "the privacy accountant is not installed; `pip install 'interlace[dp]'`"
        ) from None
    event = dp_accounting.PoissonSampledDpEvent(sampled, dp_accounting.GaussianDpEvent(noise))
    # Losses are rounded up to a thousandth, so that the figure errs on the safe side.
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    return float(accountant.compose(event, releases).get_epsilon(delta))


def client_account(
    privacy: Privacy, rounds: int, participation: float, secure: bool
) -> dict[str, Any]:
    """What can be claimed for one client after some rounds."""
    out: dict[str, Any] = {
        "unit": "one client's whole table, added or removed",
        "delta": privacy.delta,
        "rounds": rounds,
        "epsilon, against those who see the models": epsilon(
            privacy.noise, privacy.delta, rounds, participation
        ),
    }
    if participation < 1:
        out["only if"] = "nobody but the server knows which clients took part in a round"
    if secure:
        out["a client's share"] = "a client knows its own part of the noise, and can take it off"
    if secure:
        out["epsilon, against the server"] = epsilon(privacy.noise, privacy.delta, rounds)
        out["against the server only if"] = (
            "no client tells it its share of the noise: each that does takes as large a part of "
            "the noise away as it is of the round's clients"
        )
    else:
        out["against the server"] = "nothing: it sees each update before the noise"
    out["not covered"] = "sums behind the scaling, numbers of rows, classes, validation figures"
    return out


def row_account(privacy: Privacy, steps: int, sampled: float) -> dict[str, Any]:
    """What can be claimed for one row of a client after some steps."""
    return {
        "unit": "one row of this client's table, added or removed",
        "delta": privacy.delta,
        "steps": steps,
        "epsilon, against everybody": epsilon(privacy.noise, privacy.delta, steps, sampled),
        "not covered": "sums behind the scaling, number of rows, classes, validation figures",
    }
