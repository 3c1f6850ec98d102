"""What the hook does between two runs: it asks memdiag to read, and follows values."""

from typing import Any

import numpy as np
import pytest

from memdiag.programs.hook.between_runs import PauseBetweenRuns


class Session:
    """Stands for a session whose output is its input."""

    def get_outputs(self) -> list[Any]:
        return [type("Output", (), {"name": "y"})]

    def run(self, output_names: Any, input_feed: dict[str, Any], options: Any = None) -> list[Any]:
        return [np.copy(input_feed["x"])]

    def run_with_iobinding(self, binding: Any) -> None:
        """Return nothing."""


@pytest.fixture
def asked() -> list[dict[str, Any]]:
    return []


@pytest.fixture
def session(asked: list[dict[str, Any]]) -> type[Session]:
    pause = PauseBetweenRuns(lambda event, **fields: asked.append(fields), 0.0)
    body = {name: pause.watched(vars(Session)[name]) for name in ("run", "run_with_iobinding")}
    return type("Watched", (Session,), body)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((None, {"x": np.ones(100)}), {}),
        ((["y"],), {"input_feed": {"x": np.ones(100)}}),
        ((), {"output_names": [], "input_feed": {"x": np.ones(100)}}),
    ],
)
def test_values_are_followed_by_name(
    session: type[Session], asked: list[dict[str, Any]], arguments: Any, named: Any
) -> None:
    kept = [session().run(*arguments, **named) for _ in range(30)]
    assert [fields["runs"] for fields in asked] == list(range(1, 31))
    # The newest 20 may be alive in any program; the last run is counted before it is returned.
    assert asked[-1]["alive"]["output 'y'"] == [len(kept) - 20] * 2
    # Those of the run before the last.
    start = np.ones(100).tobytes()[:64].hex()
    assert asked[-1]["starts"] == {"input 'x'": (start, 800), "output 'y'": (start, 800)}


def test_dropped_values_are_not_alive(session: type[Session], asked: list[dict[str, Any]]) -> None:
    for _ in range(30):
        session().run(None, {"x": np.ones(100)})
    assert asked[-1]["alive"]["output 'y'"] == [0, 10]


def test_memory_is_also_read_after_runs_whose_values_are_not_followed(
    session: type[Session], asked: list[dict[str, Any]]
) -> None:
    session().run_with_iobinding(None)
    assert asked == [{"runs": 1, "largest_input_bytes": 0, "alive": {}, "starts": {}}]


def test_an_array_that_is_fed_again_is_one_value(
    session: type[Session], asked: list[dict[str, Any]]
) -> None:
    fed = [np.ones(100) for _ in range(3)]
    for run in range(90):
        session().run(None, {"x": fed[run % 3]})
    assert asked[-1]["alive"]["input 'x'"] == [0, 0]  # each of them may be fed next
    kept = [np.ones(100) for _ in range(90)]
    for array in kept:
        session().run(None, {"x": array})
    assert asked[-1]["alive"]["input 'x'"] == [73, 73]


def test_the_largest_inputs_of_a_run_are_added_up(
    session: type[Session], asked: list[dict[str, Any]]
) -> None:
    for length in (10, 30, 20):
        session().run(None, {"x": np.ones(length), "text": ["no array"]})
    assert [fields["largest_input_bytes"] for fields in asked] == [80, 240, 240]
