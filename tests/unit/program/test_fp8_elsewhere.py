"""Products in FP8 compiled for absent hardware: those of its libraries where it has them, and said so where not."""

import re

import jax
import jax.numpy as jnp
import optax
import pytest
from jax.sharding import PartitionSpec as P
from tests.unit.devices.compilers import needs_gpu_compiler

import outlay
from outlay.recipes.lm import lm

pytestmark = [pytest.mark.compiles, needs_gpu_compiler]

BATCH = jax.ShapeDtypeStruct((256, 512), jnp.bfloat16)


def explained(target, scaling="current"):
    """Explain a step of two layers, and return its compiled text too."""

    def step(state, batch):
        def loss(params):
            return jnp.mean((jnp.tanh(batch @ params["up"]) @ params["down"]) ** 2).astype(jnp.float32)

        return jax.tree.map(lambda p, g: p - g, state, jax.grad(loss)(state)), None

    state = {"up": jnp.ones((512, 1024), jnp.bfloat16), "down": jnp.ones((1024, 512), jnp.bfloat16)}
    layout = outlay.Layout([("*", outlay.layout.fp8(scaling))]) + outlay.fsdp(min_size=8) + outlay.data_parallel()
    program = outlay.program(step, lambda key: state, BATCH, layout=layout, mesh=outlay.mesh(data=8, target=target))
    return outlay.explain(program), program.compiled.as_text()


def test_an_h100_multiplies_in_8_bits_forward_and_backward():
    explanation, text = explained("h100:1x8")
    calls = [line for line in text.splitlines() if 'custom_call_target="__cublas$lt$matmul$f8"' in line]
    assert len(calls) == 5  # two forward, three backward: of the batch nobody asks for a gradient
    assert text.count('custom_call_target="__cublas$lt$matmul"') == 0
    assert "f8e5m2[" in text
    assert "f8e4m3fn[" in text
    assert any(line.count("all-gather") and "f8e4m3fn" in line for line in text.splitlines())  # parameters as 8 bits
    assert not [one for one in explanation.findings if one.kind == "not-in-fp8"]


def test_an_h100_scatters_sums_of_split_tensors_and_merges_no_products():
    """A scale between a sum over devices and what splits it would have all of it sent to all devices.

    Three kernels of one operand have scales of their own; merged, they would be multiplied in wide floats.
    """

    def loss(params, batch, keys):
        x = outlay.constrain(outlay.constrain(batch * params["scale"][None, None], "stream"), "whole")
        wide = [jnp.tanh(jnp.einsum("btd,df->btf", x, params[name])) for name in ("q", "k", "v")]
        y = jnp.einsum("btf,fd->btd", wide[0] * wide[1] + wide[2], params["out"])
        added = outlay.constrain(outlay.constrain(y, "whole"), "stream")
        return jnp.sum((batch + added).astype(jnp.float32) ** 2, axis=(1, 2)), {}

    batch = jax.ShapeDtypeStruct((8, 256, 256), jnp.bfloat16)
    optimizer = optax.sgd(0.1)
    shapes = {"q": (256, 512), "k": (256, 512), "v": (256, 512), "out": (512, 256)}
    shapes |= {"scale": (256,)}
    init = outlay.init_state(lambda key: {name: jnp.ones(one, jnp.bfloat16) for name, one in shapes.items()}, optimizer)
    rules = [
        ("params.*", outlay.layout.fp8()),
        ("params.scale", outlay.replicate()),
        ("params.out", P("model")),
        ("params.*", P(None, "model")),
        ("stream", P("data", "model")),
        ("whole", P("data", None)),
        ("batch", P("data", "model")),
    ]
    mesh = outlay.mesh(data=2, model=4, target="h100:1x8")
    program = outlay.program(outlay.train_step(loss, optimizer), init, batch, layout=outlay.Layout(rules), mesh=mesh)
    text = program.compiled.as_text()
    assert text.count('custom_call_target="__cublas$lt$matmul$f8"') == 12
    assert text.count('custom_call_target="__cublas$lt$matmul"') == 0
    summed = re.findall(r"= \(?(\w+\[[\d,]*)\S* all-reduce(?:-start)?\(", text)
    assert not [shape for shape in summed if shape.count(",") == 2]
    assert len(re.findall(r" reduce-scatter(?:-start)?\(", text)) == 2  # forward, and backward one for all three


def test_what_is_computed_again_and_its_gradient_share_what_was_gathered():
    """A kernel that data devices split comes together once in each pass over its layer, in 8 bits."""
    sizes = {"width": 512, "heads": 4, "hidden": 1024, "layers": 4, "sequence": 256}
    recipe = lm("tiny", **sizes, precision="fp8", dtype="bfloat16", remat="full")
    mesh = outlay.mesh(data=4, model=2, target="h100:1x8")
    layout = recipe.layouts["fsdp+tp"]
    text = outlay.program(recipe.step, recipe.init, recipe.data[0], layout=layout, mesh=mesh).compiled.as_text()
    gathers = re.findall(r"= (.*) all-gather(?:-start)?\(.*/while/body", text)
    # Each has the seven kernels of a layer, before and after.
    assert {line.count("f8e4m3fn[") for line in gathers} == {14}


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
