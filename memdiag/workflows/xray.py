"""Name the owner of every resident byte of a process, ours or anybody's."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path

from memdiag.attribution.address_space import read_address_space
from memdiag.attribution.attribute import (
    Looked,
    attribute,
    look_for,
    look_for_fused,
    missing,
)
from memdiag.attribution.intervals import normal
from memdiag.attribution.made_by import with_makers
from memdiag.attribution.owners import Arena, BaselinePages
from memdiag.errors import MemdiagError, UsageError, XrayError
from memdiag.graph.reader import ModelFile, open_model
from memdiag.measurement.inspector import LogEvidence
from memdiag.records.attribution import Attribution
from memdiag.records.profile import PhaseName

_MISSING_SHARE = 0.02


def xray(
    pid: int,
    models: str | Path | Sequence[str | Path],
    *,
    sampled: bool = False,
    pause: bool = False,
) -> Attribution:
    """Return who owns the resident memory of process `pid`, which runs `models`.

    The process is only read. It goes on meanwhile, unless `pause` stops it for the while; what it
    moves then is reported in the notes.

    Args:
        pid: any process of ours, in any language.
        models: the ONNX file or files whose weights are looked for.
        sampled: compare a spread of blocks of each copy instead of every byte.
        pause: stop the process while it is read (SIGSTOP), and let it go on after.

    Raises:
        ModelError: a model cannot be read.
        XrayError: there is no such process, or it may not be read.
        UsageError: no model was given.
    """
    paths = [models] if isinstance(models, str | Path) else list(models)
    if not paths:
        raise UsageError("no model was given. Name the ONNX file that the process runs.")
    with ExitStack() as stack:
        looked = [look_for(stack.enter_context(open_model(Path(path)))) for path in paths]
        if pause:
            stack.enter_context(_paused(pid))
        return attribute(pid, looked, sampled=sampled)


Optimize = Callable[[], Path | None]
"""Makes the runtime save its optimized model, and returns where; None where it did not."""


class ChildXray:
    """An inspector that X-rays a profile's child at steady state, and at the ends of phases.

    Where weights are missing, `optimize` is called for the runtime's optimized model: what it
    computed from them is then looked for as well. `attribution` and `by_phase` are the results,
    and `failure` the reason where there are none.
    """

    def __init__(
        self, model: ModelFile, *, sampled: bool, phases: bool, optimize: Optimize
    ) -> None:
        self.phases = phases
        self.attribution: Attribution | None = None
        self.by_phase: dict[PhaseName, Attribution] = {}
        self.failure: str | None = None
        self._model = model
        self._sampled = sampled
        self._optimize = optimize
        self._baseline: BaselinePages | None = None

    def baseline(self, pid: int) -> None:
        """Note what is resident before the model."""
        # A model that is profiled again, with other inputs, is another child.
        self.by_phase.clear()
        self.attribution = self.failure = None
        with self._reasoned():
            self._baseline = BaselinePages.of(read_address_space(pid))

    def phase(self, pid: int, name: PhaseName, arena: Sequence[tuple[int, int]]) -> None:
        """X-ray the end of a phase; the last one counts where it comes several times."""
        with self._reasoned():
            # Taken out first, so that the phases stand in the order in which they ended.
            self.by_phase.pop(name, None)
            self.by_phase[name] = self._look(pid, [self._looked], arena)

    def steady(self, pid: int, log: LogEvidence, arena: Sequence[tuple[int, int]]) -> None:
        """X-ray the steady state, and look again for what was fused where weights are missing."""
        with self._reasoned():
            seen = self._look(pid, [self._looked], arena)
            self.attribution = with_makers(seen, [self._looked], log)
            lost = missing(self._looked, seen)
            if lost <= _MISSING_SHARE * sum(weight.nbytes for weight in self._model.weights):
                return
            saved = self._optimize()
            if saved is None:
                return
            with open_model(saved) as optimized:
                models = [self._looked, look_for_fused(optimized, self._looked)]
                self.attribution = with_makers(self._look(pid, models, arena), models, log)

    @cached_property
    def _looked(self) -> Looked:
        return look_for(self._model)

    def _look(
        self,
        pid: int,
        models: list[Looked],
        arena: Sequence[tuple[int, int]],
    ) -> Attribution:
        return attribute(
            pid,
            models,
            baseline=self._baseline,
            arena=Arena(normal(arena)) if arena else None,
            sampled=self._sampled,
        )

    @contextmanager
    def _reasoned(self) -> Iterator[None]:
        """Keep an error as the reason: the measurement goes on without an X-ray."""
        try:
            yield
        except MemdiagError as error:
            self.failure = str(error)


@contextmanager
def _paused(pid: int) -> Iterator[None]:
    try:
        os.kill(pid, signal.SIGSTOP)
    except OSError as error:
        raise XrayError(
            f"process {pid}: it cannot be stopped ({error.strerror}); leave --pause out."
        ) from error
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
