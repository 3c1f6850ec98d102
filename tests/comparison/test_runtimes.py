import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from memdiag.comparison import runtimes
from memdiag.comparison.environments import cache_folder
from memdiag.errors import ProvisionError, UsageError

LISTING = "onnxruntime (1.31.1)\nAvailable versions: 1.31.1, 1.9.0, 1.24.4, 1.25.0.dev1\n"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("MEMDIAG_CACHE", str(tmp_path))
    runtimes.registry_versions.cache_clear()
    yield tmp_path
    runtimes.registry_versions.cache_clear()


def cached(cache: Path, version: str, *, ready: bool = True) -> Path:
    python = cache / "runtimes" / version / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    if ready:
        (cache / "runtimes" / version / ".ready").touch()
    return python


def no_network(words: object, what: str) -> str:
    raise ProvisionError(f"{what}: the package registry cannot be reached.")


def test_a_version_that_is_here_needs_no_other_interpreter(cache: Path) -> None:
    version = runtimes.distribution_version()
    assert version is not None
    assert runtimes.runtime_interpreter(version) == Path(sys.executable)
    assert [*cache.iterdir()] == []
    python = cached(cache, "1.2.3")
    assert runtimes.runtime_interpreter("1.2.3") == python


@pytest.mark.parametrize(("version", "numpy"), [("1.18.1", "numpy<2"), ("1.19.2", "numpy")])
def test_a_version_for_numpy_1_is_made_with_it(
    cache: Path, monkeypatch: pytest.MonkeyPatch, version: str, numpy: str
) -> None:
    asked: list[tuple[str, ...]] = []

    def environment(home: Path, packages: tuple[str, ...]) -> Path:
        asked.append((home.name, *packages))
        return home

    monkeypatch.setattr(runtimes, "provided_interpreter", environment)
    runtimes.runtime_interpreter(version)
    assert asked == [(version, f"onnxruntime=={version}", numpy)]


@pytest.mark.parametrize("text", ["", "newest", "1.24.4; rm", "1"])
def test_what_is_no_version_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is neither a version of onnxruntime"):
        runtimes.runtime_interpreter(text)


def test_releases_are_listed_by_their_age(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtimes, "run_tool", lambda words, what: LISTING)
    assert runtimes.registry_versions() == ("1.9.0", "1.24.4", "1.31.1")
    assert runtimes.latest_version() == ("1.31.1", "")
    runtimes.registry_versions.cache_clear()
    monkeypatch.setattr(runtimes, "run_tool", lambda words, what: "onnxruntime\n")
    with pytest.raises(ProvisionError, match="has none"):
        runtimes.registry_versions()


def test_without_network_the_newest_is_one_that_is_here(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached(cache, "1.2.3")
    newest = cached(cache, "99.0.0").parents[1]
    cached(cache, "99.1.0", ready=False)
    monkeypatch.setattr(runtimes, "run_tool", no_network)
    version, remark = runtimes.latest_version()
    assert version == newest.name
    assert "cannot be reached" in remark
    assert runtimes.local_versions() == ("1.2.3", runtimes.distribution_version(), "99.0.0")


def test_with_nothing_here_there_is_no_newest(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtimes, "run_tool", no_network)
    monkeypatch.setattr(runtimes, "distribution_version", lambda: None)
    with pytest.raises(ProvisionError, match="cannot be reached"):
        runtimes.latest_version()


def test_interpreters_are_found_by_path(cache: Path) -> None:
    python = cached(cache, "1.2.3")
    assert runtimes.existing_interpreter(python) == python
    assert runtimes.existing_interpreter(cache / "runtimes" / "1.2.3") == python
    for path in (cache, cache / "nothing"):
        with pytest.raises(UsageError, match="neither a Python interpreter nor an environment"):
            runtimes.existing_interpreter(path)


def test_paths_are_told_from_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("candidate", "1.24.4"):
        (tmp_path / folder).mkdir()
    paths: list[str | Path] = ["candidate", "env/bin/python", "./1.24.4", Path("1.24.4")]
    versions = ("1.24.4", "latest", "1.33.0rc1", "mistyped")
    found = runtimes.versions_and_environments([*versions, *paths])
    assert found == (versions, tuple(map(Path, paths)))
    assert runtimes.versions_and_environments(()) == ((), ())


def test_an_interpreter_says_what_it_has_with_telemetry_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert runtimes.interpreter_version(Path(sys.executable)) == runtimes.distribution_version()
    assert runtimes.interpreter_version(tmp_path / "nothing") is None
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY")
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho ${ORT_DISABLE_TELEMETRY:-0}.2.3\n")
    python.chmod(0o755)
    assert runtimes.interpreter_version(python) == "1.2.3"


def test_the_cache_is_where_it_is_named_or_where_users_have_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMDIAG_CACHE", str(tmp_path / "named"))
    assert cache_folder() == tmp_path / "named"
    monkeypatch.delenv("MEMDIAG_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "memdiag"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "memdiag"
