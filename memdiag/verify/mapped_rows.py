"""Tables that are mapped and read row by row, such as embeddings: which rows no run has read.

A page of a mapped file is resident once it has been read. So the memory of a process contains the
rows that its inputs used, and grows when other inputs use other rows.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from memdiag.attribution.address_space import AddressSpace, read_address_space
from memdiag.errors import MemdiagError, XrayError
from memdiag.model.graph_index import GraphIndex
from memdiag.model.model_file import open_model
from memdiag.model.readers import find_readers
from memdiag.units import MIB, format_size

_ROW_TABLE_INPUTS = {"Gather": (0,), "EmbedLayerNormalization": (2, 3, 4)}
"""The inputs of operators that are read row by row, by operator."""


class RowTable(NamedTuple):
    """A weight that some node reads row by row, and its place in a file."""

    file: Path
    offset: int
    nbytes: int


def row_tables(model: Path) -> tuple[RowTable, ...]:
    """Return the weights in files next to `model` that some node reads row by row.

    Empty if the model cannot be read.
    """
    try:
        return _cached_row_tables(model, model.stat().st_mtime_ns)
    except (OSError, MemdiagError):
        return ()


@lru_cache(maxsize=8)
def _cached_row_tables(model: Path, modified_ns: int) -> tuple[RowTable, ...]:
    """Return the tables of `row_tables`; with another `modified_ns` they are read again."""
    with open_model(model) as model_file:
        if model_file.is_ort_format:
            return ()
        graphs = GraphIndex(model_file)
        return tuple(
            RowTable((model.parent / weight.file).resolve(), weight.offset, weight.nbytes)
            for weight in model_file.weights
            if weight.storage == "external"
            if weight.file is not None and weight.offset is not None
            if any(
                not reader.path
                and reader.input_index in _ROW_TABLE_INPUTS.get(reader.node.op_type, ())
                for reader in find_readers(graphs, weight)
            )
        )


def unread_row_bytes(pid: int, tables: Sequence[RowTable]) -> int:
    """Return the bytes of `tables` that process `pid` maps and has not read.

    Tables that the runtime copied are in memory as a whole. 0 if the process cannot be read.
    """
    try:
        space = read_address_space(pid)
    except XrayError:
        return 0
    return sum(_table_unread_bytes(space, table) for table in tables)


def _table_unread_bytes(space: AddressSpace, table: RowTable) -> int:
    """Return the unread bytes of the first mapping of `table`; 0 if it is not mapped."""
    for start, end in _table_mappings(space, table):
        resident_bytes = space.resident_bytes_of(np.array([[start, end]], np.int64))
        return end - start - resident_bytes
    return 0


def _table_mappings(space: AddressSpace, table: RowTable) -> Iterator[tuple[int, int]]:
    """Yield the addresses of each mapping that contains all of `table`."""
    for region in space.regions:
        start = region.start + table.offset - region.offset
        if region.path == str(table.file) and region.start <= start <= region.end - table.nbytes:
            yield start, start + table.nbytes


def unread_table_notes(unread_bytes: int) -> tuple[str, ...]:
    """Return the sentence on `unread_bytes` bytes of tables; none if they are few."""
    if unread_bytes < MIB:
        return ()
    return (
        f"embeddings are mapped from the file and read row by row: {format_size(unread_bytes)} of"
        " their rows were used by no measured input, and take memory once other inputs use them",
    )
