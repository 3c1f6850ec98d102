"""Export the example's models: ``python export.py`` as they were, ``python export.py folded``.

`decoder` is the head of a language model: its weight is looked up (Gather) and multiplied by,
transposed. An exporter that folds constants stores the transposed weight next to the first one.
`branches` has each use in a branch of an If, where it is the runtime that folds.
"""

import sys
from pathlib import Path

import numpy as np
from onnx import checker, numpy_helper, parser, save

MODELS = Path(__file__).parent / "models"
WIDTH, VOCABULARY = 1024, 8192  # 32 MiB of float32

DECODER = """
<ir_version: 9, opset_import: ["" : 17]>
decoder (int64[tokens] ids, float[tokens, 1024] hidden)
    => (float[tokens, 1024] embedded, float[tokens, 8192] logits)
{
    embedded = Gather(weight, ids)
    logits = Gemm<transB = 1>(hidden, weight)
}
"""
FOLDED = DECODER.replace("Gemm<transB = 1>(hidden, weight)", "MatMul(hidden, weight_transposed)")
BRANCHES = """
<ir_version: 9, opset_import: ["" : 17]>
branches (bool embed, int64[tokens] ids, float[tokens, 1024] hidden) => (float[tokens, width] out)
{
    out = If(embed) <
        then_branch = embedding () => (float[tokens, 1024] embedded)
            { embedded = Gather(weight, ids) },
        else_branch = head () => (float[tokens, 8192] logits) {
            turned = Transpose<perm = [1, 0]>(weight)
            logits = MatMul(hidden, turned)
        }
    >
}
"""


def export(text: str, name: str) -> None:
    """Write the model that `text` describes, with its weights, to the folder of models."""
    weight = np.random.default_rng(1).standard_normal((VOCABULARY, WIDTH), np.float32)
    weights = {"weight": weight}
    if "weight_transposed" in text:
        weights["weight_transposed"] = np.ascontiguousarray(weight.T)
    model = parser.parse_model(text)
    model.graph.initializer.extend(
        numpy_helper.from_array(array, each) for each, array in weights.items()
    )
    checker.check_model(model)
    MODELS.mkdir(exist_ok=True)
    save(model, MODELS / f"{name}.onnx")


if __name__ == "__main__":
    export(FOLDED if "folded" in sys.argv[1:] else DECODER, "decoder")
    export(BRANCHES, "branches")
