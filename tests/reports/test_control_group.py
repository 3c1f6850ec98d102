"""The sentence on the container, and where it is."""

from typing import Any

import msgspec
import pytest

from memdiag.reports.control_group import container_sentence, group_facts
from memdiag.reports.profile.facts import environment_facts
from memdiag.reports.profile.headline import profile_headline
from memdiag.reports.run.headline import run_headline
from memdiag.units import MIB
from tests.reports import profiles, runs
from tests.reports.control_groups import group, limited

ENVIRONMENT = profiles.tied_if().environment
COUNTED = (
    "Container: 512 MiB of memory, 1.5 CPUs. Its control group counted up to 400 MiB (78 % of the"
    " limit), with all processes in it: anonymous 250 MiB, files 140 MiB, kernel 10 MiB."
)


@pytest.mark.parametrize(
    ("changes", "end"),
    [
        ({}, ""),
        ({"limit_hits": 1}, " It reached the limit 1 time."),
        ({"limit_hits": 30, "oom_kills": 2}, " The kernel killed 2 processes in it."),
    ],
)
def test_the_sentence_has_what_counts_towards_the_limit(changes: dict[str, Any], end: str) -> None:
    assert container_sentence(limited(ENVIRONMENT), group(**changes)) == f"{COUNTED}{end}"


def test_figures_that_are_not_known_are_left_out() -> None:
    text = container_sentence(limited(ENVIRONMENT), group(kernel_bytes=None, swap_bytes=7 * MIB))
    assert text.endswith("anonymous 250 MiB, files 140 MiB, swapped out 7.0 MiB.")
    assert container_sentence(limited(ENVIRONMENT), None) == (
        "Container: 512 MiB of memory, 1.5 CPUs."
    )


def test_without_a_limit_there_is_no_sentence_but_the_facts_have_the_group() -> None:
    free = group(limit_bytes=None)
    assert container_sentence(ENVIRONMENT, free) == ""
    assert container_sentence(msgspec.structs.replace(ENVIRONMENT, cpu_quota=1.0), free) == (
        "Container: 1 CPU."
    )
    assert group_facts(ENVIRONMENT, free) == [
        ("control group (v2)", "400 MiB: anonymous 250 MiB, files 140 MiB, kernel 10 MiB"),
        ("control group (v2), peak", "450 MiB since it was created"),
    ]
    assert group_facts(ENVIRONMENT, None) == []


def test_the_answers_of_profiles_and_programs_have_the_sentence() -> None:
    profile = profiles.tied_if()
    assert "Container" not in profile_headline(profile).second
    in_container = msgspec.structs.replace(
        profile, environment=limited(profile.environment), group=group()
    )
    assert profile_headline(in_container).second.endswith(COUNTED)
    assert ("container", "512 MiB of memory, 1.5 CPUs") in environment_facts(in_container)
    run = runs.server()
    assert "Container" not in run_headline(run).second
    run = msgspec.structs.replace(run, environment=limited(run.environment), group=group())
    assert run_headline(run).second.endswith(COUNTED)


@pytest.mark.parametrize(("oom_kills", "is_said"), [(1, True), (0, False), (None, False)])
def test_a_kill_at_the_limit_is_the_reason_of_the_signal(
    oom_kills: int | None, is_said: bool
) -> None:
    run = msgspec.structs.replace(runs.server(), exit_code=-9, group=group(oom_kills=oom_kills))
    second = run_headline(run).second
    assert "ended by SIGKILL" in second
    assert ("its control group reached the memory limit" in second) == is_said
