"""``memdiag optimize``: rewrite a model, and find its best session options, in one search."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from memdiag.cli.options import add_model
from memdiag.cli.tuning import add_tuning_options, run_tuning

ARGUMENTS = "MODEL"


def configure(parser: ArgumentParser) -> None:
    """Add the options."""
    add_model(parser, ort_format=False)
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        help="Write the new model to this file (default: NAME.optimized.onnx).",
    )
    add_tuning_options(
        parser, " Names of optimizers can be among them; rewrites are tried in any case."
    )
    parser.add_argument(
        "--max-difference",
        metavar="SHARE",
        type=float,
        help="Accept outputs that differ by this share of their largest value, such as 0.02, and"
        " try weights of 8 and 4 bits as well (quantize-int8, quantize-int4).",
    )


def run(options: Namespace) -> int:
    """Make a model take less memory by rewrites, optimizers and session options together.

    It rewrites the model as memdiag fix does. Then each installed optimizer (onnxsim, onnxslim,
    onnxoptimizer, onnxscript, onnxruntime's own) writes a model, which is tried like the options of
    memdiag tune, alone and together with them. Outputs, memory and latency are verified, and a
    program that uses the best combination is printed. Ctrl-C or --time-limit ends the search with
    the best result so far. --out DIR writes tune.json, tune.html, tune.md and tune.png. Exit codes:
    0 on success; 1 if nothing fits a budget that was given, or if the search ended before anything
    was compared; 2 on errors: also if the new model cannot be written, or if Ctrl-C came before the
    original was measured.
    """
    from memdiag.api.optimize import optimize

    further = {"output": options.output, "max_difference": options.max_difference}
    return run_tuning(options, optimize, further)
