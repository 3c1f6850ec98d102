"""The documentation site: it builds without a warning, and a reader needs nothing else."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import memdiag
from memdiag.cli.commands import COMMAND_NAMES
from memdiag.records.schemas import RECORD_BY_SCHEMA
from memdiag.rewrites import rewriters
from memdiag.tuning.tuning_options import tuning_options

ROOT = Path(__file__).parents[2]

_FETCHING = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src"}
"""Attributes with the address of something that a browser fetches, by element."""


class _Page(HTMLParser):
    """The texts of a page, its anchors, and the addresses of what it fetches."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.anchors: set[str] = set()
        self.text = ""
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if address := values.get(_FETCHING.get(tag, "")):
            self.fetched.append(address)
        if anchor := values.get("id"):
            self.anchors.add(anchor)

    def handle_data(self, data: str) -> None:
        self.text += data


def build(source: Path, site: Path) -> "subprocess.CompletedProcess[str]":
    """Build the site as `make docs` does."""
    (line,) = re.findall(
        r"^\t\$\(BIN\)/python (-m sphinx .*)$", (ROOT / "Makefile").read_text(), re.M
    )
    words = line.replace(" . build/site", f" {source} {site}").split()
    return subprocess.run(
        [sys.executable, *words, "-d", str(site.with_name("doctrees"))],
        cwd=source,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_site_is_complete_and_needs_no_other_host(tmp_path: Path) -> None:
    """All in one test: each worker of pytest-xdist would build the site again."""
    site = tmp_path / "html"
    done = build(ROOT, site)
    assert done.returncode == 0, done.stderr
    check_nothing_is_fetched_from_another_host(site)
    check_the_reference_has_everything(site)
    (target,) = re.findall(r'url=([^"]+)"', (site / "index.html").read_text())
    assert (site / target).is_file()
    assert len(list(site.glob("_downloads/*/memdiag.*.schema.json"))) == len(RECORD_BY_SCHEMA)


def test_broken_pages_fail_the_build(tmp_path: Path) -> None:
    docs = tmp_path / "repository" / "docs"
    (docs / "site_root").mkdir(parents=True)
    (docs / "static").mkdir()
    for name in ("conf.py", "reference_pages.py", "search_scorer.js", "site_root/index.html"):
        (docs / name).write_text((ROOT / "docs" / name).read_text())
    (docs / "index.md").write_text("# Index\n\n```{toctree}\nlisted\n```\n")
    (docs / "listed.md").write_text(
        "# Listed\n\n## A part\n\n[part](#a-part), [index](index.md)\n\n"
        "[gone](gone_page.md), [gone](index.md#gone-part), ![gone](gone.png)\n"
    )
    (docs / "orphan.md").write_text("# Orphan\n")
    done = build(docs.parent, tmp_path / "html")
    assert done.returncode != 0
    problems = [line for line in done.stderr.splitlines() if "WARNING" in line]
    for found in ("'gone_page.md'", "'gone-part'", "gone.png", "orphan.md"):
        assert len([line for line in problems if found in line]) == 1, done.stderr
    assert len(problems) == 4, done.stderr


def check_nothing_is_fetched_from_another_host(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 50
    for page in pages:
        remote = [each for each in _Page(page).fetched if re.match("(https?:)?//", each)]
        assert remote == [], page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*['\"]?(https?:)?//", sheet.read_text()), sheet


def check_the_reference_has_everything(site: Path) -> None:
    names = {each.rewrite.name for each in rewriters()} | {each.name for each in tuning_options()}
    public = {f"memdiag.{name}" for name in memdiag.__all__ if name != "MemdiagError"}
    schemas = {re.sub(r"[.]", "", name.replace("-", "")) for name in RECORD_BY_SCHEMA}
    for name, anchors, texts in (
        (
            "command_line",
            {f"memdiag-{command}" for command in COMMAND_NAMES},
            (
                "--session-option KEY=VALUE",
                "Stop a child process after this time. (default: 1800)",
            ),
        ),
        ("python", {*public, "memdiag.errors.MemdiagError"}, ()),
        ("remedies", names, ()),
        (
            "records",
            schemas,
            (  # of the class itself, and of the class that it extends
                "the files of the new model, the model first; empty if the original is loaded",
                "the largest difference of any output, relative to the output",
            ),
        ),
        ("record_types", set(), ("rss_bytes",)),
    ):
        page = _Page(site / f"docs/reference/{name}.html")
        assert anchors <= page.anchors, name
        assert [text for text in texts if text not in page.text] == [], name
