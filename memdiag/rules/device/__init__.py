"""The rules for devices: one waste a module. Each is a pure function of a recording.

A module of this package with a `RULE` and a function `detect` is a detector; nothing else registers
it. Its docstring is the documentation of the rule: Markdown, whose first line is a sentence.
"""

from functools import cache

from memdiag.device.recording import DeviceRecording
from memdiag.records.device import DeviceFinding
from memdiag.rules.rule import Detector, load_detectors, run_detectors

DeviceDetector = Detector[DeviceRecording, DeviceFinding]


@cache
def device_detectors() -> tuple[DeviceDetector, ...]:
    """Return the detectors of all rules for devices, sorted by code."""
    return load_detectors(__name__, __path__)


def device_findings(
    recording: DeviceRecording,
) -> tuple[tuple[DeviceFinding, ...], tuple[str, ...]]:
    """Return the findings of all rules in `recording`, the largest first, and notes."""
    findings, notes = run_detectors(device_detectors(), recording, "recording")
    return tuple(sorted(findings, key=lambda finding: -finding.bytes)), tuple(notes)
