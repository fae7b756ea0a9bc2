"""A contract holds what all may see, and its digest stands for every word of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import interlace
from interlace.errors import JobError, Refused
from interlace.job.spec import read_job
from interlace.sites.contract import Contract, check_site_name, read_contract


def job(folder: Path, **fields: Any) -> Path:
    file = folder / "job.yaml"
    file.write_text(yaml.safe_dump({"name": "small", "parties": ["bank", "shop"], **fields}))
    return file


def test_a_job_of_names_is_a_contract(tmp_path: Path) -> None:
    file = job(tmp_path, method={"name": "split", "epochs": 3}, purpose="credit", wait=2)
    contract = read_contract(file, submitter="bank", classes=3)
    assert contract.active == "bank"
    assert contract.passive == ["shop"]
    assert contract.method.settings == {"epochs": 3}
    assert (contract.classes, contract.wait) == (3, 2)
    assert contract.version == interlace.__version__


def test_what_is_private_in_a_job_is_not_in_the_contract(tmp_path: Path) -> None:
    parties = {
        "bank": {"table": "secret-table.csv", "id": "secret-id", "label": "secret-label"},
        "shop": "shop.yaml",
    }
    (tmp_path / "shop.yaml").write_text("table: secret-shop.csv\npolicy: {max_bytes: 777777}\n")
    contract = read_contract(job(tmp_path, parties=parties, wire=True), submitter="shop", classes=5)
    assert contract.active == "bank"  # it has the label
    assert contract.classes is None  # who submits it does not drive, and so does not know
    assert "secret" not in contract.text
    assert "777777" not in contract.text


def test_a_job_of_names_does_not_run_in_one_process(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="`interlace submit` asks"):
        read_job(job(tmp_path))


def test_the_digest_is_of_every_word(contract: Contract) -> None:
    digests = {contract.digest}
    for change in (
        {"seeds": [1]},
        {"parties": ["shop", "bank"]},
        {"active": "shop"},
        {"method": {"name": "split", "epochs": 5}},
        {"purpose": "marketing"},
        {"wait": 1.0},
        {"version": "0.0.1"},
        {"classes": 3},
    ):
        fields = {**json.loads(contract.text), **change}
        digests.add(Contract.model_validate(fields).digest)
    assert len(digests) == 9
    assert contract.run == f"small-{contract.digest[:8]}"


def test_it_reads_back_as_it_was_sent(contract: Contract) -> None:
    again = Contract.read(contract.text)
    assert again == contract
    assert again.digest == contract.digest
    assert contract.text.isascii()


@pytest.mark.parametrize("text", ["", "{}", "[1]", "null", '{"name": "a", "code": "import os"}'])
def test_what_is_no_contract_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="not a contract"):
        Contract.read(text)


@given(st.text(max_size=200))
def test_garbage_is_refused_and_nothing_else_happens(text: str) -> None:
    with pytest.raises(Refused):
        Contract.read(text)


def test_a_contract_of_a_gigabyte_is_not_even_parsed(contract: Contract) -> None:
    with pytest.raises(Refused, match="longer than"):
        Contract.read(contract.text + " " * 70_000)


@pytest.mark.parametrize(
    "bad",
    [
        {"parties": ["bank"]},
        {"parties": ["bank", "bank"]},
        {"parties": ["bank", "../shop"]},
        {"parties": ["bank", "server"]},
        {"active": "clinic"},
        {"name": "../../etc"},
        {"wait": 0},
        {"seeds": []},
        {"colour": "red"},
    ],
)
def test_a_job_that_sites_cannot_do_names_the_field(bad: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(JobError, match=next(iter(bad))):
        read_contract(job(tmp_path, **bad), submitter="bank")


@pytest.mark.parametrize("name", ["", "-a", "a/b", "a b", "ä", "server", "a" * 64, "."])
def test_names_that_no_site_can_have(name: str) -> None:
    with pytest.raises(JobError):
        check_site_name(name)


@pytest.mark.parametrize("text", ["\x1b[2K\x1b[1Amethod split", "a\nmethod    split", "a\u202eb"])
def test_what_people_approve_looks_like_nothing_else(text: str, contract: Contract) -> None:
    fields = json.loads(contract.text)
    for change in ({"purpose": text}, {"method": {"name": "split", "bad": [text]}}):
        with pytest.raises(Refused, match="can be printed"):
            Contract.read(json.dumps(fields | change))
    described = Contract.read(json.dumps(fields | {"description": "Who takes\nup the offer.\n"}))
    assert described.description == "Who takes up the offer."


def test_nobody_waits_for_ever(contract: Contract) -> None:
    fields = contract.text.replace('"wait":24.0', '"wait":Infinity')
    with pytest.raises(Refused, match="wait"):
        Contract.read(fields)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e300", "9" * 400])
def test_numbers_are_finite_and_of_a_size(number: str, contract: Contract) -> None:
    with pytest.raises(Refused):
        Contract.read(contract.text.replace('"epochs":4', f'"epochs":[{number}]'))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"seeds": [1, 1]}, "a seed stands there twice"),
        ({"compare": ["active_alone", "active_alone"]}, "which is there already"),
        ({"parties": ["bank", "Bank"]}, "look alike"),
        ({"parties": ["bank", "my-shop", "my_shop"]}, "look alike"),
        ({"parties": ["bank", "b\u0430nk"]}, "cannot be a site's name"),
        ({"parties": ["bank", "shop\n\x1b[2K"]}, "cannot be a site's name"),
        ({"parties": ["bank", *(f"p{i}" for i in range(100))]}, "at most 100"),
        ({"seeds": list(range(1001))}, "at most 1000"),
        ({"purpose": "x" * 201}, "at most 200"),
        ({"classes": 10**9}, "classes"),
    ],
)
def test_what_no_job_can_be_is_no_contract(
    change: dict[str, Any], said: str, contract: Contract
) -> None:
    with pytest.raises(Refused, match=said) as refused:
        Contract.read(json.dumps(json.loads(contract.text) | change))
    assert str(refused.value).isprintable()


def test_of_a_field_that_stands_twice_all_read_the_same(contract: Contract) -> None:
    text = contract.text.replace('"epochs":4', '"epochs":1,"epochs":400')
    read = Contract.read(text)
    assert '"epochs":400' in read.text
    assert Contract.read(read.text).digest == read.digest


def test_a_contract_nested_deeply_is_refused(contract: Contract) -> None:
    deep = "[" * 20_000 + "]" * 20_000
    with pytest.raises(Refused, match="recursion"):
        Contract.read(contract.text.replace('"epochs":4', f'"epochs":{deep}'))
