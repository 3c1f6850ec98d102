import sys
import sysconfig
from importlib import metadata
from pathlib import Path

import pytest

from memdiag.errors import UsageError
from memdiag.ort.runtime import Runtime, installed_version, release_order


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1.24.4", Runtime(1, 24, 4)),
        ("1.24", Runtime(1, 24, 0)),
        (" 1.31.1 ", Runtime(1, 31, 1)),
        ("1.32.0.dev20261101", Runtime(1, 32, 0)),
        ("1.25.0rc1", Runtime(1, 25, 0)),
        ("1.22.1+cu12", Runtime(1, 22, 1)),
    ],
)
def test_a_version_is_read(text: str, expected: Runtime) -> None:
    assert Runtime.parse(text) == expected


def test_releases_are_in_order_with_candidates_before_their_release() -> None:
    releases = ["", "1.9.0", "1.10.0", "1.32.0.dev20260101", "1.32.0rc1", "1.32.0", "1.32.0.post1"]
    assert sorted(reversed(releases), key=release_order) == releases


@pytest.mark.parametrize("text", ["", "latest", "1", "1.x", "1.24.4; rm"])
def test_what_is_no_version_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"Write it like 1\.24\.4"):
        Runtime.parse(text)


def test_releases_are_ordered_by_number() -> None:
    assert Runtime.parse("1.9.1") < Runtime.parse("1.24.0") < Runtime(1, 24, 4)


def test_the_installed_release_is_the_packages() -> None:
    assert str(Runtime.installed()) == metadata.version("onnxruntime")


def test_any_distribution_of_the_import_package_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "onnxruntime").mkdir()
    (tmp_path / "onnxruntime" / "__init__.py").write_text("__version__ = '1.23.4'\nraise OSError\n")
    monkeypatch.delitem(sys.modules, "onnxruntime", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    assert installed_version() == "1.23.4"
    assert Runtime.installed() == Runtime(1, 23, 4)


def test_without_onnxruntime_a_sentence_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert installed_version() is None
    with pytest.raises(UsageError, match=r"pip install 'memdiag\[cpu\]'.*--for-onnxruntime\.$"):
        Runtime.installed()


def test_under_musl_the_sentence_does_not_advise_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    config = {"HOST_GNU_TYPE": "x86_64-pc-linux-musl"}
    monkeypatch.setattr(sysconfig, "get_config_var", config.get)
    with pytest.raises(UsageError, match=r"no build of it for musl.*glibc.*--for-onnxruntime\.$"):
        Runtime.installed()
