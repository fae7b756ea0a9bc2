"""The verbs for runs over sites, as far as they go without a server."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
import yaml
from typer.testing import CliRunner, Result

from interlace import predict, runner, sites
from interlace.boundary import Kind, Ledger, Message
from interlace.boundary.message import Part
from interlace.cli import app
from interlace.cli.predict import _contract as of_table
from interlace.errors import InterlaceError
from interlace.job.spec import Job
from interlace.serve.batch import Trained
from interlace.sites import approval
from interlace.sites.account import Account
from interlace.sites.contract import Contract
from interlace.sites.folder import PartyFolder, People, RunFolder, Status
from interlace.sites.plan import Leaving, Plan

Make = Callable[..., PartyFolder]

OF_THE_BANK = """\
name: small
parties: [bank, shop]
active: bank
method: {name: split, epochs: 1}
compare: none
seeds: [0]
"""


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Result]:
    """Call the program, as at a terminal of 100 columns."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("INTERLACE_PARTY", raising=False)

    def made_up(folder: PartyFolder, contract: Contract) -> Plan:
        leaves = {Kind.EMBEDDING: Leaving(messages=10, bytes=5_000_000)}
        return Plan(run=contract.run, party=folder.name, leaves=leaves, without_claim=["embedding"])

    monkeypatch.setattr(approval, "plan_of", made_up)
    return lambda *args, **kw: CliRunner().invoke(app, [str(a) for a in args], **kw)


@pytest.fixture
def asked(make_party: Make, contract: Contract) -> tuple[PartyFolder, RunFolder]:
    """A shop that has been asked for a run."""
    shop = make_party("shop")
    run = shop.run(contract.run)
    run.keep(contract)
    return shop, run


def test_a_new_party_has_a_file_and_a_policy_to_write(call: Any, tmp_path: Path) -> None:
    done = call("party", "new", "bank", "--label", "bought", "--table", "t.csv", "--id", "who")
    assert done.exit_code == 0, done.output
    file = yaml.safe_load((tmp_path / "bank" / "party.yaml").read_text())
    assert (file["table"], file["id"], file["label"]) == ("t.csv", "who", "bought")
    (tmp_path / "bank" / "t.csv").write_text("who,bought,x\n1,yes,2\n2,no,3\n")
    folder = PartyFolder.open(tmp_path / "bank")
    assert folder.read().policy.approve == []
    checked = call("party", "check", "--party", "bank", "--offline")
    assert checked.exit_code == 1  # it has no certificate yet
    assert "2 people and 1 columns, label bought" in checked.output
    assert "interlace party request" in checked.output
    again = call("party", "new", "bank")
    assert again.exit_code == 2
    assert "is a party's folder already" in again.output
    assert call("party", "new", "a b").exit_code == 2


def test_what_columns_are_read_as_is_told_before_any_run(
    call: Any, make_party: Make, tables: dict[str, pl.DataFrame]
) -> None:
    codes = [str(i % 30) if i % 16 else "?x" for i in range(80)]
    shop = tables["shop"].with_columns(pl.Series("e", codes), pl.Series("f", ["same"] * 80))
    tables["shop"] = shop.with_columns(pl.Series("g", [i % 3 for i in range(80)]))
    root = make_party("shop").root
    said = " ".join(call("party", "check", "--party", root, "--offline").output.split())
    assert "columns read as numbers: c, d, e, g; dropped: f" in said
    assert "'e': 5 of 80 values do not read as numbers, as the others do" in said
    assert "'f': one value in every training row" in said
    assert "if they are codes, set `categories: [g]` in the party's file" in said
    table = pl.read_csv(root / "table.csv").with_columns(h=pl.struct("c"))
    table.write_parquet(root / "table.parquet")
    (root / "party.yaml").write_text("table: table.parquet\n")
    done = call("party", "check", "--party", root, "--offline")
    said = " ".join(done.output.split())
    assert "column 'h': a column of type Struct cannot be a feature" in said


def test_the_folder_is_asked_for_where_there_is_none(call: Any) -> None:
    for verb in ("status", "logs", "results", "approve"):
        done = call(verb)
        assert done.exit_code == 2
        assert "not a party's folder" in done.output


def test_a_party_sees_what_it_is_asked_and_says_yes(call: Any, asked: Any) -> None:
    shop, run = asked
    before = call("status", "--party", shop.root)
    assert run.name in before.output
    assert "waiting" in before.output
    said_no = call("approve", "--party", shop.root, input="n\n")
    assert said_no.exit_code == 1
    assert approval.answer_of(run) is None
    done = call("approve", "small", "--party", shop.root, input="y\n")
    assert done.exit_code == 0, done.output
    for part in ("bank and shop; 'bank' drives", "split", "credit", "embedding", "5 MB"):
        assert part in done.output, part
    given = approval.answer_of(run)
    assert given is not None
    assert given.answer == "approved"
    assert "approved by hand" in call("status", run.name, "--party", shop.root).output


def test_a_word_of_two_alphabets_is_pointed_out(
    call: Any, make_party: Make, contract: Contract
) -> None:
    shop = make_party("shop")
    plain = {"description": "Prüfung für Москва und Zürich", "purpose": "credit"}
    for purpose, told in (("credit", False), ("cr\u0435dit", True)):
        asked = contract.model_copy(update={**plain, "purpose": purpose})
        shop.run(asked.run).keep(asked)
        said = call("status", asked.run, "--party", shop.root).output
        assert ("mixes alphabets" in said) is told
        assert (r"'cr\u0435dit'" in said) is told


def test_a_party_says_no_and_why(call: Any, asked: Any) -> None:
    shop, run = asked
    assert call("refuse", "--party", shop.root).exit_code == 2  # a reason is due
    done = call("refuse", "--why", "not before the audit", "--party", shop.root)
    assert done.exit_code == 0, done.output
    said = call("status", run.name, "--party", shop.root).output
    assert "refused" in said
    assert "not before the audit" in said
    run.note(Status(state="finished", done=1.0))
    late = call("refuse", "--why", "too late", "--party", shop.root)
    assert late.exit_code == 2
    assert "is finished already" in late.output
    early = call("approve", "--yes", "--party", shop.root)
    assert early.exit_code == 2
    assert "takes some seconds to come" in " ".join(early.output.split())
    assert run.status.state == "finished"


def test_an_approval_is_taken_back_by_stop(call: Any, asked: Any) -> None:
    shop, run = asked
    call("approve", "--yes", "--party", shop.root)
    run.note(Status(state="running", done=0.5))
    assert call("stop", "--party", shop.root).exit_code == 0
    given = approval.answer_of(run)
    assert given is not None
    assert given.answer == "refused"
    again = call("stop", "--party", shop.root)
    assert again.exit_code == 2
    assert "is refused already" in again.output


def test_where_several_runs_are_open_a_name_is_due(
    call: Any, asked: Any, contract: Contract
) -> None:
    shop, first = asked
    second = contract.model_copy(update={"name": "second"})
    shop.run(second.run).keep(second)
    for verb in (["approve", "--yes"], ["refuse", "--why", "no"], ["stop"]):
        done = call(*verb, "--party", shop.root)
        assert done.exit_code == 2
        assert first.name in done.output
        assert second.run in done.output
    assert not any(map(approval.answer_of, shop.runs()))
    assert call("approve", "second", "--yes", "--party", shop.root).exit_code == 0
    done = call("approve", "--yes", "--party", shop.root)  # the only one without an answer
    assert done.exit_code == 0, done.output
    assert approval.answer_of(first) is not None


def test_a_run_whose_process_ended_is_said_to_stand_still(
    call: Any, make_party: Make, contract: Contract, asked: Any
) -> None:
    for folder, said in (
        (asked[0], "stands still until 'bank' submits it again"),
        (make_party("bank"), "it goes on by `interlace submit` again"),
    ):
        run = folder.run(contract.run)
        run.keep(contract)
        run.note(Status(state="running", doing="epoch 3", done=0.5, job="one", began=0.0))
        holds = f"""
import sys, pathlib
from interlace.sites.folder import RunFolder
RunFolder(pathlib.Path({str(run.path)!r})).occupy("one")
print("there", flush=True)
sys.stdin.read()
"""
        with subprocess.Popen(
            [sys.executable, "-c", holds], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "there\n"
            assert not run.stands_still
            moving = call("status", "--party", folder.root).output
            assert "epoch 3" in moving
            assert " h " in moving  # are left
            process.kill()
        assert run.stands_still
        for arguments in ([], [run.name]):
            output = call("status", *arguments, "--party", folder.root).output
            assert said in " ".join(output.split())
            assert " h " not in output
        run.note(Status(state="running", job="two"))  # handed in again, and not begun
        assert not run.stands_still
        run.note(Status(state="finished", job="one"))
        assert not run.stands_still


def test_certificates_that_are_not_there_are_missed_before_anything_is_asked(
    call: Any, make_party: Make
) -> None:
    done = call("party", "install", "none.zip", "--party", make_party("shop").root, input="x\n")
    assert done.exit_code == 2
    assert "there is no file none.zip" in done.output
    assert "fingerprint" not in done.output


def test_the_kill_switch(call: Any, asked: Any) -> None:
    shop, _ = asked
    assert call("party", "stop", "--party", shop.root).exit_code == 0
    assert shop.stopped
    assert (
        "everything is stopped" in call("party", "check", "--offline", "--party", shop.root).output
    )
    assert call("party", "stop", "--lift", "--party", shop.root).exit_code == 0
    assert not shop.stopped


def test_what_the_policy_would_stop_is_shown_before_anybody_is_asked(
    call: Any, asked: Any, make_party: Make
) -> None:
    shop, run = asked
    make_party("shop", max_bytes=100_000)
    for verb in ("plan", "approve"):
        done = call(verb, run.name, "--party", shop.root, input="n\n")
        said = " ".join(done.output.split())
        assert "`max_bytes` of the policy in" in said
        assert (
            "may stop it: up to 5 MB may leave, and it allows 100 kB. Change that line, or" in said
        )
        assert "have 'bank' ask for fewer epochs" in said
    assert "Approve it" in said
    make_party("shop", partners=["clinic"])
    done = call("approve", run.name, "--party", shop.root, input="y\n")
    assert done.exit_code == 2
    assert "does not train with 'bank'" in done.output
    assert "Approve it" not in done.output


def test_a_policy_that_objects_is_told_in_the_plan(
    call: Any, make_party: Make, tmp_path: Path
) -> None:
    shop = make_party("shop", partners=["clinic"])
    (tmp_path / "job.yaml").write_text(OF_THE_BANK)
    done = call("plan", "job.yaml", "--party", shop.root)
    assert done.exit_code == 0, done.output
    assert "embedding" in done.output
    assert "would be refused" in done.output
    assert "does not train with 'bank'" in done.output


def test_who_has_no_user_cannot_submit(call: Any, make_party: Make, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("name: small\nparties: [bank, shop]\n")
    done = call("submit", "job.yaml", "--party", make_party("bank").root)
    assert done.exit_code == 2
    assert "no user who may submit jobs" in done.output


def test_without_flare_the_error_names_the_extra(
    call: Any, make_party: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    bank = make_party("bank")
    bank.user.mkdir()
    monkeypatch.delitem(sys.modules, "interlace.sites.submission", raising=False)
    monkeypatch.delattr(sites, "submission", raising=False)
    for module in [m for m in sys.modules if m.split(".")[0] == "nvflare"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "nvflare", None)
    done = call("submit", "job.yaml", "--party", bank.root)
    assert done.exit_code == 2
    assert "pip install 'interlace[flare]'" in done.output


def submitting(
    make_party: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *up: str, job: str = "one"
) -> PartyFolder:
    """A bank with a job to submit, and a server that is connected to these sites."""
    from interlace.sites import submission

    (tmp_path / "job.yaml").write_text(OF_THE_BANK)
    monkeypatch.setattr(submission, "connected", lambda _kit: up or ("bank", "shop"))
    monkeypatch.setattr(submission, "submit", lambda _folder, _contract: job)
    bank = make_party("bank")
    bank.user.mkdir(exist_ok=True)
    return bank


@pytest.mark.flare
def test_a_party_of_whom_nobody_has_heard_is_refused_and_the_nearest_named(
    call: Any, make_party: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bank = submitting(make_party, tmp_path, monkeypatch, "bank", "clinic", "shop")
    (tmp_path / "job.yaml").write_text(OF_THE_BANK.replace("shop", "shopp"))
    for arguments in (["--yes"], ["--yes", "--detach"]):
        done = call("submit", "job.yaml", "--party", bank.root, *arguments)
        assert done.exit_code == 2
        said = " ".join(done.output.split())
        assert "no site called 'shopp' is up" in said
        assert "did you mean 'shop'? There are: bank, clinic, shop." in said
    assert list(bank.runs()) == []


@pytest.mark.flare
def test_who_has_answered_before_and_is_away_is_waited_for(
    call: Any, make_party: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bank = submitting(make_party, tmp_path, monkeypatch, "bank")
    kept = bank.run("earlier").path / "approvals"
    kept.mkdir(parents=True)
    (kept / "shop.json").write_text("{}")
    done = call("submit", "job.yaml", "--party", bank.root, "--yes", "--detach")
    assert done.exit_code == 0, done.output
    assert "Not up now, and waited for up to 24 hours: shop" in done.output
    said = call("status", "--party", bank.root).output
    assert "for the site of shop to be up" in said


@pytest.mark.flare
def test_a_run_that_is_handed_in_says_for_whom_it_waits(
    call: Any, make_party: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from interlace.sites import submission

    bank = submitting(make_party, tmp_path, monkeypatch)
    submit = ("submit", "job.yaml", "--party", bank.root, "--yes", "--detach")
    assert "Now it is for shop: interlace approve small-" in call(*submit).output
    run = bank.find(None)
    assert run.status.state == "waiting"
    assert "for shop to approve" in call("status", "--party", bank.root).output
    assert "It is under way: waiting for shop to approve" in call(*submit).output

    def servers_word(state: str, *up: str) -> str:
        monkeypatch.setattr(submission, "state", lambda _kit, _job: state)
        monkeypatch.setattr(submission, "connected", lambda _kit: up)
        return str(call("status", run.name, "--party", bank.root).output)

    assert "the site of shop is not up" in servers_word("SUBMITTED", "bank")
    assert "has it as submitted" in servers_word("SUBMITTED", "bank", "shop")
    assert "submit it again" in servers_word("FINISHED:EXECUTION_EXCEPTION", "bank", "shop")
    (run.path / "job").write_text("one")
    assert "server" not in servers_word("RUNNING", "bank", "shop")
    run.note(Status(state="paused", done=0.5, job="before"))
    (run.path / "approvals").mkdir()
    (run.path / "approvals" / "shop.json").write_text("{}")
    assert "All have approved it before" in call(*submit).output
    assert (run.status.state, run.status.job, run.status.done) == ("waiting", "one", 0.5)
    run.note(Status(state="refused", job="before"))  # while it had stopped everything
    assert "All have approved it before" in call(*submit).output
    run.note(Status(state="refused", job="before"))
    (run.path / "refusals").mkdir()
    (run.path / "refusals" / "shop.json").write_text("{}")
    assert "Now it is for shop" in call(*submit).output


@pytest.mark.flare
def test_what_stands_still_can_be_stopped_though_the_server_has_no_such_job(
    call: Any, make_party: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from interlace.sites import submission

    def nothing(_kit: Path, job: str) -> None:
        raise InterlaceError(f"no job {job}")

    bank = submitting(make_party, tmp_path, monkeypatch)
    call("submit", "job.yaml", "--party", bank.root, "--yes", "--detach")
    monkeypatch.setattr(submission, "stop", nothing)
    run = bank.find(None)
    assert "no job one" in call("stop", "--party", bank.root).output
    assert run.status.state == "waiting"
    (run.path / "job").write_text("one")
    assert call("stop", "--party", bank.root).exit_code == 0
    assert run.status.state == "stopped"


@pytest.mark.flare
def test_a_job_that_is_finished_is_not_handed_in_again(
    call: Any, make_party: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bank = submitting(make_party, tmp_path, monkeypatch)
    submit = ("submit", "job.yaml", "--party", bank.root, "--yes", "--detach")
    call(*submit)
    run = bank.find(None)
    run.note(Status(state="finished", done=1.0, job="one"))
    done = call(*submit)
    assert done.exit_code == 0
    assert f"interlace results {run.name}" in done.output
    assert "give the job another `name`" in " ".join(done.output.split())
    assert "approve" not in done.output
    run.note(Status(state="finished", done=1.0, reason="shop did not hear yet"))
    assert "Handed in" in call(*submit).output


@pytest.mark.flare
def test_a_job_that_its_own_party_declines_leaves_no_run(
    call: Any, make_party: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bank = submitting(make_party, tmp_path, monkeypatch)
    done = call("submit", "job.yaml", "--party", bank.root, input="n\n")
    assert done.exit_code == 1
    assert "Approve this for your own party" in done.output
    assert list(bank.runs()) == []
    (tmp_path / "job.yaml").write_text(OF_THE_BANK.replace("{name: split, epochs: 1}", "auto"))
    done = call("submit", "job.yaml", "--party", bank.root, "--yes")
    assert done.exit_code == 2
    assert "name the method that `interlace inspect` recommends" in " ".join(done.output.split())
    assert list(bank.runs()) == []


@pytest.mark.flare
def test_a_job_is_submitted_by_the_party_that_drives_it(
    call: Any, make_party: Make, tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").write_text(OF_THE_BANK)
    shop = make_party("shop")
    shop.user.mkdir()
    done = call("submit", "job.yaml", "--party", shop.root, "--yes")
    assert done.exit_code == 2
    assert "for 'bank' to drive" in done.output
    assert list(shop.runs()) == []


def test_ledgers_are_shown_proved_exported_and_held_against_the_plan(
    call: Any, asked: Any, contract: Contract, tmp_path: Path
) -> None:
    shop, run = asked
    assert "no ledger here yet" in call("ledger", "show", "--party", shop.root).output
    call("approve", "--yes", "--party", shop.root)
    ledger = Ledger(run.ledger)
    for direction, sender, receiver in (("sent", "shop", "bank"), ("received", "bank", "shop")):
        part = Part(Kind.EMBEDDING, {"a": 1})
        message = Message("split-0", "forward", sender, receiver, 1, (part,))
        ledger.record(direction, message, part, "")  # type: ignore[arg-type]
    head = ledger.head
    shown = call("ledger", "show", "--party", shop.root)
    assert "split-0: forward" in shown.output
    assert head in shown.output
    assert "intact" in call("ledger", "verify", "--head", head, "--party", shop.root).output
    assert call("ledger", "diff", "--party", shop.root).exit_code == 0
    assert call("ledger", "export", "bank", "--party", shop.root).exit_code == 0
    same = call("ledger", "diff", "--theirs", "shop-to-bank.csv", "--party", shop.root)
    assert "alike" in same.output
    lines = Path("shop-to-bank.csv").read_text().splitlines()
    Path("short.csv").write_text("\n".join(lines[:-1]) + "\n")
    less = call("ledger", "diff", "--theirs", "short.csv", "--party", shop.root)
    assert less.exit_code == 1
    assert "1 row" in less.output
    part = Part(Kind.GRADIENT, {"a": 1})
    ledger.record("sent", Message("split-0", "x", "shop", "bank", 1, (part,)), part, "")
    ledger.flush()
    beyond = call("ledger", "diff", "--party", shop.root)
    assert beyond.exit_code == 1
    assert "beyond" in beyond.output
    ledger._db.execute("UPDATE ledger SET bytes_after = 1 WHERE row = 1")
    ledger._db.commit()
    assert call("ledger", "verify", "--party", shop.root).exit_code == 1
    Path("no.csv").write_text("a,b\n1,2\n")
    assert call("ledger", "diff", "--theirs", "no.csv", "--party", shop.root).exit_code == 2
    assert call("ledger", "export", "clinic", "--party", shop.root).exit_code == 2


def test_a_party_that_answered_has_a_page_of_its_own(call: Any, asked: Any) -> None:
    shop, run = asked
    assert "has left nothing here yet" in call("results", "--party", shop.root).output
    call("approve", "--yes", "--party", shop.root)
    ledger = Ledger(run.ledger)
    part = Part(Kind.EMBEDDING, {"a": 1})
    ledger.record("sent", Message("split-0", "<b>", "shop", "bank", 1, (part,)), part, "")
    ledger.flush()
    run.note(Status(state="finished", done=1.0))
    done = call("results", "--party", shop.root)
    assert done.exit_code == 0, done.output
    page = (run.path / "report.html").read_text()
    assert "The run is finished" in page
    assert "&lt;b&gt;" in page
    assert "<b>" not in page


def test_logs_are_shown(call: Any, asked: Any) -> None:
    shop, run = asked
    assert "has said nothing here" in call("logs", "--party", shop.root).output
    run.log.touch()
    assert "has said nothing here" in call("logs", "--party", shop.root).output
    run.log.write_text("epoch 1\n")
    assert "epoch 1" in call("logs", "--party", shop.root).output


def test_a_federation_needs_to_know_where_its_server_is(call: Any) -> None:
    done = call("federation", "new", "--name", "trial")
    assert done.exit_code == 2
    assert "--host" in done.output
    assert call("federation", "new", "bank", "shop").exit_code == 2
    assert call("federation", "approve", os.devnull).exit_code == 2


def test_scores_over_sites_need_a_number_and_no_tables(
    make_party: Make, call: Callable[..., Result], contract: Contract
) -> None:
    for name in ("bank", "shop"):
        run = make_party(name).run(contract.run)
        run.keep(contract)
        folder = run.path.parents[1]
        (folder / "user").mkdir()
    for arguments, said in (
        ([], "say so by `--people`"),
        (["--people", "5", "--table", "bank=new.csv"], "leave out `--table`"),
        (["--people", "5"], "'bank' drove this run"),
    ):
        done = call("serve", run.path, *arguments)
        assert done.exit_code == 2
        assert said in " ".join(done.output.split())


def test_a_table_is_scored_over_sites_by_who_drove_with_its_own(
    make_party: Make, call: Callable[..., Result], contract: Contract
) -> None:
    for name in ("bank", "shop"):
        run = make_party(name).run(contract.run)
        run.keep(contract)
        (run.path.parents[1] / "user").mkdir()
    for arguments, said in (
        (["--table", "shop=new.csv"], "'bank' drove this run"),
        (["--table", "shop=new.csv", "--table", "bank=new.csv"], "--table shop=PATH"),
    ):
        done = call("predict", run.path, *arguments)
        assert done.exit_code == 2
        assert said in " ".join(done.output.split())


@pytest.mark.flare
def test_what_the_same_predict_would_do_is_said_where_it_came_to_nothing(
    make_party: Make,
    call: Callable[..., Result],
    contract: Contract,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from interlace.sites import submission

    monkeypatch.setattr(Trained, "read", lambda _run: SimpleNamespace(seed=0))
    bank = submitting(make_party, tmp_path, monkeypatch)
    run = bank.run(contract.run)
    run.keep(contract)
    run.note(Status(state="finished", done=1.0))
    for state, said in (("paused", "goes on with it"), ("failed", "begins anew")):
        end = Status.model_validate({"state": state, "reason": "the table has changed"})
        monkeypatch.setattr(submission, "watch", lambda *_a, end=end, **_k: end)
        done = call("predict", run.path, "--table", f"bank={bank.root / 'table.csv'}", "--yes")
        assert done.exit_code == 1
        assert f"The same command {said}" in " ".join(done.output.split())


def test_after_a_horizontal_run_each_site_scores_its_own_people_alone(
    make_party: Make, call: Callable[..., Result], contract: Contract, tmp_path: Path
) -> None:
    method = {"name": "fedavg", "rounds": 2}
    changes = {"method": method, "parties": ["shop", "bank"]}
    contract = Contract.model_validate({**contract.model_dump(), **changes})
    frame = pl.read_csv(make_party("bank").root / "table.csv")
    weights = {"allow_also": ["model weights"]}
    folders, files = {}, {}
    for name in contract.parties:
        folders[name] = make_party(name)
        frame.write_csv(folders[name].root / "table.csv")
        file = {"table": "table.csv", "label": "bought", "policy": weights}
        (folders[name].root / "party.yaml").write_text(yaml.safe_dump(file))
        files[name] = folders[name].read()
    job = Job(name="r", parties=files, method=contract.method, compare="none", seeds=[0])
    runner.run(job, tmp_path / "run")
    for name, folder in folders.items():
        run = folder.run(contract.run)
        run.keep(contract)
        shutil.copytree(tmp_path / "run" / "parties" / name / "models", run.path / "models")
    done = call("predict", run.path, "--table", f"bank={tmp_path / 'bank' / 'table.csv'}")
    assert done.exit_code == 0, done.output
    here = predict(tmp_path / "run", {"bank": tmp_path / "bank" / "table.csv"})
    here.write_csv(tmp_path / "here.csv")
    assert Path("scores.csv").read_text() == (tmp_path / "here.csv").read_text()


def test_a_table_to_score_goes_on_with_what_it_began_and_with_nothing_else(
    make_party: Make, contract: Contract, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trained, "read", lambda _run: SimpleNamespace(seed=0))
    bank = make_party("bank")
    trained = bank.run(contract.run)
    trained.keep(contract)
    bank.run("theirs").keep(contract.to_score(80, 0, batch=40, mark="ff"))  # a partner's idea

    def asked() -> tuple[RunFolder, People]:
        table = str(bank.root / "table.csv")
        found, people = of_table(bank, trained.path, table, 40)
        assert found.scores is not None
        assert (found.scores.people, found.scores.mark) != (80, "ff")
        run = bank.run(found.run)
        run.keep(found)
        people.keep(run.path)
        return run, people

    first, people = asked()
    for state in ("running", "paused", "stopped"):
        first.note(Status(state=state))
        assert asked()[0] == first
    first.note(Status(state="finished"))
    first.scores.touch()
    assert asked()[0] == first
    first.scores.unlink()  # it cannot be taken up
    second, _ = asked()
    assert second != first
    second.note(Status(state="refused"))
    third, _ = asked()
    assert third not in (first, second)
    people.model_copy(update={"taken": True}).keep(third.path)
    assert asked()[0] not in (first, second, third)


@pytest.mark.parametrize(
    "verb", ["plan", "submit", "approve", "refuse", "status", "logs", "stop", "results"]
)
def test_help_shows_an_example_and_what_comes_out(verb: str, call: Any) -> None:
    text = call(verb, "--help").output
    assert f"interlace {verb}" in text.partition("Usage")[2].partition("\n")[2]
    assert "What comes out" in text


def test_a_party_sees_what_of_its_privacy_budget_is_spent(call: Any, make_party: Make) -> None:
    shop = make_party("shop", budget={"epsilon": 8.0, "delta": 0.001})
    Account(shop.root).charge("a run", 3.25, 1e-5)
    said = " ".join(call("party", "check", "--party", shop.root, "--offline").output.split())
    assert "epsilon 3.25 of 8, delta 1e-05 of 0.001" in said


def test_where_nobody_can_be_asked_the_way_out_is_said(call: Any, asked: Any) -> None:
    shop, run = asked
    silent = call("approve", "--party", shop.root, input="")
    assert silent.exit_code == 2
    assert "say --yes" in silent.output
    assert approval.answer_of(run) is None
    Path("shop.zip").touch()
    install = call("party", "install", "shop.zip", "--party", shop.root, input="")
    assert install.exit_code == 2
    assert "say --fingerprint" in install.output


def test_a_fingerprint_that_is_none_is_told_from_one_that_differs(call: Any, asked: Any) -> None:
    shop, _ = asked
    for told in ("SHA256:8A:8D", "yes", "SHA256:" + ":".join(["8G"] * 32)):
        done = call("party", "install", "shop.zip", "--fingerprint", told, "--party", shop.root)
        assert done.exit_code == 2
        assert "32 pairs of the digits" in " ".join(done.output.split())
    right = " ".join(["8a"] * 32)  # as somebody types it
    done = call("party", "install", "shop.zip", "--fingerprint", right, "--party", shop.root)
    assert "there is no file shop.zip" in done.output


def test_up_and_down_take_their_parties_as_all_verbs_do(call: Any, make_party: Make) -> None:
    folders = [make_party(name).root for name in ("bank", "shop")]
    assert call("party", "down", folders[0]).exit_code == 2
    done = call("party", "down", "--party", folders[0], "--party", folders[1])
    assert done.exit_code == 0, done.output
    assert done.output.split() == ["bank:", "was", "not", "up", "shop:", "was", "not", "up"]


@pytest.mark.flare
def test_a_site_that_is_up_already_goes_on_with_what_was_left_alone(
    call: Any, make_party: Make, contract: Contract, monkeypatch: pytest.MonkeyPatch
) -> None:
    from interlace.sites import check, service, submission

    taken: list[str] = []
    monkeypatch.setattr(check, "kits", lambda _folder: [])
    monkeypatch.setattr(service, "process_of", lambda _kit: 1)  # FLARE's watchdog started it
    monkeypatch.setattr(submission, "take_up", lambda _folder, run: not taken.append(run.name))
    bank = make_party("bank")
    run = bank.run(contract.run)
    run.keep(contract)
    run.note(Status(state="running", job="one"))
    (run.path / "job").write_text("one")
    done = call("party", "up", "--party", bank.root)
    assert done.exit_code == 0, done.output
    assert f"{run.name} goes on" in done.output
    assert taken == [run.name]


def test_what_a_partner_made_up_does_not_reach_the_terminal(
    call: Any, asked: Any, tmp_path: Path
) -> None:
    shop, run = asked
    run.log.write_text("refused '\x1b[2K\x9b1A'\nnext\tline\n")
    shown = call("logs", "--party", shop.root).output
    assert "next" in shown
    assert all(c.isprintable() or c in "\n\t" for c in shown)
    Ledger(run.ledger).close()
    fields = "session,operation,kind,sender,receiver,round,shape,dtype,bytes,part"
    for session in ("split-0\x1b[2K", "=1\x9b1A"):
        (tmp_path / "theirs.csv").write_text(f"{fields}\n{session},f,x,bank,shop,1,,json,1,0\n")
        done = call("ledger", "diff", "--theirs", "theirs.csv", "--party", shop.root)
        assert done.exit_code == 2
        assert "is not what `interlace ledger export` writes" in " ".join(done.output.split())
