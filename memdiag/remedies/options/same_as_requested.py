"""The arena grows by what is asked for instead of doubling."""

from memdiag.remedies.option import Option

OPTION = Option(
    name="same-as-requested",
    does="An arena of the environment grows by what is asked for (kSameAsRequested).",
    hurts="More, smaller regions; all sessions of the process share the arena.",
    shared_arena=True,
    excludes=("arena-off",),
)
