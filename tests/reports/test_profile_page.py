import json
import re
from html.parser import HTMLParser

import msgspec
import pytest

from memdiag.records import codec
from memdiag.records.profile import PhaseAttribution, Profile
from memdiag.reports.profile import REPORT
from tests.reports import profiles, tied_xray
from tests.reports.findings import TIED


class Page(HTMLParser):
    """Collects a page's elements, and the text of those outside of scripts and styles."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.text = ""
        self.open: tuple[str, dict[str, str | None]] = ("", {})
        self.feed(page.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open = (tag, dict(attrs))
        self.elements.append(self.open)

    def handle_endtag(self, tag: str) -> None:
        self.open = ("", {})

    def handle_data(self, data: str) -> None:
        tag, attrs = self.open
        if tag == "script":
            self.scripts.append((attrs, data))
        elif tag != "style":
            self.text += data

    @property
    def links(self) -> set[str | None]:
        """The addresses that elements refer to."""
        return {
            value
            for _, attrs in self.elements
            for name, value in attrs.items()
            if name in ("src", "href", "srcset", "action", "data")
        }


def embedded(page: Page, name: str) -> str:
    return "".join(text for attrs, text in page.scripts if attrs.get("id") == name)


def test_the_page_asks_nobody_for_anything() -> None:
    page = Page(REPORT.render(profiles.tied_if(), "html"))
    assert page.links == {"data:,", "#main"}
    (policy,) = [a["content"] for _, a in page.elements if "http-equiv" in a]
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "unsafe-inline' 'unsafe-eval" not in policy
    assert len(re.findall("sha256-", policy)) == 2


@pytest.mark.parametrize("build", [profiles.tied_if, profiles.hostile, profiles.nothing_seen])
def test_the_record_inside_is_the_record(build: object) -> None:
    assert callable(build)
    profile = build()
    text = embedded(Page(REPORT.render(profile, "html")), "profile")
    assert codec.decode(text.encode(), Profile) == profile


def test_the_longest_record_stays_below_eight_megabytes() -> None:
    page = REPORT.render(profiles.long(), "html")
    assert len(page) < 8_000_000
    assert b'<script type="application/gzip" id="profile"' in page


def test_hostile_names_are_text() -> None:
    page = Page(REPORT.render(profiles.hostile(), "html"))
    plain = Page(REPORT.render(profiles.tied_if(), "html"))
    assert not [tag for tag, _ in page.elements if tag in ("img", "b")]
    assert len([1 for tag, _ in page.elements if tag == "script"]) == len(
        [1 for tag, _ in plain.elements if tag == "script"]
    )
    assert page.text.count(profiles.HOSTILE) > 5


def test_every_number_of_the_phase_table_is_there() -> None:
    page = Page(REPORT.render(profiles.tied_if(), "html"))
    for figure in ("825", "1,563", "+517", "ConstantFolding, step 1", "steady ×10"):
        assert figure in page.text


def test_bars_are_never_longer_than_their_track() -> None:
    steps = (profiles.Step("imports", "start", 0.1, 46, 46), profiles.Step("x", "parse", 1, 50, 30))
    for profile in (profiles.build(steps), profiles.tiny(), profiles.tied_if()):
        widths = re.findall(rb"width:([-\d.]+)%", REPORT.render(profile, "html"))
        assert widths
        assert all(0 <= float(width) <= 100 for width in widths)


def test_many_spans_are_counted_after_the_largest() -> None:
    span = profiles.tied_if().spans[4]
    few = Page(
        REPORT.render(msgspec.structs.replace(profiles.tied_if(), spans=(span,) * 500), "html")
    )
    assert "in the record (JSON) only" not in few.text
    many = Page(
        REPORT.render(msgspec.structs.replace(profiles.tied_if(), spans=(span,) * 600), "html")
    )
    assert "100 smaller ones are in the record (JSON) only" in many.text


def test_what_is_drawn_is_what_was_recorded() -> None:
    charts = json.loads(embedded(Page(REPORT.render(profiles.tied_if(), "html")), "charts"))
    assert max(charts["timeline"]["rss"]) == 1579 * profiles.MIB
    assert charts["timeline"]["baseline"] == 46 * profiles.MIB
    assert len(charts["spans"]) == len(profiles.tied_if().spans)
    assert charts["runs"]["latency"][0] == 0.028


def test_without_anything_seen_there_is_no_empty_chart() -> None:
    page = REPORT.render(profiles.nothing_seen(), "html")
    assert b'id="timeline"' not in page
    assert b"Failed in start" in page


def test_who_owns_it_is_there_with_addresses_only_where_an_xray_was_taken() -> None:
    page = Page(REPORT.render(tied_xray.with_attribution(), "html"))
    for part in (
        "Owners of the memory",
        "model.shared.weight +1 more",
        "0x7f0000000040",
        "by its mapping",
    ):
        assert part in page.text
    assert "Owners of the memory" not in Page(REPORT.render(profiles.tied_if(), "html")).text


def test_addresses_that_are_not_listed_are_counted() -> None:
    profile = tied_xray.with_attribution()
    assert profile.attribution is not None
    copy = profile.attribution.copies[0]
    for count, more in ((3, False), (4, True)):
        copies = tuple(msgspec.structs.replace(copy, address=64 * i) for i in range(count))
        record = msgspec.structs.replace(profile.attribution, copies=copies)
        page = Page(REPORT.render(msgspec.structs.replace(profile, attribution=record), "html"))
        assert ("0x80 +1 more" in page.text) is more


def test_an_xray_of_many_weights_stays_below_eight_megabytes() -> None:
    long = msgspec.structs.replace(profiles.long(), attribution=tied_xray.attribution(100))
    assert long.attribution is not None
    copies = tuple(
        msgspec.structs.replace(long.attribution.copies[0], weights=(f"{i}/" + "x" * 500,))
        for i in range(4000)
    )
    record = msgspec.structs.replace(long.attribution, copies=copies)
    page = REPORT.render(msgspec.structs.replace(long, attribution=record), "html")
    assert len(page) < 8_000_000
    unlisted = re.search(
        rb"([\d,]+) weights more: ([\d,]+) copies, [\d.]+ GiB, which are neither in this table nor"
        rb" found by its filter; the record \(JSON\) has",
        page,
    )
    assert unlisted is not None
    assert 0 < int(unlisted[1].replace(b",", b"")) < 4000


def test_nothing_but_the_scripts_of_the_page_may_run() -> None:
    page = Page(REPORT.render(profiles.tied_if(), "html"))
    (policy,) = [attrs["content"] for _, attrs in page.elements if "http-equiv" in attrs]
    assert policy is not None
    sources = policy.rpartition("script-src ")[2].split()
    assert len(sources) == 2
    assert all(source.startswith("'sha256-") for source in sources)
    assert not [attrs for tag, attrs in page.elements if tag == "script" and "src" in attrs]


def test_findings_come_with_the_rules_own_words_once() -> None:
    record = msgspec.structs.replace(profiles.tied_if(), findings=(TIED, TIED))
    page = Page(REPORT.render(record, "html"))
    assert [attrs["id"] for tag, attrs in page.elements if tag == "details" and attrs] == [
        "rule-MD103"
    ]
    assert "Constant folding evaluates the Transpose" in page.text


def test_the_command_that_made_it_is_quoted_as_a_shell_needs() -> None:
    command = ("memdiag", "profile", "my model.onnx", f"--env=X={profiles.HOSTILE}")
    page = Page(REPORT.render(msgspec.structs.replace(profiles.tied_if(), command=command), "html"))
    assert "memdiag profile 'my model.onnx'" in page.text
    assert not [tag for tag, _ in page.elements if tag == "img"]


def test_five_thousand_weights_are_all_listed() -> None:
    first = tied_xray.attribution().copies[0]
    copies = tuple(
        msgspec.structs.replace(first, weights=(f"encoder/layers.{i}/attention/weight",), address=i)
        for i in range(5000)
    )
    record = msgspec.structs.replace(tied_xray.attribution(), copies=copies)
    page = Page(
        REPORT.render(msgspec.structs.replace(profiles.tied_if(), attribution=record), "html")
    )
    (xray,) = json.loads(embedded(page, "charts"))["xrays"]
    assert len(xray["copies"]["rows"]) == 5000
    assert "weights more" not in page.text


def test_five_thousand_weights_at_every_phase_stay_below_eight_megabytes() -> None:
    first = tied_xray.attribution().copies[0]
    copies = tuple(
        msgspec.structs.replace(first, weights=(f"encoder/layers.{i}/attention/weight",), address=i)
        for i in range(5000)
    )
    record = msgspec.structs.replace(tied_xray.attribution(), copies=copies)
    earlier = tuple(
        PhaseAttribution(phase=name, attribution=record)
        for name in ("parse", "optimize", "constant_fold", "initialize", "prepack", "first_run")
    )
    long = msgspec.structs.replace(profiles.long(), attribution=record, phase_attributions=earlier)
    assert len(REPORT.render(long, "html")) < 8_000_000
