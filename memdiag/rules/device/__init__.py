"""The rules for devices: one waste a module. Each is a pure function of a recording.

A module of this package with a `RULE` and a function `detect` is a detector; nothing else registers
it. Its docstring is the documentation of the rule: Markdown, whose first line is a sentence.
"""

from functools import cache

from memdiag.device.recording import DeviceRecording
from memdiag.errors import rule_defect_note
from memdiag.records.device import DeviceFinding
from memdiag.rules.rule import Detector, load_detectors

DeviceDetector = Detector[DeviceRecording, DeviceFinding]


@cache
def device_detectors() -> tuple[DeviceDetector, ...]:
    """Return the detectors of all rules for devices, sorted by code."""
    return load_detectors(__name__, __path__)


def device_findings(
    recording: DeviceRecording,
) -> tuple[tuple[DeviceFinding, ...], tuple[str, ...]]:
    """Return the findings of all rules in `recording`, the largest first, and notes."""
    findings: list[DeviceFinding] = []
    notes = []
    for detector in device_detectors():
        try:
            findings += detector.detect(recording)
        except Exception as error:  # a defect of one rule must not lose the profile
            notes.append(rule_defect_note(detector.rule.name, "recording", error))
    return tuple(sorted(findings, key=lambda finding: -finding.bytes)), tuple(notes)
