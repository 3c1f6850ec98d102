"""``memdiag inspect``: print the contents of a model."""

import sys
from argparse import ArgumentParser, Namespace

from memdiag.cli import CLEAN
from memdiag.cli.options import add_format, add_model, add_quiet

ARGUMENTS = "MODEL"


def configure(parser: ArgumentParser) -> None:
    """Add the options."""
    add_model(parser)
    add_format(parser)
    add_quiet(parser)


def run(options: Namespace) -> int:
    """Print the contents of a model, without loading its weights.

    Lists free dimensions with the sizes that other commands choose for them, weights by type,
    origin and storage, inputs and outputs, the twenty largest weights and the operators that read
    them, subgraphs, external files and operators.
    """
    from memdiag.api.inspect import inspect
    from memdiag.cli.output import show_inventory
    from memdiag.records.codec import encode

    inventory = inspect(options.model)
    if options.format == "json":
        sys.stdout.buffer.write(encode(inventory))
    else:
        show_inventory(inventory, quiet=options.quiet)
    return CLEAN
