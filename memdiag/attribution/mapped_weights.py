"""Weights that a process maps from the model's own files, found without comparing content."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from memdiag.attribution import intervals
from memdiag.attribution.address_space import AddressSpace, Region, is_file
from memdiag.model.model_file import ModelFile
from memdiag.records.weights import Weight


class MappedWeight(NamedTuple):
    """A weight in a mapping of a model file.

    Attributes:
        weight: the weight.
        address: address of its first byte.
        file: name of the file, without its folders.
        offset: bytes from the start of the file to the weight.
        resident_bytes: bytes that are resident and unmodified.
    """

    weight: Weight
    address: int
    file: str
    offset: int
    resident_bytes: int


def mapped_weights(space: AddressSpace, model_file: ModelFile) -> Iterator[MappedWeight]:
    """Yield the weights of `model_file` that are wholly mapped by a region of `space`.

    If several weights share the same bytes of a file, only the first is yielded.
    """
    path_by_name = {path.name: path for path in model_file.files}
    for path in path_by_name.values():
        regions = [region for region in space.regions if is_file(region, [path])]
        if not regions:
            continue
        yielded: set[tuple[int, int | None]] = set()
        for weight in model_file.weights:
            if weight.file is None or (model_file.path.parent / weight.file).resolve() != path:
                continue
            for region in regions:
                address = _weight_address(weight, region)
                if address is not None and (address, weight.length) not in yielded:
                    yielded.add((address, weight.length))
                    yield _mapped_weight(space, weight, address, path.name)


def _weight_address(weight: Weight, region: Region) -> int | None:
    if weight.offset is None or weight.length is None:
        return None
    start = weight.offset - region.offset
    if start < 0 or start + weight.length > region.size:
        return None
    return region.start + start


def _mapped_weight(space: AddressSpace, weight: Weight, address: int, file: str) -> MappedWeight:
    assert weight.offset is not None
    assert weight.length is not None
    extent = np.array([[address, address + weight.length]], np.int64)
    unmodified = intervals.subtract(extent, space.anonymous)
    return MappedWeight(weight, address, file, weight.offset, space.resident_bytes_of(unmodified))
