"""Which transformer or kernel made a copy: what the graph says of its use, and what the log proved.

A transformer is named only where the runtime said that it changed the graph.
"""

from collections.abc import Iterable, Sequence

from memdiag.attribution.attribute import Maker
from memdiag.attribution.subjects import FILE, Subject
from memdiag.attribution.usage import Consumer
from memdiag.records.profile import Span

_PACKING = {
    "Attention",
    "ConvTranspose",
    "DequantizeLinear",
    "DynamicQuantizeLSTM",
    "DynamicQuantizeMatMul",
    "FusedGemm",
    "FusedMatMul",
    "GRU",
    "Gemm",
    "LSTM",
    "MatMul",
    "MatMulInteger",
    "MatMulIntegerToFloat",
    "MatMulNBits",
    "QAttention",
    "QGemm",
    "QLinearConv",
    "QLinearMatMul",
}

_FOLDED = {
    "transposed": ("Transpose",),
    "cast": ("Cast",),
    "dequantized": ("DequantizeLinear", "Mul"),
}


def maker(spans: Sequence[Span]) -> Maker:
    """Return what says who made a copy, for a session with these `spans`."""
    changed = {span.name for span in spans if span.modified}

    def made_by(subject: Subject, kind: str) -> str | None:
        if kind == "original":
            return "loading from bytes" if FILE in subject.names else "parse"
        if kind == "fused":
            return _named("optimize", subject.consumers)
        if kind == "packed":
            return _named("prepack", (one for one in subject.consumers if one.op_type in _PACKING))
        if kind == "reordered" and "NchwcTransformer" in changed:
            return _named("NchwcTransformer", subject.consumers)
        if kind == "reordered":
            return _named("prepack", subject.consumers)
        if "ConstantFolding" in changed:
            return _named("ConstantFolding", _folded(subject.consumers, _FOLDED[kind]))
        return None

    return made_by


def _folded(consumers: Sequence[Consumer], steps: Sequence[str]) -> list[Consumer]:
    """Return the nodes that were folded away: those of the operators `steps`, where there are."""
    found = [one for one in consumers if one.op_type in steps]
    return found or [one for one in consumers if {*steps} & {*one.through}]


def _named(what: str, consumers: Iterable[Consumer]) -> str | None:
    nodes = list(dict.fromkeys(consumer.node for consumer in consumers))
    if not nodes:
        return None
    more = f" and {len(nodes) - 1} more" if len(nodes) > 1 else ""
    return f"{what} · {nodes[0]}{more}"
