import platform
from pathlib import Path

import pytest

from memdiag.runner import machine


def test_the_class_of_this_machine_names_system_and_architecture() -> None:
    words = machine.machine_class().split()
    assert words[:2] == [platform.system(), platform.machine()]
    assert machine.machine_class() == machine.machine_class()


@pytest.mark.parametrize(
    ("cpuinfo", "huge", "expected"),
    [
        ("flags\t\t: fpu avx2 avx512f avx512_vnni\n", "always [madvise] never", "avx512_vnni"),
        ("flags\t\t: fpu avx avx2\nflags\t\t: none\n", "[always] madvise never", "avx2"),
        ("Features\t: fp asimd i8mm\n", "", "i8mm"),
        ("", "", ""),
    ],
)
def test_it_follows_vector_instructions_and_huge_pages(
    monkeypatch: pytest.MonkeyPatch, cpuinfo: str, huge: str, expected: str
) -> None:
    def text(path: Path) -> str:
        return cpuinfo if path.name == "cpuinfo" else huge

    monkeypatch.setattr(machine, "_system_file_text", text)
    words = machine.machine_class().split()[2:]
    assert (words[0] if expected else "") == expected
    assert ("huge" in words) == huge.startswith("[always]")


def test_what_the_system_does_not_tell_is_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(machine, "_HUGE_PAGES_FILE", str(tmp_path / "none"))
    assert "huge" not in machine.machine_class()
    assert machine.describe_machine("0.1", None, None).machine == machine.machine_class()
