"""An option was given to the CUDA provider that this release does not have.

## Why it costs

The option has no effect: onnxruntime ignores it, or prints `EP Error` and creates the session
without the options. The session then takes as much memory as without it.

## What to do

Correct the name. Configuration entries such as `session.use_device_allocator_for_initializers`
belong to the session or to a run (`--session-option`, `--run-option`).

## Not reported

Options of sessions that were not created: the names that a release knows are those that
`session.get_provider_options()` lists.
"""

import difflib
from collections.abc import Iterator, Sequence

from memdiag.device.recording import DeviceRecording
from memdiag.records.device import DeviceFinding
from memdiag.rules.rule import Rule

RULE = Rule(
    code="MD904",
    name="unknown-provider-option",
    summary="An option of the CUDA provider is unknown to this release, and has no effect",
)

_ENTRY_PREFIXES = ("session.", "memory.", "optimization.", "ep.")


def detect(recording: DeviceRecording) -> Iterator[DeviceFinding]:
    """Yield a finding for each option that the provider does not have."""
    session = recording.session
    if session is None or session.known_options is None:
        return
    for name in session.provider_options:
        if name not in session.known_options:
            yield DeviceFinding(
                rule=RULE.code,
                name=RULE.name,
                message=f"The CUDA provider of this release has no option {name}."
                f"{_advice(name, session.known_options)}",
            )


def _advice(name: str, known_options: Sequence[str]) -> str:
    if name.startswith(_ENTRY_PREFIXES):
        return " It is a configuration entry of the session or of a run."
    close = difflib.get_close_matches(name, sorted(known_options), 1)
    return f" Did you mean {close[0]}?" if close else ""
