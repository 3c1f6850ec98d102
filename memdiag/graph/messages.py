"""The messages of ONNX's format that may hold tensors, and what an error calls them."""

from typing import Literal

Kind = Literal[
    "model", "graph", "node", "attribute", "tensor", "sparse tensor", "function", "training info"
]

# Where tensors may lie: for each message the fields that lead to one, by field number.
CHILDREN: dict[Kind, dict[int, Kind]] = {
    "model": {7: "graph", 20: "training info", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse tensor"},
    "node": {5: "attribute"},
    "attribute": {
        5: "tensor",
        6: "graph",
        10: "tensor",
        11: "graph",
        22: "sparse tensor",
        23: "sparse tensor",
    },
    "tensor": {},
    "sparse tensor": {1: "tensor", 2: "tensor"},
    "function": {7: "node", 11: "attribute"},
    "training info": {1: "graph", 2: "graph"},
}
# Protobuf merges a field that should be there once but is there twice; two references cannot be.
ONCE: dict[Kind, tuple[int, ...]] = {"attribute": (5, 22), "sparse tensor": (1, 2)}
# Those by which an error names its place. An attribute's own ("value") says less than its node's.
NAME: dict[Kind, int] = {"graph": 2, "node": 3, "tensor": 8, "function": 1}


def noun_of(kind: Kind, number: int) -> str:
    """Return what an error calls the message in field `number` of a message of `kind`."""
    return "initializer" if kind == "graph" and number in (5, 15) else ""
