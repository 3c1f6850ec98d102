"""Text and code in GitHub's Markdown, whatever characters they contain."""

import re
from collections.abc import Iterable, Sequence

_SPECIAL_CHARACTERS = re.compile(r"([\\`*_{}\[\]<>#|~$!&])")


def escape(text: str) -> str:
    """Return `text` so that Markdown prints it unchanged and GitHub notifies nobody."""
    if text.startswith("::"):  # the log of a workflow would take the line for a command
        text = f"\u2060{text}"
    return _SPECIAL_CHARACTERS.sub(r"\\\1", text).replace("@", "@\u2060")


def code_span(text: str, *, in_table: bool = False) -> str:
    """Return `text` as code, fenced by more backticks than it has in a row."""
    fence = "`" * (_longest_backtick_run(text) + 1)
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    content = text.replace("|", r"\|") if in_table else text
    return f"{fence}{pad}{content}{pad}{fence}" if text else ""


def code_block(lines: Sequence[str], language: str) -> str:
    """Return `lines` as a block of code; empty if there are none."""
    text = "\n".join(lines)
    fence = "`" * max(3, _longest_backtick_run(text) + 1)
    return f"{fence}{language}\n{text}\n{fence}" if lines else ""


def bullet_list(lines: Iterable[str]) -> str:
    """Return `lines` as a list of escaped texts."""
    return "\n".join(f"- {escape(line)}" for line in lines)


def section(title: str, body: str) -> str:
    """Return `body` below a heading; an empty text if `body` is empty."""
    return f"### {title}\n\n{body}" if body else ""


def folded_section(title: str, body: str) -> str:
    """Return `body` below a title that unfolds it; an empty text if `body` is empty."""
    return f"<details><summary>{title}</summary>\n\n{body}\n\n</details>" if body else ""


def document(blocks: Iterable[str]) -> str:
    """Return the blocks that are not empty, separated by blank lines."""
    return "\n\n".join(block for block in blocks if block) + "\n"


def _longest_backtick_run(text: str) -> int:
    """Return the largest number of backticks in a row."""
    return max((len(run) for run in re.findall("`+", text)), default=0)
