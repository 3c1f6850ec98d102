"""Profiles with memory on a GPU: hand-made ones, and one with the memory of a recorded session."""

from memdiag.api.device_watch import device_memory
from memdiag.device.recording import DeviceRecording
from memdiag.records.attribution import Unidentifiable
from memdiag.records.device import (
    Device,
    DeviceCopy,
    DeviceFinding,
    DeviceMemory,
    DevicePhase,
    DeviceXray,
    Ledger,
    LedgerRow,
    MissingSource,
)
from memdiag.records.profile import Outcome, Profile
from tests.device.recorded_sessions import arenas_at_rest, failed_in_last_run, raw, recorded
from tests.device.replay import child_marks
from tests.reports import profiles
from tests.reports.profiles import MIB
from tests.reports.rendering import replaced

(CHUNKS,) = (arena for arena in arenas_at_rest(raw("dense_default")) if arena.memory == "Cuda")
XRAY = DeviceXray(
    copies=(
        DeviceCopy(
            weights=("W", "tied"),
            kind="original",
            layout="original",
            parameters={},
            bytes=60 * MIB,
            address=CHUNKS.in_use[0][0],
            verified_bytes=60 * MIB,
            is_stale=False,
        ),
        DeviceCopy(
            weights=("W", "tied"),
            kind="transposed",
            layout="transposed",
            parameters={"perm": "1,0"},
            bytes=60 * MIB,
            address=CHUNKS.in_use[0][0] + 64 * MIB,
            verified_bytes=60 * MIB,
            is_stale=False,
        ),
        DeviceCopy(
            weights=("filter",),
            kind="transposed",
            layout="channels_last",
            parameters={},
            bytes=2 * MIB,
            address=CHUNKS.free[0][0],
            verified_bytes=2 * MIB,
            is_stale=True,
        ),
    ),
    indistinct=(
        Unidentifiable(
            reason="smaller than 256 bytes each", count=2, bytes=128, weights=("bias", "scale")
        ),
    ),
    absent=(("on_host",),),
    searched_bytes=256 * MIB,
    copied_bytes=400 * MIB,
    duration_s=0.31,
)
PROVIDERS = ("CUDAExecutionProvider", "CPUExecutionProvider")
FALLBACK = DeviceFinding(
    rule="MD907",
    name="provider-fallback",
    message="onnxruntime created the session without CUDAExecutionProvider: it runs on CPU.",
)
OUT_OF_MEMORY = "Failed to allocate memory for requested buffer of size 67108864"


def with_memory(memory: DeviceMemory) -> Profile:
    """Return a profile of a session that was asked to run on a GPU."""
    return replaced(profiles.tied_if(), device=memory, session__providers=PROVIDERS)


def on_gpu(*, has_cupti: bool = True, is_read: bool = True) -> Profile:
    """Return a profile with 700 MiB on a GPU, 900 MiB at the peak."""
    row = LedgerRow(owner="context", label="context and code", bytes=700 * MIB, basis="exact")
    ledger = Ledger(mark="run", used_bytes=700 * MIB, rows=(row,), is_coarse=not has_cupti)
    phase = DevicePhase(
        name="run",
        duration_s=1.0,
        used_bytes=700 * MIB if is_read else None,
        added_bytes=0,
        peak_bytes=900 * MIB if has_cupti and is_read else None,
        peak_allocated_bytes=None,
    )
    missing = [] if has_cupti else [MissingSource(source="CUPTI", reason="it was not found")]
    if not is_read:
        missing.append(MissingSource(source="cudaMemGetInfo", reason="it failed with error 35"))
    return with_memory(
        DeviceMemory(
            device=Device(name="GPU"),
            ledger=ledger if is_read else None,
            phases=(phase,),
            missing=tuple(missing),
        )
    )


def read_until_a_run() -> Profile:
    """Return a profile whose memory on a GPU was read after some runs, and then not again."""
    memory = on_gpu().device
    assert memory is not None
    unread = replaced(memory.phases[0], used_bytes=None, peak_bytes=None)
    missing = MissingSource(
        source="cudaMemGetInfo", reason="it failed with error 700", last_mark="run"
    )
    return with_memory(replaced(memory, phases=(*memory.phases, unread), missing=(missing,)))


def recorded_memory(name: str) -> DeviceMemory:
    """Return the memory on the GPU in a recorded session."""
    return _memory_of(as_in_child(name))


def recorded_profile(name: str = "dense_default") -> Profile:
    """Return a profile with the memory of a recorded session on the GPU."""
    profile = with_memory(recorded_memory(name))
    return replaced(profile, model__weight_bytes=recorded(name).weight_bytes)


def compared_profile() -> Profile:
    """Return a profile whose weights on the GPU were compared with the model."""
    memory = _memory_of(replaced(as_in_child("dense_default"), xray=XRAY))
    return replaced(recorded_profile(), device=memory)


def fallen_back() -> Profile:
    """Return the profile of a session that onnxruntime created on the CPU."""
    return with_memory(DeviceMemory(device=Device(name=""), findings=(FALLBACK,)))


def out_of_memory() -> Profile:
    """Return the profile of a session for which the GPU was too small."""
    memory = _memory_of(failed_in_last_run(as_in_child("conv_default")), OUT_OF_MEMORY)
    outcome = Outcome(status="failed", phase="steady", message=OUT_OF_MEMORY)
    return replaced(with_memory(memory), outcome=outcome)


def as_in_child(name: str) -> DeviceRecording:
    """Return a recorded session with the names that a child gives to the marks."""
    recording = recorded(name)
    names = zip(recording.marks, child_marks(raw(name)), strict=True)
    return replaced(recording, marks=tuple(replaced(mark, name=name) for mark, name in names))


def _memory_of(recording: DeviceRecording, error: str = "") -> DeviceMemory:
    return device_memory(recording, [mark.seconds for mark in recording.marks], error)
