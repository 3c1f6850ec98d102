"""Tracebacks of the program's exceptions as they would be without memdiag.

Each wrapped method adds its frame to a traceback. It removes the frame again, and a bare ``raise``
then takes the traceback that the exception has, without adding the frame anew. Up to Python 3.10 it
takes the earlier traceback, so the frames stay.
"""

from __future__ import annotations

import os


def hide_frames(error: BaseException) -> None:
    """Remove the frames of this folder at the start of the traceback of `error`."""
    traceback = error.__traceback__
    while (
        traceback is not None
        and _folder_of(traceback.tb_frame.f_code.co_filename) == _HIDDEN_FOLDER
    ):
        traceback = traceback.tb_next
    error.__traceback__ = traceback


_folder_of = os.path.dirname
_HIDDEN_FOLDER = _folder_of(hide_frames.__code__.co_filename)
