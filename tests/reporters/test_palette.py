import pytest

from memdiag.reporters.palette import DARK, LIGHT, Palette


def luminance(color: str) -> float:
    """Relative luminance as in WCAG 2.2."""
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_text_can_be_read_and_areas_be_told_apart(theme: Palette) -> None:
    for ground in (theme.page, theme.surface, theme.band):
        assert contrast(theme.ink, ground) >= 7
        assert contrast(theme.muted, ground) >= 4.5
    assert contrast(theme.peak_ink, theme.surface) >= 4.5
    assert contrast(theme.peak_ink, theme.peak_soft) >= 4.5
    # By lightness alone, that is for every kind of colour vision and in grey print.
    assert contrast(theme.anonymous, theme.file) >= 2
