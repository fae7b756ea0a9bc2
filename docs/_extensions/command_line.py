"""``{command-line}``: every command's help as a page, straight from the code."""

from __future__ import annotations

import typer
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from typer.cli import get_docs_for_click

from interlace.cli import app as interlace_app


class CommandLine(SphinxDirective):
    """The commands under one heading each."""

    def run(self) -> list[nodes.Node]:
        command = typer.main.get_command(interlace_app)
        context = typer.Context(command, info_name="interlace", obj={"markup_mode": "rich"})
        text = get_docs_for_click(obj=command, ctx=context, name="interlace")
        _, _, after_title = text.partition("\n")
        return self.parse_text_to_nodes(after_title, allow_section_headings=True)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("command-line", CommandLine)
    return {"parallel_read_safe": True}
