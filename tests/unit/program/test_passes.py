"""What changes a step before it is compiled, alone and together, changes no number of plain JAX."""

import functools
import itertools
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

import outlay
from outlay.program.passes import PASSES

pytestmark = [pytest.mark.newest, pytest.mark.compiles]

BATCH = np.random.default_rng(0).normal(size=(32, 8)).astype(np.float32)
OPTIMIZER = optax.adam(0.1)


def init(key):  # which `init_state` splits, so it is not read
    return {"w": jnp.sin(jnp.arange(64.0)).reshape(8, 8), "out": jnp.ones(8)}


def features(x, w):
    return jnp.tanh(x @ w)


def loss_with(fft):
    """A loss whose values can be placed and stored; with an FFT, if asked for, which XLA does not split."""

    def loss(params, batch, keys):
        if fft:
            batch = jnp.fft.rfft(batch, n=14).real
        hidden = outlay.constrain(features(batch, params["w"]), "hidden", optional=True)
        inner = outlay.name(jnp.sin(hidden), "inner")
        return (inner @ params["out"]) ** 2, {}

    return loss


# What wants each pass: rules, or what the step is made with.
IN_AUTO = {
    "by_source": [("@features", P("data"))],
    "constraints": [("hidden", P("data"))],
    "rematerialization": [("inner", outlay.layout.recompute())],
    "summed_once": {"accumulate": 2},
    "host_state": [("opt_state.**", outlay.layout.on_host())],
    "per_shard_operations": {"fft": True},
}
# Those that mode manual has; its gradients, or the whole step, are a pass themselves.
IN_MANUAL = ("constraints", "rematerialization", "host_state")
IMPLIED = {"by_source": {"constraints"}, "rematerialization": {"constraints"}}


def program(asked, mode):
    rules = [rule for name in asked if isinstance(IN_AUTO[name], list) for rule in IN_AUTO[name]]
    options = {key: value for name in asked if isinstance(IN_AUTO[name], dict) for key, value in IN_AUTO[name].items()}
    loss = loss_with(options.pop("fft", False))
    return outlay.program(
        outlay.train_step(loss, OPTIMIZER, **options),
        outlay.init_state(init, OPTIMIZER),
        BATCH,
        layout=outlay.Layout(rules) + outlay.fsdp(min_size=8) + outlay.data_parallel(),
        mesh="data=8",
        mode=mode,
    )


def quarter(names):
    """Return a quarter of all subsets: every three passes meet in each way, present and absent."""
    for given in itertools.product([False, True], repeat=len(names) - 2):
        derived = (given[0] ^ given[1] ^ given[2], given[1] ^ given[2] ^ given[3])
        yield tuple(name for name, is_there in zip(names, (*given, *derived), strict=True) if is_there)


def subsets(names):
    return [subset for size in range(len(names) + 1) for subset in itertools.combinations(names, size)]


def in_pairs(names):
    """Return six subsets in which every two of up to ten passes meet in each way, present and absent; one has all."""
    two_of_five = itertools.combinations(range(5), 2)  # two such pairs differ, and leave one of the five to neither
    rows_of = dict(zip(names, two_of_five, strict=False))
    return [tuple(names), *(tuple(name for name in names if row in rows_of[name]) for row in range(5))]


IN_PAIRS = {
    *(("auto", asked) for asked in in_pairs(list(IN_AUTO))),
    *(("manual", asked) for asked in subsets(IN_MANUAL) if len(asked) % 2),
}
IN_THREES = {
    *(("auto", asked) for asked in quarter(list(IN_AUTO))),
    *(("manual", asked) for asked in subsets(IN_MANUAL)),
}


def cases():
    """Every two passes meet in `make test`, and all of them; every three in the thorough run."""
    for mode, asked in sorted(IN_PAIRS | IN_THREES):
        is_all = asked in (tuple(IN_AUTO), IN_MANUAL)
        marks = [pytest.mark.thorough] * ((mode, asked) not in IN_PAIRS) + [pytest.mark.any_jax] * (not is_all)
        yield pytest.param(mode, asked, id=f"{mode}-{'+'.join(asked) or 'none'}", marks=marks)


@functools.cache
def plain_jax(fft):
    """Two steps of one device, the same for all subsets."""
    loss = loss_with(fft)
    params = jax.jit(init)(jax.random.key(0))
    opt_state, losses = OPTIMIZER.init(params), []
    for _ in range(2):
        value, grads = jax.jit(jax.value_and_grad(lambda p: loss(p, BATCH, None)[0].mean()))(params)
        updates, opt_state = OPTIMIZER.update(grads, opt_state)
        params, losses = optax.apply_updates(params, updates), [*losses, value]
    return params, losses


@pytest.mark.parametrize(("mode", "asked"), [*cases()])
def test_each_subset_of_passes_computes_what_plain_jax_does(mode, asked):
    built = program(asked, mode)
    here = {name.partition(":")[0] for name in built.passes}
    of_mode = {"manual_gradients"} if mode == "manual" else set()
    assert here == {*asked, *of_mode}.union(*(IMPLIED.get(name, set()) for name in asked))
    state = built.init(jax.random.key(0))
    params, losses = plain_jax("per_shard_operations" in asked)
    for expected in losses:
        state, outputs = built(state, BATCH)
        np.testing.assert_allclose(outputs["loss"], expected, rtol=1e-5)
    for name, leaf in params.items():
        np.testing.assert_allclose(state.params[name], leaf, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("asked", subsets(["host_state"]), ids=["none", "host_state"])
def test_a_whole_step_on_shards_takes_passes_too(asked):
    def step(state, batch):
        mean = jax.lax.pmean(batch.mean(), "data")
        return {"w": state["w"] + mean}, {"mean": mean}

    rules = [("w", outlay.layout.on_host())] if asked else []
    built = outlay.program(
        step, lambda: {"w": jnp.zeros(4)}, BATCH, mode="manual", mesh="data=8",
        layout=outlay.Layout([*rules, ("w", outlay.replicate())]) + outlay.data_parallel(),
    )  # fmt: skip
    assert {name.partition(":")[0] for name in built.passes} == {"manual_step", *asked}
    state, _ = built(built.init(None), BATCH)
    np.testing.assert_allclose(state["w"], np.full(4, BATCH.mean()), rtol=1e-5)


def test_every_pass_is_tried():
    # test_per_shard_operations.py, test_pipelines.py, test_experts.py, test_long_sequences.py,
    # test_placed_stages.py and test_fp8_products.py
    elsewhere = {"explicit_transforms", "pipelining", "expert_shards", "split_attention"}
    elsewhere |= {"staged_gradients", "fp8_products"}
    tried = {*IN_AUTO, "manual_gradients", "manual_step", *elsewhere}
    assert {one.name.partition(":")[0] for one in PASSES} == tried


@pytest.mark.any_jax
@pytest.mark.processes
def test_a_plain_program_imports_no_pass():
    program = """
import sys, numpy as np, outlay
outlay.simulate(2)
step = lambda state, batch: (state + batch.mean(), {})
made = outlay.program(step, lambda: 0.0, np.ones(8), layout=outlay.data_parallel(), mesh="data=2")
made(made.init(None), np.ones(8))
assert made.passes == ()
print(*sorted(name for name in sys.modules if name.startswith("outlay.program.")))
"""
    run = [sys.executable, "-c", program]
    done = subprocess.run(run, capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert "outlay.program.passes" in loaded
    assert loaded.isdisjoint(f"outlay.program.{one.name.partition(':')[0]}" for one in PASSES)
