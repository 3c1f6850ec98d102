"""Public results on memory and optimizers, measured again: ``python -m benchmarks.reproductions``.

Sample models stand for the models of the reports, so that it is ratios that are compared. Every
column is measured by `memdiag.compare`, in fresh processes that take turns. The page is
``docs/reproductions.md``.
"""

import argparse
import os
import tempfile
import time
from collections import Counter
from pathlib import Path

import memdiag
from benchmarks.reproduced import denormals, dequantized, early_conversion, optimizers, tied
from benchmarks.reproduced.claims import ALIKE, Part, Setting, wrapped
from memdiag.comparison.environments import CACHE_VARIABLE
from memdiag.runner.machine import describe_machine

PAGE = Path(__file__).parents[1] / "docs" / "reproductions.md"
PARTS = (early_conversion, dequantized, tied, denormals, optimizers)

INTRODUCTION = """\
# Public results, reproduced

Written by `python -m benchmarks.reproductions`, from real runs. Sample models (`python -m
sample_models list`) stand for the models that were reported on, so that the comparable figures are
ratios: what something became, divided by what it was. Ours are *alike* where the two ratios differ
by no more than {alike:.0%}, *the same way* where both rise or both fall, by less or more; all else
is *not here*, or *in doubt* where it is a latency whose 95 % interval reaches the public ratio.

Memory is the resident set above that of the process with its runtime imported and its inputs
made, unless it is said otherwise; a peak is the kernel's own high-water mark. `memdiag compare`
measured all of it but the denormals: medians of {rounds} fresh processes that took turns, smallest
and largest in brackets; the first process of each also had an X-ray, from which reasons are taken.
"""


def page(parts: dict[str, tuple[str, Part]], rounds: int, scale: float, took_s: float) -> str:
    """Return the page: the summary of all claims, then part after part."""
    machine = describe_machine(memdiag.__version__, None, None)
    sized = "" if scale == 1 else f" Models are {scale:g} times their usual size."
    verdicts = Counter(claim.verdict for _, part in parts.values() for claim in part.claims)
    return "\n\n".join(
        [
            INTRODUCTION.format(alike=ALIKE, rounds=rounds).strip(),
            f"{machine.cpu}, {machine.cpu_count} processors, {machine.platform}; the whole took"
            f" {took_s / 60:.0f} minutes.{sized}",
            f"Of {verdicts.total()} figures "
            + "; ".join(f"{count} are {verdict}" for verdict, count in verdicts.most_common())
            + ".",
            *(
                f"## {title}\n\n{wrapped(source)}\n\n{part.text()}"
                for title, (source, part) in parts.items()
            ),
        ]
    )


def main() -> None:
    """Measure everything and write the page."""
    parser = argparse.ArgumentParser(description="Public results, measured again.")
    parser.add_argument("--rounds", type=int, default=3, help="fresh processes each (default 3)")
    parser.add_argument("--scale", type=float, default=1.0, help="size of the models (default 1)")
    parser.add_argument("-o", "--output", type=Path, default=PAGE, help=f"default: {PAGE.name}")
    options = parser.parse_args()
    # Environments lie where the other benchmarks have theirs.
    os.environ.setdefault(CACHE_VARIABLE, str(PAGE.parents[1] / ".cache"))
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        setting = Setting(rounds=options.rounds, scale=options.scale, folder=Path(folder), say=_say)
        parts = {part.TITLE: part.measure(setting) for part in PARTS}
    took_s = time.perf_counter() - started
    options.output.write_text(page(parts, options.rounds, options.scale, took_s) + "\n")
    print(f"wrote {options.output}")


def _say(words: str) -> None:
    print(words, flush=True)


if __name__ == "__main__":
    main()
