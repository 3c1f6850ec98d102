"""The session runs without a provider that was asked for.

## Why it costs

If a provider cannot be loaded, as without its CUDA libraries or with those of another release,
onnxruntime logs a warning and creates the session with the next provider, often the CPU's. The
figures are then those of another session than the one that was asked for.

## What to do

Read the warning: it names what is missing. `onnxruntime-gpu` 1.19 to 1.26 need CUDA 12, and 1.27
to 1.31 need CUDA 13. `onnxruntime.preload_dlls()` loads the libraries of NVIDIA's packages. Do not
install `onnxruntime` next to `onnxruntime-gpu`: both are the same import package.

## Not reported

Nodes that a provider leaves to the CPU in a session that has the provider.
"""

from collections.abc import Iterator

from memdiag.device.recording import DeviceRecording
from memdiag.records.device import DeviceFinding
from memdiag.rules.rule import Rule
from memdiag.runner.job import fallback_text, missing_providers

RULE = Rule(
    code="MD907",
    name="provider-fallback",
    summary="The session runs without a provider that was asked for",
)


def detect(recording: DeviceRecording) -> Iterator[DeviceFinding]:
    """Yield at most one finding: the providers that were asked for and that the session lacks."""
    session = recording.session
    if session is None or session.providers is None:
        return
    missing = missing_providers(session.requested_providers, session.providers)
    if missing:
        warnings = [
            warning for warning in session.warnings if any(name in warning for name in missing)
        ]
        yield DeviceFinding(
            rule=RULE.code,
            name=RULE.name,
            message=f"{fallback_text(missing, session.providers)}.",
            detail=f"onnxruntime warned: {warnings[0]}" if warnings else "",
        )
