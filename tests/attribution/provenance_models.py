"""Models, logs and copies with known provenance."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from memdiag.attribution.provenance import attribution_with_makers
from memdiag.attribution.search_target import SearchTarget, fused_search_target, search_target
from memdiag.model.model_file import open_model
from memdiag.records.attribution import Attribution, Backing, Copy, CopyKind, Owner, ScanTiming
from memdiag.runner.log import LogEvidence

RANDOM = np.random.default_rng(11)
node = helper.make_node

KINDS: dict[str, CopyKind] = {
    "original": "original",
    "transposed": "transposed",
    "transposed_filter": "transposed",
    "cast": "cast",
    "dequantized": "dequantized",
    "packed_fp32": "packed",
    "packed_int8": "packed",
    "packed_nbits": "packed",
    "reordered_nchwc": "reordered",
    "reordered_onednn": "reordered",
    "reordered_qconv": "reordered",
}


def noise(*shape: int) -> Any:
    return RANDOM.standard_normal(shape, np.float32)


def octets(*shape: int) -> Any:
    return RANDOM.integers(-128, 128, shape).astype(np.int8)


def branch(*nodes: onnx.NodeProto, **weights: Any) -> onnx.GraphProto:
    output = helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)
    tensors = [numpy_helper.from_array(values, name) for name, values in weights.items()]
    return helper.make_graph(list(nodes), "branch", [], [output], tensors)


class Models:
    """Models to search for, in a folder and open until the end of the test."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack

    def target(self, nodes: Sequence[onnx.NodeProto], weights: Mapping[str, Any]) -> SearchTarget:
        return search_target(self._open("model", nodes, weights))

    def optimized(
        self, original: SearchTarget, nodes: Sequence[onnx.NodeProto], weights: Mapping[str, Any]
    ) -> list[SearchTarget]:
        return [original, fused_search_target(self._open("optimized", nodes, weights), original)]

    def _open(self, name: str, nodes: Sequence[onnx.NodeProto], weights: Mapping[str, Any]) -> Any:
        graph = helper.make_graph(
            nodes,
            "main",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, None)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(np.asarray(one), key) for key, one in weights.items()],
        )
        opsets = [helper.make_opsetid(domain, 1) for domain in ("com.microsoft", NCHWC)]
        opsets.append(helper.make_opsetid("", 21))
        path = self._folder / f"{name}.onnx"
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
        return self._stack.enter_context(open_model(path))


NCHWC = "com.microsoft.nchwc"


def log(
    *changed: str,
    removed: Mapping[str, str] | None = None,
    removed_all: bool = True,
    reserved: Mapping[int, int] | None = None,
) -> LogEvidence:
    return LogEvidence(
        changed=frozenset(changed),
        removed=removed or {},
        removed_all=removed_all,
        reserved=reserved,
    )


def copy(layout: str, name: str = "w", **changes: Any) -> Copy:
    fields: dict[str, Any] = {
        "weights": (name,),
        "layout": layout,
        "kind": KINDS[layout],
        "parameters": {},
        "bytes": 4096,
        "resident_bytes": 4096,
        "address": 0x7F0000000040,
        "backing": Backing(kind="anonymous"),
        "verified_bytes": 4096,
        "in_use": True,
        "made_by": None,
        **changes,
    }
    return Copy(**fields)


def made_by(
    target: SearchTarget | Sequence[SearchTarget], evidence: LogEvidence, copy: Copy
) -> str | None:
    attribution = Attribution(
        schema="memdiag.attribution/1",
        pid=1,
        resident_bytes=1,
        baseline_bytes=None,
        named_share=0.0,
        owners=(Owner(kind="unnamed", name="unnamed", bytes=1, private_bytes=1),),
        copies=(copy,),
        indistinct=(),
        partial=False,
        notes=(),
        timing=ScanTiming(total_s=0, scan_s=0, verify_s=0, scanned_bytes=0, verified_bytes=0),
    )
    targets = [target] if isinstance(target, SearchTarget) else list(target)
    (found,) = attribution_with_makers(attribution, targets, evidence).copies
    assert found == Copy(**{name: getattr(copy, name) for name in COPY}, made_by=found.made_by)
    return found.made_by


COPY = [name for name in Copy.__struct_fields__ if name != "made_by"]


def product(weight: Any, **more: Any) -> tuple[list[onnx.NodeProto], dict[str, Any]]:
    return [node("MatMul", ["x", "w"], ["y"], name="product")], {"w": weight, **more}
