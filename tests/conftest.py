"""What all tests share: one thread a process, repeatable property tests, and the data beside us."""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before NumPy and torch start; children inherit it

import pytest
import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)  # the test processes share the cores

ROOT = Path(__file__).resolve().parents[1]

settings.register_profile("local", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(
    "ci", parent=settings.get_profile("local"), derandomize=True, database=None
)
settings.load_profile("ci" if os.environ.get("CI") else "local")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of larger public data sets, kept beside the repository and not part of it."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"the larger data sets are not beside the repository ({folder})")
    return folder
