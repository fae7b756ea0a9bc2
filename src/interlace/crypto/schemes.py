"""The schemes by name: making a key, reading a partner's, and choosing the fastest allowed.

The costs were measured on one core of an AMD EPYC of 2024, so an estimate is good for comparing
schemes and rough as a number of seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal, get_args

from torch import Tensor

from interlace.crypto.base import CapacityError, PrivateKey, PublicKey, Workload
from interlace.crypto.wire import unseal
from interlace.errors import JobError, Refused

Scheme = Literal["rlwe-fast", "rlwe-strict", "okamoto-uchiyama", "paillier"]
SCHEMES: tuple[Scheme, ...] = get_args(Scheme)

_LIBRARY: dict[Scheme, tuple[str, str]] = {
    "okamoto-uchiyama": ("heu", "sf-heu, which has wheels for Python 3.9 to 3.11 only"),
    "paillier": ("gmpy2", "gmpy2: pip install 'interlace[he]'"),
}


def available(scheme: Scheme) -> bool:
    """Whether the library that a scheme needs is installed."""
    return scheme not in _LIBRARY or find_spec(_LIBRARY[scheme][0]) is not None


def generate(scheme: Scheme, workload: Workload) -> PrivateKey:
    """A fresh key pair with the scheme's default parameters.

    Raises:
        CapacityError: the workload does not fit the scheme.
        JobError: the library it needs is not installed, or there is no such scheme.
    """
    if scheme not in SCHEMES:
        raise JobError(f"there is no encryption '{scheme}'; there are {', '.join(SCHEMES)}")
    if not available(scheme):
        raise JobError(f"the encryption '{scheme}' needs {_LIBRARY[scheme][1]}")
    if scheme == "paillier":
        from interlace.crypto.paillier import PaillierPrivateKey

        return PaillierPrivateKey.generate(workload)
    if scheme == "okamoto-uchiyama":
        from interlace.crypto.okamoto_uchiyama import OUPrivateKey

        return OUPrivateKey.generate(workload)
    from interlace.crypto.rlwe import RLWEPrivateKey

    return RLWEPrivateKey.generate(workload, "strict" if scheme == "rlwe-strict" else "fast")


def read_public_key(tensor: Tensor, allowed: Collection[str] | None = None) -> PublicKey:
    """A partner's public key; ``allowed`` is a policy's ``encryption``, ``None`` allows all.

    Raises:
        Refused: it is damaged, too weak, or of a scheme that is not ``allowed`` here.
        JobError: the library it needs is not installed.
    """
    message = unseal(tensor)
    name = message.header.get("scheme")
    if message.header.get("what") != "public key":
        raise Refused("a public key was due")
    if name == "rlwe":
        name = f"rlwe-{message.header.get('setting')}"
    scheme = next((s for s in SCHEMES if s == name), None)
    if scheme is None or (allowed is not None and scheme not in allowed):
        raise Refused("a public key of a scheme that is not allowed here came")
    if not available(scheme):
        raise JobError(f"the encryption '{scheme}' needs {_LIBRARY[scheme][1]}")
    if scheme == "paillier":
        from interlace.crypto.paillier import PaillierPublicKey

        return PaillierPublicKey.unsealed(message)
    if scheme == "okamoto-uchiyama":
        from interlace.crypto.okamoto_uchiyama import OUPublicKey

        return OUPublicKey.unsealed(message)
    from interlace.crypto.rlwe import RLWEPublicKey

    return RLWEPublicKey.unsealed(message)


# -- choosing ----------------------------------------------------------------------------------


def agreed_schemes(wanted: str, policies: Mapping[str, Any]) -> list[Scheme]:
    """The schemes that every party's policy allows.

    Args:
        wanted: A scheme, ``auto``, or ``none`` for training in clear.
        policies: What each party, the active one too, says of its policy's ``encryption``; ``None``
            allows everything.

    Raises:
        Refused: a party's answer cannot be read.
        JobError: not every policy allows what is wanted.
    """
    for party, told in policies.items():
        if told is not None and not isinstance(told, list | frozenset):
            raise Refused(f"party '{party}' does not say which encryption it allows")
    bounds = {party: told for party, told in policies.items() if told is not None}
    common = [s for s in (*SCHEMES, "none") if all(s in told for told in bounds.values())]
    schemes = [s for s in SCHEMES if s in common]
    if wanted not in common and not (wanted == "auto" and schemes):
        against = [f"'{party}'" for party, told in bounds.items() if wanted not in told]
        raise JobError(
            f"not every party's policy allows the encryption '{wanted}': see `encryption` of "
            f"{', '.join(against)}; all allow: {', '.join(common) or 'nothing in common'}. "
            + (f"Set `encryption: {common[0]}` in the method, or widen" if common else "Widen")
            + " that of a policy"
        )
    return schemes


@dataclass(frozen=True)
class Estimate:
    """What one encryption of a workload's rows and all sums asked of it cost.

    Attributes:
        scheme: Which scheme.
        cpu_seconds: Computing, both parties together.
        bytes_in: From the key holder.
        bytes_out: From the party that sums.
        seconds: Computing on the given cores, and the bytes over the given link.
    """

    scheme: Scheme
    cpu_seconds: float
    bytes_in: int
    bytes_out: int
    seconds: float


@dataclass(frozen=True)
class _Cost:
    """Measured microseconds of one core."""

    row: float  # to encrypt a row (Ring-LWE: without the products)
    product: float  # Ring-LWE: for each coefficient of b that travels
    turn: float  # Ring-LWE: to expand a row each time rows are added up
    addition: float  # to add a row to a group
    group: float  # to squeeze a group into an answer
    answer: float  # to re-randomise, send, and decrypt an answer


_COSTS: dict[Scheme, _Cost] = {
    "rlwe-fast": _Cost(row=1.7, product=0.1, turn=3.0, addition=0.25, group=0, answer=350),
    "rlwe-strict": _Cost(row=8.0, product=0.35, turn=10.0, addition=1.2, group=0, answer=950),
    "okamoto-uchiyama": _Cost(51, 0, 0, 2.3, 200, 330),
    "paillier": _Cost(1100, 0, 0, 7.0, 500, 18_000),
}


def choose(
    workload: Workload,
    *,
    columns: int,
    link: float,
    cores: int,
    levels: float = 1.0,
    allowed: Iterable[Scheme] = SCHEMES,
) -> list[Estimate]:
    """The allowed schemes that a workload fits, the quickest first.

    Args:
        workload: Rows, their numbers, and the sums asked of one encryption.
        columns: Columns of the index: features.
        link: Bytes a second between the parties, as measured.
        cores: Cores of each party.
        levels: How often each row is added up: for trees about (depth + 1) / 2, since only the
            smaller child of each node is summed.
        allowed: Schemes that every party's policy allows.

    Raises:
        JobError: none of them is installed and fits.
    """
    found = []
    for scheme in allowed:
        sizes = _sizes(scheme, workload) if available(scheme) else None
        if sizes is None:
            continue
        bytes_in, bytes_out, fold, answers = sizes
        cost = _COSTS[scheme]
        micro = workload.rows * (cost.row + cost.product * fold)
        micro += levels * workload.rows * (cost.turn + columns * cost.addition)
        micro += workload.groups * cost.group + answers * cost.answer
        cpu = micro / 1e6
        seconds = cpu / cores + (bytes_in + bytes_out) / link
        found.append(Estimate(scheme, cpu, bytes_in, bytes_out, seconds))
    if not found:
        raise JobError(
            "no encryption that every party allows is installed and fits these numbers; allow "
            "another one, use coarser numbers, or fewer rows"
        )
    return sorted(found, key=lambda estimate: estimate.seconds)


def _sizes(scheme: Scheme, workload: Workload) -> tuple[int, int, int, int] | None:
    """Bytes in, bytes out, numbers sent for each row, and answers; ``None`` if it does not fit."""
    if scheme in ("rlwe-fast", "rlwe-strict"):
        from interlace.crypto.rlwe import SETTINGS, Plan

        try:
            plan = Plan.fit(SETTINGS[scheme.removeprefix("rlwe-")], workload)
        except CapacityError:
            return None
        return plan.bytes_in, plan.bytes_out, plan.fold, -(-workload.groups // plan.slots)
    if scheme == "paillier":
        from interlace.crypto.paillier import BITS as bits

        size, room = bits // 4, bits - 2
    else:
        from interlace.crypto.okamoto_uchiyama import BITS as bits
        from interlace.crypto.okamoto_uchiyama import OVERHEAD, SPARE

        size, room = bits // 8 + OVERHEAD, bits // 3 - SPARE
    slots = room // (workload.width * workload.sum_bits)
    if not slots:
        return None
    answers = -(-workload.groups // slots)
    return workload.rows * size, answers * size, 1, answers
