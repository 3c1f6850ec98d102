"""A finding made by hand, of the weight that `profiles.tied_if` and `tied_xray` have."""

from memdiag.records.finding import Finding
from memdiag.units import MIB

TIED = Finding(
    model="models/tied_if.onnx",
    rule="MD103",
    name="shared-weight-transposed",
    message="model.shared.weight is used as it is and transposed.",
    detail="onnxruntime keeps three copies.",
    weights=("model.shared.weight",),
    nodes=(),
    graph="",
    bytes=1000 * MIB,
    peak_bytes=1000 * MIB,
    phase="constant_fold",
    evidence="measured",
    measured_bytes=1000 * MIB,
    expected=(),
    remedies=("overridable-weight",),
)
