import pkgutil

import numpy as np

from memdiag.attribution import layouts as package
from memdiag.attribution.layout import LayoutHints
from memdiag.attribution.layouts import all_layouts

KINDS = {"original", "transposed", "packed", "reordered", "cast", "dequantized"}


def test_each_module_is_a_layout_of_its_name() -> None:
    modules = {entry.name for entry in pkgutil.iter_modules(package.__path__)}
    assert {layout.name for layout in all_layouts()} == modules


def test_the_original_comes_first_and_names_are_unique() -> None:
    names = [layout.name for layout in all_layouts()]
    assert names[0] == "original"
    assert len(set(names)) == len(names)
    assert {layout.kind for layout in all_layouts()} == KINDS


def test_copies_carry_their_layouts_name_and_kind() -> None:
    kinds = {layout.name: layout.kind for layout in all_layouts()}
    weight = np.ones((20, 20), np.float32)
    copies = [copy for layout in all_layouts() for copy in layout.candidates(weight, LayoutHints())]
    assert {copy.layout: copy.kind for copy in copies} == {
        name: kinds[name] for name in ("original", "transposed", "packed_fp32", "reordered_onednn")
    }


def test_no_candidate_reads_a_large_weight() -> None:
    weight = np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (1 << 20, 1 << 20), (0, 0))
    copies = [
        copy
        for layout in all_layouts()[1:]  # the original of such a view would be made whole
        for copy in layout.candidates(weight, LayoutHints())
    ]
    assert {copy.layout for copy in copies} == {"transposed", "packed_fp32", "reordered_onednn"}
    for copy in copies:
        assert copy.nbytes >= 1 << 42
        assert copy.block(copy.nbytes // 2) == bytes(64)
