import msgspec

from memdiag.records.budget import Breach, Budget, Judgement
from memdiag.reports.views import limits
from tests.reports import profiles
from tests.reports.profiles import MIB


def test_a_limit_is_drawn_over_the_phases_it_is_for() -> None:
    profile = profiles.tied_if()
    wanted = {"peak": 1000 * MIB, "steady": 900 * MIB, "process_peak": 1024 * MIB, "copies": 1}
    breach = Breach(
        figure="peak",
        phase="constant_fold",
        measured=1533 * MIB,
        limit=1000 * MIB,
        allowed=1000 * MIB,
        against="budget",
    )
    judgement = Judgement(
        model="m",
        onnxruntime=None,
        figures={},
        processes=1,
        budget=Budget(limits=wanted),
        breaches=(breach,),
    )
    peak, steady, process = limits.build(msgspec.structs.replace(profile, judgement=judgement))
    assert (peak.rss_bytes, peak.is_exceeded) == (1046 * MIB, True)
    assert (peak.start_s, peak.end_s) == (profile.spans[0].start_s, profile.spans[-1].end_s)
    assert (steady.start_s, steady.is_exceeded) == (profile.spans[-1].start_s, False)
    assert process.rss_bytes == 1024 * MIB


def test_without_a_budget_nothing_is_drawn() -> None:
    assert limits.build(profiles.tied_if()) == ()
