"""Settings in words: those of a method, of a model among them, of a file's part.

For ``interlace methods`` and for the pages' tables; both read what the code itself says:
annotations, defaults, and the ``Args`` of docstrings.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, get_args, get_type_hints

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from interlace.methods.base import Method, adapters

MOST_OPTIONS = 6  # a longer list is told by its name
_REQUIRED: Any = inspect.Parameter.empty

_ARGUMENT = re.compile(r"^    (\w+(?:, \w+)*): (.*(?:\n {8,}.*)*)", flags=re.MULTILINE)
_SOURCE = re.compile(r"^Sources?\b.*(?:\n\S.*)*", flags=re.MULTILINE)
_YEAR = re.compile(r"\b(?:19|20)\d\d\b|arXiv")
_REFERENCE = re.compile(r":(?:class|func|meth|mod):`~?(?:\w+\.)*(\w+)`")


class Setting(NamedTuple):
    """A setting: what is written for it, what it is by default, what it means, and the models whose
    own settings it holds. Texts are Markdown."""

    name: str
    kind: str
    default: str
    meaning: str
    holds: tuple[type[BaseModel], ...] = ()


def settings_of(thing: type, others: Mapping[str, type] | None = None) -> list[Setting]:
    """The settings of a method or of a pydantic model, in the order of the code.

    Args:
        thing: Its class.
        others: Classes by name to whose arguments its docstring may refer.
    """
    described = _described(thing, others or {}, frozenset())
    if issubclass(thing, BaseModel):
        return list(_of_model(thing, described))
    return list(_of_method(thing, described))


def _of_model(model: type[BaseModel], described: Mapping[str, str]) -> Iterator[Setting]:
    schema = model.model_json_schema(by_alias=True, schema_generator=_Words)
    for name, field in model.model_fields.items():
        key = field.alias or name
        kind = _kind(schema["properties"][key], schema.get("$defs", {}))
        default = _REQUIRED
        if not field.is_required():
            default = field.get_default(call_default_factory=True)
        meaning = field.description or described.get(name, "")
        yield Setting(key, kind, _default(default), meaning, tuple(_models(field.annotation)))


def _of_method(make: type, described: Mapping[str, str]) -> Iterator[Setting]:
    hints = get_type_hints(make.__init__)  # type: ignore[misc]
    for name, parameter in inspect.signature(make).parameters.items():
        schema = adapters(make)[name].json_schema(schema_generator=_Words)
        kind = _kind(schema, schema.get("$defs", {}))
        meaning = described.get(name) or next(
            (f"See `{n}`." for n, text in described.items() if f"`{name}`" in text), ""
        )
        holds = tuple(_models(hints[name]))
        yield Setting(name, kind, _default(parameter.default), meaning, holds)


def told_of(thing: type) -> list[str]:
    """What a method's docstring says before its arguments, in paragraphs, and then its source: by
    its own words, and by its module's where these name no paper."""
    doc, module = (inspect.getdoc(of) or "" for of in (thing, sys.modules[thing.__module__]))
    found = [_SOURCE.search(doc)]
    if not (found[0] and _YEAR.search(found[0][0])):
        of_module = (
            _SOURCE.search(module),
            re.search(rf"^- :class:`{thing.__name__}`.*(?:\n  .*)*", module, flags=re.MULTILINE),
            re.match(r".*(?:\n.+)*", module),
        )
        found.append(next((m for m in of_module if m and _YEAR.search(m[0])), None))
    sources = [match[0].strip() for match in found if match]
    told = re.split(r"\n(?=\n|- |\d\. )", doc.partition("\nArgs:")[0])
    paragraphs = [*(p.strip() for p in told if p.strip() not in sources), *sources]
    return [text for p in paragraphs if (text := _markdown(p.removeprefix("- ")).rstrip(":"))]


class _Words(GenerateJsonSchema):
    """A schema of what can be written in a file; what cannot, an own network, is named."""

    def is_instance_schema(self, schema: Any) -> JsonSchemaValue:
        return {"type": "own module"}


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """The pydantic models in an annotation."""
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)


def _described(thing: type, others: Mapping[str, type], asked: frozenset[type]) -> dict[str, str]:
    """Meanings from the ``Args`` of a class's docstring, and where that refers to another class, or
    is silent, of that one and of those it derives from."""
    doc = thing.__doc__ or ""
    found: dict[str, str] = {}
    _, _, args = (inspect.getdoc(thing) or "").partition("\nArgs:")
    for names, text in _ARGUMENT.findall(args):
        found |= dict.fromkeys(names.split(", "), _markdown(text))
    asked |= {thing}
    named = [others[n] for n in _REFERENCE.findall(doc) if n in others]
    elsewhere: dict[str, str] = {}
    for other in (*named, *thing.__bases__):
        if other.__module__.startswith("interlace.") and other not in asked:
            elsewhere = _described(other, others, asked) | elsewhere
    copied = {n for n, text in found.items() if text.startswith("As for ") and n in elsewhere}
    return elsewhere | {n: text for n, text in found.items() if n not in copied}


def _markdown(text: str) -> str:
    text = re.sub(r":\w+:`(~(?:\w+\.)*)?([^`]+)`", r"`\2`", text)
    return " ".join(text.replace("``", "`").split())


def _kind(schema: dict[str, Any], defs: dict[str, Any]) -> str:
    if "$ref" in schema:
        return _kind(defs[schema["$ref"].rpartition("/")[2]], defs)
    if "const" in schema:
        return f"`{schema['const']}`"
    if len(schema.get("enum", ())) > MOST_OPTIONS:
        return str(schema["title"]).lower()
    if "enum" in schema:
        return " or ".join(f"`{v}`" for v in schema["enum"])
    if options := schema.get("anyOf") or schema.get("oneOf"):
        kinds = dict.fromkeys(_kind(o, defs) for o in options if o.get("type") != "null")
        return " or ".join(kinds)
    match schema.get("type"):
        case "array":
            items = _kind(schema.get("items", {}), defs)
            return "list of " + re.sub(r"^(whole )?number", r"\1numbers", items)
        case "object" if "properties" in schema:
            return "settings"
        case "object":
            return "mapping"
        case "string":
            return "text"
        case "boolean":
            return "yes or no"
        case "integer":
            return f"whole number{_bounds(schema)}"
        case "number":
            return f"number{_bounds(schema)}"
        case str(other):
            return other
        case _:
            return "any"


def _bounds(schema: dict[str, Any]) -> str:
    said = ""
    for key, word in (("minimum", "from"), ("exclusiveMinimum", "above")):
        said += f" {word} {schema[key]:,}" if key in schema else ""
    for key, word in (("maximum", ""), ("exclusiveMaximum", "below ")):
        said += f" to {word}{schema[key]:,}" if key in schema else ""
    return said


def _default(value: Any) -> str:
    if value is _REQUIRED:
        return "*required*"
    if isinstance(value, BaseModel | Method):
        return f"`{name}`" if (name := getattr(value, "name", "")) else "its defaults"
    if value is None or value in ([], {}, (), "", frozenset()):
        return "–"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, frozenset | set):
        return ", ".join(f"`{v}`" for v in sorted(str(v) for v in value))
    if isinstance(value, tuple):
        value = list(value)
    return f"`{value}`"
