"""An X-ray on a terminal."""

from memdiag.reports.attribution_console import show_attribution as show

__all__ = ["show"]
