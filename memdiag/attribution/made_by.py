"""Which transformer or kernel made a copy: what the graph says of its use, and what the log proved.

A transformer is named only where the runtime said that it changed the graph. ``prepack`` is a
kernel ahead of the first run, ``kernel`` one that ran: in a run, or where its node was folded.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from memdiag.attribution.attribute import Looked
from memdiag.attribution.subjects import FILE, Subject, qualified
from memdiag.attribution.usage import Consumer
from memdiag.graph.reader import ModelFile
from memdiag.graph.readers import SAME_ORDER
from memdiag.graph.weights import node_label
from memdiag.records.attribution import Attribution, Copy
from memdiag.runner.log import LogEvidence

_FOLDING = "ConstantFolding"
_BLOCKING = "NchwcTransformer"
_MOVING = "TransposeOptimizer"
"""It changes initializers in place, under the name that they had."""

_NCHWC = "com.microsoft.nchwc"

_CONVOLUTIONS: Mapping[str, Sequence[int]] = {"Conv": (1,), "FusedConv": (1,)}
_TRANSPOSED_CONVOLUTIONS: Mapping[str, Sequence[int]] = {
    "ConvTranspose": (1,),
    "ConvTransposeWithDynamicPads": (1,),
}
_QUANTIZED_CONVOLUTIONS: Mapping[str, Sequence[int]] = {**_CONVOLUTIONS, "QLinearConv": (3,)}
_PACKING: Mapping[str, Sequence[int]] = {
    **_QUANTIZED_CONVOLUTIONS,
    **_TRANSPOSED_CONVOLUTIONS,
    "Attention": (1,),
    "DynamicQuantizeLSTM": (1, 2),
    "DynamicQuantizeMatMul": (1,),
    "FusedGemm": (1,),
    "FusedMatMul": (1,),
    "GRU": (1, 2),
    "Gemm": (1,),
    "LSTM": (1, 2),
    "MatMul": (1,),
    "MatMulInteger": (1,),
    "MatMulIntegerToFloat": (1,),
    "MatMulNBits": (1,),
    "QAttention": (1,),
    "QGemm": (3,),
    "QLinearMatMul": (3,),
}

# The layouts that kernels make ahead of the first run, with the inputs they do it for.
_PREPACKED: Mapping[str, Mapping[str, Sequence[int]]] = {
    "packed_fp32": _PACKING,
    "packed_int8": _PACKING,
    "packed_nbits": _PACKING,
    "reordered_qconv": _QUANTIZED_CONVOLUTIONS,
    "transposed_filter": _TRANSPOSED_CONVOLUTIONS,
}

# Those of them for which each buffer is reserved, with the bytes of the copy, whatever the kernel.
_RESERVED = ("packed_fp32",)

_FOLDED = {
    "transposed": ("Transpose",),
    "cast": ("Cast",),
    "dequantized": ("DequantizeLinear", "Mul"),
}

# What a DequantizeLinear gives is most often not folded, but computed in every run.
_LEFT = ("DequantizeLinear",)

# Operators after which another transformer may still find the weight, in this or another form.
_KEEPING = {*SAME_ORDER, "Transpose", "Cast", "DequantizeLinear", "Mul"}

_STILL_THERE = ""

# The runtime's names for what a fusion computed: ConvBnFusion_W_conv1.weight.
_FUSION = re.compile(r"[A-Za-z]+Fusion(?=_)")


def with_makers(
    attribution: Attribution, models: Sequence[Looked], log: LogEvidence
) -> Attribution:
    """Return `attribution`, of `models`, with the maker of each copy as far as that is known.

    Copies that are mapped from a file were made by nobody.
    """
    makers = _Makers(models, log)
    copies = tuple(
        msgspec.structs.replace(copy, made_by=makers.of(copy)) for copy in attribution.copies
    )
    return msgspec.structs.replace(attribution, copies=copies)


class _Makers:
    """Says what made a copy."""

    def __init__(self, models: Sequence[Looked], log: LogEvidence) -> None:
        self._changed = log.changed
        self._reserved = log.reserved
        self._subjects = {
            (one.names, model.fused): one for model in models for one in model.subjects
        }
        self._ended = _ended_by(models, log.removed)
        self._otherwise = _STILL_THERE if log.removed_all else None
        new = {one.names[0] for model in models if model.fused for one in model.subjects}
        own = [model.model for model in models if not model.fused] if new else []
        self._new = new - {weight.name for model in own for weight in model.weights}
        self._outputs = _outputs(own, new)

    def of(self, copy: Copy) -> str | None:
        """Return what made `copy`; None where nothing says it."""
        fused = copy.kind == "fused"
        subject = self._subjects.get((copy.weights, fused))
        if subject is None or copy.backing.kind == "file":
            return None
        if copy.layout in _PREPACKED:
            return self._prepacked(copy, subject)
        if copy.layout == "reordered_nchwc":
            nodes = _reading(subject.consumers, _CONVOLUTIONS)
            return _named(_BLOCKING, nodes) if _BLOCKING in self._changed else None
        if fused:
            return self._computed(subject, as_it_is=copy.layout == "original")
        if copy.layout in _FOLDED:
            return self._folded(subject, _FOLDED[copy.layout])
        return "loading from bytes" if FILE in subject.names else "parse"

    def _prepacked(self, copy: Copy, subject: Subject) -> str | None:
        readers = _reading(subject.consumers, _PREPACKED[copy.layout])
        if "transB" in copy.parameters:
            turned = copy.parameters["transB"] == "1"
            readers = [one for one in readers if one.turned in (None, turned)]
        nodes = len({one.node for one in readers})
        # Each node that packs reserves a buffer, also where it then shares that of another.
        reserved = nodes if self._reserved is None else self._reserved.get(copy.bytes, 0)
        if copy.layout in _RESERVED and not reserved:
            # Not ahead of time, then: a product packs what it works on, also where it is folded.
            return _named("kernel", readers, one_of=True)
        return _named("prepack", readers, one_of=0 < reserved < nodes)

    def _folded(self, subject: Subject, steps: Collection[str]) -> str | None:
        """Return who computed a transposed or converted copy of a weight of the model."""
        direct = [one for one in subject.consumers if not one.through]
        folded = [one for one in subject.consumers if one.op_type in steps]
        ended_by = {self._ended.get(name, self._otherwise) for name in subject.names}
        transformer = ended_by.pop() if len(ended_by) == 1 else None
        if transformer == _FOLDING:
            return _named(_FOLDING, folded)
        if transformer == _STILL_THERE and len(direct) == 1:
            # Its only reader still reads it: nothing was folded, but its kernel ran.
            return _named("kernel", [one for one in direct if one.op_type in steps])
        if transformer and (len(direct) == 1 or not folded):
            # Who took the readers away made what came of them, unless that was still the weight.
            if all(one.op_type in steps or one.op_type not in _KEEPING for one in direct):
                return _named(transformer, direct)
            return None
        if _FOLDING in self._changed:
            return _named(_FOLDING, [one for one in folded if one.op_type not in _LEFT])
        return None

    def _computed(self, subject: Subject, *, as_it_is: bool) -> str | None:
        """Return who computed a weight that only the runtime's optimized model has."""
        if as_it_is:
            blocked = [
                one
                for one in subject.consumers
                if one.domain == _NCHWC and one.slot in _CONVOLUTIONS.get(one.op_type, ())
            ]
            if blocked and _BLOCKING in self._changed:
                # Every filter of these convolutions comes from there, whatever was done before.
                return _named(_BLOCKING, blocked)
            name = subject.names[0]
            folded = self._outputs.get(name)
            if folded and _FOLDING in self._changed and _MOVING not in self._changed:
                # A node whose output is now an initializer was folded.
                return f"{_FOLDING} · {folded}"
            fusion = _FUSION.match(name)
            if fusion and name in self._new:
                return _named(fusion[0], subject.consumers)
        only = [*self._changed] if len(self._changed) == 1 else ["optimize"]
        return _named(only[0], subject.consumers)


def _ended_by(models: Sequence[Looked], removed: Mapping[str, str]) -> dict[str, str | None]:
    """Return the weights that the runtime removed, each with the transformer after whose change.

    The log has names without their graphs: of one that several weights have it says nothing, and
    that is None, as for weights that the runtime calls otherwise.
    """
    found: dict[str, list[str]] = defaultdict(list)
    unknown = []
    for weight in (one for model in models if not model.fused for one in model.model.weights):
        if weight.place not in ("initializer", "constant"):
            unknown.append(qualified(weight))
        elif weight.name in removed:
            found[weight.name].append(qualified(weight))
    ended: dict[str, str | None] = dict.fromkeys(unknown)
    for name, weights in found.items():
        ended.update(dict.fromkeys(weights, (removed[name] or None) if len(weights) == 1 else None))
    return ended


def _outputs(models: Sequence[ModelFile], names: Collection[str]) -> dict[str, str]:
    """Return, for those of `names` that are outputs of nodes in `models`, the nodes' labels."""
    return {
        output: node_label(node, index)
        for model in models
        for index, node in enumerate(model.graph.nodes)
        for output in node.output
        if output in names
    }


def _reading(consumers: Iterable[Consumer], slots: Mapping[str, Sequence[int]]) -> list[Consumer]:
    return [one for one in consumers if one.slot in slots.get(one.op_type, ())]


def _named(what: str, consumers: Iterable[Consumer], *, one_of: bool = False) -> str | None:
    nodes = list(dict.fromkeys(consumer.node for consumer in consumers))
    if len(nodes) < 2:
        return f"{what} · {nodes[0]}" if nodes else None
    return f"{what} · {'one of ' if one_of else ''}{nodes[0]} and {len(nodes) - 1} more"
