"""The gallery in ``reports/gallery``, from real runs: ``python -m benchmarks.gallery [NAME ...]``.

A sample whose weight is held three times: fixed, its profile with what that won, the same stopped
at a memory limit, and by versions of onnxruntime; a real model, profiled and fixed by options; a
sweep of all real models; and the memory limits of a model whose weights are mapped (which needs
control groups). Records, pictures and Markdown are kept in git; the pages are some megabytes each
and are not.
"""

import argparse
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Set
from pathlib import Path

import memdiag
from benchmarks.real_models import real_models
from memdiag.records.schemas import ReportedRecord
from memdiag.reports import report_of
from sample_models import load_recipes

GALLERY = Path(__file__).parents[1] / "reports" / "gallery"
FORMATS = ("html", "png", "markdown", "json")
_VERSIONS = ("1.22.1", "1.24.4", "latest")
_SWEPT_VERSIONS = ("1.20.1", "1.22.1", "1.23.2", "1.24.4", "1.31.1", "latest")
_SEARCH_S = 180.0

_TIED = "tied_if.onnx"
_REAL = "minilm_int8.onnx"
_MAPPED = "plain_mlp.onnx"
_DIMS = {"sequence": 128}


def records(names: Set[str]) -> Iterator[tuple[str, ReportedRecord]]:
    """Yield what is in the gallery by the names of its folders, each as soon as it is measured."""
    unpacked = {"session.disable_prepacking": "1"}
    made: dict[str, Callable[[], ReportedRecord]] = {
        "tied_if_fix": lambda: memdiag.fix(_TIED, only=["rewrites"], time_limit_s=_SEARCH_S),
        "tied_if": lambda: memdiag.profile(_TIED),
        "tied_if_1GB": lambda: memdiag.profile(_TIED, memory_limit_bytes=10**9),
        "tied_if_versions": lambda: memdiag.compare(_TIED, onnxruntime=_VERSIONS),
        "minilm_int8": lambda: memdiag.profile(_REAL, dims=_DIMS),
        "minilm_int8_fix": lambda: memdiag.fix(
            _REAL, only=["options"], dims=_DIMS, time_limit_s=_SEARCH_S
        ),
        "plain_mlp_limit": lambda: memdiag.limit(_MAPPED, session_options=unpacked),
        "sweep": lambda: memdiag.sweep("models", onnxruntime=_SWEPT_VERSIONS),
    }
    for name, measure in made.items():
        if name in names:
            yield name, measure()


def main() -> None:
    """Measure the gallery's models and write its files: those of the folders named, or all."""
    kept = sorted(folder.name for folder in GALLERY.iterdir())
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "name", nargs="*", metavar="NAME", choices=[[], *kept], help=", ".join(kept)
    )
    names = {*(parser.parse_args().name or kept)}
    models = real_models()
    with tempfile.TemporaryDirectory() as folder:
        # Measured in their own folder, so that no path of this machine enters a record.
        shutil.copyfile(models["minilm_int8"], Path(folder, _REAL))
        Path(folder, "models").mkdir()
        for path in models.values():
            shutil.copyfile(path, Path(folder, "models", path.name))
        os.chdir(folder)
        load_recipes()["tied_if"].build(500, Path(_TIED), False)
        load_recipes()["plain_mlp"].build(96, Path(_MAPPED), True)
        for name, record in records(names):
            for path in write(name, record):
                print(path, flush=True)
        os.chdir(GALLERY)


def write(name: str, record: ReportedRecord) -> tuple[Path, ...]:
    """Write the files of `record` into its folder of the gallery, and return their paths."""
    report = report_of(record)
    formats = [each for each in FORMATS if each in report.formats()]
    return report.write(record, GALLERY / name, formats)


if __name__ == "__main__":
    main()
