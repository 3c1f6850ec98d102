"""What every option is: settings of a session or its environment, and what they do."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from memdiag.ort.runtime import Runtime
from memdiag.runner.job import Job


def _always(runtime: Runtime) -> bool:
    return True


def _everywhere(job: Job) -> bool:
    return True


@dataclass(frozen=True, kw_only=True)
class Option:
    """An option: `name` in kebab case, what it does, and when it hurts, each in a sentence.

    `session` are SessionOptions attributes and config entries, `environment` variables that must
    be set before the process starts, `run` config entries of RunOptions, `disabled` names of
    graph transformers, `shared_arena` an arena of the environment (see `Job`). `load_from` is what
    the session is given, `model` another file that is loaded.

    Two options take a file that is written beforehand: with `saved` the runtime writes its
    optimized model with these config entries; `shares_weights` puts the weights into a file of
    their own, from which they are mapped once for all sessions of the process.

    `excludes` names options that make no sense beside it. `changes_values` says that outputs may
    change beyond the order of sums. `applies` tells whether a release of the runtime, and this
    machine, have it; `suits` whether it can make a difference to a job.
    """

    name: str
    does: str
    hurts: str
    session: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    run: dict[str, str] = field(default_factory=dict)
    disabled: tuple[str, ...] = ()
    shared_arena: bool = False
    load_from: Literal["path"] | None = None
    model: Path | None = None
    saved: dict[str, str] = field(default_factory=dict)
    shares_weights: bool = False
    excludes: tuple[str, ...] = ()
    changes_values: bool = False
    applies: Callable[[Runtime], bool] = _always
    suits: Callable[[Job], bool] = _everywhere

    def added_to(self, job: Job) -> Job:
        """Return `job` with this option, apart from a file that is to be written for it."""
        return replace(
            job,
            model=self.model or job.model,
            load_from=self.load_from or job.load_from,
            options={**job.options, **self.session},
            environment={**job.environment, **self.environment},
            run_options={**job.run_options, **self.run},
            disabled_optimizers=tuple(dict.fromkeys((*job.disabled_optimizers, *self.disabled))),
            shared_arena=job.shared_arena or self.shared_arena,
        )
