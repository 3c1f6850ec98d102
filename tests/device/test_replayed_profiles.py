"""Whole profiles of recorded sessions, compared with the raw records, and what users read."""

import re
from pathlib import Path

import pytest

from memdiag.detail import Detail
from memdiag.records import codec
from memdiag.records.profile import Profile
from memdiag.reports.profile import REPORT
from memdiag.units import MIB
from tests.device.raw_records import raw_chunks, raw_live, raw_mark, raw_pages
from tests.device.recorded_sessions import (
    NAMES,
    RECORDED_WITH_CUPTI,
    RECORDED_WITHOUT_CUPTI,
    raw,
    recorded,
)
from tests.device.replay import child_marks, elapsed_s, replayed_profile
from tests.reports import rendering
from tests.snapshots import assert_approved

MAX_LINES = 30
APPROVED_FOLDER = Path(__file__).parent / "approved"
APPROVED = (
    *("conv_shrink", "dense_default", "dense_nocupti", "dense_same", "resnet50_default", "tied"),
)
PAGE = Path(__file__).parents[2] / "docs" / "tasks" / "gpu_is_full.md"
PAGE_OUTPUT = re.compile(r"<!-- approved: (\w+) -->\n```text\n(.*?)```", re.DOTALL)


@pytest.fixture(scope="module")
def profiles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Profile]:
    folder = tmp_path_factory.mktemp("replayed")
    with pytest.MonkeyPatch.context() as monkeypatch:
        return {name: replayed_profile(name, folder, monkeypatch) for name in NAMES}


def printed(profile: Profile) -> str:
    return rendering.printed(profile, detail=Detail.USUAL)


@pytest.mark.parametrize("name", NAMES)
def test_the_profile_has_the_memory_of_the_device(name: str, profiles: dict[str, Profile]) -> None:
    data, device = raw(name), profiles[name].device
    assert device is not None
    assert (device.device.name, device.device.driver) == (
        data["device"]["name"],
        data["device"]["driver"],
    )
    assert device.device.total_bytes == data["marks"][1]["mem_get_info_total"]
    steady = raw_mark(data, "steady")
    assert device.ledger is not None
    assert device.ledger.used_bytes == steady["mem_get_info_used"]
    assert device.ledger.bytes_of("empty_arena") == raw_chunks(data)[1]
    assert device.steady_bytes == device.ledger.own_bytes
    for missing in device.missing:
        assert (missing.source, name.endswith("_nocupti")) == ("CUPTI", True)


@pytest.mark.parametrize("name", NAMES)
def test_the_phases_are_the_steps_of_a_child(name: str, profiles: dict[str, Profile]) -> None:
    data, device = raw(name), profiles[name].device
    assert device is not None
    names = child_marks(data)
    assert [phase.name for phase in device.phases] == list(dict.fromkeys(names[1:]))
    assert sum(phase.count for phase in device.phases) == len(names) - 1
    marks = data["marks"]
    runs = next(phase for phase in device.phases if phase.name == "run")
    assert runs.added_bytes == marks[-2]["mem_get_info_used"] - marks[2]["mem_get_info_used"]


@pytest.mark.parametrize("name", RECORDED_WITH_CUPTI)
def test_the_peak_is_exact(name: str, profiles: dict[str, Profile]) -> None:
    data, device = raw(name), profiles[name].device
    assert device is not None
    peak = 0
    for before, mark in zip(data["marks"], data["marks"][1:], strict=False):
        pages_at_end = len(raw_pages(raw_live(data, mark["cupti_ns"])))
        context = mark["mem_get_info_used"] - 2 * MIB * pages_at_end
        times = [record[0] for record in data["cupti_records"]]
        for time_ns in (before["cupti_ns"], *times):
            if before["cupti_ns"] <= time_ns <= mark["cupti_ns"]:
                pages = len(raw_pages(raw_live(data, time_ns)))
                peak = max(peak, context + 2 * MIB * pages)
    assert device.peak_bytes == peak
    assert device.peak_ledger is not None
    assert device.peak_ledger.own_bytes == peak


@pytest.mark.parametrize("name", RECORDED_WITH_CUPTI)
def test_the_timeline_passes_through_the_readings(name: str, profiles: dict[str, Profile]) -> None:
    data, device = raw(name), profiles[name].device
    assert device is not None
    line = device.timeline
    assert line is not None
    assert line.t_s == tuple(sorted(line.t_s))
    for mark in data["marks"][1:-1]:
        at = min(range(len(line.t_s)), key=lambda row: abs(line.t_s[row] - elapsed_s(mark, data)))
        assert line.t_s[at] == pytest.approx(elapsed_s(mark, data), abs=1e-3)
        used = line.allocated_bytes[at] + (line.context_bytes[at] or 0)
        assert used == mark["mem_get_info_used"]
    columns = zip(line.allocated_bytes, line.context_bytes, strict=True)
    assert max(allocated + (context or 0) for allocated, context in columns) == max(
        phase.peak_bytes or 0 for phase in device.phases if phase.name != "deleted"
    )


@pytest.mark.parametrize("name", RECORDED_WITHOUT_CUPTI)
def test_without_cupti_no_peak_and_no_timeline_is_claimed(
    name: str, profiles: dict[str, Profile]
) -> None:
    device = profiles[name].device
    assert device is not None
    assert device.peak_bytes is None
    assert device.peak_ledger is None
    assert device.timeline is None
    assert "peak (exact)" not in printed(profiles[name])


@pytest.mark.parametrize("name", NAMES)
def test_the_summary_starts_with_the_device_and_is_short(
    name: str, profiles: dict[str, Profile]
) -> None:
    lines = printed(profiles[name]).splitlines()
    model = Path(profiles[name].model.path).name
    assert lines[0].startswith(f"{model}: ")
    assert " on the GPU (NVIDIA H100 80GB HBM3)" in lines[0]
    assert any(line.startswith("device ") for line in lines)
    assert len(lines) <= MAX_LINES


@pytest.mark.parametrize("name", APPROVED)
def test_the_summary_reads_well(name: str, profiles: dict[str, Profile]) -> None:
    assert_approved(printed(profiles[name]), APPROVED_FOLDER / f"{name}.txt")


def test_the_outputs_of_the_task_page_are_those_of_the_recordings() -> None:
    outputs = PAGE_OUTPUT.findall(PAGE.read_text())
    assert len(outputs) == 2
    for name, output in outputs:
        assert (APPROVED_FOLDER / f"{name}.txt").read_text().startswith(output)


@pytest.mark.parametrize("name", NAMES)
def test_the_record_and_its_other_forms_have_all_of_it(
    name: str, profiles: dict[str, Profile]
) -> None:
    profile = profiles[name]
    assert codec.decode(codec.encode(profile), Profile) == profile
    markdown = rendering.markdown(profile)
    assert "### Owners on the GPU" in markdown
    assert "### Phases on the GPU" in markdown
    for finding in profile.device.findings if profile.device else ():
        assert finding.name in markdown


def test_an_issue_names_the_gpu(profiles: dict[str, Profile]) -> None:
    text = REPORT.render(profiles["tied"], "issue").decode()
    assert "NVIDIA H100 80GB HBM3 (driver 580.159.04)" in text
    assert "--provider CUDAExecutionProvider" in text


def test_without_an_xray_the_arena_is_not_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = replayed_profile("dense_nocupti", tmp_path, monkeypatch, xray=False)
    device = profile.device
    assert device is not None
    assert device.ledger is not None
    assert [row.label for row in device.ledger.rows] == [
        "context and code",
        "arena, libraries and rounding",
    ]
    assert device.missing_reason("arena") == "there is no X-ray"
    assert device.ledger.used_bytes == recorded("dense_nocupti").marks[-2].used_bytes
