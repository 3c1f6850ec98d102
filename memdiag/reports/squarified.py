"""Dividing a rectangle into tiles of given areas that are as square as can be.

After Bruls, Huizing and van Wijk, "Squarified Treemaps", 2000.
"""

from collections.abc import Sequence
from typing import NamedTuple


class Rectangle(NamedTuple):
    """A rectangle by its left lower corner, its width and its height."""

    x: float
    y: float
    width: float
    height: float


def squarified(sizes: Sequence[float], within: Rectangle) -> list[Rectangle]:
    """Return a tile for each of `sizes`, which are positive and come in descending order.

    Together they fill `within`; their areas are to each other as the sizes.
    """
    scale = within.width * within.height / (sum(sizes) or 1)
    areas = [size * scale for size in sizes]
    tiles: list[Rectangle] = []
    while areas:
        side = min(within.width, within.height)
        count = 1
        while count < len(areas) and _worst(areas[: count + 1], side) <= _worst(
            areas[:count], side
        ):
            count += 1
        row, within = _row(areas[:count], within)
        tiles += row
        areas = areas[count:]
    return tiles


def _worst(row: Sequence[float], side: float) -> float:
    """Return the largest ratio of a tile's sides where `row` is laid along `side`."""
    depth = sum(row) / side
    return max(max(depth * depth / area, area / (depth * depth)) for area in row)


def _row(row: Sequence[float], within: Rectangle) -> tuple[list[Rectangle], Rectangle]:
    """Return the tiles of `row` along the shorter side of `within`, and what is left of it."""
    x, y, width, height = within
    tiles = []
    if width >= height:
        depth = sum(row) / height
        top = y + height
        for area in row:
            top -= area / depth
            tiles.append(Rectangle(x, top, depth, area / depth))
        return tiles, Rectangle(x + depth, y, max(0.0, width - depth), height)
    depth = sum(row) / width
    for area in row:
        tiles.append(Rectangle(x, y + height - depth, area / depth, depth))
        x += area / depth
    return tiles, Rectangle(within.x, y, width, max(0.0, height - depth))
