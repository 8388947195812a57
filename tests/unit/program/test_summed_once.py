"""In mode auto, gradients of microbatches are summed over devices once a step, with the numbers of one device."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

import outlay

pytestmark = pytest.mark.newest

OPTIMIZER = optax.sgd(0.1, momentum=0.9)
RNG = np.random.default_rng(0)
BATCH = {name: RNG.normal(size=(32, size)).astype(np.float32) for name, size in {"x": 16, "y": 8}.items()}
PARAMS = {name: RNG.normal(size=shape).astype(np.float32) for name, shape in {"w": (16, 8), "v": (8, 8)}.items()}
LAYOUTS = {
    "dp": (outlay.data_parallel(), {"data": 8}),
    "zero1": (outlay.zero1(min_size=2) + outlay.data_parallel(), {"data": 8}),
    "zero2": (outlay.zero2(min_size=2) + outlay.data_parallel(), {"data": 8}),
    "dp and tensors": (
        outlay.tensor_parallel(columns=["params.w"], rows=["params.v"]) + outlay.data_parallel(),
        {"data": 4, "model": 2},
    ),
    "hsdp": (outlay.layout.hsdp("inside", "across", min_size=2), {"across": 2, "inside": 4}),
}
ON_NEWEST_JAX = ("zero2",)


def dense(params, batch, keys):
    hidden = jnp.tanh(batch["x"] @ params["w"])
    dropped = hidden * jax.vmap(lambda key: jax.random.bernoulli(key, 0.8, (8,)))(keys)
    return ((dropped @ params["v"] - batch["y"]) ** 2).mean(1), {"largest": jnp.abs(hidden).max(1)}


def narrow(params, batch, keys):
    hidden = jnp.tanh(batch["x"].astype(jnp.bfloat16) @ params["w"].astype(jnp.bfloat16))
    return ((hidden @ params["v"].astype(jnp.bfloat16)).astype(jnp.float32) - batch["y"]).mean(1) ** 2, {}


def counted(params, batch, keys):
    counts = (batch["y"] > 0).sum(1)
    off = ((batch["x"] @ params["w"] @ params["v"] - batch["y"]) ** 2).sum(1) * counts
    return (off.sum(), counts.sum()), {"share": (counts > 4).sum() / counts.sum()}


def made(loss=dense, layout="dp", *, accumulate=4, batch=None, mode="auto", **options):
    rules, axes = LAYOUTS[layout]
    step = outlay.train_step(loss, OPTIMIZER, accumulate=accumulate, **options)
    init = outlay.init_state(
        lambda key: (
            (jax.tree.map(jnp.asarray, PARAMS), {"mean": jnp.zeros(8)})
            if options.get("model_state")
            else jax.tree.map(jnp.asarray, PARAMS)
        ),
        OPTIMIZER,
        model_state=options.get("model_state", False),
    )
    mesh = outlay.mesh(**axes)
    return outlay.program(step, init, batch or BATCH, layout=rules, mesh=mesh, mode=mode), step, init


def why_each_time(program):
    assert program.lowered, "it is known once the program is lowered"
    return program.why_summed_each_time


def in_loops(program):
    """The collectives of the compiled step that stand in a loop, by kind."""
    text = program.compiled.as_text()
    named = re.findall(r" (all-reduce|reduce-scatter|all-gather|all-to-all)\(.*?op_name=\"([^\"]*)\"", text)
    return [kind for kind, name in named if "/while/" in name]


def assert_as_one_device(program, step, init):
    """Two steps: the second starts from what the first left, and has other keys."""
    got, want = program.init(jax.random.key(0)), init(jax.random.key(0))
    for _ in range(2):
        got, metrics = program(got, BATCH)
        want, expected = jax.jit(step)(want, BATCH)
        jax.tree.map(
            assert_close,
            (metrics, got.params, got.opt_state, got.model_state),
            (expected, want.params, want.opt_state, want.model_state),
        )


def assert_close(got, want):
    got, want = np.asarray(got), np.asarray(want)
    assert np.abs(got - want).max() <= 2e-6 * max(1e-3, np.abs(want).max())


@pytest.mark.some_cases(1, newest=1)
@pytest.mark.compiles
@pytest.mark.parametrize(
    "layout", [pytest.param(name, marks=() if name in ON_NEWEST_JAX else pytest.mark.any_jax) for name in LAYOUTS]
)
def test_gradients_are_summed_after_the_loop_and_are_those_of_one_device(layout):
    program, step, init = made(layout=layout)
    assert_as_one_device(program, step, init)
    assert program.why_summed_each_time == ""
    if "model" not in program.mesh.shape and "inside" not in program.mesh.shape:
        assert in_loops(program) == []


@pytest.mark.thorough  # sums of other floats are above
@pytest.mark.any_jax
@pytest.mark.compiles
def test_sums_over_other_axes_may_be_of_narrow_floats():
    """Tensor parallelism sums bfloat16 here; such a sum ended the process where it was asked for by hand."""
    program, step, init = made(narrow, "dp and tensors")
    _, metrics = program(program.init(jax.random.key(0)), BATCH)
    _, expected = jax.jit(step)(init(jax.random.key(0)), BATCH)
    assert program.why_summed_each_time == ""
    assert float(metrics["loss"]) == pytest.approx(float(expected["loss"]), rel=2e-2)


@pytest.mark.some_cases(1)
@pytest.mark.any_jax
@pytest.mark.compiles
@pytest.mark.parametrize("layout", ["dp", pytest.param("dp and tensors", marks=pytest.mark.any_jax)])
def test_a_mean_by_its_count_stays_that_of_the_batch(layout):
    program, step, init = made(counted, layout, reduction="mean")
    assert_as_one_device(program, step, init)
    assert program.why_summed_each_time == ""


def summed(params, batch, keys):
    off = ((batch["x"] @ params["w"] @ params["v"] - batch["y"]) ** 2).mean(1)
    return off.sum(), {"samples": jnp.float32(len(off)), "largest": jnp.abs(off).sum()}


@pytest.mark.thorough  # test_any_loss.py sums in microbatches
@pytest.mark.any_jax
@pytest.mark.compiles
def test_a_sum_over_the_batch_and_metrics_beside_it_stay_what_they_are():
    program, step, init = made(summed, reduction="sum")
    assert_as_one_device(program, step, init)
    assert program.why_summed_each_time == ""


def normalised(params, model_state, batch, keys):
    hidden = batch["x"] @ params["w"]
    mean = hidden.mean(0)
    losses = (((hidden - mean[None]) @ params["v"] - batch["y"]) ** 2).mean(1)
    return losses, {}, {"mean": 0.9 * model_state["mean"] + 0.1 * mean}


@pytest.mark.thorough  # test_any_loss.py has such statistics
@pytest.mark.any_jax
@pytest.mark.compiles
def test_statistics_of_a_batch_stay_those_of_a_microbatch_on_all_devices():
    program, step, init = made(normalised, model_state=True)
    assert_as_one_device(program, step, init)
    assert program.why_summed_each_time == ""


def contrastive(params, batch, keys):
    scores = (batch["x"] @ params["w"]) @ (batch["y"] @ params["v"]).T
    return optax.softmax_cross_entropy_with_integer_labels(scores, jnp.arange(len(scores))), {}


def ranked(params, batch, keys):
    losses = ((batch["x"] @ params["w"] @ params["v"] - batch["y"]) ** 2).mean(1)
    return jnp.sort(losses) * jnp.arange(1, len(losses) + 1), {}


def plain(params, batch, keys):
    return ((batch["x"] @ params["w"] @ params["v"] - batch["y"]) ** 2).mean(1), {}


def constrained(params, batch, keys):
    hidden = jax.lax.with_sharding_constraint(batch["x"] @ params["w"], P("data"))
    return ((hidden @ params["v"] - batch["y"]) ** 2).mean(1), {}


@pytest.mark.some_cases(2, newest=1)
@pytest.mark.compiles
@pytest.mark.parametrize(
    ("loss", "why"),
    [
        (contrastive, "every sample with every other"),
        (ranked, "sort.* takes samples together"),
        (constrained, "cannot run on a device's own samples"),
    ],
)
def test_a_loss_that_cannot_be_taken_apart_keeps_its_meaning_and_says_why(loss, why):
    program, step, init = made(loss)
    # One device has no mesh whose axis a loss could name.
    one_device = made(plain)[1] if loss is constrained else step
    assert_as_one_device(program, one_device, init)
    assert re.search(why, program.why_summed_each_time)


@pytest.mark.any_jax
@pytest.mark.some_cases(1)
@pytest.mark.compiles
@pytest.mark.parametrize("mode", ["auto", "manual"])
def test_gradients_that_a_rule_keeps_whole_are_scattered_once_and_parameters_gathered_once(mode):
    rules = outlay.Layout([("grads.**", outlay.replicate())]) + outlay.fsdp(min_size=2) + outlay.data_parallel()
    step = outlay.train_step(dense, OPTIMIZER, accumulate=4)
    init = outlay.init_state(lambda key: jax.tree.map(jnp.asarray, PARAMS), OPTIMIZER)
    program = outlay.program(step, init, BATCH, layout=rules, mesh=outlay.mesh(data=8), mode=mode)
    assert_as_one_device(program, step, init)
    assert program.plan["params.w"].spec == P("data", None)
    assert program.why_summed_each_time == ""
    assert in_loops(program) == []
    assert program.lowered.as_text().count("stablehlo.reduce_scatter") == 2


@pytest.mark.any_jax
def test_parameters_split_as_the_batch_is_and_batches_that_do_not_divide_say_so():
    program = made()[0].with_layout(outlay.fsdp(min_size=2) + outlay.data_parallel())
    assert "split over data, as the batch is" in why_each_time(program)
    program = made(accumulate=8)[0]
    assert "32/8 samples, which do not divide into 8 microbatches" in why_each_time(program)


@pytest.mark.any_jax
def test_a_kernel_that_is_not_run_once_a_sample_is_not_taken_apart():
    from jax.experimental import pallas

    def scaled(x):
        def kernel(x_ref, o_ref):
            o_ref[...] = x_ref[...] / jnp.max(x_ref[...])

        return pallas.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)(x)

    def loss(params, batch, keys):
        off = ((batch["x"] @ params["w"] @ params["v"] - batch["y"]) ** 2).mean(1)
        return off + jax.lax.stop_gradient(scaled(batch["x"]).sum(1)), {}

    def of_each(params, batch, keys):
        off = ((batch["x"] @ params["w"] @ params["v"] - batch["y"]) ** 2).mean(1)
        return off + jax.lax.stop_gradient(jax.vmap(scaled)(batch["x"]).sum(1)), {}

    together, apart = made(loss, accumulate=2)[0], made(of_each, accumulate=2)[0]
    assert "pallas_call" in why_each_time(together)
    assert why_each_time(apart) == ""


def test_a_batch_split_over_one_axis_of_two_is_not_moved():
    """The axis that splits no sample is XLA's; what the step constrains over it still holds."""

    def loss(params, batch, keys):
        hidden = outlay.constrain(batch["x"] @ params["w"], P("data", "model"))
        return ((hidden @ params["v"] - batch["y"]) ** 2).mean(1), {}

    program = made(loss, "dp and tensors")[0]
    assert why_each_time(program) == ""
