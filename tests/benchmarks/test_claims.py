"""What is said of a public ratio and ours, and how the two are shown."""

from math import isnan, nan

import pytest

from benchmarks.reproduced.claims import Claim, Part, quotient


def claim(public: float, ours: float) -> Claim:
    return Claim("peak", "8.1 → 3.5 GB", public, "817 → 414 MB", ours)


@pytest.mark.parametrize(
    ("public", "ours", "verdict"),
    [
        (0.5, 0.5, "alike"),
        (0.5, 0.54, "alike"),
        (0.5, 0.56, "the same way, less"),
        (0.87, 1.0, "not here"),
        (0.5, 0.3, "the same way, more"),
        (1.5, 2.0, "the same way, more"),
        (1.5, 1.2, "the same way, less"),
        (0.5, 1.5, "not here"),
        (0.5, 0.97, "not here"),
        (8.0, 1.02, "not here"),
        (1.0, 1.3, "not here"),
        (0.5, nan, "not measured"),
    ],
)
def test_the_verdict_is_of_the_ratios(public: float, ours: float, verdict: str) -> None:
    assert claim(public, ours).verdict == verdict


@pytest.mark.parametrize(
    ("interval", "verdict"), [((0.9, 1.9), "in doubt"), ((1.1, 1.9), "not here")]
)
def test_what_scatters_as_far_as_the_public_ratio_is_in_doubt(
    interval: tuple[float, float], verdict: str
) -> None:
    one = claim(0.97, 1.4)._replace(interval=interval)
    assert one.verdict == verdict
    assert one.shown == f"1.40 ({interval[0]:.2f}–{interval[1]:.2f})"


def test_a_part_shows_claims_then_remarks_then_tables() -> None:
    part = Part(claims=[claim(0.5, 0.42), claim(0.5, nan)], remarks=["Why."], tables=["A table."])
    assert part.text().splitlines()[2:] == [
        "| peak | 8.1 → 3.5 GB | 0.50 | 817 → 414 MB | 0.42 | the same way, more |",
        "| peak | 8.1 → 3.5 GB | 0.50 | 817 → 414 MB |  | not measured |",
        "",
        "- Why.",
        "",
        "A table.",
    ]


def test_a_missing_figure_gives_no_ratio() -> None:
    assert quotient(1.0, 2.0) == 0.5
    assert all(isnan(quotient(*pair)) for pair in [(nan, 1.0), (1.0, nan), (1.0, 0.0)])
