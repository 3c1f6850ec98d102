"""A weight: one constant tensor of a model, and where its bytes lie."""

from typing import Literal

from memdiag.records.base import Record

Place = Literal["initializer", "constant", "attribute", "sparse", "function"]
"""``initializer``: of the main graph or a subgraph; ``constant``: a Constant node; ``attribute``: a
tensor on another node; ``sparse``: stored as values and indices; ``function``: in a function."""

Storage = Literal["raw", "typed", "external"]
"""``raw``: raw_data in the model file; ``typed``: float_data, int32_data and the like, or a
Constant's plain numbers; ``external``: a file beside the model."""


class Weight(Record, frozen=True, kw_only=True, gc=False, cache_hash=True):
    """One constant tensor with data.

    `name` is the tensor's name, the output of a Constant node, or ``node.attribute``. `graph` is
    the path of nodes and attributes to the graph it belongs to: ``""`` for the main graph,
    ``If_0/then_branch`` for a subgraph, ``domain::function`` for a function's body.

    `dtype` is ONNX's name in lower case. `nbytes` is the size of the data as the runtime holds it,
    dense: elements of less than a byte packed, a sparse tensor filled up, strings as their
    characters alone.

    `file` is named relative to the model's folder; it is None, like `offset` and `length` (bytes),
    where the data is not a plain run of little-endian bytes in a file: decoded numbers, sparse
    tensors, and tensors below a kibibyte, which are read with the model itself.
    """

    name: str
    graph: str
    place: Place
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    storage: Storage
    file: str | None
    offset: int | None
    length: int | None
