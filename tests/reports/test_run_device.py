"""The memory of a GPU in the report of a program: the answer, the table and what is not known."""

import re
from typing import Any

import pytest

from memdiag.detail import Detail
from memdiag.records.device import Device, DeviceMemory, MissingSource
from memdiag.records.run import (
    DeviceSamples,
    ProcessDevice,
    ProgramProcess,
    ProgramRun,
    ProgramSession,
    SessionDevice,
)
from memdiag.reports.device import device_sum
from tests.device.recorded_sessions import recorded
from tests.reports import runs
from tests.reports.gpus import recorded_memory
from tests.reports.rendering import html, markdown, printed, replaced, section
from tests.reports.runs import MIB, process, session

NO_NVML = MissingSource(source="NVML", reason="NVML does not list the process")


def on_gpu(name: str, *samples: int, **changes: Any) -> ProcessDevice:
    """Return what the process of a recorded session has, with figures of NVML in MiB."""
    memory = replaced(recorded_memory(name), findings=(), timeline=None, missing=())
    given: dict[str, Any] = {
        "memory": memory,
        "weight_bytes": recorded(name).weight_bytes,
        "allocated_bytes": 0,
        "samples": DeviceSamples(
            t_s=tuple(map(float, range(len(samples)))),
            process_bytes=tuple(size * MIB for size in samples),
        ),
    }
    return ProcessDevice(**(given | changes))


def without_hook(*samples: int, **changes: Any) -> ProcessDevice:
    """Return what NVML alone knows of a process."""
    memory = DeviceMemory(device=Device(name="NVIDIA H100"), **changes)
    return on_gpu("nbits", *samples, memory=memory, weight_bytes=None, allocated_bytes=None)


def with_process(pid: int, device: ProcessDevice | None, **changes: Any) -> ProgramProcess:
    return process(pid, 100, 200, device=device, **changes)


def cuda_session(number: int, pid: int, creation: int | None, first_run: int) -> ProgramSession:
    creation_bytes = None if creation is None else creation * MIB
    device = SessionDevice(creation_bytes=creation_bytes, first_run_bytes=first_run * MIB)
    return session(number, pid=pid, providers=("CUDAExecutionProvider",), device=device)


ONE = runs.run(
    cuda_session(1, 100, 743, 202),
    processes=(with_process(100, on_gpu("dense_default", 734, 936)),),
)
SEVERAL = runs.run(
    cuda_session(1, 100, None, 202),
    cuda_session(2, 101, 640, 17),
    processes=(
        with_process(100, on_gpu("dense_same", 734, 936, 810)),
        with_process(101, on_gpu("dense_default", 936)),
        with_process(102, without_hook(300, 280)),
        with_process(103, None),
    ),
)
SUM = "device 945 MiB = context and code 559 + weights 128 + values and copies 0 + empty arena 128"


def wide(recording: ProgramRun, detail: Detail = Detail.ALL) -> str:
    return printed(recording, detail=detail, width=200)


@pytest.mark.parametrize("detail", Detail)
def test_the_first_lines_are_the_answer_for_the_gpu_and_its_sum(detail: Detail) -> None:
    answer, total, *_ = wide(ONE, detail).splitlines()
    assert answer == (
        "945 MiB on the GPU (NVIDIA H100 80GB HBM3), 7.4 × the weights: 128 MiB of it are empty"
        " parts of the arena."
    )
    assert total.startswith(SUM)


def test_the_answer_for_the_host_follows() -> None:
    host = replaced(ONE, processes=(with_process(100, None),))
    first = wide(host).splitlines()[0]
    assert f"On the host: {first[0].lower()}{first[1:]}" in wide(ONE).splitlines()


def test_of_several_processes_the_one_with_most_is_named() -> None:
    lines = wide(SEVERAL).splitlines()
    assert lines[0].startswith(
        "3 processes use the GPU. Process 101 has most: 945 MiB on the GPU (NVIDIA H100 80GB HBM3)"
    )
    assert lines[1].startswith(SUM)


def test_a_program_that_failed_says_so_in_short_too() -> None:
    failed = replaced(ONE, exit_code=3)
    assert "ended with exit code 3" in wide(failed, Detail.ANSWER)
    assert SUM in wide(failed, Detail.ANSWER)


def test_the_table_has_each_process_with_its_sessions() -> None:
    lines = section(SEVERAL, "On the GPU", width=140)
    text = "\n".join(lines)
    for row in (
        r"101 python main\.py --port 80 +945 +945 +936 +128 +128",
        r"session 2 \(a\.onnx\) +\+640 +\+17",
        r"100 python main\.py --port 80 +819 +\d+ +810 \(936\) +128 +3",
        r"session 1 \(a\.onnx\) +\+202",
        r"102 python main\.py --port 80 +280 \(300\)",
    ):
        assert re.search(row, text), (row, text)
    assert [line.split()[0] for line in lines if re.match(r"\d{3} ", line)] == ["101", "100", "102"]
    assert "103" not in text
    assert "Peak: exact, by CUPTI." in " ".join(lines)


def test_columns_without_a_figure_and_their_legends_are_left_out() -> None:
    watched = replaced(
        ONE, sessions=(), processes=(with_process(100, without_hook(280)),), is_watched=True
    )
    lines = section(watched, "On the GPU")
    assert "280" in "\n".join(lines)
    assert not re.search("peak|allocated|weights|first run", lines[1])
    assert not wide(watched).startswith("280")  # no session is known to be on it


def test_without_the_memory_in_use_the_allocations_are_shown() -> None:
    memory = replaced(recorded_memory("dense_same"), ledger=None, findings=(), missing=(NO_NVML,))
    device = on_gpu("dense_same", memory=memory, allocated_bytes=260 * MIB)
    recording = replaced(ONE, processes=(with_process(100, device),))
    text = "\n".join(section(recording, "On the GPU"))
    assert re.search(r"allocated.*\n.*\b260\b", text)
    assert "without the context and code" in " ".join(text.split())


def test_what_is_not_known_is_said_once_with_its_processes() -> None:
    first = without_hook(missing=(NO_NVML,))
    alone = replaced(ONE, processes=(with_process(100, first),))
    text = "What other processes use of the GPU is not known: NVML does not list the process."
    assert text in wide(alone)
    both = replaced(alone, processes=(with_process(100, first), with_process(101, first)))
    assert wide(both).count("NVML does not list the process") == 1
    one_of_two = replaced(
        alone, processes=(with_process(100, first), with_process(101, without_hook(280)))
    )
    assert f"Process 100: {text[0].lower()}{text[1:]}" in wide(one_of_two)


def test_notes_on_the_gpu_are_among_the_notes() -> None:
    ledger = recorded_memory("dense_default").ledger
    assert ledger is not None
    assert ledger.notes[0] in " ".join(wide(ONE).split())


def test_the_page_and_markdown_have_the_same() -> None:
    ledger = recorded_memory("dense_default").ledger
    assert ledger is not None
    for text in (html(SEVERAL), markdown(SEVERAL)):
        assert "3 processes use the GPU." in text
        assert device_sum(ledger) in text
        assert "On the GPU" in text


def test_a_program_on_the_cpu_is_told_as_before() -> None:
    text = wide(runs.server())
    assert "GPU" not in text


def test_a_narrow_terminal_goes_without_the_columns_that_say_least() -> None:
    heading = section(SEVERAL, "On the GPU", width=80)[1]
    assert "weights" not in heading
    # The only figure of a process without the hook.
    assert re.search(r"102 python main\.py --port 80 +280 \(300\)", printed(SEVERAL, width=80))
    assert "weights" in section(SEVERAL, "On the GPU", width=140)[1]
