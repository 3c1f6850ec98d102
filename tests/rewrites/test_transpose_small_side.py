from pathlib import Path

import numpy as np

from memdiag.rewrites import transpose_small_side
from tests.rewrites.rewriting import assert_same_outputs, refusal
from tests.rewrites.tied_models import (
    SHARED,
    operators,
    rewritten,
    tied,
    tied_feeds,
)


def test_the_input_and_the_product_are_turned(tmp_path: Path) -> None:
    runs = [tied_feeds(rows) for rows in (0, 1, 5)]
    path = rewritten(transpose_small_side, tied(), tmp_path, *runs)
    assert operators(path) == ["Gather", "MatMul", "Transpose", "Transpose"]


def test_a_vector_is_the_same_from_either_side(tmp_path: Path) -> None:
    path = rewritten(transpose_small_side, tied(()), tmp_path, tied_feeds())
    assert operators(path) == ["Gather", "MatMul"]


def test_whole_numbers_stay_as_they_are(tmp_path: Path) -> None:
    feeds = tied_feeds(3, dtype=np.int32)
    path = rewritten(transpose_small_side, tied(dtype=np.int32), tmp_path)
    assert_same_outputs(tmp_path / "original.onnx", path, feeds)


def test_what_cannot_be_given_its_axes_again_is_refused(tmp_path: Path) -> None:
    reason = refusal(transpose_small_side, tied(None, opset=13), SHARED, tmp_path)
    assert "in operator set 13 the product cannot be given its axes" in reason
