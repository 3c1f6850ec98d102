"""Conv nodes with float32 values, shared by the rules on defects of their kernels."""

from collections.abc import Iterator
from typing import NamedTuple

from memdiag.model.graph_index import integer_attribute, integers_attribute
from memdiag.ort.analysis import AnalysisContext


class FloatConv(NamedTuple):
    """A Conv of float32 values.

    Attributes:
        name: the qualified name of the node.
        groups: the number of groups.
        inputs, outputs: the numbers of input and output channels of each group.
        kernel: the sizes of the kernel.
        strides: the strides; empty if all are 1.
        pads: the padding at the beginning and the end of each axis; empty if all are 0.
        is_auto_padded: whether the runtime chooses the padding.
        output: the shape of the output, None for sizes that are not known.
    """

    name: str
    groups: int
    inputs: int
    outputs: int
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    is_auto_padded: bool
    output: tuple[int | None, ...]

    @property
    def batch(self) -> int | None:
        """The first size of the output; None if it is not known."""
        return self.output[0]


def float_convs(ctx: AnalysisContext) -> Iterator[FloatConv]:
    """Yield each Conv whose filter has a known shape, those of a function once."""
    for _, scope in ctx.graphs:
        for node in scope.nodes:
            if node.op_type != "Conv" or not node.is_onnx or len(node.input) < 2:
                continue
            weight = ctx.shapes.of(scope, node.input[1])
            output = ctx.shapes.of(scope, node.output[0])
            if weight is None or weight.dtype != "float" or not weight.shape:
                continue
            sizes = [size for size in weight.shape if size]
            groups = integer_attribute(node, "group", 1)
            rank = len(weight.shape)
            if len(sizes) < rank or rank < 3 or groups < 1 or sizes[0] % groups:
                continue
            shape = output.shape if output is not None else None
            auto_pads = (bytes(entry.s) for entry in node.attribute if entry.name == "auto_pad")
            yield FloatConv(
                name=ctx.graphs.qualified(scope, node),
                groups=groups,
                inputs=sizes[1],
                outputs=sizes[0] // groups,
                kernel=tuple(sizes[2:]),
                strides=integers_attribute(node, "strides"),
                pads=integers_attribute(node, "pads"),
                is_auto_padded=next(auto_pads, b"NOTSET") not in (b"NOTSET", b"VALID", b""),
                output=shape if shape is not None and len(shape) == rank else (None,) * rank,
            )
