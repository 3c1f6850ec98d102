"""A weight: one constant tensor of a model, and the location of its bytes."""

from typing import Literal

from memdiag.records.base import Record

Origin = Literal["initializer", "constant", "attribute", "sparse", "function"]
"""``initializer``: of the main graph or a subgraph; ``constant``: a Constant node; ``attribute``: a
tensor on another node; ``sparse``: stored as values and indices; ``function``: in a function."""

Storage = Literal["raw", "typed", "external"]
"""``raw``: raw_data in the model file; ``typed``: float_data, int32_data and the like, or a
Constant's plain numbers; ``external``: a file next to the model."""


class Weight(Record, frozen=True, kw_only=True, gc=False, cache_hash=True):
    """One constant tensor with data.

    Attributes:
        name: the name of the tensor, the output of a Constant node, or ``node.attribute``.
        graph: the path of its graph: ``""`` for the main graph, ``If_0/then_branch`` for a
            subgraph, ``domain::function`` for the body of a function.
        dtype: ONNX's name of the element type, in lower case.
        nbytes: the size of the data as the runtime stores it: dense, elements of less than a byte
            packed, only the characters of strings.
        file: the file with the data, relative to the folder of the model. None, like `offset` and
            `length` (in bytes), if the data is no range of little-endian bytes in a file: numbers
            in typed fields, sparse tensors, and tensors of less than 1 KiB, which are read with
            the model.
    """

    name: str
    graph: str
    origin: Origin
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    storage: Storage
    file: str | None
    offset: int | None
    length: int | None


def qualified_name(weight: Weight) -> str:
    """Return the path of the weight's graph and its name: ``If_0/then_branch/name``."""
    return f"{weight.graph}/{weight.name}" if weight.graph else weight.name
