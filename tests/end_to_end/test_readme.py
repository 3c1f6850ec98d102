"""Commands, options and links of the README work as printed."""

import re
from pathlib import Path
from pkgutil import iter_modules

import pytest

from memdiag.cli import commands
from tests.end_to_end.conftest import RunMemdiag, SampleModel

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_its_options_exist(memdiag: RunMemdiag, pytester: pytest.Pytester) -> None:
    names = [module.name for module in iter_modules(commands.__path__)]
    helps = [memdiag(command, "--help", COLUMNS="200").stdout for command in names]
    helps.append(pytester.runpytest_inprocess("--help").stdout.str())
    known = set(re.findall(r"--[a-z-]+", "".join(helps)))
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", README))
    assert named <= known


@pytest.mark.parametrize(
    "words",
    re.findall(r"`memdiag ((?:check|estimate) [^`]*)`", README.replace("batch=", "tokens=")),
)
def test_its_commands_that_run_nothing_work(
    memdiag: RunMemdiag, tmp_path: Path, sample_model: SampleModel, words: str
) -> None:
    (tmp_path / "model.onnx").symlink_to(sample_model("tied_if"))
    quick = ["--no-run"] if "--fit" in words else []
    finished = memdiag(*words.split(), *quick)
    assert finished.returncode == (1 if words.startswith("check") else 0)


@pytest.mark.usefixtures("measured_once")
def test_its_budget_is_a_test(pytester: pytest.Pytester, sample_model: SampleModel) -> None:
    (marker,) = re.findall(r"`(@pytest[^`]+)`", README)
    (pytester.path / "model.onnx").symlink_to(sample_model("tied_if"))
    pytester.makepyfile(test_memory=f"import pytest\n\n{marker}\ndef test_it(): ...\n")
    pytester.runpytest_inprocess("-q").assert_outcomes(passed=1)


def test_its_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"(?:^|`)make ([a-z-]+)", README, re.MULTILINE)
    assert set(targets) == {"demo", "docs", "test"}
    assert [target for target in targets if f"\n{target}:" not in makefile] == []


def test_its_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
