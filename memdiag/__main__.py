"""``python -m memdiag`` is the command line."""

from memdiag.cli import main

main()
