from pathlib import Path

import pytest
from onnx import TensorProto, helper

from memdiag.model import equal_weights
from memdiag.model.model_file import open_model
from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.runtime import Runtime
from tests.builders import of_tensors, saved


@pytest.mark.parametrize(("counts", "noted"), [((10_000, 10_000), True), ((10_000, 10_001), False)])
def test_weights_that_could_not_be_compared_are_noted(
    counts: tuple[int, int], noted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(equal_weights, "MAX_DECODED_BYTES", 9_999)
    tensors = [
        helper.make_tensor(name, TensorProto.INT8, [count], [1] * count)
        for name, count in zip("ab", counts, strict=True)
    ]
    with open_model(saved(of_tensors(tensors), tmp_path)) as model:
        ctx = AnalysisContext(model, Runtime.parse("1.31.1"))
        assert not ctx.equal_weights
    assert bool(ctx.notes) == noted
    assert not noted or ctx.notes[0].startswith("2 weights (a, b) of more than ")
