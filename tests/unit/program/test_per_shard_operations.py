"""Operations that XLA does not split run on each device's own samples, with the numbers of one device."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P
from tests.unit.devices.compilers import needs_gpu_compiler

import outlay
from outlay.core.primitives import NOT_SPLIT
from outlay.program import independent_dims

SAMPLES = np.random.default_rng(0).normal(size=(16, 8, 8)).astype(np.float32)


def definite(x):
    return x @ jnp.swapaxes(x, -1, -2) + 4 * jnp.eye(x.shape[-1])


def one_of(x):
    """The operations of one sample, (8, 8)."""
    return {
        "fft": jnp.abs(jnp.fft.fft(x)),
        "rfft2": jnp.abs(jnp.fft.rfft2(x)),
        "irfft": jnp.fft.irfft(jnp.fft.rfft(x, axis=0), axis=0),
        "cholesky": jnp.linalg.cholesky(definite(x)),
        "eigh": jnp.linalg.eigvalsh(definite(x)),
        "lu": jnp.linalg.slogdet(definite(x))[1],
        "solve": jnp.linalg.solve(definite(x), x),
        "triangular": jax.scipy.linalg.solve_triangular(jnp.linalg.cholesky(definite(x)), x, lower=True),
        "qr": jnp.abs(jnp.linalg.qr(definite(x))[1]),
        "svd": jnp.linalg.svd(x, compute_uv=False),
        "top_k": jax.lax.top_k(x, 3)[0],
        "sort": jnp.sort(x, -1),
    }


def spectral(x):
    return jnp.fft.irfft(jnp.fft.rfft(jnp.tanh(x)) * 0.5, n=8)


def in_loops(x):
    """A spectral layer inside of every transformation that holds a program."""
    x, stacked = jax.lax.scan(lambda carried, _: (spectral(carried), jnp.abs(jnp.fft.fft(carried))), x, None, length=2)
    x = jax.lax.fori_loop(0, 2, lambda _, carried: spectral(carried), x)
    x = jax.lax.while_loop(lambda pair: pair[0] < 2, lambda pair: (pair[0] + 1, spectral(pair[1])), (0, x))[1]
    x = jax.lax.cond(x.sum() > 0, spectral, lambda x: -spectral(x), x)
    x = jax.jit(jax.checkpoint(spectral))(x)
    return {"stacked": stacked, "x": x, "gradient": jax.grad(lambda x: jax.checkpoint(spectral)(x).sum())(x)}


def program_of(step, inputs=SAMPLES, layout=None, init=lambda key: jnp.zeros(()), mesh="data=8"):
    layout = outlay.data_parallel() + outlay.Layout([("**", outlay.replicate())]) if layout is None else layout
    return outlay.program(step, init, inputs, layout=layout, mesh=mesh)


def collectives(program):
    kinds = re.findall(r" (all-gather|all-to-all|collective-permute)(?:-start)?\(", program.compiled.as_text())
    return sorted(set(kinds))


def check_equal(step, program, batch=SAMPLES):
    start = jax.tree.map(np.asarray, program.init(jax.random.key(0)))  # on the host: plain JAX runs it on one device
    expected = jax.jit(step)(start, batch)
    result = program(program.init(jax.random.key(0)), batch)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4), result, expected)


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("axes", [{"data": 8}, {"data": 4, "more": 2}])
def test_independent_operations_move_no_sample(axes):
    def step(state, batch):
        return state, {
            "vmap": jax.vmap(one_of)(batch),
            "loops": in_loops(batch),
            "batched": jnp.fft.fftn(batch, axes=(1, 2)).real,
        }

    layout = outlay.Layout([("batch", P(tuple(axes))), ("**", outlay.replicate())])
    program = program_of(step, layout=layout, mesh=outlay.mesh(**axes))
    assert collectives(program) == []
    check_equal(step, program)


def spectral_training(mode="auto", layout=None, accumulate=1):
    def loss(params, batch, keys):
        def one(x):
            low = jnp.einsum("iM,ioM->oM", jnp.fft.rfft(params["lift"] @ x)[:, :8], params["re"] + 1j * params["im"])
            high = jnp.zeros((16, 17), jnp.complex64).at[:, :8].set(low)
            return params["out"] @ jax.nn.relu(jnp.fft.irfft(high, n=32))

        return jnp.mean((jax.vmap(one)(batch["x"]) - batch["y"]) ** 2, axis=(1, 2)), {}

    def init(key):
        shapes = {"lift": (16, 2), "re": (16, 16, 8), "im": (16, 16, 8), "out": (1, 16)}
        keys = jax.random.split(key, 4)
        return {name: jax.random.normal(one, shape) for one, (name, shape) in zip(keys, shapes.items(), strict=True)}

    optimizer = optax.sgd(0.01)
    rng = np.random.default_rng(1)
    batch = {"x": rng.normal(size=(16, 2, 32)).astype(np.float32), "y": np.ones((16, 1, 32), np.float32)}
    program = outlay.program(
        outlay.train_step(loss, optimizer, accumulate=accumulate),
        outlay.init_state(init, optimizer),
        batch,
        layout=outlay.data_parallel() if layout is None else layout,
        mesh=outlay.mesh(data=8),
        mode=mode,
    )
    return program, batch


@pytest.mark.thorough  # on explicit axes it gathers nothing below
def test_a_spectral_layer_moves_the_bytes_of_mode_manual():
    (auto, batch), (manual, _) = spectral_training(), spectral_training("manual")
    assert collectives(auto) == []
    moved = [sum(one.bytes_per_step for one in outlay.explain(program).collectives) for program in (auto, manual)]
    assert moved[0] == pytest.approx(moved[1], rel=0.01)
    ends = [program(program.init(jax.random.key(0)), batch)[0].params for program in (auto, manual)]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), *ends)


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("accumulate", [1, 2])
def test_ffts_run_in_simulation_where_weights_are_split(accumulate):
    layout = outlay.fsdp(min_size=64) + outlay.data_parallel()
    program, batch = spectral_training(layout=layout, accumulate=accumulate)
    assert outlay.verify(program, batches=[batch], steps=1).ok


def smoothed(x):
    squares = jnp.add.outer(jnp.fft.fftfreq(x.shape[0]) ** 2, jnp.fft.rfftfreq(x.shape[1]) ** 2)
    return jnp.fft.irfft2(jnp.fft.rfft2(x) * jnp.exp(-squares), s=x.shape)


def test_ffts_along_split_dims_run_in_init_and_step():
    def init(key):
        noise = jax.random.normal(key, (16, 16))
        return {"u": smoothed(smoothed(noise).T), "ensemble": jnp.fft.fft(jax.random.normal(key, (8, 4, 4))).real}

    def step(state, batch):
        return {"u": smoothed(state["u"].T), "ensemble": jnp.fft.fft(state["ensemble"]).real}, {}

    layout = outlay.Layout([("u", P("data", "more")), ("ensemble", P(("data", "more")))])
    program = program_of(step, None, layout, init, mesh=outlay.mesh(data=4, more=2))
    start = jax.jit(init)(jax.random.key(0))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), program.init(jax.random.key(0)), start)
    check_equal(step, program, None)
    text = program.compiled.as_text()
    assert re.search(r"c64\[1,4,4\]\S* fft\(", text)  # each device's own member of the ensemble
    assert not re.search(r"c64\[8,4,4\]\S* fft\(", text)


CUMULATIVE = {
    "sum": jax.lax.cumsum,
    "product": jax.lax.cumprod,
    "max": jax.lax.cummax,
    "min": jax.lax.cummin,
    "logsumexp": jax.lax.cumlogsumexp,
}


def test_all_cumulative_operations_along_a_split_dim_are_right_together():
    def step(state, batch):
        ways = {name: one(batch, axis=1) for name, one in CUMULATIVE.items()}
        ways["reverse"] = jax.lax.cumsum(batch, axis=1, reverse=True)
        return state, {
            **ways,
            "inside": jax.lax.scan(lambda x, _: (jax.lax.cummax(x, axis=1), None), -batch, None, 1)[0],
        }

    layout = outlay.Layout([("batch", P(None, "data")), ("**", outlay.replicate())])
    batch = np.random.default_rng(0).uniform(0.5, 1.5, size=(4, 64)).astype(np.float32)
    program = program_of(step, batch, layout)
    check_equal(step, program, batch)
    assert outlay.verify(program, batches=[batch], steps=1).ok


def test_a_step_without_such_operations_is_left_alone():
    def step(state, batch):
        return state, {"sum": jnp.cumsum(batch, axis=1), "sort": jnp.sort(batch), "mean": (batch @ batch).mean()}

    program = program_of(step)
    assert program.per_shard(step) is step
    alone = outlay.mesh(data=1, devices=jax.devices()[:1])
    assert program_of(lambda state, batch: (state, jnp.fft.fft(batch)), mesh=alone).per_shard(step) is step
    spectral_step = program_of(lambda state, batch: (state, jnp.fft.fft(batch)))
    assert spectral_step.per_shard(step) is not step


def waves(x):
    """XLA's CPU runtime refuses what its compiler makes of this where a later dim is split."""
    return jnp.fft.ifftn(jnp.fft.fftn(x) * 2).real


@pytest.mark.parametrize("spec", [P("data", "more"), P(None, "data")])
def test_what_the_cpu_refuses_of_plain_jax_runs(spec):
    layout = outlay.Layout([("**", spec)])
    init, step = lambda key: waves(jax.random.normal(key, (16, 16))), lambda state, batch: (waves(state), {})
    program = program_of(step, None, layout, init, mesh=outlay.mesh(data=4, more=2))
    check_equal(step, program, None)
    split = jax.NamedSharding(program.mesh, spec)
    refused = jax.jit(waves, out_shardings=split)(jax.device_put(jnp.ones((16, 16)), split)) + 1
    with pytest.raises(outlay.errors.ProgramError, match="the function that made it failed, not this step") as error:
        program_of(step, None, layout, init, mesh=program.mesh)(refused + 1, None)
    assert str(error.value).count("Error dispatching computation") <= 1


def along(state, batch):
    return state, {"out": jnp.fft.fft(batch, axis=1)}


@pytest.mark.parametrize("spec", [P(None, "data"), P("data", "more"), P(None, ("data", "more"))])
def test_an_fft_along_a_split_dim_does_not_end_the_compiler_for_gpus(spec):
    """XLA of JAX 0.10.2 ends the process where the length is no multiple of the devices' square."""
    layout = outlay.Layout([("batch", spec), ("**", outlay.replicate())])
    mesh = outlay.mesh(data=4, more=2, target="h100:1x8")
    program = outlay.program(
        along, lambda key: jnp.zeros(()), jnp.ones((8, 24), jnp.complex64), layout=layout, mesh=mesh
    )
    assert program.compiled.as_text()


def attending(params, batch, keys):
    def layer(x, kernels):
        heads = [jnp.einsum("btw,whd->bthd", x, kernels[name]) for name in "qkv"]
        return x + jnp.einsum("bthd,whd->btw", outlay.attention(*heads, causal=True), kernels["o"]), None

    return (jax.lax.scan(layer, batch, params["layers"])[0].astype(jnp.float32) ** 2).mean((1, 2)), {}


KERNELS = {name: jax.ShapeDtypeStruct((4, 32, 4, 8), jnp.bfloat16) for name in "qkvo"}
HEADS = outlay.Layout([("params.layers.**", P(None, None, "model"))])
STAGES = outlay.Layout([("params.layers.**", outlay.layout.pipeline("stage", microbatches=2))])


@needs_gpu_compiler
@pytest.mark.parametrize(
    ("layout", "sizes", "accumulate", "samples", "heads"),
    [
        pytest.param(HEADS, {"data": 4, "model": 2}, 2, 2, 2, id="gradients summed once, over another axis than heads"),
        # those below gather parameters besides
        pytest.param(
            *(STAGES, {"stage": 2, "data": 4}, 1, 2, 4),
            id="stages, gradients summed once",
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            STAGES + outlay.fsdp("data", min_size=1), {"stage": 2, "data": 4}, 1, 2, 4, id="stages, parameters gathered"
        ),
    ],
)
def test_attention_of_a_gpu_has_a_devices_own_samples_and_heads(layout, sizes, accumulate, samples, heads):
    """Also in a region over some axes, where cuDNN's kernel is refused, and where stages and samples are one dim."""

    def init_params(key):
        return {"layers": jax.tree.map(lambda kernel: jnp.zeros(kernel.shape, kernel.dtype), KERNELS)}

    program = outlay.program(
        outlay.train_step(attending, optax.sgd(0.1), accumulate=accumulate),
        outlay.init_state(init_params, optax.sgd(0.1)),
        jax.ShapeDtypeStruct((16, 64, 32), jnp.bfloat16),
        layout=layout + outlay.data_parallel(),
        mesh=outlay.mesh(**sizes, target="h100:1x8"),
    )
    text = program.compiled.as_text()
    kernels = re.findall(r"= \(bf16\[(\d+),(\d+),64,8\].*__cudnn", text)
    assert set(kernels) == {(str(samples), str(heads))}
    gathered = re.findall(r"= .*?bf16\[([\d,]+)\].* all-gather(?:-start)?\(", text)
    # What enters the layers of a pipeline is gathered over the stages; queries, keys and values of heads never are.
    assert not [shape for shape in gathered if {"64", "8"} <= {*shape.split(",")}]


def test_an_fft_along_a_split_dim_runs_with_that_dim_whole_on_explicit_axes():
    """Before JAX 0.12, XLA would end the process at the lengths that the square of 8 does not divide."""
    mesh = outlay.mesh(data=8, explicit=True)
    layout = outlay.Layout([("batch", P(None, "data")), ("**", outlay.replicate())])
    for length in (64, 16):
        batch = jnp.arange(4 * length, dtype=jnp.complex64).reshape(4, length)
        program = outlay.program(along, lambda key: jnp.zeros(()), batch, layout=layout, mesh=mesh)
        out = program(program.init(jax.random.key(0)), batch)[1]["out"]
        np.testing.assert_allclose(out, np.fft.fft(batch, axis=1), rtol=1e-4, atol=1e-2)
        assert out.sharding.spec == P(None, "data")


@pytest.mark.thorough  # FFTs are above
def test_a_spectral_layer_on_explicit_axes_gathers_nothing_of_its_batch():
    def loss(params, x, keys):
        def layer(x, scale):
            return jnp.fft.irfft(jnp.fft.rfft(x) * scale[None], n=32), None

        y, _ = jax.lax.scan(jax.checkpoint(layer), x, params)
        return (y**2).mean(1), {}

    x = np.random.default_rng(0).normal(size=(16, 32)).astype(np.float32)
    losses = {}
    for explicit in (False, True):
        step, init = (
            outlay.train_step(loss, optax.sgd(0.1)),
            outlay.init_state(lambda _: jnp.ones((2, 17)), optax.sgd(0.1)),
        )
        layout = outlay.Layout([("**", outlay.replicate())]) + outlay.data_parallel()
        program = outlay.program(step, init, x, layout=layout, mesh=outlay.mesh(data=8, explicit=explicit))
        assert "all-gather" not in program.compiled.as_text()
        state, first = program(program.init(jax.random.key(0)), x)
        losses[explicit] = first["loss"], program(state, x)[1]["loss"]
    np.testing.assert_allclose(losses[True], losses[False], rtol=1e-5)


def test_the_table_of_primitives_and_what_is_known_of_their_dims_name_the_same_operations():
    of_dims = {independent_dims.FFT, *independent_dims._LAST_DIMS, *independent_dims._SELECTIONS}
    of_attention = {independent_dims._ATTENTION_FORWARD, independent_dims._ATTENTION_BACKWARD}
    assert of_dims | of_attention == NOT_SPLIT
