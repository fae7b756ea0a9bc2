"""FedAvg, FedProx and SCAFFOLD on skewed labels; what a round costs; a thousand clients.

Three questions, each answered by figures of this run:

- rounds until the pooled accuracy on held-out rows reaches a target, on digits, credit card clients
  and a subset of CIFAR-10, cut among ten clients with Dirichlet α = 0.1, five seeds. Each method
  gets the same number of trials for its hyper-parameters, judged by validation rows that the trial
  does not train on, on a cut that is none of the seeds'; test rows have no part in that;
- the seconds of a simulated round over those of its clients' plain PyTorch steps, in turns;
- the memory of a thousand clients that all take part.

The two larger data sets are read from ``../shared/data`` and skipped where that is absent. The last
line is one JSON object.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import copy
import io
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import nn

from interlace import Federation, Kind, Party, Policy
from interlace.data.noniid import cut_by_labels, heterogeneity
from interlace.data.tables import read_table
from interlace.errors import Refused
from interlace.methods.horizontal import Agreement, FedAvg, FedProx, LocalTraining, Scaffold
from interlace.models import BottomSpec

torch.set_num_threads(1)

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
OPEN = Policy(allow=Policy().allow | {Kind.MODEL_WEIGHTS})
CLIENTS, ALPHA, SEEDS = 10, 0.1, 5
ROUND_TARGET = 1.2
MEMORY_TARGET = 1.5  # GiB at the peak, with everything loaded
TUNING_SEED = 100  # its cut and its start are none of the five


@dataclass
class Task:
    """A data set, its network, and what is to be reached."""

    name: str
    x: NDArray[np.float64]  # rows as columns or as images
    y: NDArray[np.int64]
    x_test: NDArray[np.float64]
    y_test: NDArray[np.int64]
    classes: int
    network: BottomSpec
    module: Callable[[], nn.Module] | None
    local: dict[str, Any]
    rates: tuple[float, ...]
    rounds: int
    target: float
    balanced: bool = False  # accuracy as the mean over classes

    def parties(self, seed: int) -> list[Party]:
        """A coordinator and ten clients."""
        names = [f"client {i}" for i in range(CLIENTS)]
        cut = cut_by_labels(self.y, names, ALPHA, seed=seed)
        module = None
        if self.module is not None:
            torch.manual_seed(seed)
            module = self.module()
        parties = [Party("server", policy=OPEN, bottom=module)]
        for name, rows in cut.items():
            parties.append(
                Party(
                    name,
                    {**self.columns(self.x[rows]), "y": self.y[rows]},
                    id=None,
                    label="y",
                    policy=OPEN,
                    bottom=module,
                )
            )
        return parties

    def columns(self, x: NDArray[np.float64]) -> dict[str, Any]:
        """Rows as a table's columns."""
        if x.ndim > 2:
            return {"image": x}
        return {f"x{j:02d}": x[:, j] for j in range(x.shape[1])}

    def federation(self, seed: int) -> Federation:
        """The clients of one seed."""
        return Federation.simulate(self.parties(seed), active="server", seed=seed)


def held_out(x: Any, y: Any, share: float) -> tuple[Any, Any, Any, Any]:
    """Training and test rows, the same for every seed."""
    order = np.random.default_rng(7).permutation(len(y))
    cut = round(len(y) * (1 - share))
    return x[order[:cut]], y[order[:cut]], x[order[cut:]], y[order[cut:]]


def digits() -> Task:
    """1,797 small digits."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return Task(
        "digits",
        *held_out(x, y.astype(np.int64), 0.25),
        classes=10,
        network=BottomSpec(hidden=(32,)),
        module=None,
        local={"epochs": 5, "batch_size": 32},
        rates=(0.02, 0.05, 0.1, 0.2),
        rounds=60,
        target=0.93,
    )


def credit() -> Task | None:
    """UCI credit card clients; 22 % default, so accuracy is the mean over both classes."""
    file = SHARED / "uci_credit_card" / "UCI_Credit_Card.csv"
    if not file.exists():
        return None
    frame = pl.read_csv(file, infer_schema_length=None).drop("ID").sample(8000, seed=1)
    y = frame["default.payment.next.month"].to_numpy().astype(np.int64)
    x = frame.drop("default.payment.next.month").to_numpy().astype(np.float64)
    return Task(
        "credit card",
        *held_out(x, y, 0.25),
        classes=2,
        network=BottomSpec(hidden=(32,)),
        module=None,
        local={"epochs": 2, "batch_size": 32},
        rates=(0.005, 0.02, 0.05, 0.1),
        rounds=60,
        target=0.64,
        balanced=True,
    )


def small_cnn() -> nn.Module:
    """Two convolutions and a linear layer: 8,538 weights."""
    return nn.Sequential(
        nn.Conv2d(3, 12, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(24 * 16, 10),
    )


def cifar() -> Task | None:
    """4,000 images of CIFAR-10 to learn from, 2,000 to test on."""
    file = SHARED / "cifar10" / "cifar10_train.parquet"
    if not file.exists():
        return None
    from PIL import Image

    frame = pl.read_parquet(file).sample(6000, seed=1)
    pixels = [
        np.asarray(Image.open(io.BytesIO(b)).convert("RGB"), dtype=np.float32)
        for b in frame["jpeg"]
    ]
    x = np.moveaxis(np.stack(pixels), -1, 1)
    return Task(
        "CIFAR-10",
        *held_out(x, frame["label"].to_numpy().astype(np.int64), 1 / 3),
        classes=10,
        network=BottomSpec(),
        module=small_cnn,
        local={"epochs": 1, "batch_size": 32},
        rates=(0.01, 0.02, 0.05, 0.1),
        rounds=60,
        target=0.35,
    )


# --- rounds to a target --------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """One trial of a method."""

    method: str
    settings: dict[str, float]

    def build(self, task: Task, rounds: int, agreement: Agreement) -> FedAvg:
        """The method with these settings."""
        local = LocalTraining(learning_rate=self.settings["learning_rate"], **task.local)
        kwargs: dict[str, Any] = {
            "rounds": rounds, "network": task.network, "local": local, "agreement": agreement
        }  # fmt: skip
        if self.method == "FedProx":
            return FedProx(mu=self.settings["mu"], **kwargs)
        if self.method == "SCAFFOLD":
            return Scaffold(weighting="rows", server_rate=self.settings["server_rate"], **kwargs)
        return FedAvg(server_rate=self.settings["server_rate"], **kwargs)


def trials(task: Task) -> dict[str, list[Choice]]:
    """Eight for each method: four step sizes, and two values of what it has beside."""
    second = {
        "FedAvg": ("server_rate", (1.0, 0.7)),
        "FedProx": ("mu", (0.01, 0.1)),
        "SCAFFOLD": ("server_rate", (1.0, 0.7)),
    }
    return {
        method: [
            Choice(method, {"learning_rate": rate, name: value})
            for rate in task.rates
            for value in values
        ]
        for method, (name, values) in second.items()
    }


def curve(task: Task, choice: Choice, seed: int, rounds: int, tuning: bool) -> list[float]:
    """After each round: minus the validation loss when tuning, else the accuracy on test rows.

    A training that diverges (a party then refuses the weights, which are no numbers) ends there: as
    bad as can be when tuning, else it stays at what it had."""
    agreement = Agreement(
        validation=0.2 if tuning else 0.0, classes=tuple(range(task.classes)), buckets=1
    )
    method = choice.build(task, rounds, agreement)
    fed = task.federation(seed)
    if tuning:
        with suppress(Refused):
            method.fit(fed)
        losses = [r.validation for r in getattr(method, "history_", [])]
        losses += [None] * (rounds - len(losses))
        return [-np.inf if v is None or not np.isfinite(v) else -v for v in losses]
    out: list[float] = []
    table = read_table(task.columns(task.x_test), party="test rows")
    known: dict[str, torch.Tensor] = {}

    def after(_: object) -> None:
        if not known:
            known["x"] = method.plan_.transform(table)
        method.model_.load(method.weights_)
        method.model_.module.eval()
        with torch.no_grad():
            guess = method.model_.module(known["x"]).argmax(1).numpy()
        out.append(accuracy(task, guess))

    with suppress(Refused):
        method.fit(fed, on_epoch=after)
    return out + [out[-1] if out else 0.0] * (rounds - len(out))


def accuracy(task: Task, guess: NDArray[np.int64]) -> float:
    """Share of right guesses, or its mean over classes."""
    right = guess == task.y_test
    if not task.balanced:
        return float(right.mean())
    return float(np.mean([right[task.y_test == c].mean() for c in range(task.classes)]))


def rounds_to(values: list[float], target: float) -> int | None:
    """The first round from which the mean of three rounds is at the target."""
    for i in range(len(values) - 2):
        if np.mean(values[i : i + 3]) >= target:
            return i + 1
    return None


_TASKS: dict[str, Task] = {}


def read_tasks() -> None:
    """Read the data sets that are there, in this process."""
    for task in (digits(), credit(), cifar()):
        if task is not None:
            _TASKS[task.name] = task


def _tuned(job: tuple[str, Choice, int]) -> float:
    name, choice, rounds = job
    values = curve(_TASKS[name], choice, TUNING_SEED, rounds, tuning=True)
    return float(np.mean(sorted(values)[-max(1, len(values) // 4) :]))


def _run(job: tuple[str, Choice, int, int]) -> list[float]:
    name, choice, seed, rounds = job
    return curve(_TASKS[name], choice, seed, rounds, tuning=False)


def compare(pool: Any, quick: bool) -> list[dict[str, Any]]:
    """The table: for every data set and method the rounds to the target and the final accuracy."""
    seeds = 2 if quick else SEEDS
    table = []
    for task in _TASKS.values():
        rounds = 6 if quick else task.rounds
        budget = {m: t[:2] if quick else t for m, t in trials(task).items()}
        jobs = [(task.name, c, max(3, rounds // 3)) for t in budget.values() for c in t]
        scores = dict(zip((j[1].method + str(j[1].settings) for j in jobs),
                          pool.map(_tuned, jobs, chunksize=1), strict=True))  # fmt: skip
        chosen = {
            m: max(t, key=lambda c: np.nan_to_num(scores[c.method + str(c.settings)], nan=-np.inf))
            for m, t in budget.items()
        }
        runs = [(task.name, c, s, rounds) for c in chosen.values() for s in range(seeds)]
        curves = pool.map(_run, runs, chunksize=1)
        skew = statistics.mean(
            heterogeneity(cut_by_labels(task.y, [str(i) for i in range(CLIENTS)], ALPHA, seed=s),
                          task.y).labels
            for s in range(seeds)
        )  # fmt: skip
        for i, (method, choice) in enumerate(chosen.items()):
            mine = curves[i * seeds : (i + 1) * seeds]
            reached = [rounds_to(c, task.target) for c in mine]
            final = [float(np.mean(c[-5:])) for c in mine]
            row = {
                "data": task.name,
                "method": method,
                "target": task.target,
                "rounds": reached,
                # A run that never got there counts as all of its rounds: the least it took.
                "median_rounds": statistics.median(r if r else rounds for r in reached),
                "reached": sum(r is not None for r in reached),
                "final_accuracy": round(statistics.mean(final), 4),
                "final_spread": round(statistics.pstdev(final), 4),
                "settings": choice.settings,
                "label_divergence_bits": round(skew, 3),
            }
            table.append(row)
            print(json.dumps(row), flush=True)
    return table


# --- what a round costs --------------------------------------------------------------------------


def cost(task: Task, rounds: int) -> dict[str, float]:
    """CPU time of a round over that of its clients' plain steps, in turns; the median of pairs."""
    ratios: dict[str, float] = {}
    agreement = Agreement(validation=0.0, classes=tuple(range(task.classes)), buckets=1)
    settings = {"learning_rate": task.rates[0], "mu": 0.01, "server_rate": 1.0}
    for name in ("FedAvg", "FedProx", "SCAFFOLD"):
        method = Choice(name, settings).build(task, rounds, agreement)
        fed = task.federation(0)
        pairs: list[float] = []
        begun = [time.process_time()]

        def after(
            _: object,
            method: FedAvg = method,
            fed: Federation = fed,
            pairs: list[float] = pairs,
            begun: list[float] = begun,
        ) -> None:
            spent = time.process_time() - begun[0]
            pairs.append(spent / plain_steps(method, fed))
            begun[0] = time.process_time()

        method.fit(fed, on_epoch=after)
        ratios[name] = round(statistics.median(pairs[1:]), 3)  # the first round reads the tables
    return ratios


def plain_steps(method: FedAvg, fed: Federation) -> float:
    """CPU time of all clients' steps of a round as a bare PyTorch loop takes them."""
    sides: list[Any] = [
        p.sides[method.session_]  # type: ignore[index]
        for p in fed.engine.parties.values()  # type: ignore[attr-defined]
        if p.sides
    ]
    data = [(s.x[s.parts["train"]], s.y[s.parts["train"]]) for s in sides]
    modules = [copy.deepcopy(method.model_.module) for _ in data]
    local = method.local
    start = time.process_time()
    for module, (x, y) in zip(modules, data, strict=True):
        optimiser = torch.optim.SGD(module.parameters(), lr=local.learning_rate)
        module.train()
        for _ in range(local.epochs):
            order = torch.randperm(len(x))
            for batch in torch.split(order, local.batch_size or len(x)):
                optimiser.zero_grad()
                loss = nn.functional.cross_entropy(module(x[batch]), y[batch])
                torch.autograd.backward(loss)
                optimiser.step()
    return time.process_time() - start


# --- a thousand clients --------------------------------------------------------------------------


def thousand(clients: int, rounds: int, queue: Any) -> None:
    """Peak memory of SCAFFOLD (each client keeps a variate) with all clients in every round."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    parties = [Party("server", policy=OPEN)]
    for i in range(clients):
        rows = rng.choice(len(y), 30, replace=False)
        columns = {f"x{j:02d}": x[rows, j] for j in range(64)}
        frame = pl.DataFrame({**columns, "y": y[rows]})
        parties.append(Party(f"client {i}", frame, id=None, label="y", policy=OPEN))
    fed = Federation.simulate(parties, active="server")
    agreement = Agreement(validation=0.0, classes=tuple(range(10)))
    method = Scaffold(rounds=rounds, network=BottomSpec(hidden=(32,)), agreement=agreement)
    memory: list[float] = []
    method.fit(fed, on_epoch=lambda _: memory.append(memory_line("VmRSS")))
    peak = memory_line("VmHWM")
    seconds = statistics.median(r.seconds for r in method.history_)
    queue.put({"peak_gib": peak, "after_each_round_gib": memory, "seconds_a_round": seconds})


def memory_line(name: str) -> float:
    """What this process holds (``VmRSS``) or held at most (``VmHWM``), in GiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (text for text in lines if text.startswith(name))
    return int(line.split()[1]) / 2**20


def main() -> None:
    """Run all three and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds, to see that it runs")
    quick = parser.parse_args().quick
    begun = time.time()
    read_tasks()
    costs = {task.name: cost(task, 4 if quick else 12) for task in _TASKS.values()}
    print(json.dumps({"round_over_plain_steps": costs}), flush=True)
    spawn = multiprocessing.get_context("spawn")
    queue = spawn.Queue()
    count, rounds = (50, 3) if quick else (1000, 10)
    process = spawn.Process(target=thousand, args=(count, rounds, queue))
    process.start()
    many = queue.get()
    process.join()
    held = many.pop("after_each_round_gib")
    many["clients"] = count
    many["growth_from_second_to_last_round_gib"] = round(held[-1] - held[1], 4)
    print(json.dumps(many), flush=True)
    with spawn.Pool(2, initializer=read_tasks) as pool:
        table = compare(pool, quick)
    worst = max(r for c in costs.values() for r in c.values())
    result = {
        "benchmark": "horizontal",
        "skipped": sorted({"digits", "credit card", "CIFAR-10"} - set(_TASKS)),
        "table": table,
        "round_over_plain_steps": costs,
        "worst_round_over_plain_steps": worst,
        "thousand_clients": many,
        "targets": {"worst_round_over_plain_steps": ROUND_TARGET, "peak_gib": MEMORY_TARGET},
        "seconds": round(time.time() - begun, 1),
        "met": bool(worst <= ROUND_TARGET and many["peak_gib"] <= MEMORY_TARGET),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
