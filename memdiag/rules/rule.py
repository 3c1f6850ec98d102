"""The class of the rules, which creates their findings, and the class of their detectors."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from pkgutil import iter_modules
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from memdiag.errors import UsageError, rule_defect_note
from memdiag.ort.analysis import AnalysisContext
from memdiag.paths import path_text
from memdiag.records.finding import ExpectedCopies, Finding
from memdiag.records.phases import PhaseName

MAX_FINDING_NAMES = 50_000
"""Weights, nodes or copies that one finding names."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule: a wasteful pattern that memdiag can find in a model.

    Attributes:
        code: such as ``MD103``.
        name: in kebab case.
        summary: one line without a full stop, for lists of rules.
        remedies: names of rewrites and options, the preferred one first.
        costs: the resource that a finding costs. Findings that cost time only do not set the exit
            code of ``memdiag check``.
        is_advisory: whether the rule is about a defect of a release, under conditions that the
            model file alone does not show. Its findings do not set the exit code either.
        saves_private: whether its remedies save private memory only (see `Finding.is_private`).
        needs_sessions: whether a rule for programs needs recorded sessions, or X-rays alone.
    """

    code: str
    name: str
    summary: str
    remedies: tuple[str, ...] = ()
    costs: Literal["memory", "time"] = "memory"
    is_advisory: bool = False
    saves_private: bool = False
    needs_sessions: bool = True

    def finding(
        self,
        ctx: AnalysisContext,
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
        run_bytes: int = 0,
        remedies: tuple[str, ...] | None = None,
    ) -> Finding:
        """Return a finding of this rule in the model of `ctx`.

        Args:
            ctx: the model.
            message: the waste in one sentence.
            detail: further sentences.
            weights: the names of weights; the first `MAX_FINDING_NAMES` are recorded.
            nodes: the names of nodes, recorded likewise.
            graph: the path of the graph, if it is in one.
            nbytes: the bytes that could be saved at steady state.
            peak_bytes: the bytes that could be saved at the peak; `nbytes` by default.
            phase: the phase in which the waste arises.
            expected: the copies that the X-ray would list; the first `MAX_FINDING_NAMES` are
                recorded.
            run_bytes: the bytes that a run takes at least.
            remedies: the rule's remedies that fit; all by default.
        """
        return Finding(
            model=path_text(ctx.model_file.path),
            rule=self.code,
            name=self.name,
            message=message,
            detail=detail,
            weights=tuple(dict.fromkeys(islice(weights, MAX_FINDING_NAMES))),
            nodes=tuple(dict.fromkeys(islice(nodes, MAX_FINDING_NAMES))),
            graph=graph,
            bytes=nbytes,
            peak_bytes=nbytes if peak_bytes is None else peak_bytes,
            phase=phase,
            evidence="predicted",
            measured_bytes=None,
            expected=tuple(islice(expected, MAX_FINDING_NAMES)),
            run_bytes=run_bytes,
            is_private=self.saves_private,
            remedies=self.remedies if remedies is None else remedies,
        )


Context = TypeVar("Context")
DetectedFinding = TypeVar("DetectedFinding")


class Detector(NamedTuple, Generic[Context, DetectedFinding]):
    """A rule with its detection, for models or for programs.

    Attributes:
        rule: the rule.
        detect: the function that yields the findings in a context.
        documentation: the docstring of its module: Markdown, whose first line is a sentence.
    """

    rule: Rule
    detect: Callable[[Context], Iterator[DetectedFinding]]
    documentation: str


ModelDetector = Detector[AnalysisContext, Finding]


def find_by_name(
    name: str, detectors: Sequence[Detector[Context, DetectedFinding]]
) -> Detector[Context, DetectedFinding]:
    """Return the one of `detectors` whose rule has the code or name `name`.

    Raises:
        UsageError: no rule has it; the message lists all rules.
    """
    for detector in detectors:
        if name.casefold() in (detector.rule.code.casefold(), detector.rule.name):
            return detector
    rules = [detector.rule for detector in detectors]
    rule_names = [rule.name for rule in rules if name in rule.remedies]
    if rule_names:
        raise UsageError(f"{name!r} is a remedy. Name its rule: {' or '.join(rule_names)}.")
    names = ", ".join(rule.name for rule in rules)
    raise UsageError(f"unknown rule {name!r}. The rules are {names}.")


def run_detectors(
    detectors: Iterable[Detector[Context, DetectedFinding]], context: Context, subject: str
) -> tuple[list[DetectedFinding], list[str]]:
    """Return the findings of `detectors` in `context`, a `subject`, and a note for each defect."""
    findings: list[DetectedFinding] = []
    notes = []
    for detector in detectors:
        try:
            findings += detector.detect(context)
        except Exception as error:  # a defect of one rule must not lose the measurement
            notes.append(rule_defect_note(detector.rule.name, subject, error))
    return findings, notes


def load_detectors(package: str, path: Iterable[str]) -> tuple[Detector[Any, Any], ...]:
    """Return the detector of each module of a package with a `RULE`, sorted by code.

    Args:
        package: the name of the package.
        path: its ``__path__``.
    """
    modules = (import_module(f"{package}.{module.name}") for module in iter_modules(path))
    detectors = [
        Detector(module.RULE, module.detect, inspect.getdoc(module) or "")
        for module in modules
        if hasattr(module, "RULE")
    ]
    return tuple(sorted(detectors, key=lambda detector: detector.rule.code))
