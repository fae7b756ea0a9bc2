"""One federation of three sites on this machine for all tests of this folder, started once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

if find_spec("nvflare") is None:  # an extra
    collect_ignore_glob = ["test_*.py"]
else:
    from local import Local, local


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of this folder is a step of its own (`make test-flare`)."""
    for item in items:
        if item.path.parent.name == "flare":
            item.add_marker(pytest.mark.flare)


@pytest.fixture(scope="session")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    """Three sites that are up. The tests' own classes lie where their jobs find modules."""
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)
    with local(tmp_path_factory.mktemp("sites"), by_way=["lab"]) as up:
        yield up
