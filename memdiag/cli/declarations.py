"""Options that several commands declare alike: their names, help and types."""

from pathlib import Path
from typing import Annotated

import typer

from memdiag.cli.choices import Format, Plotly

Model = Annotated[Path, typer.Argument(help="The ONNX model.", show_default=False)]
MaxSlowdown = Annotated[
    float, typer.Option(metavar="RATIO", help="How much slower the model may become.")
]
Dims = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=N", help="Size of a symbolic dimension (or INPUT:AXIS=N)."),
]
InputFiles = Annotated[
    list[str] | None, typer.Option(metavar="NAME=FILE.npy", help="An input's data.")
]
InputArchive = Annotated[
    Path | None, typer.Option(metavar="FILE.npz", help="Several inputs' data, by name.")
]
Sizes = Annotated[
    str, typer.Option(metavar="N,N…", help="Sizes of free dimensions to compare latency with.")
]
Printed = Annotated[Format, typer.Option(help="What to print: a summary, or the record alone.")]
Out = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Write the record and its reports there."),
]
PlotlyPlace = Annotated[
    Plotly,
    typer.Option(
        "--plotly",
        help="Where the page has plotly.js: in itself, in a file beside it, or from the network.",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only the answer.")]

DEFAULT_SIZES = "1,4,16"
DEFAULT_MAX_SLOWDOWN = 1.05
