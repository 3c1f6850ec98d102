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


def mapped_table_bytes(file: ModelFile, before: Figures, after: Figures) -> int:
    """Return the bytes of the tables of which `after` contains only rows that inputs used.

    They are those that are read row by row, if more of `file` is mapped than before: pages of a
    mapped file are resident once they were used. Otherwise 0.
    """
    if after.file_bytes - before.file_bytes < MIB:
        return 0
    tables_bytes = row_table_bytes(file)
    return tables_bytes if tables_bytes >= MIB else 0


def mapped_table_notes(table_bytes: int) -> tuple[str, ...]:
    """Return the sentence on `table_bytes` of such tables; none if there are none."""
    if not table_bytes:
        return ()
    return (
        f"{format_size(table_bytes)} of tables, such as embeddings, are mapped and read row by row:"
        " memory contains the rows that the measured inputs used, and grows as other inputs use"
        " other rows",
    )
