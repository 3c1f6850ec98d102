"""What measured memory leaves out: rows of mapped tables that no measured run used."""

from math import prod
from pathlib import Path

from memdiag.model.graph_index import GraphIndex
from memdiag.model.model_file import ModelFile, open_model
from memdiag.model.readers import readers
from memdiag.records.measured_change import Figures
from memdiag.records.weights import Weight
from memdiag.units import MIB, format_size

_TABLE_INPUTS = {"Gather": (0,), "EmbedLayerNormalization": (2, 3, 4)}
"""The inputs of operators that are read row by row, by operator."""

_FOLDED_BYTES = 4


def row_table_bytes(file: ModelFile, *, is_folded: bool = False) -> int:
    """Return the bytes of the weights that some node reads row by row, such as embeddings.

    With `is_folded` a table behind DequantizeLinear or Cast counts too, with 4 bytes an element:
    the runtime stores it so in its optimized model.
    """
    index = GraphIndex(file)
    return sum(_table_bytes(index, weight, is_folded) for weight in file.weights)


def _table_bytes(index: GraphIndex, weight: Weight, is_folded: bool) -> int:
    found = 0
    for reader in readers(index, weight):
        if reader.input_index in _TABLE_INPUTS.get(reader.node.op_type, ()):
            if not reader.path:
                found = max(found, weight.nbytes)
            elif is_folded:
                found = max(found, _FOLDED_BYTES * prod(weight.shape))
    return found


def mapped_table_bytes(
    loaded: Path, before: Figures, after: Figures, *, is_folded: bool = False
) -> int:
    """Return the bytes of the tables of which `after` contains only rows that inputs used.

    They are those that the model `loaded` reads row by row, if more is mapped than before: pages of
    a mapped file are resident once they were used. Otherwise 0. `is_folded`: whether the runtime
    maps its own optimized version of the model.
    """
    if after.file_bytes - before.file_bytes < MIB:
        return 0
    with open_model(loaded) as file:
        table_bytes = row_table_bytes(file, is_folded=is_folded)
    return table_bytes if table_bytes >= MIB else 0


def mapped_table_notes(table_bytes: int) -> tuple[str, ...]:
    """Return the sentence on `table_bytes` of such tables; none if there are none."""
    if not table_bytes:
        return ()
    return (
        f"{format_size(table_bytes)} of tables, such as embeddings, are mapped and read row by row:"
        " memory contains the rows that the measured inputs used, and grows as other inputs use"
        " other rows",
    )
