"""A run as a site drives it: its folder is the active party's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from interlace import Federation, run
from interlace.boundary import Ledger, Policy
from interlace.errors import JobError, PolicyError
from interlace.job.spec import Job
from interlace.runner import drive, make_party


class Killed(Exception):
    """In the middle of a training."""


@pytest.mark.parametrize("name", ["bank", "shop"])
def test_a_table_that_changes_in_the_middle_of_the_first_fit_is_named(
    tmp_path: Path, name: str
) -> None:
    drawn = np.random.default_rng(0).normal(size=(90, 2))
    people = pl.DataFrame({"id": range(90), "a": drawn[:, 0], "b": drawn[:, 1]})
    bank = people.select("id", "a", label=(pl.col("a") > pl.col("b")).cast(pl.Int64))
    for party, table in (("bank", bank), ("shop", people.select("id", "b"))):
        table.write_csv(tmp_path / f"{party}.csv")
    job = Job.model_validate(
        {
            "name": "offer",
            "parties": {
                "bank": {"table": str(tmp_path / "bank.csv"), "label": "label"},
                "shop": {"table": str(tmp_path / "shop.csv")},
            },
            "method": {"name": "split", "epochs": 4, "patience": None},
            "seeds": [0],
            "compare": "none",
        }
    )

    def driven(until: str = "nothing") -> bool:
        def progress(doing: str, _share: float) -> None:
            if until in doing:
                raise Killed

        parties = [make_party(party, file) for party, file in job.parties.items()]
        federation = Federation.simulate(parties, folder=tmp_path / "run")
        return drive(job, federation, progress=progress).finished

    with pytest.raises(Killed):
        driven(until="epoch 3")
    table = tmp_path / f"{name}.csv"
    whole = table.read_text()
    table.write_text("".join(whole.splitlines(keepends=True)[:-1]))
    with pytest.raises(JobError, match=f"party '{name}', file '{name}.csv': the table has changed"):
        driven()
    table.write_text(whole)
    own = {"policy": Policy(partners=frozenset({"shop"}))}  # a party's to change
    job.parties["bank"] = job.parties["bank"].model_copy(update=own)
    assert driven()


def test_kinds_that_every_run_needs_are_missed_before_anything_is_sent(tmp_path: Path) -> None:
    drawn = np.random.default_rng(0).normal(size=(60, 2))
    people = pl.DataFrame({"id": range(60), "a": drawn[:, 0], "b": drawn[:, 1]})
    people.select("id", "a", y=pl.int_range(60) % 2).write_csv(tmp_path / "bank.csv")
    people.select("id", "b").write_csv(tmp_path / "shop.csv")
    parties = {
        "bank": {"table": str(tmp_path / "bank.csv"), "label": "y"},
        "shop": {"table": str(tmp_path / "shop.csv"), "policy": {"allow": ["metric"]}},
    }
    job = Job.model_validate({"name": "offer", "parties": parties})
    with pytest.raises(
        PolicyError,
        match=r"'shop' does not let blinded ids and control leave, nor embedding, which may be due",
    ):
        run(job, tmp_path / "run")
    for name in parties:
        assert not list(Ledger(tmp_path / "run" / "parties" / name / "ledger.sqlite").entries())
