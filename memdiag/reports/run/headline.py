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
"""Share of the peak that the resident sets must have for a reading to be near the peak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHeadline:
    """The answer.

    Attributes:
        first: whether the memory was still growing, the session that takes most, the peak, and the
            numbers of processes, sessions and models.
        second: what tells more about the growth, how the program ended, and what the figures count.
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
"""Share of the peak from which on a rise without steady growth of a watched process is stated."""

MIN_END_XRAYS_S = 0.1
"""Seconds from which on the time for X-rays is stated."""


def run_headline(recording: ProgramRun) -> RunHeadline:
    """Return the headline of `recording`."""
    pss = pss_near_peak(recording)
    pss_sentences = ""
    if len(recording.processes) > 1 and pss is not None:
        pss_sentences = (
            "The sum counts pages that processes share for each of them. The second figure counts"
            " them once (PSS); it is read less often and may have been higher."
        )
    elif len(recording.processes) > 1:
        pss_sentences = (
            "The sum counts pages that processes share for each of them. A figure that counts them"
            " once (PSS) was not read near the peak."
        )
    growth = recorded_growth(recording)
    growth_text, advice = recorded_growth_texts(recording, growth) if growth else ("", "")
    counts_sentence = _counts_sentence(recording, is_growing=growth is not None)
    version = recording.environment.onnxruntime
    cpus = counted(recording.environment.cpu_count, "CPU")
    return RunHeadline(
        program=shortened(command_text(recording.command), 120) or "program",
        first=" ".join(
            filter(
                None, (growth_text, _largest_and_peak_text(recording, pss, growth), counts_sentence)
            )
        ),
        second=" ".join(
            filter(
                None,
                (
                    advice,
                    _exit_sentence(recording),
                    pss_sentences,
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

    If the memory grew by more than it rose for any session, no session is named.
    """
    largest_text = (
        _largest_session_text(recording)
        if growth is None or growth.bytes <= _largest_rise_bytes(recording)
        else ""
    )
    if not recording.peak_rss_bytes:
        return f"{largest_text}." if largest_text else ""
    size, peak_time = format_size(recording.peak_rss_bytes), format_duration(recording.peak_s)
    if len(recording.processes) > 1:
        pss_clause = ""
        if pss is not None:
            pss_clause = (
                f", {format_size(pss.pss_bytes)} if shared pages are counted once (read at"
                f" {format_duration(pss.t_s)})"
            )
        period = " during the recording" if recording.is_watched else ""
        peak_kind = _watched_peak_kind(recording) if recording.is_watched else f"at {peak_time}"
        peak_sentence = (
            f"The processes took at most {size} together{period} ({peak_kind}){pss_clause}."
        )
        return f"{largest_text}. {peak_sentence}" if largest_text else peak_sentence
    if recording.is_watched:
        return _watched_memory_text(recording, is_growing=growth is not None)
    if largest_text:
        return f"{largest_text}; the program's peak is {size}, {_peak_activity_text(recording)}."
    return f"The program's peak is {size}, {_peak_activity_text(recording)}."


def _watched_memory_text(recording: ProgramRun, *, is_growing: bool) -> str:
    """Return the largest memory of a watched process, and its earlier peak if that is higher.

    Its largest owner follows, unless the sentence on growth names it, or no X-ray was taken.
    """
    peak_bytes = recording.peak_rss_bytes
    earlier_peak_bytes = max(
        (process.earlier_peak_rss_bytes or 0 for process in recording.processes), default=0
    )
    earlier_peak_clause = ""
    earlier_size = format_size(earlier_peak_bytes)
    if earlier_peak_bytes > peak_bytes and earlier_size != format_size(peak_bytes):
        earlier_peak_clause = f"; the process's peak before was {earlier_size}"
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
                f"Largest memory during the recording: {format_size(peak_bytes)}"
                f" ({_watched_peak_kind(recording)}){earlier_peak_clause}.",
                "" if is_growing else _rest_rise_sentence(recording, recording.processes[0]),
                owner,
            ),
        )
    )


def _rest_rise_sentence(recording: ProgramRun, process: ProgramProcess) -> str:
    """Return a sentence on whether the memory of a watched process rose; empty if unknown."""
    rise = rise_at_rest(process)
    if rise is None:
        return ""
    min_rise_bytes = max(
        MIN_REST_RISE_BYTES, round(_MIN_REST_RISE_SHARE * recording.peak_rss_bytes)
    )
    duration = format_duration(rise.seconds)
    is_alive = can_be_observed(recording, process)
    if rise.bytes >= min_rise_bytes:
        rise_clause = f"It rose by {format_size(rise.bytes)} in {duration}, not steadily"
        if not is_alive:
            return f"{rise_clause}."
        return (
            f"{rise_clause}: memdiag leak {process.pid} tells whether it goes on, memdiag leak --"
            " COMMAND at which run it rose."
        )
    if rise.end_bytes >= min_rise_bytes:
        advice = f"; memdiag leak {process.pid} tells which" if is_alive else ""
        return (
            f"At the end of the {duration} it had {format_size(rise.end_bytes)} more than at times"
            f" in the second half of them: of a run in progress, or for good{advice}."
        )
    return f"No growth was seen in {duration}."


def _watched_peak_kind(recording: ProgramRun) -> str:
    """Return the kind of the peak, with its time if it is a sample."""
    if recording.peak_rss_bytes > max(recording.samples.rss_bytes, default=0):
        return "exact"
    return f"sampled, at {format_duration(recording.peak_s)}"


def _largest_rise_bytes(recording: ProgramRun) -> int:
    """Return the largest rise of memory in a creation, a first run or a later run."""
    session, run_rise = largest_session(recording), largest_run_rise(recording)
    return max(session_rise_bytes(session) if session else 0, run_rise.bytes if run_rise else 0)


def _largest_session_text(recording: ProgramRun) -> str:
    """Return ``Session 2 (m.onnx) takes most: +60 MiB in its creation and first run``.

    If a later run raised the memory by more, that run is named. If a fork runs the sessions of its
    parent and is much larger than each process that created sessions, the fork is named.
    """
    session = largest_session(recording)
    rise_bytes = session_rise_bytes(session) if session is not None else 0
    fork = _largest_fork(recording)
    if fork is not None:
        size = format_size(fork.peak_rss_bytes)
        return f"Process {fork.pid}, a fork of {fork.forked_from}, takes most: {size} at its peak"
    run_rise = largest_run_rise(recording)
    if run_rise is not None and run_rise.bytes > rise_bytes:
        name, shapes = session_name(run_rise.session, model_names(recording)), run_rise.shapes
        size = format_size(run_rise.bytes, signed=True)
        return f"A run of {name} with {shapes} takes most: {size} in process {run_rise.session.pid}"
    if session is None or not rise_bytes:
        return ""
    name = f"S{session_name(session, model_names(recording))[1:]}"
    similar_rises = [
        session_rise_bytes(other_session)
        for other_session in recording.sessions
        if _is_about_as_large(other_session, session)
    ]
    steps = "creation and first run" if _has_run_itself(session) else "creation"
    if len(similar_rises) > 1 and not session.shared_with:
        other_sessions = counted(len(similar_rises) - 1, "more session")
        smallest_rise = min(similar_rises)
        size = f"about {session_rise_text(session)}"
        if smallest_rise < MIN_ALIKE * rise_bytes:
            smallest_size = format_size(smallest_rise, signed=True)
            size = f"{smallest_size} to {format_size(rise_bytes, signed=True)}"
        return f"{name} and {other_sessions} take most: {size} each in their {steps}"
    if session.error is not None:
        steps += ", which failed"
    if session.shared_with:
        session_numbers = number_ranges_text({session.number, *session.shared_with})
        return (
            f"Sessions {session_numbers}, created or run at the same time, take most:"
            f" {session_rise_text(session)} in the {steps} of session {session.number}"
        )
    verb = "takes most:" if len(recording.sessions) > 1 else "takes"
    threads_clause = (
        f", with up to {session.run_threads} runs at once" if session.run_threads > 1 else ""
    )
    return f"{name} {verb} {session_rise_text(session)} in its {steps}{threads_clause}"


def _is_about_as_large(session: ProgramSession, reference: ProgramSession) -> bool:
    """Return whether `session` takes about as much as `reference`.

    Later sessions of a model may take less: they reuse what the creation of the first one freed.
    """
    is_copy = (session.pid, session.model_key) == (reference.pid, reference.model_key)
    share = _MIN_ALIKE_OF_MODEL if is_copy else MIN_ALIKE
    return session_rise_bytes(session) >= share * session_rise_bytes(reference)


def _largest_fork(recording: ProgramRun) -> ProgramProcess | None:
    """Return the largest fork if it is much larger than any process with sessions."""
    pids_with_sessions = {session.pid for session in recording.sessions}
    max_session_process_bytes = max(
        (
            process.peak_rss_bytes
            for process in recording.processes
            if process.pid in pids_with_sessions
        ),
        default=0,
    )
    forks = [
        process
        for process in recording.processes
        if process.inherited and process.pid not in pids_with_sessions
    ]
    largest_fork = max(forks, key=lambda process: process.peak_rss_bytes, default=None)
    if largest_fork is None or MIN_ALIKE * largest_fork.peak_rss_bytes <= max_session_process_bytes:
        return None
    return largest_fork


def _peak_activity_text(recording: ProgramRun) -> str:
    """Return the activity at the peak; the largest session is named without its model."""
    activities = session_activities(recording, recording.peak_s)
    session = largest_session(recording)
    if len(activities) == 1 and activities[0].session is session and session_rise_bytes(session):
        # If several runs were under way, any of them may have raised the memory.
        shapes = (
            f" ({activities[0].shapes})" if activities[0].shapes and session.run_threads < 2 else ""
        )
        return f"in {activities[0].short_text}{shapes}"
    activity_text = activities_text(recording, recording.peak_s)
    if activity_text:
        return f"in {activity_text}"
    idle_clause = idle_moment_clause(recording, recording.peak_s)
    return f"at {format_duration(recording.peak_s)}{idle_clause and f', {idle_clause}'}"


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

    It is read seldom, so the largest reading may be from a moment with far less memory.
    """
    samples = recording.samples
    readings = list(map(PssReading, samples.proportional_t_s, samples.pss_bytes))
    if any(
        _sampled_rss_bytes(recording, reading.t_s) >= MIN_PSS_SHARE * recording.peak_rss_bytes
        for reading in readings
    ):
        return max(readings, key=lambda reading: reading.pss_bytes)
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

    The last sentence is about the memory of one more process.
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
    """Yield what one more process of a pool takes, which is the memory that it does not share.

    Memory that a process shared with others becomes private once they have ended, so the figures at
    the ends of the processes differ. The rise from the last X-ray to the peak counts as private.
    """
    model_by_session = {session.number: session.model_key for session in recording.sessions}
    process_by_pid = {process.pid: process for process in recording.processes}
    xrays_by_pool: dict[Hashable, list[ProcessXray]] = {}
    for xray in last_xrays(recording):
        process = process_by_pid[xray.pid]
        created_sessions = [
            session.number for session in recording.sessions if session.pid == process.pid
        ]
        inherited_sessions = [copy.session for copy in process.inherited]
        used_sessions = [*created_sessions, *inherited_sessions]
        keys = tuple(
            sorted(
                model_by_session[number] for number in used_sessions if number in model_by_session
            )
        )
        key = process.parent, process_name(process, recording), keys
        xrays_by_pool.setdefault(key, []).append(xray)
    for xrays in xrays_by_pool.values():
        sizes = [sum(owner.private_bytes for owner in xray.attribution.owners) for xray in xrays]
        if len(sizes) > 1:
            smallest_size, largest_size = format_size(min(sizes)), format_size(max(sizes))
            size_text = (
                f"about {smallest_size}"
                if smallest_size == largest_size
                else f"{smallest_size} to {largest_size}"
            )
            pids = some_of(sorted(str(xray.pid) for xray in xrays))
            peak_bytes = max(
                size
                + process_by_pid[xray.pid].peak_rss_bytes
                - sum(owner.bytes for owner in xray.attribution.owners)
                for xray, size in zip(xrays, sizes, strict=True)
            )
            peak_clause = (
                f", and up to {format_size(peak_bytes)} at its peak"
                if peak_bytes > max(sizes)
                else ""
            )
            yield (
                f"One more process like {pids} takes {size_text}{peak_clause}: the memory that"
                " each shares with no other process in its last X-ray."
            )


def _limited_sentences(sentences: Sequence[str]) -> Sequence[str]:
    omitted_count = len(sentences) - _MAX_REMARKS
    if omitted_count <= 0:
        return sentences
    return [
        *sentences[:_MAX_REMARKS],
        f"{omitted_count:,} more sentences of this kind are in the report.",
    ]


def _failure_sentences(recording: ProgramRun, models: Mapping[str, str]) -> Iterator[str]:
    for session in recording.sessions:
        name = f"S{session_name(session, models)[1:]}"
        if session.error is not None:
            message = shortened(plain(session.error), _MAX_ERROR_MESSAGE)
            yield f"{name} could not be created: {message.rstrip('.')}."
        elif session.creation_s is None:
            phase_text = f" in {session.phases[-1].name}" if session.phases else ""
            yield f"{name} was not finished{phase_text} when its process ended."


def _idle_session_sentences(recording: ProgramRun, models: Mapping[str, str]) -> Iterator[str]:
    idle_sessions = [session for session in recording.sessions if is_idle(session)]
    if idle_sessions:
        plural = "s" if len(idle_sessions) > 1 else ""
        idle_models = list(dict.fromkeys(models[session.model_key] for session in idle_sessions))
        more_text = f" and {len(idle_models) - 3} more" if len(idle_models) > 3 else ""
        numbers = number_ranges_text(session.number for session in idle_sessions)
        yield (
            f"Session{plural} {numbers} never ran"
            f" ({', '.join(shortened(name, 40) for name in idle_models[:3])}{more_text})."
        )


def is_idle(session: ProgramSession) -> bool:
    """Return whether `session` was created and never run."""
    return session.error is None and session.creation_s is not None and not has_run(session)


def has_run(session: ProgramSession) -> bool:
    """Return whether `session` was run, even if the number of runs was lost with its process.

    Runs of its copies in forks count, too.
    """
    return _has_run_itself(session) or session.forked_run_count > 0


def _has_run_itself(session: ProgramSession) -> bool:
    return session.run_count > 0 or session.first_run_s is not None


def runs_text(sessions: Sequence[ProgramSession]) -> str:
    """Return the number of runs of all `sessions`; ``≥ 1`` if some were not reported.

    Runs in forks are counted separately: ``20 in forks``.
    """
    known_runs = sum(session.run_count for session in sessions)
    unreported_runs = sum(
        _has_run_itself(session) and not session.run_count for session in sessions
    )
    forked_runs = sum(session.forked_run_count for session in sessions)
    text = f"≥ {known_runs + unreported_runs:,}" if unreported_runs else f"{known_runs:,}"
    if not forked_runs:
        return text
    return (
        f"{text} + {forked_runs:,} in forks"
        if known_runs + unreported_runs
        else f"{forked_runs:,} in forks"
    )


def _shared_peak_sentences(recording: ProgramRun) -> Iterator[str]:
    sharing_sessions = [session for session in recording.sessions if session.shared_with]

    def shared_numbers(session: ProgramSession) -> list[int]:
        return sorted({session.number, *session.shared_with})

    for group, sessions in groupby(
        sorted(sharing_sessions, key=shared_numbers), key=shared_numbers
    ):
        numbers = [session.number for session in sessions]
        plural = "s" if len(numbers) > 1 else ""
        if numbers == group:
            yield (
                f"Sessions {number_ranges_text(numbers)} were created or run at the same time in"
                " one process: the peaks of their phases cannot be told apart."
            )
            continue
        other_numbers = [number for number in group if number not in numbers]
        yield (
            f"The peaks of session{plural} {number_ranges_text(numbers)} are shared with session"
            f"{'s' if len(other_numbers) > 1 else ''} {number_ranges_text(other_numbers)}, created"
            " or run at the same time in the same process."
        )


def finding_texts(finding: ProgramFinding) -> tuple[str, str]:
    """Return the message of `finding` with its name and size, and its remedy."""
    size = f" ({format_size(finding.bytes)})" if finding.bytes is not None else ""
    return f"{plain(finding.name)}{size}: {plain(finding.message)}", plain(finding.remedy)
