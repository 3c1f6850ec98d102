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
    process_ids,
    session_numbers,
)
from memdiag.records.run import ProgramFinding, ProgramRun, ProgramSession
from memdiag.rules.rule import Rule
from memdiag.session_options import ORT_BYTES_OPTION
from memdiag.units import MIB, counted, format_size

RULE = Rule(
    code="MD711",
    name="model-bytes-kept",
    summary="A session keeps the bytes from which it was created",
)

_MIN_KEPT_MODEL_BYTES = 16 * MIB


def detect(recording: ProgramRun) -> Iterator[ProgramFinding]:
    """Yield one finding for all models whose bytes sessions keep: they have one remedy."""
    keepers = [session for session in created_sessions(recording) if _keeps_bytes(session)]
    # Sessions of one process may have received the same object.
    sizes = {(keeper.pid, keeper.model.address): keeper.model.bytes or 0 for keeper in keepers}
    nbytes = sum(sizes.values())
    if nbytes < _MIN_KEPT_MODEL_BYTES:
        return
    is_single = len(keepers) == 1
    model_count = len({keeper.model_key for keeper in keepers})
    models_text = "the model" if model_count == 1 else counted(model_count, "model")
    if len(sizes) > model_count:
        models_text = f"{models_text} in {len(sizes):,} copies"
    yield ProgramFinding(
        name=RULE.name,
        sessions=session_numbers(keepers),
        bytes=nbytes,
        message=(
            f"{counted(len(keepers), 'session')} in {process_ids(keepers)}, created at"
            f" {creation_sites(keepers)}, {'keeps' if is_single else 'keep'} the bytes of"
            f" {models_text} from which {'it was' if is_single else 'they were'} created,"
            f" {format_size(nbytes)}. They are not read again."
        ),
        remedy=(
            "Create the session from the path of the file. If there is no file, drop the bytes"
            " after the creation: session._model_bytes = None, and your own reference. Then"
            " session.set_providers does not work any more."
        ),
    )


def _keeps_bytes(session: ProgramSession) -> bool:
    is_released = session.released_s is not None
    return (
        session.model.is_kept and not is_released and session.options.get(ORT_BYTES_OPTION) != "1"
    )
