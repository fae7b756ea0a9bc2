"""The examples run as they stand."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    """A copy, so that what a run leaves behind is not left in the repository."""
    return Path(shutil.copytree(EXAMPLES, tmp_path / "examples"))


def _names(pattern: str) -> list[str]:
    return sorted(str(p.relative_to(EXAMPLES)) for p in EXAMPLES.rglob(pattern))


@pytest.mark.parametrize("name", _names("*.ipynb"))
def test_notebook(examples: Path, name: str) -> None:
    notebook = nbformat.read(examples / name, as_version=4)
    NotebookClient(
        notebook, timeout=300, resources={"metadata": {"path": str((examples / name).parent)}}
    ).execute()


def test_the_insurance_case_takes_under_30_lines() -> None:
    cells = nbformat.read(EXAMPLES / "insurance.ipynb", as_version=4).cells
    code = "\n".join(c.source for c in cells if c.cell_type == "code")
    statements = [n for n in ast.parse(code).body if not isinstance(n, ast.Import | ast.ImportFrom)]
    lines = sum(n.end_lineno - n.lineno + 1 for n in statements if n.end_lineno)
    assert lines < 30


@pytest.mark.parametrize("name", _names("*.py"))
def test_script(examples: Path, name: str) -> None:
    file = examples / name
    done = subprocess.run(
        [sys.executable, file.name], cwd=file.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("name", _names("job.yaml"))
def test_job(examples: Path, name: str) -> None:
    file = examples / name
    command = [str(Path(sys.executable).with_name("interlace")), "run", file.name]
    done = subprocess.run(command, cwd=file.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
