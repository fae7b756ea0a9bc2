"""Jobs and party files: read, refused and written."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from interlace.data.ids import IdRule
from interlace.errors import JobError
from interlace.job.spec import Job, MethodChoice, read_job, shown, write_job
from interlace.runner import compared

JOB = """
name: insurance
parties:
  insurer: {table: insurer.csv, label: Purchase}
  vendor: vendor/party.yaml
method: {name: split, epochs: 3}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "vendor").mkdir()
    (tmp_path / "vendor" / "party.yaml").write_text("table: people.parquet\nid: [first, last]\n")
    return tmp_path


def test_tables_stand_beside_their_file(folder: Path) -> None:
    job = read_job(folder / "job.yaml")
    assert job.parties["insurer"].table == str(folder / "insurer.csv")
    assert job.parties["vendor"].table == str(folder / "vendor" / "people.parquet")
    assert job.parties["vendor"].id == ["first", "last"]
    assert job.method.name == "split"
    assert job.method.settings == {"epochs": 3}


@pytest.mark.parametrize("compare", ["pooled", "{name: pooled}", "[pooled]"])
def test_one_baseline_needs_no_list(folder: Path, compare: str) -> None:
    (folder / "job.yaml").write_text(JOB + f"compare: {compare}")
    assert read_job(folder / "job.yaml").compare == [MethodChoice(name="pooled")]


def test_a_job_is_written_as_it_was_read(folder: Path) -> None:
    job = read_job(folder / "job.yaml")
    write_job(job, folder / "again.yaml")
    assert read_job(folder / "again.yaml") == job
    assert "seeds" not in yaml.safe_load((folder / "again.yaml").read_text())


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("name: x\nparties: {a: {table: t}}", "`parties`: a federation takes at least two"),
        ("name: x", "`parties`: field required"),
        ("parties: {a: {table: t, task: [binary]}, b: {table: t}}", "`parties.a.task`: input"),
        ("- 1", "holds no fields"),
        (
            "a: [",
            "is not YAML: line 1, column 5: expected the node content, but found '<stream end>'",
        ),
        (
            JOB + "compare: [# a]\nwire: 1",
            "line 8, column 8: .*, while .* from line 7, column 10 on",
        ),
        (JOB + "a: b: c", r"line 7, column 5: mapping values are not allowed here\. A name with"),
        (JOB + "epoch: 3", r"`epoch`: there is no such field\. The fields here are 'name', "),
        (JOB + "seed: 3", r"`seed`: there is no such field\. Did you mean 'seeds'\?"),
        (JOB + "methods: split", r"`methods`: .*\. Did you mean 'method'\?"),
        (JOB + "align: {protocl: dh}", r"`align.protocl`: .*\. Did you mean 'protocol'\?"),
        (
            JOB.replace("label: Purchase", "column: [a], policy: {alow: []}"),
            r"`parties.insurer.policy.alow`: .*\. Did you mean 'allow'\? `parties.insurer.column`: "
            r".*\. Did you mean 'columns'\?$",
        ),
        (JOB + "compare: 5", "`compare`: a name, a list of names, `all` or `none` is due$"),
        (JOB + "compare: [{epochs: 5}]", r"yaml: `compare.0.name`: field required$"),
        (JOB + "seeds: [1, 1]", "`seeds`: a seed stands there twice"),
        (JOB + "seeds: [-1]", "`seeds.0`: input should be greater than or equal to 0"),
        (JOB + "seeds: [4294967296]", "`seeds.0`: input should be less than 4294967296"),
        (JOB + "test: 2", "`test`"),
        (JOB.replace("vendor:", "insurer:"), "'insurer' stands twice .* own name"),
        (JOB.replace("vendor/party.yaml", "gone.yaml"), "gone.yaml cannot be read"),
        (
            JOB.replace("label: Purchase", "policy: {allow: [labels]}"),
            "no policy can allow labels",
        ),
        (JOB + "compare: [{name: split, epochs: 9}]", "names 'split', which is there already"),
        (JOB + "compare: [pooled, pooled]", "names 'pooled', which is there already"),
        (JOB.replace("label: Purchase", "policy: {guards: {embedding: [{clop: {}}]}}"), "clop"),
    ],
)
def test_wrong_jobs_name_the_field(folder: Path, text: str, complaint: str) -> None:
    (folder / "job.yaml").write_text(text)
    with pytest.raises(JobError, match=complaint):
        read_job(folder / "job.yaml")


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        (
            "id: {columns: [a], zeross: strip}",
            "`id.zeross`: there is no such field. Did you mean 'zeros'?",
        ),
        ("id: {columns: a, zeros: no}", "`id.zeros`: input should be 'keep' or 'strip'"),
        ("id: {strip: true}", "`id.columns`: field required"),
        (
            "id: [a, 2]",
            "`id`: a column's name, a list of names, or a rule is due, as in "
            "`id: {columns: [cust_no], zeros: strip}`",
        ),
        (
            "strip: true",
            "`strip`: `strip` belongs inside `id:`, as in `id: {columns: [cust_no], strip: true}`",
        ),
    ],
)
def test_a_wrong_party_file_is_told_once_and_by_its_name(
    folder: Path, entry: str, complaint: str
) -> None:
    file = folder / "vendor" / "party.yaml"
    file.write_text(f"table: people.parquet\n{entry}\n")
    with pytest.raises(JobError) as caught:
        read_job(folder / "job.yaml")
    assert str(caught.value) == f"{file}: {complaint}"
    inline = JOB.replace("vendor/party.yaml", f"{{table: t, {entry}}}") + "epoch: 3"
    (folder / "job.yaml").write_text(inline)
    with pytest.raises(JobError) as caught:
        read_job(folder / "job.yaml")
    said = f"{folder / 'job.yaml'}: `parties.vendor.{complaint[1:]}"
    end = " " if said.endswith("?") else "; "
    assert str(caught.value).startswith(f"{said}{end}`epoch`: there is no such field.")


def test_a_party_file_that_is_not_yaml_is_named_with_the_place(folder: Path) -> None:
    (folder / "vendor" / "party.yaml").write_text("table: t.csv\ncategories: [# calls]\n")
    with pytest.raises(
        JobError, match=r"vendor/party.yaml is not YAML: line 3, column 1: .*quotes"
    ):
        read_job(folder / "job.yaml")


def test_one_id_column_of_a_rule_needs_no_brackets(folder: Path) -> None:
    (folder / "vendor" / "party.yaml").write_text("table: t.csv\nid: {columns: c, zeros: strip}\n")
    assert read_job(folder / "job.yaml").parties["vendor"].id == IdRule(
        columns=["c"], zeros="strip"
    )


def test_addresses_are_not_paths(folder: Path) -> None:
    text = JOB.replace("insurer.csv", "'duckdb:///data.db?table=t'")
    (folder / "job.yaml").write_text(text)
    assert read_job(folder / "job.yaml").parties["insurer"].table == "duckdb:///data.db?table=t"


def test_a_job_that_others_see_shows_no_query_and_no_folder() -> None:
    tables = {
        "a": "/home/ann/a.csv",
        "b": "sql:SELECT 'secret'",
        "c": "duckdb:/d/c.db?query=secret",
    }
    parties = {name: {"table": table} for name, table in tables.items()}
    page = shown(Job.model_validate({"name": "x", "parties": parties}))
    seen = {name: party["table"] for name, party in yaml.safe_load(page)["parties"].items()}
    assert seen == {"a": "a.csv", "b": "sql:...", "c": "c.db"}


def test_methods_can_be_given_by_name_alone() -> None:
    parties = {"a": {"table": "a.csv"}, "b": {"table": "b.csv"}}
    job = Job.model_validate({"name": "x", "parties": parties, "method": "agg"})
    assert (job.method.name, job.method.settings) == ("agg", {})


def test_a_baseline_that_is_the_method_is_not_trained_twice() -> None:
    parties = {"a": {"table": "a.csv"}, "b": {"table": "b.csv"}}
    job = Job.model_validate({"name": "x", "parties": parties, "method": "pooled"})
    names = [choice.name for choice in compared(job)]
    assert "active_alone" in names
    assert "pooled" not in names
