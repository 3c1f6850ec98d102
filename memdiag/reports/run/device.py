"""What the processes of a program have on a GPU: the answer, and a table of processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from memdiag.detail import Detail
from memdiag.records.device import DeviceOwner, Ledger
from memdiag.records.run import ProcessDevice, ProgramProcess, ProgramRun
from memdiag.reports.blocks import Block, BulletBlock, Document, TableBlock
from memdiag.reports.device import device_answer, device_notes, device_sum, missing_text
from memdiag.reports.run.names import model_names, process_name, session_name
from memdiag.reports.table import Column, Row, Table
from memdiag.reports.text import capitalized, known_mebibytes_text, lowered, shortened
from memdiag.units import counted, plural, some_of

_MAX_NAME = 30
_MAX_ROWS = 5
_SUBJECT = "program"
"""Of the sentence, which leaves it out."""
_OPTIONAL_COLUMNS = ("weights", "empty arena")
"""Columns that a narrow terminal goes without, the first one first."""

_COLUMN_LEGENDS = {
    "on the GPU": " On the GPU: at the last reading with a session.",
    "peak": " Peak: exact, by CUPTI.",
    "NVML": " NVML: its last figure, and in parentheses its largest if that was more.",
    "allocated": " Allocated: by CUPTI, without the context and code.",
    "creation": " Creation and first run: what each added to the memory of its process.",
}
"""Explanations of columns below the table."""


class _DeviceProcess(NamedTuple):
    """A process that uses a GPU."""

    process: ProgramProcess
    device: ProcessDevice


def with_device_answer(host: Document, recording: ProgramRun) -> Document:
    """Return the report `host` on a program with the GPU's memory first, if sessions ran there."""
    processes = _device_processes(recording)
    ledgers = [
        (device_process, ledger)
        for device_process in processes
        if (ledger := device_process.device.memory.ledger) is not None
    ]
    if not ledgers:
        return host
    largest, ledger = max(ledgers, key=lambda item: item[1].own_bytes)
    answer = _answer(largest, ledger, is_only=len(processes) == 1)
    if len(processes) > 1:
        answer = f"{counted(len(processes), 'process', 'processes')} use the GPU. {answer}"
    total = device_sum(ledger)
    return replace(
        host,
        answer=answer,
        line=answer,
        # How a program failed is printed whatever is asked for.
        rest=f"{host.rest} {total}" if host.is_bad else total,
        seconds=[f"On the host: {lowered(host.answer)}", "" if host.is_bad else host.rest],
    )


def device_run_blocks(recording: ProgramRun) -> list[Block]:
    """Return the sections on the GPU; without content if no process uses one."""
    processes = _device_processes(recording)
    return [
        TableBlock(
            title="On the GPU",
            table=_device_table(processes, recording),
            max_rows=_MAX_ROWS,
            optional=_OPTIONAL_COLUMNS,
        ),
        BulletBlock(
            title="Not known of the GPU",
            texts=[*_missing_texts(processes)],
            detail=Detail.ALL,
            short="what is not known of the GPU",
        ),
    ]


def device_run_notes(recording: ProgramRun) -> tuple[str, ...]:
    """Return the notes on the memory of GPUs, each once."""
    return tuple(
        dict.fromkeys(
            note
            for device_process in _device_processes(recording)
            for note in device_notes(device_process.device.memory)
        )
    )


def _device_processes(recording: ProgramRun) -> list[_DeviceProcess]:
    return [
        _DeviceProcess(process, process.device)
        for process in recording.processes
        if process.device is not None
    ]


def _answer(largest: _DeviceProcess, ledger: Ledger, *, is_only: bool) -> str:
    process, device = largest
    subject = _SUBJECT if is_only else f"Process {process.pid} has most"
    answer = device_answer(subject, device.memory, ledger, device.weight_bytes or 0)
    return capitalized(answer.removeprefix(f"{_SUBJECT}: "))


def _device_table(processes: Sequence[_DeviceProcess], recording: ProgramRun) -> Table:
    """Return a row for each process, the largest first, and below it one for each session."""
    table = Table(
        columns=(
            Column("process / session", css="name", max_width=_MAX_NAME, wraps=True),
            Column("on the GPU", "right", css="strong"),
            Column("peak", "right"),
            Column("NVML", "right"),
            Column("allocated", "right"),
            Column("weights", "right"),
            Column("empty arena", "right"),
            Column("creation", "right"),
            Column("first run", "right"),
        ),
        rows=tuple(
            row
            for device_process in sorted(
                processes, key=lambda item: -(item.device.steady_bytes or 0)
            )
            for row in _process_rows(device_process, recording)
        ),
        caption="MiB.",
        is_dense=True,
    ).without_empty_columns()
    headings = {column.heading for column in table.columns}
    return replace(
        table,
        caption=table.caption
        + "".join(text for heading, text in _COLUMN_LEGENDS.items() if heading in headings),
    )


def _process_rows(device_process: _DeviceProcess, recording: ProgramRun) -> Iterator[Row]:
    process, device = device_process
    memory, ledger = device.memory, device.memory.ledger
    name = f"{process.pid} {process_name(process, recording)}"
    yield Row(
        shortened(name, _MAX_NAME),
        known_mebibytes_text(memory.steady_bytes),
        known_mebibytes_text(memory.peak_bytes),
        _nvml_text(device),
        known_mebibytes_text(device.allocated_bytes if ledger is None else None),
        known_mebibytes_text(_owner_bytes(ledger, "weights")),
        known_mebibytes_text(_owner_bytes(ledger, "empty_arena")),
        "",
        "",
        is_strong=True,
    )
    models = model_names(recording)
    for session in recording.sessions:
        if session.pid == process.pid and session.device is not None:
            yield Row(
                shortened(session_name(session, models), _MAX_NAME),
                *[""] * 6,
                known_mebibytes_text(session.device.creation_bytes, signed=True),
                known_mebibytes_text(session.device.first_run_bytes, signed=True),
                level=1,
            )


def _owner_bytes(ledger: Ledger | None, owner: DeviceOwner) -> int | None:
    """Return the bytes of `owner`; None if they are not told apart."""
    if ledger is None or not any(row.owner == owner for row in ledger.rows):
        return None
    return ledger.bytes_of(owner)


def _nvml_text(device: ProcessDevice) -> str:
    """Return NVML's last figure, and its largest if that was more: ``945 (1,201)``."""
    last, peak = (
        known_mebibytes_text(device.process_bytes),
        known_mebibytes_text(device.peak_process_bytes),
    )
    return last if last == peak else f"{last} ({peak})"


def _missing_texts(processes: Sequence[_DeviceProcess]) -> Iterator[str]:
    """Yield what is not known, each once, with its processes unless it is all of them."""
    pids_by_text: dict[str, list[int]] = {}
    for process, device in processes:
        for missing in device.memory.missing:
            pids_by_text.setdefault(missing_text(missing), []).append(process.pid)
    for text, pids in pids_by_text.items():
        whose = ""
        if len(pids) < len(processes):
            whose = f"{plural(len(pids), 'Process', 'Processes')} {some_of([*map(str, pids)])}: "
        yield f"{whose}{lowered(text) if whose else text}"
