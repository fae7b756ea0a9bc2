"""Curve25519 for blinding: ids to points, points to tokens, and taking a blinding off again.

Points travel as 32-byte u-coordinates and are multiplied by X25519 (RFC 7748; libsodium through
PyNaCl: constant time, and it lets other threads run meanwhile). About 126 bits of security under
the decisional Diffie-Hellman assumption, ids hashed by a random oracle.

A hash taken for a u-coordinate as it stands would lie on the curve's twist half of the time, and
X25519 keeps curve and twist apart: one bit of every hashed id would show through the blinding. So
ids are mapped by Elligator 2 (Bernstein, Hamburg, Krasnova and Lange 2013; RFC 9380, section 6.7.2,
the one-map variant; libsodium's ``crypto_core_ed25519_from_uniform``), which reaches only points of
the curve's prime-order subgroup, in constant time. Its points are not spread evenly over the group,
which blinding does not need: Diffie-Hellman triples over them can be sampled from any one triple.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import nacl.bindings as sodium
from nacl.exceptions import CryptoError

from interlace.align.hashing import hash_all
from interlace.errors import Refused

POINT_BYTES = 32
PRIME = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
_A = 486662
_MASK = 2**255 - 1
_CHECKED = 32  # received points that are looked at in each message; see `refuse_twist`


def hash_to_curve(ids: Iterable[bytes]) -> list[bytes]:
    """The u-coordinate of each id's point.

    The map gives Edwards points; u = (1 + y) / (1 - y) (RFC 7748, section 4.1), with one inversion
    for all of them (Montgomery 1987, section 10.3.1).
    """
    uniform = hash_all(ids, 32, use="dh id").tobytes()
    ys = [
        int.from_bytes(sodium.crypto_core_ed25519_from_uniform(uniform[i : i + 32]), "little")
        & _MASK
        for i in range(0, len(uniform), 32)
    ]
    products = [1]
    for y in ys:
        products.append(products[-1] * (1 - y) % PRIME)
    inverse = pow(products[-1], -1, PRIME)
    out = []
    for y, before in zip(reversed(ys), reversed(products[:-1]), strict=True):
        u = (1 + y) * (inverse * before % PRIME) % PRIME
        out.append(u.to_bytes(POINT_BYTES, "little"))
        inverse = inverse * (1 - y) % PRIME
    return out[::-1]


def multiply(scalar: bytes, points: Sequence[bytes]) -> list[bytes]:
    """Each point times the scalar.

    Raises:
        Refused: a point is of small order.
    """
    try:
        return [sodium.crypto_scalarmult(scalar, p) for p in points]
    except (CryptoError, RuntimeError) as e:
        raise Refused("a blinded id is a point of small order") from e


class Blinding(NamedTuple):
    """A secret scalar and the one that undoes it, both in the form that X25519 takes."""

    scalar: bytes
    inverse: bytes


def new_scalar() -> bytes:
    """A random secret scalar, clamped as X25519 does it."""
    raw = bytearray(secrets.token_bytes(32))
    raw[0] &= 248
    raw[31] = raw[31] & 127 | 64
    return bytes(raw)


def new_blinding() -> Blinding:
    """A random scalar whose inverse has a clamped form too (a multiple of 8 in [2^254, 2^255)).

    The inverse modulo the group's order has about four representatives in that range, and each is a
    multiple of 8 with a chance of one in eight; so a few scalars are drawn.
    """
    while True:
        scalar = new_scalar()
        inverse = pow(int.from_bytes(scalar, "little"), -1, ORDER)
        first = inverse + -(-(2**254 - inverse) // ORDER) * ORDER
        for candidate in range(first, 2**255, ORDER):
            if candidate % 8 == 0:
                return Blinding(scalar, candidate.to_bytes(32, "little"))


def refuse_twist(points: Sequence[bytes]) -> None:
    """Refuse a message whose points lie on the twist.

    A partner that takes hashes for points (see above) sends about half of its points on the twist.
    X25519 gives such points away no more than others, so this guards the partner from its own
    mistake; a random sample finds it with all but 2^-32 and costs next to nothing.

    Raises:
        Refused: one of up to 32 points drawn at random is not on the curve.
    """
    drawn = (
        points if len(points) <= _CHECKED else secrets.SystemRandom().sample(list(points), _CHECKED)
    )
    for point in drawn:
        if not on_curve(point):
            raise Refused(
                "a blinded id is a point of the curve's twist; the partner's ids are not hashed "
                "to the curve, and a bit of each would leak"
            )


def on_curve(point: bytes) -> bool:
    """Whether a u-coordinate is one of the curve (v^2 = u^3 + A u^2 + u), not of its twist."""
    u = int.from_bytes(point, "little") & _MASK
    return _jacobi(u * (u * (u + _A) + 1) % PRIME, PRIME) >= 0


def _jacobi(a: int, n: int) -> int:
    """The Jacobi symbol (a / n) for odd n, by quadratic reciprocity."""
    sign = 1
    while a:
        twos = (a & -a).bit_length() - 1
        a >>= twos
        if twos & 1 and n & 7 in (3, 5):
            sign = -sign
        if a & n & 3 == 3:
            sign = -sign
        a, n = n % a, a
    return sign if n == 1 else 0
