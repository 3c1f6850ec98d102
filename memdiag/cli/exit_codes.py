"""What the command line ends with."""

CLEAN = 0
FINDINGS = 1
"""Findings, or a budget that was breached."""
ERROR = 2
