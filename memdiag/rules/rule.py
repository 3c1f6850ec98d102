"""What every rule is: a code, a name, its remedies, and a way to say what it found."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal, NamedTuple

from memdiag.records.finding import ExpectedCopies, Finding
from memdiag.records.phases import PhaseName
from memdiag.rules.examined import Examined

MOST_NAMED = 50_000
"""Weights, nodes or copies that are named in one finding."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule: `code` such as ``MD103``, `name` in kebab case, `remedies` the preferred one first.

    `summary` is one line without a full stop, for lists of rules. `costs` is what a finding costs:
    findings that cost time only do not set the exit code of ``memdiag check``.
    """

    code: str
    name: str
    summary: str
    remedies: tuple[str, ...] = ()
    costs: Literal["memory", "time"] = "memory"

    def finding(
        self,
        examined: Examined,
        message: str,
        *,
        detail: str = "",
        weights: Iterable[str] = (),
        nodes: Iterable[str] = (),
        graph: str = "",
        nbytes: int = 0,
        peak_bytes: int | None = None,
        phase: PhaseName | None = None,
        expected: Iterable[ExpectedCopies] = (),
        retained_bytes: int = 0,
        run_bytes: int = 0,
        remedies: tuple[str, ...] | None = None,
    ) -> Finding:
        """Return a finding of this rule in the model of `examined`.

        `nbytes` can be saved at steady state, `peak_bytes` at the peak (as much, unless said). Of
        what is there at steady state, `retained_bytes` were freed but stay in the arena.
        `run_bytes` is what a run takes at least. Of more than `MOST_NAMED` weights, nodes or
        copies the first are in it.
        """
        return Finding(
            model=str(examined.model.path).encode(errors="backslashreplace").decode(),
            rule=self.code,
            name=self.name,
            message=message,
            detail=detail,
            weights=tuple(dict.fromkeys(islice(weights, MOST_NAMED))),
            nodes=tuple(dict.fromkeys(islice(nodes, MOST_NAMED))),
            graph=graph,
            bytes=nbytes,
            peak_bytes=nbytes if peak_bytes is None else peak_bytes,
            phase=phase,
            evidence="predicted",
            measured_bytes=None,
            expected=tuple(islice(expected, MOST_NAMED)),
            retained_bytes=retained_bytes,
            run_bytes=run_bytes,
            remedies=self.remedies if remedies is None else remedies,
        )


Detect = Callable[[Examined], Iterator[Finding]]


class Detector(NamedTuple):
    """A rule, the function that looks for it, and its documentation in Markdown."""

    rule: Rule
    detect: Detect
    documentation: str
