"""How many products a model adds up at most for one value: what rounding depends on."""

from math import prod

from memdiag.model.graph_index import GraphIndex, integer
from memdiag.model.model_file import ModelFile
from memdiag.model.readers import Reader, readers
from memdiag.records.weights import Weight

_PRODUCTS = {
    "FusedGemm",
    "FusedMatMul",
    "Gemm",
    "MatMul",
    "MatMulInteger",
    "MatMulIntegerToFloat",
    "DynamicQuantizeMatMul",
    "QLinearMatMul",
}


def largest_reduction(model: ModelFile, graphs: GraphIndex) -> int:
    """Return the largest number of products that are added up with any one weight; at least 1.

    It is a matrix product's shared dimension, and all but the first of a convolution's or a
    recurrent layer's weight. Products of two activations are not seen.
    """
    found = 1
    for weight in model.weights:
        if len(weight.shape) > 1 and prod(weight.shape[1:]) > 0:
            for reader in readers(graphs, weight):
                found = max(found, _of(weight, reader))
    return found


def _of(weight: Weight, reader: Reader) -> int:
    node = reader.node
    if node.op_type == "MatMulNBits":
        return integer(node, "K", 1) if reader.input_index == 1 else 1
    if node.op_type in _PRODUCTS:
        if len(weight.shape) != 2:
            return max(weight.shape[-2:])
        turned = reader.through.count("Transpose") % 2
        name = "transA" if reader.input_index == 0 else "transB"
        turned ^= integer(node, name, 0) != 0
        # The left operand is reduced over its columns, the right one over its rows.
        return weight.shape[(reader.input_index == 0) ^ turned]
    if reader.input_index and ("Conv" in node.op_type or node.op_type in ("LSTM", "GRU", "RNN")):
        return prod(weight.shape[1:])
    return 1
