from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, helper

from memdiag.graph import attribute_lists
from memdiag.graph.attribute_lists import Lists, lists_of, shortened
from memdiag.graph.reference_fields import length_field
from memdiag.graph.tensor_fields import NUMBERS_THRESHOLD
from memdiag.graph.wire import skeleton

LISTS = {
    "ints": st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=40),
    "floats": st.lists(st.floats(width=32), min_size=1, max_size=40),
    "strings": st.lists(st.binary(max_size=200), min_size=1, max_size=40),
}


def nothing(position: int) -> None:
    pass


def short(serialized: bytes, passed: Callable[[int], None] = nothing) -> AttributeProto | None:
    """Return what is left of an attribute that lies between other bytes."""
    found = shortened(b"<<" + serialized + b">>", 2, 2 + len(serialized), passed)
    return None if found is None else AttributeProto.FromString(found)


def packed(name: bytes, field: int, content: bytes, kind: int) -> bytes:
    return length_field(1, name) + length_field(field, content) + b"\xa0\x01" + bytes([kind])


@st.composite
def attributes(draw: st.DrawFn) -> AttributeProto:
    field = draw(st.sampled_from(sorted(LISTS)))
    attribute = AttributeProto(name="a", type=getattr(AttributeProto, field.upper()))
    getattr(attribute, field).extend(draw(LISTS[field]))
    return attribute


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(attribute=attributes(), at_once=st.integers(1, 60))
def test_of_any_list_as_much_is_told_as_it_holds(
    attribute: AttributeProto, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attribute_lists, "_AT_ONCE", at_once)
    passed: list[int] = []
    found = short(attribute.SerializeToString(), passed.append)
    if found is None:  # less than a number at once
        assert attribute.type != AttributeProto.STRINGS
        assert at_once < 11
        return
    assert (found.name, found.type) == ("a", attribute.type)
    assert lists_of(found) == lists_of(attribute)
    assert passed == sorted(passed)
    for field in LISTS:
        wanted = getattr(attribute, field)[:1]
        assert repr(getattr(found, field)) == repr(wanted)


def test_lists_are_counted_as_they_are() -> None:
    strings = [b"x" * 15, b"x" * 16, b"", b"x" * 100]
    assert lists_of(AttributeProto(strings=strings)) == Lists(strings=4, long_bytes=116)
    assert lists_of(AttributeProto(ints=[1, 2], floats=[1.0])) == Lists(ints=2, floats=1)


def test_packed_lists_are_counted() -> None:
    ints = short(packed(b"a", 8, b"\x81\x01\x02\x03", AttributeProto.INTS))
    assert ints is not None
    assert (list(ints.ints), lists_of(ints)) == ([129], Lists(ints=3))
    floats = short(packed(b"a", 7, b"\0\0\x80\x3f" * 5, AttributeProto.FLOATS))
    assert floats is not None
    assert (list(floats.floats), lists_of(floats)) == ([1.0], Lists(floats=5))
    assert short(packed(b"a", 7, b"\0\0\x80\x3f\0", AttributeProto.FLOATS)) is None
    assert short(packed(b"a", 8, b"\x81", AttributeProto.INTS)) is None


def test_of_a_long_string_the_beginning_is_left() -> None:
    text = AttributeProto(name="a", s=b"0123456789" * 1000, type=AttributeProto.STRING)
    found = short(text.SerializeToString())
    assert found is not None
    assert text.s.startswith(found.s)
    assert 500 < len(found.s) < 2000
    assert lists_of(found) == Lists()


def test_two_lists_are_never_taken_for_the_same() -> None:
    serialized = AttributeProto(name="a", ints=[1] * 10, type=AttributeProto.INTS)
    data = serialized.SerializeToString() * 2
    half = len(data) // 2
    assert shortened(data, 0, half, nothing) != shortened(data, half, len(data), nothing)


@pytest.mark.parametrize(
    "attribute",
    [
        AttributeProto(name="value_ints", ints=[1, 2], type=AttributeProto.INTS),
        AttributeProto(name="a", ints=[1], doc_string="more", type=AttributeProto.INTS),
        AttributeProto(name="a", ints=[1], floats=[2.0], type=AttributeProto.INTS),
        AttributeProto(name="a", i=7, type=AttributeProto.INT),
    ],
    ids=["a constant", "documented", "two lists", "a number"],
)
def test_what_is_no_plain_list_stays(attribute: AttributeProto) -> None:
    assert short(attribute.SerializeToString()) is None


def test_damage_is_left_to_protobuf() -> None:
    assert short(length_field(1, b"a") + b"\x40\x80\xa0\x01\x07") is None
    assert short(b"\x0a\x7fa\xa0\x01\x07") is None


@pytest.mark.parametrize("missing", [0, 1])
def test_lists_are_left_out_of_a_skeleton_that_is_to_be_light(missing: int) -> None:
    attribute = helper.make_attribute("a", [1] * (NUMBERS_THRESHOLD // 2 - 3 - missing))
    assert attribute.ByteSize() == NUMBERS_THRESHOLD - 2 * missing
    node = NodeProto(op_type="Trees", attribute=[attribute], output=["y"])
    data = helper.make_model(GraphProto(name="g", node=[node])).SerializeToString()
    assert skeleton(data, origin="m.onnx").proto == data
    light = skeleton(data, origin="m.onnx", numbers=True)
    [found] = ModelProto.FromString(light.proto).graph.node
    assert found.output == ["y"]
    assert lists_of(found.attribute[0]) == lists_of(attribute)
    assert (len(found.attribute[0].ints) == 1) == (not missing)
