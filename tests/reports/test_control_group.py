"""The sentence on the container, and where it is."""

import pytest

from memdiag.records.group_memory import GroupMemory
from memdiag.reports.control_group import container_sentence, group_facts
from memdiag.reports.profile.facts import environment_facts
from memdiag.reports.profile.headline import profile_headline
from memdiag.reports.run.headline import run_headline
from memdiag.units import MIB
from tests.reports import profiles, runs
from tests.reports.control_groups import group, limited
from tests.reports.rendering import replaced

ENVIRONMENT = profiles.tied_if().environment
LIMITED = limited(ENVIRONMENT)
FREE = group(limit_bytes=None)
CONTAINER = "Container: 512 MiB of memory, 1.5 CPUs."
COUNTED = (
    f"{CONTAINER} Its control group counted up to 400 MiB (78 % of the limit), with all processes"
    " in it: anonymous 250 MiB, files 140 MiB"
)


@pytest.mark.parametrize(
    ("memory", "sentence"),
    [
        (group(), f"{COUNTED}, kernel 10 MiB."),
        (group(limit_hits=1), f"{COUNTED}, kernel 10 MiB. It reached the limit 1 time."),
        (
            group(limit_hits=30, oom_kills=2),
            f"{COUNTED}, kernel 10 MiB. The kernel killed 2 processes in it.",
        ),
        (group(kernel_bytes=None, swap_bytes=7 * MIB), f"{COUNTED}, swapped out 7.0 MiB."),
        (None, CONTAINER),
    ],
    ids=["limit", "hits", "kills", "swapped", "not known"],
)
def test_the_sentence_has_what_counts_towards_the_limit(
    memory: GroupMemory | None, sentence: str
) -> None:
    assert container_sentence(LIMITED, memory) == sentence


def test_without_a_limit_there_is_no_sentence_but_the_facts_have_the_group() -> None:
    assert container_sentence(ENVIRONMENT, FREE) == ""
    one_cpu = replaced(ENVIRONMENT, cpu_quota=1.0)
    assert container_sentence(one_cpu, FREE) == "Container: 1 CPU."
    assert group_facts(ENVIRONMENT, FREE) == [
        ("control group (v2)", "400 MiB: anonymous 250 MiB, files 140 MiB, kernel 10 MiB"),
        ("control group (v2), peak", "450 MiB since it was created"),
    ]
    assert group_facts(ENVIRONMENT, None) == []


def test_the_answers_of_profiles_and_programs_have_the_sentence() -> None:
    profile, run = profiles.tied_if(), runs.server()
    for answer in (profile_headline(profile), run_headline(run)):
        assert "Container" not in answer.second
    contained = replaced(profile, environment=LIMITED, group=group())
    assert profile_headline(contained).second.endswith(f"{COUNTED}, kernel 10 MiB.")
    assert ("container", "512 MiB of memory, 1.5 CPUs") in environment_facts(contained)
    run = replaced(run, environment=limited(run.environment), group=group())
    assert run_headline(run).second.endswith(f"{COUNTED}, kernel 10 MiB.")


@pytest.mark.parametrize(("oom_kills", "is_said"), [(1, True), (0, False), (None, False)])
def test_a_kill_at_the_limit_is_the_reason_of_the_signal(
    oom_kills: int | None, is_said: bool
) -> None:
    run = replaced(runs.server(), exit_code=-9, group=group(oom_kills=oom_kills))
    second = run_headline(run).second
    assert "ended by SIGKILL" in second
    assert ("its control group reached the memory limit" in second) == is_said
