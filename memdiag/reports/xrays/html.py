"""An X-ray of a process as one self-contained page."""

from memdiag.records import codec
from memdiag.records.attribution import Attribution
from memdiag.reports.html import xray_chart
from memdiag.reports.page import Plotly, page
from memdiag.reports.views import insight, xrays
from memdiag.reports.views.attribution import PER_MODEL, model_table

FORMAT = "html"
FILE_NAME = "xray.html"


def render(attribution: Attribution, *, plotly: Plotly = "inline") -> bytes:
    """Return the page for `attribution`."""
    shown = xrays.of_process(attribution)
    return page(
        "xray.html.j2",
        ("sorting.js", "owners.js", "addresses.js"),
        {
            "pid": attribution.pid,
            "insight": insight.build(attribution),
            "models": model_table(shown.owners.models),
            "per_model": PER_MODEL,
            "xrays": (shown,),
        },
        charts={"xrays": [xray_chart(shown)]},
        record=codec.encode(attribution),
        record_name="xray",
        plotly=plotly,
    )
