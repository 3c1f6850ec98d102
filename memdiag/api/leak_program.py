"""Leak search in processes and programs: observe them while they do their own work."""

import math
import signal
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

import msgspec
import psutil

from memdiag.api.leak import check_runs
from memdiag.api.run import run_program
from memdiag.api.watch import watch
from memdiag.errors import ArgumentError, XrayError
from memdiag.growth.growing_blocks import grown_blocks, repeated_contents
from memdiag.growth.growing_sizes import growing_heap, min_growth_of_program
from memdiag.growth.growth_record import growth_record
from memdiag.growth.growth_sentences import OTHER_PROFILERS, OWNER_LABELS
from memdiag.growth.model_observation import GrowthProgress, OnGrowth
from memdiag.growth.observation import GrowthObservation
from memdiag.growth.process_history import ProcessHistory
from memdiag.growth.slope import MIN_POINTS
from memdiag.growth.steady_growth import MIN_MOMENTS
from memdiag.growth.verdict import compared_moments, kept_values
from memdiag.process_end import end_text
from memdiag.programs.assemble import call_site
from memdiag.programs.events import BetweenRuns
from memdiag.programs.recorded_process import RecordedProcess
from memdiag.programs.recorder import Recorder
from memdiag.programs.rules.session_per_call import RULE as SESSION_PER_CALL
from memdiag.programs.run_pause import RunPause
from memdiag.programs.wait_notice import OnWait
from memdiag.records.growth import GrowingBlocks, GrowingOwner, Growth, Unit
from memdiag.records.run import ProgramRun
from memdiag.system.process_tree import descendants
from memdiag.units import KIB, counted, format_duration, format_size, some_of

PROCESS_PERIOD_S = 0.25
PROGRAM_PERIOD_S = 0.05
"""Seconds between two readings at the start. A program that memdiag starts may be short."""

MIN_READINGS = 25
"""Readings within a duration: in a short one the memory is read more often."""

WARM_UP_SHARE = 0.1
"""Share of the moments of a running program that count as its warm-up."""

STARTUP_S = 10.0
"""Seconds after its start that a process has to load onnxruntime."""

MIN_COUNTED_RUNS = 20
"""From this number of runs on, growth is counted by runs instead of seconds."""

PROGRAM_THREADS = 8
"""Threads of a program that may each have a cache of freed blocks."""

ENDED_BY_USER = (0, -signal.SIGINT, -signal.SIGTERM, 128 + signal.SIGINT, 128 + signal.SIGTERM)
"""Exit codes of a program that ended as intended: servers run until they are interrupted."""

MAX_OTHER_PROCESSES = 5

MIN_VISIBLE_BYTES = 256 * KIB
"""Growth over a few readings, each higher than the last, that is stated without a verdict."""

MIN_HEAP_BYTES = 16 * KIB
"""Growth of blocks of malloc that is not noise. (200 sessions that were each run for the first time
added a few KiB, which looked steady to dense readings of a short program.)"""

MIN_WORK_SHARE = 0.01
"""A process may have done no work if it used less than this share of the time as CPU time."""

MIN_STOPPED_SHARE = 0.05
"""If a process was stopped for this share of the time or longer, a note says so."""

MIN_UNREAD_SHARE = 0.2
"""If this share of the readings failed or more, a pause is advised."""

TOO_SHORT = "too short for a verdict. Observe it longer."
PAUSE_ADVICE = (
    "observe it again with --pause, which stops it while it is read, or for a longer time"
)


class ProgramGrowth(NamedTuple):
    """The growth of a program, and how it ended.

    Attributes:
        growth: the growth.
        exit_code: the exit code of the program; negative for the signal that ended it, and 0 if
            memdiag ended it.
    """

    growth: Growth
    exit_code: int


def leak_process(
    pid: int,
    *,
    duration_s: float | None = None,
    pause: bool = False,
    on_progress: OnGrowth | None = None,
) -> Growth:
    """Observe process `pid` and its descendants while they work, and return whether one grows.

    If several processes have onnxruntime, the process with the most growth is judged. The
    observation ends after `duration_s`, with the process, or at Ctrl-C.

    Args:
        pid: a process of this user, in any language.
        duration_s: the length of the observation in seconds; None for no limit.
        pause: stop the process for some tenths of a second while it is read (SIGSTOP). The heap of
            a busy process can only be read in this way.
        on_progress: called after each reading.

    Raises:
        UsageError: `pid` is this process or process 1, or a time is out of bounds.
        XrayError: there is no such process, it cannot be read, or it began at least `STARTUP_S`
            ago and has no onnxruntime.
    """
    histories = _ProcessHistories(
        _period_s(duration_s, PROCESS_PERIOD_S), on_progress, stops_process=pause
    )
    worked_s = _cpu_time_s(pid)
    is_checked = False

    def update(recorder: Recorder) -> None:
        nonlocal is_checked
        if not is_checked:
            is_checked = True
            _require_onnxruntime(pid, recorder)
        histories.update(recorder)

    run = watch(pid, duration_s=duration_s, xray=False, on_progress=update)
    worked_s = (_cpu_time_s(pid) or 0.0) - (worked_s or 0.0)
    growth = histories.growth(run, f"process {pid}", "process")
    if 0 <= worked_s < MIN_WORK_SHARE * run.duration_s:
        idle_note = (
            f"the processes used {format_duration(worked_s)} of CPU time in"
            f" {format_duration(run.duration_s)}: if they did no work, nothing could grow"
        )
        growth = msgspec.structs.replace(growth, notes=(*growth.notes, idle_note))
    if pause:
        growth = histories.with_stopped_note(growth, run.duration_s)
    else:
        growth = with_pause_advice(growth)
    ended_s = next((process.ended_s for process in run.processes if process.pid == pid), None)
    if duration_s is not None and ended_s is not None:
        observed_text = f"{format_duration(ended_s)} of {format_duration(duration_s)}"
        growth = msgspec.structs.replace(growth, message=f"the process ended after {observed_text}")
    return growth


def leak_program(
    command: Sequence[str],
    *,
    duration_s: float | None = None,
    runs: int | None = None,
    on_progress: OnGrowth | None = None,
    on_wait: OnWait = lambda text: None,
) -> ProgramGrowth:
    """Run the program `command` with its own traffic, and return whether a process of it grows.

    The memory of a process is read between two runs: for some tenths of a second none of its
    threads starts a run. After `duration_s` or `runs`, whichever is first, the program is
    interrupted as by Ctrl-C; how it then ends does not matter.

    Args:
        command: the program and its arguments.
        duration_s: the seconds from its start; None for no limit.
        runs: the number of runs of all its sessions, 40 or more; None for no limit. The runs are
            counted twice a second.
        on_progress: called after each reading.
        on_wait: called with a sentence if the program goes on after it was interrupted.

    Raises:
        UsageError: `command` is empty, the program cannot be started, or a number is out of bounds.
        XrayError: no process of the program ran a session.
    """
    if duration_s is not None and not duration_s > 0:
        raise ArgumentError("{duration_s} must be greater than 0.")
    if runs is not None:
        check_runs(runs)
    period_s = _period_s(duration_s, PROGRAM_PERIOD_S)
    histories = _ProcessHistories(period_s, on_progress)
    was_ended = False

    def is_complete(recorder: Recorder) -> bool:
        nonlocal was_ended
        is_over = duration_s is not None and recorder.now_s() >= duration_s
        was_ended = was_ended or is_over or (runs is not None and _all_runs(recorder) >= runs)
        return was_ended

    run = run_program(
        command,
        takes_xray=False,
        run_pause=RunPause(period_s, histories.read),
        is_complete=is_complete,
        on_wait=on_wait,
    )
    if was_ended:
        run = msgspec.structs.replace(run, exit_code=None)
    growth = histories.growth(run, " ".join(command), "program")
    return ProgramGrowth(growth, run.exit_code or 0)


def _require_onnxruntime(pid: int, recorder: Recorder) -> None:
    """Raise XrayError if no recorded process has onnxruntime, and all of them began long ago."""
    try:
        started = [psutil.Process(process.pid).create_time() for process in recorder.processes]
    except psutil.Error:  # a process has ended
        return
    has_none = all(process.runtime is None for process in recorder.processes)
    if has_none and recorder.peak_rss_bytes and time.time() - max(started) >= STARTUP_S:
        raise XrayError(
            f"process {pid}: onnxruntime was not recognized in it, nor in its descendants. If it"
            f" has none, {OTHER_PROFILERS}. If it loads onnxruntime later, observe it then."
        )


def _cpu_time_s(root: int) -> float | None:
    """Return the CPU time in seconds of process `root` and its descendants; None if a process has
    ended."""
    try:
        times = [psutil.Process(pid).cpu_times() for pid in descendants(root)]
    except psutil.Error:
        return None
    return float(sum(cpu_times.user + cpu_times.system for cpu_times in times))


def _period_s(duration_s: float | None, default_s: float) -> float:
    """Return the seconds between two readings at the start: the default, or less for a short
    duration.

    The period doubles after each 64 readings.
    """
    return min(default_s, (duration_s or math.inf) / MIN_READINGS)


def _all_runs(recorder: Recorder) -> int:
    """Return the number of runs of all recorded sessions that are known."""
    return sum(map(_sent_runs, recorder.processes))


def _sent_runs(process: RecordedProcess) -> int:
    """Return the number of runs of the sessions of `process` that its hook has sent."""
    sessions = process.local_sessions.values()
    return sum(shapes.runs for session in sessions for shapes in session.shapes.values())


class _ProcessHistories:
    """The histories of the processes of a recording that use onnxruntime."""

    def __init__(
        self, period_s: float, on_progress: OnGrowth | None, *, stops_process: bool = False
    ) -> None:
        self._period_s = period_s
        self._on_progress = on_progress
        self._stops_process = stops_process
        self._histories: dict[int, ProcessHistory] = {}
        self._processes: dict[int, RecordedProcess] = {}

    def update(self, recorder: Recorder) -> None:
        """Read the processes of a recording that use onnxruntime, if their next moment is due."""
        for process in recorder.processes:
            if process.ended_s is None and process.runtime_version is not None:
                self._read_process(process, recorder.now_s(), None)

    def read(self, process: RecordedProcess, now_s: float, event: BetweenRuns) -> float:
        """Read `process`, which waits, if its next moment is due; return the seconds until then."""
        return self._read_process(process, now_s, event)

    def _read_process(
        self, process: RecordedProcess, now_s: float, event: BetweenRuns | None
    ) -> float:
        runs = event.runs if event is not None else 0
        history = self._histories.setdefault(
            process.pid,
            ProcessHistory(process.pid, self._period_s, stops_process=self._stops_process),
        )
        self._processes[process.pid] = process
        sessions = None if process.unrecorded else len(process.live_sessions)
        count = len(history.moments)
        wait_s = history.update(
            now_s,
            runs=runs,
            sessions=sessions,
            largest_input=process.largest_input,
            value_starts=process.value_starts,
            waits=event is not None,
            runs_in_flight=event.runs_in_flight if event is not None else 0,
            at_exit=event is not None and event.at_exit,
        )
        if self._on_progress is not None and len(history.moments) != count:
            resident_bytes = history.moments[-1].moment.resident_bytes
            self._on_progress(GrowthProgress(runs, 0, resident_bytes))
        return wait_s

    def with_stopped_note(self, growth: Growth, duration_s: float) -> Growth:
        """Return `growth` with a note on the time for which its process was stopped."""
        stopped_s = max((history.stopped_s for history in self._histories.values()), default=0.0)
        if not MIN_STOPPED_SHARE * duration_s <= stopped_s < duration_s:
            return growth
        speedup = duration_s / (duration_s - stopped_s)
        note = (
            f"the process was stopped for {format_duration(stopped_s)} of"
            f" {format_duration(duration_s)} while it was read: if it does less work for that, it"
            f" grows about {speedup:.1f} times as fast as stated when it runs freely"
        )
        return msgspec.structs.replace(growth, notes=(*growth.notes, note))

    def growth(
        self, recording: ProgramRun, subject: str, kind: Literal["program", "process"]
    ) -> Growth:
        """Return the growth of the process that grew most.

        Raises:
            XrayError: no process with onnxruntime could be read.
        """
        growths = [
            with_session_cause(process_growth(history, self._processes[pid], kind), recording, pid)
            for pid, history in self._histories.items()
            if history.moments
        ]
        if not growths:
            reasons = [history.failure for history in self._histories.values() if history.failure]
            reason = (
                reasons[0]
                if reasons
                else "no process with onnxruntime was seen. Give the command or the process that"
                f" creates the sessions. If there are none, {OTHER_PROFILERS}."
            )
            if reasons and all(process.ended_s is not None for process in recording.processes):
                reason = (
                    "it ended before its memory could be read. Observe it earlier, or while it has"
                    " more work."
                )
            if recording.sessions and not reasons:
                reason = "no session was run. Send the program requests while it is observed."
            if has_failed(recording.exit_code):
                missing_step = (
                    "a run of a session ended" if recording.sessions else "it used onnxruntime"
                )
                reason = f"{_end_text(recording)} before {missing_step}. Correct its error."
            raise XrayError(f"{subject}: {reason}")
        growths.sort(key=lambda growth: (growth.is_leak_or_kept, growth.grown_bytes))
        *other_growths, growth = growths
        if growth.subject != subject and (other_growths or kind == "process"):
            subject = f"{subject}, {growth.subject}"
        notes = [*growth.notes, *recording.notes]
        notes += [
            f"{other_growth.subject}: {other_growth.sentence}"
            for other_growth in other_growths[:MAX_OTHER_PROCESSES]
        ]
        if has_failed(recording.exit_code) and growth.message == TOO_SHORT:
            growth = msgspec.structs.replace(
                growth,
                verdict="undecided",
                sentence=f"{_end_text(recording)}, and nothing could be judged",
                advice="correct the error of the program, and observe it again"
                + visible_growth(growth),
                message="too few readings of the memory before the program's error",
            )
        elif has_failed(recording.exit_code) and not growth.message:
            growth = msgspec.structs.replace(growth, message=_end_text(recording))
        return msgspec.structs.replace(growth, subject=subject, notes=tuple(notes))


def visible_growth(growth: Growth) -> str:
    """Return a clause on memory in use that rose at each of a few readings; empty if there is
    none."""
    moments = compared_moments(growth.moments)
    sizes_by_owner: dict[GrowingOwner, list[int | None]] = {
        "heap": [moment.heap_bytes for moment in moments],
        "arena": [moment.arena_used_bytes for moment in moments],
    }
    text = ""
    for owner, readings in sizes_by_owner.items():
        sizes = [size for size in readings if size is not None]
        if len(sizes) < len(readings):  # some readings failed
            continue
        is_rising = all(before < after for before, after in pairwise(sizes))
        if len(sizes) >= MIN_POINTS and is_rising and sizes[-1] - sizes[0] >= MIN_VISIBLE_BYTES:
            runs = counted(moments[-1].run - moments[0].run, "run")
            growth_text = format_size(sizes[-1] - sizes[0])
            text += f". It may leak: {OWNER_LABELS[owner]} grew by {growth_text} in {runs}"
    return text


def with_pause_advice(growth: Growth) -> Growth:
    """Return the growth of a process that was not paused, with advice to pause it if that helps."""
    unread_count = sum(moment.heap_bytes is None for moment in growth.moments)
    if growth.message == TOO_SHORT:
        message = "too few readings for a verdict"
        growth = msgspec.structs.replace(growth, advice=PAUSE_ADVICE, message=message)
    read_count = len(growth.moments) - unread_count
    if growth.verdict in ("flat", "plateau") and unread_count > read_count:
        # Blocks that are lost may fill memory that malloc had: the resident set shows them later.
        growth = msgspec.structs.replace(
            growth,
            verdict="undecided",
            owner=None,
            slope=None,
            sentence="undecided: the process was busy, so that blocks of malloc could be counted at"
            f" {read_count} of {len(growth.moments)} readings only",
            message="too few readings of malloc",
        )
    if "--pause" in growth.advice:
        return growth
    if unread_count >= MIN_UNREAD_SHARE * len(growth.moments):
        reason = (
            f"at {unread_count} of {len(growth.moments)} readings its memory changed while it was"
            " read"
        )
    elif growth.verdict == "leak":
        reason = "blocks of malloc in its threads, and values that it keeps, may have been missed"
    else:
        return growth
    advice = f"observe it again with --pause: {reason}"
    if growth.advice:
        advice += f". {growth.advice[0].upper()}{growth.advice[1:]}"
    return msgspec.structs.replace(growth, advice=advice)


def with_session_cause(growth: Growth, recording: ProgramRun, pid: int) -> Growth:
    """Return `growth` with its cause, if process `pid` creates a session for each call."""
    process_sessions = {session.number for session in recording.sessions if session.pid == pid}
    cause = next(
        (
            finding
            for finding in recording.findings
            if finding.name == SESSION_PER_CALL.name
            and not process_sessions.isdisjoint(finding.sessions)
        ),
        None,
    )
    if cause is None or growth.verdict == "flat":
        return growth
    advice = f"{cause.remedy} {growth.advice[:1].upper()}{growth.advice[1:]}".strip()
    sentence = f"{growth.sentence}. {cause.message}"
    return msgspec.structs.replace(growth, sentence=sentence, advice=advice)


def has_failed(exit_code: int | None) -> bool:
    """Return whether a program ended with an error: nobody has interrupted or stopped it."""
    return exit_code is not None and exit_code not in ENDED_BY_USER


def _end_text(recording: ProgramRun) -> str:
    """Return how and when a program ended."""
    end = end_text(recording.exit_code or 0)
    return f"the program {end} after {format_duration(recording.duration_s)}"


def process_growth(
    history: ProcessHistory, process: RecordedProcess, kind: Literal["program", "process"]
) -> Growth:
    """Return the growth of one process, which has at least one moment."""
    readings = history.moments
    moments = tuple(reading.moment for reading in readings)
    warm_up = max(1, round(WARM_UP_SHARE * len(moments)))
    unit: Unit = "run" if moments[-1].run - moments[0].run >= MIN_COUNTED_RUNS else "second"
    blocks: tuple[GrowingBlocks, ...] = ()
    heap_bytes: tuple[int | None, ...] | None = None
    heap_readings = [
        reading for reading in readings[warm_up:] if reading.moment.heap_bytes is not None
    ] or readings[-1:]
    if len(readings) > warm_up:
        first_reading, last_reading = heap_readings[0], heap_readings[-1]
        min_growth = min_growth_of_program(
            PROGRAM_THREADS, last_reading.moment.run - first_reading.moment.run
        )
        growing_sizes, heap_bytes = growing_heap(readings, warm_up, unit, min_growth)
        contents = repeated_contents(history.contents, growing_sizes)
        blocks = grown_blocks(first_reading, last_reading, sizes=growing_sizes, contents=contents)
    kept = kept_values(process.alive_values, blocks, process.value_bytes)
    sites = [call_site(frames) for name, frames in process.kept_from.items() if name in kept.names]
    sites = [site for site in dict.fromkeys(sites) if site]
    observation = GrowthObservation(
        moments=moments,
        unit=unit,
        warm_up=warm_up,
        blocks=blocks,
        growing_heap_bytes=heap_bytes,
        min_heap_bytes=MIN_HEAP_BYTES,
        caller_keeps_nothing=False,
        kept=kept,
        kept_from=some_of(sites),
    )
    record = growth_record(
        observation,
        subject=f"process {process.pid}",
        kind=kind,
        # The hook sends the number of runs again at the end.
        runs=max(_sent_runs(process), moments[-1].run),
        warm_up_runs=moments[warm_up].run if len(moments) > warm_up else 0,
        warm_up_s=moments[warm_up].time_s if len(moments) > warm_up else 0.0,
        onnxruntime=process.runtime_version,
    )
    if record.verdict == "undecided" and len(observation.moments_after_warm_up) < MIN_MOMENTS:
        record = msgspec.structs.replace(record, message=TOO_SHORT)
    is_exact = kind == "process" or process.has_said_exit
    return msgspec.structs.replace(record, is_run_count_exact=is_exact)
