"""Online scores where the partner is at another site: the same, and a line that falls out."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from interlace import ActiveAlone, Federation, Party, SplitVFL
from interlace.engines import sites
from interlace.engines.sealed import Identity, Meeting
from interlace.engines.sites import Answering, Gate, Sites, Unreachable, sides_in
from interlace.serve.online import Question, Scorer


def test_scores_over_sites(
    hospital: Identity, lab: Identity, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sites, "PAUSE", 0.01)
    x = np.random.default_rng(0).normal(size=(60, 2))
    people = pl.DataFrame({"id": [f"P{i}" for i in range(60)], "age": x[:, 0], "dose": x[:, 1]})
    label = pl.Series("ill", (x.sum(1) > 0).astype(int))
    me = Party("hospital", people.select("id", "age", label), label="ill", folder=tmp_path / "me")
    partner = Party("lab", people.select("id", "dose").head(50), folder=tmp_path / "lab")
    answering = Answering(
        "lab",
        "hospital",
        Meeting("digest", "job"),
        lab,
        gate=lambda: Gate("approved"),
        party=lambda: partner,
        sides=sides_in(
            [f"interlace.{m}" for m in ("methods.vertical.split", "align.dh", "party.run")]
        ),
    )
    away = threading.Event()

    def carry(_party: str, frame: bytes, _seconds: float) -> bytes:
        if away.is_set():
            raise Unreachable("no way there")
        return answering.receive(frame)

    engine = Sites("hospital", Meeting("digest", "job"), hospital, carry, patience=60)
    engine.join("lab")
    federation = Federation(me, ["lab"], engine)
    shared = federation.shared()
    model = SplitVFL(epochs=1).fit(federation)
    model.save("joint")
    expected = model.outputs(shared)
    alone = ActiveAlone(epochs=1).fit(federation)

    def join() -> SplitVFL:
        return SplitVFL(epochs=1).load("joint", federation.without_conversations())

    def ask(*ids: str, deadline: float = 10) -> list[tuple[str, str | None, float]]:
        answers = asyncio.run(scorer.answer(Question(ids=list(ids)), deadline))
        return [(a.answered_by, a.reason, (a.probabilities or {})["1"]) for a in answers]

    with Scorer(federation, join, shared.rows, alone) as scorer:
        seven, lacking = ask("P7", "P55")
        assert seven == ("joint", None, pytest.approx(expected[7, 1], abs=1e-6))
        assert lacking[:2] == ("active alone", "not shared")
        away.set()
        assert ask("P8", deadline=0.05)[0][:2] == ("active alone", "deadline")
        away.clear()
        assert ask("P9") == [("joint", None, pytest.approx(expected[9, 1], abs=1e-6))]
    assert answering.outcome == ()
    assert sum(e.operation == "embed" for e in partner.boundary.ledger.entries()) > 0
