"""The growth of a recorded process in words, and its largest owner."""

import shlex

from memdiag.growth.growth_sentences import (
    CALIBRATION_ADVICE,
    CALIBRATORS_KEEP,
    OTHER_PROFILERS,
    is_calibrator,
)
from memdiag.growth.recorded_growth import RecordedGrowth
from memdiag.programs.xray_facts import last_xrays
from memdiag.records.run import ProcessXray, ProgramProcess, ProgramRun
from memdiag.reports.run.names import number_ranges_text
from memdiag.reports.text import capitalized, plain
from memdiag.reports.xray.memory_owners import owner_rows
from memdiag.units import format_duration, format_rate, format_size

MIN_MEMORY_SHARE = 0.8
"""Share of the memory at the end of the growth that an X-ray must have to show its owners."""

_STABLE_OWNER_KINDS = (
    "weights",
    "external_data",
    "runtime_libraries",
    "provider_libraries",
    "other_libraries",
    "mapped_files",
)
"""Kinds of owners that do not grow with the work of a process."""

_MAX_LEAK_COMMAND = 200


def can_be_observed(recording: ProgramRun, process: ProgramProcess) -> bool:
    """Return whether `memdiag leak` can probably observe a process that was watched.

    A process that was waited for without getting an X-ray has usually ended.
    """
    goes_on = process.ended_s is None and bool(recording.xrays or not recording.end_waits)
    return recording.is_watched and goes_on and process.onnxruntime is not None


def recorded_growth_texts(recording: ProgramRun, growth: RecordedGrowth) -> tuple[str, str]:
    """Return sentences on the growth and its largest owner, and what tells more about it."""
    process = growth.process
    remedy = ""
    subject = f"Process {process.pid}" if len(recording.processes) > 1 else "Memory"
    sizes = f"{format_size(growth.start_bytes)} to {format_size(growth.end_bytes)}"
    duration = format_duration(growth.seconds)
    if not growth.runs:
        rate = format_rate(growth.rate(growth.seconds))
        end = "the end of the recording" if process.ended_s is None else "its end"
        text = f"{subject} was still growing at {end}: {sizes} in {duration}, {rate} a second."
    else:
        sessions = [session for session in recording.sessions if session.number in growth.sessions]
        plural = "s" if len(sessions) > 1 else ""
        numbers = number_ranges_text(session.number for session in sessions)
        text = (
            f"{subject} was still growing at the last run of session{plural} {numbers}:"
            f" {sizes} in {duration}, about {format_rate(growth.rate(growth.runs))} a run."
        )
        if all(is_calibrator(session.created_at) for session in sessions):
            text = f"{text} {CALIBRATORS_KEEP}."
            remedy = f"{capitalized(CALIBRATION_ADVICE)}."
    xrays = [xray for xray in last_xrays(recording) if xray.pid == process.pid]
    if xrays and xrays[0].attribution.resident_bytes >= MIN_MEMORY_SHARE * growth.end_bytes:
        text = f"{text} {largest_owner_sentence(xrays[0])}".strip()
    if remedy:
        return text, remedy
    if process.onnxruntime is None:  # memdiag leak needs it
        return text, _no_onnxruntime_advice(recording, process)
    subject = str(process.pid) if can_be_observed(recording, process) else ""
    command = shlex.join(recording.command)
    if not subject:
        is_usable = len(command) <= _MAX_LEAK_COMMAND and plain(command) == command
        subject = f"-- {command if is_usable else 'COMMAND'}"
    return text, f"memdiag leak {subject} tells whether it is a leak, and of what."


def _no_onnxruntime_advice(recording: ProgramRun, process: ProgramProcess) -> str:
    """Return what tells more about the growth of a process without a recognized onnxruntime.

    Empty if it was X-rayed, because it then has an onnxruntime of an unknown release.
    """
    if any(xray.pid == process.pid for xray in recording.xrays):
        return ""
    return (
        f"onnxruntime was not recognized in process {process.pid}. If it has none, other code"
        f" grows: {OTHER_PROFILERS}."
    )


def largest_owner_sentence(xray: ProcessXray) -> str:
    """Return a sentence on the largest owner besides weights and libraries; empty for none."""
    rows = [row for row in owner_rows(xray.attribution) if row.kind not in _STABLE_OWNER_KINDS]
    row = max(rows, key=lambda row: row.size_bytes, default=None)
    if row is None or not row.size_bytes:
        return ""
    remark = f" ({row.sentence})" if row.sentence else ""
    size = f"{row.label}: {format_size(row.size_bytes)}{remark}"
    if xray.reason == "end":
        return f"Besides weights and libraries, most is {size}."
    # The end could not be read. What a run had in use at the X-ray may be free since then.
    return f"After {format_duration(xray.t_s)}, besides weights and libraries, most was {size}."
