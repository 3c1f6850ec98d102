from hypothesis import given
from hypothesis import strategies as st

from memdiag.reports.layered import layout

GAP = 10.0
BOXES = "abcdefghijkl"
edge_lists = st.lists(
    st.tuples(st.sampled_from(BOXES), st.sampled_from(BOXES)), max_size=20, unique=True
)


def widths(boxes: str) -> dict[str, float]:
    return {box: 20.0 + 4 * number for number, box in enumerate(boxes)}


@given(edges=edge_lists)
def test_boxes_lie_apart_within_the_width(edges: list[tuple[str, str]]) -> None:
    sizes = widths(BOXES)
    laid = layout(sizes, edges, gap=GAP, widest=200)
    assert list(laid.places) == list(BOXES)
    for box, place in laid.places.items():
        assert place.row >= 0
        assert place.x - sizes[box] / 2 >= -1e-6
        assert place.x + sizes[box] / 2 <= laid.width + 1e-6
        for other, at in laid.places.items():
            if other != box and at.row == place.row:
                assert abs(at.x - place.x) >= (sizes[box] + sizes[other]) / 2 + GAP - 1e-6


@given(edges=edge_lists.map(lambda edges: [edge for edge in edges if edge[0] < edge[1]]))
def test_arrows_point_downwards_and_pass_every_row(edges: list[tuple[str, str]]) -> None:
    laid = layout(widths(BOXES), edges, gap=GAP, widest=200)
    for source, target in edges:
        rows = range(laid.places[source].row + 1, laid.places[target].row)
        assert laid.places[source].row < laid.places[target].row
        assert [place.row for place in laid.passing[source, target]] == [*rows]


def test_parts_stand_side_by_side_while_there_is_room() -> None:
    sizes = dict.fromkeys("abcd", 50.0)
    edges = [("a", "b"), ("c", "d")]
    beside = layout(sizes, edges, gap=GAP, widest=200)
    assert [place.row for place in beside.places.values()] == [0, 1, 0, 1]
    below = layout(sizes, edges, gap=GAP, widest=100)
    assert [place.row for place in below.places.values()] == [0, 1, 2, 3]
    assert below.width == 50


def test_neighbours_keep_the_order_of_what_they_read() -> None:
    edges = [("a", "d"), ("b", "c")]
    laid = layout(dict.fromkeys("abcde", 50.0), [*edges, ("c", "e"), ("d", "e")], gap=1, widest=999)
    places = laid.places
    assert (places["a"].x < places["b"].x) == (places["d"].x < places["c"].x)


def test_nothing_takes_no_room() -> None:
    assert layout({}, [], gap=GAP, widest=100).width == 0
