"""Products in FP8 compiled for absent hardware: those of its libraries where it has them, and said so where not."""

import re

import jax
import jax.numpy as jnp
import pytest
from tests.unit.devices.compilers import needs_gpu_compiler

import outlay

pytestmark = [pytest.mark.compiles, needs_gpu_compiler]

BATCH = jax.ShapeDtypeStruct((256, 512), jnp.bfloat16)


def explained(target, scaling="current"):
    """Explain a step of two layers, and return its compiled text too."""

    def step(state, batch):
        def loss(params):
            return jnp.mean(jnp.tanh(batch @ params["up"]) @ params["down"]).astype(jnp.float32)

        return jax.tree.map(lambda p, g: p - g, state, jax.grad(loss)(state)), None

    state = {"up": jnp.ones((512, 1024), jnp.bfloat16), "down": jnp.ones((1024, 512), jnp.bfloat16)}
    layout = outlay.Layout([("*", outlay.layout.fp8(scaling))]) + outlay.fsdp(min_size=8) + outlay.data_parallel()
    program = outlay.program(step, lambda key: state, BATCH, layout=layout, mesh=outlay.mesh(data=8, target=target))
    return outlay.explain(program), program.compiled.as_text()


def test_an_h100_multiplies_in_8_bits_forward_and_backward():
    explanation, text = explained("h100:1x8")
    calls = [line for line in text.splitlines() if 'custom_call_target="__cublas$lt$matmul$f8"' in line]
    assert len(calls) >= 4  # two forward, two backward; of the gradient of a mean, one number, XLA makes a sum
    assert "f8e5m2[" in text
    assert "f8e4m3fn[" in text
    assert any(line.count("all-gather") and "f8e4m3fn" in line for line in text.splitlines())  # parameters as 8 bits
    assert not [one for one in explanation.findings if one.kind == "not-in-fp8"]


@pytest.mark.some_cases(1)
@pytest.mark.parametrize(
    ("target", "scaling", "words"),
    [
        ("a100-80gb:1x8", "current", r"A100.*has no such products: they are compiled and priced in the model's dtype"),
        ("h100:1x8", "blockwise", r"no product of the compiled program takes 8 bits"),
    ],
)
def test_what_falls_back_is_the_first_finding(target, scaling, words):
    explanation, text = explained(target, scaling)
    assert "matmul$f8" not in text
    assert explanation.findings[0].kind == "not-in-fp8"
    assert re.search(words, explanation.findings[0].text), explanation.findings[0].text


def test_a_gelu_behind_a_product_compiles():
    """XLA would merge both where the product is read beside it, as a backward pass does, and refuse what it made."""

    def step(state, batch):
        up = batch @ state["up"]
        return state, (up, jax.nn.gelu(up))

    layout = outlay.Layout([("*", outlay.layout.fp8())]) + outlay.replicate() + outlay.data_parallel()
    state = {"up": jnp.ones((512, 1024), jnp.bfloat16)}
    program = outlay.program(step, lambda key: state, BATCH, layout=layout, mesh=outlay.mesh(data=8, target="h100:1x8"))
    assert "matmul$f8" in program.compiled.as_text()


def test_experts_are_multiplied_in_8_bits_together():
    """A product for each expert of a stack is one of a batch, forward and backward."""

    def step(state, batch):
        def loss(params):
            tokens = batch.reshape(4, 64, 512)
            return jnp.mean(jax.vmap(lambda kernel, x: x @ kernel)(params, tokens) ** 2).astype(jnp.float32)

        return state - jax.grad(loss)(state), None

    layout = outlay.Layout([("**", outlay.layout.fp8())]) + outlay.replicate() + outlay.data_parallel()
    state = jnp.ones((4, 512, 256), jnp.bfloat16)
    program = outlay.program(step, lambda key: state, BATCH, layout=layout, mesh=outlay.mesh(data=8, target="h100:1x8"))
    products = [line for line in program.compiled.as_text().splitlines() if " = " in line and "$lt$matmul" in line]
    assert len(products) == 2
    assert all("matmul$f8" in line for line in products)
