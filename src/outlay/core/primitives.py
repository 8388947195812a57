"""JAX's primitives by what they do with the entries of their operands: one table for all that read traced programs.

Each primitive stands in one row of `KINDS`; sets that several readers ask for are made of its rows. What only one
reader knows of an operation, such as how it maps its dims, stays with that reader. A test names each primitive of JAX
that has no row.
"""

from __future__ import annotations

KINDS: dict[str, frozenset[str]] = {
    kind: frozenset(names.split())
    for kind, names in {
        # Entry by entry: an entry of the result is made of the entries at its place.
        "arithmetic": (
            "abs acos acosh add add_any asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt ceil clamp cos cosh "
            "digamma div eq eq_to erf erf_inv erfc exp exp2 expm1 floor ge gt igamma igamma_grad_a igammac integer_pow "
            "is_finite le le_to lgamma log log1p log2 logistic lt lt_to max min mul ne neg nextafter one_minus_square "
            "polygamma polynomial pow reciprocal regularized_incomplete_beta rem round rsqrt select_n sign sin sinh "
            "sqrt square sub tan tanh zeta"
        ),
        "of bits": ("and clz mulhi not or population_count shift_left shift_right_arithmetic shift_right_logical xor"),
        "of complex numbers": "complex conj imag real",
        "hands on": (
            "copy copy_p layout_constraint mesh_cast name pcast pvary relayout reshard sharding_constraint "
            "stop_gradient xla_metadata_value"
        ),
        "converts": "bitcast_convert_type convert_element_type reduce_precision",
        # The result holds entries of the operands: all of them, or some.
        "rearranges": "expand_dims reshape rev squeeze transpose",
        "places": (
            "broadcast_in_dim broadcast_to concatenate dynamic_slice dynamic_update_slice gather pad slice split stack "
            "tile unstack"
        ),
        # Entries are taken together.
        "reduces": "argmax argmin reduce_and reduce_max reduce_min reduce_or reduce_prod reduce_sum reduce_xor",
        "reduces by a function": "reduce",
        "cumulative": "cumlogsumexp cummax cummin cumprod cumsum",
        "selects": "approx_top_k sort top_k",
        "windows": (
            "reduce_window reduce_window_max reduce_window_min reduce_window_sum select_and_gather_add "
            "select_and_scatter select_and_scatter_add"
        ),
        "scatters": "scatter scatter-add scatter-max scatter-min scatter-mul scatter-sub",
        "multiplies": (
            "conv_general_dilated cudnn_fusion dot_general dot_product_attention_bwd dot_product_attention_bwd_wrapper "
            "dot_product_attention_fp8_bwd dot_product_attention_fp8_bwd_wrapper dot_product_attention_fp8_fwd "
            "dot_product_attention_fp8_fwd_wrapper dot_product_attention_fwd dot_product_attention_fwd_wrapper "
            "ragged_dot_general scaled_dot scaled_matmul scaled_matmul_wrapper"
        ),
        "linear algebra": (
            "cholesky cholesky_update custom_linear_solve eig eigh geqp3 geqrf hessenberg householder_product lu "
            "lu_pivots_to_permutation ormqr qr schur svd symmetric_product triangular_solve tridiagonal "
            "tridiagonal_solve"
        ),
        "Fourier": "fft",
        "collective": (
            "all_gather all_gather_done all_gather_invariant all_gather_reduced all_gather_reduced_start "
            "all_gather_start all_to_all all_to_all_done all_to_all_start pbroadcast pbroadcast_done "
            "pbroadcast_dynamic pbroadcast_start pmax pmin ppermute ppermute_done ppermute_start precv preduced "
            "psend psum  psum_done psum_invariant psum_invariant_start psum_start ragged_all_to_all reduce_scatter "
            "reduce_scatter_done  reduce_scatter_start reduced_vary_cast reduced_vary_cast_p unreduced_pmax "
            "unreduced_pmin unreduced_psum  unreduced_psum_start unreduced_reduce_scatter "
            "unreduced_reduce_scatter_start vary_unreduced_cast  vary_unreduced_cast_p"
        ),
        # Values out of none, or out of keys.
        "makes": "axis_index dim_as_value dimension_size empty empty2 iota platform_index zeros_like",
        "keys": "random_bits random_clone random_fold_in random_seed random_split random_unwrap random_wrap",
        "random": (
            "iota_2x32_shape philox2x32 philox4x32 random_gamma rng_bit_generator rng_uniform threefry2x32 threefry4x32"
        ),
        # Where values are kept, and effects.
        "memory": (
            "after_all assert_consumed_value box_get box_set check consume copy_to_host create_linear create_token "
            "dce_sink device_put empty_ref "
            "free_ref freeze from_edtype get global_array_to_host_local_array host_local_array_to_global_array "
            "inspect_sharding log_extend log_read new_box new_log new_ref optimization_barrier pin program_order "
            "shape_assertion shard_alike swap tie to_edtype unpin unreachable with_memory_space_constraint"
        ),
        "adds in place": "accum_grad_in_ref addupdate",
        # Functions are run.
        "calls": (
            "call call_exported call_hi_primitive call_hi_primitive_linearized checkpoint closed_call composite cond "
            "core_call core_map custom_jvp_call custom_jvp_call_jaxpr custom_lin custom_partitioning custom_vjp_call "
            "custom_vmap_call debug_callback debug_print eval_jaxpr ffi_call io_callback jit linear_call mpmd_map "
            "pallas_call pjit pure_callback remat2 remat_opt run_state scan shard_map stage tpu_custom_call while "
            "buffer_callback compute_on fused_call xla_metadata_call"
        ),
    }.items()
}
"""The names of primitives by what they do; each name stands once."""

EACH_ENTRY = frozenset().union(
    *(KINDS[kind] for kind in ("arithmetic", "of bits", "of complex numbers", "hands on", "converts"))
)
"""An entry of the result is made of the entries of the operands at its place."""

EACH_TOKEN = "outlay_each_token"
"""The name of a jitted function that treats each entry of dim 0 by itself, however it orders them on its way."""

SCALE = "outlay_scale"
"""The name of a jitted function for a scale that cancels, so that of some samples it may be another than of all."""

SATURATE = "outlay_saturate"
"""The name of a jitted function that limits numbers to what a dtype behind it can hold: all it does is to round."""

BY_SAMPLE = frozenset([EACH_TOKEN, SCALE])
"""Names of jitted functions that tell what they do with samples, whatever operations they consist of."""

KEEPS = KINDS["hands on"] | KINDS["converts"] | KINDS["rearranges"]
"""The result holds what the one operand holds, so that to store it as well would be to store the operand twice."""

FREE = frozenset().union(
    *(
        KINDS[kind]
        for kind in (
            "of complex numbers",
            "hands on",
            "converts",
            "rearranges",
            "places",
            "collective",
            "makes",
            "keys",
        )
    ),
    KINDS["memory"],
    ("rng_uniform", "scatter"),
)
"""No arithmetic with floats: entries are moved, or made; collectives are priced by what they move."""


NOT_SPLIT = (
    KINDS["Fourier"]
    | (KINDS["linear algebra"] - {"cholesky_update", "custom_linear_solve", "geqp3", "symmetric_product"})
    | {"approx_top_k", "top_k", "dot_product_attention_bwd_wrapper", "dot_product_attention_fwd_wrapper"}
)
"""XLA does not split them over the dims along which each entry is by itself: no version, or not on each hardware."""


def kind_of(name: str) -> str | None:
    """Return the row of a primitive; None if it has none.

    >>> kind_of("dot_general"), kind_of("reshape"), kind_of("no such primitive")
    ('multiplies', 'rearranges', None)
    """
    return next((kind for kind, names in KINDS.items() if name in names), None)
