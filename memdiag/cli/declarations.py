"""Options that several commands declare alike: their names, help and types."""

from pathlib import Path
from typing import Annotated

import typer

from memdiag.cli.choices import Format, LoadFrom, Plotly

DIM_HELP = "Size of a free dimension, by its name or INPUT:AXIS (see memdiag inspect)."
INPUT_HELP = "Data of one input; can be repeated."
INPUTS_HELP = "Data of several inputs, by name."
RUNS_HELP = "Number of runs after the first run, in each process."
SESSION_OPTION_HELP = "A SessionOptions attribute or config entry; can be repeated."
THREADS_HELP = "Number of intra-op threads."
LOAD_FROM_HELP = "Create the session from the model's path, or from its bytes."
MEMORY_LIMIT_HELP = "Stop a child process whose memory exceeds this size, e.g. 2GB."
TIMEOUT_HELP = "Stop a child process after this time."
VERIFY_HELP = "Compare every byte of each copy, or sampled blocks."
OUTPUT_RECORD_HELP = "Also save the JSON record to this file."
PLOTLY_HELP = "Source of plotly.js in the HTML page: embedded, a file beside it, or the network."
QUIET_HELP = "Print only the answer."
UNSAFE_HELP = "Also try remedies and options that change values."

Model = Annotated[Path, typer.Argument(help="The ONNX model.", show_default=False)]
MaxSlowdown = Annotated[
    float,
    typer.Option(metavar="RATIO", help="Largest acceptable latency, relative to the original."),
]
Dims = Annotated[list[str] | None, typer.Option(metavar="NAME=N,…", help=DIM_HELP)]
InputFiles = Annotated[list[str] | None, typer.Option(metavar="NAME=FILE.npy", help=INPUT_HELP)]
InputArchive = Annotated[Path | None, typer.Option(metavar="FILE.npz", help=INPUTS_HELP)]
Sizes = Annotated[
    str,
    typer.Option(
        metavar="N,N…",
        help="Further sizes of free dimensions at which outputs and latency are compared.",
    ),
]
TimeLimit = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="Stop after this time, with the best result so far."),
]
Printed = Annotated[Format, typer.Option(help="What to print: a summary, or the JSON record.")]
OutputRecord = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help=OUTPUT_RECORD_HELP)
]
Out = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Write the record and its reports to this folder."),
]
Picture = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Save the chart to this file, as PNG or .svg."),
]
LoadSource = Annotated[LoadFrom, typer.Option(help=LOAD_FROM_HELP)]
PlotlyPlace = Annotated[Plotly, typer.Option("--plotly", help=PLOTLY_HELP)]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help=QUIET_HELP)]
Unsafe = Annotated[bool, typer.Option("--unsafe", help=UNSAFE_HELP)]

DEFAULT_SIZES = "1,4"
DEFAULT_MAX_SLOWDOWN = 1.05
