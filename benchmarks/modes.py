"""A training step under DP and FSDP, in both modes: Outlay against the same written by hand in JAX.

Eight simulated devices share this machine, so the times say what Outlay adds, not what eight devices would gain.
"""

import jax
import jax.numpy as jnp
import optax
from _mlp import BATCH, DEPTH, WIDTH, example_batch, init_params, layer, losses, optimizer
from _timing import compare, report
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import outlay

outlay.simulate(8)
mesh = outlay.mesh(data=8)
LAYOUTS = {"DP": outlay.data_parallel(), "FSDP": outlay.fsdp(min_size=16) + outlay.data_parallel()}


def init(key):
    params = init_params(key)
    return params, optimizer.init(params)


def mean_loss(params, batch):
    return jnp.mean(losses(params, batch, None)[0])


def update(state, grads):
    params, opt_state = state
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state


def state_specs(strategy):
    """Return the specs by hand: under FSDP split kernels by rows, and biases, with their moments; not the counter."""
    leaf = {"kernel": P("data", None), "bias": P("data")} if strategy == "FSDP" else {"kernel": P(), "bias": P()}
    params = [leaf] * DEPTH
    return params, (optax.ScaleByAdamState(count=P(), mu=params, nu=params), optax.EmptyState())


def auto_by_hand(state, batch):
    value, grads = jax.value_and_grad(mean_loss)(state[0], batch)
    return update(state, grads), value


def manual_dp_by_hand(state, batch):
    """Compute gradients on each device's samples, and average every one."""
    own = jax.lax.pcast(state[0], "data", to="varying")
    value, grads = jax.value_and_grad(mean_loss)(own, batch)
    return update(state, jax.lax.pmean(grads, "data")), jax.lax.pmean(value, "data")


def manual_fsdp_by_hand(state, batch):
    """Compute on each device's samples and rows: gather a layer at its use; the transpose scatters its gradient."""

    def loss(pieces):
        x = batch["x"]
        for piece in pieces:
            x = layer(jax.tree.map(lambda leaf: jax.lax.all_gather(leaf, "data", tiled=True), piece), x)
        return jnp.mean((x - batch["y"]) ** 2)

    value, sums = jax.value_and_grad(loss)(state[0])
    means = jax.tree.map(lambda leaf: leaf / mesh.size, sums)
    return update(state, means), jax.lax.pmean(value, "data")


def by_hand(strategy, mode):
    specs = state_specs(strategy)
    shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs, is_leaf=lambda x: isinstance(x, P))
    split = NamedSharding(mesh, P("data"))
    step = auto_by_hand
    if mode == "manual":
        local = {"DP": manual_dp_by_hand, "FSDP": manual_fsdp_by_hand}[strategy]
        step = jax.shard_map(local, mesh=mesh, in_specs=(specs, P("data")), out_specs=(specs, P()))
    jitted = jax.jit(step, in_shardings=(shardings, split), out_shardings=(shardings, None), donate_argnums=0)
    return jitted, jax.jit(init, out_shardings=shardings)(jax.random.key(0))


def measure(strategy, mode):
    step, init_state = outlay.train_step(losses, optimizer), outlay.init_state(init_params, optimizer)
    program = outlay.program(step, init_state, batch, layout=LAYOUTS[strategy], mesh=mesh, mode=mode)
    hand, hand_state = by_hand(strategy, mode)
    states = {"outlay": program.init(jax.random.key(0)), "hand": hand_state}

    def call_outlay():
        states["outlay"], metrics = program(states["outlay"], batch)
        jax.block_until_ready((states["outlay"], metrics))
        return metrics["loss"]

    def call_by_hand():
        states["hand"], loss = hand(states["hand"], batch)
        return jax.block_until_ready((states["hand"], loss))[1]

    for _ in range(3):
        call_outlay(), call_by_hand()
    tested, reference, ratio = compare(call_outlay, call_by_hand, rounds=9, calls=1)
    what = f"{strategy} step, mode {mode}, {DEPTH} x {WIDTH} MLP, batch {BATCH}, Adam, 8 simulated devices"
    report(what, tested, reference, ratio, bar=1.03)


batch = jax.device_put(example_batch(), NamedSharding(mesh, P("data")))
for strategy in LAYOUTS:
    for mode in ("auto", "manual"):
        measure(strategy, mode)
