"""``{settings} package.Model``: a pydantic model's fields as a table, straight from the code."""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

from docutils import nodes
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

MOST_OPTIONS = 6  # a longer list is told by its name


class Settings(SphinxDirective):
    """A table of name, type, default and meaning."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        module, _, name = self.arguments[0].rpartition(".")
        model: type[BaseModel] = getattr(importlib.import_module(module), name)
        schema = model.model_json_schema(by_alias=True)
        described = _described_arguments(model)
        lines = ["| setting | type | default | meaning |", "|---|---|---|---|"]
        for attribute, field in model.model_fields.items():
            key = field.alias or attribute
            meaning = field.description or described.get(attribute, "")
            if not meaning:
                raise self.error(f"{self.arguments[0]}.{attribute} has no description")
            kind = _kind(schema["properties"][key], schema.get("$defs", {}))
            row = (f"`{key}`", kind, _default(field), meaning)
            lines.append("| " + " | ".join(_cell(c) for c in row) + " |")
        self.env.note_dependency(inspect.getfile(model))
        return self.parse_text_to_nodes("\n".join(lines))


def _described_arguments(model: type[BaseModel]) -> dict[str, str]:
    """Meanings from the ``Args:`` part of the class's docstring."""
    doc = inspect.getdoc(model) or ""
    _, _, args = doc.partition("\nArgs:\n")
    found = re.findall(r"^    (\w+): (.*(?:\n {8,}.*)*)", args, flags=re.MULTILINE)
    return {name: _markdown(text) for name, text in found}


def _markdown(text: str) -> str:
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text)
    return text.replace("``", "`")


def _kind(schema: dict[str, Any], defs: dict[str, Any]) -> str:
    if "$ref" in schema:
        return _kind(defs[schema["$ref"].rpartition("/")[2]], defs)
    if "const" in schema:
        return f"`{schema['const']}`"
    if len(schema.get("enum", ())) > MOST_OPTIONS:
        return schema["title"].lower()
    if "enum" in schema:
        return " or ".join(f"`{v}`" for v in schema["enum"])
    if options := schema.get("anyOf") or schema.get("oneOf"):
        kinds = dict.fromkeys(_kind(o, defs) for o in options if o.get("type") != "null")
        return " or ".join(kinds)
    match schema.get("type"):
        case "array":
            return f"list of {_kind(schema.get('items', {}), defs)}"
        case "object" if "properties" in schema:
            return "settings"
        case "object":
            return "mapping"
        case "string":
            return "text"
        case "boolean":
            return "yes or no"
        case str(other):
            return other
        case _:
            return "any"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "*required*"
    value = field.get_default(call_default_factory=True)
    if value is None or value in ([], {}, (), ""):
        return "–"
    if isinstance(value, BaseModel):
        return "its defaults"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, frozenset | set):
        return ", ".join(f"`{v}`" for v in sorted(str(v) for v in value))
    return f"`{value}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("settings", Settings)
    return {"parallel_read_safe": True}
