"""Build hook of hatchling: copy plotly.js, which draws the charts of a page, into the package.

The script comes from the ``plotly`` distribution, which only the build needs: installed, it takes
60 MB, of which memdiag uses this one file.
"""

from importlib.resources import files
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SCRIPT = "memdiag/reports/templates/plotly.min.js"


class PlotlyScript(BuildHookInterface[Any]):
    """Writes `SCRIPT`, licence notice included, with line feeds as the only line ends."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Copy the script before files are collected."""
        text = files("plotly").joinpath("package_data", "plotly.min.js").read_text("utf-8")
        # A browser reads every line end as a line feed, and a page's policy hashes what it reads.
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        Path(self.root, SCRIPT).write_bytes(text.encode())
        build_data["artifacts"].append(SCRIPT)
