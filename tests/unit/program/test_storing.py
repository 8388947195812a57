"""What is kept, recomputed and sent away: seen in the traced program, in its memory, and in equal numbers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec as P

import outlay
from outlay.errors import LayoutError
from outlay.layout.plan import Plan
from outlay.program.host_state import check_host_memory
from outlay.train.evaluate import evaluate

pytestmark = pytest.mark.newest

WIDTH, NUM_LAYERS = 64, 4
BATCH = np.random.default_rng(0).normal(size=(512, WIDTH)).astype(np.float32)
SPLIT = outlay.fsdp(min_size=8) + outlay.data_parallel()


def layer(x, params, number=""):
    x = outlay.name(x, "layer_input")
    up = outlay.name(x @ params["up"], f"layers.{number}.up" if number else "up")
    return x + jnp.sin(jax.nn.silu(up)) @ params["down"]


def scanned(params, batch, keys):
    x, _ = jax.lax.scan(lambda x, layer_params: (layer(x, layer_params), None), batch, params)
    return (x**2).mean(axis=-1), {}


def checkpointed(params, batch, keys):
    turn = jax.checkpoint(lambda x, layer_params: (layer(x, layer_params), None), prevent_cse=False)
    x, _ = jax.lax.scan(turn, batch, params)
    return (x**2).mean(axis=-1), {}


def unrolled(params, batch, keys):
    x = batch
    for number in range(NUM_LAYERS):
        x = layer(x, jax.tree.map(lambda p, number=number: p[number], params), str(number))
    return (x**2).mean(axis=-1), {}


def init(key):
    up, down = 0.1 * np.random.default_rng(0).normal(size=(2, NUM_LAYERS, WIDTH, WIDTH)).astype(np.float32)
    return {"up": jnp.asarray(up), "down": jnp.asarray(down)}  # drawn by JAX, they took XLA longer than the step


def program_of(*rules, loss=scanned, mode="auto", accumulate=1, mesh=None, batch=BATCH) -> outlay.Program:
    optimizer = optax.adam(1e-3)
    step = outlay.train_step(loss, optimizer, accumulate=accumulate)
    return outlay.program(
        step,
        outlay.init_state(init, optimizer),
        batch,
        layout=outlay.Layout(rules) + SPLIT,
        mesh=mesh or outlay.mesh(data=8),
        mode=mode,
    )


@functools.cache
def temporaries(*rules, **options) -> int:
    """Bytes that a step takes beside its arguments; compiled once for all tests."""
    return program_of(*rules, **options).compiled.memory_analysis().temp_size_in_bytes


def after_two_steps(program):
    state = program.init(jax.random.key(0))
    for _ in range(2):
        state, outputs = program(state, BATCH)
    return state, outputs


@pytest.fixture(scope="module")
def plain():
    return after_two_steps(program_of())


RULES = {
    "keep": [("layer_input", outlay.layout.keep())],
    "recompute": [("up", outlay.layout.recompute())],
    "on_host": [("layer_input", outlay.layout.on_host()), ("opt_state.**", outlay.layout.on_host())],
}


# What is kept and recomputed belongs to the loss, which both modes differentiate; each sees to where a state lives.
@pytest.mark.some_cases(2, newest=1)
@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("keep", "manual"),
        ("recompute", "auto"),
        ("on_host", "auto"),
        pytest.param("on_host", "manual", marks=pytest.mark.any_jax),
    ],
)
def test_the_numbers_are_the_same_and_the_state_stays_where_it_lives(name, mode, plain):
    program = program_of(*RULES[name], mode=mode)
    state, outputs = after_two_steps(program)
    np.testing.assert_allclose(outputs["loss"], plain[1]["loss"], rtol=1e-6)
    np.testing.assert_allclose(state.params["up"], plain[0].params["up"], rtol=1e-5, atol=1e-7)
    on_host = {leaf.path for leaf in program.plan.state if leaf.stored == "host"}
    kinds = {path: x.sharding.memory_kind for path, x in outlay.core.paths.flatten_paths(state)[0]}
    assert {path for path, kind in kinds.items() if kind == "pinned_host"} == on_host


@pytest.mark.some_cases(1)
@pytest.mark.any_jax
@pytest.mark.parametrize(
    ("loss", "mode"),
    [
        (checkpointed, "manual"),
        pytest.param(scanned, "auto", marks=pytest.mark.any_jax),
    ],
)
def test_keeping_one_value_a_layer_takes_less_than_keeping_all_and_more_is_kept_with_more_names(loss, mode):
    one = temporaries(("layer_input", outlay.layout.keep()), loss=loss, mode=mode)
    both = temporaries(("layer_input", outlay.layout.keep()), ("up", outlay.layout.keep()), loss=loss, mode=mode)
    everything = temporaries(loss=scanned, mode=mode)
    a_layer = BATCH[:64].nbytes
    assert one + (NUM_LAYERS - 1) * a_layer <= both <= everything - (NUM_LAYERS - 1) * a_layer


@pytest.mark.thorough
@pytest.mark.any_jax
def test_recomputing_one_value_leaves_the_others_where_they_were():
    saved = temporaries() - temporaries(("up", outlay.layout.recompute()))
    assert saved >= (NUM_LAYERS - 1) * BATCH[:64].nbytes
    assert temporaries(("up", outlay.layout.recompute())) > temporaries(("layer_input", outlay.layout.keep()))


@pytest.mark.any_jax
def test_layers_written_out_one_after_another_are_told_apart_by_their_names():
    program = program_of(("layers.*.up", outlay.layout.recompute()), loss=unrolled)
    assert [leaf.path for leaf in program.plan.of_kind("intermediate")] == [f"layers.{i}.up" for i in range(NUM_LAYERS)]
    assert "stablehlo.optimization_barrier" in program.lowered.as_text()


@pytest.mark.thorough  # the numbers are compared above
@pytest.mark.any_jax
def test_verify_proves_it():
    """In mode manual, which has more of its own; that both modes compute the same is tested above."""
    rules = *RULES["on_host"], ("params.down", outlay.layout.on_host())
    program = program_of(*rules, mode="manual", batch=BATCH[:16])
    outlay.verify(program, steps=1).raise_if_different()


@pytest.mark.any_jax
def test_a_checkpoint_is_restored_to_where_the_state_lives(tmp_path):
    program = program_of(("opt_state.**", outlay.layout.on_host()))
    checkpoints = outlay.Checkpoints(tmp_path)
    checkpoints.save(0, program.init(jax.random.key(0)))
    _, state = checkpoints.restore(program)
    assert {x.sharding.memory_kind for x in jax.tree.leaves(state.opt_state)} == {"pinned_host"}
    assert {x.sharding.memory_kind for x in jax.tree.leaves(state.params)} == {"device"}
    program(state, BATCH)
    _, elsewhere = checkpoints.restore(program_of())
    assert {x.sharding.memory_kind for x in jax.tree.leaves(elsewhere)} == {"device"}


@pytest.mark.thorough  # a step reads them above
@pytest.mark.any_jax
def test_an_evaluation_reads_parameters_from_the_host():
    program = program_of(("params.**", outlay.layout.on_host()))
    metrics = evaluate(program, program.init(jax.random.key(0)), BATCH, loss=scanned)
    assert metrics == evaluate(program_of(), program_of().init(jax.random.key(0)), BATCH, loss=scanned)


@pytest.mark.thorough  # test_passes.py has both
@pytest.mark.any_jax
def test_microbatches_keep_what_they_are_told():
    rules = (("layer_input", outlay.layout.keep()),)
    assert temporaries(*rules, accumulate=2) < temporaries(accumulate=2)


@pytest.mark.any_jax
def test_a_step_that_takes_its_own_gradient_is_ruled_too():
    gradient = jax.value_and_grad(lambda params, x: scanned(params, x, None)[0].mean())  # made before any program

    def step(state, batch):
        loss, grads = gradient(state["params"], batch)
        return {"params": jax.tree.map(lambda p, g: p - 0.1 * g, state["params"], grads)}, loss

    def compiled(*rules):
        layout = outlay.Layout(rules) + SPLIT

        def start(key):
            return {"params": init(key)}

        return outlay.program(step, start, BATCH, layout=layout, mesh=outlay.mesh(data=8)).compiled

    stored, all_kept = compiled(("layer_input", outlay.layout.keep())), compiled()
    assert stored.memory_analysis().temp_size_in_bytes < all_kept.memory_analysis().temp_size_in_bytes


@pytest.mark.thorough  # the step above takes its own gradient
@pytest.mark.any_jax
def test_a_step_that_is_written_for_the_pieces_is_ruled_too():
    def step(state, batch):
        def mean_loss(params):
            return jax.lax.pmean(scanned(params, batch, None)[0].mean(), "data")

        loss, grads = jax.value_and_grad(mean_loss)(state["params"])
        return {"params": jax.tree.map(lambda p, g: p - 0.1 * g, state["params"], grads)}, loss

    def program(*rules):
        layout = outlay.Layout(rules) + outlay.data_parallel()

        def start(key):
            return {"params": init(key)}

        return outlay.program(step, start, BATCH, layout=layout, mesh=outlay.mesh(data=8), mode="manual")

    stored, plain = program(("layer_input", outlay.layout.keep())), program()
    assert stored.plan["layer_input"].stored == "device"
    sizes = [one.compiled.memory_analysis().temp_size_in_bytes for one in (stored, plain)]
    assert sizes[0] < sizes[1]
    losses = [one(one.init(jax.random.key(0)), BATCH)[1] for one in (stored, plain)]
    np.testing.assert_allclose(*losses, rtol=1e-6)
    with pytest.raises(LayoutError, match="did you mean 'layer_input'"):
        program(("layer_inputs", outlay.layout.keep()))


@pytest.mark.any_jax
def test_names_that_no_rule_speaks_of_leave_no_trace():
    assert "remat" not in str(jax.make_jaxpr(program_of().step)(program_of().state_shapes, BATCH))

    def nameless(params, batch, keys):
        return scanned(params, batch, keys)

    assert program_of(loss=nameless).lowered.as_text() == program_of().lowered.as_text()


@pytest.mark.any_jax
def test_a_name_of_ones_own_checkpoint_still_counts():
    def loss(params, batch, keys):
        def turn(x, p):
            x = checkpoint_name(layer(x, p), "theirs")
            return x, None

        policy = jax.checkpoint_policies.save_only_these_names("theirs")
        x, _ = jax.lax.scan(jax.checkpoint(turn, policy=policy, prevent_cse=False), batch, params)
        return (x**2).mean(axis=-1), {}

    assert temporaries(loss=loss) < temporaries(("up", outlay.layout.keep()), loss=loss)


@pytest.mark.any_jax
def test_a_value_that_no_gradient_passes_is_refused():
    def step(state, batch):
        return state, outlay.name(batch, "seen").mean()

    layout = outlay.Layout([("seen", outlay.layout.keep())]) + outlay.replicate() + outlay.data_parallel()
    program = outlay.program(step, lambda key: jnp.ones(4), BATCH, layout=layout, mesh=outlay.mesh(data=8))
    with pytest.raises(outlay.errors.ProgramError, match=r"no gradient: seen\n.*no gradient is taken through it"):
        _ = program.lowered


@pytest.mark.any_jax
def test_devices_that_do_not_reach_the_host_are_refused_with_every_leaf():
    plan = program_of(
        ("opt_state.**", outlay.layout.on_host() + P(None, "data")), ("layer_input", outlay.layout.on_host())
    ).plan
    assert isinstance(plan, Plan)
    with pytest.raises(
        outlay.errors.ProgramError, match=r"(?s)6 values .*layer_input.*reach no pinned_host memory, only hbm"
    ):
        check_host_memory(plan, ["hbm"])
    check_host_memory(plan, ["hbm", "pinned_host"])


@pytest.mark.compiles
def test_a_gpu_program_counts_the_host_apart():
    mesh = outlay.mesh(data=8, target="h100:1x8")
    rules = (("layer_input", outlay.layout.on_host()), ("opt_state.**", outlay.layout.on_host()))
    program = program_of(*rules, mesh=mesh)
    stats = program.compiled.memory_analysis()
    on_host = program.plan.host_bytes_per_device[0]
    assert stats.host_temp_size_in_bytes >= NUM_LAYERS * BATCH[:64].nbytes
    assert stats.host_argument_size_in_bytes == stats.host_alias_size_in_bytes == on_host
