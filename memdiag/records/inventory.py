"""The inventory: the contents of a model (schema ``memdiag.inventory/1``)."""

from typing import Final, Literal

from memdiag.records.base import Record, SavableRecord
from memdiag.records.dimension import Dimension
from memdiag.records.weights import Origin, Storage

INVENTORY_SCHEMA: Final = "memdiag.inventory/1"


class WeightTotal(Record, frozen=True, kw_only=True):
    """The number and bytes of weights that share a property."""

    name: str
    count: int
    bytes: int


class SubgraphSummary(Record, frozen=True, kw_only=True):
    """A subgraph or function body.

    Attributes:
        path: its path.
        node_count: its number of nodes.
        weight_count, weight_bytes: number and bytes of the weights that it owns.
    """

    path: str
    node_count: int
    weight_count: int
    weight_bytes: int


class ExternalFile(Record, frozen=True, kw_only=True):
    """A file of external data.

    Attributes:
        name: the file name as the model has it.
        bytes: the size of the file.
        used_bytes: the bytes that weights refer to.
    """

    name: str
    bytes: int
    used_bytes: int


class Operator(Record, frozen=True, kw_only=True):
    """An operator of the model.

    Attributes:
        count: the number of nodes, subgraphs and functions included.
    """

    domain: str
    op_type: str
    count: int


class LargeWeight(Record, frozen=True, kw_only=True):
    """One of the largest weights.

    Attributes:
        name: the name, qualified by the path of its graph.
        origin: where the model defines it.
        storage: how its bytes are stored.
        readers: the operators that read it.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    origin: Origin
    storage: Storage
    readers: tuple[str, ...]


class GraphValue(Record, frozen=True, kw_only=True):
    """An input or output of the model.

    Attributes:
        shape: the sizes; free dimensions by their names, ``?`` without a name. None if the rank is
            unknown.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...] | None


class Inventory(SavableRecord, frozen=True, kw_only=True):
    """The contents of a model, including weights of subgraphs and functions.

    Attributes:
        by_dtype, by_origin, by_storage: totals of weights, the largest first.
        operators: the operators, the most frequent first.
        largest: at most twenty weights, the largest first.
        dimensions: the free dimensions of the inputs, with the sizes that other commands choose.
    """

    schema: Literal["memdiag.inventory/1"]
    path: str
    file_bytes: int
    external_bytes: int
    ir_version: int
    opsets: dict[str, int]
    producer: str
    inputs: tuple[GraphValue, ...]
    outputs: tuple[GraphValue, ...]
    node_count: int
    weight_count: int
    weight_bytes: int
    by_dtype: tuple[WeightTotal, ...]
    by_origin: tuple[WeightTotal, ...]
    by_storage: tuple[WeightTotal, ...]
    subgraphs: tuple[SubgraphSummary, ...]
    external_files: tuple[ExternalFile, ...]
    operators: tuple[Operator, ...]
    largest: tuple[LargeWeight, ...]
    dimensions: tuple[Dimension, ...] = ()
