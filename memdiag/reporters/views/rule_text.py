"""A rule's documentation as blocks that a page can set: headings, paragraphs and lists."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from memdiag.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A heading or paragraph with one item, or a list; each item is runs of text and of code."""

    kind: Literal["heading", "paragraph", "list"]
    items: tuple[tuple[tuple[str, bool], ...], ...]


def build(rule: str) -> tuple[Block, ...]:
    """Return the documentation of the rule called `rule`; empty where there is no such rule.

    A record may be of another version, with rules of its own.
    """
    from memdiag.detectors import find_detector

    try:
        return tuple(blocks(find_detector(rule).documentation))
    except UsageError:
        return ()


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
