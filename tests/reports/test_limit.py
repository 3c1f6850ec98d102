"""The report of a memory limit: its sentences, its table, and the YAML for containers."""

import io
import re

import msgspec
import pytest
import yaml
from rich.console import Console

from memdiag.detail import Detail
from memdiag.records import codec
from memdiag.records.limit import MemoryLimit
from memdiag.reports.limit import REPORT, limit_compose_yaml, limit_kubernetes_yaml
from memdiag.reports.limit.chart import limit_chart
from memdiag.reports.limit.rows import trial_table
from memdiag.reports.limit.sentences import limit_headline, suggestion_reason
from memdiag.units import MIB
from tests.reports import limits

QUANTITY = re.compile(r"^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$")
"""The pattern of a quantity in the schema of Kubernetes."""

COMPOSE_BYTES = re.compile(r"[0-9]+(b|k|m|g|kb|mb|gb)", re.IGNORECASE)


def printed(limit: MemoryLimit, *, detail: Detail = Detail.ALL) -> str:
    out = io.StringIO()
    console = Console(file=out, width=100, highlight=False, force_terminal=False)
    REPORT.print_summary(limit, console, detail=detail)
    return " ".join(out.getvalue().split())


def test_the_answer_has_both_limits_and_what_the_smaller_costs() -> None:
    answer = limit_headline(limits.limit())
    assert answer.line.startswith(
        "encoder.onnx: set the memory limit to 324 MiB, and the request to 270 MiB. It works in"
        " 240 MiB (latency × 1.50: contents of files are dropped and read again), and without"
        " slowdown in 260 MiB, at batch 1"
    )
    assert answer.second.startswith(
        "Besides, 10 MiB of libraries and files are in use by other processes and were not"
        " counted; a container alone on a machine counts them. In 230 MiB it is killed in prepack."
        " Counted after the runs, without a limit: "
    )
    assert "180 MiB anonymous + 50 MiB of files, which can be dropped" in answer.second
    assert answer.facts == "onnxruntime 1.32.0 · 7 trials · control groups v1 · no swap · 41 s"


def test_one_limit_that_is_both_is_stated_once() -> None:
    answer = limit_headline(limits.program())
    assert answer.subject == "python app.py --port 80"
    assert answer.first == "works in 260 MiB without slowdown, and in no less."
    assert "In 250 MiB it is killed." in answer.second


def test_a_record_without_a_trial_at_its_smallest_limit_is_read() -> None:
    damaged = msgspec.structs.replace(limits.limit(), smallest_bytes=239 * MIB)
    assert limit_headline(damaged).first.startswith("works in 239 MiB, and without slowdown in")


def test_a_server_that_only_stays_alive_is_not_said_to_work() -> None:
    ends = limits.program()
    slow = limits.point(20, load_s=None, is_slow=True, refault_bytes=900 * MIB)
    points = (*ends.points[:2], slow)
    smaller = msgspec.structs.replace(ends, points=points, smallest_bytes=20 * MIB)
    assert limit_headline(smaller).first.startswith("works in 20 MiB")
    alive = [msgspec.structs.replace(point, latency_s=None) for point in smaller.points]
    server = msgspec.structs.replace(smaller, points=tuple(alive))
    assert limit_headline(server).first == (
        "is not killed in 20 MiB (contents of files are dropped and read again; its work was not"
        " measured), and works without slowdown in 260 MiB."
    )


def test_a_limit_far_above_the_last_that_fails_is_not_called_the_least() -> None:
    program = limits.program()
    points = (*program.points[:2], limits.killed(100, phase=""))
    answer = limit_headline(msgspec.structs.replace(program, points=points))
    assert answer.first == "works in 260 MiB without slowdown."


def test_a_limit_below_the_need_of_python_is_named_as_such() -> None:
    points = (limits.point(None), limits.killed(10, phase="start"))
    limit = limits.limit(points=points, smallest_bytes=None, comfortable_bytes=None)
    answer = limit_headline(limit)
    assert answer.first.startswith("takes 300 MiB at its peak without a limit, at batch 1")
    assert "In 10 MiB it is killed before the model is loaded (Python and onnxruntime" in (
        answer.second
    )


def test_a_trial_that_was_too_slow_also_names_where_it_is_killed() -> None:
    slow = limits.killed(235, outcome="timeout", phase="optimize", message="stopped after 9 s")
    base = limits.limit()
    answer = limit_headline(msgspec.structs.replace(base, points=(*base.points, slow)))
    assert (
        "In 235 MiB it takes more than three times as long in optimize, as contents of files are"
        " dropped and read again all the time, and in 230 MiB it is killed in prepack."
    ) in answer.second


def test_the_suggestion_explains_its_margin() -> None:
    text = suggestion_reason(limits.limit())
    assert "the smallest limit without slowdown, with 10 MiB that were not counted here" in text
    assert "the limit is 20% more, for other inputs than these" in text


def test_without_a_group_the_measured_peak_and_the_estimate_are_offered() -> None:
    limit = limits.without_group()
    answer = limit_headline(limit)
    assert answer.first.startswith(
        "took 280 MiB at its peak (resident set) and needs at most 310 MiB by its estimate"
    )
    assert "mounted read-only" in answer.ended
    assert "the larger of measured peak and estimate" in suggestion_reason(limit)
    assert "No limit was tried: /sys/fs/cgroup" in printed(limit)


def test_the_table_has_a_row_for_each_limit() -> None:
    table = trial_table(limits.limit())
    texts = [[cell.text for cell in row.cells] for row in table.rows]
    assert [row[0] for row in texts] == ["none", "260 MiB", "240 MiB", "230 MiB"]
    assert [row[1] for row in texts] == ["works", "works", "slow", "killed in prepack"]
    assert [row.is_strong for row in table.rows] == [False, True, True, False]


def test_only_a_limit_that_makes_it_slow_is_said_to_be_slower() -> None:
    """A busy machine makes trials slow as well, in which nothing is read again."""
    reread = {"refault_bytes": 80 * MIB, "is_slow": True}
    points = (
        limits.point(None, 0.13),
        limits.point(280, 0.1),
        limits.point(260, 0.161),
        limits.point(240, 0.16, **reread),
        limits.point(235, 0.101, load_s=3.0, load_refault_bytes=80 * MIB, is_slow=True),
        limits.point(230, 0.1),
        limits.point(230, 0.15, **reread),
    )
    table = trial_table(limits.limit(points=points))
    cells = {
        column.heading: [row.cells[index].text for row in table.rows]
        for index, column in enumerate(table.columns)
    }
    assert cells["result"] == ["works", "works", "works", "slow", "slow", "slow 1 of 2"]
    slower = ["latency × 1.60", "loading × 3.0", "latency × 1.50"]
    assert cells["slower"] == ["", "", "", *slower]
    assert cells["read again"] == ["", "", "", "80 MiB", "80 MiB", "80 MiB"]
    assert table.caption.startswith("slow: contents of files were dropped and read again")
    assert "more than 1.05 × the shortest (loading: 2 ×)" in table.caption
    quick = trial_table(limits.limit(points=(limits.point(None), limits.point(260, 0.161))))
    assert quick.caption.startswith("where nothing was read again, times differ")


def test_a_limit_at_which_some_trials_failed_is_no_working_limit() -> None:
    points = (limits.point(None), limits.point(250), limits.killed(250))
    limit = limits.limit(points=points, smallest_bytes=None, comfortable_bytes=None)
    (row,) = trial_table(limit).rows[1:]
    assert row.cells[1].text == "works 1 of 2, else killed in prepack"
    assert limit_chart(limit).failed == (250 * MIB,)


def test_quiet_prints_the_answer_alone() -> None:
    text = printed(limits.limit(), detail=Detail.ANSWER)
    assert "240 MiB" in text
    assert "Suggested" not in text


def test_kubernetes_gets_request_and_limit() -> None:
    text = limit_kubernetes_yaml(limits.limit())
    resources = yaml.safe_load(text)["resources"]
    assert resources == {"requests": {"memory": "270Mi"}, "limits": {"memory": "324Mi"}}
    assert all(QUANTITY.match(each["memory"]) for each in resources.values())
    assert text.startswith("# encoder.onnx, onnxruntime 1.32.0: found with real limits by memdiag")


def test_compose_gets_a_service() -> None:
    document = yaml.safe_load(limit_compose_yaml(limits.limit()))
    service = document["services"]["encoder"]
    assert service["deploy"]["resources"] == {
        "reservations": {"memory": "270M"},
        "limits": {"memory": "324M"},
    }
    assert COMPOSE_BYTES.fullmatch(service["deploy"]["resources"]["limits"]["memory"])
    assert service["memswap_limit"] == "324M"


@pytest.mark.parametrize(
    ("subject", "name"),
    [("/usr/bin/python3 app.py", "python3"), ("./Été 1", "t"), ("9", "model-9")],
)
def test_a_service_has_a_permitted_name(subject: str, name: str) -> None:
    text = limit_compose_yaml(msgspec.structs.replace(limits.program(), subject=subject))
    assert list(yaml.safe_load(text)["services"]) == [name]


def test_names_cannot_leave_a_comment() -> None:
    hostile = msgspec.structs.replace(limits.limit(), subject="a\nresources: {}\n#.onnx")
    for text in (limit_kubernetes_yaml(hostile), limit_compose_yaml(hostile)):
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        assert lines[0] in ("resources:", "services:")


def test_every_format_is_rendered() -> None:
    for build in (limits.limit, limits.program, limits.without_group):
        record = build()
        assert codec.decode(REPORT.render(record, "json"), MemoryLimit) == record
        page = REPORT.render(record, "html").decode()
        assert "memdiag · memory limit" in page
        assert REPORT.render(record, "png").startswith(b"\x89PNG")
        markdown = REPORT.render(record, "markdown").decode()
        assert "```yaml" in markdown
        assert f"memory: {record.limit_bytes // MIB}Mi" in markdown
