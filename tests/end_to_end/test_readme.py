"""Commands, options, code and links of the README work as printed."""

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from pkgutil import iter_modules

import pytest

from memdiag.api.project_settings import read_project_settings
from memdiag.cli import commands
from tests.decoders import decoder, saved

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_its_python_runs(tmp_path: Path, sample_model: Callable[..., Path]) -> None:
    _, block = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (tmp_path / "model.onnx").symlink_to(sample_model("tied_if"))
    finished = subprocess.run(
        [sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True, timeout=100
    )
    assert finished.returncode == 0, finished.stderr
    *found, last = finished.stdout.splitlines()
    assert any(line.startswith("shared-weight-transposed: ") for line in found)
    assert re.fullmatch(r"\d+ MiB in [a-z_]+ \((exact|sampled)\)", last)


@pytest.mark.usefixtures("measured_once")
def test_its_budget_is_a_test(pytester: pytest.Pytester, sample_model: Callable[..., Path]) -> None:
    block, _ = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (pytester.path / "model.onnx").symlink_to(sample_model("tied_if"))
    pytester.makepyfile(test_memory=block)
    pytester.runpytest_inprocess("-q").assert_outcomes(passed=1)


def test_its_options_exist(
    memdiag: Callable[..., "subprocess.CompletedProcess[str]"], pytester: pytest.Pytester
) -> None:
    names = [module.name for module in iter_modules(commands.__path__)]
    helps = [memdiag(command, "--help", COLUMNS="200").stdout for command in names]
    helps.append(pytester.runpytest_inprocess("--help").stdout.str())
    known = set(re.findall(r"--[a-z-]+", "".join(helps)))
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", README))
    assert named <= known


@pytest.mark.parametrize(
    "words", re.findall(r"^memdiag ((?:check|explain|inspect|estimate).*)$", README, re.M)
)
def test_its_commands_that_run_nothing_work(
    memdiag: Callable[..., "subprocess.CompletedProcess[str]"],
    tmp_path: Path,
    sample_model: Callable[..., Path],
    words: str,
) -> None:
    (tmp_path / "model.onnx").symlink_to(sample_model("tied_if"))
    assert memdiag(*words.split()).returncode == (1 if words.startswith("check") else 0)


def test_its_settings_are_known(tmp_path: Path) -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", README, re.DOTALL)
    (tmp_path / "pyproject.toml").write_text(block)
    assert read_project_settings(tmp_path).min_size == 1 << 20


def options_in_tables() -> list[tuple[str, str]]:
    """Return the options in tables with the command that they are for: one table a command."""
    found = []
    for command, part in zip(
        ("profile", "estimate"), README.split("### Find waste without running", 1), strict=True
    ):
        options = re.findall(r"^\|.*`(--[^`]+)`", part, re.MULTILINE)
        found += [(command, each) for each in options]
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("command", "options"), options_in_tables())
def test_its_options_are_taken(
    memdiag: Callable[..., "subprocess.CompletedProcess[str]"],
    tmp_path: Path,
    sample_model: Callable[..., Path],
    command: str,
    options: str,
) -> None:
    import numpy as np

    np.save(tmp_path / "ids.npy", np.array([1]))
    np.savez(tmp_path / "all.npz", ids=np.array([1]))
    words = options.replace("batch=4,sequence=", "tokens=").replace("NAME", "CPUExecutionProvider")
    words = words.replace("other/bin/python", sys.executable).replace("--out DIR", "")
    model = sample_model("tied_if")
    if any(option in words for option in ("--steps", "--prefill", "--feed")):
        model = saved(tmp_path, decoder(positions=1024))
    finished = memdiag(command, model, *shlex.split(words), "--out", "out")
    assert finished.returncode == 0, finished.stderr


def test_its_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"(?:^|`)make ([a-z-]+)", README, re.MULTILINE)
    assert targets[:2] == ["demo", "test"]
    assert [target for target in targets if f"\n{target}:" not in makefile] == []


def test_its_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
