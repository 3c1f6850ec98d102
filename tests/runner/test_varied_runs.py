"""The contents that a runtime is given in each run, recorded by a runtime of our own."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from memdiag.growth.model_runs import ModelRuns, RunPlan
from memdiag.runner.job import Feed, Job
from memdiag.runner.measured_child import MeasuredChild
from memdiag.runner.session_server import SessionServer

RUNS = 6
IDS = np.arange(8, dtype=np.int64)

MakeFeed = Callable[..., Feed]


@pytest.fixture
def feeds_file(tmp_path: Path) -> Path:
    return tmp_path / "feeds.jsonl"


@pytest.fixture
def job(fake_job: Callable[..., Job], feeds_file: Path) -> Job:
    return fake_job({"feeds_file": str(feeds_file)}, runs=RUNS)


@pytest.fixture
def feed(tmp_path: Path) -> MakeFeed:
    def make(vary: Literal["bits"] | tuple[int, int] | None = (0, 10), start: int = 0) -> Feed:
        path = tmp_path / f"ids-{start}.npy"
        np.save(path, IDS + start)
        return Feed(name="ids", files=(path,), vary=vary)

    return make


def recorded(file: Path) -> list[Any]:
    """Return the values of the input in each run until now, and forget them."""
    values = [json.loads(line)["ids"] for line in file.read_text().splitlines()]
    file.unlink()
    return values


def distinct(runs: list[list[int]]) -> int:
    return len({tuple(values) for values in runs})


def test_a_measured_child_gets_other_contents_in_each_run(
    job: Job, feed: MakeFeed, feeds_file: Path
) -> None:
    assert MeasuredChild(replace(job, feeds=(feed(),))).run().outcome.status == "completed"
    runs = recorded(feeds_file)
    # The first run has the contents that were saved.
    assert runs[0] == IDS.tolist()
    assert len(runs) == distinct(runs) == RUNS + 1
    assert {value for values in runs for value in values} <= {*range(10)}
    # Another process gets the same, in the same order.
    MeasuredChild(replace(job, feeds=(feed(),))).run()
    assert recorded(feeds_file) == runs
    # Inputs that may not vary are identical.
    MeasuredChild(replace(job, feeds=(feed(None),))).run()
    assert recorded(feeds_file) == [IDS.tolist()] * (RUNS + 1)


def test_each_of_several_sets_varies_by_itself(job: Job, feed: MakeFeed, feeds_file: Path) -> None:
    sets = ((feed(),), (feed(None, start=1),))
    MeasuredChild(replace(job, feeds=sets[0], later_feeds=sets)).run()
    first, *later = recorded(feeds_file)
    assert first == IDS.tolist()
    assert later[1::2] == [(IDS + 1).tolist()] * (RUNS // 2)
    assert distinct([first, *later[::2]]) == RUNS // 2 + 1


def test_a_session_server_starts_again_and_saves_with_saved_inputs(
    job: Job, feed: MakeFeed, feeds_file: Path, tmp_path: Path
) -> None:
    with SessionServer(replace(job, runs=None), [(feed(),)]) as server:
        server.run(0, 2)
        server.run(0)
        found = recorded(feeds_file)
        assert len(found) == distinct(found) == 3
        server.save(0, tmp_path / "out")
        assert recorded(feeds_file) == [IDS.tolist()]
        server.run(0)
        assert distinct([*found, *recorded(feeds_file)]) == 4  # saving changed nothing
        server.restart_inputs()
        server.run(0, 3)
        assert recorded(feeds_file) == found


@pytest.mark.parametrize(("vary", "contents"), [((0, 10), 5), (None, 1)])
def test_repeated_runs_of_a_leak_search_vary_in_the_same_way(
    job: Job, feed: MakeFeed, feeds_file: Path, tmp_path: Path, vary: Any, contents: int
) -> None:
    plan = RunPlan(feed_sets=((feed(vary),),))
    with ModelRuns(replace(job, runs=None), plan, tmp_path) as runs:
        runs.run(3)
        runs.run(2)
    found = recorded(feeds_file)
    assert (len(found), distinct(found)) == (5, contents)
