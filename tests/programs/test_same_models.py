"""Models from bytes that the program has loaded from a file as well."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from memdiag.programs.events import SessionModelSource
from memdiag.programs.hook.creation import SAMPLED_BLOCKS, session_model_source
from memdiag.programs.same_models import files_of_bytes


def source(model: Path | bytes) -> SessionModelSource:
    return SessionModelSource(**session_model_source(model))


def saved(path: Path, *, elements: int, seed: int = 0, **options: Any) -> bytes:
    """Save a model with random weights, and return the bytes of its file."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]>'
        f" m (float[{elements}] x) => (float[{elements}] y) {{ y = Add(x, w) }}"
    )
    weight = np.random.default_rng(seed).standard_normal(elements, np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    onnx.save(model, path, **options)
    return path.read_bytes()


@pytest.mark.parametrize("elements", [4, 1 << 19], ids=["one block", "sampled"])
def test_a_file_with_the_content_of_bytes(tmp_path: Path, elements: int) -> None:
    path = tmp_path / "m.onnx"
    content = saved(path, elements=elements)
    assert (len(content) > SAMPLED_BLOCKS << 14) == (elements > 4)
    described = [source(path), source(content)]
    assert files_of_bytes(described) == {described[1].digest: str(path)}


def test_other_content_of_the_same_length_is_another_model(tmp_path: Path) -> None:
    content = saved(tmp_path / "m.onnx", elements=512)
    other = saved(tmp_path / "other.onnx", elements=512, seed=1)
    assert len(content) == len(other)
    assert files_of_bytes([source(tmp_path / "m.onnx"), source(other)]) == {}
    assert files_of_bytes([source(tmp_path / "m.onnx"), source(content[:-1])]) == {}
    assert files_of_bytes([source(tmp_path / "gone.onnx"), source(content)]) == {}


def test_external_data_may_differ_where_the_bytes_are_equal(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    external: dict[str, Any] = {
        "save_as_external_data": True,
        "location": "m.data",
        "size_threshold": 0,
    }
    content = saved(path, elements=512, **external)
    assert files_of_bytes([source(path), source(content)]) == {}
