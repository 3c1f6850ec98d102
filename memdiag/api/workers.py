"""What more processes, sessions or callers of a profiled model cost."""

from contextlib import ExitStack
from pathlib import Path

import msgspec

from memdiag.attribution.fused_weights import fused_search_targets
from memdiag.attribution.search_target import search_target
from memdiag.deploy.workers import Wanted, WorkerTrials
from memdiag.errors import MeasurementError, MemdiagError, UsageError
from memdiag.model.model_file import ModelFile
from memdiag.ort.releases import PREPACKED_SAVED_SINCE
from memdiag.ort.runtime import Runtime
from memdiag.records.codec import escaped
from memdiag.records.profile import Profile
from memdiag.records.workers import NO_WORKERS, ForkAfter
from memdiag.runner.job import Job

_SAVE_PREPACKED = "save-prepacked"


def wanted_workers(
    *,
    processes: int,
    sessions: int,
    concurrency: int,
    fork_after: ForkAfter | None,
    execution_mode: str | None,
) -> Wanted | None:
    """Return the arrangement for the arguments of `memdiag.profile`; None for one of each.

    Args:
        processes: the number of processes.
        sessions: the number of sessions in each.
        concurrency: the number of threads that run a session at once.
        fork_after: when the processes are forked from one.
        execution_mode: this option of the session, if it is set.

    Raises:
        UsageError: a number is below 1, or an argument needs another one.
    """
    numbers = {"processes": processes, "sessions": sessions, "concurrency": concurrency}
    for name, number in numbers.items():
        if number < 1:
            raise UsageError(f"{name} must be at least 1.")
    if fork_after is not None and processes == 1:
        raise UsageError("--fork-after needs several processes. Add --processes N.")
    if fork_after == "load" and execution_mode in ("parallel", "ORT_PARALLEL", "1"):
        raise UsageError(
            "--fork-after load: a session with execution_mode=parallel waits for threads that no"
            " fork has. Leave that option out."
        )
    wanted = Wanted(
        processes=processes, sessions=sessions, callers=concurrency, fork_after=fork_after
    )
    return wanted if wanted.more else None


def with_workers(
    profile: Profile, file: ModelFile, job: Job, wanted: Wanted, scratch: Path
) -> Profile:
    """Return `profile` with the arrangement `wanted`, measured in processes of its own.

    What cannot be measured becomes a note.

    Args:
        profile: the profile of `job`.
        file: its model.
        job: the job, whose inputs are saved.
        wanted: the processes, sessions and callers.
        scratch: a folder for temporary files.
    """
    if profile.outcome.status != "completed":
        return _without_workers(profile, "the model was not run to the end")

    def shared_job() -> Job:
        # Late: saving models needs onnx_ir, which takes long to import.
        from memdiag.tuning.options import tuning_options
        from memdiag.tuning.prepared_models import PreparedModels

        version = profile.environment.onnxruntime
        if version is None or Runtime.parse(version) < PREPACKED_SAVED_SINCE:
            raise MeasurementError(
                f"onnxruntime saves packed weights since {PREPACKED_SAVED_SINCE}. Use a newer one."
            )
        option = next(each for each in tuning_options() if each.name == _SAVE_PREPACKED)
        return PreparedModels(scratch).prepare(job, (option,))

    target = search_target(file)
    targets = [target]
    try:
        with ExitStack() as opened:
            if profile.attribution is not None:
                # Weights that the optimizer computed, such as those of a Conv with its
                # normalization, may have the name of the weight that they replace.
                copies = tuple(each for each in profile.attribution.copies if each.kind != "fused")
                alone = msgspec.structs.replace(profile.attribution, copies=copies, ranges=())
                targets += fused_search_targets(target, alone, [job], scratch, opened)
            found = WorkerTrials(job, targets, shared_job).measure(wanted)
    except MemdiagError as error:
        return _without_workers(profile, str(error))
    return escaped(msgspec.structs.replace(profile, workers=found))


def _without_workers(profile: Profile, reason: str) -> Profile:
    note = f"{NO_WORKERS}: {reason}"
    return escaped(msgspec.structs.replace(profile, notes=(*profile.notes, note)))
