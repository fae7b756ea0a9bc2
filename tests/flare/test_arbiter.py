"""A linear model whose key a third site holds, which has no part in the table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from local import Local, in_process

from interlace.boundary import Ledger
from interlace.job.results import Results
from interlace.sites.contract import Contract


def test_an_arbiter_at_a_site_of_its_own(federation: Local, tmp_path: Path) -> None:
    """Its table stays unread; coefficients, messages and bytes are those of one process."""
    contract = Contract(
        name="arbiter",
        parties=["hospital", "lab", "registry"],
        active="hospital",
        arbiter="registry",
        method={"name": "logistic", "protocol": "arbiter", "sigmoid": "taylor", "max_iter": 2},
        compare="none",
        seeds=[0],
        classes=2,
        wait=0.05,
    )
    federation.plan(contract)
    status = federation.run(contract)
    assert (status.state, status.reason) == ("finished", "")
    assert federation.folders["registry"].run(contract.run).status.state == "finished"
    assert not (federation.folder("registry", contract) / "models").exists()

    results = in_process(federation, contract, tmp_path)
    for name in ("hospital", "lab"):
        ours, here = federation.folder(name, contract), tmp_path / "parties" / name
        np.testing.assert_allclose(coefficients(ours), coefficients(here), rtol=0, atol=1e-6)
    over = Results.read(federation.folder("hospital", contract) / "results.json")
    assert key_of(over) == key_of(results)
    ledger = Ledger(federation.folder("registry", contract) / "ledger.sqlite")
    answered = [e.operation for e in ledger.entries() if e.direction == "sent"]
    assert set(answered) == {"make_key", "open"}


def coefficients(folder: Path) -> Any:
    """A party's own."""
    file = next((folder / "models" / "logistic-0").glob("*.json"))
    return np.array(json.loads(file.read_text())["coefficients"])


def key_of(results: Results) -> list[tuple[Any, ...]]:
    """What passed in training, by sender, receiver, kind, messages and bytes."""
    flows = [f for f in results.flows if f.kind in ("ciphertext", "score", "gradient")]
    return sorted((f.sender, f.receiver, f.kind, f.messages, f.bytes_after) for f in flows)
