"""Text, code and tables in GitHub's Markdown, whatever signs they hold."""

import re
from collections.abc import Sequence

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~$!&])")
_ALIGN = {"left": ":--", "right": "--:"}


def escape(text: str) -> str:
    """Return `text` so that Markdown shows it as it is, and GitHub mentions nobody by it."""
    if text.startswith("::"):  # the log of a workflow would take the line for a command
        text = f"\u2060{text}"
    return _SPECIAL.sub(r"\\\1", text).replace("@", "@\u2060")


def code(text: str, *, in_table: bool = False) -> str:
    """Return `text` as code, fenced by more backticks than it holds in a row."""
    fence = "`" * (_longest_run(text) + 1)
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    shown = text.replace("|", r"\|") if in_table else text
    return f"{fence}{pad}{shown}{pad}{fence}" if text else ""


def code_block(lines: Sequence[str], language: str) -> str:
    """Return `lines` as a block of code; empty where there is none."""
    text = "\n".join(lines)
    fence = "`" * max(3, _longest_run(text) + 1)
    return f"{fence}{language}\n{text}\n{fence}" if lines else ""


def _longest_run(text: str) -> int:
    """Return how many backticks `text` holds in a row."""
    return max((len(run) for run in re.findall("`+", text)), default=0)


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, left: Sequence[int]) -> str:
    """Return a table whose columns `left` are set left, the others right."""
    rule = [_ALIGN["left" if column in left else "right"] for column in range(len(headings))]
    lines = [headings, rule, *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
