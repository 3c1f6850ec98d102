"""The workflows, the container file and the citation: what can be checked without a host."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
CONTAINER = (ROOT / "Containerfile").read_text("utf-8")


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text("utf-8"))


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the container file, each with its arguments in one line."""
    lines = [line for line in CONTAINER.splitlines() if not line.startswith("#")]
    text = re.sub(r"\s*\\\n\s*", " ", "\n".join(lines))
    return [
        (name, arguments)
        for name, _, arguments in (line.partition(" ") for line in text.splitlines() if line)
    ]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_has_no_more_rights_than_it_needs(path: Path) -> None:
    workflow = read(path)
    assert workflow["permissions"] in ({"contents": "read"}, {})
    for name, job in workflow["jobs"].items():
        rights = job.get("permissions", {})
        allowed = {"id-token": "write"} if name == "publish" else {"contents": "read"}
        assert rights.items() <= allowed.items()
        assert job["timeout-minutes"] <= 180
        for step in job["steps"]:
            if step.get("uses", "").startswith("actions/checkout"):
                assert step["with"]["persist-credentials"] is False
            assert re.fullmatch(r"[\w-]+/[\w/-]+@(v\d+|release/v1)", step.get("uses", "a/b@v1"))
            # Text of a pull request must not become a part of a command.
            assert "${{" not in step.get("run", "")


def test_the_commands_of_workflows_are_those_of_the_repository() -> None:
    runs = "\n".join(
        step.get("run", "")
        for path in WORKFLOWS
        for job in read(path)["jobs"].values()
        for step in job["steps"]
    )
    assert "bash .ci/run" in runs
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make ([a-z-]+)", runs, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    for module in re.findall(r"-m (benchmarks\.\w+)", runs):
        assert (ROOT / f"{module.replace('.', '/')}.py").is_file(), module


def test_only_what_was_built_and_checked_is_published() -> None:
    jobs = read(ROOT / ".github" / "workflows" / "release.yml")["jobs"]
    assert jobs["publish"]["needs"] == "build"
    assert [step["uses"].partition("@")[0] for step in jobs["publish"]["steps"]] == [
        "actions/download-artifact",
        "pypa/gh-action-pypi-publish",
    ]


def test_the_container_needs_no_root_and_no_writable_root() -> None:
    found = instructions()
    names = [name for name, _ in found]
    assert names == ["ARG", "FROM", "COPY", "RUN", "ENV", "WORKDIR", "USER", "ENTRYPOINT", "CMD"]
    values = dict(found)
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", values["USER"])
    variables = dict(word.split("=", 1) for word in values["ENV"].split())
    assert variables["HOME"] == "/tmp"  # where libraries keep their caches
    assert values["ENTRYPOINT"] == '["memdiag"]'
    # It states the options under which it was tried.
    for option in ("--read-only", "--tmpfs /tmp", "--cap-drop ALL", "no-new-privileges"):
        assert option in CONTAINER


def test_the_container_has_a_supported_python() -> None:
    version = re.search(r"^ARG PYTHON=(.+)$", CONTAINER, re.MULTILINE)
    assert version
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"Programming Language :: Python :: {version[1]}" in project["classifiers"]


def test_the_citation_is_of_this_project() -> None:
    citation = read(ROOT / "CITATION.cff")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert citation["title"] == project["name"]
    assert citation["license"] == project["license"]
    assert citation["authors"] == project["authors"]
