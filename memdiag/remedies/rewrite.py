"""What every rewrite is: a name, the rules it answers, what it may change, and how to do it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from memdiag.records.finding import Finding
from memdiag.remedies.draft import Draft

Arithmetic = Literal["same", "reordered", "changed"]
"""``same``: every kernel stays, only data moves; ``reordered``: other kernels or fusions may run,
so that the same sums are added in another order;
``changed``: values themselves change."""


@dataclass(frozen=True, kw_only=True)
class Rewrite:
    """A rewrite: `name` as findings call it, `rules` the names of those that it answers.

    `summary` is one line without a full stop. Only `safe` ones are done unasked: an unsafe one
    changes values.
    """

    name: str
    summary: str
    rules: tuple[str, ...]
    arithmetic: Arithmetic
    safe: bool = True


Refuse = Callable[[Draft, Finding], str | None]
Apply = Callable[[Draft, Finding], bool]


class Rewriter(NamedTuple):
    """A rewrite with its functions.

    `check` returns why it cannot be done, in a few words without a full stop, or None if it can;
    `apply` does it and returns whether it changed anything: nothing the second time.
    """

    rewrite: Rewrite
    check: Refuse
    apply: Apply
