import tracemalloc
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memdiag.attribution.layout import BlockQuantization, LayoutHints, Quantization
from memdiag.attribution.layouts import all_layouts
from memdiag.attribution.virtual_copy import ExpectedSpans, VirtualCopy
from tests.attribution.layouts.sessions import integers
from tests.attribution.layouts.virtual_copies import assembled, offered, one
from tests.builders import noise

LIMIT = 32 << 20
USES = LayoutHints(
    quantizations=(Quantization(scale=np.ones(2048, np.float32)),),
    block_quantizations=(
        BlockQuantization(
            columns=8192, depth=2048, block_size=32, scales=np.ones((8192, 64), np.float32)
        ),
    ),
)


def every_copy() -> list[VirtualCopy]:
    weights: list[NDArray[Any]] = [
        noise(4096, 2048),
        noise(4096, 2048).astype(np.float16),
        integers(np.int8, 4096, 2048),
        noise(1024, 1024, 3, 3),
    ]
    return [
        copy
        for weight in weights
        for layout in all_layouts()
        for copy in layout.candidates(weight, USES)
    ]


def test_pieces_take_bounded_memory_and_few_large_runs() -> None:
    copies = every_copy()
    assert {copy.layout for copy in copies} == {layout.name for layout in all_layouts()} - {
        "reordered_qconv"
    }
    tracemalloc.start()
    for copy in copies:
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        specified = sum(len(piece.expected) for piece in copy.expected_spans())
        assert tracemalloc.get_traced_memory()[1] - before < LIMIT
        assert specified == copy.nbytes - sum(length for _, length in copy.unspecified)
    tracemalloc.stop()


def test_a_piece_lists_its_runs() -> None:
    piece = ExpectedSpans(np.array([64, 0]), 3, np.arange(6, dtype=np.uint8))
    assert piece.spans == [(64, 3), (0, 3)]


def test_unspecified_bytes_and_those_past_the_end_read_as_zero() -> None:
    (copy,) = (c for c in offered(noise(5, 20), "packed_fp32") if c.parameters["transB"] == "0")
    assert copy.exact
    assert copy.block(copy.nbytes - 4, 8) == bytes(8)
    copy = one(integers(np.int8, 5, 20), "packed_int8", {"transB": "0", "depth": "384"})
    assert copy.exact
    assert copy.derived == ((0, 128),)
    assert assembled(copy)[:4] == np.int32(integers(np.int8, 5, 20)[:, 0].sum()).tobytes()


def test_a_changed_element_changes_the_pieces_that_hold_it() -> None:
    weight = noise(40, 33)
    changed = weight.copy()
    changed[39, 32] += 1
    copies, others = (
        [copy for layout in all_layouts() for copy in layout.candidates(values, LayoutHints())]
        for values in (weight, changed)
    )
    assert {copy.layout for copy in copies} >= {"original", "transposed", "packed_fp32"}
    for first, second in zip(copies, others, strict=True):
        assert assembled(first) != assembled(second)
