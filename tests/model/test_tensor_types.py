"""ONNX's names of the element types of arrays."""

import numpy as np
import pytest

from memdiag.model.tensor_types import type_name_of


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        ("<f4", "float"),
        (">f4", "float"),
        ("f8", "double"),
        ("f2", "float16"),
        ("i8", "int64"),
        ("?", "bool"),
        ("<U3", "string"),
        ("O", "string"),
        ("datetime64[s]", "datetime64[s]"),
    ],
)
def test_arrays_have_the_name_that_onnx_gives_their_type(dtype: str, name: str) -> None:
    assert type_name_of(np.zeros(1, dtype)) == name
