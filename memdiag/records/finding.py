"""Findings: waste that rules found in models (schema ``memdiag.check/1``)."""

from typing import Any, Final, Literal

from memdiag.records.attribution import CopyKind
from memdiag.records.base import NotebookRecord, Record, SavableRecord
from memdiag.records.dimension import Dimension, ModelInput
from memdiag.records.phases import PhaseName

CHECK_SCHEMA: Final = "memdiag.check/1"

Evidence = Literal["predicted", "measured", "refuted"]
"""``predicted``: from the file alone; ``measured``: the X-ray of a run found the predicted copies;
``refuted``: it did not."""


class ExpectedCopies(Record, frozen=True, kw_only=True):
    """All copies of one kind that a finding expects of some weights at steady state.

    Attributes:
        weights: qualified names of weights with equal content.
        count: the number of expected copies, necessary copies included.
        bytes: the bytes of all these copies together.
    """

    weights: tuple[str, ...]
    kind: CopyKind
    count: int
    bytes: int


class Finding(NotebookRecord, frozen=True, kw_only=True):
    """One waste in one model.

    Attributes:
        model: the path of the file, as it was given.
        rule, name: code and name of the rule.
        message: one sentence: the waste and its place in the graph.
        detail: one sentence: the consequence on this release; empty if the message has it.
        weights, nodes: names qualified by the path of their graph, such as ``If_0/then_branch/w``.
        graph: the path of the graph with the waste; ``""`` is the main graph.
        bytes: the possible saving at steady state; 0 if the waste is not resident memory.
        peak_bytes: the possible saving at the peak.
        phase: the phase in which the memory is allocated.
        expected: the copies that a measurement can confirm or refute.
        run_bytes: the bytes that the values of one run take at once, for findings about
            activations. The growth of the first run confirms or refutes it.
        measured_bytes: the bytes that a measurement found; None without a measurement.
        peak_share: `peak_bytes`, for findings about activations `run_bytes`, as a share of the
            estimated peak of the session above the process before it; None if it is not known.
        remedies: names of remedies, the preferred one first.
        rewrites: the rewrites among them that ``memdiag fix`` would try; None if not checked.
        refusal: the reason why no rewrite can be applied, in a few words.
        is_private: whether only private memory is saved: pages of files take its place in the
            resident set.
        path: the uses of the first weight, such as ``Gather ← w → Transpose → MatMul``; empty if
            unknown.
    """

    model: str
    rule: str
    name: str
    message: str
    detail: str
    weights: tuple[str, ...]
    nodes: tuple[str, ...]
    graph: str
    bytes: int
    peak_bytes: int
    phase: PhaseName | None
    evidence: Evidence
    measured_bytes: int | None
    expected: tuple[ExpectedCopies, ...]
    remedies: tuple[str, ...]
    run_bytes: int = 0
    rewrites: tuple[str, ...] | None = None
    refusal: str = ""
    peak_share: float | None = None
    is_private: bool = False
    path: str = ""


class Findings(tuple[Finding, ...]):
    """Findings in one model, the costliest first."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        """Return all findings as HTML for notebooks."""
        from memdiag.reports import notebook

        return notebook.findings_html(self)

    def to_dataframe(self) -> Any:
        """Return a pandas data frame with a row for each finding.

        Raises:
            UsageError: pandas is not installed.
        """
        from memdiag.reports import notebook

        return notebook.data_frame(self)


class CheckedModel(Record, frozen=True, kw_only=True):
    """One model that was checked.

    Attributes:
        weight_bytes: the bytes of all weights, in the file and outside.
        dimensions: the free dimensions of the inputs, with the given or usual sizes.
        notes: sentences on parts that could not be examined.
        error: the reason why the model could not be examined; the figures are 0 then.
    """

    path: str
    file_bytes: int = 0
    external_bytes: int = 0
    weight_bytes: int = 0
    node_count: int = 0
    inputs: tuple[ModelInput, ...] = ()
    dimensions: tuple[Dimension, ...] = ()
    notes: tuple[str, ...] = ()
    error: str | None = None


class Check(SavableRecord, frozen=True, kw_only=True):
    """The findings of the rules in some models, for one release of onnxruntime.

    Attributes:
        findings: model by model, the costliest first.
        duration_s: the duration of the whole check.
    """

    schema: Literal["memdiag.check/1"]
    onnxruntime: str
    models: tuple[CheckedModel, ...]
    findings: tuple[Finding, ...]
    duration_s: float
