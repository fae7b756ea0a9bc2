"""A federation on this machine: three parties' sites and a server, processes of their own, mutual
TLS. The tests and benchmarks of runs over sites start one, and submit contracts to it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import psutil
import yaml
from sklearn.datasets import load_breast_cancer
from way import Way

from interlace import runner
from interlace.boundary import Ledger
from interlace.job.results import Results
from interlace.job.spec import write_job
from interlace.sites import service, submission
from interlace.sites.contract import Contract
from interlace.sites.folder import PartyFolder, Status
from interlace.sites.job import job_of
from interlace.sites.plan import Leaving, Plan, as_arbiter
from interlace.sites.provision import together

NAMES = ["hospital", "lab", "registry"]
SLOW = 0.02  # seconds by which a way makes each message later: 20 epochs last half a minute


def vertical_tables(seed: int = 0) -> dict[str, pl.DataFrame]:
    """569 people: the hospital has all and their label, the others most of them, columns apart."""
    data = load_breast_cancer()
    names = [str(name) for name in data.feature_names]
    people = pl.DataFrame(data.data, schema=names).with_row_index("id")
    label = pl.Series("benign", data.target)
    some = {
        n: people.sample(k, shuffle=True, seed=seed + k)
        for n, k in (("lab", 500), ("registry", 520))
    }
    return {
        "hospital": people.select("id", *names[:10], label),
        "lab": some["lab"].select("id", *names[10:20]),
        "registry": some["registry"].select("id", *names[20:]),
    }


def horizontal_tables(seed: int = 0) -> dict[str, pl.DataFrame]:
    """The same people cut by rows: each party has a third, all columns, and the label."""
    data = load_breast_cancer()
    names = [str(name) for name in data.feature_names]
    rows = pl.DataFrame(data.data, schema=names).with_columns(pl.Series("benign", data.target))
    order = np.random.default_rng(seed).permutation(len(rows))
    parts = np.array_split(order, 3)
    return {name: rows[np.sort(part)] for name, part in zip(NAMES, parts, strict=True)}


class Local:
    """A federation whose sites are up.

    Args:
        root: Where the parties' folders are made.
        by_way: Sites that reach the server by a way of their own, which can be slowed or cut.
    """

    def __init__(self, root: Path, by_way: Sequence[str] = ()) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.port = port
        self.folders = {f.name: f for f in together(root, NAMES, name="trial", port=port)}
        self.driver = self.folders[NAMES[0]]

        self.ways = {name: self._way(name) for name in by_way}

    def _way(self, name: str) -> Way:
        way, file = Way(self.port), self.folders[name].kit / "startup" / "fed_client.json"
        file.write_text(file.read_text().replace(f":{self.port}", f":{way.port}"))
        return way

    def give(self, tables: Mapping[str, pl.DataFrame], **fields: Any) -> None:
        """Give the parties their tables, and party files with these fields besides."""
        for i, (name, table) in enumerate(tables.items()):
            root = self.folders[name].root
            table.write_csv(root / "table.csv")
            file = {
                "table": "table.csv",
                "id": "id" if "id" in table.columns else None,
                "secret": 1000 + i,
                "policy": {"approve": [{"drivers": [NAMES[0]]}]},
                **({"label": "benign"} if "benign" in table.columns else {}),
                **fields,
            }
            if "label" not in file:
                file.pop("task", None)
            (root / "party.yaml").write_text(yaml.safe_dump(file))

    def up(self) -> float:
        """Start all sites; gives the seconds until all were connected."""
        began = time.perf_counter()
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        with ThreadPoolExecutor() as pool:
            list(pool.map(service.up, self.folders.values()))
        return time.perf_counter() - began

    def down(self) -> None:
        """End all processes."""
        with ThreadPoolExecutor() as pool:
            list(pool.map(service.down, self.folders.values()))

    def run(self, contract: Contract, on_state: Any = lambda _job, _state: None) -> Status:
        """Submit a contract and follow it to its end."""
        return submission.watch(self.driver, contract, on_state=on_state)

    def run_to_its_end(self, contract: Contract) -> Status:
        """The same, also where a busy machine makes a partner late, and the run is paused."""
        for _ in range(5):
            if (status := self.run(contract)).state != "paused":
                break
        return status

    def plan(self, contract: Contract) -> None:
        """Give every party the plan that all kinds leave, however much: to reckon one takes a
        rehearsal of every method, and is not what is looked at."""
        for name in contract.parties:
            folder = self.folders[name]
            run = folder.run(contract.run)
            run.keep(contract)
            kinds = folder.read().policy.allowed
            leaves = {kind: Leaving(messages=1, bytes=1) for kind in kinds}
            plan = Plan(run=contract.run, party=name, leaves=leaves, capped=False)
            (run.path / "plan.json").write_text(plan.model_dump_json())

    def folder(self, party: str, contract: Contract) -> Path:
        """A party's folder of a run."""
        return self.folders[party].run(contract.run).path

    def first_message(self, contract: Contract) -> float:
        """When the driver sent its first message of a run's training, in seconds of the epoch."""
        ledger = Ledger(self.folder(self.driver.name, contract) / "ledger.sqlite")
        return next(e.time for e in ledger.entries() if e.session not in ("run", "alignment"))


def jobs_of(folder: PartyFolder) -> list[psutil.Process]:
    """The job processes that a site has now."""
    pid = service.process_of(folder.kit)
    return psutil.Process(pid).children(recursive=True) if pid else []


def small(name: str, *, parties: list[str] = NAMES, epochs: int = 2, **fields: Any) -> Contract:
    """A short run of split learning."""
    return Contract(
        name=name,
        parties=parties,
        active=NAMES[0],
        method={"name": "split", "epochs": epochs, "patience": None, "batch_size": 32},
        **{"compare": "none", "seeds": [0], "classes": 2, "wait": 0.05, **fields},
    )


def in_process(federation: Local, of: Contract, folder: Path, *, aligned: bool = True) -> Results:
    """The same job in this process, over the parties' own files; it takes up the matching that the
    sites made, or matches anew."""
    files = {}
    for name in of.parties:
        file = federation.folders[name].read()
        if name == of.arbiter:
            file = as_arbiter(file)
        policy = file.policy.model_copy(update={"stop_file": None})
        files[name] = file.model_copy(update={"policy": policy})
        kept = federation.folder(name, of) / "alignment"
        if aligned and kept.exists():
            shutil.copytree(kept, folder / "parties" / name / "alignment")
    job = job_of(of, files)
    folder.mkdir(parents=True, exist_ok=True)
    write_job(job, folder / "job.yaml")
    return runner.run(job, folder)


@contextmanager
def going_on(federation: Local, of: Contract) -> Iterator[Future[Status]]:
    """A run whose first partner, at the end of a way of its own, has a checkpoint, and what it will
    have come to. The way is slow until somebody mends it, or the run has ended: however fast or
    busy the machine, the run is not over before it is harmed."""
    federation.plan(of)
    kept, way = checkpoint(federation, of), federation.ways[of.passive[0]]
    way.delay = SLOW
    try:
        with ThreadPoolExecutor() as pool:
            while True:
                end = pool.submit(federation.run, of)
                wait(300, lambda end=end: kept.exists() or end.done())
                if kept.exists() or end.result().state != "paused":
                    break
            yield end
    finally:
        way.mend()


def checkpoint(federation: Local, of: Contract) -> Path:
    """Where the first partner of a run has a checkpoint while the run is trained."""
    return federation.folder(of.passive[0], of) / "checkpoints" / "split-0"


def wait(seconds: float, until: Callable[[], Any]) -> None:
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not until():
        if time.monotonic() > end:
            raise TimeoutError(f"it did not come about in {seconds:.0f} s")
        time.sleep(0.2)


# Watchdogs would start again what is ended before they are.
_GUARD = """
import os, sys, time
import psutil
sys.stdin.read()
for _ in range(5):
    for process in psutil.process_iter(["cmdline"]):
        if process.pid != os.getpid() and sys.argv[1] in " ".join(process.info["cmdline"] or []):
            process.kill()
    time.sleep(0.5)
"""


@contextmanager
def local(root: Path, by_way: Sequence[str] = ()) -> Iterator[Local]:
    """A federation that is up, and down again at the end, or when this process is no more."""
    federation = Local(root, by_way)
    federation.give(vertical_tables())
    guard = [sys.executable, "-c", _GUARD, str(root)]
    with subprocess.Popen(guard, stdin=subprocess.PIPE, start_new_session=True):
        try:
            federation.up()
            yield federation
        finally:
            federation.down()
