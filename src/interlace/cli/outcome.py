"""What a run came to, on one screen."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from interlace.cli.console import show, table

if TYPE_CHECKING:
    from interlace.job.results import ModelResult, Results

_COLOURS = {"gain": "green", "none": "yellow", "loss": "red", "open": "default"}
_ORDER = ("baseline", "method", "in one place")
_STYLES = {"baseline": "", "method": "bold", "in one place": "dim"}


def show_outcome(results: Results, folder: Path) -> None:
    """Print what federation bought, what passed between the parties, and where the report lies."""
    from interlace.assess import MEASURES
    from interlace.report import words
    from interlace.report.bought import kept_rows
    from interlace.report.verdict import held_out, judge, to_show, unlabelled

    if results.chosen:
        show(Text(f"Chosen: {results.chosen.reason}"))
    verdict = judge(results)
    show("", Text(verdict.headline, style=f"bold {_COLOURS[verdict.outcome]}"))
    for detail in verdict.details:
        show(Text(detail))
    fitted = [m for m in results.models if m.fits]
    metrics = to_show(results)
    made = table("", *(MEASURES[m].title for m in metrics))
    for model in sorted(fitted, key=lambda m: _ORDER.index(m.role)):
        title = f"{model.title} (in one place)" if model.role == "in one place" else model.title
        cells = (_cell(fitted, model, metric) for metric in metrics)
        made.add_row(title, *cells, style=_STYLES[model.role])
    show(made)
    if fitted:
        show(Text(f"{held_out(results)}."))
    for sheet in (sheet for model in fitted for sheet in model.sheets):
        printed = table(*sheet.columns, title=sheet.title)
        for row in sheet.rows:
            printed.add_row(*("" if c is None else _text(c) for c in row))
        show(printed)
        if sheet.note:
            show(Text(sheet.note))
    for given in kept_rows(results):
        counts = f"{words.count(given.kept)} of {words.count(given.of)} people without a label"
        right = "" if given.right is None else f", {words.percent(given.right)} of them rightly"
        show(Text(f"{given.model}: {counts} at {given.party} got one{right}."))
    for model in results.models:
        if model.skipped:
            show(Text(f"{model.title}: left out, since {model.skipped}.", style="dim"))
    if people := unlabelled(results):
        have = words.plural(people, "shared person has", "shared people have")
        show(Text.assemble(("! ", "bold yellow"), f"{have} no label."))
    for party in results.parties:
        for note in party.column_notes:
            show(Text.assemble(("! ", "bold yellow"), f"{party.name}: {note}"))
    kinds: dict[str, int] = {}
    for flow in results.flows:
        kinds[flow.kind] = kinds.get(flow.kind, 0) + flow.bytes_after
    by_size = sorted(kinds, key=lambda k: -kinds[k])
    passed = ", ".join(f"{k} {words.size(kinds[k])}" for k in by_size)
    messages = words.count(sum(f.messages for f in results.flows))
    if sealed := words.sealed(results.models[0].encryption):
        show(Text(f"Encrypted: {sealed}."))
    show(
        Text(
            f"Passed between the parties in one training: {words.size(sum(kinds.values()))} in "
            f"{messages} messages ({passed})."
        ),
        Text(f"Time: {words.duration(results.seconds)}."),
        Text.assemble("Report: ", (str(folder / "report.html"), "bold cyan")),
    )


def _text(value: str | int | float) -> str:
    from interlace.report import words

    return value if isinstance(value, str) else words.figure(value)


def _cell(models: list[ModelResult], model: ModelResult, metric: str) -> str:
    """Mean over the seeds, and half the width of its interval where there is one; of how many seeds
    it is where it could not be taken in all."""
    from interlace.report import words
    from interlace.report.bought import of_seeds
    from interlace.report.verdict import by_seed, summary

    decimals = words.decimals_for(v for m in models for v in by_seed(m, metric).values())
    found = summary(model, metric)
    if found is None:
        return "–"
    text = words.decimal(found.mean, decimals)
    if found.low is not None and found.high is not None:
        text += f" ± {words.decimal((found.high - found.low) / 2, decimals)}"
    seeds = of_seeds(model, metric)
    return f"{text} ({seeds})" if seeds else text
