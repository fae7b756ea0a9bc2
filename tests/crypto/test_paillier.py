"""What Paillier stands on: short keys are refused, work is spread, lanes do not mix."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.crypto import CapacityError, Workload, merge_small
from interlace.crypto.lanes import joined, parted
from interlace.errors import Refused

from .conftest import plain_sums

pytest.importorskip("gmpy2")

from interlace.crypto import modular
from interlace.crypto.paillier import PaillierPrivateKey, PaillierPublicKey
from interlace.crypto.wire import unseal

SMALL = Workload(rows=50, largest=100)


def test_short_keys_are_refused() -> None:
    for bits in (512, 1024, 2047):
        with pytest.raises(CapacityError, match="2048 or more"):
            PaillierPrivateKey.generate(SMALL, bits)
    key = PaillierPrivateKey.generate(SMALL, 512, insecure_for_tests=True)
    with pytest.raises(Refused, match="2048 are the least"):
        PaillierPublicKey.unsealed(unseal(key.public.to_tensor()))
    read = PaillierPublicKey.unsealed(unseal(key.public.to_tensor()), least_bits=512)
    assert read.fingerprint == key.public.fingerprint


def test_a_key_of_full_length_works() -> None:
    key = PaillierPrivateKey.generate(SMALL)
    assert key.public.n.bit_length() == 3072
    sums = key.public.sum_by_index(
        key.encrypt_rows(np.array([[5, -6], [7, 8]])), np.array([[1], [1]]), 3
    )
    assert key.decrypt(sums).tolist() == [[0, 0], [12, 2], [0, 0]]


def test_work_on_all_cores_gives_the_same_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modular, "WORTH_SPREADING", 0.0)
    random = np.random.default_rng(0)
    values, index = random.integers(-100, 101, (12, 2)), random.integers(-1, 40, (12, 3))
    key = PaillierPrivateKey.generate(Workload(rows=50, largest=100), 512, insecure_for_tests=True)
    sums = key.public.sum_by_index(key.encrypt_rows(values), index, 40)
    np.testing.assert_array_equal(key.decrypt(sums), plain_sums(values, index, 40))


def test_numbers_too_wide_for_a_plaintext_are_refused() -> None:
    wide = Workload(rows=1000, largest=2**30, width=40)
    with pytest.raises(CapacityError, match="do not fit one Paillier plaintext"):
        PaillierPrivateKey.generate(wide, 512, insecure_for_tests=True)


@given(st.lists(st.tuples(*[st.integers(-127, 127)] * 3), min_size=1, max_size=5))
def test_lanes_keep_their_numbers(lines: list[tuple[int, int, int]]) -> None:
    numbers = np.array(lines)
    plain = joined(numbers, 8)
    np.testing.assert_array_equal(parted(plain, 8, 3), numbers)
    with pytest.raises(Refused, match="does not decrypt"):
        parted([plain[0] + (1 << 30)], 8, 3)


def test_an_empty_feature_stays_out() -> None:
    assert merge_small(np.array([[1, 1, 0]]), 3).tolist() == [-1, -1, -1]
