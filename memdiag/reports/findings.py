"""Findings as text: place, cost, evidence, remedy, and the documentation of the rule."""

from __future__ import annotations

import ast
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Literal

from memdiag.records.finding import Check, Finding
from memdiag.records.profile import Profile
from memdiag.reports import markdown as md
from memdiag.reports.console import print_line
from memdiag.reports.text import plain
from memdiag.units import counted, format_duration, format_size, some_of

if TYPE_CHECKING:
    from rich.console import Console

_AGREEMENT_SHARE = 0.05  # relative difference up to which prediction and measurement agree
_MAX_FINDINGS_OF_A_RULE = 5
_MAX_MARKDOWN_FINDINGS = 50
_FIX_HINT = "memdiag fix tries {}options of the session and optimizers"

# Rules are read, not imported, because a saved profile is also rendered without onnx.
_RULE_FOLDERS = [
    resources.files("memdiag").joinpath(*path)
    for path in (["rules", "catalog"], ["rules", "device"], ["programs", "rules"])
]


@dataclass(frozen=True, kw_only=True)
class FindingText:
    """A finding as plain text.

    Attributes:
        rule, name: code and name of the rule; empty if the message names it.
        size_bytes: what it costs at steady state.
        path: the uses of the first weight.
        cost: bytes and phase: ``costs 64 MiB steady, in prepack``.
        evidence: ``predicted``, or the measured cost.
        remedies: names of remedies, the preferred one first.
    """

    model: str = ""
    rule: str = ""
    name: str = ""
    message: str
    detail: str
    path: str = ""
    cost: str = ""
    evidence: str = ""
    is_refuted: bool = False
    remedies: tuple[str, ...] = ()
    size_bytes: int = 0

    @property
    def prose(self) -> str:
        """Message, detail and uses as sentences."""
        uses = f"Uses: {self.path}." if self.path else ""
        return " ".join(part for part in (self.message, self.detail, uses) if part)

    @property
    def facts(self) -> str:
        """Cost, evidence and remedies in one line."""
        remedy = f"remedy: {', '.join(self.remedies)}" if self.remedies else ""
        return " · ".join(part for part in (self.cost, self.evidence, remedy) if part)


def finding_text(finding: Finding) -> FindingText:
    """Return the sentences that describe `finding` in reports."""
    return FindingText(
        model=plain(finding.model),
        rule=plain(finding.rule),
        name=plain(finding.name),
        message=plain(finding.message),
        detail=plain(finding.detail),
        path=plain(finding.path),
        cost=_cost_and_phase_text(finding),
        evidence=_evidence_text(finding),
        is_refuted=finding.evidence == "refuted",
        remedies=tuple(map(plain, finding.remedies)),
        size_bytes=finding.bytes,
    )


def _findings_summary(
    findings: Sequence[Finding],
    *,
    models: int = 1,
    duration_s: float | None = None,
    max_bytes: int | None = None,
) -> tuple[str, str]:
    """Return the line that ends a list of findings, and a sentence on findings without a remedy.

    The sentence is empty if all have a remedy. Several findings may be about the same bytes, so
    their sum is limited to `max_bytes`.
    """
    confirmed = [finding for finding in findings if finding.evidence != "refuted"]
    parts = [counted(len(confirmed), "finding") if confirmed else "no findings"]
    if models != 1:
        parts[0] += f" in {models:,} models"
    limit = math.inf if max_bytes is None else max(0, max_bytes)
    remediable = [finding for finding in confirmed if finding.remedies]
    private_bytes = sum(
        _finding_steady_bytes(finding) for finding in remediable if finding.is_private
    )
    avoidable_bytes = min(
        limit, sum(_finding_steady_bytes(finding) for finding in remediable) - private_bytes
    )
    avoidable_peak_bytes = max((finding.peak_bytes for finding in remediable), default=0)
    if avoidable_bytes:
        parts.append(f"up to {format_size(int(avoidable_bytes))} avoidable at steady state")
    elif private_bytes:
        parts.append(f"up to {format_size(private_bytes)} of private memory avoidable")
    elif avoidable_peak_bytes:
        parts.append(f"up to {format_size(avoidable_peak_bytes)} avoidable at the peak")
    unremedied_bytes = min(
        limit - avoidable_bytes,
        sum(_finding_steady_bytes(finding) for finding in confirmed if not finding.remedies),
    )
    unremedied_text = ""
    if unremedied_bytes:
        count = sum(
            not finding.remedies and _finding_steady_bytes(finding) > 0 for finding in confirmed
        )
        findings_words = f"the {len(confirmed):,} findings" if len(confirmed) > 1 else "the finding"
        if count < len(confirmed):
            findings_words = f"{'one' if count == 1 else f'{count:,}'} of {findings_words}"
        unremedied_text = (
            f"No rewrite is known for {findings_words} ({format_size(int(unremedied_bytes))});"
            " memdiag fix tries options of the session as well"
        )
    if len(findings) > len(confirmed):
        parts.append(f"{len(findings) - len(confirmed):,} more refuted by the measurement")
    if duration_s is not None:
        parts.append(f"in {format_duration(duration_s)}")
    return ", ".join(parts), unremedied_text


def profile_summary(profile: Profile) -> str:
    """Return the sentences that end the findings of a profile, without the last full stop."""
    summary = _findings_summary(profile.findings, max_bytes=profile.steady_above_bytes)
    return ". ".join(filter(None, summary))


def check_summary(check: Check) -> str:
    """Return the line that ends the answer of a check."""
    examined_count = sum(model.error is None for model in check.models)
    failed_count = len(check.models) - examined_count
    parts, advice = [f"{counted(failed_count, 'model')} could not be read"], ""
    if examined_count or not failed_count:
        summary, advice = _findings_summary(
            check.findings, models=examined_count, duration_s=check.duration_s
        )
        parts = [summary, *parts] if failed_count else [summary]
        if examined_count == 1 and not failed_count and not advice:
            has_remedy = any(finding.remedies for finding in check.findings)
            advice = _FIX_HINT.format("the remedies, " if has_remedy else "")
    answer = ", ".join((*parts, f"for onnxruntime {plain(check.onnxruntime)}"))
    return f"{answer}. {advice}." if advice else answer


def print_findings(
    findings: Sequence[FindingText],
    console: Console,
    limit: int | None = None,
    *,
    names_model: bool = False,
) -> None:
    """Print the first `limit` of `findings`, or the first few of each rule, and count the others.

    With `names_model`, each starts with its model.
    """
    shown_findings = _first_of_each_rule(findings) if limit is None else findings[:limit]
    for finding in shown_findings:
        model = f"{finding.model}: " if names_model else ""
        name = f" [{finding.name}]" if finding.name else ""
        print_line(
            console, f"{model}{finding.message}{name}", "dim" if finding.is_refuted else "bold"
        )
        print_line(console, f"  {finding.detail}" if finding.detail else "")
        print_line(console, f"  {finding.path}" if finding.path else "")
        print_line(console, f"  {finding.facts}" if finding.facts else "", "dim")
    if limit is None:
        for sentence in _left_out_findings(findings):
            print_line(console, sentence)
    elif len(findings) > limit:
        remaining_names = [
            f"{finding.name} ({format_size(finding.size_bytes)})"
            if finding.size_bytes
            else finding.name
            for finding in findings[limit:]
        ]
        more_text = counted(len(remaining_names), "more finding")
        print_line(console, f"{more_text} in the reports: {some_of(remaining_names)}")


def findings_markdown(findings: Sequence[FindingText]) -> str:
    """Return `findings` as a list in Markdown, with the number of findings that are left out."""
    lines = []
    for finding in findings[:_MAX_MARKDOWN_FINDINGS]:
        facts = f" *{md.escape(finding.facts)}*" if finding.facts else ""
        lines.append(f"- {md.code_span(finding.name)}: {md.escape(finding.prose)}{facts}")
    omitted_count = len(findings) - _MAX_MARKDOWN_FINDINGS
    return "\n".join([*lines, f"- and {omitted_count:,} more"] if omitted_count > 0 else lines)


def _first_of_each_rule(findings: Sequence[FindingText]) -> Iterator[FindingText]:
    count_by_rule: Counter[str] = Counter()
    for finding in findings:
        count_by_rule[finding.name] += 1
        if count_by_rule[finding.name] <= _MAX_FINDINGS_OF_A_RULE:
            yield finding


def _left_out_findings(findings: Sequence[FindingText]) -> Iterator[str]:
    """Yield a sentence for each rule with more findings than are printed."""
    for name in dict.fromkeys(finding.name for finding in findings):
        findings_of_rule = [finding for finding in findings if finding.name == name]
        omitted_findings = findings_of_rule[_MAX_FINDINGS_OF_A_RULE:]
        if omitted_findings:
            size = format_size(sum(finding.size_bytes for finding in omitted_findings))
            more_text = f"and {len(omitted_findings):,} more of {name}"
            yield f"{more_text}, {size} together (all with --format json)"


def _finding_steady_bytes(finding: Finding) -> int:
    """Return the bytes that `finding` costs at steady state, as measured if it was measured."""
    is_measured = finding.measured_bytes is not None and finding.bytes and not finding.run_bytes
    return finding.measured_bytes or 0 if is_measured else finding.bytes


def _cost_and_phase_text(finding: Finding) -> str:
    parts = []
    if finding.bytes:
        kind = "of private memory" if finding.is_private else "steady"
        parts.append(f"{format_size(finding.bytes)} {kind}")
    if finding.peak_bytes > finding.bytes:
        parts.append(f"{format_size(finding.peak_bytes)} at the peak")
    phase = f", in {finding.phase}" if finding.phase and parts else ""
    verb = "costs" if _agrees_with_measurement(finding) else "predicted:"
    cost = f"{verb} {' and '.join(parts)}{phase}" if parts else ""
    return " · ".join(filter(None, (cost, _peak_share_text(finding))))


def _peak_share_text(finding: Finding) -> str:
    """Return the share of the estimated peak: ``33 % of the estimated peak``; empty if unknown."""
    share = finding.peak_share
    if share is None:
        return ""
    percent = "< 1" if share < 0.01 else f"{100 * share:.0f}"
    return f"{percent} % of the estimated peak"


def _agrees_with_measurement(finding: Finding) -> bool:
    """Return whether the cost was not measured, or agrees with the measurement."""
    measured_bytes = finding.measured_bytes
    if measured_bytes is None or finding.run_bytes or not finding.bytes:
        return True
    return abs(measured_bytes - finding.bytes) <= _AGREEMENT_SHARE * finding.bytes


def _evidence_text(finding: Finding) -> str:
    if finding.measured_bytes is None:
        return "predicted"
    size = format_size(finding.measured_bytes)
    verb = "refuted" if finding.evidence == "refuted" else "measured"
    if finding.run_bytes:
        return f"{verb}: the first run added{' and kept' * (verb == 'refuted')} {size}"
    if not finding.bytes and finding.phase == "constant_fold":
        return f"{verb}: constant folding added {size} at its peak"
    if finding.evidence == "refuted":
        if not finding.measured_bytes:
            return "refuted: the X-ray found no such copy"
        return f"refuted: the X-ray found {size} of it"
    return f"measured: {size}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleTextBlock:
    """A heading, a paragraph or a list of a rule's documentation.

    Attributes:
        items: the items of a list; a heading or paragraph has one. An item consists of texts, each
            with whether it is code.
    """

    kind: Literal["heading", "paragraph", "list"]
    items: tuple[tuple[tuple[str, bool], ...], ...]


def rule_documentation(rule: str) -> tuple[RuleTextBlock, ...]:
    """Return the documentation of the rule called `rule`; empty if there is no such rule.

    A record may be from another version of memdiag, which has other rules. It may also be damaged:
    its name may be too long for a file.
    """
    if not re.fullmatch(r"[a-z0-9-]+", rule):
        return ()
    for folder in _RULE_FOLDERS:
        with suppress(OSError):
            module = ast.parse((folder / f"{rule.replace('-', '_')}.py").read_text("utf-8"))
            if _has_rule(module):
                return tuple(rule_text_blocks(ast.get_docstring(module) or ""))
    return ()


def rule_text_blocks(markdown: str) -> Iterator[RuleTextBlock]:
    """Yield the blocks of `markdown`: the headings, paragraphs, lists and code that rules use."""
    for part in markdown.strip().split("\n\n"):
        lines = part.strip().splitlines()
        if lines[0].startswith("#"):
            yield RuleTextBlock(kind="heading", items=(_code_spans(lines[0].lstrip("# ")),))
            lines = lines[1:]
        starts = [index for index, line in enumerate(lines) if line.startswith("- ")]
        first_item = starts[0] if starts else len(lines)
        if lines[:first_item]:
            yield RuleTextBlock(
                kind="paragraph", items=(_code_spans(" ".join(lines[:first_item])),)
            )
        items: list[str] = []
        for text in lines[first_item:]:
            if text.startswith("- "):
                items.append(text[2:])
            else:
                items[-1] += f" {text.strip()}"
        if items:
            yield RuleTextBlock(kind="list", items=tuple(map(_code_spans, items)))


def _has_rule(module: ast.Module) -> bool:
    assignments = (node for node in module.body if isinstance(node, ast.Assign))
    targets = (target for node in assignments for target in node.targets)
    return any(isinstance(target, ast.Name) and target.id == "RULE" for target in targets)


def _code_spans(text: str) -> tuple[tuple[str, bool], ...]:
    """Return the parts of `text`, each with whether it is code (between backticks)."""
    parts = text.replace("``", "`").split("`")
    return tuple((part, bool(index % 2)) for index, part in enumerate(parts) if part)
