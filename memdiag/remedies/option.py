"""What every option is: settings of a session or its environment, and what they do."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from memdiag.measurement.job import Job
from memdiag.prediction.runtime import Runtime


def _always(runtime: Runtime) -> bool:
    return True


@dataclass(frozen=True, kw_only=True)
class Option:
    """An option: `name` in kebab case, what it does, and when it hurts, each in a sentence.

    `session` are SessionOptions attributes and config entries, `environment` variables that must
    be set before the process starts, `run` config entries of RunOptions, `disabled` names of
    graph transformers, `shared_arena` an arena of the environment (see `Job`). `excludes` names
    options that make no sense beside it. `changes_values` says that outputs may change beyond the
    order of sums. `applies` tells whether a release of the runtime, and this machine, have it.
    """

    name: str
    does: str
    hurts: str
    session: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    run: dict[str, str] = field(default_factory=dict)
    disabled: tuple[str, ...] = ()
    shared_arena: bool = False
    saved: dict[str, str] = field(default_factory=dict)
    excludes: tuple[str, ...] = ()
    changes_values: bool = False
    applies: Callable[[Runtime], bool] = _always

    def added_to(self, job: Job) -> Job:
        """Return `job` with this option."""
        return replace(
            job,
            options={**job.options, **self.session},
            environment={**job.environment, **self.environment},
            run_options={**job.run_options, **self.run},
            disabled_optimizers=tuple(dict.fromkeys((*job.disabled_optimizers, *self.disabled))),
            shared_arena=job.shared_arena or self.shared_arena,
        )
