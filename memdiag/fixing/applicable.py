"""The rewrites that ``memdiag fix`` would try for the findings of a profile."""

from collections.abc import Sequence

import msgspec

from memdiag.errors import MemdiagError
from memdiag.model.model_file import ModelFile
from memdiag.records.finding import Finding
from memdiag.rewrites import rewriters, rewriters_among
from memdiag.rewrites.model_editor import ModelEditor
from memdiag.rewrites.rewrite import UNSAFE_PROBLEM

MAX_CHECKED_NODES = 10_000
"""Maximum nodes of a model that is checked: reading a graph takes about 0.1 ms a node."""

MAX_CHECKED_FINDINGS = 50
"""Maximum findings that are checked, the costliest first."""


def findings_with_rewrites(
    findings: Sequence[Finding], model_file: ModelFile
) -> tuple[Finding, ...]:
    """Return `findings`, each with the rewrites that can be applied to the open model.

    No weight is read. Findings that a measurement refuted, findings beyond `MAX_CHECKED_FINDINGS`,
    and all findings in a model of more than `MAX_CHECKED_NODES` nodes are not checked.
    """
    if model_file.is_ort_format:
        return tuple(
            _finding_with_remedies(finding, (), "it is in ORT format") for finding in findings
        )
    checked = [
        finding for finding in findings[:MAX_CHECKED_FINDINGS] if finding.evidence != "refuted"
    ]
    if not checked or model_file.node_count > MAX_CHECKED_NODES:
        return tuple(findings)
    try:
        editor = ModelEditor(model_file, reads_weights=False)
    except MemdiagError:
        refusal = "its graph cannot be rewritten"
        updated = {id(finding): _finding_with_remedies(finding, (), refusal) for finding in checked}
    else:
        updated = {id(finding): _finding_with_rewrites(editor, finding) for finding in checked}
    return tuple(updated.get(id(finding), finding) for finding in findings)


def _finding_with_rewrites(editor: ModelEditor, finding: Finding) -> Finding:
    applicable, refusal = [], ""
    for rewriter in rewriters_among(finding.remedies):
        try:
            reason = rewriter.check(editor, finding) if rewriter.rewrite.safe else UNSAFE_PROBLEM
        except Exception:  # a defect of one rewrite must not lose a profile
            return finding
        if reason is None:
            applicable.append(rewriter.rewrite.name)
        else:
            refusal = refusal or f"{rewriter.rewrite.name}: {reason}"
    return _finding_with_remedies(finding, tuple(applicable), "" if applicable else refusal)


def _finding_with_remedies(finding: Finding, applicable: tuple[str, ...], refusal: str) -> Finding:
    rewrites = {rewriter.rewrite.name for rewriter in rewriters()}
    kept_remedies = [
        name for name in finding.remedies if name in applicable or name not in rewrites
    ]
    remedies = tuple(dict.fromkeys([*kept_remedies, *applicable]))
    return msgspec.structs.replace(finding, remedies=remedies, rewrites=applicable, refusal=refusal)
