"""A rehearsal takes no more memory than it may, and leaves nothing behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from interlace import runner
from interlace.boundary import Kind
from interlace.errors import JobError
from interlace.sites import approval, plan
from interlace.sites.contract import Contract
from interlace.sites.folder import PartyFolder
from interlace.sites.plan import Leaving, Plan, plan_of

Make = Callable[..., PartyFolder]


def changed(contract: Contract, **fields: Any) -> Contract:
    return Contract.model_validate(contract.model_dump() | fields)


@pytest.mark.parametrize(
    "method",
    [
        {"name": "split", "bottom": {"hidden": [16_384] * 8}},
        {"name": "split", "top": [10**9]},
        {"name": "split", "top": ["1000000000"]},
        {"name": "one_shot", "top": [10**12]},
        {"name": "kmeans", "starts": 10**9},
        {"name": "boosted_trees", "max_bin": 10**9},
        {"name": "boosted_trees", "num_parallel_tree": 10**9},
        {"name": "fedavg", "agreement": {"buckets": 10**9}},
    ],
    ids=lambda m: str(m)[:60],
)
def test_what_would_take_the_memory_is_refused_before_it_is_taken(
    method: dict[str, Any], make_party: Make, contract: Contract, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "run", None)  # nothing is rehearsed
    shop = make_party("shop", allow_also=["model weights"])
    with pytest.raises(JobError, match="too much of the memory of 'shop'; ask for fewer"):
        plan_of(shop, changed(contract, method=method))
    assert approval.decide(shop, changed(contract, method=method), "bank").state == "refused"


def test_many_parties_take_memory_and_the_text_has_no_size_in_it(
    make_party: Make, contract: Contract, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = changed(contract, parties=["bank", "shop", *(f"p{i}" for i in range(98))])
    monkeypatch.setattr(plan, "_memory", lambda: 50_000_000)
    shop = make_party("shop")
    with pytest.raises(JobError) as refused:
        plan_of(shop, many)
    assert not any(c.isdigit() for c in str(refused.value))
    plan_of(shop, contract)
    with pytest.raises(ValueError, match="at most 100"):
        changed(contract, parties=["bank", *(f"p{i}" for i in range(100))])


def test_usual_networks_are_rehearsed_on_a_small_machine(
    make_party: Make, contract: Contract, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "_memory", lambda: 2 * 2**30)
    wide = {"name": "split", "epochs": 1, "patience": 10**9, "top": [512, 512]}
    assert plan_of(make_party("shop"), changed(contract, method=wide)).bytes
    assert plan._memory() == 2 * 2**30
    monkeypatch.undo()
    assert 2**28 < plan._memory() < 2**50


def test_a_rehearsal_leaves_nothing_and_the_next_removes_what_a_killed_one_left(
    make_party: Make, contract: Contract
) -> None:
    shop = make_party("shop")
    plan_of(shop, contract)
    place = shop.root / "tmp"
    assert list(place.iterdir()) == []
    killed = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time; from pathlib import Path\n"
            "from interlace.sites.folder import PartyFolder\n"
            "with PartyFolder.open(Path(sys.argv[1])).scratch() as scratch:\n"
            "    (scratch / 'own.feather').write_text('rows')\n"
            "    print(scratch, flush=True)\n"
            "    time.sleep(60)\n",
            str(shop.root),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert killed.stdout is not None
    left = Path(killed.stdout.readline().strip())
    with shop.scratch() as mine:
        assert left.exists(), "its process lives"
        assert mine.stat().st_mode & 0o077 == 0
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert (left / "own.feather").exists()
    with shop.scratch() as mine:
        assert list(place.iterdir()) == [mine]


def test_what_cannot_be_rehearsed_is_refused_once(
    make_party: Make, contract: Contract, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop, times = make_party("shop", approve=[{"drivers": ["bank"]}]), []

    def fails(_folder: PartyFolder, _contract: Contract) -> Plan:
        times.append(1)
        raise OverflowError("of the table's 12 rows")

    monkeypatch.setattr(approval, "plan_of", fails)
    for _ in range(3):
        said = approval.decide(shop, contract, "bank")
        assert (said.state, said.reason) == (
            "refused",
            "'shop' cannot rehearse it (OverflowError)",
        )
    assert len(times) == 1


def test_what_may_be_mended_is_not_rehearsed_all_the_time(
    make_party: Make, contract: Contract, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop, times = make_party("shop", approve=[{"drivers": ["bank"]}]), []

    def full(_folder: PartyFolder, contract: Contract) -> Plan:
        times.append(1)
        if len(times) == 1:
            raise OSError(28, "No space left on device")
        leaves = {Kind.EMBEDDING: Leaving(messages=1, bytes=1)}
        return Plan(run=contract.run, party="shop", leaves=leaves)

    monkeypatch.setattr(approval, "plan_of", full)
    for _ in range(3):
        assert approval.decide(shop, contract, "bank").state == "waiting"
    assert len(times) == 1
    monkeypatch.setattr(approval, "TRY_AGAIN", 0.0)
    assert approval.decide(shop, contract, "bank").state == "approved"
