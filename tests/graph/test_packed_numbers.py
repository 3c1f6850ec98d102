import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from memdiag.errors import ModelError
from memdiag.graph import packed_numbers
from memdiag.graph.element_types import ELEMENT_TYPES, ElementType
from memdiag.graph.fields import fields
from memdiag.graph.packed_numbers import Octets, PackedNumbers
from memdiag.graph.tensor_data import dense_bytes, packed_bytes

FIELDS = {
    "int32_data": st.integers(-(2**31), 2**31 - 1),
    "int64_data": st.integers(-(2**63), 2**63 - 1),
    "uint64_data": st.integers(0, 2**64 - 1),
}
ELEMENTS = [element for element in ELEMENT_TYPES.values() if element.field in FIELDS]


def packed(tensor: TensorProto) -> Octets:
    """Return the bytes of the packed field of `tensor`, all else of which is its type."""
    message = tensor.SerializeToString()
    [content] = [field.content for field in fields(message) if field.content is not None]
    return np.frombuffer(message[content:], np.uint8)


def numbers(octets: Octets, field: str = "int32_data") -> PackedNumbers:
    return PackedNumbers(octets, field, touched=lambda nbytes: None, where="m.onnx: 'w'")


@st.composite
def tensors(draw: st.DrawFn) -> tuple[TensorProto, ElementType]:
    element = draw(st.sampled_from(ELEMENTS))
    small = st.integers(0, 300)
    values = draw(st.lists(st.one_of(FIELDS[element.field], small), min_size=1, max_size=60))
    if element.bits == 6:
        values = [value & 0x3F for value in values]
    tensor = TensorProto(data_type=element.number)
    getattr(tensor, element.field).extend(values)
    return tensor, element


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(one=tensors(), step=st.integers(1, 40), data=st.data())
def test_any_numbers_give_the_bytes_that_protobuf_would_give(
    one: tuple[TensorProto, ElementType],
    step: int,
    data: st.DataObject,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tensor, element = one
    monkeypatch.setattr(packed_numbers, "_STEP", step)
    found = numbers(packed(tensor), element.field)
    expected = packed_bytes(tensor, element)
    assert found.count == len(getattr(tensor, element.field))
    assert dense_bytes(found.count, element) == len(expected)
    assert found.dense(element).tobytes() == expected
    start = data.draw(st.integers(0, len(expected)))
    end = data.draw(st.integers(start, len(expected)))
    assert found.dense(element, start, end).tobytes() == expected[start:end]


def test_what_is_read_is_told_before() -> None:
    told: list[int] = []
    octets = np.ones(600_000, np.uint8)
    found = PackedNumbers(octets, "int32_data", touched=told.append, where="w")
    assert sum(told) == len(octets)
    told.clear()
    found.dense(ELEMENT_TYPES[TensorProto.INT8], 500_000, 500_010)
    assert 0 < sum(told) < len(octets) / 2


def test_numbers_that_end_too_early_are_refused() -> None:
    with pytest.raises(ModelError, match=r"^m\.onnx: 'w': its int32_data is damaged;"):
        numbers(np.array([1, 0x80], np.uint8))


@pytest.mark.parametrize("step", [4, 7, 100])
def test_a_number_that_is_too_long_is_refused(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_numbers, "_STEP", step)
    longest = [0x80] * 9 + [1]
    whole = numbers(np.array([1, *longest, 1], np.uint8))
    assert whole.dense(ELEMENT_TYPES[TensorProto.INT64]).view(np.int64).tolist() == [1, -(2**63), 1]
    longer = numbers(np.array([1, 0x80, *longest, 1], np.uint8))
    with pytest.raises(ModelError, match="damaged"):
        longer.dense(ELEMENT_TYPES[TensorProto.INT64])
