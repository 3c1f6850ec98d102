"""The report of a memory limit: its sentences, its table, and the YAML for containers."""

import re
from typing import Any

import pytest
import yaml

from memdiag.records.limit import MemoryLimit
from memdiag.reports.limit import limit_compose_yaml, limit_kubernetes_yaml
from memdiag.reports.limit.chart import limit_chart
from memdiag.reports.limit.rows import trial_table
from memdiag.reports.limit.sentences import limit_headline, suggestion_reason
from memdiag.units import MIB
from tests.reports.limits import killed, limit, point, program, without_group
from tests.reports.rendering import assert_sentences_approved, replaced, table_lines

QUANTITY = re.compile(r"^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$")
"""The pattern of a quantity in the schema of Kubernetes."""

COMPOSE_BYTES = re.compile(r"[0-9]+(b|k|m|g|kb|mb|gb)", re.IGNORECASE)
REREAD: dict[str, Any] = {"refault_bytes": 80 * MIB, "is_slow": True}


def with_trial(record: MemoryLimit, **trial: Any) -> MemoryLimit:
    return replaced(record, points=(*record.points[:2], point(**trial)), smallest_bytes=20 * MIB)


ALIVE = with_trial(program(), mebibytes=20, load_s=None, is_slow=True, refault_bytes=900 * MIB)
ANSWERS = {
    "two limits": limit(),
    "one limit that is both": program(),
    "no trial at the smallest": replaced(limit(), smallest_bytes=239 * MIB),
    "slow in 20 MiB": ALIVE,
    "alive in 20 MiB, work not measured": replaced(
        ALIVE, points=tuple(replaced(trial, latency_s=None) for trial in ALIVE.points)
    ),
    "far above the last that fails": replaced(
        program(), points=(*program().points[:2], killed(100, phase=""))
    ),
    "below the need of Python": limit(
        points=(point(None), killed(10, phase="start")),
        smallest_bytes=None,
        comfortable_bytes=None,
    ),
    "too slow, and killed below": replaced(
        limit(),
        points=(
            *limit().points,
            killed(235, outcome="timeout", phase="optimize", message="stopped after 9 s"),
        ),
    ),
    "without a control group": without_group(),
}


def test_the_answer_has_the_limits_what_the_smaller_costs_and_the_margin() -> None:
    texts = {}
    for case, record in ANSWERS.items():
        answer = limit_headline(record)
        texts[case] = (answer.line, answer.second, answer.ended, suggestion_reason(record))
    assert_sentences_approved("limit_answers", texts)


SOME_FAILED = limit(
    points=(point(None), point(250), killed(250)), smallest_bytes=None, comfortable_bytes=None
)
TRIALS = {
    "one of each": limit(),
    # A busy machine makes trials slow as well, in which nothing is read again.
    "slow with and without reading again": limit(
        points=(
            point(None, 0.13),
            point(280, 0.1),
            point(260, 0.161),
            point(240, 0.16, **REREAD),
            point(235, 0.101, load_s=3.0, load_refault_bytes=80 * MIB, is_slow=True),
            point(230, 0.1),
            point(230, 0.15, **REREAD),
        )
    ),
    "nothing was read again": limit(points=(point(None), point(260, 0.161))),
    "some failed": SOME_FAILED,
}


def test_trials_are_slower_only_where_contents_were_read_again() -> None:
    tables = {case: trial_table(record) for case, record in TRIALS.items()}
    assert_sentences_approved(
        "limit_trials", {case: table_lines(table) for case, table in tables.items()}
    )
    strong = [row.cells[0].text for row in tables["one of each"].rows if row.is_strong]
    assert strong == ["260 MiB", "240 MiB"]
    assert limit_chart(SOME_FAILED).failed == (250 * MIB,)


def test_kubernetes_gets_request_and_limit() -> None:
    text = limit_kubernetes_yaml(limit())
    resources = yaml.safe_load(text)["resources"]
    assert resources == {"requests": {"memory": "270Mi"}, "limits": {"memory": "324Mi"}}
    assert all(QUANTITY.match(amounts["memory"]) for amounts in resources.values())
    assert text.startswith("# encoder.onnx, onnxruntime 1.32.0: found with real limits by memdiag")


def test_compose_gets_a_service() -> None:
    service = yaml.safe_load(limit_compose_yaml(limit()))["services"]["encoder"]
    resources = service["deploy"]["resources"]
    assert resources == {"reservations": {"memory": "270M"}, "limits": {"memory": "324M"}}
    assert COMPOSE_BYTES.fullmatch(resources["limits"]["memory"])
    assert service["memswap_limit"] == "324M"


@pytest.mark.parametrize(
    ("subject", "name"),
    [("/usr/bin/python3 app.py", "python3"), ("./Été 1", "t"), ("9", "model-9")],
)
def test_a_service_has_a_permitted_name(subject: str, name: str) -> None:
    text = limit_compose_yaml(replaced(program(), subject=subject))
    assert list(yaml.safe_load(text)["services"]) == [name]


def test_names_cannot_leave_a_comment() -> None:
    hostile = limit(subject="a\nresources: {}\n#.onnx")
    for text in (limit_kubernetes_yaml(hostile), limit_compose_yaml(hostile)):
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        assert lines[0] in ("resources:", "services:")
