"""Who owns the memory at steady state, as a picture: owners, weights in them, and their copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from memdiag.records.attribution import Attribution
from memdiag.records.profile import Profile
from memdiag.reports.palette import COPIES, ink_on, kinds
from memdiag.reports.palette import LIGHT as COLOR
from memdiag.reports.picture import Kind, fitting, rendered
from memdiag.reports.squarified import Rectangle, squarified
from memdiag.reports.views import headline
from memdiag.reports.views import treemap as view
from memdiag.reports.views.treemap import Tile
from memdiag.units import format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMAT = "treemap"
FILE_NAME = "treemap.png"

_INCHES = (10.0, 5.6)
_DPI = 160
_POINTS = 72.0
_ACROSS = _INCHES[0] * _POINTS * 0.97
_TITLE, _TEXT = 19.0, 13.0  # points: legible at half of the picture's width
_SMALLEST = 8.0  # points: of a label that would not fit at full size
_LETTER = 0.7  # a letter's width as a share of its size, generously
_MOST_WEIGHTS = 30
_BAR, _PAD = 20.0, 3.0  # points: above the tiles in a tile, and around them
_LEAST = 3 * _BAR  # points: a side below which a tile has no bar, which would take most of it
_TOP = 0.765  # of the tiles, as a share of the height
_COLORS = kinds("light")
_FEWEST = 8  # letters of a name that say anything


def render(profile: Profile) -> bytes:
    """Return the picture of `profile` as PNG, 1600 × 896 pixels."""
    return picture(profile, "png")


def picture(profile: Profile, kind: Kind) -> bytes:
    """Return the picture in the format `kind`, the same for the same record.

    Without an X-ray it says that there was none.
    """
    subtitle = "no X-ray was taken: profile the model again with --xray steady"
    trimmed = max(0, profile.allocator_retained_bytes or 0)
    if profile.attribution is not None:
        resident = profile.attribution.resident_bytes + trimmed
        subtitle = f"resident at steady state: {format_size(resident)}"
    model = headline.build(profile).model
    return drawn(model, subtitle, profile.attribution, kind, trimmed_bytes=trimmed)


def drawn(
    title: str,
    subtitle: str,
    attribution: Attribution | None,
    kind: Kind,
    *,
    trimmed_bytes: int = 0,
) -> bytes:
    """Return the picture of `attribution` below `title` and `subtitle` in the format `kind`.

    `trimmed_bytes` were returned by ``malloc_trim`` before the X-ray was taken.
    """
    tiles: tuple[Tile, ...] = ()
    if attribution is not None:
        tiles = view.build(attribution, max_weights=_MOST_WEIGHTS, trimmed_bytes=trimmed_bytes)
    # The places of the letters were computed with this font.
    return rendered(lambda: _drawn(title, subtitle, tiles), kind, outlined=True)


def _drawn(title: str, subtitle: str, tiles: Sequence[Tile]) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=_INCHES, dpi=_DPI, facecolor=COLOR.surface)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.01, 0.015, 0.98, _TOP))
    axes.set_axis_off()
    if tiles:
        _legend(figure, tiles)
        width, height = _INCHES[0] * 0.98 * _POINTS, _INCHES[1] * _TOP * _POINTS
        axes.set_xlim(0, width)
        axes.set_ylim(0, height)
        _divide(axes, tiles[0], _inside(tiles), Rectangle(0, 0, width, height))
    name, size = fitting(title, _TITLE, _ACROSS)
    figure.text(
        0.014, 0.97, name, fontsize=size, color=COLOR.ink, weight="bold", va="top",
        parse_math=False,
    )  # fmt: skip
    said, size = fitting(subtitle, _TEXT, _ACROSS)
    figure.text(0.014, 0.895, said, fontsize=size, color=COLOR.muted, va="top")
    return figure


def _legend(figure: Figure, tiles: Sequence[Tile]) -> None:
    """Name the colours of the kinds of copies that there are."""
    from matplotlib.patches import Patch

    found = {tile.kind for tile in tiles}
    handles = [Patch(fc=_COLORS[kind], label=kind) for kind in COPIES["light"] if kind in found]
    if handles:
        figure.legend(
            handles=handles, loc="upper left", bbox_to_anchor=(0.0135, 0.842), ncols=len(handles),
            fontsize=_TEXT - 1, frameon=False, labelcolor=COLOR.ink, handlelength=0.9,
            handleheight=0.9, handletextpad=0.4, columnspacing=1.2, borderpad=0, borderaxespad=0,
        )  # fmt: skip


def _inside(tiles: Sequence[Tile]) -> dict[str, list[tuple[Tile, int]]]:
    """Return the tiles in each tile with all their bytes, the largest first."""
    sizes = {tile.id: tile.size_bytes for tile in tiles}
    inside: dict[str, list[tuple[Tile, int]]] = {tile.id: [] for tile in tiles}
    for tile in reversed(tiles):
        if tile.parent:
            sizes[tile.parent] += sizes[tile.id]
            if sizes[tile.id]:
                inside[tile.parent].append((tile, sizes[tile.id]))
    for those in inside.values():
        those.sort(key=lambda one: -one[1])
    return inside


def _divide(
    axes: Axes, parent: Tile, inside: Mapping[str, list[tuple[Tile, int]]], within: Rectangle
) -> None:
    """Draw the tiles in `parent`, which has the room `within`, and those in them."""
    those = inside[parent.id]
    for (tile, _), place in zip(
        those, squarified([size for _, size in those], within), strict=True
    ):
        name = tile.label
        while len(inside[tile.id]) == 1 and inside[inside[tile.id][0][0].id]:
            # The only tile in this one: its own tiles are what there is to show.
            tile = inside[tile.id][0][0]
            name = f"{name} · {tile.label}"
        parts = [part for part, _ in inside[tile.id]]
        room = Rectangle(
            place.x + _PAD, place.y + _PAD, place.width - 2 * _PAD, place.height - _BAR - _PAD
        )
        if len(parts) > 1 and room.height > _LEAST and room.width > _LEAST:
            _tile(axes, place, COLOR.line, [f"{name} · {tile.size}"])
            _divide(axes, tile, inside, room)
        elif len(parts) > 1:
            # No room for its name: what is in it is shown all the same.
            _divide(axes, tile, inside, place)
        elif parts:
            _tile(axes, place, _color(parts[0]), [name, f"{parts[0].label} · {tile.size}"])
        else:
            _tile(axes, place, _color(tile), [name, tile.size])


def _tile(axes: Axes, place: Rectangle, color: str, lines: Sequence[str]) -> None:
    """Draw one tile, with as many of `lines` as there is room for."""
    from matplotlib.patches import Rectangle as Patch

    corner = (place.x, place.y)
    axes.add_patch(Patch(corner, place.width, place.height, lw=1.2, ec=COLOR.surface, fc=color))
    width = place.width - 10
    for number, line in enumerate(lines):
        y = place.y + place.height - 5 - number * 1.25 * _TEXT
        if width < min(len(line), _FEWEST) * _SMALLEST * _LETTER or y - 1.2 * _TEXT < place.y:
            break
        text, size = fitting(line, _TEXT, width, smallest=_SMALLEST)
        axes.text(
            place.x + 6, y, text, fontsize=size, color=ink_on(color), va="top",
            weight="bold" if not number else "normal", parse_math=False,
        )  # fmt: skip


def _color(tile: Tile) -> str:
    """Return the colour of a copy or an owner by its kind, or that of weights of many kinds."""
    return _COLORS.get(tile.kind, COLOR.band)
