"""Samples of what processes without the hook have on a GPU, as NVML reports it."""

from memdiag.programs.recorded_process import RecordedProcess
from memdiag.programs.recorded_program import RecordedProgram
from memdiag.programs.unhooked_process import has_grown
from memdiag.system.loaded_runtime import has_loaded_cuda

DEVICE_PERIOD_S = 0.5
"""Seconds between two samples."""


class DeviceSampling:
    """Reads NVML for the processes that use onnxruntime and CUDA without the hook.

    Args:
        program: the program.
    """

    def __init__(self, program: RecordedProgram) -> None:
        self._program = program
        self._due_s = 0.0

    def step(self, now_s: float) -> None:
        """Take a sample of each such process, if it is time."""
        if now_s < self._due_s:
            return
        for process in self._program.live.values():
            if process.unrecorded and _uses_cuda(process):
                process.open_device(self._program.open_device_reader).sample(now_s)
        self._due_s = self._program.now_s() + DEVICE_PERIOD_S


def _uses_cuda(process: RecordedProcess) -> bool:
    """Return whether `process` uses CUDA; its files are read again if its memory has grown."""
    if process.device is not None:
        return True
    if not has_grown(process.rss_bytes, process.device_search_rss_bytes):
        return False
    process.device_search_rss_bytes = process.rss_bytes
    return has_loaded_cuda(process.pid)
