"""The report of a generation: the cache with its formula, growth with the context, tokens."""

import json

import msgspec

from memdiag.records.profile import Profile
from memdiag.reports.profile import REPORT
from memdiag.reports.profile.generation import generation_sentences, generation_table
from tests.reports import profiles
from tests.reports.test_profile_page import Page, embedded
from tests.reports.test_profile_summary import printed

FORMULA = "4 layers × 2 × 12 heads × 64 × 522 tokens × 4 bytes"


def changed(**figures: object) -> Profile:
    profile = profiles.generated()
    assert profile.generation is not None
    generation = msgspec.structs.replace(profile.generation, **figures)
    return msgspec.structs.replace(profile, generation=generation)


def test_the_first_lines_name_the_calls() -> None:
    text = " ".join(printed(profiles.generated()))
    assert "in prefill, with a prompt of 512 tokens and 10 steps." in text
    assert "After the last step 1.54 GiB above baseline" in text
    assert "steady" not in text


def test_the_cache_has_its_formula_and_each_token_its_bytes() -> None:
    feed, size, longest, growth = generation_sentences(profiles.generated())
    assert feed == (
        "Each call is fed 8 outputs of the call before: present.* to past_key_values.*, found by"
        " their names (--feed names others)."
    )
    assert size == f"KV cache after 522 tokens: 12 MiB = {FORMULA}; each token adds 24.0 KiB."
    assert longest.endswith("1,024 tokens (genai_config.json), the cache takes 24 MiB.")
    assert growth == "The resident set grew by 29.3 KiB a token over the steps."


def test_a_cache_that_differs_from_its_formula_is_named() -> None:
    sentences = " ".join(generation_sentences(changed(cache_bytes=10 << 20)))
    assert "The cache that was measured has 10 MiB." in sentences
    assert "was measured" not in " ".join(generation_sentences(profiles.generated()))


def test_slow_growth_is_explained() -> None:
    assert "left free" in generation_sentences(changed(growth_bytes_per_token=100.0))[-1]
    assert "left free" not in generation_sentences(changed(growth_bytes_per_token=25e3))[-1]
    assert "grew" not in generation_sentences(changed(growth_bytes_per_token=None))[-1]


def test_the_table_has_the_prompt_and_steps_up_to_the_last() -> None:
    rows = [[cell.text for cell in row.cells] for row in generation_table(changed()).rows]
    assert rows[0] == ["prompt", "512", "12.0", "1,700", "1,600", "35 ms"]
    assert [row[:2] for row in rows[1:]] == [
        ["step 1", "513"],
        ["step 3", "515"],
        ["step 5", "517"],
        ["step 8", "520"],
        ["step 10", "522"],
    ]
    assert not generation_table(profiles.tied_if()).rows


def test_tokens_have_a_time_and_a_rate() -> None:
    text = " ".join(" ".join(printed(profiles.generated())).split())
    assert "Each token median 28 ms, p95 (the largest) 29 ms over 10 steps (35 tokens/s)" in text
    assert "prompt of 512 tokens 35 ms (14,629 tokens/s)" in text
    assert max(map(len, printed(profiles.generated()))) <= 80


def test_the_page_draws_the_cache_over_the_context() -> None:
    page = Page(REPORT.render(profiles.generated(), "html"))
    assert FORMULA in page.text
    runs = json.loads(embedded(page, "charts"))["runs"]
    assert runs["first"] == 513
    # Growth since the prompt, of the cache and of the resident set.
    assert runs["cache"] == [24_576 * step for step in range(1, 11)]
    assert runs["rss"] == [20 * profiles.MIB] * 10
    assert runs["axis"] == "tokens in the context"
    plain = json.loads(embedded(Page(REPORT.render(profiles.tied_if(), "html")), "charts"))["runs"]
    assert (plain["first"], plain["axis"], plain["cache"]) == (1, "run", [])
    assert "### Generation" in REPORT.render(profiles.generated(), "markdown").decode()
