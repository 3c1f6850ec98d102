"""What stays after the release, in words, in every format."""

import io

import msgspec
import pytest
from rich.console import Console

from memdiag.records.profile import Profile, ReleaseRemedy, SessionRelease
from memdiag.reports.profile import REPORT
from memdiag.reports.profile.session_release import release_sentence, reload_command
from memdiag.units import MIB
from tests.reports import profiles

KEPT = SessionRelease(
    kept_bytes=41 * MIB,
    in_use_bytes=3 * MIB,
    retained_bytes=30 * MIB,
    library_bytes=8 * MIB,
    file_bytes=1000,
    other_bytes=0,
    trim_returned_bytes=28 * MIB,
)
SENTENCE = (
    "After release 41 MiB stay above the baseline: 30 MiB retained by malloc (malloc_trim returns"
    " 28 MiB), 8.0 MiB libraries, 3.0 MiB in use."
)
REMEDIES = (
    ReleaseRemedy(name="mmap-threshold", setting="NAME=131072", kept_bytes=12 * MIB),
    ReleaseRemedy(name="arena-off", setting="enable_cpu_mem_arena=false", kept_bytes=43 * MIB),
)


def with_release(release: SessionRelease | None) -> Profile:
    """Return the profile of the tied weight, with the phase `release` if there is one."""
    last = profiles.Step("delete the session", "release", 0.1, 1579, 87)
    steps = (*profiles.TIED_IF, last) if release else profiles.TIED_IF
    return msgspec.structs.replace(profiles.build(steps, weights=500, runs=10), release=release)


@pytest.mark.parametrize(
    ("release", "sentence"),
    [
        (KEPT, SENTENCE),
        (None, ""),
        (SessionRelease(kept_bytes=50_000), "After release nothing stays above the baseline."),
        (SessionRelease(kept_bytes=-MIB), "After release nothing stays above the baseline."),
        # The system cannot divide it.
        (SessionRelease(kept_bytes=20 * MIB), "After release 20 MiB stay above the baseline."),
        (
            SessionRelease(kept_bytes=20 * MIB, trim_returned_bytes=0),
            "After release 20 MiB stay above the baseline; malloc_trim returns nothing.",
        ),
        # A part of the baseline is gone.
        (
            SessionRelease(kept_bytes=20 * MIB, in_use_bytes=-2 * MIB, library_bytes=22 * MIB),
            "After release 20 MiB stay above the baseline: 22 MiB libraries, -2.0 MiB in use.",
        ),
    ],
)
def test_the_sentence_names_the_parts(release: SessionRelease | None, sentence: str) -> None:
    assert release_sentence(with_release(release)) == sentence


def test_the_hint_names_the_command_for_reloads() -> None:
    assert reload_command(with_release(KEPT)) == "memdiag leak models/tied_if.onnx --reload"
    assert reload_command(with_release(None)) == ""


def test_the_summary_has_the_phase_the_sentence_and_the_remedies() -> None:
    out = io.StringIO()
    profile = with_release(msgspec.structs.replace(KEPT, remedies=REMEDIES))
    REPORT.print_summary(profile, Console(file=out, width=80))
    text = " ".join(out.getvalue().split())
    assert SENTENCE in text
    assert "release 100 ms 1,579 1,579 87 -1,492" in text
    assert "(as it is) 41 MiB" in text
    assert "malloc_trim 13 MiB malloc_trim(0) after the release" in text
    assert "mmap-threshold 12 MiB NAME=131072" in text
    assert "child process 0 not measured" in text


@pytest.mark.parametrize("format", ["markdown", "html"])
@pytest.mark.parametrize("release", [KEPT, None])
def test_the_reports_have_it_if_it_was_measured(
    release: SessionRelease | None, format: str
) -> None:
    text = REPORT.render(with_release(release), format).decode()
    plain = text.replace("\\_", "_")
    for words in ("After release", "30 MiB retained by malloc", "memdiag leak models/tied_if.onnx"):
        assert (words in plain) == (release is not None), words
    assert "arena-off" not in plain


def test_the_steady_memory_is_that_before_the_release() -> None:
    profile = with_release(KEPT)
    not_run = msgspec.structs.replace(profile, steady=None)
    assert not_run.end == profile.phases[-2].end
    assert not_run.end != profile.phases[-1].end
