"""The command line: ``python -m sample_models tied_if --megabytes 64 -o tied_if.onnx``."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from memdiag.errors import MemdiagError
from sample_models import load_recipes
from sample_models.recipes import denormal_conv


def main(arguments: Sequence[str] | None = None) -> int:
    """Build or list the samples and return the exit code, 2 for an error."""
    known = load_recipes()
    parser = argparse.ArgumentParser(prog="sample_models", description="Build a sample model.")
    parser.add_argument(
        "recipe",
        choices=[*known, "all", "list"],
        metavar="recipe",
        help=f"{', '.join(known)}; all of them; or list",
    )
    parser.add_argument(
        "--megabytes",
        type=float,
        default=64.0,
        metavar="MB",
        help="its size in millions of bytes (default 64)",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="PATH",
        help="the file to write, or for all the folder (default: RECIPE.onnx)",
    )
    parser.add_argument(
        "--external", action="store_true", help="keep the weights in a second file, PATH.data"
    )
    parser.add_argument(
        "--denormals",
        type=float,
        metavar="SHARE",
        help="of denormal_conv: the share of its weights that is denormal (default 0.5)",
    )
    options = parser.parse_args(arguments)
    if options.denormals is not None and options.recipe != denormal_conv.NAME:
        parser.error(f"--denormals is for {denormal_conv.NAME} alone")
    if options.recipe == "list":
        width = max(map(len, known))
        for name, recipe in known.items():
            print(f"{name:{width}}  {recipe.SUMMARY}")
        return 0
    output: Path | None = options.output
    if options.recipe == "all":
        chosen = {name: (output or Path()) / f"{name}.onnx" for name in known}
    else:
        chosen = {options.recipe: output or Path(f"{options.recipe}.onnx")}
    try:
        for name, path in chosen.items():
            if options.denormals is None:
                known[name].build(options.megabytes, path, options.external)
            else:
                share = options.denormals
                denormal_conv.build(options.megabytes, path, options.external, share=share)
            print(f"wrote {path}" + (f" and {path}.data" if options.external else ""))
    except MemdiagError as error:
        print(f"sample_models: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
