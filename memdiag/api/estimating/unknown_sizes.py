"""Values whose sizes depend on the data: what is assumed of them, and an interval otherwise."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from memdiag.model.assumed_shapes import OPERATORS, Assumptions, unknown_nodes
from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.session_estimate import EstimateOptions, SessionEstimate
from memdiag.records.estimate import EstimatedPoint
from memdiag.units import counted, plural

_EXAMPLES = {"nonzero": "nonzero=0.1", "loop": "loop=20", "topk": "topk=100"}
_MEANINGS = {
    "nonzero": "a share of {} of the elements of each NonZero is not 0",
    "loop": "each Loop has {} iterations",
    "topk": "each TopK has a K of {}",
}


@dataclass(frozen=True, kw_only=True)
class UnknownSizes:
    """The values of unknown size at some sizes of the free dimensions.

    Attributes:
        count: the number of values.
        assumptions: the assumptions that were made.
        missing: the names of assumptions that would decide more sizes.
        is_bounded: whether all sizes are known if all elements of each NonZero are not 0.
    """

    count: int
    assumptions: Assumptions
    missing: tuple[str, ...]
    is_bounded: bool

    @property
    def are_left_out(self) -> bool:
        """Whether an estimate leaves values out, without an upper end that includes them."""
        return bool(self.count) and not self.is_bounded

    def notes(self) -> Iterator[str]:
        """Yield what is assumed, and what remains unknown."""
        for name, value in self.assumptions._asdict().items():
            if value is not None:
                yield f"assumed: {_MEANINGS[name].format(f'{value:g}')}"
        if not self.count:
            return
        count = self.count
        text = (
            f"{counted(count, 'value')} {plural(count, 'has a size', 'have sizes')} that"
            f" {plural(count, 'depends', 'depend')} on the data;"
            f" {plural(count, 'it counts', 'they count')} as nothing: the figure is a lower bound"
        )
        if self.is_bounded:
            text += ", and the interval goes to the peak if no element of a NonZero is 0"
        if self.missing:
            examples = ",".join(_EXAMPLES[name] for name in self.missing)
            text += f". Assume sizes (--assume {examples}), or measure (--measure)"
        else:
            text += ". --measure runs the model"
        yield text


def unknown_sizes(ctx: AnalysisContext, sizes: Mapping[str, int]) -> UnknownSizes:
    """Return the values of unknown size at `sizes` of the free dimensions."""
    count = ctx.activations(sizes).unknown
    missing: tuple[str, ...] = ()
    is_bounded = False
    if count:
        nodes = unknown_nodes(ctx.graphs, ctx.shapes_at(sizes))
        names = dict.fromkeys(OPERATORS[node.op_type] for _, node in nodes)
        made = ctx.assumptions._asdict()
        missing = tuple(name for name in names if made[name] is None)
        if "nonzero" in missing:
            is_bounded = not _with_all_elements(ctx).activations(sizes).unknown
    return UnknownSizes(
        count=count, assumptions=ctx.assumptions, missing=missing, is_bounded=is_bounded
    )


def up_to_all_elements(
    ctx: AnalysisContext, options: EstimateOptions, points: Sequence[EstimatedPoint]
) -> Iterator[EstimatedPoint]:
    """Yield `points` with upper ends as if no element of a NonZero were 0."""
    session = SessionEstimate(_with_all_elements(ctx), options)
    for point in points:
        largest = session.at(point.dims)
        yield msgspec.structs.replace(
            point,
            high_bytes=max(point.high_bytes, largest.high_bytes),
            pinned_high_bytes=max(point.pinned_high_bytes, largest.pinned_high_bytes),
        )


def _with_all_elements(ctx: AnalysisContext) -> AnalysisContext:
    return AnalysisContext(
        ctx.model,
        ctx.runtime,
        sizes=ctx.sizes,
        reads_weights=False,
        block=ctx.block,
        assumptions=ctx.assumptions._replace(nonzero=1.0),
    )
