"""The peak of a run in a profile: what the runtime measured next to what is estimated."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from memdiag.api import run_peak as module
from memdiag.api.check import analysis_context
from memdiag.api.estimating.profiled import with_estimate
from memdiag.api.profile import profile
from memdiag.api.run_peak import with_run_peak
from memdiag.model.model_file import open_model
from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.releases import NODE_MEMORY_SINCE
from memdiag.ort.runtime import Runtime
from memdiag.records.profile import PeakNode, Profile
from memdiag.runner.job import Job
from memdiag.runner.node_memory import NoNodeMemory, ProfiledRun
from memdiag.units import MIB
from tests.api.small_models import save_model
from tests.reports import profiles

TEXT = "g (float[n, 4096] x) => (float[n, 4096] y) { a = Exp(x) b = Sin(a) y = Add(a, b) }"
ARENA = PeakNode(
    node="n",
    op_type="Op",
    peak_bytes=30,
    values_bytes=20,
    rounding_bytes=4,
    scratch_bytes=6,
    grown_bytes=MIB,
)


@pytest.fixture(autouse=True)
def arena(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child measures `ARENA`."""
    monkeypatch.setattr(module, "arena_peak", lambda *_: ProfiledRun(ARENA))


@pytest.fixture
def ctx(tmp_path: Path) -> Iterator[AnalysisContext]:
    with open_model(save_model(tmp_path / "m.onnx", TEXT)) as model:
        yield analysis_context(model, Runtime(1, 32), dims={"n": 256})


def examined(ctx: AnalysisContext, profile: Profile | None = None, runs: int | None = 1) -> Profile:
    profile = with_estimate(profile or profiles.tied_if(), ctx)
    job = Job(model=ctx.model_file.path, runs=runs)
    return with_run_peak(profile, ctx, job, ctx.model_file.path.parent)


def test_measured_and_estimated_are_beside_each_other(ctx: AnalysisContext) -> None:
    found = examined(ctx)
    peak = found.run_peak
    assert peak is not None
    assert (peak.node, peak.scratch_bytes, peak.grown_bytes) == ("n", 6, MIB)
    # Three values of 4 MiB: an output of the model overwrites none.
    assert peak.estimated_bytes == 12 * MIB
    assert peak.estimated_node
    assert found.estimate is not None
    assert {tensor.name: tensor.growth for tensor in found.estimate.live} == {
        name: {"n": 2.0} for name in ("a", "b", "y")
    }


MADE = (("made", "Exp"), ("n", "Sin"), ("z", "Add"))


@pytest.mark.parametrize(
    ("executed", "inside", "node"),
    [
        (MADE, "", "Sin_1"),
        ((("a", "Exp"), ("Sin_1", "Sin"), ("n", "Add")), "", "Add_2"),
        # The runtime has other nodes of the operator than predicted: the name stays.
        ((("a", "Exp"), ("n", "Sin"), ("b", "Sin")), "", "n"),
        ((("n", "Where"),), "", "n"),
        (MADE, "loop", "n"),
    ],
)
def test_a_node_that_the_runtime_made_has_the_name_of_the_models(
    ctx: AnalysisContext,
    monkeypatch: pytest.MonkeyPatch,
    executed: tuple[tuple[str, str], ...],
    inside: str,
    node: str,
) -> None:
    arena = ProfiledRun(msgspec.structs.replace(ARENA, inside=inside), executed)
    monkeypatch.setattr(module, "arena_peak", lambda *_: arena)
    peak = examined(ctx).run_peak
    assert peak is not None
    assert (peak.node, peak.inside) == (node, inside)


LARGE_RUN = """g (float[n, 4096] x) => (float[n, 4096] y)
    { a = Sin(x) b = Add(x, a) c = Exp(b) y = Sin(c) }"""


@pytest.mark.skipif(Runtime.installed() < NODE_MEMORY_SINCE, reason="no memory of nodes")
@pytest.mark.parametrize(
    # A chunk is divided if it is at least twice as large as the request: those of 16 MiB are for
    # values of 8 MiB, not for those of 9.4.
    ("rows", "has_ends"),
    [(600, True), (512, False)],
)
def test_unused_ends_of_chunks_are_reserved_but_hardly_resident(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, has_ends: bool
) -> None:
    monkeypatch.undo()
    path = save_model(tmp_path / "large.onnx", LARGE_RUN)
    peak = profile(path, dims={"n": rows}, runs=1, run_peak=True).run_peak
    assert peak is not None
    assert (peak.rounding_bytes > MIB) == has_ends
    assert peak.resident_rounding_bytes is not None
    assert peak.resident_rounding_bytes <= MIB
    assert peak.free_resident_bytes is not None
    assert peak.values_bytes <= peak.free_resident_bytes <= peak.grown_bytes


def test_an_older_release_says_why(ctx: AnalysisContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "arena_peak", lambda *_: pytest.fail("it was run"))
    ctx.runtime = Runtime(1, 27, 1)
    found = examined(ctx)
    assert found.run_peak is None
    assert found.estimate is not None
    assert found.run_peak_failure == (
        "onnxruntime 1.27.1 does not write the memory of nodes in its profile, as 1.28.0 and newer"
        " do"
    )


def test_what_cannot_be_measured_has_a_reason(
    ctx: AnalysisContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> ProfiledRun:
        raise NoNodeMemory("it does not run")

    monkeypatch.setattr(module, "arena_peak", fail)
    assert examined(ctx).run_peak_failure == "it does not run"


def test_a_session_that_was_not_run_has_none(ctx: AnalysisContext) -> None:
    reason = "the model was not run to the end"
    assert examined(ctx, runs=None).run_peak_failure == reason
    killed = profiles.killed()
    found = examined(ctx, killed)
    assert found.run_peak_failure == reason
    assert found.run_peak is None


def test_other_providers_have_measured_figures_only(ctx: AnalysisContext) -> None:
    profile = profiles.tied_if()
    session = msgspec.structs.replace(profile.session, providers=("OpenVINOExecutionProvider",))
    found = examined(ctx, msgspec.structs.replace(profile, session=session))
    assert found.estimate is None
    assert found.run_peak is not None
    assert found.run_peak.estimated_bytes is None
