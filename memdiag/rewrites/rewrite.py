"""The declaration of a rewrite: its name, and how it may change the computation."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from memdiag.records.finding import Finding
from memdiag.rewrites.model_editor import ModelEditor

Arithmetic = Literal["same", "reordered", "changed"]
"""``same``: all kernels stay, only data moves; ``reordered``: other kernels or fusions may run, so
that the same sums are added in another order; ``changed``: values themselves change."""

UNSAFE_PROBLEM = "it changes values (see --max-difference)"
"""Why a rewrite that is not safe is refused by default."""


@dataclass(frozen=True, kw_only=True)
class Rewrite:
    """The declaration of a rewrite.

    Attributes:
        name: the name in kebab case, as findings give it.
        summary: one line without a full stop.
        arithmetic: what may change in the computation.
        safe: whether it changes no values, so that it is tried without ``--max-difference``.
    """

    name: str
    summary: str
    arithmetic: Arithmetic
    safe: bool = True


class Rewriter(NamedTuple):
    """A rewrite with its functions.

    Attributes:
        rewrite: the declaration.
        check: returns why the rewrite cannot be applied, in a few words without a full stop; None
            if it can.
        apply: applies it and returns whether it changed anything; a second call changes nothing.
    """

    rewrite: Rewrite
    check: Callable[[ModelEditor, Finding], str | None]
    apply: Callable[[ModelEditor, Finding], bool]


def first_problem(problems: Iterable[str], *, otherwise: str) -> str | None:
    """Return why a rewrite can be applied to no part of a finding; None if it can be to one.

    Args:
        problems: why it cannot be applied to each part; empty texts where it can.
        otherwise: the reason if the finding has no part.
    """
    part_problems = list(problems)
    if not part_problems:
        return otherwise
    return None if "" in part_problems else part_problems[0]
