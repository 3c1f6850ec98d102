"""``memdiag leak`` of a small model, from the command line to its files."""

from pathlib import Path

from memdiag.records.codec import load
from memdiag.records.growth import Growth
from tests.end_to_end.conftest import RunMemdiag, SampleModel


def test_a_model_that_does_not_leak_is_clean(
    memdiag: RunMemdiag, sample_model: SampleModel, tmp_path: Path
) -> None:
    finished = memdiag("leak", str(sample_model("tied_if")), "--runs", "40", "--out", "found")
    assert finished.returncode == 0, finished.stderr
    answer = "tied_if.onnx: no growth: the resident set is "
    assert finished.stdout.startswith(answer)
    folder = tmp_path / "found"
    names = {f"growth.{suffix}" for suffix in ("html", "json", "md", "png")}
    assert {path.name for path in folder.iterdir()} == names

    growth = load(folder / "growth.json", Growth)
    assert growth.verdict == "flat"
    assert [sample.run for sample in growth.samples] == list(range(1, 41))
    assert len(growth.moments) == 13
    for moment in growth.moments:
        assert sum(owner.bytes for owner in moment.owners) == moment.resident_bytes

    formats = ("--format", "markdown", "--format", "console", "--out", "again")
    again = memdiag("report", str(folder / "growth.json"), *formats)
    assert again.stdout.startswith(answer)
    assert (tmp_path / "again/growth.md").read_text() == (folder / "growth.md").read_text()
