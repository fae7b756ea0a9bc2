"""A job with an arbiter, from its file to scores of new people."""

from __future__ import annotations

import gc
from pathlib import Path

import polars as pl
import pytest
import yaml
from sklearn.datasets import load_breast_cancer

import interlace
from interlace.boundary import Kind, Ledger
from interlace.errors import JobError


def test_a_job_with_an_arbiter_trains_reports_and_scores(tmp_path: Path) -> None:
    x, y = load_breast_cancer(return_X_y=True)
    ids = [f"p{i}" for i in range(150)]
    bank = pl.DataFrame({"id": ids, "a": x[:150, 0], "b": x[:150, 1], "y": y[:150]})
    shop = pl.DataFrame({"id": ids, "c": x[:150, 6], "d": x[:150, 7]})
    bank.write_csv(tmp_path / "bank.csv")
    shop.write_csv(tmp_path / "shop.csv")
    job = {
        "name": "arbitrated",
        "method": {"name": "logistic", "protocol": "arbiter", "sigmoid": "taylor", "l2": 0.1},
        "parties": {
            "bank": {"table": "bank.csv", "label": "y"},
            "shop": {"table": "shop.csv"},
            "notary": {},
        },
        "active": "bank",
        "align": {"protocol": "kkrt"},
        "seeds": [0],
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    gc.disable()  # which would have a ledger that is collected write its rows
    try:
        results = interlace.run(tmp_path / "job.yaml", tmp_path / "run")
        noted = Ledger(tmp_path / "run" / "parties" / "notary" / "ledger.sqlite").totals().messages
    finally:
        gc.enable()
    passed = [f.messages for f in results.flows if "notary" in (f.sender, f.receiver)]
    assert noted == sum(passed) > 0
    by_name = {model.name: model.fits[0].metrics["auc"] for model in results.models}
    assert by_name["logistic"] > 0.9
    assert by_name["logistic"] == pytest.approx(by_name["pooled_columns"], abs=0.01)
    assert [party.name for party in results.parties] == ["bank", "shop"]
    to_notary = {f.kind for f in results.flows if f.receiver == "notary"}
    assert to_notary == {Kind.CONTROL, Kind.CIPHERTEXT}
    sheet = next(m for m in results.models if m.name == "logistic").sheets[0]
    assert [row[0] for row in sheet.rows] == ["a", "b", "intercept"]
    assert "½ + 0.25 z, which is off by up to 0.12 for" in sheet.note
    page = (tmp_path / "run" / "report.html").read_text()
    assert "notary" in page
    assert "Coefficients at bank" in page
    kept = tmp_path / "run" / "parties" / "shop" / "models" / "logistic-0" / "linear.json"
    assert "intercept" not in kept.read_text()
    tables = {"bank": tmp_path / "bank.csv", "shop": tmp_path / "shop.csv"}
    scores = interlace.predict(tmp_path / "run", tables)
    assert len(scores) == 150

    job["method"] = {"name": "logistic"}
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(job))
    with pytest.raises(JobError, match="party 'notary' has no `table:`"):
        interlace.run(tmp_path / "other.yaml", tmp_path / "other")
