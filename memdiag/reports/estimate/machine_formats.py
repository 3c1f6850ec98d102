"""An estimate as the resources of a Kubernetes container."""

from memdiag.records import codec
from memdiag.records.estimate import Estimate
from memdiag.reports.container_resources import kubernetes_resources
from memdiag.reports.estimate.sentences import (
    BEFORE_SESSION_TEXT,
    dimension_sizes_text,
    unknown_text,
)
from memdiag.reports.text import model_file_name, plain
from memdiag.units import MIB


def estimated_resources(estimate: Estimate) -> str:
    """Return the ``resources`` of a container for the point that needs most memory.

    The request is the memory after the runs, and the limit is the upper bound of the peak.
    """
    estimate = codec.escaped_record(estimate)
    point, base_bytes = estimate.largest, estimate.beside_bytes(estimate.largest)
    sizes_text = f" at {dimension_sizes_text(estimate, point.dims)}" if point.dims else ""
    source = "predicted and corrected by measurements" if estimate.calibration else "predicted"
    base_comment = (
        f"Add the memory of {BEFORE_SESSION_TEXT}, which is not known for this release."
        if estimate.baseline_bytes is None
        else f"Includes {_mebibytes_quantity(base_bytes)} of {BEFORE_SESSION_TEXT},"
        " and of the inputs."
    )
    missing_comments = [f"Too low: {unknown_text(estimate)}."] if point.is_floor else []
    limit_bytes = max(point.high_bytes, point.peak_bytes)
    subject = (
        f"{model_file_name(estimate.model)}{sizes_text}, onnxruntime {plain(estimate.onnxruntime)}"
    )
    return kubernetes_resources(
        point.steady_bytes + base_bytes,
        limit_bytes + base_bytes,
        (f"{subject}: {source} by memdiag estimate.", base_comment, *missing_comments),
    )


def _mebibytes_quantity(size: int) -> str:
    return f"{-(-size // MIB)}Mi"
