"""A sweep for other programs, read by their parsers."""

import json
from xml.etree import ElementTree as ET

import pytest

from memdiag.records.codec import escaped_record
from memdiag.records.sweep import Sweep
from memdiag.reports.github import sweep_annotations
from memdiag.reports.sweep.machine_formats import junit_xml, smaller_is_better_json
from tests.reports import sweeps
from tests.reports.rendering import replaced
from tests.reports.sweeps import MIB

FORMATS = {
    "github": sweep_annotations,
    "junit": junit_xml,
    "smaller-is-better": smaller_is_better_json,
}
HOSTILE = 'a"b\\c\n\x1b\uffff<b>&]]>\udcff.onnx'
GREW = "albert.onnx, +212 MiB at the peak, first in prepack"


def machine_format(record: Sweep, name: str) -> str:
    """Return `record` as a command prints it."""
    return FORMATS[name](escaped_record(record))


def suites(record: Sweep) -> ET.Element:
    root = ET.fromstring(machine_format(record, "junit"))
    for kind in ("error", "failure"):
        counts = [len([*suite.iter(kind)]) for suite in root]
        assert [suite.get(f"{kind}s") for suite in root] == [str(count) for count in counts]
    return root


def failures(record: Sweep) -> list[tuple[str | None, str | None, str | None]]:
    """Return suite, case and message of each failure."""
    return [
        (suite.get("name"), case.get("name"), failure.get("message"))
        for suite in suites(record)
        for case in suite
        for failure in case.iter("failure")
    ]


def requesting(record: Sweep, *requested: tuple[str, str]) -> Sweep:
    """Return `record` of a sweep that names only jobs with these models and releases."""
    series = [
        replaced(
            jobs,
            points=tuple(
                replaced(point, is_requested=(jobs.model, point.onnxruntime) in requested)
                for point in jobs.points
            ),
        )
        for jobs in record.series
    ]
    return replaced(record, series=tuple(series))


def test_junit_has_a_case_for_each_job_with_errors() -> None:
    root = suites(sweeps.sweep())
    assert [(suite.get("tests"), suite.get("errors")) for suite in root] == [("5", "1")] * 3
    assert {error.get("message") for error in root.iter("error")} == {
        "zoo/broken.onnx: the file ends inside initializer 'w'."
    }
    assert root[0][-1].get("name") == "vits.onnx · tokens=512"
    assert failures(sweeps.sweep()) == []


def test_the_formats_have_the_requested_jobs_and_no_others_of_the_store() -> None:
    requested = (("albert.onnx", "1.24.4"), ("albert.onnx", "1.22.1"), ("vits.onnx", "9.9"))
    record = requesting(sweeps.sweep(), *requested)
    assert [
        (suite.get("name"), [case.get("name") for case in suite]) for suite in suites(record)
    ] == [
        ("onnxruntime 1.22.1", ["albert.onnx"]),
        ("onnxruntime 1.24.4", ["albert.onnx"]),
    ]
    entries = json.loads(machine_format(record, "smaller-is-better"))
    assert [(entry["name"], entry["value"], entry["extra"]) for entry in entries] == [
        ("albert.onnx · peak", 500 * MIB, "onnxruntime 1.24.4"),
        ("albert.onnx · steady", 450 * MIB, "onnxruntime 1.24.4"),
    ]
    assert "::warning" not in machine_format(record, "github")  # of a job of an earlier sweep
    failed = requesting(sweeps.sweep(), ("broken.onnx", "1.24.4"))
    assert "::warning title=not completed" in machine_format(failed, "github")


def test_a_regression_is_a_failure_of_the_first_requested_job_after_it() -> None:
    grown = sweeps.with_step("albert.onnx", 500, 712, 712, at=1, is_new=True)
    record = sweeps.sweep(against="nightly", series=(grown,))
    message = f"{GREW}, 1.22.1 → 1.24.4"
    assert failures(record) == [("onnxruntime 1.24.4", "albert.onnx", message)]
    later = requesting(record, ("albert.onnx", "1.32.0"))
    assert failures(later) == [("onnxruntime 1.32.0", "albert.onnx", message)]


def test_benchmark_trackers_get_the_newest_figures() -> None:
    entries = json.loads(machine_format(sweeps.sweep(), "smaller-is-better"))
    assert len({entry["name"] for entry in entries}) == len(entries) == 8
    assert entries[0] == {
        "name": "albert.onnx · peak",
        "unit": "bytes",
        "value": 712 * MIB,
        "extra": "onnxruntime 1.32.0",
    }


def test_github_gets_an_error_for_a_regression_and_a_warning_for_failures() -> None:
    lines = machine_format(sweeps.sweep(against="nightly"), "github").splitlines()
    assert lines[0] == (
        f"::error file=zoo/albert.onnx,title=memory regression::{GREW} (500 MiB → 712 MiB),"
        " 1.24.4 → 1.32.0"
    )
    assert lines[1].startswith("::warning title=not completed::broken.onnx: the file ends")
    assert lines[2].startswith("::notice title=memory sweep::Regression: 1 model needs")
    assert "::error" not in machine_format(sweeps.sweep(), "github")


def test_an_exceeded_budget_is_a_failure_and_an_error() -> None:
    record = sweeps.over_budget(sweeps.sweep(against="nightly"))
    exceeded = "peak 899 MiB exceeds 500 MiB by 399 MiB"
    release = "onnxruntime 1.32.0"
    assert failures(record) == [
        (release, "albert.onnx", f"{GREW}, 1.24.4 → 1.32.0"),
        (release, "vits.onnx · tokens=512", exceeded),
    ]
    place = f"file=zoo/vits.onnx,title=budget exceeded::vits.onnx · tokens=512 · {release}"
    assert machine_format(record, "github").splitlines()[0] == f"::error {place}: {exceeded}"


@pytest.mark.parametrize("name", FORMATS)
def test_hostile_names_break_no_format(name: str) -> None:
    series = (sweeps.with_step(HOSTILE, 5, 9, at=1, is_new=True),)
    text = machine_format(sweeps.sweep(against="x", series=series, findings=()), name)
    text.encode()
    if name == "junit":
        ET.fromstring(text)
    elif name == "github":
        assert all(line.startswith("::") for line in text.splitlines())
    else:
        assert json.loads(text)


@pytest.mark.parametrize("name", FORMATS)
def test_an_empty_sweep_has_every_format(name: str) -> None:
    assert machine_format(Sweep(store="s"), name)
