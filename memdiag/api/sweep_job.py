"""One job of a sweep: what `memdiag.profile` does, as a `JobResult`.

``python -m memdiag.api.sweep_job`` is the process that `memdiag.sweeps.job_process.JobProcess`
starts: it reads requests from standard input, a line each, and writes the answers to standard
output.
"""

import os
import sys
import time
from pathlib import Path

import msgspec

from memdiag.api.budget import with_pinned_malloc
from memdiag.api.estimate import estimate
from memdiag.api.profile import profile
from memdiag.comparison import runtimes
from memdiag.errors import MeasurementError, MemdiagError, ProvisionError
from memdiag.records.codec import escaped_record
from memdiag.records.sweep_job import JobResult, JobStatus, SweepJob
from memdiag.sweeps.job_process import JobRequest, unfinished_result
from memdiag.sweeps.model_sources import local_path, model_files_digest

MAX_JOB_SENTENCE = 1000
"""Characters of the sentence of a job that failed."""


def run_job(request: JobRequest) -> JobResult:
    """Return the result of the job of `request`, even if the job fails.

    Its model is fetched, and its release installed, if they are missing. An error that may not
    happen again, such as a full disk, is a result without a digest, which does not count as done.
    """
    started = time.perf_counter()
    job = request.job
    result = unfinished_result(job, is_alone=request.is_alone)
    result_to_repeat = unfinished_result(
        msgspec.structs.replace(job, digest=""), status="unreadable", is_alone=request.is_alone
    )
    try:
        path = _job_model_path(request)
        result = _profiled_result(result, path, request.memory_limit_bytes)
    except (OSError, ProvisionError, MeasurementError, _OtherContentError) as error:
        result = msgspec.structs.replace(result_to_repeat, sentence=str(error)[:MAX_JOB_SENTENCE])
    except MemdiagError as error:
        result = msgspec.structs.replace(result, sentence=str(error)[:MAX_JOB_SENTENCE])
    except Exception as error:  # a defect: the sweep goes on
        sentence = f"unexpected {type(error).__name__}: {error}"[:MAX_JOB_SENTENCE]
        result = msgspec.structs.replace(result, sentence=sentence)
    return msgspec.structs.replace(result, duration_s=round(time.perf_counter() - started, 6))


def estimated_job_bytes(request: JobRequest) -> int | None:
    """Return the largest resident set that a job is expected to need; None if it is not known."""
    job = request.job
    try:
        prediction = estimate(
            local_path(request.path or job.address),
            dims=job.dims,
            for_onnxruntime=job.onnxruntime,
            session_options=job.options,
            details=False,
        )
    except Exception:  # the job itself will report what is wrong with the model
        return None
    if prediction.is_floor:
        return None
    # The bound for a malloc that keeps freed blocks; kernels of other providers are not considered.
    return prediction.beside_bytes(prediction.point) + prediction.point.high_bytes


class _OtherContentError(Exception):
    """Raised if the content of a model is not the content to measure."""


def _job_model_path(request: JobRequest) -> Path:
    """Return the path of the model of a job.

    Raises:
        ModelError: it cannot be fetched.
        OSError: there is no such file.
        _OtherContentError: the file on this machine has other content.
    """
    path = local_path(request.path or request.job.address)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such file on this machine.")
    if request.path and model_files_digest(path) != request.job.digest:
        raise _OtherContentError(f"{path}: the file on this machine has other content.")
    return path


def _profiled_result(result: JobResult, model: Path, memory_limit_bytes: int | None) -> JobResult:
    job = result.job
    record = profile(
        model,
        runs=job.runs,
        dims=job.dims,
        session_options=job.options,
        environment=with_pinned_malloc({}),
        python=_job_interpreter(job),
        timeout_s=job.timeout_s,
        memory_limit_bytes=memory_limit_bytes,
    )
    outcome = record.outcome
    status: JobStatus = outcome.status
    sentence = "" if status == "completed" else f"{outcome.phase}: {outcome.message}"
    return msgspec.structs.replace(
        result, status=status, sentence=sentence[:MAX_JOB_SENTENCE], profile=record
    )


def _job_interpreter(job: SweepJob) -> Path:
    return Path(job.python) if job.python else runtimes.runtime_interpreter(job.onnxruntime)


def main() -> None:
    """Answer requests until standard input ends."""
    # Workers of Dask set it, and measured processes would inherit it: malloc then frees sooner.
    os.environ.pop("MALLOC_TRIM_THRESHOLD_", None)
    # What native code prints must not be part of an answer.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    for line in sys.stdin.buffer:
        request = msgspec.json.decode(line, type=JobRequest)
        if request.work == "estimate":
            answer = msgspec.json.encode(estimated_job_bytes(request))
        else:
            answer = msgspec.json.encode(escaped_record(run_job(request)))
        answers.write(answer + b"\n")
        answers.flush()


if __name__ == "__main__":
    main()
