"""The calls of a generation, as an estimate needs them."""

from memdiag.model.decoder import Decoder, find_decoder
from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.calls_in_arena import GenerationSizes
from memdiag.records.generation import Generation
from memdiag.records.profile import Profile


def profiled_sizes(
    profile: Profile, ctx: AnalysisContext, generation: Generation
) -> GenerationSizes:
    """Return the calls of the generation of `profile`, whose model is that of `ctx`."""
    dims = {dimension.name: dimension.size for dimension in profile.dimensions}
    decoder = find_decoder(ctx.model_file, feed=generation.feed, dims=dims)
    return generation_sizes(decoder, generation.prefill_tokens, generation.steps)


def generation_sizes(decoder: Decoder, prefill: int, steps: int) -> GenerationSizes:
    """Return the sizes of the calls of a generation of `decoder`."""
    return GenerationSizes(
        prompt=decoder.all_sizes(past=0, new=prefill),
        first_step=decoder.all_sizes(past=prefill, new=1),
        last_step=decoder.all_sizes(past=prefill + steps - 1, new=1),
        prefill_tokens=prefill,
        steps=steps,
        outputs=frozenset(pair.output for pair in decoder.pairs),
        cache=decoder.cache(),
    )
