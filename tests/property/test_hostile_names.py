"""Names that mean harm, in every text of every record: each output stays what it is."""

import io
import json
import re
import typing
import unicodedata
import xml.etree.ElementTree as ElementTree
from collections import Counter
from functools import cache, partial
from html.parser import HTMLParser
from typing import Any, Literal

import msgspec
import pytest
from rich.console import Console

from memdiag.detail import Detail
from memdiag.records.finding import CheckedModel
from memdiag.reports import check as check_report
from memdiag.reports import github, report_of, sarif
from memdiag.reports import xray as xray_report
from tests.reports import comparisons, fix_records, gpus, profiles, runs, tied_xray
from tests.reports.checks import check, finding

BENIGN = "name of something-else.onnx"
HOSTILE = {
    "newline": "a\n::error file=x::gone\r\n::set-output name=x::y",
    "command": "::error::gone",
    "escape": "a\x1b[31mred\x1b]0;title\x07\x00\x9b2J\x08b",
    "markup": "[red]a[/red][/][link=http://x]b[/link]\\[",
    "html": "</script></style></title><img src=x onerror=alert(1)>&amp;<!--'\"]]>",
    "markdown": "a|b|c `d` ``` *e* _f_ [g](http://h) ![i](j) # k @team #1 ~~l~~ $m$ \\",
    "rtl": "a\u202egnp.\u2066b\u200fc\u2028d\u2029e\u0085f",
    "surrogate": "a\udcff\ud800b",
}
CONTROL = {"Cc", "Cs", "Zl", "Zp"}
BIDI = set("\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
# What links parts of a record with each other, or must be of a certain form.
FORMAL = {"schema", "id", "source", "target", "metric"}

RECORDS: dict[str, Any] = {
    "profile": tied_xray.with_xrays,
    "gpu": gpus.compared_profile,
    "failed": profiles.failed,
    "killed": profiles.killed,
    "comparison": comparisons.versions,
    "fix": fix_records.verified,
    "run": runs.server,
}


def renamed(value: Any, name: str, hint: Any = None) -> Any:
    """Return a record with `name` in each text that may be any."""
    if isinstance(value, msgspec.Struct):
        hints = typing.get_type_hints(type(value))
        changes = {
            field: renamed(getattr(value, field), name, hints[field])
            for field in value.__struct_fields__
            if field not in FORMAL
        }
        return msgspec.structs.replace(value, **changes)
    if isinstance(value, tuple):
        return tuple(renamed(item, name, hint) for item in value)
    if isinstance(value, dict):
        return {key: renamed(item, name, hint) for key, item in value.items()}
    if isinstance(value, str) and not _is_chosen(hint):
        return name
    return value


def _is_chosen(hint: Any) -> bool:
    """Return whether a type is one of a few texts."""
    if typing.get_origin(hint) is Literal:
        return True
    return any(map(_is_chosen, typing.get_args(hint)))


def bad_signs(text: str) -> set[str]:
    return {c for c in text if c != "\n" and (unicodedata.category(c) in CONTROL or c in BIDI)}


def check_text(text: str) -> None:
    assert not bad_signs(text)
    for line in text.splitlines():
        assert not line.lstrip().startswith(("::", "##["))


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes |= {name for name, _ in attrs}


def tags(page: str) -> Tags:
    parser = Tags()
    parser.feed(page)
    return parser


def cells(line: str) -> int:
    """Return how many cells a row of a table has: bars that are not escaped."""
    return len(re.findall(r"(?<!\\)(?:\\\\)*\|", line))


def check_markdown_text(text: str, benign: str) -> None:
    assert not bad_signs(text)
    # Programs and commands of a record may have any lines; their fence is longer than any inside.
    text, benign = (
        re.sub(r"(?ms)^(```+)(?:python|console)\n.*?^\1$", "", one) for one in (text, benign)
    )
    check_text(text)
    assert len(text.splitlines()) == len(benign.splitlines())
    for line, other in zip(text.splitlines(), benign.splitlines(), strict=True):
        assert line.startswith("|") == other.startswith("|")
        if line.startswith("|"):
            assert cells(line) == cells(other)
    outside = re.sub(r"(?<![\\`])(`+)(?!`).*?(?<!`)\1(?!`)", "", text)
    assert not re.search(r"(?<!\\)<(?!details|/details|summary|/summary|!--|sub|/sub|br)", outside)
    assert "@team" not in outside


def console_text(show: Any) -> str:
    console = Console(file=io.StringIO(), width=80, highlight=False)
    show(console)
    return typing.cast(io.StringIO, console.file).getvalue()


@cache
def rendered(kind: str, name: str) -> tuple[str, Tags]:
    """Render the record of a kind with `name` in its texts, as Markdown and as a page."""
    record = renamed(RECORDS[kind](), name)
    report = report_of(record)
    page = tags(report.render(record, "html").decode())
    return report.render(record, "markdown").decode(), page


every_name = pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)


# Profiles that ended early have fewer texts than a whole one.
KINDS = [
    pytest.param(kind, marks=[pytest.mark.slow] if kind in ("failed", "killed") else [])
    for kind in RECORDS
]


@every_name
@pytest.mark.parametrize("kind", KINDS)
def test_reports_stay_well_formed(kind: str, name: str) -> None:
    record = renamed(RECORDS[kind](), name)
    report = report_of(record)
    check_text(console_text(partial(report.print_summary, record, detail=Detail.ALL)))
    assert json.loads(report.render(record, "json"))["schema"]
    markdown, page = rendered(kind, name)
    benign_markdown, benign_page = rendered(kind, BENIGN)
    check_markdown_text(markdown, benign_markdown)
    assert page.seen <= benign_page.seen
    assert page.attributes <= benign_page.attributes


@every_name
@pytest.mark.parametrize("kind", ["profile", "run"])
def test_traces_stay_events(kind: str, name: str) -> None:
    report = report_of(RECORDS[kind]())
    hostile, benign = (
        json.loads(report.render(renamed(RECORDS[kind](), text), "trace"))["traceEvents"]
        for text in (name, BENIGN)
    )
    assert [event["ph"] for event in hostile] == [event["ph"] for event in benign]
    assert not bad_signs(json.dumps(hostile, ensure_ascii=False))


@pytest.mark.parametrize("kind", RECORDS)
def test_pictures_of_hostile_names_are_drawn(kind: str) -> None:
    hostile, benign = (
        renamed(RECORDS[kind](), name) for name in (" ".join(HOSTILE.values()), BENIGN)
    )
    assert svg_tags(hostile) <= svg_tags(benign)
    # All letters are rasterised as well.
    assert report_of(hostile).render(hostile, "png").startswith(b"\x89PNG")


def svg_tags(record: Any) -> set[str]:
    picture = report_of(record).render(record, "svg").decode()
    return {element.tag for element in ElementTree.fromstring(picture).iter()}


@every_name
def test_annotations_of_a_workflow_stay_commands(name: str) -> None:
    profile = msgspec.structs.replace(profiles.failed(), findings=(finding(),))
    counts = []
    for text in (name, BENIGN):
        lines = github.profile_annotations(renamed(profile, text)).splitlines()
        assert all(re.match(r"::(error|warning|notice) file=[^,:]*,title=", one) for one in lines)
        assert not any(bad_signs(one) for one in lines)
        counts.append(Counter(line.split()[0] for line in lines))
    assert counts[0] == counts[1]


@every_name
def test_checks_stay_well_formed(name: str) -> None:
    broken = CheckedModel(path="cut.onnx", error="cut.onnx: the file ends.", notes=("a note",))
    fine = check(finding()).models
    built = check(finding(), models=(*fine, broken))
    hostile, benign = renamed(built, name), renamed(built, BENIGN)
    check_text(console_text(lambda console: check_report.print_check_report(hostile, console)))
    check_markdown_text(check_report.check_markdown(hostile), check_report.check_markdown(benign))
    log = json.loads(sarif.sarif_log(hostile, version="1"))
    (run,) = log["runs"]
    (result,) = run["results"]
    (place,) = result["locations"]
    uri = place["physicalLocation"]["artifactLocation"]["uri"]
    assert re.fullmatch(r"[\w./%~:-]+", uri, re.ASCII)
    assert not bad_signs(result["message"]["text"])
    assert not any(bad_signs(one["fullyQualifiedName"]) for one in place["logicalLocations"])
    (notification,) = run["invocations"][0]["toolExecutionNotifications"]
    assert not bad_signs(notification["message"]["text"])


@every_name
def test_other_summaries_stay_text(name: str) -> None:
    attribution = renamed(tied_xray.attribution(), name)
    show = partial(xray_report.REPORT.print_summary, attribution, detail=Detail.ALL)
    check_text(console_text(show))
