"""``{settings} package.Model``: a pydantic model's fields as a table, straight from the code."""

from __future__ import annotations

import importlib
import inspect

from docutils import nodes
from pydantic import BaseModel
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from interlace.methods.settings import settings_of


class Settings(SphinxDirective):
    """A table of name, type, default and meaning."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        module, _, name = self.arguments[0].rpartition(".")
        model: type[BaseModel] = getattr(importlib.import_module(module), name)
        lines = ["| setting | type | default | meaning |", "|---|---|---|---|"]
        for setting in settings_of(model):
            if not setting.meaning:
                raise self.error(f"{self.arguments[0]}.{setting.name} has no description")
            row = (f"`{setting.name}`", setting.kind, setting.default, setting.meaning)
            lines.append("| " + " | ".join(_cell(c) for c in row) + " |")
        self.env.note_dependency(inspect.getfile(model))
        return self.parse_text_to_nodes("\n".join(lines))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("settings", Settings)
    return {"parallel_read_safe": True}
