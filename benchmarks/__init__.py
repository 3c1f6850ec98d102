"""The numbers memdiag claims, each measured next to its peers in the same run."""

import os

# Telemetry takes a thread and memory of its own, and uploads names of models.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
