"""How the cost of boosted trees grows: linearly in rows, features and trees, encrypted or not.

The credit table's rows and columns again and again, a little noise apart, so that no two are equal.
CPU seconds of all parties in one process, matching people left out; each exponent is the slope of a
straight line through the logarithms of costs and sizes, 1 where cost grows as size does.

- Rows: ten thousand to a million; depth 5 in clear, depth 3 encrypted (`rlwe-fast`).
- Features: 23 to 92, on thirty thousand rows; trees: 5 to 40, on the same.
- Scoring: a hundred thousand people and a million, twenty trees.

Run it as ``make bench NAME=boosting_growth``; the last line is JSON. It needs the tables beside the
repository.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from _last_line import print_last_line
from encrypted_boosting import DATA, SPEED, grown, timed

from interlace import Federation
from interlace.methods.vertical.boosting import BoostedTrees

ROWS = (10_000, 30_000, 100_000, 300_000, 1_000_000)
MOST = 1.1  # an exponent that still counts as linear
SECONDS = 60.0  # a million people scored


def exponent(costs: Mapping[int, float]) -> float:
    """The slope of log cost over log size."""
    return float(np.polyfit(np.log(list(costs)), np.log(list(costs.values())), 1)[0])


def trained(fed: Federation, encryption: Any, trees: int, **options: Any) -> float:
    """CPU seconds of a training."""
    model = BoostedTrees(n_estimators=trees, encryption=encryption, **{**SPEED, **options})
    return timed(lambda: model.fit(fed))[1]


def main() -> None:
    torch.set_num_threads(1)
    if not DATA.is_dir():
        print(json.dumps({"benchmark": "boosting_growth", "met": False, "why": "no tables"}))
        return
    plain, sealed, scored = {}, {}, {}
    wall = 0.0
    for encryption in ("none", "rlwe-fast"):  # compile the kernels, or load them from their cache
        trained(grown(1000), encryption, 1)
    for rows in ROWS:
        fed = grown(rows)
        plain[rows] = trained(fed, "none", 5) / 5
        sealed[rows] = trained(fed, "rlwe-fast", 1, max_depth=3)
        if rows in ROWS[2::2]:
            few = fed.view(fed.rows[:30_000])
            model = BoostedTrees(n_estimators=20, encryption="none", **SPEED).fit(few)
            wall, scored[rows], _ = timed(lambda m=model, f=fed: m.predict_proba(f))
    features = {23 * n: trained(grown(30_000, n), "none", 10) / 10 for n in (1, 2, 4)}
    fed = grown(30_000)
    trees = {n: trained(fed, "none", n) for n in (5, 10, 20, 40)}
    measured = {
        "plain_by_rows": plain,
        "encrypted_by_rows": sealed,
        "plain_by_features": features,
        "plain_by_trees": trees,
        "scoring_by_rows": scored,
    }
    slopes = {name: exponent(costs) for name, costs in measured.items()}
    print_last_line(
        "boosting_growth",
        cpu_seconds=measured,
        exponents=slopes,
        score_million_seconds=wall,
        targets={"exponents": MOST, "score_million_seconds": SECONDS},
        met=max(slopes.values()) <= MOST and wall < SECONDS,
    )


if __name__ == "__main__":
    main()
