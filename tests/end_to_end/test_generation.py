"""``memdiag profile`` and ``estimate`` of a decoder that generates; mistakes are one line each."""

import json
from pathlib import Path

from tests.decoders import decoder, genai_config, saved
from tests.end_to_end.conftest import RunMemdiag


def test_a_folder_for_genai_is_profiled_and_estimated(memdiag: RunMemdiag, tmp_path: Path) -> None:
    folder = tmp_path / "tiny-decoder"
    folder.mkdir()
    saved(folder, decoder())
    (folder / "genai_config.json").write_text(json.dumps(genai_config()))
    finished = memdiag("profile", folder, "--steps", "6", "--prefill", "20")
    assert finished.returncode == 0, finished.stderr
    assert "with a prompt of 20 tokens and 6 steps" in " ".join(finished.stdout.split())
    assert "\nprefill " in finished.stdout
    assert "\ndecode ×6 " in finished.stdout
    assert max(map(len, finished.stdout.splitlines())) <= 80
    reports = tmp_path / "reports" / "tiny-decoder"
    assert "tokens in the context" in (reports / "report.html").read_text()
    again = memdiag("report", reports / "profile.json", "--format", "markdown")
    assert "### Generation" in again.stdout
    estimated = memdiag("estimate", folder, "--steps", "6", "--prefill", "20", "-v")
    assert estimated.returncode == 0, estimated.stderr
    assert "KV cache after 26 tokens" in estimated.stdout


def test_a_mistake_is_one_line(memdiag: RunMemdiag, tmp_path: Path) -> None:
    model = saved(tmp_path, decoder())
    for command in ("profile", "estimate"):
        finished = memdiag(command, model, "--steps", "6", "--feed", "gone.*=past.*")
        assert finished.returncode == 2
        assert len(finished.stderr.splitlines()) == 1
        assert "no output is called 'gone.*'" in finished.stderr
