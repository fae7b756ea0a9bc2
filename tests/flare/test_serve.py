"""Scores where the partner is at a site of its own: of a table, and online while it is killed and
comes back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import polars as pl
import psutil
import pytest
from local import NAMES, Local, jobs_of, vertical_tables
from polars.testing import assert_frame_equal
from typer.testing import CliRunner

from interlace.boundary import Ledger
from interlace.cli import app
from interlace.serve.batch import Trained
from interlace.sites import compare, service, submission
from interlace.sites.contract import Contract
from interlace.sites.folder import Listening, PartyFolder, RunFolder, Status

PEOPLE = 12


@pytest.fixture(scope="module")
def trained(federation: Local) -> Contract:
    """A run of the hospital and the lab that is finished."""
    contract = Contract(
        name="online",
        parties=NAMES[:2],
        active=NAMES[0],
        method={"name": "split", "epochs": 2, "patience": None},
        compare=[{"name": "active_alone", "epochs": 1}],
        seeds=[0],
        classes=2,
        wait=0.05,
    )
    assert federation.run(contract).state == "finished"
    return contract


def test_a_table_over_sites(federation: Local, trained: Contract, tmp_path: Path) -> None:
    """New people of the hospital, of whom the lab holds most; the command is killed once."""
    rule = {"drivers": ["hospital"], "max_people": 200}
    federation.give(vertical_tables(), policy={"approve": [rule]})
    new = vertical_tables()["hospital"].drop("benign")[100:290]
    new = pl.concat([new, new[:10].with_columns(pl.col("id") + 1000)])
    new.write_csv(tmp_path / "new.csv")
    run, out = federation.folder("hospital", trained), tmp_path / "scores.csv"
    command = ["predict", str(run), "--table", f"hospital={tmp_path / 'new.csv'}", "--yes"]
    command += ["--most", "50", "--out", str(out)]
    program = Path(sys.executable).with_name("interlace")
    first = subprocess.Popen([program, *command])
    handed_in = time.monotonic() + 90
    while not (asked := scorings(federation.driver)) or not asked[0].status.job:
        assert time.monotonic() < handed_in
        time.sleep(0.1)
    first.kill()
    first.wait()
    assert not out.exists()
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert [r.name for r in scorings(federation.driver)] == [asked[0].name]
    in_process_scores(federation, trained, tmp_path, new).write_csv(tmp_path / "expected.csv")
    found, expected = pl.read_csv(out), pl.read_csv(tmp_path / "expected.csv")
    assert set(found["model"]) == {"joint", "alone"}
    assert_frame_equal(found, expected, abs_tol=1e-6, rel_tol=0)

    lab = federation.folders["lab"].run(asked[0].name)
    ledgers = [Ledger(asked[0].ledger), Ledger(lab.ledger)]
    ours, theirs = (
        list(compare.passed_between(ledger.entries(), "hospital", "lab")) for ledger in ledgers
    )
    assert ours == theirs
    assert sum(p.kind == "embedding" for p in ours) == -(-(found["model"] == "joint").sum() // 50)
    for name in ("hospital", "lab"):
        diff = ["ledger", "diff", asked[0].name, "--party", str(federation.folders[name].root)]
        assert CliRunner().invoke(app, diff).exit_code == 0
    shown = CliRunner().invoke(
        app, ["results", asked[0].name, "--party", str(federation.driver.root)]
    )
    assert "Scores of 200 people" in shown.output


def scorings(folder: PartyFolder) -> list[RunFolder]:
    """The runs that score people, the latest first."""
    return [run for run in folder.runs() if run.contract.scores is not None]


def test_a_service_over_sites(federation: Local, trained: Contract, tmp_path: Path) -> None:
    federation.give(
        vertical_tables(), policy={"approve": [{"drivers": ["hospital"], "max_people": PEOPLE}]}
    )
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
    everybody = in_process_scores(federation, of, folder, vertical_tables()["hospital"])
    rows = everybody.filter(model="joint")
    return dict(zip(rows["id"].cast(int).to_list(), rows["probability 1"].to_list(), strict=True))


def in_process_scores(
    federation: Local, of: Contract, folder: Path, people: pl.DataFrame
) -> pl.DataFrame:
    """By the same parts of the model in one process."""
    tables, files = {of.active: str(folder / "people.csv")}, {}
    people.write_csv(tables[of.active])
    for name in of.parties:
        files[name] = federation.folders[name].read()
        tables.setdefault(name, str(files[name].table))
        models = folder / "parties" / name / "models"
        models.parent.mkdir(parents=True)
        os.symlink(federation.folder(name, of) / "models", models)
    trained = Trained.read(federation.folder(of.active, of))
    job = trained.job.model_copy(update={"parties": files})
    results = trained.results.model_copy(update={"simulation": True})
    here = replace(trained, folder=folder, job=job, results=results)
    return here.scores(here.simulate(tables))
