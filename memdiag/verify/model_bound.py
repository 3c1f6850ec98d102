"""How much outputs of a model may differ if the order of its sums changes."""

from math import prod

from memdiag.model.graph_index import GraphIndex, integer_attribute
from memdiag.model.model_file import ModelFile
from memdiag.model.readers import WeightReader, find_readers
from memdiag.ort.operators import PRODUCT_OPERATORS
from memdiag.records.weights import Weight
from memdiag.verify.outputs import Bound


def reordered_bound(model_file: ModelFile) -> Bound:
    """Return the bound for the model `model_file` when its sums are added in another order."""
    graphs = GraphIndex(model_file)
    return Bound.reordered(
        largest_reduction(model_file, graphs), is_half=computes_in_half(model_file, graphs)
    )


def largest_reduction(model_file: ModelFile, graphs: GraphIndex) -> int:
    """Return the largest number of products with values of one weight that are summed; at least 1.

    That is the shared dimension of a matrix product, and all dimensions but the first of the weight
    of a convolution or a recurrent layer. Products of two activations are not considered.
    """
    largest = 1
    for weight in model_file.weights:
        if len(weight.shape) > 1 and prod(weight.shape[1:]) > 0:
            for reader in find_readers(graphs, weight):
                largest = max(largest, _summed_product_count(weight, reader))
    return largest


def computes_in_half(model_file: ModelFile, graphs: GraphIndex) -> bool:
    """Return whether a node computes with an fp16 weight, so that its result is rounded to fp16.

    A weight that is only stored in fp16, and cast before it is used, does not count.
    """
    return any(
        reader.node.op_type != "Cast" and "Cast" not in reader.through
        for weight in model_file.weights
        if weight.dtype == "float16"
        for reader in find_readers(graphs, weight)
    )


def _summed_product_count(weight: Weight, reader: WeightReader) -> int:
    node = reader.node
    if node.op_type == "MatMulNBits":
        return integer_attribute(node, "K", 1) if reader.input_index == 1 else 1
    if node.op_type in PRODUCT_OPERATORS:
        if len(weight.shape) != 2:
            return max(weight.shape[-2:])
        is_transposed = reader.through.count("Transpose") % 2
        name = "transA" if reader.input_index == 0 else "transB"
        is_transposed ^= integer_attribute(node, name, 0) != 0
        # The left operand is reduced over its columns, the right one over its rows.
        return weight.shape[(reader.input_index == 0) ^ is_transposed]
    if reader.input_index and ("Conv" in node.op_type or node.op_type in ("LSTM", "GRU", "RNN")):
        return prod(weight.shape[1:])
    return 1
