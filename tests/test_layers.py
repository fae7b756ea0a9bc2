"""The folders keep their order, and the package stays light to import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HEAVY = ("torch", "sklearn", "scipy", "pandas", "polars", "pyarrow", "matplotlib")


def test_no_layer_imports_a_higher_one() -> None:
    lint = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache", "--no-logo"]
    done = subprocess.run(lint, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("heavy", HEAVY)
def test_importing_interlace_loads_nothing_heavy(heavy: str) -> None:
    code = f"import interlace, sys; sys.exit({heavy!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
