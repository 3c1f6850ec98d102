"""The command line of the samples: what it writes, lists and refuses."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from sample_models import load_recipes
from sample_models.__main__ import main


@pytest.mark.parametrize(
    ("arguments", "printed", "names"),
    [
        (["tied_if", "-o", "small.onnx"], "wrote small.onnx\n", ["small.onnx"]),
        (
            ["tied_if", "-o", "small.onnx", "--external"],
            "wrote small.onnx and small.onnx.data\n",
            ["small.onnx", "small.onnx.data"],
        ),
        (["spike"], "wrote spike.onnx\n", ["spike.onnx"]),  # the name of the recipe
    ],
)
def test_a_sample_is_written_where_it_was_asked(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    printed: str,
    names: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*arguments, "--megabytes", "0.5"]) == 0
    assert capsys.readouterr().out == printed
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    if len(names) == 2:
        assert Path(names[0]).stat().st_size < 2000 < Path(names[1]).stat().st_size


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


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [(["tied_iff"], "tied_if"), (["tied_if", "--denormals", "0.5"], "denormal_conv alone")],
)
def test_an_unknown_sample_or_option_is_refused(
    capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert complaint in capsys.readouterr().err


def test_the_share_of_denormals_can_be_chosen(tmp_path: Path) -> None:
    shares = []
    for share in ("0", "0.25"):
        path = tmp_path / f"{share}.onnx"
        words = ["denormal_conv", "--megabytes", "0.5", "-o", str(path), "--denormals", share]
        assert main(words) == 0
        tensors = map(onnx.numpy_helper.to_array, onnx.load_model(path).graph.initializer)
        values = np.concatenate([array.ravel() for array in tensors])
        shares.append(float(np.mean(np.abs(values) < np.finfo(np.float32).tiny)))
    assert shares == [0, pytest.approx(0.25, abs=0.01)]
