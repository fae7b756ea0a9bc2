"""A table whose people are scored is looked at before anybody is asked, at each party its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
from typer.testing import CliRunner

from interlace.boundary import Kind
from interlace.cli import app
from interlace.cli.predict import _contract as of_table
from interlace.errors import DataError, JobError, Refused
from interlace.runner import make_party as read
from interlace.serve.batch import Trained
from interlace.sites import approval, columns
from interlace.sites.contract import Contract
from interlace.sites.folder import PartyFolder, Status
from interlace.sites.plan import Leaving, Plan

Make = Callable[..., PartyFolder]


@pytest.fixture(autouse=True)
def plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans that are made up: a rehearsal takes seconds."""

    def made_up(folder: PartyFolder, contract: Contract) -> Plan:
        leaves = {Kind.EMBEDDING: Leaving(messages=10, bytes=5_000_000)}
        return Plan(run=contract.run, party=folder.name, leaves=leaves)

    monkeypatch.setattr(approval, "plan_of", made_up)


@pytest.fixture
def trained(make_party: Make, contract: Contract) -> Callable[[str], PartyFolder]:
    """A party that has finished a training."""

    def made(name: str) -> PartyFolder:
        folder = make_party(name, approve=[{"drivers": ["bank"], "max_people": 1000}])
        run = folder.run(contract.run)
        run.keep(contract)
        run.note(Status(state="finished", done=1.0))
        columns.keep(read(name, folder.read()), run)
        return folder

    return made


def change(table: Path, *columns: pl.Expr) -> None:
    pl.read_csv(table).select(*columns).write_csv(table)


DAMAGE = {
    "column 'd': the table has no column of this name": [pl.exclude("d")],
    "column 'c': none of its 80 values (String) can be read": [
        pl.exclude("c"),
        pl.lit("?x").alias("c"),
    ],
}


@pytest.mark.parametrize("said", DAMAGE)
@pytest.mark.parametrize("batch", [40, None])
def test_a_partner_refuses_to_score_what_its_models_cannot_read_until_it_is_mended(
    said: str, batch: int | None, trained: Any, contract: Contract, tables: dict[str, Any]
) -> None:
    shop = trained("shop")
    scores = contract.to_score(40, 0, batch=batch)
    table = shop.root / "table.csv"
    change(table, *DAMAGE[said])
    answer = approval.decide(shop, scores, "bank")
    assert (answer.state, answer.approval) == ("refused", None)
    assert answer.reason.startswith(f"party 'shop', file 'table.csv', {said}")
    assert "the form that it had in training" in answer.reason
    assert "'id'" not in answer.reason  # nor what other columns there are
    run = shop.run(scores.run)
    assert run.status.reason == answer.reason
    with pytest.raises(Refused, match="the form that it had in training"):
        approval.approve(shop, run)
    tables["shop"].write_csv(table)
    assert approval.decide(shop, scores, "bank").state == "approved"
    change(table, pl.exclude("d"))
    with pytest.raises(Refused, match="column 'd'"):  # though there is a plan by now
        approval.approve(shop, run)


def test_a_column_that_the_party_file_names_is_missed_alike(
    trained: Any, contract: Contract
) -> None:
    shop = trained("shop")
    file = shop.root / "party.yaml"
    file.write_text("id: id\n" + file.read_text())
    change(shop.root / "table.csv", pl.exclude("id"))
    answer = approval.decide(shop, contract.to_score(40, 0, batch=40), "bank")
    assert answer.state == "refused"
    assert "column 'id'" in answer.reason
    (shop.root / "table.csv").unlink()
    with pytest.raises(DataError):
        columns.unscorable(shop, contract.to_score(40, 0, batch=40))


def test_who_asks_has_its_own_table_looked_at_first(
    trained: Any, contract: Contract, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trained, "read", lambda _run: SimpleNamespace(seed=0))
    bank = trained("bank")
    run, new = bank.run(contract.run).path, bank.root / "new.csv"
    pl.read_csv(bank.root / "table.csv").drop("bought").write_csv(new)
    assert of_table(bank, run, str(new), 40)[0].scores is not None
    change(new, pl.exclude("a"))
    with pytest.raises(JobError, match=r"party 'bank', file 'new.csv', column 'a'"):
        of_table(bank, run, str(new), 40)
    assert len(list(bank.runs())) == 1


def test_a_training_that_kept_no_columns_says_nothing_of_tables(
    trained: Any, contract: Contract
) -> None:
    shop = trained("shop")
    (shop.run(contract.run).path / columns.FILE).unlink()
    change(shop.root / "table.csv", pl.exclude("d"))
    assert approval.decide(shop, contract.to_score(40, 0, batch=40), "bank").state == "approved"


UNREAD = [pl.exclude("c", "a"), pl.Series([f"{i}.5" if i > 2 else "?x" for i in range(80)])]


def test_who_asks_is_told_what_of_its_own_table_does_not_read(
    trained: Any,
    contract: Contract,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(Trained, "read", lambda _run: SimpleNamespace(seed=0))
    bank = trained("bank")
    run, table = bank.run(contract.run).path, bank.root / "table.csv"
    of_table(bank, run, str(table), 40)
    assert capsys.readouterr().err == ""
    change(table, UNREAD[0], pl.lit(UNREAD[1]).alias("a"))
    of_table(bank, run, str(table), 40)
    said = " ".join(capsys.readouterr().err.split())
    assert said == (
        "! bank: 3 of 80 values of 'a' do not read as numbers, as in training, and are taken for "
        "gaps."
    )


@pytest.mark.parametrize("batch", [40, None])
def test_a_partner_is_told_of_its_own_table_when_it_approves_and_nobody_else_is(
    batch: int | None, trained: Any, contract: Contract
) -> None:
    shop, scores = trained("shop"), contract.to_score(40, 0, batch=batch)
    run = shop.run(scores.run)
    change(shop.root / "table.csv", UNREAD[0], pl.lit(UNREAD[1]).alias("c"))
    assert approval.decide(shop, scores, "bank").reason == ""
    (run.path / "approval.json").unlink()  # of the standing rule
    arguments = ["approve", run.name, "--yes", "--party", str(shop.root)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "! shop: 3 of 80 values of 'c' do not read" in " ".join(done.output.split())
    given = approval.answer_of(run)
    assert given is not None
    assert given.reason == ""
