"""Texts that were read and approved, one file for each kind of output.

A test compares what is printed now with the file. ``MEMDIAG_APPROVE=1 pytest ...`` rewrites the
files instead; `git diff` then shows what changed, which is read as users will read it.
"""

import difflib
import os
from pathlib import Path

APPROVE = "MEMDIAG_APPROVE"


def assert_approved(text: str, path: Path) -> None:
    """Compare `text` with the approved file at `path`, or approve it if ``MEMDIAG_APPROVE`` is set.

    Raises:
        AssertionError: they differ, with the difference line by line, or there is no such file.
    """
    text = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
    if os.environ.get(APPROVE):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return
    assert path.exists(), f"{path}: not approved yet; run this test with {APPROVE}=1 and read it"
    approved = path.read_text(encoding="utf-8")
    difference = difflib.unified_diff(
        approved.splitlines(keepends=True), text.splitlines(keepends=True), str(path), "now"
    )
    assert text == approved, "".join(["this text was not approved:\n", *difference])
