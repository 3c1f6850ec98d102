"""The memory of a GPU in a report: the answer, the sum of its parts, owners, phases, findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from memdiag.defaults import CUDA_PROVIDER
from memdiag.detail import Detail
from memdiag.records.device import (
    Device,
    DeviceFinding,
    DeviceMemory,
    DeviceOwner,
    DevicePhase,
    DeviceSource,
    Ledger,
    LedgerRow,
    MissingSource,
    TensorRTStep,
)
from memdiag.reports.blocks import (
    Block,
    BulletBlock,
    ChartBlock,
    FindingsBlock,
    SentenceBlock,
    TableBlock,
)
from memdiag.reports.device_weights import device_weight_blocks
from memdiag.reports.findings import FindingText
from memdiag.reports.table import BarPart, Cell, Column, Row, Table
from memdiag.reports.text import known_mebibytes_text, mebibytes_text, plain
from memdiag.units import MIB, counted, format_size

_MAX_FACTOR = 10
"""From this multiple of the weights on, the context and libraries are most of the memory."""

_MIN_NOTABLE_SHARE = 0.1
_MAX_FINDINGS = 3
_MAX_TENSORRT_ROWS = 6
_MAX_SHORT_OWNERS = 6
"""The sum above has all of them."""

_MIN_PEAK_EXCESS = 0.05
"""From this share above the memory after the runs on, the answer is the peak.

Recording alone adds up to 16 MiB, 3 % of a small session: a peak that is nearer says no more.
"""

_ARENA_OWNERS: frozenset[DeviceOwner] = frozenset(
    {"weights", "weight_copies", "values", "empty_arena", "unread_arena"}
)

_PHASE_LABELS = {
    "session": "session creation",
    "run": "later runs",
    "deleted": "session deleted",
    "failed": "until the error",
}
_MARK_TEXTS = {
    "start": "the start",
    "session": "session creation",
    "first run": "the first run",
    "run": "a later run",
    "between": "a step of the program",
}
_MISSING_TEXTS: dict[DeviceSource, str] = {
    "cudaMemGetInfo": "The memory in use on the GPU was not read",
    "CUPTI": "Peaks between the readings, and the memory of each library, are not known",
    "NVML": "What other processes use of the GPU is not known",
    "arena": "What of the arena is in use is not known",
    "contents": "Weights are counted by their sizes, their contents were not compared",
}


def device_answer(model: str, memory: DeviceMemory, ledger: Ledger, weight_bytes: int) -> str:
    """Return the memory on the device in one sentence, with what to look at first.

    That is the peak if it is clearly above the memory after the runs.

    Args:
        model: the name of the model.
        memory: the memory on the device.
        ledger: its owners.
        weight_bytes: the bytes of the weights.
    """
    name = plain(memory.device.name)
    device = f"the GPU ({name})" if name else "the GPU"
    peak = _notable_peak(memory)
    if peak is not None:
        moment = _MARK_TEXTS.get(peak.mark, plain(peak.mark))
        factor = _weight_factor_text(peak.own_bytes, weight_bytes)
        return (
            f"{plain(model)}: peak {format_size(peak.own_bytes)} on {device} in {moment}{factor};"
            f" {format_size(ledger.own_bytes)} afterwards: {_passing_part(peak, ledger)}."
        )
    factor = _weight_factor_text(ledger.own_bytes, weight_bytes)
    part = _notable_part(memory.findings, ledger)
    return f"{plain(model)}: {format_size(ledger.own_bytes)} on {device}{factor}: {part}."


def device_text(device: Device) -> str:
    """Return the name of a device with its driver; empty if the name is not known."""
    driver = f" (driver {device.driver})" if device.driver else ""
    return f"{device.name}{driver}" if device.name else ""


def _notable_peak(memory: DeviceMemory) -> Ledger | None:
    """Return the owners at the peak if that is clearly above the memory after the runs."""
    peak, after = memory.peak_ledger, memory.ledger
    if peak is None or after is None:
        return None
    return peak if peak.own_bytes >= (1 + _MIN_PEAK_EXCESS) * after.own_bytes else None


def device_sums(memory: DeviceMemory, ledger: Ledger) -> list[str]:
    """Return the sum of `ledger`, the owners after the runs, after that at a notable peak."""
    peak = _notable_peak(memory)
    if peak is None:
        return [device_sum(ledger)]
    return [device_sum(peak, " at the peak"), device_sum(ledger, " afterwards")]


def device_sum(ledger: Ledger, moment: str = "") -> str:
    """Return the sum of a ledger in one line, in whole MiB: ``device 945 MiB = … 559 + … 128``.

    The numbers are rounded so that they add up. `moment` follows the first.
    """
    total = round(ledger.used_bytes / MIB)
    parts = _whole_parts([row.bytes for row in ledger.rows], total)
    terms = [f"{plain(row.label)} {part:,}" for row, part in zip(ledger.rows, parts, strict=True)]
    return f"device {total:,} MiB{moment} = {' + '.join(terms)}"


def device_blocks(memory: DeviceMemory) -> list[Block]:
    """Return the sections of a report on the memory of a device."""
    owners = _owner_table(memory.ledger)
    return [
        SentenceBlock(title="GPU error", text=plain(memory.failure), detail=Detail.ANSWER),
        FindingsBlock(
            title="Findings on the GPU",
            findings=[*map(_finding_text, memory.findings)],
            max_rows=_MAX_FINDINGS,
        ),
        TableBlock(
            title="Owners on the GPU",
            table=owners,
            short_table=owners.first_rows(_MAX_SHORT_OWNERS),
        ),
        TableBlock(title="Phases on the GPU", table=_phase_table(memory.phases)),
        *([] if memory.xray is None else device_weight_blocks(memory.xray)),
        TableBlock(
            title="TensorRT",
            table=_tensorrt_table(memory.tensorrt_steps),
            max_rows=_MAX_TENSORRT_ROWS,
            short="steps of TensorRT",
        ),
        BulletBlock(
            title="Not known of the GPU",
            texts=[*map(missing_text, memory.missing)],
            detail=Detail.USUAL if memory.missing_reason("cudaMemGetInfo") else Detail.ALL,
            short=counted(len(memory.missing), "missing source"),
        ),
    ]


def device_notes(memory: DeviceMemory | None) -> tuple[str, ...]:
    """Return the notes on the memory of a device."""
    if memory is None:
        return ()
    return (*(memory.ledger.notes if memory.ledger else ()), *memory.notes)


def device_chart_blocks(memory: DeviceMemory, weight_bytes: int | None) -> list[Block]:
    """Return the timeline of a device for a page, which shows the range of time of the host's."""
    timeline = memory.timeline
    if timeline is None:
        return []

    def chart_data() -> dict[str, Any]:
        return {
            "device": {
                "t": timeline.t_s,
                "allocated": timeline.allocated_bytes,
                "context": timeline.context_bytes,
                "weights": weight_bytes,
            }
        }

    peak = memory.peak_bytes
    return [
        ChartBlock(
            title="Timeline of the GPU",
            name="device",
            script="device.js",
            data=chart_data,
            alt="Memory of the process on the GPU over time"
            + (f", at most {format_size(peak)}." if peak is not None else "."),
            hints=(
                "Exact: each step is an allocation or a release that CUPTI reported. The context"
                " and code are known after each run only.",
            ),
        )
    ]


def _weight_factor_text(own_bytes: int, weight_bytes: int) -> str:
    if own_bytes >= _MAX_FACTOR * weight_bytes:
        return ""
    return f", {own_bytes / weight_bytes:.1f} × the weights"


def _notable_part(findings: Sequence[DeviceFinding], ledger: Ledger) -> str:
    """Return a clause on the largest part that is no weight, preferring what can be saved."""
    empty_bytes = ledger.bytes_of("empty_arena")
    if empty_bytes >= _MIN_NOTABLE_SHARE * ledger.own_bytes:
        for finding in findings:
            if finding.owner == "empty_arena":
                return f"{format_size(finding.bytes)} of it are an empty region of the arena"
        return f"{format_size(empty_bytes)} of it are empty parts of the arena"
    largest = max(
        (row for row in ledger.rows if row.owner not in ("weights", "other_processes")),
        key=lambda row: row.bytes,
    )
    return f"{format_size(largest.bytes)} of it are {_subject(largest)}"


def _passing_part(peak: Ledger, after: Ledger) -> str:
    """Return a clause on the owner that had most more at the peak than after the runs."""
    more = Counter[str]()
    for ledger, sign in ((peak, 1), (after, -1)):
        for row in ledger.rows:
            # At the peak the parts of the arena are not told apart.
            owner = "the arena" if row.owner in _ARENA_OWNERS else _subject(row)
            more[owner] += sign * row.bytes
    ((owner, size),) = more.most_common(1)
    return f"{owner} had {format_size(size)} more at the peak"


def _subject(row: LedgerRow) -> str:
    return f"the {row.label}" if row.owner == "context" else plain(row.label)


def _whole_parts(sizes: list[int], total: int) -> list[int]:
    """Return `sizes` in whole MiB that add up to `total`: the largest fractions are rounded up."""
    whole = [size // MIB for size in sizes]
    by_fraction = sorted(range(len(sizes)), key=lambda index: -(sizes[index] % MIB))
    for index in by_fraction[: total - sum(whole)]:
        whole[index] += 1
    return whole


def _finding_text(finding: DeviceFinding) -> FindingText:
    return FindingText(
        rule=plain(finding.rule),
        name=plain(finding.name),
        message=plain(finding.message),
        detail=plain(finding.detail),
        remedies=tuple(map(plain, _remedy_options(finding))),
        size_bytes=finding.bytes,
    )


def _remedy_options(finding: DeviceFinding) -> list[str]:
    """Return the options of the command line that do what `finding` advises."""
    return [
        *(
            f"--provider-option {CUDA_PROVIDER}:{name}={value}"
            for name, value in finding.provider_options.items()
        ),
        *(f"--session-option {name}={value}" for name, value in finding.session_options.items()),
    ]


def _owner_table(ledger: Ledger | None) -> Table:
    """Return the owners of half a MiB or more, the largest first."""
    rows = [] if ledger is None else [row for row in ledger.rows if 2 * abs(row.bytes) >= MIB]
    total = 0 if ledger is None else ledger.used_bytes
    largest = max((row.bytes for row in rows), default=0)
    return Table(
        columns=(
            Column("on the GPU", css="name"),
            Column("MiB", "right", css="strong"),
            Column("share", "right"),
            Column("how it is known", css="less"),
            Column(css="wide", legend=(("end", "memory"),), formats=("html",)),
        ),
        rows=tuple(
            Row(
                plain(row.label),
                mebibytes_text(row.bytes, 0),
                f"{100 * row.bytes / total:.0f} %",
                row.basis,
                Cell(bars=((BarPart(css="end", percent=100 * max(0, row.bytes) / largest),),)),
            )
            for row in sorted(rows, key=lambda row: -row.bytes)
        ),
    )


def _phase_table(phases: Sequence[DevicePhase]) -> Table:
    """Return what each phase had and kept, with exact peaks if they are known."""
    size = known_mebibytes_text
    # What the deletion of the session starts with is in the row above.
    peaks = {phase.name: phase.peak_bytes for phase in phases if phase.name != "deleted"}
    highest = max(peaks, key=lambda name: peaks[name] or 0, default="")
    columns = (
        Column("on the GPU (MiB)"),
        Column("peak (exact)", "right", css="strong"),
        Column("at end", "right"),
        Column("kept", "right"),
    )
    rows = [
        Row(
            _phase_label(phase),
            size(peaks.get(phase.name)),
            size(phase.used_bytes),
            size(phase.added_bytes, signed=True),
            is_strong=phase.name == highest and phase.peak_bytes is not None,
        )
        for phase in phases
        if phase.used_bytes is not None
    ]
    has_peaks = any(peaks.values())
    shown = [index for index in range(len(columns)) if has_peaks or index != 1]
    return Table(
        columns=tuple(columns[index] for index in shown),
        rows=tuple(row.select(shown) for row in rows),
    )


def _tensorrt_table(steps: Sequence[TensorRTStep]) -> Table:
    """Return what TensorRT says that each of its steps added, and what was in use then."""
    return Table(
        columns=(
            Column("step (MiB)", wraps=True, css="name"),
            Column("GPU added", "right", css="strong"),
            Column("GPU now", "right"),
            Column("host added", "right"),
            Column("host now", "right"),
        ),
        rows=tuple(
            Row(
                plain(step.name),
                mebibytes_text(step.device_added_bytes, 0, signed=True),
                mebibytes_text(step.device_bytes, 0),
                mebibytes_text(step.host_added_bytes, 0, signed=True),
                mebibytes_text(step.host_bytes, 0),
            )
            for step in steps
        ),
        caption="By its own log, which rounds to MiB.",
    )


def _phase_label(phase: DevicePhase) -> str:
    label = _PHASE_LABELS.get(phase.name, plain(phase.name))
    return f"{label} ×{phase.count}" if phase.count > 1 else label


def missing_text(missing: MissingSource) -> str:
    """Return what is not known without a source, and why."""
    last_mark = missing.last_mark
    after = f" after {_MARK_TEXTS.get(last_mark, plain(last_mark))}" if last_mark else ""
    return f"{_MISSING_TEXTS[missing.source]}{after}: {plain(missing.reason)}."
