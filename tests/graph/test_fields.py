import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from onnx import GraphProto, ModelProto, helper

from memdiag.graph.fields import LONGEST_VARINT, Field, fields, varint


def encoded(value: int) -> bytes:
    parts = []
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


@given(st.integers(0, (1 << 64) - 1), st.binary(max_size=3), st.binary(max_size=3))
def test_a_number_is_read_where_it_is(value: int, before: bytes, behind: bytes) -> None:
    data = before + encoded(value) + behind
    end = len(before) + len(encoded(value))
    assert varint(data, len(before), len(data)) == (value, end)
    assert varint(data, len(before), end) == (value, end)
    with pytest.raises(EOFError):
        varint(data, len(before), end - 1)


def test_a_number_has_ten_bytes_at_most() -> None:
    longest = b"\xff" * (LONGEST_VARINT - 1) + b"\x01"
    assert varint(longest, 0, len(longest)) == ((1 << 64) - 1, LONGEST_VARINT)
    with pytest.raises(ValueError, match="10 bytes"):
        varint(b"\xff" * LONGEST_VARINT + b"\x01", 0, LONGEST_VARINT + 1)


def test_fields_are_told_with_their_places() -> None:
    # A number, text, eight bytes, four bytes.
    data = b"\x08\x96\x01" + b"\x12\x02hi" + b"\x19" + b"8" * 8 + b"\x25" + b"4" * 4
    assert list(fields(data)) == [
        Field(1, 0, None, 3),
        Field(2, 3, 5, 7),
        Field(3, 7, None, 16),
        Field(4, 16, None, 21),
    ]
    assert list(fields(data, 3, 7)) == [Field(2, 3, 5, 7)]
    assert list(fields(b"")) == []


@pytest.mark.parametrize(
    "data",
    [
        b"\x08",  # a number that is not there
        b"\x08\x80",  # nor is its end
        b"\x12\x05hi",  # text longer than the message
        b"\x19" + b"8" * 7,
        b"\x25" + b"4" * 3,
        b"\x0b\x0c",  # a group
        b"\x0f",  # no wire type
        b"\xff" * 11,  # a number without an end
    ],
)
def test_what_is_no_message_is_told(data: bytes) -> None:
    with pytest.raises(DecodeError):
        list(fields(data))
    with pytest.raises(DecodeError):
        list(fields(b"\x12\x02hi" + data))


@given(st.lists(st.text(max_size=300), max_size=20))
def test_fields_are_those_of_protobuf(names: list[str]) -> None:
    nodes = [helper.make_node("Relu", [name], [name + "y"]) for name in names]
    model = ModelProto(ir_version=9, graph=GraphProto(node=nodes, name="g"))
    data = model.SerializeToString()
    [version, graph] = fields(data)
    assert (version.number, version.content, graph.number) == (1, None, 7)
    inside = list(fields(data, graph.content or 0, graph.stop))
    assert [field.number for field in inside] == [1] * len(nodes) + [2]
    found = [GraphProto.FromString(data[one.start : one.stop]).node for one in inside[:-1]]
    assert [node for part in found for node in part] == nodes
