"""Weights that onnxruntime computed from a model's weights, found in the model that it writes after
its optimization."""

import tempfile
from collections.abc import Collection, Iterable
from contextlib import ExitStack
from pathlib import Path

from memdiag.attribution.search_target import SearchTarget, fused_search_target, missing_bytes
from memdiag.model.model_file import open_model
from memdiag.records.attribution import Attribution
from memdiag.runner.job import Job
from memdiag.runner.optimized_model import save_optimized_model

MAX_MISSING_SHARE = 0.02
"""If a larger share of the weights is missing, computed tensors are searched for."""


def fused_search_targets(
    target: SearchTarget,
    attribution: Attribution,
    jobs: Iterable[Job],
    folder: Path,
    open_models: ExitStack,
    *,
    index: int = 0,
    on_device: Collection[str] = (),
) -> list[SearchTarget]:
    """Return what to search for besides `target`; nothing if hardly any of its weights are missing.

    Args:
        target: a model that was searched for.
        attribution: the X-ray, in which weights may be missing.
        jobs: the sessions of the model that are optimized differently. Each optimized model is
            written by a child that is not measured; a model that cannot be written is left out.
        folder: for the optimized models; it must exist as long as they are searched for.
        open_models: closes the optimized models.
        index: the index of the model among the models of the X-ray.
        on_device: the names of the weights that are on a device.

    Raises:
        MeasurementError: the interpreter of a job cannot be started.
        ModelError: an optimized model cannot be read.
        TimeLimitReached: the deadline of a job passed.
    """
    if target.model_file.is_ort_format:
        return []  # a session computes no tensors from the weights of an optimized graph
    missing_weight_bytes = missing_bytes(target, attribution, index=index, on_device=on_device)
    if missing_weight_bytes <= MAX_MISSING_SHARE * target.model_file.weight_bytes:
        return []
    targets: list[SearchTarget] = []
    for job in jobs:
        optimized_path = Path(tempfile.mkdtemp(dir=folder)) / "model.onnx"
        if save_optimized_model(job, optimized_path) is None:
            fused_target = fused_search_target(
                open_models.enter_context(open_model(optimized_path)), target
            )
            if targets:  # weights without a distinct content are listed once
                fused_target = fused_target._replace(unidentifiable=())
            if fused_target.weights or fused_target.unidentifiable:
                targets.append(fused_target)
    return targets
