"""The colours of every picture: after Okabe and Ito, told apart by all kinds of colour vision.

Two blues of different lightness for resident memory, one warm colour for the peak and nothing
else, greys for the rest. Okabe and Ito, "Color Universal Design", 2008.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Palette:
    """One theme's colours as ``#rrggbb``."""

    page: str
    surface: str
    ink: str
    muted: str
    line: str
    band: str
    rail: str
    anonymous: str
    file: str
    peak: str
    peak_ink: str
    peak_soft: str


LIGHT = Palette(
    page="#f5f6f8",
    surface="#ffffff",
    ink="#17202a",
    muted="#5a6672",
    line="#dfe3e8",
    band="#f0f2f5",
    rail="#b3bcc6",
    anonymous="#0072b2",
    file="#7cc4ec",
    peak="#d55e00",
    peak_ink="#b04a00",
    peak_soft="#fdf0e6",
)
DARK = Palette(
    page="#0f1419",
    surface="#171e26",
    ink="#e8edf2",
    muted="#9aa7b4",
    line="#2b3540",
    band="#1d2630",
    rail="#4d5966",
    anonymous="#2f8fd0",
    file="#a6dcf8",
    peak="#f28a3c",
    peak_ink="#f7a76a",
    peak_soft="#33231a",
)

SERIES = (
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#d55e00",
    "#cc79a7",
    "#56b4e9",
    "#8a6d1c",
    "#17202a",
    "#7a8691",
    "#9b5de5",
)
"""Things side by side: Okabe and Ito's colours, their yellow darkened to show on white, and three
more."""

COPIES = {
    "light": {
        "original": "#0072b2",
        "transposed": "#e7701f",
        "packed": "#7c5919",
        "reordered": "#23a2ae",
        "dequantized": "#ad75fb",
        "cast": "#641a22",
        "fused": "#17175c",
    },
    "dark": {
        "original": "#2f8fd0",
        "transposed": "#ed6313",
        "packed": "#f8f35b",
        "reordered": "#46d097",
        "dequantized": "#c5afff",
        "cast": "#8e5e6a",
        "fused": "#aaffff",
    },
}
"""Copies of weights by kind, for each theme: any two can be told apart without a kind of cone, and
each stands out from the surface by 3 : 1."""
