"""A sweep for other programs: JUnit XML and a benchmark tracker.

- JUnit XML: CI servers show a test for each job; `<failure>` is an exceeded budget or a
  regression, `<error>` a job that did not complete.
- ``customSmallerIsBetter``: the JSON of github-action-benchmark.

Both contain only the jobs that the sweep names, whether they were done now or were in the store.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from xml.etree import ElementTree as ET

from memdiag.records.sweep import Sweep, SweepPoint, SweepSeries, SweepStep
from memdiag.reports.sweep.sentences import step_place, step_words
from memdiag.reports.sweep.tables import series_variant
from memdiag.reports.text import plain
from memdiag.units import format_size

_NON_XML_CHARACTERS = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 excludes."""


def junit_xml(sweep: Sweep) -> str:
    """Return JUnit XML with a test case for each job that the sweep names.

    A regression is a failure of the first of these jobs after the step.
    """
    suites = ET.Element("testsuites", name="memdiag sweep")
    sentences_by_key = {job.key: job.sentences for job in sweep.exceeded}
    jobs_by_release: dict[str, list[tuple[SweepSeries, SweepPoint]]] = {}
    for series, point in sweep.requested_jobs:
        jobs_by_release.setdefault(point.onnxruntime, []).append((series, point))
    steps_by_key: dict[str, list[tuple[SweepSeries, SweepStep]]] = {}
    for series, step in sweep.regressions:
        steps_by_key.setdefault(series.judged_point(step).key, []).append((series, step))
    for release in sweep.releases:
        jobs = jobs_by_release.get(release, [])
        if not jobs:
            continue
        suite = ET.SubElement(
            suites,
            "testsuite",
            name=_xml_text(f"onnxruntime {release}"),
            tests=str(len(jobs)),
            failures=str(
                sum(point.key in steps_by_key or point.key in sentences_by_key for _, point in jobs)
            ),
            errors=str(sum(point.is_failed for _, point in jobs)),
            skipped="0",
            time=f"{sum(point.duration_s or 0 for _, point in jobs):.3f}",
        )
        for series, point in jobs:
            _add_test_case(
                suite,
                series,
                point,
                sentences_by_key.get(point.key, ()),
                steps_by_key.get(point.key, ()),
            )
    ET.indent(suites)
    return ET.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def _add_test_case(
    suite: ET.Element,
    series: SweepSeries,
    point: SweepPoint,
    exceeded: tuple[str, ...],
    steps: tuple[()] | list[tuple[SweepSeries, SweepStep]],
) -> None:
    case = ET.SubElement(
        suite,
        "testcase",
        classname=_xml_text(f"onnxruntime {point.onnxruntime}"),
        name=_xml_text(_series_name(series)),
        time=f"{point.duration_s or 0:.3f}",
    )
    if point.is_failed:
        message = _xml_text(point.sentence or point.status)
        ET.SubElement(case, "error", message=message, type=_xml_text(point.status)).text = message
    elif exceeded or steps:
        texts = [
            *exceeded,
            *(f"{step_words(*series_step)}, {step_place(*series_step)}" for series_step in steps),
        ]
        kind = "memory budget" if exceeded else "memory regression"
        failure = ET.SubElement(case, "failure", message=_xml_text(texts[0]), type=kind)
        failure.text = _xml_text("\n".join(texts))
    if point.peak_bytes is not None:
        ET.SubElement(case, "system-out").text = f"peak {format_size(point.peak_bytes)}"


def _xml_text(text: str) -> str:
    return _NON_XML_CHARACTERS.sub("\ufffd", plain(text))


def smaller_is_better_json(sweep: Sweep) -> str:
    """Return the newest figures of each series as ``customSmallerIsBetter``.

    Names have no release, so that a chart continues over releases.
    """
    entries = [
        {
            "name": f"{_series_name(series)} · {figure}",
            "unit": "bytes",
            "value": size,
            "extra": f"onnxruntime {plain(newest.onnxruntime)}",
        }
        for series in sweep.series
        if (newest := series.newest_requested) is not None
        for figure, size in _measured_point_figures(newest)
    ]
    return json.dumps(entries, indent=2) + "\n"


def _measured_point_figures(point: SweepPoint) -> Iterator[tuple[str, int]]:
    for figure, size in (("peak", point.peak_bytes), ("steady", point.steady_bytes)):
        if size is not None:
            yield figure, size


def _series_name(series: SweepSeries) -> str:
    """Return the name of a series, which is unique in a sweep on one machine."""
    return " · ".join(filter(None, (plain(series.model), series_variant(series))))
