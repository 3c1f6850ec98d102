import json

import pytest

from memdiag.records.codec import json_schema
from memdiag.records.schemas import RECORD_BY_SCHEMA, schema_path


@pytest.mark.parametrize("name", RECORD_BY_SCHEMA)
def test_the_kept_schema_is_the_records_own(name: str) -> None:
    kept = schema_path(name).read_text()
    assert kept == json_schema(RECORD_BY_SCHEMA[name]), "run: python -m memdiag.records.schemas"


def test_the_profile_schema_names_the_contract() -> None:
    schema = json.loads(schema_path("memdiag.profile-1").read_text())
    definitions = schema["$defs"]

    def fields(name: str) -> set[str]:
        return set(definitions[name]["properties"])

    assert {
        "schema",
        "model",
        "environment",
        "session",
        "baseline_rss_bytes",
        "phases",
        "spans",
        "samples",
        "peak_rss_bytes",
        "peak_phase",
        "steady_rss_bytes",
        "allocator_retained_bytes",
        "runs",
        "outcome",
    } <= fields("Profile")
    assert {"path", "file_bytes", "weight_bytes"} <= fields("Model")
    assert {"onnxruntime", "python", "platform", "cpu"} <= fields("Environment")
    assert {"options", "environment"} <= fields("Session")
    assert {"name", "duration_s", "start", "end", "peak_rss_bytes", "peak_kind"} <= fields("Phase")
    assert {"rss_bytes", "anonymous_bytes", "file_bytes", "shared_bytes"} <= fields("Memory")
    assert {
        "name",
        "phase",
        "step",
        "start_s",
        "end_s",
        "peak_rss_bytes",
        "peak_kind",
        "net_rss_bytes",
    } <= fields("Span")
    assert {"t_s", "rss_bytes", "anonymous_bytes", "file_bytes"} <= fields("Samples")
    assert {"latency_s", "rss_bytes"} <= fields("Run")
    assert {"status", "phase", "message"} <= fields("Outcome")
    assert definitions["Outcome"]["properties"]["status"]["enum"] == sorted(
        ["completed", "failed", "killed", "timeout", "limit"]
    )
