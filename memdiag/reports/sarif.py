"""A check as SARIF 2.1.0, the format of code scanning services.

The format is OASIS's "Static Analysis Results Interchange Format", version 2.1.0.
"""

import hashlib
import json
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from memdiag.records.finding import Check, CheckedModel, Finding
from memdiag.reports.findings import finding_text
from memdiag.reports.rule_pages import rule_page
from memdiag.reports.text import capitalized, plain
from memdiag.rules import model_detectors

_SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def sarif_log(check: Check, *, version: str) -> bytes:
    """Return `check` as a SARIF log with one run, by memdiag of `version`.

    A model has no lines, so the location of a finding is the file, with the nodes as logical
    locations. A model that could not be examined is a notification, and makes the run unsuccessful.
    """
    rules = [
        _sarif_rule(
            detector.rule.code, detector.rule.name, detector.rule.summary, rule_page(detector)
        )
        for detector in model_detectors()
    ]
    failed_models = [model for model in check.models if model.error is not None]
    run = {
        "tool": {"driver": {"name": "memdiag", "version": version, "rules": rules}},
        "results": [_sarif_result(finding) for finding in check.findings],
        "invocations": [
            {
                "executionSuccessful": not failed_models,
                "toolExecutionNotifications": [
                    _sarif_notification(model) for model in failed_models
                ],
            }
        ],
        "properties": {"onnxruntime": plain(check.onnxruntime)},
    }
    log = {"$schema": _SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}
    return (json.dumps(log, indent=2, ensure_ascii=True) + "\n").encode()


def _sarif_rule(code: str, name: str, summary: str, documentation: str) -> dict[str, Any]:
    return {
        "id": code,
        "name": name,
        "shortDescription": {"text": summary},
        "help": {"text": documentation, "markdown": documentation},
        "defaultConfiguration": {"level": "warning"},
    }


def _sarif_result(finding: Finding) -> dict[str, Any]:
    text = finding_text(finding)
    return {
        "ruleId": text.rule,
        "level": "note" if finding.evidence == "refuted" else "warning",
        "message": {"text": f"{text.prose} {capitalized(text.facts)}."},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": _file_uri(finding.model)},
                    "region": {"startLine": 1},
                },
                "logicalLocations": [
                    {"fullyQualifiedName": plain(node), "kind": "function"}
                    for node in finding.nodes
                ],
            }
        ],
        "partialFingerprints": {"memdiag/1": _finding_fingerprint(finding)},
        "properties": {
            "bytes": finding.bytes,
            "peakBytes": finding.peak_bytes,
            "peakShare": finding.peak_share,
            "evidence": finding.evidence,
            "weights": [plain(name) for name in finding.weights],
            "remedies": list(text.remedies),
        },
    }


def _sarif_notification(model: CheckedModel) -> dict[str, Any]:
    return {
        "level": "error",
        "message": {"text": plain(model.error or "")},
        "locations": [{"physicalLocation": {"artifactLocation": {"uri": _file_uri(model.path)}}}],
    }


def _finding_fingerprint(finding: Finding) -> str:
    """Return a key of the rule, model, weights and nodes of `finding`, but not of its size."""
    identity = (finding.rule, PurePath(finding.model).name, *finding.weights, "", *finding.nodes)
    return hashlib.sha256("\0".join(identity).encode(errors="backslashreplace")).hexdigest()[:32]


def _file_uri(path: str) -> str:
    parts = PurePath(path)
    text = quote(parts.as_posix(), errors="backslashreplace")
    return f"file://{text}" if parts.is_absolute() else text
