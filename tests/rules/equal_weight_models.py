"""Models with weights of equal content, examined by the rules that share them out."""

from pathlib import Path

import onnx
from onnx import ModelProto

from memdiag.model.model_file import open_model
from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.runtime import Runtime
from memdiag.records.finding import Finding
from memdiag.rules.catalog import (
    identical_weights,
    stored_transpose,
    subgraph_weights,
    weight_in_branches,
)
from tests.model_text import Array, random, tensor, with_weights

RULES = (identical_weights, stored_transpose, subgraph_weights, weight_in_branches)


class EqualWeights:
    """Models whose weights have `rows` and `columns`, `values` unless others are given."""

    def __init__(self, rows: int, columns: int) -> None:
        self.values = random((rows, columns))
        self.nbytes = self.values.nbytes
        self.inputs = (
            f"float[n, {rows}] x, float[{rows}, {columns}] z, float[n, {columns}] v, int64[i] ids, "
            "bool c"
        )

    def model(self, nodes: str, weights: str = "", /, **others: Array) -> ModelProto:
        """Return a model of `nodes`, with the initializers named in `weights` and `others`."""
        owned = dict.fromkeys(weights.split(), self.values) | others
        outputs = ", ".join(f"float[o, p] {name}" for name in ("y", "q") if f"{name} = " in nodes)
        model = with_weights(f"g ({self.inputs}) => ({outputs}) {{ {nodes} }}", 9, 17, **owned)
        return model

    def choice(
        self,
        then: str,
        other: str = "o = Relu(x)",
        after: str = "",
        /,
        *,
        owned: tuple[str, str] = ("", ""),
        weights: str = "",
        **others: Array,
    ) -> ModelProto:
        """Return an If whose branches make k and o, and own the weights named in `owned`."""
        branches = f"then_branch = a () => (float[r, s] k) {{ {then} }}"
        branches += f", else_branch = b () => (float[r, s] o) {{ {other} }}"
        model = self.model(f"y = If(c) <{branches}> {after}", weights)
        bodies = [attribute.g for attribute in model.graph.node[0].attribute]
        for body, names in zip(bodies, owned, strict=True):
            for name in names.split():
                body.initializer.append(tensor(others.get(name, self.values), name))
        return model


def examined(
    model: ModelProto, folder: Path, version: str = "1.31.1", *, external: bool = False
) -> dict[str, Finding]:
    """Return the findings of the four rules, by code; each finds one thing at most here."""
    path = folder / "model.onnx"
    copy = ModelProto.FromString(model.SerializeToString())  # saving external data changes it
    onnx.save(copy, path, save_as_external_data=external, location="data", size_threshold=1024)
    with open_model(path) as opened:
        ctx = AnalysisContext(opened, Runtime.parse(version))
        findings = [finding for rule in RULES for finding in rule.detect(ctx)]
    assert len(findings) == len({finding.rule for finding in findings})
    return {finding.rule: finding for finding in findings}
