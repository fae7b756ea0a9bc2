"""A run that is stopped anywhere, by whatever, and goes on, comes to what it would have come to."""

from __future__ import annotations

import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from typer.testing import Result

from interlace.job.results import Results

# The program with an epoch that takes a moment, so that there is something to stop.
SLOW = """
import time
from interlace.methods.vertical import joint
write, interlace = joint.write_checkpoint, __import__("interlace.cli")
def slowly(*args):
    write(*args)
    time.sleep(0.02)
joint.write_checkpoint = slowly
interlace.cli.app()
"""

Call = Callable[..., Result]
Found = list[tuple[str, int, dict[str, float], list[tuple[float, float | None]]]]
WriteJob = Callable[..., Path]
Tables = dict[str, pl.DataFrame]


@pytest.fixture
def job(tables: Tables, write_job: WriteJob) -> Path:
    method = {"name": "split", "epochs": 6, "dropout": 0.2, "patience": 4, "batch_size": 32}
    guards = {"embedding": [{"clip": {"norm": 1.0}}, {"gaussian": {"sigma": 0.1}}, {"half": {}}]}
    return write_job(
        tables,
        method=method,
        compare=["active_alone"],
        seeds=[0, 1],
        shop={"policy": {"guards": guards}},
    )


@pytest.fixture
def whole(call: Call, job: Path) -> Found:
    """What the job comes to when nothing stops it."""
    assert call("run", job, "--out", "whole").exit_code == 0
    return _found(Path("whole"))


def _found(run: Path) -> Found:
    """All that a run found, but for how long it took."""
    results = Results.read(run / "results.json")
    assert results.finished
    return [
        (m.name, f.seed, f.metrics, [(e.loss, e.validation) for e in f.history])
        for m in results.models
        for f in m.fits
    ]


def _start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SLOW, "run", *arguments], stderr=subprocess.PIPE, text=True
    )


def _wait_for(process: subprocess.Popen[str], folder: Path, checkpoints: int) -> None:
    """Until the run has written that many more checkpoints, or ends."""
    old = seen = {str(p) for p in folder.glob("parties/bank/checkpoints/*/0*")}
    while len(seen - old) < checkpoints and process.poll() is None:
        seen = seen | {str(p) for p in folder.glob("parties/bank/checkpoints/*/0*")}
        time.sleep(0.005)


def test_killed_at_random_and_resumed(call: Call, job: Path, whole: Found) -> None:
    chance = random.Random(7)
    run, kills, resume = Path("run"), 0, list[str]()
    for _ in range(3):
        process = _start(str(job), "--out", "run", *resume)
        _wait_for(process, run, chance.randint(1, 5))
        time.sleep(chance.random() * 0.05)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        kills += process.returncode == -signal.SIGKILL
        resume = ["--resume"]
    assert kills == 3
    done = call("run", job, "--out", "run", "--resume")
    assert done.exit_code == 0, done.output
    assert _found(run) == whole
    assert call("report", "run", "--verify").exit_code == 0


def test_ctrl_c_says_how_to_go_on(call: Call, job: Path, whole: Found) -> None:
    process = _start(str(job), "--out", "run")
    _wait_for(process, Path("run"), 2)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "All but the current epoch is kept" in said
    assert "Traceback" not in said
    command = re.search(r"^ +interlace (run .*)$", said, flags=re.MULTILINE)
    assert command is not None
    done = call(*command[1].split())
    assert done.exit_code == 0, done.output
    assert _found(Path("run")) == whole
    flows = [
        (f.session, f.operation, f.kind, f.sender, f.receiver)
        for f in Results.read(Path("run/results.json")).flows
    ]
    assert len(set(flows)) == len(flows), "nothing is counted twice"


def test_ctrl_c_before_the_first_epoch_loses_nothing_either(
    call: Call, job: Path, whole: Found, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_args: object, **_kwargs: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("interlace.federation.Federation.align", stop)
        assert call("run", job, "--out", "run").exit_code == 130
    done = call("run", job, "--out", "run", "--resume")
    assert done.exit_code == 0, done.output
    assert _found(Path("run")) == whole


def test_a_finished_run_is_left_as_it_is(call: Call, job: Path, whole: Found) -> None:
    results = Path("whole/results.json")
    before = results.read_bytes()
    done = call("run", job, "--out", "whole", "--resume", "--quiet")
    assert (done.exit_code, done.output) == (0, "")
    assert results.read_bytes() == before
