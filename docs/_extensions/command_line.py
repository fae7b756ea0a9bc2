"""Puts every command's help, straight from the code, at the end of the command-line page."""

from __future__ import annotations

import typer
from sphinx.application import Sphinx
from typer.cli import get_docs_for_click
from typer.core import MARKUP_MODE_KEY

from interlace.cli import app as interlace_app

PAGE = "reference/command-line"


def add_help(app: Sphinx, page: str, source: list[str]) -> None:
    """Extend the page as it is read."""
    if page == PAGE:
        command = typer.main.get_command(interlace_app)
        markup = {MARKUP_MODE_KEY: interlace_app.rich_markup_mode}
        context = typer.Context(command, info_name="interlace", obj=markup)
        text = get_docs_for_click(obj=command, ctx=context, name="interlace")
        source[0] += text.partition("\n")[2]  # the page has a title of its own


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", add_help)
    return {"parallel_read_safe": True}
