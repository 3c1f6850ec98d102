"""Name the owner of every resident byte of a process, ours or anybody's."""

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from memdiag.attribution.address_space import read_address_space
from memdiag.attribution.attribute import attribute, look_for
from memdiag.attribution.intervals import normal
from memdiag.attribution.made_by import maker
from memdiag.attribution.owners import Arena, BaselinePages
from memdiag.errors import UsageError, XrayError
from memdiag.graph.reader import ModelFile, open_model
from memdiag.records.attribution import Attribution
from memdiag.records.profile import Span


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
        raise UsageError("no model was given; name the ONNX file that the process runs.")
    with ExitStack() as stack:
        looked = [look_for(stack.enter_context(open_model(Path(path)))) for path in paths]
        if pause:
            stack.enter_context(_paused(pid))
        return attribute(pid, looked, sampled=sampled)


class SteadyXray:
    """An inspector that X-rays a profile's child at steady state.

    `attribution` is the result, and `failure` the reason where there is none.
    """

    def __init__(self, model: ModelFile, *, sampled: bool) -> None:
        self._model = model
        self._sampled = sampled
        self._baseline: BaselinePages | None = None
        self.attribution: Attribution | None = None
        self.failure: str | None = None

    def baseline(self, pid: int) -> None:
        """Note what is resident before the model."""
        try:
            self._baseline = BaselinePages.of(read_address_space(pid))
        except XrayError as error:
            self.failure = str(error)

    def steady(self, pid: int, spans: Sequence[Span], arena: Sequence[tuple[int, int]]) -> None:
        """Take the X-ray."""
        try:
            self.attribution = attribute(
                pid,
                [look_for(self._model)],
                baseline=self._baseline,
                arena=Arena(normal(arena)) if arena else None,
                sampled=self._sampled,
                made_by=maker(spans),
            )
        except XrayError as error:
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
