import io
import zlib
from xml.etree import ElementTree

import msgspec
import numpy

from memdiag.reports import treemap, treemap_svg
from memdiag.reports.palette import COPIES, LIGHT, OWNERS
from tests.reports import profiles, tied_xray
from tests.reports.attributions import attribution, copy


def test_it_is_a_picture_that_is_not_blank_and_always_the_same() -> None:
    from matplotlib import image

    drawn = treemap.render(tied_xray.with_attribution())
    pixels = numpy.asarray(image.imread(io.BytesIO(drawn), format="png"))
    assert pixels.shape[:2] == (896, 1600)
    assert len(zlib.compress((pixels * 255).astype(numpy.uint8).tobytes())) > 15_000
    assert treemap.render(tied_xray.with_attribution()) == drawn


def test_copies_and_owners_have_the_colours_of_the_page() -> None:
    svg = treemap_svg.render(tied_xray.with_attribution()).decode()
    root = ElementTree.fromstring(svg)
    assert root.tag.endswith("svg")
    for kind in ("original", "transposed", "packed"):
        assert COPIES["light"][kind] in svg
    assert COPIES["light"]["cast"] not in svg  # there is none
    assert OWNERS["light"]["python"] in svg


def test_the_copies_of_an_only_weight_are_drawn() -> None:
    same = attribution(copy("original", 64 << 20), copy("packed_fp32", 64 << 20))
    profile = msgspec.structs.replace(profiles.tied_if(), attribution=same)
    svg = treemap_svg.render(profile).decode()
    # In the legend, and as a tile.
    for kind in ("original", "packed"):
        assert svg.count(f"fill: {COPIES['light'][kind]}") == 2


def test_many_weights_and_hostile_names_can_be_drawn() -> None:
    names = [f"</svg><script>{number}</script>$x_{{" for number in range(300)]
    copies = [copy("original", 1000 + number, name) for number, name in enumerate(names)]
    profile = msgspec.structs.replace(profiles.tied_if(), attribution=attribution(*copies))
    svg = treemap_svg.render(profile)
    assert b"<script" not in svg
    ElementTree.fromstring(svg.decode())


def test_without_an_xray_it_says_so_and_draws_no_tile() -> None:
    svg = treemap_svg.render(profiles.failed()).decode()
    assert LIGHT.anonymous not in svg
    assert treemap_svg.render(profiles.tied_if()) != treemap_svg.render(profiles.failed())
