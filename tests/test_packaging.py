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

# Modules that are of an extra as a whole: they import it at once, and nobody imports them at once.
OF_AN_EXTRA = {
    "interlace.engines.flare": "nvflare",
    "interlace.sites.hub": "nvflare",
    "interlace.sites.job": "nvflare",
    "interlace.sites.submission": "nvflare",
}

ABSENT = {"heu": ["sf-heu"]}  # no wheels for some Pythons, so the environment may lack it


def _imports(tree: ast.AST, *, lazy: bool = False) -> Iterator[tuple[str, bool]]:
    """Modules imported at run time, and whether only when a function is called."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, lazy) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((f"{node.module}.{alias.name}", lazy) for alias in node.names)
            yield node.module or "", lazy
        inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield from _imports(node, lazy=lazy or inside)


def _third_party() -> set[tuple[str, bool]]:
    """Distributions that the package imports."""
    owners = {**ABSENT, **packages_distributions()}
    found = set()
    for file in (ROOT / "src").rglob("*.py"):
        own = OF_AN_EXTRA.get(_module(file))
        for name, lazy in _imports(ast.parse(file.read_text())):
            module = name.partition(".")[0]
            lazy = lazy or module == own
            if module not in sys.stdlib_module_names and module not in ("interlace", "__future__"):
                found |= {(_normal(owner), lazy) for owner in owners.get(module, [module])}
    return found


def _module(file: Path) -> str:
    return ".".join(file.relative_to(ROOT / "src").with_suffix("").parts)


def test_every_import_is_a_declared_dependency() -> None:
    undeclared = {name for name, _ in _third_party()} - CORE - EXTRAS
    assert not undeclared


def test_what_only_an_extra_brings_is_imported_where_it_is_needed() -> None:
    eager = {name for name, lazy in _third_party() if not lazy} & (EXTRAS - CORE)
    assert not eager


def test_what_is_of_an_extra_is_imported_by_nobody_at_once() -> None:
    files = [f for f in (ROOT / "src").rglob("*.py") if _module(f) not in OF_AN_EXTRA]
    found = {
        (_module(f), name)
        for f in files
        for name, lazy in _imports(ast.parse(f.read_text()))
        if name in OF_AN_EXTRA and not lazy
    }
    assert not found


def test_every_dependency_is_used() -> None:
    unused = (CORE | EXTRAS) - BEHIND_OTHERS - {name for name, _ in _third_party()}
    assert not unused


def test_every_dependency_has_its_line_in_the_documentation() -> None:
    page = (ROOT / "docs" / "dependencies.md").read_text()
    rows = re.findall(r"^\|(.*)\|$", page, flags=re.MULTILINE)
    cells = {_normal(cell.strip()) for row in rows for cell in row.split("|")}
    missing = (CORE | EXTRAS) - cells
    assert not missing
