import io

import msgspec
import pytest
from rich.console import Console

from memdiag.records.attribution import Attribution
from memdiag.reporters import attribution_console, console
from tests.reporters import profiles, tied_xray


def printed(
    attribution: Attribution, *, quiet: bool = False, width: int = 80, encoding: str = "utf-8"
) -> list[str]:
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    terminal = Console(file=out, width=width)
    attribution_console.show_attribution(attribution, terminal, quiet=quiet)
    out.seek(0)
    return out.read().splitlines()


def test_the_first_lines_answer_and_quiet_prints_no_more() -> None:
    answer = printed(tied_xray.attribution(), quiet=True, width=160)
    assert answer == [
        "process 4242: 1.54 GiB resident; 99.6 % of what is above the baseline has a name.",
        "model.shared.weight +1 more: 3 copies, 1.46 GiB.",
    ]
    assert printed(tied_xray.attribution(), width=160)[:2] == answer


def test_the_table_tells_each_copy() -> None:
    lines = printed(tied_xray.attribution(), width=100)
    start = next(i for i, line in enumerate(lines) if line.startswith("who owns it"))
    rows = [" ".join(line.split()) for line in lines[start : start + 9]]
    assert rows == [
        "who owns it copies MiB backing made by",
        "model.shared.weight +1 more: 3 copies, 1.46 GiB",
        "original 1 500 anonymous parse",
        "transposed (perm 1,0) 1 500 anonymous ConstantFolding · lm/Transpose",
        "packed fp32 1 500 anonymous prepack · lm/MatMul",
        "bias: 1 copy, 2.0 MiB, freed",
        "original 1 2 anonymous, freed",
        "layer.0: 1 copy, 1.0 MiB (512 KiB resident)",
        "original 1 <1 of 1 file:tied.data",
    ]


@pytest.mark.parametrize(("count", "rest"), [(6, None), (7, "1 weight more: 1 copy, 1.0 MiB")])
def test_eight_weights_are_listed_and_the_rest_is_summed(count: int, rest: str | None) -> None:
    lines = printed(tied_xray.attribution(count), width=120)
    assert sum("file:tied.data" in line for line in lines) == 6
    assert [line for line in lines if "more: 1" in line] == ([rest] if rest else [])


def test_long_names_are_shortened_in_the_middle_and_nothing_is_wider_than_the_terminal() -> None:
    record = tied_xray.attribution()
    name = "/model/" + "decoder/" * 30 + "q_proj.weight"
    copies = tuple(
        msgspec.structs.replace(copy, weights=(name, "b"), made_by=f"prepack · {name}")
        for copy in record.copies
    )
    lines = printed(msgspec.structs.replace(record, copies=copies))
    (title,) = [line for line in lines if line.endswith(" resident), 1 of them freed")]
    assert title.startswith("/model/…weight +1 more: 16 copies, 1.48 GiB (1.47 GiB")
    makers = [line for line in lines if line.endswith("…/q_proj.weight")]
    assert len(makers) == 5
    assert all("  prepack · " in line for line in makers)
    assert max(map(len, lines)) <= 80


def test_a_process_without_a_weight_says_what_to_check() -> None:
    record = msgspec.structs.replace(tied_xray.attribution(), copies=())
    lines = printed(record, width=160)
    assert lines[1] == "No weight was found in it; check that it runs the model that was given."
    assert "who owns it: no weight was found" in lines
    assert not any("verified:" in line for line in lines)


def test_a_partial_xray_says_so_with_its_notes() -> None:
    record = msgspec.structs.replace(
        tied_xray.attribution(), partial=True, notes=("it ended\x1b[31m",)
    )
    lines = printed(record, width=160)
    assert "partial: not all memory could be read; what was read is shown" in lines
    assert r"note: it ended\x1b[31m" in lines
    assert not any("partial" in line for line in printed(tied_xray.attribution()))


def test_an_ascii_terminal_gets_ascii() -> None:
    lines = printed(tied_xray.attribution(), encoding="ascii")
    assert any("weights 1,506 | Python 46" in line for line in lines)


def test_nothing_depends_on_colour() -> None:
    out = io.StringIO()
    terminal = Console(file=out, width=80, force_terminal=True, color_system=None)
    attribution_console.show_attribution(tied_xray.attribution(), terminal)
    assert [line.rstrip() for line in out.getvalue().splitlines()] == printed(
        tied_xray.attribution()
    )


def test_a_profile_shows_its_xray_between_its_spans_and_its_runs() -> None:
    out = io.StringIO()
    console.show(tied_xray.with_attribution(), Console(file=out, width=80))
    text = out.getvalue()
    order = ("ConstantFolding, step 1:", "who owns it (steady)", "has a name.", "Latency median")
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    without = io.StringIO()
    console.show(profiles.tied_if(), Console(file=without, width=80))
    assert "who owns it" not in without.getvalue()
