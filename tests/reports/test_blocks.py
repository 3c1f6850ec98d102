"""What a document shows on a terminal, in Markdown and on a page, whatever the record is."""

import re
from collections.abc import Sequence
from functools import partial

import pytest

from memdiag.detail import Detail
from memdiag.reports.blocks import (
    NOT_ON_PAGES,
    PAGE_ONLY,
    TERMINAL_ONLY,
    Block,
    BulletBlock,
    ChartBlock,
    CodeBlock,
    Document,
    FactsBlock,
    FindingsBlock,
    SentenceBlock,
    document_markdown,
    print_document,
)
from memdiag.reports.findings import FindingText
from memdiag.reports.page import document_page
from tests.reports import limits
from tests.reports.rendering import captured

FINDINGS = [
    FindingText(rule="MD1", name="rule", message=f"finding {n}", detail="why") for n in range(4)
]


def document(*blocks: Block) -> Document:
    return Document(
        subject="m.onnx",
        kind="report",
        answer="it is large.",
        rest="It ended.",
        facts="2 CPUs",
        blocks=blocks,
    )


def printed(made: Document, detail: Detail) -> list[str]:
    text = captured(partial(print_document, made, report_paths=(), detail=detail))
    return [line.rstrip() for line in text.splitlines()]


def page(made: Document) -> str:
    """Return the main part of the page, and the data of its charts."""
    text = document_page(made, limits.limit(), "limit", None).decode()
    return text.partition("<main")[2].partition("</main>")[0] + text.rpartition('id="charts">')[2]


@pytest.mark.parametrize(
    ("formats", "outputs"),
    [
        (TERMINAL_ONLY, (True, False, False)),
        (NOT_ON_PAGES, (True, True, False)),
        (PAGE_ONLY, (False, False, True)),
    ],
)
def test_a_block_is_in_the_formats_that_it_states(
    formats: Sequence[str], outputs: tuple[bool, ...]
) -> None:
    made = document(BulletBlock(title="Parts", texts=("one part",), formats=formats))  # type: ignore[arg-type]
    texts = ("\n".join(printed(made, Detail.ALL)), document_markdown(made), page(made))
    assert tuple("one part" in text for text in texts) == outputs


def test_the_answer_is_printed_whole_whatever_is_asked_for() -> None:
    made = document(SentenceBlock(title="Why", text="because", detail=Detail.ANSWER))
    answer = ["m.onnx: it is large.", "It ended."]
    assert printed(made, Detail.ANSWER) == [*answer, "Why        because"]
    assert printed(made, Detail.USUAL)[:4] == [*answer, "2 CPUs", ""]


def test_a_sentence_without_a_title_goes_on_and_a_command_follows_it() -> None:
    command = SentenceBlock(title="Do", text="one", command="memdiag fix m")
    made = document(command, SentenceBlock(text="two"))
    assert printed(made, Detail.USUAL)[-3:] == [
        "Do         one",
        "           memdiag fix m",
        "           two",
    ]
    assert "**Do:** one `memdiag fix m`\n\ntwo\n" in document_markdown(made)
    assert "<dt></dt><dd>two</dd>" in page(made)


def test_what_is_folded_shows_its_title() -> None:
    folded, shown = (
        document(CodeBlock(title="Again", text="run", language="console", is_folded=is_folded))
        for is_folded in (True, False)
    )
    text = "<details><summary>Again</summary>\n\n```console\nrun\n```"
    assert text in document_markdown(folded)
    assert re.search(r"<details><summary><h2[^>]*>Again</h2></summary>", page(folded))
    assert "<details>" not in page(shown) + document_markdown(shown)


@pytest.mark.parametrize(
    ("detail", "count", "more"),
    [
        (Detail.ANSWER, 1, ["3 more findings in the reports: rule, rule, rule"]),
        (Detail.USUAL, 3, ["1 more finding in the reports: rule"]),
        (Detail.ALL, 4, []),
    ],
)
def test_a_terminal_prints_as_many_findings_as_are_asked_for(
    detail: Detail, count: int, more: list[str]
) -> None:
    block = FindingsBlock(title="Findings", findings=FINDINGS, max_rows=3, detail=Detail.ANSWER)
    lines = printed(document(block), detail)
    assert sum(line.endswith(" [rule]") for line in lines) == count
    assert [line for line in lines if "more finding" in line] == more


def test_a_list_of_findings_may_be_a_summary_only() -> None:
    summary = FindingsBlock(title="Findings", findings=(), summary="Nothing to do.")
    assert "Nothing to do." in document_markdown(document(summary))
    empty = FindingsBlock(title="Findings", findings=())
    assert "Findings" not in document_markdown(document(empty))


def test_the_data_of_charts_is_computed_for_pages_only() -> None:
    calls = []

    def data() -> dict[str, int]:
        calls.append(1)
        return {"answer": 42}

    chart = ChartBlock(
        title="Map",
        name="treemap",
        script="owners.js",
        data=data,
        alt="tiles",
        below=lambda: "<p>below</p>",
    )
    made = document(chart, FactsBlock(title="Machine", rows=(("CPU", "1"),)))
    printed(made, Detail.ALL)
    document_markdown(made)
    assert calls == []
    text = page(made)
    assert calls == [1]
    assert '"answer":42' in text
    assert '<div id="treemap" class="chart treemap" role="img" aria-label="tiles">' in text
    assert "<p>below</p>" in text
