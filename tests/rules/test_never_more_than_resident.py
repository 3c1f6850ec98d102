"""The findings of a model claim no more than its process had.

The rules' own predictions are checked, and what was measured of them, before a profile cuts both
to what the process had above its baseline.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto

import memdiag
from memdiag.api.check import RuleSelection, analysis_context, find_waste
from memdiag.model.model_file import open_model
from memdiag.ort.runtime import Runtime
from memdiag.records.attribution import Attribution
from memdiag.records.finding import Finding
from memdiag.records.profile import PHASES, Profile
from memdiag.rules.match_measurement import match_profile, measure_finding
from sample_models import load_recipes
from tests.model_text import random, with_weights

MIB = 1024 * 1024
TOLERANCE = 2 * MIB
"""Pages of libraries that are read for the first time count to the model, some MiB either way."""

COPY_TOLERANCE = 64 << 10
"""The sizes of copies are exact, but for the headers of blocks."""

PRODUCTS = "a = MatMul (x, w0) b = MatMul (a, w1) y = MatMul (b, w2)"
LOOKUPS = "a = Gather (w0, i) b = Gather (w1, i) c = Gather (w2, i) y = Sum (a, b, c)"
CASTS = (
    "c0 = Cast <to = 1> (w0) c1 = Cast <to = 1> (w1) c2 = Cast <to = 1> (w2) "
    "a = MatMul (x, c0) b = MatMul (a, c1) y = MatMul (b, c2)"
)
ONE_KEPT = (
    "a = Gather (w0, i) b = MatMul (a, w0) c = MatMul (a, w1) d = MatMul (a, w2) y = Sum (b, c, d)"
)
TWO_WAYS = (
    "a = MatMul (x, w0) b = Gemm <transB = 1> (x, w0) c = MatMul (x, w1) "
    "d = Gemm <transB = 1> (x, w1) e = MatMul (x, w2) y = Sum (a, b, c, d, e)"
)
TRANSPOSED = (
    "t0 = Transpose <perm = [1, 0]> (w0) t1 = Transpose <perm = [1, 0]> (w1) "
    "a = Gather (w0, i) b = MatMul (a, t0) c = Gather (w1, i) d = MatMul (c, t1) "
    "e = Gather (w2, i) y = Sum (b, d, e)"
)
BOTH = "a = Gather (w0, i) b = MatMul (a, w0) c = Gather (w1, i) d = MatMul (c, w1) y = Sum (b, d)"


def alike(body: str, dtype: type[np.generic]) -> ModelProto:
    """Return a model of three weights of 1024 × 1024 with the same content."""
    fed = "int64[N] i" if "Gather" in body else "float[N, 1024] x"
    weights = dict.fromkeys(("w0", "w1", "w2"), random((1024, 1024), 0, dtype))
    return with_weights(f"g ({fed}) => (float[N, 1024] y) {{ {body} }}", **weights)


def profiled(path: Path) -> Profile:
    found = memdiag.profile(path, runs=1, session_options={"intra_op_num_threads": "1"})
    assert found.outcome.status == "completed", found.outcome.message
    return found


def predicted(path: Path, profile: Profile) -> Sequence[Finding]:
    """Return what the rules themselves say of the model at `path`, for the runtime of `profile`."""
    assert profile.environment.onnxruntime is not None
    with open_model(path) as model:
        runtime = Runtime.parse(profile.environment.onnxruntime)
        return find_waste(analysis_context(model, runtime), RuleSelection())[0]


def check_claims(findings: Sequence[Finding], profile: Profile) -> None:
    """Assert that `findings`, as the rules make them, claim no more than `profile` shows."""
    assert profile.steady_rss_bytes is not None
    attribution = profile.attribution
    assert attribution is not None
    steady = profile.steady_rss_bytes - profile.baseline_rss_bytes + TOLERANCE
    # What is mapped and was not read could be resident as well.
    steady += sum(
        copy.bytes - copy.resident_bytes
        for copy in attribution.copies
        if copy.backing.kind == "file"
    )
    findings = [one for one in findings if match_profile(one, profile).evidence != "refuted"]
    assert sum(one.bytes for one in findings if not one.run_bytes) <= steady
    assert sum(measure_finding(one, attribution) or 0 for one in findings) <= steady
    for one in findings:
        description = (one.name, one.phase, one.bytes, one.peak_bytes)
        # A copy that is made in a phase can be the peak of this phase or a later one.
        first = PHASES.index(one.phase) if one.phase in PHASES else 0
        peak = max(each.peak_rss_bytes for each in profile.phases if each.name in PHASES[first:])
        assert one.peak_bytes <= peak - profile.baseline_rss_bytes + TOLERANCE, description
    check_copies(findings, attribution)


def check_copies(findings: Sequence[Finding], attribution: Attribution) -> None:
    """Assert that no copy is claimed twice, and that one of each content is never claimed."""
    live = [copy for copy in attribution.copies if copy.in_use is not False]
    contents: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    for copy in live:
        contents[tuple(sorted(copy.weights))].append(copy.bytes)
    for names, sizes in contents.items():
        claims = [
            one
            for one in findings
            if one.expected and all(set(each.weights) <= set(names) for each in one.expected)
        ]
        description = (names, sizes, [(one.name, one.weights, one.bytes) for one in claims])
        spare = sum(sizes) - min(sizes) + COPY_TOLERANCE
        assert sum(one.bytes for one in claims) <= spare, description
        assert sum(measure_finding(one, attribution) or 0 for one in claims) <= spare, description


SLOW = pytest.mark.slow
PLACES = pytest.mark.parametrize(
    "external", [False, pytest.param(True, marks=SLOW)], ids=["embedded", "external"]
)
WASTEFUL = {"expand_bomb", "phi_like", "subgraph_weights", "tied_if"}
"""Sample models whose findings claim bytes; the others, of which few are claimed, are slow."""


@PLACES
@pytest.mark.parametrize(
    "name",
    [pytest.param(one, marks=[] if one in WASTEFUL else SLOW) for one in sorted(load_recipes())],
)
def test_of_sample_models(sample_model: Callable[..., Path], name: str, external: bool) -> None:
    path = sample_model(name, 2.0, external)
    profile = profiled(path)
    check_claims(predicted(path, profile), profile)


@PLACES
@pytest.mark.parametrize(
    "body",
    [PRODUCTS, LOOKUPS, ONE_KEPT, TWO_WAYS, TRANSPOSED, CASTS],
    ids=["packed", "looked up", "one kept", "two ways", "transposed", "cast"],
)
def test_of_weights_that_are_alike(body: str, external: bool, tmp_path: Path) -> None:
    check_alike(body, external, tmp_path)


@pytest.mark.parametrize("external", [False, True], ids=["embedded", "external"])
def test_of_weights_that_are_looked_up_and_packed(external: bool, tmp_path: Path) -> None:
    check_alike(BOTH, external, tmp_path)


def check_alike(body: str, external: bool, folder: Path) -> None:
    path = folder / "model.onnx"
    model = alike(body, np.float16 if body == CASTS else np.float32)
    onnx.save(model, path, save_as_external_data=external, location="data")
    profile = profiled(path)
    check_claims(predicted(path, profile), profile)
