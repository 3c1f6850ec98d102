"""Environments are made whole or not at all, from a package that the test builds itself."""

import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from memdiag.comparison import environments
from memdiag.comparison.environments import is_ready, provided_interpreter, uv_path
from memdiag.errors import ProvisionError
from memdiag.temporary_names import own_prefix

PACKAGE = "memdiag-made-for-a-test"
MODULE = "made_for_a_test"


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the only place from which packages come, with one wheel in it."""
    folder = tmp_path / "packages"
    folder.mkdir()
    name = PACKAGE.replace("-", "_")
    files = {
        f"{MODULE}.py": "VALUE = 7\n",
        f"{name}-1.0.dist-info/METADATA": (
            f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 1.0\n"
        ),
        f"{name}-1.0.dist-info/WHEEL": (
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        ),
        f"{name}-1.0.dist-info/RECORD": "",
    }
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)
    for tool in ("PIP", "UV"):
        monkeypatch.setenv(f"{tool}_NO_INDEX", "1")
        monkeypatch.setenv(f"{tool}_FIND_LINKS", str(folder))
    return folder


@pytest.fixture(params=["uv", pytest.param("pip", marks=pytest.mark.slow)])
def installer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "pip":
        monkeypatch.setattr(environments, "uv_path", lambda: None)
    elif uv_path() is None:
        pytest.skip("uv is not installed")
    return str(request.param)


def value(python: Path) -> str:
    words = [str(python), "-c", f"import {MODULE}; print({MODULE}.VALUE)"]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


def test_an_environment_is_made_once(packages: Path, installer: str, tmp_path: Path) -> None:
    home = tmp_path / "cache" / "tool"
    python = provided_interpreter(home, [PACKAGE])
    assert value(python) == "7"
    python.unlink()  # as after an upgrade of the interpreter that it was made with
    assert value(provided_interpreter(home, [PACKAGE])) == "7"
    shutil.rmtree(packages)  # what is there needs no packages any more
    assert provided_interpreter(home, [PACKAGE]) == python
    assert [path.name for path in home.parent.iterdir()] == ["tool"]


def test_uv_is_given_the_index_that_pip_is_set_up_for(
    packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if uv_path() is None:
        pytest.skip("uv is not installed")
    index = tmp_path / "index" / PACKAGE
    index.mkdir(parents=True)
    (wheel,) = packages.iterdir()
    (index / "index.html").write_text(f'<a href="{wheel.as_uri()}">{wheel.name}</a>')
    for variable in ("UV_NO_INDEX", "UV_FIND_LINKS"):
        monkeypatch.delenv(variable)
    monkeypatch.setenv("PIP_INDEX_URL", index.parent.as_uri())
    assert value(provided_interpreter(tmp_path / "cache" / "tool", [PACKAGE])) == "7"


def test_a_package_that_is_not_to_be_had_leaves_nothing(
    packages: Path, installer: str, tmp_path: Path
) -> None:
    home = tmp_path / "cache" / "tool"
    with pytest.raises(ProvisionError, match=r"^memdiag-not-there==9: there is no such version"):
        provided_interpreter(home, ["memdiag-not-there==9"])
    assert [*home.parent.iterdir()] == []


def test_a_killed_build_is_removed_and_what_another_process_builds_is_not(
    packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "cache" / "tool"
    program = (
        "import sys, time\nfrom pathlib import Path\n"
        "from memdiag.comparison import environments\n"
        "def build(folder, packages):\n"
        "    (folder / 'bin').mkdir(parents=True)\n"
        "    print('building', flush=True)\n"
        "    time.sleep(60)\n"
        "environments._build_environment = build\n"
        "environments.provided_interpreter(Path(sys.argv[1]), ['anything'])\n"
    )
    words = [sys.executable, "-c", program, str(home)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as building:
        assert building.stdout is not None
        assert building.stdout.readline() == "building\n"
        building.send_signal(signal.SIGKILL)
    (left,) = home.parent.iterdir()
    assert (home.exists(), is_ready(home)) == (False, False)
    with monkeypatch.context() as patched:
        patched.setattr(os, "getpid", os.getppid)
        theirs = home.with_name(f".{own_prefix()}0f")
    theirs.mkdir()
    assert value(provided_interpreter(home, [PACKAGE])) == "7"
    assert (left.exists(), theirs.exists()) == (False, True)


def test_a_folder_of_the_user_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def built(folder: Path, wanted: object) -> None:
        folder.mkdir()

    monkeypatch.setattr(environments, "_build_environment", built)
    home = tmp_path / "cache" / "tool"
    home.mkdir(parents=True)
    (home / "notes.txt").write_text("mine")
    with pytest.raises(ProvisionError, match="cannot be created"):
        provided_interpreter(home, [PACKAGE])
    assert [path.name for path in home.parent.rglob("*")] == ["tool", "notes.txt"]


def test_ctrl_c_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(folder: Path, wanted: object) -> None:
        folder.mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr(environments, "_build_environment", interrupted)
    with pytest.raises(KeyboardInterrupt):
        provided_interpreter(tmp_path / "cache" / "tool", [PACKAGE])
    assert [*(tmp_path / "cache").iterdir()] == []


def test_too_little_room_is_said_before_anything_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(ProvisionError, match=r"only 1\.0 MiB are free.*MEMDIAG_CACHE"):
        provided_interpreter(tmp_path / "cache" / "tool", [PACKAGE])


def test_a_cache_that_is_a_file_is_an_error_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("mine")
    with pytest.raises(ProvisionError, match="cannot be created"):
        provided_interpreter(tmp_path / "cache" / "tool", [PACKAGE])


def test_an_installer_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "_TOOL_TIMEOUT_S", 0.2)
    started = time.monotonic()
    with pytest.raises(ProvisionError, match=r"^numpy: the installer did not end in time"):
        environments.run_tool([sys.executable, "-c", "import time; time.sleep(60)"], "numpy")
    assert time.monotonic() - started < 30


@pytest.mark.parametrize(
    ("reason", "printed"),
    [
        ("no such version", "ERROR: No matching distribution found for x==9"),
        ("no such version", "cause: Because there is no version of x==9 and you\n  require"),
        ("no wheel", "cause: Because x==1.10.0 has no wheels with a matching Python ABI tag"),
        (
            "cannot be reached",
            "error: Request failed after 3 retries\n  cause: Failed to fetch: `i`",
        ),
        (
            "cannot be reached",
            "WARNING: Retrying after connection broken by 'NewConnectionError(refused)'\n"
            "ERROR: No matching distribution found for x==1",
        ),
        ("cannot be reached", "hint: Packages were unavailable because the network was disabled."),
        ("disk is full", "ERROR: an OSError: [Errno 28] No space left on device"),
        ("disk is full", "error: failed to write: No space left on device (os error 28)"),
        ("cannot be installed (ERROR: it is Tuesday).", "one\nERROR: it is Tuesday\n"),
        ("cannot be installed (no reason was given).", ""),
    ],
)
def test_the_reason_is_told_from_what_is_printed(reason: str, printed: str) -> None:
    message = environments.failure_reason(printed)
    assert reason in message
    assert message.endswith(".")
