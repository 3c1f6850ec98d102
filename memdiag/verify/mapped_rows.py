"""What measured memory leaves out: rows of mapped tables that no measured run used."""

from memdiag.model.graph_index import GraphIndex
from memdiag.model.model_file import ModelFile
from memdiag.records.measured_change import Figures
from memdiag.units import MIB, format_size

_TABLE_INPUTS = {"Gather": (0,), "EmbedLayerNormalization": (2, 3, 4)}
"""The inputs of operators that are read row by row, by operator."""


def row_table_bytes(file: ModelFile) -> int:
    """Return the bytes of the weights that some node reads row by row, such as embeddings."""
    index = GraphIndex(file)
    tables: dict[tuple[str, str], int] = {}
    for _, scope in index:
        for node in scope.graph.nodes:
            for position in _TABLE_INPUTS.get(node.op_type, ()):
                if position < len(node.input) and node.input[position]:
                    weight = index.weight(scope, node.input[position])
                    if weight is not None:
                        tables[weight.graph, weight.name] = weight.nbytes
    return sum(tables.values())


def mapped_rows_notes(file: ModelFile, before: Figures, after: Figures) -> tuple[str, ...]:
    """Return a sentence if more of `file` is mapped than before, and inputs decide how much.

    Pages of a mapped file are resident once they were used. A table is used row by row.
    """
    if after.file_bytes - before.file_bytes < MIB or (tables := row_table_bytes(file)) < MIB:
        return ()
    return (
        "more weights are mapped from files: of tables that are read row by row"
        f" ({format_size(tables)}), memory contains the rows that the measured inputs used. Other"
        f" rows add to it, up to {format_size(tables)} in all",
    )
