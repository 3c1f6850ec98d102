from pathlib import Path

import numpy as np
import pytest

from memdiag.detectors import groups
from tests.detectors.building import raw, rows
from tests.detectors.examining import findings

ARRAY = np.random.default_rng().standard_normal((256, 128), np.float32)


@pytest.mark.parametrize(("most", "sizes"), [(5, [5]), (4, [4]), (3, [3, 2]), (2, [2, 2])])
def test_more_equal_weights_than_are_judged_together_are_in_several_findings(
    most: int, sizes: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What is left over and alone is none.
    monkeypatch.setattr(groups, "_MOST_TOGETHER", most)
    proto = rows(ARRAY)
    proto.graph.initializer.extend(raw(ARRAY, f"w{number}") for number in range(4))
    found = findings("identical-weights", proto, tmp_path)
    assert sorted((len(one.weights) for one in found), reverse=True) == sizes
