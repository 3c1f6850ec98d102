"""The table of the memory on a GPU at the moments."""

from collections.abc import Iterator

from memdiag.device.ledger import OWNER_LABELS
from memdiag.growth.device_growth import WHOLE_LABELS
from memdiag.growth.device_series import DeviceSeries, device_series
from memdiag.records.growth import DevicePart, Growth
from memdiag.reports.blocks import Block, TableBlock
from memdiag.reports.growth.owners import (
    growth_columns,
    growth_row,
    moment_position,
    warm_up_index,
)
from memdiag.reports.table import Cell, Table
from memdiag.reports.text import plain

_LABELS: dict[DevicePart, str] = {
    "arena": "values in the arena",
    "empty_arena": OWNER_LABELS["empty_arena"],
    "rest": "other memory",
}


def device_growth_blocks(growth: Growth) -> list[Block]:
    """Return the table of the memory on a GPU, if it was read after the warm-up."""
    series = device_series(growth.moments)
    if series is None or warm_up_index(growth, series.moments) == len(series.moments) - 1:
        return []
    return [TableBlock(title="Memory on the GPU", table=_device_table(growth, series))]


def _device_table(growth: Growth, series: DeviceSeries) -> Table:
    since = warm_up_index(growth, series.moments)
    first, last = (moment_position(growth, series.moments[index]) for index in (since, -1))
    span = last - first
    rows = [growth_row(Cell(WHOLE_LABELS[series.basis]), series.whole, since, span)]
    rows += [
        growth_row(Cell(label), sizes, since, span, is_strong=is_judged, level=1)
        for label, sizes, is_judged in _parts(growth, series)
        if any(sizes)
    ]
    return Table(columns=growth_columns("on the GPU", growth), rows=tuple(rows))


def _parts(growth: Growth, series: DeviceSeries) -> Iterator[tuple[str, tuple[int, ...], bool]]:
    """Yield the name of each part and library, its sizes, and whether it is what grows."""
    part_judged = growth.device.part if growth.device else None
    library_judged = growth.device.library if growth.device else ""
    for part, sizes in series.parts.items():
        if part != "libraries":
            yield _LABELS[part], sizes, part == part_judged
            continue
        for library in sorted(set[str]().union(*series.libraries)):
            library_sizes = tuple(libraries.get(library, 0) for libraries in series.libraries)
            yield plain(library), library_sizes, library == library_judged
