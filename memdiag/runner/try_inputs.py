"""Search for inputs with which a model runs, in a child that is not measured."""

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, suppress
from typing import NamedTuple

from memdiag.runner.child import Child
from memdiag.runner.failure_text import failure_text
from memdiag.runner.job import Feed, Job, json_value


class InputTrial(NamedTuple):
    """The result of one set of inputs.

    Attributes:
        problem: why the model does not run with it, in the words of onnxruntime; None if it runs.
        has_session: whether the session could be created.
        has_answer: whether the process answered. If not, `has_session` is unknown.
    """

    problem: str | None
    has_session: bool = True
    has_answer: bool = True

    @property
    def runs(self) -> bool:
        """Whether the model runs with the inputs."""
        return self.problem is None


def try_once(job: Job, feeds: Sequence[Feed]) -> InputTrial:
    """Return whether the model of `job` runs with `feeds`, and why it does not.

    Raises:
        MeasurementError: the child's interpreter cannot be started.
        TimeLimitReached: the job's deadline passed.
    """
    no_answer = f"its process ended, or {job.limits.timeout_s:g} s passed"
    with closing(_input_trials(job, [feeds])) as trials:
        return next(trials, InputTrial(no_answer, has_answer=False))


def try_inputs(job: Job, candidates: Sequence[Sequence[Feed]]) -> int | None:
    """Return the index of the first of `candidates` with which the model of `job` runs.

    Return None if it runs with none, if the session cannot be created, or after the job's timeout.

    Raises:
        MeasurementError: the child's interpreter cannot be started.
        TimeLimitReached: the job's deadline passed.
    """
    with closing(_input_trials(job, candidates)) as trials:
        return next((index for index, trial in enumerate(trials) if trial.runs), None)


def inputs_that_run(
    job: Job,
    candidates: Sequence[Sequence[Feed]],
    *,
    needs_first: bool = False,
    is_enough: Callable[[int], bool] = lambda count: False,
) -> list[int]:
    """Return the indices of all `candidates` with which the model of `job` runs.

    If a candidate ends the child, or takes longer than the job's timeout, the next ones are tried
    in a new child.

    Args:
        job: the model and the configuration.
        candidates: sets of inputs.
        needs_first: if the model does not run with the first candidate, try no other and return no
            index.
        is_enough: returns whether to stop, from the number of candidates that were tried.

    Raises:
        MeasurementError: the child's interpreter cannot be started.
        TimeLimitReached: the job's deadline passed.
    """
    run_flags: list[bool] = []
    while len(run_flags) < len(candidates):
        with closing(_input_trials(job, candidates[len(run_flags) :])) as trials:
            for trial in trials:
                run_flags.append(trial.runs)
                if needs_first and not run_flags[0]:
                    return []
                if not trial.has_session or is_enough(len(run_flags)):
                    return _running_indices(run_flags)
        if len(run_flags) < len(candidates):
            run_flags.append(False)
        if needs_first and not run_flags[0]:
            return []
    return _running_indices(run_flags)


def _running_indices(run_flags: Sequence[bool]) -> list[int]:
    return [index for index, runs in enumerate(run_flags) if runs]


def _input_trials(job: Job, candidates: Sequence[Sequence[Feed]]) -> Generator[InputTrial]:
    """Yield the result of each of `candidates`, until the child ends or has no session."""
    task = job.message() | {"candidates": json_value(candidates)}
    job.limits.deadline.check()
    started = time.monotonic()
    with Child(job, task, "try_inputs.py") as child, suppress(TimeoutError):
        while event := child.next_event("tried", started):
            message = event.fields["message"]
            if event.name == "error":
                yield InputTrial(failure_text(message), has_session=False)
                break
            yield InputTrial(None if message is None else failure_text(message))
            child.proceed()
