"""What cannot be done is one sentence and exit code 2, and leaves every file as it was."""

import os
import shlex
from pathlib import Path

import pytest

from memdiag.records.codec import encode
from tests.end_to_end.conftest import RunMemdiag, SampleModel
from tests.reports import profiles

NO_FILE = "there is no such file"
NO_RANGE = "neither a whole number nor a range or list"
NOT_REGULAR = "not a regular file"

REFUSALS: list[tuple[str, str]] = [
    ("profile missing.onnx", f"missing.onnx: {NO_FILE}"),
    ("profile text.onnx", "text.onnx: not an ONNX model"),
    ("profile short.onnx", "short.onnx: incomplete: it ends at least"),
    ("profile external.onnx", "tied_if.onnx.data"),
    ("profile m.onnx --dim=nope=2", "unknown dimension 'nope'"),
    ("profile m.onnx --dim=tokens=x", "--dim tokens: 'x' is not a whole number"),
    ("profile m.onnx --input=ids", "ids: cannot be read"),
    ("profile m.onnx --input=ids=text.onnx", "text.onnx: cannot be read as arrays"),
    ("profile m.onnx --input=text.onnx", "text.onnx: not an .npz archive"),
    ("profile m.onnx --memory-limit='2 gigs'", "'2 gigs' is not a size"),
    ("profile m.onnx --timeout=0", "--timeout: '0' is not a duration"),
    ("profile m.onnx --runs=0", "--runs must be at least 1"),
    ("profile m.onnx --session-option=logid=me", "session option logid cannot be set"),
    (
        "profile m.onnx --session-option=gpu_mem_limit=1",
        "Pass CUDAExecutionProvider:gpu_mem_limit in --provider-option instead",
    ),
    (
        "profile m.onnx --session-option=graph_optimization_level=most",
        "Choose from disable_all, basic",
    ),
    ("profile m.onnx --python=/no/python", "cannot be started as a Python interpreter"),
    ("profile m.onnx --out=text.onnx", "reports cannot be written there"),
    (
        "profile m.onnx --budget=peek=1GB",
        "--budget: unknown figure 'peek'. Use one of peak, steady,",
    ),
    ("profile m.onnx --budget=steady=1GB --no-run", "cannot check the 'steady' budget"),
    ("profile m.onnx --budget=copies=1 --xray=none", "no X-ray was taken"),
    ("profile m.onnx --update-baseline", "--update-baseline needs a file. Add --baseline FILE"),
    ("profile m.onnx --nope", "unknown argument --nope"),
    ("check m.onnx --select nonsense", "unknown rule 'nonsense'"),
    ("check m.onnx --for-onnxruntime newest", "not a version of onnxruntime"),
    ("check m.onnx --dim batch", "NAME=VALUE"),
    ("check m.onnx -o m.onnx", "m.onnx: a record does not replace a model."),
    ("explain nonsense", "unknown name 'nonsense'. Use a remedy, an option or an optimizer"),
    ("explain arena-of", "Did you mean arena-off?"),
    ("estimate missing.onnx", NO_FILE),
    ("estimate m.onnx --dim tokens", "is not NAME=VALUE"),
    ("estimate m.onnx --dim tokens=-1", NO_RANGE),
    ("estimate m.onnx --dim tokens=9..1", "9..1 is not a range of sizes"),
    ("estimate m.onnx --dim nothing=1", "unknown dimension 'nothing'"),
    ("estimate m.onnx --fit much", "is not a size"),
    ("estimate m.onnx --provider CUDAExecutionProvider --fit 0", "--fit must be greater than 0"),
    ("estimate m.onnx --session-option enable_mem_pattern=2", "must be true or false"),
    ("estimate m.onnx --for-onnxruntime new", "is not a version of onnxruntime"),
    ("fix missing.onnx", NO_FILE),
    ("fix m.onnx -o m.onnx", "the original's own file"),
    ("fix m.onnx --only nonsense", "is not a rewrite"),
    ("fix m.onnx --out m.onnx/reports", "reports cannot be written there"),
    ("fix m.onnx --budget speed=1", "speed"),
    ("fix m.onnx --budget peak=lots", "lots"),
    ("fix m.onnx --max-slowdown 0", "--max-slowdown must be"),
    ("fix m.onnx --sizes 0", "whole numbers from 1"),
    ("fix m.onnx --provider CUDAExecutionProvider", "CUDAExecutionProvider is not there"),
    ("fix m.onnx --provider AnExecutionProvider", "--provider: memory is judged of a session"),
    ("limit m.onnx --provider CUDAExecutionProvider", "CUDAExecutionProvider is not there"),
    ("fix m.onnx --only options -o out.onnx", "so no model is written"),
    ("fix m.onnx -o /proc/nothing/out.onnx", "cannot be"),
    ("compare m.onnx", "there is nothing to compare it with"),
    ("compare m.onnx nowhere.onnx", f"nowhere.onnx: {NO_FILE}. Check the path."),
    ("compare m.onnx --optimizers onnxmin", "unknown optimizer 'onnxmin'. Choose from"),
    (
        "compare m.onnx --onnxruntime 1.32.0,new",
        "'new' is neither a version of onnxruntime, such as 1.24.4, nor the path of an",
    ),
    (
        "compare m.onnx --bisect peak --onnxruntime 1.24.4,./python",
        "--bisect is between versions. Name no environments.",
    ),
    ("report none.json", "none.json: cannot be read"),
    ("report text.json", "text.json: not a saved record, which is JSON. Next to it: "),
    ("report other.json", "other.json: its schema is 'memdiag.check/1', which cannot be read here"),
    ("report broken.json", "broken.json: not a valid fix: "),
    ("report p.json --format pdf", "'pdf' is not a report format of a profile. Choose from"),
    ("sweep m.onnx --budget copies=2x", "copies cannot be a multiple of the weights"),
    ("sweep m.onnx --onnxruntime abc", "'abc' is neither a version"),
    ("sweep m.onnx --against folder", "folder: there is no store of sweeps"),
    ("sweep m.onnx --dim batch=4..1", "4..1 is not a range of sizes"),
    (
        "sweep m.onnx --dim toknes=2",
        "no model has a free dimension 'toknes'. Did you mean 'tokens'?",
    ),
    # Pipes in place of inputs: they are never waited for.
    ("profile m.onnx --input pipe", NOT_REGULAR),
    ("profile m.onnx --input ids=pipe", NOT_REGULAR),
    ("profile m.onnx --baseline pipe", NOT_REGULAR),
    ("profile genai", NOT_REGULAR),
    ("fix m.onnx --input pipe", NOT_REGULAR),
    ("check pipe.onnx", NOT_REGULAR),
    ("compare p.json pipe.json", NOT_REGULAR),
    ("report pipe.json", NOT_REGULAR),
    ("sweep pipe.toml --out new", NOT_REGULAR),
    ("sweep m.onnx --out store", NOT_REGULAR),
    ("sweep m.onnx --out locked", "No such device"),
    # Only a regular file can be replaced by output.
    ("fix m.onnx -o pipe", "cannot be"),
    ("fix m.onnx -o link", "cannot be"),
    ("fix m.onnx -o folder", "cannot be"),
    ("profile m.onnx --out pipe", "cannot be"),
    ("profile m.onnx --update-baseline --baseline pipe", "cannot be"),
    ("profile m.onnx --update-baseline --baseline folder", "cannot be"),
    ("check m.onnx -o folder", "cannot be"),
    ("sweep m.onnx --out pipe", "cannot be"),
    ("sweep m.onnx --out link", "cannot be"),
    ("report p.json --out pipe", "cannot be"),
    ("report p.json --format markdown --out reports", "cannot be"),
]


@pytest.fixture
def folder(tmp_path: Path, sample_model: SampleModel) -> Path:
    """A folder with a model and a profile, and with files that are none."""
    model = sample_model("tied_if")
    (tmp_path / "m.onnx").symlink_to(model)
    (tmp_path / "text.onnx").write_text("hello\n")
    (tmp_path / "short.onnx").write_bytes(model.read_bytes()[:500_000])
    external = sample_model("tied_if", external=True)
    (tmp_path / "external.onnx").write_bytes(external.read_bytes())
    (tmp_path / "p.json").write_bytes(encode(profiles.tied_if()))
    for name, text in (
        ("text", "no record"),
        ("other", '{"schema": "memdiag.check/1"}'),
        ("broken", '{"schema": "memdiag.fix/1"}'),
    ):
        (tmp_path / f"{name}.json").write_text(text)
    for name in ("folder", "genai", "store", "locked", "reports"):
        (tmp_path / name).mkdir()
    for name in ("", ".json", ".toml", ".onnx"):
        os.mkfifo(tmp_path / f"pipe{name}")
    for name in ("store/store.json", "locked/.lock", "genai/genai_config.json"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "link").symlink_to("pipe")
    (tmp_path / "reports" / "report.md").symlink_to("../pipe")
    return tmp_path


@pytest.mark.parametrize(("command", "sentence"), REFUSALS, ids=[row[0] for row in REFUSALS])
def test_what_cannot_be_done_is_one_sentence(
    memdiag: RunMemdiag, folder: Path, command: str, sentence: str
) -> None:
    def files() -> dict[str, int]:
        return {str(path): path.lstat().st_mode for path in folder.rglob("*")}

    before = files()
    finished = memdiag(*shlex.split(command))
    assert finished.returncode == 2
    assert finished.stdout == "" or "could not be read" in finished.stdout
    assert finished.stderr.startswith("memdiag: ")
    assert finished.stderr.count("\n") == 1
    assert sentence in finished.stderr
    after = files()
    assert before.items() <= after.items()
    assert len(before) == len(after) or command.startswith("sweep")  # which makes its store first


def test_pipes_beside_what_is_read_are_passed_over(memdiag: RunMemdiag, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "profile.json").write_bytes(encode(profiles.tied_if()))
    os.mkfifo(tmp_path / "folder" / "fix.json")
    for name in ("folder", "folder/profile.json"):
        finished = memdiag("report", name, "--format", "markdown")
        assert finished.returncode == 0, finished.stderr


def test_settings_in_a_pipe_are_refused(memdiag: RunMemdiag, folder: Path) -> None:
    os.mkfifo(folder / "pyproject.toml")
    finished = memdiag("check", "m.onnx")
    assert finished.returncode == 2
    assert "pyproject.toml: cannot be read (not a regular file)" in finished.stderr
