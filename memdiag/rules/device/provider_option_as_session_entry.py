"""An option of the CUDA provider was given as a configuration entry of the session.

## Why it costs

The provider does not read the entries of the session, and onnxruntime accepts any. The session then
takes as much memory as without the option.

## What to do

Give it to the provider: `--provider-option CUDAExecutionProvider:NAME=VALUE`, in Python
`providers=[("CUDAExecutionProvider", {"NAME": "VALUE"})]`.

## Not reported

Entries whose names no option of the provider has.
"""

from collections.abc import Iterator

from memdiag.device.recording import DeviceRecording
from memdiag.records.device import DeviceFinding
from memdiag.rules.rule import Rule

RULE = Rule(
    code="MD905",
    name="provider-option-as-session-entry",
    summary="An option of the CUDA provider was given to the session, and has no effect",
)


def detect(recording: DeviceRecording) -> Iterator[DeviceFinding]:
    """Yield a finding for each entry of the session that is an option of the provider."""
    session = recording.session
    if session is None:
        return
    for name, value in session.entries.items():
        if name in (session.known_options or ()):
            yield DeviceFinding(
                rule=RULE.code,
                name=RULE.name,
                message=f"{name} is an option of the CUDA provider. It was given as a"
                " configuration entry of the session, which the provider does not read.",
                provider_options={name: value},
            )
