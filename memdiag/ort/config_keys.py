"""Config entries of sessions and runs that onnxruntime knows, for a note on keys that it does not
know.

onnxruntime stores every key without an error, and reads only known keys.
"""

from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches

from memdiag.defaults import DEFAULT_PROVIDERS

TABLE_RELEASE = "1.32.0"
"""The release of onnxruntime that `SESSION_CONFIG_KEYS` describes."""

# The keys in include/onnxruntime/core/session/onnxruntime_session_options_config_keys.h of
# onnxruntime's main branch, and the strings of that form in the library for the CPU of 1.32.0.
_SESSION_KEY_LINES = """
ep.context_embed_mode
ep.context_enable
ep.context_file_path
ep.context_model_external_initializers_file_name
ep.context_node_name_prefix
ep.context_source_model_path
ep.cpu.qmoe_deferred_scale
ep.cuda.fpa_intb_dequant_gemm_min_m
ep.cuda.fpa_intb_gemm
ep.cuda.fpa_intb_profile_m
ep.cuda.gqa_workspace_max_total_sequence_length
ep.cuda.matmul_nbits_m_chunk_size
ep.cuda.moe_packed_gpu_experts
ep.cuda.runtime_fusion.causal_conv_with_state
ep.cuda.runtime_fusion.unit_swish
ep.enable_weightless
ep.enable_weightless_ep_context_nodes
ep.enable_weightless_mode
ep.nnapi.partitioning_stop_ops
ep.share_ep_contexts
ep.stop_share_ep_contexts
mlas.disable_kleidiai
mlas.enable_gemm_fastmath_arm64_bfloat16
mlas.kleidiai.conv_igemm_max_work
mlas.nchwc_depthwise_sliding
mlas.nchwc_pointwise_conv_max_input_channel_batch
mlas.qnbit.force_fp32
mlas.use_lut_gemm
optimization.constant_folding_max_output_size_in_bytes
optimization.disable_specified_optimizers
optimization.enable_cast_chain_elimination
optimization.enable_gelu_approximation
optimization.enable_memory_probe_recompute_config
optimization.memory_optimizer_config
optimization.minimal_build_optimizations
session.allow_released_opsets_only
session.collect_node_memory_stats_to_file
session.compile_only
session.debug_layout_transformation
session.disable_aot_function_inlining
session.disable_cpu_ep_fallback
session.disable_double_qdq_remover
session.disable_model_compile
session.disable_prepacking
session.disable_qdq_constant_folding
session.disable_quant_qdq
session.dynamic_block_base
session.enable_cpu_mem_arena
session.enable_dq_matmulnbits_fusion
session.enable_mem_pattern
session.enable_moe_expert_counting
session.enable_moe_expert_statistics
session.enable_profiling
session.enable_quant_qdq
session.enable_quant_qdq_cleanup
session.enable_saved_runtime_optimizations
session.execution_mode
session.external_data_loader.chunk_bytes
session.external_data_loader.min_size_bytes
session.external_data_loader.pinned_memory_bytes
session.external_data_loader.threads
session.fail_on_suboptimal_compiled_model
session.force_spinning_stop
session.function_expansion_byte_limit
session.function_expansion_node_limit
session.gqa_value_layout
session.graph_optimization_level
session.graph_optimizations_loop_level
session.inter_op.allow_spinning
session.inter_op.spin_backoff_max
session.inter_op.spin_duration_us
session.inter_op_num_threads
session.intra_op.allow_spinning
session.intra_op.spin_backoff_max
session.intra_op.spin_duration_us
session.intra_op_num_threads
session.intra_op_thread_affinities
session.kernel_dispatch_policy
session.layer_assignment_settings
session.load_model_format
session.log_id
session.log_severity_level
session.log_verbosity_level
session.max_shape_override
session.model_external_initializers_file_folder_path
session.moe.offload.allow_file_backing
session.moe.offload.async_max_tokens
session.moe.offload.budget_group
session.moe.offload.cpu_execution
session.moe.offload.cpu_threads
session.moe.offload.derived_cache_dir
session.moe.offload.device_expert_bytes
session.moe.offload.device_working_bytes
session.moe.offload.gpu_budget_bytes
session.moe.offload.gpu_device_mem_limit
session.moe.offload.host_expert_bytes
session.moe.offload.host_working_bytes
session.moe.offload.min_expert_weight
session.moe.offload.mode
session.moe.offload.node_overrides
session.moe.offload.pinned_bytes
session.moe.offload.placement
session.moe.offload.popularity_file
session.moe.offload.prefill_wave_experts
session.moe.offload.reserve_device_bytes
session.moe.offload.skip_tail_cold_only
session.moe.offload.skip_zero_cold_doorbell
session.moe.offload.source_root
session.moe.offload.tail_substitution_min_rank
session.moe.offload.tail_substitution_threshold
session.moe_expert_counter_alpha
session.moe_expert_counter_beta
session.moe_expert_counter_state_file
session.name_based_layer_assignment
session.node_partition_config_file
session.optimized_model_external_initializers_file_name
session.optimized_model_external_initializers_min_size_in_bytes
session.optimized_model_filepath
session.prepack.enable_parallel
session.qdq_matmulnbits_accuracy_level
session.qdq_matmulnbits_block_size
session.qdqisint8allowed
session.record_ep_graph_assignment_info
session.resource_cuda_partitioning_settings
session.save_external_prepacked_constant_initializers
session.save_model_format
session.set_denormal_as_zero
session.strict_shape_type_inference
session.strict_workspace_verification
session.use_deterministic_compute
session.use_device_allocator_for_initializers
session.use_env_allocators
session.use_external_initializer_file_buffers_directly
session.use_memory_mapped_ort_model
session.use_ort_model_bytes_directly
session.use_ort_model_bytes_for_initializers
session.use_per_session_threads
session.x64quantprecision
"""
SESSION_CONFIG_KEYS = frozenset(_SESSION_KEY_LINES.split())

_PROVIDER_AREA = "ep."
_MIN_PROVIDER_PARTS = 3  # ep.cuda.use_arena: the options of a provider are its own


def unknown_key_notes(options: Iterable[str]) -> Iterator[str]:
    """Yield a sentence for each config entry among `options` that onnxruntime does not know.

    Names without a dot are attributes of SessionOptions, not config entries. Entries for one
    provider are not checked.
    """
    for name in options:
        if "." not in name or name in SESSION_CONFIG_KEYS:
            continue
        if name.startswith(_PROVIDER_AREA) and name.count(".") + 1 >= _MIN_PROVIDER_PARTS:
            continue
        yield _unknown_key_note(f"session option {name}", name, SESSION_CONFIG_KEYS)


# The keys in include/onnxruntime/core/session/onnxruntime_run_options_config_keys.h that do not
# belong to one provider. All of them are strings in the library for the CPU of 1.32.0.
RUN_CONFIG_KEYS = frozenset(
    {
        "disable_synchronize_execution_providers",
        "gpu_graph_id",
        "memory.enable_memory_arena_shrinkage",
    }
)


def unknown_run_key_notes(options: Iterable[str], providers: Sequence[str]) -> Iterator[str]:
    """Yield a sentence for each run config entry among `options` that onnxruntime does not know.

    With other `providers` than the CPU's nothing is checked: they have entries of their own.
    """
    if tuple(providers) != DEFAULT_PROVIDERS:
        return
    for name in options:
        if name in RUN_CONFIG_KEYS:
            continue
        yield _unknown_key_note(f"run option {name}", name, RUN_CONFIG_KEYS)


def _unknown_key_note(subject: str, name: str, known_keys: Iterable[str]) -> str:
    similar_keys = get_close_matches(name, sorted(known_keys), n=1)
    hint = f" Did you mean {similar_keys[0]}?" if similar_keys else ""
    return (
        f"{subject}: onnxruntime {TABLE_RELEASE} does not know this config entry and ignores"
        f" it.{hint}"
    )
