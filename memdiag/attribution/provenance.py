"""Provenance of copies: the graph transformer or kernel that made a copy, from graph and log.

A transformer is named only if onnxruntime's log reports that it changed the graph. ``prepack`` is a
kernel before the first run, ``kernel`` a kernel that ran, in a run or because its node was folded.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache

import msgspec

from memdiag.attribution.layout import Layout
from memdiag.attribution.layouts import all_layouts
from memdiag.attribution.search_target import SearchTarget, WeightContent
from memdiag.attribution.weight_operators import (
    FILTER_INPUTS,
    MATRIX_PRODUCTS,
    SAME_AXES,
    WEIGHT_FORMS,
    InputIndices,
)
from memdiag.model.graph_index import NCHWC_DOMAIN, integer_attribute, node_label
from memdiag.model.model_file import ModelFile
from memdiag.model.readers import WeightReader
from memdiag.records.attribution import WHOLE_FILE_COPY_NAME, Attribution, Copy
from memdiag.records.weights import qualified_name
from memdiag.runner.log import OPENVINO_NAME, LogEvidence

_CONSTANT_FOLDING = "ConstantFolding"
_NCHWC_TRANSFORMER = "NchwcTransformer"
_TRANSPOSE_OPTIMIZER = "TransposeOptimizer"
"""Changes initializers in place, so that they keep their names."""

_FOLDED_BY_LAYOUT = {
    "transposed": ("Transpose",),
    "cast": ("Cast",),
    "dequantized": ("DequantizeLinear", "Mul"),
}

# Operators that are rarely folded, but computed in every run.
_RARELY_FOLDED = ("DequantizeLinear",)

_NOT_REMOVED = ""

# onnxruntime's name for the result of a fusion, such as ConvBnFusion_W_conv1.weight.
_FUSION_NAME = re.compile(r"[A-Za-z]+Fusion(?=_)")


def attribution_with_makers(
    attribution: Attribution, targets: Sequence[SearchTarget], log: LogEvidence
) -> Attribution:
    """Return `attribution` with the maker of each copy as far as it is known.

    Copies that are mapped from a file have no maker.

    Args:
        attribution: the attribution to complete.
        targets: the models that were searched for.
        log: the evidence from onnxruntime's log of the same process.
    """
    provenance = _CopyMakers(targets, log)
    copies = tuple(
        msgspec.structs.replace(copy, made_by=provenance.maker(copy)) for copy in attribution.copies
    )
    return msgspec.structs.replace(attribution, copies=copies)


class _CopyMakers:
    """Determines the maker of a copy."""

    def __init__(self, targets: Sequence[SearchTarget], log: LogEvidence) -> None:
        self._changed = log.changed
        self._reserved = log.reserved
        self._has_compiled = OPENVINO_NAME in log.removed.values()
        self._contents = {
            (content.names, target.fused): content
            for target in targets
            for content in target.weights
        }
        self._removed_by = _removed_by(targets, log.removed)
        self._not_in_log = _NOT_REMOVED if log.removed_all else None
        fused_names = {
            content.names[0] for target in targets if target.fused for content in target.weights
        }
        models = (
            [target.model_file for target in targets if not target.fused] if fused_names else []
        )
        self._new_names = fused_names - {
            weight.name for model in models for weight in model.weights
        }
        self._output_nodes = _output_nodes(models, fused_names)

    def maker(self, copy: Copy) -> str | None:
        """Return the maker of `copy`; None if it is not known."""
        fused = copy.kind == "fused"
        content = self._contents.get((copy.weights, fused))
        if content is None or copy.backing.kind == "file":
            return None
        layout = _layouts_by_name().get(copy.layout)
        if layout is not None and layout.packed_inputs:
            return self._prepack_maker(copy, content, layout)
        if layout is not None and layout.libraries:
            return _maker_label(OPENVINO_NAME, content.readers) if self._has_compiled else None
        if copy.layout == "reordered_nchwc":
            return (
                _maker_label(_NCHWC_TRANSFORMER, _readers_by_inputs(content, FILTER_INPUTS))
                if _NCHWC_TRANSFORMER in self._changed
                else None
            )
        if fused:
            return self._fused_maker(content, unchanged=copy.layout == "original")
        if copy.layout in _FOLDED_BY_LAYOUT:
            return self._folding_maker(content, _FOLDED_BY_LAYOUT[copy.layout])
        if self._is_compiled(content):
            # onnxruntime removed its own copy after the provider had made one.
            return _maker_label(OPENVINO_NAME, content.readers)
        return "loading from bytes" if WHOLE_FILE_COPY_NAME in content.names else "parse"

    def _is_compiled(self, content: WeightContent) -> bool:
        """Return whether onnxruntime removed these weights when OpenVINO had compiled the graph."""
        return all(self._removed_by.get(name) == OPENVINO_NAME for name in content.names)

    def _prepack_maker(self, copy: Copy, content: WeightContent, layout: Layout) -> str | None:
        readers = _readers_by_inputs(content, layout.packed_inputs)
        if "transB" in copy.parameters:
            is_transposed = copy.parameters["transB"] == "1"
            readers = [
                reader for reader in readers if reads_transposed(reader) in (None, is_transposed)
            ]
        node_count = len({reader.node.label for reader in readers})
        # Each node that packs reserves a buffer, even if it then shares the buffer of another node.
        reserved_count = node_count if self._reserved is None else self._reserved.get(copy.bytes, 0)
        if layout.reserves_buffer and not reserved_count:
            # Not prepacked: a product packs its operand when it runs, or when it is folded.
            return _maker_label("kernel", readers, one_of=True)
        return _maker_label("prepack", readers, one_of=0 < reserved_count < node_count)

    def _folding_maker(self, content: WeightContent, steps: Collection[str]) -> str | None:
        """Return the maker of a transposed or converted copy of a weight of the model."""
        # Calls of a function share its nodes, so that several readers have the same label.
        direct_readers = list(
            {
                (reader.node.label, reader.node.op_type, reader.input_index): reader
                for reader in content.readers
                if not reader.path
            }.values()
        )
        folding_readers = [reader for reader in content.readers if reader.node.op_type in steps]
        removed_by = {self._removed_by.get(name, self._not_in_log) for name in content.names}
        transformer = removed_by.pop() if len(removed_by) == 1 else None
        if transformer == _CONSTANT_FOLDING:
            return _maker_label(_CONSTANT_FOLDING, folding_readers)
        if transformer == _NOT_REMOVED and len(direct_readers) == 1:
            # Its only consumer still reads it: nothing was folded, but its kernel ran.
            return _maker_label(
                "kernel", [reader for reader in direct_readers if reader.node.op_type in steps]
            )
        if transformer and (len(direct_readers) == 1 or not folding_readers):
            # The transformer that removed the readers made their result, unless it is the weight.
            if all(
                reader.node.op_type in steps or reader.node.op_type not in WEIGHT_FORMS
                for reader in direct_readers
            ):
                return _maker_label(transformer, direct_readers)
            return None
        if _CONSTANT_FOLDING in self._changed:
            return _maker_label(
                _CONSTANT_FOLDING,
                [reader for reader in folding_readers if reader.node.op_type not in _RARELY_FOLDED],
            )
        return None

    def _fused_maker(self, content: WeightContent, *, unchanged: bool) -> str | None:
        """Return the maker of a weight that only onnxruntime's optimized model has."""
        if unchanged:
            blocked_readers = [
                reader
                for reader in _readers_by_inputs(content, FILTER_INPUTS)
                if reader.node.domain == NCHWC_DOMAIN
            ]
            if blocked_readers and _NCHWC_TRANSFORMER in self._changed:
                # It makes every filter of these convolutions, after all other changes.
                return _maker_label(_NCHWC_TRANSFORMER, blocked_readers)
            name = content.names[0]
            node = self._output_nodes.get(name)
            if (
                node
                and _CONSTANT_FOLDING in self._changed
                and _TRANSPOSE_OPTIMIZER not in self._changed
            ):
                # A node whose output is now an initializer was folded.
                return f"{_CONSTANT_FOLDING} · {node}"
            fusion = _FUSION_NAME.match(name)
            if fusion and name in self._new_names:
                return _maker_label(fusion[0], content.readers)
        maker = next(iter(self._changed)) if len(self._changed) == 1 else "optimize"
        return _maker_label(maker, content.readers)


@cache
def _layouts_by_name() -> Mapping[str, Layout]:
    return {layout.name: layout for layout in all_layouts()}


def _removed_by(
    targets: Sequence[SearchTarget], removed: Mapping[str, str]
) -> dict[str, str | None]:
    """Return the transformer after which each removed weight was removed.

    None if it is not known: the log names weights without their graphs. So it proves nothing about
    a name that several weights have, or about weights that onnxruntime renames.
    """
    qualified_by_name: dict[str, list[str]] = defaultdict(list)
    unknown_names = []
    models = [target.model_file for target in targets if not target.fused]
    for weight in (weight for model in models for weight in model.weights):
        if weight.origin not in ("initializer", "constant"):
            unknown_names.append(qualified_name(weight))
        elif weight.name in removed:
            qualified_by_name[weight.name].append(qualified_name(weight))
    removed_by: dict[str, str | None] = dict.fromkeys(unknown_names)
    for name, qualified_names in qualified_by_name.items():
        transformer = (removed[name] or None) if len(qualified_names) == 1 else None
        removed_by.update(dict.fromkeys(qualified_names, transformer))
    return removed_by


def _output_nodes(models: Sequence[ModelFile], names: Collection[str]) -> dict[str, str]:
    """Return the label of the node in `models` that computes each of `names`."""
    return {
        output: node_label(node, index)
        for model in models
        for index, node in enumerate(model.graph.nodes)
        for output in node.output
        if output in names
    }


def reads_transposed(reader: WeightReader) -> bool | None:
    """Return whether a matrix product multiplies with the transposed weight.

    It does so by an attribute or by a Transpose before it. Return None if that is unknown, and for
    other operators.
    """
    operators = reader.through
    if reader.node.op_type not in MATRIX_PRODUCTS or {*operators} - {*SAME_AXES, "Transpose"}:
        return None
    return bool(integer_attribute(reader.node, "transB", 0)) ^ bool(
        operators.count("Transpose") % 2
    )


def _readers_by_inputs(content: WeightContent, input_indices: InputIndices) -> list[WeightReader]:
    return [
        reader
        for reader in content.readers
        if reader.input_index in input_indices.get(reader.node.op_type, ())
    ]


def _maker_label(
    maker: str, readers: Iterable[WeightReader], *, one_of: bool = False
) -> str | None:
    nodes = list(dict.fromkeys(reader.node.label for reader in readers))
    if len(nodes) < 2:
        return f"{maker} · {nodes[0]}" if nodes else None
    return f"{maker} · {'one of ' if one_of else ''}{nodes[0]} and {len(nodes) - 1} more"
