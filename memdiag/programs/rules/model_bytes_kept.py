"""A session keeps the bytes from which it was created.

## Why it costs

`onnxruntime.InferenceSession(data)` parses the bytes into memory of its own, and never reads them
again. The Python object keeps them in its attribute `_model_bytes` as long as it lives, whether or
not the program drops its own reference: `set_providers` would create the session from them once
more. While the session is created there is a third copy.

## What to do

- Create the session from the path. The file is read while the session is created, and weights in
  external data are mapped.
- If the bytes do not come from a file: `session._model_bytes = None` after the creation, and drop
  your own reference. The session runs on as before; only `set_providers`, and with it the fallback
  to other providers when one fails, does not work any more: it raises TypeError and the session is
  lost (tried with 1.20.1, 1.24.4 and 1.32.0). A session of a model of 392 MiB took 882 MiB, 490 MiB
  without the bytes, and as much by path (1.32.0).

## Not reported

Less than 16 MiB; sessions that were released; models in ORT format that are used in place
(`session.use_ort_model_bytes_directly`): these must keep their bytes.
"""

from collections.abc import Iterator

from memdiag.programs.session_facts import (
    created_sessions,
    creation_sites,
    grouped,
    numbers,
    process_ids,
)
from memdiag.records.run import ProgramFinding, ProgramRun, ProgramSession
from memdiag.rules.rule import Rule
from memdiag.units import MIB, counted, format_size

RULE = Rule(
    code="MD711",
    name="model-bytes-kept",
    summary="A session keeps the bytes from which it was created",
)

_MIN_BYTES = 16 * MIB
_IN_PLACE = "session.use_ort_model_bytes_directly"


def detect(run: ProgramRun) -> Iterator[ProgramFinding]:
    """Yield a finding for each model whose bytes sessions keep."""
    keeping = [session for session in created_sessions(run) if _keeps_bytes(session)]
    for sessions in grouped(keeping, lambda each: each.model_key):
        size = sessions[0].model.bytes or 0
        # Sessions of one process may have been given the same object.
        nbytes = size * len({session.pid for session in sessions})
        if nbytes < _MIN_BYTES:
            continue
        yield ProgramFinding(
            name=RULE.name,
            sessions=numbers(sessions),
            bytes=nbytes,
            message=(
                f"{counted(len(sessions), 'session')} in {process_ids(sessions)}, created at"
                f" {creation_sites(sessions)}, {'keeps' if len(sessions) == 1 else 'keep'} the"
                f" {format_size(size)} of the model from which"
                f" {'it was' if len(sessions) == 1 else 'they were'} created. They are not read"
                " again."
            ),
            remedy=(
                "Create the session from the path of the file. If there is no file, drop the bytes"
                " after the creation: session._model_bytes = None, and your own reference. Then"
                " session.set_providers does not work any more."
            ),
        )


def _keeps_bytes(session: ProgramSession) -> bool:
    is_released = session.released_s is not None
    return session.model.is_kept and not is_released and session.options.get(_IN_PLACE) != "1"
