"""The estimate next to a profile: the same session, and the phases in which the two differ."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import numpy as np
import onnx
import pytest

import memdiag
from memdiag.api.check import analysis_context
from memdiag.api.estimating import profiled
from memdiag.defaults import MMAP_THRESHOLD_VARIABLE
from memdiag.model.model_file import open_model
from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.runtime import Runtime
from memdiag.ort.session_estimate import EstimatedSettings, SessionEstimate
from memdiag.records.estimate import EstimatedPhase, EstimatedPoint
from memdiag.records.profile import Profile
from memdiag.reports.profile.peak import transient_peak_sentence
from memdiag.units import MIB
from tests.api.small_models import model_of, save_model
from tests.reports import profiles
from tests.reports.profiles import Step

BASELINE = 100
NO_MODEL = cast(AnalysisContext, SimpleNamespace(sizes={}))
TEXT = """g (float[n, 4096] x) => (float[n, 4096] y)
    { a = Relu(x) b = Sigmoid(a) c = Tanh(b) y = Add(a, c) }"""
STEPS = (
    Step("interpreter and imports", "start", 0.2, BASELINE, BASELINE),
    Step("load and resolve the graph", "parse", 0.1, 300, 300),
    Step("kernels and prepacking", "prepack", 0.1, 400, 400),
    Step("first run", "first_run", 0.1, 500, 500),
    Step("runs", "steady", 0.1, 500, 500),
)


def measured(*, is_pinned: bool = True, options: dict[str, str] | None = None) -> Profile:
    """Return a profile with peaks of 300, 400 and 500 MiB in parse, prepack and the runs."""
    found = profiles.build(STEPS, runs=2, baseline=BASELINE)
    session = msgspec.structs.replace(
        found.session,
        options=options or {},
        environment={MMAP_THRESHOLD_VARIABLE: "131072"} if is_pinned else {},
    )
    return msgspec.structs.replace(found, session=session)


def estimated(**peaks: int) -> EstimatedPoint:
    """Return an estimate with peaks of the whole process in MiB."""
    sizes = {"parse": 300, "prepack": 400, "first_run": 500, "steady": 500, **peaks}
    phases = tuple(
        EstimatedPhase(
            name=name,  # type: ignore[arg-type] # the names of phases
            peak_bytes=(size - BASELINE) * MIB,
            kept_bytes=(size - BASELINE) * MIB,
            peak_terms=(),
            kept_terms=(),
        )
        for name, size in sizes.items()
    )
    largest = max(phases, key=lambda phase: phase.peak_bytes)
    return EstimatedPoint(
        dims={},
        peak_bytes=largest.peak_bytes,
        peak_phase=largest.name,
        steady_bytes=phases[-1].kept_bytes,
        low_bytes=0,
        usual_bytes=largest.peak_bytes,
        high_bytes=round(1.5 * largest.peak_bytes),
        pinned_high_bytes=largest.peak_bytes,
        phases=phases,
    )


class FixedEstimate:
    """Stands for `SessionEstimate`."""

    def __init__(self, point: EstimatedPoint) -> None:
        self._point = point

    def at(self, sizes: Mapping[str, int]) -> EstimatedPoint:
        return self._point


Notes = Callable[[Profile, EstimatedPoint], list[str]]


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> Notes:
    """The notes that an estimate adds to a profile."""

    def added(profile: Profile, point: EstimatedPoint) -> list[str]:
        monkeypatch.setattr(profiled, "session_estimate", lambda *_: FixedEstimate(point))
        found = profiled.with_estimate(profile, NO_MODEL)
        assert found.estimate == point
        return list(found.notes[len(profile.notes) :])

    return added


def test_phases_that_differ_are_named_in_one_note(notes: Notes) -> None:
    assert notes(measured(), estimated()) == []
    assert notes(measured(), estimated(parse=330, prepack=361)) == []  # 10 % of the measured peak
    (note,) = notes(measured(), estimated(parse=331, prepack=359))
    assert note == (
        "the estimate is more than 10 % off in parse (300 MiB, estimated 331 MiB), prepack (400"
        " MiB, estimated 359 MiB), a defect of memdiag estimate"
    )


def test_options_that_it_does_not_consider_are_named_with_it(notes: Notes) -> None:
    options = {"session.intra_op.allow_spinning": "0"}
    assert notes(measured(options=options), estimated()) == []
    (note,) = notes(measured(options=options), estimated(parse=200))
    assert note.endswith(
        "in the estimate session.intra_op.allow_spinning is not considered: the estimate is the"
        " same without it"
    )


BELOW_BOUND = {"parse": 150, "prepack": 150, "first_run": 370, "steady": 370}
ABOVE_BOUND = {"parse": 150, "prepack": 150, "first_run": 160, "steady": 160}


@pytest.mark.parametrize(
    ("peaks", "is_pinned", "lag_s", "is_noted"),
    [
        # The bound of what malloc keeps is 100 + 1.5 × 300 MiB, from prepack.
        ({"first_run": 350, "steady": 350}, True, None, True),
        ({"first_run": 350, "steady": 350}, False, None, False),
        ({"first_run": 600}, False, None, True),
        (BELOW_BOUND, False, None, False),
        (ABOVE_BOUND, False, None, True),
        # Memory that is counted to the phase before.
        ({"parse": 200}, True, None, True),
        ({"parse": 200}, True, 0.05, False),
    ],
)
def test_what_malloc_keeps_and_late_boundaries_are_no_defect(
    notes: Notes, peaks: dict[str, int], is_pinned: bool, lag_s: float | None, is_noted: bool
) -> None:
    profile = measured(is_pinned=is_pinned)
    if lag_s is not None:
        sampling = msgspec.structs.replace(profile.sampling, boundary_lag_s=lag_s)
        profile = msgspec.structs.replace(profile, sampling=sampling)
    assert bool(notes(profile, estimated(**peaks))) == is_noted


def test_a_run_that_did_not_complete_is_not_compared(notes: Notes) -> None:
    outcome = msgspec.structs.replace(measured().outcome, status="limit")
    ended = msgspec.structs.replace(measured(), outcome=outcome)
    assert notes(ended, estimated(parse=900)) == []


def test_other_providers_have_no_estimate() -> None:
    session = msgspec.structs.replace(measured().session, providers=("OpenVINOExecutionProvider",))
    other = msgspec.structs.replace(measured(), session=session)
    assert profiled.with_estimate(other, NO_MODEL) is other


def test_a_failure_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KeyError("x")

    monkeypatch.setattr(profiled, "session_estimate", fail)
    found = profiled.with_estimate(measured(), NO_MODEL)
    assert found.estimate is None
    assert found.notes[-1].endswith("please report it (KeyError: 'x')")


@pytest.mark.parametrize("runs", [4, None])
def test_it_is_the_estimate_of_the_same_session(tmp_path: Path, runs: int | None) -> None:
    path = save_model(tmp_path / "model.onnx", TEXT)
    profile = measured(options={"enable_mem_pattern": "0"})
    session = msgspec.structs.replace(profile.session, runs=runs)
    profile = msgspec.structs.replace(profile, session=session)
    with open_model(path) as model:
        ctx = analysis_context(model, Runtime(1, 32), dims={"n": 512} if runs else {})
        point = profiled.with_estimate(profile, ctx).estimate
        assert point is not None
        options = EstimatedSettings(runs=runs, has_pattern=True)
        usual = SessionEstimate(ctx, options).at(ctx.sizes)
    names = [phase.name for phase in point.phases]
    if runs is None:
        assert names[-1] == "prepack"
        assert point == usual
    else:
        assert names[-1] == "steady"
        assert point.dims == {"n": 512}
        # Without the planned block.
        assert point.steady_bytes < usual.steady_bytes


@pytest.mark.measures
def test_the_cause_of_a_measured_peak_is_the_weight_that_is_being_converted(tmp_path: Path) -> None:
    model = model_of("g (int64[n] ids) => (float[n, 256] y) { y = Gather (w, ids) }")
    values = np.random.default_rng(0).standard_normal((40_000, 256), np.float32)  # 39 MiB
    model.graph.initializer.append(onnx.numpy_helper.from_array(values, "embed.weight"))
    model.graph.node[0].input[0] = "embed.weight"
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    found = memdiag.profile(path, runs=2, dims={"n": 8}, xray="none")
    assert found.peak_phase == "optimize"
    sentence = transient_peak_sentence(found)
    assert "optimize briefly keeps a converted copy of embed.weight (39 MiB)" in sentence
