"""Weights become OrtValues while a model is loaded: less memory while its graph is optimized."""

from benchmarks.reproduced.claims import Part, Setting, quotient
from benchmarks.reproduced.versions import (
    MB,
    OPTIMIZATION,
    Runtimes,
    causes,
    on_versions,
    peak_in,
    steady,
    steps,
)
from memdiag.records.phases import PhaseName

TITLE = "Early conversion of weights"
SOURCE = (
    "onnxruntime's [pull request 26345](https://github.com/microsoft/onnxruntime/pull/26345) of"
    " October 2025 tells of Phi-4-mini-instruct in int4: 8.1 GB while the graph is optimized and"
    " 6.5 GB afterwards became 3.5 and 4.7 GB; before the series that it concludes, it was 9.3 and"
    " 6.7 GB. Here: `phi_like`, {megabytes:.0f} MB in an external file, with {tokens} tokens."
)

MEGABYTES = 400
TOKENS = 16
_FIRST, _BEFORE, _AFTER = "1.22.1", "1.23.2", "1.24.4"
"""Releases before the series of changes, with all of it but the last, and with that."""

_PEAKS = {_FIRST: 9.3, _BEFORE: 8.1, _AFTER: 3.5}
_STEADY = {_FIRST: 6.7, _BEFORE: 6.5, _AFTER: 4.7}


def measure(setting: Setting) -> tuple[str, Part]:
    """Measure it on all versions, with its weights outside the file."""
    external = on_versions("phi_like", MEGABYTES, setting, external=True, dims={"tokens": TOKENS})
    claims = [
        *steps(external, "peak of optimization", _PEAKS, "GB", peak_in(*OPTIMIZATION)),
        *steps(external, "afterwards", _STEADY, "GB", steady),
    ]
    source = SOURCE.format(megabytes=MEGABYTES * setting.scale, tokens=TOKENS)
    return source, Part(claims=claims, remarks=_remarks(external))


def _remarks(found: Runtimes) -> list[str]:
    sentences = []
    table = found.largest_bytes / MB

    def fold(version: str) -> float:
        return found.figure(version, peak_in("constant_fold"))

    if fold(_BEFORE) - fold(_AFTER) > table / 2:
        sentences.append(
            f"It came with 1.24: constant folding, which turns the tied embedding, peaks at"
            f" {fold(_BEFORE):.0f} MB in {_BEFORE} and at {fold(_AFTER):.0f} MB in {_AFTER}. The"
            f" difference is {(fold(_BEFORE) - fold(_AFTER)) / table:.1f} times the embedding;"
            " the pull request names constant folding as the place of the saving, too."
        )
    if abs(quotient(fold(_BEFORE), fold(_FIRST)) - 1) < 0.05:
        sentences.append(
            f"From {_FIRST} to {_BEFORE} folding takes the same here: what the series saved before"
            " its last pull request does not show in this model."
        )
    limit = _largest(found, _AFTER)
    if limit != "constant_fold":
        sentences.append(
            f"In {_AFTER} the peak of optimization is reached in `{limit}`"
            f" ({found.figure(_AFTER, peak_in(limit)):.0f} MB) and no longer in folding: there the"
            " int4 weights are repacked for MatMulNBits, as `qdq_matmul` shows below. That bounds"
            " what can be saved here, while a model that stores MatMulNBits has no such step."
        )
    return sentences + causes(found, ("steady",))


def _largest(found: Runtimes, version: str) -> PhaseName:
    return max(OPTIMIZATION, key=lambda phase: found.figure(version, peak_in(phase)))
