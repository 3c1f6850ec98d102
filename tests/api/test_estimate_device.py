"""Estimates of the memory on a GPU: what fits, what is refused, and what users read."""

import re
from pathlib import Path
from typing import Any

import msgspec
import onnx
import pytest
from onnx import helper

import memdiag
from memdiag.detail import Detail
from memdiag.errors import UsageError
from memdiag.ort.device_session import RECORDED_CONTEXT_BYTES
from memdiag.records import codec
from memdiag.records.device_estimate import DeviceEstimate
from memdiag.units import MIB
from tests.device.recorded_models import FLOAT, INT64, Values, model_of, recorded_model
from tests.reports import rendering
from tests.snapshots import assert_approved

CUDA = "CUDAExecutionProvider"
LIMIT = 8 * 1000**3
RELEASE = "1.31.1"
APPROVED_FOLDER = Path(__file__).parents[1] / "device" / "approved"
PAGE = Path(__file__).parents[2] / "docs" / "tasks" / "gpu_is_full.md"
PAGE_OUTPUT = re.compile(r"<!-- approved estimate: (\w+) -->\n```text\n(.*?)```", re.DOTALL)
MAX_LINES = 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def estimated(name: str, folder: Path, size: int = 64, **options: Any) -> DeviceEstimate:
    options = {"dims": {"n": size}, "for_onnxruntime": RELEASE, **options}
    return memdiag.estimate_device(recorded_model(name, folder), providers=[CUDA], **options)


@pytest.mark.parametrize("name", ["dense", "conv"])
def test_the_largest_size_fits_and_the_next_one_does_not(name: str, folder: Path) -> None:
    estimate = estimated(name, folder, 4, fit_bytes=LIMIT)
    assert estimate.searched == ("n",)
    for index in (0, -1):
        configuration = estimate.configurations[index]
        fit = configuration.fit
        assert fit is not None
        assert fit.is_searched
        assert fit.largest_size is not None
        options: dict[str, Any] = {}
        if configuration.changes:
            options = {
                "provider_options": {CUDA: {"arena_extend_strategy": "kSameAsRequested"}},
                "session_options": {
                    "session.use_device_allocator_for_initializers": "1",
                    "enable_mem_pattern": "0",
                },
            }
        sizes = fit.largest_size, fit.largest_size + 1
        # With the options of the last configuration, only cuBLAS's variable is left to change.
        last, next_one = (
            estimated(name, folder, size, **options).configurations[index] for size in sizes
        )
        assert last.high_bytes <= LIMIT < next_one.high_bytes


def test_sessions_share_the_context_and_processes_do_not(folder: Path) -> None:
    estimate = estimated("dense", folder, fit_bytes=LIMIT)
    for configuration in estimate.configurations:
        fit, size = configuration.fit, configuration.high_bytes
        assert fit is not None
        session = size - RECORDED_CONTEXT_BYTES
        assert RECORDED_CONTEXT_BYTES + fit.sessions * session <= LIMIT
        assert RECORDED_CONTEXT_BYTES + (fit.sessions + 1) * session > LIMIT
        assert fit.processes * size <= LIMIT < (fit.processes + 1) * size


def test_nothing_fits_into_less_than_the_context(folder: Path) -> None:
    fit = estimated("dense", folder, fit_bytes=100 * MIB).given.fit
    assert fit is not None
    assert (fit.largest_size, fit.sessions, fit.processes) == (None, 0, 0)


def test_each_change_takes_less_or_the_same(folder: Path) -> None:
    estimate = estimated("conv", folder, 4)
    *single, together = estimate.configurations[1:]
    assert len(single) == len(together.changes) == 4
    assert all(change.high_bytes <= estimate.given.high_bytes for change in single)
    assert together.high_bytes < min(change.high_bytes for change in single)


def test_what_is_set_is_no_change(folder: Path) -> None:
    options = {CUDA: {"arena_extend_strategy": "kSameAsRequested"}}
    estimate = estimated("dense", folder, provider_options=options)
    names = {name for change in estimate.configurations for name in change.changes}
    assert "arena_extend_strategy=kSameAsRequested" not in names
    assert estimate.given.high_bytes < estimated("dense", folder).given.high_bytes


def test_a_context_can_be_given(folder: Path) -> None:
    given = estimated("dense", folder, context_bytes=300 * MIB)
    assert given.ledger.bytes_of("context") == 300 * MIB
    assert given.context_device == ""
    assert estimated("dense", folder).context_device == "NVIDIA H100 80GB HBM3"


def test_runs_of_several_sizes_follow_each_other(folder: Path) -> None:
    several = estimated("conv", folder, dims={"n": [1, 4]})
    assert several.runs == ({"n": 1}, {"n": 4})
    options = {CUDA: {"arena_extend_strategy": "kSameAsRequested"}}
    taken = [
        estimated("conv", folder, dims={"n": sizes}, provider_options=options).given.high_bytes
        for sizes in ([4], [1, 4])
    ]
    assert taken[0] < taken[1]


def test_nothing_is_said_to_fit_if_a_size_is_unknown(tmp_path: Path) -> None:
    nodes = [helper.make_node("NonZero", ["x"], ["y"])]
    values: Values = {"x": (FLOAT, ("n", 8)), "y": (INT64, (2, "found"))}
    path = tmp_path / "nonzero.onnx"
    onnx.save(model_of(nodes, values, {}), path)
    estimate = memdiag.estimate_device(
        path, providers=[CUDA], for_onnxruntime=RELEASE, fit_bytes=LIMIT
    )
    assert (estimate.unknown_values, estimate.given.fit) == (1, None)
    assert "cannot be said" in rendering.printed(estimate)
    assert "at least" in rendering.printed(estimate)


def test_a_model_of_fixed_sizes_has_counts_alone(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    values: Values = {"x": (FLOAT, (4, 8)), "y": (FLOAT, (4, 8))}
    path = tmp_path / "fixed.onnx"
    onnx.save(model_of(nodes, values, {}), path)
    estimate = memdiag.estimate_device(
        path, providers=[CUDA], for_onnxruntime=RELEASE, fit_bytes=LIMIT
    )
    assert estimate.searched == ()
    text = " ".join(rendering.printed(estimate).split())
    assert text.startswith("fixed.onnx: in 7.45 GiB (8 GB) fit: 54 sessions in one process,")


def test_options_without_a_known_effect_are_named(folder: Path) -> None:
    estimate = estimated(
        "dense",
        folder,
        provider_options={CUDA: {"prefer_nhwc": "1"}},
        session_options={"intra_op_num_threads": 1, "enable_mem_pattern": 0},
    )
    assert (
        "prefer_nhwc, intra_op_num_threads are not considered: the estimate is the same without"
        " them"
    ) in estimate.notes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"providers": ["TensorrtExecutionProvider"]}, "TensorrtExecutionProvider: what it takes"),
        ({"providers": ["CPUExecutionProvider", CUDA]}, "CPUExecutionProvider: what it takes"),
        ({"providers": []}, "No provider: what it takes"),
        ({"fit_bytes": 0}, "fit_bytes must be greater than 0."),
        ({"context_bytes": -1}, "context_bytes must be 0 or greater."),
        ({"provider_options": {"Other": {"a": "b"}}}, "Other has options"),
        (
            {"provider_options": {CUDA: {"arena_extend_strategy": "kOther"}}},
            "arena_extend_strategy cannot be 'kOther'. Choose from kNextPowerOfTwo,",
        ),
    ],
)
def test_what_cannot_be_predicted_is_refused(
    options: dict[str, Any], message: str, folder: Path
) -> None:
    arguments = {"providers": [CUDA], "for_onnxruntime": RELEASE, **options}
    with pytest.raises(UsageError, match=re.escape(message)):
        memdiag.estimate_device(recorded_model("dense", folder), **arguments)


APPROVED: dict[str, dict[str, Any]] = {
    "dense": {"size": 64, "fit_bytes": LIMIT},
    "conv": {"size": 4},
}


@pytest.mark.parametrize("name", APPROVED)
def test_the_summary_reads_well(name: str, folder: Path) -> None:
    estimate = estimated(name, folder, **APPROVED[name])
    estimate = msgspec.structs.replace(estimate, duration_s=0.1)
    text = rendering.printed(estimate, detail=Detail.USUAL)
    assert len(text.splitlines()) <= MAX_LINES
    assert_approved(text, APPROVED_FOLDER / f"estimate_{name}.txt")
    assert codec.decode(codec.encode(estimate), DeviceEstimate) == estimate


def test_the_task_page_has_the_approved_output() -> None:
    ((name, output),) = PAGE_OUTPUT.findall(PAGE.read_text())
    assert (APPROVED_FOLDER / f"estimate_{name}.txt").read_text() == output
