"""An inventory on a terminal: names of any length take a line."""

import io
from pathlib import Path

import onnx
from onnx import helper
from rich.console import Console

import memdiag
from memdiag.reports.inventory import show


def test_long_names_are_shortened(tmp_path: Path) -> None:
    long = "n" * 100_000
    value = helper.make_tensor_value_info("i" + long, onnx.TensorProto.FLOAT, ["d" + long])
    node = helper.make_node("Op" + long, ["i" + long], ["i" + long], domain="my" + long)
    model = helper.make_model(
        helper.make_graph([node], "g", [value], [value]),
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("my" + long, 1)],
        ir_version=10,
        producer_name="by" + long,
    )
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    output = io.StringIO()
    show(memdiag.inspect(path), Console(file=output, width=200))
    assert len(output.getvalue()) < 2000
    for part in ("input innn", "[dnnn", "mynnn", "by bynnn", "nnn 1"):
        assert part in output.getvalue()
