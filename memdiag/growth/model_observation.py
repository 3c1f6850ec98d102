"""The observation of a model's runs: how many there are, and the memory between them."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from memdiag.defaults import DEFAULT_LEAK_DURATION_S, DEFAULT_LEAK_RUNS, MIN_LEAK_RUNS
from memdiag.errors import MeasurementError, XrayError
from memdiag.growth.growing_blocks import KnownContent, growing_blocks
from memdiag.growth.model_runs import ModelRuns
from memdiag.growth.moment import MemoryMoment
from memdiag.records.growth import GrowingBlocks
from memdiag.units import counted

OBSERVED_MOMENTS = 12
"""Moments from the end of the warm-up to the end."""

BATCH_S = 1.0
"""Seconds between two reports of progress. Runs of a batch that Ctrl-C ends are lost."""

INTERRUPTED_WORD = "interrupted"
"""The first word of the message of an observation that Ctrl-C ended."""

_PACE_RUNS = 9


class GrowthProgress(NamedTuple):
    """The progress of an observation.

    Attributes:
        runs_done: the number of runs; 0 if it is not known.
        runs_planned: the number of runs at the end; 0 if it is not known.
        resident_bytes: the resident set of the process.
    """

    runs_done: int
    runs_planned: int
    resident_bytes: int


OnGrowth = Callable[[GrowthProgress], None]


@dataclass(kw_only=True)
class ModelObservation:
    """Memory between the runs of a model.

    Attributes:
        moments: after the first run, after the warm-up, and then evenly spread until the end.
        warm_up_runs: the number of runs before growth is judged.
        blocks: the sizes of blocks that grew since the warm-up.
        trim_returned_bytes: the resident bytes that malloc returned at the end; None if it cannot
            return any.
        message: why the runs ended early; empty if they did not.
    """

    moments: list[MemoryMoment] = field(default_factory=list)
    warm_up_runs: int = 0
    blocks: tuple[GrowingBlocks, ...] = ()
    trim_returned_bytes: int | None = None
    message: str = ""


def observe_runs(
    runs: ModelRuns,
    *,
    max_runs: int | None,
    duration_s: float | None,
    weights: Sequence[KnownContent] = (),
    on_progress: OnGrowth | None = None,
) -> ModelObservation:
    """Run the model many times, and return its memory at moments between the runs.

    Args:
        runs: the child.
        max_runs: the number of runs; None for the default.
        duration_s: the seconds for all runs; None for no limit on `max_runs`.
        weights: the contents of the model's weights, to recognise them in blocks.
        on_progress: called after each batch of runs.

    Raises:
        MeasurementError: the first run failed.
        XrayError: this system does not let memdiag read the child.
    """
    observation = ModelObservation()
    runs.run(1)
    observation.moments.append(runs.moment())
    try:
        total = _planned_runs(runs, max_runs, duration_s)
        runs_at_readings = moments_of_runs(total)
        observation.warm_up_runs = runs_at_readings[0]
        for next_runs in runs_at_readings:
            _advance_runs(runs, next_runs, total, on_progress)
            observation.moments.append(runs.moment())
        # No session is alive between reloads, so its values cannot be requested.
        values = [] if runs.plan.reload else runs.values()
        observation.blocks = growing_blocks(
            runs.pid, observation.moments[1], runs.moment(), (*values, *weights)
        )
        observation.trim_returned_bytes = _trimmed_bytes(runs)
    except (MeasurementError, XrayError) as error:
        observation.message = str(error)
    except KeyboardInterrupt:
        observation.message = f"{INTERRUPTED_WORD} after {counted(len(runs.samples), 'run')}"
    return observation


def moments_of_runs(total: int) -> tuple[int, ...]:
    """Return the numbers of runs after which memory is read, from the end of the warm-up on."""
    warm_up = max(_PACE_RUNS + 1, total // 10)
    last_number = OBSERVED_MOMENTS - 1
    return tuple(
        warm_up + (total - warm_up) * number // last_number for number in range(OBSERVED_MOMENTS)
    )


def _advance_runs(
    runs: ModelRuns, target_runs: int, total: int, on_progress: OnGrowth | None
) -> None:
    """Run until `target_runs` runs are done, in batches of about `BATCH_S` seconds."""
    while (runs_done := len(runs.samples)) < target_runs:
        batch = max(1, int(BATCH_S / max(runs.samples[-1].duration_s, 1e-6)))
        runs.run(min(batch, target_runs - runs_done))
        if on_progress is not None:
            resident_bytes = runs.samples[-1].resident_bytes
            on_progress(GrowthProgress(len(runs.samples), total, resident_bytes))


def _planned_runs(runs: ModelRuns, max_runs: int | None, duration_s: float | None) -> int:
    """Run a few times, and return the number of runs that the duration allows."""
    if max_runs is not None and duration_s is None:
        return max_runs
    started = time.monotonic()
    runs.run(_PACE_RUNS)
    pace_s = (time.monotonic() - started) / _PACE_RUNS
    fitting_runs = int((duration_s or DEFAULT_LEAK_DURATION_S) / max(pace_s, 1e-6))
    requested_runs = max_runs or (DEFAULT_LEAK_RUNS if duration_s is None else fitting_runs)
    return max(MIN_LEAK_RUNS, min(requested_runs, fitting_runs))


def _trimmed_bytes(runs: ModelRuns) -> int | None:
    """Return the resident bytes that malloc returned to the system; None if it cannot return
    any."""
    resident_before = runs.moment().moment.resident_bytes
    if not runs.trim():
        return None
    return max(0, resident_before - runs.moment().moment.resident_bytes)
