"""Findings: what a model wastes, by which rule (schema ``memdiag.check/1``)."""

from typing import Any, Final, Literal

import msgspec

from memdiag.records.attribution import CopyKind
from memdiag.records.base import Record, Savable, Shown
from memdiag.records.phases import PhaseName

CHECK_SCHEMA: Final = "memdiag.check/1"

Evidence = Literal["predicted", "measured", "refuted"]
"""``predicted``: from the file alone; ``measured``: the X-ray of a run found what was predicted;
``refuted``: it looked and did not."""


class ExpectedCopies(Record, frozen=True, kw_only=True):
    """All copies of one kind that a finding expects of some weights at steady state.

    `weights` are qualified names of weights with the same content; `count` copies of `kind` are
    expected in all, those that the model needs among them, of `bytes` together.
    """

    weights: tuple[str, ...]
    kind: CopyKind
    count: int
    bytes: int


class Finding(Shown, frozen=True, kw_only=True):
    """One waste in one model.

    `rule` is the code and `name` the name of the rule, `model` the file's path as it was given.
    `message` is one sentence that says what was found and where, `detail` one that says what comes
    of it under this version of the runtime (empty where the message says all).

    `weights` are names qualified by the path of their graph, like ``If_0/then_branch/w``; `nodes`
    likewise; `graph` is the path of the graph where it happens (``""`` is the main one).

    `bytes` is what could be saved at steady state, 0 where the waste is not in resident bytes;
    `peak_bytes` what could be saved at the peak; `phase` where the cost comes to be. `expected` are
    the copies that a measurement can confirm or refute, `retained_bytes` what is expected beside
    them of weights and copies that were freed, but whose place the runtime's arena keeps: of these
    a measurement sees the place, not the content. `run_bytes` is what the values of one run take at
    least, where the finding is about these: the growth in the first run confirms or refutes it.
    `measured_bytes` is what it saw of all this (None
    without one). `remedies` are names, the preferred one first.

    `rewrites` are those rewrites of the model that ``memdiag fix`` would try for it, as far as a
    profile checked that (None: not checked); `remedies` then names no other rewrite. `refusal` is
    why there are none, in a few words.

    `path` shows the uses of the first weight, such as ``Gather ← w → Transpose → MatMul``; empty if
    unknown. `drawing` is part of records of older versions, and ignored.
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
    retained_bytes: int = 0
    run_bytes: int = 0
    rewrites: tuple[str, ...] | None = None
    refusal: str = ""
    path: str = ""
    drawing: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.drawing is not None:
            msgspec.structs.force_setattr(self, "drawing", None)


class Findings(tuple[Finding, ...]):
    """Findings in one model, the costliest first."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        """Return all of them for notebooks."""
        from memdiag.reports import notebook

        return notebook.html_of_findings(self)

    def to_dataframe(self) -> Any:
        """Return a pandas data frame with a row for each finding.

        Raises:
            UsageError: pandas is not installed.
        """
        from memdiag.reports import notebook

        return notebook.data_frame(self)


class CheckedModel(Record, frozen=True, kw_only=True):
    """One model: its size, and sentences on what could not be examined.

    `error` says why it could not be examined at all; figures are 0 then.
    """

    path: str
    file_bytes: int = 0
    external_bytes: int = 0
    weight_bytes: int = 0
    node_count: int = 0
    notes: tuple[str, ...] = ()
    error: str | None = None


class Check(Savable, frozen=True, kw_only=True):
    """What the rules found in some models, for one version of onnxruntime.

    `findings` come model by model, the costliest first. `duration_s` is the time it all took.
    """

    schema: Literal["memdiag.check/1"]
    onnxruntime: str
    models: tuple[CheckedModel, ...]
    findings: tuple[Finding, ...]
    duration_s: float
