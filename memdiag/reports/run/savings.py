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
"""Resident copies of this many times the weights of a model are explained by a check."""

MIN_HELD_BYTES = 16 * MIB
MIN_HELD_SHARE = 0.1
"""Values in arenas that are worth a sentence: this much, and this share of the process."""

MIN_EXTRA_BYTES = MIB
MIN_EXTRA_SHARE = 0.01
"""Copies beyond the weights of the model that are worth a sentence: this much, and this share of
the program's peak."""


def sentences_after_findings(recording: ProgramRun) -> tuple[str, ...]:
    """Return the sentences that follow the findings."""
    return (
        *_total_saving_sentence(recording.findings),
        *_held_values_sentence(recording),
        *_weight_copies_sentence(recording),
        *_calibration_sentence(recording),
    )


def _held_values_sentence(recording: ProgramRun) -> Iterator[str]:
    """Yield a sentence on the process whose arenas have most in use after its last run."""
    sizes = [
        (_arena_in_use_bytes(xray), xray) for xray in last_xrays(recording) if xray.reason == "end"
    ]
    size, xray = max(sizes, key=lambda each: each[0], default=(0, None))
    if xray is None or size < max(MIN_HELD_BYTES, MIN_HELD_SHARE * xray.attribution.resident_bytes):
        return
    subject = f"Process {xray.pid}" if len(recording.processes) > 1 else "The process"
    holds = f"{subject} holds {format_size(size)} of values in onnxruntime's arenas"
    if recording.is_watched:
        yield (
            f"{holds}: those of a run in progress, or outputs that the program keeps. memdiag leak"
            f" {xray.pid} tells whether they grow; memdiag leak -- COMMAND also names the line."
        )
        return
    yield (
        f"{holds} at its end: outputs that the program keeps, as a rule. memdiag leak tells whether"
        " they grow, and names the line."
    )


def _calibration_sentence(recording: ProgramRun) -> Iterator[str]:
    """Yield why a calibration takes what it does, if there was one."""
    found = [each.number for each in recording.sessions if is_calibrator(each.created_at)]
    if found:
        yield f"{CALIBRATORS_HAVE} (session {number_ranges_text(found)})."


def _arena_in_use_bytes(xray: ProcessXray) -> int:
    """Return the bytes in use in arenas, besides weights."""
    owners = xray.attribution.owners
    return sum(
        each.bytes for each in owners if (each.kind, each.name) == ("arena", ARENA_IN_USE_NAME)
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
    found = [
        each for session in recording.sessions if (each := _excess_copies(session)) is not None
    ]
    found = [
        each for each in found if each[0] - each[1] >= MIN_EXTRA_SHARE * recording.peak_rss_bytes
    ]
    if not found:
        return
    copied, weights, path, session = max(found, key=lambda each: each[0] - each[1])
    others = ""
    is_alone = session.memory is not None and session.memory.sharing == 1
    if recording.earlier_sessions and is_alone and session.pid == recording.processes[0].pid:
        others = " (sessions from before the recording may have part of them)"
    elif any(
        each.pid == session.pid and each.model_key != session.model_key
        for each in recording.sessions
    ):
        # What onnxruntime computes from the weights of one model may equal those of another.
        others = " (part of them may belong to sessions that compute equal weights)"
    explained = ""
    if session.providers[:1] == DEFAULT_PROVIDERS:
        explained = f": memdiag check {shlex.quote(plain(path))} explains them"
    yield (
        f"S{session_name(session, model_names(recording))[1:]} has {format_size(copied)} of copies"
        f" of {format_size(weights)} of weights{others}{explained}."
    )


def _excess_copies(session: ProgramSession) -> tuple[int, int, str, ProgramSession] | None:
    """Return the copies, weights and path of a session with many copies; None for others."""
    weights, path = session.model.weight_bytes, session.model.path
    copied = session.memory and session.memory.weight_bytes
    if not copied or not weights or path is None:
        return None
    has_many = copied > MIN_COPIES_FACTOR * weights and copied - weights >= MIN_EXTRA_BYTES
    return (copied, weights, path, session) if has_many else None
