"""The session is given the model's path instead of its bytes."""

from memdiag.remedies.option import Option

OPTION = Option(
    name="load-by-path",
    does="The runtime reads the file itself: Python keeps no copy of it for the session's life.",
    hurts="The model must lie in a file.",
    load_from="path",
    suits=lambda job: job.load_from == "bytes",
)
