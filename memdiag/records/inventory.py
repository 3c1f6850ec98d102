"""The inventory: the contents of a model (schema ``memdiag.inventory/1``)."""

from typing import Final, Literal

from memdiag.records.base import Record, SavableRecord
from memdiag.records.dimension import Dimension
from memdiag.records.weights import Place, Storage

INVENTORY_SCHEMA: Final = "memdiag.inventory/1"


class Tally(Record, frozen=True, kw_only=True):
    """The number and bytes of weights that share a property."""

    name: str
    count: int
    bytes: int


class Subgraph(Record, frozen=True, kw_only=True):
    """A subgraph or function body: its path, its nodes, and the weights that it owns."""

    path: str
    node_count: int
    weight_count: int
    weight_bytes: int


class ExternalFile(Record, frozen=True, kw_only=True):
    """A file of external data: its size, and the bytes of it that weights refer to."""

    name: str
    bytes: int
    used_bytes: int


class Operator(Record, frozen=True, kw_only=True):
    """An operator and its number of nodes, subgraphs and functions included."""

    domain: str
    op_type: str
    count: int


class LargeWeight(Record, frozen=True, kw_only=True):
    """One weight: `name` is qualified by the path of its graph, `readers` are operators."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    place: Place
    storage: Storage
    readers: tuple[str, ...]


class GraphValue(Record, frozen=True, kw_only=True):
    """An input or output of the model; free dimensions by their names, ``?`` if they have none."""

    name: str
    dtype: str
    shape: tuple[int | str, ...] | None


class Inventory(SavableRecord, frozen=True, kw_only=True):
    """The contents of a model. Weights of subgraphs and functions are included.

    Tallies and operators are sorted by bytes or count, the largest first; `largest` has at most
    twenty weights. `dimensions` are the free dimensions of the inputs, with the sizes that other
    commands choose.
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
    by_dtype: tuple[Tally, ...]
    by_place: tuple[Tally, ...]
    by_storage: tuple[Tally, ...]
    subgraphs: tuple[Subgraph, ...]
    external_files: tuple[ExternalFile, ...]
    operators: tuple[Operator, ...]
    largest: tuple[LargeWeight, ...]
    dimensions: tuple[Dimension, ...] = ()
