"""The table in ``docs/methods/index.md`` that says what each method can do: every cell is tried."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from interlace import Federation, Party
from interlace.errors import InterlaceError, JobError
from interlace.methods.catalogue import CATALOGUE, accepted, build_method
from interlace.methods.recommend import FOR_SOME
from interlace.methods.vertical.joint import JointModel

PAGE = Path(__file__).parents[3] / "docs" / "methods" / "index.md"
QUICK = {
    "epochs": 3,
    "local_epochs": 5,
    "optimisation": {"learning_rate": 0.02},
    "refine_epochs": 1,
    "semi_supervised": "pseudo_labels",
    "bottom": {"hidden": [4], "width": 4},
    "top": [4],
}
SHARED, ALONE = 24, 8


def federation(
    label: str = "binary",
    partners: int = 1,
    *,
    images: bool = False,
    own: bool = True,
    all_at: int = SHARED,
    stir: bool = False,
    folder: Path | None = None,
) -> Federation:
    """People at a bank, with their label, and at its partners, and some more at each.

    Args:
        label: The task.
        partners: How many; each has columns of its own.
        images: Whether columns are one image.
        own: Whether the bank has columns.
        all_at: How many of those every partner holds; one partner at most lacks each other.
        stir: Shuffle each column of the partners among people whom the bank does not hold, which
            leaves its mean and spread as they are.
    """
    rng = np.random.default_rng(0)
    people = SHARED + ALONE * (partners + 1)
    x = rng.standard_normal((people, 3 * (partners + 1)))
    y: Any = {
        "binary": np.arange(people) % 2,
        "multiclass": np.arange(people) % 3,
        "regression": x.sum(1),
        "multilabel": [[["a"], ["b"], ["a", "b"], []][i % 4] for i in range(people)],
    }[label]
    pictures = rng.random((partners + 1, people, 6, 6)).astype(np.float32)

    def table(k: int, rows: np.ndarray) -> pl.DataFrame:
        ids = pl.DataFrame({"id": [f"p{i}" for i in rows]})
        if images:
            kind = pl.Array(pl.Float32, (6, 6))
            return ids.with_columns(image=pl.Series(list(pictures[k][rows]), dtype=kind))
        columns = {f"x{j}": x[rows, j] for j in range(3 * k, 3 * k + 3)}
        return ids.with_columns(**columns)

    if stir:
        for j in range(3, x.shape[1]):
            x[SHARED + ALONE :, j] = rng.permutation(x[SHARED + ALONE :, j])
    mine = np.arange(SHARED + ALONE)
    bank = table(0, mine) if own else table(0, mine).select("id")
    bank = bank.with_columns(y=pl.Series([y[i] for i in mine]))
    parties = [Party("bank", bank, label="y")]
    for k in range(1, partners + 1):
        shared = np.arange(SHARED)
        shared = shared[(shared < all_at) | (shared % partners != k - 1)]
        alone = np.arange(SHARED + k * ALONE, SHARED + (k + 1) * ALONE)
        parties.append(Party(f"partner{k}", table(k, np.r_[shared, alone])))
    return Federation.simulate(parties, wire=True, folder=folder)


def learn_and_score(name: str, fed: Federation, *, some: bool = False) -> np.ndarray:
    model = build_method(name, accepted(name, QUICK)).fit(fed)
    outputs = model.outputs(fed.shared(partial=some))
    assert np.isfinite(outputs).all()
    return outputs


def own_rows(name: str) -> None:
    """Partners' people whom the bank does not hold have a say in what is learnt."""
    outputs = [learn_and_score(name, federation(stir=stir)) for stir in (False, True)]
    if np.abs(outputs[0] - outputs[1]).max() < 1e-5:
        raise InterlaceError("what a partner knows of its other people changes nothing; no way out")


TRIED: dict[str, Callable[[str], Any]] = {
    "two classes": lambda name: learn_and_score(name, federation("binary")),
    "more": lambda name: learn_and_score(name, federation("multiclass")),
    "quantity": lambda name: learn_and_score(name, federation("regression")),
    "several labels": lambda name: learn_and_score(name, federation("multilabel")),
    "3 parties": lambda name: learn_and_score(name, federation(partners=2)),
    "images": lambda name: learn_and_score(name, federation(images=True)),
    "label alone": lambda name: learn_and_score(name, federation(partners=2, own=False)),
    "partners' other rows": own_rows,
    "a view missing": lambda name: learn_and_score(
        name, federation(partners=3, all_at=12), some=True
    ),
    "nobody at all": lambda name: learn_and_score(
        name, federation(partners=3, all_at=0), some=True
    ),
}


def cells() -> list[tuple[str, str, bool]]:
    """The table's cells: method, what, and whether it can."""
    lines = PAGE.read_text().partition("## What each can do")[2].splitlines()
    rows = [re.split(r"\s*\|\s*", line.strip("| ")) for line in lines if line.startswith("|")]
    heads, rows = rows[0], rows[2:]
    assert heads[1:] == list(TRIED)
    assert {cell for row in rows for cell in row[1:]} == {"yes", "–"}
    return [
        (row[0].strip("`"), what, cell == "yes")
        for row in rows
        for what, cell in zip(heads[1:], row[1:], strict=True)
    ]


def test_the_table_has_every_method_with_networks() -> None:
    names = {name for name, _, _ in cells()}
    assert names >= {
        name
        for name, entry in CATALOGUE.items()
        if entry.role == "method" and issubclass(entry.make, JointModel)
    }


def test_the_advice_for_parties_none_of_whose_people_all_hold() -> None:
    assert {name for name, what, can in cells() if can and what == "nobody at all"} == set(FOR_SOME)


@pytest.mark.parametrize(("name", "what", "can"), cells())
def test_it_can_or_says_why_not(name: str, what: str, can: bool) -> None:
    if can:
        TRIED[what](name)
        return
    with pytest.raises(InterlaceError) as refused:
        TRIED[what](name)
    said = str(refused.value)
    assert re.search(r"take|use|leave|at least|way out", said, re.I), said


@pytest.mark.parametrize(
    "name", [name for name, what, can in cells() if can and what == "a view missing"]
)
def test_a_score_does_not_hang_on_who_else_is_scored(name: str) -> None:
    fed = federation("multiclass", partners=3, all_at=12)
    model = build_method(name, accepted(name, QUICK)).fit(fed)
    everybody = fed.shared(partial=True)
    held = fed.alignment.holders[everybody.rows].all(1)
    some = np.flatnonzero(~held)[::2]
    assert 0 < len(some) < len(everybody.rows)
    beside = model.outputs(everybody)[some]
    np.testing.assert_allclose(
        model.outputs(fed.view(everybody.rows[some])), beside, rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("name", sorted({name for name, _, _ in cells()} - {"secure_transfer"}))
def test_labels_of_people_outside_of_the_view_have_no_say(name: str) -> None:
    outputs = []
    for flipped in (False, True):
        fed = federation()
        view = np.arange(SHARED + ALONE - 4)  # all but some whom the bank alone holds
        if flipped:
            y = fed.active.frame["y"].to_numpy().copy()
            y[view[-1] + 1 :] = 1 - y[view[-1] + 1 :]
            fed.active.frame = fed.active.frame.with_columns(y=pl.Series(y))
        model = build_method(name, accepted(name, QUICK)).fit(fed.view(view))
        outputs.append(model.outputs(fed.shared()))
    np.testing.assert_array_equal(*outputs)


IMPOSSIBLE: list[tuple[str, dict[str, Any]]] = [
    ("one_shot", {"validation": 1.5}),
    ("one_shot", {"batch_size": 0}),
    ("one_shot", {"epochs": -1}),
    ("one_shot", {"dropout": 2.0}),
    ("one_shot", {"local_epochs": 10**7}),
    ("few_shot", {"floor": 7.0}),
    ("few_shot", {"refine_epochs": -1}),
    ("fedcvt", {"temperature": 0.0}),
    ("proto_evfl", {"temperature": 0.0}),
    ("proto_evfl", {"share": (0.5, 3.0)}),
    ("fed_once", {"every": 0}),
    ("fed_once", {"local_batch_size": 1}),
    ("ss_vfl_i", {"corruption": 0.0}),
    ("ss_vfl_c", {"momentum": 1.0}),
    ("transfer", {"alignment": -5.0}),
    ("vfedtrans", {"weight": -1.0}),
    ("privileged_distillation", {"temperature": 0.0}),
]


@pytest.mark.parametrize(("name", "setting"), IMPOSSIBLE)
def test_an_impossible_setting_is_refused_before_a_partner_is_asked(
    name: str, setting: dict[str, Any]
) -> None:
    fed = federation()
    fed.align()
    before = len(list(fed.active.boundary.ledger.entries()))
    method = CATALOGUE[name].make(**setting)
    with pytest.raises(JobError, match=rf"`{next(iter(setting))}`"):
        method.fit(fed)
    assert len(list(fed.active.boundary.ledger.entries())) == before


@pytest.mark.parametrize("name", ["split", "proto_evfl", "entity_augmentation", "fedcvt"])
def test_a_killed_training_without_judges_goes_on_to_its_last_epoch(
    name: str, tmp_path: Path
) -> None:
    def stop(epoch: Any) -> None:
        if epoch.number == 2:
            raise KeyboardInterrupt

    settings = accepted(name, QUICK | {"epochs": 4, "validation": 0.0, "patience": 1})
    outputs = []
    for folder, on_epoch in (("whole", None), ("killed", stop)):
        if on_epoch:
            with pytest.raises(KeyboardInterrupt):
                build_method(name, settings).fit(
                    federation(folder=tmp_path / folder), checkpoint="run", on_epoch=on_epoch
                )
        fed = federation(folder=tmp_path / folder)
        model = build_method(name, settings).fit(fed, checkpoint="run")
        assert [epoch.number for epoch in model.history_] == [1, 2, 3, 4]
        outputs.append(model.outputs(fed.shared()))
    np.testing.assert_array_equal(*outputs)
