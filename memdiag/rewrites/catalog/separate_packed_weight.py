"""Give the products that pack a weight an initializer of their own, over the same bytes of a file.

onnxruntime frees a weight once all of its readers have packed it, and a Gather of a tied embedding
never does. But initializers of external data are mapped separately, even if several refer to the
same range: the products' one is packed and released, and of the other one only the gathered rows
are read. One copy is left, the packed one, and products take no longer than before. A product by
the transposed weight becomes a Gemm with transB=1, which packs it without transposing it first.

The drawback is that the weights move to external data, so that the model is several files. Each
session has its own packed copy, and until it is made both copies exist.
"""

from collections.abc import Iterator
from typing import NamedTuple

import onnx_ir as ir

from memdiag.model.graph_index import MICROSOFT_DOMAIN
from memdiag.records.finding import Finding
from memdiag.rewrites.catalog.gemm_transposed import gemm_problem, replace_with_gemm
from memdiag.rewrites.edited_weights import (
    NEW_INPUT_PROBLEM,
    initializers_are_inputs,
    is_main_initializer,
)
from memdiag.rewrites.model_editor import ModelEditor
from memdiag.rewrites.rewrite import Rewrite
from memdiag.rewrites.transposed_products import (
    STORED_TRANSPOSE,
    Product,
    remove_unused_transposes,
    transposed_products,
)

REWRITE = Rewrite(
    name="separate-packed-weight",
    summary="let products read an initializer of their own over the same bytes, to be packed",
    arithmetic="reordered",
)

_PACKING_OPERATORS = {("MatMul", ""), ("Gemm", ""), ("FusedMatMul", MICROSOFT_DOMAIN)}
_PARTIAL_READERS = frozenset({"Gather", "GatherElements", "GatherND", "Slice", "Shape", "Size"})


class _SeparationPlan(NamedTuple):
    """The parts of a finding that the rewrite is applied to.

    Attributes:
        products: the products to turn into Gemms.
        weights: the weights to separate.
        problems: why further weights cannot be separated.
    """

    products: tuple[Product, ...]
    weights: tuple[ir.Value, ...]
    problems: tuple[str, ...]


def check(editor: ModelEditor, finding: Finding) -> str | None:
    """Return why no weight can be separated; None if one can."""
    plan = _separation_plan(editor, finding)
    return None if plan.weights else next(iter(plan.problems), "the weights were removed")


def apply(editor: ModelEditor, finding: Finding) -> bool:
    """Give the products of each weight their own initializer; return whether there were any."""
    plan = _separation_plan(editor, finding)
    for product in plan.products:
        replace_with_gemm(editor, product)
    remove_unused_transposes(plan.products)
    for weight in plan.weights:
        _separate_weight(editor, weight)
    if plan.weights:
        editor.prefer_external()
    return bool(plan.weights)


def _separation_plan(editor: ModelEditor, finding: Finding) -> _SeparationPlan:
    products = transposed_products(editor, finding, _packed_product_problem)
    named_weights = [] if finding.name == STORED_TRANSPOSE else editor.weights(finding)
    problems = list(products.problems) if finding.name == STORED_TRANSPOSE else []
    weights = []
    for weight in dict.fromkeys([*(product.source for product in products.found), *named_weights]):
        weight_products = [product for product in products.found if product.source is weight]
        problem = _separated_weight_problem(editor, weight) or _separated_uses_problem(
            weight, weight_products
        )
        if problem:
            problems.append(problem)
        else:
            weights.append(weight)
    products_to_replace = tuple(product for product in products.found if product.source in weights)
    return _SeparationPlan(products_to_replace, tuple(weights), tuple(problems))


def _packed_product_problem(editor: ModelEditor, product: Product) -> str:
    if product.casts:
        return "the weight is cast before the product"
    return gemm_problem(editor, product)


def _separated_weight_problem(editor: ModelEditor, weight: ir.Value) -> str:
    """Return why `weight` cannot be stored in a file and packed from there; empty if it can."""
    if not weight.is_initializer() or not isinstance(weight.const_value, ir.ExternalTensor):
        return "the weight is not an initializer that could be external data"
    if not is_main_initializer(editor, weight):
        return "the weight is owned by a subgraph"
    if initializers_are_inputs(editor):
        return NEW_INPUT_PROBLEM
    if weight.is_graph_input():
        return "the weight is listed as an input, so that nothing packs it"
    if weight.dtype != ir.DataType.FLOAT or len(weight.const_value.shape) != 2:
        return "products pack only matrices of fp32"
    return ""


def _separated_uses_problem(weight: ir.Value, products: list[Product]) -> str:
    """Return why separating the weight would save nothing; empty if it does.

    The Transposes of `products` will be removed.
    """
    removed_nodes = {product.transpose.producer() for product in products}
    uses = [
        (node, input_index)
        for node, input_index in _uses_behind_identities(weight)
        if node not in removed_nodes
    ]
    kept_readers = [node for node, input_index in uses if not _is_packing_reader(node, input_index)]
    whole_readers = [node.op_type for node in kept_readers if node.op_type not in _PARTIAL_READERS]
    if whole_readers:
        return f"{whole_readers[0]} reads all of the weight as it is"
    if not kept_readers:
        return "only products read the weight, which is freed when it is packed"
    if not products and len(kept_readers) == len(uses):
        return "no product packs the weight"
    return ""


def _separate_weight(editor: ModelEditor, weight: ir.Value) -> None:
    """Let the nodes that pack `weight` read a new initializer with the same tensor."""
    name = editor.unique_name(f"{weight.name}_packed")
    twin = ir.Value(name=name, type=weight.type, shape=weight.shape, const_value=weight.const_value)
    editor.model.graph.register_initializer(twin)
    for node, input_index in list(_uses_behind_identities(weight)):
        if _is_packing_reader(node, input_index):
            node.replace_input_with(input_index, twin)


def _is_packing_reader(node: ir.Node, input_index: int) -> bool:
    return (node.op_type, node.domain) in _PACKING_OPERATORS and input_index == 1


def _uses_behind_identities(weight: ir.Value) -> Iterator[tuple[ir.Node, int]]:
    """Yield the nodes that read `weight`, each with the index of its input.

    A session removes Identity nodes: their readers are yielded instead, unless the output of the
    Identity is an output of its graph.
    """
    pending = [weight]
    while pending:
        for node, input_index in pending.pop().uses():
            is_identity = node.op_type == "Identity" and not node.domain
            if is_identity and not node.outputs[0].is_graph_output():
                pending.append(node.outputs[0])
            else:
                yield node, input_index
