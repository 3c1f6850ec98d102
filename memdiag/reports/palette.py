"""The colours of all pictures and pages, distinguishable with every kind of colour vision.

Resident memory has two blues and a green of different lightness, and only the peak has a warm
colour. Everything else is grey. See Okabe and Ito, "Color Universal Design", 2008.
"""

from dataclasses import dataclass
from typing import Literal

ColorTheme = Literal["light", "dark"]


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
    shared: str
    peak: str
    peak_ink: str
    peak_soft: str


LIGHT_PALETTE = Palette(
    page="#f5f6f8",
    surface="#ffffff",
    ink="#17202a",
    muted="#5a6672",
    line="#dfe3e8",
    band="#f0f2f5",
    rail="#b3bcc6",
    anonymous="#0072b2",
    file="#7cc4ec",
    shared="#0a3d33",
    peak="#d55e00",
    peak_ink="#b04a00",
    peak_soft="#fdf0e6",
)
DARK_PALETTE = Palette(
    page="#0f1419",
    surface="#171e26",
    ink="#e8edf2",
    muted="#9aa7b4",
    line="#2b3540",
    band="#1d2630",
    rail="#4d5966",
    anonymous="#2f8fd0",
    file="#a6dcf8",
    shared="#17604f",
    peak="#f28a3c",
    peak_ink="#f7a76a",
    peak_soft="#33231a",
)

SERIES_COLORS = (
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
"""Colours of columns side by side: the colours of Okabe and Ito with a darker yellow, and three
more."""

COPY_COLORS: dict[ColorTheme, dict[str, str]] = {
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
"""Colours of copies of weights by kind, for each theme. Any two are distinguishable for eyes that
lack a kind of cone, and each has a contrast of 3 : 1 to the surface."""

OWNER_COLORS: dict[ColorTheme, dict[str, str]] = {
    "light": {
        "kv_cache": "#803038",
        "external_data": "#86aada",
        "arena": "#9ed5fd",
        "allocator_retained": "#bd7e74",
        "runtime_libraries": "#6d717e",
        "provider_libraries": "#344473",
        "python": "#aebfbb",
        "other_libraries": "#c9efee",
        "mapped_files": "#ddc78c",
        "thread_stacks": "#926f3d",
        "other_heap": "#c5a16e",
        "unnamed": "#fbe5a9",
    },
    "dark": {
        "kv_cache": "#e0b040",
        "external_data": "#716fa3",
        "arena": "#385984",
        "allocator_retained": "#a47578",
        "runtime_libraries": "#3f434f",
        "provider_libraries": "#a1d9db",
        "python": "#80a0ad",
        "other_libraries": "#0c2c53",
        "mapped_files": "#676328",
        "thread_stacks": "#673c14",
        "other_heap": "#a8996f",
        "unnamed": "#502007",
    },
}
"""Colours of owners other than weights. They are duller than the copies, and distinguishable from
them and from each other with every kind of colour vision."""


def colors_by_kind(theme: ColorTheme) -> dict[str, str]:
    """Return the colours of copies of weights and of owners, by kind."""
    return {**COPY_COLORS[theme], **OWNER_COLORS[theme]}
