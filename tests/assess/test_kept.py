"""How right given labels are: the truth as a table, and what is counted."""

from __future__ import annotations

from types import SimpleNamespace

import polars as pl
import pytest
import torch

from interlace import Federation, Party
from interlace.assess import Rightness, rightness, true_classes
from interlace.errors import DataError
from interlace.methods.kept import Kept, kept_from, kept_state


@pytest.fixture
def fed() -> Federation:
    """A bank of five with labels for two, and a shop that shares b, d and has two others."""
    bank = pl.DataFrame({"id": list("abcde"), "n": range(5), "y": [None, "u", None, "v", None]})
    shop = pl.DataFrame({"id": list("xbyd"), "m": range(4)})
    made = Federation.simulate([Party("bank", bank, label="y"), Party("shop", shop)])
    made.align()
    return made


def truth(**labels: str) -> Party:
    table = pl.DataFrame({"id": list(labels), "y": list(labels.values())})
    return Party("truth", table, label="y", columns=[])


def test_the_truth_is_found_by_id(fed: Federation) -> None:
    parties = list(fed.engine.parties.values())  # type: ignore[attr-defined]
    found = true_classes(truth(a="u", c="v", x="v", nobody="u"), parties, fed.label_plan)
    assert found["bank"].tolist() == [0, -1, 1, -1, -1]
    assert found["shop"].tolist() == [1, -1, -1, -1]
    with pytest.raises(DataError, match="class"):
        true_classes(truth(a="w"), parties, fed.label_plan)


def test_rows_are_counted_where_they_stand(fed: Federation) -> None:
    """At the shop, positions: those of b and d come first, then x and y in its table's order."""
    kept = {
        "bank": Kept(3, torch.tensor([0, 2]), torch.tensor([0, 0])),
        "shop": Kept(2, torch.tensor([2, 3]), torch.tensor([1, 0])),
    }
    model = SimpleNamespace(kept_=kept, session_=None)
    parties = list(fed.engine.parties.values())  # type: ignore[attr-defined]
    known = true_classes(truth(a="u", c="v", x="v"), parties, fed.label_plan)
    found = rightness(model, fed, known)  # type: ignore[arg-type]
    assert found == {"bank": Rightness(3, 2, 2, 1), "shop": Rightness(2, 2, 1, 1)}
    assert [f.precision for f in found.values()] == [0.5, 1.0]
    assert rightness(model, fed)["shop"] == Rightness(2, 2, 0, 0)  # type: ignore[arg-type]


def test_a_method_that_keeps_nothing_has_no_line(fed: Federation) -> None:
    none = SimpleNamespace(kept_={"bank": Kept.nothing(0), "shop": Kept.nothing(2)})
    assert rightness(none, fed) == {"shop": Rightness(2, 0, 0, 0)}  # type: ignore[arg-type]
    assert rightness(SimpleNamespace(), fed) == {}  # type: ignore[arg-type]


def test_what_was_kept_goes_into_a_state_and_back() -> None:
    kept = {"b": Kept(3, torch.tensor([2]), torch.tensor([1])), "a": Kept.nothing(4)}
    again = kept_from(kept_state(kept))
    assert list(again) == ["b", "a"]
    assert [k.of for k in again.values()] == [3, 4]
    assert torch.equal(again["b"].rows, kept["b"].rows)
