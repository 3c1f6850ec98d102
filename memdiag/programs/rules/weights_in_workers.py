"""Several processes have a private copy each of the weights of the same model.

## Why it costs

Each worker of a server that creates its own session copies the weights into its own memory,
and kernels pack them there: four workers need four times the weights. Pages that are mapped
from a file are shared by all processes, and the system can reclaim them.

onnxruntime maps weights in external data if no kernel packs them, and packed weights if
they were saved with the model (since 1.21). Three processes with a MatMul weight of 64 MiB
had 271 MiB together (proportional sets, 1.32.0) with the weight in the model file, and 143
MiB with external data and prepacking off, or with the saved packed weight. The resident set
of each process still counts mapped pages: compare proportional sets.

The bytes are the copies in private memory in the last X-ray of each process, except for
those of one process. Without an X-ray they are an estimate: the private memory that
creating the sessions kept, which includes what malloc retains. At least the weights in the
file are saved.

## What to do

- Save the model once with its packed weights: create a session whose options have
  `optimized_model_filepath` set to `shared.onnx`, and the config entries
  `session.optimized_model_external_initializers_file_name` set to `shared.data` and
  `session.save_external_prepacked_constant_initializers` set to `1`. All workers then load
  `shared.onnx` without any option. It fits this release of onnxruntime and machines with
  the same instruction set.
- Or move the weights to external data (`memdiag fix`, or `onnx.save` with
  `save_as_external_data=True`), and set `session.disable_prepacking` to `1` in the workers.
  Products are slower then: `memdiag fix MODEL --only disable-prepacking,save-prepacked`
  measures both.
- Load the model by its path: weights of a model from bytes cannot be mapped.
- Or have fewer processes with several threads each: `run()` may be called by several
  threads at once.

## Not reported

Less than 16 MiB in all, a fraction of what Python with onnxruntime takes in each process;
weights that are mapped; processes that did not run at the same time; sessions that a forked
process inherited, whose memory the system shares. Of processes without recorded sessions
(`memdiag watch`), models are the same if file name and size of the weights are, and
only pages that no other process maps are counted: a fork shares the others with its parent.
"""

from collections.abc import Iterator, Sequence

from memdiag.programs.session_facts import (
    alive_together,
    created_sessions,
    kept_bytes,
    model_name,
    private_weight_bytes,
    process_ids,
    session_numbers,
    sessions_by_key,
)
from memdiag.programs.xray_facts import (
    ModelKey,
    is_private,
    unrecorded_xrays,
    weight_copies,
)
from memdiag.records.attribution import Copy
from memdiag.records.run import ProcessXray, ProgramFinding, ProgramRun, ProgramSession
from memdiag.rules.rule import Rule
from memdiag.units import MIB, format_size

RULE = Rule(
    code="MD705",
    name="weights-in-workers",
    summary="Several processes have a private copy each of the weights of the same model",
    needs_sessions=False,
)
_MIN_WORKER_BYTES = 16 * MIB
_PATH_REMEDY = (
    "Save the model once with its packed weights, which all processes then map from one file, or"
    " use external data with session.disable_prepacking: memdiag explain weights-in-workers shows"
    " how."
)


def detect(recording: ProgramRun) -> Iterator[ProgramFinding]:
    """Yield a finding for each model with private copies in several processes."""
    yield from _xrayed_worker_findings(recording)
    for model_sessions in sessions_by_key(
        created_sessions(recording), lambda session: session.model_key
    ):
        sessions_together = alive_together(model_sessions)
        processes = sessions_by_key(sessions_together, lambda session: session.pid)
        size = _sum_without_largest([sum(map(_private_bytes, sessions)) for sessions in processes])
        if len(processes) > 1 and size >= _MIN_WORKER_BYTES:
            yield _workers_finding(processes, size)


def _xrayed_worker_findings(recording: ProgramRun) -> Iterator[ProgramFinding]:
    """Yield a finding for each model with copies in processes without recorded sessions."""
    xrays = _alive_together(recording, unrecorded_xrays(recording))
    holders_by_model: dict[ModelKey, list[tuple[ProcessXray, list[Copy]]]] = {}
    for xray in xrays:
        for key, copies in weight_copies(xray.attribution).items():
            holders_by_model.setdefault(key, []).append((xray, list(filter(is_private, copies))))
    for key, holders in holders_by_model.items():
        # Pages that a fork shares with its parent are private to neither.
        sizes = [sum(copy.private_bytes or 0 for copy in copies) for _, copies in holders]
        size = _sum_without_largest(sizes)
        if size >= _MIN_WORKER_BYTES:
            processes = process_ids([xray for xray, _ in holders])
            yield ProgramFinding(
                name=RULE.name,
                sessions=(),
                bytes=size,
                message=(
                    f"{len(holders)} processes have equal weights of {key.name} at the same time"
                    f" ({processes}), {format_size(sum(sizes))} in private memory: sharing the"
                    f" weights would save {format_size(size)}."
                ),
                remedy=_PATH_REMEDY,
            )


def _alive_together(recording: ProgramRun, xrays: list[ProcessXray]) -> list[ProcessXray]:
    """Return the X-rays whose processes were alive when the last X-ray was taken."""
    last_s = max((xray.t_s for xray in xrays), default=0.0)
    ends = {process.pid: process.ended_s for process in recording.processes}
    return [xray for xray in xrays if (end := ends[xray.pid]) is None or end >= last_s]


def _private_bytes(session: ProgramSession) -> int:
    """Return the bytes of the private copies of the weights; 0 if they are not known.

    Without an X-ray they are an estimate: the private memory that the creation kept. This is less
    than the copies if the creation used freed memory again.
    """
    measured_bytes = private_weight_bytes(session)
    if measured_bytes is not None:
        return measured_bytes
    return max(kept_bytes(session) or 0, _embedded_bytes(session))


def _embedded_bytes(session: ProgramSession) -> int:
    """Return the most bytes of weights that may be in the model file, which cannot be mapped."""
    return min(session.model.weight_bytes or 0, session.model.bytes or 0)


def _min_private_bytes(session: ProgramSession) -> int:
    """Return the least bytes that the copies of the weights can have."""
    measured_bytes = private_weight_bytes(session)
    if measured_bytes is not None:
        return measured_bytes
    kept_weight_bytes = min(kept_bytes(session) or 0, session.model.weight_bytes or 0)
    return max(kept_weight_bytes, _embedded_bytes(session))


def _sum_without_largest(sizes: Sequence[int]) -> int:
    """Return the sum of `sizes` except for the largest: what one shared copy would save."""
    return sum(sizes) - max(sizes, default=0)


def _workers_finding(processes: Sequence[Sequence[ProgramSession]], size: int) -> ProgramFinding:
    """Return the finding for the sessions of each process: sharing would save `size` bytes."""
    sessions = [session for process_sessions in processes for session in process_sessions]
    first_session = sessions[0]
    path = first_session.model.path
    if path is None:
        remedy = (
            "Load the model by its path, not from bytes, saved with its packed weights so that all"
            " processes map them from one file: memdiag explain weights-in-workers shows how."
        )
    else:
        remedy = _PATH_REMEDY
    return ProgramFinding(
        name=RULE.name,
        sessions=session_numbers(sessions),
        bytes=size,
        message=(
            f"{model_name(first_session)} is loaded by {len(processes)} processes at the same time"
            f" ({process_ids(sessions)}). {_copies_cost_text(processes, size)}"
        ),
        remedy=remedy,
    )


def _copies_cost_text(processes: Sequence[Sequence[ProgramSession]], size: int) -> str:
    """Return what the copies take, and whether that was measured."""
    if all(
        private_weight_bytes(session) is not None
        for process_sessions in processes
        for session in process_sessions
    ):
        total_bytes = sum(
            _private_bytes(session)
            for process_sessions in processes
            for session in process_sessions
        )
        return (
            f"The copies take {format_size(total_bytes)}. One shared copy needs"
            f" {format_size(total_bytes - size)}, so {format_size(size)} could be saved."
        )
    min_saving_bytes = _sum_without_largest(
        [sum(map(_min_private_bytes, process_sessions)) for process_sessions in processes]
    )
    text = (
        "No X-ray measured the copies: by the private memory that creating the sessions kept, one"
        f" shared copy would save up to {format_size(size)}, which may include freed memory that"
        " malloc retains"
    )
    if min_saving_bytes < size:
        text += f"; it saves at least {format_size(min_saving_bytes)} (weights in the file)"
    return f"{text}."
