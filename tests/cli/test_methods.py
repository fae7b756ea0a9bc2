"""`interlace methods`: what there is, and what can be set."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from click.testing import Result

from interlace.methods.catalogue import CATALOGUE
from interlace.methods.recommend import RULES

Call = Callable[..., Result]


def test_all_methods_are_listed_by_what_they_are_for(call: Call) -> None:
    done = call("methods")
    assert done.exit_code == 0, done.output
    listed = [line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ")]
    assert sorted(listed) == sorted(CATALOGUE)
    assert max(map(len, done.stdout.splitlines())) < 80


@pytest.mark.parametrize("name", [*CATALOGUE, "job", "party", "policy"])
def test_what_can_be_set_fits_into_80_columns(
    call: Call, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interlace.cli.console.out.width", 80)
    done = call("methods", name)
    assert done.exit_code == 0, done.output
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_what_auto_chooses_from_is_told(call: Call) -> None:
    said = call("methods", "auto").output
    assert [rule.method in said and rule.because[:20] in said for rule in RULES] == [True] * 5


def test_a_method_says_what_it_follows_and_what_is_set_inside_a_setting(call: Call) -> None:
    said = call("methods", "few_shot").stdout
    assert "few_shot: Few-shot VFL" in said
    assert "arXiv 2303.16270" in said
    assert "are ours" in said
    assert "floor: number from 0 to 1, by default `0.8`" in said
    assert said.count("learning_rate: number above 0") == said.count("mask: number from 0") == 1
    policy = call("methods", "policy").stdout
    assert "smallest_group: whole number above 0" in policy
    assert "drivers: list of text, required" in policy
    wrong = call("methods", "few_shots")
    assert wrong.exit_code == 2
    assert "did you mean 'few_shot'?" in wrong.stderr
