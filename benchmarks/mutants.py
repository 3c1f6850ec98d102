"""How many small changes of the code do tests notice? ``python -m benchmarks.mutants --number 67``.

A mutant is a copy of the package with one change: another operator, another constant, a condition
turned round, a result that is dropped, or an option of a command that has its default whatever is
given. It is killed if a quick test fails: of the test file of its module (``tests/a/test_b.py`` of
``memdiag/a/b.py``), or of those of options. Only modules that have such a file are changed. The
choice depends on the seed and on the code alone, so that two versions of the tests are compared on
the same mutants.
"""

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PACKAGE = "memdiag"
OPTION_TESTS = (
    "tests/cli/test_options_arrive.py",
    "tests/cli",
    "tests/api/test_profile_options.py",
)
MAX_TEST_S = 300

_OTHER_OPERATOR: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}


class Mutant(NamedTuple):
    """One change of one module.

    Attributes:
        path: the module, from the root of the repository.
        number: the number of the changed node among all of the module's syntax tree.
        line: where it is.
        kind: how it is changed: ``operator``, ``constant``, ``condition``, ``result``, ``option``.
        tests: the test files that should notice.
    """

    path: str
    number: int
    line: int
    kind: str
    tests: tuple[str, ...]


def mutants(root: Path) -> Iterator[Mutant]:
    """Yield every mutant of the modules below `root` that have a test file of their own."""
    for path in sorted((root / PACKAGE).rglob("*.py")):
        name = path.relative_to(root).as_posix()
        is_command = path.parts[-3:-1] == ("cli", "commands")
        tests = root / "tests" / path.relative_to(root / PACKAGE).with_name(f"test_{path.name}")
        if not is_command and not tests.exists():
            continue
        own = OPTION_TESTS if is_command else (tests.relative_to(root).as_posix(),)
        for number, node in enumerate(ast.walk(ast.parse(path.read_text()))):
            kind = _kind(node)
            if kind and is_command == (kind == "option"):
                yield Mutant(name, number, getattr(node, "lineno", 0), kind, own)


def _kind(node: ast.AST) -> str:
    """Return how `node` can be changed; empty if it cannot."""
    match node:
        case ast.Attribute(value=ast.Name(id="options"), ctx=ast.Load()):
            return "option"
        case ast.BinOp(op=operator) | ast.BoolOp(op=operator) | ast.Compare(ops=[operator]):
            return "operator" if type(operator) in _OTHER_OPERATOR else ""
        case ast.Constant(value=value):
            return "constant" if type(value) in (int, float) else ""
        case ast.If() | ast.IfExp():
            return "condition"
        case ast.Return(value=value):
            return "" if isinstance(value, ast.Constant | None) else "result"
    return ""


class _Changer(ast.NodeTransformer):
    """Changes one node of a syntax tree."""

    def __init__(self, target: ast.AST) -> None:
        self._target = target

    def visit(self, node: ast.AST) -> ast.AST:
        """Return the changed target, and every other node with its children visited."""
        if node is not self._target:
            return self.generic_visit(node)
        match node:
            case ast.Attribute():
                return ast.Constant(None)
            case ast.BinOp(op=operator) | ast.BoolOp(op=operator):
                node.op = _OTHER_OPERATOR[type(operator)]()  # type: ignore[assignment]
            case ast.Compare(ops=[operator]):
                node.ops = [_OTHER_OPERATOR[type(operator)]()]  # type: ignore[list-item]
            case ast.Constant(value=int() | float() as value):
                return ast.Constant(value + 1)
            case ast.If() | ast.IfExp():
                node.test = ast.UnaryOp(ast.Not(), node.test)
            case ast.Return():
                node.value = ast.Constant(None)
        return node


def changed_source(mutant: Mutant, source: str) -> str:
    """Return the module `source` with the change."""
    tree = ast.parse(source)
    target = [*ast.walk(tree)][mutant.number]
    return ast.unparse(ast.fix_missing_locations(_Changer(target).visit(tree)))


def chosen(found: list[Mutant], number: int, seed: int) -> list[Mutant]:
    """Return `number` mutants, of as many modules as there are, and every one of an option."""
    rng = random.Random(seed)
    options = [each for each in found if each.kind == "option"]
    by_path: dict[str, list[Mutant]] = {}
    for each in found:
        if each.kind != "option":
            by_path.setdefault(each.path, []).append(each)
    paths = rng.sample(sorted(by_path), min(number, len(by_path)))
    return [*(rng.choice(by_path[path]) for path in paths), *options]


def is_killed(mutant: Mutant, copy: Path) -> bool:
    """Return whether a quick test fails in `copy` of the repository with the mutant in it."""
    module = copy / mutant.path
    original = module.read_text()
    module.write_text(changed_source(mutant, original))
    words = ("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider")
    quick = ("-m", "not slow and not measures")
    try:
        for tests in mutant.tests:
            done = subprocess.run(
                [sys.executable, *words, *quick, tests],
                cwd=copy,
                env={**os.environ, "PYTHONPATH": str(copy)},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=MAX_TEST_S,
                check=False,
            )
            if done.returncode not in (0, 5):  # 5: it has no quick test
                return True
    except subprocess.TimeoutExpired:
        return True
    finally:
        module.write_text(original)
    return False


def main() -> None:
    """Print each mutant that survives, and how many are killed by kind."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--number", type=int, default=67, help="modules to change once each")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    tried: Counter[str] = Counter()
    killed: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "copy")
        ignored = shutil.ignore_patterns(".git", ".venv", ".cache", "__pycache__", "build")
        shutil.copytree(ROOT, copy, ignore=ignored)
        for mutant in chosen([*mutants(copy)], options.number, options.seed):
            started = time.monotonic()
            dead = is_killed(mutant, copy)
            tried[mutant.kind] += 1
            killed[mutant.kind] += dead
            what = "killed" if dead else "SURVIVES"
            seconds = time.monotonic() - started
            print(
                f"{what:8} {mutant.kind:9} {mutant.path}:{mutant.line} ({seconds:.0f} s)",
                flush=True,
            )
    print(", ".join(f"{kind}: {killed[kind]} of {tried[kind]}" for kind in tried))
    print(f"{sum(killed.values())} of {sum(tried.values())} killed")


if __name__ == "__main__":
    main()
