"""One key of each scheme for a workload of trees: making keys is the slow part."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec

import numpy as np
import pytest

from interlace.crypto import PrivateKey, Workload
from interlace.crypto.rlwe import RLWEPrivateKey

LARGEST = 2**16
ROWS = 300
TREES = Workload(rows=ROWS, largest=LARGEST, width=2, groups=200)
LINEAR = Workload(rows=ROWS, largest=2**12, width=1, groups=8, factor=2**9)
SCHEMES = ("fast", "strict", "paillier", "okamoto-uchiyama")


def make_key(scheme: str, workload: Workload) -> PrivateKey:
    """A key of a scheme, or a skipped test where its library is not installed."""
    if scheme == "paillier":
        pytest.importorskip("gmpy2")
        from interlace.crypto.paillier import PaillierPrivateKey

        return PaillierPrivateKey.generate(workload, 1024, insecure_for_tests=True)
    if scheme == "okamoto-uchiyama":
        if find_spec("heu") is None:
            pytest.skip("sf-heu is not installed (it has wheels for Python 3.9 to 3.11 only)")
        from interlace.crypto.okamoto_uchiyama import OUPrivateKey

        return OUPrivateKey.generate(workload, 2048)
    return RLWEPrivateKey.generate(workload, "strict" if scheme == "strict" else "fast")


@pytest.fixture(scope="session")
def key_of() -> Callable[[str], PrivateKey]:
    """Makes the key of a scheme for histograms once."""
    return cache(lambda scheme: make_key(scheme, TREES))


@pytest.fixture(scope="session", params=SCHEMES)
def key(request: pytest.FixtureRequest, key_of: Callable[[str], PrivateKey]) -> PrivateKey:
    """A key for histograms."""
    return key_of(request.param)


@pytest.fixture(scope="session", params=SCHEMES)
def linear_key(request: pytest.FixtureRequest, key_of: Callable[[str], PrivateKey]) -> PrivateKey:
    """A key for scalar products."""
    scheme = request.param
    workload = LINEAR
    if scheme == "okamoto-uchiyama":  # HEU takes seconds to make a key: use that of the trees
        key = key_of(scheme)
        from interlace.crypto.okamoto_uchiyama import OUPrivateKey, OUPublicKey

        assert isinstance(key, OUPrivateKey)
        return OUPrivateKey(OUPublicKey(workload, 2048, key.public._blob), key._kit)
    if scheme == "fast":  # its noise budget is for coarse numbers only
        workload = Workload(rows=ROWS, largest=2**6, width=1, groups=8, factor=2**9)
    return make_key(scheme, workload)


def plain_sums(values: np.ndarray, index: np.ndarray, groups: int) -> np.ndarray:
    """What the encrypted histogram must decrypt to."""
    out = np.zeros((groups, values.shape[1]), dtype=np.int64)
    for column in index.T:
        kept = column >= 0
        np.add.at(out, column[kept], values[kept])
    return out
