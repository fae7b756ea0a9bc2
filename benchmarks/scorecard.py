"""What a scorecard over two parties costs, and whether it loses anything.

- Cost: 30,000 people of the default-credit table, 13 columns and the label at the active party, 10
  at the partner; CPU seconds of the whole process (all parties) and bytes between the parties up to
  the end of each stage, for the encryption that ``auto`` takes and others. Matching people is not
  part of it.
- Lossless: AUC on held-out people beside scikit-learn's logistic regression on the same WOE columns
  in one table, which has coefficients where the card has whole points.
- Scoring: a million people.

Run it as ``make bench NAME=scorecard``; the last line is JSON. It needs the tables beside the
repository.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch
from _last_line import print_last_line
from encrypted_boosting import CREDIT, DATA, cpu_seconds, federation, grown, tables, timed
from sklearn.linear_model import LogisticRegression as Pooled
from sklearn.metrics import roc_auc_score

from interlace import Federation, Scorecard

WAYS: dict[str, dict[str, Any]] = {
    "auto": {},
    "rlwe-strict": {"encryption": "rlwe-strict"},
    "two_keys, minimax": {"protocol": "two_keys", "sigmoid": "minimax"},
}
MOST = {"auc_gap": 0.002}


class Staged(Scorecard):
    """A scorecard that notes CPU seconds and bytes at the end of each stage."""

    def _note(self, stage: str) -> None:
        passed = self.active_.boundary.ledger.totals().bytes
        self.stages_[stage] = {"cpu": cpu_seconds(), "bytes": passed}

    def _begin(self, *args: Any) -> Any:
        self.stages_: dict[str, dict[str, float]] = {}
        self._note("start")
        return super()._begin(*args)

    def _bin(self, *args: Any) -> Any:
        found = super()._bin(*args)
        self._note("counts, bins, WOE, IV")
        return found

    def _select(self, *args: Any) -> None:
        super()._select(*args)
        self._note("with correlations and VIF")

    def _regress(self, *args: Any) -> None:
        super()._regress(*args)
        self._note("whole")

    def costs(self) -> dict[str, dict[str, float]]:
        """Of each stage, with those before it."""
        start, *rest = self.stages_
        first = self.stages_[start]
        return {s: {k: self.stages_[s][k] - first[k] for k in first} for s in rest}


def woe(view: Federation, card: Scorecard) -> np.ndarray:
    """Both parties' WOE columns in one table; only a benchmark may see them."""
    shop = view.engine.parties["shop"]  # type: ignore[attr-defined]
    theirs = shop.shared_with("bank")[view.positions("shop", view.rows).numpy()]
    return np.concatenate(
        [
            card.card_.woe(view.active.frame, view.rows),
            shop.sides[card.session_].card.woe(shop.frame, theirs),
        ],
        axis=1,
    )


def lossless(figures: dict[str, Any]) -> None:
    train, test = federation(*tables(*CREDIT)).split(0.25)
    card = Scorecard().fit(train)
    pooled = Pooled(C=np.inf, tol=1e-8, max_iter=1000).fit(woe(train, card), train.y)
    held = test.y.numpy()
    ours = roc_auc_score(held, card.outputs(test)[:, 1])
    theirs = roc_auc_score(held, pooled.decision_function(woe(test, card)))
    figures |= {"auc": ours, "auc_scikit_learn": theirs, "auc_gap": abs(ours - theirs)}


def scoring(figures: dict[str, Any]) -> None:
    fed = grown(1_000_000)
    card = Scorecard().fit(fed.view(fed.rows[:30_000]))
    wall, cpu, _ = timed(lambda: card.points(fed))
    figures |= {"score_million_seconds": wall, "score_million_cpu": cpu}


def main() -> None:
    torch.set_num_threads(1)
    if not DATA.is_dir():
        print(json.dumps({"benchmark": "scorecard", "met": False, "why": "no tables"}))
        return
    figures: dict[str, Any] = {}
    fed = federation(*tables(*CREDIT))
    Scorecard().fit(fed)  # compile the kernels, or load them from their cache
    for way, settings in WAYS.items():
        card = Staged(**settings).fit(fed)
        figures[way] = {"stages": card.costs(), "encryption": card.schemes()}
        figures[way]["columns"] = len(card.card_.columns) + len(card.partners_["shop"])
        print(way, figures[way], flush=True)
    lossless(figures)
    scoring(figures)
    missed = [name for name, most in MOST.items() if figures[name] > most]
    print_last_line("scorecard", figures=figures, targets=MOST, missed=missed, met=not missed)


if __name__ == "__main__":
    main()
