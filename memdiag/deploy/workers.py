"""Several processes, sessions or callers of a model, measured while all of them are there."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from memdiag.attribution.process_xray import take_xray
from memdiag.attribution.search_target import SearchTarget
from memdiag.errors import MeasurementError, UsageError
from memdiag.programs.system.memory_limit import available_bytes
from memdiag.records.attribution import Attribution
from memdiag.records.workers import (
    Arrangement,
    ForkAfter,
    WorkerMemory,
    WorkerOwner,
    Workers,
    WorkerWeight,
)
from memdiag.runner.child import Child
from memdiag.runner.job import Job
from memdiag.units import MIB, format_size

_POLL_S = 0.02
MAX_SHARE = 0.9
"""Share of the available memory that workers may take: more would make the machine swap."""

MIN_SAVED_BYTES = 4 * MIB
"""Cost of one more process from which ways to share its memory are measured."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The arrangement that was asked for (see `Arrangement`)."""

    processes: int = 1
    sessions: int = 1
    callers: int = 1
    fork_after: ForkAfter | None = None
    shares_prepacked: bool = False

    @property
    def more(self) -> int:
        """How many processes, sessions and callers there are more than one."""
        return self.processes * self.sessions * self.callers - 1


class WorkerTrials:
    """Measures arrangements of one model.

    Args:
        job: the model with its configuration, inputs and limits.
        targets: the model whose weights are searched for in each process.
        shared_job: returns the job of the model that was saved with its packed weights; raises
            MeasurementError if the runtime cannot save it.
    """

    def __init__(
        self, job: Job, targets: Sequence[SearchTarget], shared_job: Callable[[], Job]
    ) -> None:
        self._job = job
        self._targets = targets
        self._shared_job = shared_job
        self._anonymous_bytes = 0

    def measure(self, wanted: Wanted) -> Workers:
        """Return what the arrangement costs, and what other ones do.

        Raises:
            UsageError: the machine has too little memory for it.
            MeasurementError: the interpreter cannot be started, or the model fails or takes too
                long in a worker.
            XrayError: the memory of a worker cannot be read.
        """
        one, _ = self.arrangement(replace(wanted, processes=1, sessions=1, callers=1))
        needed = self._anonymous_bytes * wanted.processes * wanted.sessions
        available = available_bytes()
        if needed > MAX_SHARE * available:
            raise UsageError(
                f"the workers would take about {format_size(needed)}, and"
                f" {format_size(available)} are available. Ask for fewer."
            )
        asked, xrays = self.arrangement(wanted, is_read=True)
        owners, weights = _owners(xrays), _weights(xrays)
        one_more_bytes = (asked.together.pss_bytes - one.together.pss_bytes) // wanted.more
        alternatives: list[Arrangement] = []
        notes: list[str] = []
        if wanted.processes > 1 and one_more_bytes >= MIN_SAVED_BYTES:
            alternatives, notes = self._alternatives(wanted)
        return Workers(
            one=one,
            asked=asked,
            one_more_bytes=one_more_bytes,
            owners=owners,
            weights=weights,
            proportional_bytes=sum(xray.proportional_bytes or 0 for xray in xrays),
            alternatives=tuple(alternatives),
            notes=tuple(notes),
        )

    def _alternatives(self, wanted: Wanted) -> tuple[list[Arrangement], list[str]]:
        """Return other arrangements with as many processes, or callers."""
        found: list[Arrangement] = []
        notes: list[str] = []
        try:
            found.append(self.arrangement(replace(wanted, shares_prepacked=True))[0])
        except MeasurementError as error:
            notes.append(f"sharing saved packed weights was not measured: {error}")
        callers = wanted.processes * wanted.callers
        found.append(self.arrangement(Wanted(callers=callers))[0])
        return found, notes

    def arrangement(
        self, wanted: Wanted, *, is_read: bool = False
    ) -> tuple[Arrangement, list[Attribution]]:
        """Have the workers, and read their memory; with `is_read` take an X-ray of each."""
        job = self._shared_job() if wanted.shares_prepacked else self._job
        started = wanted.processes if wanted.fork_after is None else 1
        message = {
            **job.message(),
            "processes": wanted.processes,
            "sessions": wanted.sessions,
            "callers": wanted.callers,
            "fork_after": wanted.fork_after,
        }
        xrays: list[Attribution] = []
        with ExitStack() as exits:
            children = [
                exits.enter_context(Child(job, message, "workers.py")) for _ in range(started)
            ]
            steady = [self._wait(child, job) for child in children]
            pids = [pid for fields in steady for pid in fields["pids"]]
            each = [_memory(pid) for pid in pids]
            parents = [_memory(fields["parent"]) for fields in steady if fields["parent"]]
            self._anonymous_bytes = _rollup(pids[0])["Anonymous"]
            if is_read:
                xrays = [take_xray(pid, self._targets) for pid in pids]
        latencies = [fields["latency_s"] for fields in steady]
        return Arrangement(
            processes=wanted.processes,
            sessions=wanted.sessions,
            callers=wanted.callers,
            fork_after=wanted.fork_after,
            shares_prepacked=wanted.shares_prepacked,
            each=tuple(each),
            together=WorkerMemory(
                rss_bytes=sum(memory.rss_bytes for memory in (*each, *parents)),
                pss_bytes=sum(memory.pss_bytes for memory in (*each, *parents)),
                uss_bytes=sum(memory.uss_bytes for memory in (*each, *parents)),
            ),
            latency_s=latencies[0] if len(pids) == 1 else None,
        ), xrays

    def _wait(self, child: Child, job: Job) -> dict[str, Any]:
        """Return the fields of the event with which `child` says that all workers have run."""
        end = time.monotonic() + job.limits.timeout_s
        for event in child.events(_POLL_S):
            if event is not None and event.name == "steady":
                return event.fields
            if event is not None and event.name == "error":
                raise MeasurementError(
                    f"{self._job.model}: a worker failed: {event.fields['message']}"
                )
            if time.monotonic() > end:
                raise MeasurementError(
                    f"{self._job.model}: the workers did not finish in time. Increase --timeout."
                )
        raise MeasurementError(
            f"{self._job.model}: a worker ended without an error message. Free memory, and run the"
            " command again."
        )


def _memory(pid: int) -> WorkerMemory:
    """Return the memory of process `pid`, by the kernel."""
    fields = _rollup(pid)
    return WorkerMemory(
        rss_bytes=fields["Rss"],
        pss_bytes=fields["Pss"],
        uss_bytes=fields["Private_Clean"] + fields["Private_Dirty"],
    )


def _rollup(pid: int) -> dict[str, int]:
    """Return the bytes of the fields of ``smaps_rollup`` of process `pid`.

    Raises:
        MeasurementError: it has ended, or may not be read.
    """
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError as error:
        raise MeasurementError(
            f"process {pid}: its memory cannot be read ({error.strerror}). Workers are measured on"
            " Linux, as the same user."
        ) from error
    fields = {}
    for line in text.splitlines()[1:]:
        name, _, value = line.partition(":")
        fields[name] = int(value.split()[0]) << 10
    return fields


def _owners(xrays: Iterable[Attribution]) -> tuple[WorkerOwner, ...]:
    sums: dict[tuple[Any, str], list[int]] = defaultdict(lambda: [0, 0, 0])
    for xray in xrays:
        for owner in xray.owners:
            added = (owner.bytes, owner.private_bytes or 0, owner.proportional_bytes or 0)
            found = sums[owner.kind, owner.name]
            found[:] = [have + more for have, more in zip(found, added, strict=True)]
    owners = [
        WorkerOwner(
            kind=kind, name=name, bytes=size, private_bytes=private, proportional_bytes=proportional
        )
        for (kind, name), (size, private, proportional) in sums.items()
    ]
    return tuple(sorted(owners, key=lambda owner: -owner.proportional_bytes))


def _weights(xrays: Iterable[Attribution]) -> tuple[WorkerWeight, ...]:
    """Return the weights, without copies in freed memory."""
    sums: dict[tuple[str, ...], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    layouts: dict[tuple[str, ...], dict[str, None]] = defaultdict(dict)
    for xray in xrays:
        for copy in xray.copies:
            if copy.in_use is False:
                continue
            proportional = copy.proportional_bytes or 0
            # Copies in mapped files are shared, unless this process is the only one.
            private = copy.private_bytes or 0
            found = sums[copy.weights]
            added = (1, copy.resident_bytes, private, proportional)
            found[:] = [have + more for have, more in zip(found, added, strict=True)]
            layouts[copy.weights][copy.layout] = None
    weights = [
        WorkerWeight(
            weights=names,
            layouts=tuple(layouts[names]),
            copies=count,
            bytes=size,
            private_bytes=private,
            proportional_bytes=proportional,
        )
        for names, (count, size, private, proportional) in sums.items()
    ]
    return tuple(sorted(weights, key=lambda weight: -weight.proportional_bytes))
