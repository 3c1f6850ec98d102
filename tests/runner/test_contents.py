import numpy as np
import pytest

from memdiag.runner.scripts.contents import Contents


@pytest.mark.parametrize("is_sequence", [False, True])
def test_texts_are_new_strings_in_each_run(is_sequence: bool) -> None:
    array = np.full((2, 3), "a", dtype=np.str_)
    feeds: dict[str, object] = {"x": [array] if is_sequence else array}
    contents = Contents(np, feeds, [{"name": "x", "vary": "text"}])
    fed = feeds["x"][0] if is_sequence else feeds["x"]  # type: ignore[index] # a list
    assert isinstance(fed, np.ndarray)
    assert (fed.dtype, fed.shape) == (np.dtype(object), (2, 3))
    contents.change()
    first = fed[0, 0]
    assert fed.tolist() == 2 * [3 * ["a 000001"]]
    assert len({id(text) for text in fed.reshape(-1)}) == 6
    contents.change()
    assert fed[1, 2] == "a 000002"
    assert first == "a 000001"


def test_given_texts_stay_as_they_are() -> None:
    array = np.array(["given"])
    feeds = {"x": array}
    contents = Contents(np, feeds, [{"name": "x", "vary": None}])
    contents.change()
    assert feeds["x"] is array
    assert array.tolist() == ["given"]
