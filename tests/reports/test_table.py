"""One table, rendered on a terminal, in Markdown and in HTML."""

import re

import pytest

from memdiag.reports.page import breakable_parts, template_environment
from memdiag.reports.table import BarPart, Cell, Column, Row, Table, markdown_table, print_table
from tests.reports.rendering import captured

TABLE = Table(
    columns=(
        Column("name", css="name"),
        Column("MiB", "right", formats=("console",)),
        Column("size", "right", css="strong less", formats=("markdown", "html")),
        Column(css="wide", legend=(("top", "peak"),), formats=("html",)),
        Column("what it is", wraps=True),
    ),
    rows=(
        Row(
            Cell("a|b<c", is_code=True, color="var(--peak)"),
            "512",
            Cell("512 MiB", title="536,870,912 bytes", sort_key=536870912),
            Cell(bars=((BarPart(css="top", percent=50), BarPart(css="end", percent=25)),)),
            Cell("first", tags=("chosen",), note="more", problem="broken"),
            is_strong=True,
        ),
        Row("part", "2", "2.0 MiB", "", "word " * 12, level=1),
    ),
    caption="All of it.",
)


def printed(table: Table, width: int = 60, encoding: str = "utf-8") -> list[str]:
    text = captured(lambda console: print_table(console, table), width=width, encoding=encoding)
    return [line.rstrip() for line in text.splitlines()]


def page(table: Table) -> str:
    source = "{% import 'table.html.j2' as tables %}{{ tables.render(table, id='t') }}"
    html: str = template_environment().from_string(source).render(table=table)
    return html


def test_a_terminal_gets_aligned_columns_whose_last_one_wraps() -> None:
    assert printed(TABLE) == [
        "name    MiB  what it is",
        "a|b<c   512  first",
        "  part    2  word word word word word word word word word",
        "             word word word",
        "All of it.",
    ]


def test_markdown_gets_its_own_columns_escaped_and_aligned() -> None:
    assert markdown_table(TABLE).splitlines() == [
        "| name | size | what it is |",
        "| :-- | --: | :-- |",
        r"| `a\|b<c` | 512 MiB | first |",
        f"| &emsp;part | 2.0 MiB | {'word ' * 12} |",
    ]


def test_a_page_gets_headings_of_rows_titles_sort_keys_and_bars() -> None:
    html = page(TABLE)
    headings = re.findall(r"<th scope=\"col\"([^>]*)>", html)
    assert headings == ["", ' class="n less"', ' class="wide"', ""]
    assert '<tr class="peak"><th scope="row" class="name">' in html
    assert '<th scope="row" class="name part">part</th>' in html
    assert "a|b&lt;c" in html
    assert (
        '<td class="n strong less" title="536,870,912 bytes" data-value="536870912">512 MiB</td>'
    ) in html
    assert '<i class="top" style="width:50%"></i><i class="end" style="width:25%"></i>' in html
    assert '<span class="tag">chosen</span>' in html
    assert '<p class="hint">broken</p>' in html
    assert "512</td>" not in html  # a column of the terminal only


@pytest.mark.parametrize(("width", "gap"), [(25, "  "), (24, " ")])
def test_dense_tables_move_closer_together_before_they_wrap(width: int, gap: str) -> None:
    columns = (Column("first"), Column("second"), Column("third", wraps=True))
    dense = Table(columns=columns, rows=(Row("aaaaaaa", "bbbbbb", "cccccc c"),), is_dense=True)
    assert gap.join(("aaaaaaa", "bbbbbb", "ccc"))[:18] in printed(dense, width)[1]


def test_long_texts_lose_their_middle_on_a_terminal_only() -> None:
    table = Table(columns=(Column("x", max_width=5),), rows=(Row("abcdefghij"),))
    assert printed(table)[1] == "ab…ij"
    assert "abcdefghij" in markdown_table(table)
    assert "abcdefghij" in page(table)


@pytest.mark.parametrize(("encoding", "text"), [("utf-8", "abcde…"), ("ascii", "abcdef")])
def test_what_is_wider_than_the_terminal_is_cut_in_its_characters(encoding: str, text: str) -> None:
    table = Table(columns=(Column("x"),), rows=(Row("abcdefghij"),))
    assert printed(table, 6, encoding)[1] == text


def test_a_table_without_rows_is_nothing() -> None:
    empty = Table(columns=TABLE.columns, rows=())
    assert printed(empty) == []
    assert markdown_table(empty) == ""


def test_columns_that_are_empty_in_every_row_are_left_out() -> None:
    table = Table(columns=(Column("a"), Column("b"), Column("c")), rows=(Row("1", "", "3"),))
    assert [column.heading for column in table.without_empty_columns().columns] == ["a", "c"]


def test_long_words_break_between_their_parts_and_short_ones_do_not() -> None:
    assert breakable_parts("a <b> constant_fold") == ["a <b> constant_fold"]
    assert breakable_parts("zoo/light_vgg19.onnx") == ["zoo/", "light_", "vgg19.", "onnx"]
    assert breakable_parts("NchwcTransformer, step 1") == ["Nchwc", "Transformer, step 1"]
    assert breakable_parts("x" * 20 + "&") == ["x" * 14, "x" * 6 + "&"]
    assert breakable_parts("") == [""]
