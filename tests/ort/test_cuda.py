"""Whether a session on CUDA is possible: by the files of onnxruntime and of the driver."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from memdiag.errors import UsageError
from memdiag.ort import cuda


def with_package(monkeypatch: pytest.MonkeyPatch, folder: Path, *, is_for_cuda: bool) -> None:
    """Let the onnxruntime in `folder` be the installed one."""
    package = folder / "onnxruntime"
    (package / "capi").mkdir(parents=True)
    if is_for_cuda:
        (package / "capi" / "libonnxruntime_providers_cuda.so").touch()
    spec = SimpleNamespace(origin=str(package / "__init__.py"))
    monkeypatch.setattr(cuda, "find_spec", lambda name: spec)


@pytest.mark.parametrize(
    ("is_for_cuda", "has_driver", "problem"),
    [
        (True, True, ""),
        (True, False, "this machine has no NVIDIA driver"),
        (False, True, "the installed onnxruntime is not a build for CUDA"),
        (False, False, "the installed onnxruntime is not a build for CUDA"),
    ],
)
def test_what_is_missing_is_said(
    is_for_cuda: bool,
    has_driver: bool,
    problem: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_package(monkeypatch, tmp_path, is_for_cuda=is_for_cuda)

    def load(name: str) -> object:
        if not has_driver:
            raise OSError(name)
        return object()

    monkeypatch.setattr("memdiag.ort.cuda.ctypes.CDLL", load)
    if not problem:
        cuda.require_cuda()
        return
    with pytest.raises(UsageError, match=problem):
        cuda.require_cuda()


def test_without_onnxruntime_there_is_no_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "find_spec", lambda name: None)
    assert not cuda.has_cuda_provider()
