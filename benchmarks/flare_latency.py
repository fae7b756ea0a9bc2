"""What a run over sites costs in time: a round trip, an epoch, a one-shot method, a start.

A federation of three sites on this machine: processes of their own, mutual TLS, as provisioned.

- **Round trip**: one operation that sends 64 KB and gets 64 KB back, through both boundaries and
  ledgers, sealed end to end and relayed by the server, against a bare unary gRPC call (grpc.aio,
  mutual TLS) of the same bytes; in turns, from one and the same process. Medians.
- **Flat**: threads and memory of both job processes over ``--messages`` messages, two to an
  operation.
- **Epoch**: split learning of two parties over 30,000 people in batches of 256, in one process,
  deployed, and deployed with every operation waited for: which share of that last gap it hides to
  send a batch's backward with the next one's forward, and to learn meanwhile.
- **One-shot**: the same for the one-shot method, without the last.
- **Start**: from no federation to the first round.

Run it as ``make bench NAME=flare_latency``, with ``--messages 100000`` for the long run.
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

from interlace.job.results import Results
from interlace.sites import submission
from interlace.sites.contract import Contract

TESTS = Path(__file__).parents[1] / "tests" / "flare"
sys.path.insert(0, str(TESTS))
from local import NAMES, Local, in_process  # noqa: E402

ROUND_TRIP, HIDDEN, ONE_SHOT, START = 2.5, 0.5, 1.5, 60.0  # the targets
FLAT = {"threads": 3, "share": 1.1}  # more threads, and memory over what it was half way
PEOPLE, COLUMNS, EPOCHS = 30_000, 10, 12


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


def submitted(federation: Local, of: Contract, site: str) -> None:
    """Have a contract carried out by measuring sites, to its end."""
    driver = federation.driver
    federation.plan(of)
    with tempfile.TemporaryDirectory() as scratch:
        job = Path(scratch) / of.name
        submission.write_job(of, job)
        config = job / "site" / "config" / "config_fed_client.json"
        config.write_text(config.read_text().replace("interlace.sites.job.Site", f"echo.{site}"))
        with submission.session(driver.user) as session:
            number = session.submit_job(str(job))
            while not (state := _state(session, number)).startswith("FINISHED"):
                time.sleep(2)
    if state != "FINISHED:COMPLETED":
        raise SystemExit(f"the job of '{of.name}' is {state}")


def _state(session: Any, number: str) -> str:
    return str(session.get_job_meta(number).get("status"))


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
        submitted(federation, contract("echo", {"name": "split", "epochs": 1}), "EchoSite")
    finally:
        server.terminate()
        server.wait()
    found: dict[str, Any] = json.loads((driver.root / "found.json").read_text())
    return found


def flat(sizes: list[dict[str, Any]]) -> tuple[bool, dict[str, Any]]:
    """Whether neither job process grows in the second half; FLARE's timers are all there after a
    minute."""
    first, last, figures = sizes[len(sizes) // 2], sizes[-1], {}
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


def deployed(federation: Local, of: Contract, site: str = "CountingSite") -> Results:
    """What a contract over sites comes to."""
    submitted(federation, of, site)
    return Results.read(federation.folder(NAMES[0], of) / "results.json")


def epoch(results: Results) -> float:
    """Seconds of an epoch, the median."""
    return statistics.median(e.seconds for e in results.models[0].fits[0].history)


def trips(federation: Local, of: Contract) -> int:
    """Round trips of an epoch's batches."""
    counted = json.loads((federation.folder(NAMES[0], of) / "trips.json").read_text())
    batches = [n for names, n in counted.items() if {"forward", "backward"} & {*names.split()}]
    return round(sum(batches) / EPOCHS)


def main() -> None:
    """Measure all of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=10_000)
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
            method = {"name": "split", "epochs": EPOCHS, "batch_size": 256}
            split, waiting = contract("split", method), contract("waiting", method)
            there = deployed(federation, split)
            here = in_process(federation, split, scratch / "split", aligned=False)
            slow = deployed(federation, waiting, "WaitingSite")
            once = contract("one-shot", {"name": "one_shot", "epochs": 5, "local_epochs": 5})
            one_shot = (
                deployed(federation, once),
                in_process(federation, once, scratch / "one-shot", aligned=False),
            )
            trips_of = {
                "deployed": trips(federation, split),
                "all waited for": trips(federation, waiting),
            }
            found = echoes(federation, options.blocks, options.turns, options.messages // 2)
        finally:
            federation.down()
    trip = {w: 1e3 * statistics.median(t for _, t in found[w]) for w in ("flare", "grpc")}
    epochs = {"one process": epoch(here), "deployed": epoch(there), "all waited for": epoch(slow)}
    hidden = (epochs["all waited for"] - epochs["deployed"]) / (
        epochs["all waited for"] - epochs["one process"]
    )
    shots = [r.models[0].fits[0].seconds for r in one_shot]
    held, sizes = flat(found["sizes"])
    ratio, shot = trip["flare"] / trip["grpc"], shots[0] / shots[1]
    print(
        json.dumps(
            {
                "round trip ms": round(trip["flare"], 2),
                "bare gRPC ms": round(trip["grpc"], 2),
                "round trip ratio": round(ratio, 2),
                "messages": options.messages,
                "from half way to the end": sizes,
                "flat": held,
                "epoch s": {of: round(seconds, 3) for of, seconds in epochs.items()},
                "round trips an epoch": trips_of,
                "share of the gap hidden": round(hidden, 2),
                "one-shot s": [round(s, 2) for s in shots],
                "one-shot ratio": round(shot, 2),
                "start s": round(start, 1),
                "targets": {
                    "round trip": ROUND_TRIP,
                    "hidden": HIDDEN,
                    "one-shot": ONE_SHOT,
                    "start s": START,
                },
                "met": ratio <= ROUND_TRIP
                and held
                and hidden >= HIDDEN
                and shot < ONE_SHOT
                and start < START,
            }
        )
    )


if __name__ == "__main__":
    main()
