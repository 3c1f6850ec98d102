import json
from typing import Any

from memdiag.records.finding import Check, CheckedModel
from memdiag.reports.sarif import sarif_log
from memdiag.rules import model_detectors
from tests.reports.checks import MIB, check, finding


def run_of(result: Check) -> dict[str, Any]:
    log = json.loads(sarif_log(result, version="1.2.3"))
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    assert isinstance(run, dict)
    return run


def test_every_rule_is_described() -> None:
    driver = run_of(check())["tool"]["driver"]
    assert driver["version"] == "1.2.3"
    assert [rule["id"] for rule in driver["rules"]] == [
        each.rule.code for each in model_detectors()
    ]
    assert all(rule["help"]["markdown"] for rule in driver["rules"])


def test_a_result_has_message_place_and_bytes() -> None:
    (result,) = run_of(check(finding()))["results"]
    assert result["ruleId"] == "MD103"
    assert result["message"]["text"].endswith("remedy: gemm-transposed, overridable-weight.")
    (location,) = result["locations"]
    assert location["physicalLocation"]["artifactLocation"]["uri"] == "models/tied.onnx"
    assert [place["fullyQualifiedName"] for place in location["logicalLocations"]] == [
        "embed/Gather",
        "lm/MatMul",
    ]
    assert result["properties"]["bytes"] == 64 * MIB


def test_the_fingerprint_is_of_the_place_not_the_size() -> None:
    def fingerprint(**changes: object) -> str:
        (result,) = run_of(check(finding(**changes)))["results"]
        return str(result["partialFingerprints"]["memdiag/1"])

    assert fingerprint() == fingerprint(bytes=1, model="elsewhere/tied.onnx")
    assert fingerprint() != fingerprint(weights=("other",))


def test_a_model_that_could_not_be_read_makes_the_run_unsuccessful() -> None:
    broken = CheckedModel(path="/data/b c.onnx", error="b c.onnx: it is empty.")
    (invocation,) = run_of(check(models=(broken,)))["invocations"]
    assert invocation["executionSuccessful"] is False
    (notification,) = invocation["toolExecutionNotifications"]
    uri = notification["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert uri == "file:///data/b%20c.onnx"
