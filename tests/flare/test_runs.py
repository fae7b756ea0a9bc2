"""Runs over three sites: processes of their own, mutual TLS, nothing simulated."""

from __future__ import annotations

import json
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from local import NAMES, Local, checkpoint, going_on, in_process, jobs_of, small, vertical_tables
from safetensors.torch import load_file

from interlace.boundary import Ledger
from interlace.job.results import Results
from interlace.sites import service, submission
from interlace.sites.contract import Contract


def models(federation: Local, of: Contract) -> dict[str, dict[str, torch.Tensor]]:
    return {
        name: load_file(federation.folder(name, of) / "models" / "split-0" / "state.safetensors")
        for name in of.parties
    }


def here(federation: Local, of: Contract, folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    """What the same job in this process comes to."""
    in_process(federation, of, folder)
    return {
        name: load_file(folder / "parties" / name / "models" / "split-0" / "state.safetensors")
        for name in of.parties
    }


def assert_same(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert ours.keys() == theirs.keys()
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-6, atol=1e-6)


def test_two_runs_at_once_come_to_what_one_process_comes_to(
    federation: Local, tmp_path: Path
) -> None:
    both = small("three"), small("pair", parties=NAMES[:2])
    with ThreadPoolExecutor() as pool:
        ends = list(pool.map(federation.run, both))
    assert [(e.state, e.reason) for e in ends] == [("finished", "")] * 2
    for of in both:
        assert_same(models(federation, of), here(federation, of, tmp_path / of.name))
        results = Results.read(federation.folder(NAMES[0], of) / "results.json")
        assert results.finished
        assert not results.simulation
        assert (federation.folder(NAMES[0], of) / "report.html").exists()
        ledgers = {n: Ledger(federation.folder(n, of) / "ledger.sqlite") for n in of.parties}
        for name in of.passive:
            # What one says it sent is what the other says it got, message for message; that what
            # was posted is done, the driver hears later.
            told = {
                n: Counter(
                    (e.operation, e.kind, e.shape, e.bytes_after, e.round)
                    for e in ledgers[n].entries()
                    if {e.sender, e.receiver} == {name, of.active}
                )
                for n in (name, of.active)
            }
            assert told[name] == told[of.active]
            assert federation.folders[name].run(of.run).status.state == "finished"
            result = next(p for p in results.parties if p.name == name)
            assert ledgers[name].verify(result.ledger_head) is None
        secrets = [federation.folder(n, of) / "secret" for n in of.parties]
        assert not any(file.exists() for file in secrets)  # they were given in the party files


def test_who_does_not_want_to_is_not_made_to(federation: Local) -> None:
    """A party that refuses, another version of the package, a site that is not there."""
    other = small("other-version", version="0.0.1")
    federation.give(
        vertical_tables(), policy={"approve": [{"drivers": [NAMES[0]]}], "methods": ["agg"]}
    )
    refused = small("refused")
    try:
        with ThreadPoolExecutor() as pool:
            ends = list(pool.map(federation.run, (other, refused)))
    finally:
        federation.give(vertical_tables())
    assert [e.state for e in ends] == ["refused", "refused"]
    assert "0.0.1" in ends[0].reason
    assert "split" in ends[1].reason
    for of in (other, refused):
        for name in NAMES:
            assert not (federation.folder(name, of) / "models").exists()


def test_a_job_may_load_no_other_classes_and_bring_no_code(
    federation: Local, tmp_path: Path
) -> None:
    """The sites refuse, and go on."""
    of = small("foreign")
    submission.write_job(of, tmp_path / "foreign")
    config = tmp_path / "foreign" / "site" / "config" / "config_fed_client.json"
    config.write_text(config.read_text().replace("interlace.sites.job.Site", "os.path.PosixPath"))
    submission.write_job(of, tmp_path / "code")
    custom = tmp_path / "code" / "site" / "custom"
    custom.mkdir()
    (custom / "mine.py").write_text("raise SystemExit\n")
    user = federation.driver.user
    with submission.session(user) as server:
        jobs = [server.submit_job(str(tmp_path / name)) for name in ("foreign", "code")]
    for job in jobs:
        while not (state := submission.state(user, job)).startswith("FINISHED"):
            time.sleep(1)
        assert state != "FINISHED:COMPLETED"
    assert not federation.folder("lab", of).exists()
    assert all(service.process_of(f.kit) for f in federation.folders.values())


def test_a_killed_job_process_is_replaced_and_the_run_goes_on(
    federation: Local, tmp_path: Path
) -> None:
    of = small("killed", epochs=20, parties=NAMES[:2])
    kept = checkpoint(federation, of)
    with going_on(federation, of) as end:
        killed = jobs_of(federation.folders["lab"])
        for process in killed:
            process.kill()
        assert kept.exists(), "it is in the middle of the training"
        federation.ways["lab"].mend()
        status = end.result()
    assert killed
    assert (status.state, status.reason) == ("finished", "")
    jobs = {e.job for e in [federation.folders["lab"].run(of.run).status, status]}
    assert len(jobs) == 1
    assert_same(models(federation, of), here(federation, of, tmp_path / "here"))
    log = json.loads((federation.folder(NAMES[0], of) / "results.json").read_text())
    assert len(log["models"][0]["fits"][0]["history"]) == 20
