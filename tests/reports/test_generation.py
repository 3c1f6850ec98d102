"""The report of a generation: the cache with its formula, growth with the context, tokens."""

import json

import pytest

from memdiag.reports.profile.generation import generation_sentences, generation_table
from tests.reports import profiles
from tests.reports.profiles import MIB
from tests.reports.rendering import Page, html, markdown, printed, replaced

GENERATED = profiles.generated()
FORMULA = "4 layers × 2 × 12 heads × 64 × 522 tokens × 4 bytes"


def test_the_cache_has_its_formula_and_each_token_its_bytes() -> None:
    """The sentences are printed whole in the approved summary."""
    feed, size, longest, growth = generation_sentences(GENERATED)
    assert "present.* to past_key_values.*, found by their names" in feed
    assert size == f"KV cache after 522 tokens: 12 MiB = {FORMULA}; each token adds 24.0 KiB."
    assert longest.endswith("1,024 tokens (genai_config.json), the cache takes 24 MiB.")
    assert growth == "The resident set grew by 29.3 KiB a token over the steps."
    assert "steady" not in printed(GENERATED)
    assert max(map(len, printed(GENERATED).splitlines())) <= 80


def test_a_cache_that_differs_from_its_formula_is_named() -> None:
    differs = replaced(GENERATED, generation__cache_bytes=10 * MIB)
    told = "The cache that was measured has 10 MiB."
    assert told in " ".join(generation_sentences(differs))
    assert "was measured" not in " ".join(generation_sentences(GENERATED))


@pytest.mark.parametrize(
    ("growth", "explains", "grew"), [(100.0, True, True), (25e3, False, True), (None, False, False)]
)
def test_slow_growth_is_explained(growth: float | None, explains: bool, grew: bool) -> None:
    record = replaced(GENERATED, generation__growth_bytes_per_token=growth)
    last = generation_sentences(record)[-1]
    assert ("left free" in last, "grew" in last) == (explains, grew)


def test_the_table_has_the_prompt_and_steps_up_to_the_last() -> None:
    rows = [[cell.text for cell in row.cells] for row in generation_table(GENERATED).rows]
    assert rows[0] == ["prompt", "512", "12.0", "1,700", "1,600", "35 ms"]
    assert [row[1] for row in rows[1:]] == ["513", "515", "517", "520", "522"]
    assert not generation_table(profiles.tied_if()).rows


def test_the_page_draws_the_cache_over_the_context() -> None:
    page = Page(html(GENERATED))
    assert FORMULA in page.text
    runs = json.loads(page.embedded("charts"))["runs"]
    assert (runs["first"], runs["axis"]) == (513, "tokens in the context")
    # Growth since the prompt, of the cache and of the resident set.
    assert runs["cache"] == [24_576 * step for step in range(1, 11)]
    assert runs["rss"] == [20 * MIB] * 10
    plain = json.loads(Page(html(profiles.tied_if())).embedded("charts"))["runs"]
    assert (plain["first"], plain["axis"], plain["cache"]) == (1, "run", [])
    assert "### Generation" in markdown(GENERATED)
