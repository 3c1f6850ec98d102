"""Pages of the model's files are given back as it is read: their peak does not grow with them."""

import mmap
from pathlib import Path

import pytest

from memdiag.model.model_file import open_model
from memdiag.model.wire import model_skeleton
from tests.builders import noise, of_tensors, saved
from tests.model.resident import resident_bytes

MIB = 1 << 20
SHAPE = (64, 64)  # 16 KiB: so small that the walk over the file touches every page of the weights
SLACK = 4 * MIB  # what the system maps around a page


@pytest.fixture(scope="module")
def small_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 48 MiB in weights of 16 KiB."""
    weights = {f"w{number}": noise(*SHAPE, seed=number) for number in range(3072)}
    return saved(of_tensors(weights), tmp_path_factory.mktemp("pages"))


def test_the_walk_gives_back_what_it_has_passed(small_weights: Path) -> None:
    with small_weights.open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    parts = model_skeleton(mapping, origin="m.onnx")
    assert len(parts.references) == 3072
    assert 0 < resident_bytes(small_weights) <= 8 * MIB + SLACK
    assert parts == model_skeleton(small_weights.read_bytes(), origin="m.onnx")


def test_nothing_is_resident_after_opening(small_weights: Path) -> None:
    with open_model(small_weights):
        assert resident_bytes(small_weights) == 0


def test_weights_that_are_read_one_by_one_do_not_stay(small_weights: Path) -> None:
    with open_model(small_weights) as model:
        kept = {
            weight.name: (model.data(weight), model.data(weight).sum()) for weight in model.weights
        }
        assert resident_bytes(small_weights) <= 16 * MIB + SLACK
        for values, total in kept.values():  # the views are as good as before
            assert values.sum() == total


def test_a_few_weights_stay_until_they_are_released(small_weights: Path) -> None:
    with open_model(small_weights) as model:
        for weight in model.weights[:128]:
            model.data(weight).sum()
        assert resident_bytes(small_weights) >= 2 * MIB
        model.release()
        assert resident_bytes(small_weights) == 0
