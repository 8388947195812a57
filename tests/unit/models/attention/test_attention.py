"""The same numbers as the plain form, in memory that grows with the sequence and not with its square."""

import contextlib
import functools
import itertools
import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import outlay
from outlay.analysis.hlo.parse import parse_hlo
from outlay.analysis.work.compiled import compiled_work
from outlay.core import jax_kernels
from outlay.core.constrain import ruled_spec
from outlay.core.error_types import ProgramError
from outlay.models.attention.blockwise import BLOCK, Mask, blockwise
from outlay.models.attention.dot_product import _filled_up
from outlay.models.attention.kernel_rules import refusal

CAUSAL, WINDOW = Mask(causal=True), Mask(causal=True, window=5)
TOLERANCE = {"float32": 2e-6, "bfloat16": 2e-2}


def inputs(num_tokens, dtype="float32", heads=(6, 2), batch=2):
    rng = np.random.default_rng(num_tokens)
    shapes = ((batch, num_tokens, number, 8) for number in (heads[0], heads[1], heads[1]))
    return [jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes]


def segments_of(num_tokens):
    rng = np.random.default_rng(1)
    ids = jnp.asarray(np.sort(rng.integers(0, 3, size=(2, num_tokens)), axis=1))
    return ids, ids


def plain(query, key, value, segments, mask, scale):
    """All scores at once."""
    shared = query.shape[2] // key.shape[2]
    key, value = (jnp.repeat(x, shared, axis=2) for x in (key, value))
    scores = scale * jnp.einsum("bthd,bshd->bhts", query, key, preferred_element_type=jnp.float32)
    ahead = jnp.arange(query.shape[1])[:, None] - jnp.arange(key.shape[1])[None]
    seen = jnp.broadcast_to((ahead >= 0) if mask.causal else True, ahead.shape)[None, None]
    seen = seen & (ahead < (mask.window or query.shape[1] + 1))[None, None]
    if segments is not None:
        seen = seen & (segments[0][:, None, :, None] == segments[1][:, None, None, :])
    weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1)
    return jnp.einsum("bhts,bshd->bthd", weights.astype(value.dtype), value)


def with_gradients(function, *given):
    """What it gives, and the gradients of a sum that weighs every number of it differently."""

    def weighed(*given):
        out = function(*given)
        weights = jnp.cos(jnp.arange(out.size, dtype=jnp.float32)).reshape(out.shape)
        return (out.astype(jnp.float32) * weights).sum(), out

    grads, out = jax.jit(jax.grad(weighed, (0, 1, 2), has_aux=True))(*given)
    return [out, *grads]


def dtypes_masks_and_lengths():
    """Every pair of a dtype, a mask and a length; lengths with segments, and one that fills its blocks up."""
    lengths, dtypes = [(16, False), (19, True)], list(TOLERANCE)
    for row, mask in enumerate([Mask(), CAUSAL, WINDOW]):
        for column, length in enumerate(lengths):
            yield pytest.param(dtypes[(row + column) % 2], mask, *length, id=f"{mask}-{length[0]}")


@pytest.mark.some_cases(2)
@pytest.mark.compiles
@pytest.mark.parametrize(("dtype", "mask", "num_tokens", "has_segments"), [*dtypes_masks_and_lengths()])
def test_values_and_gradients_are_those_of_the_plain_form(dtype, mask, num_tokens, has_segments):
    """In blocks of 8, so that there are whole ones, hidden ones, and one that is filled up."""
    query, key, value = inputs(num_tokens, dtype)
    segments = segments_of(num_tokens) if has_segments else None
    in_blocks = with_gradients(lambda q, k, v: blockwise(q, k, v, segments, mask, 0.3, 8), query, key, value)
    expected = with_gradients(lambda q, k, v: plain(q, k, v, segments, mask, 0.3), query, key, value)
    for got, want in zip(in_blocks, expected, strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(*(np.asarray(x, np.float32) for x in (got, want)), atol=TOLERANCE[dtype])


def test_the_public_function_scales_by_the_root_of_the_dims_and_takes_what_it_is_asked():
    query, key, value = inputs(12)
    ids = segments_of(12)[0]
    for options, mask, scale in (
        ({}, Mask(), 8**-0.5),
        ({"causal": True, "scale": 2.0}, CAUSAL, 2.0),
        ({"causal": True, "window": 5}, WINDOW, 8**-0.5),
        ({"causal": True, "window": 50}, CAUSAL, 8**-0.5),
        ({"causal": True, "segment_ids": ids}, CAUSAL, 8**-0.5),
    ):
        segments = (ids, ids) if "segment_ids" in options else None
        expected = plain(query, key, value, segments, mask, scale)
        np.testing.assert_allclose(outlay.attention(query, key, value, **options), expected, atol=2e-6)


def test_keys_of_another_length():
    (query, _, _), (_, key, value) = inputs(12), inputs(20)
    expected = plain(query, key, value, None, Mask(), 8**-0.5)
    np.testing.assert_allclose(outlay.attention(query, key, value), expected, atol=2e-6)


def test_a_query_that_sees_nothing_gives_nothing_and_no_nan():
    query, key, value = inputs(8)
    segments = (jnp.zeros((2, 8), int).at[:, 3].set(7), jnp.zeros((2, 8), int))
    actual, *grads = with_gradients(lambda q, k, v: blockwise(q, k, v, segments, Mask(), 1.0, 4), query, key, value)
    assert not np.asarray(actual[:, 3]).any()
    assert all(np.isfinite(grad).all() for grad in grads)


@pytest.mark.parametrize("window", [None, 1, 3, 8, 9, 100])
@pytest.mark.parametrize("causal", [False, True])
def test_the_pairs_are_those_of_which_something_is_seen(causal, window):
    mask, num_queries, num_keys, block = Mask(causal, window), 13, 13 if causal else 21, 4
    places = np.arange(num_queries)[:, None], np.arange(num_keys)[None]
    seen = np.broadcast_to(mask.visible(*places), (num_queries, num_keys))
    expected = [
        (i, j)
        for i, j in itertools.product(range(-(-num_queries // block)), range(-(-num_keys // block)))
        if seen[i * block : (i + 1) * block, j * block : (j + 1) * block].any()
    ]
    assert mask.pairs(num_queries, num_keys, block) == expected


def largest(num_tokens):
    """Of all arrays of a gradient's program, the size of the largest."""
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in inputs(8)]
    query, key, value = (jax.ShapeDtypeStruct((1, num_tokens, *shape.shape[2:]), jnp.bfloat16) for shape in shapes)

    def loss(q, k, v):
        return outlay.attention(q, k, v, causal=True).astype(jnp.float32).sum()

    jaxpr = str(jax.make_jaxpr(jax.grad(loss, (0, 1, 2)))(query, key, value))
    return max(np.prod([int(n) for n in dims.split(",")]) for dims in re.findall(r"\w\d+\[([\d,]+)\]", jaxpr))


def test_no_array_grows_with_the_square_of_the_sequence():
    """The largest holds one block's scores."""
    assert largest(2048) == largest(8192) == 6 * BLOCK**2


@pytest.mark.some_cases(1)
@pytest.mark.compiles
@pytest.mark.parametrize("how", ["auto", "manual"])
def test_batch_and_heads_stay_split(how):
    """Each device mixes its own samples and heads: nothing moves, forward or backward, and the numbers are the same."""
    mesh, spec = outlay.mesh(data=4, model=2), P("data", None, "model")
    given = inputs(16, heads=(4, 2), batch=4)
    mix = functools.partial(outlay.attention, causal=True)
    own = mix if how == "auto" else jax.shard_map(mix, mesh=mesh, in_specs=(spec,) * 3, out_specs=spec)

    def pulled(query, key, value, grad):
        out, pull = jax.vjp(own, query, key, value)
        return out, pull(grad)

    sharding = NamedSharding(mesh, spec)
    placed = [jax.device_put(x, sharding) for x in (*given, given[0])]
    compiled = jax.jit(pulled, out_shardings=sharding).lower(*placed).compile()
    assert not re.findall(r"all-gather|all-reduce|all-to-all|collective-permute", compiled.as_text())
    expected, pull = jax.vjp(lambda *xs: plain(*xs, None, CAUSAL, 8**-0.5), *given)
    jax.tree.map(
        lambda got, want: np.testing.assert_allclose(got, want, atol=2e-6),
        compiled(*placed),
        (expected, pull(given[0])),
    )


@pytest.mark.compiles
@pytest.mark.parametrize(("dtype", "dim"), [(jnp.bfloat16, 64), (jnp.float16, 96), (jnp.bfloat16, 12)])
def test_on_gpus_that_are_not_here_it_is_the_fused_kernel_and_stays_split(dtype, dim):
    mesh = outlay.mesh(data=4, model=2, target="h100:1x8")
    sharding = NamedSharding(mesh, P("data", None, "model"))
    query, key = (jax.ShapeDtypeStruct((8, 256, n, dim), dtype, sharding=sharding) for n in (8, 4))

    def grads(query, key, value):
        def loss(*xs):
            return outlay.attention(*xs, causal=True, window=100).astype(jnp.float32).sum()

        return jax.grad(loss, (0, 1, 2))(query, key, value)

    with jax.set_mesh(mesh):
        text = jax.jit(grads, out_shardings=sharding).lower(query, key, key).compile().as_text()
    assert set(re.findall(r"__cudnn\$\w+", text)) == {"__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward"}
    assert '"sliding_window_length":100' in text.replace(" ", "")
    assert not re.findall(r" (?:all-gather|all-to-all|all-reduce)", text)
    assert jax_kernels.cudnn.check_compute_capability.__module__ == jax_kernels.cudnn.__name__


@pytest.mark.compiles
def test_on_tpus_that_are_not_here_it_is_the_pallas_kernel_where_the_split_is_told_and_its_work_is_counted():
    mesh, split = outlay.mesh(data=4, model=2, target="tpu-v5e:2x4"), P("data", None, "model")
    query, key = (
        jax.ShapeDtypeStruct((4, 256, n, 64), jnp.bfloat16, sharding=NamedSharding(mesh, split)) for n in (4, 2)
    )

    def grads(query, key, value):
        def loss(*xs):
            return outlay.attention(*xs, causal=True, split=split).astype(jnp.float32).sum()

        return jax.grad(loss, (0, 1, 2))(query, key, value)

    with jax.set_mesh(mesh):
        text = jax.jit(grads).lower(query, key, key).compile().as_text()
        assert "split= does not say how" in refusal(mesh.devices.flat[0], query, key).why
        assert "splits the sequence" in refusal(mesh.devices.flat[0], query, key, split=P(None, "data")).why
        odd = jax.ShapeDtypeStruct((4, 200, 4, 64), jnp.bfloat16)
        half = jax.ShapeDtypeStruct(query.shape, jnp.float16)
        assert "bfloat16 or float32, not float16" in refusal(mesh.devices.flat[0], half, half, split=split).why
        assert "lengths divisible by 128" in refusal(mesh.devices.flat[0], odd, odd, split=split).why
    assert set(re.findall(r"%(splash_\w+?)(?:\.\d+)? = ", text)) == {
        "splash_mha_fwd_residuals",
        "splash_mha_dkv_no_residuals",
    }
    assert not re.findall(r" (?:all-gather|all-to-all|all-reduce)", text)
    seen = Mask(causal=True).num_seen(256, 256)
    assert compiled_work(parse_hlo(text)).flops_by_dtype == {"bfloat16": 2 * (2 + 5) * 4 * 4 * seen * 64 / 8}


@pytest.mark.some_cases(1)
@pytest.mark.compiles
@pytest.mark.parametrize("heads", [(4, 2), (3, 1)])
def test_on_tpus_that_are_not_here_the_layout_splits_it_where_nobody_says_how(heads):
    """One fused kernel for queries, keys and values under FSDP and tensor parallelism: heads go over the other axis."""
    num, num_kv = heads

    def step(state, x):
        def loss(state):
            query, key, value = jnp.split(x @ state["qkv"], [num * 64, (num + num_kv) * 64], axis=-1)
            cut = [one.reshape(*x.shape[:2], -1, 64) for one in (query, key, value)]
            return outlay.attention(*cut, causal=True).astype(jnp.float32).sum()

        return jax.tree.map(jnp.subtract, state, jax.grad(loss)(state)), {}

    layout = outlay.Layout([("qkv", P("data", "model"))]) + outlay.data_parallel()
    mesh = outlay.mesh(data=4, model=2, target="tpu-v5e:2x4")
    init = functools.partial(jnp.ones, (64, (num + 2 * num_kv) * 64), jnp.bfloat16)
    batch = jax.ShapeDtypeStruct((8, 128, 64), jnp.bfloat16)
    divides = num_kv % 2 == 0
    with contextlib.nullcontext() if divides else pytest.warns(UserWarning, match="cannot partition the Pallas kernel"):
        program = outlay.program(step, lambda key: {"qkv": init()}, batch, layout=layout, mesh=mesh)
        text = program.compiled.as_text()
    assert set(re.findall(r"%splash_mha_fwd\w* = \(?bf16\[([\d,]+)\]", text)) <= {"2,2,128,64"}
    assert ("splash_mha" in text) == divides
    assert jax_kernels.sample_axes() is None


def test_there_is_no_warning_where_a_rule_gives_the_kernel_what_it_needs():
    """Three heads do not divide over the axis `model`, which a first trace without the rules would split them over."""

    def step(state, x):
        def loss(state):
            heads = outlay.constrain((x @ state["query"]).reshape(*x.shape[:2], 3, 64), "queries", optional=True)
            split = ruled_spec("queries")
            return outlay.attention(heads, heads, heads, causal=True, split=split).astype(jnp.float32).sum()

        return jax.tree.map(jnp.subtract, state, jax.grad(loss)(state)), {}

    mesh = outlay.mesh(data=4, model=2, target="tpu-v5e:2x4")
    init, batch = (
        lambda key: {"query": jnp.ones((64, 192), jnp.bfloat16)},
        jax.ShapeDtypeStruct((8, 128, 64), jnp.bfloat16),
    )
    layout = outlay.Layout([("query", P("data")), ("queries", P("data"))]) + outlay.data_parallel()
    program = outlay.program(step, init, batch, layout=layout, mesh=mesh)
    assert "no_kernel" not in program.lowered.as_text(debug_info=True)
    without = outlay.Layout([("query", P("data"))]) + outlay.data_parallel()
    with pytest.warns(UserWarning, match="cannot partition the Pallas kernel"):
        assert "no_kernel" in outlay.program(step, init, batch, layout=without, mesh=mesh).lowered.as_text(
            debug_info=True
        )


def test_the_pallas_kernel_writes_a_gradient_of_queries_for_every_2048_keys():
    heads = jax.ShapeDtypeStruct((8, 8192, 2, 64), jnp.bfloat16)
    loss = functools.partial(outlay.attention, causal=True, split=P("data"))
    with jax.set_mesh(outlay.mesh(data=8, target="tpu-v5e:2x4")):
        text = str(jax.make_jaxpr(jax.grad(lambda *heads: loss(*heads).sum()))(heads, heads, heads))
    assert set(re.findall(r"bf16\[1,(\d+),2,8192,64\]", text)) == {"4"}


@pytest.mark.compiles
def test_the_pallas_kernel_keeps_segments_apart():
    given, mask, segments = inputs(128, heads=(2, 1)), Mask(causal=True, window=50), segments_of(128)

    def kernel(*given):
        query, key, value = (jnp.swapaxes(x, 1, 2) for x in given)
        own = functools.partial(jax_kernels.splash_attention, causal=True, window=50, interpret=True)
        return jnp.swapaxes(own(0.3 * query, key, value, segments[0]), 1, 2)

    actual = with_gradients(kernel, *given)
    for own, other in zip(actual, with_gradients(lambda *x: plain(*x, segments, mask, 0.3), *given), strict=True):
        np.testing.assert_allclose(own, other, atol=2e-5)


@pytest.mark.compiles
def test_on_tpus_that_are_not_here_segments_go_with_the_batch_to_the_pallas_kernel():
    mesh, split = outlay.mesh(data=4, model=2, target="tpu-v5e:2x4"), P("data", None, "model")
    heads = jax.ShapeDtypeStruct((4, 256, 4, 64), jnp.bfloat16, sharding=NamedSharding(mesh, split))
    segments = jax.ShapeDtypeStruct((4, 256), jnp.int32, sharding=NamedSharding(mesh, P("data")))

    def grads(query, key, value, segments):
        def loss(*heads):
            mixed = outlay.attention(*heads, causal=True, window=64, segment_ids=segments, split=split)
            return mixed.astype(jnp.float32).sum()

        return jax.grad(loss, (0, 1, 2))(query, key, value)

    with jax.set_mesh(mesh):
        text = jax.jit(grads).lower(heads, heads, heads, segments).compile().as_text()
    assert "splash_mha_fwd" in text
    assert "splash_mha_dkv" in text
    assert not re.findall(r" (?:all-gather|all-to-all|all-reduce)", text)


def test_why_there_is_no_kernel():
    h100, a100, cpu = (
        outlay.mesh(data=8, target=target).devices.flat[0] for target in ("h100:1x8", "a100-80gb:1x8", "cpu:8")
    )

    def reason(device, dim, dtype=jnp.bfloat16, length=8, **more):
        query = jax.ShapeDtypeStruct((1, length, 2, dim), dtype)
        refused = refusal(device, query, query, **more)
        return refused and refused.why

    assert reason(h100, 256) is None
    assert reason(h100, 96, jnp.float16) is None
    assert reason(a100, 128) is None
    assert reason(cpu, 64) == "there is none for cpu"
    assert "at most 128 on this GPU, not 256" in reason(a100, 256)
    assert "not float32" in reason(h100, 64, jnp.float32)
    assert "of even length, not 255, 255" in reason(h100, 64, length=255)
    assert "not support segment_ids" in reason(h100, 64, segment_ids=jnp.zeros((1, 8)))


def test_a_refusal_is_read_back_from_the_scope_that_tells_it():
    (device,) = {outlay.mesh(data=8, target="a100-80gb:1x8").devices.flat[0]}
    query = jax.ShapeDtypeStruct((1, 8, 2, 256), jnp.bfloat16)
    refused = refusal(device, query, query)
    op_name = f"jit(step)/transpose(jvp(attention/{refused.scope}))/while/body/mul"
    assert type(refused).of_scope(op_name) == refused
    assert refused.fix == "use more heads with at most 128 features each"
    assert type(refused).of_scope("jit(step)/no_kernel.other.7/mul") is None


def test_features_of_zeros_change_nothing():
    query, key, value = (x[..., :5] for x in inputs(12))
    filled = [_filled_up(x) for x in (query, key, value)]
    assert {x.shape[-1] for x in filled} == {8}
    expected = blockwise(query, key, value, None, CAUSAL, 0.4)
    actual = blockwise(*filled, None, CAUSAL, 0.4)
    np.testing.assert_allclose(actual[..., :5], expected, atol=2e-6)
    assert not np.asarray(actual[..., 5:]).any()


@pytest.mark.some_cases(2)
@pytest.mark.parametrize("target", ["a100-80gb:1x8", "h100:1x8", "b200:1x8", "b300:1x8", "gb300:1x8"])
def test_each_gpu_of_the_last_years_has_its_kernel(target):
    """Which cuDNN it is taken to have decides that, and JAX asks while it traces."""
    query = jax.ShapeDtypeStruct((8, 16, 2, 64), jnp.bfloat16)
    with jax.set_mesh(outlay.mesh(data=8, target=target)), warnings.catch_warnings():
        warnings.simplefilter("error")
        grad = jax.grad(lambda x: outlay.attention(x, x, x, causal=True).astype(jnp.float32).sum())
        assert "dot_product_attention" in str(jax.make_jaxpr(grad)(query))


def test_a_warning_says_why_a_gpu_gets_no_kernel():
    query = jax.ShapeDtypeStruct((8, 16, 2, 64), jnp.float32)
    with (
        jax.set_mesh(outlay.mesh(data=8, target="h100:1x8")),
        pytest.warns(UserWarning, match=r"block by block on NVIDIA H100.*: the cuDNN kernel needs bfloat16 or float16"),
    ):
        jax.eval_shape(lambda x: outlay.attention(x, x, x), query)


def test_all_mismatched_arguments_are_named():
    query, key, value = inputs(8, heads=(6, 4))
    with pytest.raises(ProgramError, match=r"attention does not accept query \(2, 8, 6, 8\)") as error:
        outlay.attention(query, key.astype(jnp.bfloat16), value[..., :4], window=0, segment_ids=jnp.zeros((2, 7), int))
    assert [line.strip().partition(":")[0] for line in str(error.value).splitlines()[1:]] == [
        "value must have the shape of key",
        "6 query heads cannot share 4 key heads evenly",
        "query is float32, key bfloat16 and value float32",
        "window=0 must be at least 1 and requires causal=True",
        "segment_ids must be (batch, sequence) like the query, (2, 8), not (2, 7)",
    ]
    with pytest.raises(ProgramError, match="4 dims each"):
        outlay.attention(query[0], key, value)
    with pytest.raises(ProgramError, match="of the same length"):
        outlay.attention(query, key[:, :6, :3], value[:, :6, :3], causal=True)
