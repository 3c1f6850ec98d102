"""Small stores, written by hand as a sweep writes them."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

MIB = 1 << 20
MACHINE = "Linux x86_64 avx2 glibc"
START = datetime(2026, 1, 1, tzinfo=UTC)
BASELINE = 45 * MIB

_TEXTS = (
    *("key", "model", "digest", "address", "onnxruntime", "machine", "memdiag", "dims"),
    *("options", "status", "sentence", "phase"),
)
_SIZES = (
    *("peak_bytes", "kept_bytes", "steady_bytes", "baseline_bytes", "weight_bytes"),
    *("estimated_peak_bytes", "estimated_steady_bytes"),
)
PROFILES = pa.schema(
    [
        *((name, pa.string()) for name in _TEXTS),
        ("started_at", pa.timestamp("us", tz="UTC")),
        *((name, pa.int64()) for name in _SIZES),
        *(("duration_s", pa.float64()), ("latency_s", pa.float64()), ("is_alone", pa.bool_())),
    ]
)
FINDINGS = pa.schema(
    [
        *((name, pa.string()) for name in ("key", "model", "onnxruntime", "machine", "rule")),
        *((name, pa.int64()) for name in ("bytes_steady", "bytes_peak")),
        *((name, pa.string()) for name in ("message", "remedy")),
    ]
)


def job(
    model: str, release: str, peak: float | None, *, steady: float | None = None, **values: Any
) -> list[dict[str, Any]]:
    """Return the rows of a job: `peak` and `steady` in MiB above the baseline.

    `phases` are the MiB at the peaks of phases by name; others are columns.
    """
    phases: dict[str, float] = values.pop("phases", {"prepack": peak} if peak else {})
    number = values.pop("day", 0)
    row = {
        "key": f"{model}-{release}-{values.get('dims', '')}-{number}",
        "model": model,
        "digest": f"digest of {model}",
        "address": f"zoo/{model}",
        "onnxruntime": release,
        "machine": MACHINE,
        "memdiag": "0.1.0",
        "dims": "",
        "options": "",
        "status": "completed" if peak is not None else "failed",
        "sentence": "",
        "phase": "all",
        "started_at": START + timedelta(days=number),
        "peak_bytes": _bytes(peak),
        "steady_bytes": _bytes(steady if steady is not None else peak),
        "kept_bytes": None,
        "baseline_bytes": BASELINE,
        "weight_bytes": 10 * MIB,
        "is_alone": False,
        **values,
    }
    peaks = [
        row | {"phase": name, "peak_bytes": _bytes(size), "kept_bytes": round(size * MIB)}
        for name, size in phases.items()
    ]
    return [row, *peaks]


def _bytes(mebibytes: float | None) -> int | None:
    return None if mebibytes is None else BASELINE + round(mebibytes * MIB)


def finding(model: str, release: str, rule: str, steady: int, peak: int = 0) -> dict[str, Any]:
    """Return a row of the findings; sizes in MiB."""
    return {
        "key": f"{model}-{release}--0",
        "model": model,
        "onnxruntime": release,
        "machine": MACHINE,
        "rule": rule,
        "bytes_steady": steady * MIB,
        "bytes_peak": peak * MIB,
        "message": f"{model}: a weight is stored twice.",
        "remedy": "memdiag fix",
    }


def write(
    store: Path,
    jobs: Iterable[list[dict[str, Any]]],
    findings: Iterable[dict[str, Any]] = (),
    *,
    batch: str = "0",
) -> Path:
    """Write a store with `jobs` and `findings` and return its folder."""
    rows = [row for each in jobs for row in each]
    tables = [("profiles.parquet", PROFILES, rows), ("findings.parquet", FINDINGS, [*findings])]
    for name, schema, content in tables:
        if content:
            ds.write_dataset(
                pa.Table.from_pylist(content, schema),
                store / name,
                format="parquet",
                partitioning=["onnxruntime", "machine"],
                partitioning_flavor="hive",
                basename_template=f"{batch}-{{i}}.parquet",
                existing_data_behavior="overwrite_or_ignore",
            )
    return store
