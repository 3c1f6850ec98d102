"""What fixing saves, next to the optimizers that there are: ``python -m benchmarks.fix``.

The five duplicate patterns, each of known weights; a tied weight of 500 MB; int4 weights that are
dequantized; and every real model. Every tool writes a model, whose memory is measured in fresh
processes like the original's. The figures go to ``benchmarks/README.md``, a part of it each;
``python -m benchmarks.fix patterns`` makes one part alone.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from statistics import median
from typing import NamedTuple

import onnxruntime

import memdiag
from benchmarks.exported_models import UNSEEN, exported_models
from benchmarks.optimizers import OPTIMIZERS, optimize
from benchmarks.patterns import MB, PATTERNS, WEIGHT_MB
from benchmarks.readme import replace_part, table
from benchmarks.real_models import real_models
from benchmarks.statistics import interleave, spread
from memdiag.api.comparison_inputs import find_comparison_inputs
from memdiag.errors import MeasurementError
from memdiag.model.model_file import open_model
from memdiag.records.fix import REWRITE, Fix
from memdiag.records.measured_change import Figures, LatencyAt
from memdiag.runner.job import InputConfig, Job
from memdiag.runner.machine import describe_machine
from memdiag.runner.session_server import SessionServer
from memdiag.tuning.prepared_models import PreparedModels
from memdiag.tuning.tuning_options import tuning_options
from memdiag.verify.latency import compare_latency
from memdiag.verify.latency_ratio import LatencyRatio
from memdiag.verify.memory import measure_interleaved, median_figures
from sample_models import load_recipes

_DEFAULT_CACHE = Path(__file__).parents[1] / ".cache"
_SIZES = (1, 16)
_TIMES = 3
_ROUNDS = 15
_PAIRS = 15
_SEARCH_S = 60.0
"""For the options of a real model; what is chosen is measured thoroughly after that."""

_LARGE_SEARCH_S = 180.0
"""For models of which one takes more than a GB: each process takes seconds."""

_MAX_RATIO = 1.05
_MAX_HIGH = 1.08
_LATENCY_PAIRS = 48
_LATENCY_S = 30.0
"""The latency of a result is compared again after its search, in sessions of its own."""

_REPEATED = ("silero_vad_16k", "minilm_int8")
_SEARCHES = 10

_LAYERS_MB = 160
_REWRITE = "product-by-rows"
_HEAD = ["model", "by", "peak, MB", "steady, MB", "anonymous, MB", "of its weights", ""]

# A virtual machine may give freed memory back to its host, and get it again ten times as slowly: of
# a file that is written this would be most of the time, by chance. So each process works `_WARMING`
# times, and what it writes the last time goes where it had written before.
_WARMING = 4
_LAST_OF = f"""
import time
def last_of(work, written):
    for _ in range({_WARMING}):
        started = time.perf_counter()
        work()
        seconds = time.perf_counter() - started
        for path in written:
            path.unlink(missing_ok=True)
    return seconds
"""

# The fix alone: everything that `memdiag fix` does without measuring, from findings to files.
_BUILD = f"""{_LAST_OF}
import json, resource, sys
from pathlib import Path
from memdiag.rules import model_detectors
from memdiag.model.model_file import open_model
from memdiag.ort.runtime import Runtime
from memdiag.rewrites.model_editor import ModelEditor
from memdiag.rewrites import rewriters, rewriters_among
from memdiag.rewrites.saving import write_rewritten_model
from memdiag.api.check import RuleSelection, analysis_context, find_waste
model, target, storage, name = sys.argv[1:]
model_detectors(), rewriters()
def fix():
    with open_model(Path(model)) as file:
        ctx = analysis_context(file, Runtime.installed())
        findings, _ = find_waste(ctx, RuleSelection(select=(), min_bytes=0))
        draft = ModelEditor(file)
        for finding in findings:
            for rewriter in rewriters_among(finding.remedies):
                if rewriter.rewrite.name == name and rewriter.check(draft, finding) is None:
                    rewriter.apply(draft, finding)
        write_rewritten_model(draft, Path(target), storage)
seconds = last_of(fix, [Path(target), Path(target + ".data")])
print(json.dumps([seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024]))
"""

_COPY = f"""{_LAST_OF}
import json, shutil, sys
from pathlib import Path
folder, *files = sys.argv[1:]
copies = [Path(folder, "copy-" + str(number)) for number in range(len(files))]
def copy():
    for name, target in zip(files, copies):
        shutil.copyfile(name, target)
print(json.dumps([last_of(copy, copies), 0]))
"""


def measured(model: Path, folder: Path) -> Figures | None:
    """Return what a model takes, in fresh processes with several inputs; None if it cannot run."""
    with open_model(model) as file:
        disk_bytes = sum(path.stat().st_size for path in file.files)
    job = _with_inputs(model, folder, _SIZES)
    return (
        median_figures(measure_interleaved([job], _TIMES)[0], disk_bytes=disk_bytes)
        if job
        else None
    )


def _with_inputs(model: Path, folder: Path, sizes: Sequence[int]) -> Job | None:
    """Return the job of running `model` with inputs of all sizes, kept in `folder`."""
    job = Job(model=model)
    with open_model(model) as file:
        sets = find_comparison_inputs(file, job, folder, InputConfig(), sizes=sizes).sets
    feeds = tuple(each.feeds for each in sets)
    return replace(job, feeds=feeds[0], later_feeds=feeds, runs=len(feeds)) if feeds else None


def rows_of(
    title: str, model: Path, unique: float, slowdowns: Sequence[float] = (1.05,)
) -> list[list[str]]:
    """Return the rows of one model: itself, fixed, and by every optimizer."""
    rows = []
    with tempfile.TemporaryDirectory(dir=model.parent) as scratch:
        folder = Path(scratch)
        before = measured(model, folder / "inputs")
        rows.append([title, "unchanged", *_cells(before, unique), ""])
        for slowdown in slowdowns:
            fixed = memdiag.fix(
                model,
                folder / f"{slowdown}.onnx",
                only=["rewrites"],
                sizes=_SIZES,
                max_slowdown=slowdown,
            )
            name = f"memdiag fix --only rewrites, at most {slowdown:g} × as slow"
            rows.append(["", name, *_cells(fixed.after or before, unique), _remark(fixed)])
        found = memdiag.fix(
            model, folder / "fixed.onnx", sizes=_SIZES, time_limit_s=_LARGE_SEARCH_S
        )
        rows.append(["", "memdiag fix", *_cells(found.after or before, unique), _by(found)])
        for name in OPTIMIZERS:
            target = folder / f"{name.partition(',')[0]}.onnx"
            why = optimize(name, model, target)
            written = None if why else measured(target, folder / f"inputs-{name}")
            rows.append(["", name, *_cells(written, unique), why])
    for row in rows:
        print(*row, sep=" | ", flush=True)
    return rows


def patterns(folder: Path) -> str:
    """Return the table of the five duplicate patterns."""
    rows: list[list[str]] = []
    for number, (title, build) in enumerate(PATTERNS.items()):
        path = folder / f"{number}.onnx"
        build(path)
        # What takes least memory of the first is slower with some sizes.
        rows += rows_of(title, path, WEIGHT_MB, (1.05, 2.0) if number == 0 else (1.05,))
    return table(_HEAD, rows)


def tied(folder: Path) -> str:
    """Return the tables of the tied weight of 500 MB: memory, and what writing the fix costs."""
    rows, costs = [], []
    for title, external in (("embedded", False), ("external", True)):
        home = folder / title
        home.mkdir()
        model = home / "tied.onnx"
        load_recipes()["tied_if"].build(500, model, external)
        rows += rows_of(f"tied_if, 500 MB {title}", model, 500.0, (1.05, 2.0))
        costs += _costs(title, model, home)
    head = ["weights", "what", "seconds", "× copying", "peak RSS, MB"]
    words = (
        f"Writing the fix, without measuring; each process works {_WARMING} times, and the last"
        " counts:"
    )
    return f"{table(_HEAD, rows)}\n\n{words}\n\n{table(head, costs)}"


def int4(folder: Path) -> str:
    """Return the table of 16 layers with int4 weights that are dequantized."""
    model = folder / "qdq.onnx"
    load_recipes()["qdq_matmul"].build(_LAYERS_MB, model, False)
    return table(_HEAD, rows_of(f"qdq_matmul, {_LAYERS_MB} MB", model, _LAYERS_MB))


def real(folder: Path, count: int | None = None, search_s: float = _SEARCH_S) -> str:
    """Return the table of real models and exported architectures, and medians of it.

    They come in an order that is random, and always the same; `count` are the first ones of it.
    Every third is one of those apart, which nobody looked at while the search was written. Ctrl-C
    ends it with the models so far.
    """
    models = {**real_models(), **exported_models()}
    order = sorted(models, key=lambda name: hashlib.sha256(name.encode()).digest())[:count]
    return _searches({name: models[name] for name in order}, folder, search_s, list(OPTIMIZERS))


def unseen(folder: Path, search_s: float = _SEARCH_S) -> str:
    """Return the same of a dozen models at which nobody looked while the search was written."""
    names = [name for kind in UNSEEN.values() for name in kind][::2]
    return _searches(exported_models(names), folder, search_s, ())


def repeat(folder: Path, count: int | None = None) -> str:
    """Return the table of results of equal searches, for the first `count` models."""
    models = {**real_models(), **exported_models()}
    rows = [_repeated(name, models[name], folder) for name in _REPEATED[:count]]
    head = ["model", "before", "most often", "times", "others", "steady after, MB", "seconds"]
    return table(head, rows)


PARTS: dict[str, Callable[[Path], str]] = {
    "patterns": patterns,
    "tied": tied,
    "int4": int4,
    "real": real,
    "unseen": unseen,
    "repeat": repeat,
}


class _RealResult(NamedTuple):
    """The row of a model, with the shares of its memory.

    Attributes:
        cells: the cells of its row.
        before_bytes: its peak.
        peak, steady: what is left of them.
        most_peak, most_steady: the same once inputs have used all rows of mapped tables.
        weights: the weights as a share of the steady memory before.
        latency: the ratio of the latencies, compared after the search; None where nothing changed.
        lost_to: the optimizers whose model takes less, beyond 2 %, at no more latency.
    """

    cells: list[str]
    before_bytes: int
    peak: float
    steady: float
    most_peak: float
    most_steady: float
    weights: float
    latency: LatencyRatio | None
    lost_to: tuple[str, ...]

    @property
    def is_fast(self) -> bool:
        """Whether the latency is known to be within the bounds of the goal."""
        if self.latency is None:
            return True
        return self.latency.median <= _MAX_RATIO and self.latency.high < _MAX_HIGH


def _searches(
    models: Mapping[str, Path], folder: Path, search_s: float, optimizers: Sequence[str]
) -> str:
    """Return the table of searches, one for each model, with the results of `optimizers`."""
    results: list[_RealResult] = []
    with suppress(KeyboardInterrupt):
        for name, path in models.items():
            results.append(_real_result(name, path, folder, search_s, optimizers))
    head = ["model", "weights, MB", "peak, MB", "steady, MB", "optimized", "latency", "seconds"]
    rows = [each.cells for each in sorted(results, key=lambda each: each.cells[0])]
    words = (
        f"Each search takes at most {search_s:.0f} s. Medians of after / before, and of the least"
        " that a single copy of the weights would be:"
    )
    return f"{words}\n\n{_medians(results)}\n\n{table([*head, 'by', *optimizers], rows)}"


def _medians(results: Sequence[_RealResult]) -> str:
    groups: dict[str, list[_RealResult]] = {
        "all": [*results],
        "the third apart": [*results[::3]],
        "20 MB and more": [each for each in results if each.before_bytes >= 20 * MB],
        "100 MB and more": [each for each in results if each.before_bytes >= 100 * MB],
        "below 20 MB": [each for each in results if each.before_bytes < 20 * MB],
    }
    rows = [
        [
            name,
            str(len(group)),
            *(
                f"{median(values):.2f} ×"
                for values in zip(*(each[2:7] for each in group), strict=True)
            ),
            str(sum(each.is_fast for each in group)),
            str(sum(bool(each.lost_to) for each in group)),
        ]
        for name, group in groups.items()
        if group
    ]
    fast = f"at most {_MAX_RATIO} ×, interval below {_MAX_HIGH} ×"
    head = [
        *("models", "number", "peak", "steady", "peak, all rows", "steady, all rows", "weights"),
        *(fast, "an optimizer takes less"),
    ]
    return table(head, rows)


def _repeated(name: str, path: Path, folder: Path) -> list[str]:
    """Return the row of a model that is optimized several times."""
    model = folder / path.name
    shutil.copy(path, model)
    results = []
    for _ in range(_SEARCHES):
        found = memdiag.fix(model, folder / "fixed.onnx", sizes=(1,), time_limit_s=_SEARCH_S)
        results.append(found)
        print(name, found.chosen, found.after, flush=True)
    named = Counter(" + ".join(sorted(found.chosen)) or "nothing" for found in results)
    (often, times), *others = named.most_common()
    before = [found.before.steady_bytes / MB for found in results if found.before]
    after = [found.after.steady_bytes / MB for found in results if found.after]
    return [
        name,
        f"{median(before):.1f}",
        often,
        f"{times} of {len(results)}",
        "; ".join(f"{other} ({count})" for other, count in others),
        f"{median(after):.1f} ({min(after):.1f} to {max(after):.1f})",
        f"{median(found.duration_s for found in results):.0f}",
    ]


def _costs(title: str, model: Path, folder: Path) -> list[list[str]]:
    """Return rows: the time of copying the model's files, and of writing the fix in each way."""
    with open_model(model) as file:
        files = file.files
        # What lies inside a model can mostly not be referred to.
        ways = (*(["in_place"] if file.external_bytes else []), "external", "embedded")
    target = folder / "written.onnx"
    subjects: dict[str, Callable[[], tuple[float, float]]] = {
        "copying the files": partial(_timed, _COPY, folder, *files),
        **{f"fix, {way}": partial(_timed, _BUILD, model, target, way, _REWRITE) for way in ways},
    }
    results = interleave(subjects, _ROUNDS)
    copying = spread([seconds for seconds, _ in results["copying the files"]]).median
    return [
        [
            title,
            name,
            (taken := spread([seconds for seconds, _ in runs])).text(digits=3),
            f"{taken.median / copying:.2f}",
            f"{max(peak for _, peak in runs) / MB:.0f}" if name.startswith("fix") else "",
        ]
        for name, runs in results.items()
    ]


def _timed(code: str, *arguments: str | Path) -> tuple[float, float]:
    """Return the seconds and the peak RSS that `code`, run by itself, prints."""
    root = Path(memdiag.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    seconds, peak = json.loads(done.stdout)
    return seconds, peak


def _real_result(
    name: str, path: Path, folder: Path, search_s: float, optimizers: Sequence[str]
) -> _RealResult:
    home = folder / name
    home.mkdir()
    model = home / path.name
    with open_model(path) as file:
        weight_bytes = file.weight_bytes
        for each in file.files:
            shutil.copy(each, home / each.name)
    found = memdiag.fix(
        model,
        home / "fixed.onnx",
        sizes=(1,),
        time_limit_s=search_s,
    )
    before, after = found.before, found.after
    assert before is not None
    assert after is not None
    latency = _latency(found, model, home) if found.chosen else None
    peers = _kept_peers(name, model, home) if optimizers else {}
    cells = [
        *_real_cells(name, weight_bytes, found, latency),
        *(each.text for each in peers.values()),
    ]
    print(*cells, sep=" | ", flush=True)
    shutil.rmtree(home)
    after_bytes = after.peak_bytes + after.steady_bytes
    return _RealResult(
        cells=cells,
        before_bytes=before.peak_bytes,
        peak=after.peak_bytes / before.peak_bytes,
        steady=after.steady_bytes / before.steady_bytes,
        most_peak=after.most_peak_bytes / before.most_peak_bytes,
        most_steady=after.most_steady_bytes / before.most_steady_bytes,
        weights=weight_bytes / before.steady_bytes,
        latency=latency,
        lost_to=tuple(
            peer_name
            for peer_name, peer in peers.items()
            if peer.both_bytes is not None and peer.both_bytes < 0.98 * after_bytes
            if peer.ratio <= _MAX_RATIO
        ),
    )


def _latency(found: Fix, model: Path, home: Path) -> LatencyRatio:
    """Return the latency of the chosen point as a multiple of that of the unchanged model."""
    unchanged = _with_inputs(model, home / "latency", (1,))
    assert unchanged is not None
    written = home / "fixed.onnx"
    changed = replace(unchanged, model=written if written.exists() else model, runs=None)
    options = tuple(option for option in tuning_options() if option.name in found.chosen)
    for option in options:
        changed = option.added_to(changed)
    changed = PreparedModels(home).prepare(changed, options)
    with (
        SessionServer(replace(unchanged, runs=None), unchanged.later_feeds) as before,
        SessionServer(changed, unchanged.later_feeds) as after,
    ):
        return compare_latency(before, after, 0, pairs=_LATENCY_PAIRS, max_s=_LATENCY_S).ratio


def _real_cells(
    name: str, weight_bytes: int, found: Fix, latency: LatencyRatio | None
) -> list[str]:
    before, after = found.before, found.after
    assert before is not None
    assert after is not None
    has_rows = after.unread_table_bytes >= MB
    all_rows = f" (up to {after.most_steady_bytes / MB:.0f})" if has_rows else ""
    return [
        name,
        f"{weight_bytes / MB:.0f}",
        f"{before.peak_bytes / MB:.0f}",
        f"{before.steady_bytes / MB:.0f}",
        f"{after.peak_bytes / MB:.0f} / {after.steady_bytes / MB:.0f}{all_rows}",
        "{:.2f} × ({:.2f}–{:.2f})".format(*latency[:3]) if latency else "",
        f"{found.duration_s:.0f}",
        _by(found),
    ]


def _by(found: Fix) -> str:
    """Return the names of the rewrites and options that are chosen."""
    remedies = found.remedies if REWRITE in found.chosen else ()
    applied = [remedy.name for remedy in remedies if remedy.status == "applied"]
    options = [name for name in found.chosen if name != REWRITE]
    return ", ".join((*applied, *options)) or "nothing"


class _Peer(NamedTuple):
    """What an optimizer's model takes; `both_bytes` is None where there is none that runs."""

    text: str
    both_bytes: int | None = None
    ratio: float = inf


def _kept_peers(name: str, model: Path, folder: Path) -> dict[str, _Peer]:
    """Return the result of each optimizer, which is kept: it does not depend on memdiag."""
    cache = Path(os.environ.get("MEMDIAG_CACHE") or _DEFAULT_CACHE)
    kept = cache / "fix_peers" / onnxruntime.__version__ / f"{name}.json"
    if not kept.exists():
        found = dict(zip(OPTIMIZERS, _peers(model, folder), strict=True))
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(found))
    return {name: _Peer(*values) for name, values in json.loads(kept.read_text()).items()}


def _peers(model: Path, folder: Path) -> Iterator[_Peer]:
    """Yield peak and steady memory of a real model as each optimizer writes it, and its latency.

    The latency is a multiple of that of the unchanged model, in runs that take turns.
    """
    job = _with_inputs(model, folder / "inputs", (1,))
    assert job is not None
    with SessionServer(replace(job, runs=None), job.later_feeds) as unchanged:
        for name in OPTIMIZERS:
            target = folder / f"{name.partition(',')[0]}.onnx"
            why = optimize(name, model, target)
            yield _Peer(why) if why else _peer(replace(job, model=target), unchanged)


def _peer(job: Job, unchanged: SessionServer) -> _Peer:
    try:
        found = median_figures(measure_interleaved([job], _TIMES)[0], disk_bytes=0)
        with SessionServer(replace(job, runs=None), job.later_feeds) as server:
            ratio = compare_latency(unchanged, server, 0, pairs=_PAIRS).ratio
    except MeasurementError:
        return _Peer("does not run")
    memory = f"{found.peak_bytes / MB:.0f} / {found.steady_bytes / MB:.0f}"
    text = f"{memory}, {ratio.median:.2f} × ({ratio.low:.2f}–{ratio.high:.2f})"
    return _Peer(text, found.peak_bytes + found.steady_bytes, ratio.median)


def _remark(fixed: Fix) -> str:
    applied = ", ".join(remedy.name for remedy in fixed.remedies if remedy.status == "applied")
    return f"{applied} ({_said(fixed.latencies)})" if applied else "nothing was worth changing"


def _said(latencies: tuple[LatencyAt, ...]) -> str:
    return "; ".join(
        f"{at.inputs} {at.ratio:.2f} × ({at.low:.2f}–{at.high:.2f})" for at in latencies
    )


def _cells(found: Figures | None, unique: float) -> list[str]:
    if found is None:
        return ["", "", "", ""]
    steady = found.steady_bytes / MB
    return [
        f"{found.peak_bytes / MB:.0f}",
        f"{steady:.0f}",
        f"{found.anonymous_bytes / MB:.0f}",
        f"{steady / unique:.2f}",
    ]


def main() -> None:
    """Measure the parts that are named, or all, and write the figures into the README."""
    parser = argparse.ArgumentParser(description="What fixing saves.")
    parser.add_argument("parts", nargs="*", metavar="part", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--models", type=int, help="number of models of real and repeat")
    parser.add_argument(
        "--seconds", type=float, default=_SEARCH_S, help="time limit of a search of real, unseen"
    )
    parser.add_argument(
        "--into", metavar="PART", help="another part of the README for the figures of real"
    )
    options = parser.parse_args()
    chosen = options.parts or list(PARTS)
    parts: dict[str, Callable[[Path], str]] = {
        **PARTS,
        "real": partial(real, count=options.models, search_s=options.seconds),
        "unseen": partial(unseen, search_s=options.seconds),
        "repeat": partial(repeat, count=options.models),
    }
    unknown = [name for name in chosen if name not in PARTS]
    if unknown:
        parser.error(f"there is no part {unknown[0]!r}; give of {', '.join(PARTS)}")
    machine = describe_machine(memdiag.__version__, None, None)
    for name in chosen:
        with tempfile.TemporaryDirectory() as folder:
            text = parts[name](Path(folder))
        replace_part(
            options.into or f"fix {name}",
            f"{machine.cpu}, {machine.cpu_count} processors, {machine.platform}, onnxruntime"
            f" {onnxruntime.__version__}; memory above the baseline, medians of {_TIMES} fresh"
            f" processes that ran with all inputs.\n\n{text}",
        )


if __name__ == "__main__":
    main()
