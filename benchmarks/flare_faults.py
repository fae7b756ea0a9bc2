"""Kill the processes of a run over sites at random moments: is a run lost, or its result another?

A federation of three sites on this machine trains by split learning, again and again. While a run
goes on, one process after another gets SIGKILL at a random moment: a party's job process, a party's
site, the server's job process, the server. FLARE's watchdogs start sites and servers again; the run
is submitted again as often as it takes, and must end with the models that an uninterrupted run of
the same job in one process ends with, at every party.

Run it as ``make bench NAME=flare_faults``; ``--kills`` (100) and ``--seed``. A kill takes about a
minute. The last line is JSON.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import torch

from interlace import runner
from interlace.job.spec import write_job
from interlace.sites import service
from interlace.sites.contract import Contract
from interlace.sites.job import job_of

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "flare"))
from flare_parity import TOLERANCE, difference
from local import NAMES, Local, local

EPOCHS = 60
KILLS_A_RUN = 3
LATEST = 25.0  # seconds after a job has begun to run


def targets(federation: Local) -> dict[str, list[psutil.Process]]:
    """The processes that there are now, by what they are."""
    found: dict[str, list[psutil.Process]] = {}
    kits = {name: f.kit for name, f in federation.folders.items()}
    for name, kit in {**kits, "server": federation.driver.server}.items():
        pid = service.process_of(kit)
        if pid is None:
            continue
        with suppress(psutil.NoSuchProcess):
            site = psutil.Process(pid)
            found[f"site of {name}"] = [site]
            if jobs := site.children(recursive=True):
                found[f"job process of {name}"] = jobs
    return found


class Killer(threading.Thread):
    """Kills something at a random moment after each start of a job, so many times.

    Args:
        federation: Whose processes.
        chance: What is drawn from.
        kills: How many times.
    """

    def __init__(self, federation: Local, chance: random.Random, kills: int) -> None:
        super().__init__(daemon=True)
        self.federation, self.chance, self.left = federation, chance, kills
        self.killed: list[str] = []
        self.running, self.over = threading.Event(), threading.Event()

    def told(self, job: str, state: str) -> None:
        """What the server says of the job."""
        print(f"    {time.strftime('%H:%M:%S')} {job[:8]} {state}", flush=True)
        if state == "RUNNING":
            self.running.set()

    def run(self) -> None:
        """Until all kills are done, or the run is."""
        while self.left and not self.over.is_set():
            if not self.running.wait(1.0):
                continue
            self.running.clear()
            if self.over.wait(self.chance.uniform(0.0, LATEST)):
                return
            there = targets(self.federation)
            whom = self.chance.choice(sorted(there))
            for process in there[whom]:
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGKILL)
            print(f"    {time.strftime('%H:%M:%S')} killed the {whom}", flush=True)
            self.killed.append(whom)
            self.left -= 1
            self.running.set() if self.left else None  # a site that is killed need not end a job


def right(federation: Local, contract: Contract, folder: Path) -> float:
    """How far any party's model is from that of an uninterrupted run in this process."""
    files: dict[str, Any] = {}
    for name in contract.parties:
        root, file = federation.folders[name].root, federation.folders[name].read()
        policy = file.policy.model_copy(update={"stop_file": None})
        files[name] = file.model_copy(update={"table": str(root / "table.csv"), "policy": policy})
        kept = federation.folder(name, contract) / "alignment"
        shutil.copytree(kept, folder / "parties" / name / "alignment")
    job = job_of(contract, files)
    write_job(job, folder / "job.yaml")
    runner.run(job, folder)
    return max(
        difference(
            federation.folder(name, contract) / "models", folder / "parties" / name / "models"
        )
        for name in contract.parties
    )


def main() -> None:
    """Run and kill."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    chance = random.Random(options.seed)
    killed: list[str] = []
    lost: list[str] = []
    other: list[str] = []
    runs = 0
    with tempfile.TemporaryDirectory(prefix="interlace-") as scratch, local(Path(scratch)) as fed:
        while len(killed) < options.kills:
            runs += 1
            contract = Contract(
                name=f"run-{runs}",
                parties=NAMES,
                active=NAMES[0],
                method={"name": "split", "epochs": EPOCHS, "patience": None, "batch_size": 32},
                compare="none",
                seeds=[runs],
                classes=2,
                wait=0.5,
            )
            fed.plan(contract)
            killer = Killer(fed, chance, min(KILLS_A_RUN, options.kills - len(killed)))
            killer.start()
            began = time.perf_counter()
            try:
                status = fed.run(contract, killer.told)
                state, reason = status.state, status.reason
            except Exception as e:
                state, reason = "failed", repr(e)
            killer.over.set()
            killer.join()
            killed += killer.killed
            print(
                f"  run {runs}: {state} {reason} in {time.perf_counter() - began:.0f} s", flush=True
            )
            if state != "finished":
                lost.append(f"run {runs} ({', '.join(killer.killed)}): {state} {reason}")
                continue
            far = right(fed, contract, Path(scratch) / "here" / str(runs))
            print(f"  run {runs}: {far:.1e} from the uninterrupted one", flush=True)
            if far > TOLERANCE:
                other.append(f"run {runs} ({', '.join(killer.killed)})")
    print(
        json.dumps(
            {
                "kills": len(killed),
                "of": collections.Counter(killed),
                "runs": runs,
                "lost": lost,
                "with another result": other,
                "target": "no run lost, none with another result, over 100 kills",
                "met": not lost and not other and len(killed) >= 100,
            }
        )
    )


if __name__ == "__main__":
    main()
