"""The answer of a recorded program in two sentences, and remarks on its sessions."""

import signal
from bisect import bisect_right
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from memdiag.growth.recorded_growth import RecordedGrowth, recorded_growth, rise_at_rest
from memdiag.process_end import end_text
from memdiag.programs.xray_facts import last_xrays
from memdiag.records.run import (
    ProcessXray,
    ProgramFinding,
    ProgramProcess,
    ProgramRun,
    ProgramSession,
)
from memdiag.reports.control_group import container_sentence
from memdiag.reports.run.growth import (
    can_be_observed,
    largest_owner_sentence,
    recorded_growth_texts,
)
from memdiag.reports.run.names import (
    command_text,
    model_names,
    number_ranges_text,
    process_name,
    session_name,
)
from memdiag.reports.run.peaks import (
    activities_text,
    idle_moment_clause,
    largest_run_rise,
    largest_session,
    session_activities,
    session_rise_bytes,
    session_rise_text,
)
from memdiag.reports.text import plain, shortened
from memdiag.units import MIB, counted, format_duration, format_size, some_of

_MAX_REMARKS = 5  # of a kind
_MAX_ERROR_MESSAGE = 300

MIN_PSS_SHARE = 0.9
"""A proportional set was read near the peak if the resident sets then were this share of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHeadline:
    """The answer.

    Attributes:
        first: whether the memory was still growing, the session that takes most, the peak, and the
            numbers of processes, sessions and models.
        second: what tells more of the growth, how the program ended, and what the figures count.
        facts: the runtime and the machine.
        is_success: whether the program ended with exit code 0, or goes on.
    """

    program: str
    first: str
    second: str
    facts: str
    is_success: bool


MIN_ALIKE, _MIN_ALIKE_OF_MODEL = 0.95, 0.5
"""Sessions take about as much as the largest session if they add this share of its memory."""

MIN_REST_RISE_BYTES = MIB
_MIN_REST_RISE_SHARE = 0.005
"""A process that was watched without a steady growth is said to have risen from this on."""

MIN_END_XRAYS_S = 0.1
"""Seconds of X-rays that are stated."""


def run_headline(recording: ProgramRun) -> RunHeadline:
    """Return the headline of `recording`."""
    pss = pss_near_peak(recording)
    shared = ""
    if len(recording.processes) > 1 and pss is not None:
        shared = (
            "The sum counts pages that processes share for each of them. The second figure counts"
            " them once (PSS); it is read less often and may have been higher."
        )
    elif len(recording.processes) > 1:
        shared = (
            "The sum counts pages that processes share for each of them. A figure that counts them"
            " once (PSS) was not read near the peak."
        )
    growth = recorded_growth(recording)
    grows, advice = recorded_growth_texts(recording, growth) if growth else ("", "")
    counts = _counts_sentence(recording, is_growing=growth is not None)
    version = recording.environment.onnxruntime
    cpus = counted(recording.environment.cpu_count, "CPU")
    return RunHeadline(
        program=shortened(command_text(recording.command), 120) or "program",
        first=" ".join(
            filter(None, (grows, _largest_and_peak_text(recording, pss, growth), counts))
        ),
        second=" ".join(
            filter(
                None,
                (
                    advice,
                    _exit_sentence(recording),
                    shared,
                    container_sentence(recording.environment, recording.group),
                ),
            )
        ),
        facts=f"{f'onnxruntime {plain(version)}' if version else 'onnxruntime not used'} · {cpus}",
        is_success=not recording.exit_code,
    )


class PssReading(NamedTuple):
    """A reading of the proportional sets of all processes together."""

    t_s: float
    pss_bytes: int


def _largest_and_peak_text(
    recording: ProgramRun, pss: PssReading | None, growth: RecordedGrowth | None
) -> str:
    """Return which session takes most, and the peak; empty if neither is known.

    No session is said to take most where the memory grew by more than it rose for any.
    """
    largest = (
        _largest_session_text(recording)
        if growth is None or growth.bytes <= _largest_rise_bytes(recording)
        else ""
    )
    if not recording.peak_rss_bytes:
        return f"{largest}." if largest else ""
    size, at = format_size(recording.peak_rss_bytes), format_duration(recording.peak_s)
    if len(recording.processes) > 1:
        once = ""
        if pss is not None:
            once = (
                f", {format_size(pss.pss_bytes)} if shared pages are counted once (read at"
                f" {format_duration(pss.t_s)})"
            )
        during = " during the recording" if recording.is_watched else ""
        reading = _watched_peak_kind(recording) if recording.is_watched else f"at {at}"
        together = f"The processes took at most {size} together{during} ({reading}){once}."
        return f"{largest}. {together}" if largest else together
    if recording.is_watched:
        return _watched_memory_text(recording, is_growing=growth is not None)
    if largest:
        return f"{largest}; the program's peak is {size}, {_peak_activity_text(recording)}."
    return f"The program's peak is {size}, {_peak_activity_text(recording)}."


def _watched_memory_text(recording: ProgramRun, *, is_growing: bool) -> str:
    """Return the largest memory of a process that was watched, and its peak before if higher.

    Its largest owner follows, unless the sentence on growth has it, or no X-ray was taken.
    """
    highest = recording.peak_rss_bytes
    earlier = max((each.earlier_peak_rss_bytes or 0 for each in recording.processes), default=0)
    before = ""
    if earlier > highest and format_size(earlier) != format_size(highest):
        before = f"; the process's peak before was {format_size(earlier)}"
    owner = ""
    if recording.xrays:
        owner = "" if is_growing else largest_owner_sentence(last_xrays(recording)[0])
    elif recording.processes[0].onnxruntime:
        reason = "as its X-ray was not completed" if recording.end_waits else "without an X-ray"
        owner = f"Its owners are not known {reason}."
    return " ".join(
        filter(
            None,
            (
                f"Largest memory during the recording: {format_size(highest)}"
                f" ({_watched_peak_kind(recording)}){before}.",
                "" if is_growing else _rest_rise_sentence(recording, recording.processes[0]),
                owner,
            ),
        )
    )


def _rest_rise_sentence(recording: ProgramRun, process: ProgramProcess) -> str:
    """Return whether the memory of a process that was watched rose; empty if that is not known."""
    rise = rise_at_rest(process)
    if rise is None:
        return ""
    least = max(MIN_REST_RISE_BYTES, round(_MIN_REST_RISE_SHARE * recording.peak_rss_bytes))
    duration = format_duration(rise.seconds)
    is_alive = can_be_observed(recording, process)
    if rise.bytes >= least:
        rose = f"It rose by {format_size(rise.bytes)} in {duration}, not steadily"
        if not is_alive:
            return f"{rose}."
        return (
            f"{rose}: memdiag leak {process.pid} tells whether it goes on, memdiag leak -- COMMAND"
            " at which run it rose."
        )
    if rise.end_bytes >= least:
        more = f"; memdiag leak {process.pid} tells which" if is_alive else ""
        return (
            f"At the end of the {duration} it had {format_size(rise.end_bytes)} more than at times"
            f" in the second half of them: of a run in progress, or for good{more}."
        )
    return f"No growth was seen in {duration}."


def _watched_peak_kind(recording: ProgramRun) -> str:
    """Return the kind of the peak; with its time, unless it is a mark between two samples."""
    if recording.peak_rss_bytes > max(recording.samples.rss_bytes, default=0):
        return "exact"
    return f"sampled, at {format_duration(recording.peak_s)}"


def _largest_rise_bytes(recording: ProgramRun) -> int:
    """Return the largest rise of memory in a creation, a first run or a later run."""
    session, largest = largest_session(recording), largest_run_rise(recording)
    return max(session_rise_bytes(session) if session else 0, largest.bytes if largest else 0)


def _largest_session_text(recording: ProgramRun) -> str:
    """Return ``Session 2 (m.onnx) takes most: +60 MiB in its creation and first run``.

    A later run that raised the memory by more comes first, and before it a fork that runs the
    sessions of its parent and is much larger than each process with sessions of its own.
    """
    session = largest_session(recording)
    rise = session_rise_bytes(session) if session is not None else 0
    fork = _largest_fork(recording)
    if fork is not None:
        size = format_size(fork.peak_rss_bytes)
        return f"Process {fork.pid}, a fork of {fork.forked_from}, takes most: {size} at its peak"
    largest = largest_run_rise(recording)
    if largest is not None and largest.bytes > rise:
        name, shapes = session_name(largest.session, model_names(recording)), largest.shapes
        size = format_size(largest.bytes, signed=True)
        return f"A run of {name} with {shapes} takes most: {size} in process {largest.session.pid}"
    if session is None or not rise:
        return ""
    name = f"S{session_name(session, model_names(recording))[1:]}"
    alike = [
        session_rise_bytes(other)
        for other in recording.sessions
        if _is_about_as_large(other, session)
    ]
    when = "creation and first run" if _has_run_itself(session) else "creation"
    if len(alike) > 1 and not session.shared_with:
        others = counted(len(alike) - 1, "more session")
        least = min(alike)
        size = f"about {session_rise_text(session)}"
        if least < MIN_ALIKE * rise:
            size = f"{format_size(least, signed=True)} to {format_size(rise, signed=True)}"
        return f"{name} and {others} take most: {size} each in their {when}"
    if session.error is not None:
        when += ", which failed"
    if session.shared_with:
        together = number_ranges_text({session.number, *session.shared_with})
        return (
            f"Sessions {together}, created or run at the same time, take most:"
            f" {session_rise_text(session)} in the {when} of session {session.number}"
        )
    verb = "takes most:" if len(recording.sessions) > 1 else "takes"
    at_once = f", with up to {session.run_threads} runs at once" if session.run_threads > 1 else ""
    return f"{name} {verb} {session_rise_text(session)} in its {when}{at_once}"


def _is_about_as_large(other: ProgramSession, largest: ProgramSession) -> bool:
    """Return whether `other` takes about as much as `largest`.

    Later sessions of a model need not take what the first one's creation freed.
    """
    is_copy = (other.pid, other.model_key) == (largest.pid, largest.model_key)
    share = _MIN_ALIKE_OF_MODEL if is_copy else MIN_ALIKE
    return session_rise_bytes(other) >= share * session_rise_bytes(largest)


def _largest_fork(recording: ProgramRun) -> ProgramProcess | None:
    """Return the fork that is much larger than any process with sessions; None for none."""
    owners = {session.pid for session in recording.sessions}
    owned = max(
        (each.peak_rss_bytes for each in recording.processes if each.pid in owners), default=0
    )
    forks = [each for each in recording.processes if each.inherited and each.pid not in owners]
    largest = max(forks, key=lambda each: each.peak_rss_bytes, default=None)
    if largest is None or MIN_ALIKE * largest.peak_rss_bytes <= owned:
        return None
    return largest


def _peak_activity_text(recording: ProgramRun) -> str:
    """Return the activity at the peak; the largest session is named without its model."""
    found = session_activities(recording, recording.peak_s)
    session = largest_session(recording)
    if len(found) == 1 and found[0].session is session and session_rise_bytes(session):
        # Of runs at once any may have been the one that raised the memory.
        shapes = f" ({found[0].shapes})" if found[0].shapes and session.run_threads < 2 else ""
        return f"in {found[0].short_text}{shapes}"
    where = activities_text(recording, recording.peak_s)
    if where:
        return f"in {where}"
    known = idle_moment_clause(recording, recording.peak_s)
    return f"at {format_duration(recording.peak_s)}{known and f', {known}'}"


def _counts_sentence(recording: ProgramRun, *, is_growing: bool) -> str:
    """Return the numbers of processes, sessions and models, and the duration."""
    models = {session.model_key for session in recording.sessions}
    sessions = counted(len(recording.sessions), "session")
    if recording.sessions:
        sessions += f" of {counted(len(models), 'model')}"
    processes = counted(len(recording.processes), "process", "processes")
    subject = processes if recording.is_watched else f"{processes}, {sessions}"
    text = f"{subject} in {format_duration(recording.duration_s)}"
    if recording.end_xrays_s >= MIN_END_XRAYS_S:
        text += f", {format_duration(recording.end_xrays_s)} of them for X-rays at the end"
    uses_onnxruntime = recording.xrays or any(
        process.onnxruntime for process in recording.processes
    )
    if recording.is_watched and not uses_onnxruntime and not is_growing:
        text += "; onnxruntime was not recognized in it"
    return f"{text}."


def pss_near_peak(recording: ProgramRun) -> PssReading | None:
    """Return the largest proportional set; None if none was read near the peak.

    It is read seldom, so that the largest reading may belong to a moment with far less memory.
    """
    samples = recording.samples
    readings = list(map(PssReading, samples.proportional_t_s, samples.pss_bytes))
    if any(
        _sampled_rss_bytes(recording, each.t_s) >= MIN_PSS_SHARE * recording.peak_rss_bytes
        for each in readings
    ):
        return max(readings, key=lambda each: each.pss_bytes)
    return None


def _sampled_rss_bytes(recording: ProgramRun, t_s: float) -> int:
    """Return the sum of the resident sets at `t_s`."""
    index = bisect_right(recording.samples.t_s, t_s) - 1
    return recording.samples.rss_bytes[index] if index >= 0 else 0


def _exit_sentence(recording: ProgramRun) -> str:
    code = recording.exit_code
    if not code:
        return ""
    reason = ""
    if code == -signal.SIGKILL and recording.group is not None and recording.group.oom_kills:
        reason = ": its control group reached the memory limit, and the kernel killed it"
    return f"The program {end_text(code)}{reason}."


def session_remarks(recording: ProgramRun) -> tuple[str, ...]:
    """Return sentences on sessions that failed, never ran, or were created together with others.

    The last one is on the memory of one more process.
    """
    models = model_names(recording)
    if recording.is_watched:
        return (
            *_pool_process_sentences(recording),
            "Sessions are not listed: the program was started without memdiag. Start it with"
            " memdiag run to record them.",
        )
    if not recording.sessions and recording.earlier_sessions:
        return ("No session was created during the recording.",)
    if not recording.sessions:
        return (
            "No session was recorded: only those of Python programs are, and only if Python was not"
            " started with -S, -I or -E, which ignore memdiag's hook. Of a program in another"
            " language, memdiag xray PID --model MODEL shows the owners of memory while it runs.",
        )
    return (
        *_limited_sentences(list(_failure_sentences(recording, models))),
        *_idle_session_sentences(recording, models),
        *_limited_sentences(list(_shared_peak_sentences(recording))),
        *_pool_process_sentences(recording),
    )


def _pool_process_sentences(recording: ProgramRun) -> Iterator[str]:
    """Yield what one more of the processes of a pool takes: the memory that it does not share.

    Memory that a process shared with others is its own once they have ended, so that the figures at
    the ends of the processes differ. The rise from its last X-ray to its peak counts as its own.
    """
    models = {session.number: session.model_key for session in recording.sessions}
    processes = {process.pid: process for process in recording.processes}
    pools: dict[Hashable, list[ProcessXray]] = {}
    for xray in last_xrays(recording):
        process = processes[xray.pid]
        own = [session.number for session in recording.sessions if session.pid == process.pid]
        found = [*own, *(each.session for each in process.inherited)]
        keys = tuple(sorted(models[number] for number in found if number in models))
        key = process.parent, process_name(process, recording), keys
        pools.setdefault(key, []).append(xray)
    for xrays in pools.values():
        sizes = [sum(each.private_bytes for each in x.attribution.owners) for x in xrays]
        if len(sizes) > 1:
            least, most = format_size(min(sizes)), format_size(max(sizes))
            takes = f"about {least}" if least == most else f"{least} to {most}"
            pids = some_of(sorted(str(xray.pid) for xray in xrays))
            peak = max(
                size
                + processes[xray.pid].peak_rss_bytes
                - sum(owner.bytes for owner in xray.attribution.owners)
                for xray, size in zip(xrays, sizes, strict=True)
            )
            at_peak = f", and up to {format_size(peak)} at its peak" if peak > max(sizes) else ""
            yield (
                f"One more process like {pids} takes {takes}{at_peak}: the memory that each shares"
                " with no other process in its last X-ray."
            )


def _limited_sentences(sentences: Sequence[str]) -> Sequence[str]:
    more = len(sentences) - _MAX_REMARKS
    if more <= 0:
        return sentences
    return [*sentences[:_MAX_REMARKS], f"{more:,} more sentences of this kind are in the report."]


def _failure_sentences(recording: ProgramRun, models: Mapping[str, str]) -> Iterator[str]:
    for session in recording.sessions:
        name = f"S{session_name(session, models)[1:]}"
        if session.error is not None:
            message = shortened(plain(session.error), _MAX_ERROR_MESSAGE)
            yield f"{name} could not be created: {message.rstrip('.')}."
        elif session.creation_s is None:
            last = f" in {session.phases[-1].name}" if session.phases else ""
            yield f"{name} was not finished{last} when its process ended."


def _idle_session_sentences(recording: ProgramRun, models: Mapping[str, str]) -> Iterator[str]:
    idle = [session for session in recording.sessions if is_idle(session)]
    if idle:
        plural = "s" if len(idle) > 1 else ""
        found = list(dict.fromkeys(models[session.model_key] for session in idle))
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        yield (
            f"Session{plural} {number_ranges_text(each.number for each in idle)} never ran"
            f" ({', '.join(shortened(name, 40) for name in found[:3])}{more})."
        )


def is_idle(session: ProgramSession) -> bool:
    """Return whether `session` was created and never run."""
    return session.error is None and session.creation_s is not None and not has_run(session)


def has_run(session: ProgramSession) -> bool:
    """Return whether `session` was run, also if the number of runs was lost with its process.

    Runs of its copies in forks count.
    """
    return _has_run_itself(session) or session.forked_run_count > 0


def _has_run_itself(session: ProgramSession) -> bool:
    return session.run_count > 0 or session.first_run_s is not None


def runs_text(sessions: Sequence[ProgramSession]) -> str:
    """Return the number of runs of all `sessions`; ``≥ 1`` if some were not reported.

    Runs in forks are named: ``20 in forks``.
    """
    known = sum(session.run_count for session in sessions)
    lost = sum(_has_run_itself(session) and not session.run_count for session in sessions)
    forked = sum(session.forked_run_count for session in sessions)
    text = f"≥ {known + lost:,}" if lost else f"{known:,}"
    if not forked:
        return text
    return f"{text} + {forked:,} in forks" if known + lost else f"{forked:,} in forks"


def _shared_peak_sentences(recording: ProgramRun) -> Iterator[str]:
    shared = [session for session in recording.sessions if session.shared_with]

    def together(session: ProgramSession) -> list[int]:
        return sorted({session.number, *session.shared_with})

    for group, found in groupby(sorted(shared, key=together), key=together):
        own = [session.number for session in found]
        plural = "s" if len(own) > 1 else ""
        if own == group:
            yield (
                f"Sessions {number_ranges_text(own)} were created or run at the same time in one"
                " process: the peaks of their phases cannot be told apart."
            )
            continue
        others = [number for number in group if number not in own]
        yield (
            f"The peaks of session{plural} {number_ranges_text(own)} are shared with session"
            f"{'s' if len(others) > 1 else ''} {number_ranges_text(others)}, created or run at the"
            " same time in the same process."
        )


def finding_texts(finding: ProgramFinding) -> tuple[str, str]:
    """Return the number of findings, and the next step."""
    size = f" ({format_size(finding.bytes)})" if finding.bytes is not None else ""
    return f"{plain(finding.name)}{size}: {plain(finding.message)}", plain(finding.remedy)
