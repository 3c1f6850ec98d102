"""The arena over the calls of a generation: what each call requests, and the cache between calls.

Python receives the outputs of a call in the memory that onnxruntime allocated for them, so that the
cache is in chunks of the arena. During a call there are the cache of the past and the one that the
call returns; then the past is freed. Every call has other shapes, so that no call has the block
that is planned for a repeated shape.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from memdiag.ort.arena import ArenaRequest, SimulatedArena
from memdiag.records.generation import KeyValueCache

MAX_SERVED_STEPS = 256
"""Steps that the arena serves at most; of more steps it serves this many, evenly spread."""

_KEYS_OF_A_CALL = 1 << 32


class GenerationSizes(NamedTuple):
    """The calls of a generation by the sizes of the free dimensions.

    Attributes:
        prompt, first_step, last_step: the sizes in these calls.
        prefill_tokens, steps: the tokens of the prompt, and the number of steps.
        outputs: the names of the outputs that are fed to the next call.
        cache: the KV cache.
    """

    prompt: Mapping[str, int]
    first_step: Mapping[str, int]
    last_step: Mapping[str, int]
    prefill_tokens: int
    steps: int
    outputs: frozenset[str]
    cache: KeyValueCache


class CallsInArena:
    """An arena that serves call after call, and keeps the cache from one call to the next.

    Args:
        arena: the arena.
        outputs: the names of the outputs that are fed to the next call.
    """

    def __init__(self, arena: SimulatedArena, outputs: frozenset[str]) -> None:
        self._arena, self._outputs = arena, outputs
        self._calls = 0
        self._cache: list[int] = []

    def serve(self, requests: Sequence[ArenaRequest]) -> None:
        """Serve a call, and free the cache that it received."""
        first_key = self._calls * _KEYS_OF_A_CALL
        self._calls += 1
        cache_keys = {
            request.key for request in requests if request.nbytes and request.name in self._outputs
        }
        for request in requests:
            if request.nbytes:
                self._arena.take(first_key + request.key, request.nbytes)
            elif request.key not in cache_keys:
                self._arena.free(first_key + request.key)
        for key in self._cache:
            self._arena.free(key)
        self._cache = [first_key + key for key in cache_keys]


def step_requests(
    first: Sequence[ArenaRequest], last: Sequence[ArenaRequest], steps: int
) -> Iterator[Sequence[ArenaRequest]]:
    """Yield the requests of each step, computed from the first and the last step.

    In a step of one token sizes grow linearly with the past. If the first and the last step have
    different values, as when a branch of the model depends on a size, only these two are yielded.
    """
    is_same = [request.key for request in first] == [request.key for request in last]
    if steps == 1 or not is_same:
        yield first
        if steps > 1:
            yield last
        return
    step_count = min(steps, MAX_SERVED_STEPS)
    for number in range(step_count):
        share = number / (step_count - 1)
        yield [
            request._replace(
                nbytes=round(request.nbytes + share * (last_request.nbytes - request.nbytes))
            )
            for request, last_request in zip(first, last, strict=True)
        ]
