"""``memdiag tune``: find the options with which a model fits a budget."""

from argparse import ArgumentParser, Namespace

from memdiag.cli.options import add_model
from memdiag.cli.tuning import add_tuning_options, run_tuning

ARGUMENTS = "MODEL"


def configure(parser: ArgumentParser) -> None:
    """Add the options."""
    add_model(parser)
    add_tuning_options(parser)


def run(options: Namespace) -> int:
    """Find the session options and environment with which a model uses the least memory.

    Measures the memory of every option, combines those that help, and compares the latency of
    combinations with that of the defaults. Ctrl-C or --time-limit ends the search with the best
    result so far. memdiag optimize rewrites the model as well. --out DIR writes tune.json,
    tune.html, tune.md and tune.png. Exit codes: 0 on success; 1 if a budget was given and no
    combination fits it, or if the search ended before any option was compared; 2 on errors.
    """
    from memdiag.api.tune import tune

    return run_tuning(options, tune)
