"""The sizes of the free dimensions at which memory is estimated."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod, sqrt

from memdiag.api.arguments import check_dims
from memdiag.api.inputs import choose_inputs
from memdiag.errors import UsageError
from memdiag.model.axis_roles import axis_roles, dims_by_name, total_lengths
from memdiag.model.count_inputs import free_axes
from memdiag.model.dimensions import InputAxis, choose_sizes, is_expression
from memdiag.model.model_file import ModelFile
from memdiag.records.dimension import Dimension
from memdiag.runner.job import InputConfig

MAX_RANGE_SIZES = 8
"""The most sizes into which a range is divided."""

MAX_GRID_POINTS = 64
"""The most combinations of sizes."""

MAX_VARIED_DIMENSIONS = 32
"""Free dimensions whose sizes are varied one by one. For each of them all shapes are inferred."""

DimSizes = int | tuple[int, int] | list[int]
"""The size of a dimension, a range (low, high) of sizes, or a list of sizes."""


@dataclass(frozen=True, kw_only=True)
class SizeGrid:
    """The sizes of the free dimensions, and the combinations at which memory is estimated.

    Attributes:
        dimensions: the free dimensions with the sizes of the first point.
        notes: sentences on the choice of sizes.
        steps: the sizes of each dimension that has several sizes, by name.
        inputs, totals: the axes of the inputs, and the dimensions that are sums of two others.
    """

    dimensions: tuple[Dimension, ...]
    notes: tuple[str, ...]
    steps: Mapping[str, Sequence[int]]
    inputs: Mapping[str, tuple[InputAxis, ...] | None]
    totals: Mapping[str, tuple[str, str]]

    @property
    def free(self) -> tuple[Dimension, ...]:
        """The dimensions whose sizes do not follow from other dimensions."""
        given_names = {
            dimension.name for dimension in self.dimensions if dimension.source == "given"
        }
        axis_by_key = {axis.key: axis for axes in self.inputs.values() for axis in axes or ()}
        return tuple(
            dimension
            for dimension in self.dimensions
            if dimension.name in given_names
            or not (dimension.name in self.totals or is_expression(dimension.name, axis_by_key))
        )

    def at(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return the sizes of all free dimensions if some of them have the sizes in `sizes`."""
        first_sizes = {dimension.name: dimension.size for dimension in self.free}
        all_sizes = choose_sizes(
            self.inputs, dims={**first_sizes, **sizes}, given={}, free_dim=1, totals=self.totals
        )
        return {dimension.name: all_sizes[dimension.name] for dimension in self.dimensions}

    @property
    def varied(self) -> tuple[Dimension, ...]:
        """The free dimensions whose sizes are varied one by one: the first
        `MAX_VARIED_DIMENSIONS`."""
        return self.free[:MAX_VARIED_DIMENSIONS]

    def doubled(self, sizes: Mapping[str, int]) -> dict[str, dict[str, int]]:
        """Return the sizes of all dimensions with one of them twice as large as in `sizes`.

        The result has an entry for each varied dimension, by its name.
        """
        return {
            dimension.name: self._sizes_with(sizes, dimension.name, 2 * sizes[dimension.name])
            for dimension in self.varied
        }

    def halved(self, sizes: Mapping[str, int]) -> dict[str, dict[str, int]]:
        """Return the sizes of all dimensions with one of them half as large as in `sizes`.

        The result has an entry for each varied dimension of size 2 or more, by its name.
        """
        return {
            dimension.name: self._sizes_with(sizes, dimension.name, sizes[dimension.name] // 2)
            for dimension in self.varied
            if sizes[dimension.name] > 1
        }

    def _sizes_with(self, sizes: Mapping[str, int], name: str, size: int) -> dict[str, int]:
        free_sizes = {dimension.name: sizes[dimension.name] for dimension in self.free}
        return self.at({**free_sizes, name: size})

    def points(self) -> Iterator[dict[str, int]]:
        """Yield the sizes of all free dimensions at each point; the last dimension varies
        fastest."""
        for sizes in product(*self.steps.values()):
            yield self.at(dict(zip(self.steps, sizes, strict=True)))


def size_grid(model_file: ModelFile, dims: Mapping[str, DimSizes]) -> SizeGrid:
    """Return the sizes at which the memory of `model_file` is estimated.

    Dimensions that `dims` does not name get the sizes with which `memdiag.profile` runs the model.

    Raises:
        UsageError: `dims` names no dimension of the model, has no valid size or range, or has too
            many combinations.
    """
    dims = dims_by_name(model_file.graph, model_file.functions, dims)
    lists_by_name = {name: size for name, size in dims.items() if isinstance(size, list)}
    ranges_by_name = {name: size for name, size in dims.items() if isinstance(size, tuple)}
    for name, sizes in lists_by_name.items():
        check_dims(dict.fromkeys([name], 1) if sizes else None)
        for size in sizes:
            check_dims({name: size})
        if not sizes:
            raise UsageError(f"dimension {name!r} has no size. Give one size or more.")
    for name, size_range in ranges_by_name.items():
        check_size_range(name, size_range)
    single_sizes = {
        name: size
        for name, size in dims.items()
        if name not in lists_by_name and name not in ranges_by_name
    }
    check_dims(single_sizes)
    steps = {name: list(dict.fromkeys(sizes)) for name, sizes in lists_by_name.items()}
    steps |= _steps_of_ranges(ranges_by_name, prod(map(len, steps.values())))
    count = prod(map(len, steps.values()))
    if count > MAX_GRID_POINTS:
        raise UsageError(
            f"{count} combinations of sizes are too many. Give at most {MAX_GRID_POINTS}."
        )
    # In the order of `dims`.
    steps = {name: steps[name] for name in dims if name in steps}
    first_sizes = {name: size for name, size in dims.items() if isinstance(size, int)}
    first_sizes |= {name: sizes[0] for name, sizes in steps.items()}
    for name, sizes in steps.items():
        if min(sizes) < 0:
            raise UsageError(f"dimension {name!r} must be 0 or greater, not {min(sizes)}.")
    chosen = choose_inputs(model_file, InputConfig(dims=first_sizes))
    inputs = free_axes(model_file.graph)
    roles = axis_roles(model_file.graph, model_file.functions)
    grid = SizeGrid(
        dimensions=chosen.dimensions,
        notes=chosen.notes,
        steps=steps,
        inputs=inputs,
        totals=total_lengths(inputs, roles),
    )
    if len(grid.free) <= MAX_VARIED_DIMENSIONS:
        return grid
    note = (
        f"only the first {MAX_VARIED_DIMENSIONS} of {len(grid.free):,} free dimensions were varied"
    )
    return replace(grid, notes=(*grid.notes, note))


def size_steps(low: int, high: int, max_count: int) -> list[int]:
    """Return at most `max_count` sizes from `low` to `high`.

    All steps are by the same power of two. Only the last one may be smaller or a little larger, as
    both `low` and `high` are among the sizes.
    """
    if low == high:
        return [low]
    factor = 2
    while True:
        sizes = [low]
        while (next_size := max(1, sizes[-1] * factor)) < high:
            sizes.append(next_size)
        if len(sizes) > 1 and sizes[-1] * sqrt(factor) > high:
            sizes.pop()
        sizes.append(high)
        if len(sizes) <= max_count:
            return sizes
        factor *= 2


def _steps_of_ranges(
    ranges: Mapping[str, tuple[int, int]], other_combinations: int
) -> dict[str, list[int]]:
    """Return the sizes in `ranges`, fewer of each if there would be too many combinations.

    `other_combinations` is the number of combinations of the dimensions without a range.
    """
    for max_count in range(MAX_RANGE_SIZES, 2, -1):
        steps = {name: size_steps(*ends, max_count) for name, ends in ranges.items()}
        if other_combinations * prod(map(len, steps.values())) <= MAX_GRID_POINTS:
            return steps
    return {name: size_steps(*ends, 2) for name, ends in ranges.items()}


def check_size_range(name: str, ends: tuple[int, ...]) -> None:
    """Check that `ends` are the ends of a range of sizes.

    Raises:
        UsageError: they are not.
    """
    if len(ends) != 2:
        raise UsageError(
            f"dimension {name!r}: {ends!r} is not a range of sizes. Pass (low, high), or a list of"
            " sizes."
        )
    low, high = ends
    check_dims({name: low})
    check_dims({name: high})
    if not 0 <= low <= high:
        raise UsageError(
            f"dimension {name!r}: {low}..{high} is not a range of sizes. Give the lowest size"
            " first."
        )
