"""Models, logs and copies with known provenance."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from memdiag.attribution.provenance import attribution_with_makers
from memdiag.attribution.search_target import SearchTarget, fused_search_target, search_target
from memdiag.model.model_file import ModelFile, open_model
from memdiag.records.attribution import Attribution, Backing, Copy, CopyKind, Owner, ScanTiming
from memdiag.runner.log import LogEvidence
from tests.builders import build, saved

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


class Models:
    """Models to search for, in a folder and open until the end of the test."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack

    def target(self, body: str, **weights: Any) -> SearchTarget:
        """Return what is searched for of a graph from x to y."""
        return search_target(self._open("model.onnx", body, weights))

    def optimized(self, original: SearchTarget, body: str, **weights: Any) -> list[SearchTarget]:
        """Return it with that of the graph that the runtime made of it."""
        opened = self._open("optimized.onnx", body, weights)
        return [original, fused_search_target(opened, original)]

    def _open(self, name: str, body: str, weights: Mapping[str, Any]) -> ModelFile:
        model = build(
            f"(x) => (y) {{ {body} }}", opset=21, ir=10, domains={NCHWC: 1}, weights=weights
        )
        return self._stack.enter_context(open_model(saved(model, self._folder, name)))


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
