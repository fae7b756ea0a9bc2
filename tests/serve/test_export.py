"""Models in ONNX: what the runtime says of raw columns is what interlace says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from sklearn.datasets import load_diabetes, load_wine

from interlace import (
    ActiveAlone,
    AggVFL,
    BoostedTrees,
    Federation,
    Party,
    SplitVFL,
    VerticalKMeans,
    run,
)
from interlace.errors import DataError, JobError
from interlace.job.spec import Job
from interlace.methods import APCVFL, PrivilegedDistillation, RandomForest, VFedTrans
from interlace.methods.baselines import OwnColumns
from interlace.methods.vertical.linear import LogisticRegression, PoissonRegression
from interlace.methods.vertical.scorecard import Scorecard
from interlace.models import BottomSpec

onnxruntime = pytest.importorskip("onnxruntime")
export = pytest.importorskip("interlace.serve.export")

X, Y = load_wine(return_X_y=True)
CITIES = np.array(["ulm", "bonn", "kiel"])


def people(y: np.ndarray = Y, x: np.ndarray = X) -> pl.DataFrame:
    """Numbers, one with gaps and infinities, one known or not, categories, yes and no."""
    rng = np.random.default_rng(0)
    n = len(x)
    gaps = np.where(rng.random(n) < 0.2, np.nan, x[:, 1])
    gaps[3] = np.inf
    frame = pl.DataFrame({"id": [f"p{i}" for i in range(n)], "a": x[:, 0], "b": gaps})
    city = pl.Series("city", CITIES[rng.integers(0, 3, n)])
    return frame.with_columns(
        city.set(pl.Series(rng.random(n) < 0.1), None),
        known=pl.when(pl.Series(rng.random(n) < 0.3)).then(1.0),
        yes=pl.Series(x[:, 2] > np.median(x[:, 2])),
        y=pl.Series(y),
    )


def federation(frame: pl.DataFrame | None = None, **options: Any) -> Federation:
    frame = people() if frame is None else frame
    lab = pl.DataFrame({"id": frame["id"], **{f"z{j}": X[: len(frame), 3 + j] for j in range(5)}})
    parties = [Party("bank", frame, label="y", **options), Party("lab", lab[::2])]
    return Federation.simulate(parties)


def scored(made: Any, frame: pl.DataFrame) -> np.ndarray:
    """What the runtime says of a table as it stands."""
    session = onnxruntime.InferenceSession(made.SerializeToString())
    given = {}
    for value in session.get_inputs():
        column = frame[value.name]
        if value.type == "tensor(string)":
            given[value.name] = column.fill_null("").to_numpy().astype(object)[:, None]
        else:
            numbers = column.cast(pl.Float64).fill_null(np.nan).to_numpy()
            given[value.name] = np.array(numbers)[:, None]
    (told,) = session.run(None, given)
    return np.asarray(told)


SHORT: dict[str, Any] = {"epochs": 4, "validation": 0.0}
TREES: dict[str, Any] = {"n_estimators": 4, "max_depth": 3, "encryption": "none"}


@pytest.mark.parametrize(
    "model",
    [
        ActiveAlone(**SHORT),
        ActiveAlone(bottom=BottomSpec(network="linear"), top=(), **SHORT),
        ActiveAlone(bottom=BottomSpec(network="fourier", components=50), **SHORT),
        VFedTrans(local_epochs=2, dropout=0.2, **SHORT),
        APCVFL(local_epochs=2, **SHORT),
        PrivilegedDistillation(**SHORT),
        OwnColumns(BoostedTrees(**TREES)),
        OwnColumns(BoostedTrees(multi_output=True, **TREES)),
        OwnColumns(RandomForest(n_trees=3, max_depth=4, encryption="none")),
        OwnColumns(LogisticRegression(encryption="none")),
    ],
    ids=lambda m: type(getattr(m, "method", m)).__name__,
)
def test_the_runtime_says_what_the_model_says(model: Any) -> None:
    fed = federation()
    model.fit(fed)
    made = export.to_onnx(model)
    assert {i.name for i in made.graph.input} <= {"a", "b", "city", "known", "yes"}
    assert made.graph.output[0].name == "probabilities"
    np.testing.assert_allclose(
        scored(made, fed.active.frame), model.predict_proba(fed), atol=2e-6, rtol=1e-5
    )
    new = fed.active.frame.with_columns(city=pl.lit("rome"), a=pl.lit(None), b=pl.col("b") * 2)
    elsewhere = fed.with_tables({"bank": new, "lab": fed.engine.parties["lab"].frame})  # type: ignore[attr-defined]
    np.testing.assert_allclose(
        scored(made, new), model.predict_proba(elsewhere), atol=2e-6, rtol=1e-5
    )


@pytest.mark.parametrize(
    "model",
    [
        ActiveAlone(**SHORT),
        OwnColumns(BoostedTrees(objective="count:poisson", **TREES)),
        OwnColumns(PoissonRegression(encryption="none")),
    ],
)
def test_quantities_and_two_classes_and_labels(model: Any) -> None:
    x, y = load_diabetes(return_X_y=True)
    fed = federation(people(y[:170], x[:170]), task="regression")
    model.fit(fed)
    made = export.to_onnx(model)
    assert made.graph.output[0].name == "estimate"
    found = scored(made, fed.active.frame)[:, 0]
    np.testing.assert_allclose(found, model.predict(fed), rtol=1e-4)
    several = pl.Series("y", [[int(a > 0), int(a > 1)] for a in Y], dtype=pl.Array(pl.Int64, 2))
    linear = isinstance(getattr(model, "method", None), PoissonRegression)
    for label in ((Y > 0).astype(int), *(() if linear else (None,))):
        frame = people() if label is None else people(label)
        fed = federation(frame.with_columns(several) if label is None else frame)
        if isinstance(model, OwnColumns):
            own = LogisticRegression(encryption="none") if linear else BoostedTrees(**TREES)
            model = OwnColumns(own)
        model.fit(fed)
        found = scored(export.to_onnx(model), fed.active.frame)
        np.testing.assert_allclose(found, model.predict_proba(fed), atol=2e-6)


def test_the_active_partys_share_of_summed_scores() -> None:
    """What the graph gives and what the partner gives add up to the joint scores."""
    fed = federation().shared()
    model = AggVFL(**SHORT).fit(fed)
    made = export.to_onnx(model)
    assert made.graph.output[0].name == "partial_score"
    own = scored(made, fed.active.frame[fed.rows])
    partner = fed.engine.parties["lab"]  # type: ignore[attr-defined]
    rows = partner.shared_with("bank")[fed.positions("lab", fed.rows).numpy()]
    import torch

    theirs = partner.sides[model.session_].bottom.embed(torch.from_numpy(rows)).double().numpy()
    joint = np.exp(own + theirs)
    np.testing.assert_allclose(
        joint / joint.sum(1, keepdims=True), model.predict_proba(fed), atol=1e-6
    )


CARD: dict[str, Any] = {"min_iv": 0.0, "max_correlation": None, "max_vif": None, "min_bin_rows": 5}


@pytest.mark.parametrize(
    ("model", "classes"),
    [
        (LogisticRegression(encryption="none"), 2),
        (LogisticRegression(encryption="none"), 3),
        (Scorecard(right_signs=False, **CARD), 2),
    ],
)
def test_the_active_partys_share_of_a_linear_model_and_a_scorecard(
    model: Any, classes: int
) -> None:
    """With the intercept; categories and gaps among the columns."""
    fed = federation(people(np.minimum(Y, classes - 1))).shared()
    model.fit(fed)
    made = export.to_onnx(model)
    assert {"b", "city"} <= {i.name for i in made.graph.input}
    own = scored(made, fed.active.frame)[fed.rows]
    said = model.points(fed)[:, None] if isinstance(model, Scorecard) else model.scores(fed)
    held = fed.engine.parties["lab"]  # type: ignore[attr-defined]
    side, rows = held.sides[model.session_], held.shared_with("bank")
    rows = rows[fed.positions("lab", fed.rows).numpy()]
    if isinstance(model, Scorecard):
        theirs = side.card.points(held.frame, rows).sum(axis=1, keepdims=True)
    else:
        theirs = side.columns.matrix(held.frame, rows) @ side.weights
    np.testing.assert_allclose(own + theirs, said, atol=1e-6)
    if isinstance(model, Scorecard):
        alone = OwnColumns(model).fit(fed)
        found = scored(export.to_onnx(alone), fed.active.frame)[fed.rows]
        np.testing.assert_allclose(found, alone.predict_proba(fed), atol=1e-9)


def test_what_a_run_trained_is_written_without_its_tables(tmp_path: Path) -> None:
    frame, lab = people(), pl.DataFrame({"id": [f"p{i}" for i in range(178)], "z": X[:, 6]})
    frame.write_parquet(tmp_path / "bank.parquet")
    lab.write_parquet(tmp_path / "lab.parquet")
    parties = {
        "bank": {"table": str(tmp_path / "bank.parquet"), "label": "y"},
        "lab": {"table": str(tmp_path / "lab.parquet")},
    }
    for method, alone in (
        ({"name": "boosted_trees", **TREES}, "own_columns"),
        ({"name": "split", "epochs": 2}, "active_alone"),
    ):
        job = Job.model_validate({"name": "x", "parties": parties, "method": method, "seeds": [0]})
        run(job, tmp_path / alone)
    (tmp_path / "bank.parquet").unlink()
    for alone in ("own_columns", "active_alone"):
        with pytest.raises(JobError, match=f"of its models there can be written: {alone}$"):
            export.export(tmp_path / alone, tmp_path / "m.onnx")
        made = export.export(tmp_path / alone, tmp_path / "m.onnx", model=alone)
        about = {p.key: p.value for p in made.metadata_props}
        assert about["classes"] == "[0, 1, 2]"
        assert about["party"] == "bank"
        assert (tmp_path / "m.onnx").read_bytes() == made.SerializeToString()
        assert scored(made, frame).shape == (178, 3)
    for model, folder in (("pooled_columns", "own_columns"), ("pooled", "active_alone")):
        with pytest.raises(JobError, match=f"partners' columns.*can be written: {folder}$"):
            export.export(tmp_path / folder, tmp_path / "m.onnx", model=model)
    with pytest.raises(JobError, match="no trained model of seed 5; its seeds are 0"):
        export.export(tmp_path / "active_alone", tmp_path / "m.onnx", seed=5)
    with pytest.raises(JobError, match=r"trained no 'fedcvt'; .*: own_columns$"):
        export.export(tmp_path / "own_columns", tmp_path / "m.onnx", model="fedcvt")


def test_what_cannot_be_written_is_said() -> None:
    with pytest.raises(JobError, match="partners make"):
        export.to_onnx(SplitVFL(**SHORT).fit(federation().shared()))
    with pytest.raises(JobError, match="partners' columns"):
        export.to_onnx(BoostedTrees(**TREES).fit(federation().shared()))
    with pytest.raises(JobError, match="VerticalKMeans is not written"):
        export.to_onnx(VerticalKMeans(clusters=2, starts=1).fit(federation().shared()))
    days = pl.date_range(pl.date(2020, 1, 1), pl.date(2020, 6, 26), eager=True)
    dated = people().with_columns(born=days[:178])
    rare = people().with_columns(shop=pl.Series([f"s{i % 90}" for i in range(178)]))
    for frame, why in ((dated, "dates"), (rare, "rare levels")):
        with pytest.raises(DataError, match=why):
            export.to_onnx(ActiveAlone(**SHORT).fit(federation(frame)))
    with pytest.raises(DataError, match="dates"):
        export.to_onnx(
            OwnColumns(BoostedTrees(**TREES)).fit(federation(dated.select("id", "born", "y")))
        )
    same = people().with_columns(a=pl.col("y").cast(pl.Float64)).select("id", "a", "y")
    stump = OwnColumns(BoostedTrees(n_estimators=1, gamma=1e9, encryption="none"))
    stump.fit(federation(same))
    with pytest.raises(JobError, match="no split"):
        export.to_onnx(stump)


def test_the_command_writes_a_file_and_says_what_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from typer.testing import CliRunner

    from interlace.cli import app

    monkeypatch.chdir(tmp_path)
    people().select("id", "a", "y").write_csv("bank.csv")
    pl.DataFrame({"id": [f"p{i}" for i in range(178)], "z": X[:, 6]}).write_csv("lab.csv")
    parties = {"bank": {"table": "bank.csv", "label": "y"}, "lab": {"table": "lab.csv"}}
    method = {"name": "privileged_distillation", "epochs": 2}
    fields = {"parties": parties, "method": method, "seeds": [0], "compare": "none"}
    run(Job.model_validate({"name": "x", **fields}), "done")
    call = CliRunner().invoke
    told = call(app, ["export", "done", "--out", "m.onnx"])
    assert told.exit_code == 0, told.output
    assert "m.onnx: probabilities from a" in told.stderr
    assert Path("m.onnx").exists()
    for wrong, why in ((["--out", "m.pmml"], ".onnx file"), (["--model", "split"], "no 'split'")):
        told = call(app, ["export", "done", *wrong])
        assert told.exit_code == 2
        assert why in " ".join(told.stderr.split())
