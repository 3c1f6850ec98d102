import msgspec
import pytest

from memdiag.records.attribution import Attribution, Owner
from memdiag.reporters.views import owner_table
from tests.reporters import tied_xray
from tests.reporters.profiles import MIB


def owned(*owners: Owner, **changes: object) -> Attribution:
    resident = sum(owner.bytes for owner in owners)
    return msgspec.structs.replace(
        tied_xray.attribution(), owners=owners, resident_bytes=resident, **changes
    )


def test_weights_come_first_and_what_has_no_name_last() -> None:
    rows = owner_table.build(tied_xray.attribution())
    assert [row.label for row in rows] == [
        "weights", "Python", "arena", "retained by malloc", "unnamed",
    ]  # fmt: skip
    assert sum(row.size_bytes for row in rows) == 1579 * MIB
    assert sum(row.share for row in rows) == pytest.approx(1)


def test_the_parts_of_an_owner_are_named_the_largest_first() -> None:
    rows = {row.kind: row for row in owner_table.build(tied_xray.attribution())}
    assert rows["weights"].detail == "original 506 MiB · transposed 500 MiB · packed 500 MiB"
    assert rows["arena"].detail == "slack 12 MiB · in use 4.0 MiB"
    assert rows["python"].detail == "objects"
    assert rows["unnamed"].detail == ""


def test_the_line_tells_slack_and_how_much_has_no_name() -> None:
    assert owner_table.line(tied_xray.attribution()) == (
        "1,579 MiB resident: weights 1,506 · Python 46 · arena 16 (12 slack)"
        " · retained by malloc 6 · unnamed 5 (0.4 % above the baseline)"
    )
    arena = Owner(kind="arena", name="in use or slack", bytes=16 * MIB)
    assert owner_table.line(owned(arena)) == "16.0 MiB resident: arena 16.0"


@pytest.mark.parametrize("named", [0.0, 0.9967, 0.99996, 0.001, 0.29, 1.0])
def test_what_is_named_and_what_is_not_add_up_to_the_whole(named: float) -> None:
    record = msgspec.structs.replace(
        tied_xray.attribution(), named_share=named, baseline_bytes=None
    )
    share = float(owner_table.named_share(record).split(" %")[0])
    rest = float(owner_table.build(record)[-1].brief.split("(")[1].split(" %")[0])
    assert share + rest == pytest.approx(100)
    assert share <= named * 100 + 1e-6


def test_without_a_baseline_the_share_is_of_all_that_is_resident() -> None:
    record = tied_xray.attribution()
    assert owner_table.named_share(record) == ("99.6 % of what is above the baseline has a name")
    whole = msgspec.structs.replace(record, baseline_bytes=None)
    assert owner_table.named_share(whole) == "99.6 % of what is resident has a name"
    assert owner_table.build(whole)[-1].brief == "5 (0.4 %)"


@pytest.mark.parametrize(
    ("share", "text"),
    [(1.0, "100 %"), (0.99999, "99.9 %"), (0.5, "50 %"), (0.0004, "< 0.1 %"), (0.0, "0 %")],
)
def test_shares_are_never_rounded_up(share: float, text: str) -> None:
    assert owner_table.percent(share) == text


@pytest.mark.parametrize(
    ("size", "digits", "text"),
    [(0, 0, "0"), (1, 0, "<1"), (MIB, 0, "1"), (1, 1, "<0.1"), (MIB // 2, 1, "0.5"), (0, 1, "0.0")],
)
def test_a_little_is_not_nothing(size: int, digits: int, text: str) -> None:
    assert owner_table.short_size(size, digits) == text


def test_a_part_called_like_control_characters_is_plain() -> None:
    (row,) = owner_table.build(owned(Owner(kind="python", name="\x1b[31mred", bytes=MIB)))
    assert row.detail == r"\x1b[31mred"
