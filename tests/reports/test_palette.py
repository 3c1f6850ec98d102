from itertools import combinations, product
from typing import get_args

import numpy as np
import pytest
from numpy.typing import NDArray

from memdiag.records.attribution import CopyKind, OwnerKind
from memdiag.reports.palette import (
    COPY_COLORS,
    DARK_PALETTE,
    LIGHT_PALETTE,
    OWNER_COLORS,
    ColorTheme,
    Palette,
    colors_by_kind,
)

PALETTES: dict[ColorTheme, Palette] = {"light": LIGHT_PALETTE, "dark": DARK_PALETTE}

# What is seen without one kind of cone, in linear RGB: Machado, Oliveira and Fernandes, "A
# Physiologically-based Model for Simulation of Color Vision Deficiency", 2009, severity 1.
VISIONS = {
    "all cones": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
# Ottosson, "A perceptual color space for image processing", 2020.
TO_CONES = np.array(
    (
        (0.4122214708, 0.5363325363, 0.0514459929),
        (0.2119034982, 0.6806995451, 0.1073969566),
        (0.0883024619, 0.2817188376, 0.6299787005),
    )
)
TO_LAB = np.array(
    (
        (0.2104542553, 0.7936177850, -0.0040720468),
        (1.9779984951, -2.4285922050, 0.4505937099),
        (0.0259040371, 0.7827717662, -0.8086757660),
    )
)


def linear_parts(color: str) -> NDArray[np.float64]:
    parts = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def seen(color: str, vision: str) -> NDArray[np.float64]:
    """Return `color` in the space Oklab, in which distances are as large as they look."""
    visible = np.clip(np.array(VISIONS[vision]) @ linear_parts(color), 0, 1)
    return TO_LAB @ np.cbrt(TO_CONES @ visible)


def distance(color: str, other: str, vision: str) -> float:
    return float(np.linalg.norm(seen(color, vision) - seen(other, vision)))


def contrast(color: str, other: str) -> float:
    """Return the contrast of two colours as in WCAG 2.2."""
    luminances = (linear_parts(hue) @ (0.2126, 0.7152, 0.0722) for hue in (color, other))
    high, low = sorted(luminances, reverse=True)
    return float((high + 0.05) / (low + 0.05))


@pytest.mark.parametrize("theme", PALETTES)
def test_text_can_be_read_and_areas_be_told_apart(theme: ColorTheme) -> None:
    palette = PALETTES[theme]
    for ground in (palette.page, palette.surface, palette.band):
        assert contrast(palette.ink, ground) >= 7
        assert contrast(palette.muted, ground) >= 4.5
    for ground in (palette.surface, palette.peak_soft):
        assert contrast(palette.peak_ink, ground) >= 4.5
    # By lightness alone, that is for every kind of colour vision and in grey print.
    for area, other in combinations((palette.anonymous, palette.file, palette.shared), 2):
        assert contrast(area, other) >= 2
    assert contrast(palette.shared, palette.surface) >= 2


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("theme", PALETTES)
def test_owners_and_copies_are_told_apart_by_every_eye(theme: ColorTheme, vision: str) -> None:
    copies, owners = COPY_COLORS[theme].values(), OWNER_COLORS[theme].values()
    for pairs, least in (
        (combinations(copies, 2), 0.1),
        (combinations(owners, 2), 0.08),
        (product(owners, copies), 0.07),
    ):
        for color, other in pairs:
            assert distance(color, other, vision) >= least, (color, other)


@pytest.mark.parametrize("theme", PALETTES)
def test_owners_and_copies_stand_out_and_can_be_written_on(theme: ColorTheme) -> None:
    assert set(OWNER_COLORS[theme]) == set(get_args(OwnerKind)) - {"weights"}
    assert set(COPY_COLORS[theme]) == set(get_args(CopyKind))
    surface = PALETTES[theme].surface
    assert min(contrast(color, surface) for color in OWNER_COLORS[theme].values()) >= 1.2
    assert min(contrast(color, surface) for color in COPY_COLORS[theme].values()) >= 3
    for color in (*colors_by_kind(theme).values(), *COPY_COLORS[theme].values()):
        assert max(contrast(color, ink) for ink in ("#000000", "#ffffff")) >= 4.5


def test_colours_that_some_eyes_confuse_are_noticed() -> None:
    orange, brown = "#d9620f", "#8a6a00"
    assert distance(orange, brown, "all cones") > 0.1 > distance(orange, brown, "protanopia")
