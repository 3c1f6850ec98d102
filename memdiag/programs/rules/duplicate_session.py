"""The same model is loaded more than once in a process, where one session would do.

## Why it costs

Sessions share nothing: each has its own copies of the weights, its own arena and its own
threads. Two objects of a library that loads a model when it is made, or two modules that
each load it, double the memory. A session can serve all of them: `run()` may be called by
several threads at once.

The bytes of a finding are the weights and arenas of all sessions but the largest, from the
last X-ray of the process, without weights that are mapped from a file, which sessions share,
and the bytes of the model that sessions keep. They are a lower bound: graphs and kernels come
on top, and no X-ray can assign these to a session (four sessions of a voice model with 3.2 MiB
of copies each took 9.8 MiB each). Without an X-ray the bytes are an estimate: the private
memory that the creations kept, or at least the bytes of the weights in the model.

## What to do

- Sessions with the same options: create one, at module level or in a function with
  `functools.cache`, and use it everywhere. Of a library, keep one object.
- Sessions whose options differ: the finding names the options. Threads, arenas, memory
  patterns and prepacking change speed and memory, and no outputs: choose one setting. Where
  providers or graph optimizations differ, both may be needed.
- Several sessions so that requests need not wait for each other: one session runs as many
  requests at once as threads call it. What they wait for is the CPUs.

## Not reported

Sessions that are alive together for less than a second, as when a program replaces a
session; less than 1 MiB, little next to Python with onnxruntime; sessions that are made for
each call (see `session-per-call`); the same model in several processes (see
`weights-in-workers`). Models are the same if their path is, or the bytes they were created
from; a model from bytes is also compared with files of the same length that were loaded by
path (a digest of 64 blocks; without external data). Of processes without recorded sessions
(`memdiag watch`) a finding needs further copies of four fifths of the weights, in
the same layout, and also of the weights that no kernel packs, such as biases, or more arenas
than models: kernels of several nodes may pack the same weight. A model that the program keeps
next to its session can look the same. `memdiag xray PID` comes to the same finding.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from memdiag.programs.repeated_models import RepeatedModel, repeated_models
from memdiag.programs.session_facts import (
    alive_together,
    created_sessions,
    creation_sites,
    model_name,
    process_ids,
    redundant_bytes,
    redundant_kept_bytes,
    session_numbers,
    sessions_by_key,
    sharing_advice,
    size_text,
)
from memdiag.programs.session_patterns import sessions_per_call
from memdiag.programs.xray_facts import (
    PartOfProcess,
    shared_once_bytes,
    unrecorded_xrays,
)
from memdiag.records.run import ProgramFinding, ProgramRun, ProgramSession
from memdiag.rules.rule import Rule
from memdiag.session_options import (
    ARENA_OPTION,
    ORT_BYTES_OPTION,
    ORT_MAPPED_OPTION,
    OWN_WEIGHTS_OPTION,
    PATTERN_OPTION,
    PREPACKED_FILE_OPTION,
    PREPACKING_OPTION,
    SHARED_ALLOCATORS_OPTION,
    THREADS_OPTION,
)
from memdiag.units import MIB, format_size, some_of

RULE = Rule(
    code="MD701",
    name="duplicate-session",
    summary="The same model is loaded more than once in a process",
    needs_sessions=False,
)

_MIN_DUPLICATE_BYTES = MIB

_CHANGE_NO_OUTPUTS = {
    ARENA_OPTION,
    PATTERN_OPTION,
    "enable_mem_reuse",
    "enable_profiling",
    "execution_mode",
    "execution_order",
    "inter_op_num_threads",
    THREADS_OPTION,
    "log_verbosity_level",
    "optimized_model_filepath",
    "profile_file_prefix",
    PREPACKING_OPTION,
    PREPACKED_FILE_OPTION,
    OWN_WEIGHTS_OPTION,
    SHARED_ALLOCATORS_OPTION,
    ORT_MAPPED_OPTION,
    ORT_BYTES_OPTION,
}
"""Options that affect speed or memory, not outputs."""


def detect(recording: ProgramRun) -> Iterator[ProgramFinding]:
    """Yield a finding for each model with several sessions in a process at once.

    Processes that create such sessions at the same places, such as workers, share a finding.
    """
    yield from _repeated_model_findings(recording)
    per_call_numbers = {
        number
        for call_sessions in sessions_per_call(recording)
        for number in session_numbers(call_sessions)
    }
    other_sessions = [
        session for session in created_sessions(recording) if session.number not in per_call_numbers
    ]
    groups_by_site: defaultdict[tuple[str, str], list[list[ProgramSession]]] = defaultdict(list)
    for model_sessions in sessions_by_key(
        other_sessions, lambda session: (session.pid, session.model_key)
    ):
        together = alive_together(model_sessions)
        if len(together) > 1:
            groups_by_site[together[0].model_key, creation_sites(together)].append(together)
    for processes in groups_by_site.values():
        known_sizes = [
            size for size in map(_replaceable_session_bytes, processes) if size is not None
        ]
        size = sum(known_sizes) if known_sizes else None
        kept_sizes = [redundant_kept_bytes(together) for together in processes]
        if size is None or max(size, *kept_sizes) >= _MIN_DUPLICATE_BYTES:
            yield _duplicate_finding(processes, size)


def _repeated_model_findings(recording: ProgramRun) -> Iterator[ProgramFinding]:
    """Yield a finding for each model that processes without recorded sessions have twice."""
    repeated_by_name: defaultdict[str, list[tuple[RepeatedModel, PartOfProcess]]] = defaultdict(
        list
    )
    for xray in unrecorded_xrays(recording):
        for model in repeated_models(xray.attribution):
            part = PartOfProcess(xray, model.bytes, model.private_bytes)
            repeated_by_name[model.name].append((model, part))
    for models_and_parts in repeated_by_name.values():
        models, parts = zip(*models_and_parts, strict=True)
        size = shared_once_bytes(recording, parts)
        most_repeated = max(models, key=lambda model: model.count)
        subject = "One session" if len(parts) == 1 else "One session each"
        yield ProgramFinding(
            name=RULE.name,
            sessions=(),
            bytes=size,
            message=(
                f"{format_size(size)} in {process_ids([part.xray for part in parts])} are"
                f" {most_repeated.evidence}. {subject} would save {format_size(size)}."
            ),
            remedy=most_repeated.remedy,
        )


def _replaceable_session_bytes(sessions: Sequence[ProgramSession]) -> int | None:
    """Return the bytes of the sessions that another session could replace; None if unknown."""
    replaceable_sizes = [
        redundant_bytes(equal_sessions)
        for equal_sessions in sessions_by_key(sessions, _output_options)
        if len(equal_sessions) > 1
    ]
    known_sizes = [size for size in replaceable_sizes if size is not None]
    return sum(known_sizes) if known_sizes else None


def _duplicate_finding(
    processes: Sequence[Sequence[ProgramSession]], size: int | None
) -> ProgramFinding:
    """Return the finding for the sessions of each process that were alive together."""
    sessions = [session for together in processes for session in together]
    values_by_option = _differing_options(sessions)
    first_session = sessions[0]
    text = (
        f"{model_name(first_session)} is loaded {len(sessions)} times in"
        f" {process_ids(sessions)}, created at"
        f" {creation_sites(sessions)}{_model_origins_text(sessions)}"
    )
    cost = ""
    if size is not None:
        suffix = "" if len(processes) == 1 else " each"
        cost = f" One session{suffix} would save {size_text(size, sessions)}."
    if not values_by_option:
        return ProgramFinding(
            name=RULE.name,
            sessions=session_numbers(sessions),
            bytes=size,
            message=f"{text}. The options are the same.{cost}",
            remedy=f"{sharing_advice(sessions)}{_session_to_keep_text(sessions)}",
        )
    differing_text = some_of(
        [f"{name} ({'; '.join(values)})" for name, values in values_by_option.items()]
    )
    deciding_options = sorted(values_by_option.keys() - _CHANGE_NO_OUTPUTS)
    if deciding_options:
        remedy = (
            f"Sessions that differ in {some_of(deciding_options)} may compute other values, or"
            " elsewhere: keep one for each setting that is needed, and no more."
        )
    else:
        remedy = (
            "These options change speed or memory, and no outputs: choose one setting for all."
            f" {sharing_advice(sessions)}"
        )
    return ProgramFinding(
        name=RULE.name,
        sessions=session_numbers(sessions),
        bytes=size,
        message=f"{text}. The sessions differ in {differing_text}.{cost}",
        remedy=remedy,
    )


def _model_origins_text(sessions: Sequence[ProgramSession]) -> str:
    """Return a clause if some sessions are from the path and some from bytes; empty otherwise."""
    from_bytes = sum(session.model.path is None for session in sessions)
    if from_bytes in (0, len(sessions)):
        return ""
    return f" ({len(sessions) - from_bytes} by path, {from_bytes} from bytes of the same content)"


def _session_to_keep_text(sessions: Sequence[ProgramSession]) -> str:
    """Return which session to keep if only some keep the bytes of their model; empty otherwise."""
    if len({session.model.is_kept for session in sessions}) == 1:
        return ""
    return " Keep one that does not keep the bytes of the model, such as one by path."


def _compared_options(session: ProgramSession) -> dict[str, str]:
    return {**session.options, "providers": ", ".join(session.providers)}


def _output_options(session: ProgramSession) -> frozenset[tuple[str, str]]:
    """Return the options that may change outputs, or the device that computes them."""
    options = _compared_options(session)
    return frozenset(
        (name, value) for name, value in options.items() if name not in _CHANGE_NO_OUTPUTS
    )


def _differing_options(sessions: Sequence[ProgramSession]) -> dict[str, list[str]]:
    """Return the values of the options that are not the same for all sessions, by name."""
    options = [_compared_options(session) for session in sessions]
    values_by_option = {}
    for name in sorted({name for session_options in options for name in session_options}):
        values = list(
            dict.fromkeys(session_options.get(name, "default") for session_options in options)
        )
        if len(values) > 1:
            values_by_option[name] = values
    return values_by_option
