import json

import pytest

from memdiag.records.codec import json_schema
from memdiag.records.schemas import RECORD_BY_SCHEMA, schema_path


@pytest.mark.parametrize("name", RECORD_BY_SCHEMA)
def test_the_kept_schema_is_the_records_own(name: str) -> None:
    kept = schema_path(name).read_text()
    assert kept == json_schema(RECORD_BY_SCHEMA[name]), "run: python -m memdiag.records.schemas"


PROFILE_CONTRACT = {
    "Profile": "schema model environment session baseline_rss_bytes phases spans samples"
    " peak_rss_bytes peak_phase steady_rss_bytes allocator_retained_bytes runs outcome",
    "Model": "path file_bytes weight_bytes",
    "Environment": "onnxruntime python platform cpu",
    "Session": "options environment",
    "Phase": "name duration_s start end peak_rss_bytes peak_kind",
    "Memory": "rss_bytes anonymous_bytes file_bytes shared_bytes",
    "Span": "name phase step start_s end_s peak_rss_bytes peak_kind net_rss_bytes",
    "Samples": "t_s rss_bytes anonymous_bytes file_and_shared_bytes",
    "Run": "latency_s rss_bytes",
    "Outcome": "status phase message",
}
"""Fields that programs of users read, by record."""


def test_the_profile_schema_names_the_contract() -> None:
    definitions = json.loads(schema_path("memdiag.profile-1").read_text())["$defs"]
    for record, fields in PROFILE_CONTRACT.items():
        assert set(fields.split()) <= set(definitions[record]["properties"]), record
    statuses = definitions["Outcome"]["properties"]["status"]["enum"]
    assert statuses == ["completed", "failed", "killed", "limit", "timeout"]
