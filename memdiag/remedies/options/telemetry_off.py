"""onnxruntime sends and stores no telemetry."""

from memdiag.ort.runtime import TELEMETRY_SINCE
from memdiag.remedies.option import Option
from memdiag.runner.child import TELEMETRY_OFF

OPTION = Option(
    name="telemetry-off",
    does="onnxruntime starts no telemetry: no thread for it, no files in the home folder.",
    hurts="Microsoft does not learn of the use.",
    environment=TELEMETRY_OFF,
    applies=lambda runtime: runtime >= TELEMETRY_SINCE,
    suits=lambda job: job.telemetry,
)
