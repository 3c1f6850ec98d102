import re

from memdiag.reports import github
from tests.reports import profiles
from tests.reports.profiles import MIB
from tests.reports.rendering import replaced
from tests.reports.test_budget import grown, judged, tied_finding


def test_a_breach_is_an_error_with_its_reasons_in_one_line() -> None:
    (line,) = github.profile_annotations(profiles.tied_if(), grown()).splitlines()
    start = "::error file=models/tied_if.onnx,title=memory baseline::models/tied_if.onnx: 500 MiB"
    assert line.startswith(start)
    assert "%0A  onnxruntime 1.31.1; the baseline is of 1.24.4%0A" in line


def test_what_holds_is_a_notice_and_findings_are_warnings() -> None:
    profile = replaced(profiles.tied_if(), findings=(tied_finding(),))
    kept = judged(profile, peak=10_000 * MIB)
    first, second = github.profile_annotations(profile, kept).splitlines()
    assert first.startswith("::notice file=models/tied_if.onnx,title=memory budget::")
    assert second.startswith("::warning file=models/tied_if.onnx,title=shared-weight-transposed::")
    refuted = replaced(profile, findings=(replaced(tied_finding(), evidence="refuted"),))
    assert github.profile_annotations(refuted) == ""


def test_a_run_that_failed_is_an_error() -> None:
    (line,) = github.profile_annotations(profiles.failed()).splitlines()
    assert line.startswith("::error file=models/broken.onnx,title=memory profile::Failed in parse")


def test_the_summary_has_the_judgement_before_the_report() -> None:
    text = github.job_summary_markdown(profiles.tied_if(), grown())
    assert text.startswith("## Memory baseline of `models/tied_if.onnx`\n\n**500 MiB over its")
    assert re.search(r"^\| \*\*steady\*\* \| 1.50 GiB \|  \| 1.01 GiB \| \+500 MiB \|$", text, re.M)
    assert text.index("## Memory baseline") < text.index("## Memory profile: ")
    assert github.job_summary_markdown(profiles.tied_if()).startswith("## Memory profile: ")
