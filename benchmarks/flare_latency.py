"""What a run over sites costs in time: a round trip, an epoch, a one-shot method, a start.

A federation of three sites on this machine: processes of their own, mutual TLS, as provisioned.

- **Round trip**: one operation that sends 64 KB and gets 64 KB back, through both boundaries and
  ledgers, sealed end to end and relayed by the server, against a bare unary gRPC call (grpc.aio,
  mutual TLS) of the same bytes; in turns, from one and the same process. Medians.
- **Flat**: threads and memory of both job processes over ``--messages`` such operations.
- **Epoch**: split learning of two parties over 30,000 people in batches of 256, deployed and in one
  process; how much of the gap its round trips explain.
- **One-shot**: the same for the one-shot method.
- **Start**: from no federation to the first round.

Run it as ``make bench NAME=flare_latency``; ``--messages 100000`` takes about ten minutes longer.
The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from interlace import runner
from interlace.job.results import Results
from interlace.sites import submission
from interlace.sites.contract import Contract
from interlace.sites.job import job_of

TESTS = Path(__file__).parents[1] / "tests" / "flare"
sys.path.insert(0, str(TESTS))
from local import NAMES, Local  # noqa: E402

ROUND_TRIP, ONE_SHOT, START = 2.5, 1.5, 60.0  # the targets
FLAT = {"threads": 3, "share": 1.1}  # more threads, and memory over what it was at a tenth
PEOPLE, COLUMNS = 30_000, 10


def people() -> dict[str, pl.DataFrame]:
    """Three parties' columns of the same people."""
    random = np.random.default_rng(0)
    x = random.normal(size=(PEOPLE, 3 * COLUMNS)).astype("f4")
    label = (x @ random.normal(size=3 * COLUMNS) > 0).astype(int)
    table = pl.DataFrame(x, schema=[f"x{i}" for i in range(3 * COLUMNS)]).with_row_index("id")
    names = table.columns[1:]
    return {
        "hospital": table.select("id", *names[:COLUMNS], pl.Series("benign", label)),
        "lab": table.select("id", *names[COLUMNS : 2 * COLUMNS]),
        "registry": table.select("id", *names[2 * COLUMNS :]),
    }


def contract(name: str, method: dict[str, Any], parties: int = 2) -> Contract:
    """A contract of the first parties."""
    return Contract(
        name=name,
        parties=NAMES[:parties],
        active=NAMES[0],
        method=method,
        compare="none",
        seeds=[0],
        classes=2,
        wait=0.2,
    )


def allow(federation: Local) -> None:
    """Let these sites load the measuring class too."""
    for folder in federation.folders.values():
        file = folder.kit / "local" / "resources.json"
        settings = json.loads(file.read_text())
        settings["class_allow_list"] = [*settings["class_allow_list"], "echo."]
        file.write_text(json.dumps(settings))


def echoes(federation: Local, blocks: int, turns: int, messages: int) -> dict[str, Any]:
    """The measuring site's job."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    driver = federation.driver
    asked = {"port": port, "blocks": blocks, "turns": turns, "messages": messages}
    (driver.root / "echo.json").write_text(json.dumps(asked))
    env = {**os.environ, "ECHO_STARTUP": str(driver.server / "startup"), "ECHO_PORT": str(port)}
    server = subprocess.Popen([sys.executable, str(TESTS / "echo.py")], env=env)
    try:
        with tempfile.TemporaryDirectory() as scratch:
            job = Path(scratch) / "echo"
            submission.write_job(contract("echo", {"name": "split", "epochs": 1}), job)
            config = job / "site" / "config" / "config_fed_client.json"
            config.write_text(
                config.read_text().replace("interlace.sites.job.Site", "echo.EchoSite")
            )
            with submission.session(driver.user) as session:
                number = session.submit_job(str(job))
        federation.plan(contract("echo", {"name": "split", "epochs": 1}))
        while not (state := submission.state(driver.user, number)).startswith("FINISHED"):
            time.sleep(2)
    finally:
        server.terminate()
        server.wait()
    if state != "FINISHED:COMPLETED":
        raise SystemExit(f"the measuring job is {state}")
    found: dict[str, Any] = json.loads((driver.root / "found.json").read_text())
    return found


def flat(sizes: list[dict[str, Any]]) -> tuple[bool, dict[str, Any]]:
    """Whether neither job process has grown after the first tenth."""
    first, last, figures = sizes[len(sizes) // 10], sizes[-1], {}
    held = True
    for who in ("driver", "partner"):
        a, b = first[who], last[who]
        figures[who] = {
            "threads": [a["threads"], b["threads"]],
            "MB": [round(a["kilobytes"] / 1e3), round(b["kilobytes"] / 1e3)],
        }
        held &= b["threads"] <= a["threads"] + FLAT["threads"]
        held &= b["kilobytes"] <= FLAT["share"] * a["kilobytes"]
    return held, figures


def both_ways(federation: Local, of: Contract, scratch: Path) -> tuple[Results, Results]:
    """A contract deployed, and in this process."""
    federation.plan(of)
    status = federation.run(of)
    if status.state != "finished":
        raise SystemExit(f"{of.name} is {status.state}: {status.reason}")
    files = {}
    for name in of.parties:
        file = federation.folders[name].read()
        table = str(federation.folders[name].root / "table.csv")
        policy = file.policy.model_copy(update={"stop_file": None})
        files[name] = file.model_copy(update={"table": table, "policy": policy})
    here = runner.run(job_of(of, files), scratch / of.name)
    return Results.read(federation.folder(NAMES[0], of) / "results.json"), here


def main() -> None:
    """Measure all of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=5_000)
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--turns", type=int, default=200)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["PYTHONPATH"] = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="interlace-") as folder:
        scratch = Path(folder)
        began = time.time()
        federation = Local(scratch / "sites")
        allow(federation)
        federation.give(people())
        try:
            federation.up()
            first = contract("start", {"name": "split", "epochs": 1, "batch_size": 2048}, 3)
            federation.run(first)
            start = federation.first_message(first) - began
            print(f"start: {start:.1f} s", flush=True)
            split = contract("split", {"name": "split", "epochs": 5, "batch_size": 256})
            there, here = both_ways(federation, split, scratch)
            once = {"name": "one_shot", "epochs": 5, "local_epochs": 5}
            one_shot = both_ways(federation, contract("one-shot", once), scratch)
            found = echoes(federation, options.blocks, options.turns, options.messages)
        finally:
            federation.down()
    trip = {w: 1e3 * statistics.median(t for _, t in found[w]) for w in ("flare", "grpc")}
    epochs = [
        statistics.median(e.seconds for e in r.models[0].fits[0].history) for r in (there, here)
    ]
    fit = there.models[0].fits[0]
    trips = fit.messages / 2 / len(fit.history)
    shots = [r.models[0].fits[0].seconds for r in one_shot]
    held, sizes = flat(found["sizes"])
    ratio, shot = trip["flare"] / trip["grpc"], shots[0] / shots[1]
    print(
        json.dumps(
            {
                "round trip ms": round(trip["flare"], 2),
                "bare gRPC ms": round(trip["grpc"], 2),
                "round trip ratio": round(ratio, 2),
                "messages": 2 * options.messages,
                "from a tenth to the end": sizes,
                "epoch s": [round(e, 2) for e in epochs],
                "round trips an epoch": round(trips),
                "gap explained by round trips": round(
                    trips * trip["flare"] / 1e3 / max(epochs[0] - epochs[1], 1e-9), 2
                ),
                "one-shot s": [round(s, 2) for s in shots],
                "one-shot ratio": round(shot, 2),
                "start s": round(start, 1),
                "targets": {"round trip": ROUND_TRIP, "one-shot": ONE_SHOT, "start s": START},
                "met": ratio <= ROUND_TRIP and held and shot < ONE_SHOT and start < START,
            }
        )
    )


if __name__ == "__main__":
    main()
