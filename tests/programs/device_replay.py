"""Sessions that were recorded on a GPU, as the hook of a program would have reported them."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from memdiag.programs.assemble import assemble_run
from memdiag.programs.recorder import Recorder
from memdiag.records.run import ProcessXray, ProgramRun
from memdiag.runner.nvml import DeviceReading
from tests.device.recorded_sessions import events_of, raw
from tests.device.replay import (
    CUDA,
    child_marks,
    device_arenas,
    model_with_weights,
    recorded_reader,
)
from tests.programs.test_recorder import Hook
from tests.reports import attributions

Send = Callable[..., object]


class ScriptedReader:
    """NVML's reader of a process, whose next reading a test sets."""

    name, driver = "NVIDIA H100 80GB HBM3", "580.159.04"

    def __init__(self) -> None:
        self.reading = DeviceReading(None, None)
        self.missing_reason = "NVML does not list the process"
        self.lists_processes = True
        self.closed = 0

    def read(self) -> DeviceReading:
        return self.reading if self.lists_processes else self.reading._replace(process_bytes=None)

    def close(self) -> None:
        self.closed += 1


def hook_steps(data: Any, *, is_released: bool = False) -> Iterator[tuple[Any, str]]:
    """Yield the marks of a raw recording, and the names that the hook gives to them.

    Args:
        data: the recording.
        is_released: whether the program releases the session before its end.
    """
    marks, names = data["marks"], child_marks(data)
    if not is_released:
        marks, names = marks[:-1], names[:-1]
    names[-1] = "end"
    return zip(marks, names, strict=True)


def send_step(send: Send, reader: ScriptedReader, data: Any, mark: Any, name: str) -> None:
    """Send what the hook of a process with one session sends at a mark."""
    reader.reading = recorded_reader(mark, data).read()
    for event in events_of(mark, data):
        fields = dict(event.fields)
        if event.name == "device_mark":
            session = None if name in ("start", "end") else 1
            fields.update(name=name, session=session, inputs="")
        send(event.name, **fields)


def replayed_run(
    name: str,
    folder: Path,
    *,
    is_released: bool = False,
    has_xray: bool = True,
    has_model: bool = True,
) -> ProgramRun:
    """Return the record of a program whose only session is that of a recording.

    Args:
        name: the name of the recording.
        folder: an empty folder.
        is_released: whether the program releases the session before its end.
        has_xray: whether its memory is searched at its end.
        has_model: whether the file of the model can be read.
    """
    data, reader = raw(name), ScriptedReader()
    recorder = Recorder(takes_xray=False, open_device_reader=lambda pid: reader)
    try:
        hook = Hook(recorder)
        model = folder / "model.onnx"
        if has_model:
            model_with_weights(data["weights"], model)
        (start, start_name), *steps = hook_steps(data, is_released=is_released)
        send_step(hook.ask, reader, data, start, start_name)
        hook.create(1, str(model), CUDA, config=data["session_entries"], providers=[CUDA])
        for mark, step in steps:
            if step == "end" and is_released:
                hook.ask("released", session=1)
            send_step(hook.ask, reader, data, mark, step)
        if has_xray:
            recorder.xrays.append(xray_at_end(data, recorder, has_arenas=not is_released))
        hook.close()
        return assemble_run(recorder, ["python", "app.py"], 0, memdiag_version="1")
    finally:
        recorder.close()


def xray_at_end(data: Any, recorder: Recorder, *, has_arenas: bool) -> ProcessXray:
    """Return an X-ray of this process with the arenas of a recording."""
    arenas = device_arenas(data) if has_arenas else ()
    return ProcessXray(
        pid=os.getpid(),
        t_s=recorder.now_s(),
        duration_s=0.1,
        reason="end",
        attribution=msgspec.structs.replace(
            attributions.attribution(), pid=os.getpid(), device_arenas=arenas, copies=()
        ),
    )
