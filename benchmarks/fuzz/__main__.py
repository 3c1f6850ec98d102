"""Damaged files through the commands: ``python -m benchmarks.fuzz --files 100000``.

Every file is built from a valid one by its number and the seed, and put through what reads files
of its kind (`trial.KINDS`), in a process of its own with limits of time and
address space. What went wrong is counted, and its file kept. With ``--write-readme`` the figures go
to ``benchmarks/README.md``.
"""

import argparse
import gc
import json
import math
import os
import select
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import onnx

import memdiag
from benchmarks.fuzz import trial
from benchmarks.fuzz.trial import BUILD, KINDS, Bases
from benchmarks.readme import replace_part, table
from memdiag.runner.machine import describe_machine
from memdiag.units import MIB

_COMMANDS = tuple(dict.fromkeys(name for kind in reversed(KINDS) for name in kind.commands))
_ROWS = {
    "files": "files",
    "clean": "nothing found, or shown whole",
    "findings": "findings",
    "passed over": "not tried",
    "refused": "refused with a sentence",
    "defect": "a rule failed, “a defect of memdiag's”",
    "unsafe": "printed what a terminal obeys",
    "exception": "escaped exceptions",
    "signal": "ended by a signal",
    "hang": "more than {} s of processor time",
}
_FAILURES = ("defect", "unsafe", "exception", "signal", "hang")
_PROGRESS_S = 30


class Result(NamedTuple):
    """What became of a file: an outcome by command, what went wrong, and what it took."""

    outcomes: dict[str, str]
    failures: list[tuple[str, str, str]]  # command, kind, where
    rules: frozenset[str]
    seconds: float
    peak_bytes: int


class Tally:
    """What was counted so far."""

    def __init__(self) -> None:
        self.files = 0
        self.counts: Counter[tuple[str, str]] = Counter()
        self.failures: Counter[tuple[str, str, str]] = Counter()
        self.first: dict[tuple[str, str, str], int] = {}
        self.rules: Counter[str] = Counter()
        self.peaks: list[int] = []
        self.longest_s = 0.0
        self.started = time.monotonic()

    def add(self, number: int, result: Result) -> None:
        """Count the result of file `number`."""
        self.files += 1
        for command, outcome in result.outcomes.items():
            self.counts[command, "files"] += 1
            self.counts[command, outcome] += 1
        self.counts.update(
            {(command, "defect") for command, kind, _ in result.failures if kind == "defect"}
        )
        for failure in result.failures:
            self.failures[failure] += 1
            self.first.setdefault(failure, number)
        self.rules.update(result.rules)
        self.peaks.append(result.peak_bytes)
        self.longest_s = max(self.longest_s, result.seconds)

    def text(self) -> str:
        """Return the table of outcomes, and the figures about time and memory."""
        rows = [
            [
                text.format(trial.SECONDS),
                *(f"{self.counts[command, name]:,}" for command in _COMMANDS),
            ]
            for name, text in _ROWS.items()
        ]
        peaks = sorted(self.peaks) or [0]
        high = peaks[max(0, math.ceil(len(peaks) * 0.99) - 1)]
        seconds = time.monotonic() - self.started
        return (
            f"{table(['', *(f'`{command}`' for command in _COMMANDS)], rows)}\n\n"
            f"{self.files:,} files in {seconds / 60:,.0f} minutes; the longest took"
            f" {self.longest_s:.1f} s. Peak RSS of a process: {peaks[-1] / MIB:.0f} MiB at most,"
            f" {high / MIB:.0f} MiB at the 99th percentile, {peaks[0] / MIB:.0f} MiB at least."
            f" {len(self.rules)} rules found something."
        )

    def distinct(self) -> str:
        """Return a line for each different failure, the most frequent first."""
        return "\n".join(
            f"{count:6,}  {kind:9}  {command:7}  first {self.first[command, kind, where]}: {where}"
            for (command, kind, where), count in self.failures.most_common()
        )


def run_file(bases: Bases, seed: int, number: int, log: Path) -> Result:
    """Put one file through the commands in a process of its own."""
    reading, writing = os.pipe()
    started = time.monotonic()
    child = os.fork()
    if not child:
        try:
            trial.run(bases, seed, number, writing, log)
        finally:  # never back into the loop of the process that forked
            os._exit(70)
    os.close(writing)
    try:
        output, is_late = _read(reading, started + 6 * trial.SECONDS + 1)
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)  # waited for below, so that it is still this child
        _, status, usage = os.wait4(child, 0)
    lines = [json.loads(line) for line in output.splitlines()]
    result = Result({}, [], frozenset(), time.monotonic() - started, usage.ru_maxrss * 1024)
    rules: set[str] = set()
    begun = ""
    for facts in lines:
        begun = facts.get("begins", "")
        if begun:
            continue
        command, outcome = facts["ends"], facts["outcome"]
        if command == BUILD and outcome == "built":
            continue
        result.outcomes[command] = outcome
        rules.update(facts.get("rules", ()))
        where = facts.get("where", "")
        failures = [("defect", note) for note in facts.get("defects", ())]
        if outcome in _FAILURES:
            failures.append((outcome, where))
        result.failures.extend((command, *failure) for failure in failures)
    if begun:
        is_late |= usage.ru_utime + usage.ru_stime >= trial.SECONDS
        kind = "hang" if is_late else "signal"
        where = _frame(log) if is_late else f"signal {os.WTERMSIG(status)}, {_frame(log)}"
        result.outcomes[begun] = kind
        result.failures.append((begun, kind, where))
    return result._replace(rules=frozenset(rules))


def _read(reading: int, deadline: float) -> tuple[bytes, bool]:
    """Return what comes until the other side ends, and whether it is late with that."""
    output = b""
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([reading], [], [], left)[0]:
            return output, True
        more = os.read(reading, 1 << 16)
        if not more:
            return output, False
        output += more


def _frame(log: Path) -> str:
    """Return the innermost frame of memdiag's that the process wrote as it ended."""
    root = str(Path(memdiag.__file__).parent) + os.sep
    lines = log.read_text(errors="replace").splitlines()
    frames = [line.partition(root)[2] for line in lines if root in line]
    return frames[0] if frames else "nowhere known"


def keep(bases: Bases, number: int, result: Result, folder: Path, log: Path, seed: int) -> None:
    """Save the file `number`, and what is known of its failures."""
    folder.mkdir(parents=True, exist_ok=True)
    kind = sorted({kind for _, kind, _ in result.failures})[0] if result.failures else "chosen"
    source = bases.folder / trial.kind_of(seed, number).name
    target = folder / f"{kind}-{number}{source.suffix}"
    if source.exists():
        shutil.copyfile(source, target)
    text = "\n".join(" ".join(failure) for failure in result.failures)
    target.with_suffix(".txt").write_text(f"{text}\n\n{log.read_text(errors='replace')}")


def main() -> int:
    """Run the files, print the table, and return 0 if nothing went wrong, else 1."""
    parser = argparse.ArgumentParser(prog="benchmarks.fuzz", description=__doc__.split(":")[0])
    parser.add_argument("--files", type=int, default=1000, help="how many (default 1000)")
    parser.add_argument("--seed", type=int, default=0, help="another one gives other files")
    parser.add_argument("--only", type=int, metavar="N", help="the file of this number alone")
    parser.add_argument("--kept", type=Path, metavar="DIR", help="where files that failed go")
    parser.add_argument("--write-readme", action="store_true", help="put the table in the README")
    options = parser.parse_args()
    numbers = range(options.files) if options.only is None else [options.only]
    kept = options.kept or Path(".cache", "fuzz", str(options.seed))
    tally = Tally()
    with tempfile.TemporaryDirectory() as name:
        bases, log = Bases(Path(name)), Path(name, "log")
        trial.lower_least_sizes()
        trial.prepare(bases)
        gc.freeze()
        shown = tally.started = time.monotonic()
        is_interrupted = False
        try:
            for number in numbers:
                result = run_file(bases, options.seed, number, log)
                tally.add(number, result)
                if result.failures or options.only is not None:
                    keep(bases, number, result, kept, log, options.seed)
                if time.monotonic() - shown > _PROGRESS_S:
                    shown = time.monotonic()
                    failed = sum(tally.failures.values())
                    print(f"{tally.files:,} files, {failed:,} failures", file=sys.stderr)
        except KeyboardInterrupt:
            is_interrupted = True
            print(f"Interrupted after {tally.files:,} files.", file=sys.stderr)
    print(tally.text())
    if tally.failures:
        print(f"\n{tally.distinct()}\n\nThe files are in {kept}.")
    if options.only is not None:
        print(f"\nThe file is in {kept}.")
    if options.write_readme and not is_interrupted:
        replace_part("fuzz", _part(tally, options.seed))
    return 1 if tally.failures or is_interrupted else 0


def _part(tally: Tally, seed: int) -> str:
    machine = describe_machine(memdiag.__version__, None, None)
    return (
        f"{machine.cpu}, {machine.platform}, Python {machine.python}, onnx {onnx.__version__};"
        f" seed {seed}.\n\n{tally.text()}"
    )


if __name__ == "__main__":
    sys.exit(main())
