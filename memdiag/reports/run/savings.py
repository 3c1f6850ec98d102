"""Total saving of the findings, and references to the explanations of copies of weights."""

import shlex
from collections.abc import Iterator, Sequence

from memdiag.defaults import DEFAULT_PROVIDERS
from memdiag.growth.growth_sentences import CALIBRATORS_HAVE, is_calibrator
from memdiag.programs.xray_facts import last_xrays
from memdiag.records.attribution import ARENA_IN_USE_NAME
from memdiag.records.run import ProcessXray, ProgramFinding, ProgramRun, ProgramSession
from memdiag.reports.run.names import model_names, number_ranges_text, session_name
from memdiag.reports.text import plain
from memdiag.units import MIB, format_size

MIN_COPIES_FACTOR = 1.5
"""Resident copies are worth a sentence from this multiple of the weights of a model on."""

MIN_HELD_BYTES = 16 * MIB
MIN_HELD_SHARE = 0.1
"""Values in arenas are worth a sentence if they take this much and this share of the process."""

MIN_EXTRA_BYTES = MIB
MIN_EXTRA_SHARE = 0.01
"""Copies beyond the weights of the model are worth a sentence if they take this much and this share
of the program's peak."""


def sentences_after_findings(recording: ProgramRun) -> tuple[str, ...]:
    """Return the sentences that follow the findings."""
    return (
        *_total_saving_sentence(recording.findings),
        *_held_values_sentence(recording),
        *_weight_copies_sentence(recording),
        *_calibration_sentence(recording),
    )


def _held_values_sentence(recording: ProgramRun) -> Iterator[str]:
    """Yield a sentence on the process whose arenas have most memory in use after its last run."""
    sizes = [
        (_arena_in_use_bytes(xray), xray) for xray in last_xrays(recording) if xray.reason == "end"
    ]
    size, xray = max(sizes, key=lambda size_and_xray: size_and_xray[0], default=(0, None))
    if xray is None or size < max(MIN_HELD_BYTES, MIN_HELD_SHARE * xray.attribution.resident_bytes):
        return
    subject = f"Process {xray.pid}" if len(recording.processes) > 1 else "The process"
    start = f"{subject} holds {format_size(size)} of values in onnxruntime's arenas"
    if recording.is_watched:
        yield (
            f"{start}: those of a run in progress, or outputs that the program keeps. memdiag leak"
            f" {xray.pid} tells whether they grow; memdiag leak -- COMMAND also names the line."
        )
        return
    yield (
        f"{start} at its end: outputs that the program keeps, as a rule. memdiag leak tells whether"
        " they grow, and names the line."
    )


def _calibration_sentence(recording: ProgramRun) -> Iterator[str]:
    """Yield why a calibration takes so much, if there was one."""
    session_numbers = [
        session.number for session in recording.sessions if is_calibrator(session.created_at)
    ]
    if session_numbers:
        yield f"{CALIBRATORS_HAVE} (session {number_ranges_text(session_numbers)})."


def _arena_in_use_bytes(xray: ProcessXray) -> int:
    """Return the bytes in use in arenas, besides weights."""
    owners = xray.attribution.owners
    return sum(
        owner.bytes for owner in owners if (owner.kind, owner.name) == ("arena", ARENA_IN_USE_NAME)
    )


def _total_saving_sentence(findings: Sequence[ProgramFinding]) -> Iterator[str]:
    sizes = [finding.bytes for finding in findings if finding.bytes]
    if len(sizes) < 2:
        return
    if _has_disjoint_sessions([finding for finding in findings if finding.bytes]):
        yield f"Together the findings could save {format_size(sum(sizes))}."
    else:
        yield (
            "Findings can overlap: do not add their sizes. The largest is"
            f" {format_size(max(sizes))}."
        )


def _has_disjoint_sessions(findings: Sequence[ProgramFinding]) -> bool:
    """Return whether the findings are known to concern different sessions."""
    numbers = [number for finding in findings for number in set(finding.sessions)]
    return len(numbers) == len(set(numbers)) and all(finding.sessions for finding in findings)


def _weight_copies_sentence(recording: ProgramRun) -> Iterator[str]:
    """Yield a sentence on the session with most copies beyond the weights of its model."""
    candidates = [
        candidate
        for session in recording.sessions
        if (candidate := _excess_copies(session)) is not None
    ]
    candidates = [
        candidate
        for candidate in candidates
        if _excess_bytes(candidate) >= MIN_EXTRA_SHARE * recording.peak_rss_bytes
    ]
    if not candidates:
        return
    copy_bytes, weight_bytes, path, session = max(candidates, key=_excess_bytes)
    remark = ""
    is_alone = session.memory is not None and session.memory.sharing == 1
    if recording.earlier_sessions and is_alone and session.pid == recording.processes[0].pid:
        remark = " (sessions from before the recording may have part of them)"
    elif any(
        other_session.pid == session.pid and other_session.model_key != session.model_key
        for other_session in recording.sessions
    ):
        # What onnxruntime computes from the weights of one model may equal weights of another.
        remark = " (part of them may belong to sessions that compute equal weights)"
    advice = ""
    if session.providers[:1] == DEFAULT_PROVIDERS:
        advice = f": memdiag check {shlex.quote(plain(path))} explains them"
    yield (
        f"S{session_name(session, model_names(recording))[1:]} has {format_size(copy_bytes)} of"
        f" copies of {format_size(weight_bytes)} of weights{remark}{advice}."
    )


def _excess_bytes(candidate: tuple[int, int, str, ProgramSession]) -> int:
    copy_bytes, weight_bytes, _, _ = candidate
    return copy_bytes - weight_bytes


def _excess_copies(session: ProgramSession) -> tuple[int, int, str, ProgramSession] | None:
    """Return the bytes of copies and weights, and the path, of a session with many copies."""
    weight_bytes, path = session.model.weight_bytes, session.model.path
    copy_bytes = session.memory and session.memory.weight_bytes
    if not copy_bytes or not weight_bytes or path is None:
        return None
    has_many = (
        copy_bytes > MIN_COPIES_FACTOR * weight_bytes
        and copy_bytes - weight_bytes >= MIN_EXTRA_BYTES
    )
    return (copy_bytes, weight_bytes, path, session) if has_many else None
