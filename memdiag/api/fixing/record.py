"""The record of a fix, put together from what was found."""

from pathlib import Path

from memdiag.api.fixing.attempt import Attempt
from memdiag.api.fixing.candidates import Proof
from memdiag.api.fixing.files import Output
from memdiag.ort.runtime import Runtime
from memdiag.records.fix import FIX_SCHEMA, Fix


def record_of(
    attempt: Attempt, runtime: Runtime, result: Proof | Output | None, duration_s: float
) -> Fix:
    """Return the record of a fix that ended with `result`: an output alone was not verified."""
    proof = result if isinstance(result, Proof) else None
    output = result.output if isinstance(result, Proof) else result
    difference = proof.verdict.difference if proof else None
    oldest = output.built.oldest if output else None
    return Fix(
        schema=FIX_SCHEMA,
        model=_text(attempt.files.file.path),
        onnxruntime=str(runtime),
        output=_text(output.files[0]) if output else None,
        output_files=tuple(map(_text, output.files)) if output else (),
        kept_files=tuple(map(_text, output.built.kept)) if output else (),
        kept_bytes=output.built.kept_bytes if output else 0,
        session_options={},
        environment={},
        remedies=attempt.remedies,
        before=proof.before if proof else attempt.before,
        after=proof.after if proof else None,
        latencies=proof.verdict.latencies if proof else (),
        largest_difference=difference.relative if difference else None,
        bound=proof.bound.relative if proof else None,
        bound_reason=proof.bound.why if proof else "",
        verified=proof is not None,
        verified_on=proof.verified_on if proof else (),
        is_valid=attempt.is_valid if output else None,
        oldest_onnxruntime=str(oldest.runtime) if oldest and oldest.runtime else None,
        oldest_reason=oldest.why if oldest else "",
        notes=tuple(attempt.notes),
        duration_s=duration_s,
    )


def _text(path: Path) -> str:
    return str(path).encode(errors="backslashreplace").decode()
