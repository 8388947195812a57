"""Memory against the compiler's own figures and against the plan."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P
from tests.unit.report.explain.programs import WIDTH, explain_on, shape, training

from outlay.layout.layout import Layout
from outlay.layout.strategies import data_parallel
from outlay.meshes.build import mesh
from outlay.report.explain.explain import explain

WEIGHTS = 2 * WIDTH * WIDTH * 4


@pytest.mark.parametrize("layout", [None, data_parallel()])
def test_the_compilers_figures(layout):
    program = training(layout)
    memory = explain(program).memory
    stats = program.compiled.memory_analysis()
    assert memory.arguments == stats.argument_size_in_bytes
    assert memory.outputs == stats.output_size_in_bytes
    assert memory.donated == stats.alias_size_in_bytes
    assert memory.temporaries == stats.temp_size_in_bytes
    assert memory.peak == memory.arguments + memory.outputs - memory.donated + memory.temporaries


@pytest.mark.parametrize(("layout", "share"), [(None, 8), (data_parallel(), 1)])
def test_the_plans_shares(layout, share):
    program = training(layout)
    memory = explain(program).memory
    assert memory.params == WEIGHTS // share
    assert memory.optimizer == WEIGHTS // share
    assert memory.batch == 2 * 512 * WIDTH * 4 // 8
    assert memory.other_state == 4 + 8  # the step and the key
    assert sum((memory.params, memory.optimizer, memory.batch, memory.other_state)) == memory.arguments


def test_a_leaf_that_nothing_reads_is_held_all_the_same():
    memory = explain(training(extra=True)).memory
    held = memory.params + memory.optimizer + memory.batch + memory.other_state
    assert held == memory.arguments + 512 * 3 * 4 // 8


def test_parts_of_a_function_go_by_the_names_of_its_arguments():
    def step(state, batch):
        return jax.tree.map(lambda leaf: leaf + batch.mean(), state), batch.mean()

    on = mesh(data=8)
    state = {"params": shape(64, 64, on=on), "opt_state": shape(32, 64, on=on), "step": shape(on=on)}
    memory = explain(jax.jit(step, donate_argnums=0), state, shape(64, 8, on=on, spec=P("data"))).memory
    assert (memory.params, memory.optimizer, memory.other_state, memory.batch) == (16384, 8192, 4, 256)


def test_the_largest_arrays_are_named():
    memory = explain(training(Layout([("**", P()), ("batch.**", P())]))).memory
    assert len(memory.largest) == 10
    assert [value.num_bytes for value in memory.largest] == sorted(
        (value.num_bytes for value in memory.largest), reverse=True
    )
    arguments = {value.what: value for value in memory.largest if value.source is None}
    assert arguments["batch.x"].shape == (512, WIDTH)
    computed = [value for value in memory.largest if value.source is not None]
    assert any(value.what == "tanh in layer1, forward" for value in computed)
    assert all(value.source.file.endswith("programs.py") for value in computed)


def test_what_a_loop_keeps():
    def scanned(w, x):
        def loss(w):
            return (jax.lax.scan(lambda h, layer: (jnp.tanh(h @ layer), None), x, w)[0] ** 2).sum()

        return w - jax.grad(loss)(w)

    found = explain_on(mesh(data=8), scanned, ((4, 64, 64), P()), ((4096, 64), P("data")), donate_argnums=0)
    kept = [value for value in found.memory.largest if value.shape[-1] == 64 and value.num_bytes == 4 * 512 * 64 * 4]
    assert kept
    assert any(value.what.startswith("kept by a loop in ") for value in kept)
    assert all(value.what.endswith("scanned.loss, forward") for value in kept)


def test_the_capacity_is_the_targets():
    memory = explain(training(), target="h100:1x8").memory
    assert memory.capacity == 84_942_979_072
    assert memory.fits
