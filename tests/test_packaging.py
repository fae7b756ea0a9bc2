"""What the code imports is what the package asks for, and each dependency is accounted for."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FOR_DEVELOPERS = {"all", "bench", "dev", "docs", "test"}
BEHIND_OTHERS = {"pyarrow"}  # polars imports it, for pandas tables and for what DuckDB selects


def _names(requirements: list[str]) -> set[str]:
    return {_normal(re.split(r"[\[<>=!~; ]", r)[0]) for r in requirements}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


CORE = _names(PROJECT["dependencies"])
EXTRAS = {
    name
    for extra, requirements in PROJECT["optional-dependencies"].items()
    if extra not in FOR_DEVELOPERS
    for name in _names(requirements)
}

ABSENT = {"heu": ["sf-heu"]}  # no wheels for some Pythons, so the environment may lack it


def _imports(tree: ast.AST, *, lazy: bool = False) -> Iterator[tuple[str, bool]]:
    """Top-level packages imported at run time, and whether only when a function is called."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name.partition(".")[0], lazy) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0], lazy
        inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield from _imports(node, lazy=lazy or inside)


def _third_party() -> set[tuple[str, bool]]:
    """Distributions that the package imports."""
    owners = {**ABSENT, **packages_distributions()}
    found = set()
    for file in (ROOT / "src").rglob("*.py"):
        for module, lazy in _imports(ast.parse(file.read_text())):
            if module not in sys.stdlib_module_names and module not in ("interlace", "__future__"):
                found |= {(_normal(owner), lazy) for owner in owners.get(module, [module])}
    return found


def test_every_import_is_a_declared_dependency() -> None:
    undeclared = {name for name, _ in _third_party()} - CORE - EXTRAS
    assert not undeclared


def test_what_only_an_extra_brings_is_imported_where_it_is_needed() -> None:
    eager = {name for name, lazy in _third_party() if not lazy} & (EXTRAS - CORE)
    assert not eager


def test_every_dependency_is_used() -> None:
    unused = (CORE | EXTRAS) - BEHIND_OTHERS - {name for name, _ in _third_party()}
    assert not unused


def test_every_dependency_has_its_line_in_the_documentation() -> None:
    page = (ROOT / "docs" / "dependencies.md").read_text()
    rows = re.findall(r"^\|(.*)\|$", page, flags=re.MULTILINE)
    cells = {_normal(cell.strip()) for row in rows for cell in row.split("|")}
    missing = (CORE | EXTRAS) - cells
    assert not missing
