"""The command line of the samples: what it writes, lists and refuses."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from sample_models import load_recipes
from sample_models.__main__ import main


def test_a_sample_is_written_where_it_was_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "small.onnx"
    assert main(["tied_if", "--megabytes", "0.5", "-o", str(path)]) == 0
    assert capsys.readouterr().out == f"wrote {path}\n"
    assert [found.name for found in tmp_path.iterdir()] == ["small.onnx"]


def test_external_writes_two_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "small.onnx"
    assert main(["tied_if", "--megabytes", "0.5", "-o", str(path), "--external"]) == 0
    assert capsys.readouterr().out == f"wrote {path} and {path}.data\n"
    assert path.stat().st_size < 2000 < (tmp_path / "small.onnx.data").stat().st_size


def test_the_default_name_is_the_recipes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["spike", "--megabytes", "1"]) == 0
    assert capsys.readouterr().out == "wrote spike.onnx\n"
    assert Path("spike.onnx").exists()


def test_all_writes_every_sample_into_a_folder(tmp_path: Path) -> None:
    assert main(["all", "--megabytes", "0.5", "-o", str(tmp_path)]) == 0
    assert sorted(path.stem for path in tmp_path.iterdir()) == sorted(load_recipes())


def test_list_tells_each_sample_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(load_recipes())


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["tied_if", "--megabytes", "2200"], "add --external"),
        (["tied_if", "--megabytes", "0"], "is no size"),
        (["tied_if", "--megabytes", "1", "-o", "missing/model.onnx"], "cannot be written"),
        (["phi_like", "--megabytes", "-1"], "is no size"),
        (["crnn", "--megabytes", "nan"], "is no size"),
        (["denormal_conv", "--megabytes", "1", "--denormals", "1"], "is no share"),
        (["phi_like", "--megabytes", "0.2"], "ask for 0.239"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    complaint: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("sample_models: ")
    assert captured.err.count("\n") == 1
    assert complaint in captured.err
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_sample_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["tied_iff"])
    assert stopped.value.code == 2
    assert "tied_if" in capsys.readouterr().err


def test_the_share_of_denormals_can_be_chosen(tmp_path: Path) -> None:
    sizes = []
    for share in ("0", "0.25"):
        path = tmp_path / f"{share}.onnx"
        words = ["denormal_conv", "--megabytes", "0.5", "-o", str(path), "--denormals", share]
        assert main(words) == 0
        values = np.concatenate(
            [
                onnx.numpy_helper.to_array(tensor).ravel()
                for tensor in onnx.load_model(path).graph.initializer
            ]
        )
        sizes.append(float(np.mean(np.abs(values) < np.finfo(np.float32).tiny)))
    assert sizes == [0, pytest.approx(0.25, abs=0.01)]


def test_other_samples_have_no_denormals_to_choose(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["tied_if", "--denormals", "0.5"])
    assert stopped.value.code == 2
    assert "denormal_conv alone" in capsys.readouterr().err
