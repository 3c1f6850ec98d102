"""A small layered layout: boxes in rows, arrows downwards, few of them crossing.

Rows come from the longest paths, the order in a row from the middle of the neighbours; arrows that
pass rows get a place in each of them. Parts that no arrow links stand side by side, or below.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

_SWEEPS = 6

Edge = tuple[str, str]


class Place(NamedTuple):
    """Where a box is: its row, from 0 on, and the middle of it across."""

    row: int
    x: float


class Layout(NamedTuple):
    """The places of all boxes; of each edge those where it passes a row; and the whole width."""

    places: dict[str, Place]
    passing: dict[Edge, tuple[Place, ...]]
    width: float


def layout(
    widths: Mapping[str, float], edges: Sequence[Edge], *, gap: float, widest: float
) -> Layout:
    """Return where boxes of the given `widths` go, `gap` apart; `edges` are (source, target).

    An edge that would close a circle counts as pointing the other way. Parts go below others where
    they would all be wider than `widest` side by side.
    """
    places: dict[str, Place] = {}
    passing: dict[Edge, tuple[Place, ...]] = {}
    x = width = 0.0
    row = next_row = 0
    for part in _parts(widths, edges):
        laid = _layout({box: widths[box] for box in part}, [e for e in edges if e[0] in part], gap)
        if x and x + laid.width > widest:
            x, row = 0.0, next_row
        places |= {box: Place(row + at.row, x + at.x) for box, at in laid.places.items()}
        for edge, passed in laid.passing.items():
            passing[edge] = tuple(Place(row + at.row, x + at.x) for at in passed)
        next_row = max(next_row, row + 1 + max(at.row for at in laid.places.values()))
        width = max(width, x + laid.width)
        x += laid.width + 2 * gap
    return Layout({box: places[box] for box in widths}, passing, width)


def _parts(boxes: Iterable[str], edges: Sequence[Edge]) -> list[list[str]]:
    """Return the boxes in groups that edges link, in their order."""
    group = {box: [box] for box in boxes}
    for source, target in edges:
        one, other = group[source], group[target]
        if one is not other:
            one += other
            group.update(dict.fromkeys(other, one))
    return list({id(part): part for part in group.values()}.values())


def _layout(widths: Mapping[str, float], edges: Sequence[Edge], gap: float) -> Layout:
    rows = _rows(list(widths), edges)
    chains = {edge: _chain(edge, rows) for edge in edges}
    sizes = dict(widths)
    near: dict[str, list[str]] = defaultdict(list)
    for chain in chains.values():
        for upper, lower in pairwise(chain):
            near[upper].append(lower)
            near[lower].append(upper)
        for number, passed in enumerate(chain[1:-1], 1):
            sizes[passed] = gap
            rows[passed] = rows[chain[0]] + number
    lines: list[list[str]] = [[] for _ in range(max(rows.values()) + 1)]
    for box, row in rows.items():
        lines[row].append(box)
    x = _packed(lines, sizes, gap)
    for _ in range(_SWEEPS):
        for order, step in ((lines, -1), (lines[::-1], 1)):
            for line in order:
                wanted = {
                    box: _middle(
                        [x[one] for one in near[box] if rows[one] == rows[box] + step], x[box]
                    )
                    for box in line
                }
                line.sort(key=wanted.__getitem__)
                _settle(line, wanted, sizes, gap, x)
    left = min(x[box] - sizes[box] / 2 for box in x)
    right = max(x[box] + sizes[box] / 2 for box in x)
    places = {box: Place(rows[box], x[box] - left) for box in x}
    return Layout(
        places={box: places[box] for box in widths},
        passing={edge: tuple(places[one] for one in chain[1:-1]) for edge, chain in chains.items()},
        width=right - left,
    )


def _rows(boxes: Sequence[str], edges: Sequence[Edge]) -> dict[str, int]:
    """Return each box's row: below all that lead to it, and as low as what it leads to allows."""
    following: dict[str, list[str]] = defaultdict(list)
    for source, target in edges:
        if source != target:
            following[source].append(target)
    order = _in_order(boxes, following)
    place = {box: number for number, box in enumerate(order)}
    rows = dict.fromkeys(boxes, 0)
    for box in order:
        for target in following[box]:
            if place[target] > place[box]:
                rows[target] = max(rows[target], rows[box] + 1)
    for box in reversed(order):
        lower = [rows[target] for target in following[box] if place[target] > place[box]]
        if lower:
            rows[box] = max(rows[box], min(lower) - 1)
    return rows


def _in_order(boxes: Sequence[str], following: Mapping[str, Sequence[str]]) -> list[str]:
    """Return `boxes` so that each comes before what follows it, but for circles."""
    done: dict[str, None] = {}
    entered: set[str] = set()

    def visit(box: str) -> None:
        entered.add(box)
        for target in following.get(box, ()):
            if target not in entered:
                visit(target)
        done[box] = None

    for box in boxes:
        if box not in entered:
            visit(box)
    return [*reversed(done)]


def _chain(edge: Edge, rows: Mapping[str, int]) -> list[str]:
    """Return an edge's boxes from top to bottom, with one for each row that it passes."""
    upper, lower = sorted(edge, key=rows.__getitem__)
    passed = range(rows[upper] + 1, rows[lower])
    return [upper, *(f"{edge[0]} > {edge[1]} @ {row}" for row in passed), lower]


def _packed(
    lines: Sequence[Sequence[str]], sizes: Mapping[str, float], gap: float
) -> dict[str, float]:
    x: dict[str, float] = {}
    for line in lines:
        at = -(sum(sizes[box] + gap for box in line) - gap) / 2
        for box in line:
            x[box] = at + sizes[box] / 2
            at += sizes[box] + gap
    return x


def _settle(
    line: Sequence[str],
    wanted: Mapping[str, float],
    sizes: Mapping[str, float],
    gap: float,
    x: dict[str, float],
) -> None:
    """Place the boxes of a row as near to where they are `wanted` as their neighbours allow."""
    fromleft: list[float] = []
    for number, box in enumerate(line):
        reach = (
            fromleft[-1] + (sizes[line[number - 1]] + sizes[box]) / 2 + gap
            if number
            else wanted[box]
        )
        fromleft.append(max(wanted[box], reach))
    # What was pushed to the right all in all is taken back by half, so that no side is preferred.
    pushed = [at - wanted[box] for at, box in zip(fromleft, line, strict=True)]
    back = (min(pushed) + max(pushed)) / 2 if pushed else 0.0
    for at, box in zip(fromleft, line, strict=True):
        x[box] = at - back


def _middle(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise
