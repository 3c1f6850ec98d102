"""Memory for long lists in attributes, and for the tables that kernels of tree ensembles make.

A node keeps its attributes as parsed: 8 bytes an integer, 4 a float, 56 a string. While the model
is parsed there are more copies, whose freed blocks malloc keeps because they are small. A tree
ensemble becomes an array of nodes and an array of the values of its leaves, of 24 and 16 bytes an
element: the blocks in use that X-rays found agree with attributes and arrays within 2 MiB of 126.
The rest is fitted: ensembles of 205,000 and 819,000 nodes, of opset 3 and 5 of ai.onnx.ml, on
1.24.4 and 1.32.0 (docs/estimates.md). Thresholds of double were not measured.
"""

from collections.abc import Iterator
from typing import NamedTuple, Self

from memdiag.model.graph_index import GraphIndex, Node, Scope
from memdiag.model.model_file import ModelFile
from memdiag.model.tensor_types import ELEMENT_TYPES
from memdiag.model.wire import attribute_range

INT_BYTES, FLOAT_BYTES, STRING_BYTES = 8, 4, 56
"""Bytes of an element in the attributes of a node. A string has a pointer and a block of malloc."""

NUMBERS_PARSED, NUMBERS_WHILE_PARSED = 1.0, 2.0
STRING_PARSED, STRING_WHILE_PARSED = 103, 110
"""Additional memory after and during parsing: multiples of the numbers, bytes for each string."""

TREE_NODE = 24
TREE_NODE_OF_DOUBLES = 32
LEAF_VALUE = 16
"""Bytes of a node of a tree, with its threshold of float or double, and of the value of a leaf."""

FREED_BY_NODE, FREED_BY_STRING = 48, 90
"""Freed bytes that malloc keeps after a kernel has made its tables, for each node and string."""

CREATED_BY_NODE = 170
"""Additional bytes for each node while a kernel makes its tables."""

MIN_BYTES = 64 << 10
"""Lists of a node with fewer bytes are left out: the overhead of any node includes them."""

_THRESHOLD_ATTRIBUTES = ("nodes_values_as_tensor", "nodes_splits")


class NodeLists(NamedTuple):
    """The long lists of one node.

    Attributes:
        scope, node: the node.
        numbers_bytes: the bytes of its integers, floats and tensors.
        strings: the number of its strings.
        tree_nodes: the nodes of its trees, leaves included; 0 if it is not an ensemble.
        leaves: the values of leaves.
        tree_node_bytes: the bytes of a node of the kernel's table.
        file_bytes: the bytes of its very long lists in the file.
    """

    scope: Scope
    node: Node
    numbers_bytes: int
    strings: int
    tree_nodes: int
    leaves: int
    tree_node_bytes: int
    file_bytes: int = 0

    @property
    def kept_bytes(self) -> int:
        """The bytes that the node keeps as long as the session lives."""
        return self.numbers_bytes + STRING_BYTES * self.strings

    @property
    def parsed_bytes(self) -> int:
        """The bytes that are allocated for parsing in addition to `kept_bytes`, and freed."""
        return round(NUMBERS_PARSED * self.numbers_bytes) + STRING_PARSED * self.strings

    @property
    def while_parsed_bytes(self) -> int:
        """The bytes that are allocated in addition to `kept_bytes` while the model is parsed."""
        return round(NUMBERS_WHILE_PARSED * self.numbers_bytes) + STRING_WHILE_PARSED * self.strings

    @property
    def table_bytes(self) -> int:
        """The bytes of the tables of the kernel of an ensemble."""
        return self.tree_node_bytes * self.tree_nodes + LEAF_VALUE * self.leaves

    @property
    def freed_bytes(self) -> int:
        """The bytes of freed blocks that malloc keeps after the kernel has made its tables."""
        if not self.tree_nodes:
            return self.parsed_bytes
        return FREED_BY_NODE * self.tree_nodes + FREED_BY_STRING * self.strings

    @property
    def while_created_bytes(self) -> int:
        """The bytes that are also allocated while the kernel makes its tables."""
        return CREATED_BY_NODE * self.tree_nodes

    @classmethod
    def of_node(cls, model_file: ModelFile, scope: Scope, node: Node) -> Self:
        """Return the lists of `node`."""
        sizes: dict[str, int] = {}
        numbers_bytes = strings = file_bytes = 0
        node_bytes = TREE_NODE
        for attribute in node.attribute:
            start, end = attribute_range(attribute.doc_string) or (0, 0)
            file_bytes += end - start
            whole = model_file.read_attribute(attribute)
            count = len(whole.ints) + len(whole.floats) + len(whole.strings)
            numbers_bytes += INT_BYTES * len(whole.ints) + FLOAT_BYTES * len(whole.floats)
            strings += len(whole.strings)
            if whole.HasField("t"):
                count = whole.t.dims[0] if whole.t.dims else 0
                kind = ELEMENT_TYPES.get(whole.t.data_type)
                numbers_bytes += kind.nbytes((count,)) if kind is not None else 0
                if (
                    kind is not None
                    and kind.name == "double"
                    and attribute.name in _THRESHOLD_ATTRIBUTES
                ):
                    node_bytes = TREE_NODE_OF_DOUBLES
            sizes[attribute.name] = count
        nodes = leaves = 0
        if node.op_type == "TreeEnsemble":
            leaves = sizes.get("leaf_targetids", 0)
            nodes = sizes.get("nodes_featureids", 0) + leaves
        elif node.op_type.startswith("TreeEnsemble"):
            leaves = max(sizes.get("target_ids", 0), sizes.get("class_ids", 0))
            nodes = sizes.get("nodes_nodeids", 0)
        return cls(scope, node, numbers_bytes, strings, nodes, leaves, node_bytes, file_bytes)


def node_lists(model_file: ModelFile, graphs: GraphIndex) -> Iterator[NodeLists]:
    """Yield the lists of each node with long lists, which only operators of other domains have."""
    for _, scope in graphs:
        for node in scope.nodes:
            if not node.is_onnx and node.has_attributes:
                lists = NodeLists.of_node(model_file, scope, node)
                if lists.kept_bytes >= MIN_BYTES:
                    yield lists
