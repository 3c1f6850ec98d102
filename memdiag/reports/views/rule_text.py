"""A rule's documentation as blocks that a page can set: headings, paragraphs and lists."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from typing import Literal

# Read, not imported: a saved profile is shown where onnx is not installed.
_RULES = resources.files("memdiag") / "rules"


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A heading or paragraph with one item, or a list; each item is runs of text and of code."""

    kind: Literal["heading", "paragraph", "list"]
    items: tuple[tuple[tuple[str, bool], ...], ...]


def build(rule: str) -> tuple[Block, ...]:
    """Return the documentation of the rule called `rule`; empty where there is no such rule.

    A record may be of another version, with rules of its own.
    """
    if not re.fullmatch(r"[a-z0-9-]+", rule):
        return ()
    try:
        source = (_RULES / f"{rule.replace('-', '_')}.py").read_text("utf-8")
    except FileNotFoundError:
        return ()
    module = ast.parse(source)
    return tuple(blocks(ast.get_docstring(module) or "")) if _has_rule(module) else ()


def _has_rule(module: ast.Module) -> bool:
    targets = (each for one in module.body if isinstance(one, ast.Assign) for each in one.targets)
    return any(isinstance(one, ast.Name) and one.id == "RULE" for one in targets)


def blocks(markdown: str) -> Iterator[Block]:
    """Yield the blocks of `markdown`, of which rules use headings, paragraphs, lists and code."""
    for part in markdown.strip().split("\n\n"):
        lines = part.strip().splitlines()
        if lines[0].startswith("#"):
            yield Block(kind="heading", items=(_runs(lines[0].lstrip("# ")),))
            lines = lines[1:]
        before = [line for line in lines if not _in_list(line, lines)]
        if before:
            yield Block(kind="paragraph", items=(_runs(" ".join(before)),))
        items: list[str] = []
        for line in lines[len(before) :]:
            if line.startswith("- "):
                items.append(line[2:])
            else:
                items[-1] += f" {line.strip()}"
        if items:
            yield Block(kind="list", items=tuple(map(_runs, items)))


def _in_list(line: str, lines: list[str]) -> bool:
    first = next((index for index, one in enumerate(lines) if one.startswith("- ")), len(lines))
    return lines.index(line) >= first


def _runs(text: str) -> tuple[tuple[str, bool], ...]:
    """Return the pieces of `text`, each with whether it is code (between back-ticks)."""
    pieces = text.replace("``", "`").split("`")
    return tuple((piece, bool(index % 2)) for index, piece in enumerate(pieces) if piece)
