"""Kill the processes of a run over sites at random moments: is a run lost, or its result another?

A federation of three sites on this machine trains by split learning, again and again. Meanwhile one
process after another gets SIGKILL: first a kind is drawn (a party's site, its job process, the
server, the server's job process), then one of that kind, and a moment. The run may be starting,
matching people, training, ending, or coming back from the kill before. FLARE's watchdogs start
sites and servers again, until they give up; then this script does, as a service manager would.

A run *finished* if it came to its end by itself. It was *resumed* if it ended in between, with a
reason, as half of the runs do whose jobs wait for two minutes alone; and submitting it again
brought it to its end. Else it is *lost*. Every model of every party must be to the bit that of an
uninterrupted run of the same job in one process.

Run it as ``make bench NAME=flare_faults``; ``--kills`` (100), ``--seed``, ``--out``. What became of
a run is kept in a file of its own; a script that was stopped goes on after the last. A kill takes
about a minute. The last line is JSON.

``--scenario`` does one of three other things instead: ``network`` (a site's way to the server is
slow, brings nothing, is cut), ``disk`` (a site's runs lie on a disk of 300 KB; needs root) or
``clock`` (a site's clock is wrong by an hour or by ten years; needs a C compiler).
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import torch

from interlace.errors import InterlaceError
from interlace.files import write_whole
from interlace.sites import service
from interlace.sites.contract import Contract

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "flare"))
from flare_parity import difference
from local import Local, going_on, in_process, local, small, wait

ROOT = Path(__file__).parents[1]
EPOCHS = 200
MOST_KILLS = 10  # of one run
LONGEST = 45.0  # seconds between two kills
IN_TRAINING = 8.0  # seconds between a training's beginning, or going on, and a kill in it
WAITS = [0.03, 0.5]  # hours that a job waits for who is away
MOST_TRIES = 10  # how often a run is submitted


def targets(federation: Local) -> dict[str, dict[str, list[psutil.Process]]]:
    """The processes that there are now, by their kind and whose they are."""
    found: dict[str, dict[str, list[psutil.Process]]] = collections.defaultdict(dict)
    kits = {name: f.kit for name, f in federation.folders.items()}
    for name, kit in {**kits, "server": federation.driver.server}.items():
        pid = service.process_of(kit)
        if pid is None:
            continue
        with suppress(psutil.NoSuchProcess):
            parent = psutil.Process(pid)
            jobs = parent.children(recursive=True)
            found["server" if name == "server" else "site"][name] = [parent]
            if jobs:
                found[f"job process of a {'server' if name == 'server' else 'site'}"][name] = jobs
    return found


class Killer(threading.Thread):
    """Kills something at random moments, so many times or until the run is over.

    Args:
        federation: Whose processes.
        chance: What is drawn from.
        kills: How many times.
        contract: What the run is about.
    """

    def __init__(
        self, federation: Local, chance: random.Random, kills: int, contract: Contract
    ) -> None:
        super().__init__(daemon=True)
        self.federation, self.chance, self.left = federation, chance, kills
        self.status = federation.driver.run(contract.run)
        self.killed: list[dict[str, Any]] = []
        self.tended = 0  # processes that no watchdog looked after any more
        self.began = time.monotonic()
        self.job = ""  # what the server says of it
        self.over = threading.Event()

    def told(self, job: str, state: str) -> None:
        """What the server says of the job."""
        self.job = state
        self._say(f"{job[:8]} {state}")

    def run(self) -> None:
        """Until the run is over: who is not there at all cannot come back either."""
        due = self._due()
        while not self.over.wait(0.5):
            self._tend()
            if self.left and next(due):
                self._kill()
                due = self._due()

    def _due(self) -> Iterator[bool]:
        """Whether the moment of the next kill has come, asked again and again."""
        longest = LONGEST
        if self.chance.random() < 0.5:
            longest = IN_TRAINING
            before = self.status.status.done
            while not (
                self.job == "RUNNING"
                and "epoch" in self.status.status.doing
                and self.status.status.done > before
            ):
                yield False
        moment = time.monotonic() + self.chance.uniform(0.0, longest)
        while time.monotonic() < moment:
            yield False
        yield True

    def _kill(self) -> None:
        there = targets(self.federation)
        if not there:
            return
        kind = self.chance.choice(sorted(there))
        whose = self.chance.choice(sorted(there[kind]))
        for process in there[kind][whose]:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        self.left -= 1
        kill = {
            "kind": kind,
            "whose": whose,
            "seconds": round(time.monotonic() - self.began, 1),
            "job": self.job,
            "doing": self.status.status.doing,
            "done": round(self.status.status.done, 3),
        }
        self.killed.append(kill)
        self._say("killed", *(f"{kill[k]}" for k in ("kind", "whose", "job", "doing", "done")))

    def _tend(self) -> None:
        for folder in self.federation.folders.values():
            if all(map(service.tended, service.kits_of(folder))):
                continue
            self.tended += 1
            self._say(f"nobody looks after {folder.name} any more; up again")
            with suppress(InterlaceError):
                service.up(folder)

    def _say(self, *what: str) -> None:
        print(f"    {time.strftime('%H:%M:%S')}", *what, flush=True)


def right(federation: Local, contract: Contract, folder: Path) -> float:
    """How far any party's model is from that of an uninterrupted run in this process."""
    in_process(federation, contract, folder)
    return max(
        difference(
            federation.folder(name, contract) / "models", folder / "parties" / name / "models"
        )
        for name in contract.parties
    )


def one(federation: Local, number: int, seed: int, kills: int, scratch: Path) -> dict[str, Any]:
    """One run, which at most so many kills meet, and what became of it."""
    chance = random.Random(f"{seed}-{number}")
    wait = chance.choice(WAITS)
    contract = small(f"run-{number}", epochs=EPOCHS, seeds=[number], wait=wait)
    federation.plan(contract)
    killer = Killer(federation, chance, min(chance.randint(1, MOST_KILLS), kills), contract)
    killer.start()
    ends: list[str] = []
    while len(ends) < MOST_TRIES and ends[-1:] != ["finished"]:
        try:
            status = federation.run(contract, killer.told)
            ends.append(f"{status.state} {status.reason}".strip())
        except InterlaceError as e:
            ends.append(f"{type(e).__name__}: {e}")
        print(f"  run {number}: {ends[-1]}", flush=True)
    killer.over.set()
    killer.join()
    finished = ends[-1] == "finished"
    return {
        "run": number,
        "wait": contract.wait,
        "seconds": round(time.monotonic() - killer.began),
        "kills": killer.killed,
        "tended": killer.tended,
        "ends": ends,
        "outcome": ("finished" if len(ends) == 1 else "resumed") if finished else "lost",
        "difference": right(federation, contract, scratch) if finished else None,
    }


def network(federation: Local, scratch: Path) -> dict[str, Any]:
    """A site's way is slow, then brings nothing, then is cut, for ten seconds each."""
    of, way = small("network", epochs=EPOCHS, wait=0.5), federation.ways["lab"]
    run, found = federation.driver.run(of.run), {}
    with going_on(federation, of) as end:
        for harm in ("slow", "silent", "cut"):
            before = run.status.done
            if harm == "slow":
                way.delay = 0.2
            else:
                (way.lose if harm == "silent" else way.cut)()
            time.sleep(10)
            during = run.status.done - before
            way.mend()
            mended = time.monotonic()
            wait(600, lambda least=run.status.done: run.status.done > least or end.done())
            found[harm] = {"done meanwhile": during, "goes on after": time.monotonic() - mended}
    status = end.result()
    return {
        "harms": found,
        "end": f"{status.state} {status.reason}".strip(),
        "difference": right(federation, of, scratch),
    }


def disk(federation: Local, scratch: Path) -> dict[str, Any]:
    """A site's disk is full in the middle of a run; then there is room, and it is submitted
    again."""
    lab = federation.folders["lab"]
    of, runs = small("disk", epochs=EPOCHS), lab.root / "runs"
    runs.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", runs], check=True)
    try:
        federation.plan(of)
        full, there = federation.run(of), lab.run(of.run).status
        subprocess.run(["mount", "-o", "remount,size=100m", runs], check=True)
        again = federation.run(of)
        return {
            "at the driver": f"{full.state} {full.reason}",
            "at the site": f"{there.state} {there.reason}",
            "with room": again.state,
            "difference": right(federation, of, scratch),
        }
    finally:
        subprocess.run(["umount", "--lazy", runs], check=True)


# Loaded before the C library, it moves a process's clock by CLOCK_OFF seconds.
CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
static long off(void) { const char *text = getenv("CLOCK_OFF"); return text ? atol(text) : 0; }
int clock_gettime(clockid_t id, struct timespec *at) {
  int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
  int failed = real(id, at);
  if (id == CLOCK_REALTIME) at->tv_sec += off();
  return failed;
}
int gettimeofday(struct timeval *at, void *zone) {
  struct timespec now;
  int failed = clock_gettime(CLOCK_REALTIME, &now);
  at->tv_sec = now.tv_sec; at->tv_usec = now.tv_nsec / 1000;
  return failed;
}
time_t time(time_t *at) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (at) *at = now.tv_sec;
  return now.tv_sec;
}
"""


def clock(federation: Local, scratch: Path) -> dict[str, Any]:
    """A site's clock is wrong: what its check and its start say, and what becomes of a run."""
    lab, found = federation.folders["lab"], {}
    library = scratch / "clock.so"
    scratch.mkdir(parents=True)
    (scratch / "clock.c").write_text(CLOCK)
    compiler = ["cc", "-shared", "-fPIC", "-o", library, scratch / "clock.c", "-ldl"]
    subprocess.run(compiler, check=True)
    for name, hours in (("an hour ahead", 1), ("an hour behind", -1), ("ten years ahead", 87_660)):
        service.down(lab)
        wrong = {**os.environ, "LD_PRELOAD": str(library), "CLOCK_OFF": str(hours * 3600)}
        said = {
            verb: subprocess.run(
                [Path(sys.executable).with_name("interlace"), "party", verb, "--party", lab.root],
                env=wrong,
                capture_output=True,
                text=True,
            )
            for verb in ("check", "up")
        }
        found[name] = {
            verb: "good" if not done.returncode else done.stdout[-500:] + done.stderr[-500:]
            for verb, done in said.items()
        }
        if not said["up"].returncode:
            of = small(f"clock-{hours}", epochs=EPOCHS)
            federation.plan(of)
            status = federation.run(of)
            found[name]["run"] = f"{status.state} {status.reason}".strip()
            found[name]["difference"] = right(federation, of, scratch / str(hours))
    service.down(lab)
    service.up(lab)
    return found


SCENARIOS = {"network": network, "disk": disk, "clock": clock}


def kept(out: Path) -> Iterator[dict[str, Any]]:
    """What became of the runs so far."""
    for file in sorted(out.glob("run-*.json")):
        yield json.loads(file.read_text())


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """All runs together."""
    kills = [kill for run in runs for kill in run["kills"]]
    outcomes = collections.Counter(run["outcome"] for run in runs)
    other = [run["run"] for run in runs if run["difference"]]
    return {
        "kills": len(kills),
        "of": collections.Counter(kill["kind"] for kill in kills),
        "in training": sum("epoch" in kill["doing"] for kill in kills if kill["job"] == "RUNNING"),
        "runs": len(runs),
        **{outcome: outcomes[outcome] for outcome in ("finished", "resumed", "lost")},
        "with another result": other,
        "sites started by hand": sum(run["tended"] for run in runs),
        "target": "no run lost, none with another result, over 100 kills",
        "met": not outcomes["lost"] and not other and len(kills) >= 100,
    }


def main() -> None:
    """Run and kill."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench" / "flare_faults")
    parser.add_argument("--scenario", choices=SCENARIOS)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    with (
        tempfile.TemporaryDirectory(prefix="interlace-") as scratch,
        local(Path(scratch), by_way=["lab"] if options.scenario else []) as federation,
    ):
        here = Path(scratch) / "here"
        if options.scenario:
            found = SCENARIOS[options.scenario](federation, here)
        else:
            found = kill(federation, here, options)
    print(json.dumps(found))


def kill(federation: Local, scratch: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Runs until there were so many kills."""
    options.out.mkdir(parents=True, exist_ok=True)
    runs = list(kept(options.out))
    while (left := options.kills - summary(runs)["kills"]) > 0:
        number = len(runs) + 1
        runs.append(one(federation, number, options.seed, left, scratch / str(number)))
        text = json.dumps(runs[-1], indent=1)
        write_whole(options.out / f"run-{number:03}.json", text.encode())
        if runs[-1]["outcome"] == "lost":
            for name, folder in federation.folders.items():
                shutil.copytree(folder.root, options.out / f"lost-{number:03}" / name)
        print(f"  {json.dumps(summary(runs))}", flush=True)
    return summary(runs)


if __name__ == "__main__":
    main()
