"""``memdiag rules``: list the rules."""

from memdiag.cli.exit_codes import CLEAN


def command() -> int:
    """List the rules of memdiag check and memdiag profile."""
    from memdiag.rules import detectors

    longest = max(len(each.rule.name) for each in detectors())
    for each in detectors():
        print(f"{each.rule.code}  {each.rule.name:<{longest}}  {each.rule.summary}")
    return CLEAN
