"""Identify the owner of every resident byte of a process: any process, or a profile's child."""

from collections.abc import Sequence
from contextlib import ExitStack, closing
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from memdiag.attribution.address_space import read_address_space
from memdiag.attribution.fused_weights import fused_search_targets
from memdiag.attribution.intervals import ByteRanges, normalized_ranges
from memdiag.attribution.ownership import BaselinePages
from memdiag.attribution.process_xray import take_xray
from memdiag.attribution.provenance import attribution_with_makers
from memdiag.attribution.search_target import SearchTarget, search_target
from memdiag.attribution.stopped_process import paused_process
from memdiag.errors import MemdiagError, ModelError, UsageError
from memdiag.model.model_file import ModelFile, open_model
from memdiag.programs.process_files import guess_models, with_guess_note
from memdiag.records.attribution import Attribution, DeviceUse
from memdiag.records.profile import PhaseName
from memdiag.runner.job import Job
from memdiag.runner.log import AddressRanges
from memdiag.runner.measured_child import (
    AtBaseline,
    AtFailure,
    AtPhaseEnd,
    AtSteady,
    ChildPause,
)
from memdiag.runner.nvml import NO_READER_REASON, open_device_reader
from memdiag.system.loaded_runtime import has_loaded_cuda

if TYPE_CHECKING:
    from memdiag.api.device_watch import DeviceWatch


def xray(
    pid: int,
    models: str | Path | Sequence[str | Path] | None = None,
    *,
    pause: bool = False,
) -> Attribution:
    """Return the owners of the resident memory of process `pid`.

    The process is only read. It keeps running, unless `pause` stops it; memory that changes
    is reported in the notes. For one that has loaded CUDA, NVML is asked what it has on the GPU.

    Args:
        pid: a process of this user, in any language.
        models: the ONNX file or files whose weights are searched for; by default the files that the
            process maps, has open, was started with or opened (see `guess_models`).
        pause: stop the process while it is read (SIGSTOP), and continue it afterwards.

    Raises:
        ModelError: a model cannot be read.
        XrayError: there is no such process, or it cannot be read.
        UsageError: `models` is empty.
    """
    model_paths = [models] if isinstance(models, str | Path) else models
    if model_paths is not None and not model_paths:
        raise UsageError("no model was given. Name the ONNX file that the process runs.")
    guesses = (
        {str(path): is_used for path, is_used in guess_models(pid)} if model_paths is None else {}
    )
    # A file that is given twice is one model.
    paths = {Path(path).resolve(): Path(path) for path in model_paths or guesses}
    used_flags = []
    with ExitStack() as stack:
        files: list[ModelFile] = []
        for path in paths.values():
            try:
                files.append(stack.enter_context(open_model(path)))
                used_flags.append(guesses.get(str(path), True))
            except ModelError:
                if model_paths is not None:
                    raise
        targets = [search_target(file) for file in files]
        if pause:
            stack.enter_context(paused_process(pid))
        attribution = msgspec.structs.replace(take_xray(pid, targets), device=_device_use(pid))
    return with_guess_note(attribution, used_flags) if model_paths is None else attribution


def _device_use(pid: int) -> DeviceUse | None:
    """Return what a process has on NVIDIA's devices; None if it has not loaded CUDA."""
    if not has_loaded_cuda(pid):
        return None
    reader = open_device_reader(pid)
    if reader is None:
        return DeviceUse(name="", process_bytes=None, missing_reason=NO_READER_REASON)
    with closing(reader):
        process_bytes = reader.read().process_bytes
    return DeviceUse(
        name=reader.name, process_bytes=process_bytes, missing_reason=reader.missing_reason
    )


class ChildXray:
    """X-rays of a profile's child: at steady state, and at the ends of phases.

    An error of an X-ray does not end the measurement.

    Args:
        model_file: the model whose weights are searched for.
        job: the job of the child.
        scratch: a folder for temporary files.
        device: searches the device of the child at steady state; None if it has none.

    Attributes:
        attribution: the X-ray at steady state; None before it, or if it failed.
        by_phase: the X-rays at the ends of phases, in the order in which the phases ended.
        failure: the reason of a failed X-ray; None if none failed.
    """

    def __init__(
        self,
        model_file: ModelFile,
        job: Job,
        scratch: Path,
        device: "DeviceWatch | None" = None,
    ) -> None:
        self.attribution: Attribution | None = None
        self.by_phase: dict[PhaseName, Attribution] = {}
        self.failure: str | None = None
        self._model_file = model_file
        self._job = job
        self._scratch = scratch
        self._device = device
        self._baseline: BaselinePages | None = None

    def read_memory(self, pause: ChildPause) -> None:
        """Read the memory of the child at `pause`, and store the error if that fails."""
        try:
            match pause:
                case AtBaseline(pid):
                    self._baseline = BaselinePages.of(read_address_space(pid))
                case AtPhaseEnd(pid, phase, arena, cache):
                    # Removed first, so that the phases are in the order in which they ended.
                    self.by_phase.pop(phase, None)
                    self.by_phase[phase] = self._take_xray(
                        pid,
                        [self._child_search_target],
                        arena,
                        cache=self._key_value_cache(cache, phase),
                    )
                case AtSteady():
                    self._take_steady_xray(pause)
                case AtFailure(pid):
                    if self._device is not None:
                        self._device.read_arenas(pid)
        except MemdiagError as error:
            self.failure = str(error)

    def _take_steady_xray(self, steady: AtSteady) -> None:
        targets = [self._child_search_target]
        attribution = self._search_at_steady(steady, targets)
        with ExitStack() as stack:
            fused = fused_search_targets(
                self._child_search_target,
                attribution,
                [self._job],
                self._scratch,
                stack,
                on_device=self._search_device(steady, targets, attribution),
            )
            if fused:
                targets += fused
                attribution = self._search_at_steady(steady, targets)
                self._search_device(steady, targets, attribution)

    def _search_at_steady(self, steady: AtSteady, targets: list[SearchTarget]) -> Attribution:
        """Take the X-ray of the child's own memory, store it with the makers of copies, and return
        it without them."""
        attribution = self._take_xray(
            steady.pid,
            targets,
            steady.arena,
            heap_trimmed=steady.heap_trimmed,
            cache=self._key_value_cache(steady.cache),
        )
        self.attribution = attribution_with_makers(attribution, targets, steady.log)
        return attribution

    def _search_device(
        self, steady: AtSteady, targets: list[SearchTarget], attribution: Attribution
    ) -> set[str]:
        """Take the X-ray of the child's device; return the names of the weights in use there."""
        xray = self._device and self._device.take_xray(steady, targets, attribution)
        copies = xray.copies if xray else ()
        return {name for copy in copies if not copy.is_stale for name in copy.weights}

    @cached_property
    def _child_search_target(self) -> SearchTarget:
        return search_target(self._model_file)

    def _take_xray(
        self,
        pid: int,
        targets: list[SearchTarget],
        arena: AddressRanges,
        *,
        heap_trimmed: bool = False,
        cache: tuple[str, ByteRanges] | None = None,
    ) -> Attribution:
        return take_xray(
            pid,
            targets,
            baseline=self._baseline,
            logged_arena=normalized_ranges(arena) if arena else None,
            heap_trimmed=heap_trimmed,
            cache=cache,
        )

    def _key_value_cache(
        self, ranges: AddressRanges, phase: PhaseName = "decode"
    ) -> tuple[str, ByteRanges] | None:
        """Return the name of the KV cache, which is its formula, and its ranges; None if empty."""
        generation = self._job.generation
        if generation is None or not ranges:
            return None
        name = generation.prefill_cache if phase == "prefill" else generation.cache
        return name, normalized_ranges(ranges)
