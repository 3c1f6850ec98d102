"""``memdiag history`` on saved profiles."""

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import msgspec
import pytest

from memdiag.records.codec import encode
from tests.reports import profiles

RunMemdiag = Callable[..., "CompletedProcess[str]"]


@pytest.fixture
def saved(tmp_path: Path) -> list[str]:
    """Two profiles of one model, the second with a byte more at the peak."""
    for number in range(2):
        profile = profiles.tied_if()
        peak = profile.peak_rss_bytes + number
        text = encode(msgspec.structs.replace(profile, peak_rss_bytes=peak))
        (tmp_path / f"{number}.json").write_bytes(text)
    return ["0.json", "1.json"]


def test_profiles_are_added_and_shown(
    memdiag: RunMemdiag, tmp_path: Path, saved: list[str]
) -> None:
    added = memdiag("history", "add", *saved, "--label=abc")
    assert (added.returncode, added.stdout) == (
        0,
        "reports/history.sqlite: 2 added, 0 known already\n",
    )
    assert memdiag("history", "add", saved[0]).stdout.endswith("0 added, 1 known already\n")
    shown = memdiag("history", "show", "--figure=peak", "--picture=trend.png")
    assert shown.returncode == 0, shown.stderr
    lines = shown.stdout.splitlines()
    assert lines[:3] == [
        "peak: the largest resident set, above the baseline",
        "",
        "models/tied_if.onnx",
    ]
    assert lines[3].endswith("abc  onnxruntime 1.31.1  1.50 GiB")
    assert lines[4].endswith("1.50 GiB  +1 B")
    assert (tmp_path / "trend.png").read_bytes().startswith(b"\x89PNG")
    memdiag("history", "show", "--picture=trend.svg")
    assert (tmp_path / "trend.svg").read_bytes().startswith(b"<?xml")
    record = json.loads(memdiag("history", "show", "--format=json").stdout)
    assert record["schema"] == "memdiag.history/1"
    assert [entry["figures"]["peak"] % 2 for entry in record["entries"]] == [0, 1]


@pytest.mark.usefixtures("saved")
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["show"], "there is no such history. Create it with memdiag history add"),
        (["add"], "history add: no profile was given"),
        (["show", "0.json"], "history show: unexpected argument 0.json"),
        (["add", "none.json"], "none.json: cannot be read"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    memdiag: RunMemdiag, words: list[str], sentence: str
) -> None:
    finished = memdiag("history", *words)
    assert finished.returncode == 2
    assert sentence in finished.stderr
