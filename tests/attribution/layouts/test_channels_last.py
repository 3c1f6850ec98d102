import numpy as np
import pytest

from tests.attribution.layouts.virtual_copies import assembled, offered
from tests.builders import noise


@pytest.mark.parametrize("shape", [(8, 4, 3, 3), (6, 2, 5), (4, 3, 2, 3, 2)])
def test_the_channels_of_a_filter_are_last(shape: tuple[int, ...]) -> None:
    weight = noise(*shape)
    (copy,) = offered(weight, "channels_last")
    expected = np.moveaxis(weight, 1, -1)
    assert assembled(copy) == np.ascontiguousarray(expected).tobytes()


def test_half_precision_keeps_its_type() -> None:
    weight = noise(8, 4, 3, 3).astype(np.float16)
    (copy,) = offered(weight, "channels_last")
    assert copy.nbytes == weight.nbytes


@pytest.mark.parametrize("shape", [(8, 8), (8, 1, 3, 3), (8, 4, 1, 1), (8, 0, 3, 3)])
def test_where_no_byte_moves_there_is_no_copy(shape: tuple[int, ...]) -> None:
    assert not offered(np.zeros(shape, np.float32), "channels_last")
