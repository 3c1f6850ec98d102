"""The memory of one measured process on a GPU: its peak, and what is left after the runs."""

from typing import NamedTuple

from memdiag.device.ledger import CUPTI_NOTE, device_ledger
from memdiag.device.phases import device_phases, merged_phases
from memdiag.device.recording_builder import RecordingBuilder
from memdiag.records.device import Device, DeviceMemory
from memdiag.runner.job import Job, fallback_text, missing_providers
from memdiag.runner.log import ScriptEvent
from memdiag.runner.measured_child import Measurement
from memdiag.runner.nvml import DeviceReader
from memdiag.verify.memory import JobError

_NO_CUPTI_NOTE = (
    "Without CUPTI the peak on the GPU is the largest of the readings after each run (pip install"
    " 'memdiag[nvidia]')."
)
_ADVICE = "Run memdiag profile with the same provider to see why."


class DeviceFigures(NamedTuple):
    """The memory of a process on a GPU, with its context and code.

    Attributes:
        device: the GPU.
        peak_bytes: the peak; without CUPTI the largest reading after a run.
        steady_bytes: the memory after the last run.
        is_peak_exact: whether CUPTI reported all allocations.
    """

    device: Device
    peak_bytes: int
    steady_bytes: int
    is_peak_exact: bool

    @property
    def note(self) -> str:
        """What CUPTI adds to the figures, or what they lack without it, as a sentence."""
        return CUPTI_NOTE if self.is_peak_exact else _NO_CUPTI_NOTE


class DeviceMeter:
    """Collects what a child reports of its device.

    Args:
        job: the job of the child, which records its device.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._builder = RecordingBuilder()

    def add_event(self, event: ScriptEvent, elapsed_s: float, reader: DeviceReader | None) -> None:
        """Take an event of the child, `elapsed_s` seconds after its start."""
        self._builder.add_child_event(event, reader)

    def figures(self, measurement: Measurement) -> DeviceFigures:
        """Return the memory of the child, whose `measurement` is complete.

        Raises:
            JobError: it did not run on the device, or the memory was not read.
        """
        providers = measurement.providers or ()
        missing = missing_providers(self._job.session.providers, providers)
        if missing:
            raise JobError(self._job, fallback_text(missing, providers), _ADVICE)
        recording = self._builder.recording(
            Device(name=self._builder.device_name, total_bytes=self._builder.total_bytes)
        )
        mark = recording.last_mark_in_use
        memory = DeviceMemory(
            device=recording.device,
            ledger=None if mark is None else device_ledger(recording, mark),
            phases=merged_phases(device_phases(recording)),
        )
        if memory.steady_bytes is None or memory.ledger is None:
            reason = recording.missing_reason("cudaMemGetInfo")
            problem = "the memory in use on the GPU was not read"
            raise JobError(self._job, f"{problem}{f' ({reason})' if reason else ''}", _ADVICE)
        readings = [alive.used_bytes or 0 for alive in recording.marks if alive.is_alive]
        largest = max(readings) - memory.ledger.bytes_of("other_processes")
        return DeviceFigures(
            device=recording.device,
            peak_bytes=largest if memory.peak_bytes is None else memory.peak_bytes,
            steady_bytes=memory.steady_bytes,
            is_peak_exact=memory.peak_bytes is not None,
        )
