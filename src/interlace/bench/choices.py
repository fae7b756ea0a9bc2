"""Which hyper-parameters each method may choose from, and the choice by Optuna.

Every method has the same number of trials, judged by people whom the trial does not train on and
who are never tested on. The first trial is a method's defaults, with fewer epochs where cost asks
for it; the others are drawn without replacement. Early stopping is off in all of them: a tenth of
32 people are 3, whose loss says nothing, so the number of epochs is chosen like the rest.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from interlace.assess import evaluate, main_measures
from interlace.bench.material import Draw, Material
from interlace.errors import InterlaceError, JobError
from interlace.federation import Federation
from interlace.methods import Method
from interlace.methods.catalogue import accepted, build_method

Space = Mapping[str, tuple[Any, ...]]

BASELINES = ("active_alone", "shared_only", "mean_imputation", "pooled")
METHODS = (
    "one_shot",
    "few_shot",
    "fedcvt",
    "ss_vfl_c",
    "ss_vfl_i",
    "fed_once",
    "proto_evfl",
    "entity_augmentation",
    "transfer",
    "privileged_distillation",
    "vfedtrans",
    "apc_vfl",
)
# Left out on images for what they cost there: each trains a network on all unaligned images.
TABLES_ONLY = ("ss_vfl_i", "fed_once", "transfer", "apc_vfl")
# What there is to gain from labels of people whom one party alone holds, they gain from.
LABELS_NEEDED = ("mean_imputation", "entity_augmentation")

_RATE = {"optimisation.learning_rate": (1e-3, 3e-3)}
_THRESHOLD = {"semi_supervised.threshold": (None, 0.7)}
_DECAY = {"optimisation.weight_decay": (0.0, 0.1, 1.0)}


def methods_for(material: Material) -> tuple[str, ...]:
    """The rows of the table for a data set, baselines first."""
    left_out = {
        *(TABLES_ONLY if material.dear else ()),
        *(LABELS_NEEDED if material.labels == "overlap" else ()),
    }
    return tuple(name for name in (*BASELINES, *METHODS) if name not in left_out)


def space(method: str, material: Material) -> Space:
    """What may be chosen; the first of each are the defaults, or as near as cost allows."""
    dear = material.dear
    shared = {"epochs": (100, 30)}  # passes over shared people alone
    wide = {"epochs": (20, 10) if dear else (50, 20)}  # over everybody with a label
    local = (10, 5) if dear else (50, 15)  # over all of a party's own rows
    match method:
        case "active_alone" | "mean_imputation" | "entity_augmentation":
            return {**_RATE, **_DECAY, **wide}
        case "shared_only" | "pooled":
            return {**_RATE, **_DECAY, **shared}
        case "one_shot":
            return {
                **_RATE,
                **_DECAY,
                **_THRESHOLD,
                "local_epochs": (60, 30) if dear else (100, 30),
            }
        case "few_shot":
            at_home = {"local_epochs": (60, 30) if dear else (100, 30)}
            return {**_RATE, **_THRESHOLD, **at_home, "floor": (0.8, 0.6)}
        case "fedcvt":
            return {
                **_RATE,
                "epochs": (30, 15) if dear else (100, 30),
                "batch_size": (32, 64),
                "joint_threshold": (0.7, 0.9),
            }
        case "ss_vfl_c" | "ss_vfl_i" | "fed_once":
            return {**_RATE, **_DECAY, **shared, "local_epochs": local}
        case "proto_evfl":
            return {**_RATE, "epochs": (30, 15), "temperature": (0.1, 0.3), "mixing": (0.5, 0.9)}
        case "transfer":
            return {**_RATE, **_DECAY, **shared, "alignment": (0.1, 1.0)}
        case "privileged_distillation":
            return {**_RATE, **_DECAY, **wide, "weight": (1.0, 0.3)}
        case "vfedtrans" | "apc_vfl":
            return {**_RATE, **wide, "local_epochs": local, "weight": (1.0, 0.3)}
    raise JobError(f"the benchmark has no method '{method}'; it has: {', '.join(METHODS)}")


def settings_of(method: str, material: Material, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """All hyper-parameters of a cell, as a job file would have them."""
    fixed: dict[str, Any] = {
        "bottom": material.bottom.model_dump(mode="json"),
        "validation": 0.0,
        "patience": None,
        "refine_epochs": 30 if material.dear else 50,
        "semi_supervised": {"name": "fixmatch"},
    }
    if material.flip is not None:
        fixed["flip"] = material.flip
        fixed["semi_supervised"]["augment"] = {"flip": material.flip}
    if material.dear:  # fewer unaligned images in a step, and more steps
        fixed["semi_supervised"]["ratio"] = 3
        if method in ("one_shot", "few_shot"):
            fixed["local_batch_size"] = 32
    settings = accepted(method, fixed)
    for path, value in chosen.items():
        *outer, last = path.split(".")
        place = settings
        for part in outer:
            place = place.setdefault(part, {})
        place[last] = value
    return settings


def utility(method: Method, judged: Federation) -> float:
    """The first measure of the task: AUC for two classes, accuracy for more."""
    plan = judged.label_plan
    found = evaluate(plan.task, judged.y.numpy(), method.outputs(judged), classes=len(plan.classes))
    return found.metrics[main_measures(plan.task)[0]]


def choose(
    method: str, material: Material, people: Draw, trials: int
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The best hyper-parameters of a method on one draw, and all that was tried.

    Args:
        people: A draw that is judged by validation people.
        trials: How many trials; half of them where training is dear.

    Returns:
        The choice, the first of everything if no trial could be fitted, and what came of each.

    Raises:
        JobError: Optuna is not installed.
    """
    try:
        import optuna
    except ImportError:
        raise JobError(
            "hyper-parameters are chosen by Optuna; install it with `pip install 'interlace[tune]'`"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    options = space(method, material)
    tried: list[dict[str, Any]] = []

    def value(trial: optuna.Trial) -> float:
        chosen = {k: trial.suggest_categorical(k, v) for k, v in options.items()}
        settings = settings_of(method, material, chosen)
        try:
            model = build_method(method, settings)
            model.fit(people.train.fresh(people.train.seed, f"{method}-trial-{trial.number}"))
            found = utility(model, people.judged)
        except InterlaceError as e:
            tried.append({"chosen": chosen, "value": None, "failed": str(e)})
            raise optuna.TrialPruned from None
        finally:
            tidy(people)
        tried.append({"chosen": chosen, "value": found, "failed": None})
        return found

    with warnings.catch_warnings():  # the sampler's interface may change in another release
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.BruteForceSampler(seed=0)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    study.enqueue_trial({k: v[0] for k, v in options.items()})
    study.optimize(value, n_trials=-(-trials // 2) if material.dear else trials)
    good = [t for t in tried if t["failed"] is None]
    best = max(good, key=lambda t: float(t["value"]), default=tried[0])
    return best["chosen"], tried


def tidy(draw: Draw) -> None:
    """Let go of what a training left with the parties."""
    for party in draw.train.engine.parties.values():  # type: ignore[attr-defined]
        party.sides.clear()
