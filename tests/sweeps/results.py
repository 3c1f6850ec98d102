"""Jobs and results that tests make by hand."""

from typing import Any

import msgspec

from memdiag.records.sweep_job import JobResult, SweepJob
from tests.reports import checks, tied_xray

MACHINE = "Linux x86_64 avx512_vnni glibc"


def job(model: str = "a.onnx", **values: Any) -> SweepJob:
    defaults: dict[str, Any] = {
        "model": model,
        "address": f"zoo/{model}",
        "digest": f"digest of {model}",
        "onnxruntime": "1.32.0",
        "runs": 10,
        "timeout_s": 60.0,
    }
    return SweepJob(**{**defaults, **values})


def result(of: SweepJob | None = None, **values: Any) -> JobResult:
    of = of or job()
    profile = tied_xray.with_attribution()
    facts = msgspec.structs.replace(profile.model, path=of.address)
    defaults: dict[str, Any] = {
        "key": of.key(MACHINE),
        "job": of,
        "machine": MACHINE,
        "memdiag": "0.1.0",
        "started_at": "2026-01-31T12:00:00Z",
        "duration_s": 2.5,
        "status": "completed",
        "profile": msgspec.structs.replace(profile, model=facts, findings=(checks.finding(),)),
    }
    return JobResult(**{**defaults, **values})


def failed(of: SweepJob | None = None, sentence: str = "parse: not a model") -> JobResult:
    return result(of, status="failed", sentence=sentence, profile=None)
