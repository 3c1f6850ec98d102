"""The peak of the arena in a run, from the figures that onnxruntime's profiler writes."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from msgspec.structs import astuple
from onnx import parser

from memdiag.ort.releases import NODE_MEMORY_SINCE
from memdiag.ort.runtime import Runtime
from memdiag.runner import node_memory as module
from memdiag.runner.job import Feed, Job
from memdiag.runner.node_memory import NoNodeMemory, arena_peak, peak_of_run
from memdiag.units import KIB

WEIGHTS = 10_000
END = {"name": "model_run", "args": {}}


def node(name: str, in_use: int, delta: int, *, peak: int, requested: int = 0) -> dict[str, Any]:
    """Return the event of a node; the arena has the weights next to `in_use` bytes of the run."""
    figures = {
        "mem_bytes_in_use": WEIGHTS + in_use,
        "mem_in_use_delta": delta,
        "mem_in_use_peak": peak,
        "mem_bytes_requested_in_use": WEIGHTS + requested,
        "mem_requested_in_use_delta": delta,
        "mem_arena_held": 50_000 + in_use,
        "mem_arena_held_delta": delta,
    }
    # The runtime writes numbers as text.
    arguments = {"op_name": "Op", **{name: str(value) for name, value in figures.items()}}
    return {"cat": "Node", "name": f"{name}_kernel_time", "args": arguments}


def test_working_memory_is_what_was_in_use_only_while_the_node_ran() -> None:
    events = [
        {"name": "session_initialization", "args": {}},
        node("a", 100, 100, peak=WEIGHTS + 100, requested=100),
        node("b", 300, 200, peak=WEIGHTS + 1000, requested=250),
        node("c", 200, -100, peak=WEIGHTS + 1000, requested=200),
        END,
        node("d", 9000, 100, peak=WEIGHTS + 9000),  # in the second run
    ]
    found, executed = peak_of_run(events)
    assert (found.node, found.op_type) == ("b", "Op")
    assert (found.peak_bytes, found.scratch_bytes) == (1000, 700)
    assert (found.values_bytes, found.rounding_bytes) == (250, 50)
    assert found.grown_bytes == 200
    assert executed == (("a", "Op"), ("b", "Op"), ("c", "Op"))


def test_a_first_node_may_have_the_peak() -> None:
    events = [
        node("a", 300, 300, peak=WEIGHTS + 300, requested=300),
        node("b", 200, -100, peak=WEIGHTS + 300, requested=200),
    ]
    found, _ = peak_of_run(events)
    assert (found.node, found.peak_bytes, found.scratch_bytes) == ("a", 300, 0)


def test_a_higher_use_before_the_run_hides_working_memory() -> None:
    events = [
        node("a", 100, 100, peak=5 * WEIGHTS, requested=100),
        node("b", 300, 200, peak=5 * WEIGHTS, requested=300),
        node("c", 200, -100, peak=5 * WEIGHTS, requested=200),
    ]
    found, _ = peak_of_run(events)
    assert (found.node, found.peak_bytes, found.scratch_bytes) == ("b", 300, None)


def event(
    name: str, op_type: str, start: int, nbytes: int = 0, *, in_use: int = 100, peak: int = 100
) -> dict[str, Any]:
    """Return the event of a node with its start and the size of its outputs."""
    found = node(name, in_use, in_use, peak=WEIGHTS + peak)
    arguments = {**found["args"], "op_name": op_type, "output_size": str(nbytes)}
    return {**found, "ts": start, "args": arguments}


def test_the_largest_outputs_are_named_also_inside_a_loop() -> None:
    events = [
        event("hot", "OneHot", 10, 70),
        event("join", "Concat", 21, 50),
        event("row", "Gather", 22, 5),
        event("join", "Concat", 23, 90),
        event("branch", "Sin", 25, 65),
        event("either", "If", 24, 60),
        event("loop", "Loop", 20, 8),
        event("join", "Concat", 30, 1),
        END,
        event("other", "Sin", 40, 99),
    ]
    assert [astuple(each) for each in peak_of_run(events).peak.largest] == [
        ("join", "Concat", "loop", 90),
        ("hot", "OneHot", "", 70),
        ("branch", "Sin", "loop/either", 65),
    ]


@pytest.mark.parametrize(
    ("peak_of_loop", "named", "highest_inside"),
    [
        # The peak is that of a node in the graph, and so is its name.
        (500, ("wide", "Sin", "loop/either"), None),
        # It comes after the last node in the graph.
        (900, ("loop", "Loop", ""), ("wide", "Sin", "either", 500)),
    ],
)
def test_a_peak_in_a_loop_names_the_node_in_its_graph(
    peak_of_loop: int, named: tuple[str, ...], highest_inside: tuple[str, ...] | None
) -> None:
    events = [
        event("loop_of_before", "Sin", 5, in_use=50, peak=50),
        event("join", "Concat", 21, in_use=300, peak=300),
        event("wide", "Sin", 23, in_use=400, peak=500),
        event("either", "If", 22, in_use=100, peak=500),
        event("join", "Concat", 25, in_use=450, peak=500),
        event("loop", "Loop", 20, in_use=200, peak=peak_of_loop),
        event("after", "Sin", 30, in_use=10, peak=peak_of_loop),
    ]
    found, executed = peak_of_run(events)
    assert (found.node, found.op_type, found.inside) == named
    inside = found.highest_inside
    assert (None if inside is None else astuple(inside)) == highest_inside
    assert [name for name, _ in executed] == ["loop_of_before", "loop", "after"]


def test_releases_without_the_figures_are_refused() -> None:
    event = node("a", 100, 100, peak=WEIGHTS)
    del event["args"]["mem_in_use_peak"]
    for events in ([], [event], [END, node("a", 1, 1, peak=1)]):
        with pytest.raises(NoNodeMemory, match=r"since 1\.28"):
            peak_of_run(events)


@pytest.mark.parametrize(
    ("content", "problem"), [(b"[{", "cannot be read"), (b'[{"name": "x"}]', "too large")]
)
def test_a_profile_that_cannot_be_read_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, problem: str
) -> None:
    monkeypatch.setattr(module, "MAX_PROFILE_BYTES", 10)
    path = tmp_path / "nodes.json"
    path.write_bytes(content)
    with pytest.raises(NoNodeMemory, match=problem):
        module._read_profile_file(path)
    assert not path.exists()


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """A job whose values have 256 KiB, and whose Where makes two copies in working memory."""
    text = """<ir_version: 9, opset_import: ["" : 17]>
    g (float[n, 1024] x, bool[1, 1024] c, float[1] z) => (float[n, 1024] y) {
        a = Exp (x) b = Where (c, a, z) y = Sin (b)
    }"""
    path = tmp_path / "m.onnx"
    onnx.save(parser.parse_model(text), path)
    arrays = {
        "x": np.ones((64, 1024), np.float32),
        "c": np.ones((1, 1024), bool),
        "z": np.ones(1, np.float32),
    }
    for name, array in arrays.items():
        np.save(tmp_path / name, array)
    feeds = tuple(Feed(name=name, files=(tmp_path / f"{name}.npy",)) for name in arrays)
    return Job(model=path, feeds=feeds)


@pytest.mark.skipif(Runtime.installed() < NODE_MEMORY_SINCE, reason="no memory of nodes")
def test_the_runtime_measures_values_and_working_memory(job: Job, tmp_path: Path) -> None:
    found, _ = arena_peak(job, tmp_path)
    assert found.op_type == "Where"
    assert found.values_bytes == 512 * KIB
    # Of the two copies one is in the end of the chunk of a value, which is as large.
    assert found.scratch_bytes is not None
    assert found.scratch_bytes + found.rounding_bytes == 512 * KIB
    assert found.scratch_bytes > 256 * KIB
    assert found.free_resident_bytes is None
    assert not list(tmp_path.glob("nodes*"))


def test_a_model_that_does_not_run_is_a_reason(job: Job, tmp_path: Path) -> None:
    other = Job(model=job.model, feeds=job.feeds[:1])
    with pytest.raises(NoNodeMemory, match=r"[Rr]equired inputs"):
        arena_peak(other, tmp_path)
