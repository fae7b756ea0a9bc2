"""The files of `deploy/` parse, and call verbs that exist. No daemon runs them here."""

from __future__ import annotations

import configparser
import tomllib
from pathlib import Path

import typer
import yaml

from interlace.cli import app

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


def exists(command: list[str]) -> bool:
    """Whether the program knows a command line's verb and its options."""
    group = typer.main.get_command(app)
    context = typer.Context(group)
    while command and not command[0].startswith("-"):
        found = group.get_command(context, command.pop(0))  # type: ignore[attr-defined]
        if found is None:
            return False
        group = found
    options = {option for parameter in group.params for option in parameter.opts}
    options |= {option for parameter in group.params for option in parameter.secondary_opts}
    return set(command) <= options


def test_the_unit_starts_a_site() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(DEPLOY / "interlace-site@.service")
    service = unit["Service"]
    for key in ("ExecStartPre", "ExecStart"):
        program, *command = service[key].split()
        assert program == "/opt/interlace/bin/interlace"
        assert exists(command), service[key]
    assert service["WorkingDirectory"] in service["ReadWritePaths"]


def test_the_containers_run_a_site_as_nobody_in_particular() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    site, host = compose["services"]["site"], compose["services"]["host"]
    assert exists(site["healthcheck"]["test"][2:])
    assert "USER interlace" in dockerfile
    assert site["cap_drop"] == ["ALL"]
    assert "ports" not in site  # a site only dials out
    assert host["ports"] == ["${PORT:-8002}:8002"]
    assert (DEPLOY.parent / site["build"]["dockerfile"]).exists()


def test_an_image_is_made_of_the_package_and_nothing_beside_it() -> None:
    first, *let_in = [
        line
        for line in (DEPLOY.parent / ".dockerignore").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    assert first == "*"
    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["project"]
    needed = {"src", "pyproject.toml", project["readme"], *project["license-files"]}
    assert {line.removeprefix("!") for line in let_in} == needed
