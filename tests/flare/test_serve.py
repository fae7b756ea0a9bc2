"""Scores online where the partner is at a site of its own, that is killed and comes back."""

from __future__ import annotations

import json
import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import numpy as np
import polars as pl
import psutil
import pytest
from local import NAMES, Local, jobs_of, vertical_tables

from interlace import Federation, Party, SplitVFL
from interlace.sites import service, submission
from interlace.sites.contract import Contract
from interlace.sites.folder import Listening, Status

PEOPLE = 12


def test_a_service_over_sites(federation: Local, tmp_path: Path) -> None:
    federation.give(
        vertical_tables(), policy={"approve": [{"drivers": ["hospital"], "max_people": PEOPLE}]}
    )
    trained = Contract(
        name="online",
        parties=NAMES[:2],
        active=NAMES[0],
        method={"name": "split", "epochs": 2, "patience": None},
        compare=[{"name": "active_alone", "epochs": 1}],
        seeds=[0],
        classes=2,
        wait=0.05,
    )
    assert federation.run(trained).state == "finished"
    expected = joint_scores(federation, trained, tmp_path)
    shared = [int(id) for id in expected]
    scores = trained.to_score(PEOPLE, 0)
    run = federation.driver.run(scores.run)
    run.keep(scores)
    Listening(port=0, deadline_ms=3000).keep(run.path)
    jobs: list[str] = []
    ends: list[Status] = []

    def follow() -> None:
        told = submission.watch(federation.driver, scores, on_state=lambda job, _: jobs.append(job))
        ends.append(told)

    following = threading.Thread(target=follow, daemon=True)
    following.start()
    try:
        asked = joint(run, shared[:5])
        assert asked == {id: pytest.approx(expected[id], abs=1e-5) for id in shared[:5]}

        lab = federation.folders["lab"]
        site = service.process_of(lab.kit)
        assert site is not None
        for process in [psutil.Process(site), *jobs_of(lab)]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        for answer in ask(run, shared[:2]):
            assert answer["answered_by"] == "active alone"
            assert answer["reason"] in ("deadline", "partner failed")

        # FLARE's watchdog has it back, and the job is handed in again. What was answered before
        # counts: of twelve people five have been asked about.
        asked = joint(run, shared[5:10])
        assert asked == {id: pytest.approx(expected[id], abs=1e-5) for id in shared[5:10]}
        assert len(set(jobs)) > 1
        assert {a["reason"] for a in ask(run, shared[:3])} == {"partner failed"}
        assert set(joint(run, shared[:2])) == set(shared[:2])
        address = run.status.doing.split()[2].rstrip(",")
    finally:
        federation.give(vertical_tables())
        submission.stop(federation.driver.user, run.status.job or jobs[-1])
    following.join(timeout=60)
    assert [end.state for end in ends] == ["stopped"]
    assert run.status.state == "stopped"
    until = time.monotonic() + 30
    while listens(address) and time.monotonic() < until:
        time.sleep(0.2)
    assert not listens(address)


def listens(address: str) -> bool:
    """Whether anybody does, where questions went."""
    try:
        urlopen(address.replace("score", "health"), timeout=5).close()
    except (URLError, ConnectionError):
        return False
    return True


def ask(run: Any, ids: list[int]) -> list[dict[str, Any]]:
    """The answers about people."""
    doing = run.status.doing
    if not doing.startswith("answers at "):
        raise URLError(f"not yet: {doing}")
    address = doing.split()[2].rstrip(",")
    body = json.dumps({"ids": ids}).encode()
    headers = {"Content-Type": "application/json"}
    with urlopen(Request(address, body, headers), timeout=30) as answer:
        found: list[dict[str, Any]] = json.load(answer)["answers"]
        return found


def joint(run: Any, ids: list[int]) -> dict[int, float]:
    """The joint scores of people, once they can be had."""
    until = time.monotonic() + 150
    while time.monotonic() < until:
        with suppress(URLError, ConnectionError):
            answers = ask(run, ids)
            if all(a["answered_by"] == "joint" for a in answers):
                return {a["id"]: a["probabilities"]["1"] for a in answers}
        time.sleep(0.5)
    raise AssertionError(f"nobody answers jointly: {run.status}; {run.log.read_text()[-2000:]}")


def joint_scores(federation: Local, of: Contract, folder: Path) -> dict[int, float]:
    """By the same parts of the model in one process, everybody whom both parties hold."""
    parties = []
    for name in of.parties:
        root, file = federation.folders[name].root, federation.folders[name].read()
        kept = folder / "parties" / name
        kept.mkdir(parents=True)
        for part in ("alignment", "models"):
            os.symlink(federation.folder(name, of) / part, kept / part)
        table = pl.read_csv(root / "table.csv")
        parties.append(Party(name, table, label=file.label))
    together = Federation.simulate(parties, active=of.active, folder=folder).shared()
    outputs = SplitVFL().load("split-0", together).outputs(together)
    ids = together.active.frame["id"].to_numpy()[together.rows]
    return dict(zip(ids.tolist(), np.asarray(outputs)[:, 1].tolist(), strict=True))
