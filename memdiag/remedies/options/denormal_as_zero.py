"""Denormal values count as zero in the session's threads."""

from memdiag.remedies.option import Option

OPTION = Option(
    name="denormal-as-zero",
    does="Denormal values count as zero, which some processors multiply far faster.",
    hurts="Values below 1.2e-38 are lost.",
    session={"session.set_denormal_as_zero": "1"},
    changes_values=True,
)
