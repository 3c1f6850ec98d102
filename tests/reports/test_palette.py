from itertools import combinations, product
from typing import get_args

import pytest

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

Matrix = tuple[tuple[float, float, float], ...]

# What is seen without one kind of cone, in linear RGB: Machado, Oliveira and Fernandes, "A
# Physiologically-based Model for Simulation of Color Vision Deficiency", 2009, severity 1.
VISIONS: dict[str, Matrix] = {
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
TO_CONES: Matrix = (
    (0.4122214708, 0.5363325363, 0.0514459929),
    (0.2119034982, 0.6806995451, 0.1073969566),
    (0.0883024619, 0.2817188376, 0.6299787005),
)
TO_LAB: Matrix = (
    (0.2104542553, 0.7936177850, -0.0040720468),
    (1.9779984951, -2.4285922050, 0.4505937099),
    (0.0259040371, 0.7827717662, -0.8086757660),
)


def linear_parts(color: str) -> list[float]:
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]


def times(matrix: Matrix, vector: list[float]) -> list[float]:
    return [sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix]


def seen(color: str, vision: str) -> list[float]:
    """Return `color` in the space Oklab, in which distances are as large as they look."""
    visible = [min(1.0, max(0.0, part)) for part in times(VISIONS[vision], linear_parts(color))]
    return times(TO_LAB, [part ** (1 / 3) for part in times(TO_CONES, visible)])


def distance(one: str, other: str, vision: str) -> float:
    pairs = zip(seen(one, vision), seen(other, vision), strict=True)
    return float(sum((a - b) ** 2 for a, b in pairs) ** 0.5)


def luminance(color: str) -> float:
    """Relative luminance as in WCAG 2.2."""
    linear = linear_parts(color)
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [LIGHT_PALETTE, DARK_PALETTE], ids=["light", "dark"])
def test_text_can_be_read_and_areas_be_told_apart(theme: Palette) -> None:
    for ground in (theme.page, theme.surface, theme.band):
        assert contrast(theme.ink, ground) >= 7
        assert contrast(theme.muted, ground) >= 4.5
    assert contrast(theme.peak_ink, theme.surface) >= 4.5
    assert contrast(theme.peak_ink, theme.peak_soft) >= 4.5
    # By lightness alone, that is for every kind of colour vision and in grey print.
    assert contrast(theme.anonymous, theme.file) >= 2
    assert contrast(theme.shared, theme.file) >= 2
    assert contrast(theme.shared, theme.anonymous) >= 2
    assert contrast(theme.shared, theme.surface) >= 2


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("theme", COPY_COLORS)
def test_kinds_of_copies_are_told_apart_by_every_eye(theme: ColorTheme, vision: str) -> None:
    for one, other in combinations(COPY_COLORS[theme].values(), 2):
        assert distance(one, other, vision) >= 0.1, (one, other)


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("theme", OWNER_COLORS)
def test_owners_are_told_apart_from_each_other_and_from_copies(
    theme: ColorTheme, vision: str
) -> None:
    for one, other in combinations(OWNER_COLORS[theme].values(), 2):
        assert distance(one, other, vision) >= 0.08, (one, other)
    for one, other in product(OWNER_COLORS[theme].values(), COPY_COLORS[theme].values()):
        assert distance(one, other, vision) >= 0.07, (one, other)


@pytest.mark.parametrize(("theme", "palette"), [("light", LIGHT_PALETTE), ("dark", DARK_PALETTE)])
def test_owners_stand_out_and_can_be_written_on(theme: ColorTheme, palette: Palette) -> None:
    assert set(OWNER_COLORS[theme]) == set(get_args(OwnerKind)) - {"weights"}
    assert set(COPY_COLORS[theme]) == set(get_args(CopyKind))
    for color in OWNER_COLORS[theme].values():
        assert contrast(color, palette.surface) >= 1.2
    for color in colors_by_kind(theme).values():
        assert max(contrast(color, ink) for ink in ("#000000", "#ffffff")) >= 4.5


@pytest.mark.parametrize(("theme", "palette"), [("light", LIGHT_PALETTE), ("dark", DARK_PALETTE)])
def test_copies_stand_out_and_can_be_written_on(theme: ColorTheme, palette: Palette) -> None:
    for color in COPY_COLORS[theme].values():
        assert contrast(color, palette.surface) >= 3
        assert max(contrast(color, "#000000"), contrast(color, "#ffffff")) >= 4.5


def test_colours_that_some_eyes_confuse_are_noticed() -> None:
    assert (
        distance("#d9620f", "#8a6a00", "all cones")
        > 0.1
        > distance("#d9620f", "#8a6a00", "protanopia")
    )
