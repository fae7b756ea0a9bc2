"""Settings in words, as `interlace methods` and the pages have them."""

from __future__ import annotations

import inspect

import pytest
from pydantic import BaseModel

from interlace.boundary import Policy
from interlace.methods.catalogue import CATALOGUE, PURPOSES
from interlace.methods.settings import Setting, settings_of, told_of
from interlace.models import Optimisation

OTHERS = {entry.make.__name__: entry.make for entry in CATALOGUE.values()}


def everything(settings: list[Setting]) -> list[Setting]:
    """These settings, and those of the models that they hold."""
    inner = [everything(settings_of(model)) for one in settings for model in one.holds]
    return sum(inner, settings)


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_setting_of_every_method_has_a_type_and_a_meaning(name: str) -> None:
    make = CATALOGUE[name].make
    found = settings_of(make, OTHERS)
    assert [one.name for one in found] == list(inspect.signature(make).parameters)
    for one in everything(found):
        assert one.meaning, one.name
        assert not one.meaning.startswith("As for"), one.meaning
        assert ":class:" not in one.meaning
        assert one.kind not in ("any", ""), one.name


def test_every_method_stands_once_under_what_it_is_for() -> None:
    listed = [name for lines in PURPOSES.values() for name in lines]
    assert sorted(listed) == sorted(CATALOGUE)
    assert all(len(line) <= 54 for lines in PURPOSES.values() for line in lines.values())
    baselines = [name for name, entry in CATALOGUE.items() if entry.role != "method"]
    assert sorted(PURPOSES["Baselines to compare with"]) == sorted(baselines)


def test_types_and_defaults_in_words() -> None:
    few_shot = {one.name: one for one in settings_of(CATALOGUE["few_shot"].make, OTHERS)}
    assert few_shot["floor"][1:3] == ("number from 0 to 1", "`0.8`")
    assert few_shot["epochs"][1:3] == ("whole number above 0", "`100`")
    assert few_shot["agreement"].kind == "`hard` or `soft`"
    assert few_shot["top"].kind == "list of whole numbers above 0 or own module"
    assert few_shot["batch_size"].default == "–"
    assert few_shot["optimisation"].holds == (Optimisation,)
    assert few_shot["epochs"].meaning.startswith("Most passes")  # said of one-shot VFL
    trees = {one.name: one for one in settings_of(CATALOGUE["boosted_trees"].make, OTHERS)}
    assert trees["top_rate"].meaning == "See `sampling_method`."
    forest = {one.name: one for one in settings_of(CATALOGUE["random_forest"].make, OTHERS)}
    assert "fastest" in forest["encryption"].meaning  # said of boosted trees
    policy = {one.name: one for one in settings_of(Policy)}
    assert policy["max_bytes"].kind == "whole number above 0"
    assert all(one.meaning for one in policy.values())


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("split", "arXiv 2211.12814"),  # said of the class
        ("scaffold", "ICML 2020"),
        ("boosted_trees", "SecureBoost"),  # of the module
        ("few_shot", "arXiv 2303.16270"),  # at its beginning
        ("apc_vfl", "arXiv 2410.17648"),  # in its list
        ("fed_once", "authors' code"),
    ],
)
def test_where_a_method_comes_from_is_said(name: str, source: str) -> None:
    assert any(source in text for text in told_of(CATALOGUE[name].make)[-2:])


def test_what_is_no_model_and_no_method_of_the_papers_has_no_source() -> None:
    class Own(BaseModel):
        """Something.

        Args:
            one: What :class:`~interlace.methods.SplitVFL` and ``two`` have.
        """

        one: int = 3

    assert settings_of(Own) == [
        Setting("one", "whole number", "`3`", "What `SplitVFL` and `two` have.")
    ]
