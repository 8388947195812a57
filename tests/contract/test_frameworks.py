"""Every framework shown in examples/ computes what one device computes."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from tests.contract.placed_as_planned import assert_placed_as_planned

import outlay

pytestmark = pytest.mark.newest

EXAMPLES = Path(__file__).parents[2] / "examples"
NOT_TRAINED = {"planted_fault", "pencil_fft", "cart_pole", "particle_mesh", "two_stage_pipeline", "lora"}
"""Examples that have tests of their own."""
EXAMPLE_NAMES = {path.stem for path in EXAMPLES.glob("*.py")} - NOT_TRAINED

TOLERANCE = 1e-5
"""Sums over devices are taken in another order: float32 keeps about 7 digits, and these values are of order one."""

NUM_STEPS = 3


@dataclass(frozen=True)
class Framework:
    """A framework's example.

    Attributes:
        name: what the test is called.
        init, step, make_batch: the example's functions.
        kernel: the path of the hidden layer's kernel, and of the moment that must follow it.
    """

    name: str
    init: Callable[[Any], Any]
    step: Callable[[Any, Any], Any]
    make_batch: Callable[[], Any]
    kernel: tuple[str, str]


def _example(name: str, kernel: str, moment: str) -> Framework:
    names = runpy.run_path(str(EXAMPLES / f"{name}.py"))
    return Framework(name, names["init"], names["step"], names["make_batch"], (kernel, moment))


PLAIN = _example("plain_pytree", "params.hidden.kernel", "opt_state.0.mu.hidden.kernel")


class BoxedLinen(nn.Module):
    """A Linen model whose parameters come in `nn.Partitioned` boxes, as in many published models."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        boxed = nn.with_partitioning(nn.initializers.lecun_normal(), (None, None))
        return nn.Dense(4, name="out")(nn.tanh(nn.Dense(64, name="hidden", kernel_init=boxed)(x)))


def _boxed_linen() -> Framework:
    optimizer, model = optax.adam(1e-2), BoxedLinen()

    def init(key: Any) -> Any:
        params = model.init(key, jnp.zeros((1, 16)))["params"]
        assert isinstance(params["hidden"]["kernel"], nn.Partitioned)
        return {"params": params, "opt_state": optimizer.init(params)}

    def step(state: Any, batch: Any) -> Any:
        def loss_of(params: Any) -> Any:
            logits = model.apply({"params": params}, batch["x"])
            return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()

        loss, grads = jax.value_and_grad(loss_of)(state["params"])
        updates, opt_state = optimizer.update(grads, state["opt_state"])
        return {"params": optax.apply_updates(state["params"], updates), "opt_state": opt_state}, {"loss": loss}

    return Framework("linen_boxes", init, step, PLAIN.make_batch, PLAIN.kernel)


class DropoutMLP(nnx.Module):
    """An NNX model with a stream of random keys in its state."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.hidden = nnx.Linear(16, 64, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.out = nnx.Linear(64, 4, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.out(self.dropout(nnx.tanh(self.hidden(x))))


def _split_nnx() -> Framework:
    """The other way to use NNX: split the model, keep the arrays as the state and the graph in the step."""
    optimizer = optax.adam(1e-2)
    graph = nnx.split(nnx.eval_shape(lambda: DropoutMLP(nnx.Rngs(0))))[0]

    def init(key: Any) -> Any:
        _, params, streams = nnx.split(DropoutMLP(nnx.Rngs(key)), nnx.Param, ...)
        return {"params": params, "streams": streams, "opt_state": optimizer.init(params)}

    def step(state: Any, batch: Any) -> Any:
        def loss_of(params: Any) -> Any:
            model = nnx.merge(graph, params, state["streams"], copy=True)  # its own, to count in
            loss = optax.softmax_cross_entropy_with_integer_labels(model(batch["x"]), batch["y"]).mean()
            return loss, nnx.state(model, nnx.Not(nnx.Param))

        (loss, streams), grads = jax.value_and_grad(loss_of, has_aux=True)(state["params"])
        updates, opt_state = optimizer.update(grads, state["opt_state"])
        params = optax.apply_updates(state["params"], updates)
        return {"params": params, "streams": streams, "opt_state": opt_state}, {"loss": loss}

    return Framework("nnx_split", init, step, PLAIN.make_batch, PLAIN.kernel)


EXAMPLES_OF_FRAMEWORKS = [
    PLAIN,
    _example("flax_nnx_mlp", "params.hidden.kernel", "optimizer.opt_state.0.mu.hidden.kernel"),
    _example("flax_linen_mlp", "params.hidden.kernel", "opt_state.0.mu.hidden.kernel"),
    _example("equinox_mlp", "params.layers.0.weight", "opt_state.0.mu.layers.0.weight"),
    _example("haiku_mlp", "params.mlp/~/linear_0.w", "opt_state.0.mu.mlp/~/linear_0.w"),
]


@pytest.fixture(autouse=True)
def as_users_write_it() -> Any:
    """Examples add biases as everybody does, by rank promotion, which the tests of this library refuse elsewhere."""
    with jax.numpy_rank_promotion("allow"):
        yield


def _one_device(framework: Framework) -> Any:
    """Final state and outputs by plain JAX on one device, as plain numpy leaves."""
    jit = eqx.filter_jit if framework.name == "equinox_mlp" else jax.jit
    state, outputs = jit(framework.init)(jax.random.key(3)), None
    step, batch = jit(framework.step), framework.make_batch()
    for _ in range(NUM_STEPS):
        state, outputs = step(state, batch)
    return _leaves(state), jax.device_get(outputs)


def _leaves(tree: Any) -> list[np.ndarray]:
    return [
        np.asarray(jax.random.key_data(leaf) if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf)
        for leaf in jax.tree.leaves(eqx.filter(tree, eqx.is_array))
    ]


def _assert_computes_what_one_device_computes(framework: Framework, program: outlay.Program) -> None:
    kernel, moment = (program.plan[path] for path in framework.kernel)
    assert kernel.is_split
    assert moment.dims == kernel.dims

    batch, state, outputs = framework.make_batch(), program.init(jax.random.key(3)), None
    assert_placed_as_planned(state, program.plan)
    for _ in range(NUM_STEPS):
        state, outputs = program(state, batch)
    assert_placed_as_planned(state, program.plan)

    expected_state, expected_outputs = _one_device(framework)
    np.testing.assert_allclose(outputs["loss"], expected_outputs["loss"], rtol=TOLERANCE)
    for got, want in zip(_leaves(state), expected_state, strict=True):
        np.testing.assert_allclose(got, want, rtol=TOLERANCE, atol=TOLERANCE)


# The libraries of the others train in test_sharing_in_each_library.py and test_equinox_modules.py on the newest JAX.
ON_NEWEST_JAX = {"flax_linen_mlp", "haiku_mlp"}
EXAMPLES_WITH_MARKS = [
    pytest.param(one, id=one.name, marks=[] if one.name in ON_NEWEST_JAX else pytest.mark.any_jax)
    for one in EXAMPLES_OF_FRAMEWORKS
]


@pytest.mark.some_cases(5, newest=1)
@pytest.mark.parametrize("framework", EXAMPLES_WITH_MARKS)
def test_an_example_runs_as_printed_and_computes_what_one_device_computes(
    framework: Framework, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under the example's own layout, which splits by name and by size; others meet plain trees in test_layouts.py."""
    made, own = [], outlay.program
    monkeypatch.setattr(outlay, "program", lambda *args, **options: made.append(own(*args, **options)) or made[-1])
    runpy.run_path(str(EXAMPLES / f"{framework.name}.py"), run_name="__main__")
    printed = capsys.readouterr().out
    losses = [float(line.rpartition(" ")[2]) for line in printed.splitlines() if line.startswith("step ")]
    assert "mesh data=4, model=2" in printed
    assert len(losses) == 5
    assert losses[-1] < 0.7 * losses[0]

    (program,) = made
    _assert_computes_what_one_device_computes(framework, program)


@pytest.mark.some_cases(1)
@pytest.mark.any_jax
@pytest.mark.parametrize("make", [_boxed_linen, _split_nnx])
def test_another_way_to_use_a_framework_computes_what_one_device_computes(make: Callable[[], Framework]) -> None:
    framework = make()
    split = outlay.tensor_parallel("model", columns=["params.hidden.*"], rows=["params.out.kernel"])
    layout = split + outlay.fsdp(min_size=64) + outlay.data_parallel()
    mesh, batch = outlay.mesh(data=4, model=2), framework.make_batch()
    program = outlay.program(framework.step, framework.init, batch, layout=layout, mesh=mesh)
    _assert_computes_what_one_device_computes(framework, program)


@pytest.mark.any_jax
def test_every_example_stands_in_the_list_of_frameworks() -> None:
    assert {framework.name for framework in EXAMPLES_OF_FRAMEWORKS} == EXAMPLE_NAMES


@pytest.mark.thorough  # test_equinox_modules.py trains one
@pytest.mark.any_jax
def test_the_equinox_recipe_trains_under_its_layouts() -> None:
    recipe = runpy.run_path(str(EXAMPLES / "equinox_mlp.py"))["recipe"]()
    program = outlay.program(
        recipe.step, recipe.init, recipe.data[0], layout=recipe.layouts["fsdp"], mesh=outlay.mesh("data=-1")
    )
    state = program.init(jax.random.key(recipe.seed))
    for number in range(40):
        state, _ = program(state, recipe.data[number])
    assert recipe.evaluate(program, state)["accuracy"] > 0.8
