"""What an online score costs beside a bare FastAPI endpoint that checks and returns the same JSON.

Two parties of 30,000 shared people, 32 + 32 columns, split learning, all in one process, ledger and
policy on; one person a request, then a hundred, then one by each of sixteen callers at once. Each
server runs in a process of its own on loopback, and the callers' requests go to them in turns, so
that both see the same machine. The last line is JSON. Run it as ``make bench NAME=serving``.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from interlace import run
from interlace.job.spec import Job
from interlace.serve.endpoint import application, listen
from interlace.serve.online import Answer, Answers, Question, open_run

PEOPLE, REQUESTS, TURNS, CALLERS = 30_000, 250, 8, 16
TARGETS = {"one_p50_ms_over_echo": 3.0}


def train(folder: Path) -> None:
    """A run whose models a service can use; how well they learnt does not matter here."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((PEOPLE, 64)).astype(np.float32)
    ids = pl.Series("id", [f"C{i:06}" for i in range(PEOPLE)])
    for name, columns in (("bank", range(32)), ("shop", range(32, 64))):
        table = pl.DataFrame({f"x{c}": x[:, c] for c in columns}).insert_column(0, ids)
        if name == "bank":
            table = table.with_columns(bought=pl.Series(x.sum(1) > 0))
        table.write_parquet(folder / f"{name}.parquet")
    parties: dict[str, Any] = {n: {"table": str(folder / f"{n}.parquet")} for n in ("bank", "shop")}
    parties["bank"]["label"] = "bought"
    job = {
        "name": "serving",
        "parties": parties,
        "method": {"name": "split", "epochs": 1},
        "compare": ["active_alone"],
        "seeds": [0],
    }
    run(Job.model_validate(job), folder / "run")


def serve(which: str, folder: Path, line: Connection) -> None:
    """One of the two servers, in a process of its own; it tells its port and runs until killed."""
    import uvicorn
    from fastapi import FastAPI

    torch.set_num_threads(1)
    with listen("127.0.0.1", 0, token=None) as at:
        line.send(at.getsockname()[1])
        if which == "joint":
            with open_run(folder / "run") as scorer:
                run_server(uvicorn, application(scorer), at)
        app = FastAPI()

        async def score(question: Question) -> Answers:
            said = {"prediction": True, "probabilities": {"false": 0.25, "true": 0.75}}
            return Answers(
                answers=[Answer(id=i, answered_by="joint", **said) for i in question.ids]
            )

        app.post("/score")(score)
        run_server(uvicorn, app, at)


def run_server(uvicorn: Any, app: Any, at: Any) -> None:
    config = uvicorn.Config(app, log_level="warning", access_log=False)
    uvicorn.Server(config).run(sockets=[at])


def bodies(count: int, people: int, seed: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    return [
        {"ids": [f"C{i:06}" for i in rng.choice(PEOPLE, people, replace=False)]}
        for _ in range(count)
    ]


def timed(port: int, questions: list[dict[str, Any]], callers: int) -> list[float]:
    """Milliseconds for each of some requests, from as many callers at once."""
    waiting = iter(questions)  # drawing from it is atomic
    took: list[float] = []

    def call() -> None:
        line = HTTPConnection("127.0.0.1", port)
        for question in waiting:
            body = json.dumps(question)
            began = time.perf_counter()
            line.request("POST", "/score", body, {"Content-Type": "application/json"})
            answer = line.getresponse().read()
            took.append((time.perf_counter() - began) * 1000)
            assert {a["answered_by"] for a in json.loads(answer)["answers"]} == {"joint"}
        line.close()

    with ThreadPoolExecutor(callers) as pool:
        for done in [pool.submit(call) for _ in range(callers)]:
            done.result()
    return took


def compare(ports: dict[str, int], people: int, callers: int) -> dict[str, float]:
    """Median and 99th percentile of both, in turns; and what the score adds to the median."""
    took: dict[str, list[float]] = {which: [] for which in ports}
    wall = dict.fromkeys(ports, 0.0)
    for turn in range(TURNS):
        for which, port in ports.items():
            began = time.perf_counter()
            took[which] += timed(port, bodies(REQUESTS, people, turn), callers)
            wall[which] += time.perf_counter() - began
    figures: dict[str, float] = {}
    for which, times in took.items():
        for q in (50, 99):
            figures[f"{which}_p{q}_ms"] = round(float(np.percentile(times, q)), 2)
        figures[f"{which}_requests_per_second"] = round(TURNS * REQUESTS / wall[which])
    figures["p50_ratio"] = round(figures["joint_p50_ms"] / figures["echo_p50_ms"], 2)
    return figures


def main() -> None:
    """Measure, and print one JSON object."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        train(folder)
        ports, servers = {}, []
        try:
            for which in ("echo", "joint"):
                here, there = context.Pipe()
                servers.append(context.Process(target=serve, args=(which, folder, there)))
                servers[-1].start()
                there.close()
                ports[which] = here.recv()
                timed(ports[which], bodies(20, 1, 99), 1)  # warm, tables read
            figures = {
                "one": compare(ports, 1, 1),
                "hundred": compare(ports, 100, 1),
                "sixteen_callers": compare(ports, 1, CALLERS),
            }
        finally:
            for server in servers:
                server.kill()
                server.join()
    added = round(figures["one"]["joint_p50_ms"] - figures["one"]["echo_p50_ms"], 2)
    machine = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
    met = added <= TARGETS["one_p50_ms_over_echo"]
    out = {**figures, "one_p50_ms_over_echo": added, "targets": TARGETS, "machine": machine}
    print(json.dumps({**out, "met": met}))


if __name__ == "__main__":
    main()
