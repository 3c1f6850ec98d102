"""The gallery in ``reports/gallery``, from real runs: ``python -m benchmarks.gallery``.

A sample whose weight is held three times, the same one stopped at a memory limit, and a real model.
Pictures, Markdown and records are kept in git; the pages are some megabytes each and are not.
"""

import os
import shutil
import tempfile
from pathlib import Path

import memdiag
from benchmarks.real_models import real_models
from memdiag.reporters import write
from sample_models import load_recipes

GALLERY = Path(__file__).parents[1] / "reports" / "gallery"
FORMATS = ("json", "markdown", "png")


def main() -> None:
    """Profile the gallery's models and write its files."""
    minilm = real_models()["minilm_int8"]
    with tempfile.TemporaryDirectory() as folder:
        # Profiled from their own folder, so that no path of this machine enters a record.
        shutil.copyfile(minilm, Path(folder, "minilm_int8.onnx"))
        os.chdir(folder)
        load_recipes()["tied_if"].build(500, Path("tied_if.onnx"), False)
        profiles = {
            "tied_if": memdiag.profile("tied_if.onnx"),
            "tied_if_1GB": memdiag.profile("tied_if.onnx", memory_limit_bytes=10**9),
            "minilm_int8": memdiag.profile("minilm_int8.onnx", dims={"sequence": 128}),
        }
        for name, profile in profiles.items():
            owners = ("treemap",) if profile.attribution is not None else ()
            for path in write(profile, GALLERY / name, (*FORMATS, *owners)):
                print(path)
        os.chdir(GALLERY)


if __name__ == "__main__":
    main()
