"""Two small parties on disk, and the program to call on them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml
from typer.testing import CliRunner, Result

from interlace.cli import app

Call = Callable[..., Result]
PEOPLE, SHARED = 120, 100


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def call() -> Call:
    """Call the program in this process."""
    return lambda *args: CliRunner().invoke(app, [str(a) for a in args])


@pytest.fixture
def tables() -> dict[str, pl.DataFrame]:
    """``bank`` knows who bought; ``shop`` has 100 of its 120 people, and 20 others."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(PEOPLE, 4)).round(3)
    bought = np.where(x.sum(1) + rng.normal(size=PEOPLE) > 0, "yes", "no")
    ids = [f"C{i:04}" for i in range(PEOPLE + 20)]
    bank = {"id": ids[:PEOPLE], "bought": bought, "income": x[:, 0], "age": x[:, 1]}
    other = np.vstack([x[:SHARED], rng.normal(size=(20, 4)).round(3)])
    shop = {
        "id": ids[:SHARED] + ids[PEOPLE:],
        "visits": other[:, 2],
        "basket": other[:, 3],
    }
    return {"bank": pl.DataFrame(bank), "shop": pl.DataFrame(shop)}


@pytest.fixture
def write_job(folder: Path) -> Callable[..., Path]:
    """Write party tables as CSV and a job of two epochs about them."""

    def write(tables: dict[str, pl.DataFrame], name: str = "job.yaml", **fields: Any) -> Path:
        parties: dict[str, dict[str, Any]] = {}
        for party, frame in tables.items():
            frame.write_csv(folder / f"{party}.csv")
            parties[party] = {"table": f"{party}.csv", **fields.pop(party, {})}
        if "bank" in parties:
            parties["bank"] = {"label": "bought", **parties["bank"]}
        job = {
            "name": "small",
            "parties": parties,
            "method": {"name": "split", "epochs": 2},
            "compare": "none",
            "seeds": [0],
            **fields,
        }
        (folder / name).write_text(yaml.safe_dump(job, sort_keys=False))
        return folder / name

    return write
