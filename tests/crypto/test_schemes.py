"""Every scheme against plain sums, through the bytes that travel."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from interlace.crypto import (
    SCHEMES,
    CapacityError,
    PrivateKey,
    PublicKey,
    Rows,
    Sums,
    Vector,
    Workload,
    agreed_schemes,
    available,
    choose,
    generate,
    merge_small,
    read_public_key,
    unmasked,
)
from interlace.errors import JobError, PolicyError, Refused

from .conftest import LARGEST, ROWS, TREES, make_key, plain_sums


def received_rows(public: PublicKey, tensor: Tensor) -> Rows:
    rows = public.read(tensor)
    assert isinstance(rows, Rows)
    return rows


def received_sums(key: PrivateKey, sums: Sums) -> Sums:
    read = key.public.read(sums.to_tensor())
    assert isinstance(read, Sums)
    return read


def received_vector(key: PrivateKey, vector: Vector) -> Vector:
    read = key.public.read(vector.to_tensor())
    assert isinstance(read, Vector)
    return read


@settings(max_examples=6)
@given(seed=st.integers(0, 2**32 - 1), extreme=st.booleans())
def test_a_histogram_is_the_plain_histogram(key: PrivateKey, seed: int, extreme: bool) -> None:
    random = np.random.default_rng(seed)
    n, columns, groups = (int(random.integers(1, high)) for high in (12, 4, 90))
    values = random.integers(-LARGEST, LARGEST + 1, (n, 2))
    if extreme:
        values = np.where(values > 0, LARGEST, -LARGEST)
    rows = received_rows(key.public, key.encrypt_rows(values).to_tensor())
    assert len(rows) == n
    selected = random.permutation(n)[: int(random.integers(1, n + 1))]
    index = random.integers(-1, groups, (len(selected), columns))
    sums = received_sums(key, key.public.sum_by_index(rows, index, groups, selected=selected))
    assert (sums.groups, sums.width) == (groups, 2)
    np.testing.assert_array_equal(
        key.decrypt(sums, limit=columns * n * LARGEST), plain_sums(values[selected], index, groups)
    )


@pytest.mark.parametrize("sign", [1, -1])
def test_sums_at_the_capacity_are_exact(key: PrivateKey, sign: int) -> None:
    values = np.full((ROWS, 2), sign * LARGEST)
    rows = key.encrypt_rows(values)
    sums = key.public.sum_by_index(rows, np.zeros((ROWS, 1), dtype=np.int64), 3)
    got = key.decrypt(received_sums(key, sums))
    np.testing.assert_array_equal(got, [[sign * ROWS * LARGEST] * 2, [0, 0], [0, 0]])


def test_no_row_selected_gives_sums_of_zero(key: PrivateKey) -> None:
    rows = key.encrypt_rows(np.ones((2, 2), dtype=np.int64))
    nobody = np.empty(0, dtype=np.int64)
    sums = key.public.sum_by_index(rows, np.empty((0, 3), dtype=np.int64), 5, selected=nobody)
    assert not key.decrypt(received_sums(key, sums)).any()


def test_what_could_overflow_is_refused_before_it_is_computed(key: PrivateKey) -> None:
    with pytest.raises(CapacityError, match="largest"):
        key.encrypt_rows(np.full((1, 2), LARGEST + 1))
    with pytest.raises(CapacityError, match="largest"):
        key.encrypt_rows(np.full((1, 2), -LARGEST - 1))
    with pytest.raises(CapacityError):
        key.encrypt_rows(np.zeros((1, 3), dtype=np.int64))
    with pytest.raises(CapacityError):
        key.encrypt_rows(np.zeros((1, 2)))
    with pytest.raises(CapacityError, match="rows"):
        key.encrypt(np.zeros(ROWS + 1, dtype=np.int64))
    rows = key.encrypt_rows(np.zeros((2, 2), dtype=np.int64))
    too_many = np.zeros(ROWS + 1, dtype=np.int64)
    with pytest.raises(CapacityError, match="rows"):
        key.public.sum_by_index(rows, too_many[:, None], 1, selected=too_many)


def test_positions_out_of_range_are_refused(key: PrivateKey) -> None:
    rows = key.encrypt_rows(np.zeros((2, 2), dtype=np.int64))
    for index in ([[0], [4]], [[-2], [0]], [[0]]):
        with pytest.raises(ValueError, match="index"):
            key.public.sum_by_index(rows, np.array(index), 4)
    with pytest.raises(ValueError, match="selected"):
        key.public.sum_by_index(rows, np.array([[0]]), 4, selected=np.array([2]))


def test_small_groups_do_not_leave(key: PrivateKey) -> None:
    rows = key.encrypt_rows(np.ones((6, 2), dtype=np.int64))
    index = np.array([[0], [0], [0], [0], [1], [1]])
    with pytest.raises(PolicyError, match="1 of 4 groups hold fewer than 3 rows"):
        key.public.sum_by_index(rows, index, 4, smallest=3)
    merged = merge_small(np.bincount(index[:, 0], minlength=4)[None, :], 3)[index]
    sums = key.public.sum_by_index(rows, merged, 4, smallest=3)
    assert key.decrypt(sums).sum(axis=0).tolist() == [6, 6]


def test_equal_rows_look_different_and_so_do_equal_answers(key: PrivateKey) -> None:
    values = np.ones((2, 2), dtype=np.int64)
    one, two = (key.encrypt_rows(values) for _ in range(2))
    assert_unrelated(one.to_tensor(), two.to_tensor())
    index = np.zeros((2, 1), dtype=np.int64)
    answers = [key.public.sum_by_index(one, index, 1) for _ in range(2)]
    assert_unrelated(*(answer.to_tensor() for answer in answers))
    for answer in answers:
        assert key.decrypt(answer).tolist() == [[2, 2]]


def assert_unrelated(one: Tensor, other: Tensor) -> None:
    """Beyond the header, two messages agree in no more bytes than chance makes them."""
    start = 24 + int.from_bytes(one[4:8].numpy().tobytes(), "little")
    end = min(len(one), len(other))  # HEU leaves leading zeros out
    equal = (one[start:end] == other[start:end]).float().mean().item()
    assert equal < 0.1, f"{equal:.3f} of the bytes are equal; 0.004 are expected"


def test_a_public_key_travels(key: PrivateKey) -> None:
    if key.public.to_tensor()[24:].numpy().tobytes().count(b'"bits":1024'):
        with pytest.raises(Refused, match="1024 bits"):  # made for tests alone
            read_public_key(key.public.to_tensor())
        return
    public = read_public_key(key.public.to_tensor())
    assert public.workload == TREES
    rows = received_rows(public, key.encrypt_rows(np.array([[3, -4], [5, 6]])).to_tensor())
    sums = public.sum_by_index(rows, np.array([[1], [1]]), 2)
    answer = key.public.read(sums.to_tensor())
    assert isinstance(answer, Sums)
    assert key.decrypt(answer).tolist() == [[0, 0], [8, 2]]


def test_damaged_messages_are_refused(key: PrivateKey) -> None:
    rows = key.encrypt_rows(np.ones((2, 2), dtype=np.int64))
    sums = key.public.sum_by_index(rows, np.array([[0], [1]]), 2)
    for tensor in (rows.to_tensor(), sums.to_tensor(), key.encrypt(np.array([1])).to_tensor()):
        for damaged in (tensor[:-1], tensor[:30], tensor[:3], torch.cat([tensor, tensor[:1]])):
            with pytest.raises(Refused):
                key.public.read(damaged)
        for place in (0, 5, 30, len(tensor) // 2, len(tensor) - 1):
            damaged = tensor.clone()
            damaged[place] ^= 1
            with pytest.raises(Refused):
                key.public.read(damaged)
    for strange in (torch.zeros(0, dtype=torch.uint8), torch.zeros(50), torch.zeros(5, 5)):
        with pytest.raises(Refused):
            key.public.read(strange)


@pytest.mark.parametrize("scheme", ["fast", "strict", "paillier", "okamoto-uchiyama"])
def test_another_key_is_refused(scheme: str, key_of: Callable[[str], PrivateKey]) -> None:
    one, other = key_of(scheme), make_key(scheme, TREES)
    rows = one.encrypt_rows(np.ones((2, 2), dtype=np.int64))
    sums = one.public.sum_by_index(rows, np.array([[0], [1]]), 2)
    with pytest.raises(Refused, match="another key"):
        other.public.read(rows.to_tensor())
    with pytest.raises(Refused, match="another key"):
        other.public.sum_by_index(rows, np.array([[0], [1]]), 2)
    with pytest.raises(Refused, match="another key"):
        other.decrypt(sums)
    with pytest.raises(Refused, match="due here"):
        one.public.sum_by_index(sums, np.array([[0], [1]]), 2)  # type: ignore[arg-type]
    sums.key = other.public  # type: ignore[attr-defined]  # its maker lies about the key
    with pytest.raises(Refused, match=r"does not decrypt|larger than any honest sum"):
        other.decrypt(sums)


def test_sums_that_no_honest_party_sends_are_dropped(key: PrivateKey) -> None:
    rows = key.encrypt_rows(np.array([[7, 1], [7, 1]]))
    sums = key.public.sum_by_index(rows, np.array([[0], [0]]), 1)
    with pytest.raises(Refused, match="1 of 2 decrypted sums"):
        key.decrypt(sums, limit=13)
    with pytest.raises(Refused, match="1 of 2 decrypted sums"):
        key.decrypt(sums, limit=np.array([[14, 1]]))
    assert key.decrypt(sums, limit=np.array([[14, 2]])).tolist() == [[14, 2]]


@settings(max_examples=3)
@given(seed=st.integers(0, 2**32 - 1))
def test_a_scalar_product_is_the_plain_product(linear_key: PrivateKey, seed: int) -> None:
    key, random = linear_key, np.random.default_rng(seed)
    work = key.public.workload
    n, features = (int(random.integers(1, high)) for high in (30, 4))
    d = random.integers(-work.largest, work.largest + 1, n)
    x = random.integers(-work.factor, work.factor + 1, (n, features))
    x[:, 0] = random.choice([0, work.factor, -work.factor])
    vector = received_vector(key, key.encrypt(d))
    sums = received_sums(key, key.public.scalar_product(vector, x))
    np.testing.assert_array_equal(key.decrypt(sums)[:, 0], x.T @ d)


def test_vectors_of_both_sides_are_added(linear_key: PrivateKey) -> None:
    key, random = linear_key, np.random.default_rng(1)
    work = key.public.workload
    d, u = random.integers(-work.largest, work.largest + 1, (2, 20))
    vector = key.public.add(key.encrypt(d), received_vector(key, key.public.encrypt(u)))
    vector = received_vector(key, vector)
    np.testing.assert_array_equal(key.decrypt(vector), d + u)
    x = random.integers(-3, 4, (20, 2))
    np.testing.assert_array_equal(
        key.decrypt(key.public.scalar_product(vector, x))[:, 0], x.T @ (d + u)
    )
    with pytest.raises(ValueError, match="cannot be added"):
        key.public.add(vector, key.encrypt(d[:-1]))


@settings(max_examples=3)
@given(seed=st.integers(0, 2**32 - 1))
def test_a_masked_product_is_read_by_who_masked_it_alone(linear_key: PrivateKey, seed: int) -> None:
    key, random = linear_key, np.random.default_rng(seed)
    work = key.public.workload
    d = random.integers(-work.largest, work.largest + 1, 20)
    x = random.integers(-work.factor, work.factor + 1, (20, 3))
    x[:, 0] = 0
    sums, masks = key.public.masked_product(received_vector(key, key.encrypt(d)), x)
    opened = key.decrypt(received_sums(key, sums))
    np.testing.assert_array_equal(unmasked(opened, masks, x, work), x.T @ d)
    again, _ = key.public.masked_product(key.encrypt(d), x)
    assert (key.decrypt(again) != opened).all()  # a product of 0, too, looks like any other
    assert np.abs(opened).max() >> (work.sum_bits - 12) > 0


def test_what_the_key_holder_cannot_have_opened_is_refused(linear_key: PrivateKey) -> None:
    """A product is held against the matrix that it is of."""
    work = linear_key.public.workload
    x, due = np.array([[1], [-2]]), 3 * work.largest * (work.rows // 2)
    assert due < work.sum_limit
    assert unmasked(np.array([[due]]), np.array([0]), x, work) == due
    with pytest.raises(Refused, match="larger than any honest sum"):
        unmasked(np.array([[due + 1]]), np.array([0]), x, work)


def test_products_that_could_overflow_are_refused(linear_key: PrivateKey) -> None:
    key = linear_key
    work = key.public.workload
    vector = key.encrypt(np.zeros(ROWS, dtype=np.int64))
    with pytest.raises(CapacityError, match="factor"):
        key.public.scalar_product(vector, np.full((ROWS, 1), work.factor + 1))
    for _ in range(2):
        vector = key.public.add(vector, vector)
    with pytest.raises(CapacityError, match="outgrow"):
        key.public.scalar_product(vector, np.full((ROWS, 1), work.factor))
    with pytest.raises(ValueError, match="rows"):
        key.public.scalar_product(vector, np.ones((2, 1), dtype=np.int64))


# -- by name -----------------------------------------------------------------------------------


def test_keys_are_made_and_read_by_name() -> None:
    key = generate("rlwe-fast", TREES)
    tensor = key.public.to_tensor()
    assert read_public_key(tensor, allowed=["rlwe-fast"]).workload == TREES
    with pytest.raises(Refused, match="not allowed"):
        read_public_key(tensor, allowed=["paillier", "rlwe-strict"])
    with pytest.raises(Refused, match="public key was due"):
        read_public_key(key.encrypt(np.array([1])).to_tensor())
    with pytest.raises(JobError, match="there is no encryption 'rsa'"):
        generate("rsa", TREES)  # type: ignore[arg-type]


def test_the_choice_follows_the_link_and_what_is_allowed() -> None:
    trees = Workload(rows=30_000, largest=2**19, groups=16 * 13 * 32)
    fast = choose(trees, columns=13, link=125e6, cores=2, levels=3)
    assert fast[0].scheme == "rlwe-fast"
    assert {e.scheme for e in fast} == {s for s in SCHEMES if available(s)}
    wide = Workload(rows=30_000, largest=2**19, groups=16 * 300 * 64)
    slow = choose(wide, columns=300, link=1e5, cores=16, levels=3)
    assert not slow[0].scheme.startswith("rlwe")  # its answers are the larger ones
    only = choose(trees, columns=13, link=1e5, cores=2, allowed=["rlwe-strict"])
    assert [e.scheme for e in only] == ["rlwe-strict"]
    with pytest.raises(JobError, match="no encryption"):
        choose(trees, columns=13, link=1e6, cores=2, allowed=[])


def test_estimated_bytes_are_the_bytes_that_travel() -> None:
    work = Workload(rows=200, largest=1000, groups=130)
    for estimate in choose(work, columns=1, link=1e6, cores=1):
        if not estimate.scheme.startswith("rlwe"):
            continue  # keys of 3072 bits are slow to make
        key = generate(estimate.scheme, work)
        rows = key.encrypt_rows(np.ones((200, 2), dtype=np.int64))
        index = np.arange(200)[:, None] % 130
        sums = key.public.sum_by_index(rows, index, 130)
        assert len(rows.to_tensor()) == pytest.approx(estimate.bytes_in, rel=0.02, abs=400)
        assert len(sums.to_tensor()) == pytest.approx(estimate.bytes_out, rel=0.02, abs=400)


def test_a_row_of_okamoto_uchiyama_has_the_estimated_bytes(
    key_of: Callable[[str], PrivateKey],
) -> None:
    key = key_of("okamoto-uchiyama")
    from interlace.crypto.okamoto_uchiyama import OVERHEAD

    rows = key.encrypt_rows(np.ones((50, 2), dtype=np.int64)).to_tensor()
    assert len(rows) / 50 == pytest.approx(2048 // 8 + OVERHEAD, rel=0.05)


def test_parties_agree_on_what_every_policy_allows() -> None:
    strict, clear = frozenset({"rlwe-strict", "paillier"}), ["none", "rlwe-strict"]
    assert agreed_schemes("auto", {}) == list(SCHEMES)
    assert agreed_schemes("auto", {"a": None, "b": strict}) == ["rlwe-strict", "paillier"]
    assert agreed_schemes("rlwe-strict", {"a": clear, "b": strict}) == ["rlwe-strict"]
    assert agreed_schemes("none", {"a": clear, "b": None}) == ["rlwe-strict"]
    for wanted, policies, why in (
        ("none", {"a": strict, "b": clear}, "'none'.* of 'a'; all allow: rlwe-strict"),
        ("paillier", {"a": clear, "b": None}, "of 'a'; all allow: rlwe-strict, none"),
        ("auto", {"a": ["none"], "b": None}, "of 'a'; all allow: none. Set `encryption: none`"),
        (
            "auto",
            {"a": ["paillier"], "b": clear},
            "of 'a', 'b'; all allow: nothing in common. Widen",
        ),
    ):
        with pytest.raises(JobError, match=why):
            agreed_schemes(wanted, policies)
    with pytest.raises(Refused, match="party 'a' does not say"):
        agreed_schemes("auto", {"a": "rlwe-strict"})


def test_a_workload_has_bounds() -> None:
    for wrong in ({"rows": 0}, {"largest": -1}, {"width": 65}, {"factor": 2**16}, {"rows": 2.5}):
        with pytest.raises(CapacityError):
            Workload(**{"rows": 10, "largest": 10, **wrong})  # type: ignore[arg-type]


# -- small groups ------------------------------------------------------------------------------


@settings(max_examples=200)
@given(
    counts=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=9),
    smallest=st.integers(1, 8),
)
def test_merged_bins_are_empty_or_large_enough(
    counts: list[tuple[int, int]], smallest: int
) -> None:
    sides = np.array(counts).T
    merged = merge_small(sides, smallest)
    assert merged.shape == (len(counts),)
    if (merged == -1).any():
        assert (merged == -1).all()
        assert ((sides.sum(axis=1) > 0) & (sides.sum(axis=1) < smallest)).any()
        return
    assert (np.diff(merged) >= 0).all()
    assert (merged >= np.arange(len(counts))).all()
    for side in sides:
        held = np.bincount(merged, weights=side, minlength=len(counts))
        assert (held[held > 0] >= smallest).all()
        for end in np.unique(merged):  # running totals stay true at every bin that keeps rows
            assert held[: end + 1].sum() == side[: end + 1].sum()


def test_bins_that_are_large_enough_stay_as_they_are() -> None:
    counts = np.array([[[5, 0, 7, 6]], [[5, 1, 7, 6]]])
    assert merge_small(counts, 5).tolist() == [[0, 1, 2, 3], [0, 2, 2, 3]]
