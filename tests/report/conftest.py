"""Runs as a report may find them: made up, with metrics and curves taken by `evaluate`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from interlace.assess import Utility, evaluate
from interlace.job.results import (
    Apart,
    EpochResult,
    FitResult,
    Flow,
    Machine,
    ModelResult,
    PartyResult,
    Results,
)

MACHINE = Machine(
    interlace="0.1.0", python="3.12.4", torch="2.13.0", platform="Linux x86_64", cores=2
)
MODELS = {
    "split": ("Split learning", "method", "Each party embeds its own columns; the active party "
              "trains a top model over the embeddings of the shared people."),
    "active_alone": ("Active party alone", "baseline", "The active party's own columns and all of "
                     "its labelled people; nobody else is asked."),
    "mean_imputation": ("Missing views filled in", "baseline", "Missing columns are filled with "
                        "their mean or most frequent value."),
    "pooled": ("Pooled", "in one place", "All columns of the shared people in one table."),
}  # fmt: skip


def history(rng: np.random.Generator, floor: float, epochs: int) -> list[EpochResult]:
    t = np.arange(1, epochs + 1)
    loss = floor + 0.5 * np.exp(-t / 5) + rng.normal(0, 0.006, epochs)
    validation = floor + 0.07 + 0.45 * np.exp(-t / 4) + 0.004 * t + rng.normal(0, 0.01, epochs)
    return [
        EpochResult(number=int(n), loss=float(a), validation=float(b), seconds=0.4)
        for n, a, b in zip(t, loss, validation, strict=True)
    ]


@cache
def fit(task: str, strength: float, seed: int, classes: int, federated: bool) -> FitResult:
    rng = np.random.default_rng([seed, int(strength * 1000)])
    truth = np.random.default_rng(seed)  # one set of held-out people for all models of a seed
    n = 1455
    z = truth.normal(size=n)
    seen = strength * z + np.sqrt(1 - strength**2) * rng.normal(size=n)
    if task == "binary":
        y = (z + truth.normal(0, 0.6, n) > 1.75).astype(np.int64)
        p = 1 / (1 + np.exp(-(2.2 * strength * seen - 3.2)))
        out = np.stack([1 - p, p], 1)
    elif task == "multiclass":
        y = truth.integers(0, classes, n)
        logits = rng.normal(size=(n, classes))
        logits[np.arange(n), y] += 4 * strength
        out = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    elif task == "multilabel":
        y = (truth.random((n, classes)) < 0.3).astype(np.float32)
        out = 1 / (1 + np.exp(-(3 * strength * (y - 0.5) + rng.normal(size=y.shape))))
    else:
        out = 12_000 + 4_000 * strength * seen
        return _fit(evaluate(task, 12_000 + 4_000 * z, out, 0), rng, strength, seed, federated)
    return _fit(evaluate(task, y, out, classes), rng, strength, seed, federated)


def _fit(
    utility: Utility, rng: np.random.Generator, strength: float, seed: int, federated: bool
) -> FitResult:
    return FitResult(
        seed=seed,
        metrics=utility.metrics,
        curves=utility.curves,
        history=history(rng, 0.35 - 0.2 * strength, 14 + 3 * (seed % 3)),
        seconds=8.3 * (3 if federated else 1),
        rounds=1170 if federated else 0,
        messages=4720 if federated else 0,
        bytes=76_800_000 if federated else 0,
    )


def models(
    task: str, seeds: list[int], strengths: dict[str, float], classes: int
) -> list[ModelResult]:
    return [
        ModelResult(
            name=name,
            title=MODELS[name][0],
            role=MODELS[name][1],  # type: ignore[arg-type]
            explanation=MODELS[name][2],
            fits=[
                fit(task, s, seed, classes, name == "split").model_copy(deep=True) for seed in seeds
            ],
        )
        for name, s in strengths.items()
    ]


def flows(active: str, passive: list[str], scale: int = 1) -> list[Flow]:
    batch, quarter = 1170 * scale, "quantise 8 bit"
    steps: list[tuple[str, str, bool, int, int, int, str, str, str]] = [
        ("dh.begin", "control", True, 1, 0, 190, "", "json", ""),
        ("dh.begin", "control", False, 1, 0, 120, "", "json", ""),
        ("dh.reblind", "blinded ids", True, 2, 186_304, 186_600, "4096×32", "uint8", ""),
        ("dh.reblind", "blinded ids", False, 2, 186_304, 186_600, "4096×32", "uint8", ""),
        ("dh.tokens", "control", True, 2, 0, 260, "", "json", ""),
        ("dh.tokens", "blinded ids", False, 2, 69_864, 70_100, "4096×12", "uint8", ""),
        ("dh.keep", "row selection", True, 1, 32_000, 32_180, "4000", "int64", ""),
        ("split.begin", "row selection", True, 1, 8_000, 8_100, "1000", "int64", ""),
        ("split.begin", "control", True, 1, 0, 420, "", "json", ""),
        ("split.begin", "control", False, 1, 0, 80, "", "json", ""),
        ("split.forward", "row selection", True, batch, batch * 2048, batch * 2200, "256", "int64",
         ""),
        ("split.forward", "embedding", False, batch, batch * 65_536, batch * 16_500, "256×64",
         "float32", f"clip 1 → {quarter}"),
        ("split.backward", "gradient", True, batch, batch * 65_536, batch * 65_700, "256×64",
         "float32", ""),
        ("split.backward", "control", False, batch, 0, batch * 60, "", "json", ""),
        ("split.embed", "row selection", True, 30, 30 * 2400, 30 * 2550, "300", "int64", ""),
        ("split.embed", "embedding", False, 30, 30 * 76_800, 30 * 19_300, "300×64", "float32",
         f"clip 1 → {quarter}"),
    ]  # fmt: skip
    return [
        Flow(
            session=operation.split(".")[0],
            operation=operation.split(".")[1],
            kind=kind,
            sender=active if out else partner,
            receiver=partner if out else active,
            messages=messages,
            bytes_before=before,
            bytes_after=after,
            shape=shape,
            dtype=dtype,
            guard=guard,
        )
        for partner in passive
        for operation, kind, out, messages, before, after, shape, dtype, guard in steps
    ]


def party(name: str, active: bool, people: int, columns: int, shared: int) -> PartyResult:
    return PartyResult(
        name=name,
        active=active,
        people=people,
        columns=columns,
        shared=shared,
        alone=people - shared,
        learnt=[
            "how many people each partner has",
            "which of its own people are shared, and of nobody else",
        ],
        ledger_head="9f2c4e7a1b5d83600f1e2d3c4b5a6978",
    )


def binary() -> Results:
    """Two parties, five seeds, everything beside it: the insurance case."""
    insurer = party("insurer", True, 4658, 42, 4000)
    vendor = party("data vendor", False, 5164, 43, 4000)
    vendor.id_notes = ["12 rows have no id and were left out", "3 ids stand twice: the first kept"]
    vendor.column_notes = ["'region' has one value only and says nothing"]
    vendor.privacy = {"embedding to insurer": {"epsilon": 6.2, "delta": 1e-5, "unit": "one row"}}
    seeds = [0, 1, 2, 3, 4]
    strengths = {"split": 0.86, "active_alone": 0.66, "mean_imputation": 0.62, "pooled": 0.89}
    return Results(
        name="caravan",
        description="Who buys a caravan policy? An insurer and a vendor of socio-demographic data.",
        task="binary",
        label="Purchase",
        classes=2,
        outcomes=dict.fromkeys([0, 1, 2, 3, 4], 60),
        parties=[insurer, vendor],
        shared_by_all=4000,
        trained_on=3000,
        tested_on=1000,
        models=models("binary", seeds, strengths, 2),
        flows=flows("insurer", ["data vendor"]),
        seeds=seeds,
        job="name: caravan\nparties:\n  insurer:\n    table: insurer.parquet\n    label: Purchase\n"
        "  data vendor:\n    table: vendor.parquet\nmethod: split\nseeds: [0, 1, 2, 3, 4]\n",
        command="interlace run caravan/job.yaml",
        started="2026-03-02 14:05:11",
        seconds=74.2,
        finished=True,
        machine=MACHINE,
    )


def multiclass() -> Results:
    """Four parties of which the active one has no columns; labels alone cannot be learnt from."""
    names = ["north clinic", "east clinic", "south clinic"]
    results = binary()
    results.name, results.task, results.label, results.classes = "clinics", "multiclass", "stage", 5
    results.description, results.outcomes = "", {}
    results.parties = [
        party("registry", True, 900, 0, 880),
        *(party(n, False, 700 + 150 * i, 10, 600 + 90 * i) for i, n in enumerate(names)),
    ]
    results.shared_by_all, results.trained_on, results.tested_on = 520, 390, 130
    results.seeds = [0, 1, 2]
    results.models = models("multiclass", results.seeds, {"split": 0.7, "pooled": 0.72}, 5)
    alone = ModelResult(
        name="active_alone",
        title="Active party alone",
        role="baseline",
        explanation=MODELS["active_alone"][2],
        skipped="the active party has no columns of its own, so it can learn nothing alone",
    )
    results.models.insert(1, alone)
    results.flows = flows("registry", names)
    return results


def regression() -> Results:
    """Eight parties, one seed, no baselines, and a very long conversation."""
    names = [f"{c} statistics office" for c in ("north", "mid", "east", "west", "south", "isle")]
    names.append("Bundesversicherungsanstalt")
    results = binary()
    results.name, results.task, results.label = "income", "regression", "yearly income"
    results.classes, results.outcomes = 0, {}
    results.parties = [
        party("tax office", True, 41_250_000, 12, 9_800_000),
        *(
            party(n, False, 6_000_000 + 900_000 * i, 100 + i, 5_500_000)
            for i, n in enumerate(names)
        ),
    ]
    results.shared_by_all, results.trained_on = 5_100_000, 3_825_000
    results.tested_on = 1_275_000
    results.seeds = [7]
    results.models = models("regression", [7], {"split": 0.8}, 0)
    results.flows = flows("tax office", names, scale=400_000)
    results.seconds = 412_345.0
    return results


def multilabel() -> Results:
    """Several labels at once, and a federation that does worse."""
    results = binary()
    results.name, results.task, results.label = "diagnoses", "multilabel", "codes"
    results.classes, results.outcomes = 4, {}
    strengths = {"split": 0.61, "active_alone": 0.61, "pooled": 0.62}
    results.seeds = [0, 1, 2]
    results.models = models("multilabel", results.seeds, strengths, 4)
    results.models[1].fits = [fit("multilabel", 0.612, s, 4, False) for s in results.seeds]
    return results


def horizontal() -> Results:
    """Three wards and a server without people; drift by round, figures by party."""
    results = multiclass()
    results.name, results.geometry, results.shared_by_all = "wards", "horizontal", 0
    for p in results.parties:
        p.people = 0 if p.active else p.people
        p.shared, p.alone, p.learnt = 0, p.people, []
    results.apart = Apart(
        sizes=0.12, labels=0.31, features=0.07, labels_by_chance=0.01, features_by_chance=0.02
    )
    method, alone, pooled = results.models
    method.name, method.title = "fedavg", "FedAvg"
    alone.name, alone.title, alone.skipped = "clients_alone", "Each party alone", None
    pooled.name = "pooled_rows"
    weaker = models("multiclass", results.seeds, {"split": 0.4}, 5)[0]
    alone.fits = [f.model_copy(update={"messages": 0, "bytes": 0}) for f in weaker.fits]
    for model in (method, alone, pooled):
        for fit in model.fits:
            fit.by_party = {p.name: dict(fit.metrics) for p in results.parties if p.people}
    for fit in method.fits:
        for e in fit.history:
            e.clients, e.dropped = 3, 0
            e.distance, e.angle = 0.5 + e.loss, 20.0 + 3 * e.number
    return results


def unfinished() -> Results:
    """A run that was stopped in its second model."""
    results = binary()
    results.finished = False
    results.models[1].fits = results.models[1].fits[:2]
    for model in results.models[2:]:
        model.fits = []
    results.models[2].skipped = "no person of the active party misses a view"
    results.models[0].fits[3].curves = {}
    return results


def empty() -> Results:
    """A run that has only just begun."""
    results = binary()
    results.finished, results.flows = False, []
    for model in results.models:
        model.fits = []
    return results


EXAMPLES: dict[str, Callable[[], Results]] = {
    f.__name__: f
    for f in (binary, multiclass, regression, multilabel, horizontal, unfinished, empty)
}


@pytest.fixture(params=EXAMPLES)
def results(request: pytest.FixtureRequest) -> Results:
    """Each example in turn."""
    return EXAMPLES[request.param]()


@pytest.fixture
def insurance() -> Results:
    """The insurance case."""
    return binary()


@pytest.fixture
def examples() -> list[Results]:
    """All of them, and one with names that do not break."""
    found = [make() for make in EXAMPLES.values()]
    long = binary()
    long.name = long.label = long.command = "unbreakable" * 12
    for p, x in zip(long.parties, "ab", strict=True):
        for flow in long.flows:
            flow.sender = x * 60 if flow.sender == p.name else flow.sender
            flow.receiver = x * 60 if flow.receiver == p.name else flow.receiver
        p.name = x * 60
    long.models[0].title = "Splitlearningwithaverylongname" * 3
    return [*found, long]
