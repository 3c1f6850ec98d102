"""Whole profiles of the recorded sessions: everything but the child and its X-ray is memdiag's.

The model has the weights of the recording, in a file with a hole in place of their contents.
"""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import onnx
import pytest
from onnx import TensorProto, helper

import memdiag.api.profile
from memdiag.api.profile_config import ProfileConfig
from memdiag.records.attribution import DeviceArena
from memdiag.records.profile import Profile
from memdiag.runner.job import InputConfig, Job, SessionConfig
from memdiag.runner.measured_child import Measurement
from memdiag.runner.nvml import DeviceReading
from memdiag.units import MIB
from tests.device.recorded_sessions import arenas_at_rest, events_of, parsed_log, raw
from tests.reports import attributions, profiles
from tests.reports.profiles import Step

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
START_S = 0.2
COMMAND = ("memdiag", "profile", "model.onnx", "--provider", CUDA)


def replayed_profile(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *, xray: bool = True
) -> Profile:
    """Return the profile that `memdiag profile` makes of a recorded session.

    Args:
        name: the name of the recording.
        folder: an empty folder.
        monkeypatch: puts the replay in the place of the child and of its X-ray.
        xray: whether the arenas were read.
    """
    data = raw(name)
    if xray:
        assert data["arenas"]["objects"]
    monkeypatch.setattr(memdiag.api.profile, "MeasuredChild", replaying(data))
    monkeypatch.setattr(memdiag.api.profile, "ChildXray", xray_of(data))
    session = SessionConfig(
        providers=(CUDA, CPU),
        provider_options={CUDA: data["provider_options"]},
        options=data["session_entries"],
    )
    config = ProfileConfig(
        session=session,
        inputs=InputConfig(runs=2),
        xray="steady" if xray else "none",
        command=COMMAND,
    )
    model = model_with_weights(data["weights"], folder / f"{name.split('_')[0]}.onnx")
    return memdiag.api.profile.profile_model(model, config)


def model_with_weights(weights: list[Any], path: Path) -> Path:
    """Write a model with weights of these names and sizes, all zeros that take no space."""
    data = path.with_suffix(".data")
    tensors, offset = [], 0
    for name, size in weights:
        tensor = TensorProto(name=name, data_type=TensorProto.UINT8, dims=[size])
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", data.name), ("offset", offset), ("length", size)):
            tensor.external_data.add(key=key, value=str(value))
        tensors.append(tensor)
        offset += size
    with data.open("wb") as file:
        file.truncate(offset)
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    node = helper.make_node("Identity", ["x"], ["y"])
    graph = helper.make_graph([node], "g", [value], [result], tensors)
    opsets = [helper.make_opsetid("", 21)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path


def replaying(data: Any) -> Callable[..., Any]:
    """Return a class like `MeasuredChild`, whose child did what was recorded."""

    class ReplayedRun:
        def __init__(self, job: Job, on_moment: Any = None, **arguments: Any) -> None:
            assert job.records_device
            self._on_event = arguments["on_device_event"]

        def run(self, **arguments: Any) -> Measurement:
            for mark, renamed in zip(data["marks"], child_marks(data), strict=True):
                reader = recorded_reader(mark, data)
                for event in events_of(mark, data):
                    if event.name == "device_mark":
                        event.fields["name"] = renamed
                    self._on_event(event, elapsed_s(mark, data), reader)
            return measurement_of(data)

    return ReplayedRun


def child_marks(data: Any) -> list[str]:
    """Return the names that a child gives to the marks."""
    names = ["start", "session", "first run"]
    names += ["run"] * (len(data["marks"]) - len(names) - 1)
    return [*names, "deleted"]


def elapsed_s(mark: Any, data: Any) -> float:
    """Return the seconds since the start of the child, which takes `START_S` until it records."""
    return START_S + float(mark["time_ns"] - data["marks"][0]["time_ns"]) / 1e9


def recorded_reader(mark: Any, data: Any) -> Any:
    """Return a reader like NVML's, which reads what was recorded at a mark."""
    own = [size for is_own, size in mark["nvml_processes"] if is_own]
    reading = DeviceReading(own[0] if own else None, mark["nvml_used"])
    return SimpleNamespace(
        name=data["device"]["name"],
        driver=data["device"]["driver"],
        missing_reason="",
        read=lambda: reading,
    )


def measurement_of(data: Any) -> Measurement:
    """Return a measurement of the host with the times and resident sets of the marks."""
    marks = data["marks"]
    log = parsed_log(data)
    steps = [Step("interpreter and imports", "start", START_S, *[marks[0]["rss"] / MIB] * 2)]
    created_s = (marks[1]["time_ns"] - marks[0]["time_ns"]) / 1e9
    for phase, share in (("parse", 0.1), ("optimize", 0.2), ("initialize", 0.7)):
        size = (marks[0]["rss"] + share * (marks[1]["rss"] - marks[0]["rss"])) / MIB
        steps.append(Step("load", phase, share * created_s, size, size))  # type: ignore[arg-type] # texts
    for before, after, phase in ((1, 2, "first_run"), (2, -2, "steady")):
        seconds = (marks[after]["time_ns"] - marks[before]["time_ns"]) / 1e9
        size = marks[after]["rss"] / MIB
        steps.append(Step("run", phase, seconds, size, size))  # type: ignore[arg-type] # texts
    host = profiles.build(steps, runs=2, baseline=marks[0]["rss"] / MIB)
    names = ("phases", "spans", "samples", "sampling", "steady", "first_run_s", "runs", "outcome")
    return Measurement(
        onnxruntime=data["runtime"],
        python="3.12.3",
        providers=tuple(data["providers"]),
        baseline=host.phases[0].end,
        allocator_retained_bytes=None,
        warnings=(),
        explicit_starts=True,
        interrupted=False,
        arena_regions=tuple(log.regions),
        device_reservations=tuple(log.device_reservations),
        **{name: getattr(host, name) for name in names},
    )


def device_arenas(data: Any) -> tuple[DeviceArena, ...]:
    """Return the arenas of the recording, as an X-ray finds them in the heap."""
    return tuple(
        DeviceArena(
            device=arena.memory,
            used_bytes=sum(end - start for start, end in arena.in_use),
            slack_bytes=sum(end - start for start, end in arena.free),
            used_ranges=arena.in_use,
            slack_ranges=arena.free,
        )
        for arena in arenas_at_rest(data)
        if arena.memory == "Cuda"
    )


def xray_of(data: Any) -> Callable[..., Any]:
    """Return a class like `ChildXray`, with the arenas of the recording."""
    attribution = msgspec.structs.replace(
        attributions.attribution(), device_arenas=device_arenas(data), copies=()
    )
    return lambda *arguments: SimpleNamespace(
        attribution=attribution, by_phase={}, failure=None, read_memory=lambda moment: None
    )
