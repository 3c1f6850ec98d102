"""Sessions of one process share their weights: they are mapped once and given to each of them.

What a session makes of a weight is its own: folded and reordered copies are not shared. Nor are
packed ones, for the container in which sessions can share them is part of the runtime's C interface
and not of Python's: so packing is turned off.
"""

from memdiag.remedies.option import Option

OPTION = Option(
    name="share-weights",
    does="Weights are mapped once and given to every session (`add_initializer`), unpacked.",
    hurts="Weights lie in a file of their own, and matrix products pack them in every run.",
    session={"session.disable_prepacking": "1"},
    shares_weights=True,
    excludes=("disable-prepacking", "save-prepacked"),
    suits=lambda job: job.sessions > 1,
)
