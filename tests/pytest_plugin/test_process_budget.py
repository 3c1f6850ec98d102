"""The marker without a model: sessions and memory of the test function itself."""

import os
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from memdiag.programs.recording_part import PartSession, RecordingPart
from memdiag.pytest_plugin import process_budget
from memdiag.records.run import HighWaterRun
from memdiag.runner.child import RECORDING_ADDRESS
from tests.pytest_plugin.conftest import Marked, RunPytest

pytestmark = pytest.mark.usefixtures("tiny_model")

PROJECT = """
import subprocess
import sys

import numpy as np
import onnxruntime
import psutil
import pytest

RSS = psutil.Process().memory_info().rss
MB = 1_000_000
IN_CHILD = "import sys, onnxruntime; onnxruntime.InferenceSession(sys.argv[1])"
ALLOCATE = "import sys, time; block = b'x' * int(sys.argv[1]); time.sleep(0.5)"

def create():
    return onnxruntime.InferenceSession("tiny.onnx", providers=["CPUExecutionProvider"])

def child(program, argument):
    subprocess.run([sys.executable, "-c", program, str(argument)], check=True)

@pytest.fixture
def service():
    return create()
"""


@pytest.fixture
def written(marked: Marked) -> Marked:
    """A function that writes marked tests, in whose fixture a session is created."""
    return partial(marked, before=PROJECT, fixtures="service")


BREACHES = (
    "sessions=1 | create(); create()",
    "sessions=0 | child(IN_CHILD, 'tiny.onnx')",
    "tree_peak=RSS + 100 * MB | np.ones(25 * MB)",
    "tree_peak=RSS + 100 * MB | child(ALLOCATE, 200 * MB)",
    "sessions=0 | import library; library.load()",
)
NEAR_MISSES = (
    "sessions=2 | create(); create()",
    "sessions=1 | child(IN_CHILD, 'tiny.onnx')",
    "tree_peak=RSS + 100 * MB | np.ones(2 * MB)",
    "tree_peak=RSS + 100 * MB | child(ALLOCATE, 20 * MB)",
    "sessions=0 | 'the session of the fixture does not count'",
    "sessions=0 | pytest.raises(Exception, onnxruntime.InferenceSession, 'missing.onnx')",
)


def test_a_test_above_its_budget_fails_and_one_below_passes(
    pytester: pytest.Pytester, written: Marked, run_pytest: RunPytest
) -> None:
    pytester.makepyfile(
        library="import onnxruntime\ndef load(): onnxruntime.InferenceSession('tiny.onnx')"
    )
    written(*BREACHES, *NEAR_MISSES)
    name = "memory budget: test_budget.py::test_"
    memory = "the test process and its children took * together, * MiB over the tree_peak of * MiB"
    lines = [
        f"{name}0: created 2 sessions, 1 over its budget of 1",
        "  session 1: tiny.onnx, created at test_budget.py:*",
        "  session 2: tiny.onnx, created at test_budget.py:*",
        "  tiny.onnx was loaded 2 times (sessions 1 and 2)",
        "  → Create the session once, at module level or in a function with functools.cache, *",
        f"{name}1: created 1 session, 1 over its budget of 0",
        "  session 1: tiny.onnx, created at <string>:1, in process *",
        "  → No model was loaded twice in a process. If the code needs 1 session, *",
        f"{name}2: {memory}",
        "  no session was created in the test",
        f"{name}3: {memory}",
        f"{name}4: created 1 session, 1 over its budget of 0",
        "  session 1: tiny.onnx, created at library.py:2, called from test_budget.py:*",
    ]
    # The memory of this process depends on the tests before.
    result = run_pytest(
        *("--memdiag-sessions", "--strict-markers"),
        process=True,
        failed=len(BREACHES),
        passed=len(NEAR_MISSES),
        lines=lines,
    )
    result.stdout.no_fnmatch_line("*created at test_budget.py:*, called from *")


def session_of(number: int, model: str, library: str | None = None) -> PartSession:
    return PartSession(
        number=number,
        pid=os.getpid(),
        model=model,
        model_bytes=None,
        library=library,
        created_at="app.py:1",
        callers=(),
    )


HIGHEST = HighWaterRun(
    session=4, t_s=1.0, peak_rss_bytes=400 << 20, shapes={"x": (8, 64)}, latency_s=0.1
)


CREATE_ONCE = (
    "→ Create the session once, at module level or in a function with functools.cache, and call its"
    " run() everywhere: several threads may do so at once. In tests, use a fixture with"
    ' scope="session".'
)
BREACH_TEXTS: dict[str, tuple[str, tuple[int, ...], HighWaterRun | None, list[str]]] = {
    "a creation": (
        "aba",
        (6,),
        HIGHEST,
        [
            "at the peak: creation or first run of session 2",
            "a was loaded 2 times (sessions 1 and 3)",
            CREATE_ONCE,
        ],
    ),
    "a run of a fixture's session": (
        "ab",
        (),
        HIGHEST,
        [
            "a run of a session from before the test with x: 8×64 raised the memory of its process"
            " to 400 MiB"
        ],
    ),
    "not known": ("ab", (), None, []),
}


@pytest.mark.parametrize(
    ("models", "active", "peak_run", "advice"), BREACH_TEXTS.values(), ids=BREACH_TEXTS
)
def test_a_breach_names_the_peak_and_models_that_were_loaded_again(
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    models: str,
    active: tuple[int, ...],
    peak_run: HighWaterRun | None,
    advice: list[str],
) -> None:
    part = RecordingPart(
        sessions=tuple(session_of(number, model) for number, model in enumerate(models, 5)),
        peak_rss_bytes=500 << 20,
        peak_sessions=active,
        peak_run=peak_run,
    )
    recording = SimpleNamespace(next_part=lambda: part)
    monkeypatch.setattr(process_budget, "recording_of_run", lambda _: recording)
    mark = pytest.mark.memory_budget(tree_peak="100 MiB").mark
    item: Any = SimpleNamespace(
        iter_markers=lambda _: [mark],
        config=request.config,
        nodeid="test_a.py::test_a",
        path=request.path,
        user_properties=[],
    )
    with pytest.raises(pytest.fail.Exception) as failure, process_budget.judged_test_block(item):
        pass
    assert str(failure.value).split("\n  ")[1 + len(models) :] == advice


@pytest.mark.parametrize(
    ("models", "advice"),
    [
        ("aa", "→ Keep one object of rapidocr in the process, and pass it to all who use it"),
        ("ab", "→ No model was loaded twice in a process. If the code needs 2 sessions, set s"),
    ],
)
def test_too_many_sessions_have_advice(models: str, advice: str) -> None:
    sessions = [session_of(number, model, "rapidocr") for number, model in enumerate(models, 1)]
    *_, last = process_budget._sharing_advice_lines(sessions, has_too_many=True)
    assert last.startswith(advice)
    assert bool([*process_budget._sharing_advice_lines(sessions, has_too_many=False)]) == (
        models == "aa"
    )


def test_without_a_recorded_run_only_the_marked_tests_are_recorded(
    pytester: pytest.Pytester, written: Marked, run_pytest: RunPytest
) -> None:
    written(BREACHES[0], NEAR_MISSES[0], BREACHES[1], NEAR_MISSES[1])
    module = pytester.path / "test_budget.py"
    after = f"""
INIT = onnxruntime.InferenceSession.__init__

def test_after_them():
    import os
    assert "{RECORDING_ADDRESS}" not in os.environ
    assert onnxruntime.InferenceSession.__init__ is INIT
"""
    module.write_text(module.read_text() + after)
    run_pytest(failed=2, passed=3)


def test_the_closest_marker_has_priority_and_other_markers_stay_in_force(
    pytester: pytest.Pytester, run_pytest: RunPytest
) -> None:
    pytester.makepyfile(
        PROJECT
        + """
@pytest.mark.memory_budget("tiny.onnx", copies=1)
@pytest.mark.memory_budget(sessions=0)
class TestService:
    @pytest.mark.parametrize("count", [1, 2])
    @pytest.mark.memory_budget(sessions=1)
    def test_closer(self, count):
        for _ in range(count):
            create()

    @pytest.mark.memory_budget(tree_peak="64 TB")
    def test_other_limit(self):
        create()
"""
    )
    lines = [
        "memory budget: *::test_closer?2?: created 2 sessions, *",
        "memory budget: *::test_other_limit: created 1 session, 1 over its budget of 0",
        "tiny.onnx *within its budget*",
    ]
    words = ("--junit-xml=result.xml", "--memdiag-sessions")
    result = run_pytest(*words, passed=1, failed=2, lines=lines)
    # The children in which the model was measured are no part of the test run.
    result.stdout.no_fnmatch_line("note: *not recorded*")
    properties = (pytester.path / "result.xml").read_text()
    assert 'name="memdiag.sessions" value="2"' in properties


def test_a_test_that_fails_by_itself_is_not_judged(written: Marked, run_pytest: RunPytest) -> None:
    written("sessions=0 | create(); assert not 'own reason'")
    result = run_pytest(failed=1, lines=["*assert not 'own reason'*"])
    result.stdout.no_fnmatch_line("memory budget: *")


NO_COUNT = "memory_budget: sessions must be a whole number from 0, not"
WRONG = {
    "": "*needs the path of one model, as *, or limits of the test itself, as *",
    "sesions=3": "memory_budget: 'sesions' is not a limit of the test itself. Use sessions *",
    "peak='1 GB'": "memory_budget: 'peak' is not * Limits of a model need its path, *",
    "sessions=1, peak='1 GB'": "memory_budget: 'peak' is not a limit of the test itself. *",
    "'tiny.onnx', sessions=3": "memory_budget: sessions is a limit of the test itself, *",
    "'tiny.onnx', tree_peak='2 GB'": "memory_budget: tree_peak is a limit of the test *",
    "sessions=-1": f"{NO_COUNT} -1.",
    "sessions=True": f"{NO_COUNT} True.",
    "sessions='3'": f"{NO_COUNT} '3'.",
    "tree_peak='800'": "memory_budget: tree_peak=800 has no unit. *",
    "tree_peak=1.5": "memory_budget: tree_peak must be a size such as 800MB, not 1.5.",
}


def test_wrong_limits_are_errors(written: Marked, run_pytest: RunPytest) -> None:
    written(*WRONG)
    run_pytest(errors=len(WRONG), lines=[*WRONG.values()])


def test_under_memdiag_run_it_is_refused(
    written: Marked, run_pytest: RunPytest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RECORDING_ADDRESS, "@elsewhere#secret")
    written("sessions=1")
    run_pytest(errors=1, lines=["memory_budget(sessions=…) needs a recording of its own. *"])
