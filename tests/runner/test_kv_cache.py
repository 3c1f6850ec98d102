"""The inputs of each step of a generation: the cache, the token's position, and a longer mask."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from memdiag.runner.scripts.kv_cache import MAX_RANGES, Generation

ENTRY: dict[str, Any] = {
    "pairs": [["present", "past"]],
    "prefill_tokens": 5,
    "step_inputs": [
        {"name": "ids", "grows_along": None, "past_offset": None},
        {"name": "mask", "grows_along": 1, "past_offset": None},
        {"name": "position", "grows_along": None, "past_offset": 0},
        {"name": "total", "grows_along": None, "past_offset": 1},
    ],
}
STEPS = 3


def generation(pairs: list[list[str]] | None = None) -> Generation:
    entry = {**ENTRY, "pairs": pairs or ENTRY["pairs"]}
    names = ["logits", *(output for output, _ in entry["pairs"])]
    session = SimpleNamespace(get_outputs=lambda: [SimpleNamespace(name=name) for name in names])
    feeds = {
        "ids": np.array([[7]]),
        "mask": np.ones((1, 5 + STEPS), "i8"),
        "position": np.zeros((1, 1), "i8"),
        "total": np.array(0, "i4"),
    }
    return Generation(session, entry, feeds)


def test_each_step_receives_the_cache_and_is_one_token_further() -> None:
    steps = generation()
    for number in range(STEPS):
        present = np.full((1, 5 + number), number, "f4")
        steps.keep([np.zeros(9), present])
        feeds = steps.step_feeds(number, STEPS)
        assert feeds["past"] is present
        assert feeds["ids"] == [[7]]
        assert feeds["mask"].shape == (1, 5 + number + 1)
        assert feeds["position"] == [[5 + number]]
        assert feeds["total"] == 5 + number + 1


def test_the_memory_of_the_cache_is_stated_without_that_of_other_outputs() -> None:
    steps = generation()
    assert steps.ranges() == []
    present = np.zeros((2, 3), "f4")
    steps.keep([np.zeros(9), present])
    assert steps.ranges() == [[(present.ctypes.data, present.ctypes.data + 24)]]
    steps.keep([np.zeros(9), np.zeros((0, 3), "f4")])
    assert steps.ranges() == []


def test_many_parts_are_stated_in_several_events() -> None:
    steps = generation([[f"present.{i}", f"past.{i}"] for i in range(MAX_RANGES + 1)])
    steps.keep([np.zeros(1), *(np.zeros(1) for _ in range(MAX_RANGES + 1))])
    assert [len(ranges) for ranges in steps.ranges()] == [MAX_RANGES, 1]
