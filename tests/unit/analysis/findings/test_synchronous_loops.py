"""Loops whose exchanges cannot overlap for want of the scheduler's memory are found, and others are not."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from tests.unit.devices.compilers import needs_gpu_compiler

import outlay

pytestmark = [needs_gpu_compiler, pytest.mark.newest]

SLOP = "xla_gpu_memory_limit_slop_factor"


@functools.cache
def preset():
    """The options of the preset that this version of XLA takes, which are known once something is compiled."""
    on = outlay.mesh(data=8, target="h100:1x8")
    nothing = outlay.program(
        lambda state, batch: (state, {}), lambda key: {}, {"x": jnp.ones(8)}, layout=outlay.data_parallel(), mesh=on
    )
    assert nothing.compiled
    return nothing.compiler_options.values


@functools.cache
def explained(**changes):
    """A scan over layers whose kernels are split over eight GPUs, compiled with the preset and changes to it."""
    on = outlay.mesh(data=8, target="h100:1x8")

    def array(shape, *spec):
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(on, P(*spec)))

    def loss(kernels, batch):
        x, _ = jax.lax.scan(lambda x, kernel: (jnp.tanh(x @ kernel), None), batch, kernels)
        return (x.astype(jnp.float32) ** 2).mean()

    kernels, batch = array((16, 4096, 4096), None, "data"), array((8 * 2048, 4096), "data")
    options = {**preset(), **changes}
    return outlay.explain(jax.jit(jax.grad(loss)), kernels, batch, compiler_options=options, cache=False)


def test_a_loop_that_communicates_synchronously_is_found_with_its_cause_its_cost_and_the_option():
    if "xla_gpu_enable_pipelined_all_gather" not in preset():
        pytest.skip("this version of XLA takes no exchange of a loop into the next turn, whatever its memory")
    (one,) = [one for one in explained(**{SLOP: 1}).findings if one.kind == "synchronous-loop"]
    assert "loops of the step wait for" in one.text
    assert f"that XLA's scheduler plans with ({SLOP}=1)" in one.text
    assert one.fix == f"--{SLOP}=118 among the compiler's options, with XLA_PYTHON_CLIENT_MEM_FRACTION=0.95 for the run"
    short, roomy = explained(**{SLOP: 1}).estimate, explained().estimate
    saved = short.parts["communication"] - roomy.parts["communication"]
    assert saved > 0
    assert saved <= one.seconds * 1.5  # what it says at most, give or take what else the other schedule changes


def test_a_program_whose_exchanges_overlap_has_no_such_finding():
    assert not [one for one in explained().findings if one.kind == "synchronous-loop"]
