import re
from xml.etree import ElementTree

from memdiag.records.drawing import Drawing, DrawnEdge, DrawnKind, DrawnNode
from memdiag.reports.drawing_svg import render

HOSTILE = "</script><img src=x onerror=\"alert('1')\">&\u202e" + "long" * 40
SVG = "{http://www.w3.org/2000/svg}"


def node(id: str, kind: DrawnKind, title: str, detail: str = "", **changes: object) -> DrawnNode:
    size = 1 << 20 if kind == "weight" else None
    return DrawnNode(
        id=id,
        kind=kind,
        title=title,
        detail=detail,
        size_bytes=size,
        emphasis=bool(changes.get("emphasis")),
    )


def drawing(*nodes: DrawnNode, edges: tuple[DrawnEdge, ...] = (), graph: str = "main") -> Drawing:
    return Drawing(nodes=nodes, edges=edges, graph=graph, omitted=0)


TIED = drawing(
    node("0", "weight", "shared", "float [512, 512]", emphasis=True),
    node("1", "operator", "Transpose", "lm/Transpose"),
    node("2", "operator", "MatMul", "lm/MatMul"),
    node("3", "value", "hidden", "float [8, 512]"),
    edges=(
        DrawnEdge(source="0", target="1", label=""),
        DrawnEdge(source="1", target="2", label="turned"),
        DrawnEdge(source="3", target="2", label=""),
    ),
)


def parsed(drawing: Drawing) -> ElementTree.Element:
    return ElementTree.fromstring(render(drawing))


def test_every_box_is_there_with_its_full_name_on_hover() -> None:
    titles = [one.text for one in parsed(TIED).iter(f"{SVG}title")]
    assert "shared · float [512, 512] · 1.0 MiB" in titles
    assert "Transpose · lm/Transpose" in titles
    assert "turned" in titles
    assert len(parsed(TIED).findall(f".//{SVG}path[@class='drawn-edge']")) == 3


def test_arrows_lead_down() -> None:
    for path in parsed(TIED).iterfind(f".//{SVG}path[@class='drawn-edge']"):
        heights = [float(y) for y in re.findall(r"[-\d.]+ ([-\d.]+)", path.get("d", ""))]
        assert heights == sorted(heights)


def test_what_is_emphasised_is_marked_and_coloured_by_what_it_means() -> None:
    groups = [one.get("class") for one in parsed(TIED).iter(f"{SVG}g")]
    assert groups.count("drawn-weight drawn-emphasis") == 1
    assert "drawn-operator" in groups
    assert "--drawn-accent: var(--peak" in render(TIED)


def test_hostile_and_long_names_stay_text() -> None:
    hostile = drawing(
        node("0", "weight", HOSTILE, HOSTILE),
        node("1", "operator", HOSTILE, HOSTILE),
        node("2", "value", HOSTILE, HOSTILE),
        edges=(DrawnEdge(source="0", target="1", label=HOSTILE),),
        graph=HOSTILE,
    )
    text = render(hostile)
    assert "<img" not in text
    assert "</script" not in text
    assert "\u202e" not in text
    root = ElementTree.fromstring(text)
    assert all(len(one.text or "") <= 35 for one in root.iter(f"{SVG}text"))
    assert any(HOSTILE[:40] in (one.text or "") for one in root.iter(f"{SVG}title"))
    assert {one.tag for one in root.iter()} <= {
        f"{SVG}{name}" for name in ("svg", "g", "title", "style", "rect", "path", "text")
    }


def test_it_has_a_name_and_scales_with_the_page() -> None:
    root = parsed(TIED)
    assert root.get("aria-label") == "4 nodes of the model, in main"
    assert root.get("role") == "img"
    assert "max-width" in root.get("style", "")
    assert root.get("width") is None


def test_the_same_drawing_gives_the_same_markup() -> None:
    assert render(TIED) == render(TIED)
