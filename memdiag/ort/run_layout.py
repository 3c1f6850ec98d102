"""Where the values of the first run are in the arena, and when: for the drawing of a run."""

from collections.abc import Sequence
from itertools import accumulate

from memdiag.model.graph_index import GraphIndex
from memdiag.ort.activations import SimulatedRun
from memdiag.ort.arena import Arena, Lifetime
from memdiag.ort.executed_graph import name_in_model
from memdiag.records.estimate import RunBlock, RunLayout

MAX_BLOCKS = 600
"""Blocks in a record, the largest ones."""


def run_layout(graphs: GraphIndex, run: SimulatedRun) -> RunLayout:
    """Return the blocks that `run` takes from the arena."""
    arena = Arena()
    lifetimes = arena.lifetimes(run.requests)
    sizes = arena.region_bytes
    offsets = [0, *accumulate(sizes)]
    steps = [graphs.qualified(*step) for step in run.steps]
    largest = sorted(lifetimes, key=lambda each: -each.request.nbytes)
    return RunLayout(
        steps=len(steps),
        peak_step=_peak_step(lifetimes),
        region_bytes=sizes,
        blocks=tuple(
            RunBlock(
                name=name_in_model(each.request.name) or steps[each.request.step],
                kind="scratch" if each.request.is_scratch else "value",
                first=each.request.step,
                last=each.until,
                first_node=steps[each.request.step],
                last_node=steps[each.until],
                offset=offsets[each.region] + each.start,
                bytes=each.request.nbytes,
            )
            for each in largest[:MAX_BLOCKS]
        ),
        unlisted=max(0, len(largest) - MAX_BLOCKS),
    )


def _peak_step(lifetimes: Sequence[Lifetime]) -> int:
    """Return the step at which most bytes are in use."""
    changes: dict[int, int] = {}
    for each in lifetimes:
        first, after = each.request.step, each.until + 1
        changes[first] = changes.get(first, 0) + each.request.nbytes
        changes[after] = changes.get(after, 0) - each.request.nbytes
    steps = sorted(changes)
    in_use = list(accumulate(changes[step] for step in steps))
    return steps[in_use.index(max(in_use))] if steps else 0
