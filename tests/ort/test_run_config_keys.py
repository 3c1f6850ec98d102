"""Notes on run config entries that onnxruntime does not know."""

from memdiag.ort.config_keys import unknown_run_key_notes

CPU = ("CPUExecutionProvider",)


def test_an_unknown_entry_is_noted_with_the_nearest_known_one() -> None:
    near, far = unknown_run_key_notes(["memory.enable_arena_shrinkage", "quite.another.thing"], CPU)
    assert near.endswith("Did you mean memory.enable_memory_arena_shrinkage?")
    assert far.startswith("run option quite.another.thing: onnxruntime ")
    assert far.endswith("ignores it.")


def test_known_entries_and_those_that_a_provider_may_know_have_no_note() -> None:
    assert [*unknown_run_key_notes(["memory.enable_memory_arena_shrinkage"], CPU)] == []
    assert [*unknown_run_key_notes(["qnn.perf"], ("QNNExecutionProvider", *CPU))] == []
