"""The comparison of two releases, on records made by hand."""

import msgspec

from benchmarks.new_release import changed_names, changed_profile
from memdiag.records.profile import Outcome
from tests.reports import profiles, tied_xray


def test_names_of_one_list_only_are_marked() -> None:
    assert changed_names(["old", "both"], ["both", "new"]) == ["+ `new`", "- `old`"]
    assert changed_names(["both"], ["both", "both"]) == []


def test_equal_profiles_and_noise_are_no_change() -> None:
    profile = tied_xray.with_attribution()
    assert changed_profile(profile, profile) == []
    assert profile.steady_rss_bytes is not None
    more = msgspec.structs.replace(profile, steady_rss_bytes=profile.steady_rss_bytes + 1000)
    assert changed_profile(profile, more) == []


def test_memory_copies_steps_and_outcomes_that_differ_are_stated() -> None:
    before = tied_xray.with_attribution()
    assert before.attribution is not None
    assert before.steady_rss_bytes is not None
    copies = tuple(copy for copy in before.attribution.copies if copy.layout != "packed_fp32")
    after = msgspec.structs.replace(
        before,
        attribution=msgspec.structs.replace(before.attribution, copies=copies),
        spans=before.spans[:-1],
        steady_rss_bytes=before.steady_rss_bytes + (500 << 20),
        outcome=Outcome(status="failed", phase="parse", message="no kernel"),
    )
    text = "\n".join(changed_profile(before, after))
    assert "outcome: completed → failed no kernel" in text
    assert f"step of the log - `{before.spans[-1].name}`" in text
    assert "copies in the layout packed_fp32: " in text
    assert "→ 0 B" in text
    assert "steady: " in text
    assert profiles.tied_if().phases[1].name not in text
