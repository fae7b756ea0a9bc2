"""What all tests share: one thread a process, repeatable property tests, and the data beside us."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from itertools import cycle
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before NumPy and torch start; children inherit it

import pytest
import torch
from hypothesis import HealthCheck, settings

from interlace.align import curve

torch.set_num_threads(1)  # the test processes share the cores

ROOT = Path(__file__).resolve().parents[1]

settings.register_profile("local", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(
    "ci", parent=settings.get_profile("local"), derandomize=True, database=None
)
settings.load_profile("ci" if os.environ.get("CI") else "local")

FIRST = ("test_documentation.py", "test_examples.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes minutes begins first, or one process would be at it when all others are done."""
    items.sort(key=lambda item: item.path.name not in FIRST)


SCALARS = [curve.new_scalar() for _ in range(32)]
BLINDINGS = [curve.new_blinding() for _ in range(32)]
HASHED = cache(curve.hash_to_curve)
MULTIPLIED = cache(lambda scalar, point, multiply=curve.multiply: multiply(scalar, [point])[0])


@pytest.fixture(autouse=True)
def matched_before() -> Iterator[None]:
    """A third of what tests of methods take went into matching the same people over again. So all
    draw the same secrets, and look up what was multiplied before; `tests/align` does without."""
    scalars, blindings = cycle(SCALARS), cycle(BLINDINGS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(curve, "new_scalar", lambda: next(scalars))
        patch.setattr(curve, "new_blinding", lambda: next(blindings))
        patch.setattr(curve, "hash_to_curve", lambda ids: HASHED(tuple(ids)))
        patch.setattr(curve, "multiply", lambda s, points: [MULTIPLIED(s, p) for p in points])
        yield


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of larger public data sets, kept beside the repository and not part of it."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"the larger data sets are not beside the repository ({folder})")
    return folder
