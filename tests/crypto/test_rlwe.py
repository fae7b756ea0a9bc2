"""What Ring-LWE stands on: its ring, its noise, its kernels, its settings."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlace.crypto import CapacityError, Workload, capacity
from interlace.crypto import rlwe as module
from interlace.crypto.kernels import kernels
from interlace.crypto.ring import Ring
from interlace.crypto.rlwe import SETTINGS, TAIL, Plan, RLWEPrivateKey, RLWESums
from interlace.crypto.sampling import ETA, VARIANCE, centred_binomial, ternary
from interlace.errors import Refused

from .conftest import plain_sums

RINGS = [Ring(32, (54,)), Ring(32, (48, 60))]


def value(words: np.ndarray, ring: Ring) -> list[int]:
    """Numbers mod q as Python's."""
    whole = words[0].astype(object)
    if len(words) > 1:
        whole = whole + (words[1].astype(object) << ring.planes[0])
    return [int(x) % (1 << ring.log_q) for x in whole]


def plain_product(a: list[int], b: list[int], q: int) -> list[int]:
    n, out = len(a), [0] * len(a)
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            out[(i + j) % n] += x * y if i + j < n else -x * y
    return [x % q for x in out]


@pytest.mark.parametrize("ring", RINGS, ids=["one word", "two words"])
def test_products_are_those_of_the_ring(ring: Ring) -> None:
    a = module._expand(ring, b"0123456789abcdef", 1)[:, 0]
    small = ternary(3, ring.degree)
    got = ring.multiply(ring.spectra(a, 27), small)
    for k in range(3):
        due = plain_product(value(a, ring), small[k].tolist(), 1 << ring.log_q)
        assert value(got[:, k], ring) == due
    rotations = ring.rotations(small[0], 8)
    low = [x % (1 << ring.planes[0]) for x in value(a, ring)]
    full = plain_product(low, small[0].tolist(), 1 << 62)
    assert [int(x) % (1 << 62) for x in rotations @ np.array(low)] == full[:: ring.degree // 8]


@given(shift=st.integers(0, 100), numbers=st.lists(st.integers(-(2**40), 2**40), min_size=1))
def test_numbers_are_accumulated_mod_q(shift: int, numbers: list[int]) -> None:
    ring = RINGS[1]
    words = ring.zeros(len(numbers))
    for _ in range(3):
        ring.accumulate(words, np.array(numbers), shift)
    q = 1 << ring.log_q
    assert value(ring.reduce(words), ring) == [3 * (x << shift) % q for x in numbers]


def test_errors_have_the_stated_distribution() -> None:
    errors = centred_binomial(200_000)
    assert abs(errors).max() <= ETA
    assert abs(errors.mean()) < 5 * math.sqrt(VARIANCE / 200_000)
    assert errors.var() == pytest.approx(VARIANCE, rel=0.03)
    u = ternary(90_000)
    assert [abs((u == x).mean() - 1 / 3) < 0.01 for x in (-1, 0, 1)] == [True] * 3
    assert centred_binomial(2, 3).shape == (2, 3)
    assert not np.array_equal(centred_binomial(50), centred_binomial(50))


@settings(max_examples=10)
@given(seed=st.integers(0, 2**32 - 1))
def test_compiled_and_plain_loops_agree(seed: int) -> None:
    pytest.importorskip("numba")
    fast, slow = kernels(True), kernels(False)
    random = np.random.default_rng(seed)
    m, f, length = (int(random.integers(1, high)) for high in (9, 4, 5))
    unit, length = 2, 4 * length
    words = random.integers(-(2**62), 2**62, (m, length))
    place, turn = random.integers(-1, 3, (m, f)), random.integers(0, length // unit, (m, f))
    columns = random.integers(-1, 2, (8, length))
    rows = random.integers(0, 2**40, m)
    got = []
    for loops in (fast, slow):
        counters = np.empty((m, 3, 2), dtype=np.uint64)
        loops.fill(counters, rows, 7)
        sums, out = np.zeros((3, length), dtype=np.int64), np.ones((m, 8), dtype=np.int64)
        loops.scatter(words, place, turn, unit, sums)
        loops.project(words, columns, out)
        got.append((counters, sums, out))
    for one, other in zip(*got, strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(got[0][2], 1 + words @ columns.T)


@pytest.mark.parametrize("setting", ["fast", "strict"])
def test_without_numba_the_sums_are_the_same(
    setting: module.SettingName, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "kernels", lambda: kernels(False))
    random = np.random.default_rng(3)
    values, index = random.integers(-50, 51, (40, 2)), random.integers(-1, 25, (40, 3))
    key = RLWEPrivateKey.generate(Workload(rows=120, largest=50, groups=25), setting)
    sums = key.public.sum_by_index(key.encrypt_rows(values), index, 25)
    np.testing.assert_array_equal(key.decrypt(sums), plain_sums(values, index, 25))


def noise(key: RLWEPrivateKey, sums: RLWESums) -> np.ndarray:
    """The errors of an answer, as shares of Δ."""
    step = key.public.plan.kept - key.public.workload.sum_bits
    residue = key._phase(sums) & ((1 << step) - 1)
    return np.minimum(residue, (1 << step) - residue) / (1 << step)


@pytest.mark.parametrize("setting", ["fast", "strict"])
def test_noise_of_the_most_rows_stays_within_its_bound(setting: module.SettingName) -> None:
    rows = 4000
    work = Workload(rows=rows, largest=1, groups=64)
    work = replace(work, largest=capacity(setting, work))
    key = RLWEPrivateKey.generate(work, setting)
    values = np.random.default_rng(0).integers(-work.largest, work.largest + 1, (rows, 2))
    # Every column has two groups, so as many rows as can be meet in each answer.
    columns = key.public.plan.slots // 2
    index = np.arange(rows)[:, None] % 2 + 2 * np.arange(columns)
    sums = key.public.sum_by_index(key.encrypt_rows(values), index, 2 * columns)
    np.testing.assert_array_equal(key.decrypt(sums), plain_sums(values, index, 2 * columns))
    share = noise(key, sums)
    assert share.max() <= 1 / 3  # 1/4 of the flood, 1/12 of all else: six deviations of nine
    assert share.max() > 1 / 16  # the flood is there
    with pytest.raises(CapacityError, match="neighbouring"):
        key.public.sum_by_index(
            key.encrypt_rows(values),
            np.zeros((rows, 1), dtype=np.int64) + np.arange(key.public.plan.slots),
            64,
        )


@pytest.mark.parametrize("ring", RINGS, ids=["one word", "two words"])
def test_dropped_bits_leave_no_mean_error(ring: Ring) -> None:
    before = module._expand(ring, b"0123456789abcdef", 4000)
    after = before.copy()
    module._drop(ring, after)
    assert not (after[0] & (2**module.DROPPED - 1)).any()
    q = 1 << ring.log_q
    pairs = zip(
        value(before.reshape(len(before), -1), ring),
        value(after.reshape(len(after), -1), ring),
        strict=True,
    )
    errors = np.array([(y - x + q // 2) % q - q // 2 for x, y in pairs])
    assert np.abs(errors).max() < 2**module.DROPPED
    assert abs(errors.mean()) < 5 * errors.std() / math.sqrt(errors.size)
    for residue in range(4):  # whatever is dropped
        of = errors[np.array(before[0].reshape(-1) % 4 == residue)]
        assert abs(of.mean()) < 5 * (of.std() + 1e-9) / math.sqrt(of.size)


def test_the_strict_setting_hides_statistically() -> None:
    for rows in (100, 30_000, 10**6):
        work = Workload(rows=rows, largest=1)
        work = replace(work, largest=capacity("strict", work))
        plan = Plan.fit(SETTINGS["strict"], work)
        hidden = TAIL * math.sqrt(plan.terms * VARIANCE + plan.setting.masking)
        flood = 2.0 ** (plan.delta - 2)
        assert plan.fold * hidden / (2 * flood) <= 2.0**-40


def test_capacity_is_what_fits_and_no_more() -> None:
    for setting in ("fast", "strict"):
        for rows in (100, 30_000, 10**6):
            work = Workload(rows=rows, largest=1)
            most = capacity(setting, work)  # type: ignore[arg-type]
            assert most >= 2**12 - 1
            Plan.fit(SETTINGS[setting], replace(work, largest=most))
            if most < 2**39:
                with pytest.raises(CapacityError, match="do not fit"):
                    Plan.fit(SETTINGS[setting], replace(work, largest=2 * most + 2))


def test_more_sums_are_packed_tighter() -> None:
    few, many = (
        Plan.fit(SETTINGS["fast"], Workload(rows=30_000, largest=2**19, groups=groups))
        for groups in (13 * 32, 16 * 13 * 32)
    )
    assert few.bytes_in < many.bytes_in
    assert few.bytes_out / few.workload.groups > many.bytes_out / many.workload.groups
    assert many.bytes_out / many.workload.groups < 800  # 11,790 when each bin had its own answer


def test_coarser_numbers_are_packed_tighter() -> None:
    tree = Workload(rows=30_000, largest=2**13, groups=16 * 13 * 32)
    for setting, most_bytes in (("fast", 3.6e6), ("strict", 7e6)):
        plan = Plan.fit(SETTINGS[setting], tree)
        assert plan.levels > 0
        assert plan.bytes_in + plan.bytes_out < most_bytes


@pytest.mark.parametrize("setting", ["fast", "strict"])
@pytest.mark.parametrize("groups", [1, 15, 16, 17, 130, 700])
def test_packed_answers_of_any_number(setting: module.SettingName, groups: int) -> None:
    work = Workload(rows=200, largest=3, groups=3 * 64)
    plan = Plan(SETTINGS[setting], work, fold=16, levels=4, cut=SETTINGS[setting].ring.below_top)
    assert plan.fits(plan.terms * module._ROW, plan.fold, plan.levels, plan.cut)
    key = key_of_plan(plan)
    random = np.random.default_rng(groups)
    values, index = random.integers(-3, 4, (100, 2)), random.integers(-1, groups, (100, 2))
    sums = key.public.sum_by_index(key.encrypt_rows(values), index, groups)
    levels, packs = plan.packs(-(-groups // plan.slots))
    assert sums.a.shape[0] == packs == max(1, -(-groups // (plan.slots << 4)))
    assert sums.levels == levels
    np.testing.assert_array_equal(key.decrypt(sums), plain_sums(values, index, groups))
    assert noise(key, sums).max() <= 3 / 8


def key_of_plan(plan: Plan) -> RLWEPrivateKey:
    """A key for a plan of our own making."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Plan, "fit", lambda setting, workload: plan)
        return RLWEPrivateKey.generate(plan.workload, plan.setting.name)


@pytest.mark.parametrize("setting", ["fast", "strict"])
def test_packing_adds_no_more_noise_than_its_bound(setting: module.SettingName) -> None:
    """The phase of merged encryptions of nothing is what packing itself adds."""
    chosen = SETTINGS[setting]
    plan = Plan(chosen, Workload(rows=10, largest=1), fold=16, levels=4, cut=chosen.ring.below_top)
    key = key_of_plan(plan)
    ring = chosen.ring
    a = ring.reduce(module._expand(ring, b"0123456789abcdef", 16))
    b = ring.reduce(-key._times_secret(a))  # no error at all
    for level in range(4):
        a, b = key.public._packer.merge(level, a, b)
    phase = ring.reduce(key._times_secret(a) + b)
    errors = np.array([x - (x >> (ring.log_q - 1) << ring.log_q) for x in value(phase[:, 0], ring)])
    held = errors[:: ring.degree // (16 << 4)].astype(np.float64)  # the others hold nothing
    bound = math.sqrt(chosen.gadget.variance(ring.degree) * (4.0**4 - 1) / 3)
    assert np.abs(held).max() <= TAIL * bound
    assert held.std() > bound / 8  # the bound is not far from the truth


@pytest.mark.parametrize("width", [1, 3, 6, 14])
def test_rows_of_any_width(width: int) -> None:
    random = np.random.default_rng(width)
    values, index = random.integers(-9, 10, (30, width)), random.integers(0, 40, (30, 2))
    key = RLWEPrivateKey.generate(Workload(rows=60, largest=9, width=width, groups=40))
    sums = key.public.sum_by_index(key.encrypt_rows(values), index, 40)
    np.testing.assert_array_equal(key.decrypt(sums), plain_sums(values, index, 40))


def test_vectors_longer_than_a_ciphertext() -> None:
    random = np.random.default_rng(5)
    n = 9000
    key = RLWEPrivateKey.generate(Workload(rows=n, largest=2**10, width=1, factor=2**11), "strict")
    d, x = random.integers(-(2**10), 2**10, n), random.integers(-(2**11), 2**11, (n, 5))
    sums = key.public.scalar_product(key.encrypt(d), x)
    np.testing.assert_array_equal(key.decrypt(sums)[:, 0], x.T @ d)


def test_an_answer_with_changed_numbers_is_refused() -> None:
    """Its maker can seal anything anew, so what does not decrypt cleanly must be found."""
    key = RLWEPrivateKey.generate(Workload(rows=10, largest=5, groups=64))
    sums = key.public.sum_by_index(
        key.encrypt_rows(np.ones((4, 2), dtype=int)), np.arange(4)[:, None], 64
    )
    sums.a[:, 7] ^= 1 << (key.public.plan.kept - key.public.workload.sum_bits - 1)  # half of Δ
    with pytest.raises(Refused):
        key.decrypt(sums)
