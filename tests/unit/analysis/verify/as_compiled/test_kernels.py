"""Programs with Pallas kernels, as compiled for hardware that is absent: the kernels are computed from their source."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas
from jax.sharding import PartitionSpec as P
from tests.unit.devices.compilers import needs_tpu_compiler

import outlay
from outlay.analysis.hlo.execute.as_function import unknown_operations
from outlay.analysis.hlo.parse import parse_hlo
from outlay.analysis.verify.as_compiled import compiled_proof
from outlay.analysis.verify.as_compiled.compiled_proof import CompiledProof
from outlay.analysis.verify.as_compiled.kernels import kernel_texts
from outlay.analysis.verify.as_compiled.run_compiled import compute
from outlay.core.jax_compat import text_with_constants
from outlay.core.jax_pallas import interpreted_on_cpus, kernels_in

pytestmark = [pytest.mark.compiles, needs_tpu_compiler]


def of_blocks(name, function):
    """A kernel that maps an array block by block, and does not ask whether it could be interpreted."""

    def kernel(operand, result):
        result[...] = function(operand[...])

    blocks = pallas.BlockSpec((8, 128), lambda i: (i, 0))
    return lambda x: pallas.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(x.shape[0] // 8,),
        in_specs=[blocks],
        out_specs=blocks,
        name=name,
    )(x)


def init(key):
    return {"w": jax.random.normal(key, (128, 128)) * 0.1}


def step(state, x):
    """A product, two kernels of the user's of the same shapes, and attention with JAX's kernel for TPUs."""
    squash, lift = of_blocks("squash", jnp.tanh), of_blocks("lift", lambda x: 2 * x + 1)
    per_device = jax.shard_map(lambda x: lift(squash(x)), in_specs=P("data"), out_specs=P("data"), check_vma=False)
    y = per_device(x @ state["w"])
    heads = y.reshape(4, 256, 1, 128)
    mixed = outlay.attention(heads, heads[..., ::-1], heads, causal=True, split=P("data"))
    grad = x.T @ mixed.reshape(y.shape)
    return {"w": state["w"] - 1e-4 * grad}, {"mean": y.mean()}


@functools.cache
def program():
    x = np.random.default_rng(0).normal(size=(1024, 128)).astype(np.float32)
    mesh = outlay.mesh(data=4, target="tpu-v5e:2x2")
    return outlay.program(step, init, x, layout=outlay.fsdp(min_size=1) + outlay.data_parallel(), mesh=mesh), x


@functools.cache
def text():
    return text_with_constants(program()[0].compiled)


def verdict(monkeypatch, changed):
    """The proof of the program with another text, computed in this process."""

    def here(job):
        with jax.enable_x64(True):
            return compute(job)

    monkeypatch.setattr(compiled_proof, "text_with_constants", lambda compiled: changed)
    monkeypatch.setattr(compiled_proof, "run_apart", here)
    own, x = program()
    return CompiledProof(own, 1, None, lambda stage: None, seconds_for_passes=0).of(None, [x])


@pytest.mark.thorough  # the test of one in the place of another computes them too
def test_kernels_are_computed_from_their_source(monkeypatch):
    proof = verdict(monkeypatch, text())
    assert proof.verdict == "same", str(proof)
    assert "3 calls of Pallas kernels by Pallas's own interpreter" in proof.limits[0]


def test_a_kernel_in_the_place_of_another_is_found(monkeypatch):
    planted = re.sub(r"(%squash[\w.]* = .*)/squash/", r"\1/lift/", text())
    assert planted != text()
    assert verdict(monkeypatch, planted).verdict == "different"


def test_a_call_that_two_kernels_could_be_is_not_guessed(monkeypatch):
    module = parse_hlo(re.sub(r"(%squash[\w.]* = .*)/squash/", r"\1/", text()))
    texts = kernel_texts(module, kernels_in(program()[0].lowered_trace()))
    (one,) = unknown_operations(module, {name: parse_hlo(kernel) for name, kernel in texts.items()})
    assert one.name == "custom-call tpu_custom_call"


def test_kernels_that_differ_in_the_order_of_their_blocks_alone_are_different():
    """Their name, their shapes and their own equations are the same."""

    def copied(order):
        def kernel(operand, result):
            result[...] = operand[...]

        blocks = [pallas.BlockSpec((8, 128), which) for which in (order, lambda i: (i, 0))]
        shape = jax.ShapeDtypeStruct((16, 128), jnp.float32)
        call = pallas.pallas_call(
            kernel, out_shape=shape, grid=(2,), in_specs=blocks[:1], out_specs=blocks[1], name="copy"
        )
        (one,) = kernels_in(jax.make_jaxpr(call)(jnp.ones((16, 128))))
        return one

    straight, again, turned = (copied(order) for order in (lambda i: (i, 0), lambda i: (i, 0), lambda i: (1 - i, 0)))
    assert straight.hlo == again.hlo != turned.hlo
    text = """HloModule jit_f

ENTRY %main (x: f32[16,128]) -> f32[16,128] {
  %x = f32[16,128]{1,0} parameter(0)
  ROOT %copy.1 = f32[16,128]{1,0} custom-call(%x), custom_call_target="tpu_custom_call", metadata={op_name="f/copy"}
}"""
    assert kernel_texts(parse_hlo(text), [straight, again]) == {"copy.1": straight.hlo}
    assert kernel_texts(parse_hlo(text), [straight, turned]) == {}


def test_a_cpu_lowers_kernels_only_for_the_judge():
    double = of_blocks("double", lambda x: 2 * x)
    with interpreted_on_cpus():
        assert float(jax.jit(double)(jnp.ones((8, 128)))[0, 0]) == 2
    with pytest.raises(ValueError, match="Only interpret mode is supported on CPU"):
        jax.jit(lambda x: double(x) + 1)(jnp.ones((8, 128)))
