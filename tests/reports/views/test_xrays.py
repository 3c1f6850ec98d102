"""The X-rays of a page: the steady state first and in full, earlier moments more briefly."""

import msgspec

from memdiag.records.profile import PhaseAttribution
from memdiag.reports.views import xrays
from tests.reports import profiles, tied_xray


def test_a_profile_without_an_xray_has_none() -> None:
    assert xrays.build(profiles.tied_if()) == ()


def test_the_steady_state_comes_first_and_has_more_room() -> None:
    record = tied_xray.attribution(100)
    earlier = PhaseAttribution(phase="parse", attribution=record)
    profile = msgspec.structs.replace(
        profiles.tied_if(), attribution=record, phase_attributions=(earlier,)
    )
    steady, parse = xrays.build(profile)
    assert [steady.name, parse.name] == ["steady", "end of parse"]
    assert len(steady.shown) > len(parse.shown) > 0
    assert len(steady.tiles) > len(parse.tiles)
    assert len(steady.copies.rows) == 104
    assert steady.strip is None


def test_no_more_rows_are_shown_than_are_listed() -> None:
    record = tied_xray.attribution(50)
    named = tuple(
        msgspec.structs.replace(copy, weights=tuple(f"{place}.{i}" + "x" * 99 for i in range(999)))
        for place, copy in enumerate(record.copies)
    )
    record = msgspec.structs.replace(record, copies=named)
    (steady,) = xrays.build(msgspec.structs.replace(profiles.tied_if(), attribution=record))
    assert len(steady.shown) == len(steady.copies.rows) < len(named)
    assert steady.copies.unlisted
