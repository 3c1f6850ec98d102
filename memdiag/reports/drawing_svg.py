"""A drawing of nodes as inline SVG, in the colours of the page that it is put into."""

from collections.abc import Iterator, Mapping
from html import escape
from itertools import pairwise

from memdiag.records.drawing import Drawing, DrawnEdge, DrawnNode
from memdiag.reports.layered import Layout, Place, layout
from memdiag.reports.views.text import plain, shortened
from memdiag.units import format_size

_WIDTH = {"operator": 176.0, "weight": 216.0, "value": 150.0}
_HEIGHT = {"operator": 44.0, "weight": 46.0, "value": 34.0}
_TITLE_LETTERS = {"operator": 21, "weight": 26, "value": 18}
_DETAIL_LETTERS = {"operator": 28, "weight": 35, "value": 23}
_GAP, _ROW, _EDGE, _MARGIN = 18.0, 84.0, 7.0, 8.0
_WIDEST = 640.0
_BAR = 22.0  # the height of an operator's title bar
_SMALLEST = 0.65  # of its size: where that is wider than the page, it scrolls

_STYLE = """
.drawing { display: block; width: 100%; height: auto; margin: 0 auto; }
.drawing text { font: 12px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
  fill: var(--ink, currentColor); text-anchor: middle; }
.drawing .drawn-title { font-weight: 600; }
.drawing .drawn-detail { font-size: 10.5px; fill: var(--muted, currentColor); }
.drawing .drawn-box { fill: var(--surface, none); stroke: var(--muted, currentColor); }
.drawing .drawn-bar { fill: var(--ink, currentColor); }
.drawing .drawn-operator .drawn-title { fill: var(--surface, white); }
.drawing .drawn-weight .drawn-box { fill: var(--band, none); }
.drawing .drawn-value .drawn-box { stroke-dasharray: 3 3; }
.drawing .drawn-emphasis .drawn-box { stroke: var(--drawn-accent); stroke-width: 2.5; }
.drawing .drawn-emphasis .drawn-bar { fill: var(--drawn-accent); }
.drawing .drawn-edge { fill: none; stroke: var(--muted, currentColor); stroke-width: 1.4; }
.drawing .drawn-head { fill: var(--muted, currentColor); }
"""
_WASTE = "var(--peak-ink, var(--peak, currentColor))"


def render(drawing: Drawing) -> str:
    """Return `drawing` as an SVG element; all of its text is escaped.

    What is emphasised has the colour of a peak. The element carries its own style, in the page's
    variables.
    """
    widths = {node.id: _WIDTH[node.kind] for node in drawing.nodes}
    edges = list(dict.fromkeys((edge.source, edge.target) for edge in drawing.edges))
    laid = layout(widths, edges, gap=_GAP, widest=_WIDEST)
    rows = max((place.row for place in laid.places.values()), default=0)
    width, height = laid.width + 2 * _MARGIN, rows * _ROW + max(_HEIGHT.values()) + 2 * _MARGIN
    name = f"{len(drawing.nodes)} nodes of the model, in {plain(drawing.graph)}"
    parts = [
        f'<svg class="drawing" xmlns="http://www.w3.org/2000/svg" role="img"'
        f' viewBox="0 0 {width:.0f} {height:.0f}" style="max-width: {width:.0f}px;'
        f' min-width: {_SMALLEST * width:.0f}px"'
        f' aria-label="{escape(name)}">',
        f"<title>{escape(name)}</title><style>{_STYLE}</style>"
        f'<g style="--drawn-accent: {_WASTE}" transform="translate({_MARGIN} {_MARGIN})">',
        *_edges(drawing, laid),
        *(_node(node, laid.places[node.id]) for node in drawing.nodes),
        "</g></svg>",
    ]
    return "\n".join(parts)


def _node(node: DrawnNode, place: Place) -> str:
    size = "" if node.size_bytes is None else format_size(node.size_bytes)
    lines = [node.title, " · ".join(part for part in (node.detail, size) if part)]
    width, height = _WIDTH[node.kind], _HEIGHT[node.kind]
    left, top = place.x - width / 2, place.row * _ROW + (max(_HEIGHT.values()) - height) / 2
    said = " · ".join(plain(line) for line in lines if line)
    emphasis = " drawn-emphasis" if node.emphasis else ""
    radius = {"operator": 7, "weight": 2, "value": height / 2}[node.kind]
    parts = [
        f'<g class="drawn-{node.kind}{emphasis}" transform="translate({left:.1f} {top:.1f})">'
        f"<title>{escape(said)}</title>"
        f'<rect class="drawn-box" width="{width:.0f}" height="{height:.0f}" rx="{radius:g}"/>'
    ]
    if node.kind == "operator":
        parts.append(
            f'<path class="drawn-bar" d="M0 {_BAR}V7Q0 0 7 0H{width - 7:.0f}Q{width:.0f} 0'
            f' {width:.0f} 7V{_BAR}Z"/>'
        )
    parts += _text(lines, node, width / 2, height)
    return "".join(parts) + "</g>"


def _text(lines: list[str], node: DrawnNode, x: float, height: float) -> Iterator[str]:
    """Yield the title and, where there is one, the detail below it."""
    title = shortened(plain(lines[0]), _TITLE_LETTERS[node.kind])
    detail = shortened(plain(lines[1]), _DETAIL_LETTERS[node.kind])
    baseline = {"operator": 15.5, "weight": 18.5, "value": 14.5}[node.kind]
    if not detail:
        baseline = height / 2 + 4 if node.kind != "operator" else baseline
    yield f'<text class="drawn-title" x="{x:.1f}" y="{baseline:.1f}">{escape(title)}</text>'
    if detail:
        y = height - {"operator": 7.5, "weight": 11.0, "value": 6.5}[node.kind]
        yield f'<text class="drawn-detail" x="{x:.1f}" y="{y:.1f}">{escape(detail)}</text>'


def _edges(drawing: Drawing, laid: Layout) -> Iterator[str]:
    kinds = {node.id: node.kind for node in drawing.nodes}
    for edge in drawing.edges:
        points = _points(edge, laid, kinds)
        (x, y), *_ = reversed(points)
        label = f"<title>{escape(plain(edge.label))}</title>" if edge.label else ""
        yield f'<g><path class="drawn-edge" d="{_curve(points)}">{label}</path>'
        yield (
            f'<path class="drawn-head" d="M{x - 4:.1f} {y:.1f}H{x + 4:.1f}L{x:.1f}'
            f' {y + _EDGE:.1f}Z"/></g>'
        )


def _points(edge: DrawnEdge, laid: Layout, kinds: Mapping[str, str]) -> list[tuple[float, float]]:
    """Return where an edge starts, what it passes, and where its arrow's head begins."""
    source, target = laid.places[edge.source], laid.places[edge.target]
    middle = max(_HEIGHT.values()) / 2
    start = source.row * _ROW + middle + _HEIGHT[kinds[edge.source]] / 2
    end = target.row * _ROW + middle - _HEIGHT[kinds[edge.target]] / 2 - _EDGE
    passing = [
        (place.x, place.row * _ROW + middle) for place in laid.passing[edge.source, edge.target]
    ]
    return [(source.x, start), *passing, (target.x, end)]


def _curve(points: list[tuple[float, float]]) -> str:
    parts = [f"M{points[0][0]:.1f} {points[0][1]:.1f}"]
    for (x, y), (to_x, to_y) in pairwise(points):
        half = (y + to_y) / 2
        parts.append(f"C{x:.1f} {half:.1f} {to_x:.1f} {half:.1f} {to_x:.1f} {to_y:.1f}")
    return "".join(parts)
