"""Helpers that build a whole virtual copy and check the guarantees of its runs and blocks."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from memdiag.attribution.layout import LayoutHints
from memdiag.attribution.layouts import all_layouts
from memdiag.attribution.virtual_copy import VirtualCopy


def offered(weight: NDArray[Any], name: str, **uses: Any) -> list[VirtualCopy]:
    """Return the copies that the layout called `name` offers for a weight with these uses."""
    layout = next(layout for layout in all_layouts() if layout.name == name)
    return list(layout.candidates(weight, LayoutHints(**uses)))


def one(weight: NDArray[Any], name: str, wanted: dict[str, str], **uses: Any) -> VirtualCopy:
    """Return the one offered copy that has all of the `wanted` parameters."""
    (copy,) = (
        copy for copy in offered(weight, name, **uses) if wanted.items() <= copy.parameters.items()
    )
    return copy


def assembled(copy: VirtualCopy, max_bytes: int = 4096) -> bytes:
    """Return the bytes of `copy`, 0 where they are unspecified, joined from its runs.

    Asserts that runs stay within their limits and cover each specified byte once, and that blocks
    at any offset equal them.
    """
    whole = np.zeros(copy.nbytes, np.uint8)
    covered = np.zeros(copy.nbytes, np.int32)
    for runs in copy.expected_spans(max_bytes):
        assert len(runs.expected) == runs.span_bytes * len(runs.offsets) <= max_bytes
        assert len(runs.spans) <= 1024
        start = 0
        for offset, length in runs.spans:
            whole[offset : offset + length] = runs.expected[start : start + length]
            covered[offset : offset + length] += 1
            start += length
    for offset, length in copy.unspecified:
        covered[offset : offset + length] += 1
    assert (covered == 1).all()
    offsets = np.arange(0, copy.nbytes, 61)
    blocks = copy.blocks(offsets, 70)
    padded = np.concatenate([whole, np.zeros(70, np.uint8)])
    assert (blocks == padded[offsets[:, None] + np.arange(70)]).all()
    assert copy.block(int(offsets[-1]), 70) == blocks[-1].tobytes()
    return whole.tobytes()
