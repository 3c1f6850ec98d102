"""A generation: the KV cache with its formula, and memory and time by length of the context."""

from memdiag.records.generation import Generation
from memdiag.records.profile import Profile
from memdiag.reports.table import Cell, Column, Row, Table
from memdiag.reports.text import decimals_for, listed, mebibytes, plain
from memdiag.units import KIB, counted, format_duration, format_size

MAX_PATTERNS = 3
MAX_STEPS = 5
"""Steps in the table, evenly spread."""

GENERATION_HEADING = "Growth with the context, resident set of the whole process in MiB:"


def calls_text(generation: Generation) -> str:
    """Return the calls in words: ``a prompt of 512 tokens and 128 steps``."""
    prompt = counted(generation.prefill_tokens, "token")
    return f"a prompt of {prompt} and {counted(generation.steps, 'step')}"


def feed_sentence(generation: Generation) -> str:
    """Return how outputs are fed to inputs, and whether memdiag found that."""
    pairs = listed([text.replace("=", " to ") for text in generation.feed], limit=MAX_PATTERNS)
    found = ", found by their names (--feed names others)" if generation.is_found else ""
    return f"Each call is fed {generation.cache.tensors} outputs of the call before: {pairs}{found}"


def cache_sentences(generation: Generation) -> list[str]:
    """Return the size of the KV cache with its formula, and its size at the longest context."""
    cache, tokens = generation.cache, generation.tokens
    size = cache.bytes_at(tokens)
    sentences = [
        f"KV cache after {tokens:,} tokens: {format_size(size)} = {cache.formula(tokens)}; each"
        f" token adds {_kibibytes(cache.token_bytes)}"
    ]
    measured = generation.cache_bytes
    if measured is not None and measured != size:
        sentences.append(f"The cache that was measured has {format_size(measured)}")
    longest = generation.max_tokens
    if longest is not None:
        source = f" ({plain(generation.max_tokens_source)})" if generation.max_tokens_source else ""
        sentences.append(
            f"At the longest context, {longest:,} tokens{source}, the cache takes"
            f" {format_size(cache.bytes_at(longest))}"
        )
    return sentences


def generation_sentences(profile: Profile) -> tuple[str, ...]:
    """Return the sentences on the generation of `profile`; none without one."""
    generation = profile.generation
    if generation is None:
        return ()
    sentences = [feed_sentence(generation), *cache_sentences(generation)]
    growth = generation.growth_bytes_per_token
    if growth is not None and profile.outcome.status == "completed":
        reuse = (
            ", less than the cache: steps reuse memory that earlier calls left free"
            if growth < generation.cache.token_bytes / 2
            else ""
        )
        sentences.append(
            f"The resident set grew by {_kibibytes(growth)} a token over the steps{reuse}"
        )
    return tuple(f"{sentence}." for sentence in sentences)


def generation_table(profile: Profile) -> Table:
    """Return memory and time after the prompt and after some of the steps; empty without one."""
    generation, prefill = profile.generation, profile.phase("prefill")
    rows = []
    if generation is not None and prefill is not None:
        cache, decimals = generation.cache, decimals_for(profile.peak_rss_bytes)
        points = [
            (
                "prompt",
                generation.prefill_tokens,
                prefill.end.rss_bytes,
                prefill.peak_rss_bytes,
                profile.first_run_s,
            )
        ]
        for number in _spread(len(profile.runs)):
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
                Cell(mebibytes(cache.bytes_at(tokens), 1)),
                mebibytes(peak, decimals),
                mebibytes(resident, decimals),
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
    )


def _spread(count: int) -> list[int]:
    """Return up to `MAX_STEPS` numbers below `count`, evenly spread, with the first and last."""
    if count <= MAX_STEPS:
        return list(range(count))
    return [round(index * (count - 1) / (MAX_STEPS - 1)) for index in range(MAX_STEPS)]


def _kibibytes(size: float) -> str:
    return f"{size / KIB:,.1f} KiB"
