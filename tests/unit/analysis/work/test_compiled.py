import json

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import outlay
from outlay.analysis.hlo.parse import parse_hlo
from outlay.analysis.work.compiled import compiled_work
from outlay.core.traced_flops import traced_work

pytestmark = pytest.mark.newest


def work_of(f, *args, **shardings):
    return compiled_work(parse_hlo(jax.jit(f, **shardings).lower(*args).compile().as_text()))


def work_in(lines, before=""):
    """The work of an entry of the given instructions, after other computations."""
    entry = "\n".join(["ENTRY %main () -> f32[] {", *(f"  {line}" for line in lines), "}"])
    return compiled_work(parse_hlo(f"HloModule m, is_scheduled=true\n\n{before}\n\n{entry}\n"))


def test_the_products_of_a_step_are_split_over_the_devices():
    mesh = outlay.mesh(data=8)
    by_rows, whole = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
    work = work_of(
        jax.value_and_grad(lambda w, x: jnp.tanh(x @ w).sum()),
        jax.ShapeDtypeStruct((64, 32), jnp.float32),
        jax.ShapeDtypeStruct((128, 64), jnp.float32),
        in_shardings=(whole, by_rows),
        out_shardings=(whole, whole),
    )
    assert work.flops_by_dtype == {"float32": 2 * (2 * 128 * 64 * 32) / 8}  # forward, and the gradient of w
    assert work.unknown == ()


def test_loops_multiply_and_read_one_slice_a_turn():
    def f(x, ws):
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, ws)[0]

    once, turns = 2 * 16 * 64 * 64, 12
    work = work_of(f, jnp.ones((16, 64)), jnp.ones((turns, 64, 64)))
    assert work.flops == turns * once
    weights = turns * 64 * 64 * 4
    assert weights < work.bytes_accessed < 4.5 * weights  # not the whole stack in each of the turns


def test_a_loop_of_unknown_length_counts_once_and_says_so():
    work = work_of(lambda x: jax.lax.while_loop(lambda x: x.sum() < 9, lambda x: x @ x, x), jnp.ones((32, 32)))
    assert work.flops == 2 * 32**3
    assert any("trip count" in words for words in work.unknown)


def test_bytes_are_operands_and_results_of_each_fusion():
    work = work_of(lambda x, y: jnp.tanh(x * y + 1), jnp.ones((64, 1024)), jnp.ones((64, 1024)))
    assert (sum(one.runs for one in work.operations), work.bytes_accessed) == (1, 3 * 64 * 1024 * 4)


DOT_IN_FUSION = """\
%triton (p0: f32[16,256], p1: bf16[256,64]) -> f32[16,64] {
  %p0 = f32[16,256]{1,0} parameter(0)
  %half = bf16[16,256]{1,0} convert(%p0)
  %p1 = bf16[256,64]{1,0} parameter(1)
  ROOT %dot.1 = f32[16,64]{1,0} dot(%half, %p1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}"""
PARAMETERS = [
    "%x = f32[16,256]{1,0} parameter(0)",
    "%w = bf16[256,64]{1,0} parameter(1)",
    "%i = s32[] parameter(2)",
    "%big = f32[100,256]{1,0} parameter(3)",
    "%half = bf16[16,256]{1,0} parameter(4)",
    "%image = f32[4,9,9,3]{3,2,1,0} parameter(5)",
    "%kernel = f32[3,3,3,8]{3,2,1,0} parameter(6)",
    "%out = f32[4,9,9,8]{3,2,1,0} parameter(7)",
]
SAME = "window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f"


def test_a_dot_in_a_fusion_counts_with_what_it_multiplies():
    line = "ROOT %f = f32[16,64]{1,0} fusion(%x, %w), kind=kCustom, calls=%triton"
    work = work_in([*PARAMETERS, line], DOT_IN_FUSION)
    assert work.flops_by_dtype == {"bfloat16": 2 * 16 * 256 * 64}
    assert work.bytes_accessed == 16 * 256 * 4 + 256 * 64 * 2 + 16 * 64 * 4
    assert sum(one.runs for one in work.operations) == 1


@pytest.mark.parametrize("target", ["__cublas$gemm", "__cublas$lt$matmul"])
def test_the_calls_of_cublas_are_products(target):
    dims = {"lhs_contracting_dimensions": ["1"], "rhs_contracting_dimensions": ["0"], "lhs_batch_dimensions": []}
    config = json.dumps({"gemm_backend_config": {"dot_dimension_numbers": dims}}, separators=(",", ":"))
    call = f'custom-call(%half, %w), custom_call_target="{target}", backend_config={config}'
    line = f"ROOT %c = (f32[16,64]{{1,0}}, s8[4096]{{0}}) {call}"
    assert work_in([*PARAMETERS, line]).flops_by_dtype == {"bfloat16": 2 * 16 * 256 * 64}


@pytest.mark.parametrize(
    ("target", "operands", "result"),
    [
        ("__cudnn$convForward", "%image, %kernel", "f32[4,9,9,8]"),
        ("__cudnn$convBackwardInput", "%out, %kernel", "f32[4,9,9,3]"),
        ("__cudnn$convBackwardFilter", "%image, %out", "f32[3,3,3,8]"),
    ],
)
def test_the_calls_of_cudnn_count_the_convolution_they_belong_to(target, operands, result):
    call = f'custom-call({operands}), {SAME}, custom_call_target="{target}"'
    line = f"ROOT %c = ({result}{{3,2,1,0}}, u8[0]{{0}}) {call}"
    products = (9 * 3 - 2) ** 2  # at either end of a dim, one of three positions is padding
    assert work_in([*PARAMETERS, line]).flops_by_dtype == {"float32": 2 * 4 * 8 * 3 * products}


def test_a_convolution_counts_the_same_alone():
    line = f"ROOT %c = f32[4,9,9,8]{{3,2,1,0}} convolution(%image, %kernel), {SAME}"
    assert work_in([*PARAMETERS, line]).flops == 2 * 4 * 8 * 3 * (9 * 3 - 2) ** 2


def test_a_matrix_product_in_a_tpus_clothes():
    line = "ROOT %c = bf16[16,64]{1,0} convolution(%half, %w), dim_labels=bf_io->bf"
    assert work_in([*PARAMETERS, line]).flops_by_dtype == {"bfloat16": 2 * 16 * 256 * 64}


def test_onednn_and_calls_nobody_knows():
    line = 'ROOT %c = bf16[16,64]{1,0} custom-call(%half, %w), custom_call_target="__onednn$matmul"'
    assert work_in([*PARAMETERS, line]).flops == 2 * 16 * 256 * 64
    work = work_in([*PARAMETERS, line.replace("__onednn$matmul", "my_kernel")])
    assert work.flops == 0
    assert work.unknown == ("custom call my_kernel: FLOPs unknown; not counted",)


def test_products_of_float32_in_full_precision_are_told_apart():
    line = "ROOT %d = f32[16,100]{1,0} dot(%x, %big), lhs_contracting_dims={1}, rhs_contracting_dims={1}"
    assert list(work_in([*PARAMETERS, line]).flops_by_dtype) == ["float32"]
    precise = line + ", operand_precision={highest,highest}"
    assert list(work_in([*PARAMETERS, precise]).flops_by_dtype) == ["float32-highest"]


@pytest.mark.parametrize(
    ("line", "num_bytes"),
    [
        ("%s = f32[1,256]{1,0} dynamic-slice(%big, %i, %i), dynamic_slice_sizes={1,256}", 2 * 1024 + 8),
        ("%u = f32[100,256]{1,0} dynamic-update-slice(%big, %x, %i, %i)", 2 * 16 * 1024 + 8),
        ("%s = f32[7,256]{1,0} slice(%big), slice={[0:7], [0:256]}", 2 * 7 * 1024),
        ("%a = f32[16,256]{1,0} add(%x, %x)", 2 * 16 * 1024),
        ("%c = (f32[16,256]{1,0}, f32[16,256]{1,0}, u32[]) copy-start(%x)", 2 * 16 * 1024),
        ("%t = (f32[16,256]{1,0}, s32[]) tuple(%x, %i)", 0),
        ("%g = f32[100,256]{1,0} all-reduce(%big), replica_groups={{0,1}}, to_apply=%add", 0),
    ],
    ids=["slice of an index", "update in place", "slice", "operand twice", "copy", "nothing", "collective"],
)
def test_bytes_of_one_instruction(line, num_bytes):
    assert work_in([*PARAMETERS, f"ROOT {line}"]).bytes_accessed == num_bytes


IN_PLACE = """\
%update (p0: f32[100,256], p1: s32[], p2: f32[100,256]) -> f32[100,256] {
  %p0 = f32[100,256]{1,0} parameter(0)
  %p1 = s32[] parameter(1)
  %p2 = f32[100,256]{1,0} parameter(2)
  %row = f32[1,256]{1,0} dynamic-slice(%p2, %p1, %p1), dynamic_slice_sizes={1,256}
  %twice = f32[1,256]{1,0} add(%row, %row)
  ROOT %new = f32[100,256]{1,0} dynamic-update-slice(%p0, %twice, %p1, %p1)
}"""


def test_a_fusion_that_reads_a_row_and_writes_one_moves_two_rows():
    other = "%other = f32[100,256]{1,0} parameter(8)"
    line = "ROOT %f = f32[100,256]{1,0} fusion(%big, %i, %other), kind=kLoop, calls=%update"
    assert work_in([*PARAMETERS, other, line], IN_PLACE).bytes_accessed == 2 * 1024 + 4


AROUND = """
%around (q0: f32[100,256], q1: s32[], q2: f32[100,256]) -> f32[100,256] {
  %q0 = f32[100,256]{1,0} parameter(0)
  %q1 = s32[] parameter(1)
  %q2 = f32[100,256]{1,0} parameter(2)
  ROOT %inner = f32[100,256]{1,0} fusion(%q0, %q1, %q2), kind=kLoop, calls=%update
}"""


def test_a_fusion_around_one_moves_what_that_moves():
    other = "%other = f32[100,256]{1,0} parameter(8)"
    line = "ROOT %f = f32[100,256]{1,0} fusion(%big, %i, %other), kind=kOutput, calls=%around"
    assert work_in([*PARAMETERS, other, line], f"{IN_PLACE}\n{AROUND}").bytes_accessed == 2 * 1024 + 4


def test_a_text_that_was_cut_is_still_counted():
    line = "%f = f32[100,256]{1,0} fusion(%big, %i), kind=kLoop, calls=%gone"
    work = work_in([*PARAMETERS, line], IN_PLACE.replace("ROOT ", ""))
    assert work.bytes_accessed == 2 * 100 * 1024 + 4


def across(before, result):
    """What a fusion reads across rows that transposes what comes out of the given instructions."""
    fused = "\n".join(
        [
            f"%turned (p0: f32[100,256], p1: s32[]) -> {result} {{",
            "  %p0 = f32[100,256]{1,0} parameter(0)",
            "  %p1 = s32[] parameter(1)",
            *(f"  {line}" for line in before),
            f"  %transpose.1 = {result}{{0,1}} transpose(%last), dimensions={{1,0}}",
            f"  ROOT %copy.1 = {result}{{1,0}} copy(%transpose.1)",
            "}",
        ]
    )
    line = f"ROOT %f = {result}{{1,0}} fusion(%big, %i), kind=kLoop, calls=%turned"
    (operation,) = work_in([*PARAMETERS, line], fused).operations
    return [(one.num_bytes, one.pitch) for one in operation.across_rows]


def test_a_transposed_array_is_read_across_its_rows():
    whole = ["%last = f32[100,256]{1,0} negate(%p0)"]
    assert across(whole, result="f32[256,100]") == [(4 * 100 * 256, 4 * 256)]
    part = ["%cut = f32[100,32]{1,0} dynamic-slice(%p0, %p1, %p1)", "%last = f32[100,32]{1,0} negate(%cut)"]
    assert across(part, result="f32[32,100]") == [(4 * 100 * 32, 4 * 256)]  # rows of the array it is cut from


def test_exchanging_outer_dims_reads_rows():
    fused = """\
%turned (p0: f32[4,9,9,8]) -> f32[9,4,9,8] {
  %p0 = f32[4,9,9,8]{3,2,1,0} parameter(0)
  %transpose.1 = f32[9,4,9,8]{3,2,0,1} transpose(%p0), dimensions={1,0,2,3}
  ROOT %copy.1 = f32[9,4,9,8]{3,2,1,0} copy(%transpose.1)
}"""
    line = "ROOT %f = f32[9,4,9,8]{3,2,1,0} fusion(%out), kind=kLoop, calls=%turned"
    (operation,) = work_in([*PARAMETERS, line], fused).operations
    assert operation.across_rows == ()


def test_an_operand_named_twice_is_read_once():
    fused = """\
%twice (p0: f32[16,256], p1: f32[16,256]) -> f32[16,256] {
  %p0 = f32[16,256]{1,0} parameter(0)
  %p1 = f32[16,256]{1,0} parameter(1)
  ROOT %sum = f32[16,256]{1,0} add(%p0, %p1)
}"""
    line = "ROOT %f = f32[16,256]{1,0} fusion(%x, %x), kind=kLoop, calls=%twice"
    assert work_in([*PARAMETERS, line], fused).bytes_accessed == 2 * 16 * 1024


def test_what_a_tpu_keeps_on_the_chip_asks_nothing_of_memory():
    tiled = "f32[1024,1024]{1,0:T(8,128)"
    lines = [f"%p = {tiled}}} parameter(0)", f"%n = {tiled}S(1)}} negate(%p)", f"ROOT %m = {tiled}}} negate(%n)"]
    inside, outside = work_in(lines).operations
    assert inside.num_bytes == outside.num_bytes == 4 * 1024 * 1024
    registered = [line.replace(":T(8,128)S(1)", ":S(1)") for line in lines]  # of a GPU: memory that NCCL knows
    assert [one.num_bytes for one in work_in(registered).operations] == [8 * 1024 * 1024] * 2


def test_buffers_of_a_collective_that_goes_on_behind_a_fusion_are_not_moved():
    fused = (
        "%async_collective_fusion.1 (a: f32[1024], b: bf16[4096]) -> (f32[1024], bf16[4096]) {\n"
        "  %a = f32[1024]{0} parameter(0)\n  %b = bf16[4096]{0} parameter(1)\n  %n = f32[1024]{0} negate(%a)\n"
        "  ROOT %t = (f32[1024]{0}, bf16[4096]{0}) tuple(%n, %b)\n}"
    )
    lines = [
        "%x = f32[1024]{0} parameter(0)",
        "%buffer = bf16[4096]{0} parameter(1)",
        "ROOT %f = (f32[1024]{0}, bf16[4096]{0}) fusion(%x, %buffer), kind=kOutput, "
        "output_to_operand_aliasing={{1}: (1, {})}, calls=%async_collective_fusion.1",
    ]
    (operation,) = work_in(lines, fused).operations
    assert operation.num_bytes == 2 * 4 * 1024


def attention_call(target, mask="CAUSAL", window=0):
    """A call of cuDNN's attention as the compiler writes it: 2 samples, 4 heads of 64, 128 queries and keys."""
    config = {
        "cudnn_fmha_backend_config": {
            "intermediate_tensor_shape": {"element_type": "BF16", "dimensions": ["2", "4", "128", "128"]},
            "mask_type": mask,
            "sliding_window_length": window,
        }
    }
    return work_in(
        [
            "%q = bf16[2,128,4,64]{3,2,1,0} parameter(0)",
            "%k = bf16[2,128,2,64]{3,2,1,0} parameter(1)",
            "%v = bf16[2,128,2,64]{3,2,1,0} parameter(2)",
            "ROOT %call = (bf16[2,4,128,64]{3,1,2,0}, u8[0]{0}) custom-call(%q, %k, %v), "
            f'custom_call_target="{target}", backend_config={json.dumps(config)}',
        ]
    )


@pytest.mark.parametrize(
    ("target", "mask", "window", "products", "seen"),
    [
        ("__cudnn$fmhaSoftmax", "NO_MASK", 0, 2, 128 * 128),
        ("__cudnn$fmhaSoftmax", "CAUSAL", 0, 2, 128 * 129 // 2),
        ("__cudnn$fmhaSoftmaxBackward", "CAUSAL", 0, 5, 128 * 129 // 2),
        ("__cudnn$fmhaSoftmaxBackward", "CAUSAL", 1, 5, 128),
    ],
)
def test_fused_attention_counts_what_its_mask_lets_be_seen(target, mask, window, products, seen):
    work = attention_call(target, mask, window)
    assert work.flops_by_dtype == {"bfloat16": 2 * products * 2 * 4 * seen * 64}
    assert work.unknown == ()
    assert work.bytes_accessed == 2 * (2 * 128 * 64) * (4 + 2 + 2 + 4)  # queries, keys, values, and what is mixed


def test_a_kernel_counts_what_its_author_told_and_in_the_dtype_of_what_is_large():
    config = {"custom_call_config": {"body": "", "cost_estimate": {"flops": "4096", "bytes_accessed": "7"}}}
    work = work_in(
        [
            "%table = s32[4]{0} parameter(0)",
            "%q = bf16[16,128]{1,0} parameter(1)",
            'ROOT %call = bf16[16,128]{1,0} custom-call(%table, %q), custom_call_target="tpu_custom_call", '
            f"backend_config={json.dumps(config)}",
        ]
    )
    assert work.flops_by_dtype == {"bfloat16": 4096}
    assert work.unknown == ()


def test_a_kernel_whose_author_told_nothing_is_named():
    call = '%call = f32[4]{0} custom-call(%x), custom_call_target="tpu_custom_call", backend_config={"body": ""}'
    work = work_in(["%x = f32[4]{0} parameter(0)", f"ROOT {call}"])
    assert work.unknown == ("custom call tpu_custom_call: FLOPs unknown; not counted",)


@pytest.mark.compiles
def test_attention_is_the_same_work_traced_compiled_and_on_paper():
    """On a GPU that is not here, where it is one call; and backward, where scores are computed again."""
    mesh = outlay.mesh(data=8, target="h100:1x8")
    query = jax.ShapeDtypeStruct((8, 128, 4, 64), jnp.bfloat16, sharding=NamedSharding(mesh, P("data")))
    grads = jax.jit(jax.grad(lambda q: outlay.attention(q, q, q, causal=True).astype(jnp.float32).sum()))
    with jax.set_mesh(mesh):
        traced = grads.trace(query)
        compiled = compiled_work(parse_hlo(traced.lower().compile().as_text()))
    on_paper = 2 * (2 + 5) * 8 * 4 * (128 * 129 // 2) * 64
    assert compiled.flops_by_dtype == {"bfloat16": on_paper / 8}
    assert on_paper < traced_work(traced.jaxpr).flops < 1.05 * on_paper
    assert traced_work(traced.jaxpr).unknown == ()


def test_transforms_and_factorizations_count_whatever_library_does_them():
    matrices = jnp.broadcast_to(jnp.eye(8) * 2, (4, 8, 8))

    def all_of_them(x):
        lower = jax.lax.linalg.cholesky(x, symmetrize_input=False)
        return jnp.fft.fft(x), jax.lax.linalg.eigh(x), jax.lax.linalg.triangular_solve(lower, x), jax.lax.linalg.qr(x)

    expected = 4 * (5 * 64 * 3 + 8**3 / 3 + 9 * 8**3 + 8**3 + 8 * 8**3 / 3)
    work = compiled_work(parse_hlo(jax.jit(all_of_them).lower(matrices).compile().as_text()))
    assert work.flops_by_dtype["float32-highest"] == pytest.approx(expected)
    assert not work.unknown
