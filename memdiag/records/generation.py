"""A generation: one call with a prompt, then one call for each further token, with a KV cache."""

from typing import Literal

from memdiag.records.base import Record
from memdiag.units import counted


class KeyValueCache(Record, frozen=True, kw_only=True):
    """The past keys and values that a decoder returns, and receives in its next call.

    Attributes:
        tensors: the number of inputs for them.
        token_bytes: bytes that each token adds, all tensors and the whole batch together.
        layers, heads, head_size, element_bytes: the factors of `token_bytes`; 0 where the tensors
            differ in shape or type, so that there is no such product.
        batch: the size of the batch.
    """

    tensors: int
    token_bytes: int
    layers: int = 0
    heads: int = 0
    head_size: int = 0
    element_bytes: int = 0
    batch: int = 1

    def bytes_at(self, tokens: int) -> int:
        """Return the bytes of the cache with `tokens` tokens."""
        return self.token_bytes * tokens

    def formula(self, tokens: int) -> str:
        """Return the product whose result is `bytes_at(tokens)`, in words."""
        batch = f" × batch {self.batch}" if self.batch > 1 else ""
        if not self.layers:
            return f"{self.tensors} tensors, {self.token_bytes:,} bytes × {tokens:,} tokens"
        return (
            f"{counted(self.layers, 'layer')} × 2 × {counted(self.heads, 'head')} ×"
            f" {self.head_size} × {tokens:,} tokens"
            f" × {self.element_bytes} bytes{batch}"
        )


class GenaiConfig(Record, frozen=True, kw_only=True):
    """What the configuration of a model for onnxruntime-genai states about its cache.

    Attributes:
        feed: the pairs of patterns ``OUTPUT=INPUT``; empty if it names none.
        layers, heads, head_size: the shape of the cache; None where it is not stated.
        max_tokens: the longest context; None if it is not stated.
        buffer_tokens: the tokens for which onnxruntime-genai allocates the cache at once (with
            ``past_present_share_buffer``); None if it lets the cache grow.
    """

    feed: tuple[str, ...]
    layers: int | None
    heads: int | None
    head_size: int | None
    max_tokens: int | None
    buffer_tokens: int | None


class Generation(Record, frozen=True, kw_only=True):
    """How a decoder was run, or is estimated to run, as a program generates a text.

    Attributes:
        feed: the pairs of patterns ``OUTPUT=INPUT`` by which outputs are fed to the next call.
        found_by: who named the pairs: the ``user``, the configuration for onnxruntime-genai
            (``genai``), or memdiag by the ``names`` that exporters use.
        prefill_tokens: the tokens of the prompt, which are one call.
        steps: the calls of one token after it.
        cache: the KV cache.
        max_tokens: the longest context of the model; None if it is not known.
        max_tokens_source: where `max_tokens` is from.
        buffer_tokens: the tokens for which onnxruntime-genai allocates the cache at once; None if
            the model is not configured for that.
        prefill_cache_bytes, cache_bytes: the size of the arrays of the cache after the prompt, and
            after the last step, as measured; None in estimates, and if they were not reached.
        growth_bytes_per_token: by how much the resident set grew for each step: the Theil-Sen slope
            over the steps. None in estimates, and with too few steps.
    """

    feed: tuple[str, ...]
    found_by: Literal["user", "genai", "names"]
    prefill_tokens: int
    steps: int
    cache: KeyValueCache
    max_tokens: int | None = None
    max_tokens_source: str = ""
    buffer_tokens: int | None = None
    prefill_cache_bytes: int | None = None
    cache_bytes: int | None = None
    growth_bytes_per_token: float | None = None

    @property
    def tokens(self) -> int:
        """The tokens in the cache after the last step."""
        return self.prefill_tokens + self.steps
