"""What goes wrong between sites, and at one: each is said at both ends, and the sites go on. What
takes longer is in `benchmarks/flare_faults.py`."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import hostile
import polars as pl
import pytest
import torch
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from local import NAMES, Local, going_on, in_process, small, wait
from safetensors.torch import load_file
from typer.testing import CliRunner

from interlace.boundary import Ledger
from interlace.cli import app
from interlace.errors import JobError
from interlace.sites import submission
from interlace.sites.check import check
from interlace.sites.contract import Contract

PAIR = NAMES[:2]  # the hospital drives; the lab has a way of its own to the server


def assert_as_in_one_process(federation: Local, of: Contract, folder: Path) -> None:
    """Every party has the model of an uninterrupted run."""
    in_process(federation, of, folder)
    for name in of.parties:
        model = Path("models", "split-0", "state.safetensors")
        there = load_file(federation.folder(name, of) / model)
        here = load_file(folder / "parties" / name / model)
        assert there.keys() == here.keys()
        assert all(torch.equal(there[key], here[key]) for key in there)


def test_a_run_that_lost_its_partner_goes_on_later_and_with_the_same_table_alone(
    federation: Local, tmp_path: Path
) -> None:
    of, lab = small("away", parties=PAIR, epochs=20, wait=0.005), federation.folders["lab"]
    table = (lab.root / "table.csv").read_text()
    try:
        with going_on(federation, of) as end:
            federation.ways["lab"].cut()
            twice = submission.submit(federation.driver, of)  # which begins no second job
        paused = end.result()
        assert (paused.state, paused.job) == ("paused", twice)
        assert "lab" in paused.reason
        wait(120, lambda: "lab" in submission.connected(federation.driver.user))
        pl.read_csv(lab.root / "table.csv")[:-1].write_csv(lab.root / "table.csv")
        refused = federation.run_to_its_end(of)
    finally:
        (lab.root / "table.csv").write_text(table)
    assert refused.state == "failed"
    assert "party 'lab', file 'table.csv': the table has changed" in refused.reason
    assert "another `name` in the job" in refused.reason
    assert lab.run(of.run).status.state == "failed"
    again = federation.run_to_its_end(of)
    assert (again.state, again.reason) == ("finished", "")
    assert_as_in_one_process(federation, of, tmp_path / "here")


def test_what_no_driver_should_send_is_refused_and_the_run_goes_on(
    federation: Local, tmp_path: Path
) -> None:
    of = small("hostile", parties=PAIR)
    federation.plan(of)
    job = tmp_path / "job"
    submission.write_job(of, job)
    ours, meta = (job / "site" / "config" / "config_fed_client.json").read_text(), job / "meta.json"
    (job / "driver" / "config").mkdir(parents=True)
    (job / "driver" / submission.CONTRACT).write_text(of.text)
    (job / "driver" / "config" / "config_fed_client.json").write_text(
        ours.replace("interlace.sites.job.Site", "hostile.HostileSite")
    )
    apps = {"hub": ["server"], "driver": ["hospital"], "site": ["lab"]}
    meta.write_text(json.dumps(json.loads(meta.read_text()) | {"deploy_map": apps}))
    settings = federation.driver.kit / "local" / "resources.json"
    before = settings.read_text()
    allowed = json.loads(before)
    allowed["class_allow_list"].append("hostile.HostileSite")
    settings.write_text(json.dumps(allowed))
    try:
        with submission.session(federation.driver.user) as server:
            number = server.submit_job(str(job))
        user = federation.driver.user
        wait(300, lambda: submission.state(user, number).startswith("FINISHED"))
    finally:
        settings.write_text(before)
    statuses = [federation.folders[name].run(of.run).status for name in PAIR]
    assert [(s.state, s.reason) for s in statuses] == [("finished", "")] * 2
    said = json.loads((federation.driver.root / hostile.FOUND).read_text())
    for what, why in {
        "garbage": "none of ours",
        "nothing": "none of ours",
        "noise": "none of ours",
        "later": "out of order",
        "replayed": "repeated",
        "10 GB": "10,000,000,000 bytes is larger than",
        "kind": "came as metric",
        "shape": "2 dimensions",
        "sender": "not who sent it",
        "operation": "no operation 'fly'",
    }.items():
        assert why in said[what], (what, said[what])
    ledger = Ledger(federation.folder("lab", of) / "ledger.sqlite")
    assert sum(e.direction == "refused" for e in ledger.entries()) == len(said)
    assert ledger.verify() is None
    assert_as_in_one_process(federation, of, tmp_path / "here")


def test_a_job_for_a_party_that_is_not_there_says_so(federation: Local) -> None:
    of = small("nobody", parties=["hospital", "clinic"], wait=0.0005)
    with pytest.raises(JobError, match=r"no site called 'clinic' is up.*hospital, lab, registry"):
        submission.away(federation.driver, of)
    status = federation.run(of)
    assert status.state == "paused"
    assert "clinic" in status.reason


def test_an_expired_certificate_is_refused_at_both_ends(federation: Local) -> None:
    lab = federation.folders["lab"]
    file = lab.kit / "startup" / "client.crt"
    good = file.read_bytes()
    try:
        file.write_bytes(expired(lab.root.parent / "trial" / "ca", good))
        up = CliRunner().invoke(app, ["party", "up", "--party", str(lab.root)])
        ours, servers = (f.what for f in check(lab) if f.verdict == "bad")
    finally:
        file.write_bytes(good)
    assert up.exit_code == 2
    assert "expired" in up.output
    assert "interlace party request" in up.output
    assert "kit certificate of 'lab' expired" in ours
    assert "does not take this site's certificate" in servers
    assert all(f.verdict != "bad" for f in check(lab))


def expired(authority: Path, good: bytes) -> bytes:
    """A certificate as good as another, had it not expired yesterday."""
    was = x509.load_pem_x509_certificate(good)
    root = x509.load_pem_x509_certificate((authority / "rootCA.pem").read_bytes())
    key = serialization.load_pem_private_key((authority / "rootCA.key").read_bytes(), None)
    now = datetime.now(UTC)
    made = x509.CertificateBuilder().subject_name(was.subject).issuer_name(root.subject)
    made = made.public_key(was.public_key()).serial_number(x509.random_serial_number())
    made = made.not_valid_before(now - timedelta(days=9)).not_valid_after(now - timedelta(days=1))
    for extension in was.extensions:
        made = made.add_extension(extension.value, critical=extension.critical)
    assert isinstance(key, rsa.RSAPrivateKey)
    return made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
