from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto

from memdiag.graph import packed_weights
from memdiag.graph.packed_weights import SomeWeights, WeightGroups, Weights
from memdiag.graph.reader import open_model
from memdiag.graph.spool import Spool
from memdiag.graph.weights import Found
from memdiag.records.weights import Weight


def weight(name: str, graph: str = "", file: str | None = None, offset: int = 0) -> Weight:
    return Weight(
        name=name,
        graph=graph,
        place="initializer",
        dtype="float",
        shape=(4, 2),
        nbytes=32,
        storage="raw" if file is None else "external",
        file=file,
        offset=None if file is None else offset,
        length=None if file is None else 32,
    )


def held(*weights: Weight) -> Weights:
    found = Weights(Spool(10))
    for number, one in enumerate(weights):
        tensor = TensorProto(name=one.name, raw_data=bytes([number]))
        found.add(Found(one, TensorProto, b"" if one.file else tensor.SerializeToString()))
    return found


@pytest.mark.parametrize("most", [0, 7, 1000])
def test_weights_are_a_sequence_of_what_was_added(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_weights, "MOST_HELD", most)
    added = [weight(f"w{number}", file="m.data", offset=number) for number in range(30)]
    weights = held(*added)
    assert len(weights) == 30
    assert list(weights) == added
    assert weights[3] == added[3]
    assert weights[-1] == added[-1]
    assert list(weights[5:20:3]) == added[5:20:3]
    assert list(weights[5:20:3][1:3]) == added[8:14:3]
    assert weights[5:20:3][-1] == added[17]
    with pytest.raises(IndexError):
        weights[30]


def test_a_weight_has_its_place_and_what_holds_its_data() -> None:
    inner = weight("b", "If/then"), weight("a", "If/then")
    weights = held(weight("a"), *inner, weight("c", "", "f"))
    assert list(weights.places("If/then", "a")) == [2]
    assert list(weights.places("", "b")) == []
    assert [weights.place(one) for one in weights] == [0, 1, 2, 3]
    source = weights.source(weight("b", "If/then"))
    assert isinstance(source, TensorProto)
    assert (source.name, source.raw_data) == ("b", b"\1")
    assert weights.source(weight("c", "", "f")) is None
    for other in (weight("b"), weight("c", "", "f", 1), weight("d")):
        with pytest.raises(KeyError):
            weights.source(other)


def test_of_equal_weights_the_last_one_counts() -> None:
    weights = held(weight("a"), weight("b"), weight("a"))
    assert list(weights.places("", "a")) == [0, 2]
    assert weights.place(weight("a")) == 2
    source = weights.source(weight("a"))
    assert isinstance(source, TensorProto)
    assert source.raw_data == b"\2"


def test_some_are_those_that_are_wanted_in_order() -> None:
    weights = held(*(weight(name) for name in "abcde"))
    some = weights.those(lambda one: one.name in "dbe")
    assert [one.name for one in some] == ["b", "d", "e"]
    assert list(some.places) == [1, 3, 4]
    assert not weights.those(lambda one: False)


def test_ranges_are_ordered_by_the_names_of_files() -> None:
    weights = held(
        weight("a", file="z", offset=7),
        weight("b"),
        weight("c", file="k"),
        weight("d"),
        weight("e", file="z", offset=3),
    )
    files, offsets = SomeWeights(weights, range(5)).ranges()
    assert files.tolist() == [2, 0, 1, 0, 2]
    assert offsets.tolist() == [7, 1, 0, 3, 3]


@given(st.lists(st.integers(0, 4), max_size=20))
def test_groups_are_what_they_were_made_of(labels: list[int]) -> None:
    weights = held(*(weight(f"w{place}") for place in range(len(labels))))
    members = [[place for place, one in enumerate(labels) if one == label] for label in range(4)]
    members = [places for places in members if places]
    starts = np.cumsum([0, *map(len, members)])[:-1]
    groups = WeightGroups(weights, np.array([p for one in members for p in one], np.int64), starts)
    assert len(groups) == len(members)
    assert [[one.name for one in group] for group in groups] == [
        [f"w{place}" for place in places] for places in members
    ]
    assert [list(group.places) for group in groups[1:]] == members[1:]
    if members:
        assert list(groups[-1].places) == members[-1]
    for place, label in enumerate(labels):
        number = groups.number_of(place)
        assert (number is None) == (label == 4)
        assert number is None or place in members[number]
    assert groups.number_of(len(labels)) is None


def test_a_model_s_weights_can_be_looked_at_when_it_is_closed(tmp_path: Path) -> None:
    tensor = onnx.numpy_helper.from_array(np.ones(3, np.float32), "w")
    graph = onnx.helper.make_graph([], "g", [], [], [tensor])
    onnx.save(onnx.helper.make_model(graph), tmp_path / "m")
    with open_model(tmp_path / "m") as model:
        weights = model.weights
    assert [one.name for one in weights] == ["w"]
