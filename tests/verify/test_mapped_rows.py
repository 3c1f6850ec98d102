"""Tables whose rows are mapped as they are used: found, and measured in a process that ran."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from memdiag.runner.job import Feed, Job
from memdiag.units import MIB
from memdiag.verify.mapped_rows import row_tables, unread_table_notes
from memdiag.verify.memory import measure_once, median_figures

TABLE = "y = Gather(w, ids)"
IN_BRANCH = """
    y = If(flag) <
        then_branch = yes () => (float[n,1024] a) { a = Gather(w, ids) },
        else_branch = no () => (float[n,1024] b) { b = Gather(w, ids) }
    >"""
ROWS = 4096
TABLE_BYTES = ROWS * 1024 * 4


def written(folder: Path, body: str = TABLE, *, external: bool = True) -> Path:
    """Write a model with a weight ``w`` of 16 MiB."""
    model = parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 17]>
        g (int64[n] ids, bool flag) => (float[n,1024] y) {{ {body} }}""")
    weight = numpy_helper.from_array(np.ones((ROWS, 1024), np.float32), "w")
    model.graph.initializer.append(weight)
    onnx.save(model, folder / "m.onnx", save_as_external_data=external, location="m.onnx.data")
    return folder / "m.onnx"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (TABLE, 1),
        (IN_BRANCH, 1),
        ("y = Gather(w, ids) z = Gather(w, ids)", 1),
        ("y = Add(w, w)", 0),
        ("y = Gather(ids, w)", 0),
        ("t = Transpose(w) y = Gather(t, ids)", 0),
    ],
)
def test_weights_in_files_that_are_read_row_by_row_are_found_once(
    tmp_path: Path, body: str, expected: int
) -> None:
    found = row_tables(written(tmp_path, body))
    assert [(each.file, each.nbytes) for each in found] == expected * [
        ((tmp_path / "m.onnx.data").resolve(), TABLE_BYTES)
    ]


def test_a_model_that_is_exchanged_is_read_again(tmp_path: Path) -> None:
    assert len(row_tables(written(tmp_path))) == 1
    assert row_tables(written(tmp_path, "y = Add(w, w)")) == ()


def test_embedded_tables_and_missing_models_have_no_rows_to_read(tmp_path: Path) -> None:
    assert row_tables(written(tmp_path, external=False)) == ()
    assert row_tables(tmp_path / "missing.onnx") == ()


@pytest.mark.parametrize(("step", "least", "most"), [(ROWS, 0.85, 1.0), (2, 0.0, 0.0)])
def test_rows_that_no_run_used_are_counted(
    tmp_path: Path, step: int, least: float, most: float
) -> None:
    # A page contains one row; of a file that was just written the kernel maps 2 MiB at once.
    ids = np.arange(0, ROWS, step, dtype=np.int64)
    np.save(tmp_path / "ids.npy", ids)
    np.save(tmp_path / "flag.npy", np.array(True))
    feeds = tuple(Feed(name=name, files=(tmp_path / f"{name}.npy",)) for name in ("ids", "flag"))
    job = Job(model=written(tmp_path), feeds=feeds, later_feeds=(feeds,), runs=1)
    figures = median_figures([measure_once(job)], disk_bytes=0)
    assert least * TABLE_BYTES <= figures.unread_table_bytes <= most * TABLE_BYTES
    assert figures.most_steady_bytes == figures.steady_bytes + figures.unread_table_bytes
    assert figures.most_peak_bytes >= max(figures.peak_bytes, figures.most_steady_bytes)


def test_only_many_unread_rows_are_told() -> None:
    assert unread_table_notes(MIB - 1) == ()
    (note,) = unread_table_notes(91 * MIB)
    assert "91 MiB of their rows were used by no measured input" in note
