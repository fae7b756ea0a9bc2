"""Online scores: who answers, why, what a partner is asked, and what the endpoint refuses."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import polars as pl
import pytest
from fastapi.testclient import TestClient

from interlace import predict, run
from interlace.boundary import Ledger, Message
from interlace.engines import InProcess
from interlace.errors import JobError, PartyFailed
from interlace.job.spec import Job
from interlace.serve.endpoint import application, listen, read_token
from interlace.serve.online import InputError, Question, Scorer, open_run

HELD, PEOPLE = 60, 70
LOCAL = "http://127.0.0.1"
PROGRAM = "from interlace.cli import app; app()"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A run over a bank of 70 people, a shop that holds the first 60 and 20 others."""
    folder = tmp_path_factory.mktemp("serve")
    rng = np.random.default_rng(0)
    x = rng.standard_normal((PEOPLE + 20, 3))
    ids = [f"P{i:03}" for i in range(PEOPLE + 20)]
    bank = pl.DataFrame(
        {
            "person": ids[:PEOPLE],
            "age": x[:PEOPLE, 0],
            "town": [("Ulm", "Bonn")[i % 2] for i in range(PEOPLE)],
            "bought": np.where(x[:PEOPLE, 0] + x[:PEOPLE, 1] > 0, "yes", "no"),
        }
    )
    rows = [*range(HELD), *range(PEOPLE, PEOPLE + 20)]
    shop = pl.DataFrame({"person": [ids[i] for i in rows], "visits": x[rows, 1]})
    tables = {"bank": str(folder / "bank.csv"), "shop": str(folder / "shop.csv")}
    bank.write_csv(tables["bank"])
    shop.sample(fraction=1, shuffle=True, seed=0).write_csv(tables["shop"])
    run(_job(tables), folder / "run")
    return folder / "run", tables


def _job(tables: dict[str, str], **fields: Any) -> Job:
    return Job.model_validate(
        {
            "name": "small",
            "parties": {
                "bank": {"table": tables["bank"], "id": "person", "label": "bought"},
                "shop": {"table": tables["shop"], "id": "person"},
            },
            "method": {"name": "split", "epochs": 2},
            "compare": ["active_alone"],
            "seeds": [0],
            **fields,
        }
    )


class Line(InProcess):
    """Parties in this process, with a line to the shop that can be cut, slowed and listened to."""

    def __init__(self, engine: InProcess) -> None:
        super().__init__(engine.parties.values())
        self.asked: list[Message] = []
        self.fault: Exception | None = None
        self.hold = threading.Event()
        self.hold.set()

    def deliver(self, message: Message) -> Message:
        self.asked.append(message)
        self.hold.wait(timeout=5)
        if self.fault is not None:
            raise self.fault
        return super().deliver(message)

    def embedded(self) -> list[int]:
        """How many people each round was about."""
        return [len(m.parts[0].value) for m in self.asked if m.operation == "embed"]


@pytest.fixture
def scorer(trained: tuple[Path, dict[str, str]]) -> Iterator[Scorer]:
    made = open_run(trained[0], most=40)
    made.federation.engine = Line(made.federation.engine)
    with made:
        yield made
        made.federation.engine.hold.set()


@pytest.fixture
def line(scorer: Scorer) -> Line:
    assert isinstance(scorer.federation.engine, Line)
    return scorer.federation.engine


@pytest.fixture
def client(scorer: Scorer) -> Iterator[TestClient]:
    with TestClient(application(scorer), base_url=LOCAL) as made:
        yield made


def ask(client: TestClient, **question: Any) -> list[dict[str, Any]]:
    answer = client.post("/score", json=question)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["answers"])


def refused(client: TestClient, **question: Any) -> list[dict[str, str]]:
    answer = client.post("/score", json=question)
    assert answer.status_code == 422, answer.text
    return list(answer.json()["errors"])


@pytest.fixture(scope="module")
def in_batch(trained: tuple[Path, dict[str, str]]) -> dict[str, dict[str, Any]]:
    """What `interlace predict` says of everybody, by id."""
    return {row["person"]: row for row in predict(*trained).to_dicts()}


# -- who answers --------------------------------------------------------------------------------


def test_the_answers_are_those_of_predict(
    client: TestClient, line: Line, in_batch: dict[str, dict[str, Any]]
) -> None:
    ids = ["P069", "P003", "P017", "P060", "P000"]
    answers = ask(client, ids=ids)
    assert [a["id"] for a in answers] == ids
    for answer in answers:
        batch = in_batch[answer["id"]]
        assert answer["prediction"] == batch["prediction"]
        for c in ("no", "yes"):
            assert answer["probabilities"][c] == pytest.approx(batch[f"probability {c}"], abs=1e-6)
        joint = batch["model"] == "joint"
        assert answer["answered_by"] == ("joint" if joint else "active alone")
        assert answer["reason"] == (None if joint else "not shared")
    assert line.embedded() == [3]


def test_many_people_are_one_message_and_each_is_asked_about_once(
    client: TestClient, line: Line
) -> None:
    answers = ask(client, ids=[f"P{i:03}" for i in [*range(30), *range(5)]])
    assert {a["answered_by"] for a in answers} == {"joint"}
    assert [a["prediction"] for a in answers[:5]] == [a["prediction"] for a in answers[30:]]
    assert line.embedded() == [30]


def test_partners_do_not_learn_the_order_of_the_request_or_of_the_table(
    client: TestClient, line: Line, scorer: Scorer
) -> None:
    ask(client, ids=[f"P{i:03}" for i in range(40)])
    (message,) = (m for m in line.asked if m.operation == "embed")
    order = scorer.federation.alignment.pairs["shop"][message.parts[0].value.numpy()]
    assert sorted(order) == list(range(40))
    assert list(order) != list(range(40))


def test_a_row_of_somebody_new_is_scored_alone(
    client: TestClient, line: Line, trained: tuple[Path, dict[str, str]]
) -> None:
    row = pl.read_csv(trained[1]["bank"]).row(65, named=True)
    given = {"person": "new", "age": row["age"], "town": row["town"]}
    new, gap, known = ask(client, rows=[given, {"age": None, "town": "Ulm"}], ids=["P065"])[::-1]
    assert (known["id"], gap["id"], new["id"]) == ("P065", "new", None)
    new, gap = gap, new
    assert new["probabilities"]["yes"] == pytest.approx(known["probabilities"]["yes"], abs=1e-6)
    assert {a["answered_by"] for a in (new, gap)} == {"active alone"}
    assert {a["reason"] for a in (new, gap)} == {"row given"}
    assert gap["prediction"] in ("yes", "no")
    assert line.embedded() == []


def test_an_unknown_id_is_said_to_be_one(client: TestClient) -> None:
    unknown, known = ask(client, ids=["P999", "P001"])
    assert (unknown["answered_by"], unknown["reason"]) == ("nobody", "unknown id")
    assert unknown["prediction"] is None
    assert known["answered_by"] == "joint"


def test_a_late_partner_is_not_waited_for_and_not_asked_again(
    client: TestClient, line: Line, in_batch: dict[str, dict[str, Any]]
) -> None:
    line.hold.clear()
    began = time.perf_counter()
    (late,) = ask(client, ids=["P001"], deadline_ms=50)
    (queued,) = ask(client, ids=["P002"], deadline_ms=50)
    assert time.perf_counter() - began < 1
    assert (late["answered_by"], late["reason"]) == ("active alone", "deadline")
    assert (queued["answered_by"], queued["reason"]) == ("active alone", "deadline")
    assert late["probabilities"]["yes"] != in_batch["P001"]["probability yes"]
    line.hold.set()
    (again,) = ask(client, ids=["P003"])
    assert again["answered_by"] == "joint"
    assert line.embedded() == [1, 1], "nobody waited for P002 any more"


@pytest.mark.parametrize(
    "fault", [PartyFailed("shop", "embed", "ValueError"), ConnectionError("at P001, who is 47")]
)
def test_a_partner_that_fails_is_stood_in_for_and_taken_up_again(
    client: TestClient,
    line: Line,
    scorer: Scorer,
    fault: Exception,
    caplog: pytest.LogCaptureFixture,
) -> None:
    line.fault = fault
    with caplog.at_level(logging.WARNING):
        (answer,) = ask(client, ids=["P001"])
    assert (answer["answered_by"], answer["reason"]) == ("active alone", "partner failed")
    assert client.get("/ready").json() == {"ready": True, "joint": False, "alone": True}
    assert "P001" not in caplog.text
    assert "the partners do not answer" in caplog.text
    line.fault = None
    for party in line.parties.values():
        party.sides.clear()  # as in a partner that was restarted
    for _ in range(3):
        line.fault = PartyFailed("shop", "embed", "ValueError")
        ask(client, ids=["P001"])
        line.fault = None
        (answer,) = ask(client, ids=["P001"])
        assert (answer["answered_by"], answer["reason"]) == ("joint", None)
    assert scorer.trouble is None
    assert len(line.parties["shop"].sides) == 1, "conversations that failed are not kept"


def test_a_partner_that_is_away_at_the_start_is_taken_up_later(
    trained: tuple[Path, dict[str, str]],
) -> None:
    made = open_run(trained[0])
    made.federation.engine = line = Line(made.federation.engine)
    line.fault = PartyFailed("shop", "load", "it is away")
    with made, TestClient(application(made), base_url=LOCAL) as client:
        assert ask(client, ids=["P001"])[0]["reason"] == "partner failed"
        line.fault = None
        assert ask(client, ids=["P001"])[0]["answered_by"] == "joint"


def test_a_run_without_a_model_for_the_active_party_alone(
    trained: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    run(_job(trained[1], compare="none"), tmp_path / "run")
    with (
        open_run(tmp_path / "run") as made,
        TestClient(application(made), base_url=LOCAL) as client,
    ):
        held, lacking = ask(client, ids=["P001", "P065"])
        assert held["answered_by"] == "joint"
        assert (lacking["answered_by"], lacking["reason"]) == ("nobody", "not shared")
        (new,) = ask(client, rows=[{"age": 1, "town": "Ulm"}])
        assert (new["answered_by"], new["reason"]) == ("nobody", "row given")
        made.federation.engine.parties.clear()
        assert ask(client, ids=["P001"])[0]["answered_by"] == "nobody"
        assert client.get("/ready").status_code == 503


def test_a_policy_bounds_the_people_of_a_round(
    trained: tuple[Path, dict[str, str]],
) -> None:
    made = open_run(trained[0])
    shop = made.federation.engine.parties["shop"]
    shop.policy = shop.policy.model_copy(update={"smallest_group": 3})
    shop.boundary.policy = shop.policy
    with made, TestClient(application(made), base_url=LOCAL) as client:
        assert ask(client, ids=["P001"])[0]["reason"] == "partner failed"
        assert "smallest_group" in str(made.trouble)
        assert ask(client, ids=["P001", "P002", "P003"])[0]["answered_by"] == "joint"


# -- several at once ----------------------------------------------------------------------------


def test_questions_that_arrive_together_are_joined(
    client: TestClient, scorer: Scorer, line: Line, in_batch: dict[str, dict[str, Any]]
) -> None:
    line.hold.clear()
    ids = [f"P{i:03}" for i in range(50)]
    with ThreadPoolExecutor(50) as pool:
        answers = pool.map(lambda id: ask(client, ids=[id], deadline_ms=5000)[0], ids)
        # Who is not in the round that is held back has to have arrived.
        end = time.monotonic() + 4
        while sum(line.embedded()) + len(scorer._waiting) < 50 and time.monotonic() < end:
            time.sleep(0.01)
        line.hold.set()
        for id, answer in zip(ids, answers, strict=True):
            assert (answer["id"], answer["answered_by"]) == (id, "joint")
            batch = in_batch[id]["probability yes"]
            assert answer["probabilities"]["yes"] == pytest.approx(batch, abs=1e-6)
    rounds = line.embedded()
    assert sum(rounds) == 50
    assert max(rounds) <= 40
    assert len(rounds) <= 10


def test_a_service_that_was_killed_goes_on(trained: tuple[Path, dict[str, str]]) -> None:
    folder, _ = trained
    ledger = Ledger(folder / "parties" / "shop" / "ledger.sqlite")
    before = Counter((e.session == "alignment", e.kind) for e in ledger.entries())
    command = [sys.executable, "-c", PROGRAM, "serve", str(folder), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as service:
        try:
            assert service.stderr is not None
            url = service.stderr.readline().strip()
            answers = httpx2.post(url, json={"ids": ["P001"]}, timeout=60).json()["answers"]
            time.sleep(0.2)  # what passed is written right after it was answered
        finally:
            service.kill()
    with open_run(folder) as again:
        (answer,) = asyncio.run(again.answer(Question(ids=["P001"]), 1))
    assert answer.answered_by == answers[0]["answered_by"] == "joint"
    assert answer.probabilities == pytest.approx(answers[0]["probabilities"], abs=1e-6)
    passed = Counter((e.session == "alignment", e.kind) for e in ledger.entries()) - before
    assert passed == {(False, "row selection"): 2, (False, "embedding"): 2, (False, "control"): 4}
    assert ledger.verify() is None


def test_two_services_keep_the_ledgers_whole(
    trained: tuple[Path, dict[str, str]],
) -> None:
    folder, _ = trained
    ledgers = {n: folder / "parties" / n / "ledger.sqlite" for n in ("bank", "shop")}
    before = {n: len(list(Ledger(path).entries())) for n, path in ledgers.items()}
    people = Question(ids=["P001", "P002"])
    with open_run(folder) as one, open_run(folder) as other:
        for made in (one, other, one):
            (first, _) = asyncio.run(made.answer(people, 1))
            assert first.answered_by == "joint"
    for name, path in ledgers.items():
        entries = list(Ledger(path).entries())[before[name] :]
        embedded = [e for e in entries if e.operation == "embed"]
        assert sum(e.kind == "row selection" for e in embedded) == 3
        assert sum(e.kind == "embedding" for e in embedded) == 3
        assert all(e.shape.startswith("2") for e in embedded)
        assert Ledger(path).verify() is None


# -- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("question", "field"),
    [
        ({}, "ids"),
        ({"ids": [f"P{i:03}" for i in range(41)]}, "ids"),
        ({"rows": [{"age": 1, "town": "Ulm"}] * 41}, "rows"),
        ({"ids": [1.5]}, "ids.0"),
        ({"ids": [{"card": "P001"}]}, "ids.0"),
        ({"id": "P001"}, "id"),
        ({"ids": ["P001"], "deadline_ms": 0}, "deadline_ms"),
        ({"rows": [{"age": 47}]}, "rows.0.town"),
        ({"rows": [{"age": 47, "town": "Ulm"}, {"town": "Ulm"}]}, "rows.1.age"),
        ({"rows": [{"age": 47, "town": "Ulm"}, {}]}, "rows"),
        ({"rows": [{"age": 47, "town": "Ulm", "bought": "yes"}]}, "rows.0.bought"),
        ({"rows": [{"age": [47], "town": "Ulm"}]}, "rows.0.age"),
        ({"rows": [{"age": "forty-seven", "town": "Ulm"}]}, "rows.age"),
        ({"rows": [{"age": "47", "town": "Ulm"}, {"age": 47, "town": "Ulm"}]}, "rows.age"),
    ],
)
def test_a_wrong_question_is_refused_by_field_and_nobody_is_asked(
    client: TestClient, line: Line, question: dict[str, Any], field: str
) -> None:
    errors = refused(client, **question)
    assert [e["field"] for e in errors] == [field]
    assert not any(value in json.dumps(errors) for value in ("47", "forty", "P001"))
    assert line.embedded() == []


def test_a_column_that_the_model_does_not_read_may_be_left_out(
    trained: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    """As in a table of new people; here one of free text, each different."""
    tables = {**trained[1], "bank": str(tmp_path / "bank.csv")}
    bank = pl.read_csv(trained[1]["bank"]).with_columns(note="note " + pl.col("person"))
    bank.write_csv(tables["bank"])
    run(_job(tables), tmp_path / "run")
    with open_run(tmp_path / "run") as scorer:
        rows = [{"age": 0.5, "town": "Ulm"}, {"age": 0.5, "town": "Ulm", "note": "other"}]
        answers = asyncio.run(scorer.answer(Question.model_validate({"rows": rows}), 10))
        assert [a.answered_by for a in answers] == ["active alone"] * 2
        assert answers[0].probabilities == answers[1].probabilities
        for row, why in (
            ({"age": 1.0}, r"rows\.0\.town: the column is missing$"),
            ({"note": "other"}, r"rows\.0: these columns are missing: age, town$"),
        ):
            with pytest.raises(InputError, match=why):
                asyncio.run(scorer.answer(Question.model_validate({"rows": [row]}), 10))


def test_a_body_that_is_not_json_or_too_large_is_refused(client: TestClient) -> None:
    json_type = {"Content-Type": "application/json"}
    broken = client.post("/score", content=b'{"ids": ["P001"', headers=json_type)
    assert broken.status_code == 422
    assert "P001" not in broken.text
    assert client.post("/score", content=b"x" * 5_000_000, headers=json_type).status_code == 413
    assert client.post("/score", content=b'{"ids": ["P001"]}').status_code == 422
    nan = client.post("/score", content=b'{"rows": [{"age": NaN}]}', headers=json_type)
    assert nan.status_code == 422


def test_a_fault_of_ours_quotes_nobody(
    client: TestClient,
    scorer: Scorer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def faulty(_keys: Any) -> None:
        raise ValueError("P001 is 47")

    monkeypatch.setattr(scorer, "_find", faulty)
    answer = client.post("/score", json={"ids": ["P001"]})
    assert answer.status_code == 500
    assert "ValueError at" in caplog.text
    assert "P001" not in caplog.text + answer.text


def test_without_a_token_only_this_machine_is_answered(client: TestClient) -> None:
    assert client.get("/health").json() == {"status": "up"}
    for host in ("localhost:8321", "[::1]:8321"):
        assert client.get("/health", headers={"Host": host}).status_code == 200
    for host in ("elsewhere.example", "127.0.0.1.elsewhere.example"):
        assert client.get("/health", headers={"Host": host}).status_code == 400


def test_a_token_is_asked_for(scorer: Scorer) -> None:
    token = "0123456789abcdef"
    with TestClient(application(scorer, token=token)) as client:
        people = {"ids": ["P001"]}
        for headers in ({}, {"Authorization": "Bearer 0123456789abcdeX"}, {"Authorization": token}):
            assert client.post("/score", json=people, headers=headers).status_code == 401
            assert client.get("/metrics", headers=headers).status_code == 401
        headers = {"Authorization": f"Bearer {token}"}
        assert client.post("/score", json=people, headers=headers).status_code == 200
        assert client.get("/health").status_code == 200
        assert client.get("/ready").json()["ready"]


def test_other_machines_are_let_in_by_a_token_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(JobError, match="--token-file"):
        listen("0.0.0.0", 0, token=None)
    with listen("0.0.0.0", 0, token="0123456789abcdef") as at:
        port = at.getsockname()[1]
        with pytest.raises(JobError, match="--port"):
            listen("0.0.0.0", port, token="0123456789abcdef")
    listen("127.0.0.1", 0, token=None).close()
    monkeypatch.delenv("INTERLACE_TOKEN", raising=False)
    assert read_token(None) is None
    file = tmp_path / "token"
    with pytest.raises(JobError, match="cannot be read"):
        read_token(file)
    file.write_text("short\n")
    with pytest.raises(JobError, match="16"):
        read_token(file)
    file.write_text("0123456789abcdef\n")
    assert read_token(file) == "0123456789abcdef"
    monkeypatch.setenv("INTERLACE_TOKEN", "from-the-environment")
    assert read_token(None) == "from-the-environment"


def test_metrics_count_people_by_who_answered(client: TestClient) -> None:
    ask(client, ids=["P001", "P065"])
    text = client.get("/metrics").text
    assert 'interlace_people_total{answered_by="joint",reason=""} 1.0' in text
    assert 'interlace_people_total{answered_by="active alone",reason="not shared"} 1.0' in text
    assert "interlace_seconds_count 1.0" in text


# -- other tables and ids -----------------------------------------------------------------------


def test_ids_of_several_columns_and_numbers(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((50, 2))
    key = {"land": ["DE", "FR"] * 25, "number": list(range(50))}
    tables = {"bank": str(tmp_path / "bank.parquet"), "shop": str(tmp_path / "shop.parquet")}
    pl.DataFrame({**key, "age": x[:, 0], "price": x.sum(1)}).write_parquet(tables["bank"])
    pl.DataFrame({**key, "visits": x[:, 1]}).write_parquet(tables["shop"])
    id = ["land", "number"]
    parties = {
        "bank": {"table": tables["bank"], "id": id, "label": "price"},
        "shop": {"table": tables["shop"], "id": id},
    }
    run(_job(tables, parties=parties), tmp_path / "run")
    batch = predict(tmp_path / "run", tables)
    with (
        open_run(tmp_path / "run") as made,
        TestClient(application(made), base_url=LOCAL) as client,
    ):
        wanted = [{"number": 7, "land": "FR"}, {"number": "8", "land": "DE"}]
        seven, eight = ask(client, ids=wanted)
        assert seven["id"] == wanted[0]
        assert seven["probabilities"] is None
        assert seven["prediction"] == pytest.approx(batch["prediction"][7], rel=1e-5)
        assert eight["prediction"] == pytest.approx(batch["prediction"][8], rel=1e-5)
        (swapped,) = ask(client, ids=[{"number": 7, "land": "DE"}])
        assert swapped["reason"] == "unknown id"
        assert refused(client, ids=[7])[0]["field"] == "ids.0"
        (new,) = ask(client, rows=[{"land": "DE", "number": 99, "age": 1}])
        assert new["id"] == {"land": "DE", "number": 99}


def test_a_newer_table_keeps_the_matching_where_the_people_are_the_same(
    trained: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    newer = pl.read_csv(trained[1]["bank"]).with_columns(age=pl.lit(1.5)).drop("bought")
    newer.write_csv(tmp_path / "newer.csv")
    made = open_run(trained[0], {"bank": tmp_path / "newer.csv"})
    matching = sum(
        e.session == "alignment" for e in made.federation.active.boundary.ledger.entries()
    )
    with made:
        (answer,) = asyncio.run(made.answer(Question(ids=["P001"]), 1))
    scores = predict(trained[0], {**trained[1], "bank": tmp_path / "newer.csv"})
    assert answer.probabilities is not None
    assert answer.probabilities["yes"] == pytest.approx(scores["probability yes"][1], abs=1e-6)
    after = sum(e.session == "alignment" for e in made.federation.active.boundary.ledger.entries())
    assert after == matching > 0


def test_a_finished_run_with_a_partner_to_ask_is_needed(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="holds no results"):
        open_run(tmp_path)


def test_a_run_over_sites_is_not_taken_for_one_that_lies_here(
    trained: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    shutil.copy(trained[0] / "job.yaml", tmp_path)
    results = json.loads((trained[0] / "results.json").read_text())
    (tmp_path / "results.json").write_text(json.dumps({**results, "simulation": False}))
    with pytest.raises(JobError, match="went over sites"):
        open_run(tmp_path)


def test_an_empty_question_asks_nobody(scorer: Scorer) -> None:
    with pytest.raises(InputError, match="nobody"):
        asyncio.run(scorer.answer(Question(), 1))
