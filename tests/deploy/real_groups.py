"""Skip marks of tests that need a control group with a real limit."""

import pytest

from memdiag.deploy.limited_group import NoGroupError, ParentGroup, parent_group


def usable_parent() -> ParentGroup:
    """Return the group in which tests create groups; skips the test without one."""
    try:
        return parent_group()
    except NoGroupError as error:
        pytest.skip(f"no control group with a limit can be created: {error}")
