"""How good predictions are: metrics by name, and curves to draw.

scikit-learn does the mathematics where it has it. What it lacks is here: the expected calibration
error (Naeini et al., AAAI 2015, with bins of equal mass), the lift of the best tenth, and KS.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn import metrics as sk

from interlace.errors import InterlaceError

Task = Literal["binary", "multiclass", "multilabel", "regression"]
Point = tuple[float, float]
Floats = NDArray[np.float64]

BINS = 10
POINTS = 200  # most points of a curve


@dataclass(frozen=True)
class Measure:
    """What a metric is called, which way is better, and between which values it lies."""

    title: str
    higher_is_better: bool
    explanation: str
    low: float | None = None
    high: float | None = None


MEASURES: dict[str, Measure] = {
    "auc": Measure(
        "AUC",
        True,
        "how often a person with the outcome is scored above one without it (0.5 is chance)",
        0,
        1,
    ),
    "gini": Measure("Gini", True, "2 · AUC − 1, as credit officers give it (0 is chance)", -1, 1),
    "ks": Measure(
        "KS", True, "the widest gap between the scores' distributions with and without it", 0, 1
    ),
    "accuracy": Measure("Accuracy", True, "share of people whose prediction is right", 0, 1),
    "balanced_accuracy": Measure(
        "Balanced accuracy", True, "mean over the classes of the share predicted rightly", 0, 1
    ),
    "average_precision": Measure(
        "Average precision", True, "mean precision over all levels of recall", 0, 1
    ),
    "lift": Measure(
        "Lift, top tenth", True, "outcomes among the best-scored tenth against a random tenth", 0
    ),
    "log_loss": Measure("Log-loss", False, "mean of −ln of the probability given to the truth", 0),
    "brier": Measure("Brier score", False, "mean squared error of the probabilities", 0, 1),
    "calibration_error": Measure(
        "Calibration error", False, "mean gap between predicted and actual shares", 0, 1
    ),
    "d2": Measure(
        "D²", True, "share of the deviance that is explained, of which the mean explains 0", None, 1
    ),
    "deviance": Measure("Deviance", False, "mean of the deviance that the model is of", 0),
    "r2": Measure("R²", True, "share of the target's variance that is explained", None, 1),
    "rmse": Measure("RMSE", False, "root of the mean squared error, in the target's unit", 0),
    "distance": Measure(
        "Distance", False, "mean squared distance of a person from the nearest centre", 0
    ),
    "silhouette": Measure(
        "Silhouette",
        True,
        "how much nearer a person is to its own centre than to the next (simplified)",
        0,
        1,
    ),
    "log_likelihood": Measure(
        "Log-likelihood", True, "mean logarithm of the density that the model gives a person"
    ),
    "adjusted_rand": Measure(
        "Adjusted Rand",
        True,
        "agreement of clusters and classes beyond chance (0 is chance)",
        -0.5,
        1,
    ),
    "mae": Measure("Mean error", False, "mean absolute error, in the target's unit", 0),
}

_MAIN: dict[str, tuple[str, ...]] = {
    "binary": ("auc", "ks", "lift", "calibration_error"),
    "multiclass": ("accuracy", "auc", "log_loss", "calibration_error"),
    "multilabel": ("auc", "accuracy", "log_loss", "calibration_error"),
    "regression": ("d2", "deviance", "r2", "rmse", "mae"),
    "clustering": ("distance", "log_likelihood", "silhouette", "adjusted_rand"),
}


def main_measures(task: str) -> tuple[str, ...]:
    """The metrics to show first for a task; the very first is the one to judge by."""
    return _MAIN[task]


@dataclass(frozen=True)
class Utility:
    """What predictions are worth.

    Attributes:
        metrics: Values by name, as in :data:`MEASURES`.
        curves: Points (x, y) to draw, at most 200 each: ``roc`` (false against true positive
            rate), ``lift`` (share of people taken, best-scored first, against lift),
            ``calibration`` (mean prediction against what came true, for tenths of the people).
        omitted: Why a metric that the task has is not there.
    """

    metrics: dict[str, float]
    curves: dict[str, list[Point]]
    omitted: dict[str, str] = field(default_factory=dict)


def evaluate(
    task: str,
    y: NDArray[Any],
    outputs: NDArray[Any],
    classes: int,
    *,
    power: float | None = None,
) -> Utility:
    """Compare predictions with the truth.

    Args:
        task: ``binary``, ``multiclass``, ``multilabel`` or ``regression``.
        y: Class codes of shape (n,), targets of shape (n,), or 0 and 1 of shape (n, labels).
        outputs: Probabilities of shape (n, classes) or (n, labels), or estimates of shape (n,).
        classes: Number of classes or labels; 0 for a regression.
        power: Of a regression, the power of the mean that its variance goes with (1 is Poisson, 2
            gamma): the deviance is Tweedie's of that power. ``None`` leaves deviances out.

    Raises:
        InterlaceError: there is nobody to compare, or the outputs are not finite or not of the
            shape that the task asks for.
    """
    due = (len(y), classes) if classes else (len(y),)
    if outputs.shape != due:
        raise InterlaceError(f"a {task} model gave outputs of shape {outputs.shape}, not {due}")
    if not len(y):
        raise InterlaceError("there is nobody to assess the model on")
    out = outputs.astype(np.float64)
    if not np.isfinite(out).all():
        bad = int((~np.isfinite(out).reshape(len(out), -1).all(1)).sum())
        raise InterlaceError(
            f"the model's outputs for {bad:,} of {len(y):,} people are not finite: training "
            "diverged; lower the learning rate"
        )
    match task:
        case "binary":
            return _binary(y, out[:, 1])
        case "multiclass":
            return _multiclass(y, out)
        case "multilabel":
            return _multilabel(y, out)
        case "regression":
            return _regression(y.astype(np.float64), out, power)
    raise InterlaceError(f"there is no task '{task}'")


def _binary(y: NDArray[Any], p: Floats) -> Utility:
    metrics = {
        "accuracy": float(np.mean((p > 0.5) == y)),
        "log_loss": _log_loss(y, np.stack([1 - p, p], 1)),
        "brier": float(sk.brier_score_loss(y, p, pos_label=1)),
        "calibration_error": _calibration_error(y, p),
    }
    curves = {"calibration": _calibration(y, p)}
    positives = int(y.sum())
    if 0 < positives < len(y):
        false, true, _ = sk.roc_curve(y, p)
        taken = (false * (len(y) - positives) + true * positives) / len(y)
        at = np.linspace(0, 1, 101)[1:]
        auc = float(sk.roc_auc_score(y, p))
        metrics |= {
            "auc": auc,
            "gini": 2 * auc - 1,
            "ks": float((true - false).max()),
            "average_precision": float(sk.average_precision_score(y, p)),
            # Between two thresholds the curve is straight: people of one score count in proportion.
            "lift": float(np.interp(0.1, taken, true) / 0.1),
        }
        curves |= {
            "roc": _thinned(false, true),
            "lift": _points(at, np.interp(at, taken, true) / at),
        }
        return Utility(metrics, curves)
    why = _alike(y, "are all of one class")
    return Utility(
        metrics, curves, dict.fromkeys(("auc", "gini", "ks", "average_precision", "lift"), why)
    )


def _multiclass(y: NDArray[Any], p: Floats) -> Utility:
    best = p.argmax(1)
    right, sure = best == y, p.max(1)
    metrics = {
        "accuracy": float(right.mean()),
        "log_loss": _log_loss(y, p),
        "calibration_error": _calibration_error(right, sure),
    }
    curves = {"calibration": _calibration(right, sure)}
    marks = y[:, None] == np.arange(p.shape[1])
    return _ranked(marks, p, metrics, curves, "classes")


def _multilabel(y: NDArray[Any], p: Floats) -> Utility:
    flat_y, flat_p = y.ravel(), p.ravel()
    metrics = {
        "accuracy": float(((p >= 0.5) == y).all(1).mean()),
        "log_loss": float(
            np.mean([_log_loss(c, np.stack([1 - q, q], 1)) for c, q in _pairs(y, p)])
        ),
        "calibration_error": _calibration_error(flat_y, flat_p),
    }
    return _ranked(y > 0, p, metrics, {"calibration": _calibration(flat_y, flat_p)}, "labels")


def _ranked(
    marks: NDArray[np.bool_],
    p: Floats,
    metrics: dict[str, float],
    curves: dict[str, list[Point]],
    what: str,
) -> Utility:
    """Add what ranks each class or label against the rest, as a mean over all of them."""
    found = marks.sum(0)
    lacking = int(((found == 0) | (found == len(marks))).sum())
    if lacking:
        why = (
            f"{lacking} of {len(found)} {what} occur{'s' if lacking == 1 else ''} among none or "
            f"all of the {len(marks):,} held out"
        )
        return Utility(metrics, curves, {"auc": why, "average_precision": why})
    metrics |= {
        "auc": float(np.mean([sk.roc_auc_score(c, q) for c, q in _pairs(marks, p)])),
        "average_precision": float(sk.average_precision_score(marks, p, average="macro")),
    }
    at = np.linspace(0, 1, 101)
    rates = []
    for c, q in _pairs(marks, p):
        false, true, _ = sk.roc_curve(c, q)
        rates.append(np.interp(at, false, true))
    mean = np.mean(rates, 0)
    curves["roc"] = [(0.0, 0.0), *_points(at, mean)]
    return Utility(metrics, curves)


def _regression(y: Floats, estimate: Floats, power: float | None) -> Utility:
    metrics = {
        "rmse": float(sk.root_mean_squared_error(y, estimate)),
        "mae": float(sk.mean_absolute_error(y, estimate)),
    }
    curves, omitted = {"calibration": _calibration(y, estimate)}, {}
    alike = len(y) < 2 or np.ptp(y) == 0
    if alike:
        omitted["r2"] = _alike(y, "all have the same target")
    else:
        metrics["r2"] = float(sk.r2_score(y, estimate))
    if power is not None:
        try:
            metrics["deviance"] = float(sk.mean_tweedie_deviance(y, estimate, power=power))
            if alike:
                omitted["d2"] = omitted["r2"]
            else:
                metrics["d2"] = float(sk.d2_tweedie_score(y, estimate, power=power))
        except ValueError:  # its text says the same in scikit-learn's words
            why = "a prediction or a target is not of those that such a deviance is defined for"
            omitted |= {"deviance": why, "d2": why}
    return Utility(metrics, curves, omitted)


def _alike(y: NDArray[Any], how: str) -> str:
    """Why nothing can be said of people who are all alike."""
    return f"the {len(y):,} people held out {how}" if len(y) > 1 else "one person alone is held out"


def _pairs(y: NDArray[Any], p: Floats) -> list[tuple[NDArray[Any], Floats]]:
    return [(y[:, i], p[:, i]) for i in range(p.shape[1])]


def _log_loss(y: NDArray[Any], p: Floats) -> float:
    return float(sk.log_loss(y, p / p.sum(1, keepdims=True), labels=list(range(p.shape[1]))))


def _bins(predicted: Floats) -> list[NDArray[np.int64]]:
    """People in at most ten bins of equal mass by prediction; equal predictions stay together."""
    edges = np.quantile(predicted, np.linspace(0, 1, BINS + 1)[1:-1])
    bin_of = np.searchsorted(edges, predicted, side="left")
    return [np.flatnonzero(bin_of == b) for b in np.unique(bin_of)]


def _calibration(actual: NDArray[Any], predicted: Floats) -> list[Point]:
    bins = _bins(predicted)
    return [(float(predicted[b].mean()), float(actual[b].mean())) for b in bins]


def _calibration_error(actual: NDArray[Any], predicted: Floats) -> float:
    gaps = [abs(float(predicted[b].mean() - actual[b].mean())) * len(b) for b in _bins(predicted)]
    return sum(gaps) / len(predicted)


def _thinned(x: Floats, y: Floats) -> list[Point]:
    """A rising curve at no more than 200 points, evenly spaced along it."""
    if len(x) <= POINTS:
        return _points(x, y)
    along = x + y
    at = np.linspace(along[0], along[-1], POINTS)
    return _points(np.interp(at, along, x), np.interp(at, along, y))


def _points(x: Floats, y: Floats) -> list[Point]:
    return [(float(a), float(b)) for a, b in zip(x, y, strict=True)]
