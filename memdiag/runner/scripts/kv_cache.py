"""The calls of a generation: each receives keys and values that the call before it returned.

The cache is what `InferenceSession.run` returns: arrays in the memory that onnxruntime allocated
for its outputs. During a call the past and the outputs are in memory. Then the past is dropped.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_RANGES = 100
"""Ranges of addresses in one event, which has to stay below 4096 bytes."""


class Generation:
    """The cache, and the inputs of the next call.

    Args:
        session: the session, whose outputs have the names of the pairs.
        entry: the entry of the job: ``pairs``, ``prefill_tokens`` and ``step_inputs``.
        feeds: the inputs of a step that are not fed, by name. Those that grow have their largest
            size.
    """

    def __init__(self, session: Any, entry: dict[str, Any], feeds: dict[str, Any]) -> None:
        names = [output.name for output in session.get_outputs()]
        self._indices = [(names.index(output), name) for output, name in entry["pairs"]]
        self._prefill_tokens = entry["prefill_tokens"]
        self._step_inputs = entry["step_inputs"]
        self._feeds = feeds
        self._cache: dict[str, Any] = {}

    def keep(self, outputs: list[Any]) -> None:
        """Replace the cache by that in `outputs`."""
        self._cache = {name: outputs[index] for index, name in self._indices}

    def step_feeds(self, number: int, steps: int) -> dict[str, Any]:
        """Return the inputs of step `number`, from 0, of `steps`."""
        feeds = dict(self._feeds)
        past = self._prefill_tokens + number
        for step_input in self._step_inputs:
            array = feeds[step_input["name"]]
            axis = step_input["grows_along"]
            if axis is not None:
                length = array.shape[axis] - (steps - 1 - number)
                array = array[(slice(None),) * axis + (slice(length),)]
                feeds[step_input["name"]] = array
            if step_input["past_offset"] is not None:
                array[...] = past + step_input["past_offset"]
        feeds.update(self._cache)
        return feeds

    def ranges(self) -> list[list[tuple[int, int]]]:
        """Return start and end of the memory of each part of the cache, in lists of a few."""
        address_ranges = []
        for array in self._cache.values():
            if hasattr(array, "ctypes"):
                start, nbytes = array.ctypes.data, array.nbytes
            else:
                start, nbytes = array.data_ptr(), array.tensor_size_in_bytes()
            if nbytes:
                address_ranges.append((start, start + nbytes))
        return [
            address_ranges[first : first + MAX_RANGES]
            for first in range(0, len(address_ranges), MAX_RANGES)
        ]
