"""A partner's bounds on people hold where a method asks it about single people."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from interlace import Federation, Policy
from interlace.errors import PolicyError
from interlace.methods.catalogue import build_method

SETTINGS: dict[str, dict[str, Any]] = {
    "split": {"epochs": 1},
    "logistic": {"encryption": "none", "max_iter": 2},
    "scorecard": {
        "max_iter": 2,
        "min_iv": 0.0,
        "max_correlation": None,
        "max_vif": None,
        "right_signs": False,
    },
    "boosted_trees": {"encryption": "none", "n_estimators": 1},
    "kmeans": {"clusters": 2, "starts": 1},
    "secure_transfer": {"epochs": 1, "width": 1},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_people_are_counted_and_nobody_is_asked_about_alone(
    federate: Callable[..., Federation], name: str
) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((120, 4))
    y = (x.sum(axis=1) > 0).astype(int)
    options = {"vendor": {"policy": Policy(smallest_group=2)}}
    fed = federate(x, y, [slice(2, 4)], slice(0, 2), options=options)
    model = build_method(name, SETTINGS[name]).fit(fed)
    boundary = fed.engine.parties["vendor"].boundary  # type: ignore[attr-defined]
    before = boundary.people
    model.outputs(fed.view(fed.rows[:7]))
    assert boundary.people == before + 7
    with pytest.raises(PolicyError, match="for 1 people at once: `smallest_group`"):
        model.outputs(fed.view(fed.rows[:1]))
