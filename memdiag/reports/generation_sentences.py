"""Sentences on a generation and its KV cache, which profiles and estimates share."""

from memdiag.records.generation import Generation
from memdiag.reports.text import listed_names, plain
from memdiag.units import KIB, counted, format_size

MAX_FEED_PATTERNS = 3

_FEED_SOURCE_CLAUSES = {
    "user": "",
    "genai": ", as genai_config.json names them",
    "names": ", found by their names (--feed names others)",
}


def generation_calls_text(generation: Generation) -> str:
    """Return the calls in words: ``a prompt of 512 tokens and 128 steps``."""
    prompt = counted(generation.prefill_tokens, "token")
    return f"a prompt of {prompt} and {counted(generation.steps, 'step')}"


def feed_sentence(generation: Generation) -> str:
    """Return how outputs are fed to inputs, and whether memdiag found that."""
    pairs = listed_names(
        [text.replace("=", " to ") for text in generation.feed], limit=MAX_FEED_PATTERNS
    )
    source = _FEED_SOURCE_CLAUSES[generation.found_by]
    return (
        f"Each call is fed {generation.cache.tensors} outputs of the call before: {pairs}{source}"
    )


def cache_sentences(generation: Generation) -> list[str]:
    """Return the size of the KV cache with its formula, and its size at the longest context."""
    cache, tokens = generation.cache, generation.tokens
    size = cache.bytes_at(tokens)
    sentences = [
        f"KV cache after {tokens:,} tokens: {format_size(size)} = {cache.formula(tokens)}; each"
        f" token adds {kibibytes_text(cache.token_bytes)}"
    ]
    measured_bytes = generation.cache_bytes
    if measured_bytes is not None and measured_bytes != size:
        sentences.append(f"The cache that was measured has {format_size(measured_bytes)}")
    longest_context = generation.max_tokens
    if longest_context is not None:
        source = f" ({plain(generation.max_tokens_source)})" if generation.max_tokens_source else ""
        sentences.append(
            f"At the longest context, {longest_context:,} tokens{source}, the cache takes"
            f" {format_size(cache.bytes_at(longest_context))}"
        )
    buffer_tokens = generation.buffer_tokens
    if buffer_tokens is not None:
        sentences.append(
            f"onnxruntime-genai allocates the cache for {buffer_tokens:,} tokens at once, as"
            " genai_config.json sets past_present_share_buffer and max_length:"
            f" {format_size(cache.bytes_at(buffer_tokens))}. Here it grows with the tokens"
        )
    return sentences


def kibibytes_text(size: float) -> str:
    """Return `size` bytes in KiB, with a decimal: small differences matter for each token."""
    return f"{size / KIB:,.1f} KiB"
