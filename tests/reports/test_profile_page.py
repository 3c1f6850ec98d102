"""The page of a profile: the record and the charts inside, and nothing that asks others."""

import json
import re
from typing import Any

import pytest

from memdiag.records.attribution import Copy
from memdiag.records.profile import PhaseAttribution, PhaseName, Profile
from tests.reports import profiles, tied_xray
from tests.reports.findings import TIED
from tests.reports.rendering import Page, html, replaced

MAX_BYTES = 8_000_000
PROFILE = profiles.tied_if()


def charts(page: Page) -> Any:
    return json.loads(page.embedded("charts"))


def with_copies(profile: Profile, copies: list[Copy]) -> Profile:
    attribution = replaced(tied_xray.attribution(), copies=tuple(copies))
    return replaced(profile, attribution=attribution)


def weights(count: int, name: str = "encoder/layers.{}/attention/weight") -> list[Copy]:
    """Return a copy of each of `count` weights."""
    first = tied_xray.attribution().copies[0]
    return [replaced(first, weights=(name.format(i),), address=i) for i in range(count)]


def test_the_page_asks_nobody_for_anything_and_runs_its_own_scripts_only() -> None:
    page = Page(html(PROFILE))
    assert page.links == {"data:,", "#main"}
    (policy,) = [attrs["content"] for _, attrs in page.elements if "http-equiv" in attrs]
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    sources = policy.rpartition("script-src ")[2].split()
    assert [source[:8] for source in sources] == ["'sha256-"] * 2
    assert not [attrs for tag, attrs in page.elements if tag == "script" and "src" in attrs]


def test_hostile_names_are_text() -> None:
    command = ("memdiag", "profile", "my model.onnx", f"--env=X={profiles.HOSTILE}")
    page = Page(html(replaced(profiles.hostile(), command=command)))
    tags = [tag for tag, _ in page.elements]
    assert not {"img", "b"} & {*tags}
    assert tags.count("script") == [tag for tag, _ in Page(html(PROFILE)).elements].count("script")
    assert page.text.count(profiles.HOSTILE) > 5
    assert "memdiag profile 'my model.onnx'" in page.text  # as a shell needs it


def test_every_number_of_the_phase_table_is_there() -> None:
    text = Page(html(PROFILE)).text
    for figure in ("825", "1,563", "+517", "ConstantFolding, step 1", "steady ×10"):
        assert figure in text


def test_bars_are_never_longer_than_their_track() -> None:
    steps = (profiles.Step("imports", "start", 0.1, 46, 46), profiles.Step("x", "parse", 1, 50, 30))
    for profile in (profiles.build(steps), profiles.tiny(), PROFILE):
        widths = re.findall(r"width:([-\d.]+)%", html(profile))
        assert widths
        assert all(0 <= float(width) <= 100 for width in widths)


@pytest.mark.parametrize(("count", "is_cut"), [(500, False), (600, True)])
def test_many_spans_are_counted_after_the_largest(count: int, is_cut: bool) -> None:
    page = html(replaced(PROFILE, spans=(PROFILE.spans[4],) * count))
    assert ("100 smaller ones are in the record (JSON) only" in page) == is_cut
    assert ("in the record (JSON) only" in page) == is_cut


def test_what_is_drawn_is_what_was_recorded() -> None:
    drawn = charts(Page(html(PROFILE)))
    assert max(drawn["timeline"]["rss"]) == 1579 * profiles.MIB
    assert drawn["timeline"]["baseline"] == 46 * profiles.MIB
    assert len(drawn["spans"]) == len(PROFILE.spans)
    assert drawn["runs"]["latency"][0] == 0.028
    nothing = html(profiles.nothing_seen())
    assert 'id="timeline"' not in nothing
    assert "Failed in start" in nothing


def test_who_owns_it_is_there_with_addresses_only_where_an_xray_was_taken() -> None:
    text = Page(html(tied_xray.with_attribution())).text
    owners = "Owners of the memory"
    for part in (owners, "model.shared.weight +1 more", "0x7f0000000040", "by its mapping"):
        assert part in text
    assert owners not in Page(html(PROFILE)).text


@pytest.mark.parametrize(("count", "is_cut"), [(3, False), (4, True)])
def test_addresses_that_are_not_listed_are_counted(count: int, is_cut: bool) -> None:
    first = tied_xray.attribution().copies[0]
    copies = [replaced(first, address=64 * i) for i in range(count)]
    text = Page(html(with_copies(tied_xray.with_attribution(), copies))).text
    assert ("0x80 +1 more" in text) is is_cut


def test_findings_come_with_the_rules_own_words_once() -> None:
    page = Page(html(replaced(PROFILE, findings=(TIED, TIED))))
    ids = [attrs["id"] for tag, attrs in page.elements if tag == "details" and attrs]
    assert ids == ["rule-MD103"]
    assert "Constant folding evaluates the Transpose" in page.text


def test_five_thousand_weights_are_all_listed() -> None:
    page = Page(html(with_copies(PROFILE, weights(5000))))
    (xray,) = charts(page)["xrays"]
    assert len(xray["copies"]["rows"]) == 5000
    assert "weights more" not in page.text


def test_the_longest_page_stays_below_eight_megabytes() -> None:
    page = html(profiles.long())
    assert len(page.encode()) < MAX_BYTES
    assert '<script type="application/gzip" id="profile"' in page
    many = with_copies(profiles.long(), weights(5000))
    assert many.attribution is not None
    names: tuple[PhaseName, ...] = (
        *("parse", "optimize", "constant_fold"),
        *("initialize", "prepack", "first_run"),
    )
    earlier = tuple(PhaseAttribution(phase=n, attribution=many.attribution) for n in names)
    assert len(html(replaced(many, phase_attributions=earlier)).encode()) < MAX_BYTES


def test_weights_with_names_for_which_there_is_no_room_are_counted() -> None:
    page = html(with_copies(profiles.long(), weights(4000, "{}/" + "x" * 500)))
    assert len(page.encode()) < MAX_BYTES
    unlisted = re.search(
        r"([\d,]+) weights more: ([\d,]+) copies, [\d.]+ GiB, which are neither in this table nor"
        r" found by its filter; the record \(JSON\) has",
        page,
    )
    assert unlisted is not None
    assert 0 < int(unlisted[1].replace(",", "")) < 4000
