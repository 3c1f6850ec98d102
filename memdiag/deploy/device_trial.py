"""A trial of a model under `gpu_mem_limit`, which limits the arena of the CUDA provider.

The context, the code, and the libraries are not limited: on the GPU a process takes more than the
limit by as much.
"""

from dataclasses import dataclass, replace

from memdiag.defaults import CUDA_PROVIDER
from memdiag.deploy.model_trial import latency_s, load_s
from memdiag.device.recording import DEVICE_ARENA
from memdiag.records.device import Device
from memdiag.records.limit import CountedMemory, LimitPoint
from memdiag.records.phases import RUN_PHASES
from memdiag.runner.job import Job
from memdiag.runner.measured_child import MeasuredChild, Measurement
from memdiag.session_options import DEVICE_LIMIT_OPTION
from memdiag.verify.device_meter import DeviceMeter


@dataclass(kw_only=True)
class DeviceTrials:
    """Trials of one model on a GPU, each in a new process. Attributes as in `ModelTrials`.

    Attributes:
        job: the model with its configuration, inputs and limits.
        timeout_s: seconds after which a trial has failed.
        counted: None: no control group counts the memory on a GPU.
        uncounted_bytes: 0, likewise.
        onnxruntime: the version; None before a child has imported it.
        rss_bytes: the memory on the GPU in the last trial that completed.
        device: the GPU; None before a trial has completed.
    """

    job: Job
    timeout_s: float
    counted: CountedMemory | None = None
    uncounted_bytes: int = 0
    onnxruntime: str | None = None
    rss_bytes: int = 0
    device: Device | None = None

    def measure(self, limit_bytes: int | None) -> LimitPoint:
        """Make a trial in which the arena is limited to `limit_bytes`; None for no limit.

        Raises:
            MeasurementError: the interpreter cannot be started, or the session did not run on the
                GPU.
            KeyboardInterrupt: Ctrl-C.
        """
        job = replace(
            self._job_with_limit(limit_bytes),
            limits=replace(self.job.limits, timeout_s=self.timeout_s),
        )
        meter = DeviceMeter(job)
        measurement = MeasuredChild(job, on_device_event=meter.add_event).run()
        if measurement.interrupted:
            raise KeyboardInterrupt
        self.onnxruntime = measurement.onnxruntime or self.onnxruntime
        outcome = measurement.outcome
        used_bytes = None
        if outcome.completed:
            figures = meter.figures(measurement)
            self.device, used_bytes = figures.device, figures.steady_bytes
            self.rss_bytes = figures.peak_bytes
        is_loaded = outcome.completed or outcome.phase in RUN_PHASES
        return LimitPoint(
            limit_bytes=limit_bytes,
            # No limit of `Limits` is set.
            outcome="timeout" if outcome.status == "limit" else outcome.status,
            phase="" if outcome.completed else outcome.phase,
            load_s=load_s(measurement) if is_loaded else None,
            latency_s=latency_s(measurement) if outcome.completed else None,
            peak_bytes=_arena_bytes(measurement),
            device_bytes=used_bytes,
            message="" if outcome.completed else outcome.message,
        )

    def _job_with_limit(self, limit_bytes: int | None) -> Job:
        if limit_bytes is None:
            return self.job
        session = self.job.session
        cuda_options = {
            **session.provider_options.get(CUDA_PROVIDER, {}),
            DEVICE_LIMIT_OPTION: str(limit_bytes),
        }
        provider_options = {**session.provider_options, CUDA_PROVIDER: cuda_options}
        return replace(self.job, session=replace(session, provider_options=provider_options))


def _arena_bytes(measurement: Measurement) -> int | None:
    """Return what the arena took in all, which is what the limit counts; None if no log has it."""
    regions = [
        region.end - region.start
        for region in measurement.arena_regions
        if region.memory == DEVICE_ARENA
    ]
    reserved = [
        reservation.bytes
        for reservation in measurement.device_reservations
        if reservation.memory == DEVICE_ARENA
    ]
    return sum((*regions, *reserved)) or None
