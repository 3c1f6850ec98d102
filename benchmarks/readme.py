"""The figures in ``benchmarks/README.md`` and other pages: each benchmark replaces its own part."""

from pathlib import Path

README = Path(__file__).with_name("README.md")


def replace_part(name: str, text: str, page: Path = README) -> None:
    """Write `text` between the marks of part `name` in `page`, which must have them."""
    start, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, mark, rest = page.read_text().partition(start)
    _, closing, after = rest.partition(end)
    if not mark or not closing:
        raise ValueError(f"{page}: has no part called {name}")
    page.write_text(f"{before}{start}\n{text.strip()}\n{end}{after}")


def table(header: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
