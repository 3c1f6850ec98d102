"""A session is created for each call, runs a few times and is replaced by the next.

## Why it costs

Creating a session parses the model, optimizes the graph, copies and packs the weights: as
long as 300 runs of a product with a weight of 1 MiB (1.32.0), and with the peak of loading
each time. If the sessions are kept (in a list, a cache without a limit, or by a cycle of
references), their memory adds up. If they are released, malloc retains part of it, and the
arena and the threads are created again for each.

The finding states the time that the creations and the runs took. Its bytes are those of the
sessions that were alive at the same time, except for one; if never two of them were, the
waste is time, and no bytes are claimed.

## What to do

- Create the session once, at module level or in a function with `functools.cache`, and call
  `run()` for each request: several threads may do so at once.
- In a library, keep one object of the class that creates the session.
- If creations must be rare but repeated (an idle model is unloaded), keep the session for
  minutes, not for one call.

## Not reported

Fewer than 5 sessions of a model from the same line, which programs create on purpose, for
example one for each worker thread; sessions with a median of more than 10 runs, whose
creation is a small part of their work; pools: half of the sessions or more must have had
their last run before the last one was created.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from memdiag.programs.session_facts import (
    alive_together,
    creation_site,
    model_name,
    process_ids,
    redundant_bytes,
    session_numbers,
    sharing_advice,
    size_text,
)
from memdiag.programs.session_patterns import sessions_per_call
from memdiag.records.run import ProgramFinding, ProgramRun, ProgramSession
from memdiag.rules.rule import Rule
from memdiag.units import counted, format_duration

RULE = Rule(
    code="MD702",
    name="session-per-call",
    summary="A session is created for each call, runs a few times and is replaced by the next",
)


def detect(recording: ProgramRun) -> Iterator[ProgramFinding]:
    """Yield a finding for each line that creates a session of the same model for each call."""
    groups_by_line: defaultdict[tuple[str, str], list[list[ProgramSession]]] = defaultdict(list)
    for sessions in sessions_per_call(recording):
        groups_by_line[sessions[0].model_key, sessions[0].created_at].append(sessions)
    for processes in groups_by_line.values():
        yield _per_call_finding(processes)


def _per_call_finding(processes: Sequence[Sequence[ProgramSession]]) -> ProgramFinding:
    sessions = [session for process_sessions in processes for session in process_sessions]
    first_session = sessions[0]
    groups_together = [together for together in map(alive_together, processes) if len(together) > 1]
    known_sizes = [size for size in map(redundant_bytes, groups_together) if size is not None]
    size = sum(known_sizes) if known_sizes else None
    runs = sum(session.run_count for session in sessions)
    creation_s = sum(session.creation_s or 0 for session in sessions)
    run_s = sum(shapes.total_s for session in sessions for shapes in session.shapes)
    message = (
        f"{len(sessions)} sessions of {model_name(first_session)} were created at"
        f" {creation_site(first_session)} in {process_ids(sessions)}, for"
        f" {counted(runs, 'run')}: creating them took"
        f" {format_duration(creation_s)}, running them {format_duration(run_s)}."
    )
    if groups_together:
        alive_sessions = [session for together in groups_together for session in together]
        process_clause = "" if len(groups_together) == 1 else " in each process"
        message += (
            f" {len(alive_sessions)} of them were alive at the same time, which takes"
            f" {size_text(size, alive_sessions)} more than one{process_clause}."
        )
    return ProgramFinding(
        name=RULE.name,
        sessions=session_numbers(sessions),
        bytes=size,
        message=message,
        remedy=sharing_advice(sessions),
    )
