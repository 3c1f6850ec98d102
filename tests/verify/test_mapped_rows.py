"""Tables whose rows are mapped as they are used: found, and told where more is mapped."""

from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from memdiag.model.model_file import open_model
from memdiag.units import MIB
from memdiag.verify.mapped_rows import mapped_table_bytes, mapped_table_notes, row_table_bytes
from tests.reports import tuning_records

TABLE = "y = Gather(w, ids)"
IN_BRANCH = """
    y = If(flag) <
        then_branch = yes () => (float[n,1024] a) { a = Gather(w, ids) },
        else_branch = no () => (float[n,1024] b) { b = Gather(w, ids) }
    >"""


def written(folder: Path, body: str) -> Path:
    """Write a model with a weight ``w`` of 4 MiB."""
    model = parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 17]>
        g (int64[n] ids, bool flag) => (float[n,1024] y) {{ {body} }}""")
    weight = numpy_helper.from_array(np.zeros((1024, 1024), np.float32), "w")
    model.graph.initializer.append(weight)
    onnx.save(model, folder / "m.onnx")
    return folder / "m.onnx"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (TABLE, 4 * MIB),
        (IN_BRANCH, 4 * MIB),
        ("y = Add(w, w)", 0),
        ("y = Gather(w, ids) z = Gather(w, ids)", 4 * MIB),
        ("y = Gather(ids, w)", 0),
    ],
)
def test_weights_that_are_read_row_by_row_are_counted_once(
    tmp_path: Path, body: str, expected: int
) -> None:
    with open_model(written(tmp_path, body)) as file:
        assert row_table_bytes(file) == expected


@pytest.mark.parametrize(("is_folded", "expected"), [(True, 4 * MIB), (False, 0)])
def test_a_table_that_is_folded_counts_as_it_is_stored_then(
    tmp_path: Path, is_folded: bool, expected: int
) -> None:
    body = "d = DequantizeLinear(w, s) y = Gather(d, ids)"
    path = written(tmp_path, body)
    model = onnx.load(path)
    del model.graph.initializer[:]
    for name, array in (("w", np.zeros((1024, 1024), np.int8)), ("s", np.float32(1))):
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    onnx.save(model, path)
    with open_model(path) as file:
        assert row_table_bytes(file, is_folded=is_folded) == expected


@pytest.mark.parametrize(
    ("body", "mapped_mib", "is_told"),
    [(TABLE, 3.0, True), (TABLE, 0.5, False), ("y = Add(w, w)", 3.0, False)],
)
def test_tables_count_where_more_is_mapped_than_before(
    tmp_path: Path, body: str, mapped_mib: float, is_told: bool
) -> None:
    before = tuning_records.figures(10, 10)
    after = msgspec.structs.replace(before, file_bytes=round(mapped_mib * MIB))
    table_bytes = mapped_table_bytes(written(tmp_path, body), before, after)
    assert table_bytes == (4 * MIB if is_told else 0)
    notes = mapped_table_notes(table_bytes)
    assert [note.split(", such as")[0] for note in notes] == ["4.0 MiB of tables"] * is_told
