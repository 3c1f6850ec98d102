"""A trial of a program: run it in a control group until it ends, or for some time."""

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from memdiag.deploy.file_cache import drop_from_page_cache, mapped_file_bytes, mapped_files
from memdiag.deploy.limited_group import GroupCounters, LimitedGroup, ParentGroup
from memdiag.errors import MeasurementError
from memdiag.process_end import KILLED_AT_LIMIT, end_text
from memdiag.records.limit import CountedMemory, LimitPoint, TrialOutcome
from memdiag.system.process_tree import descendants, process_info
from memdiag.units import format_duration

GROUP_PERIOD_S = 0.02
"""Seconds between two readings of the group."""

MAX_FILES_PERIOD_S = 5.0
"""Maximum seconds between two lists of the files that the processes map."""

MAX_END_S = 5.0
"""Seconds that a program has to end by itself after SIGTERM."""

MAX_MESSAGE = 300


@dataclass(kw_only=True)
class ProgramTrials:
    """Trials of one program, each in a new control group. Attributes as in `ModelTrials`.

    Attributes:
        parent: the control group in which they run.
        command: the program and its arguments.
        duration_s: seconds after which the program has done enough and is ended; None to wait for
            its end.
        timeout_s: seconds after which a trial has failed.
        files: files that are dropped from the page cache before each trial.
        counted: the memory in the last trial at the moment when it was largest.
        uncounted_bytes: mapped pages of files that its group did not count, because other processes
            had them in memory.
        escaped: a process of the program that moved to another control group; None if none did.
        rss_bytes: the most memory that its group had in the last trial, at any reading.
        number: the number of trials until now.
    """

    parent: ParentGroup
    command: Sequence[str]
    duration_s: float | None = None
    timeout_s: float
    files: frozenset[Path] = frozenset()
    counted: CountedMemory | None = None
    uncounted_bytes: int = 0
    escaped: int | None = None
    rss_bytes: int = 0
    number: int = 0
    _entered: bool = field(default=False, init=False)

    def measure(self, limit_bytes: int | None) -> LimitPoint:
        """Make a trial under `limit_bytes`; None for no limit.

        Raises:
            NoGroupError, GroupRemovedError: the control group cannot be created, or was removed.
            MeasurementError: the program cannot be started.
        """
        drop_from_page_cache(self.files)
        self.number += 1
        self.counted, self.rss_bytes, self._entered = None, 0, False
        name = str(self.number)
        with (
            LimitedGroup(self.parent, name, limit_bytes) as group,
            tempfile.TemporaryFile() as errors,
        ):
            started = time.perf_counter()
            try:
                process = subprocess.Popen(
                    [*group.entering, *self.command],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    # Ctrl-C in the terminal is for memdiag.
                    start_new_session=True,
                )
            except OSError as error:
                raise MeasurementError(f"/bin/sh: cannot be started ({error.strerror}).") from error
            try:
                outcome, message = self._wait_for_end(process, group, started)
                elapsed_s = time.perf_counter() - started
                end_counters = group.counters()
                if outcome == "completed" and process.returncode is None:
                    _end_program(process)
            finally:
                # The group kills its processes, but the program's process may have left the group.
                with suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            if outcome == "failed":
                message = self._failure_message(process.returncode, errors)
        is_completed = outcome == "completed"
        return LimitPoint(
            limit_bytes=limit_bytes,
            outcome=outcome,
            latency_s=round(elapsed_s, 6) if is_completed and self.duration_s is None else None,
            peak_bytes=end_counters.peak_bytes,
            refault_bytes=end_counters.refault_bytes,
            message=message,
        )

    def _wait_for_end(
        self, process: "subprocess.Popen[bytes]", group: LimitedGroup, started: float
    ) -> tuple[TrialOutcome, str]:
        """Wait until the program has ended or has done enough, and return how it ended."""
        next_listing_s = 0.0
        while True:
            exit_code = process.poll()
            counters = group.counters()
            elapsed_s = time.perf_counter() - started
            if counters.oom_kills:
                return "killed", f"{KILLED_AT_LIMIT} after {format_duration(elapsed_s)}"
            if exit_code is not None:
                return ("failed", "") if exit_code else ("completed", "")
            self._keep_largest_counters(counters, group)
            if elapsed_s >= next_listing_s:
                # Programs may be short, and map their files at the start.
                next_listing_s = elapsed_s + min(elapsed_s, MAX_FILES_PERIOD_S)
                self._list_files(group)
                self._find_escaped_process(process.pid, group)
            if self.duration_s is not None and elapsed_s >= self.duration_s:
                return "completed", ""
            if elapsed_s >= self.timeout_s:
                return "timeout", f"stopped after {format_duration(elapsed_s)}"
            time.sleep(GROUP_PERIOD_S)

    def _keep_largest_counters(self, counters: GroupCounters, group: LimitedGroup) -> None:
        """Keep the counters of the moment with the most memory."""
        counted_bytes = counters.anonymous_bytes + counters.file_bytes
        self.rss_bytes = max(self.rss_bytes, counted_bytes + (counters.kernel_bytes or 0))
        largest = self.counted
        if largest is not None and counted_bytes < largest.anonymous_bytes + largest.file_bytes:
            return
        self.counted = CountedMemory(
            anonymous_bytes=counters.anonymous_bytes,
            file_bytes=counters.file_bytes,
            kernel_bytes=counters.kernel_bytes,
        )
        mapped_bytes = max(map(mapped_file_bytes, group.processes()), default=0)
        self.uncounted_bytes = max(0, mapped_bytes - counters.mapped_bytes)

    def _list_files(self, group: LimitedGroup) -> None:
        for pid in group.processes():
            self.files |= mapped_files(pid)

    def _find_escaped_process(self, pid: int, group: LimitedGroup) -> None:
        """Find a process below process `pid` that has left the group, once `pid` has entered it."""
        self._entered = self._entered or pid in group.processes()
        if not self._entered or self.escaped is not None:
            return
        outside_pids = {*descendants(pid)} - {*group.processes()}
        # A process that has just ended is in no group.
        running_pids = (
            other_pid for other_pid in outside_pids if process_info(other_pid) is not None
        )
        self.escaped = next(
            (other_pid for other_pid in running_pids if other_pid not in group.processes()), None
        )

    def _failure_message(self, exit_code: int, errors: IO[bytes]) -> str:
        """Return why the program failed: how it ended, and the last line of its errors."""
        errors.seek(0)
        lines = errors.read().decode(errors="replace").split("\n")
        error_line = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"{end_text(exit_code)}{f': {error_line}' if error_line else ''}"[:MAX_MESSAGE]


def _end_program(process: "subprocess.Popen[bytes]") -> None:
    """Ask the program to end, as a container runtime does, and wait for a moment."""
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(MAX_END_S)
