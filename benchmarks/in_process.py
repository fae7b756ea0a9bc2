"""What a simulated federation costs beside bare PyTorch, and whether it learns as well.

- Training: two parties, 32 + 32 columns, bottoms 32→64→64, top 128→64→2, Adam, batch 256, 30,000
  rows, one thread, ledger and policy on, through the public ``fit``; beside it, epoch by epoch in
  the same process, the same three models in a bare loop that detaches at the cut and hands the
  gradient back (three fused Adams), and one undivided graph with one fused Adam. CPU time an epoch,
  medians.
- ``import interlace`` in a fresh process.
- Accuracy: split learning against the pooled model over five seeds, on the default-credit, breast,
  vehicle and student tables, where they are beside the repository; everything as by default.
- ``interlace demo`` in a warm environment.

Run it as ``make bench NAME=in_process``; the last line is JSON.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from interlace import Federation, Party
from interlace.methods import Method, Pooled, SplitVFL
from interlace.models import BottomSpec

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
PEOPLE, BATCH, EPOCHS = 30_000, 256, 14
SEEDS = range(5)
TARGETS = {"step_ratio": 1.15, "import_seconds": 3.0, "accuracy_gap": 0.01, "demo_seconds": 90.0}
TABLES = {
    "default_credit": "default_credit_hetero",
    "breast": "breast_hetero",
    "vehicle": "vehicle_scale_hetero",
    "student": "student_hetero",
}


def synthetic() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((PEOPLE, 64)).astype(np.float32)
    hidden = np.tanh(x @ rng.standard_normal((64, 16)).astype(np.float32) / 8)
    y = hidden @ rng.standard_normal(16) + 0.3 * rng.standard_normal(PEOPLE) > 0
    return x, y.astype(np.int64)


def networks() -> tuple[nn.Module, nn.Module, nn.Module]:
    def bottom() -> nn.Module:
        return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64))

    return bottom(), bottom(), nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 2))


def adam(*modules: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam([p for m in modules for p in m.parameters()], lr=1e-3, fused=True)


def bare_parties(xa: Tensor, xb: Tensor, y: Tensor) -> Callable[[], None]:
    """One epoch of three models that pass embeddings and gradients, and nothing else."""
    a, b, top = networks()
    optimisers = [adam(m) for m in (a, b, top)]

    def epoch() -> None:
        order = torch.randperm(PEOPLE)
        for start in range(0, PEOPLE, BATCH):
            i = order[start : start + BATCH]
            ha, hb = a(xa[i]), b(xb[i])
            ca, cb = ha.detach().requires_grad_(), hb.detach().requires_grad_()
            loss = cross_entropy(top(torch.cat((ca, cb), 1)), y[i])
            for optimiser in optimisers:
                optimiser.zero_grad()
            loss.backward()
            ha.backward(ca.grad)
            hb.backward(cb.grad)
            for optimiser in optimisers:
                optimiser.step()

    return epoch


def bare_undivided(xa: Tensor, xb: Tensor, y: Tensor) -> Callable[[], None]:
    """One epoch of the same network as one graph."""
    a, b, top = networks()
    optimiser = adam(a, b, top)

    def epoch() -> None:
        order = torch.randperm(PEOPLE)
        for start in range(0, PEOPLE, BATCH):
            i = order[start : start + BATCH]
            loss = cross_entropy(top(torch.cat((a(xa[i]), b(xb[i])), 1)), y[i])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()

    return epoch


def training() -> dict[str, Any]:
    torch.set_num_threads(1)
    x, y = synthetic()
    ids = [f"p{i}" for i in range(PEOPLE)]

    def table(block: np.ndarray) -> pl.DataFrame:
        return pl.DataFrame({"id": ids, **{f"x{j}": block[:, j] for j in range(block.shape[1])}})

    bank = Party("bank", table(x[:, :32]).with_columns(y=pl.Series(y)), label="y")
    fed = Federation.simulate([bank, Party("shop", table(x[:, 32:]))])
    fed.align()
    xa, xb = (torch.from_numpy(np.ascontiguousarray(h)) for h in (x[:, :32], x[:, 32:]))
    others = {
        "parties": bare_parties(xa, xb, torch.from_numpy(y)),
        "undivided": bare_undivided(xa, xb, torch.from_numpy(y)),
    }
    times: dict[str, list[float]] = {"interlace": [], **{name: [] for name in others}}
    last = [time.process_time()]

    def between(_epoch: object) -> None:
        times["interlace"].append(time.process_time() - last[0])
        for name, epoch in others.items():
            began = time.process_time()
            epoch()
            times[name].append(time.process_time() - began)
        last[0] = time.process_time()

    model = SplitVFL(
        epochs=EPOCHS, batch_size=BATCH, bottom=BottomSpec(hidden=(64,)), top=(64,), validation=0
    )
    model.fit(fed, on_epoch=between)
    steps = -(-PEOPLE // BATCH)
    # The first epochs warm caches up and, for ours, hold the agreement on networks and columns.
    ms = {name: statistics.median(t[2:]) / steps * 1e3 for name, t in times.items()}
    return {
        "step_ms": {name: round(v, 3) for name, v in ms.items()},
        "step_ratio": round(ms["interlace"] / ms["parties"], 3),
        "undivided_ratio": round(ms["interlace"] / ms["undivided"], 3),
    }


def import_seconds() -> float:
    code = "import time; t = time.perf_counter(); import interlace; print(time.perf_counter() - t)"
    runs = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
        for _ in range(3)
    ]
    return round(statistics.median(runs), 3)


def everything_import_seconds() -> float:
    code = (
        "import time; t = time.perf_counter(); from interlace import Federation, SplitVFL, run; "
        "print(time.perf_counter() - t)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    return round(float(run.stdout), 3)


def accuracy() -> dict[str, Any]:
    out = {}
    for name, stem in TABLES.items():
        files = [DATA / name / f"{stem}_{side}.csv" for side in ("guest", "host")]
        if not all(f.exists() for f in files):
            print(f"{name}: not beside the repository, left out")
            continue
        fed = Federation.simulate([Party("guest", files[0], label="y"), Party("host", files[1])])
        scores: dict[str, list[float]] = {"split": [], "pooled": []}
        for seed in SEEDS:
            train, test = fed.split(0.25, seed=seed)
            for kind, method in (("split", SplitVFL()), ("pooled", Pooled())):
                method.fit(train.fresh(seed, f"{kind}-{seed}"))
                scores[kind].append(utility(method, test))
        gap = statistics.mean(scores["pooled"]) - statistics.mean(scores["split"])
        out[name] = {
            "metric": {"binary": "auc", "regression": "r2"}.get(fed.label_plan.task, "accuracy"),
            **{kind: round(statistics.mean(values), 4) for kind, values in scores.items()},
            "gap": round(gap, 4),
        }
        print(f"{name}: {out[name]}", flush=True)
    return out


def utility(method: Method, test: Federation) -> float:
    if method.label_plan_.task == "binary":
        return float(roc_auc_score(test.y.numpy(), method.predict_proba(test)[:, 1]))
    return method.score(test)


def demo_seconds() -> float:
    command = [str(Path(sys.executable).with_name("interlace")), "demo"]
    with tempfile.TemporaryDirectory() as folder:
        for _warm in range(2):
            began = time.perf_counter()
            subprocess.run(
                command, cwd=tempfile.mkdtemp(dir=folder), check=True, capture_output=True
            )
    return round(time.perf_counter() - began, 1)


def main() -> None:
    figures: dict[str, Any] = {"import_seconds": import_seconds()}
    figures["import_everything_seconds"] = everything_import_seconds()
    print(f"import interlace: {figures['import_seconds']} s", flush=True)
    figures |= training()
    print(
        f"training step: {figures['step_ms']} ms of CPU, ratio {figures['step_ratio']}", flush=True
    )
    figures["demo_seconds"] = demo_seconds()
    print(f"interlace demo: {figures['demo_seconds']} s", flush=True)
    figures["accuracy"] = accuracy()
    met = (
        figures["step_ratio"] <= TARGETS["step_ratio"]
        and figures["import_seconds"] <= TARGETS["import_seconds"]
        and figures["demo_seconds"] <= TARGETS["demo_seconds"]
        and all(a["gap"] <= TARGETS["accuracy_gap"] for a in figures["accuracy"].values())
    )
    machine = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
    print(json.dumps({**figures, "targets": TARGETS, "machine": machine, "met": met}))


if __name__ == "__main__":
    main()
