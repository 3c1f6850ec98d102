from collections.abc import Iterator
from pathlib import Path

import pytest

from memdiag.ort import processor


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    processor.has_sme.cache_clear()
    yield
    processor.has_sme.cache_clear()


@pytest.mark.parametrize(
    ("machine", "features", "has_sme"),
    [
        ("aarch64", "Features\t: fp asimd sve2 sme sme2\n", True),
        ("arm64", "Features\t: fp sme\n", True),
        ("aarch64", "Features\t: fp asimd sve2 smexample\n", False),
        ("aarch64", "model name\t: an sme\n", False),
        ("x86_64", "Features\t: sme\n", False),  # there it is memory encryption
        ("x86_64", "flags\t: fpu sme\n", False),
    ],
)
def test_linux_lists_it_among_the_features_of_an_arm_processor(
    machine: str, features: str, has_sme: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor\t: 0\n{features}")
    monkeypatch.setattr(processor, "_CPUINFO", cpuinfo)
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert processor.has_sme() == has_sme


def test_without_an_answer_it_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "_CPUINFO", tmp_path / "gone")
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert not processor.has_sme()
