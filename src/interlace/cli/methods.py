"""``interlace methods``: which there are, and what can be set."""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from interlace.cli import console
from interlace.cli.console import show

if TYPE_CHECKING:
    from pydantic import BaseModel

    from interlace.methods.settings import Setting


def methods(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="A method or baseline; or `job`, `party` or `policy`, for the fields of these.",
        ),
    ] = None,
) -> None:
    """List the methods, or print what one is and all that can be set.

        interlace methods

        interlace methods few_shot

        interlace methods policy

    What comes out: without a name, the methods by what they are for. With one, what it does and
    takes, the paper that it follows and what of it is our own, and its settings: name, type,
    default and meaning. They stand beside the name in a job:

        method: {name: few_shot, epochs: 50, optimisation: {learning_rate: 0.01}}
    """
    from interlace.boundary import Policy
    from interlace.job.spec import Job, MethodChoice, PartyFile
    from interlace.methods.catalogue import AUTO, CATALOGUE, PURPOSES, entry
    from interlace.methods.recommend import RULES
    from interlace.methods.settings import settings_of, told_of

    fields: dict[str, type[BaseModel]] = {"job": Job, "party": PartyFile, "policy": Policy}
    if name is None:
        for purpose, lines in PURPOSES.items():
            show(Text(purpose, style="bold"))
            for method, line in lines.items():
                show(Text.assemble((f"  {method:<24}", "cyan"), line))
            show("")
        show(Text("What one is and takes: interlace methods NAME. `method: auto` chooses one."))
        return
    if name == AUTO:
        show(Text("auto: the first of these that fits, by counts alone", style="bold"))
        for rule in RULES:
            show(Text(f"  {rule.method}", style="cyan"), _filled(rule.because, 6))
        show("", _filled("`interlace inspect` says beforehand which, and why.", 0))
        return
    if name in fields:
        _show_settings(settings_of(fields[name]), (*fields.values(), MethodChoice))
        return
    about = entry(name)
    show(Text(f"{name}: {about.title}", style="bold"))
    for paragraph in (about.explanation, *told_of(about.make)[1:]):
        show("", _filled(paragraph, 2))
    show(
        "",
        Text.assemble(("Settings", "bold"), ", beside the name in a job; `None` there is `null`"),
    )
    others = {one.make.__name__: one.make for one in CATALOGUE.values()}
    _show_settings(settings_of(about.make, others))


def _show_settings(settings: list[Setting], known: tuple[type[BaseModel], ...] = ()) -> None:
    """Print settings, and then those of the models that they hold, but for what is known."""
    from interlace.methods.settings import settings_of

    due = [("", settings)]
    seen = set(known)
    for of, some in due:
        if of:
            show("", Text(of, style="bold"))
        for setting in some:
            default = f", by default {setting.default}"
            if setting.default in ("–", "its defaults"):
                default = ""
            elif setting.default == "*required*":
                default = ", required"
            line = _filled(f"{setting.name}: {setting.kind}{default}", 2)
            line.stylize("cyan", 2, 3 + len(setting.name))
            show(line, _filled(setting.meaning, 6))
            for model in setting.holds:
                if model not in seen:
                    seen.add(model)
                    due.append((f"{setting.name}: {model.__name__}", settings_of(model)))


def _filled(text: str, indent: int) -> Text:
    """A text wrapped to the terminal and set in."""
    margin = " " * indent
    return Text(fill(text, console.out.width, initial_indent=margin, subsequent_indent=margin))
