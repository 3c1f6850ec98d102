"""The course of `memdiag.leak` around its child: batches, progress, and Ctrl-C."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import memdiag
from memdiag.growth.moment import MemoryMoment
from memdiag.records.growth import Moment, RunSample

INTERRUPTED_AT = 45


class FakeRuns:
    """Stands for `ModelRuns`: each run lasts 0.3 s, and run 45 is interrupted."""

    onnxruntime = "1.32.0"

    def __init__(self, *job: Any) -> None:
        self.samples: list[RunSample] = []
        self.pid = 0

    def __enter__(self) -> "FakeRuns":
        return self

    def __exit__(self, *error: object) -> None:
        """Do nothing: there is no child."""

    def run(self, times: int) -> None:
        done = len(self.samples)
        if done + times >= INTERRUPTED_AT:
            raise KeyboardInterrupt
        self.samples += [
            RunSample(run=run, resident_bytes=1 << 20, anonymous_bytes=0, duration_s=0.3)
            for run in range(done + 1, done + times + 1)
        ]

    def moment(self) -> MemoryMoment:
        run = len(self.samples)
        return MemoryMoment(moment=Moment(run=run, time_s=0.3 * run, resident_bytes=1 << 20))


def test_an_interrupt_leaves_the_runs_until_then(
    sample_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memdiag.api.leak.ModelRuns", FakeRuns)
    monkeypatch.setattr("memdiag.api.leak.inputs_that_run", lambda job, sets: [*range(len(sets))])
    progress: list[tuple[int, int]] = []
    growth = memdiag.leak(
        sample_model("tied_if"),
        runs=100,
        on_progress=lambda done, total, size: progress.append((done, total)),
    )
    # In batches of a second, of which the last one is lost.
    assert progress[:3] == [(4, 100), (7, 100), (10, 100)]
    assert growth.message == "interrupted after 42 runs"
    assert growth.runs == len(growth.samples) == progress[-1][0] == 42
    assert growth.verdict == "undecided"
    assert growth.sentence.startswith("undecided: too few readings")
