"""What NVML reports of a process that is X-rayed, if it has loaded CUDA."""

import os
from types import SimpleNamespace
from typing import Any

import pytest

from memdiag.api import xray as xray_module
from memdiag.records.attribution import DeviceUse
from memdiag.runner.nvml import NO_READER_REASON, DeviceReader, DeviceReading
from tests.reports import attributions


class ScriptedReader:
    """NVML's figure of one process."""

    name, driver = "Scripted", "580"

    def __init__(self, process_bytes: int | None, missing_reason: str = "") -> None:
        self.process_bytes, self.missing_reason = process_bytes, missing_reason
        self.is_closed = False

    def read(self) -> DeviceReading:
        return DeviceReading(self.process_bytes, None)

    def close(self) -> None:
        self.is_closed = True


def device_use(
    monkeypatch: pytest.MonkeyPatch, reader: DeviceReader | None, *, has_cuda: bool = True
) -> DeviceUse | None:
    """Return what an X-ray has of the devices of a process."""
    monkeypatch.setattr(xray_module, "guess_models", lambda pid: [])
    monkeypatch.setattr(xray_module, "take_xray", lambda *arguments: attributions.attribution())
    monkeypatch.setattr(xray_module, "has_loaded_cuda", lambda pid: has_cuda)
    monkeypatch.setattr(xray_module, "open_device_reader", lambda pid: reader)
    return xray_module.xray(os.getpid()).device


@pytest.mark.parametrize(("process_bytes", "reason"), [(1 << 30, ""), (None, "it is busy")])
def test_the_figure_of_nvml_or_why_there_is_none(
    process_bytes: int | None, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = ScriptedReader(process_bytes, reason)
    assert device_use(monkeypatch, reader) == DeviceUse(
        name="Scripted", process_bytes=process_bytes, missing_reason=reason
    )
    assert reader.is_closed


def test_without_nvml_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device_use(monkeypatch, None) == DeviceUse(
        name="", process_bytes=None, missing_reason=NO_READER_REASON
    )


def test_of_a_process_without_cuda_nvml_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    reader: Any = SimpleNamespace()
    assert device_use(monkeypatch, reader, has_cuda=False) is None
