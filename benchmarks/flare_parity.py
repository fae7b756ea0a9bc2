"""The same job in one process and on three FLARE sites: the same messages, bytes and models?

A federation of three sites on this machine (processes of their own, mutual TLS) runs the methods
of the catalogue: the vertical ones over three parties with different columns, the horizontal ones
over three with different rows. The same jobs run in this process, with the same seeds and the
parties' same secrets. Compared are

- messages: for each conversation, operation, kind, sender and receiver their number, their bytes,
  and the shape and number type of the first;
- what every party learnt: every array of every file under ``models/``, whose largest difference
  must be at most 1e-6 of that array's largest number (and of 1).

The order in which people are matched is random and decides the order of sums, so the run in this
process takes up the matching that the sites made; the conversation of the matching is compared with
that of another run. The conversation ``run``, by which sites hear of trainings, has no counterpart
in one process. What needs all tables in one place (``pooled``, ``pooled_rows``, ``clients_alone``)
cannot run on sites, which is checked too.

Run it as ``make bench NAME=flare_parity``. The last line is JSON.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import torch
from safetensors.torch import load_file

from interlace.boundary import Ledger
from interlace.job.results import Results
from interlace.methods.catalogue import CATALOGUE, is_horizontal
from interlace.sites.contract import Contract

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "flare"))
from local import NAMES, Local, horizontal_tables, in_process, local, vertical_tables

TOLERANCE = 1e-6
SETTINGS: dict[str, dict[str, Any]] = {
    "boosted_trees": {"n_estimators": 5},
    "random_forest": {"n_trees": 3},
    "horizontal_trees": {"rounds": 5},
}
APART = {
    "pooled",
    "pooled_rows",
    "pooled_columns",
    "clients_alone",
    "own_columns",
    "mean_imputation",
}
UNSUPERVISED = {"kmeans", "gaussian_mixture", "horizontal_kmeans"}
QUANTITIES = ["linear", "poisson", "tweedie"]
PAIRS = ["secure_transfer"]  # of two parties
MIXED = ["mixed"]  # of a driver and others who have the same columns of different people


def contracts() -> Iterator[tuple[dict[str, pl.DataFrame], Contract]]:
    """What is run, and over which tables."""
    left = [n for n in CATALOGUE if n not in {*APART, *UNSUPERVISED, *MIXED, *QUANTITIES, *PAIRS}]
    vertical = [n for n in left if not is_horizontal(n)]
    horizontal = [n for n in left if is_horizontal(n)]
    short = {"epochs": 2, "rounds": 2}
    for name, tables, methods in (
        ("vertical", vertical_tables(), vertical),
        ("horizontal", horizontal_tables(), horizontal),
        ("quantities", vertical_tables(), QUANTITIES),
        ("pair", vertical_tables(), PAIRS),
        ("mixed", mixed_tables(), MIXED),
        ("clusters", vertical_tables(), ["kmeans", "gaussian_mixture"]),
        ("row-clusters", horizontal_tables(), ["horizontal_kmeans"]),
    ):
        first, *others = ({"name": n, **_short(n, short)} for n in methods)
        apart = {"vertical": ["pooled"], "horizontal": ["pooled_rows"]}.get(name, [])
        yield (
            tables,
            Contract(
                name=name,
                parties=NAMES[:2] if name == "pair" else NAMES,
                active=NAMES[0],
                method=first,
                compare=[*others, *({"name": n} for n in apart)] or "none",
                seeds=[3],
                classes=1 if name == "quantities" else 2,
                wait=0.25,
            ),
        )


def mixed_tables() -> dict[str, pl.DataFrame]:
    """The driver has all people and their label; the others the same columns of a half each."""
    tables = vertical_tables()
    driver, *others = NAMES
    columns = tables[others[0]].sort("id")
    return {
        driver: tables[driver],
        **{name: columns[i :: len(others)] for i, name in enumerate(others)},
    }


def _short(name: str, lengths: dict[str, int]) -> dict[str, Any]:
    from interlace.methods.catalogue import accepted

    return {**accepted(name, lengths), **SETTINGS.get(name, {})}


def messages(ledger: Path, session: str | None = None) -> dict[tuple[str, ...], tuple[Any, ...]]:
    """What passed, by conversation, operation, kind, sender and receiver."""
    return {
        (s.session, s.operation, s.kind, s.sender, s.receiver): (
            s.messages,
            s.bytes_after,
            s.shape,
            s.dtype,
        )
        for s in Ledger(ledger).summary(session)
        if s.session != "run"
    }


def difference(one: Path, other: Path) -> float:
    """The largest difference between two folders of models, relative to each array's largest
    number or 1; infinite where there are other files, other arrays or other texts."""
    files = {f.relative_to(one) for f in one.rglob("*") if f.is_file()}
    if not files or files != {f.relative_to(other) for f in other.rglob("*") if f.is_file()}:
        return float("inf")
    largest = 0.0
    for file in files:
        if file.suffix != ".safetensors":
            if timeless(one / file) != timeless(other / file):
                print("  another text:", file)
                return float("inf")
            continue
        a, b = load_file(one / file), load_file(other / file)
        if a.keys() != b.keys() or any(a[n].shape != b[n].shape for n in a):
            print("  other arrays:", file, {n: t.shape for n, t in a.items()}, b.keys())
            return float("inf")
        for name, x in a.items():
            x, y = x.double(), b[name].double()
            if x.numel() and not torch.equal(x, y):
                scale = max(1.0, float(x[x.isfinite()].abs().max())) if x.isfinite().any() else 1.0
                largest = max(largest, float((x - y).abs().nan_to_num(0.0).max()) / scale)
    return largest


def timeless(file: Path) -> Any:
    """What a file says, but for how long things took."""
    if file.suffix != ".json":
        return file.read_bytes()
    return json.loads(
        file.read_text(), object_hook=lambda d: {k: v for k, v in d.items() if k != "seconds"}
    )


def compared(federation: Local, contract: Contract, scratch: Path) -> dict[str, Any]:
    """One contract both ways."""
    began = time.perf_counter()
    status = federation.run(contract)
    deployed = time.perf_counter() - began
    if status.state != "finished":
        raise RuntimeError(f"{status.state} on sites: {status.reason}")
    began = time.perf_counter()
    here = in_process(federation, contract, scratch / contract.name)
    seconds = time.perf_counter() - began
    there = Results.read(federation.folder(NAMES[0], contract) / "results.json")
    out: dict[str, Any] = {"methods": {}, "seconds_deployed": deployed, "seconds_here": seconds}
    for a, b in zip(there.models, here.models, strict=True):
        tag = f"{a.name}-{contract.seeds[0]}"
        if a.skipped or b.skipped:
            out["methods"][a.name] = {"skipped": a.skipped, "skipped here": b.skipped}
            continue
        same, widest = True, 0.0
        for name in contract.parties:
            site, one = (
                federation.folder(name, contract),
                scratch / contract.name / "parties" / name,
            )
            ours, theirs = (
                messages(site / "ledger.sqlite", tag),
                messages(one / "ledger.sqlite", tag),
            )
            same &= ours == theirs
            for key in sorted(
                k for k in ours.keys() | theirs.keys() if ours.get(k) != theirs.get(k)
            ):
                print("  differs at", name, key, ours.get(key), theirs.get(key))
                break
            folder = Path("models", tag)
            if (site / folder).exists() or (one / folder).exists():
                widest = max(widest, difference(site / folder, one / folder))
        figures = {
            "messages": b.fits[0].messages,
            "bytes": b.fits[0].bytes,
            "same messages": same,
            "largest difference": widest,
            "seconds deployed": a.fits[0].seconds,
            "seconds here": b.fits[0].seconds,
        }
        out["methods"][a.name] = figures
        print(f"  {a.name:24}", figures)
    matching = messages(federation.folder(NAMES[0], contract) / "ledger.sqlite", "alignment")
    if matching:
        in_process(
            federation,
            contract.model_copy(update={"compare": "none"}),
            scratch / f"{contract.name}-fresh",
            aligned=False,
        )
        own = messages(
            scratch / f"{contract.name}-fresh" / "parties" / NAMES[0] / "ledger.sqlite", "alignment"
        )
        out["same matching"] = matching == own
        print(
            "  the matching's messages are the same:", matching == own, f"({len(own)} operations)"
        )
    return out


def main() -> None:
    """Run all contracts both ways."""
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    failed: dict[str, str] = {}
    with (
        tempfile.TemporaryDirectory(prefix="interlace-") as scratch,
        local(Path(scratch) / "sites") as federation,
    ):
        for tables, contract in contracts():
            task = {"task": "regression"} if contract.classes == 1 else {}
            policy = {"approve": [{"drivers": NAMES[:1]}], "allow_also": ["model weights"]}
            federation.give(tables, policy=policy, **task)
            federation.plan(contract)
            print(contract.name, flush=True)
            try:
                found[contract.name] = compared(federation, contract, Path(scratch) / "here")
            except Exception as e:  # the others are compared all the same
                failed[contract.name] = f"{type(e).__name__}: {e}"
                print("  ", failed[contract.name])
    methods = {n: f for run in found.values() for n, f in run["methods"].items()}
    ran = {n: f for n, f in methods.items() if "messages" in f}
    worst = max(f["largest difference"] for f in ran.values())
    met = (
        not failed
        and worst <= TOLERANCE
        and all(f["same messages"] for f in ran.values())
        and all(run.get("same matching", True) for run in found.values())
        and not (methods.keys() - ran.keys() - APART)
    )
    print(
        json.dumps(
            {
                "methods": len(ran),
                "failed": failed,
                "with other messages": [n for n, f in ran.items() if not f["same messages"]],
                "largest difference": worst,
                "not on sites": {n: f["skipped"] for n, f in methods.items() if n not in ran},
                "target": "same messages and bytes by kind and shape, models equal to 1e-6",
                "met": met,
            }
        )
    )


if __name__ == "__main__":
    main()
