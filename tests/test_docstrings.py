"""Docstrings name parameters and fields that exist: a rename that forgets them fails here."""

import ast
import builtins
import re
from collections.abc import Iterator
from pathlib import Path

import memdiag

PACKAGE = Path(memdiag.__file__).parent
SECTION = re.compile(r"^(Args|Attributes):\n((?:    .*\n?|\n)*)", re.MULTILINE)
ENTRY = re.compile(r"^    (\*{0,2}\w+(?:, \*{0,2}\w+)*): ", re.MULTILINE)
QUOTED = re.compile(r"(?<!`)`([a-z_]\w*)`(?!`)")


def docstrings() -> Iterator[tuple[str, set[str], ast.FunctionDef | ast.ClassDef, str]]:
    """Yield the place, names of the module, definition and docstring of classes and functions."""
    for path in PACKAGE.rglob("*.py"):
        module = ast.parse(path.read_text())
        known = names_in(module) | {*dir(builtins)}
        for node in ast.walk(module):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                place = f"{path.relative_to(PACKAGE)}:{node.lineno}: {node.name}"
                yield place, known, node, ast.get_docstring(node) or ""


def names_in(node: ast.AST) -> set[str]:
    """Return the names that are defined, assigned, passed or read inside `node`."""
    fields = ("id", "arg", "attr", "name")
    names = (getattr(child, field, None) for child in ast.walk(node) for field in fields)
    return {name for name in names if isinstance(name, str)}


def parameters(node: ast.FunctionDef | ast.ClassDef) -> set[str]:
    """Return the parameters of a function, or those with which objects of a class are made."""
    if isinstance(node, ast.FunctionDef):
        return names_in(node.args)
    functions = [child for child in node.body if isinstance(child, ast.FunctionDef)]
    return next(
        (parameters(child) for child in functions if child.name == "__init__"), names_in(node)
    )


def test_sections_name_parameters_and_fields() -> None:
    missing = [
        f"{place}: {name}"
        for place, _, node, text in docstrings()
        for section, entries in SECTION.findall(text)
        for names in ENTRY.findall(entries)
        for name in re.findall(r"\w+", names)
        if name not in (names_in(node) if section == "Attributes" else parameters(node))
    ]
    assert not missing


def test_first_lines_name_what_their_module_has() -> None:
    missing = [
        f"{place}: {name}"
        for place, known, _, text in docstrings()
        for name in QUOTED.findall(text.partition("\n")[0])
        if name not in known
    ]
    assert not missing
