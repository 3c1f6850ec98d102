"""Labels in a row, moved aside only as far as it takes for none to cover another."""

from collections.abc import Sequence


def spread(
    wanted: Sequence[float], widths: Sequence[float], *, gap: float, width: float
) -> tuple[float, ...]:
    """Return the centres of labels that want to stand at `wanted`, in the same order.

    `widths`, `gap` and `width` (of the whole row) are in the unit of `wanted`. Where the labels
    cannot fit, they are set evenly and overlap evenly.
    """
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    needed = sum(widths) + gap * max(0, len(widths) - 1)
    gap = gap if needed <= width else gap - (needed - width) / max(1, len(widths) - 1)
    places = dict.fromkeys(order, 0.0)
    edge = 0.0
    for index in order:  # to the right, as far as the one before demands
        places[index] = max(wanted[index], edge + widths[index] / 2)
        edge = places[index] + widths[index] / 2 + gap
    edge = width
    for index in reversed(order):  # and back to the left, as far as the row's end demands
        places[index] = min(places[index], edge - widths[index] / 2)
        edge = places[index] - widths[index] / 2 - gap
    return tuple(places[index] for index in range(len(wanted)))
