"""A party's folder: what is found in it, and what is not looked for outside of it."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from interlace.errors import JobError, Refused
from interlace.sites.contract import Contract
from interlace.sites.folder import ENVIRONMENT, PartyFolder, Site, Status, here

Make = Callable[..., PartyFolder]


def test_a_folder_is_found_by_the_environment_or_where_we_are(
    make_party: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bank = make_party("bank")
    monkeypatch.setenv(ENVIRONMENT, str(bank.root))
    assert PartyFolder.here().name == "bank"
    monkeypatch.delenv(ENVIRONMENT)
    monkeypatch.chdir(bank.root)
    assert here(None).root == bank.root
    with pytest.raises(JobError, match="interlace party new"):
        here(tmp_path)
    (bank.root / "site.yaml").write_text("name: [")
    with pytest.raises(JobError, match="damaged"):
        here(bank.root)


def test_the_party_file_is_read_with_the_kill_switch_in_it(make_party: Make) -> None:
    bank = make_party("bank", max_bytes=1000)
    file = bank.read()
    assert file.policy.max_bytes == 1000
    assert file.policy.stop_file == bank.root / "STOP"
    assert Path(str(file.table)) == bank.root / "table.csv"
    assert not bank.stopped
    bank.stop_file.touch()
    assert bank.stopped


def test_runs_are_found_by_how_their_names_begin(make_party: Make, contract: Contract) -> None:
    bank = make_party("bank")
    with pytest.raises(JobError, match="nobody has asked"):
        bank.find(None)
    other = contract.model_copy(update={"name": "other"})
    for each in (contract, other):
        bank.run(each.run).keep(each)
    assert bank.find("small").contract == contract
    assert bank.find(other.run).name == other.run
    assert {r.name for r in bank.runs()} == {contract.run, other.run}
    with pytest.raises(JobError, match="there is no run 'third'"):
        bank.find("third")
    with pytest.raises(JobError, match="several runs begin so"):
        bank.find("")


def test_runs_that_another_process_forgets_meanwhile_are_passed_over(
    make_party: Make, contract: Contract, monkeypatch: pytest.MonkeyPatch
) -> None:
    bank, names = make_party("bank"), ["first", "second", "third"]
    kept = [bank.run(c.run) for c in (contract.model_copy(update={"name": n}) for n in names)]
    for name, run in zip(names, kept, strict=True):
        run.keep(contract.model_copy(update={"name": name}))
    glob = Path.glob

    def found(self: Path, pattern: str) -> list[Path]:
        there = list(glob(self, pattern))
        shutil.rmtree(kept[0].path, ignore_errors=True)
        return there

    monkeypatch.setattr(Path, "glob", found)
    assert {run.name for run in bank.runs()} == {run.name for run in kept[1:]}
    listed = bank.runs()
    one = next(listed)
    shutil.rmtree(next(run for run in kept[1:] if run != one).path)
    assert list(listed) == []


def test_a_jobs_name_is_its_run_and_not_the_scores_by_it(
    make_party: Make, contract: Contract
) -> None:
    bank = make_party("bank")
    scores = contract.to_score(10, 0)
    for each in (contract, scores):
        bank.run(each.run).keep(each)
    assert scores.run.startswith(contract.name)
    assert bank.find(contract.name).name == contract.run
    assert bank.find(f"{contract.name}-scores").name == scores.run
    bank.run("small-0").keep(contract.model_copy(update={"seeds": [7]}))
    with pytest.raises(JobError, match="several runs begin so"):
        bank.find(contract.name)


@pytest.mark.parametrize("name", ["..", "../shop", "a/b", ".hidden", ""])
def test_a_run_stays_in_its_folder(name: str, make_party: Make) -> None:
    with pytest.raises(JobError, match="not the name of a run"):
        make_party("bank").run(name)


def test_a_contract_once_kept_is_not_exchanged(make_party: Make, contract: Contract) -> None:
    run = make_party("bank").run(contract.run)
    run.keep(contract)
    run.keep(contract)
    with pytest.raises(Refused, match="name of another contract"):
        run.keep(contract.model_copy(update={"purpose": "marketing"}))
    assert run.contract.purpose == "credit"


def test_nobody_else_on_the_machine_looks_into_a_folder(tmp_path: Path) -> None:
    made = PartyFolder(tmp_path / "bank", Site(name="bank")).write(Site(name="bank"))
    assert made.root.stat().st_mode & 0o077 == 0


def test_how_a_run_stands_is_kept_and_says_how_long_it_still_takes(
    make_party: Make, contract: Contract
) -> None:
    run = make_party("bank").run(contract.run)
    assert run.status.state == "waiting"
    run.note(Status(state="running", done=0.25, began=100.0, updated=160.0))
    assert run.status.seconds_left == pytest.approx(180.0)
    assert not run.status.over
    run.note(Status(state="paused", reason="'shop' was away"))
    assert run.status.over
    assert run.status.seconds_left is None


def test_a_run_that_is_followed_shows_over_nfs_too(
    make_party: Make, contract: Contract, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = fcntl.flock

    def of_nfs(file: int, how: int) -> None:
        writes = fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
        if how & fcntl.LOCK_EX and not writes and not stat.S_ISDIR(os.fstat(file).st_mode):
            raise OSError(errno.EBADF, "not open for writing")
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", of_nfs)
    run = make_party("bank").run(contract.run)
    run.keep(contract)
    run.note(Status(state="running", job="first"))
    (run.path / "job").write_text("first")
    with run.follow():
        assert not run.left_alone
    assert run.left_alone
