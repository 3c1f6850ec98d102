"""Trials of programs in real control groups."""

import sys
from pathlib import Path
from typing import Any

import pytest

from memdiag.deploy.limited_group import GroupRemovedError, ParentGroup
from memdiag.deploy.program_trial import ProgramTrials
from memdiag.units import MIB
from tests.deploy import recorded_groups
from tests.deploy.real_groups import usable_parent
from tests.deploy.test_limited_group import HOG

MEASURES = f"import time\n{HOG.format(64)}\ntime.sleep(0.2)"


def trials(parent: ParentGroup, *command: str, **options: float) -> ProgramTrials:
    usual: dict[str, Any] = {"timeout_s": 20.0, "duration_s": None}
    return ProgramTrials(parent=parent, command=command, **(usual | options))


def python(program: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-c", program)


def test_a_program_completes_above_its_memory_and_is_killed_below() -> None:
    program = trials(usable_parent(), *python(MEASURES))
    unlimited = program.measure(None)
    assert unlimited.outcome == "completed"
    assert unlimited.latency_s is not None
    assert unlimited.latency_s >= 0.2
    assert program.counted is not None
    assert program.counted.anonymous_bytes > 64 * MIB
    assert Path(sys.executable).resolve() in {path.resolve() for path in program.files}
    point = program.measure(32 * MIB)
    assert (point.outcome, point.latency_s) == ("killed", None)
    assert point.message.startswith("killed at the limit (SIGKILL by the kernel) after")
    assert program.escaped is None


def test_a_killed_process_of_a_program_that_goes_on_is_a_failure() -> None:
    hog = " ".join(f"'{word}'" for word in python(HOG.format(64)))
    program = trials(usable_parent(), "sh", "-c", f"{hog}; exit 0")
    assert program.measure(32 * MIB).outcome == "killed"


def test_a_server_that_still_runs_after_the_time_has_worked_and_is_ended(tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    server = f"trap 'touch {ended}; exit' TERM; while :; do sleep 0.05; done"
    program = trials(usable_parent(), "sh", "-c", server, duration_s=0.3)
    point = program.measure(64 * MIB)
    assert (point.outcome, point.latency_s) == ("completed", None)
    assert ended.exists()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("sh", "-c", "echo no such model >&2; exit 3"), "ended with exit code 3: no such model"),
        (("sh", "-c", "kill -SEGV $$"), "was ended by SIGSEGV"),
        (("no-such-program",), "exit code 127"),
    ],
)
def test_a_program_that_fails_states_how(command: tuple[str, ...], words: str) -> None:
    point = trials(usable_parent(), *command).measure(None)
    assert point.outcome == "failed"
    assert words in point.message


def test_a_program_that_takes_too_long_is_stopped() -> None:
    point = trials(usable_parent(), "sleep", "60", timeout_s=0.2).measure(None)
    assert point.outcome == "timeout"


def test_a_process_that_leaves_the_group_is_noticed() -> None:
    parent = usable_parent()
    leave = f'sleep 0.5; echo 0 > "{parent.folder}/cgroup.procs"; sleep 1.5'
    program = trials(parent, "sh", "-c", leave)
    program.measure(None)
    assert program.escaped is not None


def recorded_parent(folder: Path) -> ParentGroup:
    return ParentGroup(
        folder=folder,
        version=2,
        make_folder=recorded_groups.make_folder,
        remove_folder=recorded_groups.remove_folder,
    )


def test_the_most_memory_is_known_where_the_kernel_states_no_peak(tmp_path: Path) -> None:
    program = trials(recorded_parent(tmp_path), "sleep", "0.1")
    assert program.measure(None).outcome == "completed"
    assert program.rss_bytes == 12 * MIB + MIB // 2  # as the recorded group counts


def test_a_group_that_is_removed_ends_the_trial(tmp_path: Path) -> None:
    remove = f"rm -r {tmp_path}/memdiag-*"
    program = trials(recorded_parent(tmp_path), "sh", "-c", f"{remove}; sleep 20")
    with pytest.raises(GroupRemovedError, match="removed while it was measured"):
        program.measure(None)
