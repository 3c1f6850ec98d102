"""The sentences of a memory limit: the answer, the memory, the suggestion with its margin."""

from __future__ import annotations

from typing import NamedTuple

from memdiag.paths import ONNX_SUFFIX, ORT_SUFFIX
from memdiag.records.limit import LimitPoint, MemoryLimit
from memdiag.reports.limit.device import (
    device_advice,
    device_answer,
    device_details,
    device_limit_reason,
)
from memdiag.reports.limit.rows import limit_rows, slowdown_texts
from memdiag.reports.text import model_file_name, plain, shortened, sizes_clause
from memdiag.units import MIB, counted, format_duration, format_size

MAX_SUBJECT_COMMAND = 60

MIN_UNCOUNTED_BYTES = MIB

MIN_FAILED_SHARE = 0.9
"""Share of the smallest limit from which on a failed limit shows that no smaller one works."""


class LimitHeadline(NamedTuple):
    """The answer.

    Attributes:
        subject: the file of the model, or the command.
        advice: the limit and request to set.
        first: the sentence after the subject, which states the limits that work.
        second: what was not counted, how it ends under smaller limits, and what the memory is.
        facts: the release, the number of trials, and the time that the search took.
        ended: why the search ended early, or was not possible; empty otherwise.
        ended_label: the label of `ended`.
    """

    subject: str
    advice: str
    first: str
    second: str
    facts: str
    ended: str
    ended_label: str

    @property
    def line(self) -> str:
        """The limit and request to set, and the limits that work."""
        return f"{self.subject}: {self.advice} It {self.first}"


def limit_headline(limit: MemoryLimit) -> LimitHeadline:
    """Return the answer of `limit`."""
    if limit.device is not None:
        return _device_headline(limit)
    is_model = limit.kind == "model"
    subject = model_file_name(limit.subject) if is_model else plain(limit.subject)
    return LimitHeadline(
        subject=subject if is_model else shortened(subject, MAX_SUBJECT_COMMAND),
        advice=f"set the memory limit to {format_size(limit.limit_bytes)}, and the request to"
        f" {format_size(limit.request_bytes)}.",
        first=_limit_answer(limit),
        second=" ".join(
            filter(
                None,
                (
                    _uncounted_memory_text(limit),
                    _smaller_limit_text(limit),
                    _counted_parts_text(limit),
                ),
            )
        ),
        facts=_limit_facts(limit),
        ended=plain(limit.message),
        ended_label="Ended early" if limit.group_version else "No limit was tried",
    )


def _device_headline(limit: MemoryLimit) -> LimitHeadline:
    """Return the answer of a limit of the memory on a GPU."""
    return LimitHeadline(
        subject=model_file_name(limit.subject),
        advice=device_advice(limit),
        first=device_answer(limit),
        second=device_details(limit),
        facts=_limit_facts(limit),
        ended=plain(limit.message),
        ended_label="Ended early",
    )


def _limit_answer(limit: MemoryLimit) -> str:
    smallest_bytes, comfortable_bytes = limit.smallest_bytes, limit.comfortable_bytes
    sizes = sizes_clause(limit.dimensions)
    sizes_text = f", {sizes}" if sizes else ""
    if smallest_bytes is None:
        return f"{_unlimited_peak_text(limit)}{sizes_text}."
    working_text = f"works in {format_size(smallest_bytes)}"
    if comfortable_bytes == smallest_bytes:
        failed_point = limit.largest_failed
        is_found = (
            failed_point is not None
            and (failed_point.limit_bytes or 0) > MIN_FAILED_SHARE * smallest_bytes
        )
        return (
            f"{working_text} without slowdown{', and in no less' if is_found else ''}{sizes_text}."
        )
    if all(point.latency_s is None for point in limit.points):
        # The program is a server that is ended after some time. Nothing shows how far it got.
        working_text = f"is not killed in {format_size(smallest_bytes)}"
        reason = " (contents of files are dropped and read again; its work was not measured)"
    else:
        reason = _slowness_clause(limit)
    if comfortable_bytes is None:
        return f"{working_text}{reason}; no limit without slowdown was found{sizes_text}."
    verb = "works " if working_text.startswith("is") else ""
    comfortable_size = format_size(comfortable_bytes)
    return f"{working_text}{reason}, and {verb}without slowdown in {comfortable_size}{sizes_text}."


def _unlimited_peak_text(limit: MemoryLimit) -> str:
    peak = max((point.peak_bytes or 0 for point in limit.unlimited), default=0)
    parts = []
    if peak:
        parts.append(f"takes {format_size(peak)} at its peak without a limit")
    elif limit.measured_peak_bytes:
        parts.append(f"took {format_size(limit.measured_peak_bytes)} at its peak (resident set)")
    if limit.estimated_bytes:
        parts.append(f"needs at most {format_size(limit.estimated_bytes)} by its estimate")
    return " and ".join(parts) or "was not measured under a limit"


def _slowness_clause(limit: MemoryLimit) -> str:
    """Return what the smallest limit costs in time: `` (latency × 1.18, loading × 3.0: …)``."""
    # A damaged record may have no trial at this limit.
    rows = [row for row in limit_rows(limit) if row.limit_bytes == limit.smallest_bytes]
    parts = slowdown_texts(limit, rows[0]) if rows else []
    if not parts:
        return ""
    return f" ({', '.join(parts)}: contents of files are dropped and read again)"


def _uncounted_memory_text(limit: MemoryLimit) -> str:
    if limit.uncounted_bytes < MIN_UNCOUNTED_BYTES:
        return ""
    return (
        f"Besides, {format_size(limit.uncounted_bytes)} of libraries and files are in use by"
        " other processes and were not counted; a container alone on a machine counts them."
    )


def _smaller_limit_text(limit: MemoryLimit) -> str:
    point = limit.largest_failed
    if point is None or point.limit_bytes is None:
        return ""
    size = format_size(point.limit_bytes)
    if point.outcome == "killed":
        return f"In {size} it is killed{_ended_phase_clause(point)}."
    if point.outcome == "timeout":
        killed_points = [
            limited_point for limited_point in limit.limited if limited_point.outcome == "killed"
        ]
        ending = "."
        if killed_points:
            killed_size = format_size(killed_points[-1].limit_bytes or 0)
            ending = f", and in {killed_size} it is killed{_ended_phase_clause(killed_points[-1])}."
        return (
            f"In {size} it takes more than three times as long{_ended_phase_clause(point)}, as"
            f" contents of files are dropped and read again all the time{ending}"
        )
    phase = f" in {plain(point.phase)}" if point.phase else ""
    return f"In {size} it fails{phase}: {plain(point.message)}."


def _ended_phase_clause(point: LimitPoint) -> str:
    if point.phase == "start":
        return " before the model is loaded (Python and onnxruntime alone need more)"
    return f" in {plain(point.phase)}" if point.phase else ""


def _counted_parts_text(limit: MemoryLimit) -> str:
    memory = limit.counted
    if memory is None:
        return ""
    kernel = f" + {format_size(memory.kernel_bytes)} of the kernel" if memory.kernel_bytes else ""
    period = "after the runs" if limit.kind == "model" else "at most"
    return (
        f"Counted {period}, without a limit: {format_size(memory.anonymous_bytes)} anonymous +"
        f" {format_size(memory.file_bytes)} of files, which can be dropped{kernel}."
    )


def suggestion_reason(limit: MemoryLimit) -> str:
    """Return where the suggested request and limit come from, with the reason for the margin."""
    if limit.device is not None:
        return device_limit_reason(limit)
    basis = (
        "the smallest limit without slowdown"
        if limit.is_measured_under_limits
        else "the peak without a limit"
        if limit.estimated_bytes is None
        else "the larger of measured peak and estimate"
    )
    if limit.uncounted_bytes >= MIN_UNCOUNTED_BYTES:
        basis += f", with {format_size(limit.uncounted_bytes)} that were not counted here"
    return (
        f"The request is {basis}; the limit is {limit.margin:.0%} more, for other inputs than"
        " these, other machines, and what else runs in the container."
    )


def yaml_comments(limit: MemoryLimit) -> tuple[str, ...]:
    """Return the comment lines before YAML: what was measured, and what the figures mean."""
    answer = limit_headline(limit)
    version = f", onnxruntime {plain(limit.onnxruntime)}" if limit.onnxruntime else ""
    source = "found with real limits" if limit.is_measured_under_limits else "not found with limits"
    return (
        f"{answer.subject}{version}: {source} by memdiag limit.",
        answer.line,
        suggestion_reason(limit),
    )


def service_name(limit: MemoryLimit) -> str:
    """Return the name of a service: the name of the model's file, or of the program."""
    words = limit.subject.split()
    name = limit.subject if limit.kind == "model" or not words else words[0]
    file = model_file_name(name)
    return file.removesuffix(ONNX_SUFFIX).removesuffix(ORT_SUFFIX)


def _limit_facts(limit: MemoryLimit) -> str:
    parts = [f"onnxruntime {plain(limit.onnxruntime)}"] if limit.onnxruntime else []
    if limit.device is not None and limit.device.name:
        parts.append(plain(limit.device.name))
    parts.append(counted(len(limit.points), "trial"))
    if limit.group_version is not None:
        parts.append(f"control groups v{limit.group_version}")
        parts.append("no swap")
    parts.append(format_duration(limit.duration_s))
    return " · ".join(parts)
