"""Jobs whose method is horizontal: what they come to, resumed, refused, compared and scored."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from interlace import predict, run
from interlace.boundary import Ledger
from interlace.data.noniid import cut_by_labels
from interlace.errors import DataError, JobError, PolicyError
from interlace.job.results import Results
from interlace.job.spec import Job, read_job, write_job
from interlace.methods.catalogue import CATALOGUE, is_horizontal
from interlace.report.verdict import judge

OPEN = {"allow_also": ["model weights"]}
NAMES = ("north", "south", "west")
X, Y = load_digits(return_X_y=True)
PIXELS = [20, 21, 26, 28, 36, 42, 43, 44]
CUT = cut_by_labels(Y[:600], NAMES, alpha=1.0)
METHODS = [n for n, e in CATALOGUE.items() if is_horizontal(n) and e.role == "method"]

Make = Callable[..., Job]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """A job of three clients and a server without rows: two rounds, one seed."""

    def job(
        method: dict[str, Any] | None = None, parties: dict[str, Any] | None = None, **fields: Any
    ) -> Job:
        found: dict[str, Any] = {"server": {"policy": OPEN}}
        for name, rows in CUT.items():
            table = pl.DataFrame({f"p{j}": X[rows, j] for j in PIXELS} | {"digit": Y[rows]})
            table.write_csv(tmp_path / f"{name}.csv")
            path = str(tmp_path / f"{name}.csv")
            found[name] = {"table": path, "id": None, "label": "digit", "policy": OPEN}
        for name, changes in (parties or {}).items():
            found[name] = {**found[name], **changes}
        how = method or {"name": "fedavg", "rounds": 2}
        fields = {"seeds": [0], "compare": "none", **fields}
        return Job.model_validate({"name": "wards", "parties": found, "method": how, **fields})

    return job


def test_a_run_has_all_that_a_report_shows(make: Make, tmp_path: Path) -> None:
    method = {"name": "fedavg", "rounds": 2, "local": {"epochs": 3, "learning_rate": 0.05}}
    said: list[str] = []
    job = make(method, seeds=[0, 1], compare="all")
    run(job, tmp_path / "run", progress=lambda what, _: said.append(what))
    results = Results.read(tmp_path / "run" / "results.json")
    assert (results.geometry, results.task, results.label) == ("horizontal", "multiclass", "digit")
    assert results.classes == 10
    assert results.trained_on + results.tested_on == 600
    assert results.tested_on == sum(round(0.25 * len(rows)) for rows in CUT.values())
    people = {p.name: (p.people, p.columns, p.active) for p in results.parties}
    assert people == {
        "server": (0, 0, True),
        **{n: (len(rows), len(PIXELS), False) for n, rows in CUT.items()},
    }
    federated, alone, pooled = results.models
    assert [m.role for m in results.models] == ["method", "baseline", "in one place"]
    for model in results.models:
        assert [f.seed for f in model.fits] == [0, 1]
        for fit in model.fits:
            assert set(fit.metrics) == {"accuracy", "log_loss"}
            assert set(fit.by_party) == set(NAMES)
    fit = federated.fits[0]
    assert fit.rounds == 2
    assert fit.bytes > 0
    assert (alone.fits[0].messages, pooled.fits[0].messages) == (0, 0)
    assert [e.number for e in fit.history] == [1, 2]
    assert all(e.clients == 3 and e.dropped == 0 for e in fit.history)
    assert all(e.distance and e.angle and e.dissimilarity for e in fit.history)
    assert pooled.fits[0].metrics["accuracy"] > 0.5
    assert results.apart is not None
    assert results.apart.labels is not None
    assert results.apart.labels > 5 * (results.apart.labels_by_chance or 0)
    sent = {(f.sender, f.kind) for f in results.flows}
    assert {("server", "model weights"), ("west", "model weights")} <= sent
    assert not {"blinded ids", "row selection"} & {kind for _, kind in sent}
    assert any("FedAvg, seed 1, round 2" in what for what in said)
    assert judge(results).outcome != "open"  # so it was compared with the parties alone
    page = (tmp_path / "run" / "report.html").read_text()
    assert "How far the parties drift apart" in page
    assert "How unlike the parties are" in page
    assert "over each party alone" in page
    for name in NAMES:
        assert Ledger(tmp_path / "run" / "parties" / name / "ledger.sqlite").verify() is None


@pytest.mark.parametrize("server", [True, False])
def test_auto_sees_that_the_tables_have_the_same_columns(
    make: Make, tmp_path: Path, server: bool
) -> None:
    job = make({"name": "auto"}, test=0.5)
    if not server:
        job.parties.pop("server")
    results = run(job, tmp_path / "run")
    assert results.chosen is not None
    assert results.chosen.method == results.models[0].name == "fedavg"
    assert "all have the same columns" in results.chosen.reason
    assert results.parties[0].active
    assert run(job, tmp_path / "run", resume=True).models == results.models


def test_what_auto_takes_is_held_against_the_policies(make: Make, tmp_path: Path) -> None:
    job = make({"name": "auto"}, {"west": {"policy": {**OPEN, "methods": ["fedprox"]}}})
    with pytest.raises(PolicyError, match=r"'west' takes no part in this.*'fedavg'"):
        run(job, tmp_path / "run")


@pytest.mark.parametrize("name", [m for m in METHODS if m not in ("fedavg", "mixed")])
def test_every_horizontal_method_runs_from_a_job(make: Make, tmp_path: Path, name: str) -> None:
    method = {"name": name, "rounds": 2} | ({"clusters": 3} if name == "horizontal_kmeans" else {})
    results = run(make(method, compare="all"), tmp_path / "run")
    main = "distance" if name == "horizontal_kmeans" else "accuracy"
    assert all(main in m.fits[0].metrics for m in results.models)
    new = {n: tmp_path / f"{n}.csv" for n in ("north", "west")}
    scores = predict(tmp_path / "run", new)
    assert scores["party"].value_counts(sort=True).rows() == sorted(
        ((n, len(CUT[n])) for n in new), key=lambda row: -row[1]
    )
    assert scores["prediction"].null_count() == 0


def test_what_it_says_of_held_out_rows_is_what_its_kept_model_says(
    make: Make, tmp_path: Path
) -> None:
    """The linear model is the pooled table's own, so scikit-learn can say what is right."""
    job = make({"name": "horizontal_linear", "l2": 1e-3, "rounds": 30}, compare="all")
    federated, _, pooled = run(job, tmp_path / "run").models
    assert federated.fits[0].metrics == pytest.approx(pooled.fits[0].metrics, rel=1e-4)
    scores = predict(tmp_path / "run", {"south": tmp_path / "south.csv"})
    rows = CUT["south"]
    right = (scores["prediction"].to_numpy() == Y[rows]).mean()
    everybody = np.concatenate(list(CUT.values()))
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=500))
    fitted = model.fit(X[everybody][:, PIXELS], Y[everybody])
    assert right == pytest.approx(fitted.score(X[rows][:, PIXELS], Y[rows]), abs=0.08)
    assert scores.columns[:3] == ["party", "row", "prediction"]


KILLED = """
import os, sys, torch
from interlace import run
torch.set_num_threads(1)
die = lambda what, _: os._exit(9) if what.endswith("seed 1, round 2") else None
run(sys.argv[1], sys.argv[2], progress=die)
"""


def test_a_killed_run_goes_on_to_the_same_result(make: Make, tmp_path: Path) -> None:
    guards = {"model weights": [{"clip": {"norm": 2.0}}, {"gaussian": {"sigma": 0.01}}]}
    noisy = {"south": {"policy": {**OPEN, "guards": guards}}}
    job = make({"name": "scaffold", "rounds": 3, "participation": 0.7}, noisy, seeds=[0, 1])
    write_job(job, tmp_path / "job.yaml")
    whole = run(job, tmp_path / "whole")
    arguments = [str(tmp_path / "job.yaml"), str(tmp_path / "killed")]
    done = subprocess.run([sys.executable, "-c", KILLED, *arguments], check=False)
    assert done.returncode == 9
    said: list[str] = []
    again = run(job, tmp_path / "killed", resume=True, progress=lambda what, _: said.append(what))
    assert not any("round 1" in what or "round 2" in what for what in said)
    for one, other in zip(whole.models[0].fits, again.models[0].fits, strict=True):
        assert one.metrics == other.metrics
        assert one.by_party == other.by_party
        assert [(e.loss, e.distance) for e in one.history] == [
            (e.loss, e.distance) for e in other.history
        ]
    assert whole.models[0].fits[0].metrics != whole.models[0].fits[1].metrics
    for party in job.parties:
        ledger = Ledger(tmp_path / "killed" / "parties" / party / "ledger.sqlite")
        assert ledger.verify() is None


def test_tables_that_differ_are_refused_with_all_differences(make: Make, tmp_path: Path) -> None:
    job = make()
    table = pl.read_csv(tmp_path / "west.csv").rename({"p20": "P-20"}).drop("p21")
    table.with_columns(more=pl.lit("x")).write_csv(tmp_path / "west.csv")
    with pytest.raises(DataError, match="party 'west'") as refused:
        run(job, tmp_path / "run")
    for text in ("'P-20' is called 'p20' elsewhere", "it lacks 'p21'", "nobody else has 'more'"):
        assert text in str(refused.value)
    assert "vertical" not in str(refused.value)


def test_tables_with_other_columns_are_a_vertical_case(make: Make, tmp_path: Path) -> None:
    job = make()
    table = pl.read_csv(tmp_path / "west.csv")
    table.rename({f"p{j}": f"q{j}" for j in PIXELS}).write_csv(tmp_path / "west.csv")
    with pytest.raises(DataError, match="vertical case: match the people"):
        run(job, tmp_path / "run")


def test_doubtful_units_are_in_the_results_and_interrupt_nobody(
    make: Make, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    job = make()
    table = pl.read_csv(tmp_path / "west.csv").with_columns(pl.col("p20") * 1000)
    table.write_csv(tmp_path / "west.csv")
    notes = [n for p in run(job, tmp_path / "run").parties for n in p.column_notes]
    assert any("'p20' are over a hundred times as large at 'west'" in note for note in notes)
    assert not [w for w in recwarn if "a hundred times" in str(w.message)]


def test_weights_must_be_allowed(make: Make, tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=r"'south'.*`policy: {allow_also: \[model weights\]}`"):
        run(make(parties={"south": {"policy": {}}}), tmp_path / "run")


@pytest.mark.parametrize(
    ("method", "fields", "complaint"),
    [
        ({"name": "fedavg"}, {"compare": ["active_alone"]}, "only one of them is for a horizontal"),
        ({"name": "split"}, {"compare": ["clients_alone"]}, "only one of them is for a horizontal"),
        ({"name": "split"}, {}, "party 'server' has no `table:`"),
        ({"name": "pooled_rows"}, {}, "cannot run without one"),
        ({"name": "fedavg", "local": {"epoch": 1}}, {}, "`local.epoch`"),
        ({"name": "fedavg", "privacy": {"unit": "people"}}, {}, "`privacy.unit`"),
        ({"name": "fedavg", "agreement": {"validation": 0.8}}, {}, "leave nobody to learn from"),
    ],
)
def test_jobs_that_do_not_fit_together_are_refused_at_once(
    make: Make, tmp_path: Path, method: dict[str, Any], fields: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(JobError, match=complaint):
        run(make(method, **fields), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_party_without_a_table_survives_being_written(make: Make, tmp_path: Path) -> None:
    job = make()
    write_job(job, tmp_path / "job.yaml")
    assert read_job(tmp_path / "job.yaml") == job
    assert job.parties["server"].table is None


def test_the_first_party_drives_where_all_have_rows(make: Make, tmp_path: Path) -> None:
    job = make()
    del job.parties["server"]
    results = run(job, tmp_path / "run")
    assert [p.active for p in results.parties] == [True, False, False]
    assert predict(tmp_path / "run", {"north": tmp_path / "north.csv"}).height == len(CUT["north"])


def test_privacy_and_secure_aggregation_are_settings_of_a_job(make: Make, tmp_path: Path) -> None:
    private = {"unit": "row", "clip": 1.0, "noise": 1.0, "delta": 1e-3}
    results = run(make({"name": "fedavg", "rounds": 2, "privacy": private}), tmp_path / "private")
    claims = {p.name: p.privacy for p in results.parties}
    assert claims["west"]["updates of west"]["epsilon, against everybody"] > 0
    hidden = run(make({"name": "fedprox", "rounds": 2, "secure": True}), tmp_path / "hidden")
    received = {f.kind for f in hidden.flows if f.receiver == "server"}
    assert "ciphertext" in received
    assert "model weights" not in received
    assert all(e.distance is None for e in hidden.models[0].fits[0].history)
    assert "drift apart" not in (tmp_path / "hidden" / "report.html").read_text()


def test_clients_of_one_class_can_still_be_alone(make: Make, tmp_path: Path) -> None:
    job = make(compare=["clients_alone"])
    table = pl.read_csv(tmp_path / "west.csv").with_columns(digit=pl.lit(3))
    table.write_csv(tmp_path / "west.csv")
    alone = run(job, tmp_path / "run").models[1].fits[0]
    assert alone.by_party["west"]["accuracy"] == 1.0


def test_banks_and_a_shop_run_from_a_job(tmp_path: Path) -> None:
    x, y = load_breast_cancer(return_X_y=True)
    ids = [f"u{i}" for i in range(len(y))]
    shop = pl.DataFrame({"id": ids, "ill": y, "s": x[:, 4]})
    shop.write_csv(tmp_path / "shop.csv")
    parties: dict[str, Any] = {
        "shop": {"table": str(tmp_path / "shop.csv"), "label": "ill", "policy": OPEN}
    }
    for k in range(2):
        rows = np.arange(k, 400, 2)
        bank = pl.DataFrame(
            {"id": [ids[i] for i in rows]} | {f"b{j}": x[rows, j] for j in (20, 21)}
        )
        bank.write_csv(tmp_path / f"bank{k}.csv")
        parties[f"bank{k}"] = {"table": str(tmp_path / f"bank{k}.csv"), "policy": OPEN}
    job = {"name": "mixed", "parties": parties, "method": {"name": "mixed", "rounds": 2}}
    results = run(Job.model_validate({**job, "seeds": [0]}), tmp_path / "run")
    assert (results.geometry, results.shared_by_all) == ("vertical", 0)
    assert (results.trained_on, results.tested_on) == (300, 100)
    assert [m.name for m in results.models] == ["mixed", "active_alone"]
    assert all(m.fits[0].metrics["auc"] > 0.5 for m in results.models)
    scores = predict(tmp_path / "run", {n: tmp_path / f"{n}.csv" for n in parties})
    assert dict(scores["model"].value_counts().iter_rows()) == {"joint": 400, "alone": 169}
