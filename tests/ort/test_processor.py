from collections.abc import Iterator
from pathlib import Path

import pytest

from memdiag.ort import processor


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    for asked in (processor.has_sme, processor.has_amx):
        asked.cache_clear()
    yield
    for asked in (processor.has_sme, processor.has_amx):
        asked.cache_clear()


@pytest.mark.parametrize(
    ("machine", "features", "has"),
    [
        ("aarch64", "Features\t: fp asimd sve2 sme sme2\n", "sme"),
        ("arm64", "Features\t: fp sme\n", "sme"),
        ("aarch64", "Features\t: fp asimd sve2 smexample\n", ""),
        ("aarch64", "model name\t: an sme\n", ""),
        ("x86_64", "Features\t: sme\n", ""),  # there it is memory encryption
        ("x86_64", "flags\t: fpu sme\n", ""),
        ("x86_64", "flags\t: fpu amx_bf16 amx_tile amx_int8\n", "amx"),
        ("x86_64", "flags\t: fpu amx_bf16 amx_tile\n", ""),
        ("aarch64", "flags\t: amx_int8\n", ""),
    ],
)
def test_linux_lists_them_among_the_features_of_a_processor(
    machine: str, features: str, has: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor\t: 0\n{features}")
    monkeypatch.setattr(processor, "_CPUINFO_FILE", cpuinfo)
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert (processor.has_sme(), processor.has_amx()) == (has == "sme", has == "amx")


def test_without_an_answer_it_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "_CPUINFO_FILE", tmp_path / "gone")
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert not processor.has_sme()
