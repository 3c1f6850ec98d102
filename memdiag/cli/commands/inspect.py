"""``memdiag inspect``: print the contents of a model."""

import sys

from memdiag.cli.choices import Format
from memdiag.cli.declarations import Model, Printed, Quiet
from memdiag.cli.exit_codes import CLEAN


def command(
    model: Model,
    format: Printed = Format.console,
    quiet: Quiet = False,
) -> int:
    """Print the contents of a model, without loading its weights.

    Lists free dimensions with the sizes that other commands choose for them, weights by type, place
    and storage, inputs and outputs, the twenty largest weights and the operators that read them,
    subgraphs, external files and operators.
    """
    from memdiag.api.inspect import inspect
    from memdiag.cli.output import show_inventory
    from memdiag.records.codec import encode

    inventory = inspect(model)
    if format is Format.json:
        sys.stdout.buffer.write(encode(inventory))
    else:
        show_inventory(inventory, quiet=quiet)
    return CLEAN
