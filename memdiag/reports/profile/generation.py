"""A generation in a profile: its KV cache, and its memory and time by the length of the context."""

from memdiag.records.profile import Profile
from memdiag.reports.generation_sentences import cache_sentences, feed_sentence, kibibytes_text
from memdiag.reports.table import Cell, Column, Row, Table
from memdiag.reports.text import mebibyte_decimals, mebibytes_text
from memdiag.units import format_duration

MAX_TABLE_STEPS = 5
"""Steps in the table, evenly spread."""


def generation_sentences(profile: Profile) -> tuple[str, ...]:
    """Return sentences on the generation of `profile`; none if it has no generation."""
    generation = profile.generation
    if generation is None:
        return ()
    sentences = [feed_sentence(generation), *cache_sentences(generation)]
    growth = generation.growth_bytes_per_token
    if growth is not None and profile.outcome.completed:
        reuse = (
            ", less than the cache: steps reuse memory that earlier calls left free"
            if growth < generation.cache.token_bytes / 2
            else ""
        )
        sentences.append(
            f"The resident set grew by {kibibytes_text(growth)} a token over the steps{reuse}"
        )
    return tuple(f"{sentence}." for sentence in sentences)


def generation_table(profile: Profile) -> Table:
    """Return memory and time after the prompt and some of the steps.

    The table has no rows without a generation.
    """
    generation, prefill = profile.generation, profile.phase("prefill")
    rows = []
    if generation is not None and prefill is not None:
        cache, decimals = generation.cache, mebibyte_decimals(profile.peak_rss_bytes)
        points = [
            (
                "prompt",
                generation.prefill_tokens,
                prefill.end.rss_bytes,
                prefill.peak_rss_bytes,
                profile.first_run_s,
            )
        ]
        for number in _spread_step_indices(len(profile.runs)):
            run = profile.runs[number]
            points.append(
                (
                    f"step {number + 1:,}",
                    generation.prefill_tokens + number + 1,
                    run.rss_bytes,
                    run.peak_rss_bytes or run.rss_bytes,
                    run.latency_s,
                )
            )
        rows = [
            Row(
                name,
                f"{tokens:,}",
                Cell(mebibytes_text(cache.bytes_at(tokens), 1)),
                mebibytes_text(peak, decimals),
                mebibytes_text(resident, decimals),
                "" if seconds is None else format_duration(seconds),
            )
            for name, tokens, resident, peak, seconds in points
        ]
    return Table(
        columns=(
            Column("call"),
            Column("tokens", "right"),
            Column("KV cache", "right"),
            Column("peak", "right", css="strong"),
            Column("at end", "right"),
            Column("time", "right"),
        ),
        rows=tuple(rows),
        caption="Resident set of the whole process in MiB",
    )


def _spread_step_indices(count: int) -> list[int]:
    """Return up to `MAX_TABLE_STEPS` numbers below `count`, evenly spread, the last included."""
    if count <= MAX_TABLE_STEPS:
        return list(range(count))
    return [round(index * (count - 1) / (MAX_TABLE_STEPS - 1)) for index in range(MAX_TABLE_STEPS)]
