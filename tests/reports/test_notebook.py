"""Records in Python: one line, HTML, a data frame, a figure."""

import re
import subprocess
import sys
import types
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

import memdiag
from memdiag.errors import UsageError
from memdiag.records.base import NotebookRecord
from memdiag.records.finding import CHECK_SCHEMA, Check, Findings
from tests.reports import (
    comparisons,
    estimates,
    findings,
    fix_records,
    growths,
    profiles,
    runs,
    sweeps,
    tied_xray,
)
from tests.reports.hostile_texts import hostile
from tests.reports.records import RECORDS as REPORTED
from tests.reports.rendering import replaced
from tests.reports.runs import MIB

FOUND = findings.TIED
CHECK = Check(
    schema=CHECK_SCHEMA, onnxruntime="1.31.1", models=(), findings=(FOUND,), duration_s=0.1
)
NOT_DRAWN: dict[str, Callable[[], NotebookRecord]] = {
    "Check": lambda: CHECK,
    "Finding": lambda: FOUND,
    "Attribution": REPORTED["xray"],
    "DeviceEstimate": REPORTED["device_estimate"],
    "Sweep": REPORTED["sweep"],
}
DRAWN: dict[str, Callable[[], NotebookRecord]] = {
    type(build()).__name__: build
    for name, build in REPORTED.items()
    if name not in ("device_estimate", "xray", "sweep")
}
RECORDS = {**DRAWN, **NOT_DRAWN}


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_is_one_line_of_what_matters(name: str) -> None:
    text = repr(RECORDS[name]())
    assert text.startswith(f"<{name} ")
    assert text.endswith(">")
    assert "\n" not in text
    assert 20 < len(text) < 1500


def test_the_line_has_the_answer() -> None:
    assert "peak 1.50 GiB above baseline" in repr(profiles.tied_if())
    assert "steady from 1.03 GiB in 1.24.4 to 1.53 GiB in 1.31.1" in repr(comparisons.versions())
    # The sizes have the names of the moments, so that they agree with `bytes` and `peak_bytes`.
    peak = replaced(FOUND, bytes=64 * MIB, peak_bytes=163 * MIB, measured_bytes=None)
    assert "costs 64 MiB steady and 163 MiB at the peak, in constant_fold: model." in repr(peak)
    nothing = replaced(FOUND, bytes=0, peak_bytes=0)
    assert repr(nothing).startswith("<Finding shared-weight-transposed: model.shared.weight is ")
    assert repr(profiles.tied_if().samples) == "<Samples 440 rows>"
    for build in (profiles.failed, profiles.killed, profiles.nothing_seen):
        assert repr(build()).startswith("<Profile ")


@cache
def html_of(name: str) -> str:
    record: Any = RECORDS[name]()
    text: str = record._repr_html_()
    return text


@pytest.mark.parametrize("name", RECORDS)
def test_html_is_the_line_the_picture_and_the_rest(name: str) -> None:
    text = html_of(name)
    assert text.startswith("<details><summary><b>" if name == "Finding" else "<div><b>")
    assert text.count("<") == text.count(">")
    assert ("<img alt=" in text) is (name in DRAWN)
    without_picture = re.sub(r'src="data:image/png;base64,[^"]*"', "", text)
    assert len(without_picture) < 20_000
    assert len(text) < 300_000


def test_a_profile_shows_its_answer_timeline_and_table() -> None:
    visible, _, folded = tied_xray.with_attribution()._repr_html_().partition("<details>")
    assert "peak 1.50 GiB above baseline" in visible
    assert visible.count("data:image/png;base64,") == 1
    first_words = {line.split()[0] for line in visible.splitlines() if line.strip()}
    assert {"Steady", "constant_fold"} <= first_words
    assert "owner (steady)" in folded
    assert "grown by" not in folded  # the table is stated once
    assert "<div><b>Profile" in profiles.nothing_seen()._repr_html_()


@pytest.mark.parametrize("name", RECORDS)
def test_no_sentence_of_the_answer_is_repeated_in_html(name: str) -> None:
    answer, _, rest = html_of(name).partition("</b>")
    plain = " ".join(rest.split())
    sentences = answer.partition("<b>")[2].removesuffix("</b>").split(". ")
    assert plain
    assert not [text for text in sentences if text.removeprefix(f"{name} ") in plain]


def test_sessions_and_findings_of_a_program_are_not_folded() -> None:
    shown, _, details = html_of("ProgramRun").partition("<details>")
    assert "process / session" in shown
    assert runs.server().findings[0].name in shown
    assert "process / session" not in details
    assert "Largest rise in a creation" in details


@pytest.mark.parametrize("name", ["Check", "Attribution"])
def test_without_a_picture_the_rest_is_not_folded(name: str) -> None:
    assert "<details open>" in html_of(name)
    assert "<details open>" not in html_of("Profile")


def test_names_are_text_in_html() -> None:
    text = replaced(profiles.tied_if(), model__path="a\udcff<b>.onnx")._repr_html_()
    text.encode()
    assert "a\\udcff&lt;b&gt;.onnx" in text
    text = hostile(comparisons.versions(), profiles.HOSTILE)._repr_html_()
    assert "<script" not in text
    assert text.count("<img") == 1


def test_findings_are_a_tuple_that_shows_itself() -> None:
    both = Findings((FOUND, FOUND))
    assert list(both) == [FOUND, FOUND]
    assert both._repr_html_() == FOUND._repr_html_() * 2
    assert Findings()._repr_html_() == "<p>No findings.</p>"


@pytest.fixture
def pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pandas, as far as it is asked for anything: rows become columns by name."""

    def frame(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: [row.get(name) for row in rows] for name in names}

    module = types.ModuleType("pandas")
    module.DataFrame = frame  # type: ignore[attr-defined] # made up
    monkeypatch.setitem(sys.modules, "pandas", module)


@pytest.mark.usefixtures("pandas")
def test_a_profile_has_a_row_for_each_phase_and_its_parts() -> None:
    profile = profiles.tied_if()
    frame = profile.to_dataframe()
    parts = dict(zip(frame["phase"], frame["part_of"], strict=True))
    assert {name: whole for name, whole in parts.items() if whole is not None} == {
        "constant_fold": "optimize",
        "other steps": "optimize",
    }
    rows = zip(frame["part_of"], frame["net_rss_bytes"], strict=True)
    kept = sum(size for part_of, size in rows if part_of is None)
    assert kept == sum(phase.net_rss_bytes for phase in profile.phases)
    assert max(frame["peak_rss_bytes"]) == profile.peak_rss_bytes


@pytest.mark.usefixtures("pandas")
def test_data_frames_have_a_row_for_each_part() -> None:
    assert comparisons.versions().to_dataframe()["label"] == ["1.24.4", "1.30.9", "1.31.1"]
    frame = runs.server().to_dataframe()
    assert frame["session"] == [1, 2, 3, 4, 5]
    assert frame["arena_slack_bytes"] == [30 * MIB, None, None, 100 * MIB, None]
    assert frame["resident_slack_bytes"] == [30 * MIB, None, None, 40 * MIB, None]
    fix = fix_records.verified()
    assert fix.to_dataframe()["option_names"] == [point.option_names for point in fix.points]
    for record in (CHECK, Findings((FOUND,)), FOUND):
        frame = record.to_dataframe()
        assert (frame["name"], frame["bytes"]) == ([FOUND.name], [FOUND.bytes])
    xray = tied_xray.attribution()
    assert xray.to_dataframe()["layout"] == [copy.layout for copy in xray.copies]
    frame = replaced(xray, copies=()).to_dataframe()  # without a model: owners
    assert frame["kind"] == [owner.kind for owner in xray.owners]
    assert sum(frame["bytes"]) == xray.resident_bytes
    frame = growths.kept().to_dataframe()
    assert frame["run"][:2] == [1, 100]
    assert frame["heap_bytes"][-1] - frame["heap_bytes"][1] == 900 * 25 * 1024
    assert frame["python_bytes"] == [19 * MIB] * 13
    assert "device" not in frame
    frame = growths.leak_on_gpu().to_dataframe()
    assert frame["device_arena_used_bytes"][-1] == 128 * MIB + 4096 * 1000
    frame = estimates.grid().to_dataframe()
    assert frame["tokens"] == [128, 256, 512] * 2
    assert frame["peak_bytes"][-1] == 662 * MIB
    frame = sweeps.sweep().to_dataframe()
    assert len(frame["model"]) == 15
    assert (frame["model"][-1], frame["dims"][-1]) == ("vits.onnx", "tokens=512")
    assert frame["peak_bytes"][-1] == 899 * MIB


def test_without_pandas_a_sentence_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match="pandas is not installed"):
        profiles.tied_if().to_dataframe()


@pytest.mark.parametrize("name", DRAWN)
def test_the_picture_of_the_reports_is_a_figure(name: str) -> None:
    from matplotlib.figure import Figure

    record: Any = RECORDS[name]()
    figure: Any = record.plot()
    assert issubclass(type(figure), Figure)
    assert figure.axes
    assert figure._repr_png_().startswith(b"\x89PNG")  # what IPython asks for


def test_the_api_is_listed_without_being_loaded() -> None:
    listed = dir(memdiag)
    assert {"check", "compare", "fix", "load", "load_profile", "profile", "xray"} <= {*listed}
    assert {name for name in listed if name[0] != "_"} == {*memdiag.__all__}
    assert all(getattr(memdiag, name) is not None for name in listed)
    program = "import sys, memdiag; dir(memdiag); assert 'msgspec' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
