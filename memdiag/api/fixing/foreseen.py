"""Which rewrites ``memdiag fix`` would try for the findings of a profile."""

from collections.abc import Sequence

import msgspec

from memdiag.errors import MemdiagError
from memdiag.model.model_file import ModelFile
from memdiag.records.finding import Finding
from memdiag.remedies.draft import Draft
from memdiag.remedies.rewrites import rewriters, rewriters_for

MAX_NODES = 10_000
"""Nodes of a model that is checked: reading a graph takes about a tenth of a millisecond a node."""

MAX_FINDINGS = 50
"""Findings that are checked, the costliest ones."""

UNSAFE = "it changes values (see --unsafe)"


def with_rewrites(findings: Sequence[Finding], file: ModelFile) -> tuple[Finding, ...]:
    """Return `findings`, each with the rewrites that can be applied to the open model.

    No weight is read. Findings that a measurement refuted, those beyond `MAX_FINDINGS` and those of
    a model of more than `MAX_NODES` nodes are not checked.
    """
    checked = [one for one in findings[:MAX_FINDINGS] if one.evidence != "refuted"]
    if not checked or file.node_count > MAX_NODES:
        return tuple(findings)
    try:
        draft = Draft(file, reads_weights=False)
    except MemdiagError:
        refusal = "its graph cannot be rewritten"
        found = {id(one): _with(one, (), refusal) for one in checked}
    else:
        found = {id(one): _checked(draft, one) for one in checked}
    return tuple(found.get(id(one), one) for one in findings)


def _checked(draft: Draft, finding: Finding) -> Finding:
    possible, refusal = [], ""
    names = finding.remedies
    # The order of the finding is that of preference.
    preferred = sorted(
        (one for one in rewriters_for(finding.name) if one.rewrite.name in names),
        key=lambda one: names.index(one.rewrite.name),
    )
    for rewriter in preferred:
        try:
            reason = rewriter.check(draft, finding) if rewriter.rewrite.safe else UNSAFE
        except Exception:  # a defect of one rewrite must not lose a profile
            return finding
        if reason is None:
            possible.append(rewriter.rewrite.name)
        else:
            refusal = refusal or f"{rewriter.rewrite.name}: {reason}"
    return _with(finding, tuple(possible), "" if possible else refusal)


def _with(finding: Finding, possible: tuple[str, ...], refusal: str) -> Finding:
    rewrites = {one.rewrite.name for one in rewriters()}
    left = [name for name in finding.remedies if name in possible or name not in rewrites]
    remedies = tuple(dict.fromkeys([*left, *possible]))
    return msgspec.structs.replace(finding, remedies=remedies, rewrites=possible, refusal=refusal)
