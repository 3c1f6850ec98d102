"""Texts as inputs of repeated runs: new objects in each run, as each call of a program has them.

Inputs are saved as numpy's fixed-width strings. Most programs give lists, or arrays of Python's
strings, which onnxruntime handles in another way: up to 1.20 it never released such a string
(https://github.com/microsoft/onnxruntime/issues/22271). So the same texts cost nothing in the next
run, and new ones stay.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Texts:
    """The arrays of texts among the inputs.

    Args:
        numpy: the module.
        feeds: the feeds of a run, by input name; texts become arrays of Python's strings.
        entries: the entries of the job for these feeds; the content of those whose ``vary`` is
            ``text`` may change.
    """

    def __init__(self, numpy: Any, feeds: dict[str, Any], entries: list[dict[str, Any]]) -> None:
        self._arrays: list[tuple[Any, list[str], bool]] = []
        self._number = 0
        for entry in entries:
            feed = feeds[entry["name"]]
            if getattr(getattr(feed, "dtype", None), "kind", "") != "U":
                continue
            feed = feeds[entry["name"]] = feed.astype(numpy.dtype("O"))
            flat = feed.reshape(-1)
            self._arrays.append((flat, flat.tolist(), entry.get("vary") == "text"))

    def renew(self, vary_contents: bool) -> None:
        """Replace each text by a new object, which ends with a number if its content may change."""
        self._number += 1
        suffix = f" {self._number}"
        for flat, originals, may_change in self._arrays:
            changes = may_change and vary_contents
            for index, text in enumerate(originals):
                # A slice is a new object.
                flat[index] = text + suffix if changes else (text + suffix)[: len(text)]
