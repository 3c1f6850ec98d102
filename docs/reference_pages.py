"""The parts of the reference that are generated from the code when the site is built.

A page has a line such as ``<!-- generated: command line -->`` where a part belongs; `fill` puts the
part there. The pages in the repository contain the line alone, so that nothing in them can be out
of date.
"""

import argparse
import html
import importlib
import inspect
import json
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import memdiag
from memdiag import records
from memdiag.cli.app import command_module, command_parser
from memdiag.cli.commands import COMMAND_NAMES
from memdiag.records.base import Record
from memdiag.records.schemas import RECORD_BY_SCHEMA, schema_path
from memdiag.reports import remedy_pages

_MARK = re.compile(r"^<!-- generated: (.+) -->$", re.MULTILINE)


def fill(page: str) -> str:
    """Return the Markdown `page` with each generated part in the place of its line.

    Raises:
        KeyError: there is no such part.
    """
    return _MARK.sub(lambda mark: PARTS[mark[1]](), page)


def generated_parts(page: str) -> list[str]:
    """Return the names of the generated parts of the Markdown `page`."""
    return _MARK.findall(page)


def command_line() -> str:
    """Return a section for each command, with its arguments and options."""
    return "\n".join(_command(name) for name in COMMAND_NAMES)


def _command(name: str) -> str:
    module = command_module(name)
    parser = command_parser(name, module)
    parts = [f"## memdiag {name}\n", f"```text\n{parser.format_usage().strip()}\n```\n"]
    parts.append(f"{_escaped(inspect.cleandoc(parser.description or ''))}\n")
    for group in parser._action_groups:
        rows = [
            (_names(action), _help(parser, action))
            for action in group._group_actions
            if action.help is not argparse.SUPPRESS
        ]
        if rows:
            parts.append(f"**{group.title}**\n")
            parts += [f"`{names}`\n: {text}\n" for names, text in rows]
    return "\n".join(parts)


def _names(action: argparse.Action) -> str:
    formatter = argparse.HelpFormatter("memdiag", width=1000)
    return formatter._format_action_invocation(action)


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    formatter = parser._get_formatter()
    return _escaped(" ".join(formatter._expand_help(action).split()))


def _escaped(text: str) -> str:
    """Return plain `text` as Markdown that shows it as it is; options become code."""
    text = re.sub(r"([\\`*_<>\[\]{}|$#])", r"\\\1", text)
    return re.sub(r"(?<![\w\\-])(--[a-z][a-z-]*)", r"`\1`", text)


def python_functions() -> str:
    """Return the documentation of all public functions."""
    return _autodoc(
        f".. autofunction:: memdiag.{name}"
        for name in memdiag.__all__
        if not isinstance(getattr(memdiag, name), type)
    )


def python_records() -> str:
    """Return the documentation of all public classes, and of the base classes of records."""
    bases = ("SavableRecord", "PlottableRecord", "NotebookRecord")
    names = [f"memdiag.{name}" for name in memdiag.__all__]
    names += [f"memdiag.records.base.{name}" for name in bases]
    return _autodoc(
        f".. autoclass:: {name}\n   :members:" for name in names if isinstance(_resolve(name), type)
    )


def python_errors() -> str:
    """Return the documentation of all errors that the package raises."""
    from memdiag import errors

    found = [
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and value.__module__ == errors.__name__
    ]
    return _autodoc(f".. autoexception:: memdiag.errors.{name}" for name in found)


def _resolve(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def _autodoc(directives: Iterator[str]) -> str:
    body = "\n\n".join(directives)
    return f"```{{eval-rst}}\n{body}\n```"


def remedies() -> str:
    """Return a section for each rewrite and session option that a rule names or `fix` tries."""
    rules = remedy_pages.rules_by_remedy()

    def section(name: str, text: str) -> str:
        links = ", ".join(f"[{rule}](../rules/{rule}.md)" for rule in rules.get(name, ()))
        ending = f"A remedy for {links}." if links else "Tried by `memdiag fix`."
        return f"### {name}\n\n{text}\n\n{ending}\n"

    return "\n".join(
        (
            "## Rewrites of the model\n",
            *(section(name, text) for name, text in remedy_pages.rewrite_texts().items()),
            "## Options of the session and the environment\n",
            *(section(name, text) for name, text in remedy_pages.option_texts().items()),
        )
    )


def record_schemas() -> str:
    """Return a section for each record with a schema: its fields and the file of the schema."""
    parts = []
    for name, kind in RECORD_BY_SCHEMA.items():
        title = f"{name.rpartition('-')[0]}/{name.rpartition('-')[2]}"
        file = schema_path(name).name
        schema = json.loads(schema_path(name).read_text())
        parts.append(
            f"## {title}\n\n`{kind.__name__}`. {_class_summary(kind)}\n\n"
            f"[JSON Schema](../../memdiag/records/{file})\n\n"
            f"{_fields(kind, schema['$defs'][kind.__name__])}"
        )
    return "\n".join(parts)


def record_types() -> str:
    """Return a section for each type inside the records, by name."""
    found: dict[str, dict[str, Any]] = {}
    for name in RECORD_BY_SCHEMA:
        found |= json.loads(schema_path(name).read_text())["$defs"]
    kinds = _record_classes()
    tops = {kind.__name__ for kind in RECORD_BY_SCHEMA.values()}
    parts = []
    for name, schema in sorted(found.items()):
        if name in tops:
            continue
        if "properties" in schema:
            text = f"{_class_summary(kinds[name])}\n\n{_fields(kinds[name], schema)}"
        else:  # a tuple, which is an array in JSON
            text = f"{schema['description']} {_type_text(schema).capitalize()}.\n"
        parts.append(f"## {name}\n\n{text}")
    return "\n".join(parts)


def _record_classes() -> dict[str, type]:
    """Return all classes of records by name."""
    for entry in pkgutil.iter_modules(records.__path__):
        importlib.import_module(f"{records.__name__}.{entry.name}")
    found: dict[str, type] = {}
    waiting: list[type] = [Record]
    while waiting:
        kind = waiting.pop()
        found[kind.__name__] = kind
        waiting += kind.__subclasses__()
    return found


def _class_summary(kind: type) -> str:
    """Return the docstring without its list of attributes."""
    text, _, _ = inspect.cleandoc(kind.__doc__ or "").partition("\n\nAttributes:")
    return text.strip()


def _fields(kind: type, schema: Mapping[str, Any]) -> str:
    meanings: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        meanings |= _attributes(vars(base).get("__doc__") or "")
    rows = [
        f"| `{name}` | {_type_text(field)} | {meanings.get(name, '')} |\n"
        for name, field in schema["properties"].items()
    ]
    return f"| field | type | meaning |\n| --- | --- | --- |\n{''.join(rows)}"


def _attributes(docstring: str) -> dict[str, str]:
    """Return what the list of attributes in `docstring` says of each name."""
    _, _, block = inspect.cleandoc(docstring).partition("Attributes:\n")
    items: list[str] = []
    for line in block.splitlines():
        if line and not line.startswith("    "):
            break
        if re.match(r"    \S", line):
            items.append(line.strip())
        elif items:
            items[-1] += f" {line.strip()}"
    found = {}
    for item in items:
        names, _, meaning = item.partition(": ")
        for name in names.split(", "):
            found[name.strip()] = _cell(meaning)
    return found


def _cell(text: str) -> str:
    return html.escape(" ".join(text.split()), quote=False).replace("|", "\\|")


def _type_text(field: Mapping[str, Any]) -> str:
    """Return the JSON type of a field in words, with links to the types of records."""
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        for schema, kind in RECORD_BY_SCHEMA.items():
            if kind.__name__ == name:
                return f"[{name}](records.md#{re.sub('[.-]', '', schema)})"
        return f"[{name}](record_types.md#{name.lower()})"
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(_type_text(each) for each in field["anyOf"]))
    if "enum" in field:
        return ", ".join("null" if value is None else f"`{value}`" for value in field["enum"])
    kind = field.get("type", "any value")
    if kind == "array" and "prefixItems" in field:
        return f"array of {', '.join(_type_text(each) for each in field['prefixItems'])}"
    if kind == "array":
        items = field.get("items")
        return f"array of {_type_text(items)}" if items else "array"
    values = field.get("additionalProperties")
    if kind == "object" and isinstance(values, Mapping):
        return f"object of {_type_text(values)}"
    return str(kind)


PARTS: dict[str, Callable[[], str]] = {
    "command line": command_line,
    "python functions": python_functions,
    "python records": python_records,
    "python errors": python_errors,
    "remedies": remedies,
    "record schemas": record_schemas,
    "record types": record_types,
}
"""The generated parts by the names that pages use."""
