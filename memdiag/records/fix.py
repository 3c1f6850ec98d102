"""A fix: the remedies that were tried and the model that was written (``memdiag.fix/1``)."""

from typing import Final, Literal

from memdiag.records.base import Record
from memdiag.records.measured_change import MeasuredChange

FIX_SCHEMA: Final = "memdiag.fix/1"

RemedyStatus = Literal[
    "applied", "refused", "rejected", "undecided", "possible", "untried", "unverified"
]
"""``applied``: in the output, verified; ``refused``: cannot be applied to this model; ``rejected``:
built and measured, and not in the output; ``undecided``: built and measured, saves memory, but the
comparison of latency has no clear result; ``possible``: would be tried (a dry run); ``untried``:
the search ended before; ``unverified``: in the output, but the model could not be run."""


class Remedy(Record, frozen=True, kw_only=True):
    """The result of one remedy for one finding.

    Attributes:
        name: the name of the remedy.
        rule: the name of the rule of the finding.
        status: the result.
        reason: the reason for the status, in a few words.
        weights: qualified names of the weights concerned.
    """

    name: str
    rule: str
    status: RemedyStatus
    reason: str
    weights: tuple[str, ...]


class Fix(MeasuredChange, frozen=True, kw_only=True):
    """The result of a fix.

    Attributes:
        output: the path of the fixed model; None if nothing was worth changing.
        output_files: all files that the fixed model needs.
        kept_files: the `output_files` that belong to the original model.
        kept_bytes: the bytes of weights in `kept_files`.
        remedies: the result of each remedy.
        verified: whether outputs, memory and latency were compared.
        verified_on: the releases of onnxruntime on which outputs were compared; all else was
            measured on the first of them.
        is_valid: whether the output passes ``onnx.checker``; None without an output.
        oldest_onnxruntime: the oldest supported release that can load the output; None if no such
            release is known.
        oldest_reason: the feature of the output that needs this release; empty if all releases
            can load it.
    """

    schema: Literal["memdiag.fix/1"]
    output: str | None
    output_files: tuple[str, ...]
    kept_files: tuple[str, ...] = ()
    kept_bytes: int = 0
    remedies: tuple[Remedy, ...]
    verified: bool
    verified_on: tuple[str, ...] = ()
    is_valid: bool | None = None
    oldest_onnxruntime: str | None = None
    oldest_reason: str = ""
