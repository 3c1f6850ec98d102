"""Public figures next to ours, as ratios, and what is to be said of the two."""

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import isnan, nan
from pathlib import Path
from typing import NamedTuple

from benchmarks.readme import table

ALIKE = 0.1
"""Ratios that differ by no more than this share are called alike."""

_NO_CHANGE = 0.05
_WIDTH = 110


class Claim(NamedTuple):
    """What a public figure and ours became in relation to what they were.

    `ratio` is public, `found` ours, NaN where it could not be measured, with its 95 % confidence
    interval where it has one; `claimed` and `measured` are the figures behind them, in words.
    """

    what: str
    claimed: str
    ratio: float
    measured: str
    found: float
    interval: tuple[float, float] | None = None

    @property
    def shown(self) -> str:
        """Our ratio as text, empty where there is none."""
        if isnan(self.found):
            return ""
        low, high = self.interval or (nan, nan)
        return f"{self.found:.2f}" + (f" ({low:.2f}–{high:.2f})" if self.interval else "")

    @property
    def verdict(self) -> str:
        """Whether ours agrees: alike, in the same direction, or not, or that scatter hides it."""
        if isnan(self.found):
            return "not measured"
        if abs(self.found / self.ratio - 1) <= ALIKE:
            return "alike"
        if self.interval and self.interval[0] <= self.ratio <= self.interval[1]:
            return "in doubt"
        there, here = self.ratio - 1, self.found - 1
        if min(abs(there), abs(here)) > _NO_CHANGE and there * here > 0:
            return "the same way, " + ("less" if abs(here) < abs(there) else "more")
        return "not here"


@dataclass(kw_only=True)
class Part:
    """One reproduction: its claims, what explains the differences, and the tables behind them."""

    claims: Sequence[Claim] = ()
    remarks: list[str] = field(default_factory=list)
    tables: list[str] = field(default_factory=list)

    def text(self) -> str:
        """Return it as Markdown."""
        head = ["", "public", "ratio", "here", "ratio", ""]
        rows = [
            [each.what, each.claimed, f"{each.ratio:.2f}", each.measured, each.shown, each.verdict]
            for each in self.claims
        ]
        remarks = "\n".join(wrapped(f"- {remark}", indent="  ") for remark in self.remarks)
        return "\n\n".join(filter(None, [table(head, rows), remarks, *self.tables]))


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How to measure: `rounds` fresh processes each, models of `scale` times their size.

    `folder` is where models are written; `say` is told what is being done.
    """

    rounds: int
    scale: float
    folder: Path
    say: Callable[[str], None]


def wrapped(text: str, indent: str = "") -> str:
    """Return `text` in lines as long as those of the other pages; links stay whole."""
    return textwrap.fill(
        text,
        _WIDTH,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def quotient(after: float, before: float) -> float:
    """Return the ratio of two figures, NaN where one is missing."""
    return after / before if before and not isnan(before) else nan
