"""One HTML file that shows a run, and works wherever it is opened: nothing is fetched."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from interlace.files import write_whole
from interlace.job.results import Flow, ModelResult, PartyResult, Results, Sheet
from interlace.report import words
from interlace.report.bought import (
    constant_guess,
    curves,
    dots,
    kept_rows,
    learning,
    looks,
    metric_rows,
)
from interlace.report.conversation import EXPLAINED, conversation
from interlace.report.horizontal import by_party, drift
from interlace.report.verdict import held_out, judge, to_show, unlabelled, who_alone


def write_report(results: Results, path: Path) -> Path:
    """Write the report of a run, finished or not.

    Args:
        results: What the run came to; the page holds nothing else.
        path: The HTML file; replaced whole if it is there.

    Returns:
        The path.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, _render(results).encode())
    return path


@cache
def environment(*packages: str) -> Environment:
    """Templates of the report, and of ``packages`` before it."""
    env = Environment(
        loader=ChoiceLoader([PackageLoader(p) for p in (*packages, "interlace.report")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters.update(
        count=words.count,
        size=words.size,
        duration=words.duration,
        figure=words.figure,
        percent=words.percent,
        coded=_coded,
        columns_read=words.columns_read,
        listed=words.listed,
        numeric=_numeric,
        plural=words.plural,
        sealed=words.sealed,
    )
    return env


def _coded(text: str) -> Markup:
    """What stands between backticks as code; the text itself is escaped."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _numeric(sheet: Sheet) -> set[int]:
    """The columns of a sheet that hold numbers."""
    return {
        j
        for j in range(1, len(sheet.columns))
        if any(isinstance(row[j], int | float) for row in sheet.rows)
    }


def _render(results: Results) -> str:
    env = environment()
    script = files("interlace.report").joinpath("templates/copy.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    look = looks(results.models)
    fitted = [m for m in results.models if m.fits]
    claim, *others = [dots(results, m, look) for m in to_show(results)] or [None]
    return env.get_template("page.html").render(
        r=results,
        verdict=judge(results),
        unlabelled=unlabelled(results),
        active=next(p for p in results.parties if p.active),
        bands=_bands(results),
        looks=look,
        fitted=fitted,
        done=sum(len(m.fits) for m in results.models),
        due=sum(len(results.seeds) for m in results.models if not m.skipped),
        rows=metric_rows(results),
        constant=constant_guess(results),
        held=held_out(results),
        claim=claim,
        dots=[d for d in others if d],
        curves=curves(results, look),
        learning=[c for m in fitted if (c := learning(m, look[m.name]))],
        drift=[c for m in fitted if m.role == "method" for c in drift(m, look[m.name])],
        by_party=by_party(results),
        kept=kept_rows(results),
        alone=who_alone(results),
        talk=conversation([(p.name, p.active) for p in results.parties], results.flows),
        routes=_routes(results.flows),
        kinds={f.kind: EXPLAINED.get(f.kind) for f in results.flows},
        left=sum(f.bytes_after for f in results.flows),
        costs=[_cost(m) for m in fitted],
        script=Markup(script),
        script_hash=digest,
    )


# -- who took part ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Segment:
    """Part of a party's people; ``start`` and ``width`` in per cent of all people."""

    look: str
    people: int
    start: float
    width: float


@dataclass(frozen=True)
class Band:
    """A party's people on one scale with everybody else's."""

    party: PartyResult
    segments: list[Segment]


def _bands(results: Results) -> list[Band]:
    """Whom all parties hold stands at the left; whom one holds alone stands under nobody else."""
    common = results.shared_by_all
    some = {p.name: max(0, p.people - p.alone - common) for p in results.parties}
    everybody = common + max(some.values()) + sum(p.alone for p in results.parties)
    bands, start = [], common + max(some.values())
    for party in results.parties:
        parts = (
            ("all", common, 0),
            ("some", some[party.name], common),
            ("alone", party.alone, start),
        )
        start += party.alone
        scale = 100 / max(everybody, 1)
        bands.append(
            Band(
                party,
                [Segment(look, n, at * scale, n * scale) for look, n, at in parts if n],
            )
        )
    return bands


# -- what left, and what it cost --------------------------------------------------------------


@dataclass(frozen=True)
class Stream:
    """All messages of one kind on one route."""

    kind: str
    messages: int
    bytes_before: int
    bytes_after: int
    guards: list[str]


@dataclass(frozen=True)
class Route:
    """Everything from one party to another."""

    sender: str
    receiver: str
    streams: list[Stream]


def _routes(flows: Sequence[Flow]) -> list[Route]:
    together: dict[tuple[str, str], dict[str, list[Flow]]] = {}
    for sender in dict.fromkeys(f.sender for f in flows):
        for flow in flows:
            if flow.sender == sender:
                route = together.setdefault((sender, flow.receiver), {})
                route.setdefault(flow.kind, []).append(flow)
    return [
        Route(
            *ends,
            sorted(
                (_stream(kind, group) for kind, group in kinds.items()),
                key=lambda s: -s.bytes_after,
            ),
        )
        for ends, kinds in together.items()
    ]


def _stream(kind: str, flows: Sequence[Flow]) -> Stream:
    return Stream(
        kind,
        sum(f.messages for f in flows),
        sum(f.bytes_before for f in flows),
        sum(f.bytes_after for f in flows),
        list(dict.fromkeys(f.guard for f in flows if f.guard)),
    )


@dataclass(frozen=True)
class Cost:
    """What one fit of a model took, as a mean over the seeds."""

    model: ModelResult
    rounds: float
    messages: float
    bytes: float
    seconds: float


def _cost(model: ModelResult) -> Cost:
    def mean(values: Iterable[float]) -> float:
        return float(np.mean(list(values)))

    return Cost(
        model,
        mean(f.rounds for f in model.fits),
        mean(f.messages for f in model.fits),
        mean(f.bytes for f in model.fits),
        mean(f.seconds for f in model.fits),
    )
