"""The building blocks against known values, and the properties that the protocols rest on."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Callable

import nacl.bindings as sodium
import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st

from interlace.align import base_ot, cuckoo, curve, okvs, oprf
from interlace.align.bits import transpose_bits
from interlace.align.exchange import Lookup, random_order
from interlace.align.hashing import hash_all, hash_rows
from interlace.errors import Refused

IDS = [b"", b"user-1", "Zoë".encode()]
SALT = bytes(range(16))


def seeded(seed: bytes) -> Callable[[int], bytes]:
    """A stand-in for the operating system's randomness: a counter, hashed."""
    counter = itertools.count()

    def token_bytes(n: int) -> bytes:
        return hashlib.shake_128(seed + next(counter).to_bytes(8, "little")).digest(n)

    return token_bytes


# -- hashing ------------------------------------------------------------------------------------


def test_digests_have_known_values() -> None:
    got = hash_all([b"", "Zoë".encode()], 16, use="kkrt ids", salt=SALT)
    assert got.tobytes().hex() == "03688964c930312eb5771b896c557f2a70c209b6684bc07aa2c2e0186f7bb66c"
    fresh = [
        hashlib.blake2b(i, digest_size=28, salt=SALT, person=b"kkrt ids").digest() for i in IDS
    ]
    assert hash_all(IDS, 28, use="kkrt ids", salt=SALT).tobytes() == b"".join(fresh)


def test_row_hashes_are_those_of_their_bytes() -> None:
    rows = np.arange(3 * 72, dtype=np.uint8).reshape(3, 72)
    rows[:, -1] = 0  # closing zeros count
    assert (
        hash_rows(rows, 10, use="x") == hash_all([r.tobytes() for r in rows], 10, use="x")
    ).all()


# -- curve --------------------------------------------------------------------------------------


def test_points_have_known_values() -> None:
    assert [p.hex() for p in curve.hash_to_curve(IDS)] == [
        "b7d780734fdf8f873f90bbf8e69d5f7c5f65dfcf96ce0c282d5adea4e123c313",
        "72c37750e53d68a531ffb623a97f78bb23650aac6653bfde19e03ad934b3d413",
        "6e07b8d2774cbacbcd0778694c87119d2f5909b5f812eefeaf497f5639ea6264",
    ]


def test_points_agree_with_libsodiums_own_conversion() -> None:
    uniform = hash_all(IDS, 32, use="dh id")
    edwards = [sodium.crypto_core_ed25519_from_uniform(u.tobytes()) for u in uniform]
    assert all(sodium.crypto_core_ed25519_is_valid_point(p) for p in edwards)
    assert curve.hash_to_curve(IDS) == [
        sodium.crypto_sign_ed25519_pk_to_curve25519(p) for p in edwards
    ]


def test_multiplication_is_x25519() -> None:
    # RFC 7748, section 5.2, first vector
    scalar = bytes.fromhex("a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4")
    point = bytes.fromhex("e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c")
    due = "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552"
    assert curve.multiply(scalar, [point])[0].hex() == due


def test_blinding_comes_off_and_commutes() -> None:
    points = curve.hash_to_curve([b"%d" % i for i in range(20)])
    ours, theirs = curve.new_blinding(), curve.new_scalar()
    both = curve.multiply(theirs, curve.multiply(ours.scalar, points))
    assert curve.multiply(ours.inverse, both) == curve.multiply(theirs, points)
    assert len(set(both) | set(points)) == 40


def test_hashed_ids_lie_on_the_curve_and_plain_hashes_half_on_the_twist() -> None:
    ids = [b"id %d" % i for i in range(200)]
    assert all(map(curve.on_curve, curve.hash_to_curve(ids)))
    plain = [hashlib.blake2b(i, digest_size=32).digest() for i in ids]
    kept = [curve.on_curve(p) for p in plain]
    assert 60 < sum(kept) < 140
    # the leak that this avoids: blinding keeps curve and twist apart
    assert [curve.on_curve(p) for p in curve.multiply(curve.new_scalar(), plain)] == kept


def test_jacobi_symbol_agrees_with_eulers_criterion() -> None:
    for i in range(50):
        u = int.from_bytes(hashlib.sha256(b"%d" % i).digest(), "little") % curve.PRIME
        square = u * (u * u + 486662 * u + 1) % curve.PRIME
        euler = pow(square, (curve.PRIME - 1) // 2, curve.PRIME)
        assert curve.on_curve(u.to_bytes(32, "little")) == (euler in (0, 1))


def test_twist_and_small_order_points_are_refused() -> None:
    good = curve.hash_to_curve([b"%d" % i for i in range(500)])
    curve.refuse_twist(good)
    spoilt = [hashlib.sha256(p).digest() for p in good]
    with pytest.raises(Refused, match="twist"):
        curve.refuse_twist(spoilt)
    for small in (bytes(32), (1).to_bytes(32, "little")):
        with pytest.raises(Refused, match="small order"):
            curve.multiply(curve.new_scalar(), [good[0], small])


# -- base transfers -------------------------------------------------------------------------------


def test_the_chooser_gets_the_key_of_its_choice_and_not_the_other() -> None:
    choices = [0, 1, 1, 0, 1]
    offerer = base_ot.Offerer()
    answers, got = base_ot.choose(offerer.point, choices)
    both = offerer.keys(answers)
    assert got == [pair[c] for pair, c in zip(both, choices, strict=True)]
    assert not set(got) & {pair[1 - c] for pair, c in zip(both, choices, strict=True)}
    assert len({k for pair in both for k in pair}) == 10


def test_points_outside_the_main_group_are_refused() -> None:
    identity = (1).to_bytes(32, "little")
    order_two = (curve.PRIME - 1).to_bytes(32, "little")
    # a point of full order plus one of order two: on the curve, but not in the subgroup
    mixed = sodium.crypto_core_ed25519_add(base_ot.Offerer().point, order_two)
    for point in (identity, order_two, mixed, b"\xff" * 32):
        with pytest.raises(Refused, match="prime-order"):
            base_ot.choose(point, [0])
        with pytest.raises(Refused, match="prime-order"):
            base_ot.Offerer().keys([point])


# -- bits, bins, look-up --------------------------------------------------------------------------


@given(st.integers(1, 5), st.integers(1, 40), st.integers(0, 2**32))
def test_transposed_bits(width: int, length: int, seed: int) -> None:
    matrix = np.random.default_rng(seed).integers(0, 256, (8 * width, length), dtype=np.uint8)
    plain = np.unpackbits(matrix, axis=1, bitorder="little").T
    assert (transpose_bits(matrix) == np.packbits(plain, axis=1, bitorder="little")).all()


def test_transposing_in_several_stripes() -> None:
    matrix = np.random.default_rng(1).integers(0, 256, (16, 3000), dtype=np.uint8)
    plain = np.unpackbits(matrix, axis=1, bitorder="little").T
    assert (transpose_bits(matrix) == np.packbits(plain, axis=1, bitorder="little")).all()


@given(st.integers(0, 3000), st.integers(0, 2**32))
@settings(max_examples=30)
def test_every_id_stands_in_one_of_its_bins(n: int, seed: int) -> None:
    bins = cuckoo.bin_count(n)
    words = np.random.default_rng(seed).integers(0, 2**32, (3, n), dtype=np.uint32)
    choices = np.stack([cuckoo.scale(w, bins) for w in words])
    table, which = cuckoo.insert(choices, bins)
    full = np.flatnonzero(table >= 0)
    assert sorted(table[full]) == list(range(n))
    assert (choices[which[table[full]], table[full]] == full).all()


def test_a_table_that_cannot_hold_its_ids_says_so() -> None:
    with pytest.raises(cuckoo.TableFull):
        cuckoo.insert(np.zeros((3, 4), np.int32), 512)


def test_scaled_words_cover_the_range() -> None:
    words = np.array([0, 2**31, 2**32 - 1], np.uint32)
    assert cuckoo.scale(words, 1000).tolist() == [0, 500, 999]


@given(st.integers(0, 300))
def test_an_order_holds_everyone_once(n: int) -> None:
    assert sorted(random_order(n)) == list(range(n))
    assert n < 20 or random_order(n).tolist() != random_order(n).tolist()


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=12, unique=True))
def test_lookup_finds_equal_values_even_if_their_heads_agree(pairs: list[tuple[int, int]]) -> None:
    def values(of: list[tuple[int, int]]) -> np.ndarray:
        out = np.zeros((len(of), 10), np.uint8)
        for row, (head, tail) in zip(out, of, strict=True):
            row[0], row[9] = head, tail
        return out

    asked = [(h, t) for h in range(4) for t in range(4)]
    mine, theirs = Lookup(values(pairs)).find(values(asked))
    found = {(pairs[m], asked[t]) for m, t in zip(mine, theirs, strict=True)}
    assert found == {(p, p) for p in pairs}


# -- oblivious pseudo-random function -------------------------------------------------------------


def test_the_code_is_four_aes_blocks() -> None:
    plain = np.arange(16, dtype=np.uint8).reshape(1, 16)
    word = oprf.Code(SALT)(plain).tobytes()
    assert word.hex() == (
        "8f36fb293568059ea6fbd5163e1d6650ffecd2a04d7c89722a4426a23a203c71"
        "51e34845a3b89193814037259ad5cc44a218b91ce5aec1f81a0e6812241f63e5"
    )
    key = hashlib.blake2b(b"\1", digest_size=16, salt=SALT, person=b"kkrt code").digest()
    block = Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(plain.tobytes())
    assert word[16:32] == block


def evaluate(mine: list[bytes], theirs: list[bytes]) -> tuple[oprf.Placed, np.ndarray, np.ndarray]:
    """Placed ids, the evaluator's values, and the key holder's at all three bins."""
    placed = oprf.place(mine, SALT)
    size = oprf.value_bytes(len(mine), len(theirs))
    offerer = base_ot.Offerer()
    holder = oprf.KeyHolder(theirs, SALT, len(placed.table), size, offerer.point)
    evaluator = oprf.Evaluator(placed, offerer.keys(holder.answers), size)
    for masks in evaluator.masks():
        assert not holder.ready
        holder.take(masks)
    assert holder.ready
    return placed, evaluator.values, holder.values


def test_both_sides_compute_one_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oprf, "BLOCK_BINS", 256)  # several blocks
    mine, theirs = [b"%d" % i for i in range(300)], [b"%d" % i for i in range(200, 450)]
    placed, values, held = evaluate(mine, theirs)
    for i in range(200, 300):
        row = theirs.index(mine[i])
        assert (held[placed.which[i], row] == values[i]).all()
    everything = {v.tobytes() for v in values} | {v.tobytes() for v in held.reshape(-1, 8)}
    assert len(everything) == 300 + 3 * 250 - 100  # nothing else agrees


def test_values_under_seeded_randomness(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secrets.token_bytes", seeded(b"interlace"))
    monkeypatch.setattr("secrets.randbits", lambda bits: 7)
    _, values, held = evaluate([b"a", b"b"], [b"b", b"c"])
    assert [v.tobytes().hex() for v in values] == ["2eadd945955126d4", "b77c7d3c2cdab72e"]
    assert [v.tobytes().hex() for v in held[:, 0]] == [
        "b77c7d3c2cdab72e",
        "970a819f5495fc4c",
        "dff082c4d337e510",
    ]


def test_values_are_long_enough() -> None:
    assert oprf.value_bytes(10**6, 10**6) == 10
    assert oprf.value_bytes(10**7, 10**7) == 11
    assert oprf.value_bytes(0, 5) == 8


# -- oblivious key-value store --------------------------------------------------------------------


def random_rows(n: int, width: int) -> np.ndarray:
    return np.frombuffer(os.urandom(n * width), np.uint8).reshape(n, width)


@given(st.integers(0, 400))
@settings(max_examples=25)
def test_a_store_gives_each_key_its_value(n: int) -> None:
    keys, values, seed = random_rows(n, 16), random_rows(n, 10), os.urandom(16)
    table = okvs.encode(keys, values, seed)
    assert table.shape == (okvs.slot_count(n), 10)
    assert (okvs.decode(table, keys, seed) == values).all()
    others = okvs.decode(table, random_rows(50, 16), seed)
    assert len({o.tobytes() for o in others}) == 50


def test_keys_that_cannot_be_peeled_are_solved_for(monkeypatch: pytest.MonkeyPatch) -> None:
    # so few slots that many keys are left over
    monkeypatch.setattr(okvs, "slot_count", lambda keys: 9 + okvs.DENSE)
    keys, values, seed = random_rows(20, 16), random_rows(20, 8), bytes(16)
    table = okvs.encode(keys, values, seed)
    assert (okvs.decode(table, keys, seed) == values).all()
    with pytest.raises(okvs.EncodingFailed):
        okvs.encode(random_rows(200, 16), random_rows(200, 8), seed)


def test_a_table_looks_random() -> None:
    zeros = np.zeros((3000, 16), np.uint8)
    keys = random_rows(3000, 16)
    bits = np.unpackbits(okvs.encode(keys, random_rows(3000, 16), bytes(16)))
    assert abs(bits.mean() - 0.5) < 0.01
    assert okvs.decode(okvs.encode(keys, zeros, bytes(16)), keys, bytes(16)).sum() == 0
